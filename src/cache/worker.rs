//! The thread that passes run on, started with the first of them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::inner::Inner;
use super::pass;
use crate::sys;

/// Directories that may wait for their pass; more are left alone until they miss again.
const MOST_WAITING: usize = 64;

#[derive(Debug)]
pub(crate) struct Worker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Told of each change.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Box<[u8]>, u64)>,
    running: bool,
    started: bool,
    closed: bool,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Worker(Arc::default())
    }

    pub(crate) fn push(&self, inner: &Arc<Inner>, path: Box<[u8]>, dir: u64) {
        let mut state = self.0.state();
        if state.closed || state.waiting.len() >= MOST_WAITING {
            return;
        }
        if state.waiting.iter().any(|(_, waiting)| *waiting == dir) {
            return;
        }
        if !state.started {
            let (shared, inner) = (self.0.clone(), Arc::downgrade(inner));
            let thread = std::thread::Builder::new().name("feedwater-cache".into());
            if let Err(error) = thread.spawn(move || work(&shared, &inner)) {
                tracing::debug!(%error, "no thread for passes");
                return;
            }
            state.started = true;
        }
        state.waiting.push_back((path, dir));
        self.0.changed.notify_all();
    }

    /// The thread ends after the pass that it is in.
    pub(crate) fn close(&self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }

    /// Waits until nothing waits or runs. False if the time was over first.
    pub(crate) fn settle(&self, most: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.0.state();
        while state.running || !state.waiting.is_empty() {
            let Some(left) = most.checked_sub(began.elapsed()) else {
                return false;
            };
            let (again, _) = (self.0.changed)
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
            state = again;
        }
        true
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(shared: &Shared, inner: &Weak<Inner>) {
    sys::yield_to_others();
    let mut state = shared.state();
    while !state.closed {
        let Some((path, dir)) = state.waiting.pop_front() else {
            state = (shared.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.running = true;
        drop(state);
        // A backend that panics costs its pass, not the thread.
        let pass = AssertUnwindSafe(|| {
            if let Some(inner) = inner.upgrade() {
                pass::run_queued(&inner, &path, dir);
            }
        });
        if catch_unwind(pass).is_err() {
            tracing::debug!("a pass panicked");
        }
        state = shared.state();
        state.running = false;
        shared.changed.notify_all();
    }
}
