//! What the two halves of a batch share.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::ticket::Outcome;
use crate::error::{Error, ErrorKind};
use crate::sys::Generation;

/// What both halves share. Owned by the tickets too, so the caller's half may vanish at any time.
pub(in crate::reader) struct Core {
    pub(super) generation: Generation,
    pub(super) name: Arc<str>,
    pub(super) engine: &'static str,
    pub(super) deadline: Option<Instant>,
    pub(super) wanted: AtomicBool,
    pub(super) finished: AtomicUsize,
    pub(super) bytes: AtomicU64,
    pub(super) total_bytes: u64,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

pub(super) struct State {
    pub(super) slots: Vec<Slot>,
    /// Positions of slots that have an outcome, in completion order.
    pub(super) done: Vec<usize>,
    /// How many of `done` were handed out.
    pub(super) taken: usize,
    pub(super) waker: Option<Waker>,
    /// A thread is parked.
    pub(super) parked: bool,
    /// Who waits has no use for outcomes one by one: it is woken when all are there, or one is an error.
    pub(super) for_all: bool,
    /// All reads have an outcome, as the deadline came.
    pub(super) expired: bool,
}

pub(super) struct Slot {
    pub(super) range: Range<u64>,
    pub(super) outcome: SlotState,
}

pub(super) enum SlotState {
    Waiting,
    Done(Outcome),
    /// Handed out, or no longer wanted.
    Gone,
}

impl Core {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock, and the state is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn error(&self, kind: ErrorKind, range: Range<u64>) -> Error {
        Error::new(kind).named(&self.name).at(range).by(self.engine)
    }

    pub(super) fn finish(&self, index: usize, outcome: Outcome, unreported: u64) {
        let mut state = self.lock();
        let mut rejected = None;
        let failed = outcome.is_err();
        match state.slots.get_mut(index) {
            Some(slot) if matches!(slot.outcome, SlotState::Waiting) => {
                slot.outcome = SlotState::Done(outcome);
                state.done.push(index);
            }
            // The deadline came first, or nobody waits.
            _ => rejected = Some(outcome),
        }
        if rejected.is_none() {
            self.bytes.fetch_add(unreported, Ordering::Relaxed);
            self.finished.fetch_add(1, Ordering::Relaxed);
        }
        let due = !state.for_all || failed || state.done.len() == state.slots.len();
        let waker = if due { state.waker.take() } else { None };
        // Once is enough, however many are done before the thread runs.
        let parked = due && std::mem::take(&mut state.parked);
        drop(state);
        // Memory goes back and the waiter wakes outside the lock: both may run code of others.
        if parked {
            self.changed.notify_all();
        }
        wake(waker);
        drop(rejected);
    }

    /// Gives every unfinished read its timeout.
    pub(in crate::reader) fn expire(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.expired, true) {
            return;
        }
        let state_ref = &mut *state;
        for (index, slot) in state_ref.slots.iter_mut().enumerate() {
            if matches!(slot.outcome, SlotState::Waiting) {
                let error = self.error(ErrorKind::TimedOut, slot.range.clone());
                slot.outcome = SlotState::Done(Err(error.into()));
                state_ref.done.push(index);
                self.finished.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.wanted.store(false, Ordering::Relaxed);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        wake(waker);
    }
}

/// Wakes a task. A waker that panics is a mistake of its executor, of which the other reads know nothing.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
    }
}

impl State {
    pub(super) fn take_done(&mut self) -> Option<(usize, Outcome)> {
        let index = *self.done.get(self.taken)?;
        self.taken += 1;
        let slot = self.slots.get_mut(index)?;
        match std::mem::replace(&mut slot.outcome, SlotState::Gone) {
            SlotState::Done(outcome) => Some((index, outcome)),
            SlotState::Waiting | SlotState::Gone => None,
        }
    }
}

/// Releases one share of what the halves share.
#[allow(unsafe_code)]
pub(super) fn drop_core(core: &mut ManuallyDrop<Arc<Core>>) {
    // SAFETY: called once, from the drop of the value that holds it; nothing uses the field afterwards.
    unsafe { ManuallyDrop::drop(core) }
}
