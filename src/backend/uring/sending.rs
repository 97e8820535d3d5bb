//! What is on its way to a ring: work that was handed in, and operations made of it ahead of time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use super::files::Files;
use super::flight::{Operation, Tally};
use crate::backend::requests::Batched;
use crate::error::Error;
use crate::reader::Route;

/// What can be handed in.
#[derive(Debug)]
pub(super) enum Load {
    Pieces(Arc<Batched>),
    Files(Arc<Files>),
}

impl Load {
    /// The next operation; `Err`: there are no more.
    fn next(&self) -> Result<Option<Operation>, ()> {
        match self {
            Load::Pieces(work) => {
                let piece = work.claim().ok_or(())?;
                // Of what nobody wants, memory of others is released: its panics end here.
                let next = || piece.if_wanted().and_then(Operation::read);
                Ok(catch_unwind(AssertUnwindSafe(next)).unwrap_or(None))
            }
            Load::Files(files) => {
                let next = || files.claim().map(Operation::File);
                match catch_unwind(AssertUnwindSafe(next)) {
                    Ok(next) => next.map(Some).ok_or(()),
                    Err(_) => Ok(None),
                }
            }
        }
    }

    /// Gives up what has not been sent.
    pub(super) fn give_up(&self, error: &Error) {
        match self {
            Load::Pieces(work) => work.give_up(error),
            Load::Files(files) => files.give_up(error),
        }
    }

    /// Gives up everything: who waits for what was sent is told as well.
    pub(super) fn abandon(&self, error: &Error) {
        match self {
            Load::Pieces(work) => {
                work.abandon(error);
            }
            Load::Files(files) => files.abandon(error),
        }
    }

    pub(super) fn downgrade(&self) -> WeakLoad {
        match self {
            Load::Pieces(work) => WeakLoad::Pieces(Arc::downgrade(work)),
            Load::Files(files) => WeakLoad::Files(Arc::downgrade(files)),
        }
    }

    pub(super) fn engine(&self) -> &'static str {
        match self {
            Load::Pieces(work) => work.context().access().route().name(),
            Load::Files(_) => Route::Uring.name(),
        }
    }
}

/// A [`Load`] that goes when it is done.
#[derive(Debug)]
pub(super) enum WeakLoad {
    Pieces(Weak<Batched>),
    Files(Weak<Files>),
}

impl WeakLoad {
    pub(super) fn upgrade(&self) -> Option<Load> {
        match self {
            WeakLoad::Pieces(work) => work.upgrade().map(Load::Pieces),
            WeakLoad::Files(files) => files.upgrade().map(Load::Files),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        match self {
            WeakLoad::Pieces(work) => work.strong_count() > 0,
            WeakLoad::Files(files) => files.strong_count() > 0,
        }
    }
}

/// Does what tells others until it is through: it wakes tasks and releases memory, and each of their panics ends one
/// try. What was told stays told, so the next try gets further.
pub(super) fn insist<T>(mut tell: impl FnMut() -> T) -> T {
    loop {
        if let Ok(through) = catch_unwind(AssertUnwindSafe(&mut tell)) {
            return through;
        }
    }
}

/// What is to be sent of one batch.
pub(super) struct Sending {
    loads: VecDeque<Load>,
    /// Made while the ring's owner would have waited, so that the device need not wait for them.
    ready: VecDeque<Operation>,
    tally: Tally,
}

/// Operations that are made ahead, and the size up to which they are.
pub(super) const AHEAD: usize = 32;
const AHEAD_BYTES: u64 = 64 << 10;

impl Sending {
    pub(super) fn new(load: Load, tally: Tally) -> Self {
        Sending {
            loads: VecDeque::from([load]),
            ready: VecDeque::new(),
            tally,
        }
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Adds more of the same batch.
    pub(super) fn push(&mut self, load: Load) {
        self.loads.push_back(load);
    }

    /// The next operation that is ready.
    pub(super) fn next(&mut self) -> Option<Operation> {
        self.ready.pop_front()
    }

    /// For one that there was no room for.
    pub(super) fn put_back(&mut self, operation: Operation) {
        self.ready.push_front(operation);
    }

    /// Makes operations until `most` are ready, as long as they are small. `false`: there are none left.
    pub(super) fn prepare(&mut self, most: usize) -> bool {
        while self.ready.len() < most {
            let large = |ready: &Operation| ready.bytes() > AHEAD_BYTES;
            if self.ready.back().is_some_and(large) {
                break;
            }
            let Some(load) = self.loads.front() else {
                break;
            };
            match load.next() {
                Ok(operation) => self.ready.extend(operation),
                Err(()) => {
                    let done = self.loads.pop_front();
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(done)));
                }
            }
        }
        !self.ready.is_empty()
    }

    /// Gives up what has not been sent.
    pub(super) fn give_up(self, error: &Error) {
        for operation in self.ready {
            // It wakes tasks and releases memory of others: their panics end here.
            let _ = catch_unwind(AssertUnwindSafe(|| operation.give_up(error)));
        }
        for load in self.loads {
            insist(|| load.give_up(error));
            // The memory that goes with it may be of others, too.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(load)));
        }
    }

    /// Gives up everything: who waits for what was sent is told as well.
    pub(super) fn abandon(self, error: &Error) {
        for load in &self.loads {
            insist(|| load.abandon(error));
        }
        self.give_up(error);
    }
}
