//! Reads from the drive into a device's memory by cuFile (GPUDirect Storage), in front of a reader that serves everything else.
//!
//! The library is opened at run time (`libcufile.so.0`, or `libcufile.so`), after CUDA was found to work: nothing has to be
//! installed to build or to run, and where it is missing, or does not work for a file, reads go the other way and [`Gds::report`] says why.

mod driver;
mod ffi;
mod group;
mod handles;
mod job;
mod options;
mod relay;
mod shared;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use driver::{Driver, Why};
use group::Group;
use handles::{FileHandle, RegisteredBuffer, device_buffer};
use job::{Job, no_thread};
pub use options::{GdsMode, GdsOptions, GdsReport, GdsState};
use shared::{Shared, Span, Tally};

use super::workers::Work;
use crate::buffer::{BlockMut, Place};
use crate::cuda::{Device, topology};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::reader::{
    Batch, Dest, Failed, LocalFile, Pending, Read, ReadInto, ReadOptions, Reader, Source, Started,
};

/// Name that errors of cuFile carry as their engine.
const ENGINE: &str = "gds";

/// A reader whose reads for one device go by cuFile where that works; all others go to the reader below.
///
/// The reader below has to be one of a [local file](Reader::local_file), and to serve the device too (as
/// [`Staged`](crate::Staged) does), since there is always something that cuFile does not do.
///
/// - **What goes by cuFile:** ranges that are not empty, into memory of the engine's choice on the device, or into blocks of the device's
///   [`DeviceBuffer`](crate::cuda::DeviceBuffer)s (but not those of a stream-ordered pool, which a drive cannot reach). The page cache is not
///   asked: bytes that are there come from the drive all the same.
/// - **How:** by calls of up to 16 MiB, in up to 8 threads for each device, near its socket; many small ranges as batches. Memory of the engine's choice
///   holds the range and what lies around it up to multiples of 4 KiB, so that no read takes cuFile's detour; small ranges that are
///   submitted together share an allocation. Into a block, the range is read as it is.
/// - **Order.** A read is in no stream: uses that the device was [told of](crate::cuda::Device::used_in) are waited for before it begins, and
///   when it is delivered, the bytes are there for everybody.
/// - **Errors.** What cuFile refuses or fails is read the other way, and after three failures in a row so is the rest of the file. Errors of
///   the system are those of the read. With [`GdsMode::Require`] every failure is an error.
/// - **Settings** of cuFile: if nobody in the process has opened it, it is opened without its compatibility mode (which reads through the host, and is
///   slower than the reader below). If somebody has, nothing is changed, and [`GdsState`] says what that comes to.
/// - **Memory.** What a read writes to stays until it is done, whoever is dropped. The file is deregistered when the reader is dropped and
///   its last read has ended.
///
/// ```no_run
/// use std::sync::Arc;
/// use feedwater::{Batch, OpenOptions, ReaderExt, Reader, cuda::Device, gds::{Gds, GdsOptions}};
///
/// let gpu = Device::open(0)?;
/// let below = Arc::new(OpenOptions::new().device(gpu.clone()).open("weights.bin")?);
/// let reader = Gds::new(below, &gpu, GdsOptions::default())?;
/// let blocks = reader.submit(Batch::new().any_at(0..reader.len(), gpu.place())).wait()?;
/// println!("{} bytes; {}", blocks[0].len(), reader.report());
/// # Ok::<(), feedwater::Error>(())
/// ```
pub struct Gds<R: Reader + ?Sized> {
    inner: Arc<R>,
    device: Arc<Device>,
    /// The inner source with counters of its own: what is read is counted where it is done.
    tickets: Source,
    shared: Result<Arc<Shared>, (Why, Tally)>,
}

impl<R: Reader + ?Sized> Gds<R> {
    /// Puts cuFile in front of `inner`, for `device`. The first one of a process opens the library, which may take seconds; each
    /// one opens the file once more, for direct reads, and registers it.
    ///
    /// # Errors
    /// With [`GdsMode::Require`], [`Unavailable`](ErrorKind::Unavailable) with the reason where cuFile cannot be used;
    /// [`InvalidOption`](ErrorKind::InvalidOption) if `FEEDWATER_GDS` is none of the modes; [`Forked`](ErrorKind::Forked).
    pub fn new(inner: Arc<R>, device: &Arc<Device>, options: GdsOptions) -> Result<Self> {
        let source = inner.source();
        let mode = options.resolve()?;
        source.check(&(0..0))?;
        if !device.context().is_of_this_process() {
            return Err(source.error(ErrorKind::Forked, 0..0));
        }
        let tickets = Source::new(
            source.name().clone(),
            source.engine(),
            source.version().clone(),
            source.limits(),
        );
        let shared = match share(&inner, device, mode, &options) {
            Ok(shared) => Ok(Arc::new(shared)),
            Err(why) if mode == GdsMode::Require => {
                let why = Refusal::NotOnThisSystem {
                    what: why.to_string().into(),
                };
                let kind = ErrorKind::Unavailable {
                    engine: ENGINE,
                    why,
                };
                return Err(Error::new(kind).named(source.name()));
            }
            Err(why) => Err((why, Tally::default())),
        };
        Ok(Gds {
            device: device.clone(),
            tickets,
            shared,
            inner,
        })
    }

    /// The reader below.
    pub fn inner(&self) -> &Arc<R> {
        &self.inner
    }

    /// What was read by cuFile, and what was not and why. Reads sysfs.
    pub fn report(&self) -> GdsReport {
        let tally = self.tally();
        let state = match &self.shared {
            Err((why, _)) => GdsState::Off { why: why.clone() },
            Ok(shared) => match shared.tally.off.get() {
                Some(why) => GdsState::Off { why: why.clone() },
                None => shared.driver.state.clone(),
            },
        };
        let address = self
            .device
            .info()
            .pci
            .as_deref()
            .and_then(|pci| pci.parse().ok());
        let dev = self.inner.local_file().map(|local| local.version.dev);
        let distance = address
            .zip(dev)
            .map(|(address, dev)| topology().distance(address, dev));
        GdsReport {
            state,
            bytes: tally.bytes.load(Ordering::Relaxed),
            reads: tally.reads.load(Ordering::Relaxed),
            elsewhere: tally.elsewhere.load(Ordering::Relaxed),
            why: tally
                .why
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            distance: distance.unwrap_or(crate::cuda::Distance::Unknown),
        }
    }

    /// An unfilled block of `len` bytes of the device's memory that is registered with cuFile as long as it lives: for one that is
    /// read into again and again. Registering costs more than a read, so it does not pay for others. Where cuFile is not used, or has no room to
    /// register it, the block is an ordinary one.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub fn reusable(&self, len: usize) -> Result<BlockMut> {
        let Ok(shared) = &self.shared else {
            return self.device.allocate(len);
        };
        let buffer = self.device.buffer(len)?;
        if len == 0 {
            return Ok(BlockMut::new(buffer));
        }
        match RegisteredBuffer::register(shared.driver, &self.device, buffer) {
            Ok(registered) => Ok(BlockMut::new(registered)),
            Err((buffer, error)) => {
                tracing::debug!(%error, "a buffer is not registered with cuFile");
                Ok(BlockMut::new(buffer))
            }
        }
    }

    fn tally(&self) -> &Tally {
        match &self.shared {
            Ok(shared) => &shared.tally,
            Err((_, tally)) => tally,
        }
    }

    /// What reads by cuFile need, while it is used.
    fn usable(&self) -> Result<&Arc<Shared>, &Why> {
        match &self.shared {
            Ok(shared) => match shared.tally.off.get() {
                None => Ok(shared),
                Some(why) => Err(why),
            },
            Err((why, _)) => Err(why),
        }
    }

    /// Whether a read is for this device.
    fn is_for_device(&self, read: &Read) -> bool {
        match &read.dest {
            _ if read.is_empty() => false,
            Dest::Any(place) => *place == self.device.place(),
            Dest::Into(block) => block.place() == self.device.place(),
            Dest::Prefetch => false,
        }
    }

    /// Whether cuFile can do it.
    fn can(&self, read: &Read) -> bool {
        match &read.dest {
            Dest::Into(block) => device_buffer(block, &self.device).is_some(),
            _ => true,
        }
    }
}

/// Everything that reads of a file by cuFile need, or why it is not used.
fn share<R: Reader + ?Sized>(
    inner: &Arc<R>,
    device: &Arc<Device>,
    mode: GdsMode,
    options: &GdsOptions,
) -> Result<Shared, Why> {
    if mode == GdsMode::Off {
        return Err("switched off".into());
    }
    let local = inner
        .local_file()
        .ok_or_else(|| Why::from("the reader is not one of a local file"))?;
    let driver = match Driver::of_process(device, false, options) {
        Err(_) if mode == GdsMode::Require => Driver::of_process(device, true, options),
        direct => direct,
    }?;
    if driver.state == GdsState::Compatibility && mode != GdsMode::Require {
        return Err("cuFile would read in its compatibility mode, through the host".into());
    }
    Ok(Shared {
        file: FileHandle::register(driver, &local)?,
        start: local.start,
        driver,
        device: device.clone(),
        inner: Arc::new(inner.clone()),
        required: mode == GdsMode::Require,
        pool: driver.pool(device),
        tally: Tally::default(),
    })
}

impl Shared {
    /// Starts reads that cuFile can do: small ones together, others by themselves.
    fn start(self: &Arc<Self>, started: Vec<Started>, options: &ReadOptions) {
        let is_small = |(read, _): &Started| {
            Span::around(self.offset(&read.range), read.len()).whole <= group::SMALL
        };
        let (mut small, mut large): (Vec<_>, Vec<_>) = started.into_iter().partition(is_small);
        if small.len() < group::LEAST || self.driver.batch < group::LEAST {
            large.append(&mut small);
        }
        while !small.is_empty() {
            let rest = small.split_off(small.len().min(self.driver.batch));
            self.run(Group::new(self, small, options), 1, options);
            small = rest;
        }
        for (read, ticket) in large {
            let job = Job::new(self, read, ticket, options);
            let pieces = job.pieces();
            let threads = options
                .depth
                .map_or(pieces, |depth| pieces.min(depth.get()));
            self.run(job, threads, options);
        }
    }

    fn run(&self, work: Arc<dyn Work>, threads: usize, options: &ReadOptions) {
        if let Err(error) = self.pool.workers.run(&work, threads, options.priority) {
            work.abandon(&no_thread(&error));
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Reader + ?Sized> Reader for Gds<R> {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let wanted = batch
            .reads
            .iter()
            .filter(|read| self.is_for_device(read))
            .count();
        if wanted == 0 {
            return self.inner.submit(batch);
        }
        let shared = match self.usable() {
            Ok(shared) => shared,
            Err(why) => {
                (0..wanted).for_each(|_| self.tally().note(why.clone()));
                return self.inner.submit(batch);
            }
        };
        let all = batch.reads.len();
        let (started, options, pending) = batch.start(&self.tickets);
        // Those that no reader could do have ended, and are counted with the others.
        let ended = all - started.len();
        self.source().counters().add_reads(ended as u64);
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for (read, ticket) in started {
            if self.is_for_device(&read) && self.can(&read) {
                ours.push((read, ticket));
                continue;
            }
            if self.is_for_device(&read) {
                const WHAT: &str = "memory that a drive cannot reach";
                if shared.required {
                    let kind = ErrorKind::Unsupported { what: WHAT.into() };
                    let error = self
                        .tickets
                        .place(Error::new(kind).by(ENGINE), read.range.clone());
                    ticket.finish(Err(Failed::new(error, read.dest)));
                    continue;
                }
                shared.tally.note(WHAT.into());
            }
            others.push((read, ticket));
        }
        if !others.is_empty() {
            relay::forward(&self.inner, others, &options);
        }
        shared.start(ours, &options);
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.inner.read_now(reads)
    }

    fn local_file(&self) -> Option<LocalFile<'_>> {
        self.inner.local_file()
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Gds<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gds")
            .field("inner", &self.inner)
            .field("place", &Place::Device(self.device.ordinal()))
            .finish_non_exhaustive()
    }
}
