//! Records by their numbers.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::options::{OnCorrupt, RecordOptions};
use super::walk::Walk;
use crate::buffer::Block;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, RecordCheck, Result};
use crate::format::tfrecord::frame::{self, FOOTER, HEADER};
use crate::format::tfrecord::index::{self as kept, Identity};
use crate::open::OpenOptions;
use crate::reader::{Batch, Pending, Reader, ReaderExt};
use crate::version::{FileVersion, Version};
use crate::write::{SinkOptions, SyncMode};

/// Where each record of a file begins: records by number, one or many at once, each checked when it is read.
///
/// 8 bytes of memory for each record. Files that are compressed have none, since nothing in them can be found without
/// all that comes before.
///
/// ```
/// use feedwater::tfrecord::{Index, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data.tfrecord");
/// let mut writer = Writer::create(&path)?;
/// for text in ["zero", "one", "two"] {
///     writer.write(text.as_bytes())?;
/// }
/// writer.commit()?;
///
/// let index = Index::build(feedwater::open(&path)?)?;
/// assert_eq!(index.len(), 3);
/// assert_eq!(index.get(1).wait()?, "one");
/// assert_eq!(index.get_many([2, 0, 2]).wait()?, ["two", "zero", "two"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Index<R: Reader + ?Sized> {
    reader: Arc<R>,
    /// Where each frame begins, and the end of the file.
    offsets: Vec<u64>,
    verify_data: bool,
    sidecar: Sidecar,
}

/// What became of the file that an index is kept in.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Sidecar {
    /// None was asked for.
    #[default]
    None,
    /// The index is from it, and nothing else was read.
    Read,
    /// It was missing, damaged, or of another state of the file: the index was built, and written to it.
    Written,
    /// The same, but it could not be written: [`AlreadyExists`](ErrorKind::AlreadyExists) if something else than an index has
    /// the name, which stays as it is. The index is good all the same.
    NotWritten(Error),
}

impl RecordOptions {
    /// Builds the index of a file: reads all of it once, and checks every record ([`verify_data`](Self::verify_data)).
    /// Parks this thread meanwhile.
    ///
    /// # Errors
    /// Those of [`Records`](super::Records); [`UnsupportedFeature`](ErrorKind::UnsupportedFeature) for a file that is compressed;
    /// [`InvalidOption`](ErrorKind::InvalidOption) if corrupt records are to be left out, as numbers would mean little.
    pub fn index<R: Reader + ?Sized>(&self, reader: Arc<R>) -> Result<Index<R>> {
        block_on(self.index_async(reader))
    }

    /// The same in a task: [`index`](Self::index) on any executor, without blocking it. Checksums are computed as it is
    /// polled.
    ///
    /// # Errors
    /// As [`index`](Self::index).
    pub async fn index_async<R: Reader + ?Sized>(&self, reader: Arc<R>) -> Result<Index<R>> {
        let offsets = self.offsets(&reader).await?;
        Ok(self.index_of(reader, offsets, Sidecar::None))
    }

    /// The index of a file, kept in the file `path`: read from there, if that is of the same state of the file (length,
    /// inode, time of modification), and built and written there otherwise. Nothing but `reader`'s file decides what
    /// is right: whatever the sidecar says, each record is checked when it is read. A file at `path` that is something else
    /// than such an index stays as it is.
    ///
    /// Blocks this thread, and has no form for tasks, as it writes a file: call it where your executor lets threads block
    /// (`spawn_blocking` of tokio).
    ///
    /// # Errors
    /// Those of [`index`](Self::index); [`Unsupported`](ErrorKind::Unsupported) for a reader of something else than a
    /// file; [`InvalidOption`](ErrorKind::InvalidOption) if `path` is the file itself, which would be replaced. Not being able
    /// to read or write the sidecar is none: [`Index::sidecar`] tells.
    pub fn index_with_sidecar<R: Reader + ?Sized>(
        &self,
        reader: Arc<R>,
        path: impl AsRef<Path>,
    ) -> Result<Index<R>> {
        let path = path.as_ref();
        let identity = identity(&*reader)?;
        if is_file_of(&*reader, path) {
            let what = "an index kept in the very file that it is of".into();
            let error = Error::new(ErrorKind::InvalidOption { what });
            return Err(error.named(reader.source().name()));
        }
        if let Some(offsets) = read_sidecar(path, &identity) {
            return Ok(self.index_of(reader, offsets, Sidecar::Read));
        }
        let offsets = block_on(self.offsets(&reader))?;
        let sidecar = match write_sidecar(path, &kept::encode(&identity, &offsets)) {
            Ok(()) => Sidecar::Written,
            Err(error) => Sidecar::NotWritten(error),
        };
        Ok(self.index_of(reader, offsets, sidecar))
    }

    fn index_of<R: Reader + ?Sized>(
        &self,
        reader: Arc<R>,
        offsets: Vec<u64>,
        sidecar: Sidecar,
    ) -> Index<R> {
        Index {
            reader,
            offsets,
            verify_data: self.verify_data,
            sidecar,
        }
    }

    async fn offsets<R: Reader + ?Sized>(&self, reader: &Arc<R>) -> Result<Vec<u64>> {
        let source = reader.source();
        if self.on_corrupt != OnCorrupt::Fail {
            let what = "an index of records of which some are to be left out".into();
            return Err(Error::new(ErrorKind::InvalidOption { what }));
        }
        let mut walk = Walk::one(reader.clone(), self.clone());
        let mut offsets = Vec::new();
        while let Some(frames) = poll_fn(|cx| walk.next(Some(cx))).await {
            let frames = frames?;
            if walk.is_compressed() {
                break;
            }
            offsets.extend((0..frames.len()).filter_map(|i| frames.offset(i)));
        }
        if walk.is_compressed() {
            return Err(Error::new(ErrorKind::UnsupportedFeature {
                format: "TFRecord",
                part: None,
                feature: "records by number in a compressed file".into(),
            })
            .named(source.name()));
        }
        offsets.push(source.len());
        Ok(offsets)
    }
}

impl<R: Reader + ?Sized> Index<R> {
    /// [`RecordOptions::index`] with the default options.
    ///
    /// # Errors
    /// As there.
    pub fn build(reader: Arc<R>) -> Result<Self> {
        RecordOptions::new().index(reader)
    }

    /// [`RecordOptions::index_async`] with the default options.
    ///
    /// # Errors
    /// As there.
    pub async fn build_async(reader: Arc<R>) -> Result<Self> {
        RecordOptions::new().index_async(reader).await
    }

    /// [`RecordOptions::index_with_sidecar`] with the default options.
    ///
    /// # Errors
    /// As there.
    pub fn with_sidecar(reader: Arc<R>, path: impl AsRef<Path>) -> Result<Self> {
        RecordOptions::new().index_with_sidecar(reader, path)
    }

    /// Number of records.
    pub fn len(&self) -> u64 {
        self.offsets.len().saturating_sub(1) as u64
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where each frame begins, and the end of the file.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(super) fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The reader that records are read from.
    pub fn reader(&self) -> &Arc<R> {
        &self.reader
    }

    /// What became of the file that the index is kept in.
    pub fn sidecar(&self) -> &Sidecar {
        &self.sidecar
    }

    /// Where the frame of a record is in the file: its length, data and checksums. `None` past the last one.
    pub fn range(&self, number: u64) -> Option<Range<u64>> {
        let at = usize::try_from(number).ok()?;
        Some(*self.offsets.get(at)?..*self.offsets.get(at.checked_add(1)?)?)
    }

    /// Starts reading the data of one record; await it or [`wait`](PendingRecord::wait).
    pub fn get(&self, number: u64) -> PendingRecord {
        PendingRecord(self.get_many([number]))
    }

    /// Starts reading the data of many records, in one batch: ranges are planned together, near ones read in one
    /// request. Any order, and the same one more than once; data comes in the order asked for.
    pub fn get_many(&self, numbers: impl IntoIterator<Item = u64>) -> PendingRecords {
        let mut wanted = Vec::new();
        let mut refused = None;
        for number in numbers {
            match self.range(number) {
                Some(range) => wanted.push((number, range)),
                None => {
                    let what = format!("record {number}: there are {}", self.len()).into();
                    let error = Error::new(ErrorKind::NotFound { what });
                    refused = Some(error.named(self.reader.source().name()));
                    wanted.clear();
                    break;
                }
            }
        }
        let batch = Batch::of(wanted.iter().map(|(_, range)| range.clone()));
        PendingRecords {
            pending: self.reader.submit(batch),
            wanted,
            refused,
            name: self.reader.source().name().clone(),
            verify_data: self.verify_data,
        }
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Index<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("reader", &self.reader)
            .field("len", &self.len())
            .field("sidecar", &self.sidecar)
            .finish_non_exhaustive()
    }
}

/// The data of one record as a future; [`wait`](Self::wait) for it on any thread.
#[derive(Debug)]
#[must_use = "dropping it cancels the read if it has not begun"]
pub struct PendingRecord(PendingRecords);

impl PendingRecord {
    /// Parks this thread until the data is there.
    ///
    /// # Errors
    /// Those of [`PendingRecords::wait`].
    pub fn wait(self) -> Result<Bytes> {
        self.0.wait().and_then(only)
    }
}

impl Future for PendingRecord {
    type Output = Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|data| data.and_then(only))
    }
}

fn only(data: Vec<Bytes>) -> Result<Bytes> {
    let data = data.into_iter().next();
    data.ok_or_else(|| Error::new(ErrorKind::Abandoned))
}

/// The data of many records as a future; [`wait`](Self::wait) for it on any thread.
#[derive(Debug)]
#[must_use = "dropping it cancels reads that have not begun"]
pub struct PendingRecords {
    pending: Pending,
    wanted: Vec<(u64, Range<u64>)>,
    refused: Option<Error>,
    name: Arc<str>,
    verify_data: bool,
}

impl PendingRecords {
    /// Parks this thread until all data is there.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a number past the last record; [`CorruptRecord`](ErrorKind::CorruptRecord)
    /// for one that is not, or no longer, a sound record of that length; those of the reader.
    pub fn wait(self) -> Result<Vec<Bytes>> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        checked(
            self.pending.wait()?,
            &self.wanted,
            &self.name,
            self.verify_data,
        )
    }
}

impl Future for PendingRecords {
    type Output = Result<Vec<Bytes>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = &self.refused {
            return Poll::Ready(Err(error.clone()));
        }
        let blocks = ready!(Pin::new(&mut self.pending).poll(cx))?;
        Poll::Ready(checked(blocks, &self.wanted, &self.name, self.verify_data))
    }
}

fn checked(
    blocks: Vec<Block>,
    wanted: &[(u64, Range<u64>)],
    name: &Arc<str>,
    verify_data: bool,
) -> Result<Vec<Bytes>> {
    if blocks.len() != wanted.len() {
        return Err(Error::new(ErrorKind::Abandoned).named(name));
    }
    let data = |(block, (number, range)): (Block, &(u64, Range<u64>))| {
        let bytes = block.into_host()?;
        let corrupt = |check| {
            let record = *number;
            let error = Error::new(ErrorKind::CorruptRecord { record, check });
            error.named(name).at(range.clone())
        };
        let (header, rest) = bytes
            .split_first_chunk::<HEADER>()
            .ok_or_else(|| corrupt(RecordCheck::Truncated))?;
        let (data, footer) = rest
            .split_last_chunk::<FOOTER>()
            .ok_or_else(|| corrupt(RecordCheck::Truncated))?;
        let most = data.len() as u64;
        match frame::length(header) {
            None => return Err(corrupt(RecordCheck::LengthChecksum)),
            Some(length) if length != most => {
                return Err(corrupt(RecordCheck::Length { length, most }));
            }
            Some(_) => {}
        }
        if verify_data && frame::masked_crc(data) != u32::from_le_bytes(*footer) {
            return Err(corrupt(RecordCheck::DataChecksum));
        }
        Ok(bytes.slice(HEADER..HEADER + data.len()))
    };
    blocks.into_iter().zip(wanted).map(data).collect()
}

fn identity<R: Reader + ?Sized>(reader: &R) -> Result<Identity> {
    match reader.source().version() {
        Version::File(file) => Ok(Identity {
            size: file.size,
            inode: file.inode,
            seconds: file.mtime.seconds,
            nanoseconds: file.mtime.nanoseconds,
        }),
        other => {
            let what = format!("a sidecar of something that is no file: {other}").into();
            let error = Error::new(ErrorKind::Unsupported { what });
            Err(error.named(reader.source().name()))
        }
    }
}

/// Whether `path` leads to the file that `reader` reads.
fn is_file_of<R: Reader + ?Sized>(reader: &R, path: &Path) -> bool {
    let (Version::File(file), Ok(there)) = (reader.source().version(), std::fs::metadata(path))
    else {
        return false;
    };
    let there = FileVersion::from(&there);
    (there.dev, there.inode) == (file.dev, file.inode)
}

/// The offsets in a sidecar that is of this file. Anything else is as good as none.
fn read_sidecar(path: &Path, identity: &Identity) -> Option<Vec<u64>> {
    let file = OpenOptions::new().open(path).ok()?;
    if file.len() > kept::most(identity.size) {
        return None;
    }
    kept::decode(&file.read_all().wait().ok()?, identity)
}

/// Writes it, in place of nothing or of what was one.
fn write_sidecar(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = |replacing: bool| {
        // What a crash leaves of it is seen by its checksums.
        let options = SinkOptions::new().sync(SyncMode::None);
        let mut sink = options.overwrite(replacing).create(path)?;
        sink.append(bytes)?;
        sink.commit().map(drop)
    };
    match write(false) {
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists) && was_sidecar(path) => {
            write(true)
        }
        written => written,
    }
}

/// Whether a file is what became of a sidecar: one of any file, whole or damaged, or the start of one.
fn was_sidecar(path: &Path) -> bool {
    let head = OpenOptions::new().open(path).and_then(|file| {
        let most = file.len().min(kept::MAGIC.len() as u64);
        file.read(0..most).wait()
    });
    head.is_ok_and(|head| kept::MAGIC.starts_with(&head))
}
