//! The reader that `open` gives: it knows the routes, and chooses one for each range.

use std::borrow::Cow;
use std::sync::Arc;

use super::engine::Engine;
use super::gds::{self, Front, Fronted};
use super::report::{Candidate, Report, Verdict};
use super::routes::{FileRoutes, Rules};
use crate::backend::file::OpenFile;
use crate::backend::memory::MemoryReader;
use crate::backend::requests::buffered_limits;
use crate::error::{Refusal, Result, counted};
use crate::reader::{
    Batch, LocalFile, Pending, ReadInto, Reader, Route, Source, Staged, StagingOptions, Transfer,
};
use crate::version::Version;

/// An open source, read by the route that suits each range. Made by [`open`](super::open) and
/// [`OpenOptions`](super::OpenOptions).
///
/// The rules, for each range, in this order:
///
/// 1. A route that was [asked for](super::OpenOptions::only); `O_DIRECT` by rings if [`CachePolicy::Bypass`](crate::CachePolicy::Bypass) was, or by
///    threads where there are no rings. [Prefetching](Batch::prefetch) is `pread`'s hint to the kernel in all other cases.
/// 2. Under the promise of [`assume_immutable`](super::OpenOptions::assume_immutable), views of a mapping for reads that
///    leave the memory to us, unless they are to be [dropped behind](crate::CachePolicy::DropBehind).
/// 3. `pread` through the page cache for everything that is in memory anyway, on a network or FUSE file system, to be
///    dropped behind, or a single range below 1 MiB that is read on the spot ([`Reader::read_now`]).
/// 4. `pread` for what is in the page cache (more than a quarter of the range is): asked of the system by `cachestat`;
///    where it does not tell, from 1 MiB on by `mincore` or a touch here and there, and smaller ranges are taken for cached.
/// 5. What is not in the page cache is read past it, by rings, many requests in flight. So is what is there only because
///    the kernel reads ahead of a stream. Exceptions, which go through the page cache: ranges below 128 KiB in a row (the
///    kernel reads ahead of them); larger ones, on a device where streams are faster that way, which the first long stream
///    of requests of at most 8 MiB finds out by taking turns between both; a file of which as many bytes as it has were read past the page cache, if
///    that is a quarter of the memory at most; and everything under [`CachePolicy::Keep`](crate::CachePolicy::Keep). For the last two, ranges
///    below 1 MiB that are asked for together go by rings too ([`Route::Uring`]).
///
/// Where io_uring is refused, threads do the same by `pread`. [`report`](Self::report) says what was chosen, and why.
///
/// If the kernel fails a thread's ring in the middle of [`Reader::read_now`] and what it was given cannot be waited for, the
/// process is aborted: the kernel might go on writing to memory that is the caller's again.
///
/// Destinations on devices that were [given](super::OpenOptions::device) are served through [`Staged`]: each piece is read by these rules into
/// the device's staging memory, and copied from there.
#[derive(Debug)]
pub struct Opened {
    plain: Arc<Plain>,
    /// The same with the devices that were given, if there are any.
    staged: Option<Arc<dyn Reader>>,
    /// Its parts, one for each device: the way through the host, and what is in front of that.
    devices: Vec<Arc<Staged<dyn Reader>>>,
    fronted: Fronted,
}

/// What reads into the host's memory.
#[derive(Debug)]
struct Plain {
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

impl Opened {
    pub(super) fn memory(reader: MemoryReader, why: &'static str) -> Self {
        Opened::over(Plain {
            source: reader.source().clone(),
            routes: Routes::Memory { reader, why },
        })
    }

    pub(super) fn file(file: OpenFile, engine: Engine, rules: Rules) -> Result<Self> {
        let version = Version::File(file.version());
        let name = rules.only.map_or("auto", Route::name);
        let limits = buffered_limits(engine.workers().most());
        let source = Source::new(file.name().clone(), name, version, limits);
        let routes = FileRoutes::new(file, source.clone(), engine, rules);
        routes.check_demands()?;
        let source = source.through(name, routes.limits());
        tracing::debug!(
            name = %source.name(),
            len = source.len(),
            file_system = routes.file.file_system().name(),
            "opened"
        );
        Ok(Opened::over(Plain {
            source,
            routes: Routes::File(Box::new(routes)),
        }))
    }

    fn over(plain: Plain) -> Self {
        Opened {
            plain: Arc::new(plain),
            staged: None,
            devices: Vec::new(),
            fronted: Fronted::default(),
        }
    }

    /// Adds destinations that `devices` reach: through the host, or by what is in `front` of that. Starts nothing.
    pub(super) fn with_devices(
        mut self,
        devices: &[Arc<dyn Transfer>],
        options: &StagingOptions,
        front: &Front,
    ) -> Result<Self> {
        for device in devices {
            let below = self.staged.unwrap_or_else(|| self.plain.clone());
            let staged = Staged::new(below, device.clone(), options.clone());
            let staged: Arc<Staged<dyn Reader>> = Arc::new(staged);
            self.devices.push(staged.clone());
            self.staged = Some(front.put(staged, device, &mut self.fronted)?);
        }
        Ok(self)
    }

    /// The routes, what became of each, and the facts behind it. May open and map the file to find out; reads
    /// nothing but one block.
    pub fn report(&self) -> Report {
        let Plain { source, routes } = &*self.plain;
        let counters = source.counters().snapshot();
        let (resident, mut facts, mut verdicts) = match routes {
            Routes::Memory { why, .. } => {
                let no = || {
                    Verdict::Refused(Refusal::NotForThisFile {
                        what: Cow::Borrowed(*why),
                    })
                };
                let verdicts = Route::ALL
                    .iter()
                    .filter(|route| !matches!(route, Route::Gds | Route::Other))
                    .map(|route| match route {
                        Route::Memory => (*route, Verdict::Used),
                        route => (*route, no()),
                    })
                    .collect();
                (None, Vec::new(), verdicts)
            }
            Routes::File(routes) => {
                let resident = routes.file.resident_bytes(0, routes.file.len());
                (resident, routes.facts(resident), routes.verdicts())
            }
        };
        facts.extend(self.to_devices());
        verdicts.extend(gds::verdict(&self.fronted));
        let candidates = verdicts
            .into_iter()
            .map(|(route, verdict)| Candidate {
                route,
                verdict,
                bytes: counters.route(route),
            })
            .collect();
        Report {
            name: source.name().clone(),
            len: source.len(),
            resident,
            facts,
            candidates,
            counters,
        }
    }
}

impl Opened {
    /// Which devices there are, and which way bytes took to each.
    fn to_devices(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let devices = self.devices.iter().enumerate();
        devices.map(|(index, staged)| {
            let (pinned, other) = staged.staged_bytes().pinned_and_other();
            let mut ways: Vec<_> = gds::fact(&self.fronted, index).into_iter().collect();
            let (pinned, rest) = (counted(pinned, "byte"), counted(other, "byte"));
            ways.push(format!("{pinned} through pinned memory"));
            if other > 0 {
                ways.push(format!("{rest} through memory that is not pinned"));
            }
            let name = staged.transfer().name();
            ("to the device", format!("{name}: {}", ways.join("; ")))
        })
    }
}

impl Reader for Opened {
    fn source(&self) -> &Source {
        &self.plain.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let _span = tracing::trace_span!("submit", reads = batch.reads.len()).entered();
        match &self.staged {
            Some(staged) => staged.submit(batch),
            None => self.plain.submit(batch),
        }
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.plain.read_now(reads)
    }

    fn local_file(&self) -> Option<LocalFile<'_>> {
        self.plain.local_file()
    }
}

impl Reader for Plain {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
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
