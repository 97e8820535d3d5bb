//! What is in flight in one ring, and its way there and back.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::{opcode, squeue, types};

use super::files::{FileOperation, FileStep, GUESS};
use super::operation::{Call, ReadOperation, Step};
use super::ring::{Entered, Ring};
use crate::backend::device::Device;
use crate::backend::requests::{Piece, Verdicts};
use crate::error::{Error, ErrorKind, Result};

/// The word of entries that are not operations.
pub(super) const WAKE: u64 = u64::MAX;

/// A ring and the operations in it. Their memory, files and tickets are kept here until the kernel is done.
pub(super) struct Flight {
    ring: Ring,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    reaped: Vec<(u64, i32)>,
    /// Done, and not yet told to those who wait.
    landed: Vec<(Operation, Result<()>)>,
    verdicts: Verdicts,
}

struct InFlight {
    operation: Operation,
    bytes: u64,
    /// Of which it is one more.
    tally: Tally,
}

/// What goes through a ring.
#[allow(clippy::large_enum_variant)] // they live in slots and short lists, which are made once
pub(super) enum Operation {
    Read(ReadOperation),
    File(FileOperation),
}

impl Operation {
    /// A piece to be read. `None`: it was finished with an error.
    pub(super) fn read(piece: Piece) -> Option<Self> {
        match ReadOperation::new(piece) {
            Ok(operation) => Some(Operation::Read(operation)),
            Err((piece, error)) => {
                piece.finish(Err(error), |context| context.verify());
                None
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Operation::Read(read) => read.piece().len(),
            Operation::File(_) => GUESS,
        }
    }

    /// Gives it up before it was launched.
    pub(super) fn give_up(self, error: &Error) {
        match self {
            Operation::Read(read) => read.into_piece().skip(error.clone()),
            Operation::File(mut file) => file.abandon(error),
        }
    }

    /// Gives it up while the kernel may still write to its memory, which is never freed.
    fn leak(self) {
        match self {
            Operation::Read(read) => read.leak(),
            Operation::File(file) => file.leak(),
        }
    }
}

/// Counts operations of one batch that are in flight, and their share of what the device has room for.
#[derive(Clone, Debug)]
pub(super) struct Tally(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    /// Changed by the one thread that owns the ring.
    flying: AtomicUsize,
    most: usize,
    device: Arc<Device>,
}

impl Tally {
    /// Of a batch that may have `most` requests in flight, as far as `device` has room for them.
    pub(super) fn new(device: Arc<Device>, most: Option<NonZeroUsize>) -> Self {
        Tally(Arc::new(Counted {
            flying: AtomicUsize::new(0),
            most: most.map_or(usize::MAX, NonZeroUsize::get),
            device,
        }))
    }

    /// Whether both count the same batch.
    pub(super) fn is(&self, other: &Tally) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.flying.load(Ordering::Relaxed) >= self.0.most
    }

    fn left(&self, bytes: u64) {
        self.0.device.leave(bytes);
    }

    fn add(&self) {
        self.0.flying.fetch_add(1, Ordering::Relaxed);
    }

    fn landed(&self, bytes: u64) {
        self.0.flying.fetch_sub(1, Ordering::Relaxed);
        self.left(bytes);
    }
}

impl Flight {
    pub(super) fn new(ring: Ring) -> Self {
        let capacity = ring.capacity();
        Flight {
            ring,
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            reaped: Vec::with_capacity(2 * capacity),
            landed: Vec::with_capacity(capacity),
            verdicts: Verdicts::default(),
        }
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Operations in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Tells all who wait for what is in flight that nothing will come; its memory is kept until the kernel is done.
    /// The number of operations.
    pub(super) fn abandon(&mut self, error: &Error) -> usize {
        let mut left = 0;
        for flying in self.slots.iter_mut().flatten() {
            left += 1;
            match &mut flying.operation {
                Operation::Read(read) => {
                    read.piece().work().abandon(error);
                }
                Operation::File(file) => file.abandon(error),
            }
        }
        left
    }

    /// Sends an operation on its way. The caller has seen that there is room, here and on the device.
    pub(super) fn launch(&mut self, operation: Operation, tally: &Tally) -> io::Result<()> {
        let bytes = operation.bytes();
        let Some(slot) = self.free.pop() else {
            // Not reached, as the caller looks first; dropping it tells those who wait.
            tally.left(bytes);
            return Ok(());
        };
        tally.add();
        if let Operation::Read(read) = &operation {
            read.launched();
        }
        self.slots[slot] = Some(InFlight {
            operation,
            bytes,
            tally: tally.clone(),
        });
        self.ask(slot)
    }

    /// Pushes what the operation in `slot` asks for next.
    fn ask(&mut self, slot: usize) -> io::Result<()> {
        let Some(flying) = &mut self.slots[slot] else {
            return Ok(());
        };
        let entry = match &mut flying.operation {
            Operation::Read(read) => entry_of(read.call()),
            Operation::File(file) => file.entry(),
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: file and memory are the operation's, which stays in its slot until its completion was seen, or is
        // leaked with them.
        unsafe { self.push(&entry) }
    }

    /// Pushes an entry, making room for it if need be.
    ///
    /// # Safety
    /// As for [`Ring::push`].
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's to vouch for.
        while !unsafe { self.ring.push(entry) } {
            self.ring.enter(0)?;
        }
        Ok(())
    }

    /// Submits what was pushed, waits for completions if `wait`, and takes all that are there: room for others is made
    /// at once, those who wait are told by [`deliver`](Self::deliver). `true`: one of them was [`WAKE`].
    ///
    /// An error means that this ring cannot go on. Signals and a kernel short of memory are none: the caller asks
    /// again.
    pub(super) fn turn(&mut self, wait: bool) -> io::Result<bool> {
        let entered = self.ring.enter(usize::from(wait))?;
        let mut reaped = std::mem::take(&mut self.reaped);
        self.ring.completions(&mut reaped);
        if reaped.is_empty() && entered == Entered::Again {
            // No room in the kernel, and nothing came that would have made some.
            std::thread::yield_now();
        }
        let mut woken = false;
        let mut outcome = Ok(());
        for (word, result) in reaped.drain(..) {
            if word == WAKE {
                woken = true;
            } else if let Err(error) = self.land(word as usize, result) {
                outcome = Err(error);
            }
        }
        self.reaped = reaped;
        outcome.map(|()| woken)
    }

    /// Submits what was pushed, without waiting.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        if self.ring.unsubmitted() > 0 {
            self.ring.enter(0)?;
        }
        Ok(())
    }

    /// Tells those who wait for what has landed.
    pub(super) fn deliver(&mut self) {
        // One look at a file's version covers all that were read before it.
        let verdicts = &mut self.verdicts;
        for (operation, outcome) in self.landed.drain(..) {
            // It may release memory of others and wake tasks: their panics end here.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| match operation {
                Operation::Read(read) => read
                    .into_piece()
                    .finish(outcome, |context| verdicts.of(context)),
                Operation::File(file) => drop(file),
            }));
        }
        verdicts.clear(); // they would keep files open
    }

    /// Deals with the completion of what is in `slot`.
    fn land(&mut self, slot: usize, result: i32) -> io::Result<()> {
        let Some(flying) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
            return Ok(());
        };
        // What ends here may release memory of others and wake tasks: their panics end here.
        let again = std::panic::catch_unwind(AssertUnwindSafe(|| match &mut flying.operation {
            Operation::Read(read) => match read.answer(result) {
                Step::Again => None,
                Step::Done(outcome) => Some(outcome),
            },
            Operation::File(file) => match file.answer(result) {
                FileStep::Ask => None,
                FileStep::Over => Some(Ok(())),
            },
        }));
        let outcome = match again {
            Ok(None) => return self.ask(slot),
            Ok(Some(outcome)) => outcome,
            Err(_) => Err(Error::new(ErrorKind::Abandoned)),
        };
        let Some(flying) = self.slots[slot].take() else {
            return Ok(());
        };
        self.free.push(slot);
        flying.tally.landed(flying.bytes);
        if let Operation::Read(read) = &flying.operation {
            read.landed();
        }
        self.landed.push((flying.operation, outcome));
        Ok(())
    }
}

fn entry_of(call: Call) -> squeue::Entry {
    let flags = match call.may_wait {
        true => squeue::Flags::ASYNC,
        false => squeue::Flags::empty(),
    };
    opcode::Read::new(types::Fd(call.fd), call.target, call.len)
        .offset(call.offset)
        .build()
        .flags(flags)
}

impl Drop for Flight {
    /// Leaves what is in flight to the kernel: those who wait are told, and its memory is never freed.
    fn drop(&mut self) {
        if !self.ring.is_current() {
            // Everything in here may be in use by the parent.
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.landed));
            return;
        }
        self.deliver();
        for flying in self.slots.drain(..).flatten() {
            flying.tally.landed(flying.bytes);
            flying.operation.leak();
        }
    }
}
