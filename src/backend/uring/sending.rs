//! What is on its way to a ring: work that was handed in, and operations made of it ahead of time.

use std::collections::VecDeque;
use std::sync::Arc;

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
                Ok(piece.if_wanted().and_then(Operation::read))
            }
            Load::Files(files) => Ok(Some(Operation::File(files.claim().ok_or(())?))),
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
    fn abandon(&self, error: &Error) {
        match self {
            Load::Pieces(work) => {
                work.abandon(error);
            }
            Load::Files(files) => {
                files.cancel();
                files.give_up(error);
            }
        }
    }

    pub(super) fn engine(&self) -> &'static str {
        match self {
            Load::Pieces(work) => work.context().access().route().name(),
            Load::Files(_) => Route::Uring.name(),
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
                Err(()) => drop(self.loads.pop_front()),
            }
        }
        !self.ready.is_empty()
    }

    /// Gives up what has not been sent.
    pub(super) fn give_up(self, error: &Error) {
        for operation in self.ready {
            operation.give_up(error);
        }
        for load in self.loads {
            load.give_up(error);
        }
    }

    /// Gives up everything: who waits for what was sent is told as well.
    pub(super) fn abandon(self, error: &Error) {
        for load in &self.loads {
            load.abandon(error);
        }
        self.give_up(error);
    }
}
