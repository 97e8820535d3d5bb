//! A reader as the `parquet` crate wants its files.

use std::fmt;
use std::future::Future;
use std::io::{self, Read};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::{Buf, Bytes};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, MetadataFetch};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};

use super::prefetch::Prefetch;
use crate::error::{Error, ErrorKind};
use crate::reader::{Batch, Cursor, Reader, ReaderExt};

/// Bytes of the first read at the end of a file: the footer, if it fits, and the page indexes, which lie before it.
const TAIL: u64 = 64 << 10;
/// Read-ahead of a stream over bytes that were not planned. The crate makes one for each page header.
const HEADER: usize = 4 << 10;
/// Default window of prefetched row groups in bytes.
const WINDOW: u64 = 128 << 20;

/// A [`Reader`] as a file of the `parquet` crate: [`ChunkReader`] for its readers that block, and [`AsyncFileReader`] for those
/// that do not. Existing code, DataFusion's included, changes the line that opens the file.
///
/// - The end of the file (64 KiB) is read once, in one request, and kept: it has the footer and the page indexes of most
///   files. Small files come with it as a whole.
/// - The ranges that [`AsyncFileReader::get_byte_ranges`] is asked for are one [`Batch`]: sorted, joined where they lie close,
///   in flight together, and delivered without a copy where the engine can.
/// - [`prefetching`](Self::prefetching) reads the column chunks of the next row groups while the crate decodes this one, and
///   serves the single pages that the blocking readers ask for from them.
///
/// Cloning is cheap and shares all of this. `async` methods run on any executor.
///
/// # Errors
/// Errors of the reader are `ParquetError::External` and hold this crate's [`Error`]. Where the `parquet` crate makes text of
/// them (its blocking record batch reader does), their `Display` is left. Ranges past the end of the file are
/// `ParquetError::EOF`, as with the crate's own files: the file is damaged.
///
/// ```
/// use std::sync::Arc;
///
/// use arrow_array::{ArrayRef, Int64Array, RecordBatch};
/// use feedwater::parquet::Source;
/// use futures::{StreamExt, executor::block_on};
/// use parquet::arrow::ProjectionMask;
/// use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
/// use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.parquet");
/// # let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
/// # let batch = RecordBatch::try_from_iter([("n", column)])?;
/// # let mut writer = feedwater::parquet::Writer::create(&path, batch.schema())?;
/// # writer.write(&batch)?;
/// # writer.commit()?;
/// // Blocking; before: `let file = std::fs::File::open(&path)?`.
/// let file = Source::new(feedwater::open(&path)?);
/// let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
/// let mut rows = 0;
/// for batch in builder.build()? {
///     rows += batch?.num_rows();
/// }
///
/// // In a task; before: `let file = tokio::fs::File::open(&path).await?`.
/// let file = Source::new(feedwater::open(&path)?);
/// block_on(async {
///     let builder = ParquetRecordBatchStreamBuilder::new(file).await?;
///     let mut batches = builder.build()?;
///     while let Some(batch) = batches.next().await {
///         rows += batch?.num_rows();
///     }
///     Ok::<(), parquet::errors::ParquetError>(())
/// })?;
/// assert_eq!(rows, 2000);
///
/// // With the next row groups on their way meanwhile: once it is known what is wanted.
/// let file = Source::new(feedwater::open(&path)?);
/// let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone())?;
/// let footer = builder.metadata().clone();
/// let all = 0..footer.num_row_groups();
/// let file = file.prefetching(&footer, all, &ProjectionMask::all())?;
/// let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
/// for batch in builder.build()? {
///     rows += batch?.num_rows();
/// }
/// assert_eq!(rows, 3000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Source {
    reader: Arc<dyn Reader>,
    window: u64,
    tail: Arc<OnceLock<Bytes>>,
    ahead: Option<Arc<Prefetch>>,
}

impl Source {
    /// The file that `reader` reads. Costs nothing; reads nothing.
    pub fn new(reader: Arc<dyn Reader>) -> Self {
        Source {
            reader,
            window: WINDOW,
            tail: Arc::default(),
            ahead: None,
        }
    }

    /// The reader.
    pub fn reader(&self) -> &Arc<dyn Reader> {
        &self.reader
    }

    /// Most bytes of row groups that [`prefetching`](Self::prefetching) reads or keeps at once. Default 128 MiB. The row group
    /// in use is read in any case.
    #[must_use]
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = bytes as u64;
        self
    }

    /// Starts reading the chunks of `columns` in `row_groups`, in this order; to be used by a reader that wants them
    /// in this order.
    ///
    /// The row group in use and, within the [`window`](Self::window), those after it are read or kept in memory. Asking for
    /// bytes of a row group gives the memory of those before it back. What was not planned, or is asked for after it
    /// was given back, is read when it is asked for; so is what could not be read ahead, for its error.
    ///
    /// Chunks are read whole: where the page index or a row selection leaves out most pages, plain requests read less.
    /// Clones made before are not changed.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a row group that `footer` does not have.
    pub fn prefetching(
        mut self,
        footer: &ParquetMetaData,
        row_groups: impl IntoIterator<Item = usize>,
        columns: &ProjectionMask,
    ) -> crate::error::Result<Self> {
        let len = self.reader.source().len();
        let mut groups = Vec::new();
        for index in row_groups {
            let Some(row_group) = footer.row_groups().get(index) else {
                let have = footer.num_row_groups();
                let what = format!("row group {index}; the file has {have}").into();
                let error = Error::new(ErrorKind::NotFound { what });
                return Err(error.named(self.reader.source().name()));
            };
            let chunks = row_group.columns().iter().enumerate();
            let wanted = chunks.filter(|(leaf, _)| columns.leaf_included(*leaf));
            let ranges = wanted.filter_map(|(_, chunk)| {
                let start = chunk
                    .dictionary_page_offset()
                    .unwrap_or(chunk.data_page_offset());
                let start = u64::try_from(start).ok()?;
                let end = start.checked_add(u64::try_from(chunk.compressed_size()).ok()?)?;
                // What a damaged footer says is left to the crate to complain about.
                (end <= len).then_some(start..end)
            });
            groups.push(ranges.collect());
        }
        let ahead = Prefetch::new(self.reader.clone(), groups, self.window);
        self.ahead = Some(Arc::new(ahead));
        Ok(self)
    }

    /// Refuses what the file does not have.
    fn check(&self, start: u64, length: u64) -> Result<Range<u64>> {
        let len = self.reader.source().len();
        match start.checked_add(length) {
            Some(end) if end <= len => Ok(start..end),
            _ => Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start} are past the end of the file, which has {len}"
            ))),
        }
    }

    /// Where the part of the file begins that is kept.
    fn tail_start(&self) -> u64 {
        self.reader.source().len().saturating_sub(TAIL)
    }

    /// The range, if it is of the end of the file and that was read.
    fn of_tail(&self, range: &Range<u64>) -> Option<Bytes> {
        let tail = self.tail.get()?;
        let from = usize::try_from(range.start.checked_sub(self.tail_start())?).ok()?;
        let to = usize::try_from(range.end.checked_sub(self.tail_start())?).ok()?;
        (from <= to && to <= tail.len()).then(|| tail.slice(from..to))
    }

    fn bytes(&self, range: Range<u64>) -> crate::error::Result<Bytes> {
        if let Some(bytes) = self.ahead.as_ref().and_then(|ahead| ahead.wait(&range)) {
            return Ok(bytes);
        }
        if range.start >= self.tail_start() {
            if self.tail.get().is_none() {
                let tail = self.reader.tail(TAIL).wait()?;
                // Somebody else's is the same.
                let _ = self.tail.set(tail);
            }
            if let Some(bytes) = self.of_tail(&range) {
                return Ok(bytes);
            }
        }
        self.reader.read(range).wait()
    }

    async fn bytes_of(&self, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        let mut wanted = Vec::with_capacity(ranges.len());
        let mut missing = Vec::new();
        let mut wants_tail = false;
        for range in &ranges {
            let length = range.end.checked_sub(range.start);
            let length = length.ok_or_else(|| ParquetError::EOF(format!("reversed {range:?}")))?;
            let range = self.check(range.start, length)?;
            let ahead = match &self.ahead {
                Some(ahead) => ahead.bytes(&range).await,
                None => None,
            };
            wanted.push(match ahead.or_else(|| self.of_tail(&range)) {
                Some(bytes) => Wanted::There(bytes),
                None if range.start >= self.tail_start() => {
                    wants_tail = true;
                    Wanted::OfTail(range)
                }
                None => {
                    missing.push(range.clone());
                    Wanted::Read(range)
                }
            });
        }
        if wants_tail {
            missing.push(self.tail_start()..self.reader.source().len());
        }
        let mut read = Vec::new();
        if !missing.is_empty() {
            let blocks = self.reader.submit(Batch::of(missing)).await;
            for block in blocks.map_err(carry)? {
                read.push(block.into_host().map_err(carry)?);
            }
        }
        if wants_tail && let Some(tail) = read.pop() {
            let _ = self.tail.set(tail);
        }
        let mut read = read.into_iter();
        let bytes = wanted.into_iter().map(|wanted| {
            let (bytes, range) = match wanted {
                Wanted::There(bytes) => return Ok(bytes),
                Wanted::OfTail(range) => (self.of_tail(&range), range),
                Wanted::Read(range) => (read.next(), range),
            };
            // An engine that delivers fewer blocks than were asked for.
            bytes.ok_or_else(|| self.abandoned(range))
        });
        bytes.collect()
    }

    fn abandoned(&self, range: Range<u64>) -> ParquetError {
        carry(self.reader.source().error(ErrorKind::Abandoned, range))
    }
}

/// Where one of many ranges comes from.
enum Wanted {
    There(Bytes),
    OfTail(Range<u64>),
    Read(Range<u64>),
}

impl From<Arc<dyn Reader>> for Source {
    fn from(reader: Arc<dyn Reader>) -> Self {
        Source::new(reader)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("reader", &self.reader)
            .field("window", &self.window)
            .field("prefetching", &self.ahead.is_some())
            .finish_non_exhaustive()
    }
}

/// In the form in which the crate passes errors of others on.
fn carry(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.reader.source().len()
    }
}

impl ChunkReader for Source {
    type T = SourceStream;

    fn get_read(&self, start: u64) -> Result<SourceStream> {
        self.check(start, 0)?;
        let kept = match self.ahead.as_ref().and_then(|ahead| ahead.rest(start)) {
            Some(range) => Some(range),
            None if start >= self.tail_start() => Some(start..self.reader.source().len()),
            None => None,
        };
        // Planned bytes that could not be read ahead are not worth reading whole for a page header.
        let memory = match kept {
            Some(range) if range.start >= self.tail_start() => self.bytes(range).map_err(carry)?,
            Some(range) => match &self.ahead {
                Some(ahead) => ahead.wait(&range).unwrap_or_default(),
                None => Bytes::new(),
            },
            None => Bytes::new(),
        };
        let mut cursor = self.reader.cursor().read_ahead(HEADER);
        io::Seek::seek(
            &mut cursor,
            io::SeekFrom::Start(start + memory.len() as u64),
        )?;
        Ok(SourceStream { memory, cursor })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let range = self.check(start, length as u64)?;
        self.bytes(range).map_err(carry)
    }
}

/// The bytes of a [`Source`] from an offset on: what was read ahead first, then what a [`Cursor`] reads.
#[derive(Debug)]
pub struct SourceStream {
    memory: Bytes,
    cursor: Cursor<dyn Reader>,
}

impl Read for SourceStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.memory.is_empty() {
            return self.cursor.read(out);
        }
        let n = self.memory.len().min(out.len());
        self.memory.copy_to_slice(&mut out[..n]);
        Ok(n)
    }
}

impl AsyncFileReader for Source {
    fn get_bytes(
        &mut self,
        range: Range<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes>> + Send + '_>> {
        Box::pin(async move {
            let mut bytes = self.bytes_of(vec![range.clone()]).await?;
            bytes.pop().ok_or_else(|| self.abandoned(range))
        })
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Bytes>>> + Send + '_>> {
        Box::pin(self.bytes_of(ranges))
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<ParquetMetaData>>> + Send + 'a>> {
        Box::pin(async move {
            let len = self.reader.source().len();
            let footer = ParquetMetaDataReader::new()
                .with_arrow_reader_options(options)
                .with_prefetch_hint(Some(TAIL as usize))
                .load_and_finish(Fetch(self), len)
                .await?;
            Ok(Arc::new(footer))
        })
    }
}

/// What the crate reads a footer through.
struct Fetch<'a>(&'a mut Source);

impl MetadataFetch for Fetch<'_> {
    fn fetch(
        &mut self,
        range: Range<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes>> + Send + '_>> {
        AsyncFileReader::get_bytes(self.0, range)
    }
}
