//! Streams of deltas, one value after the other (Parquet format, Encodings, DELTA_BINARY_PACKED = 5), and strings whose lengths are such
//! (DELTA_LENGTH_BYTE_ARRAY = 6, DELTA_BYTE_ARRAY = 7).

use super::check;

/// What is left of a stream.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number of 7 bits a byte. Of more bits than 64 the upper ones are nothing, as for the `parquet` crate.
    fn number(&mut self) -> Result<u64, u32> {
        let mut number = 0;
        for place in 0..10 {
            let byte = self.byte().ok_or(check::DELTA_HEADER)?;
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(check::DELTA_HEADER)
    }

    fn signed(&mut self) -> Result<i64, u32> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }
}

/// `count` values of a stream of numbers of `width` bytes, which has `most` of them at most, and what follows the blocks they are in, unless
/// the last one is cut.
fn values(
    stream: &[u8],
    count: usize,
    most: u64,
    width: u32,
) -> Result<(Vec<i64>, Option<&[u8]>), u32> {
    let fits = |value: i64| match width == 8 || i32::try_from(value).is_ok() {
        true => Ok(value),
        false => Err(check::DELTA_RANGE),
    };
    let mut bytes = Bytes(stream);
    let (block, minis, total) = (bytes.number()?, bytes.number()?, bytes.number()?);
    let mut value = fits(bytes.signed()?)?;
    let whole = |number: u64, of: u64| number > 0 && number.is_multiple_of(of);
    let sized = whole(block, 128) && block < 1 << 31 && minis > 0 && whole(block, minis);
    if !sized || !whole(block / minis, 32) {
        return Err(check::DELTA_BLOCK);
    }
    if total < count as u64 || total > most {
        return Err(check::DELTA_COUNT);
    }
    let mut values = Vec::new();
    let mut is_whole = true;
    if count > 0 {
        values.push(value);
    }
    while values.len() < count {
        let least = bytes.signed()?;
        let parts = bytes.0.split_at_checked(minis as usize);
        let (widths, rest) = parts.ok_or(check::DELTA_HEADER)?;
        bytes.0 = rest;
        let least = fits(least)?;
        for bits in widths {
            let bits = u64::from(*bits);
            let wanted = (count - values.len()).min((block / minis) as usize);
            if wanted == 0 {
                break;
            }
            if bits > u64::from(width) * 8 {
                return Err(check::DELTA_WIDTH);
            }
            if (wanted as u64 * bits).div_ceil(8) > bytes.0.len() as u64 {
                return Err(check::DELTA_SHORT);
            }
            for delta in 0..wanted as u64 {
                let bit = |at: u64| u64::from(bytes.0[at as usize / 8] >> (at % 8) & 1);
                let above: u64 = (0..bits).map(|at| bit(delta * bits + at) << at).sum();
                value = value.wrapping_add(least).wrapping_add(above as i64);
                if width == 4 {
                    value = i64::from(value as i32);
                }
                values.push(value);
            }
            let rest = bytes.0.get((block / minis * bits / 8) as usize..);
            is_whole &= rest.is_some();
            bytes.0 = rest.unwrap_or_default();
        }
    }
    Ok((values, is_whole.then_some(bytes.0)))
}

/// The values of a page of numbers.
pub(super) fn packed(
    stream: &[u8],
    count: usize,
    entries: u64,
    width: u32,
) -> Result<Vec<i64>, u32> {
    Ok(values(stream, count, entries, width)?.0)
}

/// `count` lengths, and what follows them.
fn lengths(stream: &[u8], count: usize) -> Result<(Vec<i64>, &[u8]), u32> {
    let (lengths, rest) = values(stream, count, count as u64, 4)?;
    Ok((lengths, rest.ok_or(check::DELTA_SHORT)?))
}

/// The values of a page of strings, each in front of the next.
pub(super) fn strings(stream: &[u8], count: usize) -> Result<Vec<Vec<u8>>, u32> {
    let (lengths, bytes) = lengths(stream, count)?;
    made(&vec![0; count], &lengths, bytes)
}

/// The same of one in which each begins as the one before.
pub(super) fn prefixed(stream: &[u8], count: usize) -> Result<Vec<Vec<u8>>, u32> {
    let (prefixes, stream) = lengths(stream, count)?;
    let (suffixes, bytes) = lengths(stream, count)?;
    made(&prefixes, &suffixes, bytes)
}

fn made(prefixes: &[i64], suffixes: &[i64], mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, u32> {
    let mut values: Vec<Vec<u8>> = Vec::new();
    for (prefix, suffix) in prefixes.iter().zip(suffixes) {
        let (prefix, suffix) = (usize::try_from(*prefix), usize::try_from(*suffix));
        let (Ok(prefix), Ok(suffix)) = (prefix, suffix) else {
            return Err(check::DELTA_TEXT);
        };
        let before = values.last().map_or(&[][..], Vec::as_slice);
        let mut value = before.get(..prefix).ok_or(check::DELTA_TEXT)?.to_vec();
        let parts = bytes.split_at_checked(suffix);
        let (own, rest) = parts.ok_or(check::DELTA_TEXT)?;
        value.extend(own);
        values.push(value);
        bytes = rest;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Bytes of a stream with a block size of 128, in four miniblocks.
    fn stream(total: u8, first: u8, rest: &[u8]) -> Vec<u8> {
        [&[0x80, 1, 4, total, first], rest].concat()
    }

    #[test]
    fn the_streams_of_the_specification() {
        // 1 to 5, from Encodings.md: a first value of 1, a least delta of 1, and nothing above it.
        let deltas = stream(5, 2, &[2, 0, 0, 0, 0]);
        assert_eq!(packed(&deltas, 5, 5, 4).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(packed(&deltas, 5, 5, 8).unwrap(), [1, 2, 3, 4, 5]);
        // 7, 5, 3, 1, 2, 3, 4, 5: a least delta of -2, and 0, 0, 0, 3, 3, 3, 3 above it, of two bits.
        let deltas = stream(8, 14, &[3, 2, 0, 0, 0, 0xc0, 0x3f]);
        assert_eq!(packed(&deltas, 8, 8, 4).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        // Of a page with nulls there may be more of them.
        assert_eq!(packed(&deltas, 4, 8, 4).unwrap(), [7, 5, 3, 1]);
        assert_eq!(packed(&deltas, 4, 7, 4), Err(check::DELTA_COUNT));
        assert_eq!(packed(&deltas[..11], 5, 8, 4).unwrap(), [7, 5, 3, 1, 2]);
        assert_eq!(packed(&deltas[..11], 6, 8, 4), Err(check::DELTA_SHORT));
        assert_eq!(packed(&deltas, 9, 9, 4), Err(check::DELTA_COUNT));
        // No values, and one: no block is looked at.
        assert_eq!(packed(&deltas[..5], 1, 8, 4).unwrap(), [7]);
        assert!(packed(&deltas[..5], 0, 8, 4).unwrap().is_empty());
        assert_eq!(packed(&deltas[..4], 0, 8, 4), Err(check::DELTA_HEADER));
    }

    #[test]
    fn sums_wrap_around() {
        let first = [0xfe, 0xff, 0xff, 0xff, 0x0f];
        let four = [&[0x80, 1, 4, 2][..], &first, &[2, 0, 0, 0, 0]].concat();
        let ends = [i64::from(i32::MAX), i32::MIN.into()];
        assert_eq!(packed(&four, 2, 2, 4).unwrap(), ends);
        assert_eq!(packed(&four, 2, 2, 8).unwrap(), [0x7fff_ffff, 0x8000_0000]);
    }

    #[test]
    fn what_is_wrong_is_told_apart() {
        let wrong: [(&[u8], u32); 13] = [
            (&[], check::DELTA_HEADER),
            (&[0x80; 12], check::DELTA_HEADER),
            (&[0, 4, 2, 2, 2, 0, 0, 0, 0], check::DELTA_BLOCK),
            (&[0xc0, 0, 1, 2, 2, 2, 0], check::DELTA_BLOCK),
            (&[0x80, 1, 0, 2, 2, 2, 0], check::DELTA_BLOCK),
            (&[0x80, 1, 3, 2, 2, 2, 0, 0, 0], check::DELTA_BLOCK),
            (&[0x80, 1, 8, 2, 2, 2, 0, 0, 0], check::DELTA_BLOCK),
            (
                &[0x80, 0x80, 0x80, 0x80, 8, 4, 2, 2, 2, 0, 0, 0, 0],
                check::DELTA_BLOCK,
            ),
            (
                &[0x80, 1, 4, 2, 0x80, 0x80, 0x80, 0x80, 0x10, 2],
                check::DELTA_RANGE,
            ),
            (
                &[0x80, 1, 4, 2, 2, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0, 0],
                check::DELTA_RANGE,
            ),
            (&[0x80, 1, 4, 2, 2, 2, 0, 0, 0], check::DELTA_HEADER),
            (&[0x80, 1, 4, 2, 2, 2, 33, 0, 0, 0], check::DELTA_WIDTH),
            (&[0x80, 1, 4, 2, 2, 2, 1, 0, 0, 0], check::DELTA_SHORT),
        ];
        for (stream, why) in wrong {
            assert_eq!(packed(stream, 2, 2, 4), Err(why), "{stream:?}");
        }
        // The widths of miniblocks that no value is in can be anything.
        let odd = [0x80, 1, 4, 2, 2, 2, 0, 255, 255, 255];
        assert_eq!(packed(&odd, 2, 2, 4).unwrap(), [1, 2]);
    }

    #[test]
    fn the_strings_of_the_specification() {
        // Hello, World, Foobar, ABCDEF: lengths 5, 5, 6, 6; of the deltas 0, 1, 0 the miniblock has all its bytes.
        let mut page = stream(4, 10, &[0, 1, 0, 0, 0, 2, 0, 0, 0]);
        page.extend(b"HelloWorldFoobarABCDEF");
        let words = ["Hello", "World", "Foobar", "ABCDEF"].map(|word| word.as_bytes().to_vec());
        assert_eq!(strings(&page, 4).unwrap(), words);
        // What is behind the last is nothing.
        page.push(9);
        assert_eq!(strings(&page, 4).unwrap(), words);
        assert_eq!(strings(&page[..35], 4), Err(check::DELTA_TEXT));
        assert_eq!(strings(&page[..13], 4), Err(check::DELTA_SHORT));
        assert_eq!(strings(&page, 3), Err(check::DELTA_COUNT));
        // axis, axle, babble, babyhood: prefixes 0, 2, 0, 3 and suffixes 4, 2, 6, 5. Of the deltas -2 is the least.
        let mut page = stream(4, 0, &[3, 3, 0, 0, 0]);
        page.extend([0b0100_0100, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        page.extend(stream(4, 8, &[3, 3, 0, 0, 0]));
        page.extend([0b0111_0000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        page.extend(b"axislebabbleyhood");
        let words = ["axis", "axle", "babble", "babyhood"].map(|word| word.as_bytes().to_vec());
        assert_eq!(prefixed(&page, 4).unwrap(), words);
        // Nothing is in front of the first, and it has no less than nothing of that.
        page[4] = 2;
        assert_eq!(prefixed(&page, 4), Err(check::DELTA_TEXT));
        page[4] = 1;
        assert_eq!(prefixed(&page, 4), Err(check::DELTA_TEXT));
    }
}
