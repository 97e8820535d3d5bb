//! Threads that decode batches side by side, and hand them on in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use arrow_array::RecordBatch;

use super::decoder::ExampleDecoder;
use super::pull::{Job, Pull};
use crate::decode::panics::{OURS, contained};
use crate::decode::tfrecord::Skipped;
use crate::decode::threads;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// What became of the records of one batch: batches, and then the error that ends them all.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) error: Option<Error>,
}

/// The threads of one scan. They start when something is first taken, and end when it is dropped, each after what it is
/// at.
pub(super) struct Pool {
    shared: Arc<Shared>,
    /// Of the threads that have not been started.
    decoders: Vec<ExampleDecoder>,
    generation: Generation,
}

struct Shared {
    /// Held while records are cut, and while there is no room for more of them.
    pull: Mutex<Pull>,
    state: Mutex<State>,
    /// For those who take: something is done, or nothing more will be.
    done: Condvar,
    /// For threads: something was taken, or nothing more will be.
    room: Condvar,
    ahead: u64,
}

#[derive(Default)]
struct State {
    /// Number of the batch that is taken next, and of the one that is begun next.
    taken: u64,
    begun: u64,
    done: BTreeMap<u64, Done>,
    /// No more are begun.
    ended: bool,
    skipped: Skipped,
    waker: Option<Waker>,
}

impl Pool {
    /// A thread for each of `decoders`, at most `ahead` batches begun and not taken.
    pub(super) fn new(pull: Pull, decoders: Vec<ExampleDecoder>, ahead: usize) -> Self {
        let state = State {
            skipped: pull.skipped().clone(),
            ..State::default()
        };
        Pool {
            shared: Arc::new(Shared {
                pull: Mutex::new(pull),
                state: Mutex::new(state),
                done: Condvar::new(),
                room: Condvar::new(),
                ahead: ahead as u64,
            }),
            decoders,
            generation: Generation::current(),
        }
    }

    /// What became of the next batch; `None` after the last. Without a waker it waits.
    pub(super) fn take(&mut self, waker: Option<&Waker>) -> Poll<Option<Done>> {
        if let Err(error) = self.start() {
            self.close();
            return Poll::Ready(Some(Done {
                batches: Vec::new(),
                error: Some(error),
            }));
        }
        let mut state = self.shared.lock();
        loop {
            let next = state.taken;
            if let Some(done) = state.done.remove(&next) {
                state.taken += 1;
                // Of those that wait, one holds the records and the others wait for it.
                self.shared.room.notify_one();
                return Poll::Ready(Some(done));
            }
            if state.ended && state.taken >= state.begun {
                return Poll::Ready(None);
            }
            if let Some(waker) = waker {
                if !state.waker.as_ref().is_some_and(|is| is.will_wake(waker)) {
                    state.waker = Some(waker.clone());
                }
                return Poll::Pending;
            }
            let woken = self.shared.done.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing more is begun, and what is not taken is dropped.
    pub(super) fn close(&self) {
        if !self.generation.is_current() {
            // The locks may be held by threads that this process does not have.
            return;
        }
        let mut state = self.shared.lock();
        state.ended = true;
        state.taken = u64::MAX;
        let dropped = (std::mem::take(&mut state.done), state.waker.take());
        drop(state);
        self.shared.room.notify_all();
        drop(dropped);
    }

    pub(super) fn skipped(&self) -> Skipped {
        if !self.generation.is_current() {
            return Skipped::default();
        }
        self.shared.lock().skipped.clone()
    }

    /// Starts the threads, unless they were.
    fn start(&mut self) -> Result<()> {
        if !self.generation.is_current() {
            return Err(Error::new(ErrorKind::Forked));
        }
        let mut started = 0;
        for decoder in self.decoders.drain(..) {
            let shared = self.shared.clone();
            match threads::spawn(move || shared.serve(decoder)) {
                Ok(_) => started += 1,
                Err(error) if started == 0 => return Err(error),
                // Fewer only make it slower.
                Err(_) => break,
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and it is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut decoder: ExampleDecoder) {
        while let Some((number, job)) = self.begin() {
            let decoded = contained("feedwater", || job.decode(&mut decoder));
            let failed = decoded.is_err();
            self.finish(number, decoded.unwrap_or_else(Done::from));
            if failed {
                // What is left in the decoder is not to be trusted.
                return;
            }
        }
    }

    /// The next records, once there is room for them. `None`: there is nothing more to do.
    fn begin(&self) -> Option<(u64, Job)> {
        // Numbers are in the order of the records, as both are taken under this lock.
        let mut pull = self.pull.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        while !state.ended && state.begun.saturating_sub(state.taken) >= self.ahead {
            let woken = self.room.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended {
            return None;
        }
        let number = state.begun;
        state.begun += 1;
        drop(state);
        let job = contained(OURS, || pull.next());
        let mut state = self.lock();
        if pull.skipped().records() != state.skipped.records() {
            state.skipped = pull.skipped().clone();
        }
        state.ended |= job.as_ref().map_or(true, |job| job.last);
        drop(state);
        match job {
            Ok(job) => Some((number, job)),
            Err(error) => {
                self.finish(number, error.into());
                None
            }
        }
    }

    fn finish(&self, number: u64, done: Done) {
        let mut state = self.lock();
        state.ended |= done.error.is_some();
        let waker = if number >= state.taken {
            state.done.insert(number, done);
            state.waker.take()
        } else {
            // Nobody takes it any more.
            drop(state);
            return;
        };
        drop(state);
        self.done.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl From<Error> for Done {
    fn from(error: Error) -> Self {
        Done {
            batches: Vec::new(),
            error: Some(error),
        }
    }
}
