//! Reading by `io_uring`: many requests in flight by one thread, through the page cache or past it.
//!
//! Reads that are not waited for go to the [`Driver`] of their device, a thread that owns a ring; [`Reader::read_now`]
//! uses a ring of the calling thread, in which nothing is left when it returns. No other thread owns anything that is in
//! flight. Rings are not inherited by a forked child.
//!
//! Flags and operations: io_uring_setup(2), io_uring_enter(2).

mod driver;
mod files;
#[cfg(test)]
mod fixture;
mod flight;
mod here;
mod operation;
mod probe;
mod ring;
mod sending;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use self::driver::Driver;
use self::files::Files;
use self::flight::Tally;
pub(crate) use self::probe::facts;
use self::sending::Load;
use super::device::Device;
use super::file::OpenFile;
use super::requests::{
    Access, Batched, Context, DirectFile, Job, Look, buffered_limits, direct_limits,
};
use super::whole::Want;
use super::workers::Workers;
use crate::buffer::Pool;
use crate::error::{ErrorKind, Refusal, Result};
use crate::reader::{
    Batch, Pending, ReadInto, ReadOptions, Reader, Route, Source, Started, VersionCheck,
};
use crate::sys::{FileSystem, Generation};

/// Bytes of one request past the page cache.
const DIRECT_PIECE: u64 = 1 << 20;

/// Bytes of one request through the page cache.
const BUFFERED_PIECE: u64 = 256 << 10;

/// Requests that a driver is handed at once: the first are under way while the rest of a large batch is made.
const PORTION: usize = 256;

/// The drivers of one engine, one for each device that is read.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Most of the kernel's own threads that one ring may use.
    kernel_threads: usize,
    drivers: Mutex<Drivers>,
    generation: Generation,
}

#[derive(Debug, Default)]
struct Drivers {
    by_device: HashMap<usize, Arc<Driver>>,
    closed: bool,
}

impl Rings {
    pub(crate) fn new(kernel_threads: usize) -> Self {
        Rings {
            kernel_threads,
            drivers: Mutex::default(),
            generation: Generation::current(),
        }
    }

    /// The driver of `device`. Starts nothing yet.
    pub(crate) fn driver(&self, device: &Arc<Device>) -> Arc<Driver> {
        let new = || Arc::new(Driver::new(device.clone(), self.kernel_threads));
        if !self.generation.is_current() {
            return new(); // of the child; the lock may be held for ever here
        }
        let mut drivers = self.lock();
        let closed = drivers.closed;
        let key = Arc::as_ptr(device).addr();
        let driver = drivers.by_device.entry(key).or_insert_with(new);
        if closed {
            driver.close();
        }
        driver.clone()
    }

    /// Reads whole files of one device. Of each, `want` is told what became of it.
    ///
    /// # Errors
    /// Why there are no rings; nothing has been told then.
    pub(crate) fn read_files(
        &self,
        paths: Vec<Arc<Path>>,
        want: Arc<dyn Want>,
        check: VersionCheck,
        device: &Arc<Device>,
        options: &ReadOptions,
    ) -> Result<(), Refusal> {
        facts()?;
        self.read(Files::new(paths, check, want), device, options)
    }

    fn read(
        &self,
        files: Arc<Files>,
        device: &Arc<Device>,
        options: &ReadOptions,
    ) -> Result<(), Refusal> {
        let driver = self.driver(device);
        driver.ready()?;
        let tally = Tally::new(device.clone(), options.depth);
        driver.submit(Load::Files(files), tally, options.priority);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Drivers> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more work, and waits for what was handed in until `deadline`; then gives it up. The number of requests
    /// that the kernel still has, whose memory is kept until it is done with them.
    pub(crate) fn shut_down(&self, deadline: Instant) -> usize {
        if !self.generation.is_current() {
            return 0; // nothing of it is here
        }
        let drivers: Vec<_> = {
            let mut drivers = self.lock();
            drivers.closed = true;
            drivers.by_device.values().cloned().collect()
        };
        for driver in &drivers {
            driver.close();
        }
        drivers
            .iter()
            .map(|driver| match driver.wait_until(deadline) {
                true => 0,
                false => driver.abandon(),
            })
            .sum()
    }
}

/// Reads one file by rings.
#[derive(Debug)]
pub(crate) struct UringReader {
    context: Context,
    driver: Arc<Driver>,
    kernel_threads: usize,
}

impl UringReader {
    /// Reads through the page cache, or past it if `direct`; with whether what is refused there goes through it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        file: Arc<OpenFile>,
        direct: Option<(Arc<DirectFile>, bool)>,
        source: &Source,
        rings: &Rings,
        device: &Arc<Device>,
        workers: Arc<Workers>,
        pool: Pool,
        check: VersionCheck,
    ) -> Result<Self, Refusal> {
        facts()?;
        check_file_system(&file)?;
        file.check_blocking()?;
        let depth = device.bounds().depth;
        let (route, limits, access) = match direct {
            Some((direct, fall_back)) => {
                let route = Route::UringDirect;
                let limits = direct_limits(depth, &direct);
                (
                    route,
                    limits,
                    Access::direct(file, direct, route, fall_back),
                )
            }
            None => {
                let route = Route::Uring;
                let access = Access::buffered(file, route, false);
                (route, buffered_limits(depth), access)
            }
        };
        let source = source.through(route.name(), limits);
        Ok(UringReader {
            kernel_threads: workers.most(),
            context: Context::new(source, access, pool, check, workers).apart(),
            driver: rings.driver(device),
        })
    }

    /// Whether a direct read was refused.
    pub(crate) fn was_refused(&self) -> bool {
        self.context.access().was_refused()
    }

    /// Starts the driver if it does not run. Waits for no device.
    pub(crate) fn ready(&self) -> Result<(), Refusal> {
        self.driver.ready()
    }

    fn piece(&self) -> u64 {
        if self.context.access().is_direct() {
            DIRECT_PIECE
        } else {
            BUFFERED_PIECE
        }
    }

    /// Does reads that were started elsewhere; each ticket is finished sooner or later.
    pub(crate) fn start(&self, started: Vec<Started>, options: &ReadOptions, look: Look) {
        let tally = Tally::new(self.driver.device().clone(), options.depth);
        let piece = self.piece();
        self.context
            .requests(started, options, look, PORTION, |jobs| {
                let work = Batched::new(self.context.clone(), jobs, piece);
                self.driver
                    .submit(Load::Pieces(work), tally.clone(), options.priority);
            });
    }

    /// Reads into borrowed memory what was checked and counted, by the ring of this thread.
    ///
    /// # Errors
    /// Why this thread has no ring; nothing has been read then.
    #[allow(unsafe_code)]
    pub(crate) fn try_now(&self, reads: &mut [ReadInto<'_>]) -> Result<Result<()>, Refusal> {
        // The version is looked at once, for all of them.
        let context = self.context.unchecked();
        let mut made: Vec<Arc<Batched>> = Vec::new();
        let mut rest = reads.iter_mut().filter(|read| !read.buf.is_empty());
        let mut more = || {
            let jobs: Vec<_> = rest
                .by_ref()
                .take(PORTION)
                .map(|read| {
                    let (range, target) = (read.range(), read.buf.as_mut_ptr());
                    // SAFETY: the buffers are borrowed for longer than this call. `here::read` does not return, nor
                    // unwind, while anything is in flight (`Landing`); what was not sent is never written to.
                    unsafe { Job::borrowed(range, target) }
                })
                .collect();
            if jobs.is_empty() {
                return None;
            }
            let work = Batched::new(context.clone(), jobs, self.piece());
            made.push(work.clone());
            Some(work)
        };
        here::read(&mut more, self.driver.device(), self.kernel_threads)?;
        if let Some((error, range)) = made.iter().find_map(|work| work.error()) {
            return Ok(Err(self.context.source().place(error, range)));
        }
        Ok(self.context.end_now(reads))
    }
}

/// Refuses FUSE: after a short answer of its server to a read past the page cache, the kernel (seen with 6.18) reads on
/// by itself, from the offset where it began, so that wrong bytes would pass for right ones. Its reads are not
/// asynchronous anyway: the kernel takes them for always ready, and waits on the spot.
fn check_file_system(file: &OpenFile) -> Result<(), Refusal> {
    match file.file_system() {
        FileSystem::Network("fuse") => Err(Refusal::NotForThisFile {
            what: "the file is on FUSE, where rings read wrongly after short reads".into(),
        }),
        _ => Ok(()),
    }
}

impl Reader for UringReader {
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
        let range = reads.first().map_or(0..0, ReadInto::range);
        self.try_now(reads).unwrap_or_else(|why| {
            let source = self.context.source();
            let engine = source.engine();
            Err(source.error(ErrorKind::Unavailable { engine, why }, range))
        })
    }
}
