//! The engine's half of a started batch.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Pending;
use super::core::{Core, drop_core};
use crate::buffer::{Block, BlockMut};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::batch::{Dest, Read};

/// A read that failed: why, and the destination if one was given and nobody writes it any more.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The caller's block. `None` if none was given, or if it is not known to be at rest (the system or a device may
    /// still write it; the deadline came first): then it is released when the engine is done with it.
    pub dest: Option<BlockMut>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl Failed {
    /// A failure that gives a destination back, if `dest` holds one.
    pub fn new(error: Error, dest: Dest) -> Self {
        let dest = match dest {
            Dest::Into(block) => Some(block),
            _ => None,
        };
        Failed { error, dest }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed { error, dest: None }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

pub(super) type Outcome = Result<Block, Failed>;

/// The engine's half of one read.
///
/// An engine keeps it with the memory and the file until the system is done with both, then
/// [finishes](Self::finish) it. Dropped unfinished, it reports [`Abandoned`](ErrorKind::Abandoned), so that a
/// dead engine never hangs anyone; past the deadline, [`TimedOut`](ErrorKind::TimedOut).
pub struct Ticket {
    core: ManuallyDrop<Arc<Core>>,
    index: usize,
    len: u64,
    /// Length of the block to be delivered: with what was filled before, or nothing for a hint.
    whole: u64,
    reported: AtomicU64,
    finished: bool,
}

impl Ticket {
    /// The ticket of `read`, which is at `index`. One for each read, to be made once.
    pub(in crate::reader) fn new(pending: &Pending, index: usize, read: &Read) -> Self {
        let len = read.len();
        Ticket {
            core: ManuallyDrop::new(Arc::clone(&pending.core)),
            index,
            len,
            whole: match &read.dest {
                Dest::Any(_) => len,
                Dest::Into(block) => len.saturating_add(block.filled_len() as u64),
                Dest::Prefetch => 0,
            },
            reported: AtomicU64::new(0),
            finished: false,
        }
    }

    /// Whether anybody still waits: false once the [`Pending`] was dropped or timed out. Work that has not been
    /// handed to the system may then be skipped.
    pub fn wanted(&self) -> bool {
        self.core.wanted.load(Ordering::Relaxed) && !self.is_late()
    }

    fn range(&self) -> Range<u64> {
        if !self.core.generation.is_current() {
            return 0..0; // the lock may be held for ever here
        }
        let state = self.core.lock();
        let slot = state.slots.get(self.index);
        slot.map(|slot| slot.range.clone()).unwrap_or_default()
    }

    fn is_late(&self) -> bool {
        self.core
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Reports `bytes` more as read, for [`Pending::progress`]. Optional: finishing reports the rest.
    pub fn add_progress(&self, bytes: u64) {
        let before = self.reported.fetch_add(bytes, Ordering::Relaxed);
        let counted = bytes.min(self.len.saturating_sub(before));
        self.core.bytes.fetch_add(counted, Ordering::Relaxed);
    }

    /// Hands the outcome to the waiter and wakes it. Late ones (after a deadline, or with nobody waiting) are
    /// dropped.
    pub fn finish(mut self, outcome: Result<Block, Failed>) {
        self.complete(outcome);
    }

    fn complete(&mut self, mut outcome: Outcome) {
        self.finished = true;
        if let Ok(block) = &outcome
            && block.len() as u64 != self.whole
        {
            let (wanted, got) = (self.whole, block.len() as u64);
            let range = self.range();
            let error = self
                .core
                .error(ErrorKind::WrongLength { wanted, got }, range);
            outcome = Err(error.into());
        }
        if let Err(failed) = &mut outcome
            && matches!(failed.error.kind(), ErrorKind::Abandoned)
            && self.is_late()
        {
            // An engine that skipped what nobody waits for any more has not failed.
            let mut late = Error::new(ErrorKind::TimedOut)
                .named(&self.core.name)
                .by(self.core.engine);
            if let (Some(offset), Some(len)) = (failed.error.offset(), failed.error.length()) {
                late = late.at(offset..offset.saturating_add(len));
            }
            failed.error = late;
        }
        if let Err(failed) = &mut outcome
            && (failed.error.name().is_none() || failed.error.offset().is_none())
        {
            // Every error says where, whatever the engine knew.
            let error = failed.error.clone().named(&self.core.name);
            failed.error = error.at(self.range()).by(self.core.engine);
        }
        if self.core.generation.is_current() {
            let reported = self.reported.load(Ordering::Relaxed).min(self.len);
            let unreported = if outcome.is_ok() {
                self.len - reported
            } else {
                0
            };
            self.core.finish(self.index, outcome, unreported);
        } else {
            // The lock may be held by a thread that does not exist here; the memory may be in use there.
            std::mem::forget(outcome);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.finished && self.core.generation.is_current() {
            let error = self.core.error(ErrorKind::Abandoned, self.range());
            self.complete(Err(error.into()));
        }
        if self.core.generation.is_current() {
            drop_core(&mut self.core);
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("source", &self.core.name)
            .field("index", &self.index)
            .field("len", &self.len)
            .finish()
    }
}
