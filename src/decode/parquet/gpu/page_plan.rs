//! From the pages of a column chunk to what the kernels are told, and where on the device each page goes.

use std::ops::Range;

use parquet::basic::{Compression, Encoding as Stored, Type};
use parquet::file::metadata::ColumnChunkMetaData;

use super::codecs::undone_by;
use super::shape::LeafShape;
use crate::cuda::columns::{Column, Convert, Encoding, Page, Values};
use crate::cuda::decompress::Codec;
use crate::format::parquet::{DataPage, DictionaryPage, PageLevels, PageList};

/// Pages begin at multiples of this on the device.
const ALIGN: u64 = 64;

/// Zeros behind the last page: kernels read whole words.
const PADDING: u64 = 64;

/// The memory of pages on the device, as far as it is given out.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    end: u64,
}

impl Arena {
    /// Room for `len` bytes.
    fn take(&mut self, len: u32) -> Range<u64> {
        let start = self.end.next_multiple_of(ALIGN);
        self.end = start + u64::from(len);
        start..self.end
    }

    /// Bytes of all of it.
    pub(super) fn len(&self) -> u64 {
        self.end.next_multiple_of(ALIGN) + PADDING
    }
}

/// A column chunk that the kernels decode.
#[derive(Debug)]
pub(super) struct ChunkPlan {
    /// What the kernels are told.
    pub(super) column: Column,
    /// Its pages, in the order of the arena.
    pub(super) bodies: Vec<Body>,
    /// Of data pages of version 2 of nested leaves: bytes of repetition levels.
    pub(super) repetition: Vec<u32>,
}

/// A page on its way to the device. There are many of them, so it is small.
#[derive(Clone, Debug)]
pub(super) struct Body {
    /// Its bytes in the chunk.
    pub(super) stored: Range<usize>,
    /// Its place in the arena.
    pub(super) place: Range<u64>,
    /// Who brings it to its place.
    pub(super) by: By,
    pub(super) crc: Option<u32>,
    /// Bytes of its header, in front of it.
    pub(super) header: u32,
    /// Bytes at its start that are not compressed in any case.
    pub(super) plain: u32,
    /// Zeros behind it in the arena. Not known before all pages are.
    pub(super) gap: u32,
    /// Whether there is a codec to undo.
    pub(super) compressed: bool,
}

/// Who brings a page to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The host: why, if there is something to undo.
    Host(Option<&'static str>),
    /// A kernel, of what begins there in the bytes that are brought to the device as they are stored.
    Device { codec: Codec, source: u64 },
}

impl Body {
    /// Where it is among the bytes that are brought to the device as they are stored, of which it begins at `start`.
    pub(super) fn source(&self, start: u64) -> Range<u64> {
        start..start + self.stored.len() as u64
    }

    /// Bytes that are decompressed out of it.
    pub(super) fn made(&self) -> u64 {
        (self.place.end - self.place.start).saturating_sub(u64::from(self.plain))
    }
}

impl ChunkPlan {
    /// Plans those pages of `chunk` that are in `list`, all of them, which have to have `wanted` entries.
    ///
    /// # Errors
    /// Why the kernels do not decode it, in words. Who decodes it instead also finds out what is wrong with it, if something is.
    pub(super) fn of(
        shape: &LeafShape,
        chunk: &ColumnChunkMetaData,
        list: &PageList,
        wanted: u64,
        arena: &mut Arena,
    ) -> Result<Self, String> {
        let codec = chunk.compression();
        let mut data_pages = list.pages.as_slice();
        // A page without entries ends a column for the crate's reader, so it never sees one that is last.
        while let [before @ .., last] = data_pages
            && last.entries == 0
        {
            data_pages = before;
        }
        if list.entries != wanted {
            let what = if shape.levels.is_none() {
                "rows"
            } else {
                "levels"
            };
            return Err(format!("{} entries for {wanted} {what}", list.entries));
        }
        let is_stored = codec == Compression::UNCOMPRESSED;
        let undone = undone_by(codec);
        // Columns without a page that needs it: the crate would decode it all the same.
        let mut bodies = Vec::with_capacity(data_pages.len() + 1);
        let mut dictionary = None;
        if let Some(page) = &list.dictionary {
            let place = arena.take(page.uncompressed);
            checked_dictionary(shape, chunk, page)?;
            bodies.push(Body {
                stored: page.body.clone(),
                place: place.clone(),
                by: match is_stored {
                    true => By::Host(None),
                    false => undone,
                },
                crc: page.crc,
                header: page.header,
                plain: 0,
                gap: 0,
                compressed: !is_stored,
            });
            dictionary = Some((place, u64::from(page.entries)));
        }
        let mut pages = Vec::with_capacity(data_pages.len());
        let mut repetition = Vec::new();
        for page in data_pages {
            let encoding = encoding_of(shape, chunk.column_type(), page.encoding)?;
            if encoding == Encoding::Dictionary && dictionary.is_none() {
                return Err("indices without a dictionary".into());
            }
            if page.entries == 0 {
                return Err("a page without entries before others".into());
            }
            let levels = levels_of(shape, page)?;
            let compressed = !is_stored
                && !matches!(
                    page.levels,
                    PageLevels::V2 {
                        compressed: false,
                        ..
                    }
                );
            let len = page.uncompressed;
            if !compressed && len as usize != page.body.len() {
                return Err(format!(
                    "a page that is not compressed has {} bytes, {len} by its header",
                    page.body.len()
                ));
            }
            let place = arena.take(len);
            bodies.push(Body {
                stored: page.body.clone(),
                place: place.clone(),
                by: match compressed {
                    true => undone,
                    false => By::Host(None),
                },
                crc: page.crc,
                header: page.header,
                // Not more than the page has: its walk looked at that.
                plain: levels.repetition.saturating_add(levels.definition),
                gap: 0,
                compressed,
            });
            let mut start = place.start + u64::from(levels.repetition);
            if shape.levels.is_some() {
                start = place.start;
                repetition.push(levels.repetition);
            }
            pages.push(Page {
                body: start..place.end,
                v1: levels.v1,
                def_len: levels.definition,
                entries: u64::from(page.entries),
                encoding,
                nulls: levels.nulls,
            });
        }
        if let (Convert::Indices { .. }, None) = (shape.convert, &dictionary) {
            return Err("it has no dictionary".into());
        }
        let column = Column {
            values: shape.values,
            nullable: shape.nullable,
            dictionary,
            pages,
            convert: shape.convert,
        };
        Ok(ChunkPlan {
            column,
            bodies,
            repetition,
        })
    }

    /// Bytes of the strings in it, about: entries of the dictionary are taken to be as long as they are on average, and used as often.
    pub(super) fn text(&self) -> u64 {
        let column = &self.column;
        let len = |range: &Range<u64>| range.end.saturating_sub(range.start);
        let (bytes, entries) = match &column.dictionary {
            Some((range, entries)) => (len(range), (*entries).max(1)),
            None => (0, 1),
        };
        match (column.values, column.convert) {
            (Values::Bytes { .. }, Convert::Same) => {
                let each = column.pages.iter().map(|page| match page.encoding {
                    Encoding::Dictionary => page.entries.saturating_mul(bytes) / entries,
                    _ => len(&page.body),
                });
                each.fold(0, u64::saturating_add)
            }
            (Values::Bytes { .. }, Convert::Indices { .. }) => bytes,
            _ => 0,
        }
    }
}

/// Whether the dictionary is one that the crate takes, and has all of its entries.
fn checked_dictionary(
    shape: &LeafShape,
    chunk: &ColumnChunkMetaData,
    page: &DictionaryPage,
) -> Result<(), String> {
    let len = u64::from(page.uncompressed);
    if chunk.compression() == Compression::UNCOMPRESSED && page.body.len() as u64 != len {
        return Err("a dictionary of another size than its header says".into());
    }
    if !matches!(page.encoding, Stored::PLAIN | Stored::PLAIN_DICTIONARY) {
        return Err(format!("a dictionary in {}", page.encoding));
    }
    let entries = u64::from(page.entries);
    if entries > shape.entries {
        return Err(format!("a dictionary of {entries} entries"));
    }
    let width = match shape.values {
        Values::Boolean => return Err("a dictionary of booleans".into()),
        // Each has a length of 4 bytes; the kernels see whether they end where the page does.
        Values::Bytes { .. } if entries > len / 4 => {
            return Err(format!("{len} bytes of a dictionary of {entries} entries"));
        }
        Values::Bytes { .. } => return Ok(()),
        Values::Fixed { width } => width,
    };
    if len != u64::from(page.entries) * u64::from(width) {
        return Err(format!(
            "{len} bytes of a dictionary of {} entries",
            page.entries
        ));
    }
    Ok(())
}

/// The encoding of a page's values, if the kernels have it.
fn encoding_of(shape: &LeafShape, kind: Type, encoding: Stored) -> Result<Encoding, String> {
    let is_boolean = shape.values == Values::Boolean;
    let is_bytes = matches!(shape.values, Values::Bytes { .. });
    let is_text = is_bytes && shape.convert == Convert::Same;
    // The crate has it for INT96 neither.
    let is_split = !is_boolean && !is_bytes && !matches!(shape.convert, Convert::Int96 { .. });
    match encoding {
        Stored::PLAIN if matches!(shape.convert, Convert::Indices { .. }) => {
            Err("pages without indices in what is to be a dictionary".into())
        }
        Stored::PLAIN => Ok(Encoding::Plain),
        Stored::PLAIN_DICTIONARY | Stored::RLE_DICTIONARY if !is_boolean => {
            Ok(Encoding::Dictionary)
        }
        Stored::RLE if is_boolean => Ok(Encoding::Rle),
        Stored::BYTE_STREAM_SPLIT if is_split => Ok(Encoding::ByteStreamSplit),
        Stored::DELTA_BINARY_PACKED if matches!(kind, Type::INT32 | Type::INT64) => {
            Ok(Encoding::DeltaBinaryPacked)
        }
        Stored::DELTA_LENGTH_BYTE_ARRAY if is_text => Ok(Encoding::DeltaLengthByteArray),
        Stored::DELTA_BYTE_ARRAY if is_text => Ok(Encoding::DeltaByteArray),
        other => Err(format!("the encoding {other}")),
    }
}

/// What the kernels are told of the levels of a page.
struct PageShape {
    v1: bool,
    /// Bytes of levels of lists, at the start. Some writers have them where there are no lists; nobody looks at them.
    repetition: u32,
    /// Bytes of definition levels behind them.
    definition: u32,
    nulls: Option<u64>,
}

fn levels_of(shape: &LeafShape, page: &DataPage) -> Result<PageShape, String> {
    match page.levels {
        PageLevels::V1 {
            definition,
            repetition,
        } => {
            if shape.max_def > 0 && definition != Stored::RLE {
                return Err(format!("levels in {definition}"));
            }
            let lists = shape.levels.as_ref().map_or(0, |levels| levels.lists.len());
            if lists > 0 && repetition != Stored::RLE {
                return Err(format!("levels in {repetition}"));
            }
            Ok(PageShape {
                v1: true,
                repetition: 0,
                definition: 0,
                nulls: None,
            })
        }
        PageLevels::V2 {
            definition,
            repetition,
            nulls,
            ..
        } => {
            // How many rows it says to have, the crate does not look at where each entry is one.
            if shape.max_def == 0 && (definition > 0 || nulls > 0) {
                return Err("a page with nulls in a column without".into());
            }
            Ok(PageShape {
                v1: false,
                repetition,
                definition,
                nulls: Some(u64::from(nulls)),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::super::lists::Lists;
    use super::*;
    use crate::decode::parquet::checked::tests::{RLE, chunk, header};

    /// The encoding BIT_PACKED of levels.
    const PACKED: i32 = 4;

    fn shape(chunk: &ColumnChunkMetaData) -> LeafShape {
        let nullable = chunk.column_descr().max_def_level() > 0;
        let field = Field::new("n", DataType::Int32, nullable);
        LeafShape::of(chunk.column_descr(), &field).unwrap()
    }

    /// A page of 4-byte values in PLAIN, without levels.
    fn page(values: i32, stored: usize, levels: [i32; 2]) -> Vec<u8> {
        let mut page = header(values as usize * 4, stored, values, levels);
        page.extend(vec![7; stored]);
        page
    }

    fn planned(
        pages: &[Vec<u8>],
        nullable: bool,
        codec: Compression,
        rows: u64,
    ) -> Result<(ChunkPlan, u64), String> {
        let bytes = pages.concat();
        let chunk = chunk(i16::from(nullable), codec, bytes.len());
        let mut arena = Arena::default();
        arena.take(3);
        let list = Lists::default().of((0, 0), &chunk, &bytes)?;
        let plan = ChunkPlan::of(&shape(&chunk), &chunk, &list, rows, &mut arena)?;
        Ok((plan, arena.len()))
    }

    #[test]
    fn pages_have_places_of_their_own() {
        let pages = [page(3, 12, [RLE; 2]), page(20, 80, [RLE; 2])];
        let (plan, arena) = planned(&pages, false, Compression::UNCOMPRESSED, 23).unwrap();
        let places: Vec<_> = plan.bodies.iter().map(|body| body.place.clone()).collect();
        assert_eq!(places, [64..76, 128..208]);
        // Up to a multiple of 64, and 64 behind that.
        assert_eq!(arena, 320);
        let header = pages[0].len() - 12;
        assert_eq!(plan.bodies[0].header as usize, header);
        assert_eq!(plan.bodies[0].stored, header..header + 12);
        assert!(!plan.bodies[0].compressed);
        let column = &plan.column;
        assert_eq!((column.rows(), column.nullable), (23, false));
        assert_eq!(column.pages[1].body, places[1]);
        assert_eq!(column.pages[1].entries, 20);
        assert!(column.pages[1].v1 && column.pages[1].nulls.is_none());
        // An empty page at the end is not read by the crate, nor here.
        let pages = [page(3, 12, [RLE; 2]), page(0, 0, [RLE; 2])];
        let (plan, _) = planned(&pages, false, Compression::UNCOMPRESSED, 3).unwrap();
        assert_eq!(plan.column.pages.len(), 1);
        // A codec gives pages the length that they promise.
        let (plan, _) = planned(&[page(5, 9, [RLE; 2])], true, Compression::SNAPPY, 5).unwrap();
        assert_eq!(
            (plan.bodies[0].place.clone(), plan.bodies[0].compressed),
            (64..84, true)
        );
    }

    #[test]
    fn what_is_odd_is_left_to_the_host() {
        let none = Compression::UNCOMPRESSED;
        let right = || page(3, 12, [RLE; 2]);
        for (pages, nullable, codec, rows, why) in [
            (vec![right()], false, none, 4, "3 entries for 4 rows"),
            (
                vec![right(), right()],
                false,
                none,
                3,
                "6 entries for 3 rows",
            ),
            (
                vec![page(0, 0, [RLE; 2]), right()],
                false,
                none,
                3,
                "a page without entries before others",
            ),
            (
                vec![page(3, 12, [PACKED; 2])],
                true,
                none,
                3,
                "levels in BIT_PACKED",
            ),
            (
                vec![page(3, 11, [RLE; 2])],
                false,
                none,
                3,
                "11 bytes, 12 by its header",
            ),
            (
                vec![page(3, 12, [RLE; 2])[..20].to_vec()],
                false,
                none,
                3,
                "the page at byte 0",
            ),
            (
                vec![page(300, 1, [RLE; 2])],
                false,
                Compression::SNAPPY,
                300,
                "more than SNAPPY",
            ),
            (vec![], false, none, 1, "0 entries for 1 rows"),
        ] {
            let error = planned(&pages, nullable, codec, rows).unwrap_err();
            assert!(error.contains(why), "{error}, not {why}");
        }
        // Columns without levels may name the encoding, as many writers do.
        planned(&[page(3, 12, [PACKED; 2])], false, none, 3).unwrap();
    }
}
