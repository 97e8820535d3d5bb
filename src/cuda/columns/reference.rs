//! What the kernels do, one value after the other, on bytes of the host: slow, obvious, and what they are tested against.

use std::ops::Range;

use self::strings::{dictionary, is_text, joined, lengths};
use super::{Column, Convert, Encoding, Page, Values, check};

mod delta;
mod strings;

/// What came of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostOutcome {
    /// All its pages.
    Done {
        /// The values, or bits of them; slots of nulls are zero.
        values: Vec<u8>,
        /// A bit for each row, where rows can be null.
        validity: Option<Vec<u8>>,
        /// How many are null.
        nulls: u64,
        /// How many there are.
        rows: u64,
    },
    /// All pages of bytes of any length.
    Strings {
        /// Where those of each row begin, and where the last ones end.
        offsets: Vec<u64>,
        /// The bytes.
        bytes: Vec<u8>,
        /// As above.
        validity: Option<Vec<u8>>,
        /// How many are null.
        nulls: u64,
    },
    /// The same as indices, which are as other values, and offsets and bytes of the dictionary.
    Indices {
        /// The indices; those of nulls are zero.
        values: Vec<u8>,
        /// Of the entries.
        offsets: Vec<u64>,
        /// Of the entries.
        bytes: Vec<u8>,
        /// As above.
        validity: Option<Vec<u8>>,
        /// How many are null.
        nulls: u64,
    },
    /// The first page that something is wrong with, and the first thing that is.
    Fault {
        /// Its number in the column.
        page: u32,
        /// One of [`check`].
        check: u32,
    },
}

/// Decodes columns.
pub fn columns(arena: &[u8], columns: &[Column]) -> Vec<HostOutcome> {
    columns
        .iter()
        .map(|one| match column(arena, one) {
            Ok(done) => done,
            Err((page, check)) => HostOutcome::Fault { page, check },
        })
        .collect()
}

fn column(arena: &[u8], column: &Column) -> Result<HostOutcome, (u32, u32)> {
    column.shape(arena.len() as u64)?;
    // They are inside, as was just seen.
    let part = |range: &Range<u64>| &arena[range.start as usize..range.end as usize];
    let words = Words::of(&part, column)?;
    let mut rows = Vec::new();
    for (number, page) in column.pages.iter().enumerate() {
        let decoded = page_rows(part(&page.body), &words.entries, column, page);
        rows.extend(decoded.map_err(|check| (number as u32, check))?);
    }
    let of_pages = column.pages.iter().map(|page| page.entries);
    made(column, &words.words, &rows, of_pages)
}

/// A dictionary.
pub(super) struct Words {
    pub(super) words: Vec<Vec<u8>>,
    /// What indices lead to.
    pub(super) entries: Vec<Vec<u8>>,
}

impl Words {
    pub(super) fn of<'a>(
        part: &impl Fn(&Range<u64>) -> &'a [u8],
        column: &Column,
    ) -> Result<Self, (u32, u32)> {
        let words = dictionary(part, column).ok_or((0, check::DICTIONARY))?;
        let entries = match column.convert {
            Convert::Indices { to } => (0..words.len())
                .map(|at| at.to_le_bytes()[..to as usize].to_vec())
                .collect(),
            _ => words.clone(),
        };
        Ok(Words { words, entries })
    }
}

/// What rows become, of which each page has so many.
pub(super) fn made(
    column: &Column,
    words: &[Vec<u8>],
    rows: &[Option<Vec<u8>>],
    of_pages: impl Iterator<Item = u64>,
) -> Result<HostOutcome, (u32, u32)> {
    if let Values::Bytes { utf8: true, .. } = column.values {
        if !words.iter().all(|word| is_text(word)) {
            return Err((0, check::UTF8));
        }
        let mut rest = rows;
        for (number, (page, count)) in column.pages.iter().zip(of_pages).enumerate() {
            let (own, others) = rest.split_at(count as usize);
            rest = others;
            let checked = page.encoding != Encoding::Dictionary;
            if checked && !own.iter().flatten().all(|row| is_text(row)) {
                return Err((number as u32, check::UTF8));
            }
        }
    }
    let valid: Vec<bool> = rows.iter().map(Option::is_some).collect();
    let nulls = valid.iter().filter(|valid| !**valid).count() as u64;
    let validity = column.nullable.then(|| bitmap(&valid));
    if column.is_text() {
        let (offsets, bytes) = joined(rows.iter().map(|row| row.as_deref().unwrap_or_default()));
        return Ok(HostOutcome::Strings {
            offsets,
            bytes,
            validity,
            nulls,
        });
    }
    let values = match column.output_width() {
        None => bitmap(
            &rows
                .iter()
                .map(|row| *row == Some(vec![1]))
                .collect::<Vec<_>>(),
        ),
        Some(width) => rows
            .iter()
            .flat_map(|row| match row {
                Some(value) => convert(value, column.convert),
                None => vec![0; width as usize],
            })
            .collect(),
    };
    if let Convert::Indices { .. } = column.convert {
        let (offsets, bytes) = joined(words.iter().map(Vec::as_slice));
        return Ok(HostOutcome::Indices {
            values,
            offsets,
            bytes,
            validity,
            nulls,
        });
    }
    Ok(HostOutcome::Done {
        values,
        validity,
        nulls,
        rows: rows.len() as u64,
    })
}

/// The rows of a page: the bytes of each value, one of 0 or 1 for a boolean.
fn page_rows(
    body: &[u8],
    dictionary: &[Vec<u8>],
    column: &Column,
    page: &Page,
) -> Result<Vec<Option<Vec<u8>>>, u32> {
    let entries = page.entries as usize;
    let outside = check::LEVELS_LENGTH;
    let (levels, section) = match (page.v1, column.nullable) {
        (true, false) => (&body[..0], body),
        (true, true) => {
            let (len, rest) = body.split_at_checked(4).ok_or(outside)?;
            let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
            rest.split_at_checked(len as usize).ok_or(outside)?
        }
        (false, _) => body
            .split_at_checked(page.def_len as usize)
            .ok_or(outside)?,
    };
    let valid = match column.nullable {
        true => {
            runs(levels, 1, entries)
                .map_err(|why| check::LEVELS | why)?
                .0
        }
        false => vec![1; entries],
    };
    let count = valid.iter().filter(|level| **level == 1).count();
    if page
        .nulls
        .is_some_and(|nulls| nulls != (entries - count) as u64)
    {
        return Err(check::NULLS);
    }
    let values = values(
        section,
        count,
        dictionary,
        column,
        (page.encoding, page.entries),
    )?;
    let mut values = values.into_iter();
    // Each level of 1 takes a value; there are as many.
    Ok(valid
        .iter()
        .map(|level| (*level == 1).then(|| values.next()).flatten())
        .collect())
}

/// `count` values of a page with so many rows.
pub(super) fn values(
    section: &[u8],
    count: usize,
    dictionary: &[Vec<u8>],
    column: &Column,
    encoding: (Encoding, u64),
) -> Result<Vec<Vec<u8>>, u32> {
    let values = any_values(section, count, dictionary, column, encoding)?;
    if let (Values::Bytes { .. }, Convert::WidenBigEndian { to }) = (column.values, column.convert)
        && values.iter().any(|value| value.len() > to as usize)
    {
        return Err(check::LENGTH);
    }
    Ok(values)
}

fn any_values(
    section: &[u8],
    count: usize,
    dictionary: &[Vec<u8>],
    column: &Column,
    (encoding, entries): (Encoding, u64),
) -> Result<Vec<Vec<u8>>, u32> {
    if column.values == Values::Boolean {
        let bits = match encoding {
            Encoding::Rle => {
                let (len, rest) = section.split_at_checked(4).ok_or(check::VALUES_LENGTH)?;
                let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
                let stream = rest.get(..len as usize).ok_or(check::VALUES_LENGTH)?;
                all_runs(stream, 1, count)?
            }
            _ => {
                if section.len() < count.div_ceil(8) {
                    return Err(check::VALUES_LENGTH);
                }
                (0..count)
                    .map(|i| u64::from(section[i / 8] >> (i % 8) & 1))
                    .collect()
            }
        };
        return Ok(bits.into_iter().map(|bit| vec![bit as u8]).collect());
    }
    if encoding == Encoding::Dictionary {
        let (bits, stream) = section.split_first().ok_or(check::BIT_WIDTH)?;
        let most = match column.convert {
            Convert::Indices { to } => (to * 8).min(32),
            _ => 32,
        };
        if u32::from(*bits) > most {
            return Err(check::BIT_WIDTH);
        }
        let indices = all_runs(stream, u32::from(*bits), count)?;
        let entry = |index: u64| dictionary.get(index as usize).cloned();
        let found: Option<_> = indices.into_iter().map(entry).collect();
        return found.ok_or(check::INDEX);
    }
    let delta = |why| check::DELTA | why;
    let Values::Fixed { width } = column.values else {
        return match encoding {
            Encoding::DeltaLengthByteArray => delta::strings(section, count).map_err(delta),
            Encoding::DeltaByteArray => delta::prefixed(section, count).map_err(delta),
            _ => lengths(section, count).ok_or(check::VALUES_LENGTH),
        };
    };
    if encoding == Encoding::DeltaBinaryPacked {
        let values = delta::packed(section, count, entries, width);
        let values = values.map_err(delta)?.into_iter();
        let bytes = |value: i64| value.to_le_bytes()[..width as usize].to_vec();
        return Ok(values.map(bytes).collect());
    }
    let width = width as usize;
    if count.checked_mul(width) != Some(section.len()) {
        return Err(check::VALUES_LENGTH);
    }
    let byte = |value: usize, at: usize| match encoding {
        Encoding::ByteStreamSplit => section[at * count + value],
        _ => section[value * width + at],
    };
    Ok((0..count)
        .map(|value| (0..width).map(|at| byte(value, at)).collect())
        .collect())
}

/// `count` values of the hybrid of runs and bit-packed groups, which nothing but zeros follows.
fn all_runs(stream: &[u8], bits: u32, count: usize) -> Result<Vec<u64>, u32> {
    let (values, rest) = runs(stream, bits, count).map_err(|why| check::RUNS | why)?;
    match rest.first() {
        None | Some(0) => Ok(values),
        Some(_) => Err(check::TRAILING),
    }
}

/// `count` values of the hybrid of runs and bit-packed groups (Parquet format, Encodings, RLE = 3), and what follows the runs they
/// are in. The last group may end before its eighth value.
pub(super) fn runs(mut stream: &[u8], bits: u32, count: usize) -> Result<(Vec<u64>, &[u8]), u32> {
    let mut values = Vec::new();
    while values.len() < count {
        if stream.is_empty() {
            return Err(check::END);
        }
        let (mut header, mut bytes) = (0u64, 0);
        loop {
            let byte = *stream.get(bytes).ok_or(check::HEADER)?;
            header |= u64::from(byte & 0x7f) << (7 * bytes);
            bytes += 1;
            if header > u64::from(u32::MAX) || (bytes == 5 && byte & 0x80 != 0) {
                return Err(check::HEADER);
            }
            if byte & 0x80 == 0 {
                break;
            }
        }
        stream = &stream[bytes..];
        let packed = header & 1 == 1;
        let len = (header >> 1) * if packed { 8 } else { 1 };
        if len == 0 || len > i32::MAX as u64 {
            return Err(check::RUN_LENGTH);
        }
        let wanted = (len as usize).min(count - values.len());
        if packed {
            let bits = bits as usize;
            if (wanted * bits).div_ceil(8) > stream.len() {
                return Err(check::RUN_BYTES);
            }
            for value in 0..wanted {
                let bit = |at: usize| u64::from(stream[at / 8] >> (at % 8) & 1);
                values.push((0..bits).map(|i| bit(value * bits + i) << i).sum());
            }
            stream = stream.get(len as usize / 8 * bits..).unwrap_or_default();
        } else {
            let bytes = bits.div_ceil(8) as usize;
            let (value, rest) = stream.split_at_checked(bytes).ok_or(check::RUN_BYTES)?;
            let value = value
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
            if value >> bits != 0 {
                return Err(check::RUN_VALUE);
            }
            values.resize(values.len() + wanted, value);
            stream = rest;
        }
    }
    Ok((values, stream))
}

fn convert(value: &[u8], convert: Convert) -> Vec<u8> {
    let number = |value: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..value.len()].copy_from_slice(value);
        i64::from_le_bytes(bytes)
    };
    let widened = |mut value: Vec<u8>, to: u32| {
        let sign = value.last().is_some_and(|byte| byte & 0x80 != 0);
        value.resize(to as usize, if sign { 0xff } else { 0 });
        value
    };
    match convert {
        // Of indices a value is one already.
        Convert::Same | Convert::Indices { .. } => value.to_vec(),
        Convert::Part { offset, len } => value[offset as usize..][..len as usize].to_vec(),
        Convert::Widen { to } => widened(value.to_vec(), to),
        Convert::WidenBigEndian { to } => widened(value.iter().rev().copied().collect(), to),
        Convert::DaysToMilliseconds => {
            let days = i64::from(number(value) as i32);
            (days * 86_400_000).to_le_bytes().to_vec()
        }
        Convert::Int96 { per_second } => {
            let per_second = i64::from(per_second);
            let days = i64::from(number(&value[8..]) as i32) - 2_440_588;
            let units = number(&value[..8]) / (1_000_000_000 / per_second);
            let day = days.wrapping_mul(86_400 * per_second);
            day.wrapping_add(units).to_le_bytes().to_vec()
        }
    }
}

pub(super) fn bitmap(bits: &[bool]) -> Vec<u8> {
    let byte = |bits: &[bool]| {
        bits.iter()
            .rev()
            .fold(0, |byte, bit| byte << 1 | u8::from(*bit))
    };
    bits.chunks(8).map(byte).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// One page, alone in the arena.
    fn alone(
        values: Values,
        nullable: bool,
        encoding: Encoding,
        entries: u64,
        body: &[u8],
    ) -> Column {
        Column {
            values,
            nullable,
            dictionary: None,
            pages: vec![Page {
                body: 0..body.len() as u64,
                v1: true,
                def_len: 0,
                entries,
                nulls: None,
                encoding,
            }],
            convert: Convert::Same,
        }
    }

    fn decoded(arena: &[u8], column: &Column) -> HostOutcome {
        columns(arena, std::slice::from_ref(column)).remove(0)
    }

    fn fault(check: u32) -> HostOutcome {
        HostOutcome::Fault { page: 0, check }
    }

    const I32: Values = Values::Fixed { width: 4 };

    #[test]
    fn the_packed_numbers_of_the_specification() {
        // 0 to 7 in three bits each, from Encodings.md; then seven times 5, of which a byte holds the value.
        let stream = [
            0b0000_0011,
            0b1000_1000,
            0b1100_0110,
            0b1111_1010,
            7 << 1,
            5,
        ];
        let wanted: Vec<u64> = (0..8).chain([5; 7]).collect();
        assert_eq!(runs(&stream, 3, 15).unwrap(), (wanted.clone(), &[][..]));
        // What is not wanted of a run is no part of the rest.
        assert_eq!(runs(&stream, 3, 3).unwrap(), (vec![0, 1, 2], &stream[4..]));
        // The last group ends with the fifth value.
        assert_eq!(
            runs(&stream[..3], 3, 5).unwrap(),
            (wanted[..5].to_vec(), &[][..])
        );
        assert_eq!(runs(&stream[..3], 3, 6), Err(check::RUN_BYTES));
    }

    #[test]
    fn runs_that_are_not_right_are_told_apart() {
        let wrong: [(&[u8], u32, u32); 12] = [
            (&[], 1, check::END),
            (&[2, 1], 1, check::END),
            (&[0x80], 1, check::HEADER),
            (&[0x82, 0x80, 0x80, 0x80, 0x80, 0], 1, check::HEADER),
            (&[0x82, 0x80, 0x80, 0x80, 0x10, 0], 1, check::HEADER),
            (&[0, 0], 1, check::RUN_LENGTH),
            (&[1, 0], 1, check::RUN_LENGTH),
            // 2^31 values, as a run and as groups.
            (&[0x81, 0x80, 0x80, 0x80, 2, 0], 1, check::RUN_LENGTH),
            (&[4], 1, check::RUN_BYTES),
            (&[4, 2], 1, check::RUN_VALUE),
            // No bits: no bytes of a value, so that the 1 is a header.
            (&[4, 1], 0, check::RUN_LENGTH),
            (&[4, 0, 2], 9, check::RUN_VALUE),
        ];
        for (stream, bits, why) in wrong {
            let outcome = runs(stream, bits, 3);
            assert_eq!(outcome, Err(why), "{stream:?} {bits}");
        }
        // The longest there is, in the most bytes.
        let longest = [0xfe, 0xff, 0xff, 0xff, 0x0f, 1];
        assert_eq!(runs(&longest, 1, 3).unwrap(), (vec![1; 3], &[][..]));
    }

    #[test]
    fn levels_come_before_the_values_in_both_versions() {
        let wanted = HostOutcome::Done {
            values: [7u32, 0, 0, 9]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            validity: Some(vec![0b1001]),
            nulls: 2,
            rows: 4,
        };
        let levels = [3, 0b1001];
        let values = [7, 0, 0, 0, 9, 0, 0, 0];
        let first = [&[2, 0, 0, 0][..], &levels, &values].concat();
        let mut column = alone(I32, true, Encoding::Plain, 4, &first);
        assert_eq!(decoded(&first, &column), wanted);
        let second = [&levels[..], &values].concat();
        let page = Page {
            body: 0..second.len() as u64,
            v1: false,
            def_len: 2,
            nulls: Some(2),
            ..column.pages[0].clone()
        };
        column.pages = vec![page];
        assert_eq!(decoded(&second, &column), wanted);
        column.pages[0].nulls = Some(1);
        assert_eq!(decoded(&second, &column), fault(check::NULLS));
        column.pages[0].nulls = Some(5);
        assert_eq!(decoded(&second, &column), fault(check::SHAPE));
        column.pages[0].nulls = Some(2);
        column.pages[0].def_len = 11;
        assert_eq!(decoded(&second, &column), fault(check::LEVELS_LENGTH));
        column.pages[0].def_len = 0;
        let missing = check::LEVELS | check::END;
        assert_eq!(decoded(&second, &column), fault(missing));
        // The length of version 1 goes past the page, or is cut.
        for first in [&[3, 0, 0, 0, 3, 9][..], &[255; 8], &[0; 3]] {
            let column = alone(I32, true, Encoding::Plain, 4, first);
            assert_eq!(
                decoded(first, &column),
                fault(check::LEVELS_LENGTH),
                "{first:?}"
            );
        }
    }

    #[test]
    fn indices_lead_to_entries() {
        let arena = [&[1, 1, 2, 2, 3, 3][..], &[2, 3, 0b1001_0010, 0, 0]].concat();
        let mut column = alone(
            Values::Fixed { width: 2 },
            false,
            Encoding::Dictionary,
            4,
            &arena,
        );
        assert_eq!(decoded(&arena, &column), fault(check::SHAPE));
        column.dictionary = Some((0..6, 3));
        column.pages[0].body = 6..11;
        let done = |values: &[u8]| HostOutcome::Done {
            values: values.to_vec(),
            validity: None,
            nulls: 0,
            rows: values.len() as u64 / 2,
        };
        assert_eq!(decoded(&arena, &column), done(&[3, 3, 1, 1, 2, 2, 3, 3]));
        column.pages[0].entries = 3;
        assert_eq!(decoded(&arena, &column), done(&[3, 3, 1, 1, 2, 2]));
        column.dictionary = Some((0..4, 2));
        assert_eq!(decoded(&arena, &column), fault(check::INDEX));
        column.dictionary = Some((0..4, 3));
        assert_eq!(decoded(&arena, &column), fault(check::DICTIONARY));
        column.dictionary = Some((0..6, 3));
        column.pages[0].body = 6..6;
        assert_eq!(decoded(&arena, &column), fault(check::BIT_WIDTH));
        column.pages[0].body = 8..11;
        assert_eq!(decoded(&arena, &column), fault(check::BIT_WIDTH));
        // What follows the last run can be padding, and nothing else.
        let mut other = arena.clone();
        other[10] = 4;
        column.pages[0].body = 6..11;
        column.pages[0].entries = 3;
        assert_eq!(decoded(&other, &column), fault(check::TRAILING));
    }

    #[test]
    fn booleans_are_bits_of_both_encodings() {
        let done = HostOutcome::Done {
            values: vec![0b0001_0110, 1],
            validity: None,
            nulls: 0,
            rows: 9,
        };
        let plain = [0b0001_0110, 0xff];
        let column = alone(Values::Boolean, false, Encoding::Plain, 9, &plain);
        assert_eq!(decoded(&plain, &column), done);
        let runs = [4, 0, 0, 0, 3, 0b0001_0110, 2, 1];
        let column = alone(Values::Boolean, false, Encoding::Rle, 9, &runs);
        assert_eq!(decoded(&runs, &column), done);
        let short = [5, 0, 0, 0, 3, 0b0001_0110, 2, 1];
        assert_eq!(decoded(&short, &column), fault(check::VALUES_LENGTH));
        let column = alone(Values::Boolean, false, Encoding::Plain, 9, &plain[..1]);
        assert_eq!(decoded(&plain, &column), fault(check::VALUES_LENGTH));
    }

    #[test]
    fn values_become_what_arrow_has() {
        let cases: [(&[u8], Convert, &[u8]); 9] = [
            (&[1, 2, 3, 4], Convert::Part { offset: 1, len: 2 }, &[2, 3]),
            (
                &[0xfe, 0xff, 0xff, 0xff],
                Convert::Widen { to: 8 },
                &(-2i64).to_le_bytes(),
            ),
            (
                &7i64.to_le_bytes(),
                Convert::Widen { to: 16 },
                &7i128.to_le_bytes(),
            ),
            (
                &[0xff, 0x01],
                Convert::WidenBigEndian { to: 8 },
                &(-255i64).to_le_bytes(),
            ),
            (
                &[0x01, 0xff, 0x00],
                Convert::WidenBigEndian { to: 4 },
                &0x1_ff00i32.to_le_bytes(),
            ),
            (
                &[1, 0, 0, 0],
                Convert::DaysToMilliseconds,
                &86_400_000i64.to_le_bytes(),
            ),
            // A nanosecond before 1970.
            (
                &[
                    0xff, 0xff, 0x4e, 0x91, 0x94, 0x4e, 0, 0, 0x8b, 0x3d, 0x25, 0,
                ],
                Convert::Int96 {
                    per_second: 1_000_000_000,
                },
                &(-1i64).to_le_bytes(),
            ),
            (
                &[
                    0xff, 0xff, 0x4e, 0x91, 0x94, 0x4e, 0, 0, 0x8b, 0x3d, 0x25, 0,
                ],
                Convert::Int96 { per_second: 1 },
                &(-1i64).to_le_bytes(),
            ),
            // The 3rd of January 1970 and a second.
            (
                &[0, 0xca, 0x9a, 0x3b, 0, 0, 0, 0, 0x8e, 0x3d, 0x25, 0],
                Convert::Int96 { per_second: 1_000 },
                &172_801_000i64.to_le_bytes(),
            ),
        ];
        for (value, change, wanted) in cases {
            assert_eq!(convert(value, change), wanted, "{value:?} {change:?}");
        }
    }

    #[test]
    fn what_no_kernel_does_is_said() {
        let i32s = |convert| Column {
            convert,
            ..alone(I32, false, Encoding::Plain, 1, &[0; 4])
        };
        for column in [
            i32s(Convert::Part { offset: 3, len: 2 }),
            i32s(Convert::Part {
                offset: u32::MAX,
                len: 2,
            }),
            i32s(Convert::Part { offset: 0, len: 0 }),
            i32s(Convert::Widen { to: 12 }),
            i32s(Convert::WidenBigEndian { to: 3 }),
            i32s(Convert::Int96 { per_second: 1 }),
            alone(Values::Fixed { width: 0 }, false, Encoding::Plain, 1, &[]),
            alone(I32, false, Encoding::Rle, 1, &[0; 4]),
            alone(
                Values::Boolean,
                false,
                Encoding::ByteStreamSplit,
                1,
                &[0; 4],
            ),
            alone(Values::Boolean, false, Encoding::Dictionary, 1, &[0; 4]),
            alone(I32, false, Encoding::Plain, 1 << 31, &[0; 4]),
        ] {
            assert_eq!(decoded(&[0; 4], &column), fault(check::SHAPE), "{column:?}");
        }
    }
}
