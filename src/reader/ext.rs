//! What every reader can do, made of the three methods it has.

use std::ops::Range;
use std::sync::Arc;

use super::Reader;
use super::batch::{Batch, ReadInto};
use super::chunks::{ChunkOptions, Chunks};
use super::cursor::Cursor;
use super::pending::{Pending, PendingRead};
use super::slice::Slice;
use crate::error::{ErrorKind, Result};

/// Comfort on top of [`Reader`], for every reader and for `dyn Reader`.
///
/// ```
/// use feedwater::{MemoryReader, ReaderExt};
///
/// let reader = MemoryReader::new("head, body, tail");
/// assert_eq!(reader.read(6..10).wait()?, "body");
/// assert_eq!(reader.tail(4).wait()?, "tail");
/// let mut four = [0; 4];
/// reader.read_at(0, &mut four)?;
/// assert_eq!(&four, b"head");
/// # Ok::<(), feedwater::Error>(())
/// ```
// A source of no bytes is nothing special, so there is no `is_empty`.
#[allow(clippy::len_without_is_empty)]
pub trait ReaderExt: Reader {
    /// Length of the source in bytes.
    fn len(&self) -> u64 {
        self.source().len()
    }

    /// Starts reading one range into host memory; await it or [`wait`](PendingRead::wait).
    fn read(&self, range: Range<u64>) -> PendingRead {
        PendingRead::new(self.submit(Batch::new().any(range)))
    }

    /// Starts reading many ranges, planned together, into host memory; blocks come in the order given.
    fn read_many(&self, ranges: &[Range<u64>]) -> Pending {
        self.submit(Batch::of(ranges.iter().cloned()))
    }

    /// Starts reading everything.
    fn read_all(&self) -> PendingRead {
        self.read(0..self.source().len())
    }

    /// Starts reading the last `n` bytes, or everything if there are fewer: footers and trailers.
    fn tail(&self, n: u64) -> PendingRead {
        let len = self.source().len();
        self.read(len.saturating_sub(n)..len)
    }

    /// Fills `buf` from `offset` on, on this thread; nothing is allocated.
    ///
    /// # Errors
    /// As the [contract](Reader) says; `buf` is then unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_now(&mut [ReadInto::new(offset, buf)])
    }

    /// Asks for `ranges` to be brought near (the page cache, a cache wrapper), as they will be read soon.
    ///
    /// A hint: it has no outcome. [`Batch::prefetch`] is the same with one.
    fn prefetch(&self, ranges: &[Range<u64>]) {
        let batch = ranges
            .iter()
            .fold(Batch::new(), |batch, range| batch.prefetch(range.clone()));
        drop(self.submit(batch));
    }

    /// Reads `range` in order, in chunks, keeping a window of them in flight: an iterator, or a stream by
    /// [`Chunks::stream`].
    fn chunks(self: &Arc<Self>, range: Range<u64>, options: ChunkOptions) -> Chunks<Self> {
        Chunks::new(self.clone(), range, options)
    }

    /// A position in the source: `Read + Seek + BufRead`, for code that wants a file.
    fn cursor(self: &Arc<Self>) -> Cursor<Self> {
        Cursor::new(self.clone())
    }

    /// A range of the source as a reader of its own.
    ///
    /// # Errors
    /// [`OutOfBounds`](crate::ErrorKind::OutOfBounds) if the range is not inside.
    fn slice(self: &Arc<Self>, range: Range<u64>) -> Result<Slice<Self>> {
        Slice::new(self.clone(), range)
    }
}

impl<R: Reader + ?Sized> ReaderExt for R {}

/// [`Reader::read_now`] for engines that do everything through [`Reader::submit`]: submits, waits, and copies.
///
/// ```
/// use feedwater::{Batch, Pending, ReadInto, Reader, Result, Source, read_now_by_submit};
///
/// #[derive(Debug)]
/// struct Remote {
///     source: Source,
/// }
///
/// impl Reader for Remote {
///     fn source(&self) -> &Source {
///         &self.source
///     }
///     fn submit(&self, batch: Batch) -> Pending {
///         let (started, options, pending) = batch.start(&self.source);
///         // … hand `started` to the engine's threads …
///         # let _ = (started, options);
///         pending
///     }
///     fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
///         read_now_by_submit(self, reads)
///     }
/// }
/// ```
///
/// # Errors
/// The first error met.
pub fn read_now_by_submit<R: Reader + ?Sized>(
    reader: &R,
    reads: &mut [ReadInto<'_>],
) -> Result<()> {
    let pending = reader.submit(Batch::of(reads.iter().map(ReadInto::range)));
    let mut missing = reads.len();
    for (index, outcome) in pending {
        missing = missing.saturating_sub(1);
        let block = outcome?.into_host()?;
        if let Some(read) = reads.get_mut(index) {
            if block.len() != read.buf.len() {
                let (wanted, got) = (read.buf.len() as u64, block.len() as u64);
                let kind = ErrorKind::WrongLength { wanted, got };
                return Err(reader.source().error(kind, read.range()));
            }
            read.buf.copy_from_slice(&block);
        }
    }
    if missing > 0 {
        // An engine that breaks the contract must not pass for one that read everything.
        let range = reads.first().map_or(0..0, ReadInto::range);
        return Err(reader.source().error(ErrorKind::Abandoned, range));
    }
    Ok(())
}
