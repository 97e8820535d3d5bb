//! Pages, decompressed into memory that is used again.
//!
//! The crate makes a new vector for each page, and for Snappy fills it with zeros first. Its page reader is told that there
//! is no compression, so it checks headers and checksums and hands out the bytes as they are; Snappy and Zstandard are
//! undone here.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, SerializedPageReader};
use snap::raw::decompress_len;
use zstd::bulk::Decompressor;

use super::buffers::Buffers;
use super::checked::{Promised, checked};

/// The pages of `chunk`, read by `reader`.
pub(super) fn pages<R: ChunkReader + 'static>(
    reader: R,
    chunk: &ColumnChunkMetaData,
    rows: usize,
    locations: Option<Vec<PageLocation>>,
    buffers: &Arc<Buffers>,
) -> Result<Box<dyn PageReader>> {
    checked(reader, chunk, locations.is_some(), |reader, promised| {
        let codec = match chunk.compression() {
            Compression::SNAPPY => Codec::Snappy,
            Compression::ZSTD(_) => Codec::Zstd,
            _ => {
                let pages = SerializedPageReader::new(reader, chunk, rows, locations)?;
                return Ok(Box::new(pages));
            }
        };
        let stored = chunk.clone().into_builder();
        let stored = stored.set_compression(Compression::UNCOMPRESSED).build()?;
        Ok(Box::new(Decompressed {
            stored: SerializedPageReader::new(reader, &stored, rows, locations)?,
            codec,
            promised,
            buffers: buffers.clone(),
        }))
    })
}

#[derive(Clone, Copy)]
enum Codec {
    Snappy,
    Zstd,
}

struct Decompressed<R: ChunkReader> {
    stored: SerializedPageReader<R>,
    codec: Codec,
    promised: Promised,
    buffers: Arc<Buffers>,
}

impl<R: ChunkReader> Decompressed<R> {
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
        let len = match self.codec {
            // A page without values has none to decompress.
            Codec::Snappy if values.is_empty() => return Ok(stored.clone()),
            Codec::Snappy => snappy_len(values)?,
            Codec::Zstd => match self.promised.bytes().and_then(|len| len.checked_sub(plain)) {
                None => return Err(ParquetError::General("a page without a size".into())),
                // Whatever frames there are.
                Some(0) => return Ok(stored.slice(..plain)),
                Some(len) => len,
            },
        };
        self.buffers.filled(plain + len, |page| {
            let (head, rest) = page.split_at_mut_checked(plain).ok_or_else(short)?;
            head.copy_from_slice(levels);
            match self.codec {
                Codec::Snappy => _ = snap::raw::Decoder::new().decompress(values, rest)?,
                Codec::Zstd => zstd(values, rest)?,
            }
            Ok(())
        })
    }
}

pub(super) fn snappy_len(values: &[u8]) -> Result<usize> {
    let len = decompress_len(values)?;
    // Nothing in the format makes more than 64 bytes of 3.
    if len > values.len().saturating_mul(22) {
        return Err(ParquetError::General(format!(
            "{} bytes of Snappy are said to be {len} bytes",
            values.len()
        )));
    }
    Ok(len)
}

/// The frames of `from` into `to`, which they have to fill.
pub(super) fn zstd(from: &[u8], to: &mut [u8]) -> Result<()> {
    thread_local! {
        /// 160 KB and some, which are worth keeping.
        static ZSTD: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    let len = ZSTD.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new()?),
        };
        decompressor.decompress_to_buffer(from, to)
    })?;
    if len != to.len() {
        return Err(ParquetError::General(format!(
            "a page of {} bytes by its header decompresses to {len}",
            to.len()
        )));
    }
    Ok(())
}

impl<R: ChunkReader> Iterator for Decompressed<R> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: ChunkReader> PageReader for Decompressed<R> {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zstd::zstd_safe::get_frame_content_size;

    use super::super::checked::tests::{RLE, chunk, header, location};
    use super::super::failure::from_parquet;
    use super::*;

    #[test]
    fn zstandard_is_undone_as_the_crate_does_it() {
        let all = b"abcdefghijklmno".repeat(20);
        let frame = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).unwrap();
        let mut sizeless = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        sizeless.write_all(&all[..10]).unwrap();
        sizeless.flush().unwrap();
        sizeless.write_all(&all[10..]).unwrap();
        let sizeless = sizeless.finish().unwrap();
        assert_eq!(get_frame_content_size(&sizeless).ok(), Some(None));
        let skipped = [&0x184D_2A53_u32.to_le_bytes()[..], &[2, 0, 0, 0, 8, 9]].concat();
        let one = frame(&all);
        let bodies = [
            one.clone(),
            sizeless.clone(),
            [frame(&all[..100]), frame(&all[100..])].concat(),
            [sizeless, frame(b"")].concat(),
            [frame(b""), one.clone()].concat(),
            [skipped.clone(), one.clone(), skipped].concat(),
            frame(b""),
            Vec::new(),
            one[..one.len() - 1].to_vec(),
            [&one[..], &[7]].concat(),
            b"no frame at all".to_vec(),
        ];
        let buffers = Arc::new(Buffers::default());
        let mut right = 0;
        for (number, body) in bodies.iter().enumerate() {
            for promised in [0, 1, 299, 300, 301] {
                for with_locations in [false, true] {
                    let mut file = header(promised, body.len(), 3, [RLE, RLE]);
                    file.extend(body);
                    let chunk = chunk(0, Compression::ZSTD(Default::default()), file.len());
                    let locations = with_locations.then(|| vec![location(file.len())]);
                    let file = Bytes::from(file);
                    let theirs = SerializedPageReader::new(
                        Arc::new(file.clone()),
                        &chunk,
                        3,
                        locations.clone(),
                    );
                    let theirs = theirs.unwrap().get_next_page();
                    let ours = pages(file, &chunk, 3, locations, &buffers);
                    let ours = ours.unwrap().get_next_page();
                    match (ours, theirs) {
                        (Ok(Some(ours)), Ok(Some(theirs))) => {
                            assert_eq!(ours.buffer(), theirs.buffer(), "{number} {promised}");
                            right += 1;
                        }
                        (Err(ours), Err(theirs)) => {
                            let kind = |error| {
                                let error = from_parquet(error, None);
                                std::mem::discriminant(error.kind())
                            };
                            assert_eq!(kind(ours), kind(theirs), "{number} {promised}");
                        }
                        (ours, theirs) => panic!("{number} {promised}: {ours:?}, {theirs:?}"),
                    }
                }
            }
        }
        // Those of no bytes, and the six that have them all.
        assert_eq!(right, 2 * (bodies.len() + 6));
    }
}
