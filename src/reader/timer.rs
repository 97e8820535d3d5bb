//! Deadlines of tasks: one thread for the process, started by the first deadline that a task waits for.
//!
//! Threads that wait park until their deadline by themselves; a task cannot, and this crate has no runtime to
//! ask. The thread ends when no deadline is left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::pending::Core;
use crate::sys::PerProcess;

#[derive(Default)]
struct Timer {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    entries: BinaryHeap<Entry>,
    running: bool,
    /// How many entries to look through next time for those that nobody waits for any more.
    sweep_at: usize,
}

struct Entry {
    at: Reverse<Instant>,
    core: Weak<Core>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// How long the thread stays after the last deadline, for the next one.
const LINGER: Duration = Duration::from_secs(5);

static TIMER: PerProcess<Timer> = PerProcess::new();

/// Lets `core` expire at `deadline` unless it is gone by then.
pub(super) fn at(deadline: Instant, core: &Arc<Core>) -> io::Result<()> {
    let timer = TIMER.get(Timer::default);
    let mut queue = timer.lock();
    if !queue.running {
        std::thread::Builder::new()
            .name("feedwater-timer".into())
            .spawn(move || timer.run())?;
        queue.running = true;
    }
    if queue.entries.len() >= queue.sweep_at {
        queue.entries.retain(|entry| entry.core.strong_count() > 0);
        queue.sweep_at = (2 * queue.entries.len()).max(1024);
    }
    queue.entries.push(Entry {
        at: Reverse(deadline),
        core: Arc::downgrade(core),
    });
    drop(queue);
    timer.changed.notify_one();
    Ok(())
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            match queue.entries.peek().map(|entry| entry.at.0) {
                Some(at) if at <= now => {
                    let due = queue.entries.pop();
                    drop(queue);
                    if let Some(core) = due.and_then(|entry| entry.core.upgrade()) {
                        // A waker of the caller's that panics must not take the other deadlines along.
                        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            core.expire();
                        }));
                    }
                    queue = self.lock();
                }
                next => {
                    let wait = next.map_or(LINGER, |at| at - now);
                    let (guard, timeout) = self
                        .changed
                        .wait_timeout(queue, wait)
                        .unwrap_or_else(PoisonError::into_inner);
                    queue = guard;
                    if queue.entries.is_empty() && timeout.timed_out() {
                        queue.running = false;
                        return;
                    }
                }
            }
        }
    }
}
