//! The pages of a column chunk, less those that the `parquet` crate would read wrongly, or with memory that no page can take.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};

use crate::format::parquet::{Levels, PageFault, PageHeader, hadoop_frames, least_bits};

/// The pages of `chunk` as `make` reads them from `source`, which has the offsets of the file. `headers_in_pages`: pages are
/// asked for together with their headers, as the crate does with an offset index.
///
/// Beside what the crate refuses, pages are refused as [`Levels::check`] and [`PageHeader::implausible`] say; and a page of
/// the LZ4 codec of Hadoop that is in more than one frame, and that the crate does not decompress, is told apart from a
/// damaged one.
pub(super) fn checked<R: ChunkReader + 'static>(
    source: R,
    chunk: &ColumnChunkMetaData,
    headers_in_pages: bool,
    make: impl FnOnce(Arc<Noting<R>>, Promised) -> Result<Box<dyn PageReader>>,
) -> Result<Box<dyn PageReader>> {
    let descr = chunk.column_descr();
    let noted: Shared = Arc::default();
    let noting = Noting {
        source,
        noted: noted.clone(),
        codec: chunk.compression(),
        bits: least_bits(chunk.column_type(), descr.type_length()),
        headers_in_pages,
    };
    Ok(Box::new(Checked {
        pages: make(Arc::new(noting), Promised(noted.clone()))?,
        is_hadoop: chunk.compression() == Compression::LZ4,
        levels: Levels {
            definition: descr.max_def_level() > 0,
            repetition: descr.max_rep_level() > 0,
        },
        noted,
        headers_in_pages,
    }))
}

/// What the crate asked for, seen from below it.
#[derive(Default)]
struct Noted {
    /// The bytes that were asked for last.
    last: Option<Bytes>,
    /// Why a header was refused. The crate keeps the words of some errors alone.
    refused: Option<String>,
    /// Where the header that was read last ends, and what it promises; and the same of a dictionary's, whose page may be
    /// asked for later than the header of the next one.
    headers: [Option<(u64, i64)>; 2],
    /// What the header of the page that was asked for last promises.
    promised: Option<i64>,
}

type Shared = Arc<Mutex<Noted>>;

/// How many bytes the page that was read last has by its header, before compression.
pub(super) struct Promised(Shared);

impl Promised {
    pub(super) fn bytes(&self) -> Option<usize> {
        usize::try_from(lock(&self.0).promised?).ok()
    }
}

struct Checked {
    pages: Box<dyn PageReader>,
    is_hadoop: bool,
    levels: Levels,
    noted: Shared,
    /// Whether pages are asked for together with their headers.
    headers_in_pages: bool,
}

impl Checked {
    /// Says what is wrong with the page that was asked for last, if that is known better here.
    fn explain(&self, error: ParquetError) -> ParquetError {
        let mut noted = lock(&self.noted);
        if let Some(refused) = noted.refused.take() {
            return ParquetError::General(refused);
        }
        let Some(page) = noted.last.as_ref().filter(|_| self.is_hadoop) else {
            return error;
        };
        match hadoop_frames(page, self.headers_in_pages) {
            0 | 1 => error,
            frames => ParquetError::NYI(format!("a Hadoop LZ4 page in {frames} frames")),
        }
    }
}

impl Iterator for Checked {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[deny(clippy::missing_trait_methods)]
impl PageReader for Checked {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = match self.pages.get_next_page() {
            Ok(page) => page,
            Err(error) => return Err(self.explain(error)),
        };
        if let Some(page) = &page {
            self.levels.check(page).map_err(|fault| match fault {
                PageFault::Malformed(what) => ParquetError::General(what),
                PageFault::Unsupported(feature) => ParquetError::NYI(feature),
            })?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let page = self.pages.peek_next_page();
        page.map_err(|error| self.explain(error))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        let skipped = self.pages.skip_next_page();
        skipped.map_err(|error| self.explain(error))
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let page = self.pages.take_deferred_dictionary();
        page.map_err(|error| self.explain(error))
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        let at = self.pages.at_record_boundary();
        at.map_err(|error| self.explain(error))
    }
}

/// Keeps what was asked for last, and looks at page headers before the crate does.
pub(super) struct Noting<R> {
    source: R,
    noted: Shared,
    codec: Compression,
    bits: i64,
    headers_in_pages: bool,
}

impl<R: ChunkReader> Length for Noting<R> {
    fn len(&self) -> u64 {
        self.source.len()
    }
}

impl<R: ChunkReader> ChunkReader for Noting<R> {
    type T = HeaderStream<R::T>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(HeaderStream {
            inner: self.source.get_read(start)?,
            start,
            seen: Vec::new(),
            at: None,
            codec: self.codec,
            bits: self.bits,
            noted: self.noted.clone(),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.source.get_bytes(start, length)?;
        let mut noted = lock(&self.noted);
        let mut headers = noted.headers.iter().flatten();
        // If its header was read before, it is not here.
        let known = headers.find(|(end, _)| *end == start);
        noted.promised = match known {
            Some((_, promised)) => Some(*promised),
            None if self.headers_in_pages => match PageHeader::parse(&bytes) {
                Some(header) => match header.implausible(self.codec, self.bits) {
                    Some(refusal) => return Err(ParquetError::General(refusal)),
                    None => Some(header.uncompressed),
                },
                None => None,
            },
            None => None,
        };
        if self.codec == Compression::LZ4 {
            noted.last = Some(bytes.clone());
        }
        Ok(bytes)
    }
}

/// Longest page header that is looked at, in bytes. Most are about 30; statistics of long strings make them longer.
const HEADER: u64 = 64 << 10;

/// A page header, if it is read from: the crate also asks for streams that it does not use, at other places.
pub(super) struct HeaderStream<T> {
    inner: T,
    start: u64,
    /// What was read already to look at it.
    seen: Vec<u8>,
    /// How much of that has been handed out. `None`: nobody has read.
    at: Option<usize>,
    codec: Compression,
    bits: i64,
    noted: Shared,
}

impl<T: Read> HeaderStream<T> {
    /// Reads until a header is there, or too much.
    fn look(&mut self) -> io::Result<()> {
        let mut more = 64;
        let mut header = None;
        while header.is_none() && (self.seen.len() as u64) < HEADER {
            if self.inner.by_ref().take(more).read_to_end(&mut self.seen)? == 0 {
                break;
            }
            more *= 2;
            header = PageHeader::parse(&self.seen);
        }
        // Without one, what is wrong is the crate's to say.
        let Some(header) = header else {
            return Ok(());
        };
        let mut noted = lock(&self.noted);
        if let Some(refusal) = header.implausible(self.codec, self.bits) {
            noted.refused = Some(refusal);
            return Err(io::ErrorKind::InvalidData.into());
        }
        let end = self.start.saturating_add(header.len as u64);
        let [page, dictionary] = &mut noted.headers;
        let slot = if header.is_dictionary {
            dictionary
        } else {
            page
        };
        *slot = Some((end, header.uncompressed));
        Ok(())
    }
}

impl<T: Read> Read for HeaderStream<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let at = match self.at {
            Some(at) => at,
            None => {
                self.look()?;
                0
            }
        };
        let mut left = self.seen.get(at..).unwrap_or_default();
        if left.is_empty() {
            self.at = Some(at);
            return self.inner.read(out);
        }
        let read = left.read(out)?;
        self.at = Some(at + read);
        Ok(read)
    }
}

fn lock(noted: &Shared) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests {
    use parquet::basic::Type;
    use parquet::file::page_index::offset_index::PageLocation;
    use parquet::file::reader::SerializedPageReader;
    use parquet::schema::types::{ColumnDescriptor, ColumnPath, Type as SchemaType};

    use super::*;
    use crate::decode::parquet::failure::from_parquet;
    use crate::error::ErrorKind;

    fn zigzag(out: &mut Vec<u8>, value: i32) {
        let mut value = ((value << 1) ^ (value >> 31)) as u32;
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// The header of a data page of `values` values, whose encoding is PLAIN, as the compact protocol has it.
    pub(in crate::decode::parquet) fn header(
        uncompressed: usize,
        compressed: usize,
        values: i32,
        levels: [i32; 2],
    ) -> Vec<u8> {
        let mut out = vec![0x15];
        zigzag(&mut out, 0);
        out.push(0x15);
        zigzag(&mut out, uncompressed as i32);
        out.push(0x15);
        zigzag(&mut out, compressed as i32);
        out.extend([0x2c, 0x15]);
        zigzag(&mut out, values);
        for encoding in [0, levels[0], levels[1]] {
            out.push(0x15);
            zigzag(&mut out, encoding);
        }
        out.extend([0, 0]);
        out
    }

    pub(in crate::decode::parquet) fn chunk(
        levels: i16,
        codec: Compression,
        len: usize,
    ) -> ColumnChunkMetaData {
        let kind = SchemaType::primitive_type_builder("n", Type::INT32)
            .build()
            .unwrap();
        let path = ColumnPath::from("n");
        let descr = ColumnDescriptor::new(Arc::new(kind), levels, 0, path);
        ColumnChunkMetaData::builder(Arc::new(descr))
            .set_compression(codec)
            .set_total_compressed_size(len as i64)
            .set_data_page_offset(0)
            .build()
            .unwrap()
    }

    fn pages(
        file: Vec<u8>,
        chunk: &ColumnChunkMetaData,
        locations: Option<Vec<PageLocation>>,
    ) -> Box<dyn PageReader> {
        checked(
            Bytes::from(file),
            chunk,
            locations.is_some(),
            |source, _| {
                let pages = SerializedPageReader::new(source, chunk, 3, locations)?;
                Ok(Box::new(pages))
            },
        )
        .unwrap()
    }

    pub(in crate::decode::parquet) const RLE: i32 = 3;
    const BIT_PACKED: i32 = 4;

    #[test]
    fn bit_packed_levels_are_refused_where_there_are_levels() {
        for (max, encoding, ok) in [
            (1, RLE, true),
            (0, BIT_PACKED, true),
            (1, BIT_PACKED, false),
        ] {
            let mut file = header(5, 5, 1, [encoding, BIT_PACKED]);
            file.extend([1, 7, 0, 0, 0]);
            let chunk = chunk(max, Compression::UNCOMPRESSED, file.len());
            let mut pages = pages(file, &chunk, None);
            let page = pages.get_next_page();
            assert_eq!(page.is_ok(), ok, "{max} {encoding}");
            if let Err(error) = page {
                let error = from_parquet(error, None);
                let ErrorKind::UnsupportedFeature { feature, .. } = error.kind() else {
                    panic!("{error}");
                };
                assert_eq!(feature, "definition levels in the BIT_PACKED encoding");
            }
        }
    }

    /// One page that is the whole file.
    pub(in crate::decode::parquet) fn location(len: usize) -> PageLocation {
        PageLocation {
            offset: 0,
            compressed_page_size: len as i32,
            first_row_index: 0,
        }
    }

    /// One LZ4 block of literals alone.
    fn block(bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![(bytes.len().min(15) as u8) << 4];
        out.extend(bytes.len().checked_sub(15).map(|more| more as u8));
        out.extend(bytes);
        out
    }

    fn lengths(numbers: &[usize]) -> Vec<u8> {
        let numbers = numbers.iter().map(|n| (*n as u32).to_be_bytes());
        numbers.flatten().collect()
    }

    #[test]
    fn hadoop_pages_in_frames_are_told_from_damaged_ones() {
        let in_two = |all: &[u8], at: usize| {
            let (a, b) = (block(&all[..at]), block(&all[at..]));
            let each = [
                lengths(&[at, a.len()]),
                a.clone(),
                lengths(&[all.len() - at, b.len()]),
                b.clone(),
            ];
            let together = [lengths(&[all.len(), a.len()]), a, lengths(&[b.len()]), b];
            (each.concat(), together.concat())
        };
        let all = b"abcdefghijklmno";
        // The crate goes on to a frame if more bytes are left than the one before had.
        let (longer, _) = in_two(all, 3);
        let (shorter, together) = in_two(all, 14);
        let whole = block(all);
        let one = [lengths(&[all.len(), whole.len()]), whole].concat();
        let damaged = [one.clone(), vec![9]].concat();
        for with_locations in [false, true] {
            for (body, said) in [
                (&one, Ok(())),
                (&longer, Ok(())),
                (&shorter, Err("a Hadoop LZ4 page in 2 frames")),
                (&together, Err("a Hadoop LZ4 page in 2 frames")),
                (&damaged, Err("")),
            ] {
                let file = [header(all.len(), body.len(), 3, [RLE, RLE]), body.clone()].concat();
                let chunk = chunk(0, Compression::LZ4, file.len());
                let locations = with_locations.then(|| vec![location(file.len())]);
                let mut pages = pages(file, &chunk, locations);
                let error = match (pages.get_next_page(), said) {
                    (Ok(page), Ok(())) => {
                        assert_eq!(page.unwrap().buffer(), &all[..]);
                        continue;
                    }
                    (page, said) => from_parquet(page.unwrap_err(), said.err().map(Arc::from)),
                };
                match error.kind() {
                    ErrorKind::UnsupportedFeature {
                        feature,
                        part: Some(part),
                        ..
                    } => assert_eq!(**part, **feature),
                    ErrorKind::Malformed {
                        part: Some(part), ..
                    } => assert_eq!(&**part, "", "{error}"),
                    _ => panic!("{error}"),
                }
            }
        }
    }

    #[test]
    fn more_deltas_than_values_are_refused() {
        // Blocks of 128 in 4 parts of 32; two numbers, whose one delta takes 1 bit.
        let two = [&[0x80, 1, 4, 2, 0, 0, 1, 0, 0, 0][..], &[0; 4]].concat();
        let many = [0x80, 1, 4, 0xff, 0xff, 0xff, 0xff, 0x0f, 0];
        for (encoding, body, ok) in [
            (5, two.clone(), true),
            (5, many.to_vec(), false),
            (7, [two.clone(), two.clone()].concat(), true),
            (7, [two, many.to_vec()].concat(), false),
        ] {
            let mut file = header(body.len(), body.len(), 2, [RLE, RLE]);
            // The encoding of values, which the helper makes PLAIN.
            let at = file.len() - 7;
            assert_eq!(file[at], 0);
            file[at] = encoding * 2;
            file.extend(body);
            let chunk = chunk(0, Compression::UNCOMPRESSED, file.len());
            let page = pages(file, &chunk, None).get_next_page();
            assert_eq!(page.is_ok(), ok, "{encoding}: {page:?}");
        }
    }

    #[test]
    fn promises_that_no_codec_keeps_are_refused() {
        for (codec, ratio) in [
            (Compression::SNAPPY, 22),
            (Compression::LZ4_RAW, 255),
            (Compression::GZIP(Default::default()), 1032),
            (Compression::ZSTD(Default::default()), 32 << 10),
        ] {
            let bytes = header(11 * ratio + 1, 10, 1, [RLE, RLE]);
            for with_locations in [false, true] {
                let file = [&bytes[..], &[0; 10]].concat();
                let chunk = chunk(0, codec, file.len());
                let locations = with_locations.then(|| vec![location(file.len())]);
                let mut pages = pages(file, &chunk, locations);
                let error = from_parquet(pages.get_next_page().unwrap_err(), None).to_string();
                assert!(error.contains("a page header promises"), "{error}");
            }
        }
    }
}
