//! The footer: in one request where it fits a first read of the file's tail.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::{FORMAT, check, malformed};
use crate::error::{Error, ErrorKind, Result};
use crate::format::lfs;

/// Length of the footer's end: a 4-byte length, and `PAR1`.
const END: u64 = 8;

/// The first read of the tail, in bytes.
///
/// A footer takes about 100 bytes per column chunk, so this holds that of a file of 600 chunks, often with its page
/// index. Reading 64 KiB costs a disk or the page cache hardly more than 4 KiB do.
pub(crate) const TAIL: u64 = 64 << 10;

/// Finds the metadata of a file of a known length.
pub(crate) struct Footer {
    len: u64,
}

/// What comes next.
pub(crate) enum FooterStep {
    /// The same again with the bytes of this range, which ends where the file ends.
    Need(Range<u64>),
    /// The metadata, checked.
    Done(Arc<ParquetMetaData>),
}

impl Footer {
    /// Of a file of `len` bytes.
    pub(crate) fn new(len: u64) -> Self {
        Footer { len }
    }

    /// What to read first.
    pub(crate) fn first(&self) -> Range<u64> {
        self.len.saturating_sub(TAIL)..self.len
    }

    /// Goes on with `tail`, the last bytes of the file, decoded by `decode`, which turns errors and panics of the library
    /// into ours.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if it is not a Parquet file, [`ErrorKind::UnsupportedFeature`] if its footer is encrypted.
    pub(crate) fn step(
        &self,
        tail: &Bytes,
        decode: impl FnOnce(
            &mut dyn FnMut() -> ParquetResult<ParquetMetaData>,
        ) -> Result<ParquetMetaData>,
    ) -> Result<FooterStep> {
        let short = || {
            malformed(
                None,
                format!("{} bytes are too few for a Parquet file", self.len),
            )
        };
        // A file begins with 4 bytes of magic, too.
        if self.len < END + 4 {
            return Err(short());
        }
        let end = tail.len().checked_sub(END as usize).ok_or_else(short)?;
        let (body, end) = tail.split_at_checked(end).ok_or_else(short)?;
        let (length, magic) = end.split_at_checked(4).ok_or_else(short)?;
        match magic {
            b"PAR1" => {}
            b"PARE" => {
                return Err(Error::new(ErrorKind::UnsupportedFeature {
                    format: FORMAT,
                    part: None,
                    feature: "encrypted footers".into(),
                }));
            }
            _ if tail.len() as u64 == self.len && lfs::is_pointer(tail) => {
                return Err(malformed(None, lfs::POINTER));
            }
            _ => {
                return Err(malformed(
                    None,
                    format!(
                        "the file ends in {:?} and not in \"PAR1\"",
                        magic.escape_ascii().to_string()
                    ),
                ));
            }
        }
        let length: [u8; 4] = length.try_into().map_err(|_| short())?;
        let length = u64::from(u32::from_le_bytes(length));
        let most = self.len - END - 4;
        if length > most {
            return Err(malformed(
                None,
                format!("the footer is said to have {length} bytes, the file has {most} for it"),
            ));
        }
        let start = self.len - END - length;
        if (body.len() as u64) < length {
            return Ok(FooterStep::Need(start..self.len));
        }
        let footer = body.split_at(body.len() - length as usize).1;
        let metadata = decode(&mut || decode_metadata(footer))?;
        Ok(FooterStep::Done(Arc::new(check::checked(metadata, start)?)))
    }
}

fn decode_metadata(footer: &[u8]) -> ParquetResult<ParquetMetaData> {
    if footer.is_empty() {
        return Err(ParquetError::EOF("the footer is empty".into()));
    }
    ParquetMetaDataReader::decode_metadata(footer)
}
