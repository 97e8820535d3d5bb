//! Columns on a device, flat and nested: pages that are decompressed become Arrow buffers.
//!
//! The planner says where the pages of a column chunk lie and what their headers promise; kernels find everything else. A kernel only
//! detects what is wrong: the chunk is a [`Outcome::Fault`] then, and the caller decodes it another way, which gives the values or the
//! typed error. What is decoded here is never more than the `parquet` crate would accept, so some pages that it reads are faults
//! too: those with bytes after their values, for one.
// Seen from outside for tests and benches of kernels alone, with the feature `testing`.
#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, dead_code, unused_imports)
)]

use std::ops::Range;

use crate::buffer::DeviceBytes;

mod decode;
mod delta;
mod delta_strings;
mod even;
mod levels;
mod marks;
#[cfg(any(test, feature = "testing"))]
pub mod nested_reference;
mod nesting;
#[cfg(any(test, feature = "testing"))]
pub mod reference;
mod select;
#[cfg(any(test, feature = "testing"))]
pub mod select_reference;
mod strings;

pub(super) use decode::{FIXED, RLE, WALK};
pub(super) use delta::DELTA;
pub(super) use delta_strings::DELTA_STRINGS;
pub use even::Uneven;
pub use levels::{Leaf, Levels, List, Nested, NestedOutcome, Offsets, Valid};
#[cfg_attr(not(feature = "parquet"), allow(unused_imports))]
pub(crate) use levels::{MOST_DEF, MOST_LISTS};
pub use marks::{DeltaMark, DeltaMarks, LEAST_BYTES, LEAST_ROWS, Mark, Marks, PageMarks};
#[cfg_attr(not(feature = "parquet"), allow(unused_imports))]
pub(crate) use nesting::Marked;
pub(super) use nesting::NESTING;
#[cfg_attr(not(feature = "parquet"), allow(unused_imports))]
pub(crate) use select::RANGE;
pub(super) use select::SELECT;
pub use select::{Selection, Slots};
pub(super) use strings::STRINGS;

/// What the values of a column are on its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Bits. They become a bitmap, the lowest bit first, as Arrow has it.
    Boolean,
    /// So many bytes each: 4 and 8 of numbers, 12 of INT96, any of FIXED_LEN_BYTE_ARRAY up to [`MOST_WIDTH`]; not 0.
    Fixed {
        /// Bytes of a value.
        width: u32,
    },
    /// Each with a length of its own: BYTE_ARRAY.
    Bytes {
        /// Whether offsets in the output are of 8 bytes, not 4.
        large: bool,
        /// Whether each value has to be UTF-8, and each entry of the dictionary.
        utf8: bool,
    },
}

/// How the values of a page are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// One after the other; booleans as bits, bytes of any length behind their length in 4 bytes.
    Plain,
    /// A byte with the width of indices, then runs of them. PLAIN_DICTIONARY and RLE_DICTIONARY of data pages.
    Dictionary,
    /// Booleans as a length of 4 bytes, then runs of bits.
    Rle,
    /// The first byte of each value, then the second of each, and so on.
    ByteStreamSplit,
    /// Deltas of integers of 4 or 8 bytes, packed.
    DeltaBinaryPacked,
    /// Lengths as deltas of integers of 4 bytes, then the bytes of all values.
    DeltaLengthByteArray,
    /// How many bytes each value has of the one before, as deltas, then the rest of each in the encoding above. Not of decimals.
    DeltaByteArray,
}

/// A data page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Where its decompressed body is in the arena, levels first.
    pub body: Range<u64>,
    /// Version 1: levels, if there are any, begin with their length. They must be of the encoding RLE.
    pub v1: bool,
    /// Version 2: bytes of definition levels at the beginning of the body, and there are no others. Not looked at in version 1.
    pub def_len: u32,
    /// Rows. A page without any has to be the last: the `parquet` crate ends a column there.
    pub entries: u64,
    /// Version 2: how many of them are null, as the header says. `None` in version 1.
    pub nulls: Option<u64>,
    /// How its values are stored.
    pub encoding: Encoding,
}

/// A column chunk, or those of its pages that are wanted.
#[derive(Clone, Debug)]
pub struct Column {
    /// What is on the pages.
    pub values: Values,
    /// Whether rows can be null: the highest definition level is 1, else 0.
    pub nullable: bool,
    /// The dictionary page: where its decompressed body is in the arena, and how many entries its header says.
    pub dictionary: Option<(Range<u64>, u64)>,
    /// The data pages, in their order.
    pub pages: Vec<Page>,
    /// What becomes of each value.
    pub convert: Convert,
}

/// What becomes of a value on its way to the output. Numbers are little-endian there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convert {
    /// Nothing; the only one for booleans. Bytes of any length get offsets.
    Same,
    /// Some of its bytes: the first one or two of an INT32 for narrow integers, parts of an interval.
    Part {
        /// The first byte.
        offset: u32,
        /// How many.
        len: u32,
    },
    /// An integer with sign becomes a wider one: timestamps and decimals of INT32 and INT64.
    Widen {
        /// Bytes of the output: 4, 8, 16 or 32, at least those of the value; which are 4 or 8.
        to: u32,
    },
    /// The same for decimals of FIXED_LEN_BYTE_ARRAY and BYTE_ARRAY, which are big-endian and have any length up to that of the
    /// output. One of no bytes is 0.
    WidenBigEndian {
        /// Bytes of the output: 4, 8, 16 or 32.
        to: u32,
    },
    /// Bytes of any length stay indices of a dictionary, which comes out as well. All pages must have indices.
    Indices {
        /// Bytes of an index in the output: 1, 2, 4 or 8.
        to: u32,
    },
    /// Days as 4 bytes become milliseconds as 8.
    DaysToMilliseconds,
    /// An INT96 (nanoseconds of the day, Julian day) becomes an `i64` since 1970, which wraps around.
    Int96 {
        /// How many of the output's units a second has: 1, a thousand, a million, or 1,000,000,000.
        per_second: u32,
    },
}

/// A column on the device; cloning shares its memory.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The values one after the other, or a bitmap of booleans; slots of nulls are zero. A bitmap has whole words of 4 bytes, and
    /// bits past the last row are zero. Of bytes of any length those of all rows, without anything for nulls; indices, where they are kept.
    pub values: DeviceBytes,
    /// Of bytes of any length: where those of each row begin, of 4 or 8 bytes, and one more, which is the length of all.
    pub offsets: Option<DeviceBytes>,
    /// What indices are of, where they are kept.
    pub dictionary: Option<Box<Decoded>>,
    /// A bitmap of the same kind, a bit for each row that is not null; where rows can be null.
    pub validity: Option<DeviceBytes>,
    /// How many rows are null.
    pub nulls: u64,
    /// How many rows there are.
    pub rows: u64,
}

/// What came of a column.
#[derive(Debug)]
pub enum Outcome {
    /// All of it.
    Done(Decoded),
    /// Something is wrong, or not what kernels do.
    Fault {
        /// The first page that it is so for, by its number in [`Column::pages`]; 0 for what is not about one page.
        page: u32,
        /// What, of [`check`].
        check: u32,
    },
    /// Nothing is wrong, but the bytes of its rows are more than offsets of 4 bytes can tell, or than are allowed.
    Large {
        /// So many.
        bytes: u64,
    },
}

impl Column {
    /// Rows of all pages.
    pub fn rows(&self) -> u64 {
        let rows = self.pages.iter().map(|page| page.entries);
        rows.fold(0, u64::saturating_add)
    }

    /// Bytes of a value in the output, or `None` for bits, and for bytes of any length. Zero for what no kernel does.
    pub fn output_width(&self) -> Option<u32> {
        let width = match self.values {
            Values::Boolean => return None,
            Values::Bytes { .. } => {
                return match self.convert {
                    Convert::Same => None,
                    Convert::WidenBigEndian { to: to @ (16 | 32) } => Some(to),
                    Convert::Indices {
                        to: to @ (1 | 2 | 4 | 8),
                    } => Some(to),
                    _ => Some(0),
                };
            }
            Values::Fixed { width } => width,
        };
        Some(match self.convert {
            Convert::Same => width,
            Convert::Part { offset, len } => match offset.checked_add(len) {
                Some(end) if end <= width => len,
                _ => 0,
            },
            Convert::Widen { to } if matches!(width, 4 | 8) && to >= width => widened(to),
            Convert::WidenBigEndian { to } if width <= to => widened(to),
            Convert::DaysToMilliseconds if width == 4 => 8,
            Convert::Int96 { per_second } if width == 12 && is_unit(per_second) => 8,
            _ => 0,
        })
    }

    /// Bytes of the device's memory that it takes beside its output and the tables of all columns: for the values of some encodings, on
    /// their way.
    pub fn scratch(&self) -> u64 {
        delta::scratch(self)
    }

    /// Whether what comes out of it are values of fixed width, one for one value or index.
    fn is_fixed(&self) -> bool {
        matches!(self.values, Values::Fixed { .. })
            || matches!(self.convert, Convert::Indices { .. })
    }

    /// Whether its values have lengths of their own, and come out so.
    fn is_text(&self) -> bool {
        matches!(self.values, Values::Bytes { .. }) && self.convert == Convert::Same
    }

    /// What is wrong with the description itself, for an arena of so many bytes: the first page that it is wrong for, and why.
    fn shape(&self, arena: u64) -> Result<(), (u32, u32)> {
        self.shape_with(arena, self.nullable)
    }

    /// The same, where pages may tell of nulls or not.
    fn shape_with(&self, arena: u64, nulls_told: bool) -> Result<(), (u32, u32)> {
        let inside = |range: &Range<u64>| range.start <= range.end && range.end <= arena;
        let all = |wrong: bool, check| if wrong { Err((0, check)) } else { Ok(()) };
        match self.output_width() {
            None => all(self.convert != Convert::Same, check::SHAPE)?,
            Some(width) => all(width == 0, check::SHAPE)?,
        }
        if let Values::Fixed { width } = self.values {
            all(width > MOST_WIDTH, check::SHAPE)?;
        }
        if let Convert::Indices { .. } = self.convert {
            all(self.dictionary.is_none(), check::SHAPE)?;
        }
        if let (Values::Bytes { utf8, .. }, Convert::WidenBigEndian { .. }) =
            (self.values, self.convert)
        {
            all(utf8, check::SHAPE)?;
        }
        if let (Some((bytes, entries)), Values::Fixed { width }) = (&self.dictionary, self.values) {
            let wanted = entries.checked_mul(u64::from(width));
            let there = bytes.end.saturating_sub(bytes.start);
            all(!inside(bytes), check::SHAPE)?;
            all(wanted != Some(there) || *entries > MOST, check::DICTIONARY)?;
        }
        if let (Some((bytes, entries)), Values::Bytes { .. }) = (&self.dictionary, self.values) {
            let there = bytes.end.saturating_sub(bytes.start);
            all(!inside(bytes) || there > MOST, check::SHAPE)?;
            // Each has a length, if nothing else.
            all(*entries > there / 4, check::DICTIONARY)?;
        }
        for (number, page) in self.pages.iter().enumerate() {
            let boolean = self.values == Values::Boolean;
            let bytes = matches!(self.values, Values::Bytes { .. });
            let int96 = matches!(self.convert, Convert::Int96 { .. });
            let encoded = match page.encoding {
                Encoding::Plain => !matches!(self.convert, Convert::Indices { .. }),
                Encoding::Dictionary => !boolean && self.dictionary.is_some(),
                Encoding::Rle => boolean,
                // INT96 has none of these.
                Encoding::ByteStreamSplit => !boolean && !bytes && !int96,
                Encoding::DeltaBinaryPacked => {
                    matches!(self.values, Values::Fixed { width: 4 | 8 })
                }
                Encoding::DeltaLengthByteArray => {
                    bytes && !matches!(self.convert, Convert::Indices { .. })
                }
                Encoding::DeltaByteArray => self.is_text(),
            };
            let body = page.body.end.saturating_sub(page.body.start);
            let small = page.entries <= MOST && body <= MOST && inside(&page.body);
            let nulls = page.nulls.unwrap_or(0);
            let nulls = nulls <= page.entries && (nulls_told || nulls == 0);
            if !encoded || !small || !nulls {
                return Err((number as u32, check::SHAPE));
            }
        }
        Ok(())
    }
}

/// Bytes of a value of fixed width at most: kernels count those of 1,024 rows in 32 bits (`WIDEST` in `kernels/columns.cuh`).
pub const MOST_WIDTH: u32 = 1 << 20;

/// Rows and bytes of a page at most: their numbers are `i32` in its header.
const MOST: u64 = i32::MAX as u64;

const fn widened(to: u32) -> u32 {
    match to {
        4 | 8 | 16 | 32 => to,
        _ => 0,
    }
}

const fn is_unit(per_second: u32) -> bool {
    matches!(per_second, 1 | 1_000 | 1_000_000 | 1_000_000_000)
}

/// Why a page was not decoded. In the order in which a page is looked at; the numbers are those of `kernels/columns.cuh`.
pub mod check {
    /// The description is of what no kernel does, or does not fit together.
    pub const SHAPE: u32 = 1;
    /// The dictionary page is not as long as its entries, or one of them is longer than what is left of it.
    pub const DICTIONARY: u32 = 2;
    /// The levels are longer than the page.
    pub const LEVELS_LENGTH: u32 = 3;
    /// A run of levels is wrong: this, and one of the reasons below.
    pub const LEVELS: u32 = 16;
    /// The levels have not as many nulls as the header says.
    pub const NULLS: u32 = 32;
    /// The section of values is not as long as they are, or one of them is longer than what is left of it.
    pub const VALUES_LENGTH: u32 = 33;
    /// No width of indices, or one above 32, or above that of the indices that are kept.
    pub const BIT_WIDTH: u32 = 34;
    /// Something follows the last run that is wanted, and it is not padding by zeros.
    pub const TRAILING: u32 = 35;
    /// A run of indices or of booleans is wrong: this, and one of the reasons below.
    pub const RUNS: u32 = 48;
    /// An index that the dictionary has no entry for.
    pub const INDEX: u32 = 64;
    /// A value that is not UTF-8; of page 0 it may be an entry of the dictionary. Looked for when nothing else was wrong.
    pub const UTF8: u32 = 65;
    /// A decimal with more bytes than the output has.
    pub const LENGTH: u32 = 66;

    /// A stream of deltas is wrong: this, and one of the reasons at the end.
    pub const DELTA: u32 = 80;

    /// A run of repetition levels is wrong: this, and one of the reasons below.
    pub const REPEATS: u32 = 112;
    /// Something follows the repetition levels that are wanted.
    pub const REPEATS_REST: u32 = 118;
    /// Two levels that do not go together, or one that is too high; an empty fixed-size list, or one of lists that is null.
    pub const LEVEL: u32 = 119;
    /// A page that has to begin with a row does not.
    pub const BEGIN: u32 = 120;
    /// A list goes on that is empty or null.
    pub const CONTINUED: u32 = 121;
    /// A fixed-size list has another number of items.
    pub const FIXED_SIZE: u32 = 122;
    /// The levels have another number of rows.
    pub const ROWS: u32 = 123;
    /// More slots than there may be.
    pub const SLOTS: u32 = 124;
    /// A tile does not begin where it is known to from another time: that was of other bytes.
    pub const MARKS: u32 = 125;

    /// Of a run: it is wanted, and the stream is at its end.
    pub const END: u32 = 1;
    /// Of a run: its header does not end in the stream, or within 32 bits.
    pub const HEADER: u32 = 2;
    /// Of a run: it has no values, or more than 2^31 - 1.
    pub const RUN_LENGTH: u32 = 3;
    /// Of a run: it is longer than the stream.
    pub const RUN_BYTES: u32 = 4;
    /// Of a run: the repeated value has more bits than values have.
    pub const RUN_VALUE: u32 = 5;

    /// Of a stream of deltas: its header, or that of a block, does not end in the page, or has a number of more than ten bytes.
    pub const DELTA_HEADER: u32 = 1;
    /// Of a stream of deltas: blocks are not of a multiple of 128 values below 2^31, or miniblocks not of a multiple of 32.
    pub const DELTA_BLOCK: u32 = 2;
    /// Of a stream of deltas: it has fewer values than the page, or more than its rows; lengths are as many as values.
    pub const DELTA_COUNT: u32 = 3;
    /// Of a stream of deltas: the first value, or the least of a block, is not one of the type.
    pub const DELTA_RANGE: u32 = 4;
    /// Of a stream of deltas: they have more bits than the type.
    pub const DELTA_WIDTH: u32 = 5;
    /// Of a stream of deltas: a miniblock is longer than what is left of the page.
    pub const DELTA_SHORT: u32 = 6;
    /// Of strings by such lengths: one is negative, more than the value before has, or more than what is left of the page; or the page's
    /// values have 4 GiB.
    pub const DELTA_TEXT: u32 = 7;
}
