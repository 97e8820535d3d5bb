//! The metadata of a Parquet file, read by the `parquet` crate through a reader of this one.

use std::io::{Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use feedwater::{Cursor, Reader, ReaderExt};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};

/// How a Parquet file begins.
const MAGIC: &[u8] = b"PAR1";

/// A reader as the `parquet` crate wants it; also serves its record readers.
pub(crate) struct ParquetSource<R: Reader>(pub(crate) Arc<R>);

impl<R: Reader> Length for ParquetSource<R> {
    fn len(&self) -> u64 {
        self.0.source().len()
    }
}

impl<R: Reader> ChunkReader for ParquetSource<R> {
    type T = Cursor<R>;

    fn get_read(&self, start: u64) -> Result<Cursor<R>> {
        let mut cursor = self.0.clone().cursor();
        cursor.seek(SeekFrom::Start(start))?;
        Ok(cursor)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start.saturating_add(length as u64);
        let read = self.0.read(start..end).wait();
        read.map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// The metadata, or why it cannot be read. `None`: not a Parquet file.
pub(crate) fn of<R: Reader>(reader: &Arc<R>) -> Option<Result<ParquetMetaData>> {
    let mut magic = [0; MAGIC.len()];
    // A file too short for it is none; one that cannot be read any more has been reported.
    reader.read_at(0, &mut magic).ok()?;
    if magic != MAGIC {
        return None;
    }
    let source = ParquetSource(reader.clone());
    Some(ParquetMetaDataReader::new().parse_and_finish(&source))
}
