//! Reading by position: `pread` through the page cache, or past it with `O_DIRECT`.
//!
//! What is resident is copied on the spot (`RWF_NOWAIT`); what is not is read by a bounded pool of threads.
//! Always compiled; on systems without those flags, everything goes to the threads.

use std::ops::Range;
use std::sync::Arc;

use super::file::OpenFile;
use super::requests::{
    Access, Batched, Context, DirectFile, Job, Look, buffered_limits, direct_limits,
};
use super::workers::{Work, Workers};
use crate::buffer::Pool;
use crate::error::Result;
use crate::reader::{
    Batch, CachePolicy, Pending, Priority, ReadInto, ReadOptions, Reader, Route, Source, Started,
    VersionCheck,
};

/// Bytes of one call to the system when a request is cut into pieces for several threads: large enough that
/// claiming costs nothing, small enough to balance. Measured flat from 2 to 32 MiB.
const PIECE: u64 = 4 << 20;

/// Smaller requests are cut finer, so that all threads have something to do, but not below this.
const SMALL_PIECE: u64 = 1 << 20;

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
        let source = source.through(Route::Pread.name(), buffered_limits(workers.most()));
        let access = Access::buffered(file, Route::Pread, policy == CachePolicy::DropBehind);
        PreadReader {
            context: Context::new(source, access, pool, check, workers),
        }
    }

    /// Reads past the page cache; if `fall_back`, then what is refused goes through it.
    pub(crate) fn direct(
        file: Arc<OpenFile>,
        direct: Arc<DirectFile>,
        fall_back: bool,
        source: &Source,
        workers: Arc<Workers>,
        pool: Pool,
        check: VersionCheck,
    ) -> Self {
        let limits = direct_limits(workers.most(), &direct);
        let source = source.through(Route::PreadDirect.name(), limits);
        let access = Access::direct(file, direct, Route::PreadDirect, fall_back);
        PreadReader {
            context: Context::new(source, access, pool, check, workers),
        }
    }

    /// Whether a direct read was refused.
    pub(crate) fn was_refused(&self) -> bool {
        self.access().was_refused()
    }

    fn access(&self) -> &Access {
        self.context.access()
    }

    fn workers(&self) -> &Workers {
        self.context.workers()
    }

    /// Checks and counts what is to be read on the caller's thread.
    pub(crate) fn begin_now(&self, reads: &[ReadInto<'_>]) -> Result<()> {
        self.context.begin_now(reads)
    }

    /// Does reads that were started elsewhere; each ticket is finished sooner or later.
    pub(crate) fn start(&self, started: Vec<Started>, options: &ReadOptions, look: Look) {
        let hand_over = |jobs: Vec<Job>| self.hand_over(jobs, options);
        self.context
            .requests(started, options, look, usize::MAX, hand_over);
    }

    /// Lets the threads do it.
    fn hand_over(&self, jobs: Vec<Job>, options: &ReadOptions) {
        let bytes = jobs
            .iter()
            .map(|job| job.span().end - job.span().start)
            .sum();
        let work = Batched::new(self.context.clone(), jobs, self.piece_of(bytes));
        let threads = self.threads_for(&work, options);
        let shared: Arc<dyn Work> = work.clone();
        if let Err(error) = self.workers().run(&shared, threads, options.priority) {
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
        fitting.min(self.workers().most())
    }

    fn threads_for(&self, work: &Batched, options: &ReadOptions) -> usize {
        let fitting = if work.mean_piece() < 256 << 10 {
            // Each waits for the device on its own: as many as may run.
            self.workers().most()
        } else {
            self.large_threads()
        };
        let asked = options.depth.map_or(fitting, std::num::NonZeroUsize::get);
        asked.min(work.pieces()).min(self.workers().most())
    }

    /// Reads into borrowed memory what was checked and counted; other threads help with large ones.
    #[allow(unsafe_code)]
    pub(crate) fn now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let (source, pool) = (self.context.source(), self.context.pool());
        for read in reads.iter_mut() {
            let range = read.range();
            let outcome = if read.buf.len() >= SHARE_NOW && self.workers().most() > 1 {
                self.now_shared(&range, read.buf)
            } else {
                let target = read.buf.as_mut_ptr();
                // SAFETY: the buffer is borrowed exclusively for longer than the call, and as long as the range.
                unsafe { self.access().read(&range, target, source.counters(), pool) }
            };
            outcome.map_err(|error| source.place(error, range))?;
        }
        self.context.end_now(reads)
    }

    #[allow(unsafe_code)]
    fn now_shared(&self, range: &Range<u64>, buf: &mut [u8]) -> Result<()> {
        // The caller looks at the version, once for all its buffers.
        let context = self.context.unchecked();
        // SAFETY: `all_done` below goes away, also when unwinding, only when no thread uses the memory any more;
        // until then `buf` is borrowed here.
        let job = unsafe { Job::borrowed(range.clone(), buf.as_mut_ptr()) };
        let piece = self.piece_of(range.end - range.start);
        let work = Batched::new(context, vec![job], piece);
        let all_done = work.wait_for_all();
        let others = self.threads_for(&work, &ReadOptions::default()) - 1;
        if others > 0 {
            let shared: Arc<dyn Work> = work.clone();
            // Without other threads it only takes longer.
            let _ = self.workers().run(&shared, others, Priority::Foreground);
        }
        while Work::step(work.clone()) {}
        drop(all_done);
        work.error().map_or(Ok(()), |(error, _)| Err(error))
    }
}

impl Reader for PreadReader {
    fn source(&self) -> &Source {
        self.context.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, options, pending) = batch.start(self.context.source());
        self.start(started, &options, Look::Unknown);
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.context.begin_now(reads)?;
        self.now(reads)
    }
}
