//! The pages of a column chunk, less those that the `parquet` crate would read wrongly, or with memory that no page can take.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};

/// The pages of `chunk` as `make` reads them from `source`, which has the offsets of the file. `headers_in_pages`: pages are
/// asked for together with their headers, as the crate does with an offset index.
///
/// Beside what the crate refuses:
/// - Levels in the deprecated BIT_PACKED encoding are refused. The format has them packed from the most significant bit on
///   (Encodings.md); the crate unpacks from the least significant one, and would deliver other nulls and lists than were
///   written. Columns without levels may name the encoding, as many writers do.
/// - A page whose header promises more bytes than its codec can make of those that are there, or more entries of a
///   dictionary than these bytes hold: the crate allocates by these numbers. Brotli has no such bound; one page takes 2 GiB
///   at most, as the format counts it with 31 bits.
/// - A page of one of the DELTA encodings that promises more values than the page has, for the same reason.
/// - A page of the LZ4 codec of Hadoop that is in more than one frame, and that the crate does not decompress, is told
///   apart from a damaged one.
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
        // Bits of the shortest value of a dictionary.
        bits: match chunk.column_type() {
            Type::BOOLEAN => 1,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
            Type::INT64 | Type::DOUBLE => 64,
            Type::INT96 => 96,
            Type::FIXED_LEN_BYTE_ARRAY => 8 * i64::from(descr.type_length().max(0)),
        },
        headers_in_pages,
    };
    Ok(Box::new(Checked {
        pages: make(Arc::new(noting), Promised(noted.clone()))?,
        is_hadoop: chunk.compression() == Compression::LZ4,
        has_definition_levels: descr.max_def_level() > 0,
        has_repetition_levels: descr.max_rep_level() > 0,
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
    has_definition_levels: bool,
    has_repetition_levels: bool,
    noted: Shared,
    /// Whether pages are asked for together with their headers.
    headers_in_pages: bool,
}

impl Checked {
    #[allow(deprecated)] // The encoding that this is about.
    fn check(&self, page: &Page) -> Result<()> {
        if let Some((promised, values)) = self.too_many_deltas(page) {
            return Err(ParquetError::General(format!(
                "a page of {values} values promises {promised} of them"
            )));
        }
        let Page::DataPage {
            def_level_encoding,
            rep_level_encoding,
            ..
        } = page
        else {
            return Ok(());
        };
        for (has, encoding, which) in [
            (self.has_definition_levels, def_level_encoding, "definition"),
            (self.has_repetition_levels, rep_level_encoding, "repetition"),
        ] {
            if has && *encoding == Encoding::BIT_PACKED {
                return Err(ParquetError::NYI(format!(
                    "{which} levels in the BIT_PACKED encoding"
                )));
            }
        }
        Ok(())
    }

    /// How many values the header of a DELTA encoding promises, if that is more than the page has, and how many it has.
    fn too_many_deltas(&self, page: &Page) -> Option<(u64, u64)> {
        let (Encoding::DELTA_BINARY_PACKED
        | Encoding::DELTA_LENGTH_BYTE_ARRAY
        | Encoding::DELTA_BYTE_ARRAY) = page.encoding()
        else {
            return None;
        };
        let mut rest = &page.buffer()[..];
        if let Page::DataPageV2 {
            def_levels_byte_len,
            rep_levels_byte_len,
            ..
        } = page
        {
            let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
            rest = rest.get(usize::try_from(levels).ok()?..)?;
        } else {
            let levels = [self.has_definition_levels, self.has_repetition_levels];
            for _ in levels.iter().filter(|has| **has) {
                let (length, levels) = rest.split_first_chunk::<4>()?;
                rest = levels.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)?;
            }
        }
        let values = u64::from(page.num_values());
        let mut promised = skip_deltas(&mut rest, values)?;
        // Lengths of prefixes are followed by those of suffixes.
        if promised <= values && page.encoding() == Encoding::DELTA_BYTE_ARRAY {
            promised = skip_deltas(&mut rest, values)?;
        }
        (promised > values).then_some((promised, values))
    }

    /// Says what is wrong with the page that was asked for last, if that is known better here.
    fn explain(&self, error: ParquetError) -> ParquetError {
        let mut noted = lock(&self.noted);
        if let Some(refused) = noted.refused.take() {
            return ParquetError::General(refused);
        }
        let Some(page) = noted.last.as_ref().filter(|_| self.is_hadoop) else {
            return error;
        };
        let header = match self.headers_in_pages {
            true => struct_len(page).unwrap_or(page.len()),
            false => 0,
        };
        match page.get(header..).map_or(0, frames) {
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
            self.check(page)?;
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
            None if self.headers_in_pages => match Header::parse(&bytes) {
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
            header = Header::parse(&self.seen);
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

/// In how many frames `page` is, if it is framed as Hadoop's codecs do, and 0 otherwise. Either each frame has its own
/// length (big-endian u32, like all here) before decompression, then that of its bytes; or the first length is that of all
/// frames together (`BlockCompressorStream`).
fn frames(page: &[u8]) -> usize {
    let walk = |each: bool| {
        let mut rest = page;
        let mut frames = 0;
        while !rest.is_empty() {
            if each || frames == 0 {
                rest = rest.get(4..)?;
            }
            let (length, bytes) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
            rest = bytes.get(length..)?;
            frames += 1;
        }
        Some(frames)
    };
    walk(true).or_else(|| walk(false)).unwrap_or(0)
}

/// Skips numbers in DELTA_BINARY_PACKED (Encodings.md): how many there are. If that is more than `most`, only their header.
fn skip_deltas(rest: &mut &[u8], most: u64) -> Option<u64> {
    let (block, parts, count, _first) =
        (varint(rest)?, varint(rest)?, varint(rest)?, varint(rest)?);
    if count > most {
        return Some(count);
    }
    let each = block.checked_div(parts)?;
    let mut left = count.saturating_sub(1);
    while left > 0 && each > 0 {
        let _least = varint(rest)?;
        let (widths, packed) = rest.split_at_checked(usize::try_from(parts).ok()?)?;
        *rest = packed;
        for width in widths {
            if left == 0 {
                break;
            }
            let bits = each.checked_mul(u64::from(*width))?;
            *rest = rest.get(usize::try_from(bits.div_ceil(8)).ok()?..)?;
            left = left.saturating_sub(each);
        }
    }
    Some(count)
}

/// Deepest nesting of a page header that is followed.
const DEPTH: usize = 8;

/// What is looked at in a page header.
#[derive(Default)]
struct Header {
    uncompressed: i64,
    compressed: i64,
    is_dictionary: bool,
    /// Of a dictionary; 0 for other pages.
    entries: i64,
    /// Bytes of the header.
    len: usize,
}

impl Header {
    /// The struct `PageHeader` (parquet.thrift) in the compact protocol.
    fn parse(bytes: &[u8]) -> Option<Header> {
        let mut header = Header::default();
        let mut rest = bytes;
        fields(&mut rest, DEPTH, &mut |rest, id, kind, depth| {
            match (id, kind) {
                (2, 5) => header.uncompressed = zigzag(varint(rest)?),
                (3, 5) => header.compressed = zigzag(varint(rest)?),
                (7, 12) => {
                    header.is_dictionary = true;
                    fields(rest, depth, &mut |rest, id, kind, depth| {
                        match (id, kind) {
                            (1, 5) => header.entries = zigzag(varint(rest)?),
                            _ => skip(rest, kind, depth)?,
                        }
                        Some(())
                    })?;
                }
                _ => skip(rest, kind, depth)?,
            }
            Some(())
        })?;
        header.len = bytes.len() - rest.len();
        Some(header)
    }

    /// Why its numbers cannot be.
    fn implausible(&self, codec: Compression, bits: i64) -> Option<String> {
        // Most bytes that one can become: a copy of 64 bytes takes 3 in Snappy (format_description.txt), a byte of a length
        // in LZ4 stands for 255 (lz4_Block_format.md), a match of 258 bytes takes 2 bits in DEFLATE (RFC 1951), a block of
        // 128 KiB takes 4 bytes in Zstandard (RFC 8878).
        let most = match codec {
            Compression::SNAPPY => 22,
            Compression::LZ4 | Compression::LZ4_RAW => 255,
            Compression::GZIP(_) => 1032,
            Compression::ZSTD(_) => 32 << 10,
            _ => i64::from(i32::MAX),
        };
        let (from, to) = (self.compressed.max(0), self.uncompressed);
        // Not of one byte, since a frame with nothing in it has some.
        if to > from.saturating_add(1).saturating_mul(most) {
            return Some(format!(
                "a page header promises {to} bytes from {from}, more than {codec} can make"
            ));
        }
        let entries = self.entries.saturating_mul(bits);
        if entries > to.max(0).saturating_mul(8) {
            return Some(format!(
                "a dictionary page promises {} entries in {to} bytes",
                self.entries
            ));
        }
        None
    }
}

/// What takes a field: its bytes and what follows, its number, its type, and how deep it may go.
type Take<'a> = dyn FnMut(&mut &[u8], i64, u8, usize) -> Option<()> + 'a;

/// Walks over the fields of a struct.
fn fields(rest: &mut &[u8], depth: usize, take: &mut Take<'_>) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut id = 0_i64;
    loop {
        let head = byte(rest)?;
        if head == 0 {
            return Some(());
        }
        id = match head >> 4 {
            0 => zigzag(varint(rest)?),
            more => id.checked_add(i64::from(more))?,
        };
        take(rest, id, head & 15, depth)?;
    }
}

fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Length of the struct in Thrift's compact protocol that `bytes` begin with.
fn struct_len(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    skip(&mut rest, 12, DEPTH)?;
    Some(bytes.len() - rest.len())
}

/// Skips a value of a type of the compact protocol.
fn skip(rest: &mut &[u8], kind: u8, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match kind {
        // The value of a boolean field is its type.
        1 | 2 => {}
        3 => _ = byte(rest)?,
        4..=6 => _ = varint(rest)?,
        7 => *rest = rest.get(8..)?,
        8 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            *rest = rest.get(length..)?;
        }
        9 | 10 => {
            let head = byte(rest)?;
            let count = match head >> 4 {
                15 => varint(rest)?,
                count => u64::from(count),
            };
            for _ in 0..count {
                match head & 15 {
                    1 | 2 => _ = byte(rest)?,
                    kind => skip(rest, kind, depth)?,
                }
            }
        }
        12 => fields(rest, depth + 1, &mut |rest, _, kind, depth| {
            skip(rest, kind, depth)
        })?,
        // Page headers have no maps.
        _ => return None,
    }
    Some(())
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let mut byte = [0];
    rest.read_exact(&mut byte).ok()?;
    Some(byte[0])
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(rest)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
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

    fn implausible(bytes: &[u8], codec: Compression, bits: i64) -> Option<String> {
        Header::parse(bytes)?.implausible(codec, bits)
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
        let mut rest = &[&two[..], &[7]].concat()[..];
        assert_eq!((skip_deltas(&mut rest, 2), rest), (Some(2), &[7][..]));
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
            let most = 11 * ratio;
            assert_eq!(
                implausible(&header(most, 10, 1, [RLE, RLE]), codec, 32),
                None
            );
            let bytes = header(most + 1, 10, 1, [RLE, RLE]);
            assert!(implausible(&bytes, codec, 32).is_some());
            for with_locations in [false, true] {
                let file = [&bytes[..], &[0; 10]].concat();
                let chunk = chunk(0, codec, file.len());
                let locations = with_locations.then(|| vec![location(file.len())]);
                let mut pages = pages(file, &chunk, locations);
                let error = from_parquet(pages.get_next_page().unwrap_err(), None).to_string();
                assert!(error.contains("a page header promises"), "{error}");
            }
        }
        let most = header(i32::MAX as usize, 1, 1, [RLE, RLE]);
        let brotli = Compression::BROTLI(Default::default());
        assert_eq!(implausible(&most, brotli, 32), None);
        // A dictionary of 3 entries in 8 bytes.
        let dictionary = [0x15, 4, 0x15, 16, 0x15, 16, 0x4c, 0x15, 6, 0x15, 0, 0, 0];
        let codec = Compression::UNCOMPRESSED;
        assert_eq!(implausible(&dictionary, codec, 16), None);
        assert!(implausible(&dictionary, codec, 32).is_some());
        assert_eq!(implausible(&dictionary, codec, 0), None);
    }

    #[test]
    fn headers_are_measured_and_bad_ones_are_not_followed() {
        let whole = header(5, 5, 1, [RLE, RLE]);
        let longer = [&whole[..], &[1, 2, 3]].concat();
        assert_eq!(struct_len(&longer), Some(whole.len()));
        for len in 0..whole.len() {
            assert_eq!(struct_len(&whole[..len]), None);
        }
        assert_eq!(struct_len(&[0x1c; 100]), None, "too deep");
        assert_eq!(
            struct_len(&[0x19, 0xf5, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
            None,
            "more elements than bytes"
        );
        assert_eq!(struct_len(&[0x1b, 0]), None, "a map");
    }
}
