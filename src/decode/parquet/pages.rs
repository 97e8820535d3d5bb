//! Pages, decompressed into memory that is used again.
//!
//! The crate makes a new vector for each page, and for Snappy fills it with zeros first. Its page reader is told that there
//! is no compression, so it checks headers and checksums and hands out the bytes as they are; Snappy is undone here.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, SerializedPageReader};
use snap::raw::{Decoder, decompress_len};

use super::buffers::Buffers;
use super::checked::checked;

/// The pages of `chunk`, read by `reader`.
pub(super) fn pages<R: ChunkReader + 'static>(
    reader: R,
    chunk: &ColumnChunkMetaData,
    rows: usize,
    locations: Option<Vec<PageLocation>>,
    buffers: &Arc<Buffers>,
) -> Result<Box<dyn PageReader>> {
    checked(reader, chunk, locations.is_some(), |reader| {
        if chunk.compression() != Compression::SNAPPY {
            return Ok(Box::new(SerializedPageReader::new(
                reader, chunk, rows, locations,
            )?));
        }
        let stored = chunk.clone().into_builder();
        let stored = stored.set_compression(Compression::UNCOMPRESSED).build()?;
        Ok(Box::new(SnappyPages {
            stored: SerializedPageReader::new(reader, &stored, rows, locations)?,
            decoder: Decoder::new(),
            buffers: buffers.clone(),
        }))
    })
}

struct SnappyPages<R: ChunkReader> {
    stored: SerializedPageReader<R>,
    decoder: Decoder,
    buffers: Arc<Buffers>,
}

impl<R: ChunkReader> SnappyPages<R> {
    fn page(&mut self, page: Page) -> Result<Page> {
        Ok(match page {
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                statistics,
            } => Page::DataPage {
                buf: self.decompressed(&buf, 0)?,
                num_values,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                statistics,
            },
            Page::DictionaryPage {
                buf,
                num_values,
                encoding,
                is_sorted,
            } => Page::DictionaryPage {
                buf: self.decompressed(&buf, 0)?,
                num_values,
                encoding,
                is_sorted,
            },
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed: true,
                statistics,
            } => {
                // The levels come first, and are never compressed.
                let levels = u64::from(def_levels_byte_len) + u64::from(rep_levels_byte_len);
                Page::DataPageV2 {
                    buf: self.decompressed(&buf, usize::try_from(levels)?)?,
                    num_values,
                    encoding,
                    num_nulls,
                    num_rows,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed: true,
                    statistics,
                }
            }
            plain @ Page::DataPageV2 { .. } => plain,
        })
    }

    /// The first `plain` bytes of `stored` as they are, and the others decompressed.
    fn decompressed(&mut self, stored: &Bytes, plain: usize) -> Result<Bytes> {
        let short = || ParquetError::EOF("a page ends inside its levels".into());
        let (levels, values) = stored.split_at_checked(plain).ok_or_else(short)?;
        // A page without values has none to decompress.
        if values.is_empty() {
            return Ok(stored.clone());
        }
        let len = decompress_len(values)?;
        // Nothing in the format makes more than 64 bytes of 3.
        if len > values.len().saturating_mul(22) {
            return Err(ParquetError::General(format!(
                "{} bytes of Snappy are said to be {len} bytes",
                values.len()
            )));
        }
        let decoder = &mut self.decoder;
        self.buffers.filled(plain + len, |page| {
            let (head, rest) = page.split_at_mut_checked(plain).ok_or_else(short)?;
            head.copy_from_slice(levels);
            decoder.decompress(values, rest)?;
            Ok(())
        })
    }
}

impl<R: ChunkReader> Iterator for SnappyPages<R> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<R: ChunkReader> PageReader for SnappyPages<R> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.stored.get_next_page()? {
            Some(page) => self.page(page).map(Some),
            None => Ok(None),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.stored.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.stored.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.stored.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        match self.stored.take_deferred_dictionary()? {
            Some(page) => self.page(page).map(Some),
            None => Ok(None),
        }
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.stored.at_record_boundary()
    }
}
