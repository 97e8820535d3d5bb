//! The two halves of a started batch: [`Ticket`]s, which the engine finishes, and [`Pending`], which the caller
//! waits for.

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;

use super::batch::{Dest, Read};
use super::source::Source;
use super::timer;
use crate::buffer::{Block, BlockMut};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// A read that failed: why, and the destination if one was given and nobody writes it any more.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The caller's block. `None` if none was given, or if it is not known to be at rest (the system or a device may
    /// still write it; the deadline came first): then it is released when the engine is done with it.
    pub dest: Option<BlockMut>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl Failed {
    /// A failure that gives a destination back, if `dest` holds one.
    pub fn new(error: Error, dest: Dest) -> Self {
        let dest = match dest {
            Dest::Into(block) => Some(block),
            _ => None,
        };
        Failed { error, dest }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed { error, dest: None }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

type Outcome = Result<Block, Failed>;

/// What both halves share. Owned by the tickets too, so the caller's half may vanish at any time.
pub(super) struct Core {
    generation: Generation,
    name: Arc<str>,
    engine: &'static str,
    deadline: Option<Instant>,
    wanted: AtomicBool,
    finished: AtomicUsize,
    bytes: AtomicU64,
    total_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    slots: Vec<Slot>,
    /// Positions of slots that have an outcome, in completion order.
    done: Vec<usize>,
    /// How many of `done` were handed out.
    taken: usize,
    waker: Option<Waker>,
    /// All reads have an outcome, as the deadline came.
    expired: bool,
}

struct Slot {
    range: Range<u64>,
    outcome: SlotState,
}

enum SlotState {
    Waiting,
    Done(Outcome),
    /// Handed out, or no longer wanted.
    Gone,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock, and the state is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, kind: ErrorKind, range: Range<u64>) -> Error {
        Error::new(kind).named(&self.name).at(range).by(self.engine)
    }

    fn finish(&self, index: usize, outcome: Outcome, unreported: u64) {
        let mut state = self.lock();
        let mut rejected = None;
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
        let waker = state.waker.take();
        drop(state);
        // Memory goes back and the waiter wakes outside the lock: both may run code of others.
        self.changed.notify_all();
        wake(waker);
        drop(rejected);
    }

    /// Gives every unfinished read its timeout.
    pub(super) fn expire(&self) {
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
    fn take_done(&mut self) -> Option<(usize, Outcome)> {
        let index = *self.done.get(self.taken)?;
        self.taken += 1;
        let slot = self.slots.get_mut(index)?;
        match std::mem::replace(&mut slot.outcome, SlotState::Gone) {
            SlotState::Done(outcome) => Some((index, outcome)),
            SlotState::Waiting | SlotState::Gone => None,
        }
    }
}

/// The engine's half of one read.
///
/// An engine keeps it with the memory and the file until the system is done with both, then
/// [finishes](Self::finish) it. Dropped unfinished, it reports [`Abandoned`](ErrorKind::Abandoned), so that a
/// dead engine never hangs anyone; past the deadline, [`TimedOut`](ErrorKind::TimedOut).
pub struct Ticket {
    core: ManuallyDrop<Arc<Core>>,
    index: usize,
    len: u64,
    /// Length of the block to be delivered: with what was filled before, or nothing for a hint.
    whole: u64,
    reported: AtomicU64,
    finished: bool,
}

impl Ticket {
    /// The ticket of `read`, which is at `index`. One for each read, to be made once.
    pub(super) fn new(pending: &Pending, index: usize, read: &Read) -> Self {
        let len = read.len();
        Ticket {
            core: ManuallyDrop::new(Arc::clone(&pending.core)),
            index,
            len,
            whole: match &read.dest {
                Dest::Any(_) => len,
                Dest::Into(block) => len.saturating_add(block.filled_len() as u64),
                Dest::Prefetch => 0,
            },
            reported: AtomicU64::new(0),
            finished: false,
        }
    }

    /// Whether anybody still waits: false once the [`Pending`] was dropped or timed out. Work that has not been
    /// handed to the system may then be skipped.
    pub fn wanted(&self) -> bool {
        self.core.wanted.load(Ordering::Relaxed) && !self.is_late()
    }

    fn range(&self) -> Range<u64> {
        if !self.core.generation.is_current() {
            return 0..0; // the lock may be held for ever here
        }
        let state = self.core.lock();
        let slot = state.slots.get(self.index);
        slot.map(|slot| slot.range.clone()).unwrap_or_default()
    }

    fn is_late(&self) -> bool {
        self.core
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Reports `bytes` more as read, for [`Pending::progress`]. Optional: finishing reports the rest.
    pub fn add_progress(&self, bytes: u64) {
        let before = self.reported.fetch_add(bytes, Ordering::Relaxed);
        let counted = bytes.min(self.len.saturating_sub(before));
        self.core.bytes.fetch_add(counted, Ordering::Relaxed);
    }

    /// Hands the outcome to the waiter and wakes it. Late ones (after a deadline, or with nobody waiting) are
    /// dropped.
    pub fn finish(mut self, outcome: Result<Block, Failed>) {
        self.complete(outcome);
    }

    fn complete(&mut self, mut outcome: Outcome) {
        self.finished = true;
        if let Ok(block) = &outcome
            && block.len() as u64 != self.whole
        {
            let (wanted, got) = (self.whole, block.len() as u64);
            let range = self.range();
            let error = self
                .core
                .error(ErrorKind::WrongLength { wanted, got }, range);
            outcome = Err(error.into());
        }
        if let Err(failed) = &mut outcome
            && matches!(failed.error.kind(), ErrorKind::Abandoned)
            && self.is_late()
        {
            // An engine that skipped what nobody waits for any more has not failed.
            let mut late = Error::new(ErrorKind::TimedOut)
                .named(&self.core.name)
                .by(self.core.engine);
            if let (Some(offset), Some(len)) = (failed.error.offset(), failed.error.length()) {
                late = late.at(offset..offset.saturating_add(len));
            }
            failed.error = late;
        }
        if let Err(failed) = &mut outcome
            && (failed.error.name().is_none() || failed.error.offset().is_none())
        {
            // Every error says where, whatever the engine knew.
            let error = failed.error.clone().named(&self.core.name);
            failed.error = error.at(self.range()).by(self.core.engine);
        }
        if self.core.generation.is_current() {
            let reported = self.reported.load(Ordering::Relaxed).min(self.len);
            let unreported = if outcome.is_ok() {
                self.len - reported
            } else {
                0
            };
            self.core.finish(self.index, outcome, unreported);
        } else {
            // The lock may be held by a thread that does not exist here; the memory may be in use there.
            std::mem::forget(outcome);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.finished && self.core.generation.is_current() {
            let error = self.core.error(ErrorKind::Abandoned, self.range());
            self.complete(Err(error.into()));
        }
        if self.core.generation.is_current() {
            drop_core(&mut self.core);
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("source", &self.core.name)
            .field("index", &self.index)
            .field("len", &self.len)
            .finish()
    }
}

#[allow(unsafe_code)]
fn drop_core(core: &mut ManuallyDrop<Arc<Core>>) {
    // SAFETY: called once, from the drop of the value that holds it; nothing uses the field afterwards.
    unsafe { ManuallyDrop::drop(core) }
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Reads that have an outcome.
    pub reads_done: usize,
    /// Reads of the batch.
    pub reads: usize,
    /// Bytes read.
    pub bytes_done: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

/// The caller's half of a started batch: await it on any executor, or [`wait`](Self::wait) on any thread.
///
/// It owns no memory that the system writes to. Dropping it cancels what has not been sent to the system;
/// forgetting it leaks its results and nothing else.
#[must_use = "dropping it cancels reads that have not begun"]
pub struct Pending {
    core: ManuallyDrop<Arc<Core>>,
    /// Outcomes not yet handed out.
    left: usize,
    total: usize,
    timer_set: bool,
    /// Blocks that polls as a future have met so far.
    gathered: Vec<Option<Block>>,
    /// Why there will be no list of all blocks: a read failed, or outcomes were handed out one by one.
    incomplete: Option<Error>,
}

impl Pending {
    /// The caller's half of `reads`, each of which gets its ticket.
    pub(super) fn new(source: &Source, reads: &[Read], deadline: Option<Instant>) -> Self {
        let slot = |read: &Read| Slot {
            range: read.range.clone(),
            outcome: SlotState::Waiting,
        };
        Pending {
            core: ManuallyDrop::new(Arc::new(Core {
                generation: Generation::current(),
                name: source.name().clone(),
                engine: source.engine(),
                deadline,
                wanted: AtomicBool::new(true),
                finished: AtomicUsize::new(0),
                bytes: AtomicU64::new(0),
                total_bytes: reads.iter().map(Read::len).fold(0, u64::saturating_add),
                state: Mutex::new(State {
                    slots: reads.iter().map(slot).collect(),
                    done: Vec::with_capacity(reads.len()),
                    taken: 0,
                    waker: None,
                    expired: false,
                }),
                changed: Condvar::new(),
            })),
            left: reads.len(),
            total: reads.len(),
            timer_set: false,
            gathered: Vec::new(),
            incomplete: None,
        }
    }

    /// How far it is; costs two loads, for a progress display to pull.
    pub fn progress(&self) -> Progress {
        Progress {
            reads_done: self.core.finished.load(Ordering::Relaxed).min(self.total),
            reads: self.total,
            bytes_done: self.core.bytes.load(Ordering::Relaxed),
            bytes: self.core.total_bytes,
        }
    }

    /// Parks this thread until all reads are done; blocks in the order of the batch.
    ///
    /// # Errors
    /// The first error met, at once; the outcomes of the others are dropped.
    /// [`InvalidOption`](ErrorKind::InvalidOption) if outcomes were taken one by one before.
    pub fn wait(mut self) -> Result<Vec<Block>> {
        loop {
            match self.next_until(None) {
                Poll::Ready(Some((index, outcome))) => self.gather(index, outcome),
                Poll::Ready(None) | Poll::Pending => return self.in_order(),
            }
            if let Some(error) = &self.incomplete {
                return Err(error.clone());
            }
        }
    }

    /// Parks this thread until the next read is done, whichever it is: its position in the batch and its
    /// outcome. `None` when all have been handed out.
    pub fn wait_next(&mut self) -> Option<(usize, Result<Block, Failed>)> {
        match self.next_until(None) {
            Poll::Ready(next) => self.hand_out(next),
            Poll::Pending => None, // only a wait with an end comes back without an outcome
        }
    }

    /// [`wait_next`](Self::wait_next) for `timeout` at most, as for showing [`progress`](Self::progress) meanwhile:
    /// `Poll::Pending` if no read was done by then. The reads go on.
    pub fn wait_next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Poll<Option<(usize, Result<Block, Failed>)>> {
        let end = Instant::now().checked_add(timeout);
        self.next_until(end).map(|next| self.hand_out(next))
    }

    fn next_until(&mut self, end: Option<Instant>) -> Poll<Option<(usize, Outcome)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(forked) = self.forked() {
            return Poll::Ready(Some(forked));
        }
        let core = &**self.core;
        let mut state = core.lock();
        loop {
            if let Some(done) = state.take_done() {
                self.left -= 1;
                return Poll::Ready(Some(done));
            }
            let Some(until) = core.deadline.into_iter().chain(end).min() else {
                state = core
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let now = Instant::now();
            if core.deadline.is_some_and(|deadline| now >= deadline) {
                drop(state);
                core.expire();
                state = core.lock();
            } else if now >= until {
                return Poll::Pending;
            } else {
                let wait = core.changed.wait_timeout(state, until - now);
                state = wait.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// The next read that is done, without waiting; `None` if there is none now.
    pub fn try_next(&mut self) -> Option<(usize, Result<Block, Failed>)> {
        match self.wait_next_timeout(Duration::ZERO) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    /// Polls for the next read that is done: its position in the batch and its outcome. `Ready(None)` when all
    /// have been handed out.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<(usize, Result<Block, Failed>)>> {
        self.poll_done(cx).map(|next| self.hand_out(next))
    }

    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Outcome)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if let Some(forked) = self.forked() {
            return Poll::Ready(Some(forked));
        }
        if let Some(deadline) = self.core.deadline {
            if Instant::now() >= deadline {
                self.core.expire();
            } else if !self.timer_set {
                match timer::at(deadline, &self.core) {
                    Ok(()) => self.timer_set = true,
                    // Without a timer the deadline could pass unnoticed: better none of it.
                    Err(_) => self.core.expire(),
                }
            }
        }
        let mut cloned = None;
        loop {
            let mut state = self.core.lock();
            if let Some(done) = state.take_done() {
                self.left -= 1;
                return Poll::Ready(Some(done));
            }
            if matches!(&state.waker, Some(waker) if waker.will_wake(cx.waker())) {
                return Poll::Pending;
            }
            if let Some(waker) = cloned.take() {
                let old = state.waker.replace(waker);
                drop(state);
                drop(old);
                return Poll::Pending;
            }
            drop(state);
            // Code of others, so outside the lock; then another look, as a read may be done by now.
            cloned = Some(cx.waker().clone());
        }
    }

    /// The outcomes in completion order, as a `Stream`. (For threads, a `Pending` is an iterable of them.)
    pub fn stream(self) -> Completions {
        Completions(self)
    }

    /// Notes that an outcome goes to the caller by itself.
    fn hand_out(&mut self, next: Option<(usize, Outcome)>) -> Option<(usize, Outcome)> {
        if next.is_some() && self.incomplete.is_none() {
            let what =
                "outcomes of this batch were taken one by one; take the others so too".into();
            self.incomplete = Some(self.error(ErrorKind::InvalidOption { what }));
        }
        next
    }

    fn gather(&mut self, index: usize, outcome: Outcome) {
        match outcome {
            Err(failed) => {
                self.incomplete.get_or_insert(failed.error);
            }
            Ok(block) => {
                if self.gathered.is_empty() {
                    self.gathered.resize(self.total, None);
                }
                if let Some(place) = self.gathered.get_mut(index) {
                    *place = Some(block);
                }
            }
        }
    }

    /// All blocks, if none failed and none was handed out by itself.
    fn in_order(&mut self) -> Result<Vec<Block>> {
        if let Some(error) = &self.incomplete {
            return Err(error.clone());
        }
        let gathered = std::mem::take(&mut self.gathered);
        if gathered.len() != self.total {
            // Polled again after it was ready.
            return Err(self.error(ErrorKind::Abandoned));
        }
        Ok(gathered.into_iter().flatten().collect())
    }

    /// After a fork: one error per read left. The positions are those of a fresh batch, as which reads were
    /// handed out is known only to memory that cannot be touched here.
    fn forked(&mut self) -> Option<(usize, Outcome)> {
        if self.core.generation.is_current() {
            return None;
        }
        let index = self.total - self.left;
        self.left -= 1;
        Some((index, Err(self.error(ErrorKind::Forked).into())))
    }

    /// An error about the batch.
    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind).named(&self.core.name).by(self.core.engine)
    }
}

/// The blocks in the order of the batch, or the first error met.
impl Future for Pending {
    type Output = Result<Vec<Block>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(error) = &self.incomplete {
                return Poll::Ready(Err(error.clone()));
            }
            match self.poll_done(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(self.in_order()),
                Poll::Ready(Some((index, outcome))) => self.gather(index, outcome),
            }
        }
    }
}

/// The outcomes in completion order; parks the thread for each.
impl IntoIterator for Pending {
    type Item = (usize, Result<Block, Failed>);
    type IntoIter = Outcomes;

    fn into_iter(self) -> Outcomes {
        Outcomes(self)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.core.generation.is_current() {
            return; // what it holds may be in use by threads of the parent: leaked here
        }
        if self.left > 0 {
            self.core.wanted.store(false, Ordering::Relaxed);
            let mut state = self.core.lock();
            // Outcomes nobody will take go now, not when the last straggler has finished.
            let slots: Vec<_> = state
                .slots
                .iter_mut()
                .map(|slot| std::mem::replace(&mut slot.outcome, SlotState::Gone))
                .collect();
            let waker = state.waker.take();
            drop(state);
            drop((slots, waker));
        }
        drop_core(&mut self.core);
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("source", &self.core.name)
            .field("progress", &self.progress())
            .finish()
    }
}

/// Iterator over the outcomes of a [`Pending`], in completion order.
#[derive(Debug)]
#[must_use = "iterators do nothing unless used"]
pub struct Outcomes(Pending);

impl Iterator for Outcomes {
    type Item = (usize, Result<Block, Failed>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.wait_next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}

/// Stream of the outcomes of a [`Pending`], in completion order.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Completions(Pending);

impl Stream for Completions {
    type Item = (usize, Result<Block, Failed>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.left, Some(self.0.left))
    }
}

/// One read as a future of its bytes; [`wait`](Self::wait) for it on any thread.
#[derive(Debug)]
#[must_use = "dropping it cancels the read if it has not begun"]
pub struct PendingRead(Pending);

impl PendingRead {
    /// `pending` must be of a batch of one read into host memory.
    pub(super) fn new(pending: Pending) -> Self {
        PendingRead(pending)
    }

    /// Parks this thread until the bytes are there.
    ///
    /// # Errors
    /// As the [contract](super::Reader) says.
    pub fn wait(mut self) -> Result<Bytes> {
        let next = self.0.wait_next();
        self.bytes(next)
    }

    /// Parks this thread for `timeout` at most; `None` if the bytes are not there by then. The read goes on.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Bytes>> {
        match self.0.wait_next_timeout(timeout) {
            Poll::Ready(next) => Some(self.bytes(next)),
            Poll::Pending => None,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.0.progress()
    }

    fn bytes(&self, next: Option<(usize, Outcome)>) -> Result<Bytes> {
        match next {
            Some((_, outcome)) => outcome?.into_host(),
            // Asked again after it was ready, or an engine that started no read.
            None => Err(self.0.error(ErrorKind::Abandoned)),
        }
    }
}

impl Future for PendingRead {
    type Output = Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let next = std::task::ready!(self.0.poll_next(cx));
        Poll::Ready(self.bytes(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::{Batch, Limits, ReadOptions};
    use crate::version::Version;
    use std::sync::mpsc;

    fn source() -> Source {
        let version = Version::immutable(100);
        Source::new("test", "test", version, Limits::default())
    }

    fn start(batch: Batch) -> (Vec<Ticket>, Pending) {
        let (started, _, pending) = batch.start(&source());
        (started.into_iter().map(|(_, t)| t).collect(), pending)
    }

    fn block(text: &'static str) -> Block {
        Bytes::from_static(text.as_bytes()).into()
    }

    #[test]
    fn blocks_come_in_batch_order_whatever_finished_first() {
        let (mut tickets, pending) = start(Batch::of([0..1, 1..2, 2..3]));
        for text in ["c", "b", "a"] {
            tickets.pop().unwrap().finish(Ok(block(text)));
        }
        let blocks = pending.wait().unwrap();
        let texts: Vec<_> = blocks.iter().map(|b| b.as_host().unwrap()).collect();
        assert_eq!(texts, ["a", "b", "c"]);
    }

    #[test]
    fn completion_order_and_progress() {
        let (mut tickets, mut pending) = start(Batch::of([0..10, 10..30]));
        let (second, first) = (tickets.pop().unwrap(), tickets.pop().unwrap());
        assert!(pending.try_next().is_none());
        second.add_progress(15);
        assert_eq!(pending.progress().bytes_done, 15);
        second.finish(Ok(block("12345678901234567890")));
        assert_eq!(pending.progress().bytes_done, 20);
        assert_eq!(pending.wait_next().unwrap().0, 1);
        first.finish(Ok(block("1234567890")));
        assert_eq!(pending.try_next().unwrap().0, 0);
        assert!(pending.wait_next().is_none());
        let all = Progress {
            reads_done: 2,
            reads: 2,
            bytes_done: 30,
            bytes: 30,
        };
        assert_eq!(pending.progress(), all);
    }

    #[test]
    fn a_wait_with_an_end_comes_back_and_the_read_goes_on() {
        let (mut tickets, mut pending) = start(Batch::of([0..1]));
        let short = Duration::from_millis(1);
        assert!(pending.wait_next_timeout(short).is_pending());
        assert!(tickets[0].wanted());
        tickets.pop().unwrap().finish(Ok(block("x")));
        let Poll::Ready(Some((0, Ok(_)))) = pending.wait_next_timeout(Duration::MAX) else {
            panic!("{pending:?}");
        };
        assert!(matches!(
            pending.wait_next_timeout(short),
            Poll::Ready(None)
        ));
    }

    #[test]
    fn another_number_of_bytes_is_a_bug_of_the_engine() {
        let dest = BlockMut::with_capacity(9);
        let (tickets, mut pending) = start(Batch::of([0..2]).read_into(4..5, dest));
        for ticket in tickets {
            ticket.finish(Ok(block("xyz")));
        }
        while let Some((_, outcome)) = pending.wait_next() {
            let error = outcome.unwrap_err().error;
            let ErrorKind::WrongLength { wanted, got: 3 } = error.kind() else {
                panic!("{error}");
            };
            assert_eq!(error.length(), Some(*wanted));
        }
    }

    #[test]
    fn an_incomplete_batch_never_passes_for_a_whole_one() {
        let (tickets, mut pending) = start(Batch::of([0..1, 1..2]));
        for ticket in tickets {
            ticket.finish(Ok(block("x")));
        }
        assert!(pending.try_next().is_some());
        let error = pending.wait().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        let (mut tickets, mut pending) = start(Batch::of([0..1, 1..2]));
        drop(tickets.pop());
        tickets.pop().unwrap().finish(Ok(block("x")));
        for _ in 0..2 {
            let error = futures::executor::block_on(&mut pending).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
        }
    }

    #[test]
    fn taking_outcomes_after_a_deadline_costs_the_same_for_each() {
        let count = 50_000;
        let options = ReadOptions::default().deadline(Instant::now());
        let ranges = std::iter::repeat_n(0..1, count);
        let (tickets, mut pending) = start(Batch::of(ranges).options(options));
        // Quadratic work would take minutes here.
        let taken = std::iter::from_fn(|| pending.try_next()).count();
        assert_eq!((taken, tickets.len()), (count, count));
    }

    #[test]
    fn a_dropped_ticket_is_an_error_that_names_the_range() {
        let (tickets, pending) = start(Batch::of([3..7]));
        std::thread::spawn(move || drop(tickets));
        let error = pending.wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Abandoned));
        assert_eq!((error.offset(), error.length()), (Some(3), Some(4)));
    }

    #[test]
    fn a_panicking_engine_thread_does_not_hang_the_waiter() {
        let (tickets, pending) = start(Batch::of([3..7]));
        let thread = std::thread::spawn(move || {
            let _held = tickets;
            std::panic::resume_unwind(Box::new("engine bug"));
        });
        assert!(matches!(
            pending.wait().unwrap_err().kind(),
            ErrorKind::Abandoned
        ));
        assert!(thread.join().is_err());
    }

    #[test]
    fn dropping_the_callers_half_is_seen_and_late_results_are_released() {
        let (mut tickets, pending) = start(Batch::of([0..1, 1..2]));
        let late = tickets.pop().unwrap();
        tickets.pop().unwrap().finish(Ok(block("x")));
        assert!(late.wanted());
        drop(pending);
        assert!(!late.wanted());
        let shared = Bytes::from(vec![1u8; 1]);
        late.finish(Ok(shared.clone().into()));
        assert!(shared.is_unique());
    }

    #[test]
    fn a_deadline_holds_against_an_engine_that_hangs() {
        let soon = Instant::now() + Duration::from_millis(10);
        let options = ReadOptions::default().deadline(soon);
        let (tickets, pending) = start(Batch::of([0..1, 5..8]).options(options));
        let error = pending.wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
        assert!(!tickets[0].wanted());
    }

    #[test]
    fn work_skipped_past_the_deadline_timed_out_and_was_not_abandoned() {
        let options = ReadOptions::default().deadline(Instant::now());
        let (tickets, pending) = start(Batch::of([0..1]).options(options));
        assert!(!tickets[0].wanted());
        drop(tickets);
        let error = pending.wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
    }

    #[test]
    fn reads_that_timed_out_have_an_outcome_and_are_done() {
        let options = ReadOptions::default().deadline(Instant::now());
        let (tickets, mut pending) = start(Batch::of([0..1, 1..2]).options(options));
        assert!(pending.try_next().is_some());
        assert_eq!(pending.progress().reads_done, 2);
        for ticket in tickets {
            ticket.finish(Ok(block("x")));
        }
        let progress = pending.progress();
        assert_eq!((progress.reads_done, progress.bytes_done), (2, 0));
    }

    #[test]
    fn a_deadline_wakes_a_task_that_nobody_else_would() {
        let soon = Instant::now() + Duration::from_millis(10);
        let options = ReadOptions::default().deadline(soon);
        let (_tickets, pending) = start(Batch::of([0..1]).options(options));
        let error = futures::executor::block_on(pending).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
    }

    #[test]
    fn wakes_the_last_waker_given() {
        let (tickets, mut pending) = start(Batch::of([0..1]));
        let (tx, rx) = mpsc::channel();
        let waker = |name: &'static str| {
            struct Send(mpsc::Sender<&'static str>, &'static str);
            impl std::task::Wake for Send {
                fn wake(self: Arc<Self>) {
                    let _ = self.0.send(self.1);
                }
            }
            Waker::from(Arc::new(Send(tx.clone(), name)))
        };
        for name in ["old", "new"] {
            let waker = waker(name);
            assert!(
                pending
                    .poll_next(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        for ticket in tickets {
            ticket.finish(Ok(block("x")));
        }
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["new"]);
    }

    #[test]
    fn refused_reads_give_their_block_back() {
        let dest = BlockMut::with_capacity(64);
        let batch = Batch::new().read_into(90..101, dest).any(4..5);
        let (tickets, mut pending) = start(batch);
        assert_eq!(tickets.len(), 1);
        let (index, outcome) = pending.wait_next().unwrap();
        let failed = outcome.unwrap_err();
        assert_eq!(index, 0);
        assert!(matches!(
            failed.error.kind(),
            ErrorKind::OutOfBounds { len: 100 }
        ));
        assert!(failed.dest.unwrap().len() >= 64);
    }
}
