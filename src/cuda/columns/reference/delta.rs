//! Streams of deltas, one value after the other (Parquet format, Encodings, DELTA_BINARY_PACKED = 5).

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

    fn signed(&mut self, width: u32) -> Result<Result<i64, u32>, u32> {
        let number = self.number()?;
        let signed = (number >> 1) as i64 ^ -((number & 1) as i64);
        let fits = width == 8 || i32::try_from(signed).is_ok();
        Ok(if fits {
            Ok(signed)
        } else {
            Err(check::DELTA_RANGE)
        })
    }
}

/// The first `count` values of a stream of numbers of `width` bytes.
pub(super) fn packed(stream: &[u8], count: usize, width: u32) -> Result<Vec<i64>, u32> {
    let mut bytes = Bytes(stream);
    let (block, minis, total) = (bytes.number()?, bytes.number()?, bytes.number()?);
    let mut value = bytes.signed(width)??;
    let whole = |number: u64, of: u64| number > 0 && number.is_multiple_of(of);
    let sized = whole(block, 128) && block < 1 << 31 && minis > 0 && whole(block, minis);
    if !sized || !whole(block / minis, 32) {
        return Err(check::DELTA_BLOCK);
    }
    if total < count as u64 || total > i64::MAX as u64 {
        return Err(check::DELTA_COUNT);
    }
    let mut values = Vec::new();
    if count > 0 {
        values.push(value);
    }
    while values.len() < count {
        let least = bytes.signed(width)?;
        let widths = bytes.0.get(..minis as usize).ok_or(check::DELTA_HEADER)?;
        let least = least?;
        bytes.0 = &bytes.0[minis as usize..];
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
                return Err(check::DELTA_BYTES);
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
            let size = block / minis * bits / 8;
            bytes.0 = bytes.0.get(size as usize..).unwrap_or_default();
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a stream with a block size of 128, in four miniblocks.
    fn stream(total: u8, first: u8, rest: &[u8]) -> Vec<u8> {
        [&[0x80, 1, 4, total, first], rest].concat()
    }

    #[test]
    fn the_streams_of_the_specification() {
        // 1 to 5, from Encodings.md: a first value of 1, a least delta of 1, and nothing above it.
        let deltas = stream(5, 2, &[2, 0, 0, 0, 0]);
        assert_eq!(packed(&deltas, 5, 4).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(packed(&deltas, 5, 8).unwrap(), [1, 2, 3, 4, 5]);
        // 7, 5, 3, 1, 2, 3, 4, 5: a least delta of -2, and 0, 0, 0, 3, 3, 3, 3 above it, of two bits.
        let deltas = stream(8, 14, &[3, 2, 0, 0, 0, 0xc0, 0x3f]);
        assert_eq!(packed(&deltas, 8, 4).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert_eq!(packed(&deltas, 4, 4).unwrap(), [7, 5, 3, 1]);
        assert_eq!(packed(&deltas[..11], 5, 4).unwrap(), [7, 5, 3, 1, 2]);
        assert_eq!(packed(&deltas[..11], 6, 4), Err(check::DELTA_BYTES));
        assert_eq!(packed(&deltas, 9, 4), Err(check::DELTA_COUNT));
        // No values, and one: no block is looked at.
        assert_eq!(packed(&deltas[..5], 1, 4).unwrap(), [7]);
        assert_eq!(packed(&deltas[..5], 0, 4).unwrap(), []);
        assert_eq!(packed(&deltas[..4], 0, 4), Err(check::DELTA_HEADER));
    }

    #[test]
    fn sums_wrap_around() {
        let first = [0xfe, 0xff, 0xff, 0xff, 0x0f];
        let four = [&[0x80, 1, 4, 2][..], &first, &[2, 0, 0, 0, 0]].concat();
        assert_eq!(
            packed(&four, 2, 4).unwrap(),
            [i64::from(i32::MAX), i32::MIN.into()]
        );
        assert_eq!(packed(&four, 2, 8).unwrap(), [0x7fff_ffff, 0x8000_0000]);
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
            (&[0x80, 1, 4, 2, 2, 2, 1, 0, 0, 0], check::DELTA_BYTES),
        ];
        for (stream, why) in wrong {
            assert_eq!(packed(stream, 2, 4), Err(why), "{stream:?}");
        }
        // The widths of miniblocks that no value is in can be anything.
        let odd = [0x80, 1, 4, 2, 2, 2, 0, 255, 255, 255];
        assert_eq!(packed(&odd, 2, 4).unwrap(), [1, 2]);
    }
}
