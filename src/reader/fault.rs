//! Faults on purpose: a reader that is slow, interrupted, failing, changing or dead, the same way for each seed.
//!
//! For whoever wants to know what their program does on bad storage, and for the tests of this crate. Needs the
//! cargo feature `testing`.
//!
//! ```
//! use std::io;
//! use std::sync::Arc;
//! use feedwater::fault::{Faults, Faulty};
//! use feedwater::{ErrorKind, MemoryReader, ReaderExt};
//!
//! let disk = Arc::new(MemoryReader::new(vec![7; 100]));
//! let faults = Faults::seeded(1)
//!     .short(0.5)
//!     .fail_after(60, io::Error::from_raw_os_error(5));
//! let reader = Faulty::new(disk, faults);
//! assert_eq!(reader.read(0..50).wait()?.len(), 50);
//! let error = reader.read(50..100).wait().unwrap_err();
//! assert!(matches!(error.kind(), ErrorKind::Io { source, .. } if source.raw_os_error() == Some(5)));
//! assert_eq!(reader.injected().failed, 1);
//! # Ok::<(), feedwater::Error>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::seeded::SplitMix;
use super::{
    Batch, Dest, Failed, LocalFile, Pending, Priority, Read, ReadInto, ReadOptions, Reader, Route,
    Source, Started, Step, Ticket, fill, plan,
};
use crate::buffer::{Block, BlockMut, Pool};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;
use crate::version::Version;

const ENGINE: &str = "fault";

/// Most bytes of one step, as real engines cut what is large; also the size of the buffer between.
const PIECE: u64 = 1 << 20;

/// Interruptions in a row; after so many a step goes through, so that a probability of 1 ends as well.
const MOST_INTERRUPTIONS: u32 = 8;

/// Which faults a [`Faulty`] reader has, and how often. The default of each is never.
///
/// Requests are numbered from 0 in the order in which they are asked for: each non-empty valid range of a batch
/// and each buffer of `read_now` is one. What happens to a request depends on the seed, its number and its
/// offset alone, never on timing; [`fail_after`](Self::fail_after) and [`change_after`](Self::change_after) also
/// on the lengths of those before it. Probabilities from 0 down are never, from 1 up always.
#[derive(Clone, Debug)]
pub struct Faults {
    seed: u64,
    short: f64,
    interrupted: f64,
    delay: Option<Range<Duration>>,
    failure: Option<(u64, Arc<io::Error>)>,
    change: Option<(u64, Version)>,
    abandoned: f64,
    abandoned_number: Option<u64>,
    shuffled: bool,
}

impl Faults {
    /// No faults yet; `seed` decides where those that have a probability strike.
    pub fn seeded(seed: u64) -> Self {
        Faults {
            seed,
            short: 0.0,
            interrupted: 0.0,
            delay: None,
            failure: None,
            change: None,
            abandoned: 0.0,
            abandoned_number: None,
            shuffled: false,
        }
    }

    /// Each step of a read brings only a part of its bytes, at least one, with this probability. Harmless: the
    /// read goes on behind them.
    #[must_use]
    pub fn short(mut self, probability: f64) -> Self {
        self.short = probability;
        self
    }

    /// Each step of a read is interrupted (`EINTR`) with this probability, at most 8 times in a row. Harmless:
    /// it is tried again.
    #[must_use]
    pub fn interrupted(mut self, probability: f64) -> Self {
        self.interrupted = probability;
        self
    }

    /// Each request waits for a time in this range before it begins; for the start of the range if that is
    /// empty. The waits of a batch overlap, and they decide who goes first; `read_now` sleeps them one by one.
    #[must_use]
    pub fn slow(mut self, delay: Range<Duration>) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Every byte after the first `bytes` fails with `error`, as [`ErrorKind::Io`]. Counted over the lengths of
    /// all requests in the order of their numbers (hints to prefetch are not counted).
    #[must_use]
    pub fn fail_after(mut self, bytes: u64, error: io::Error) -> Self {
        self.failure = Some((bytes, Arc::new(error)));
        self
    }

    /// Every byte after the first `bytes` (counted as in [`fail_after`](Self::fail_after)) meets content that
    /// changed: [`ErrorKind::Changed`] from the version that was opened to `found`. Where both strike at the same
    /// byte the read fails.
    #[must_use]
    pub fn change_after(mut self, bytes: u64, found: Version) -> Self {
        self.change = Some((bytes, found));
        self
    }

    /// Each request is dropped unfinished with this probability, as by an engine that died:
    /// [`ErrorKind::Abandoned`], and a destination that was given does not come back.
    #[must_use]
    pub fn abandon(mut self, probability: f64) -> Self {
        self.abandoned = probability;
        self
    }

    /// The request with this number is dropped unfinished.
    #[must_use]
    pub fn abandon_nth(mut self, number: u64) -> Self {
        self.abandoned_number = Some(number);
        self
    }

    /// Reads of a batch are finished in an order that the seed decides. Harmless. With [`slow`](Self::slow), only
    /// reads with equal waits are shuffled.
    #[must_use]
    pub fn shuffle(mut self) -> Self {
        self.shuffled = true;
        self
    }
}

/// How many faults a [`Faulty`] reader has had so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Injected {
    /// Steps that brought only a part.
    pub short: u64,
    /// Steps that were interrupted.
    pub interrupted: u64,
    /// Requests that waited.
    pub delayed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that met changed content.
    pub changed: u64,
    /// Requests that were dropped.
    pub abandoned: u64,
    /// Batches whose order was not that of their reads.
    pub shuffled: u64,
}

#[derive(Debug, Default)]
struct Injections {
    short: AtomicU64,
    interrupted: AtomicU64,
    delayed: AtomicU64,
    failed: AtomicU64,
    changed: AtomicU64,
    abandoned: AtomicU64,
    shuffled: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A reader with [`Faults`].
///
/// Reads into host memory are done in steps, each a [`Reader::read_now`] of the reader below into a buffer (one
/// copy more than there), by the same loop that finishes short and interrupted reads in real engines; they count
/// as [`retried`](crate::CounterSnapshot::retried). Hints and reads into other places are handed on whole. All of
/// it runs on a thread of the wrapper's own, started by the first batch, one request at a time. Counters are the
/// wrapper's own too, with [`Route::Other`].
///
/// Dropping it wakes that thread, which does what is outstanding without further waits and ends.
pub struct Faulty<R: Reader + ?Sized> {
    shared: Arc<Shared<R>>,
}

impl<R: Reader + ?Sized> Faulty<R> {
    /// Reads `inner` with `faults`.
    pub fn new(inner: Arc<R>, faults: Faults) -> Self {
        let below = inner.source();
        let source = Source::new(
            below.name().clone(),
            ENGINE,
            below.version().clone(),
            below.limits(),
        );
        Faulty {
            shared: Arc::new(Shared {
                inner,
                source,
                faults,
                injected: Injections::default(),
                pool: Pool::default(),
                generation: Generation::current(),
                queue: Mutex::default(),
                changed: Condvar::new(),
            }),
        }
    }

    /// The reader that is read.
    pub fn inner(&self) -> &Arc<R> {
        &self.shared.inner
    }

    /// The faults so far.
    pub fn injected(&self) -> Injected {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let injected = &self.shared.injected;
        Injected {
            short: now(&injected.short),
            interrupted: now(&injected.interrupted),
            delayed: now(&injected.delayed),
            failed: now(&injected.failed),
            changed: now(&injected.changed),
            abandoned: now(&injected.abandoned),
            shuffled: now(&injected.shuffled),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Reader + ?Sized> Reader for Faulty<R> {
    fn source(&self) -> &Source {
        &self.shared.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, options, pending) = batch.start(&self.shared.source);
        if !self.shared.generation.is_current() {
            self.shared.refuse(started, || ErrorKind::Forked);
        } else if !started.is_empty() {
            self.shared.enqueue(started, &options);
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.shared.read_now(reads)
    }

    fn local_file(&self) -> Option<LocalFile<'_>> {
        None // bytes that come from the file by itself would have no faults
    }
}

impl<R: Reader + ?Sized> Drop for Faulty<R> {
    fn drop(&mut self) {
        // In a forked child there is no such thread, and the lock may be held by it for good.
        if self.shared.generation.is_current() {
            self.shared.lock().closed = true;
            // Not joined: the last handle may be dropped by a waker, on that very thread.
            self.shared.changed.notify_one();
        }
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Faulty<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.shared.inner)
            .field("faults", &self.shared.faults)
            .field("injected", &self.injected())
            .finish_non_exhaustive()
    }
}

/// What the thread and the handle share.
struct Shared<R: Reader + ?Sized> {
    inner: Arc<R>,
    source: Source,
    faults: Faults,
    injected: Injections,
    pool: Pool,
    generation: Generation,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Number of the next request, and the bytes asked for before it.
    number: u64,
    bytes: u64,
    jobs: BTreeMap<Turn, Job>,
    running: bool,
    closed: bool,
}

/// Who goes first: due time, hints after reads, the shuffled order, the number.
type Turn = (Instant, bool, u64, u64);

struct Job {
    read: Read,
    ticket: Ticket,
    options: ReadOptions,
    fate: Fate,
}

/// What will happen to one request.
struct Fate {
    number: u64,
    delay: Duration,
    abandoned: bool,
    /// Place in a shuffled batch.
    turn: u64,
    /// Bytes of the request after which it fails or has changed.
    fails_at: Option<u64>,
    changes_at: Option<u64>,
    /// Decides about the steps, which are one after the other.
    steps: SplitMix,
    interruptions: u32,
}

impl Fate {
    fn new(faults: &Faults, number: u64, offset: u64, bytes_before: u64) -> Self {
        let mut rng = SplitMix::of(faults.seed, &[number, offset]);
        let into_request = |after: u64| after.saturating_sub(bytes_before);
        Fate {
            number,
            delay: faults
                .delay
                .as_ref()
                .map_or(Duration::ZERO, |range| rng.duration(range)),
            abandoned: rng.chance(faults.abandoned) || faults.abandoned_number == Some(number),
            turn: rng.next(),
            fails_at: faults
                .failure
                .as_ref()
                .map(|(after, _)| into_request(*after)),
            changes_at: faults
                .change
                .as_ref()
                .map(|(after, _)| into_request(*after)),
            steps: rng,
            interruptions: 0,
        }
    }
}

/// Why a step brought nothing.
enum Halt {
    Interrupted,
    Error(Error),
}

impl<R: Reader + ?Sized> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No foreign code runs while it is held, and the queue is valid between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, started: Vec<Started>, kind: impl Fn() -> ErrorKind) {
        for (read, ticket) in started {
            let error = self.source.error(kind(), read.range);
            ticket.finish(Err(Failed::new(error, read.dest)));
        }
    }

    fn next_fate(&self, queue: &mut Queue, offset: u64, len: u64) -> Fate {
        let fate = Fate::new(&self.faults, queue.number, offset, queue.bytes);
        queue.number += 1;
        queue.bytes = queue.bytes.saturating_add(len);
        fate
    }

    fn enqueue(self: &Arc<Self>, started: Vec<Started>, options: &ReadOptions) {
        let now = Instant::now();
        let mut queue = self.lock();
        if !queue.running {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name("feedwater-fault".into());
            if let Err(error) = thread.spawn(move || shared.run()) {
                drop(queue);
                let source = Arc::new(error);
                self.refuse(started, || ErrorKind::Io {
                    op: "starting a thread",
                    source: source.clone(),
                });
                return;
            }
            queue.running = true;
        }
        let mut turns = Vec::with_capacity(started.len());
        for (read, ticket) in started {
            let hint = matches!(read.dest, Dest::Prefetch);
            let counted = if hint { 0 } else { read.len() };
            let fate = self.next_fate(&mut queue, read.range.start, counted);
            if !fate.delay.is_zero() {
                count(&self.injected.delayed);
            }
            let turn = if self.faults.shuffled { fate.turn } else { 0 };
            turns.push(turn);
            let later = hint || options.priority == Priority::Prefetch;
            let due = now.checked_add(fate.delay).unwrap_or(now);
            let options = options.clone();
            queue.jobs.insert(
                (due, later, turn, fate.number),
                Job {
                    read,
                    ticket,
                    options,
                    fate,
                },
            );
        }
        drop(queue);
        if !turns.is_sorted() {
            count(&self.injected.shuffled);
        }
        self.changed.notify_one();
    }

    /// The thread: one job after the other until the handle is gone and nothing is left.
    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let Some(((due, ..), _)) = queue.jobs.first_key_value() else {
                if queue.closed {
                    return;
                }
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() && !queue.closed {
                queue = self
                    .changed
                    .wait_timeout(queue, wait)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                continue;
            }
            let job = queue.jobs.pop_first();
            drop(queue);
            if let Some((_, job)) = job {
                // A panic below or in a waker drops this ticket, and must not strand the others.
                let _ = catch_unwind(AssertUnwindSafe(|| self.perform(job)));
            }
            queue = self.lock();
        }
    }

    fn perform(&self, job: Job) {
        let Job {
            read,
            ticket,
            options,
            mut fate,
        } = job;
        if !ticket.wanted() {
            let error = self.source.error(ErrorKind::TimedOut, read.range);
            ticket.finish(Err(Failed::new(error, read.dest)));
            return;
        }
        if fate.abandoned {
            count(&self.injected.abandoned);
            return;
        }
        let Read { range, dest } = read;
        let outcome = match dest {
            Dest::Into(block) if block.place().is_host_accessible() => {
                self.read_into(range, block, &ticket, &mut fate)
            }
            Dest::Any(place) if place.is_host_accessible() => {
                let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                match self.pool.take(len) {
                    Ok(block) => self
                        .read_into(range, block, &ticket, &mut fate)
                        .map_err(|failed| failed.error.into()),
                    Err(error) => Err(self.source.place(error, range).into()),
                }
            }
            dest => self.hand_on(Read { range, dest }, options, &fate),
        };
        ticket.finish(outcome);
    }

    fn read_into(
        &self,
        range: Range<u64>,
        mut block: BlockMut,
        ticket: &Ticket,
        fate: &mut Fate,
    ) -> Result<Block, Failed> {
        let len = range.end - range.start;
        let mut between = vec![0; usize::try_from(len.min(PIECE)).unwrap_or_default()];
        // Apart from what was filled before, so that a failure can take back what it filled.
        let mut rest = block.split_off(block.filled_len());
        let result = self.transfer(&range, fate, |at, n| {
            let part = between.get_mut(..n).unwrap_or_default();
            self.inner
                .read_now(&mut [ReadInto::new(range.start + at, &mut *part)])?;
            rest.put(part)?;
            ticket.add_progress(n as u64);
            Ok(())
        });
        if result.is_err() {
            rest.clear();
        }
        // Always adjacent, and `block` is full up to the cut.
        let joined = block.unsplit(rest);
        debug_assert!(joined.is_ok());
        match result {
            Ok(()) => Ok(block.freeze()),
            Err(error) => Err(Failed {
                error,
                dest: Some(block),
            }),
        }
    }

    /// Hints and reads into memory that the host cannot write.
    fn hand_on(&self, read: Read, options: ReadOptions, fate: &Fate) -> Result<Block, Failed> {
        let range = read.range.clone();
        let hint = matches!(read.dest, Dest::Prefetch);
        if !hint && let Err(error) = self.allowed(&range, fate, read.len()) {
            return Err(Failed::new(error, read.dest));
        }
        let counters = self.source.counters();
        let mut batch = Batch::new().options(options);
        batch.reads.push(read);
        match self.inner.submit(batch).wait_next() {
            Some((_, Ok(block))) => {
                if !hint {
                    counters.add_requests(1);
                    counters.add_read(block.len() as u64);
                    counters.add_route(Route::Other, block.len() as u64);
                }
                Ok(block)
            }
            Some((_, Err(failed))) => Err(failed),
            None => Err(self.source.error(ErrorKind::Abandoned, range).into()),
        }
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        if !self.generation.is_current() {
            let range = reads.first().map(ReadInto::range).unwrap_or_default();
            return Err(self.source.error(ErrorKind::Forked, range));
        }
        for read in reads.iter() {
            self.source.check(&read.range())?;
        }
        let counters = self.source.counters();
        for read in reads {
            let range = read.range();
            let len = range.end - range.start;
            counters.add_reads(1);
            counters.add_requested(len);
            if len == 0 {
                continue;
            }
            let mut fate = self.next_fate(&mut self.lock(), range.start, len);
            if !fate.delay.is_zero() {
                count(&self.injected.delayed);
                std::thread::sleep(fate.delay);
            }
            if fate.abandoned {
                count(&self.injected.abandoned);
                return Err(self.source.error(ErrorKind::Abandoned, range));
            }
            self.transfer(&range, &mut fate, |at, n| {
                let from = usize::try_from(at).unwrap_or(usize::MAX);
                let part = read.buf.get_mut(from..from + n).unwrap_or_default();
                self.inner
                    .read_now(&mut [ReadInto::new(range.start + at, part)])
            })?;
        }
        Ok(())
    }

    /// Reads `range` in steps: `read(at, n)` brings `n` bytes from `at` bytes behind the start on.
    fn transfer(
        &self,
        range: &Range<u64>,
        fate: &mut Fate,
        mut read: impl FnMut(u64, usize) -> Result<()>,
    ) -> Result<()> {
        let counters = self.source.counters();
        let mut retried = 0;
        let mut result = Ok(());
        for piece in plan::split(range.clone(), PIECE) {
            let (base, len) = (piece.start - range.start, piece.end - piece.start);
            let mut failure = None;
            let end = fill(len, &mut retried, |done| {
                counters.add_requests(1);
                let step = self
                    .step(range, fate, base + done, len - done)
                    .and_then(|n| {
                        read(base + done, n).map_err(Halt::Error)?;
                        counters.add_read(n as u64);
                        Ok(n)
                    });
                step.map_err(|halt| match halt {
                    Halt::Interrupted => io::ErrorKind::Interrupted.into(),
                    Halt::Error(error) => {
                        failure = Some(error);
                        io::ErrorKind::Other.into()
                    }
                })
            });
            result = match end {
                Step::Done => continue,
                Step::Failed(error) => {
                    let error = failure.unwrap_or_else(|| Error::io("read", error));
                    Err(self.source.place(error.moved_to(range.clone()), 0..0))
                }
                // No step brings nothing, so this would be a mistake here.
                Step::Ended { .. } => Err(self.source.error(ErrorKind::Abandoned, range.clone())),
            };
            break;
        }
        counters.add_retried(retried);
        if result.is_ok() {
            counters.add_route(Route::Other, range.end - range.start);
        }
        result
    }

    /// How many of the `left` bytes from `at` on the next step brings.
    fn step(&self, range: &Range<u64>, fate: &mut Fate, at: u64, left: u64) -> Result<usize, Halt> {
        self.allowed(range, fate, at + 1).map_err(Halt::Error)?;
        if fate.interruptions < MOST_INTERRUPTIONS && fate.steps.chance(self.faults.interrupted) {
            fate.interruptions += 1;
            count(&self.injected.interrupted);
            return Err(Halt::Interrupted);
        }
        fate.interruptions = 0;
        let mut n = left;
        if left > 1 && fate.steps.chance(self.faults.short) {
            n = 1 + fate.steps.below(left - 1);
            count(&self.injected.short);
        }
        for limit in [fate.fails_at, fate.changes_at].into_iter().flatten() {
            n = n.min(limit - at);
        }
        Ok(usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// Whether the first `bytes` bytes of a request can be had.
    fn allowed(&self, range: &Range<u64>, fate: &Fate, bytes: u64) -> Result<()> {
        let (fails, changes) = (
            fate.fails_at.filter(|at| *at < bytes),
            fate.changes_at.filter(|at| *at < bytes),
        );
        let kind = match (fails, changes, &self.faults.failure, &self.faults.change) {
            (Some(fails), changes, Some((_, source)), _) if changes.is_none_or(|c| fails <= c) => {
                count(&self.injected.failed);
                ErrorKind::Io {
                    op: "read",
                    source: source.clone(),
                }
            }
            (_, Some(_), _, Some((_, found))) => {
                count(&self.injected.changed);
                ErrorKind::Changed {
                    opened: self.source.version().clone(),
                    found: found.clone(),
                }
            }
            _ => return Ok(()),
        };
        Err(self.source.error(kind, range.clone()))
    }
}

#[cfg(test)]
mod tests;
