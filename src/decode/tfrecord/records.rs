//! Records one by one and many at a time, as iterators and as streams.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use super::options::{RecordOptions, Skipped};
use super::walk::{Waiter, Walk};
use crate::error::Result;
use crate::format::tfrecord::frames::Frames;
use crate::reader::Reader;

/// The records of `reader` with default [options](RecordOptions): both checksums are checked, GZIP and ZLIB recognised,
/// and the first corrupt record is an error.
///
/// ```
/// use std::sync::Arc;
/// use feedwater::{MemoryReader, tfrecord};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data.tfrecord");
/// let mut writer = tfrecord::Writer::create(&path)?;
/// writer.write(b"a record")?;
/// writer.write(b"")?;
/// writer.commit()?;
///
/// for record in tfrecord::records(feedwater::open(&path)?) {
///     let record = record?;
///     println!("{} at {}: {} bytes", record.number, record.offset, record.data.len());
/// }
/// # assert_eq!(tfrecord::records(feedwater::open(&path)?).count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn records<R: Reader + ?Sized>(reader: Arc<R>) -> Records<R> {
    RecordOptions::new().records(reader)
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its data, which shares the memory of the chunk that it came in: keeping one record keeps the chunk (512 KiB by
    /// default).
    pub data: Bytes,
    /// Its number in its file, from 0.
    pub number: u64,
    /// Offset in its file at which its frame begins; in a compressed file, of what is compressed.
    pub offset: u64,
    /// Which file of a [set](super::ShardSet), from 0; 0 for a reader by itself.
    pub shard: usize,
}

/// The records of a file or a set, in order: an iterator that blocks its thread; [`stream`](Self::stream) for tasks.
///
/// Every byte is read once, in chunks, a window of them ahead ([`RecordOptions::chunks`]). Data is not copied, except for
/// records that lie across two chunks. After an error there are no more records.
///
/// # Errors
/// [`CorruptRecord`](crate::ErrorKind::CorruptRecord) with the name of the file, the offset at which the record begins, its number, and
/// the check that failed (record 0 and the checksum of its length, for a file of another format: [`Format::of`](crate::Format::of)
/// tells); [`Malformed`](crate::ErrorKind::Malformed) for a damaged GZIP or ZLIB stream and for a Git LFS pointer;
/// [`OutOfMemory`](crate::ErrorKind::OutOfMemory); those of the reader, and of opening for a set.
#[must_use = "iterators do nothing unless used"]
pub struct Records<R: Reader + ?Sized> {
    walk: Walk<R>,
    frames: Frames,
    at: usize,
}

impl<R: Reader + ?Sized> Records<R> {
    pub(super) fn new(walk: Walk<R>) -> Self {
        Records {
            walk,
            frames: Frames::default(),
            at: 0,
        }
    }

    /// The same as a `Stream`.
    pub fn stream(self) -> RecordStream<R> {
        RecordStream(self)
    }

    /// The corrupt records that were left out so far. Records are checked some ahead of those that were delivered.
    pub fn skipped(&self) -> &Skipped {
        self.walk.skipped()
    }

    fn poll(&mut self, waiter: Waiter<'_, '_>) -> Poll<Option<Result<Record>>> {
        if self.at >= self.frames.len() {
            // Before more is asked for, so that its memory can be used again.
            self.frames = Frames::default();
            self.at = 0;
            match ready!(self.walk.next(waiter)) {
                Some(Ok(frames)) => self.frames = frames,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let at = self.at;
        self.at += 1;
        let record = self.frames.bytes(at).map(|data| Record {
            data,
            number: self.frames.first() + at as u64,
            offset: self.frames.offset(at).unwrap_or_default(),
            shard: self.frames.shard(),
        });
        Poll::Ready(record.map(Ok))
    }
}

impl<R: Reader + ?Sized> Iterator for Records<R> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        blocking(self.poll(None))
    }
}

impl<R: Reader + ?Sized> std::iter::FusedIterator for Records<R> {}

/// See [`Records::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct RecordStream<R: Reader + ?Sized>(Records<R>);

impl<R: Reader + ?Sized> RecordStream<R> {
    /// As [`Records::skipped`].
    pub fn skipped(&self) -> &Skipped {
        self.0.skipped()
    }
}

impl<R: Reader + ?Sized> Stream for RecordStream<R> {
    type Item = Result<Record>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll(Some(cx))
    }
}

/// The records of a file or a set, many at a time, in order: [`Frames`]. Made by [`RecordOptions::frames`]; otherwise as
/// [`Records`].
///
/// ```
/// use std::sync::Arc;
/// use feedwater::tfrecord::{RecordOptions, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data.tfrecord");
/// let mut writer = Writer::create(&path)?;
/// for number in 0..5000_u32 {
///     writer.write(&number.to_le_bytes())?;
/// }
/// writer.commit()?;
///
/// let mut bytes = 0;
/// for frames in RecordOptions::new().frames(feedwater::open(&path)?) {
///     for data in frames?.iter() {
///         bytes += data.len();
///     }
/// }
/// assert_eq!(bytes, 20_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "iterators do nothing unless used"]
pub struct FrameBatches<R: Reader + ?Sized>(Walk<R>);

impl<R: Reader + ?Sized> FrameBatches<R> {
    pub(super) fn new(walk: Walk<R>) -> Self {
        FrameBatches(walk)
    }

    /// The same as a `Stream`.
    pub fn stream(self) -> FrameStream<R> {
        FrameStream(self)
    }

    /// The corrupt records that were left out so far.
    pub fn skipped(&self) -> &Skipped {
        self.0.skipped()
    }

    /// The next ones, for the iterator and the stream.
    pub(super) fn poll(&mut self, waiter: Waiter<'_, '_>) -> Poll<Option<Result<Frames>>> {
        self.0.next(waiter)
    }
}

impl<R: Reader + ?Sized> Iterator for FrameBatches<R> {
    type Item = Result<Frames>;

    fn next(&mut self) -> Option<Self::Item> {
        blocking(self.poll(None))
    }
}

impl<R: Reader + ?Sized> std::iter::FusedIterator for FrameBatches<R> {}

/// See [`FrameBatches::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct FrameStream<R: Reader + ?Sized>(FrameBatches<R>);

impl<R: Reader + ?Sized> FrameStream<R> {
    /// As [`FrameBatches::skipped`].
    pub fn skipped(&self) -> &Skipped {
        self.0.skipped()
    }
}

impl<R: Reader + ?Sized> Stream for FrameStream<R> {
    type Item = Result<Frames>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll(Some(cx))
    }
}

/// What a poll without a task to wake came to: it waits by itself.
fn blocking<T>(poll: Poll<Option<T>>) -> Option<T> {
    match poll {
        Poll::Ready(item) => item,
        Poll::Pending => None,
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Records<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("skipped", self.skipped())
            .finish_non_exhaustive()
    }
}

impl<R: Reader + ?Sized> fmt::Debug for FrameBatches<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameBatches")
            .field("skipped", self.skipped())
            .finish_non_exhaustive()
    }
}
