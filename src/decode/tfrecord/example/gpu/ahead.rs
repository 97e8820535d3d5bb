//! A thread that makes what will be asked for, a little ahead, and a queue from which it is taken in order.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::decode::panics::contained;
use crate::decode::threads;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// What is made ahead. The thread ends after the last, or when this is dropped, as soon as it has made what it is at.
pub(super) struct Ahead<T> {
    shared: Arc<Shared<T>>,
    generation: Generation,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// For the thread: something was taken, or is waited for, or nothing more will be.
    room: Condvar,
    /// For who takes.
    ready: Condvar,
    /// Most that are made, or being made, and not taken.
    ahead: usize,
}

struct State<T> {
    made: VecDeque<T>,
    /// Somebody waits for the next one.
    waiting: bool,
    /// No more are made.
    ended: bool,
    /// Nobody takes any more.
    closed: bool,
    /// Of the task that waits for the next one.
    waker: Option<Waker>,
}

/// Whether something is wanted now that was being made ahead; see [`Ahead::start`].
pub(super) type Wanted<'a> = &'a dyn Fn() -> bool;

impl<T: From<Error> + Send + 'static> Ahead<T> {
    /// Starts the thread, which is at most `ahead` (not 0) in front of what was taken. `make` gives one after the other, `None` behind the
    /// last; if it panics, that is the last, as an error.
    ///
    /// What it is given says whether it is worth while to try again what failed for want of memory: it waits until all that was made has been
    /// taken and the next one is waited for, as if nothing was made ahead. False if that was so already, or nobody will take it.
    pub(super) fn start(
        ahead: usize,
        make: impl FnMut(Wanted<'_>) -> Option<T> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                made: VecDeque::new(),
                waiting: false,
                ended: false,
                closed: false,
                waker: None,
            }),
            room: Condvar::new(),
            ready: Condvar::new(),
            ahead,
        });
        let started = Ahead {
            shared: shared.clone(),
            generation: Generation::current(),
        };
        threads::spawn(move || shared.serve(make))?;
        Ok(started)
    }

    /// The next one, waited for, or `Pending` if a task can be woken; `None` after the last.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a child, which has no such thread.
    pub(super) fn take(&mut self, waker: Option<&Waker>) -> Poll<Result<Option<T>>> {
        if !self.generation.is_current() {
            return Poll::Ready(Err(Error::new(ErrorKind::Forked)));
        }
        let mut state = self.shared.lock();
        loop {
            if let Some(made) = state.made.pop_front() {
                state.waiting = false;
                drop(state);
                self.shared.room.notify_all();
                return Poll::Ready(Ok(Some(made)));
            }
            if state.ended {
                return Poll::Ready(Ok(None));
            }
            if !state.waiting {
                state.waiting = true;
                self.shared.room.notify_all();
            }
            if let Some(waker) = waker {
                let old = state.waker.replace(waker.clone());
                drop(state);
                drop(old);
                return Poll::Pending;
            }
            let woken = self.shared.ready.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // The lock may be held by a thread that this process does not have.
            std::mem::forget(self.shared.clone());
            return;
        }
        let mut state = self.shared.lock();
        state.closed = true;
        let left = (std::mem::take(&mut state.made), state.waker.take());
        drop(state);
        self.shared.room.notify_all();
        drop(left);
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it is held, and it is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once `is_so`, or nobody takes any more.
    fn when(&self, is_so: impl Fn(&State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        let mut state = self.lock();
        while !state.closed && !is_so(&state) {
            let woken = self.room.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// [`Wanted`]; `at_once`: whether it was wanted when it was begun.
    fn is_wanted(&self, at_once: &Cell<bool>) -> bool {
        // What is wanted only by now may have failed for what was not taken then.
        !at_once.replace(true) && !self.when(State::is_bare).closed
    }
}

impl<T> State<T> {
    /// Whether nothing is there, and somebody waits.
    fn is_bare(&self) -> bool {
        self.waiting && self.made.is_empty()
    }
}

impl<T: From<Error>> Shared<T> {
    fn serve(&self, mut make: impl FnMut(Wanted<'_>) -> Option<T>) {
        loop {
            let state = self.when(|state| state.made.len() < self.ahead);
            if state.closed {
                return;
            }
            let at_once = Cell::new(state.is_bare());
            drop(state);
            let made = contained("feedwater", || make(&|| self.is_wanted(&at_once)));
            let failed = made.is_err();
            let made = made.unwrap_or_else(|error| Some(error.into()));
            let mut state = self.lock();
            if state.closed {
                drop(state);
                // What was made is dropped here, and no lock is held.
                return;
            }
            state.ended = failed || made.is_none();
            let ended = state.ended;
            state.made.extend(made);
            let waker = state.waker.take();
            drop(state);
            self.ready.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
            if ended {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    #[derive(Debug)]
    struct Made(std::result::Result<usize, Error>);

    impl From<Error> for Made {
        fn from(error: Error) -> Self {
            Made(Err(error))
        }
    }

    fn number(made: Option<Made>) -> Option<usize> {
        made.map(|made| made.0.unwrap())
    }

    fn of(all: &mut Ahead<Made>) -> Option<Made> {
        match all.take(None) {
            Poll::Ready(made) => made.unwrap(),
            Poll::Pending => panic!("without a task"),
        }
    }

    /// Numbers up to `end`, and what is told as each is begun.
    fn counted(ahead: usize, end: usize) -> (Ahead<Made>, Receiver<usize>) {
        let (begun, begins) = channel();
        let mut next = 0;
        let started = Ahead::start(ahead, move |_| {
            let _ = begun.send(next);
            next += 1;
            (next <= end).then_some(Made(Ok(next - 1)))
        });
        (started.unwrap(), begins)
    }

    #[test]
    fn as_many_are_begun_as_may_be_before_one_is_taken_and_no_more() {
        for ahead in [1, 2, 5] {
            let (mut all, begins) = counted(ahead, 20);
            for taken in 0..20 {
                // Nothing is taken before all of these were begun.
                let first = if taken == 0 { 0 } else { ahead + taken - 1 };
                for number in first..ahead + taken {
                    if number <= 20 {
                        assert_eq!(begins.recv(), Ok(number));
                    }
                }
                assert!(begins.try_recv().is_err(), "{ahead} {taken}");
                assert_eq!(number(of(&mut all)), Some(taken));
            }
            assert!(of(&mut all).is_none());
            assert!(of(&mut all).is_none());
        }
    }

    #[test]
    fn what_is_not_taken_is_dropped_and_the_thread_ends() {
        let (all, begins) = counted(3, usize::MAX);
        assert_eq!(begins.recv(), Ok(0));
        drop(all);
        // The sender is gone with the thread's work.
        assert!(begins.into_iter().count() <= 3);
    }

    #[test]
    fn the_thread_that_waits_for_demand_ends_when_there_will_be_none() {
        let (told, tells) = channel();
        let all = Ahead::<Made>::start(1, move |wanted| {
            let _ = told.send(());
            assert!(!wanted());
            None
        });
        assert!(tells.recv().is_ok());
        drop(all);
        assert!(tells.recv().is_err());
    }

    #[test]
    fn what_fails_ahead_is_tried_again_when_it_is_wanted_and_not_once_more() {
        let tries = Arc::new(AtomicUsize::new(0));
        let (counter, mut next) = (tries.clone(), 0);
        let all = Ahead::start(2, move |wanted: Wanted<'_>| {
            next += 1;
            match next {
                1 => Some(Made(Ok(1))),
                // Until nothing that was made ahead is left.
                2 => {
                    while wanted() {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(Made(Ok(2)))
                }
                _ => None,
            }
        });
        let mut all: Ahead<Made> = all.unwrap();
        assert_eq!(number(of(&mut all)), Some(1));
        assert_eq!(number(of(&mut all)), Some(2));
        assert!(of(&mut all).is_none());
        assert!(tries.load(Ordering::Relaxed) <= 1);
    }

    /// Tells each time that it is woken.
    struct Woken(Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    fn task() -> (Waker, Receiver<()>) {
        let (told, tells) = channel();
        (Waker::from(Arc::new(Woken(told))), tells)
    }

    #[test]
    fn the_task_that_asked_last_is_woken_for_each_and_for_the_end_of_all() {
        for panics in [false, true] {
            let (go, goes) = channel::<Option<usize>>();
            let all = Ahead::start(1, move |_| {
                let next = goes.recv().unwrap_or_default();
                if next.is_none() && panics {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                next.map(|number| Made(Ok(number)))
            });
            let mut all: Ahead<Made> = all.unwrap();
            let ((first, firsts), (last, lasts)) = (task(), task());
            for next in [Some(7), Some(8), Some(9), None] {
                assert!(all.take(Some(&first)).is_pending());
                assert!(all.take(Some(&last)).is_pending());
                go.send(next).unwrap();
                // Only a wake-up that is missing takes so long.
                assert_eq!(lasts.recv_timeout(Duration::from_secs(60)), Ok(()));
                let Poll::Ready(made) = all.take(Some(&last)) else {
                    panic!("woken for nothing");
                };
                let made = made.unwrap();
                if next.is_none() && panics {
                    assert!(made.unwrap().0.is_err());
                } else {
                    assert_eq!(number(made), next);
                }
            }
            assert!(matches!(all.take(Some(&last)), Poll::Ready(Ok(None))));
            assert!(firsts.try_recv().is_err() && lasts.try_recv().is_err());
        }
    }

    #[test]
    fn a_panic_is_the_last_that_comes() {
        let mut next = 0;
        let all = Ahead::start(4, move |_| {
            next += 1;
            if next == 3 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            Some(Made(Ok(next)))
        });
        let mut all: Ahead<Made> = all.unwrap();
        assert_eq!(number(of(&mut all)), Some(1));
        assert_eq!(number(of(&mut all)), Some(2));
        let panicked = of(&mut all).unwrap().0.unwrap_err();
        assert!(matches!(panicked.kind(), ErrorKind::Panicked { .. }));
        assert!(of(&mut all).is_none());
    }
}
