//! The reader that `open` gives: it knows the routes, and chooses one for each range.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::engine::Engine;
use super::report::{Candidate, Report, Verdict};
use crate::backend::file::OpenFile;
use crate::backend::memory::MemoryReader;
use crate::backend::mmap::MmapReader;
use crate::backend::pread::{DirectFile, PreadReader, buffered_limits};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::reader::{
    Batch, CachePolicy, Dest, LocalFile, Pending, Read, ReadInto, ReadOptions, Reader, Route,
    Source, Started, VersionCheck,
};
use crate::sys::{self, FileSystem, ReadMode};
use crate::version::Version;

/// From this size on, cold ranges are read past the page cache. Where it was measured (ext4, a virtual disk) that took
/// half the time of reading through it, and from 1 MiB on already; but what is small is likely to be read again.
const DIRECT_FROM: u64 = 4 << 20;

/// What the caller demands.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) only: Option<Route>,
    pub(super) policy: CachePolicy,
    pub(super) check: VersionCheck,
    pub(super) promised: bool,
}

impl Rules {
    fn demands_direct(&self) -> bool {
        self.only == Some(Route::PreadDirect) || self.policy == CachePolicy::Bypass
    }
}

/// An open source, read by the route that suits each range. Made by [`open`](super::open) and
/// [`OpenOptions`](super::OpenOptions).
///
/// Rules, in this order: a route that was [asked for](super::OpenOptions::only), or `O_DIRECT` if
/// [`CachePolicy::Bypass`] was; under the promise of
/// [`assume_immutable`](super::OpenOptions::assume_immutable), views of a mapping for reads that leave the memory to
/// us; `O_DIRECT` for ranges of 4 MiB and more that are mostly not in the page cache, on file systems of a local
/// device, if the policy is [`CachePolicy::Auto`]; else `pread` through the page cache.
#[derive(Debug)]
pub struct Opened {
    source: Source,
    routes: Routes,
}

#[derive(Debug)]
enum Routes {
    Memory {
        reader: MemoryReader,
        why: &'static str,
    },
    File(Box<FileRoutes>),
}

#[derive(Debug)]
struct FileRoutes {
    file: Arc<OpenFile>,
    engine: Engine,
    rules: Rules,
    source: Source,
    buffered: PreadReader,
    direct: OnceLock<Result<PreadReader, Refusal>>,
    mapped: OnceLock<Result<MmapReader, Refusal>>,
    seen: Seen,
}

/// Why ranges were not read directly, counted in ranges.
#[derive(Debug, Default)]
struct Seen {
    small: AtomicU64,
    resident: AtomicU64,
}

impl Opened {
    pub(super) fn memory(reader: MemoryReader, why: &'static str) -> Self {
        Opened {
            source: reader.source().clone(),
            routes: Routes::Memory { reader, why },
        }
    }

    pub(super) fn file(file: OpenFile, engine: Engine, rules: Rules) -> Result<Self> {
        let version = Version::File(file.version());
        let name = rules.only.map_or("auto", Route::name);
        let limits = buffered_limits(engine.workers().most());
        let source = Source::new(file.name().clone(), name, version, limits);
        let file = Arc::new(file);
        let routes = FileRoutes {
            buffered: PreadReader::buffered(
                file.clone(),
                &source,
                engine.workers().clone(),
                engine.pool().clone(),
                rules.policy,
                rules.check,
            ),
            direct: OnceLock::new(),
            mapped: OnceLock::new(),
            seen: Seen::default(),
            source: source.clone(),
            file,
            engine,
            rules,
        };
        routes.check_demands()?;
        let source = match routes.direct.get() {
            Some(Ok(direct)) => source.through(name, direct.source().limits()),
            _ => source,
        };
        tracing::debug!(
            name = %source.name(),
            len = source.len(),
            file_system = routes.file.file_system().name(),
            "opened"
        );
        Ok(Opened {
            source,
            routes: Routes::File(Box::new(routes)),
        })
    }

    /// The routes, what became of each, and the facts behind it. May open and map the file to find out; reads
    /// nothing but one block.
    pub fn report(&self) -> Report {
        let counters = self.source.counters().snapshot();
        let (resident, facts, verdicts) = match &self.routes {
            Routes::Memory { why, .. } => {
                let no = || {
                    Verdict::Refused(Refusal::NotForThisFile {
                        what: Cow::Borrowed(*why),
                    })
                };
                let verdicts = vec![
                    (Route::Memory, Verdict::Used),
                    (Route::Pread, no()),
                    (Route::PreadDirect, no()),
                    (Route::Mmap, no()),
                ];
                (None, Vec::new(), verdicts)
            }
            Routes::File(routes) => {
                let resident = routes.file.resident_bytes(0, routes.file.len());
                (resident, routes.facts(resident), routes.verdicts())
            }
        };
        let candidates = verdicts
            .into_iter()
            .map(|(route, verdict)| Candidate {
                route,
                verdict,
                bytes: counters.route(route),
            })
            .collect();
        Report {
            name: self.source.name().clone(),
            len: self.source.len(),
            resident,
            facts,
            candidates,
            counters,
        }
    }
}

impl FileRoutes {
    /// A route or policy that was demanded works, or opening fails with its reason.
    fn check_demands(&self) -> Result<()> {
        let rules = &self.rules;
        if rules.policy == CachePolicy::DropBehind
            && matches!(rules.only, Some(Route::PreadDirect | Route::Mmap))
        {
            let what =
                "only reads through the page cache can drop behind; ask for pread, or for no route";
            let kind = ErrorKind::InvalidOption { what: what.into() };
            return Err(Error::new(kind).named(self.file.name()));
        }
        let unavailable = |route: Route, why: Refusal| {
            let engine = route.name();
            Err(Error::new(ErrorKind::Unavailable { engine, why }).named(self.file.name()))
        };
        match rules.only {
            Some(Route::PreadDirect) => {}
            Some(route) if rules.policy == CachePolicy::Bypass => {
                let what = "it goes through the page cache, which CachePolicy::Bypass forbids";
                return unavailable(route, Refusal::NotForThisFile { what: what.into() });
            }
            Some(Route::Mmap) => {
                return match self.mapped() {
                    Ok(_) => Ok(()),
                    Err(why) => unavailable(Route::Mmap, why),
                };
            }
            Some(Route::Pread) | None => {}
            Some(route) => {
                let what = "it does not read files";
                return unavailable(route, Refusal::NotForThisFile { what: what.into() });
            }
        }
        if !rules.demands_direct() {
            return Ok(());
        }
        match self.direct() {
            Ok(_) => Ok(()),
            Err(why) => unavailable(Route::PreadDirect, why),
        }
    }

    fn direct(&self) -> Result<&PreadReader, Refusal> {
        self.once(&self.direct, || {
            let direct = DirectFile::open(&self.file)?;
            // Demanded, it has to work; chosen, it may turn out not to, and nothing waits to find out.
            let demanded = self.rules.demands_direct();
            if demanded {
                direct.probe(self.file.len())?;
            }
            Ok(PreadReader::direct(
                self.file.clone(),
                direct,
                !demanded,
                &self.source,
                self.engine.workers().clone(),
                self.engine.pool().clone(),
                self.rules.check,
            ))
        })
    }

    #[allow(unsafe_code)]
    fn mapped(&self) -> Result<&MmapReader, Refusal> {
        self.once(&self.mapped, || {
            if !self.rules.promised && MmapReader::COMPILED {
                return Err(Refusal::NeedsPromise);
            }
            let workers = self.engine.workers().clone();
            // SAFETY: whoever called `assume_immutable` promised that the content stays.
            unsafe { MmapReader::new(self.file.clone(), &self.source, workers, self.rules.check) }
        })
    }

    /// The reader in `cell`, made if there is none. No lock is held while it is made, which a fork could leave locked
    /// in the child; of two that are made at once, one is dropped.
    fn once<'a, R>(
        &self,
        cell: &'a OnceLock<Result<R, Refusal>>,
        make: impl FnOnce() -> Result<R, Refusal>,
    ) -> Result<&'a R, Refusal> {
        if cell.get().is_none() {
            // In a forked child nothing is opened: what is asked for will be refused.
            self.source
                .check(&(0..0))
                .map_err(|error| Refusal::NotForThisFile {
                    what: error.kind().to_string().into(),
                })?;
            match make() {
                // The next one may have more luck: it was not the file's fault.
                Err(Refusal::Os { op, source }) if is_passing(&source) => {
                    return Err(Refusal::Os { op, source });
                }
                made => drop(cell.set(made)),
            }
        }
        match cell.get() {
            Some(Ok(reader)) => Ok(reader),
            Some(Err(refusal)) => Err(refusal.clone()),
            None => Err(Refusal::NotForThisFile {
                what: "it could not be made".into(),
            }),
        }
    }

    /// The route for one range.
    fn choose(&self, range: &Range<u64>, ours: bool) -> Route {
        if let Some(only) = self.rules.only {
            return only;
        }
        if self.rules.policy == CachePolicy::Bypass {
            return Route::PreadDirect;
        }
        let policy = self.rules.policy;
        let drops = policy == CachePolicy::DropBehind;
        if self.rules.promised && !drops && ours && self.mapped().is_ok() {
            return Route::Mmap;
        }
        let local = matches!(self.file.file_system(), FileSystem::Local(_));
        if !local || policy != CachePolicy::Auto {
            return Route::Pread;
        }
        let len = range.end.saturating_sub(range.start);
        if len < DIRECT_FROM {
            self.seen.small.fetch_add(1, Ordering::Relaxed);
            return Route::Pread;
        }
        if self.is_resident(range) {
            self.seen.resident.fetch_add(1, Ordering::Relaxed);
            return Route::Pread;
        }
        match self.direct() {
            Ok(direct) if !direct.was_refused() => Route::PreadDirect,
            _ => Route::Pread,
        }
    }

    /// Whether enough of a large range is in the page cache for reading through it. So it is if nobody can tell: what
    /// is there and is read from a device all the same costs more than what is not and is read through the cache.
    #[allow(unsafe_code)]
    fn is_resident(&self, range: &Range<u64>) -> bool {
        let len = range.end - range.start;
        if let Some(resident) = self.file.resident_bytes(range.start, len) {
            return resident > len / 4;
        }
        // The system does not tell this process, so a few bytes are asked for without waiting.
        const SAMPLES: u64 = 4;
        let mode = ReadMode {
            no_wait: true,
            dont_cache: false,
        };
        let mut resident = 0;
        for i in 0..SAMPLES {
            let offset = range.start + len / SAMPLES * i;
            let mut byte = 0u8;
            // SAFETY: one byte of our own.
            match unsafe { sys::pread(self.file.fd(), &raw mut byte, 1, offset, mode) } {
                Ok(_) => resident += 1,
                Err(error) if sys::is_mode_unsupported(&error) => return true,
                Err(_) => {}
            }
        }
        resident > SAMPLES / 4
    }

    /// Hands each read to the engine of its route.
    fn start(&self, started: Vec<Started>, options: &ReadOptions) {
        let [(only, _)] = started.as_slice() else {
            return self.start_many(started, options);
        };
        self.dispatch(self.route_of(only), started, options);
    }

    fn start_many(&self, started: Vec<Started>, options: &ReadOptions) {
        let mut groups: [(Route, Vec<Started>); 3] =
            [Route::Pread, Route::PreadDirect, Route::Mmap].map(|route| (route, Vec::new()));
        for (read, ticket) in started {
            // Asked once for each read: the answer may be another one a moment later.
            let route = self.route_of(&read);
            let group = groups.iter_mut().find(|(name, _)| *name == route);
            match group {
                Some((_, group)) => group.push((read, ticket)),
                None => groups[0].1.push((read, ticket)),
            }
        }
        for (route, group) in groups {
            if !group.is_empty() {
                self.dispatch(route, group, options);
            }
        }
    }

    fn dispatch(&self, route: Route, started: Vec<Started>, options: &ReadOptions) {
        match (route, self.direct.get(), self.mapped.get()) {
            (Route::PreadDirect, Some(Ok(direct)), _) => direct.start(started, options),
            (Route::Mmap, _, Some(Ok(mapped))) => mapped.start(started, options),
            _ => self.buffered.start(started, options),
        }
    }

    fn route_of(&self, read: &Read) -> Route {
        match read.dest {
            // Bringing bytes near means the page cache, whatever reads them later.
            Dest::Prefetch if self.rules.only.is_none() && !self.rules.demands_direct() => {
                Route::Pread
            }
            Dest::Into(_) => self.choose(&read.range, false),
            _ => self.choose(&read.range, true),
        }
    }

    fn read_now(&self, mut reads: &mut [ReadInto<'_>]) -> Result<()> {
        if reads
            .iter()
            .any(|read| self.source.check(&read.range()).is_err())
        {
            // Refused before a route is looked for; any engine says how.
            return self.buffered.read_now(reads);
        }
        if let [one] = reads {
            return self.reader_for(&one.range()).read_now(reads);
        }
        let routes: Vec<Route> = reads
            .iter()
            .map(|read| self.choose(&read.range(), false))
            .collect();
        // Neighbours of one route together, so that they share a version check.
        for run in routes.chunk_by(|a, b| a == b) {
            let (now, later) = reads.split_at_mut(run.len());
            self.reader(run[0]).read_now(now)?;
            reads = later;
        }
        Ok(())
    }

    fn reader_for(&self, range: &Range<u64>) -> &dyn Reader {
        self.reader(self.choose(range, false))
    }

    fn reader(&self, route: Route) -> &dyn Reader {
        match (route, self.direct.get(), self.mapped.get()) {
            (Route::PreadDirect, Some(Ok(direct)), _) => direct,
            (Route::Mmap, _, Some(Ok(mapped))) => mapped,
            _ => &self.buffered,
        }
    }

    fn facts(&self, resident: Option<u64>) -> Vec<(&'static str, String)> {
        let mut facts = vec![("on", self.file.file_system().name().to_owned())];
        if let Some(Ok(direct)) = self.direct.get() {
            let align = direct.source().limits().align;
            facts.push(("direct alignment", align.to_string()));
        }
        if let Some(resident) = resident {
            facts.push(("bytes in page cache", resident.to_string()));
        }
        facts
    }

    /// The file, unless reads are to go another way than the kernel would.
    fn local_file(&self) -> Option<LocalFile<'_>> {
        let cached = matches!(self.rules.policy, CachePolicy::Auto | CachePolicy::Keep);
        let free = matches!(self.rules.only, None | Some(Route::Pread));
        (cached && free).then(|| LocalFile::new(self.file.fd(), 0, self.file.version()))
    }

    fn verdicts(&self) -> Vec<(Route, Verdict)> {
        let used = |route: Route| self.source.counters().snapshot().route(route) > 0;
        let not_asked_for = || {
            self.rules.only.map(|only| {
                Verdict::NotChosen(format!("{only} was asked for, and no other").into())
            })
        };
        let verdict = |route: Route, refusal: Option<Refusal>, otherwise: &dyn Fn() -> Verdict| {
            if used(route) || self.rules.only == Some(route) {
                return Verdict::Used;
            }
            match refusal {
                Some(refusal) => Verdict::Refused(refusal),
                None => not_asked_for().unwrap_or_else(otherwise),
            }
        };
        let buffered = verdict(Route::Pread, None, &|| {
            if self.rules.policy == CachePolicy::Bypass {
                return Verdict::NotChosen("the page cache was to be bypassed".into());
            }
            let others = used(Route::PreadDirect) || used(Route::Mmap);
            match others {
                true => {
                    Verdict::NotChosen("no range was better read through the page cache".into())
                }
                false => Verdict::Used,
            }
        });
        let direct = verdict(Route::PreadDirect, self.direct().err(), &|| {
            Verdict::NotChosen(self.why_not_direct())
        });
        let mapped = verdict(Route::Mmap, self.mapped().err(), &|| {
            Verdict::NotChosen("all destinations were given".into())
        });
        let memory = Verdict::Refused(Refusal::NotForThisFile {
            what: "the bytes are in a file".into(),
        });
        vec![
            (Route::Memory, memory),
            (Route::Mmap, mapped),
            (Route::PreadDirect, direct),
            (Route::Pread, buffered),
        ]
    }

    fn why_not_direct(&self) -> Cow<'static, str> {
        let small = self.seen.small.load(Ordering::Relaxed);
        let resident = self.seen.resident.load(Ordering::Relaxed);
        match self.file.file_system() {
            FileSystem::Local(_) => {}
            FileSystem::Memory(_) => return "the file is in memory".into(),
            FileSystem::Network(_) | FileSystem::Pseudo => {
                return "the file is not on a device of this machine".into();
            }
        }
        match self.rules.policy {
            CachePolicy::DropBehind | CachePolicy::Keep => {
                return "the cache policy has all reads go through the page cache".into();
            }
            CachePolicy::Auto | CachePolicy::Bypass => {}
        }
        let below = format!("ranges below {} MiB: {small}", DIRECT_FROM >> 20);
        let cached = format!("large ranges in the page cache: {resident}");
        match (small, resident) {
            (0, 0) => "no large range was read".into(),
            (_, 0) => below.into(),
            (0, _) => cached.into(),
            _ => format!("{below}, {cached}").into(),
        }
    }
}

/// Whether a refusal is about the process or the machine at this moment.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
    )
}

impl Reader for Opened {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let _span = tracing::trace_span!("submit", reads = batch.reads.len()).entered();
        match &self.routes {
            Routes::Memory { reader, .. } => reader.submit(batch),
            Routes::File(routes) => {
                let (started, options, pending) = batch.start(&self.source);
                routes.start(started, &options);
                pending
            }
        }
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        match &self.routes {
            Routes::Memory { reader, .. } => reader.read_now(reads),
            Routes::File(routes) => routes.read_now(reads),
        }
    }
    fn local_file(&self) -> Option<LocalFile<'_>> {
        match &self.routes {
            Routes::Memory { .. } => None,
            Routes::File(routes) => routes.local_file(),
        }
    }
}
