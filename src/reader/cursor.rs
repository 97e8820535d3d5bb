//! A position in a source, for code that wants `Read`, `Seek` and `BufRead`.

use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::sync::Arc;

use super::Reader;
use super::ext::ReaderExt;

/// First read after a seek: what follows may be short.
const FIRST: usize = 16 << 10;
/// Most bytes read ahead while reading goes on sequentially.
const MOST: usize = 1 << 20;

/// `Read + Seek + BufRead` over a reader.
///
/// Reads ahead into a buffer of its own that grows with sequential use (16 KiB to 1 MiB); larger reads go
/// straight into the caller's memory. Seeking costs nothing, within the buffer not even a new read. As a position
/// past the end is allowed, reading there gives 0 bytes, like a file.
///
/// ```
/// use std::io::{BufRead, Read, Seek, SeekFrom};
/// use std::sync::Arc;
/// use feedwater::{MemoryReader, ReaderExt};
///
/// let mut cursor = Arc::new(MemoryReader::new("one\ntwo\nthree")).cursor();
/// cursor.seek(SeekFrom::Start(4))?;
/// let mut line = String::new();
/// cursor.read_line(&mut line)?;
/// assert_eq!(line, "two\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Cursor<R: Reader + ?Sized> {
    reader: Arc<R>,
    position: u64,
    /// Bytes of the source from `start` on; always initialised in full.
    buffer: Vec<u8>,
    start: u64,
    filled: usize,
    next_size: usize,
    most: usize,
}

impl<R: Reader + ?Sized> Cursor<R> {
    pub(super) fn new(reader: Arc<R>) -> Self {
        Cursor {
            reader,
            position: 0,
            buffer: Vec::new(),
            // Behind every position, so that the first read goes on from nothing.
            start: u64::MAX,
            filled: 0,
            next_size: FIRST,
            most: MOST,
        }
    }

    /// Offset of the next byte in the source.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads at most `bytes` ahead, also at first. For code that makes many cursors and knows what it will read.
    #[must_use]
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.most = bytes.max(1);
        self.next_size = self.next_size.min(self.most);
        self
    }

    /// The reader.
    pub fn reader(&self) -> &Arc<R> {
        &self.reader
    }

    fn buffered(&self) -> &[u8] {
        self.position
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| self.buffer[..self.filled].get(at..))
            .unwrap_or_default()
    }

    fn left(&self) -> u64 {
        self.reader.source().len().saturating_sub(self.position)
    }
}

impl<R: Reader + ?Sized> BufRead for Cursor<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffered().is_empty() && self.left() > 0 {
            let sequential = self.position == self.start + self.filled as u64;
            self.next_size = if sequential {
                (self.next_size * 2).min(self.most)
            } else {
                FIRST.min(self.most)
            };
            let wanted = usize::try_from(self.left())
                .unwrap_or(self.most)
                .min(self.next_size);
            self.filled = 0;
            if self.buffer.len() < wanted {
                self.buffer.resize(wanted, 0);
            }
            self.reader
                .read_at(self.position, &mut self.buffer[..wanted])?;
            self.start = self.position;
            self.filled = wanted;
        }
        Ok(self.buffered())
    }

    fn consume(&mut self, amount: usize) {
        // More than was shown is a caller's mistake that must not skip unseen bytes.
        self.position += amount.min(self.buffered().len()) as u64;
    }
}

impl<R: Reader + ?Sized> Read for Cursor<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left() == 0 {
            return Ok(0);
        }
        if self.buffered().is_empty() && out.len() >= self.next_size {
            let n = usize::try_from(self.left())
                .unwrap_or(usize::MAX)
                .min(out.len());
            self.reader.read_at(self.position, &mut out[..n])?;
            self.position += n as u64;
            // The buffer stands for "read up to here", so that the next small read counts as sequential.
            self.start = self.position;
            self.filled = 0;
            return Ok(n);
        }
        let n = {
            let available = self.fill_buf()?;
            let n = available.len().min(out.len());
            out[..n].copy_from_slice(&available[..n]);
            n
        };
        self.position += n as u64;
        Ok(n)
    }
}

impl<R: Reader + ?Sized> Seek for Cursor<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.reader.source().len().checked_add_signed(by),
        };
        self.position = target.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "seek to a negative or overflowing position",
            )
        })?;
        Ok(self.position)
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Cursor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("reader", &self.reader)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::MemoryReader;

    #[test]
    fn the_first_read_is_small_and_reading_on_grows_it() {
        let reader = Arc::new(MemoryReader::new(vec![1; 4 << 20]));
        let mut cursor = reader.clone().cursor();
        let mut asked = Vec::new();
        let mut before = 0;
        for _ in 0..9 {
            let len = cursor.fill_buf().unwrap().len();
            let now = reader.source().counters().snapshot().requested;
            assert_eq!(now - before, len as u64);
            before = now;
            asked.push(len);
            cursor.consume(len);
        }
        let kib = [16, 32, 64, 128, 256, 512, 1024, 1024, 1024];
        assert_eq!(asked, kib.map(|k| k << 10));
        cursor.seek(SeekFrom::Start(5)).unwrap();
        assert_eq!(cursor.fill_buf().unwrap().len(), FIRST);
    }
}
