//! Reads of a file turned into requests: which spans, into which memory, and who is told when they are there.
//!
//! What engines of files share. How a request is read, and by whom, is theirs.

mod access;
mod batched;
mod direct;
mod hints;
mod job;
mod salvage;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use self::access::Access;
#[cfg_attr(
    any(
        not(feature = "io-uring"),
        not(target_os = "linux"),
        feedwater_portable
    ),
    allow(unused_imports)
)]
pub(crate) use self::access::no_bytes;
pub(crate) use self::batched::Batched;
#[cfg_attr(
    any(
        not(feature = "io-uring"),
        not(target_os = "linux"),
        feedwater_portable
    ),
    allow(unused_imports)
)]
pub(crate) use self::batched::Piece;
pub(crate) use self::direct::DirectFile;
use self::hints::Hints;
pub(crate) use self::job::Job;
use self::job::Part;
use super::workers::{Work, Workers};
use crate::buffer::{BlockMut, Place, Pool};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::plan::coalesce;
use crate::reader::{
    Dest, Failed, Limits, Read, ReadInto, ReadOptions, Source, Started, Ticket, VersionCheck,
    refuse_place,
};

/// What is resident is copied by `submit` itself, up to so many bytes of a batch: about what a thread switch and
/// a wake-up cost several times over, and short enough for a task to do between two awaits.
const INLINE: u64 = 1 << 20;

/// Joined requests stay below this, so that a batch of neighbours still keeps several in flight.
const JOIN: u64 = 4 << 20;

/// Given destinations from this size on are read into directly, never by way of a shared block.
const SHARED_MOST: u64 = 64 << 10;

/// Bytes of one request of a stream past the page cache. Blocks of this size are made of huge pages, so that the device
/// is given few addresses: streaming 2 GiB took 1.4 s where requests into small pages took 2.3 s.
pub(crate) const STREAM: usize = 4 << 20;

/// What suits reads through the page cache. Chunks of half a MiB stay in a processor's own cache between the copy and
/// the use, which made streaming a tenth faster than with 1 MiB.
pub(crate) fn buffered_limits(depth: usize) -> Limits {
    Limits::default()
        .preferred(512 << 10)
        .gap(4096)
        .depth(depth)
}

/// What suits reads past the page cache.
pub(crate) fn direct_limits(depth: usize, direct: &DirectFile) -> Limits {
    Limits::default()
        .stream(STREAM)
        .gap(16 << 10)
        .depth(depth)
        .align(direct.strictest() as usize)
}

/// What is known of whether bytes are in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// They are, or were a moment ago.
    Cached,
    /// They are not, so nobody needs to look.
    Cold,
    /// Nothing.
    Unknown,
}

/// After so many ranges of a batch that were not in the page cache, the others are not tried: a try that fails may
/// have the kernel begin a read of its own.
const MISSES: usize = 4;

/// How much of a batch may still be copied on the spot.
#[derive(Debug)]
struct Inline {
    budget: u64,
    /// Tries that found nothing.
    misses: usize,
}

impl Default for Inline {
    fn default() -> Self {
        Inline {
            budget: INLINE,
            misses: 0,
        }
    }
}

/// What one or several reads of a batch come to.
enum Joined {
    One(Started),
    Several(Range<u64>, Vec<Started>),
}

/// What was found of files' versions, once for everything that was read before.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Vec<(Arc<Access>, Result<()>)>);

impl Verdicts {
    /// Forgets them: what is read from now on needs another look.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// As [`Context::verify`], looking once for each file.
    pub(crate) fn of(&mut self, context: &Context) -> Result<()> {
        let known = self
            .0
            .iter()
            .find(|(access, _)| Arc::ptr_eq(access, &context.access));
        match (context.check, known) {
            (VersionCheck::OnShortRead, _) => Ok(()),
            (VersionCheck::Always, Some((_, verdict))) => verdict.clone(),
            (VersionCheck::Always, None) => {
                let verdict = context.verify();
                self.0.push((context.access.clone(), verdict.clone()));
                verdict
            }
        }
    }
}

/// A file, how its bytes are had, and what requests for it need.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    source: Source,
    access: Arc<Access>,
    pool: Pool,
    check: VersionCheck,
    /// Threads that may wait for a device.
    workers: Arc<Workers>,
    /// Whether who delivers must not wait for a device.
    apart: bool,
}

impl Context {
    pub(crate) fn new(
        source: Source,
        access: Access,
        pool: Pool,
        check: VersionCheck,
        workers: Arc<Workers>,
    ) -> Self {
        Context {
            source,
            access: Arc::new(access),
            pool,
            check,
            workers,
            apart: false,
        }
    }

    /// Deliveries come from a thread that must not wait for a device.
    pub(crate) fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// The version is somebody else's to check.
    pub(crate) fn unchecked(&self) -> Self {
        Context {
            check: VersionCheck::OnShortRead,
            ..self.clone()
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Checks and counts what is to be read on the caller's thread.
    pub(crate) fn begin_now(&self, reads: &[ReadInto<'_>]) -> Result<()> {
        let counters = self.source.counters();
        counters.add_reads(reads.len() as u64);
        for read in reads {
            self.source.check(&read.range())?;
        }
        counters.add_requested(reads.iter().map(|read| read.buf.len() as u64).sum());
        Ok(())
    }

    /// After everything was read on the caller's thread: looks at the version, once, and counts.
    pub(crate) fn end_now(&self, reads: &[ReadInto<'_>]) -> Result<()> {
        let range = reads.first().map_or(0..0, ReadInto::range);
        self.verify()
            .map_err(|error| self.source.place(error, range))?;
        let bytes = reads.iter().map(|read| read.buf.len() as u64).sum();
        self.source.counters().add_route(self.access.route(), bytes);
        Ok(())
    }

    /// Whether the content is still that of the open, as far as it is to be checked after each request.
    pub(crate) fn verify(&self) -> Result<()> {
        match self.check {
            VersionCheck::OnShortRead => Ok(()),
            VersionCheck::Always => self.access.file().check_version(),
        }
    }

    /// The requests for reads that were started: neighbours share one, hints are passed on, and what is in the page
    /// cache is delivered on the spot. What is left to read goes to `hand_over`, in portions where there is much of it,
    /// so that the device begins while the rest is made.
    pub(crate) fn requests(
        &self,
        mut started: Vec<Started>,
        options: &ReadOptions,
        look: Look,
        portion: usize,
        mut hand_over: impl FnMut(Vec<Job>),
    ) {
        if started
            .iter()
            .any(|(read, _)| !matches!(&read.dest, Dest::Any(Place::Host)))
        {
            started = self.settle_special(started, options);
        }
        let mut inline = Inline::default();
        let mut hand_over = |mut jobs: Vec<Job>| {
            self.copy_resident(&mut jobs, look, &mut inline);
            if !jobs.is_empty() {
                hand_over(jobs);
            }
        };
        let mut jobs = Vec::with_capacity(started.len().min(portion));
        if started.len() == 1 {
            if let Some((read, ticket)) = started.pop() {
                self.one(read, ticket, &mut jobs);
            }
        } else {
            let gap = options.gap.unwrap_or(self.source.limits().gap);
            self.join(started, gap, |step| {
                match step {
                    Joined::One((read, ticket)) => self.one(read, ticket, &mut jobs),
                    Joined::Several(range, parts) => self.several(&range, parts, &mut jobs),
                }
                if jobs.len() >= portion {
                    hand_over(std::mem::take(&mut jobs));
                }
            });
        }
        hand_over(jobs);
    }

    /// Finishes what is no read into host memory: hints are passed on, devices refused. Gives back the rest.
    fn settle_special(&self, started: Vec<Started>, options: &ReadOptions) -> Vec<Started> {
        let mut rest = Vec::with_capacity(started.len());
        let mut hints = Vec::new();
        for (read, ticket) in started {
            if let Some(error) = refuse_place(&self.source, &read) {
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
            let hints: Arc<dyn Work> = Arc::new(Hints::new(self.access.clone(), hints));
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
            _ => match self.span_for(&range) {
                Ok(span) => {
                    jobs.push(Job::shared(span, vec![part(range, ticket)]));
                }
                Err(error) => {
                    let error = self.source.place(error, range);
                    ticket.finish(Err(error.into()));
                }
            },
        }
    }

    /// What many reads come to: neighbours share a request.
    fn join(&self, started: Vec<Started>, gap: u64, mut make: impl FnMut(Joined)) {
        let (own, shared): (Vec<_>, Vec<_>) = started
            .into_iter()
            .partition(|(read, _)| matches!(read.dest, Dest::Into(_)) && read.len() >= SHARED_MOST);
        for started in own {
            make(Joined::One(started));
        }
        let ranges: Vec<_> = shared.iter().map(|(read, _)| read.range.clone()).collect();
        // What is joined must not fail for the size of the block that each alone would not need.
        let most = JOIN.min(self.pool.max_block() as u64);
        let plan = coalesce(&ranges, gap, most);
        self.source.counters().add_wasted(plan.waste);
        let mut shared: Vec<_> = shared.into_iter().map(Some).collect();
        for request in &plan.requests {
            let mut parts = plan
                .parts(request)
                .iter()
                .filter_map(|&at| shared[at].take());
            match (parts.next(), request.parts.len()) {
                (Some(one), 1) => make(Joined::One(one)),
                (Some(first), _) => {
                    let parts = std::iter::once(first).chain(parts).collect();
                    make(Joined::Several(request.range.clone(), parts));
                }
                (None, _) => {}
            }
        }
    }

    /// A request that several reads share.
    fn several(&self, range: &Range<u64>, parts: Vec<Started>, jobs: &mut Vec<Job>) {
        match self.span_for(range) {
            Ok(span) => {
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
                jobs.push(Job::shared(span, parts));
            }
            Err(error) => {
                for (read, ticket) in parts {
                    let error = self.source.place(error.clone(), read.range);
                    ticket.finish(Err(Failed::new(error, read.dest)));
                }
            }
        }
    }

    /// The span that a request for `range` reads into a block of our own: for direct reads widened to what the device
    /// takes, so that bytes land where they stay. Refused, if no block may be so large.
    fn span_for(&self, range: &Range<u64>) -> Result<Range<u64>> {
        let len = range.end - range.start;
        let cap = self.pool.max_block() as u64;
        if len > cap {
            return Err(Error::new(ErrorKind::OutOfMemory { wanted: len, cap }));
        }
        let align = self.access.align();
        let start = range.start - range.start % align;
        let end = range
            .end
            .checked_next_multiple_of(align)
            .unwrap_or(range.end);
        Ok(start..end)
    }

    /// A block for a span.
    fn block(&self, len: u64) -> Result<BlockMut> {
        let len = len as usize;
        // Small blocks come from the allocator: a page for some bytes would be mostly waste.
        if self.access.align() == 1 && len < crate::sys::page_size() {
            return Ok(BlockMut::with_capacity(len));
        }
        self.pool.take_over_cap(len)
    }

    /// Copies what is in the page cache, as far as the inline budget goes, and delivers it.
    fn copy_resident(&self, jobs: &mut Vec<Job>, look: Look, inline: &mut Inline) {
        if look == Look::Cold || !self.access.can_copy_resident() {
            return;
        }
        let source = &self.source;
        let Inline { budget, misses } = inline;
        let mut complete = false;
        for job in jobs.iter_mut() {
            let len = job.span().end - job.span().start;
            if len <= *budget && *misses < MISSES {
                if look == Look::Unknown && self.access.is_cold(job.span()) {
                    continue;
                }
                *budget -= len;
                if job.take_memory(self).is_err() {
                    continue; // it will be told when it is tried again
                }
                let copied = job.copy_resident(&self.access, source);
                source.counters().add_read(copied);
                source.counters().add_from_cache(copied);
                complete |= copied == len;
                *misses += usize::from(copied == 0);
            }
        }
        if !complete {
            return;
        }
        // One look at the version covers them all: they were all read before it.
        let verdict = self.verify();
        let mut rest = Vec::new();
        for job in jobs.drain(..) {
            if job.rest().is_empty() {
                job.deliver(self, |_| verdict.clone());
            } else {
                rest.push(job);
            }
        }
        *jobs = rest;
    }
}
