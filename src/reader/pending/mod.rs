//! The two halves of a started batch: [`Ticket`]s, which the engine finishes, and [`Pending`], which the caller
//! waits for.

mod core;
mod read;
#[cfg(test)]
mod tests;
mod ticket;

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;

pub(super) use self::core::Core;
use self::core::{Slot, SlotState, State, drop_core};
pub use read::PendingRead;
use ticket::Outcome;
pub use ticket::{Failed, Ticket};

use super::batch::Read;
use super::source::Source;
use super::timer;
use crate::buffer::Block;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Reads that have an outcome.
    pub reads_done: usize,
    /// Reads of the batch.
    pub reads: usize,
    /// Bytes read.
    pub bytes_done: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

/// The caller's half of a started batch: await it on any executor, or [`wait`](Self::wait) on any thread.
///
/// It owns no memory that the system writes to. Dropping it cancels what has not been sent to the system;
/// forgetting it leaks its results and nothing else.
#[must_use = "dropping it cancels reads that have not begun"]
pub struct Pending {
    core: ManuallyDrop<Arc<Core>>,
    /// Outcomes not yet handed out.
    left: usize,
    total: usize,
    timer_set: bool,
    /// Blocks that polls as a future have met so far.
    gathered: Vec<Option<Block>>,
    /// Why there will be no list of all blocks: a read failed, or outcomes were handed out one by one.
    incomplete: Option<Error>,
}

impl Pending {
    /// The caller's half of `reads`, each of which gets its ticket.
    pub(super) fn new(source: &Source, reads: &[Read], deadline: Option<Instant>) -> Self {
        let slot = |read: &Read| Slot {
            range: read.range.clone(),
            outcome: SlotState::Waiting,
        };
        Pending {
            core: ManuallyDrop::new(Arc::new(Core {
                generation: Generation::current(),
                name: source.name().clone(),
                engine: source.engine(),
                deadline,
                wanted: AtomicBool::new(true),
                finished: AtomicUsize::new(0),
                bytes: AtomicU64::new(0),
                total_bytes: reads.iter().map(Read::len).fold(0, u64::saturating_add),
                state: Mutex::new(State {
                    slots: reads.iter().map(slot).collect(),
                    done: Vec::with_capacity(reads.len()),
                    taken: 0,
                    waker: None,
                    parked: false,
                    for_all: false,
                    expired: false,
                }),
                changed: Condvar::new(),
            })),
            left: reads.len(),
            total: reads.len(),
            timer_set: false,
            gathered: Vec::new(),
            incomplete: None,
        }
    }

    /// How far it is; costs two loads, for a progress display to pull.
    pub fn progress(&self) -> Progress {
        Progress {
            reads_done: self.core.finished.load(Ordering::Relaxed).min(self.total),
            reads: self.total,
            bytes_done: self.core.bytes.load(Ordering::Relaxed),
            bytes: self.core.total_bytes,
        }
    }

    /// Parks this thread until all reads are done; blocks in the order of the batch.
    ///
    /// # Errors
    /// The first error met, at once; the outcomes of the others are dropped.
    /// [`InvalidOption`](ErrorKind::InvalidOption) if outcomes were taken one by one before.
    pub fn wait(mut self) -> Result<Vec<Block>> {
        loop {
            match self.next_until(None, true) {
                Poll::Ready(Some((index, outcome))) => self.gather(index, outcome),
                Poll::Ready(None) | Poll::Pending => return self.in_order(),
            }
            if let Some(error) = &self.incomplete {
                return Err(error.clone());
            }
        }
    }

    /// Parks this thread until the next read is done, whichever it is: its position in the batch and its
    /// outcome. `None` when all have been handed out.
    pub fn wait_next(&mut self) -> Option<(usize, Result<Block, Failed>)> {
        match self.next_until(None, false) {
            Poll::Ready(next) => self.hand_out(next),
            Poll::Pending => None, // only a wait with an end comes back without an outcome
        }
    }

    /// [`wait_next`](Self::wait_next) for `timeout` at most, as for showing [`progress`](Self::progress) meanwhile:
    /// `Poll::Pending` if no read was done by then. The reads go on.
    pub fn wait_next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Poll<Option<(usize, Result<Block, Failed>)>> {
        let end = Instant::now().checked_add(timeout);
        self.next_until(end, false).map(|next| self.hand_out(next))
    }

    /// The next outcome, waited for until `end` at most. `for_all`: there is no use for it before all are there.
    fn next_until(
        &mut self,
        end: Option<Instant>,
        for_all: bool,
    ) -> Poll<Option<(usize, Outcome)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(forked) = self.forked() {
            return Poll::Ready(Some(forked));
        }
        let core = &**self.core;
        let mut state = core.lock();
        loop {
            if let Some(done) = state.take_done() {
                self.left -= 1;
                return Poll::Ready(Some(done));
            }
            state.parked = true;
            state.for_all = for_all;
            let Some(until) = core.deadline.into_iter().chain(end).min() else {
                state = core
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.parked = false;
                continue;
            };
            let now = Instant::now();
            if core.deadline.is_some_and(|deadline| now >= deadline) {
                state.parked = false;
                drop(state);
                core.expire();
                state = core.lock();
            } else if now >= until {
                state.parked = false;
                return Poll::Pending;
            } else {
                let wait = core.changed.wait_timeout(state, until - now);
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.parked = false;
        }
    }

    /// The next read that is done, without waiting; `None` if there is none now.
    pub fn try_next(&mut self) -> Option<(usize, Result<Block, Failed>)> {
        match self.wait_next_timeout(Duration::ZERO) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    /// Polls for the next read that is done: its position in the batch and its outcome. `Ready(None)` when all
    /// have been handed out.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(usize, Result<Block, Failed>)>> {
        self.poll_done(cx, false).map(|next| self.hand_out(next))
    }

    fn poll_done(&mut self, cx: &mut Context<'_>, for_all: bool) -> Poll<Option<(usize, Outcome)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(forked) = self.forked() {
            return Poll::Ready(Some(forked));
        }
        if let Some(deadline) = self.core.deadline {
            if Instant::now() >= deadline {
                self.core.expire();
            } else if !self.timer_set {
                match timer::at(deadline, &self.core) {
                    Ok(()) => self.timer_set = true,
                    // Without a timer the deadline could pass unnoticed: better none of it.
                    Err(_) => self.core.expire(),
                }
            }
        }
        let mut cloned = None;
        loop {
            let mut state = self.core.lock();
            if let Some(done) = state.take_done() {
                self.left -= 1;
                return Poll::Ready(Some(done));
            }
            state.for_all = for_all;
            if matches!(&state.waker, Some(waker) if waker.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(waker) = cloned.take() {
                let old = state.waker.replace(waker);
                drop(state);
                drop(old);
                return Poll::Pending;
            }
            drop(state);
            // Code of others, so outside the lock; then another look, as a read may be done by now.
            cloned = Some(cx.waker().clone());
        }
    }

    /// The outcomes in completion order, as a `Stream`. (For threads, a `Pending` is an iterable of them.)
    pub fn stream(self) -> Completions {
        Completions(self)
    }

    /// Notes that an outcome goes to the caller by itself.
    fn hand_out(&mut self, next: Option<(usize, Outcome)>) -> Option<(usize, Outcome)> {
        if next.is_some() && self.incomplete.is_none() {
            let what =
                "outcomes of this batch were taken one by one; take the others so too".into();
            self.incomplete = Some(self.error(ErrorKind::InvalidOption { what }));
        }
        next
    }

    fn gather(&mut self, index: usize, outcome: Outcome) {
        match outcome {
            Err(failed) => {
                self.incomplete.get_or_insert(failed.error);
            }
            Ok(block) => {
                if self.gathered.is_empty() {
                    self.gathered.resize(self.total, None);
                }
                if let Some(place) = self.gathered.get_mut(index) {
                    *place = Some(block);
                }
            }
        }
    }

    /// All blocks, if none failed and none was handed out by itself.
    fn in_order(&mut self) -> Result<Vec<Block>> {
        if let Some(error) = &self.incomplete {
            return Err(error.clone());
        }
        let gathered = std::mem::take(&mut self.gathered);
        if gathered.len() != self.total {
            // Polled again after it was ready.
            return Err(self.error(ErrorKind::Abandoned));
        }
        Ok(gathered.into_iter().flatten().collect())
    }

    /// After a fork: one error per read left. The positions are those of a fresh batch, as which reads were
    /// handed out is known only to memory that cannot be touched here.
    fn forked(&mut self) -> Option<(usize, Outcome)> {
        if self.core.generation.is_current() {
            return None;
        }
        let index = self.total - self.left;
        self.left -= 1;
        Some((index, Err(self.error(ErrorKind::Forked).into())))
    }

    /// An error about the batch.
    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind).named(&self.core.name).by(self.core.engine)
    }
}

/// The blocks in the order of the batch, or the first error met.
impl Future for Pending {
    type Output = Result<Vec<Block>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(error) = &self.incomplete {
                return Poll::Ready(Err(error.clone()));
            }
            match self.poll_done(cx, true) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(self.in_order()),
                Poll::Ready(Some((index, outcome))) => self.gather(index, outcome),
            }
        }
    }
}

/// The outcomes in completion order; parks the thread for each.
impl IntoIterator for Pending {
    type Item = (usize, Result<Block, Failed>);
    type IntoIter = Outcomes;

    fn into_iter(self) -> Outcomes {
        Outcomes(self)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.core.generation.is_current() {
            return; // what it holds may be in use by threads of the parent: leaked here
        }
        if self.left > 0 {
            self.core.wanted.store(false, Ordering::Relaxed);
            let mut state = self.core.lock();
            // Outcomes nobody will take go now, not when the last straggler has finished.
            let slots: Vec<_> = state
                .slots
                .iter_mut()
                .map(|slot| std::mem::replace(&mut slot.outcome, SlotState::Gone))
                .collect();
            let waker = state.waker.take();
            drop(state);
            drop((slots, waker));
        }
        drop_core(&mut self.core);
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("source", &self.core.name)
            .field("progress", &self.progress())
            .finish()
    }
}

/// Iterator over the outcomes of a [`Pending`], in completion order.
#[derive(Debug)]
#[must_use = "iterators do nothing unless used"]
pub struct Outcomes(Pending);

impl Iterator for Outcomes {
    type Item = (usize, Result<Block, Failed>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.wait_next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}

/// Stream of the outcomes of a [`Pending`], in completion order.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Completions(Pending);

impl Stream for Completions {
    type Item = (usize, Result<Block, Failed>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}
