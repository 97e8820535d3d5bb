//! The files of one caller: which are to be begun, are being worked on, are done; and who works on them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::FileResult;
use super::calls::{Attempt, Patience};
use super::desk::{Desk, Task};
use super::kind::Ask;
use super::options::Options;
use super::ready::{Done, Ready};
use super::report::{Counts, FilesReport, FilesWay};
use super::rings::Portion;
use crate::error::{Error, ErrorKind, Refusal};
use crate::open::{Work, no_rings};
use crate::sys;

/// Files that are in memory are read so far ahead of the one who takes them, by threads. More would leave the caches of
/// the processor before they are taken.
const WARM_AHEAD: usize = 24;

/// So many files on the spot, one after the other, and there is work for several processors.
const MANY: u32 = 32;

/// Most threads for files that are in memory.
const WARM_THREADS: usize = 16;

/// Most descriptors at once, whatever the process may have.
const DESCRIPTORS: u64 = 256;

/// Files that are not tried on the spot after some that were not in memory, at most.
const BACK_OFF: u32 = 64;

pub(super) struct Job<T> {
    pub(super) desk: Desk,
    state: Mutex<State<T>>,
    arrived: Condvar,
    /// What was not in memory lately.
    pub(super) cold: AtomicBool,
    /// Those for this job.
    processors: usize,
}

pub(super) struct State<T> {
    counts: Counts,
    pub(super) queue: VecDeque<Task>,
    /// Not read, as there was no room: with their sizes.
    parked: Vec<(Task, u64)>,
    /// With threads or rings.
    begun: HashMap<u64, Task>,
    pub(super) ready: Ready<T>,
    /// Threads that were asked for and have not left.
    seats: usize,
    /// Most that may be begun.
    most_begun: usize,
    /// The one who takes results waits for the condition variable.
    pub(super) waits: bool,
    pub(super) waker: Option<Waker>,
    /// Everything fails from now on.
    pub(super) over: Option<Error>,
    /// No thread could be started.
    pub(super) no_threads: Option<Error>,
    /// Files in a row that were in memory.
    warm_run: u32,
    back_off: u32,
    /// So many more before one is tried on the spot.
    cooldown: u32,
    /// Files with rings.
    in_rings: usize,
    /// Whether it is known that there are rings.
    rings_asked: bool,
    no_rings: Option<Refusal>,
}

impl<T: Ask> Job<T> {
    pub(super) fn new(options: Options) -> Arc<Self> {
        let most = match T::OPENS {
            true => ((sys::descriptor_limit() / 4).clamp(1, DESCRIPTORS) as usize / options.parts)
                .max(1),
            false => usize::MAX,
        };
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let processors = (processors / options.parts).max(1);
        Arc::new(Job {
            state: Mutex::new(State {
                counts: Counts::default(),
                queue: VecDeque::new(),
                parked: Vec::new(),
                begun: HashMap::new(),
                ready: Ready::new(options.in_order),
                seats: 0,
                most_begun: most,
                waits: false,
                waker: None,
                over: None,
                no_threads: None,
                warm_run: 0,
                back_off: 0,
                cooldown: 0,
                in_rings: 0,
                rings_asked: false,
                no_rings: None,
            }),
            // Where the way is given, nothing is tried on the spot.
            cold: AtomicBool::new(matches!(
                options.only,
                Some(FilesWay::Threads | FilesWay::Rings)
            )),
            desk: Desk::new(options),
            arrived: Condvar::new(),
            processors,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics under the lock, and the lists are valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_cold(&self) -> bool {
        self.cold.load(Ordering::Relaxed)
    }

    pub(super) fn wait<'a>(&self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        state.waits = true;
        while state.waits {
            state = self
                .arrived
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    pub(super) fn report(&self) -> FilesReport {
        let state = self.lock();
        let mut report = state.counts.report();
        report.most_bytes = self.desk.most_bytes();
        report.no_rings = state.no_rings.clone();
        report
    }

    /// How many threads there is work for.
    fn wanted_threads(&self, state: &State<T>) -> usize {
        let waiting = state.queue.front().is_some_and(|task| task.waits);
        let all = self.desk.options.engine.threads();
        match self.desk.options.only {
            Some(FilesWay::Threads) => all,
            Some(FilesWay::Spot) => 0,
            // To find out where files live.
            Some(FilesWay::Rings) if self.front_is_for_rings(state) => 0,
            Some(FilesWay::Rings) => 1,
            None if self.is_cold() && self.front_is_for_rings(state) => 0,
            None if self.is_cold() => all,
            None if state.warm_run >= MANY => {
                (self.processors - 1).clamp(usize::from(waiting), WARM_THREADS.min(all))
            }
            None => usize::from(waiting),
        }
    }

    /// Whether rings are to read what is not in memory.
    fn uses_rings(&self, state: &State<T>) -> bool {
        let only = self.desk.options.only;
        let asked = match only {
            Some(way) => way == FilesWay::Rings,
            None => self.is_cold() && state.rings_asked,
        };
        T::RINGS && asked && state.no_rings.is_none()
    }

    fn front_is_for_rings(&self, state: &State<T>) -> bool {
        self.uses_rings(state)
            && state
                .queue
                .front()
                .is_some_and(|task| !task.not_by_rings && self.desk.device_of(&task.path).is_some())
    }

    /// Files for a ring, if one is to be given more.
    fn portion(&self, state: &mut State<T>) -> Option<Portion> {
        if T::RINGS && self.is_cold() && !state.rings_asked {
            state.rings_asked = true;
            state.no_rings = no_rings();
            let learns = state.no_rings.is_none();
            self.desk.learns.store(learns, Ordering::Relaxed);
        }
        if !self.uses_rings(state) {
            return None;
        }
        let most = self.desk.options.engine.depth().min(state.most_begun);
        if state.in_rings > most / 2 {
            return None; // many at once
        }
        let room = (most - state.in_rings).min(state.most_begun - state.begun.len());
        let mut tasks = Vec::new();
        let mut of_all = None;
        let mut at = 0;
        // Those that are not for this ring are passed over, but not for ever.
        while tasks.len() < room && at < room {
            let Some(task) = state.queue.get(at) else {
                break;
            };
            if !self.desk.has_room(task.turn, 0) {
                break;
            }
            let dev = match task.not_by_rings {
                true => None,
                false => self.desk.device_of(&task.path),
            };
            if dev.is_none() || *of_all.get_or_insert(dev) != dev {
                at += 1;
                continue;
            }
            if let Some(task) = state.queue.remove(at) {
                state.begun.insert(task.turn, task.clone());
                tasks.push(task);
            }
        }
        let dev = of_all??;
        state.in_rings += tasks.len();
        let begun = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
        state.cooldown = state.cooldown.saturating_sub(begun);
        Some(Portion { dev, tasks })
    }

    /// Hands to a ring what [`engage`](Self::engage) made. Not for callers that hold the lock.
    pub(super) fn send(self: &Arc<Self>, portion: Option<Portion>) {
        if let Some(portion) = portion {
            T::send(self, portion);
        }
    }

    /// There is no ring for them.
    pub(super) fn refused_by_rings(
        self: &Arc<Self>,
        tasks: impl ExactSizeIterator<Item = Task>,
        why: Refusal,
    ) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.in_rings = state.in_rings.saturating_sub(tasks.len());
        for task in tasks {
            if state.begun.remove(&task.turn).is_some() {
                state.requeue(task);
            }
        }
        state.no_rings = Some(why.clone());
        self.engage_threads(state);
        drop(guard);
        if self.desk.options.only == Some(FilesWay::Rings) {
            let engine = FilesWay::Rings.engine();
            self.fail(&Error::new(ErrorKind::Unavailable { engine, why }));
        }
    }

    /// Asks for threads, as far as there is work for more. What is returned is to be [sent](Self::send).
    #[must_use]
    pub(super) fn engage(self: &Arc<Self>, state: &mut State<T>) -> Option<Portion> {
        let front = state.queue.front()?;
        if state.begun.len() >= state.most_begun || !self.desk.has_room(front.turn, 0) {
            return None;
        }
        if !self.is_cold() && state.ready.len() > WARM_AHEAD / 2 {
            return None;
        }
        let portion = self.portion(state);
        self.engage_threads(state);
        portion
    }

    fn engage_threads(self: &Arc<Self>, state: &mut State<T>) {
        let wanted = self.wanted_threads(state);
        let missing = wanted.saturating_sub(state.seats).min(state.queue.len());
        if missing == 0 {
            return;
        }
        let work: Arc<dyn Work> = self.clone();
        let options = &self.desk.options;
        match options.engine.run(&work, missing, options.priority) {
            Ok(()) => state.seats += missing,
            Err(error) => state.no_threads = Some(error),
        }
    }

    /// Lets those that there is room for now be tried again.
    pub(super) fn unpark(&self, state: &mut State<T>) {
        let mut at = 0;
        while let Some((task, len)) = state.parked.get(at) {
            if self.desk.has_room(task.turn, *len) {
                let (task, _) = state.parked.swap_remove(at);
                state.requeue(task);
            } else {
                at += 1;
            }
        }
    }

    /// A task for the thread that takes the results.
    pub(super) fn task_for_taker(&self, state: &mut State<T>, in_task: bool) -> Option<Task> {
        let front = state.queue.front()?;
        if state.begun.len() >= state.most_begun || !self.desk.has_room(front.turn, 0) {
            return None;
        }
        let only = self.desk.options.only;
        let take = match only {
            Some(way) => way == FilesWay::Spot,
            None if state.no_threads.is_some() && !in_task => true,
            None if self.is_cold() => state.cooldown == 0 && !front.waits,
            // A file of procfs waits for nobody long.
            None => !front.waits || (!in_task && state.begun.is_empty()),
        };
        take.then(|| state.queue.pop_front()).flatten()
    }

    /// How the taker's next attempt is to be made.
    pub(super) fn patience(&self, state: &State<T>, task: &Task, in_task: bool) -> Patience {
        if self.desk.options.only.is_some() {
            return Patience::All;
        }
        match in_task {
            true => Patience::None,
            false if task.waits || state.no_threads.is_some() => Patience::All,
            false if !state.warm_run.is_multiple_of(T::TRIED) && !self.is_cold() => Patience::All,
            false => Patience::Some,
        }
    }

    /// Takes up what became of an attempt of the taker.
    pub(super) fn tried(
        self: &Arc<Self>,
        state: &mut State<T>,
        mut task: Task,
        attempt: Attempt<T>,
    ) {
        match attempt {
            Attempt::WouldWait { cold } => {
                task.waits = true;
                state.requeue(task);
                if cold {
                    self.cold.store(true, Ordering::Relaxed);
                    state.counts.add_cold();
                    state.warm_run = 0;
                    state.back_off = (state.back_off * 2).clamp(1, BACK_OFF);
                    state.cooldown = state.back_off;
                }
            }
            attempt => {
                if matches!(attempt, Attempt::Done(Ok(_))) {
                    state.warm_run = state.warm_run.wrapping_add(1).max(1);
                    state.back_off = 0;
                    self.cold.store(false, Ordering::Relaxed);
                }
                self.settle(state, task, attempt, FilesWay::Spot);
            }
        }
    }

    /// Takes up what became of a task that nobody works on any more.
    pub(super) fn settle(
        &self,
        state: &mut State<T>,
        task: Task,
        attempt: Attempt<T>,
        way: FilesWay,
    ) {
        match attempt {
            Attempt::Done(Err(error)) if is_out_of_descriptors(&error) && state.is_busy() => {
                // When the others have closed theirs.
                state.most_begun = state.begun.len().max(1);
                state.requeue(task);
            }
            Attempt::Done(result) => {
                let bytes = result.as_ref().ok().map(Ask::bytes);
                state.counts.add(way, bytes);
                let named = |error: Error| {
                    let name = task.path.to_string_lossy().into();
                    error.named(&name).by(way.engine())
                };
                state.ready.push(Done {
                    turn: task.turn,
                    held: bytes.unwrap_or(0),
                    file: FileResult {
                        index: task.number,
                        result: result.map_err(named),
                        path: task.path,
                    },
                });
            }
            Attempt::WouldWait { .. } => state.requeue(Task {
                waits: true,
                ..task
            }),
            Attempt::NotByRings if self.desk.options.only == Some(FilesWay::Rings) => {
                let what = "it is not where the files beside it are".into();
                let engine = FilesWay::Rings.engine();
                let why = Refusal::NotForThisFile { what };
                let error = Error::new(ErrorKind::Unavailable { engine, why });
                self.settle(state, task, Attempt::Done(Err(error)), way);
            }
            Attempt::NotByRings => state.requeue(Task {
                waits: true,
                not_by_rings: true,
                ..task
            }),
            Attempt::NoRoom(len) => {
                state.counts.add_put_off();
                state.parked.push((task, len));
            }
        }
    }

    /// Tasks for one of the threads. `None`: it is to leave.
    fn claim(&self) -> Option<Vec<Task>> {
        let state = &mut *self.lock();
        let wanted = self.wanted_threads(state);
        let cancelled = self.desk.cancelled.load(Ordering::Relaxed);
        let ahead = !self.is_cold() && state.ready.len() >= WARM_AHEAD;
        let mut claimed = Vec::new();
        if !cancelled && state.seats <= wanted && !ahead {
            let most = (state.queue.len() / (2 * wanted.max(1))).clamp(1, T::PORTION);
            while claimed.len() < most && state.begun.len() < state.most_begun {
                let Some(front) = state.queue.front() else {
                    break;
                };
                if !self.desk.has_room(front.turn, 0) {
                    break;
                }
                let Some(task) = state.queue.pop_front() else {
                    break;
                };
                state.begun.insert(task.turn, task.clone());
                state.cooldown = state.cooldown.saturating_sub(1);
                claimed.push(task);
            }
        }
        if claimed.is_empty() {
            state.seats = state.seats.saturating_sub(1);
            return None;
        }
        Some(claimed)
    }

    /// Takes up what others did, and wakes who waits for it.
    pub(super) fn deliver(
        self: &Arc<Self>,
        done: impl IntoIterator<Item = (Task, Attempt<T>)>,
        way: FilesWay,
    ) {
        let mut late = Vec::new();
        let mut guard = self.lock();
        let state = &mut *guard;
        for (task, attempt) in done {
            if way == FilesWay::Rings {
                state.in_rings = state.in_rings.saturating_sub(1);
            }
            if state.begun.remove(&task.turn).is_none()
                || self.desk.cancelled.load(Ordering::Relaxed)
            {
                // Told already, or nobody waits.
                if let Attempt::Done(Ok(answer)) = &attempt {
                    self.desk.release(answer.bytes());
                }
                late.push(attempt);
                continue;
            }
            self.settle(state, task, attempt, way);
        }
        self.unpark(state);
        let portion = self.engage(state);
        let wanted = state.ready.has_next() || state.begun.is_empty();
        let waker = if wanted { state.waker.take() } else { None };
        let waits = wanted && std::mem::take(&mut state.waits);
        drop(guard);
        self.send(portion);
        if waits {
            self.arrived.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(late);
    }

    /// Everything that has not been done fails with `error`, and what comes later.
    pub(super) fn fail(&self, error: &Error) -> usize {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.over.get_or_insert_with(|| error.clone());
        let mut told = 0;
        let begun = std::mem::take(&mut state.begun).into_values();
        let queued = std::mem::take(&mut state.queue).into_iter();
        let parked = std::mem::take(&mut state.parked).into_iter();
        let left = queued.chain(parked.map(|(task, _)| task));
        for task in begun.chain(left) {
            let error = Attempt::Done(Err(error.clone()));
            self.settle(state, task, error, FilesWay::Threads);
            told += 1;
        }
        let waker = state.waker.take();
        state.waits = false;
        drop(guard);
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        told
    }

    /// Nobody waits any more.
    pub(super) fn cancel(&self) {
        self.desk.cancelled.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        let queue = std::mem::take(&mut state.queue);
        let parked = std::mem::take(&mut state.parked);
        let ready = std::mem::replace(&mut state.ready, Ready::new(false));
        let waker = state.waker.take();
        drop(state);
        drop((queue, parked, ready, waker)); // memory and wakers of others
    }
}

impl<T> State<T> {
    /// Back to its place among those that have not been begun: the first ones come first.
    fn requeue(&mut self, task: Task) {
        let behind = self.queue.iter().position(|other| other.turn > task.turn);
        let at = behind.unwrap_or(self.queue.len());
        self.queue.insert(at, task);
    }

    /// Whether somebody else works on files of this job.
    pub(super) fn is_busy(&self) -> bool {
        !self.begun.is_empty()
    }
}

/// The process, or the system, has no descriptor left.
pub(super) fn is_out_of_descriptors(error: &Error) -> bool {
    let ErrorKind::Io { source, .. } = error.kind() else {
        return false;
    };
    sys::is_out_of_descriptors(source)
}

impl<T: Ask> Work for Job<T> {
    fn step(self: Arc<Self>) -> bool {
        let Some(tasks) = self.claim() else {
            return false;
        };
        let mut claimed = Claimed {
            job: &self,
            tasks: tasks.into(),
            done: Vec::new(),
        };
        while let Some(task) = claimed.tasks.front() {
            let cancelled = self.desk.cancelled.load(Ordering::Relaxed);
            let attempt = match cancelled {
                true => Attempt::Done(Err(Error::new(ErrorKind::Abandoned))),
                false if self.desk.options.only == Some(FilesWay::Rings) => {
                    T::find_out(&self.desk, task)
                }
                false => T::attempt(&self.desk, task, Patience::All),
            };
            if let Some(task) = claimed.tasks.pop_front() {
                claimed.done.push((task, attempt));
            }
        }
        drop(claimed);
        true
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        self.fail(error)
    }
}

/// What a thread took. Told when it is dropped, also if something panics.
struct Claimed<'a, T: Ask> {
    job: &'a Arc<Job<T>>,
    tasks: VecDeque<Task>,
    done: Vec<(Task, Attempt<T>)>,
}

impl<T: Ask> Drop for Claimed<'_, T> {
    fn drop(&mut self) {
        if !self.tasks.is_empty() {
            // Something panicked: the thread will not come back to this job.
            let mut state = self.job.lock();
            state.seats = state.seats.saturating_sub(1);
        }
        let lost = |task| (task, Attempt::Done(Err(Error::new(ErrorKind::Abandoned))));
        let done = std::mem::take(&mut self.done).into_iter();
        let lost = std::mem::take(&mut self.tasks).into_iter().map(lost);
        self.job.deliver(done.chain(lost), FilesWay::Threads);
    }
}

impl<T> fmt::Debug for Job<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("desk", &self.desk)
            .finish_non_exhaustive()
    }
}
