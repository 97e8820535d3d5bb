//! The routes of one file: made when first needed, chosen for each range.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::choice::{Asked, Cold, History, Residency, Why, residency};
use super::engine::Engine;
use crate::backend::device::Device;
use crate::backend::file::OpenFile;
use crate::backend::mmap::MmapReader;
use crate::backend::pread::PreadReader;
use crate::backend::requests::{DirectFile, Look, STREAM, buffered_limits};
use crate::backend::uring::UringReader;
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::reader::{
    CachePolicy, Dest, Failed, Limits, LocalFile, Read, ReadInto, ReadOptions, Reader, Route,
    Source, Started, VersionCheck,
};
use crate::sys::{self, FileSystem};

/// What the caller demands.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    pub(super) only: Option<Route>,
    pub(super) policy: CachePolicy,
    pub(super) check: VersionCheck,
    pub(super) promised: bool,
}

impl Rules {
    pub(super) fn demands_direct(&self) -> bool {
        matches!(self.only, Some(Route::PreadDirect | Route::UringDirect))
            || self.policy == CachePolicy::Bypass
    }
}

/// On the spot, it pays to find out about residency from this size on.
const NOW_SMALL: u64 = 1 << 20;

/// Ranges below this are scattered reads, when they are cold: a ring has many of them in flight.
const SCATTERED: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct FileRoutes {
    pub(super) file: Arc<OpenFile>,
    pub(super) rules: Rules,
    pub(super) source: Source,
    engine: Engine,
    buffered: PreadReader,
    direct_file: OnceLock<Result<Arc<DirectFile>, Refusal>>,
    direct: OnceLock<Result<PreadReader, Refusal>>,
    uring: OnceLock<Result<UringReader, Refusal>>,
    uring_direct: OnceLock<Result<UringReader, Refusal>>,
    mapped: OnceLock<Result<MmapReader, Refusal>>,
    device: OnceLock<Arc<Device>>,
    history: History,
    seen: [AtomicU64; Why::ALL.len()],
}

/// What is to be done with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    route: Route,
    look: Look,
}

impl Chosen {
    fn by(route: Route, look: Look) -> Self {
        Chosen { route, look }
    }
}

impl FileRoutes {
    pub(super) fn new(file: OpenFile, source: Source, engine: Engine, rules: Rules) -> Self {
        let file = Arc::new(file);
        FileRoutes {
            buffered: PreadReader::buffered(
                file.clone(),
                &source,
                engine.workers().clone(),
                engine.pool().clone(),
                rules.policy,
                rules.check,
            ),
            direct_file: OnceLock::new(),
            direct: OnceLock::new(),
            uring: OnceLock::new(),
            uring_direct: OnceLock::new(),
            mapped: OnceLock::new(),
            device: OnceLock::new(),
            history: History::default(),
            seen: Default::default(),
            source,
            file,
            engine,
            rules,
        }
    }

    /// A route or policy that was demanded works, or opening fails with its reason.
    pub(super) fn check_demands(&self) -> Result<()> {
        let rules = &self.rules;
        if rules.policy == CachePolicy::DropBehind
            && !matches!(rules.only, None | Some(Route::Pread))
        {
            let what =
                "only pread through the page cache can drop behind; ask for it, or for no route";
            let kind = ErrorKind::InvalidOption { what: what.into() };
            return Err(Error::new(kind).named(self.file.name()));
        }
        let unavailable = |route: Route, why: Refusal| {
            let engine = route.name();
            Err(Error::new(ErrorKind::Unavailable { engine, why }).named(self.file.name()))
        };
        if rules.policy == CachePolicy::Keep && rules.demands_direct() {
            let what = "what is read past the page cache is not kept there; ask for pread or uring, or for no route";
            let kind = ErrorKind::InvalidOption { what: what.into() };
            return Err(Error::new(kind).named(self.file.name()));
        }
        let only = match rules.only {
            Some(only @ (Route::PreadDirect | Route::UringDirect)) => only,
            Some(only) if rules.policy == CachePolicy::Bypass => {
                let what = "it goes through the page cache, which CachePolicy::Bypass forbids";
                return unavailable(only, Refusal::NotForThisFile { what: what.into() });
            }
            Some(only) => only,
            None if rules.policy == CachePolicy::Bypass => Route::PreadDirect,
            None => return Ok(()),
        };
        match self.refusal(only) {
            None => Ok(()),
            Some(why) => unavailable(only, why),
        }
    }

    /// Why a route cannot be used. May open and map the file to find out.
    pub(super) fn refusal(&self, route: Route) -> Option<Refusal> {
        match route {
            Route::Pread => None,
            Route::PreadDirect => self.direct().err(),
            Route::Uring => self.uring().err(),
            Route::UringDirect => self.uring_direct().err(),
            Route::Mmap => self.mapped().err(),
            _ => Some(Refusal::NotForThisFile {
                what: "it does not read files".into(),
            }),
        }
    }

    /// What suits the route that all reads will take, if there is one.
    pub(super) fn limits(&self) -> Limits {
        let limits = self.limits_of_route();
        // No request is larger than a block may be.
        let most = self.engine.pool().max_block().max(1);
        let stream = limits.stream.min(most);
        let preferred = limits.preferred.min(most);
        limits.stream(stream).preferred(preferred)
    }

    fn limits_of_route(&self) -> Limits {
        let now = Asked {
            now: true,
            ours: false,
            together: 2,
        };
        let route = match self.rules.only {
            Some(only) => only,
            None if self.rules.policy == CachePolicy::Bypass => self.past_the_cache(now),
            None => Route::Pread,
        };
        if let Some(uring) = self.ring_of(route) {
            return uring.source().limits();
        }
        if let (Route::PreadDirect, Some(Ok(direct))) = (route, self.direct.get()) {
            return direct.source().limits();
        }
        let limits = buffered_limits(self.engine.workers().most());
        let local = matches!(self.file.file_system(), FileSystem::Local(_));
        // What is not in the page cache will be read past it.
        if self.rules.only.is_none() && self.rules.policy == CachePolicy::Auto && local {
            return limits.stream(STREAM);
        }
        limits
    }

    /// The descriptor past the page cache, which readers of both kinds share.
    pub(super) fn direct_file(&self) -> Result<&Arc<DirectFile>, Refusal> {
        self.once(&self.direct_file, || {
            let direct = DirectFile::open(&self.file)?;
            // Demanded, it has to work; chosen, it may turn out not to, and nothing waits to find out.
            if self.rules.demands_direct() {
                direct.probe(self.file.len())?;
            }
            Ok(Arc::new(direct))
        })
    }

    fn direct(&self) -> Result<&PreadReader, Refusal> {
        self.once(&self.direct, || {
            Ok(PreadReader::direct(
                self.file.clone(),
                self.direct_file()?.clone(),
                !self.rules.demands_direct(),
                &self.source,
                self.engine.workers().clone(),
                self.engine.pool().clone(),
                self.rules.check,
            ))
        })
    }

    fn uring(&self) -> Result<&UringReader, Refusal> {
        self.once(&self.uring, || self.new_uring(None))
    }

    fn uring_direct(&self) -> Result<&UringReader, Refusal> {
        self.once(&self.uring_direct, || {
            let direct = self.direct_file()?.clone();
            self.new_uring(Some((direct, !self.rules.demands_direct())))
        })
    }

    fn new_uring(&self, direct: Option<(Arc<DirectFile>, bool)>) -> Result<UringReader, Refusal> {
        UringReader::new(
            self.file.clone(),
            direct,
            &self.source,
            self.engine.rings(),
            self.device(),
            self.engine.workers().clone(),
            self.engine.pool().clone(),
            self.rules.check,
        )
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

    pub(super) fn device(&self) -> &Arc<Device> {
        self.device
            .get_or_init(|| self.engine.device(self.file.version().dev))
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
                Err(Refusal::Os { op, source }) if sys::is_passing(&source) => {
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
    fn choose(&self, range: &Range<u64>, asked: Asked) -> Chosen {
        let rules = &self.rules;
        if let Some(only) = rules.only {
            return Chosen::by(only, Look::Unknown);
        }
        if rules.policy == CachePolicy::Bypass {
            return Chosen::by(self.past_the_cache(asked), Look::Cold);
        }
        let drops = rules.policy == CachePolicy::DropBehind;
        if rules.promised && !drops && asked.ours && self.mapped().is_ok() {
            return Chosen::by(Route::Mmap, Look::Unknown);
        }
        match self.file.file_system() {
            FileSystem::Local(_) if !drops => {}
            FileSystem::Memory(_) => return Chosen::by(Route::Pread, Look::Cached),
            _ => return Chosen::by(Route::Pread, Look::Unknown),
        }
        let len = range.end.saturating_sub(range.start);
        if asked.now && asked.together == 1 && len < NOW_SMALL {
            return self.buffered_for(Why::OneByOne, Look::Unknown);
        }
        let run = self.history.follow(range);
        match residency(&self.file, range) {
            Residency::Cached => {
                let auto = rules.policy == CachePolicy::Auto;
                let history = &self.history;
                if auto && history.is_read_ahead(range, run, &self.file, self.device()) {
                    return self.choose_cold(range, run, asked);
                }
                self.buffered_for(Why::Cached, Look::Cached)
            }
            Residency::Unknown => self.buffered_for(Why::NotTold, Look::Unknown),
            Residency::Cold => self.choose_cold(range, run, asked),
        }
    }

    fn choose_cold(&self, range: &Range<u64>, run: u64, asked: Asked) -> Chosen {
        if self.rules.policy == CachePolicy::Keep {
            return self.through_the_cache(range, asked, Why::Policy);
        }
        let cold = self
            .history
            .cold(range, run, self.file.len(), self.device());
        match cold {
            Cold::Direct => match self.past_the_cache(asked) {
                Route::Pread => self.through_the_cache(range, asked, Why::Policy),
                route => Chosen::by(route, Look::Cold),
            },
            Cold::Buffered(why @ Why::Kept) => self.through_the_cache(range, asked, why),
            // The kernel may have read ahead meanwhile.
            Cold::Buffered(why) => self.buffered_for(why, Look::Unknown),
        }
    }

    /// A cold range that is to stay in the page cache.
    fn through_the_cache(&self, range: &Range<u64>, asked: Asked, why: Why) -> Chosen {
        self.see(why);
        let scattered = range.end - range.start < SCATTERED && asked.together > 1;
        let by_ring = scattered
            && self
                .uring()
                .is_ok_and(|uring| asked.now || uring.ready().is_ok());
        if by_ring {
            return Chosen::by(Route::Uring, Look::Cold);
        }
        Chosen::by(Route::Pread, Look::Cold)
    }

    fn buffered_for(&self, why: Why, look: Look) -> Chosen {
        self.see(why);
        Chosen::by(Route::Pread, look)
    }

    fn see(&self, why: Why) {
        self.seen[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Why ranges were read through the page cache, and how many.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (Why, u64)> + '_ {
        let count = |why: Why| (why, self.seen[why as usize].load(Ordering::Relaxed));
        Why::ALL.into_iter().map(count).filter(|(_, n)| *n > 0)
    }

    /// The best route past the page cache that works, or [`Route::Pread`] if none does.
    fn past_the_cache(&self, asked: Asked) -> Route {
        let by_ring = self.uring_direct().is_ok_and(|uring| {
            // A ring of the caller's thread is made when it is needed.
            !uring.was_refused() && (asked.now || uring.ready().is_ok())
        });
        if by_ring {
            return Route::UringDirect;
        }
        match self.direct() {
            Ok(direct) if !direct.was_refused() => Route::PreadDirect,
            _ => Route::Pread,
        }
    }

    /// Hands each read to the engine of its route.
    pub(super) fn start(&self, started: Vec<Started>, options: &ReadOptions) {
        if self.engine.is_shut_down() {
            for (read, ticket) in started {
                let error = self.source.error(ErrorKind::Abandoned, read.range);
                ticket.finish(Err(Failed::new(error, read.dest)));
            }
            return;
        }
        let together = started.len();
        if let [(only, _)] = started.as_slice() {
            let chosen = self.route_of(only, together);
            return self.dispatch(chosen, started, options);
        }
        let mut groups: Vec<(Chosen, Vec<Started>)> = Vec::new();
        for (read, ticket) in started {
            // Asked once for each read: the answer may be another one a moment later.
            let chosen = self.route_of(&read, together);
            match groups.iter_mut().find(|(other, _)| *other == chosen) {
                Some((_, group)) => group.push((read, ticket)),
                None => groups.push((chosen, vec![(read, ticket)])),
            }
        }
        for (chosen, group) in groups {
            self.dispatch(chosen, group, options);
        }
    }

    fn dispatch(&self, chosen: Chosen, started: Vec<Started>, options: &ReadOptions) {
        let Chosen { route, look } = chosen;
        if let (Route::Mmap, Some(Ok(mapped))) = (route, self.mapped.get()) {
            return mapped.start(started, options);
        }
        if let Some(uring) = self.ring_of(route) {
            return uring.start(started, options, look);
        }
        self.plain(route).start(started, options, look);
    }

    fn ring_of(&self, route: Route) -> Option<&UringReader> {
        let made = match route {
            Route::Uring => self.uring.get(),
            Route::UringDirect => self.uring_direct.get(),
            _ => None,
        };
        made.and_then(|made| made.as_ref().ok())
    }

    fn plain(&self, route: Route) -> &PreadReader {
        match (route, self.direct.get()) {
            (Route::PreadDirect, Some(Ok(direct))) => direct,
            _ => &self.buffered,
        }
    }

    fn route_of(&self, read: &Read, together: usize) -> Chosen {
        let asked = |ours| Asked {
            now: false,
            ours,
            together,
        };
        match read.dest {
            // Bringing bytes near means the page cache, whatever reads them later.
            Dest::Prefetch if self.rules.only.is_none() && !self.rules.demands_direct() => {
                Chosen::by(Route::Pread, Look::Unknown)
            }
            Dest::Into(_) => self.choose(&read.range, asked(false)),
            _ => self.choose(&read.range, asked(true)),
        }
    }

    pub(super) fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        if self.rules.only == Some(Route::Mmap)
            && let Some(Ok(mapped)) = self.mapped.get()
        {
            return mapped.read_now(reads);
        }
        self.buffered.begin_now(reads)?;
        let asked = Asked {
            now: true,
            ours: false,
            together: reads.len(),
        };
        if let [one] = reads {
            let chosen = self.choose(&one.range(), asked);
            return self.now(chosen.route, reads);
        }
        let mut groups: Vec<(Route, Vec<ReadInto<'_>>)> = Vec::new();
        for read in reads.iter_mut().filter(|read| !read.buf.is_empty()) {
            let route = self.choose(&read.range(), asked).route;
            let read = ReadInto::new(read.offset, &mut *read.buf);
            match groups.iter_mut().find(|(other, _)| *other == route) {
                Some((_, group)) => group.push(read),
                None => groups.push((route, vec![read])),
            }
        }
        for (route, mut group) in groups {
            self.now(route, &mut group)?;
        }
        Ok(())
    }

    fn now(&self, route: Route, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let Some(uring) = self.ring_of(route) else {
            return self.plain(route).now(reads);
        };
        match uring.try_now(reads) {
            Ok(done) => done,
            Err(why) if self.rules.only.is_some() => {
                let range = reads.first().map_or(0..0, ReadInto::range);
                let engine = route.name();
                let kind = ErrorKind::Unavailable { engine, why };
                Err(uring.source().error(kind, range))
            }
            // This thread gets no ring; the plain call does the same.
            Err(_) => {
                let plain = match (route, self.direct()) {
                    (Route::UringDirect, Ok(_)) => Route::PreadDirect,
                    _ => Route::Pread,
                };
                self.plain(plain).now(reads)
            }
        }
    }

    /// The file, unless reads are to go another way than the kernel would.
    pub(super) fn local_file(&self) -> Option<LocalFile<'_>> {
        let cached = matches!(self.rules.policy, CachePolicy::Auto | CachePolicy::Keep);
        let free = matches!(self.rules.only, None | Some(Route::Pread));
        (cached && free).then(|| LocalFile::new(self.file.fd(), 0, self.file.version()))
    }
}

impl Drop for FileRoutes {
    fn drop(&mut self) {
        // After a fork its locks may be held for ever here.
        if let Some(device) = self.device.get()
            && self.source.check(&(0..0)).is_ok()
        {
            self.history.leave(device);
        }
    }
}
