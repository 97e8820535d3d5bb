//! One walk over the page headers of a column chunk: where its pages are, and what they say of themselves.
//!
//! Only headers are touched, so that it costs about the same for pages of any size. It is strict: what it takes, the `parquet`
//! crate's page reader takes as well, and reads the same in it. What it does not take may still be read by that one.

use std::ops::Range;

use parquet::basic::{Compression, Encoding};

use super::page::{PageFault, implausible};
use super::thrift::{varint, zigzag};

/// The pages of a column chunk, as their headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageList {
    pub(crate) dictionary: Option<DictionaryPage>,
    /// Data pages in their order.
    pub(crate) pages: Vec<DataPage>,
    /// Entries of all of them.
    pub(crate) entries: u64,
}

/// The dictionary page of a column chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DictionaryPage {
    /// Its bytes in the chunk, as they are stored.
    pub(crate) body: Range<usize>,
    /// Bytes of its header, in front of it.
    pub(crate) header: u32,
    /// Its bytes before compression.
    pub(crate) uncompressed: u32,
    pub(crate) crc: Option<u32>,
    pub(crate) entries: u32,
    pub(crate) encoding: Encoding,
}

/// A data page of a column chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataPage {
    /// Its bytes in the chunk, as they are stored, after the header.
    pub(crate) body: Range<usize>,
    /// Bytes of that.
    pub(crate) header: u32,
    /// Its bytes before compression.
    pub(crate) uncompressed: u32,
    pub(crate) crc: Option<u32>,
    /// Values and nulls.
    pub(crate) entries: u32,
    /// Entries of the pages before it.
    pub(crate) first_entry: u64,
    pub(crate) encoding: Encoding,
    pub(crate) levels: PageLevels,
}

/// What a page says of its levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageLevels {
    /// Each with its length in front, compressed with the values.
    V1 {
        definition: Encoding,
        repetition: Encoding,
    },
    /// In front of the values, repetition first, never compressed.
    V2 {
        /// Bytes.
        definition: u32,
        /// Bytes.
        repetition: u32,
        nulls: u32,
        rows: u32,
        /// Whether the values are compressed.
        compressed: bool,
    },
}

impl PageList {
    /// Walks over `chunk`, all bytes of a column chunk from its first page on. `bits`: of the shortest value of a dictionary.
    ///
    /// Pages of other types than data and dictionary are passed over.
    pub(crate) fn of(chunk: &[u8], codec: Compression, bits: i64) -> Result<PageList, PageFault> {
        let mut list = PageList::default();
        let mut at = 0;
        let (mut last, mut touched) = (0, 0usize);
        while let Some(rest) = chunk.get(at..).filter(|rest| !rest.is_empty()) {
            let here = at;
            let fault = |what: &str| {
                PageFault::Malformed(format!("the page at byte {here} of its chunk: {what}"))
            };
            let (header, len) = Header::parse(rest).ok_or_else(|| fault("its header"))?;
            let start = at + len;
            let size = usize::try_from(header.compressed).ok();
            let end = size.and_then(|size| start.checked_add(size));
            let body = match end {
                Some(end) if end <= chunk.len() => start..end,
                _ => return Err(fault("it ends after its chunk")),
            };
            let uncompressed = u32::try_from(header.uncompressed)
                .map_err(|_| fault("a size of less than nothing"))?;
            let len = u32::try_from(len).map_err(|_| fault("the length of its header"))?;
            let entries = match &header.what {
                What::Dictionary { entries, .. } => i64::from(*entries),
                _ => 0,
            };
            let (from, to) = (header.compressed.into(), header.uncompressed.into());
            if let Some(what) = implausible(from, to, entries, codec, bits) {
                return Err(PageFault::Malformed(what));
            }
            at = body.end;
            touched = touched.saturating_sub(1);
            if touched == 0 && at - here == last {
                touch(chunk, at, last);
                touched = AHEAD;
            }
            last = at - here;
            match header.what {
                What::Dictionary { entries, encoding } => {
                    if list.dictionary.is_some() || !list.pages.is_empty() {
                        return Err(fault("a dictionary that does not come first"));
                    }
                    list.dictionary = Some(DictionaryPage {
                        body,
                        header: len,
                        uncompressed,
                        crc: header.crc,
                        entries,
                        encoding,
                    });
                }
                What::Data {
                    entries,
                    encoding,
                    levels,
                } => {
                    if let PageLevels::V2 {
                        definition,
                        repetition,
                        nulls,
                        ..
                    } = levels
                    {
                        let levels = u64::from(definition) + u64::from(repetition);
                        if levels > u64::from(uncompressed) || levels > body.len() as u64 {
                            return Err(fault("levels that are longer than it"));
                        }
                        if nulls > entries {
                            return Err(fault("more nulls than entries"));
                        }
                    }
                    list.pages.push(DataPage {
                        body,
                        header: len,
                        uncompressed,
                        crc: header.crc,
                        entries,
                        first_entry: list.entries,
                        encoding,
                        levels,
                    });
                    list.entries += u64::from(entries);
                    if list.pages.len() == 1 {
                        list.pages.reserve(to_follow(chunk.len() - at, at - here));
                    }
                }
                What::Other => {}
            }
        }
        if list.pages.capacity() / 2 > list.pages.len() {
            list.pages.shrink_to_fit();
        }
        Ok(list)
    }
}

impl PageList {
    /// The one page of `part`, bytes that are `at` bytes behind the start of a chunk; nothing else is in them, nor passed over.
    pub(crate) fn of_page(
        part: &[u8],
        at: usize,
        codec: Compression,
        bits: i64,
    ) -> Result<OnePage, PageFault> {
        let mut list = PageList::of(part, codec, bits)?;
        let is_all =
            |body: &Range<usize>, header| body.start == header as usize && body.end == part.len();
        let moved =
            |body: &Range<usize>| at.saturating_add(body.start)..at.saturating_add(body.end);
        let page = match (list.dictionary.take(), list.pages.pop()) {
            (Some(page), None) if is_all(&page.body, page.header) => {
                OnePage::Dictionary(DictionaryPage {
                    body: moved(&page.body),
                    ..page
                })
            }
            (None, Some(page)) if list.pages.is_empty() && is_all(&page.body, page.header) => {
                OnePage::Data(DataPage {
                    body: moved(&page.body),
                    ..page
                })
            }
            _ => {
                let what = format!(
                    "no page is the {} bytes at byte {at} of its chunk",
                    part.len()
                );
                return Err(PageFault::Malformed(what));
            }
        };
        Ok(page)
    }

    /// Adds a data page behind the others.
    pub(crate) fn push(&mut self, page: DataPage) {
        let entries = u64::from(page.entries);
        self.pages.push(DataPage {
            first_entry: self.entries,
            ..page
        });
        self.entries = self.entries.saturating_add(entries);
    }
}

/// Pages that a list has room for when it knows the length of the first, at most: about 1 MiB.
const RESERVED: usize = 16 << 10;

/// Pages that room is made for behind the first, which has `len` bytes with its header and `left` bytes behind it: as many as there are if all
/// are as long.
fn to_follow(left: usize, len: usize) -> usize {
    (left / len).min(RESERVED)
}

/// How many headers are touched at once.
const AHEAD: usize = 8;

/// Looks at where the next headers of `chunk` begin, from `at` on, if pages go on to be of `len` bytes with theirs, as those of numbers often are.
/// Each header is a wait for memory, which is most of a walk; these wait together: an eighth less time for planning pages of 1 KiB (`benches/gpu`).
fn touch(chunk: &[u8], at: usize, len: usize) {
    let places = chunk.get(at..).unwrap_or_default();
    let bytes = places.iter().step_by(len.max(1)).take(AHEAD);
    std::hint::black_box(bytes.fold(0u8, |sum, byte| sum ^ byte));
}

/// What [`PageList::of_page`] finds.
pub(crate) enum OnePage {
    Dictionary(DictionaryPage),
    Data(DataPage),
}

#[cfg_attr(not(feature = "cache"), allow(dead_code))]
impl PageList {
    /// Bytes of memory that it takes, about.
    pub(crate) fn memory(&self) -> u64 {
        let pages = self.pages.capacity() * size_of::<DataPage>();
        (size_of::<PageList>() + pages) as u64
    }

    /// Whether all pages are in the first `len` bytes of the chunk.
    pub(crate) fn ends_within(&self, len: usize) -> bool {
        let dictionary = self.dictionary.as_ref().map(|page| page.body.end);
        let mut ends = self
            .pages
            .iter()
            .map(|page| page.body.end)
            .chain(dictionary);
        ends.all(|end| end <= len)
    }
}

/// What is read of a `PageHeader` (parquet.thrift).
struct Header {
    uncompressed: i32,
    compressed: i32,
    crc: Option<u32>,
    what: What,
}

enum What {
    Data {
        entries: u32,
        encoding: Encoding,
        levels: PageLevels,
    },
    Dictionary {
        entries: u32,
        encoding: Encoding,
    },
    Other,
}

impl Header {
    /// The header that `bytes` begin with, in Thrift's compact protocol, and its length. `None` if it is none, or an odd one:
    /// fields that are missing, of another type, or of collections, of which page headers have none.
    fn parse(bytes: &[u8]) -> Option<(Header, usize)> {
        const DATA: u64 = 0;
        const INDEX: u64 = 1;
        const DICTIONARY: u64 = 2;
        const DATA_V2: u64 = 3;
        let mut rest = bytes;
        let (mut kind, mut sizes, mut crc) = (None, [None; 2], None);
        let (mut data, mut dictionary, mut data_v2) = (None, None, None);
        let mut field = Field::default();
        while field.next(&mut rest)? {
            match (field.id, field.kind) {
                (1, I32) => kind = Some(u64::try_from(number(&mut rest)?).ok()?),
                (2, I32) => sizes[0] = Some(number(&mut rest)?),
                (3, I32) => sizes[1] = Some(number(&mut rest)?),
                (4, I32) => crc = Some(number(&mut rest)?.cast_unsigned()),
                (5, STRUCT) => data = Some(numbers::<4>(&mut rest, None)?.0),
                (7, STRUCT) => dictionary = Some(numbers::<2>(&mut rest, None)?.0),
                (8, STRUCT) => data_v2 = Some(numbers::<6>(&mut rest, Some(7))?),
                (1..=5 | 7 | 8, _) => return None,
                (_, kind) => skip(&mut rest, kind)?,
            }
        }
        let [uncompressed, compressed] = sizes;
        let what = match kind? {
            DATA => {
                let [entries, encoding, definition, repetition] = data?;
                What::Data {
                    entries: u32::try_from(entries).ok()?,
                    encoding: encoding_of(encoding)?,
                    levels: PageLevels::V1 {
                        definition: encoding_of(definition)?,
                        repetition: encoding_of(repetition)?,
                    },
                }
            }
            DATA_V2 => {
                let ([entries, nulls, rows, encoding, definition, repetition], compressed) =
                    data_v2?;
                What::Data {
                    entries: u32::try_from(entries).ok()?,
                    encoding: encoding_of(encoding)?,
                    levels: PageLevels::V2 {
                        definition: u32::try_from(definition).ok()?,
                        repetition: u32::try_from(repetition).ok()?,
                        nulls: u32::try_from(nulls).ok()?,
                        rows: u32::try_from(rows).ok()?,
                        // By its definition, true where it is left out.
                        compressed: compressed.unwrap_or(true),
                    },
                }
            }
            DICTIONARY => {
                let [entries, encoding] = dictionary?;
                What::Dictionary {
                    entries: u32::try_from(entries).ok()?,
                    encoding: encoding_of(encoding)?,
                }
            }
            INDEX => What::Other,
            _ => return None,
        };
        // A page of one type with the header of another is odd, and whatever a decoder makes of it.
        let headers = [data.is_some(), dictionary.is_some(), data_v2.is_some()];
        if headers.iter().filter(|has| **has).count() > 1 {
            return None;
        }
        let header = Header {
            uncompressed: uncompressed?,
            compressed: compressed?,
            crc,
            what,
        };
        Some((header, bytes.len() - rest.len()))
    }
}

/// Types of the compact protocol (`thrift-compact-protocol.md`).
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I32: u8 = 5;
const STRUCT: u8 = 12;
/// Head of a field that follows the one before, an `I32`.
const NEXT_I32: u8 = 0x15;

/// Where a walk over a struct is.
#[derive(Default)]
struct Field {
    id: u8,
    kind: u8,
}

impl Field {
    /// Goes to the next field; `false` at the end. Numbers of fields go up, and by at most 15, as every writer has them.
    fn next(&mut self, rest: &mut &[u8]) -> Option<bool> {
        let (head, after) = rest.split_first()?;
        *rest = after;
        if *head == 0 {
            return Some(false);
        }
        let step = head >> 4;
        if step == 0 {
            return None;
        }
        self.id = self.id.checked_add(step)?;
        self.kind = head & 15;
        Some(true)
    }
}

/// A struct whose fields 1 to `N` are numbers, and field `flag` a boolean; others are passed over.
fn numbers<const N: usize>(rest: &mut &[u8], flag: Option<u8>) -> Option<([i32; N], Option<bool>)> {
    if let Some((found, after)) = in_order(rest) {
        *rest = after;
        return Some((found, None));
    }
    let (mut found, mut seen) = ([0; N], 0);
    let mut is_set = None;
    let mut field = Field::default();
    while field.next(rest)? {
        let at = usize::from(field.id).checked_sub(1)?;
        match (found.get_mut(at), field.kind) {
            (Some(slot), I32) => {
                *slot = number(rest)?;
                seen |= 1 << at;
            }
            (Some(_), _) => return None,
            (None, TRUE | FALSE) if flag == Some(field.id) => is_set = Some(field.kind == TRUE),
            (None, _) if flag == Some(field.id) => return None,
            (None, kind) => skip(rest, kind)?,
        }
    }
    (seen == (1u32 << N) - 1).then_some((found, is_set))
}

/// The same where there are no other fields, and these are in order, as nearly all writers have them; and what is behind.
fn in_order<const N: usize>(mut rest: &[u8]) -> Option<([i32; N], &[u8])> {
    let mut found = [0; N];
    for slot in &mut found {
        rest = rest.strip_prefix(&[NEXT_I32])?;
        *slot = number(&mut rest)?;
    }
    Some((found, rest.strip_prefix(&[0])?))
}

fn number(rest: &mut &[u8]) -> Option<i32> {
    // Most take one byte; sizes of pages two or three.
    let (value, after) = match *rest {
        [a @ 0..=0x7f, after @ ..] => (u32::from(*a), after),
        [a, b @ 0..=0x7f, after @ ..] => (u32::from(a & 0x7f) | u32::from(*b) << 7, after),
        [a, b, c @ 0..=0x7f, after @ ..] => {
            let low = u32::from(a & 0x7f) | u32::from(b & 0x7f) << 7;
            (low | u32::from(*c) << 14, after)
        }
        _ => return i32::try_from(zigzag(varint(rest)?)).ok(),
    };
    *rest = after;
    Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

/// Passes over a value: what statistics are made of.
fn skip(rest: &mut &[u8], kind: u8) -> Option<()> {
    match kind {
        TRUE | FALSE => {}
        3 => *rest = rest.get(1..)?,
        4..=6 => _ = varint(rest)?,
        7 => *rest = rest.get(8..)?,
        8 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            *rest = rest.get(length..)?;
        }
        STRUCT => {
            let mut field = Field::default();
            while field.next(rest)? {
                match field.kind {
                    STRUCT => return None,
                    kind => skip(rest, kind)?,
                }
            }
        }
        _ => return None,
    }
    Some(())
}

#[allow(deprecated)] // BIT_PACKED, which some headers name.
fn encoding_of(number: i32) -> Option<Encoding> {
    Some(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::Type;
    use parquet::column::page::{Page, PageReader};
    use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::reader::SerializedPageReader;
    use proptest::prelude::*;

    use super::super::page::least_bits;
    use super::*;

    /// A file of columns of several kinds.
    fn file(rows: usize, properties: WriterProperties) -> Bytes {
        let columns: [(&str, ArrayRef); 4] = [
            (
                "ids",
                Arc::new(Int64Array::from_iter(
                    (0..rows as i64).map(|n| (n % 5 != 0).then_some(n % 37)),
                )),
            ),
            (
                "floats",
                Arc::new(Float64Array::from_iter_values(
                    (0..rows).map(|n| n as f64 / 3.0),
                )),
            ),
            (
                "flags",
                Arc::new(
                    (0..rows)
                        .map(|n| Some(n % 3 == 0))
                        .collect::<BooleanArray>(),
                ),
            ),
            (
                "texts",
                Arc::new(StringArray::from_iter_values(
                    (0..rows).map(|n| format!("text {}", n % 41)),
                )),
            ),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        file.into()
    }

    fn metadata(file: &Bytes) -> ParquetMetaData {
        ParquetMetaDataReader::new().parse_and_finish(file).unwrap()
    }

    fn chunks(metadata: &ParquetMetaData) -> impl Iterator<Item = &ColumnChunkMetaData> {
        let groups = metadata.row_groups().iter();
        groups.flat_map(|group| group.columns())
    }

    fn list(file: &Bytes, chunk: &ColumnChunkMetaData) -> Result<PageList, PageFault> {
        let (start, len) = chunk.byte_range();
        let bytes = &file[start as usize..(start + len) as usize];
        let bits = least_bits(chunk.column_type(), chunk.column_descr().type_length());
        PageList::of(bytes, chunk.compression(), bits)
    }

    /// The pages of `chunk` by the crate, with bodies as they are stored.
    fn theirs(file: &Bytes, chunk: &ColumnChunkMetaData) -> parquet::errors::Result<Vec<Page>> {
        let stored = chunk.clone().into_builder();
        let stored = stored.set_compression(Compression::UNCOMPRESSED).build()?;
        let mut reader = SerializedPageReader::new(Arc::new(file.clone()), &stored, 0, None)?;
        let mut pages = Vec::new();
        while let Some(page) = reader.get_next_page()? {
            pages.push(page);
        }
        Ok(pages)
    }

    /// Fails unless both say the same.
    fn compare(file: &Bytes, chunk: &ColumnChunkMetaData, list: &PageList, theirs: &[Page]) {
        let start = chunk.byte_range().0 as usize;
        let body = |range: &Range<usize>| &file[start + range.start..start + range.end];
        let mut pages = list.pages.iter();
        let mut dictionary = list.dictionary.as_ref();
        let mut first = 0;
        for page in theirs {
            match page {
                Page::DictionaryPage {
                    buf,
                    num_values,
                    encoding,
                    ..
                } => {
                    let ours = dictionary.take().unwrap();
                    assert_eq!(body(&ours.body), buf);
                    assert_eq!((ours.entries, ours.encoding), (*num_values, *encoding));
                }
                Page::DataPage {
                    buf,
                    num_values,
                    encoding,
                    def_level_encoding,
                    rep_level_encoding,
                    ..
                } => {
                    let ours = pages.next().unwrap();
                    assert_eq!(body(&ours.body), buf);
                    assert_eq!((ours.entries, ours.encoding), (*num_values, *encoding));
                    let levels = PageLevels::V1 {
                        definition: *def_level_encoding,
                        repetition: *rep_level_encoding,
                    };
                    assert_eq!((ours.levels, ours.first_entry), (levels, first));
                    first += u64::from(*num_values);
                }
                Page::DataPageV2 {
                    buf,
                    num_values,
                    encoding,
                    num_nulls,
                    num_rows,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    is_compressed,
                    ..
                } => {
                    let ours = pages.next().unwrap();
                    assert_eq!(body(&ours.body), buf);
                    assert_eq!((ours.entries, ours.encoding), (*num_values, *encoding));
                    let levels = PageLevels::V2 {
                        definition: *def_levels_byte_len,
                        repetition: *rep_levels_byte_len,
                        nulls: *num_nulls,
                        rows: *num_rows,
                        compressed: *is_compressed,
                    };
                    assert_eq!((ours.levels, ours.first_entry), (levels, first));
                    first += u64::from(*num_values);
                }
            }
        }
        assert_eq!(pages.next(), None);
        assert_eq!(dictionary, None);
        assert_eq!(list.entries, first);
    }

    fn properties(
        codec: usize,
        v2: bool,
        dictionary: bool,
        page_rows: usize,
        split: bool,
    ) -> WriterProperties {
        let codecs = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::ZSTD(Default::default()),
            Compression::LZ4_RAW,
            Compression::GZIP(Default::default()),
        ];
        let mut set = WriterProperties::builder()
            .set_compression(codecs[codec % codecs.len()])
            .set_dictionary_enabled(dictionary)
            .set_data_page_row_count_limit(page_rows)
            .set_write_batch_size(page_rows.min(64))
            .set_max_row_group_row_count(Some(700));
        if v2 {
            set = set.set_writer_version(WriterVersion::PARQUET_2_0);
        }
        if split {
            set = set
                .set_column_dictionary_enabled("floats".into(), false)
                .set_column_encoding("floats".into(), Encoding::BYTE_STREAM_SPLIT);
        }
        set.build()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn pages_are_those_that_the_crate_reads(
            rows in 0..1500usize, codec in 0..5usize, v2: bool, dictionary: bool, page_rows in 1..400usize, split: bool,
        ) {
            let file = file(rows, properties(codec, v2, dictionary, page_rows, split));
            let metadata = metadata(&file);
            for chunk in chunks(&metadata) {
                let ours = list(&file, chunk).unwrap();
                prop_assert_eq!(ours.entries, chunk.num_values() as u64);
                compare(&file, chunk, &ours, &theirs(&file, chunk).unwrap());
            }
        }

        /// What it takes of a damaged file, the crate takes, and reads the same. Checksums are not looked at here, and files of
        /// the crate have none.
        #[test]
        fn damage_is_never_taken_for_something_else(
            v2: bool, dictionary: bool, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let whole = file(300, properties(0, v2, dictionary, 50, true));
            let metadata = metadata(&whole);
            for chunk in chunks(&metadata) {
                let (start, len) = chunk.byte_range();
                let clean = list(&whole, chunk).unwrap();
                let mut damaged = whole.to_vec();
                // In headers, which are what there is to break.
                let mut headers = Vec::new();
                let mut at = 0;
                let bodies = clean.dictionary.iter().map(|page| &page.body);
                for body in bodies.chain(clean.pages.iter().map(|page| &page.body)) {
                    headers.extend(at..body.start);
                    at = body.end;
                }
                for (index, value) in &changes {
                    damaged[start as usize + *index.get(&headers)] = *value;
                }
                let damaged = Bytes::from(damaged);
                assert!(len > 0);
                if let Ok(ours) = list(&damaged, chunk) {
                    compare(&damaged, chunk, &ours, &theirs(&damaged, chunk).unwrap());
                }
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = PageList::of(&bytes, Compression::UNCOMPRESSED, 32);
        }
    }

    #[test]
    fn a_page_alone_is_all_of_its_bytes() {
        let one = |part: &[u8]| PageList::of_page(part, 100, Compression::UNCOMPRESSED, 32);
        let data = page(&DATA, 5);
        let dictionary = page(
            &[0x15, 4, 0x15, 24, 0x15, 24, 0x4c, 0x15, 6, 0x15, 0, 0],
            12,
        );
        let header = data.len() - 5;
        let Ok(OnePage::Data(first)) = one(&data) else {
            panic!();
        };
        assert_eq!((first.header as usize, first.entries), (header, 3));
        assert_eq!(first.body, 100 + header..100 + data.len());
        assert!(matches!(one(&dictionary), Ok(OnePage::Dictionary(page)) if page.entries == 3));
        let index = page(&[0x15, 2, 0x15, 4, 0x15, 4, 0x3c, 0], 2);
        for part in [
            [&data[..], &data].concat(),
            [&index[..], &data].concat(),
            [&data[..], &index].concat(),
            [&dictionary[..], &data].concat(),
            [&dictionary[..], &index].concat(),
            data[..data.len() - 1].to_vec(),
            index,
            Vec::new(),
        ] {
            assert!(matches!(one(&part), Err(PageFault::Malformed(_))));
        }
        // Behind each other, they count on.
        let mut list = PageList::default();
        list.push(first.clone());
        list.push(first);
        assert_eq!((list.entries, list.pages[1].first_entry), (6, 3));
    }

    /// One data page of 3 entries with 5 bytes of body.
    const DATA: [u8; 16] = [
        0x15, 0, 0x15, 10, 0x15, 10, 0x2c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6, 0,
    ];

    fn page(header: &[u8], body: usize) -> Vec<u8> {
        [header, &[0][..], &vec![9; body]].concat()
    }

    /// A data page with a body of so many bytes.
    fn of_len(body: usize) -> Vec<u8> {
        let mut header = vec![0x15, 0];
        for _ in 0..2 {
            header.push(0x15);
            let mut left = (body as u64) << 1;
            while left >= 0x80 {
                header.push(left as u8 | 0x80);
                left >>= 7;
            }
            header.push(left as u8);
        }
        header.extend(&DATA[6..]);
        page(&header, body)
    }

    fn of(bytes: &[u8]) -> Result<PageList, PageFault> {
        PageList::of(bytes, Compression::UNCOMPRESSED, 32)
    }

    #[test]
    fn pages_follow_each_other_and_others_are_passed_over() {
        // An index page of 2 bytes, as nobody writes them.
        let index = page(&[0x15, 2, 0x15, 4, 0x15, 4, 0x3c, 0], 2);
        let dictionary = page(
            &[0x15, 4, 0x15, 24, 0x15, 24, 0x4c, 0x15, 6, 0x15, 0, 0],
            12,
        );
        let data = page(&DATA, 5);
        let chunk = [&dictionary[..], &data, &index, &data].concat();
        let list = of(&chunk).unwrap();
        let dictionary_page = list.dictionary.as_ref().unwrap();
        assert_eq!(
            (dictionary_page.entries, dictionary_page.uncompressed),
            (3, 12)
        );
        assert_eq!(list.entries, 6);
        let firsts: Vec<_> = list.pages.iter().map(|page| page.first_entry).collect();
        assert_eq!(firsts, [0, 3]);
        assert_eq!(list.pages[1].body, chunk.len() - 5..chunk.len());
        assert_eq!(list.pages[0].crc, None);
        // A dictionary behind data, or a second one.
        assert!(of(&[&data[..], &dictionary].concat()).is_err());
        assert!(of(&[&dictionary[..], &dictionary].concat()).is_err());
        // Cut anywhere but between pages.
        for len in 1..data.len() {
            assert!(of(&data[..len]).is_err(), "{len}");
        }
        assert_eq!(of(&[]), Ok(PageList::default()));
        // More bytes than Snappy can make of 5.
        let mut large = DATA.to_vec();
        large.splice(3..4, [0x80, 0x80, 1]);
        let large = page(&large, 5);
        assert!(of(&large).is_ok());
        let fault = PageList::of(&large, Compression::SNAPPY, 32).unwrap_err();
        let PageFault::Malformed(what) = fault else {
            panic!("{fault:?}");
        };
        assert!(what.contains("more than SNAPPY can make"), "{what}");
    }

    #[test]
    fn numbers_are_read_in_any_form() {
        let read = |bytes: &[u8]| {
            let mut rest = bytes;
            number(&mut rest).map(|number| (number, rest.len()))
        };
        // Of one to five bytes, and longer than they have to be.
        for value in [
            0,
            -1,
            63,
            -64,
            64,
            8191,
            -8192,
            8192,
            1 << 20,
            i32::MAX,
            i32::MIN,
        ] {
            let mut left = u64::from(((value << 1) ^ (value >> 31)).cast_unsigned());
            let mut bytes = Vec::new();
            while left >= 0x80 {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            for _ in 0..3 {
                assert_eq!(read(&[&bytes[..], &[1]].concat()), Some((value, 1)));
                assert_eq!(read(&bytes[..bytes.len() - 1]), None);
                *bytes.last_mut().unwrap() |= 0x80;
                bytes.push(0);
            }
        }
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x1f]), None);
        // Fields in order, with one more behind, with one that is not the next, and without one.
        let all = |bytes: &[u8]| {
            let mut rest = bytes;
            numbers::<2>(&mut rest, Some(7)).map(|(found, flag)| (found, flag, rest.len()))
        };
        assert_eq!(all(&[0x15, 6, 0x15, 3, 0, 9]), Some(([3, -2], None, 1)));
        assert_eq!(
            all(&[0x15, 6, 0x15, 3, 0x51, 0]),
            Some(([3, -2], Some(true), 0))
        );
        assert_eq!(
            all(&[0x15, 6, 0x15, 3, 0x52, 0]),
            Some(([3, -2], Some(false), 0))
        );
        assert_eq!(
            all(&[0x15, 6, 0x15, 3, 0x15, 5, 0]),
            Some(([3, -2], None, 0))
        );
        assert_eq!(all(&[0x15, 6, 0x25, 3, 0]), None);
        assert_eq!(all(&[0x15, 6, 0x15, 3]), None);
        assert_eq!(all(&[0x15, 6, 0]), None);
    }

    #[test]
    fn checksums_are_kept() {
        // The CRC is field 4: after it the data header is one further, not two.
        let mut header = DATA[..6].to_vec();
        header.extend([0x15, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x1c]);
        header.extend(&DATA[7..]);
        let list = of(&page(&header, 5)).unwrap();
        assert_eq!(list.pages[0].crc, Some(i32::MIN.cast_unsigned()));
        assert_eq!(least_bits(Type::INT32, 0), 32);
    }

    #[test]
    fn room_is_made_for_pages_as_long_as_the_first_up_to_a_number_and_given_back() {
        assert_eq!((to_follow(100, 22), to_follow(21, 22)), (4, 0));
        assert_eq!(to_follow(22 * RESERVED, 22), RESERVED);
        assert_eq!(to_follow(usize::MAX, 22), RESERVED);
        let memory = |pages: usize| (size_of::<PageList>() + pages * size_of::<DataPage>()) as u64;
        assert_eq!(PageList::default().memory(), memory(0));
        // All as long as the first: just the room that they take.
        let list = of(&of_len(100).repeat(500)).unwrap();
        assert_eq!((list.pages.len(), list.memory()), (500, memory(500)));
        // A tiny first one in a large chunk: what was too much does not stay.
        let list = of(&[of_len(5), of_len(1 << 20)].concat()).unwrap();
        assert_eq!(list.pages.len(), 2);
        assert!(list.memory() <= memory(4), "{}", list.memory());
    }

    /// Many small pages, which is the worst there is for a walk over headers. Run by hand: `cargo test --release … -- --ignored`.
    #[test]
    #[ignore = "a measurement"]
    fn how_fast_the_walk_is() {
        for page in [128, 1 << 10, 8 << 10, 1 << 20] {
            let one = of_len(page);
            let chunk = one.repeat((64 << 20) / one.len());
            let begun = std::time::Instant::now();
            let list = of(&chunk).unwrap();
            let rate = chunk.len() as f64 / begun.elapsed().as_secs_f64() / 1e9;
            eprintln!("{} pages of {page} bytes: {rate:.1} GB/s", list.pages.len());
        }
    }
}
