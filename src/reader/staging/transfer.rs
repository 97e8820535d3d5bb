//! The device's side of staging: what a device has to offer, and the handle that ends one copy.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use bytes::Bytes;

use super::driver::Event;
use crate::buffer::{BlockMut, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::Failed;
use crate::sys::Generation;

/// Name that errors of staging carry as their engine.
pub(super) const STAGING: &str = "staging";

/// How bytes get from host memory to a device.
///
/// [`Staged`](super::Staged) calls all methods but [`reaches`](Self::reaches) and [`name`](Self::name) on its own thread, one at a time:
/// while one of them blocks, no other device read of that reader makes progress. A method that panics fails the
/// reads it was called for with [`Abandoned`](ErrorKind::Abandoned), and no others.
///
/// It is [`Any`], so that an engine that knows a device finds it: `(transfer as &dyn Any).downcast_ref::<Device>()`.
pub trait Transfer: Any + fmt::Debug + Send + Sync {
    /// Whether [`copy`](Self::copy) can write to memory at `place`. Always the same answer; called by the thread
    /// that submits.
    fn reaches(&self, place: Place) -> bool;

    /// What reports call it. Default: its `Debug` form.
    fn name(&self) -> String {
        format!("{self:?}")
    }

    /// Memory for a read that left the choice to the engine ([`Dest::Any`](crate::Dest::Any)): unfilled, at
    /// `place`, at least `len` bytes. `len` may be 0.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if the device has no room. The read fails with it.
    fn allocate(&self, place: Place, len: usize) -> Result<BlockMut>;

    /// Host memory to read into: unfilled, at least `len` bytes, best page-aligned, page-locked and used again
    /// ([`Pool`](crate::Pool) keeps blocks). It is given back when its bytes have been copied.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if it is refused. The reads it was for fail with it.
    fn staging(&self, len: usize) -> Result<BlockMut>;

    /// Starts copying all of `from` to the start of the unfilled part of `to`, which has exactly that much room,
    /// and returns without waiting for it.
    ///
    /// When the bytes are there, [`done.finish`](TransferDone::finish) takes `to` back, [advanced] by the length
    /// of `from`: from any thread, in any order, also before this method returns. `from` is staging memory, so
    /// hold it exactly as long as the device reads it.
    ///
    /// [advanced]: BlockMut::advance
    fn copy(&self, from: Bytes, to: BlockMut, done: TransferDone);
}

/// Ends one [`Transfer::copy`]. Dropped unfinished, the read fails with [`Abandoned`](ErrorKind::Abandoned).
#[must_use = "dropping it fails the read"]
pub struct TransferDone {
    line: Line,
    job: u64,
    piece: usize,
    finished: bool,
}

impl TransferDone {
    pub(super) fn new(line: Line, job: u64, piece: usize) -> Self {
        TransferDone {
            line,
            job,
            piece,
            finished: false,
        }
    }

    /// Says how the copy ended: the destination, filled, or the failure, with the destination unless the device
    /// may still write it. Costs one message to the staging thread and never waits.
    pub fn finish(mut self, outcome: Result<BlockMut, Failed>) {
        self.send(outcome);
    }

    fn send(&mut self, outcome: Result<BlockMut, Failed>) {
        self.finished = true;
        self.line.send(Event::Copied {
            job: self.job,
            piece: self.piece,
            outcome,
        });
    }
}

impl Drop for TransferDone {
    fn drop(&mut self) {
        if !self.finished {
            self.send(Err(Error::new(ErrorKind::Abandoned).by(STAGING).into()));
        }
    }
}

impl fmt::Debug for TransferDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferDone")
            .field("job", &self.job)
            .field("piece", &self.piece)
            .finish_non_exhaustive()
    }
}

/// The way to the staging thread. In a forked child, where no such thread is and another one may have held the
/// channel's locks, it swallows everything and is leaked.
#[derive(Clone)]
pub(super) struct Line {
    sender: Option<Sender<Event>>,
    generation: Generation,
}

impl Line {
    pub(super) fn new(sender: Sender<Event>) -> Self {
        Line {
            sender: Some(sender),
            generation: Generation::current(),
        }
    }

    pub(super) fn send(&self, event: Event) {
        // Nobody listens once the thread has ended: the event, and memory in it, is released here.
        let _ = self.offer(event);
    }

    /// Gives the event back if the thread has ended.
    pub(super) fn offer(&self, event: Event) -> Result<(), Event> {
        if !self.generation.is_current() {
            std::mem::forget(event);
            return Ok(());
        }
        match &self.sender {
            Some(sender) => sender.send(event).map_err(|refused| refused.0),
            None => Err(event),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            std::mem::forget(self.sender.take());
        }
    }
}

/// One of the few staging blocks that may exist at a time; lives as long as the block's memory, whoever holds
/// it, so that an engine or a device that hangs on to a block cannot make more of them exist.
pub(super) struct Lease {
    taken: Arc<AtomicUsize>,
    line: Line,
}

impl Lease {
    /// Whether fewer than `depth` are taken.
    pub(super) fn is_free(taken: &AtomicUsize, depth: usize) -> bool {
        taken.load(Ordering::Acquire) < depth
    }

    /// Takes one. Only the staging thread does, so what was free for it still is.
    pub(super) fn take(taken: &Arc<AtomicUsize>, line: &Line) -> Self {
        taken.fetch_add(1, Ordering::Relaxed);
        Lease {
            taken: taken.clone(),
            line: line.clone(),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Release);
        self.line.send(Event::Returned);
    }
}
