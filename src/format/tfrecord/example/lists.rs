//! The values in the lists of features.

use super::walk::{Kind, Pieces, Place, Repeated, list_depth};
use super::wire::{Cursor, FIXED32, LEN, VARINT, WireError, expect};

/// Appends the values of a `FloatList`.
#[inline]
pub(crate) fn push_floats(
    place: Place,
    lists: &Pieces<'_>,
    out: &mut Vec<f32>,
) -> Result<(), WireError> {
    for list in lists.as_slice() {
        each_run(place, list, FIXED32, |run| push_float_run(run, out))?;
    }
    Ok(())
}

/// Appends the values of an `Int64List`.
#[inline]
pub(crate) fn push_int64s(
    place: Place,
    lists: &Pieces<'_>,
    out: &mut Vec<i64>,
) -> Result<(), WireError> {
    for list in lists.as_slice() {
        each_run(place, list, VARINT, |run| push_varints(run, out))?;
    }
    Ok(())
}

/// The values of a `BytesList`.
#[inline]
pub(crate) fn bytes_values<'p, 'a>(place: Place, lists: &'p Pieces<'a>) -> Repeated<'p, 'a> {
    Repeated::new(lists, list_depth(place))
}

/// How many values the list has; that it is a list, all of it.
pub(crate) fn count(place: Place, kind: Kind, lists: &Pieces<'_>) -> Result<usize, WireError> {
    let mut values = 0;
    if kind == Kind::Bytes {
        for value in bytes_values(place, lists) {
            let _: &[u8] = value?;
            values += 1;
        }
        return Ok(values);
    }
    for list in lists.as_slice() {
        if kind == Kind::Float {
            each_run(place, list, FIXED32, |run| {
                values += float_run(run)?.len();
                Ok(())
            })?;
        } else {
            each_run(place, list, VARINT, |run| {
                let mut cursor = Cursor(run);
                while !cursor.is_empty() {
                    cursor.varint()?;
                    values += 1;
                }
                Ok(())
            })?;
        }
    }
    Ok(values)
}

/// Calls `found` with the bytes of packed values, and of each value that is not packed.
#[inline]
fn each_run<'a>(
    place: Place,
    list: &'a [u8],
    own: u8,
    mut found: impl FnMut(&'a [u8]) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let mut cursor = Cursor(list);
    while !cursor.is_empty() {
        let (field, wire) = cursor.key()?;
        if field != 1 {
            cursor.skip(field, wire, list_depth(place))?;
        } else if wire == LEN {
            found(cursor.bytes()?)?;
        } else {
            expect(field, wire, own)?;
            if own == FIXED32 {
                found(cursor.fixed(4)?)?;
            } else {
                let from = cursor.0;
                cursor.varint()?;
                let len = from.len() - cursor.0.len();
                found(from.get(..len).unwrap_or_default())?;
            }
        }
    }
    Ok(())
}

#[inline]
fn float_run(run: &[u8]) -> Result<&[[u8; 4]], WireError> {
    match run.as_chunks() {
        (floats, []) => Ok(floats),
        _ => Err(WireError::FloatLength { length: run.len() }),
    }
}

#[inline]
fn push_float_run(run: &[u8], out: &mut Vec<f32>) -> Result<(), WireError> {
    out.extend(float_run(run)?.iter().map(|four| f32::from_le_bytes(*four)));
    Ok(())
}

/// The high bits of eight bytes.
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Appends all varints of `run`, as the two's complement that `int64` is on the wire.
#[inline]
fn push_varints(run: &[u8], out: &mut Vec<i64>) -> Result<(), WireError> {
    // One value: the label that nearly every example has.
    if let [only] = run
        && *only < 0x80
    {
        out.push(i64::from(*only));
        return Ok(());
    }
    // Each value has one byte without the high bit.
    out.reserve(run.iter().filter(|byte| **byte < 0x80).count());
    let mut cursor = Cursor(run);
    while let Some(word) = cursor.0.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let ends = !word & HIGH;
        if ends == HIGH {
            // Eight small values.
            out.extend(word.to_le_bytes().map(i64::from));
            cursor.0 = cursor.0.get(8..).unwrap_or_default();
        } else if ends == 0 {
            out.push(cursor.varint()?.cast_signed());
        } else {
            let bits = ends.trailing_zeros() + 1;
            // Without what follows, and then without the bits that say that more follows.
            let value = word & (u64::MAX >> (64 - bits));
            out.push(squeeze(value).cast_signed());
            cursor.0 = cursor.0.get(bits as usize / 8..).unwrap_or_default();
        }
    }
    while !cursor.is_empty() {
        out.push(cursor.varint()?.cast_signed());
    }
    Ok(())
}

/// The seven low bits of each of eight bytes, side by side.
#[inline]
fn squeeze(word: u64) -> u64 {
    let x = word & !HIGH;
    let x = (x & 0x007f_007f_007f_007f) | ((x & 0x7f00_7f00_7f00_7f00) >> 1);
    let x = (x & 0x0000_3fff_0000_3fff) | ((x & 0x3fff_0000_3fff_0000) >> 2);
    (x & 0x0000_0000_0fff_ffff) | ((x & 0x0fff_ffff_0000_0000) >> 4)
}

#[cfg(test)]
mod tests {
    use super::super::encode::put_varint;
    use super::*;

    #[test]
    fn varints_of_every_length_beside_each_other() {
        // Each length beside each other length, so that words are cut everywhere.
        let values: Vec<u64> = (0..64)
            .flat_map(|bits| [1 << bits, (1 << bits) - 1, u64::MAX >> bits])
            .collect();
        let mut run = Vec::new();
        let mut expected = Vec::new();
        for (at, value) in values.iter().enumerate() {
            for other in values.iter().skip(at % 7).step_by(11) {
                for value in [*value, *other, 3] {
                    put_varint(&mut run, value);
                    expected.push(value.cast_signed());
                }
            }
        }
        let mut out = Vec::new();
        push_varints(&run, &mut out).unwrap();
        assert_eq!(out, expected);
        // Cut anywhere: as many values as are whole, then an error, or the end at a boundary.
        for cut in run.len() - 40..run.len() {
            let whole = run[..cut].last().is_none_or(|byte| *byte < 0x80);
            let mut out = Vec::new();
            let result = push_varints(&run[..cut], &mut out);
            assert_eq!(result.is_ok(), whole, "{cut}");
            assert_eq!(out, expected[..out.len()]);
        }
    }

    #[test]
    fn more_than_64_bits_are_refused_wherever_they_lie() {
        for before in 0..10 {
            let mut run = vec![1; before];
            run.extend([0x80; 9]);
            run.extend([2, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
            let mut out = Vec::new();
            assert_eq!(push_varints(&run, &mut out), Err(WireError::Varint));
        }
    }

    #[test]
    fn packed_and_unpacked_values_keep_their_order() {
        // Unpacked 7, packed [1, 300], an unknown field, unpacked 2.
        let list = [0x08, 7, 0x0a, 3, 1, 0xac, 2, 0x10, 9, 0x08, 2];
        let lists = Pieces::One(&list);
        let mut out = Vec::new();
        push_int64s(Place::Context, &lists, &mut out).unwrap();
        assert_eq!(out, [7, 1, 300, 2]);
        assert_eq!(count(Place::Context, Kind::Int64, &lists), Ok(4));
        let odd = Pieces::One(&[0x0a, 3, 0, 0, 0]);
        let error = Err(WireError::FloatLength { length: 3 });
        assert_eq!(push_floats(Place::Context, &odd, &mut Vec::new()), error);
    }
}
