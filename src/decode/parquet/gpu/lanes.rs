//! A scan at work: two lanes that take row groups in turn, so that one decompresses while the device decodes the other's. Each has a stream
//! for all that it queues, and waits for that alone.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use arrow_array::RecordBatch;

use super::group::{Decoded, Groups};
use crate::cuda::Stream;
use crate::decode::device::DeviceBatch;
use crate::decode::panics::{OURS, contained};
use crate::decode::parquet::batches::Batches;
use crate::decode::parquet::explain::Plan;
use crate::decode::parquet::job::Done;
use crate::decode::wait::drive;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{GroupPlan, Pieces, ReadPlan};
use crate::reader::Pending;

/// Row groups that are worked on, or wait to be taken.
pub(super) const LANES: usize = 2;

/// Batches of one item that wait to be taken.
const WAITING: usize = 2;

/// Most rows of a batch that the host decodes, where it decodes row groups alone.
const HOST_ROWS: u64 = 1 << 20;

/// Row groups that are decoded one after the other.
#[derive(Debug)]
pub(super) enum Item {
    /// This one, with the kernels.
    Group(usize),
    /// These, by the host alone: why.
    Host(Range<usize>, Arc<str>),
}

/// The work of a scan, and its queue.
pub(super) struct Lanes {
    pub(super) groups: Groups,
    explanation: Plan,
    items: Vec<Item>,
    state: Mutex<State>,
    reads: Mutex<Reads>,
    /// For lanes: something was taken, or it is over.
    room: Condvar,
    /// For the consumer.
    ready: Condvar,
    pub(super) done: Arc<Done>,
}

struct State {
    /// The next item to begin.
    next: usize,
    /// Items before it were taken whole.
    head: usize,
    slots: Vec<Slot>,
    ended: bool,
    /// Of the task that waits for the next batch.
    waker: Option<Waker>,
}

impl State {
    /// Goes on to the first item that is not taken whole.
    fn advance(&mut self) {
        let taken = |slot: &Slot| slot.done && slot.failed.is_none() && slot.batches.is_empty();
        while self.slots.get(self.head).is_some_and(taken) {
            self.head += 1;
        }
    }
}

#[derive(Default)]
struct Slot {
    batches: VecDeque<DeviceBatch>,
    failed: Option<Error>,
    done: bool,
}

/// Bytes that were asked for.
#[derive(Default)]
struct Reads {
    pending: BTreeMap<usize, Pending>,
    /// Row groups before it were asked for, or need no asking.
    next: usize,
    held: u64,
}

impl Lanes {
    pub(super) fn new(groups: Groups, explanation: Plan, items: Vec<Item>) -> Self {
        Lanes {
            state: Mutex::new(State {
                next: 0,
                head: 0,
                slots: items.iter().map(|_| Slot::default()).collect(),
                ended: false,
                waker: None,
            }),
            groups,
            explanation,
            items,
            reads: Mutex::default(),
            room: Condvar::new(),
            ready: Condvar::new(),
            done: Arc::default(),
        }
    }

    /// How many lanes have something to do.
    pub(super) fn count(&self) -> usize {
        self.items.len().min(LANES)
    }

    /// Ends the work as soon as the lanes see it.
    pub(super) fn stop(&self) {
        self.groups.stopped.store(true, Ordering::Release);
        let mut state = self.lock();
        state.ended = true;
        let left: Vec<_> = state
            .slots
            .iter_mut()
            .map(|slot| std::mem::take(&mut slot.batches))
            .collect();
        self.tell(state);
        drop(left);
        self.room.notify_all();
    }

    /// Tells the consumer that there is something new.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next batch: waited for, or `Pending` if a task can be woken.
    pub(super) fn next(&self, waker: Option<&Waker>) -> Poll<Option<Result<DeviceBatch>>> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return Poll::Ready(None);
            }
            let head = state.head;
            let Some(slot) = state.slots.get_mut(head) else {
                state.ended = true;
                return Poll::Ready(None);
            };
            if let Some(batch) = slot.batches.pop_front() {
                state.advance();
                drop(state);
                self.room.notify_all();
                return Poll::Ready(Some(Ok(batch)));
            }
            if let Some(error) = slot.failed.take() {
                drop(state);
                self.stop();
                return Poll::Ready(Some(Err(error)));
            }
            if let Some(waker) = waker {
                let old = state.waker.replace(waker.clone());
                drop(state);
                drop(old);
                return Poll::Pending;
            }
            state = self
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What a lane does.
    pub(super) fn work(&self, stream: &Stream) {
        // So that no call has to change the context and put it back. The thread is that of another scan afterwards.
        let _bound = self.groups.gpu.context().bound();
        while let Some(at) = self.take() {
            let outcome = contained(OURS, || match self.items.get(at) {
                Some(Item::Group(group)) => self.group(at, *group, stream),
                Some(Item::Host(groups, why)) => self.host(at, groups.clone(), why, 0, stream),
                None => Ok(()),
            });
            self.finish(at, outcome.and_then(|outcome| outcome).err());
        }
    }

    /// The next item, once it is its turn.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.ended || state.next >= self.items.len() {
                return None;
            }
            if state.next < state.head + LANES {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Queues a batch; `false`: nobody wants it.
    fn push(&self, at: usize, batch: DeviceBatch) -> bool {
        let mut state = self.lock();
        loop {
            if state.ended {
                return false;
            }
            match state.slots.get_mut(at) {
                Some(slot) if slot.batches.len() < WAITING => {
                    slot.batches.push_back(batch);
                    break;
                }
                Some(_) => {}
                None => return false,
            }
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.tell(state);
        true
    }

    fn finish(&self, at: usize, failed: Option<Error>) {
        let mut state = self.lock();
        if let Some(slot) = state.slots.get_mut(at) {
            slot.failed = failed.map(|error| error.named(&self.groups.task.name));
            slot.done = true;
        }
        state.advance();
        self.tell(state);
        self.room.notify_all();
    }

    fn group(&self, at: usize, number: usize, stream: &Stream) -> Result<()> {
        let Some(group) = self.groups.task.plan.groups.get(number) else {
            return Ok(());
        };
        let Some(pieces) = self.bytes(number, group)? else {
            return Ok(());
        };
        let decoded = self.groups.decode(stream, group, &pieces);
        drop(pieces);
        self.release(group);
        let (why, least) = match decoded {
            Ok(Decoded::Batch(batch)) => {
                self.push(at, batch);
                return Ok(());
            }
            Ok(Decoded::Nothing | Decoded::Stopped) => return Ok(()),
            Ok(Decoded::Divide(why, bytes)) => (why, bytes),
            Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => {
                self.groups.gpu.trim();
                (error.to_string().into(), 0)
            }
            Err(error) => return Err(error),
        };
        self.host(at, number..number + 1, &why, least, stream)
    }

    /// Rows of a batch of these row groups, each of which takes at least so many bytes.
    fn host_rows(&self, groups: &[GroupPlan], least: u64) -> u64 {
        let each = groups.iter().map(|group| {
            let bytes = self.groups.bytes_of(group).max(least);
            bytes / group.count.max(1)
        });
        // A quarter of what there is: while one is made, `WAITING` wait, and the consumer has one.
        let batches = WAITING as u64 + 2;
        (self.groups.memory / each.max().unwrap_or(0).max(1) / batches).clamp(1, HOST_ROWS)
    }

    /// Decodes row groups by the host alone, each of which takes at least so many bytes.
    fn host(
        &self,
        at: usize,
        groups: Range<usize>,
        why: &Arc<str>,
        least: u64,
        stream: &Stream,
    ) -> Result<()> {
        let mut task = self.groups.task.clone();
        let these = task.plan.groups.get(groups);
        let these = these.unwrap_or_default().to_vec();
        let count = these.len();
        let rows = self.host_rows(&these, least);
        task.plan = Arc::new(ReadPlan {
            groups: these,
            skips: Vec::new(),
            rows_asked: 0,
            index_bytes: 0,
        });
        task.batch_rows = rows;
        task.in_order = true;
        let mut batches = Batches::start(task, self.explanation.clone(), self.groups.threads)?;
        // Rows that there was memory for, once there was not enough for all.
        let mut fit = usize::MAX;
        for batch in batches.by_ref() {
            if !self.push_from_host(at, &batch?, &mut fit, stream)? {
                return Ok(());
            }
        }
        let report = batches.report();
        self.done
            .requests
            .fetch_add(report.requests, Ordering::Relaxed);
        self.done.bytes.fetch_add(report.bytes, Ordering::Relaxed);
        self.done
            .with_footer
            .fetch_add(report.bytes_with_footer, Ordering::Relaxed);
        let mut tally = self.groups.tally();
        for root in &self.groups.roots {
            let why = root.shape.as_ref().err().unwrap_or(why);
            for _ in 0..count {
                tally.by_host(&root.name, why);
            }
        }
        Ok(())
    }

    /// Queues a batch of the host, in parts of no more rows than `fit`, which becomes less where the device has no memory for them; `false`:
    /// nobody wants it.
    fn push_from_host(
        &self,
        at: usize,
        batch: &RecordBatch,
        fit: &mut usize,
        stream: &Stream,
    ) -> Result<bool> {
        let mut from = 0;
        loop {
            let rows = (batch.num_rows() - from).min(*fit);
            let part = from..from + rows;
            match DeviceBatch::upload_rows(&self.groups.gpu, stream, batch, part) {
                Ok(part) => {
                    if !self.push(at, part) {
                        return Ok(false);
                    }
                    from += rows;
                    if from == batch.num_rows() {
                        return Ok(true);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => {
                    self.groups.gpu.trim();
                    // What waits to be taken may be what takes the memory.
                    match self.drained(at) {
                        None => return Ok(false),
                        Some(true) => {}
                        Some(false) if rows > 1 => *fit = rows / 2,
                        Some(false) => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until all batches of an item are taken: whether there were any. `None`: nobody wants them.
    fn drained(&self, at: usize) -> Option<bool> {
        let mut state = self.lock();
        let mut waited = false;
        loop {
            let slot = state.slots.get(at).filter(|_| !state.ended)?;
            if slot.batches.is_empty() {
                return Some(waited);
            }
            waited = true;
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The bytes of a row group, waited for; those of the next ones are asked for as far as the window allows. `None` if it is over.
    fn bytes(&self, number: usize, group: &GroupPlan) -> Result<Option<Arc<Pieces>>> {
        let pending = {
            let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
            self.ask(&mut reads, number);
            reads.pending.remove(&number)
        };
        let Some(pending) = pending else {
            return Err(Error::new(ErrorKind::Abandoned));
        };
        let stopped = || self.groups.is_stopped().then_some(());
        let Ok(blocks) = drive(pending, stopped) else {
            return Ok(None);
        };
        let pieces = self.groups.task.pieces(group, blocks?);
        pieces.map(Some)
    }

    /// Asks for the bytes up to row group `number` in any case, and for more of them within the window.
    fn ask(&self, reads: &mut Reads, number: usize) {
        let task = &self.groups.task;
        let wanted = self.items.iter().filter_map(|item| match item {
            Item::Group(group) => Some(*group),
            Item::Host(..) => None,
        });
        // In the order of the items, which is that of the plan.
        for next in wanted
            .skip_while(|next| *next < reads.next)
            .collect::<Vec<_>>()
        {
            let Some(group) = task.plan.groups.get(next) else {
                continue;
            };
            let bytes = group.bytes_read();
            let fits = reads.held.saturating_add(bytes) <= task.window;
            let near = next <= number || fits && next <= number + LANES;
            if !near {
                return;
            }
            reads.held = reads.held.saturating_add(bytes);
            reads.pending.insert(next, task.submit(group, &self.done));
            reads.next = next + 1;
        }
    }

    fn release(&self, group: &GroupPlan) {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.held = reads.held.saturating_sub(group.bytes_read());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
