//! What is in flight in one ring, and its way there and back.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// How long a turn waits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    Now,
    /// The first completion.
    One,
    /// Some more, if they come at once: there are requests to be sent in their places, which go together then.
    Several,
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
            Operation::File(file) => file.give_up(error),
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

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.flying.load(Ordering::Relaxed)
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

    /// Operations that have landed, and of which those who wait do not know yet.
    pub(super) fn untold(&self) -> usize {
        self.landed.len()
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
        let asked = self.ask(slot);
        if asked.is_err()
            && let Some(flying) = self.slots[slot].take()
        {
            // The kernel never heard of it.
            self.free.push(slot);
            flying.tally.landed(flying.bytes);
            let error = Error::new(ErrorKind::Abandoned);
            if let Operation::Read(read) = &flying.operation {
                read.landed();
            }
            self.landed.push((flying.operation, Err(error)));
        }
        asked
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
    pub(super) fn turn(&mut self, until: Until) -> io::Result<bool> {
        let entered = match until {
            Until::Now => self.ring.enter(0)?,
            Until::One => self.ring.enter(1)?,
            // With many in flight the device is busy meanwhile.
            Until::Several if self.len() >= 16 => self.ring.gather((self.len() / 4).min(8))?,
            Until::Several => self.ring.enter(1)?,
        };
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
            let _ = catch_unwind(AssertUnwindSafe(|| match operation {
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
        let again = catch_unwind(AssertUnwindSafe(|| match &mut flying.operation {
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
            // It wakes tasks and may release memory of others: their panics end here.
            let _ = catch_unwind(AssertUnwindSafe(|| flying.operation.leak()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::fixture::{Fixture, skipped};
    use super::*;
    use crate::backend::device::{Bounds, Share};
    use crate::buffer::{BlockMut, Memory, Place};
    use crate::reader::{Batch, ReadOptions};

    fn device() -> Arc<Device> {
        let bounds = Bounds {
            depth: 64,
            bytes: 1 << 20,
        };
        Arc::new(Device::new(None, bounds))
    }

    /// A flight of `entries`; `None` where there are no rings.
    fn flight(entries: u32) -> Option<Flight> {
        match Ring::new(entries) {
            Ok(ring) => {
                ring.begin(4).unwrap();
                Some(Flight::new(ring))
            }
            Err(why) => {
                skipped("uring", why);
                None
            }
        }
    }

    fn launch(flight: &mut Flight, piece: Piece, device: &Arc<Device>, tally: &Tally) {
        assert!(device.enter(piece.len(), true, Share::Whole));
        let operation = Operation::read(piece).unwrap();
        flight.launch(operation, tally).unwrap();
    }

    fn turn(flight: &mut Flight) {
        flight.turn(Until::One).unwrap();
        flight.deliver();
    }

    fn is_empty(device: &Device) -> bool {
        // All of it is free for one who is not alone.
        let fits = device.enter(1 << 20, false, Share::Whole);
        device.leave(1 << 20);
        fits
    }

    #[test]
    fn all_come_back_and_the_room_with_them() {
        let Some(mut flight) = flight(4) else { return };
        let fixture = Fixture::new(100_000);
        let context = fixture.buffered();
        let ranges: Vec<_> = (0..15u64).map(|i| i * 6001..i * 6001 + 1500).collect();
        let (pieces, pending) = Fixture::pieces(&context, Batch::of(ranges.clone()), 1000);
        assert_eq!(pieces.len(), ranges.len());
        let device = device();
        let tally = Tally::new(device.clone(), None);
        for piece in pieces {
            while flight.len() == flight.capacity() {
                turn(&mut flight);
            }
            launch(&mut flight, piece, &device, &tally);
            assert_eq!(tally.len(), flight.len());
        }
        while flight.len() > 0 {
            turn(&mut flight);
        }
        assert_eq!(tally.len(), 0);
        assert!(is_empty(&device));
        let blocks = pending.wait().unwrap();
        for (block, range) in blocks.iter().zip(&ranges) {
            assert_eq!(block.as_host().unwrap()[..], *fixture.bytes(range));
        }
    }

    #[test]
    fn a_file_is_let_go_with_its_last_completion() {
        let Some(mut flight) = flight(4) else { return };
        let fixture = Fixture::new(10_000);
        let context = fixture.buffered();
        let (pieces, pending) = Fixture::pieces(&context, Batch::of([0..10, 5000..6000]), 1000);
        let device = device();
        let tally = Tally::new(device.clone(), None);
        for piece in pieces {
            launch(&mut flight, piece, &device, &tally);
        }
        while flight.len() > 0 {
            turn(&mut flight);
        }
        pending.wait().unwrap();
        assert_eq!(Arc::strong_count(context.access()), 1, "kept by the ring");
    }

    struct Watched(Vec<u8>, Arc<AtomicUsize>);

    // SAFETY: the content of a vector, which does not move and is not touched otherwise.
    unsafe impl Memory for Watched {
        fn place(&self) -> Place {
            Place::Host
        }
        fn ptr(&self) -> *mut u8 {
            self.0.as_ptr().cast_mut()
        }
        fn len(&self) -> usize {
            self.0.len()
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_in_flight_when_the_ring_goes_is_told_and_its_memory_kept() {
        let Some(mut flight) = flight(8) else { return };
        let fixture = Fixture::new(10_000);
        let context = fixture.buffered();
        let released = Arc::new(AtomicUsize::new(0));
        let batch = (0..3).fold(Batch::new(), |batch, i| {
            let memory = Watched(vec![0; 100], released.clone());
            batch.read_into(i * 1000..i * 1000 + 100, BlockMut::new(memory))
        });
        // Each into its own memory, rather than by way of a block that they share.
        let batch = batch.options(ReadOptions::default().gap(0));
        let (mut pieces, mut pending) = Fixture::pieces(&context, batch, 1000);
        let device = device();
        let tally = Tally::new(device.clone(), None);
        for piece in pieces.drain(..2) {
            launch(&mut flight, piece, &device, &tally);
        }
        drop(flight);
        assert!(is_empty(&device));
        assert_eq!(tally.len(), 0);
        for _ in 0..2 {
            let (_, outcome) = pending.try_next().unwrap();
            let failed = outcome.unwrap_err();
            assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
            assert!(failed.dest.is_none(), "the kernel may still write to it");
        }
        assert!(pending.try_next().is_none(), "it has not been sent");
        drop((pieces, pending, context));
        assert_eq!(released.load(Ordering::Relaxed), 1, "of what was not sent");
    }
}
