//! A scan at work: threads that read and decode row groups, and the queues between them and the consumer.
//!
//! A row group is cut into parts, sets of top-level columns of about the same weight, as many as there are threads at most.
//! A thread stays with the same part of all row groups: what it allocates has the sizes of what was freed before, and comes
//! from the same place of the allocator, which needs no new memory for it then. When there is no more of this part, or no
//! room for more bytes before others are done with theirs, it helps with the others, with row groups before its own. Each
//! part has a thread of its own and is decoded in the order of its delivery, so all parts of the row group that the consumer
//! waits for are decoded, whatever the others do. A thread that is ahead pauses when what waits for the consumer fills the
//! window, but each part may always queue one batch: so the batch that the consumer waits for comes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Fields, SchemaRef};
use parquet::file::metadata::ParquetMetaData;

use super::buffers::Buffers;
use super::failure;
use super::filter;
use super::metadata::Metadata;
use super::queues::{GroupState, Queue, State, Taken, next_for};
use super::resident::{Bring, Resident, is_copied_at_once};
use super::unit::{Held, Unit};
use crate::buffer::Block;
use crate::decode::panics::{OURS, contained};
use crate::decode::wait::drive;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{Bound, GroupPlan, Pieces, ReadPlan, Rows, malformed};
use crate::reader::{Batch, Pending};

/// Top-level columns that are decoded together.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Leaves, ascending.
    pub(super) leaves: Vec<usize>,
    /// Where each of its top-level columns goes in the batch.
    pub(super) positions: Vec<usize>,
}

/// What a scan does, fixed at its start.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) bring: Arc<dyn Bring>,
    /// What was read with the footer is not read again.
    pub(super) known: Metadata,
    pub(super) file_len: u64,
    pub(super) name: Arc<str>,
    pub(super) metadata: Arc<ParquetMetaData>,
    /// The Arrow types to make, of the whole file.
    pub(super) fields: Fields,
    pub(super) schema: SchemaRef,
    /// Leaves to deliver, ascending.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) leaves: Vec<usize>,
    pub(super) predicate: Option<Bound>,
    pub(super) plan: Arc<ReadPlan>,
    pub(super) parts: Vec<Part>,
    pub(super) batch_rows: u64,
    pub(super) window: u64,
    pub(super) in_order: bool,
}

impl Task {
    /// What is asked of the reader for a row group: what did not come with the footer.
    fn missing<'a>(&'a self, plan: &'a GroupPlan) -> impl Iterator<Item = Range<u64>> + 'a {
        let known = |range: &&Range<u64>| self.known.tail(range).is_none();
        plan.requests.iter().filter(known).cloned()
    }

    /// Asks for the bytes of a row group.
    pub(super) fn submit(&self, plan: &GroupPlan, done: &Done) -> Pending {
        let count: u64 = self
            .missing(plan)
            .map(|range| range.end - range.start)
            .sum();
        let requests = self.missing(plan).count() as u64;
        done.requests.fetch_add(requests, Ordering::Relaxed);
        done.bytes.fetch_add(count, Ordering::Relaxed);
        done.with_footer
            .fetch_add(plan.bytes_read().saturating_sub(count), Ordering::Relaxed);
        self.bring.submit(Batch::of(self.missing(plan)))
    }

    /// The bytes of a row group: `blocks` are what [`submit`](Self::submit) brought.
    pub(super) fn pieces(&self, plan: &GroupPlan, blocks: Vec<Block>) -> Result<Arc<Pieces>> {
        let mut blocks = blocks.into_iter();
        let pieces = plan.requests.iter().map(|range| {
            let bytes = match self.known.tail(range) {
                Some(bytes) => bytes,
                None => match blocks.next() {
                    Some(block) => block.into_host()?,
                    None => return Err(Error::new(ErrorKind::Abandoned)),
                },
            };
            Ok((range.start, bytes))
        });
        let pieces = pieces.collect::<Result<_>>()?;
        Ok(Arc::new(Pieces::new(self.file_len, pieces)))
    }
}

/// A [`Task`] at work.
pub(super) struct Job {
    task: Task,
    groups: Vec<Group>,
    state: Mutex<State>,
    /// For threads: room in a window, or the end.
    room: Condvar,
    /// For the consumer: something to take.
    ready: Condvar,
    stopped: AtomicBool,
    pub(super) done: Arc<Done>,
    resident: Arc<Resident>,
    buffers: Arc<Buffers>,
}

/// What has been done so far.
#[derive(Default)]
pub(super) struct Done {
    pub(super) requests: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) with_footer: AtomicU64,
}

/// One row group: what its parts share.
struct Group {
    bytes: Mutex<Bytes>,
    /// Rows that the predicate is true for.
    matched: Mutex<Option<Result<Rows>>>,
}

enum Bytes {
    NotAsked,
    Coming(Pending),
    Here(Held),
    Failed(Error),
    Released,
}

/// Smaller row groups are read in one go, wherever they are.
const LEAST_PAGED: u64 = 1 << 20;

/// Row groups that have no more bytes together are asked for at once.
const TOGETHER: u64 = 16 << 20;

/// What the consumer gets.
pub(super) enum Next {
    Batch(RecordBatch),
    Failed(Error),
    End,
    Wait,
}

impl Job {
    pub(super) fn new(task: Task, threads: usize) -> Self {
        let group = || Group {
            bytes: Mutex::new(Bytes::NotAsked),
            matched: Mutex::new(None),
        };
        let state = || GroupState {
            parts: task.parts.iter().map(|_| Queue::default()).collect(),
            left: task.parts.len(),
            failed: None,
            paged: false,
        };
        let (done, buffers) = (Arc::new(Done::default()), Arc::new(Buffers::default()));
        Job {
            resident: Arc::new(Resident::new(
                task.bring.clone(),
                buffers.clone(),
                done.clone(),
            )),
            buffers,
            groups: task.plan.groups.iter().map(|_| group()).collect(),
            state: Mutex::new(State {
                next: vec![0; task.parts.len()],
                submitted: 0,
                held: 0,
                coming: Vec::new(),
                arrived: false,
                at_hand: None,
                queued: 0,
                groups: task.plan.groups.iter().map(|_| state()).collect(),
                head: 0,
                waker: None,
                threads,
                ended: false,
            }),
            task,
            room: Condvar::new(),
            ready: Condvar::new(),
            stopped: AtomicBool::new(false),
            done,
        }
    }

    pub(super) fn task(&self) -> &Task {
        &self.task
    }

    /// Ends the work: threads come to their end as soon as they see it.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let mut state = self.lock();
        // What nobody will take goes now.
        let queues: Vec<_> = state
            .groups
            .iter_mut()
            .flat_map(|group| &mut group.parts)
            .map(|queue| std::mem::take(&mut queue.batches))
            .collect();
        state.queued = 0;
        drop(state);
        drop(queues);
        self.room.notify_all();
    }

    /// What the thread of this number does.
    pub(super) fn work(&self, number: usize) {
        let _leaving = Leaving(self);
        while let Some((group, part)) = self.take(number) {
            let decoded = contained(OURS, || self.decode(group, part));
            if let Err(error) = decoded.and_then(|decoded| decoded) {
                self.fail(group, error);
            }
            self.finish(group, part);
        }
    }

    /// What there is for the consumer now.
    pub(super) fn try_next(&self) -> Next {
        self.next_of(self.lock(), None)
    }

    /// The same; `waker` is called when there is more.
    pub(super) fn poll_next(&self, waker: &Waker) -> Next {
        self.next_of(self.lock(), Some(waker))
    }

    /// Waits for the next batch. Never [`Next::Wait`].
    pub(super) fn wait_next(&self) -> Next {
        loop {
            match self.try_next() {
                Next::Wait => {
                    let state = self.lock();
                    if state.has_next(self.task.in_order) {
                        continue;
                    }
                    drop(self.ready.wait(state));
                }
                next => return next,
            }
        }
    }

    fn next_of(&self, mut state: MutexGuard<'_, State>, waker: Option<&Waker>) -> Next {
        if state.ended {
            return Next::End;
        }
        let taken = state.take(self.task.in_order);
        let parts = match taken {
            Taken::Parts(parts) => parts,
            Taken::Failed(error) => {
                state.ended = true;
                return Next::Failed(error.named(&self.task.name));
            }
            Taken::End => {
                state.ended = true;
                return Next::End;
            }
            Taken::Nothing => {
                if let Some(waker) = waker {
                    state.waker = Some(waker.clone());
                }
                return Next::Wait;
            }
        };
        drop(state);
        self.room.notify_all();
        match self.assemble(parts) {
            Ok(batch) => Next::Batch(batch),
            Err(error) => {
                self.lock().ended = true;
                Next::Failed(error.named(&self.task.name))
            }
        }
    }

    /// One batch of the columns of all parts.
    fn assemble(&self, mut parts: Vec<RecordBatch>) -> Result<RecordBatch> {
        let task = &self.task;
        if task.parts.len() == 1
            && let Some(batch) = parts.pop()
        {
            return failure::contain_arrow(None, || batch.with_schema(task.schema.clone()));
        }
        let rows = parts.first().map_or(0, RecordBatch::num_rows);
        let mut columns: Vec<Option<ArrayRef>> = vec![None; task.schema.fields().len()];
        for (part, batch) in task.parts.iter().zip(&parts) {
            for (position, column) in part.positions.iter().zip(batch.columns()) {
                if let Some(slot) = columns.get_mut(*position) {
                    *slot = Some(column.clone());
                }
            }
        }
        let columns: Option<Vec<_>> = columns.into_iter().collect();
        let columns = columns.ok_or_else(|| malformed(None, "a column was not decoded"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        failure::contain_arrow(None, || {
            RecordBatch::try_new_with_options(task.schema.clone(), columns, &options)
        })
    }

    /// What the thread of this number decodes next: a row group whose bytes have been asked for, and the part of it. `None`:
    /// there is none, or it is over.
    fn take(&self, number: usize) -> Option<(usize, usize)> {
        let mut state = self.lock();
        loop {
            if self.is_stopped() || state.ended {
                return None;
            }
            let mut wanted = next_for(number, &state.next, self.groups.len())?;
            if wanted.0 >= state.submitted
                && !self.fits(&state, wanted.0)
                && let Some(other) = next_for(number, &state.next, state.submitted)
            {
                // Those who are behind hold the window up.
                wanted = other;
            }
            let (group, part) = wanted;
            if group < state.submitted {
                if let Some(next) = state.next.get_mut(part) {
                    *next += 1;
                }
                // The next row group is asked for while this one decodes.
                self.submit_next(state, group);
                return Some((group, part));
            }
            if self.fits(&state, group) {
                self.submit_next(state, group);
                state = self.lock();
            } else {
                state = self
                    .room
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Whether the window has room for the bytes of `group`.
    fn fits(&self, state: &State, group: usize) -> bool {
        let bytes = self.plan(group).map_or(0, GroupPlan::bytes_read);
        state.held == 0 || state.held.saturating_add(bytes) <= self.task.window
    }

    /// Whether `group` may be asked for before it is wanted: not with many others, whose bytes would come in turns with its own, so
    /// that none would be there before the last.
    fn is_next(&self, state: &mut State, group: usize) -> bool {
        let bytes = |group: usize| self.plan(group).map_or(0, GroupPlan::bytes_read);
        let is_coming = |group: &usize| {
            let shared = self.groups.get(*group);
            shared.is_some_and(|shared| match shared.bytes.try_lock() {
                Ok(bytes) => matches!(&*bytes, Bytes::Coming(pending) if !is_done(pending)),
                // Somebody waits for it, or is just asking for it.
                Err(_) => true,
            })
        };
        let before = state.coming.len();
        state.coming.retain(is_coming);
        state.arrived |= state.coming.len() < before;
        // The first is waited for, and the others are not: they only have to come before it is decoded.
        let most = usize::from(state.arrived) + 1;
        let coming: u64 = state.coming.iter().copied().map(bytes).sum();
        state.coming.len() < most || coming.saturating_add(bytes(group)) <= TOGETHER
    }

    /// Asks for the bytes of the row groups up to the `wanted` one, and of some behind it, as far as they fit the window.
    fn submit_next<'a>(&'a self, mut state: MutexGuard<'a, State>, wanted: usize) {
        loop {
            let group = state.submitted;
            let (Some(plan), Some(shared)) = (self.plan(group), self.groups.get(group)) else {
                return;
            };
            if !self.fits(&state, group) || self.is_stopped() {
                return;
            }
            if group > wanted && !self.is_next(&mut state, group) {
                return;
            }
            // What the reader panics by is what comes of this row group, and of no other.
            let at_hand = contained(OURS, || self.is_at_hand(&mut state, plan));
            state.submitted += 1;
            if let Ok(true) = at_hand {
                if let Some(group) = state.groups.get_mut(group) {
                    group.paged = true;
                }
                *lock(&shared.bytes) = Bytes::Here(Held::Resident(self.resident.clone()));
                return;
            }
            state.held += plan.bytes_read();
            state.coming.push(group);
            // Locked before anybody else can know that they were asked for; submitting may copy what is in memory.
            let mut bytes = lock(&shared.bytes);
            drop(state);
            let submit = |_| contained(OURS, || self.task.submit(plan, &self.done));
            *bytes = match at_hand.and_then(submit) {
                Ok(pending) => Bytes::Coming(pending),
                Err(error) => Bytes::Failed(error),
            };
            drop(bytes);
            state = self.lock();
        }
    }

    /// Whether the pages of a row group are to be read one by one.
    fn is_at_hand(&self, state: &mut State, plan: &GroupPlan) -> bool {
        let whole = plan.decoded.len() == plan.count;
        if !whole || plan.bytes_read() < LEAST_PAGED || self.resident.is_slow() {
            return false;
        }
        let (bring, first) = (&*self.task.bring, plan.requests.first());
        *state
            .at_hand
            .get_or_insert_with(|| first.is_some_and(|range| is_copied_at_once(bring, range)))
    }

    /// The bytes of `group`, waited for. `None` if it is over.
    fn bytes(&self, group: usize) -> Result<Option<Held>> {
        let (Some(plan), Some(shared)) = (self.plan(group), self.groups.get(group)) else {
            return Ok(None);
        };
        let mut bytes = lock(&shared.bytes);
        let pending = match std::mem::replace(&mut *bytes, Bytes::Released) {
            Bytes::Coming(pending) => pending,
            Bytes::Here(held) => {
                *bytes = Bytes::Here(held.clone());
                return Ok(Some(held));
            }
            Bytes::Failed(error) => {
                *bytes = Bytes::Failed(error.clone());
                return Err(error);
            }
            Bytes::NotAsked | Bytes::Released => return Ok(None),
        };
        let Ok(blocks) = drive(pending, || self.is_stopped().then_some(())) else {
            return Ok(None);
        };
        let pieces = blocks.and_then(|blocks| self.task.pieces(plan, blocks));
        match pieces {
            Ok(pieces) => {
                let held = Held::Here(pieces);
                *bytes = Bytes::Here(held.clone());
                drop(bytes);
                self.submit_next(self.lock(), group);
                Ok(Some(held))
            }
            Err(error) => {
                *bytes = Bytes::Failed(error.clone());
                Err(error)
            }
        }
    }

    fn decode(&self, group: usize, part: usize) -> Result<()> {
        let (Some(plan), Some(leaves)) = (self.plan(group), self.task.parts.get(part)) else {
            return Ok(());
        };
        let Some(held) = self.bytes(group)? else {
            return Ok(());
        };
        let wanted = match &self.task.predicate {
            None => plan.rows.clone(),
            Some(predicate) => self.matched(group, plan, predicate, &held)?,
        };
        let decoded = wanted.closing(crate::format::parquet::DECODED_GAP);
        let positions = wanted.positions_in(&decoded);
        let mut unit = self.unit(&leaves.leaves, plan, decoded, held)?;
        let mut at = 0;
        while let Some(batch) = unit.next()? {
            let rows = batch.num_rows() as u64;
            let kept = positions.within(at..at + rows);
            at += rows;
            let batch = filter::kept_of(batch, &kept)?;
            if batch.num_rows() > 0 && !self.push(group, part, batch) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Rows of `group` for which the predicate is true, found by the first part that asks.
    fn matched(
        &self,
        group: usize,
        plan: &GroupPlan,
        predicate: &Bound,
        held: &Held,
    ) -> Result<Rows> {
        let Some(shared) = self.groups.get(group) else {
            return Ok(Rows::none());
        };
        let mut matched = lock(&shared.matched);
        if let Some(rows) = &*matched {
            return rows.clone();
        }
        let find = || -> Result<Rows> {
            let mut unit = self.unit(
                &predicate.leaves(),
                plan,
                plan.decoded.clone(),
                held.clone(),
            )?;
            filter::matched(predicate, &mut unit, plan, || self.is_stopped())
        };
        let rows = find();
        *matched = Some(rows.clone());
        rows
    }

    fn unit(&self, leaves: &[usize], plan: &GroupPlan, rows: Rows, held: Held) -> Result<Unit> {
        Unit::new(super::unit::Work {
            metadata: &self.task.metadata,
            fields: &self.task.fields,
            leaves,
            group: plan,
            rows,
            held,
            batch_rows: self.task.batch_rows,
            name: &self.task.name,
            buffers: &self.buffers,
        })
    }

    /// Queues a batch. `false`: nobody wants it any more.
    fn push(&self, group: usize, part: usize, batch: RecordBatch) -> bool {
        let size = batch.get_array_memory_size() as u64;
        let mut state = self.lock();
        loop {
            if self.is_stopped() || state.ended {
                return false;
            }
            let full = state.queued.saturating_add(size) > self.task.window;
            let Some(queue) = state.queue(group, part) else {
                return false;
            };
            if !full || queue.batches.is_empty() {
                queue.batches.push_back((batch, size));
                state.queued += size;
                break;
            }
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.announce(state);
        true
    }

    /// Tells the consumer that there may be something to take.
    fn announce(&self, mut state: MutexGuard<'_, State>) {
        if !state.has_next(self.task.in_order) {
            return;
        }
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn fail(&self, group: usize, error: Error) {
        let mut state = self.lock();
        if let Some(group) = state.groups.get_mut(group) {
            group.failed.get_or_insert(error);
        }
    }

    fn finish(&self, group: usize, part: usize) {
        let mut state = self.lock();
        if let Some(queue) = state.queue(group, part) {
            queue.done = true;
        }
        let last = match state.groups.get_mut(group) {
            Some(group) => {
                group.left = group.left.saturating_sub(1);
                group.left == 0
            }
            None => false,
        };
        if last {
            // Before anybody can ask for more in their place.
            drop(state);
            if let Some(shared) = self.groups.get(group) {
                *lock(&shared.bytes) = Bytes::Released;
            }
            state = self.lock();
            if state.groups.get(group).is_some_and(|group| !group.paged) {
                let bytes = self.plan(group).map_or(0, GroupPlan::bytes_read);
                state.held = state.held.saturating_sub(bytes);
            }
        }
        self.announce(state);
        if last {
            self.room.notify_all();
        }
    }

    fn plan(&self, group: usize) -> Option<&GroupPlan> {
        self.task.plan.groups.get(group)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A thread that ends, whatever made it end.
struct Leaving<'a>(&'a Job);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.threads -= 1;
        // What panics outside of row groups is no reader, and nobody knows whose part was left.
        if std::thread::panicking() || state.threads == 0 {
            // A part that no thread will finish must not be waited for.
            let head = state.head;
            let unfinished = state
                .groups
                .iter_mut()
                .skip(head)
                .find(|group| group.left > 0);
            if let Some(group) = unfinished {
                let abandoned = || Error::new(ErrorKind::Abandoned);
                group.failed.get_or_insert_with(abandoned);
            }
        }
        self.0.announce(state);
    }
}

/// Whether all reads have come to an end.
fn is_done(pending: &Pending) -> bool {
    let progress = pending.progress();
    progress.reads_done == progress.reads
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
