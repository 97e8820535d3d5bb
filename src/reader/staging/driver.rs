//! The staging thread: hands staging blocks to reads, arrived pieces to the transfer, and outcomes to waiters.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::job::{Job, broken, deliver};
use super::transfer::{Lease, Line, STAGING, Transfer, TransferDone};
use crate::buffer::{Block, BlockMut, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Batch, Failed, Pending, Priority, ReadOptions, Reader, Ticket};

/// What the wrapper and its thread share.
pub(super) struct Shared {
    pub(super) inner: Arc<dyn Reader>,
    pub(super) transfer: Arc<dyn Transfer>,
    /// Bytes of a staging block; a multiple of `align`.
    pub(super) block: u64,
    /// Pieces lie at addresses that are congruent to their offsets modulo this.
    pub(super) align: u64,
    /// Most staging blocks.
    pub(super) depth: usize,
    /// Staging blocks that exist.
    pub(super) taken: Arc<AtomicUsize>,
    /// Bytes that were handed to the transfer.
    pub(super) bytes: StagedBytes,
}

/// Bytes that were handed to a transfer, by where they were.
#[derive(Debug, Default)]
pub(crate) struct StagedBytes {
    pinned: AtomicU64,
    other: AtomicU64,
}

impl StagedBytes {
    fn add(&self, place: Place, bytes: u64) {
        let counter = match place {
            Place::Pinned => &self.pinned,
            _ => &self.other,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// In page-locked memory, and in other.
    pub(crate) fn pinned_and_other(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.pinned), load(&self.other))
    }
}

/// What the thread wakes up for.
pub(super) enum Event {
    /// Device reads of one batch.
    Submit {
        jobs: Vec<Job>,
        options: ReadOptions,
    },
    /// Reads that the inner reader does by itself, whose tickets follow its outcomes.
    Forward {
        pending: Pending,
        tickets: Vec<Option<Ticket>>,
    },
    /// The inner reader has news for this task.
    Ready(u64),
    /// The transfer ended a copy.
    Copied {
        job: u64,
        piece: usize,
        outcome: Result<BlockMut, Failed>,
    },
    /// A staging block is free again.
    Returned,
    /// The wrapper is gone: end with the last read.
    Close,
}

impl Event {
    /// Fails what the event brought, since there is no thread to do it.
    pub(super) fn fail(self, error: &Error) {
        match self {
            Event::Submit { jobs, .. } => {
                for mut job in jobs {
                    job.fail(error.clone());
                    job.finish();
                }
            }
            Event::Forward { tickets, .. } => {
                for ticket in tickets.into_iter().flatten() {
                    deliver(ticket, Err(error.clone().into()));
                }
            }
            Event::Ready(_) | Event::Copied { .. } | Event::Returned | Event::Close => {}
        }
    }
}

/// Jobs of one batch that have pieces to cut.
struct Group {
    jobs: VecDeque<u64>,
    options: ReadOptions,
    in_flight: Arc<AtomicUsize>,
}

impl Group {
    /// Pieces that the batch's own depth still allows.
    fn room(&self) -> usize {
        let most = self.options.depth.map_or(usize::MAX, NonZeroUsize::get);
        most.saturating_sub(self.in_flight.load(Ordering::Relaxed))
    }
}

/// A job, and the pieces in flight of the batch that it belongs to.
struct Running {
    job: Job,
    in_flight: usize,
    group: Arc<AtomicUsize>,
}

impl Running {
    fn add(&mut self) {
        self.in_flight += 1;
        self.group.fetch_add(1, Ordering::Relaxed);
    }

    fn sub(&mut self, pieces: usize) {
        self.in_flight -= pieces;
        self.group.fetch_sub(pieces, Ordering::Relaxed);
    }
}

/// A batch that the inner reader works on.
struct Task {
    pending: Pending,
    parts: Vec<Option<Part>>,
    waker: Waker,
}

/// What one read of a task is for.
enum Part {
    Piece {
        job: u64,
        piece: usize,
        len: u64,
        /// Where it is on its way.
        via: Place,
    },
    Forward(Ticket),
}

/// A piece with its place in a staging block.
struct Packed {
    job: u64,
    piece: usize,
    range: Range<u64>,
    at: u64,
}

struct TaskWaker {
    id: u64,
    line: Line,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.line.send(Event::Ready(self.id));
    }
}

pub(super) struct Driver {
    shared: Arc<Shared>,
    events: Receiver<Event>,
    line: Line,
    jobs: HashMap<u64, Running>,
    tasks: HashMap<u64, Task>,
    foreground: VecDeque<Group>,
    prefetch: VecDeque<Group>,
    deadlines: BinaryHeap<Reverse<Instant>>,
    last_id: u64,
    closed: bool,
}

impl Driver {
    /// Starts the thread.
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Line> {
        let (sender, events) = mpsc::channel();
        let line = Line::new(sender);
        let driver = Driver {
            shared,
            events,
            line: line.clone(),
            jobs: HashMap::new(),
            tasks: HashMap::new(),
            foreground: VecDeque::new(),
            prefetch: VecDeque::new(),
            deadlines: BinaryHeap::new(),
            last_id: 0,
            closed: false,
        };
        std::thread::Builder::new()
            .name("feedwater-staging".into())
            .spawn(move || driver.run())?;
        Ok(line)
    }

    fn run(mut self) {
        loop {
            // What has arrived comes first, so that each block goes to the read that is first by now.
            for _ in 0..MOST_EVENTS {
                match self.events.try_recv() {
                    Ok(event) => self.handle(event),
                    Err(_) => break,
                }
            }
            if self.start_load() {
                continue;
            }
            if self.closed && self.jobs.is_empty() && !self.tasks.values().any(Task::forwards) {
                return;
            }
            let event = match self.deadlines.peek() {
                None => self.events.recv().map_err(RecvTimeoutError::from),
                Some(Reverse(at)) => {
                    let left = at.saturating_duration_since(Instant::now());
                    self.events.recv_timeout(left)
                }
            };
            match event {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => self.expire(),
                // Cannot be, as `line` is a sender; without one there is nothing to wait for.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Submit { jobs, options } => self.enqueue(jobs, options),
            Event::Forward { pending, tickets } => {
                let parts = tickets.into_iter().map(|t| t.map(Part::Forward)).collect();
                self.follow(pending, parts);
            }
            Event::Ready(id) => self.poll(id),
            Event::Copied {
                job,
                piece,
                outcome,
            } => {
                if let Some(running) = self.jobs.get_mut(&job) {
                    running.sub(1);
                    running.job.take_back(piece, outcome);
                    self.settle(job);
                }
            }
            // It counted itself out; `start_load` sees it.
            Event::Returned => {}
            Event::Close => {
                self.closed = true;
                // A copy that never ends must not keep the thread if nobody waits for it.
                self.expire();
            }
        }
    }

    fn id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn enqueue(&mut self, jobs: Vec<Job>, options: ReadOptions) {
        let in_flight = Arc::new(AtomicUsize::new(0));
        let mut ids = VecDeque::with_capacity(jobs.len());
        for job in jobs {
            let id = self.id();
            let group = in_flight.clone();
            let running = Running {
                job,
                in_flight: 0,
                group,
            };
            self.jobs.insert(id, running);
            ids.push_back(id);
        }
        self.deadlines.extend(options.deadline.map(Reverse));
        let queue = match options.priority {
            Priority::Foreground => &mut self.foreground,
            Priority::Prefetch => &mut self.prefetch,
        };
        queue.push_back(Group {
            jobs: ids,
            options,
            in_flight,
        });
    }

    /// Fills one staging block, if there is one and something to read.
    fn start_load(&mut self) -> bool {
        if !Lease::is_free(&self.shared.taken, self.shared.depth) {
            return false;
        }
        let Some((packed, options)) = self.pack_first() else {
            return false;
        };
        match self.read_into_staging(&packed, options) {
            Ok((pending, via)) => {
                let parts = packed.into_iter().map(|p| p.into_part(via)).collect();
                self.follow(pending, parts);
            }
            Err(error) => {
                for piece in packed {
                    self.fail(piece.job, error.clone());
                }
            }
        }
        true
    }

    /// A staging block's worth of pieces: foreground first, then the older batch.
    fn pack_first(&mut self) -> Option<(Vec<Packed>, ReadOptions)> {
        let mut foreground = std::mem::take(&mut self.foreground);
        let mut packed = self.pack_first_of(&mut foreground);
        self.foreground = foreground;
        if packed.is_none() {
            let mut prefetch = std::mem::take(&mut self.prefetch);
            packed = self.pack_first_of(&mut prefetch);
            self.prefetch = prefetch;
        }
        packed
    }

    /// The same of the first group that its own depth lets read. Groups that are cut up are removed.
    fn pack_first_of(&mut self, queue: &mut VecDeque<Group>) -> Option<(Vec<Packed>, ReadOptions)> {
        let mut at = 0;
        while let Some(group) = queue.get_mut(at) {
            let packed = self.pack(group);
            let options = group.options.clone();
            if group.jobs.is_empty() {
                queue.remove(at);
            } else {
                at += 1;
            }
            if !packed.is_empty() {
                return Some((packed, options));
            }
        }
        None
    }

    /// Cuts pieces of the group's jobs, as many as fit into a staging block. Jobs that are cut up leave the group.
    fn pack(&mut self, group: &mut Group) -> Vec<Packed> {
        let (block, align) = (self.shared.block, self.shared.align);
        let mut packed: Vec<Packed> = Vec::new();
        let mut used = 0;
        let mut room = group.room();
        while room > 0 {
            let Some(&id) = group.jobs.front() else { break };
            if !self.prepare(id) {
                group.jobs.pop_front();
                continue;
            }
            let Some(running) = self.jobs.get_mut(&id) else {
                break;
            };
            let Some(range) = running.job.peek(block) else {
                group.jobs.pop_front();
                self.settle(id); // of no bytes at all
                continue;
            };
            let at = used + (range.start % align + align - used % align) % align;
            let end = at + (range.end - range.start);
            // The first one always fits: pieces end at multiples of the block, which is one of `align`.
            if end > block && !packed.is_empty() {
                break;
            }
            let piece = running.job.cut(&range);
            running.add();
            if running.job.peek(block).is_none() {
                group.jobs.pop_front();
            }
            packed.push(Packed {
                job: id,
                piece,
                range,
                at,
            });
            used = end;
            room -= 1;
        }
        packed
    }

    /// Whether the job is to be read; has device memory then.
    fn prepare(&mut self, id: u64) -> bool {
        let Some(running) = self.jobs.get_mut(&id) else {
            return false;
        };
        let job = &mut running.job;
        if !job.is_alive() {
            return false;
        }
        if !job.ticket.wanted() {
            self.fail(id, Error::new(ErrorKind::TimedOut));
            return false;
        }
        let transfer = &self.shared.transfer;
        let allocated = job.allocate(|place, len| guarded(|| transfer.allocate(place, len)));
        match allocated {
            Ok(()) => true,
            Err(error) => {
                self.fail(id, error.by(STAGING));
                false
            }
        }
    }

    /// Takes a staging block and starts reading `packed` into it; with where that is.
    fn read_into_staging(
        &self,
        packed: &[Packed],
        mut options: ReadOptions,
    ) -> Result<(Pending, Place)> {
        let shared = &self.shared;
        let wanted = packed.last().map_or(0, Packed::end) as usize;
        let mut staging =
            guarded(|| shared.transfer.staging(wanted)).map_err(|error| error.by(STAGING))?;
        staging.clear();
        if !staging.place().is_host_accessible() || staging.len() < wanted {
            return Err(broken(format!(
                "the transfer gave {} bytes in {} to stage {wanted} bytes",
                staging.len(),
                staging.place()
            )));
        }
        let via = staging.place();
        let mut staging = staging.holding(Lease::take(&shared.taken, &self.line));
        // Kept by `pack`: it is the batch's, and this is only a part of it.
        options.depth = None;
        let mut batch = Batch::new().options(options);
        let mut at = 0;
        for piece in packed {
            drop(staging.split_to((piece.at - at) as usize));
            let block = staging.split_to((piece.end() - piece.at) as usize);
            batch = batch.read_into(piece.range.clone(), block);
            at = piece.end();
        }
        drop(staging);
        guarded(|| Ok((shared.inner.submit(batch), via)))
    }

    fn follow(&mut self, pending: Pending, parts: Vec<Option<Part>>) {
        let id = self.id();
        let line = self.line.clone();
        let waker = Waker::from(Arc::new(TaskWaker { id, line }));
        let task = Task {
            pending,
            parts,
            waker,
        };
        self.tasks.insert(id, task);
        self.poll(id);
    }

    /// Takes what the inner reader has finished of a task.
    fn poll(&mut self, id: u64) {
        let Some(mut task) = self.tasks.remove(&id) else {
            return;
        };
        let mut cx = Context::from_waker(&task.waker);
        while let Poll::Ready(next) = task.pending.poll_next(&mut cx) {
            let Some((index, outcome)) = next else {
                // All were handed out. Parts that got none are those of an engine that breaks the contract.
                for part in task.parts.into_iter().flatten() {
                    if let Part::Piece { job, .. } = part {
                        if let Some(running) = self.jobs.get_mut(&job) {
                            running.sub(1);
                        }
                        self.fail(job, Error::new(ErrorKind::Abandoned));
                    }
                }
                return;
            };
            match task.parts.get_mut(index).and_then(Option::take) {
                Some(Part::Forward(ticket)) => deliver(ticket, outcome),
                Some(Part::Piece {
                    job,
                    piece,
                    len,
                    via,
                }) => match outcome {
                    Ok(block) => self.copy(job, piece, len, via, block),
                    Err(failed) => {
                        if let Some(running) = self.jobs.get_mut(&job) {
                            running.sub(1);
                        }
                        self.fail(job, failed.error);
                    }
                },
                None => {}
            }
        }
        if self.is_wanted(&task) {
            self.tasks.insert(id, task);
        }
    }

    /// Hands a piece that was read to the transfer.
    fn copy(&mut self, id: u64, piece: usize, len: u64, via: Place, block: Block) {
        let Some(running) = self.jobs.get_mut(&id).filter(|r| r.job.is_alive()) else {
            return;
        };
        if !running.job.ticket.wanted() {
            return self.fail(id, Error::new(ErrorKind::TimedOut));
        }
        let bytes = match block.into_host() {
            Ok(bytes) if bytes.len() as u64 == len => bytes,
            Ok(bytes) => {
                let error = broken(format!(
                    "the reader delivered {} of {len} bytes",
                    bytes.len()
                ));
                return self.fail(id, error);
            }
            Err(error) => return self.fail(id, error),
        };
        let Some(to) = running.job.lend(piece) else {
            return;
        };
        let counters = self.shared.inner.source().counters();
        counters.add_bounced(len);
        self.shared.bytes.add(via, len);
        let done = TransferDone::new(self.line.clone(), id, piece);
        // Unwinding drops `done`, which fails the read.
        let copy = AssertUnwindSafe(|| self.shared.transfer.copy(bytes, to, done));
        let _ = catch_unwind(copy);
    }

    fn fail(&mut self, id: u64, error: Error) {
        if let Some(running) = self.jobs.get_mut(&id) {
            running.job.fail(error);
            self.settle(id);
        }
    }

    /// Delivers the outcome of a job that is over.
    fn settle(&mut self, id: u64) {
        if self.jobs.get(&id).is_none_or(|r| !r.job.is_over()) {
            return;
        }
        let Some(mut running) = self.jobs.remove(&id) else {
            return;
        };
        running.sub(running.in_flight);
        let failed = !running.job.is_alive();
        running.job.finish();
        if failed {
            self.drop_unwanted();
        }
    }

    /// Gives up what nobody waits for any more. Waiters know of a deadline by themselves; the memory comes back now.
    fn expire(&mut self) {
        let now = Instant::now();
        while self.deadlines.peek().is_some_and(|at| at.0 <= now) {
            self.deadlines.pop();
        }
        let unwanted =
            |(&id, running): (&u64, &Running)| (!running.job.ticket.wanted()).then_some(id);
        let late: Vec<_> = self.jobs.iter().filter_map(unwanted).collect();
        for id in late {
            self.fail(id, Error::new(ErrorKind::TimedOut));
        }
        self.drop_unwanted();
    }

    /// Drops tasks that nobody waits for, which lets the inner reader skip what it has not begun.
    fn drop_unwanted(&mut self) {
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.retain(|_, task| self.is_wanted(task));
        self.tasks = tasks;
    }

    fn is_wanted(&self, task: &Task) -> bool {
        task.parts.iter().flatten().any(|part| match part {
            Part::Piece { job, .. } => self.jobs.get(job).is_some_and(|r| r.job.is_alive()),
            Part::Forward(ticket) => ticket.wanted(),
        })
    }
}

/// Most events handled before a block is handed out again.
const MOST_EVENTS: usize = 256;

impl Task {
    fn forwards(&self) -> bool {
        let mut parts = self.parts.iter().flatten();
        parts.any(|part| matches!(part, Part::Forward(_)))
    }
}

impl Packed {
    /// Where the piece ends in the staging block.
    fn end(&self) -> u64 {
        self.at + (self.range.end - self.range.start)
    }

    fn into_part(self, via: Place) -> Option<Part> {
        Some(Part::Piece {
            job: self.job,
            piece: self.piece,
            len: self.range.end - self.range.start,
            via,
        })
    }
}

/// Runs code of the transfer or the engine; a panic is an error of this call alone.
fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Abandoned).by(STAGING)))
}
