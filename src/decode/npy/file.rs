//! One .npy file: its header, and a reader for the rest.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::array::{Array, strides};
use crate::decode::element::aligned;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::npy::{Dtype, FIRST_READ, Header, Order, header_end};
use crate::reader::{PendingRead, Reader, ReaderExt};

/// Ranges begin at multiples of this, so that elements have addresses that are congruent to their offsets.
const CONGRUENT: u64 = 64;

/// Reads the header of a .npy file, parking this thread: one request of 16 KiB, in which a small array comes whole.
///
/// What lies behind the elements is left alone, as NumPy does: several arrays can stand in one file, each
/// [begins](ArrayFile::range) where the one before it ends.
///
/// # Errors
/// [`Malformed`](ErrorKind::Malformed) if it is no .npy file, or shorter than it says;
/// [`UnsupportedFeature`](ErrorKind::UnsupportedFeature) for what the [module](super) lists; and those of the reader.
pub fn open<R: Reader + ?Sized>(reader: Arc<R>) -> Result<ArrayFile<R>> {
    block_on(open_async(reader))
}

/// The same in a task: [`open`] on any executor, without blocking it.
///
/// # Errors
/// As [`open`].
pub async fn open_async<R: Reader + ?Sized>(reader: Arc<R>) -> Result<ArrayFile<R>> {
    let source = reader.source();
    let mut head = reader.read(0..FIRST_READ.min(source.len())).await?;
    let end = header_end(&head, source.len())
        .map_err(|error| source.place(error, 0..head.len() as u64))?;
    if (head.len() as u64) < end {
        head = reader.read(0..end).await?;
    }
    ArrayFile::parse(reader, head, end)
}

/// A .npy file whose header was read. Cheap to clone.
pub struct ArrayFile<R: Reader + ?Sized> {
    reader: Arc<R>,
    header: Arc<Header>,
    /// Where the elements begin.
    data: u64,
    /// All of a file that is small.
    whole: Option<Bytes>,
}

impl<R: Reader + ?Sized> ArrayFile<R> {
    /// `head` has the first bytes of the file; the header goes to `end`.
    fn parse(reader: Arc<R>, head: Bytes, end: u64) -> Result<Self> {
        let source = reader.source();
        // `end` lies within, as at least so much was read.
        let text = head.get(..end as usize).unwrap_or_default();
        let header =
            Header::parse(text, source.len()).map_err(|error| source.place(error, 0..end))?;
        let all = end + header.bytes <= head.len() as u64;
        Ok(ArrayFile {
            header: Arc::new(header),
            data: end,
            whole: all.then_some(head),
            reader,
        })
    }

    /// The file.
    pub fn reader(&self) -> &Arc<R> {
        &self.reader
    }

    /// What its elements are.
    pub fn dtype(&self) -> Dtype {
        self.header.dtype
    }

    /// Its dimensions; empty for a single element.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// In which order the elements stand.
    pub fn order(&self) -> Order {
        self.header.order
    }

    /// How many bytes it is from an element to the next one in each dimension.
    pub fn strides(&self) -> Vec<usize> {
        strides(self.shape(), self.order(), self.dtype().size())
    }

    /// Where its elements are in the file.
    pub fn range(&self) -> Range<u64> {
        self.data..self.data + self.header.bytes
    }

    /// Starts reading all of it: await it on any executor, or [wait](PendingArray::wait). One request, or none for an array
    /// that came with its header.
    pub fn read_all(&self) -> PendingArray {
        self.read(self.range(), self.header.shape.clone())
    }

    /// Starts reading some rows, elements of the first dimension, and nothing else.
    ///
    /// # Errors
    /// When it is waited for: [`NotFound`](ErrorKind::NotFound) if there are fewer rows;
    /// [`Unsupported`](ErrorKind::Unsupported) for a single element, which has none, and for an array in Fortran order of more
    /// than one dimension, whose rows are not in one place.
    pub fn rows(&self, rows: Range<usize>) -> PendingArray {
        let refused = |kind| {
            let error = Error::new(kind).named(self.reader.source().name());
            PendingArray(State::Failed(error))
        };
        let unsupported =
            |what: &'static str| refused(ErrorKind::Unsupported { what: what.into() });
        let Some((&count, inner)) = self.shape().split_first() else {
            return unsupported("rows of an array without dimensions");
        };
        if self.order() == Order::Fortran && !inner.is_empty() {
            return unsupported("rows of an array in Fortran order");
        }
        if rows.start > rows.end || rows.end > count {
            let what = format!("rows {}..{} in an array of {count}", rows.start, rows.end);
            return refused(ErrorKind::NotFound { what: what.into() });
        }
        let mut shape = self.header.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = rows.len();
        }
        // All rows together have no more bytes than the file, unless there are none.
        let row = match count {
            0 => 0,
            count => self.header.bytes / count as u64,
        };
        let start = self.data + row * rows.start as u64;
        self.read(start..start + row * rows.len() as u64, shape)
    }

    fn read(&self, range: Range<u64>, shape: Vec<usize>) -> PendingArray {
        let plan = Plan {
            dtype: self.dtype(),
            order: self.order(),
            shape,
            len: (range.end - range.start) as usize,
            skip: (range.start % CONGRUENT) as usize,
        };
        let from = range.start - range.start % CONGRUENT;
        if let Some(whole) = &self.whole {
            let part = whole
                .get(from as usize..range.end as usize)
                .map(|part| whole.slice_ref(part));
            return PendingArray(State::There(plan, part.unwrap_or_default()));
        }
        if range.is_empty() {
            return PendingArray(State::There(Plan { skip: 0, ..plan }, Bytes::new()));
        }
        PendingArray(State::Pending(plan, self.reader.read(from..range.end)))
    }
}

impl<R: Reader + ?Sized> Clone for ArrayFile<R> {
    fn clone(&self) -> Self {
        ArrayFile {
            reader: self.reader.clone(),
            header: self.header.clone(),
            data: self.data,
            whole: self.whole.clone(),
        }
    }
}

impl<R: Reader + ?Sized> fmt::Debug for ArrayFile<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayFile")
            .field("name", &self.reader.source().name())
            .field("dtype", &format_args!("{}", self.dtype()))
            .field("order", &self.order())
            .field("shape", &self.shape())
            .finish()
    }
}

/// An array being read: await it on any executor, or [`wait`](Self::wait). Dropping it cancels what has not been sent to the
/// system.
#[must_use = "dropping it cancels the read if it has not begun"]
pub struct PendingArray(State);

enum State {
    Pending(Plan, PendingRead),
    There(Plan, Bytes),
    Failed(Error),
}

/// What to make of the bytes.
struct Plan {
    dtype: Dtype,
    order: Order,
    shape: Vec<usize>,
    len: usize,
    /// Bytes in front that were read only so that memory is congruent to the file.
    skip: usize,
}

impl Plan {
    fn array(&self, bytes: &Bytes) -> Array {
        let end = self.skip + self.len;
        let bytes = bytes
            .get(self.skip..end)
            .map(|part| bytes.slice_ref(part))
            .unwrap_or_default();
        // Small blocks begin anywhere.
        let unit = self.dtype.unit();
        let by_file = unit.is_power_of_two() && self.skip.is_multiple_of(unit);
        let bytes = if by_file { aligned(bytes, unit) } else { bytes };
        Array::new(self.dtype, self.order, self.shape.clone(), bytes)
    }
}

impl PendingArray {
    /// Parks this thread until the array is there.
    ///
    /// # Errors
    /// Those of the reader, and those of [`ArrayFile::rows`].
    pub fn wait(self) -> Result<Array> {
        match self.0 {
            State::Pending(plan, read) => Ok(plan.array(&read.wait()?)),
            State::There(plan, bytes) => Ok(plan.array(&bytes)),
            State::Failed(error) => Err(error),
        }
    }
}

impl Future for PendingArray {
    type Output = Result<Array>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            State::Pending(plan, read) => {
                let bytes = std::task::ready!(Pin::new(read).poll(cx));
                bytes.map(|bytes| plan.array(&bytes))
            }
            State::There(plan, bytes) => Ok(plan.array(bytes)),
            State::Failed(error) => Err(error.clone()),
        })
    }
}

impl fmt::Debug for PendingArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingArray").finish_non_exhaustive()
    }
}
