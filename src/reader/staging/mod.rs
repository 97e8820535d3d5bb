//! Device destinations for engines that only know host memory: read into staging blocks, copy, release.

mod driver;
mod job;
mod transfer;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use driver::{Driver, Event, Shared, StagedBytes};
use job::Job;
use transfer::{Line, STAGING};
pub use transfer::{Transfer, TransferDone};

use super::Reader;
use super::batch::{Batch, Dest, Read, ReadInto, Started};
use super::options::ReadOptions;
use super::pending::{Failed, Pending, Ticket};
use super::source::{LocalFile, Source};
use crate::buffer::Place;
use crate::error::{Error, ErrorKind, Result};

/// How much memory [`Staged`] uses on the way: at most `depth` blocks of `block` bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StagingOptions {
    /// Most bytes of a staging block. Ranges are cut at multiples of it, small ones share a block. Rounded up to a
    /// multiple of the source's [`Limits::align`](super::Limits::align). Default 4 MiB.
    pub block: usize,
    /// Most staging blocks at once, over all reads of the wrapper. From 2 on, reading and copying overlap.
    /// Default 4.
    pub depth: usize,
}

impl Default for StagingOptions {
    fn default() -> Self {
        StagingOptions {
            block: 4 << 20,
            depth: 4,
        }
    }
}

impl StagingOptions {
    /// Sets [`block`](Self::block) in bytes; 0 is taken as 1.
    #[must_use]
    pub fn block(mut self, bytes: usize) -> Self {
        self.block = bytes;
        self
    }

    /// Sets [`depth`](Self::depth); 0 is taken as 1.
    #[must_use]
    pub fn depth(mut self, blocks: usize) -> Self {
        self.depth = blocks;
        self
    }
}

/// A reader that also takes destinations on a device, on top of one that does not.
///
/// Device ranges (and those for [pinned](Place::Pinned) memory of our choice) are read into host memory in pieces, and each piece is
/// copied by a [`Transfer`] once it is there; a read is delivered, as [`Block::Device`](crate::Block::Device), when all its bytes are.
/// Everything else goes straight to the reader below: a batch without a device destination is handed on as it is.
///
/// - **Memory.** A staging block counts until its memory is really released, so at most
///   [`depth`](StagingOptions::depth) exist even if an engine or a device holds on to one after a deadline. While
///   all are held, device reads wait. Device memory for [`Dest::Any`] is taken when a read's first piece starts.
/// - **Order.** Foreground reads get staging blocks before prefetch ones, then the older batch; pieces end in any
///   order. [`ReadOptions::depth`] bounds the pieces in flight of a batch.
/// - **Errors** of a piece are reported for the range of the read, once no copy into the caller's block is under
///   way, so that the block can come back: with as much filled as it had at first. Those of the transfer carry
///   the engine "staging". Places that the transfer does not reach are left to the reader below, so that wrappers for
///   several devices stack; a plain engine refuses them.
/// - **Unwanted reads**, after a deadline or with their [`Pending`] dropped, are given up before the next piece.
/// - **Threads.** One, `feedwater-staging`, started by the first device read. It sleeps while nothing happens, and
///   ends when the wrapper is dropped and its last read has ended; reads in flight then still complete.
/// - **Counters** are those of the reader below, where each piece counts as a read; staged bytes are
///   [`bounced`](super::CounterSnapshot::bounced).
///
/// ```
/// # use std::any::Any;
/// # use std::sync::Mutex;
/// # use bytes::Bytes;
/// # use feedwater::{BlockMut, HostMemory, Memory, Result, Transfer, TransferDone};
/// # struct Vram(Mutex<Vec<u8>>, usize);
/// # unsafe impl Memory for Vram {
/// #     fn place(&self) -> Place { Place::Device(0) }
/// #     fn ptr(&self) -> *mut u8 { std::ptr::without_provenance_mut(4096) }
/// #     fn len(&self) -> usize { self.1 }
/// #     fn as_any(&self) -> &dyn Any { self }
/// # }
/// # #[derive(Debug)]
/// # struct Gpu;
/// # impl Transfer for Gpu {
/// #     fn reaches(&self, place: Place) -> bool { place == Place::Device(0) }
/// #     fn allocate(&self, _: Place, len: usize) -> Result<BlockMut> {
/// #         Ok(BlockMut::new(Vram(Mutex::new(vec![0; len]), len)))
/// #     }
/// #     fn staging(&self, len: usize) -> Result<BlockMut> {
/// #         Ok(BlockMut::new(HostMemory::new(len)?))
/// #     }
/// #     fn copy(&self, from: Bytes, mut to: BlockMut, done: TransferDone) {
/// #         let at = to.offset_in_memory() + to.filled_len();
/// #         let vram = to.memory().as_any().downcast_ref::<Vram>().unwrap();
/// #         vram.0.lock().unwrap()[at..at + from.len()].copy_from_slice(&from);
/// #         unsafe { to.advance(from.len()) };
/// #         done.finish(Ok(to));
/// #     }
/// # }
/// use std::sync::Arc;
/// use feedwater::{Batch, Block, MemoryReader, Place, Reader, Staged, StagingOptions};
///
/// let plain = Arc::new(MemoryReader::new(vec![7; 1 << 20]));
/// let gpu = Arc::new(Gpu); // a `Transfer`
/// let reader = Staged::new(plain, gpu, StagingOptions::default().block(64 << 10));
/// let batch = Batch::new().any(0..8).any_at(8..1 << 20, Place::Device(0));
/// let blocks = reader.submit(batch).wait()?;
/// assert!(matches!(&blocks[0], Block::Host(header) if header.len() == 8));
/// assert!(matches!(&blocks[1], Block::Device(bytes) if bytes.len() == (1 << 20) - 8));
/// # Ok::<(), feedwater::Error>(())
/// ```
pub struct Staged<R: Reader + ?Sized> {
    inner: Arc<R>,
    shared: Arc<Shared>,
    /// The inner source with counters of its own: its reads are counted by the inner reader.
    tickets: Source,
    /// The way to the thread, once there is one.
    line: Mutex<Option<Line>>,
}

impl<R: Reader + ?Sized> Staged<R> {
    /// Adds what `transfer` reaches to what `inner` can do. Starts nothing yet.
    pub fn new(inner: Arc<R>, transfer: Arc<dyn Transfer>, options: StagingOptions) -> Self {
        let source = inner.source();
        let align = source.limits().align.max(1);
        let block = options.block.max(1);
        let tickets = Source::new(
            source.name().clone(),
            source.engine(),
            source.version().clone(),
            source.limits(),
        );
        Staged {
            shared: Arc::new(Shared {
                inner: Arc::new(inner.clone()),
                transfer,
                block: block.checked_next_multiple_of(align).unwrap_or(block) as u64,
                align: align as u64,
                depth: options.depth.max(1),
                taken: Arc::new(AtomicUsize::new(0)),
                bytes: StagedBytes::default(),
            }),
            tickets,
            line: Mutex::new(None),
            inner,
        }
    }

    /// The reader below.
    pub fn inner(&self) -> &Arc<R> {
        &self.inner
    }

    /// The way to the device.
    pub fn transfer(&self) -> &Arc<dyn Transfer> {
        &self.shared.transfer
    }

    /// What went through staging blocks so far.
    pub(crate) fn staged_bytes(&self) -> &StagedBytes {
        &self.shared.bytes
    }

    /// Whether the transfer can serve `place`; an error if it does not say.
    fn reaches(&self, read: &Read, place: Place) -> Result<bool> {
        catch_unwind(AssertUnwindSafe(|| self.shared.transfer.reaches(place))).map_err(|_| {
            let error = Error::new(ErrorKind::Abandoned).by(STAGING);
            self.tickets.place(error, read.range.clone())
        })
    }

    /// Hands `event` to the thread, which is started if there is none.
    fn send(&self, event: Event) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match &*line {
            None => event,
            Some(running) => match running.offer(event) {
                Ok(()) => return,
                // It panicked, which only a panic in a destructor of memory can bring about. A new one starts.
                Err(event) => event,
            },
        };
        match Driver::start(self.shared.clone()) {
            Ok(started) => {
                started.send(event);
                *line = Some(started);
            }
            Err(error) => {
                drop(line);
                event.fail(&Error::io("spawning a thread", error).by(STAGING));
            }
        }
    }

    /// Hands reads that are not for a device to the reader below; their tickets follow its outcomes.
    fn forward(&self, started: Vec<Started>, options: &ReadOptions) {
        let (reads, tickets): (Vec<Read>, Vec<Ticket>) = started.into_iter().unzip();
        let mut batch = Batch::new().options(options.clone());
        batch.reads = reads;
        let mut tickets: Vec<_> = tickets.into_iter().map(Some).collect();
        let mut pending = self.inner.submit(batch);
        while let Some((index, outcome)) = pending.try_next() {
            if let Some(ticket) = tickets.get_mut(index).and_then(Option::take) {
                ticket.finish(outcome);
            }
        }
        if tickets.iter().any(Option::is_some) {
            self.send(Event::Forward { pending, tickets });
        }
    }
}

/// The place of a destination that needs staging.
fn device(dest: &Dest) -> Option<Place> {
    match dest {
        Dest::Any(Place::Host) | Dest::Prefetch => None,
        Dest::Any(place) => Some(*place),
        // Whoever gave a pinned block has what they want once it is filled.
        Dest::Into(block) if block.place().is_host_accessible() => None,
        Dest::Into(block) => Some(block.place()),
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Reader + ?Sized> Reader for Staged<R> {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        if batch.reads.iter().all(|read| device(&read.dest).is_none()) {
            return self.inner.submit(batch);
        }
        let source = &self.tickets;
        let (started, options, pending) = batch.start(source);
        let (mut others, mut jobs) = (Vec::new(), Vec::new());
        for (read, ticket) in started {
            let Some(place) = device(&read.dest) else {
                others.push((read, ticket));
                continue;
            };
            match self.reaches(&read, place) {
                Ok(true) => jobs.push(Job::new(read, ticket, source.name())),
                // Perhaps the reader below does; if not, it says so.
                Ok(false) => others.push((read, ticket)),
                Err(error) => ticket.finish(Err(Failed::new(error, read.dest))),
            }
        }
        if !others.is_empty() {
            self.forward(others, &options);
        }
        if !jobs.is_empty() {
            self.send(Event::Submit { jobs, options });
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.inner.read_now(reads)
    }

    fn local_file(&self) -> Option<LocalFile<'_>> {
        self.inner.local_file()
    }
}

impl<R: Reader + ?Sized> Drop for Staged<R> {
    fn drop(&mut self) {
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = line.take() {
            line.send(Event::Close);
        }
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Staged<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("inner", &self.inner)
            .field("transfer", &self.shared.transfer)
            .finish_non_exhaustive()
    }
}
