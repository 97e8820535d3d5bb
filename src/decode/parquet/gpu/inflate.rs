//! Pages decompressed to where they are copied to the device from.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::SerializedPageReader;

use super::page_plan::Body;
use super::wanted::Stored;
use crate::decode::parquet::pages::{snappy_len, zstd};

/// Writes the body of a page of `chunk`, whose bytes are `bytes`, to `to`, which has as many bytes as its header promises.
///
/// It fails where the crate's page reader fails, and where the page is of another size than its header says; but without `with_crc`, it
/// does not look at the checksum.
pub(super) fn inflate(
    chunk: &ColumnChunkMetaData,
    bytes: &Stored,
    body: &Body,
    with_crc: bool,
    to: &mut [u8],
) -> Result<()> {
    let short = || ParquetError::EOF("a page ends inside its levels".into());
    let stored = bytes.get(body.stored.clone()).ok_or_else(short)?;
    if let Some(expected) = body.crc.filter(|_| with_crc)
        && crc(&stored) != expected
    {
        return Err(ParquetError::General("Page CRC checksum mismatch".into()));
    }
    let plain = if body.compressed {
        body.plain as usize
    } else {
        stored.len()
    };
    let (levels, values) = stored.split_at_checked(plain).ok_or_else(short)?;
    let (head, rest) = to.split_at_mut_checked(plain).ok_or_else(short)?;
    head.copy_from_slice(levels);
    let wanted = rest.len();
    // Without values there is nothing to decompress. The crate looks at no bytes that there are all the same, but Snappy's, which
    // is undone here, has its own length.
    let is_snappy = chunk.compression() == Compression::SNAPPY;
    if wanted == 0 && (values.is_empty() || body.plain > 0 && !is_snappy) {
        return Ok(());
    }
    match chunk.compression() {
        _ if !body.compressed => Err(short()),
        Compression::SNAPPY => match snappy_len(values)? {
            len if len == wanted => {
                snap::raw::Decoder::new().decompress(values, rest)?;
                Ok(())
            }
            len => Err(other_size(wanted, len)),
        },
        Compression::ZSTD(_) => zstd(values, rest),
        _ => by_the_crate(chunk, bytes, body, to),
    }
}

/// The same by the crate's reader, for codecs that it shows nowhere else: of a chunk of this one page.
fn by_the_crate(
    chunk: &ColumnChunkMetaData,
    bytes: &Stored,
    body: &Body,
    to: &mut [u8],
) -> Result<()> {
    let start = body.stored.start.checked_sub(body.header as usize);
    let start = start.ok_or_else(|| ParquetError::EOF("a page without a header".into()))?;
    let page = bytes.get(start..body.stored.end);
    let page = page.ok_or_else(|| ParquetError::EOF("a page that was not read".into()))?;
    let alone = ColumnChunkMetaData::builder(chunk.column_descr_ptr())
        .set_compression(chunk.compression())
        .set_total_compressed_size(i64::try_from(page.len())?)
        .set_data_page_offset(0)
        .build()?;
    let mut reader = SerializedPageReader::new(Arc::new(page), &alone, 0, None)?;
    let page = reader.get_next_page()?;
    let page = page.ok_or_else(|| ParquetError::EOF("a page that is not there".into()))?;
    let inflated = page.buffer();
    match inflated.len() == to.len() {
        true => to.copy_from_slice(inflated),
        false => return Err(other_size(to.len(), inflated.len())),
    }
    Ok(())
}

fn other_size(wanted: usize, len: usize) -> ParquetError {
    ParquetError::General(format!(
        "a page of {wanted} bytes by its header decompresses to {len}"
    ))
}

/// CRC-32 of a page as it is stored (README of the format, "Checksumming").
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
