//! An open that goes on elsewhere.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::opened::Opened;
use crate::backend::workers::{Work, Workers};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::Priority;
use crate::sys::Generation;

/// A source being opened on a thread of the engine: await it on any executor, or [`wait`](Self::wait).
///
/// Dropping it lets the open go on and closes what it opened.
#[must_use = "the reader is only here"]
pub struct Opening {
    shared: Arc<Shared>,
    generation: Generation,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<Arc<Opened>>>,
    /// The result was taken.
    taken: bool,
    waker: Option<Waker>,
}

impl State {
    fn take(&mut self) -> Option<Result<Arc<Opened>>> {
        if self.taken {
            // Polled or waited for again after it was ready.
            return Some(Err(Error::new(ErrorKind::Abandoned)));
        }
        let result = self.result.take();
        self.taken = result.is_some();
        result
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, result: Result<Arc<Opened>>) {
        let mut state = self.lock();
        state.result.get_or_insert(result);
        let waker = state.waker.take();
        drop(state);
        self.done.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

type Open = Box<dyn FnOnce() -> Result<Arc<Opened>> + Send>;

/// The open as work; dropped undone it says so.
struct Job {
    open: Mutex<Option<Open>>,
    shared: Arc<Shared>,
}

impl Work for Job {
    fn step(self: Arc<Self>) -> bool {
        let open = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(open) = open else { return false };
        self.shared.finish(open());
        true
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        self.shared.finish(Err(error.clone()));
        1
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Keeps the first result, so this is seen only if there was none.
        self.shared.finish(Err(Error::new(ErrorKind::Abandoned)));
    }
}

impl Opening {
    pub(super) fn start(
        workers: &Workers,
        open: impl FnOnce() -> Result<Arc<Opened>> + Send + 'static,
    ) -> Self {
        let shared = Arc::<Shared>::default();
        let job: Arc<dyn Work> = Arc::new(Job {
            open: Mutex::new(Some(Box::new(open))),
            shared: shared.clone(),
        });
        if let Err(error) = workers.run(&job, 1, Priority::Foreground) {
            shared.finish(Err(error));
        }
        Opening {
            shared,
            generation: Generation::current(),
        }
    }

    /// Parks this thread until the source is open.
    ///
    /// # Errors
    /// As [`OpenOptions::open`](super::OpenOptions::open).
    pub fn wait(self) -> Result<Arc<Opened>> {
        self.check_process()?;
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = state.take() {
                return result;
            }
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn check_process(&self) -> Result<()> {
        if self.generation.is_current() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked))
    }
}

impl Future for Opening {
    type Output = Result<Arc<Opened>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.check_process()?;
        let mut state = self.shared.lock();
        if let Some(result) = state.take() {
            return Poll::Ready(result);
        }
        let old = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}
