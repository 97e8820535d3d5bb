//! Threads that decode. They stay for a while when they have nothing to do, for the next scan.
//!
//! What a thread has is dear to make anew: its stack, its part of the allocator (whose memory the system has to fill with
//! zeros, page by page, when it is first used), its ring.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Thread};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sys::PerProcess;

/// Most threads that stay. More would serve nobody but scans with more threads than machines run.
const MOST: usize = 64;

/// How long they stay.
const LINGER: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// Runs `work` on a thread that has nothing to do, or on a new one. What it panics with ends nothing else.
///
/// A forked child has none of its parent's threads, and none of their locks.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<Thread> {
    static THREADS: PerProcess<Threads> = PerProcess::new();
    THREADS.get(|| Threads::new(LINGER)).spawn(work)
}

/// Threads of one process.
struct Threads {
    /// The one that came last is last.
    idle: Arc<Mutex<Vec<Idle>>>,
    linger: Duration,
}

/// A thread that waits for work.
struct Idle {
    work: Sender<Work>,
    thread: Thread,
}

impl Threads {
    fn new(linger: Duration) -> Self {
        Threads {
            idle: Arc::default(),
            linger,
        }
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) -> Result<Thread> {
        let mut work: Work = Box::new(work);
        // The one that was used last: caches of the processor and of the allocator are warm.
        loop {
            let Some(idle) = lock(&self.idle).pop() else {
                break;
            };
            match idle.work.send(work) {
                Ok(()) => return Ok(idle.thread),
                Err(refused) => work = refused.0,
            }
        }
        let (idle, linger) = (self.idle.clone(), self.linger);
        let thread = Builder::new()
            .name("feedwater-dec".into())
            .spawn(move || {
                contained(work);
                while let Some(work) = next(&idle, linger) {
                    contained(work);
                }
            })
            .map_err(|error| Error::io("starting a thread", error))?;
        Ok(thread.thread().clone())
    }
}

/// The next work for this thread; `None` if there is none for as long as `linger`.
fn next(idle: &Mutex<Vec<Idle>>, linger: Duration) -> Option<Work> {
    let (sender, receiver) = channel();
    let thread = std::thread::current();
    let id = thread.id();
    {
        let mut idle = lock(idle);
        if idle.len() >= MOST {
            return None;
        }
        let work = sender;
        idle.push(Idle { work, thread });
    }
    match receiver.recv_timeout(linger) {
        Ok(work) => Some(work),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            let mut idle = lock(idle);
            if let Some(at) = idle.iter().position(|idle| idle.thread.id() == id) {
                idle.remove(at);
                return None;
            }
            drop(idle);
            // Somebody took it from there this moment, and sends.
            receiver.recv().ok()
        }
    }
}

/// Whoever waits for the work has to hear of a panic by what the work leaves behind as it unwinds.
fn contained(work: Work) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        // What was thrown may panic again as it is dropped.
        std::mem::forget(panic);
    }
}

fn lock(idle: &Mutex<Vec<Idle>>) -> MutexGuard<'_, Vec<Idle>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// The thread that did some work, once it is idle again.
    fn worked(threads: &Threads) -> ThreadId {
        let before = Arc::strong_count(&threads.idle);
        let (sender, receiver) = mpsc::channel();
        let thread = threads.spawn(move || {
            let _ = sender.send(std::thread::current().id());
        });
        let id = receiver.recv().unwrap();
        assert_eq!(thread.unwrap().id(), id);
        until(|| {
            let idle = lock(&threads.idle);
            idle.iter().any(|idle| idle.thread.id() == id)
                || Arc::strong_count(&threads.idle) < before
        });
        id
    }

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_thread_that_came_last_is_used_again() {
        let threads = Threads::new(LONG);
        let first = worked(&threads);
        assert_eq!(worked(&threads), first);
        // Two at once are two.
        let (hold, held) = mpsc::channel::<()>();
        let busy = threads
            .spawn(move || assert!(held.recv().is_err()))
            .unwrap();
        assert_eq!(busy.id(), first);
        let second = worked(&threads);
        assert_ne!(second, first);
        drop(hold);
        until(|| lock(&threads.idle).len() == 2);
        assert_eq!(worked(&threads), first);
        let freed = lock(&threads.idle).drain(..).count();
        assert_eq!(freed, 2);
    }

    #[test]
    fn a_panic_is_the_works_own() {
        let threads = Threads::new(LONG);
        let first = worked(&threads);
        let (sender, receiver) = mpsc::channel::<()>();
        let panicking = threads.spawn(move || {
            let _sender = sender;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert_eq!(panicking.unwrap().id(), first);
        assert!(receiver.recv().is_err());
        until(|| lock(&threads.idle).len() == 1);
        assert_eq!(worked(&threads), first);
        lock(&threads.idle).clear();
    }

    #[test]
    fn a_thread_without_work_ends() {
        let threads = Threads::new(Duration::ZERO);
        for _ in 0..100 {
            let (sender, receiver) = mpsc::channel();
            threads.spawn(move || sender.send(7).unwrap()).unwrap();
            // Whether it comes at the end of the one before, or after it: the work is done.
            assert_eq!(receiver.recv(), Ok(7));
        }
        until(|| Arc::strong_count(&threads.idle) == 1);
        assert!(lock(&threads.idle).is_empty());
    }

    #[test]
    fn no_more_stay_than_are_of_use() {
        let threads = Threads::new(LONG);
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..MOST + 3 {
            let held = held.clone();
            threads
                .spawn(move || assert!(held.lock().unwrap().recv().is_err()))
                .unwrap();
        }
        drop(hold);
        until(|| Arc::strong_count(&threads.idle) == MOST + 1);
        assert_eq!(lock(&threads.idle).len(), MOST);
        lock(&threads.idle).clear();
        until(|| Arc::strong_count(&threads.idle) == 1);
    }
}
