//! One file: its header, and a reader for the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::load::Load;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::safetensors::{FIRST_READ, Header, TensorInfo, json_range};
use crate::reader::{PendingRead, Reader, ReaderExt};

/// Reads the header of a safetensors file, parking this thread: one request, two if it has more than 128 KiB.
///
/// ```
/// use std::sync::Arc;
/// use feedwater::{MemoryReader, safetensors};
///
/// let header = r#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
/// bytes.extend_from_slice(header.as_bytes());
/// bytes.extend_from_slice(&[1, 2, 3]);
///
/// let file = safetensors::open(Arc::new(MemoryReader::new(bytes)))?;
/// assert_eq!(file.info("x")?.shape(), [3]);
/// assert_eq!(file.load().wait()?.tensor("x")?.bytes(), &[1, 2, 3][..]);
/// # Ok::<(), feedwater::Error>(())
/// ```
///
/// # Errors
/// [`Malformed`](ErrorKind::Malformed) if the header is not valid, or the file has another length than it says; and those
/// of the reader.
pub fn open<R: Reader + ?Sized>(reader: Arc<R>) -> Result<TensorFile<R>> {
    block_on(open_async(reader))
}

/// The same in a task: [`open`] on any executor, without blocking it.
///
/// # Errors
/// As [`open`].
pub async fn open_async<R: Reader + ?Sized>(reader: Arc<R>) -> Result<TensorFile<R>> {
    let head = begin(&*reader);
    finish(reader, head).await
}

/// Asks for the first bytes of a file.
pub(super) fn begin<R: Reader + ?Sized>(reader: &R) -> PendingRead {
    reader.read(0..FIRST_READ.min(reader.source().len()))
}

/// Goes on when they are there: reads the rest of the header, if there is more of it.
pub(super) async fn finish<R: Reader + ?Sized>(
    reader: Arc<R>,
    head: PendingRead,
) -> Result<TensorFile<R>> {
    let head = head.await?;
    let source = reader.source();
    let json = json_range(&head, source.len())
        .map_err(|error| source.place(error, 0..head.len() as u64))?;
    match within(&head, &json) {
        Some(text) => TensorFile::parse(reader, text, json.end),
        None => {
            let text = reader.read(json.clone()).await?;
            TensorFile::parse(reader, &text, json.end)
        }
    }
}

/// A safetensors file whose header was read. Cheap to clone.
pub struct TensorFile<R: Reader + ?Sized> {
    reader: Arc<R>,
    header: Arc<Header>,
}

impl<R: Reader + ?Sized> TensorFile<R> {
    fn parse(reader: Arc<R>, json: &[u8], data: u64) -> Result<Self> {
        let source = reader.source();
        let header = Header::parse(json, data, source.len())
            .map_err(|error| source.place(error, 0..data))?;
        Ok(TensorFile {
            header: Arc::new(header),
            reader,
        })
    }

    /// The file.
    pub fn reader(&self) -> &Arc<R> {
        &self.reader
    }

    /// What the header says of each tensor, in the order in which they stand in the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    /// The names of the tensors, in the order in which they stand in the file.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.header.tensors.iter().map(TensorInfo::name)
    }

    /// What the header says of one tensor.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if there is none of this name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.header
            .info(name)
            .ok_or_else(|| not_found(name, self.names()).named(self.reader.source().name()))
    }

    /// The file's metadata: whatever its writer put into `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Reading the tensors: all of them, unless fewer are asked for. Starts nothing.
    pub fn load(&self) -> Load<R> {
        Load::of(self.reader.clone(), self.header.tensors.clone())
    }
}

impl<R: Reader + ?Sized> Clone for TensorFile<R> {
    fn clone(&self) -> Self {
        TensorFile {
            reader: self.reader.clone(),
            header: self.header.clone(),
        }
    }
}

impl<R: Reader + ?Sized> fmt::Debug for TensorFile<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorFile")
            .field("name", &self.reader.source().name())
            .field("tensors", &self.header.tensors.len())
            .finish_non_exhaustive()
    }
}

/// The error of a name that none of `names` is. It lists those that begin most alike.
pub(super) fn not_found<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    const SHOWN: usize = 8;
    let alike = |other: &str| {
        let pairs = name.bytes().zip(other.bytes());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let mut names: Vec<&str> = names.collect();
    let count = names.len();
    names.sort_by_key(|other| std::cmp::Reverse(alike(other)));
    names.truncate(SHOWN);
    let shown: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    let shown = match (count, shown.join(", ")) {
        (0, _) => "there are none".into(),
        (..=SHOWN, shown) => format!("there are {shown}"),
        (_, shown) => format!("there are {count}, among them {shown}"),
    };
    let what = format!("tensor {name:?}: {shown}");
    Error::new(ErrorKind::NotFound { what: what.into() })
}

/// The part of the first bytes that is the header, if all of it is.
fn within<'a>(head: &'a [u8], json: &Range<u64>) -> Option<&'a [u8]> {
    head.get(usize::try_from(json.start).ok()?..usize::try_from(json.end).ok()?)
}
