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
use crate::error::{Error, ErrorKind, Result};

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
/// While it has to wait, it may ask for several chunks in one request, a quarter of the window at most
/// ([`Limits::stream`](super::Limits::stream)): memory for chunks that are kept is then released when the last one of
/// their request is.
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
    ahead: VecDeque<(Range<u64>, PendingRead)>,
    /// What was read beyond the chunk that was delivered last, and where it begins.
    read: (u64, Bytes),
    /// Bytes did not come at once, so requests are large.
    waits: bool,
    /// Bytes of a large request.
    large: u64,
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
        let most = (options.window as u64 / 4).min(reader.source().limits().stream as u64);
        Chunks {
            read: (0, Bytes::new()),
            waits: false,
            large: (most / size * size).max(size),
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

    /// The next chunk for a task. Who has asked so may go on as an iterator, and the other way around.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if let Some(error) = self.refused.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if let Some(chunk) = self.cut() {
            return Poll::Ready(Some(Ok(chunk)));
        }
        loop {
            self.top_up();
            let Some((range, pending)) = self.ahead.front_mut() else {
                return Poll::Ready(None);
            };
            let Poll::Ready(result) = Pin::new(pending).poll(cx) else {
                return Poll::Pending;
            };
            let range = range.clone();
            self.ahead.pop_front();
            if let Some(first) = self.delivered(range, result) {
                return Poll::Ready(Some(first));
            }
        }
    }

    fn top_up(&mut self) {
        while !self.rest.is_empty() {
            let unit = if self.waits { self.large } else { self.size };
            let end = (self.rest.start / unit + 1)
                .saturating_mul(unit)
                .min(self.rest.end);
            let len = end - self.rest.start;
            if !self.ahead.is_empty() && self.in_flight + len > self.window {
                return;
            }
            let range = self.rest.start..end;
            let batch = Batch::new()
                .any(range.clone())
                .options(self.options.clone());
            let pending = PendingRead::new(self.reader.submit(batch));
            let at_once = pending.progress().reads_done == 1;
            self.waits = !at_once;
            self.rest.start = end;
            self.in_flight += len;
            self.ahead.push_back((range, pending));
            // It was in memory, so reading further ahead would only spread over more blocks.
            if at_once {
                return;
            }
        }
    }

    /// The next chunk of what was read already.
    fn cut(&mut self) -> Option<Bytes> {
        let (start, bytes) = &mut self.read;
        if bytes.is_empty() {
            return None;
        }
        let to_boundary = self.size - *start % self.size;
        let chunk = bytes.split_to(to_boundary.min(bytes.len() as u64) as usize);
        *start += chunk.len() as u64;
        self.in_flight -= chunk.len() as u64;
        Some(chunk)
    }

    /// The first chunk of a request that is done. `None`: it is to be asked for again, chunk by chunk.
    fn delivered(&mut self, range: Range<u64>, result: Result<Bytes>) -> Option<Result<Bytes>> {
        match result {
            Ok(bytes) => {
                self.read = (range.start, bytes);
                // Not empty, as no request is.
                Some(Ok(self.cut().unwrap_or_default()))
            }
            Err(error) => {
                self.ahead.clear();
                self.in_flight = 0;
                let several = range.end - range.start > self.size - range.start % self.size;
                if several && is_of_a_part(&error) {
                    // One bad spot fails its own chunk, and none of those before it.
                    self.rest.start = range.start;
                    self.large = self.size;
                    return None;
                }
                self.rest.start = self.rest.end;
                Some(Err(error))
            }
        }
    }
}

impl<R: Reader + ?Sized> Iterator for Chunks<R> {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.refused.take() {
            return Some(Err(error));
        }
        if let Some(chunk) = self.cut() {
            return Some(Ok(chunk));
        }
        loop {
            self.top_up();
            let (range, pending) = self.ahead.pop_front()?;
            let result = pending.wait();
            if let Some(first) = self.delivered(range, result) {
                return Some(first);
            }
        }
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
        self.0.poll_next(cx)
    }
}

/// Whether a smaller request may do where this one failed.
fn is_of_a_part(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io { .. } | ErrorKind::OutOfMemory { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::{Failed, Limits, Pending, ReadInto, Source};
    use crate::version::Version;

    const LEN: u64 = 100;

    /// Never at once, and no request that touches byte 37, or is longer than `most`, succeeds.
    #[derive(Debug)]
    struct BadSpot {
        source: Source,
        most: u64,
    }

    impl Reader for BadSpot {
        fn source(&self) -> &Source {
            &self.source
        }

        fn submit(&self, batch: Batch) -> Pending {
            let (started, _, pending) = batch.start(&self.source);
            for (read, ticket) in started {
                let Range { start, end } = read.range;
                let outcome = if end - start > self.most {
                    let (wanted, cap) = (end - start, self.most);
                    Err(Error::new(ErrorKind::OutOfMemory { wanted, cap }))
                } else if (start..end).contains(&37) {
                    let bad = std::io::Error::from_raw_os_error(libc::EIO);
                    Err(Error::io("read", bad))
                } else {
                    Ok(Bytes::from_iter(start as u8..end as u8))
                };
                // Afterwards, so that the request has to be waited for.
                let outcome = outcome.map(Into::into).map_err(Failed::from);
                std::thread::spawn(move || ticket.finish(outcome));
            }
            pending
        }

        fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
            unreachable!("chunks are submitted")
        }
    }

    fn chunks(range: Range<u64>, most: u64) -> Chunks<BadSpot> {
        let source = Source::new(
            "bad",
            "test",
            Version::immutable(LEN),
            Limits::default().stream(40),
        );
        let options = ChunkOptions::default().size(10).window(160);
        let mut chunks = Chunks::new(Arc::new(BadSpot { source, most }), range, options);
        // As if the first request had had to wait.
        chunks.waits = true;
        assert_eq!(chunks.large, 40);
        chunks
    }

    #[test]
    fn a_bad_spot_fails_its_own_chunk_and_none_before_it() {
        for start in [0, 3] {
            let mut chunks = chunks(start..LEN, LEN);
            let mut at = start;
            for end in [10, 20, 30] {
                assert_eq!(chunks.remaining(), LEN - at);
                let chunk = chunks.next().unwrap().unwrap();
                assert_eq!(chunk, Bytes::from_iter(at as u8..end as u8));
                at = end;
            }
            let error = chunks.next().unwrap().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
            assert_eq!((error.offset(), error.length()), (Some(30), Some(10)));
            assert!(chunks.next().is_none());
            assert_eq!(chunks.remaining(), 0);
        }
    }

    #[test]
    fn requests_that_may_not_be_large_are_as_small_as_chunks() {
        let mut chunks = chunks(40..LEN, 10);
        for at in (40..LEN).step_by(10) {
            let chunk = chunks.next().unwrap().unwrap();
            assert_eq!(chunk, Bytes::from_iter(at as u8..at as u8 + 10));
        }
        assert!(chunks.next().is_none());
    }
}
