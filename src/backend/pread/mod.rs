//! Reading by position: `pread` through the page cache, or past it with `O_DIRECT`.
//!
//! What is resident is copied on the spot (`RWF_NOWAIT`); what is not is read by a bounded pool of threads.
//! Always compiled; on systems without those flags, everything goes to the threads.

mod direct;
mod job;
mod transfer;
mod work;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use direct::DirectFile;

use self::job::{Job, Part};
use self::transfer::Access;
use self::work::{Batched, Context, Hints};
use super::file::OpenFile;
use super::workers::{Work, Workers};
use crate::buffer::{BlockMut, Place, Pool};
use crate::error::Result;
use crate::reader::plan::coalesce;
use crate::reader::{
    Batch, CachePolicy, Dest, Failed, Limits, Pending, Priority, Read, ReadInto, ReadOptions,
    Reader, Route, Source, Started, Ticket, VersionCheck, refuse_place,
};

/// What is resident is copied by `submit` itself, up to so many bytes of a batch: about what a thread switch and
/// a wake-up cost several times over, and short enough for a task to do between two awaits.
const INLINE: u64 = 1 << 20;

/// Bytes of one call to the system when a request is cut into pieces for several threads: large enough that
/// claiming costs nothing, small enough to balance. Measured flat from 2 to 32 MiB.
const PIECE: u64 = 4 << 20;

/// Smaller requests are cut finer, so that all threads have something to do, but not below this.
const SMALL_PIECE: u64 = 1 << 20;

/// Joined requests stay below this, so that a batch of neighbours still keeps several threads busy.
const JOIN: u64 = 4 << 20;

/// Given destinations from this size on are read into directly, never by way of a shared block.
const SHARED_MOST: u64 = 64 << 10;

/// What suits reads through the page cache. Chunks of half a MiB stay in a processor's own cache between the copy and
/// the use, which made streaming a tenth faster than with 1 MiB.
pub(crate) fn buffered_limits(threads: usize) -> Limits {
    Limits::default()
        .preferred(512 << 10)
        .gap(4096)
        .depth(threads)
}

/// Threads on one large copy from the page cache: it is bound by memory, not by waiting.
fn copy_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().max(2))
}

/// Large direct reads in flight: enough to keep a device busy with requests of [`PIECE`].
const DIRECT_THREADS: usize = 8;

/// From this size on `read_now` lets other threads help.
const SHARE_NOW: usize = 8 << 20;

/// Reads one file by position.
#[derive(Debug)]
pub(crate) struct PreadReader {
    context: Context,
    workers: Arc<Workers>,
}

impl PreadReader {
    /// Reads through the page cache.
    pub(crate) fn buffered(
        file: Arc<OpenFile>,
        source: &Source,
        workers: Arc<Workers>,
        pool: Pool,
        policy: CachePolicy,
        check: VersionCheck,
    ) -> Self {
        let limits = buffered_limits(workers.most());
        let access = Access::buffered(file, policy == CachePolicy::DropBehind);
        PreadReader {
            context: Context {
                source: source.through(Route::Pread.name(), limits),
                access: Arc::new(access),
                pool,
                check,
            },
            workers,
        }
    }

    /// Reads past the page cache; if `fall_back`, then what is refused goes through it.
    pub(crate) fn direct(
        file: Arc<OpenFile>,
        direct: DirectFile,
        fall_back: bool,
        source: &Source,
        workers: Arc<Workers>,
        pool: Pool,
        check: VersionCheck,
    ) -> Self {
        let limits = Limits::default()
            .gap(16 << 10)
            .depth(workers.most())
            .align(direct.strictest() as usize);
        PreadReader {
            context: Context {
                source: source.through(Route::PreadDirect.name(), limits),
                access: Arc::new(Access::direct(file, direct, fall_back)),
                pool,
                check,
            },
            workers,
        }
    }

    /// Whether a direct read was refused.
    pub(crate) fn was_refused(&self) -> bool {
        self.access().was_refused()
    }

    fn access(&self) -> &Access {
        &self.context.access
    }

    /// Does reads that were started elsewhere; each ticket is finished sooner or later.
    pub(crate) fn start(&self, mut started: Vec<Started>, options: &ReadOptions) {
        if started
            .iter()
            .any(|(read, _)| !matches!(&read.dest, Dest::Any(Place::Host)))
        {
            started = self.settle_special(started, options);
        }
        let mut jobs = Vec::with_capacity(started.len());
        if started.len() == 1 {
            if let Some((read, ticket)) = started.pop() {
                self.one(read, ticket, &mut jobs);
            }
        } else {
            self.join(started, options, &mut jobs);
        }
        self.copy_resident(&mut jobs);
        self.hand_over(jobs, options);
    }

    /// Finishes what is no read into host memory: hints are passed on, devices refused. Gives back the rest.
    fn settle_special(&self, started: Vec<Started>, options: &ReadOptions) -> Vec<Started> {
        let mut rest = Vec::with_capacity(started.len());
        let mut hints = Vec::new();
        for (read, ticket) in started {
            if let Some(error) = refuse_place(&self.context.source, &read) {
                ticket.finish(Err(Failed::new(error, read.dest)));
            } else if matches!(read.dest, Dest::Prefetch) {
                hints.push((read.range, ticket));
            } else {
                rest.push((read, ticket));
            }
        }
        if !hints.is_empty() {
            // Even a hint can wait for a device (for metadata), so a thread gives it. Without one it is lost, which
            // the tickets tell.
            let hints: Arc<dyn Work> = Arc::new(Hints::new(self.context.access.clone(), hints));
            let _ = self.workers.run(&hints, 1, options.priority);
        }
        rest
    }

    /// A request for one read.
    fn one(&self, read: Read, ticket: Ticket, jobs: &mut Vec<Job>) {
        let Read { range, dest } = read;
        let part = |range, ticket| Part {
            range,
            dest: None,
            ticket,
        };
        match dest {
            Dest::Into(block) => jobs.push(Job::given(block, part(range, ticket))),
            _ => match self.block_for(&range) {
                Ok((span, block)) => {
                    jobs.push(Job::shared(span, block, vec![part(range, ticket)]));
                }
                Err(error) => {
                    let error = self.context.source.place(error, range);
                    ticket.finish(Err(error.into()));
                }
            },
        }
    }

    /// Requests for many reads: neighbours share one.
    fn join(&self, started: Vec<Started>, options: &ReadOptions, jobs: &mut Vec<Job>) {
        let (own, shared): (Vec<_>, Vec<_>) = started
            .into_iter()
            .partition(|(read, _)| matches!(read.dest, Dest::Into(_)) && read.len() >= SHARED_MOST);
        for (read, ticket) in own {
            self.one(read, ticket, jobs);
        }
        let gap = options.gap.unwrap_or(self.context.source.limits().gap);
        let ranges: Vec<_> = shared.iter().map(|(read, _)| read.range.clone()).collect();
        // What is joined must not fail for the size of the block that each alone would not need.
        let most = JOIN.min(self.context.pool.max_block() as u64);
        let plan = coalesce(&ranges, gap, most);
        self.context.source.counters().add_wasted(plan.waste);
        let mut shared: Vec<_> = shared.into_iter().map(Some).collect();
        for request in &plan.requests {
            let mut parts: Vec<Started> = plan
                .parts(request)
                .iter()
                .filter_map(|&at| shared[at].take())
                .collect();
            if parts.len() == 1 {
                if let Some((read, ticket)) = parts.pop() {
                    self.one(read, ticket, jobs);
                }
            } else {
                self.several(&request.range, parts, jobs);
            }
        }
    }

    /// A request that several reads share.
    fn several(&self, range: &Range<u64>, parts: Vec<Started>, jobs: &mut Vec<Job>) {
        match self.block_for(range) {
            Ok((span, block)) => {
                let parts = parts
                    .into_iter()
                    .map(|(read, ticket)| Part {
                        range: read.range,
                        dest: match read.dest {
                            Dest::Into(block) => Some(block),
                            _ => None,
                        },
                        ticket,
                    })
                    .collect();
                jobs.push(Job::shared(span, block, parts));
            }
            Err(error) => {
                for (read, ticket) in parts {
                    let error = self.context.source.place(error.clone(), read.range);
                    ticket.finish(Err(Failed::new(error, read.dest)));
                }
            }
        }
    }

    /// A block of our own for `range`, and the range that it will hold: for direct reads widened to what the
    /// device takes, so that bytes land where they stay.
    fn block_for(&self, range: &Range<u64>) -> Result<(Range<u64>, BlockMut)> {
        let align = self.access().align();
        let start = range.start - range.start % align;
        let end = range
            .end
            .checked_next_multiple_of(align)
            .unwrap_or(range.end);
        let len = usize::try_from(end - start).unwrap_or(usize::MAX);
        // Small blocks come from the allocator: a page for some bytes would be mostly waste.
        let pool = &self.context.pool;
        let block = if align == 1 && len < crate::sys::page_size() {
            BlockMut::with_capacity(len)
        } else if range.end - range.start <= pool.max_block() as u64 {
            pool.take_over_cap(len)?
        } else {
            pool.take(len)? // refuses it
        };
        Ok((start..end, block))
    }

    /// Copies what is in the page cache, as far as the inline budget goes, and delivers it.
    fn copy_resident(&self, jobs: &mut Vec<Job>) {
        if !self.access().can_copy_resident() {
            return;
        }
        let Context { source, pool, .. } = &self.context;
        let mut budget = INLINE;
        let mut complete = false;
        for job in jobs.iter_mut() {
            let len = job.span().end - job.span().start;
            if len <= budget {
                budget -= len;
                let copied = job.copy_resident(self.access(), source);
                source.counters().add_read(copied);
                source.counters().add_from_cache(copied);
                complete |= copied == len;
            }
        }
        if !complete {
            return;
        }
        // One look at the version covers them all: they were all read before it.
        let verdict = self.context.verify();
        let mut rest = Vec::new();
        for job in jobs.drain(..) {
            if job.rest().is_empty() {
                job.deliver(source, self.access(), pool, || verdict.clone());
            } else {
                rest.push(job);
            }
        }
        *jobs = rest;
    }

    /// Lets the threads do what is left.
    fn hand_over(&self, jobs: Vec<Job>, options: &ReadOptions) {
        if jobs.is_empty() {
            return;
        }
        let bytes = jobs
            .iter()
            .map(|job| job.span().end - job.span().start)
            .sum();
        let work = Arc::new(Batched::new(
            self.context.clone(),
            jobs,
            self.piece_of(bytes),
        ));
        let threads = self.threads_for(&work, options);
        let shared: Arc<dyn Work> = work.clone();
        if let Err(error) = self.workers.run(&shared, threads, options.priority) {
            work.give_up(&error);
        }
    }

    /// Bytes of a piece, where there are `bytes` in all: a few for each thread.
    fn piece_of(&self, bytes: u64) -> u64 {
        let threads = self.large_threads() as u64;
        (bytes / (2 * threads)).clamp(SMALL_PIECE, PIECE) / SMALL_PIECE * SMALL_PIECE
    }

    /// Threads that large pieces are worth.
    fn large_threads(&self) -> usize {
        let fitting = if self.access().is_direct() {
            DIRECT_THREADS
        } else {
            copy_threads()
        };
        fitting.min(self.workers.most())
    }

    fn threads_for(&self, work: &Batched, options: &ReadOptions) -> usize {
        let fitting = if work.mean_piece() < 256 << 10 {
            // Each waits for the device on its own: as many as may run.
            self.workers.most()
        } else {
            self.large_threads()
        };
        let asked = options.depth.map_or(fitting, std::num::NonZeroUsize::get);
        asked.min(work.pieces()).min(self.workers.most())
    }

    /// Reads into borrowed memory; other threads help with large ones.
    #[allow(unsafe_code)]
    fn now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let Context { source, pool, .. } = &self.context;
        for read in reads.iter_mut() {
            let range = read.range();
            let outcome = if read.buf.len() >= SHARE_NOW && self.workers.most() > 1 {
                self.now_shared(&range, read.buf)
            } else {
                let target = read.buf.as_mut_ptr();
                // SAFETY: the buffer is borrowed exclusively for longer than the call, and as long as the range.
                unsafe { self.access().read(&range, target, source.counters(), pool) }
            };
            outcome.map_err(|error| source.place(error, range))?;
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn now_shared(&self, range: &Range<u64>, buf: &mut [u8]) -> Result<()> {
        let context = Context {
            check: VersionCheck::OnShortRead, // the caller checks, once for all its buffers
            ..self.context.clone()
        };
        // SAFETY: `all_done` below goes away, also when unwinding, only when no thread uses the memory any more;
        // until then `buf` is borrowed here.
        let job = unsafe { Job::borrowed(range.clone(), buf.as_mut_ptr()) };
        let piece = self.piece_of(range.end - range.start);
        let work = Arc::new(Batched::new(context, vec![job], piece));
        let all_done = work.wait_for_all();
        let helpers = self.threads_for(&work, &ReadOptions::default()) - 1;
        if helpers > 0 {
            let shared: Arc<dyn Work> = work.clone();
            // Without helpers it only takes longer.
            let _ = self.workers.run(&shared, helpers, Priority::Foreground);
        }
        while work.step() {}
        drop(all_done);
        work.error().map_or(Ok(()), Err)
    }
}

impl Reader for PreadReader {
    fn source(&self) -> &Source {
        &self.context.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, options, pending) = batch.start(&self.context.source);
        self.start(started, &options);
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let range = reads.first().map_or(0..0, ReadInto::range);
        let placed = |error| self.context.source.place(error, range.clone());
        let counters = self.context.source.counters();
        let bytes = reads.iter().map(|read| read.buf.len() as u64).sum();
        counters.add_reads(reads.len() as u64);
        for read in reads.iter() {
            self.context.source.check(&read.range())?;
        }
        counters.add_requested(bytes);
        self.now(reads)?;
        self.context.verify().map_err(placed)?;
        counters.add_route(self.access().route(), bytes);
        Ok(())
    }
}
