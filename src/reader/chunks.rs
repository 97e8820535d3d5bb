//! A range in order, in chunks, with a window of them in flight.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

use super::Reader;
use super::batch::Batch;
use super::options::ReadOptions;
use super::pending::PendingRead;
use crate::error::{Error, Result};

/// How [`ReaderExt::chunks`](super::ReaderExt::chunks) reads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChunkOptions {
    /// Bytes of a chunk; chunks end at multiples of it. Default: the source's
    /// [`Limits::preferred`](super::Limits::preferred).
    pub size: Option<usize>,
    /// Most bytes asked for and not yet taken; one chunk is always allowed. Default 8 MiB.
    pub window: usize,
    /// How each chunk is read; a deadline holds for the whole.
    pub read: ReadOptions,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        ChunkOptions {
            size: None,
            window: 8 << 20,
            read: ReadOptions::default(),
        }
    }
}

impl ChunkOptions {
    /// Sets the chunk [size](Self::size) in bytes; 0 is taken as 1.
    #[must_use]
    pub fn size(mut self, bytes: usize) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Sets the [window](Self::window) in bytes.
    #[must_use]
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = bytes;
        self
    }

    /// Sets the [options of each read](Self::read).
    #[must_use]
    pub fn read(mut self, options: ReadOptions) -> Self {
        self.read = options;
        self
    }
}

/// The chunks of a range in order: an iterator that parks the thread; [`stream`](Self::stream) for tasks.
///
/// Reads ahead within the window while the source makes it wait. While bytes come at once (they are in memory)
/// it does not read ahead, so that a loop that drops each chunk runs in the same warm block. After an error there are
/// no more chunks.
///
/// A reader of a file chooses the route for each chunk: streams of large files that are not in the page cache are
/// read past it, which is faster, if chunks are of 4 MiB and more ([`ChunkOptions::size`]).
///
/// ```
/// use std::sync::Arc;
/// use feedwater::{ChunkOptions, MemoryReader, ReaderExt};
///
/// let reader = Arc::new(MemoryReader::new(vec![7; 10_000]));
/// let mut total = 0;
/// for chunk in reader.chunks(0..10_000, ChunkOptions::default().size(4096)) {
///     total += chunk?.len();
/// }
/// assert_eq!(total, 10_000);
/// # Ok::<(), feedwater::Error>(())
/// ```
#[must_use = "iterators do nothing unless used"]
pub struct Chunks<R: Reader + ?Sized> {
    reader: Arc<R>,
    /// What has not been asked for.
    rest: Range<u64>,
    size: u64,
    window: u64,
    options: ReadOptions,
    ahead: VecDeque<(u64, PendingRead)>,
    in_flight: u64,
    /// The range was refused; delivered once.
    refused: Option<Error>,
}

impl<R: Reader + ?Sized> Chunks<R> {
    pub(super) fn new(reader: Arc<R>, range: Range<u64>, options: ChunkOptions) -> Self {
        let size = options
            .size
            .unwrap_or(reader.source().limits().preferred)
            .max(1) as u64;
        let refused = reader.source().check(&range).err();
        Chunks {
            rest: if refused.is_some() { 0..0 } else { range },
            size,
            window: options.window as u64,
            options: options.read,
            ahead: VecDeque::new(),
            in_flight: 0,
            refused,
            reader,
        }
    }

    /// The reader that is read.
    pub fn reader(&self) -> &Arc<R> {
        &self.reader
    }

    /// Bytes that have not been delivered yet.
    pub fn remaining(&self) -> u64 {
        self.rest.end - self.rest.start + self.in_flight
    }

    /// The same as a `Stream`.
    pub fn stream(self) -> ChunkStream<R> {
        ChunkStream(self)
    }

    fn top_up(&mut self) {
        while !self.rest.is_empty() {
            let end = (self.rest.start / self.size + 1)
                .saturating_mul(self.size)
                .min(self.rest.end);
            let len = end - self.rest.start;
            if !self.ahead.is_empty() && self.in_flight + len > self.window {
                return;
            }
            let batch = Batch::new()
                .any(self.rest.start..end)
                .options(self.options.clone());
            let pending = PendingRead::new(self.reader.submit(batch));
            let at_once = pending.progress().reads_done == 1;
            self.rest.start = end;
            self.in_flight += len;
            self.ahead.push_back((len, pending));
            // It was in memory, so reading further ahead would only spread over more blocks.
            if at_once {
                return;
            }
        }
    }

    fn delivered(&mut self, len: u64, result: Result<Bytes>) -> Result<Bytes> {
        self.in_flight -= len;
        if result.is_err() {
            self.ahead.clear();
            self.in_flight = 0;
            self.rest.start = self.rest.end;
        }
        result
    }
}

impl<R: Reader + ?Sized> Iterator for Chunks<R> {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        self.top_up();
        let (len, pending) = self.ahead.pop_front()?;
        let result = pending.wait();
        Some(self.delivered(len, result))
    }
}

impl<R: Reader + ?Sized> std::iter::FusedIterator for Chunks<R> {}

impl<R: Reader + ?Sized> fmt::Debug for Chunks<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks")
            .field("reader", &self.reader)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// See [`Chunks::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct ChunkStream<R: Reader + ?Sized>(Chunks<R>);

impl<R: Reader + ?Sized> Stream for ChunkStream<R> {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut self.0;
        if let Some(error) = this.refused.take() {
            return Poll::Ready(Some(Err(error)));
        }
        this.top_up();
        let Some((len, pending)) = this.ahead.front_mut() else {
            return Poll::Ready(None);
        };
        match Pin::new(pending).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                let len = *len;
                this.ahead.pop_front();
                Poll::Ready(Some(this.delivered(len, result)))
            }
        }
    }
}
