//! The threads that wait for devices: bounded, started when needed, gone when idle.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::reader::Priority;
use crate::sys::Generation;

/// Work that is done in steps, by as many threads at once as it was handed in for.
pub(crate) trait Work: Send + Sync {
    /// Does the next step. `false`: there was none left.
    fn step(self: Arc<Self>) -> bool;

    /// Gives up what is not done, and tells those who wait for it; memory that the system may still write to is
    /// kept. The number of requests that somebody waited for.
    fn abandon(self: Arc<Self>, error: &Error) -> usize;
}

/// A pool of threads. Dropping it lets the threads finish what is queued, and end.
#[derive(Debug)]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    most: usize,
    generation: Generation,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    available: Condvar,
    /// Foreground and total entries waiting, to be looked at between steps without the lock.
    foreground: AtomicUsize,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    foreground: VecDeque<Arc<dyn Work>>,
    prefetch: VecDeque<Arc<dyn Work>>,
    /// What threads are at, once for each.
    running: Vec<Arc<dyn Work>>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// How long an idle thread stays.
const LINGER: Duration = Duration::from_secs(10);

impl Workers {
    /// At most `most` threads; at least one.
    pub(crate) fn new(most: usize) -> Self {
        Workers {
            shared: Arc::default(),
            most: most.max(1),
            generation: Generation::current(),
        }
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Lets up to `threads` threads take part in `work`. Never waits.
    ///
    /// # Errors
    /// If there is no thread and none can be started; the work was then not taken.
    pub(crate) fn run(
        &self,
        work: &Arc<dyn Work>,
        threads: usize,
        priority: Priority,
    ) -> Result<()> {
        if !self.generation.is_current() {
            return Err(Error::new(ErrorKind::Forked));
        }
        let threads = threads.clamp(1, self.most);
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(Error::new(ErrorKind::Abandoned));
        }
        for _ in 0..threads {
            queue.list(priority).push_back(work.clone());
        }
        self.shared.count(&queue);
        let waiting = queue.foreground.len() + queue.prefetch.len();
        let missing = waiting
            .saturating_sub(queue.idle)
            .min(self.most - queue.threads.min(self.most))
            .min(threads);
        for _ in 0..missing {
            let shared = self.shared.clone();
            let spawned = std::thread::Builder::new()
                .name("feedwater-io".into())
                .spawn(move || shared.serve());
            match spawned {
                Ok(_) => queue.threads += 1,
                // Fewer threads only make it slower, unless there is none.
                Err(error) if queue.threads == 0 => {
                    for _ in 0..threads {
                        queue.list(priority).pop_back();
                    }
                    self.shared.count(&queue);
                    return Err(Error::io("start a thread", error));
                }
                Err(_) => break,
            }
        }
        drop(queue);
        if threads == 1 {
            self.shared.available.notify_one();
        } else {
            self.shared.available.notify_all();
        }
        Ok(())
    }

    /// Takes no more work, and waits until all is done, or until `deadline`; then gives up the rest. The number of
    /// threads that the system does not let go, which are left to themselves.
    pub(crate) fn shut_down(&self, deadline: Instant) -> usize {
        if !self.generation.is_current() {
            return 0;
        }
        let mut queue = self.shared.lock();
        queue.closed = true;
        self.shared.available.notify_all();
        while queue.threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let (guard, _) = self
                .shared
                .available
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner);
            queue = guard;
        }
        let running = queue.running.clone();
        let mut queued: Vec<_> = queue.foreground.drain(..).collect();
        queued.extend(queue.prefetch.drain(..));
        self.shared.count(&queue);
        drop(queue);
        let error = Error::new(ErrorKind::Abandoned);
        for work in queued.into_iter().chain(running.iter().cloned()) {
            // It wakes tasks and releases memory of others, and each of their panics ends one try: what was told stays
            // told, so the next one gets further.
            let tell = || work.clone().abandon(&error);
            while std::panic::catch_unwind(AssertUnwindSafe(tell)).is_err() {}
            // Also what goes with it.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(work)));
        }
        running.len()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.shared.lock().closed = true;
            self.shared.available.notify_all();
        }
    }
}

impl Queue {
    fn list(&mut self, priority: Priority) -> &mut VecDeque<Arc<dyn Work>> {
        match priority {
            Priority::Prefetch => &mut self.prefetch,
            _ => &mut self.foreground,
        }
    }

    fn take(&mut self) -> Option<(Arc<dyn Work>, Priority)> {
        if let Some(work) = self.foreground.pop_front() {
            return Some((work, Priority::Foreground));
        }
        Some((self.prefetch.pop_front()?, Priority::Prefetch))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Work runs outside the lock, and the lists are valid between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, queue: &Queue) {
        let foreground = queue.foreground.len();
        self.foreground.store(foreground, Ordering::Relaxed);
        self.waiting
            .store(foreground + queue.prefetch.len(), Ordering::Relaxed);
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            if let Some((work, priority)) = queue.take() {
                self.count(&queue);
                queue.running.push(work.clone());
                drop(queue);
                let unfinished = self.work_on(&work, priority);
                queue = self.lock();
                let at = queue.running.iter().position(|w| Arc::ptr_eq(w, &work));
                let counted = at.map(|at| queue.running.swap_remove(at));
                if unfinished {
                    // Others wait: their turn now, this one's again later.
                    queue.list(priority).push_back(work);
                    self.count(&queue);
                } else {
                    drop(queue);
                    // It may release memory of others and wake tasks: their panics end here.
                    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop((counted, work))));
                    queue = self.lock();
                }
                continue;
            }
            if queue.closed {
                break;
            }
            queue.idle += 1;
            let (guard, timeout) = self
                .available
                .wait_timeout(queue, LINGER)
                .unwrap_or_else(PoisonError::into_inner);
            queue = guard;
            queue.idle -= 1;
            if timeout.timed_out() && queue.foreground.is_empty() && queue.prefetch.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
        if queue.closed && queue.threads == 0 {
            self.available.notify_all(); // whoever shuts it down waits
        }
    }

    /// Steps until the work is done or somebody else should have a turn. `true`: there is more to do.
    fn work_on(&self, work: &Arc<dyn Work>, priority: Priority) -> bool {
        loop {
            // Work that panics has lost its step; dropping it tells those who wait. The thread lives on.
            match std::panic::catch_unwind(AssertUnwindSafe(|| work.clone().step())) {
                Ok(true) => {}
                Ok(false) | Err(_) => return false,
            }
            let others = match priority {
                Priority::Prefetch => &self.waiting,
                _ => &self.foreground,
            };
            if others.load(Ordering::Relaxed) > 0 {
                return true;
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Steps that report who did them.
    struct Steps {
        name: &'static str,
        left: AtomicUsize,
        done: mpsc::Sender<&'static str>,
        gate: Option<Mutex<mpsc::Receiver<()>>>,
        /// Told when a step has come to the gate.
        arrived: Option<mpsc::Sender<()>>,
    }

    impl Work for Steps {
        fn step(self: Arc<Self>) -> bool {
            let took = self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                .is_ok();
            if took {
                if let Some(arrived) = &self.arrived {
                    arrived.send(()).unwrap();
                }
                if let Some(gate) = &self.gate {
                    gate.lock().unwrap().recv().unwrap();
                }
                self.done.send(self.name).unwrap();
            }
            took
        }

        fn abandon(self: Arc<Self>, _: &Error) -> usize {
            self.left.swap(0, Ordering::Relaxed)
        }
    }

    fn steps(
        name: &'static str,
        count: usize,
        done: &mpsc::Sender<&'static str>,
        gate: Option<mpsc::Receiver<()>>,
    ) -> Arc<dyn Work> {
        Arc::new(Steps {
            name,
            left: count.into(),
            done: done.clone(),
            gate: gate.map(Mutex::new),
            arrived: None,
        })
    }

    #[test]
    fn foreground_overtakes_prefetch_between_steps() {
        let workers = Workers::new(1);
        let (done, order) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        let slow = steps("prefetch", 3, &done, Some(gate));
        workers.run(&slow, 1, Priority::Prefetch).unwrap();
        open.send(()).unwrap();
        assert_eq!(order.recv().unwrap(), "prefetch");
        // The only thread is now at the gate of the second step, or on its way there.
        let quick = steps("foreground", 2, &done, None);
        workers.run(&quick, 1, Priority::Foreground).unwrap();
        open.send(()).unwrap();
        open.send(()).unwrap();
        let rest: Vec<_> = order.iter().take(4).collect();
        let last_quick = rest.iter().rposition(|n| *n == "foreground").unwrap();
        assert!(last_quick < 3, "{rest:?}");
    }

    #[test]
    fn queued_work_is_done_after_the_pool_is_dropped() {
        let workers = Workers::new(2);
        let (done, order) = mpsc::channel();
        for _ in 0..10 {
            let work = steps("x", 3, &done, None);
            workers.run(&work, 2, Priority::Foreground).unwrap();
        }
        drop((workers, done));
        assert_eq!(order.iter().count(), 30);
    }

    #[test]
    fn shutting_down_does_what_is_queued_and_takes_no_more() {
        let workers = Workers::new(2);
        let (done, order) = mpsc::channel();
        for _ in 0..4 {
            let work = steps("x", 3, &done, None);
            workers.run(&work, 1, Priority::Foreground).unwrap();
        }
        assert_eq!(
            workers.shut_down(Instant::now() + Duration::from_secs(60)),
            0
        );
        assert_eq!(order.try_iter().count(), 12);
        let late = steps("late", 1, &done, None);
        let refused = workers.run(&late, 1, Priority::Foreground).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Abandoned));
    }

    #[test]
    fn shutting_down_leaves_what_hangs() {
        let workers = Workers::new(1);
        let (done, order) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        let (arrived, at_gate) = mpsc::channel();
        let hanging: Arc<dyn Work> = Arc::new(Steps {
            name: "hangs",
            left: 5.into(),
            done: done.clone(),
            gate: Some(Mutex::new(gate)),
            arrived: Some(arrived),
        });
        workers.run(&hanging, 1, Priority::Foreground).unwrap();
        at_gate.recv().unwrap();
        let queued = steps("queued", 1, &done, None);
        workers.run(&queued, 1, Priority::Foreground).unwrap();
        assert_eq!(workers.shut_down(Instant::now()), 1);
        // What hung goes on to the end of its step, and no further.
        open.send(()).unwrap();
        drop((hanging, queued, workers, done));
        assert_eq!(order.iter().collect::<Vec<_>>(), ["hangs"]);
    }

    #[test]
    fn panics_of_those_who_are_told_leave_nobody_untold() {
        /// Hangs; each of its waiters panics when told.
        struct Untold {
            left: AtomicUsize,
            arrived: mpsc::Sender<()>,
            gate: Mutex<mpsc::Receiver<()>>,
        }
        impl Work for Untold {
            fn step(self: Arc<Self>) -> bool {
                self.arrived.send(()).unwrap();
                let _ = self.gate.lock().unwrap().recv();
                false
            }
            fn abandon(self: Arc<Self>, _: &Error) -> usize {
                if self.left.load(Ordering::Relaxed) > 0 {
                    self.left.fetch_sub(1, Ordering::Relaxed);
                    std::panic::resume_unwind(Box::new("a waker"));
                }
                0
            }
        }
        let workers = Workers::new(1);
        let (arrived, at_gate) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        let untold = Arc::new(Untold {
            left: 3.into(),
            arrived,
            gate: Mutex::new(gate),
        });
        let work: Arc<dyn Work> = untold.clone();
        workers.run(&work, 1, Priority::Foreground).unwrap();
        at_gate.recv().unwrap();
        assert_eq!(workers.shut_down(Instant::now()), 1);
        assert_eq!(untold.left.load(Ordering::Relaxed), 0);
        drop(open);
    }

    #[test]
    fn a_panic_ends_the_work_and_not_the_thread() {
        struct Panics;
        impl Work for Panics {
            fn abandon(self: Arc<Self>, _: &Error) -> usize {
                0
            }
            fn step(self: Arc<Self>) -> bool {
                std::panic::resume_unwind(Box::new("bug"))
            }
        }
        let workers = Workers::new(1);
        let panics: Arc<dyn Work> = Arc::new(Panics);
        workers.run(&panics, 1, Priority::Foreground).unwrap();
        let (done, order) = mpsc::channel();
        let work = steps("after", 1, &done, None);
        workers.run(&work, 1, Priority::Foreground).unwrap();
        assert_eq!(order.recv().unwrap(), "after");
        assert_eq!(workers.shared.lock().threads, 1);
    }
}
