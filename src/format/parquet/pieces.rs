//! Pieces of a file in memory, as the `parquet` crate reads them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use bytes::buf::{Buf, Reader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Pieces of a file, addressed by offsets of the file. A read must lie within one of them.
#[derive(Debug)]
pub(crate) struct Pieces {
    len: u64,
    /// In ascending order, disjoint.
    pieces: Vec<(u64, Bytes)>,
}

impl Pieces {
    /// Pieces of a file of `len` bytes. `pieces` are in ascending order and do not overlap.
    pub(crate) fn new(len: u64, pieces: Vec<(u64, Bytes)>) -> Self {
        Pieces { len, pieces }
    }

    /// What there is from `start` on, to the end of the piece.
    fn from(&self, start: u64) -> Option<Bytes> {
        let after = self.pieces.partition_point(|(offset, _)| *offset <= start);
        let (offset, bytes) = self.pieces.get(after.checked_sub(1)?)?;
        let skip = usize::try_from(start - offset).ok()?;
        (skip <= bytes.len()).then(|| bytes.slice(skip..))
    }

    /// The bytes of `range`, if they are all there.
    pub(crate) fn range(&self, range: Range<u64>) -> Option<Bytes> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let bytes = self.from(range.start)?;
        (len <= bytes.len()).then(|| bytes.slice(..len))
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Pieces {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let bytes = self.from(start).ok_or_else(|| outside(start, 1))?;
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.range(start..start.saturating_add(length as u64))
            .ok_or_else(|| outside(start, length))
    }
}

fn outside(start: u64, length: usize) -> ParquetError {
    ParquetError::EOF(format!(
        "{length} bytes at offset {start} are outside the column chunk"
    ))
}

/// One column chunk of [`Pieces`], which remembers where it was read last: where an error was met.
#[derive(Debug)]
pub(crate) struct Chunk {
    pieces: std::sync::Arc<Pieces>,
    range: Range<u64>,
    last: std::sync::Arc<AtomicU64>,
}

impl Chunk {
    /// The chunk at `range`; `last` gets the offset of each read.
    pub(crate) fn new(
        pieces: std::sync::Arc<Pieces>,
        range: Range<u64>,
        last: std::sync::Arc<AtomicU64>,
    ) -> Self {
        Chunk {
            pieces,
            range,
            last,
        }
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl ChunkReader for Chunk {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        self.last.store(start, Ordering::Relaxed);
        let mut bytes = self.pieces.from(start).ok_or_else(|| outside(start, 1))?;
        // A header that does not end within the chunk must not be read on from its neighbour.
        let left = self
            .range
            .end
            .checked_sub(start)
            .ok_or_else(|| outside(start, 1))?;
        bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        Ok(bytes.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start.saturating_add(length as u64);
        if start < self.range.start || end > self.range.end {
            return Err(outside(start, length));
        }
        self.pieces.get_bytes(start, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn reads_lie_within_one_piece() {
        let pieces = Pieces::new(
            100,
            vec![
                (10, Bytes::from_static(b"0123456789")),
                (20, Bytes::from_static(b"ab")),
                (50, Bytes::from_static(b"xyz")),
            ],
        );
        assert_eq!(pieces.get_bytes(12, 3).unwrap(), "234");
        assert_eq!(pieces.get_bytes(20, 2).unwrap(), "ab");
        assert_eq!(pieces.get_bytes(52, 1).unwrap(), "z");
        for (start, length) in [(9, 1), (19, 2), (22, 1), (52, 2), (u64::MAX, 5)] {
            assert!(
                matches!(pieces.get_bytes(start, length), Err(ParquetError::EOF(_))),
                "{start} {length}"
            );
        }
    }

    #[test]
    fn a_chunk_ends_where_it_ends() {
        let pieces = Arc::new(Pieces::new(
            100,
            vec![(10, Bytes::from_static(b"0123456789"))],
        ));
        let last = Arc::new(AtomicU64::new(0));
        let chunk = Chunk::new(pieces, 12..15, last.clone());
        assert_eq!(chunk.len(), 3);
        assert_eq!(chunk.get_read(13).unwrap().into_inner(), "34");
        assert_eq!(last.load(Ordering::Relaxed), 13);
        assert_eq!(chunk.get_bytes(12, 3).unwrap(), "234");
        assert!(chunk.get_bytes(11, 2).is_err());
        assert!(chunk.get_bytes(13, 3).is_err());
        assert!(chunk.get_read(16).is_err());
    }
}
