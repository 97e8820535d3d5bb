//! What is in flight in one ring, and its way there and back.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use super::files::{FileOperation, FileStep, GUESS};
use super::operation::{Call, ReadOperation, Step};
use super::ring::Ring;
use crate::backend::device::Device;
use crate::backend::requests::{Piece, Verdicts};
use crate::error::{Error, ErrorKind};

/// The word of entries that are not operations.
pub(super) const WAKE: u64 = u64::MAX;

/// A ring and the operations in it. Their memory, files and tickets are kept here until the kernel is done.
pub(super) struct Flight {
    ring: Ring,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    reaped: Vec<(u64, i32)>,
    verdicts: Verdicts,
}

struct InFlight {
    operation: Operation,
    bytes: u64,
    /// Of which it is one more.
    tally: Tally,
}

#[allow(clippy::large_enum_variant)] // they live in the slots, which are made once
enum Operation {
    Read(ReadOperation),
    File(FileOperation),
}

/// Counts operations of one batch that are in flight, and their share of what the device has room for.
#[derive(Clone)]
pub(super) struct Tally(Rc<(Cell<usize>, Arc<Device>)>);

impl Tally {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Tally(Rc::new((Cell::new(0), device)))
    }

    pub(super) fn len(&self) -> usize {
        self.0.0.get()
    }

    fn left(&self, bytes: u64) {
        self.0.1.leave(bytes);
    }

    fn add(&self) {
        self.0.0.set(self.0.0.get() + 1);
    }

    fn landed(&self, bytes: u64) {
        self.0.0.set(self.0.0.get().saturating_sub(1));
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

    /// Sends a piece on its way. The caller has seen that there is room, here and on the device.
    pub(super) fn launch(&mut self, piece: Piece, tally: &Tally) -> io::Result<()> {
        let bytes = piece.len();
        let operation = match ReadOperation::new(piece) {
            Ok(operation) => operation,
            Err((piece, error)) => {
                tally.left(bytes);
                piece.finish(Err(error), |context| context.verify());
                return Ok(());
            }
        };
        self.begin(Operation::Read(operation), bytes, tally)
    }

    /// Sends a file on its way. The caller has seen that there is room, here and on the device.
    pub(super) fn launch_file(&mut self, file: FileOperation, tally: &Tally) -> io::Result<()> {
        self.begin(Operation::File(file), GUESS, tally)
    }

    fn begin(&mut self, operation: Operation, bytes: u64, tally: &Tally) -> io::Result<()> {
        let Some(slot) = self.free.pop() else {
            // Not reached, as the caller looks first; dropping it tells those who wait.
            tally.left(bytes);
            return Ok(());
        };
        tally.add();
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

    /// Submits what was pushed, waits for at least `wanted` completions, and deals with all that are there.
    /// `true`: one of them was [`WAKE`].
    ///
    /// An error means that this ring cannot go on. Signals and a kernel short of memory are none: the caller asks
    /// again.
    pub(super) fn turn(&mut self, wanted: usize) -> io::Result<bool> {
        let entered = self.ring.enter(wanted)?;
        let mut reaped = std::mem::take(&mut self.reaped);
        self.ring.completions(&mut reaped);
        if reaped.is_empty() && entered == super::ring::Entered::Again {
            // No room in the kernel, and nothing came that would have made some.
            std::thread::yield_now();
        }
        // One look at a file's version covers all that were read before it.
        self.verdicts.clear();
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
        self.verdicts.clear(); // it would keep files open
        outcome.map(|()| woken)
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
        let verdicts = &mut self.verdicts;
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| match flying.operation {
            Operation::Read(read) => read
                .into_piece()
                .finish(outcome, |context| verdicts.of(context)),
            Operation::File(file) => drop(file),
        }));
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
            return;
        }
        for flying in self.slots.drain(..).flatten() {
            flying.tally.landed(flying.bytes);
            match flying.operation {
                Operation::Read(read) => read.leak(),
                Operation::File(file) => file.leak(),
            }
        }
    }
}
