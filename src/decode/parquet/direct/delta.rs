//! Numbers stored as differences ([Encodings: DELTA_BINARY_PACKED]), and strings whose lengths and prefixes are.
//!
//! [Encodings: DELTA_BINARY_PACKED]: https://github.com/apache/parquet-format/blob/master/Encodings.md#delta-encoding-delta_binary_packed--5

use bytes::Bytes;

use super::text::{STEP, Text, Valid};

/// Numbers of 4 or 8 bytes, one after the other. All sums wrap around, so they are kept in 64 bits whatever the width.
pub(super) struct Deltas {
    bytes: Bytes,
    /// Where the next miniblock's numbers begin, or the next block.
    at: usize,
    /// Bits of a number.
    bits: u32,
    /// Miniblocks of a block, and numbers of a miniblock.
    shape: (usize, usize),
    /// Numbers that are left.
    left: usize,
    /// The first number, until it is read.
    first: bool,
    last: u64,
    least: u64,
    /// Where the widths of the miniblocks that are left stand.
    widths: std::ops::Range<usize>,
    /// Of the miniblock: how many numbers are left, their width, and the bit at which the next one begins.
    mini: (usize, u32, usize),
}

impl Deltas {
    /// Reads the header. `None`: it is not as the crate wants it for numbers of so many bits.
    pub(super) fn new(bytes: Bytes, bits: u32) -> Option<Self> {
        let mut deltas = Deltas {
            bytes,
            at: 0,
            bits,
            shape: (0, 0),
            left: 0,
            first: true,
            last: 0,
            least: 0,
            widths: 0..0,
            mini: (0, 0, 0),
        };
        let block = usize::try_from(deltas.varint()?).ok()?;
        let minis = usize::try_from(deltas.varint()?).ok()?;
        deltas.left = usize::try_from(deltas.varint()?).ok()?;
        deltas.last = deltas.number()?;
        let each = block.checked_div(minis)?;
        let fits = block.is_multiple_of(128) && block.is_multiple_of(minis);
        // Longer blocks than pages are nobody's.
        let is_right = fits && each > 0 && each.is_multiple_of(32) && block <= 1 << 20;
        deltas.shape = (minis, each);
        is_right.then_some(deltas)
    }

    /// How many numbers are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Gives the next `count` numbers to `take`, of whose bits the lower ones count. `None`: there are fewer, or other ones.
    pub(super) fn read(&mut self, count: usize, mut take: impl FnMut(u64)) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        let mut wanted = count;
        if wanted > 0 && std::mem::take(&mut self.first) {
            take(self.last);
            wanted -= 1;
        }
        while wanted > 0 {
            if self.mini.0 == 0 {
                self.next_mini()?;
            }
            let (left, width, bit) = self.mini;
            let some = wanted.min(left);
            let end = bit.checked_add(some.checked_mul(width as usize)?)?;
            if end.div_ceil(8) > self.bytes.len() {
                return None;
            }
            let (bytes, least) = (&self.bytes[..], self.least);
            let mut last = self.last;
            if width == 0 {
                for _ in 0..some {
                    last = last.wrapping_add(least);
                    take(last);
                }
            } else {
                let mask = u64::MAX >> (64 - width);
                for at in 0..some {
                    let delta = bits_at(bytes, bit + at * width as usize) & mask;
                    last = last.wrapping_add(least).wrapping_add(delta);
                    take(last);
                }
            }
            self.last = last;
            self.mini = (left - some, width, end);
            wanted -= some;
        }
        Some(())
    }

    /// Where the bytes behind them begin, once all have been read: of the last block, the miniblocks that have numbers are there whole.
    fn rest(&self) -> Option<usize> {
        (self.left == 0 && self.at <= self.bytes.len()).then_some(self.at)
    }

    fn next_mini(&mut self) -> Option<()> {
        if self.widths.is_empty() {
            // The one before ends where the block begins.
            self.least = self.number()?;
            let end = self.at.checked_add(self.shape.0)?;
            if end > self.bytes.len() {
                return None;
            }
            self.widths = self.at..end;
            self.at = end;
        }
        let width = u32::from(*self.bytes.get(self.widths.start)?);
        self.widths.start += 1;
        if width > self.bits {
            return None;
        }
        self.mini = (self.shape.1, width, self.at.checked_mul(8)?);
        self.at = self.at.checked_add(self.shape.1 / 8 * width as usize)?;
        Some(())
    }

    /// A number with sign of at most so many bits as these have.
    fn number(&mut self) -> Option<u64> {
        let zigzag = self.varint()?;
        let number = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
        if self.bits < 64 {
            i32::try_from(number).ok()?;
        }
        Some(number.cast_unsigned())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            value |= bits
                .checked_shl(shift)
                .filter(|value| value >> shift == bits)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// 64 bits from this one on; bits that are not there are 0.
#[inline(always)]
fn bits_at(bytes: &[u8], bit: usize) -> u64 {
    let rest = bytes.get(bit / 8..).unwrap_or_default();
    let (word, above) = match (rest.first_chunk::<8>(), rest.get(8)) {
        (Some(word), Some(above)) => (u64::from_le_bytes(*word), *above),
        _ => {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(rest) {
                *to = *from;
            }
            (u64::from_le_bytes(word), 0)
        }
    };
    let shift = bit % 8;
    word >> shift | u64::from(above) << 1 << (63 - shift)
}

/// Strings of a page whose lengths are [`Deltas`].
pub(super) struct Lengths {
    bytes: Bytes,
    /// Bytes that a string shares with the one before: DELTA_BYTE_ARRAY.
    prefixes: Option<Vec<u32>>,
    lengths: Vec<u32>,
    /// The string that is next.
    next: usize,
    /// Where its bytes begin.
    at: usize,
    /// The string before, and some behind it.
    last: Vec<u8>,
    last_len: usize,
}

impl Lengths {
    /// A page in DELTA_LENGTH_BYTE_ARRAY, or in DELTA_BYTE_ARRAY where strings have prefixes, with at most `most` strings. `None`: it is
    /// not as the crate wants it.
    pub(super) fn new(bytes: Bytes, has_prefixes: bool, most: usize) -> Option<Self> {
        let mut at = 0;
        let mut lengths = |bytes: &Bytes| {
            let mut deltas = Deltas::new(bytes.slice(at..), 32)?;
            let count = deltas.left();
            if count > most {
                return None;
            }
            let mut lengths = Vec::with_capacity(count);
            deltas.read(count, |length| lengths.push(length as u32))?;
            at = at.checked_add(deltas.rest()?)?;
            Some(lengths)
        };
        let prefixes = match has_prefixes {
            true => Some(lengths(&bytes)?),
            false => None,
        };
        let lengths = lengths(&bytes)?;
        // The sign of a negative one is the highest bit.
        let mut all = lengths.iter().chain(prefixes.iter().flatten());
        let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let there = (bytes.len() - at) as u64;
        let counts = prefixes
            .as_ref()
            .is_none_or(|prefixes| prefixes.len() == lengths.len());
        let is_right = total <= there && counts && all.all(|length| *length <= i32::MAX as u32);
        is_right.then_some(Lengths {
            bytes,
            prefixes,
            lengths,
            next: 0,
            at,
            last: Vec::new(),
            last_len: 0,
        })
    }

    /// Appends as many strings as `valid` says, and empty ones where it says there is none.
    pub(super) fn read(&mut self, valid: &Valid<'_>, out: &mut Text) -> Option<()> {
        let end = self.next.checked_add(valid.count)?;
        let mut lengths = self.lengths.get(self.next..end)?.iter();
        let Some(prefixes) = &self.prefixes else {
            let total: usize = lengths.clone().map(|length| *length as usize).sum();
            let bytes = self.bytes.get(self.at..self.at.checked_add(total)?)?;
            out.behind_each_other(bytes, valid, || Some(*lengths.next()? as usize))?;
            (self.next, self.at) = (end, self.at + total);
            return Some(());
        };
        let mut prefixes = prefixes.get(self.next..end)?.iter();
        let (page, last) = (&self.bytes[..], &mut self.last);
        let (mut at, mut last_len) = (self.at, self.last_len);
        out.each(valid, |to| {
            let (prefix, suffix) = (*prefixes.next()? as usize, *lengths.next()? as usize);
            if prefix > last_len {
                return None;
            }
            last_len = prefix.checked_add(suffix)?;
            if last.len() < last_len + STEP {
                last.resize((last_len + STEP).max(2 * last.len()), 0);
            }
            let rest = page.get(at..)?;
            let place = last.get_mut(prefix..)?;
            // A copy of a known length is a few instructions; what it brings too much is behind the string.
            match (rest.first_chunk::<STEP>(), place.first_chunk_mut::<STEP>()) {
                (Some(from), Some(to)) if suffix <= STEP => *to = *from,
                _ => place
                    .get_mut(..suffix)?
                    .copy_from_slice(rest.get(..suffix)?),
            }
            at += suffix;
            to.push(last, last_len)
        })?;
        (self.next, self.at, self.last_len) = (end, at, last_len);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn zigzag(out: &mut Vec<u8>, value: i64) {
        varint(out, (value << 1 ^ value >> 63).cast_unsigned());
    }

    /// Numbers of `bits` in the plainest way, in blocks of this shape.
    fn encode(numbers: &[i64], bits: u32, (minis, each): (usize, usize)) -> Vec<u8> {
        let mut out = Vec::new();
        varint(&mut out, (minis * each) as u64);
        varint(&mut out, minis as u64);
        varint(&mut out, numbers.len() as u64);
        zigzag(&mut out, numbers.first().copied().unwrap_or(0));
        let wrap = |number: i64| match bits {
            32 => i64::from(number as i32),
            _ => number,
        };
        let pairs = numbers.windows(2);
        let deltas: Vec<i64> = pairs.map(|two| wrap(two[1].wrapping_sub(two[0]))).collect();
        for block in deltas.chunks(minis * each) {
            let least = block.iter().copied().min().unwrap_or(0);
            zigzag(&mut out, least);
            let mask = u64::MAX >> (64 - bits);
            let above: Vec<u64> = block
                .iter()
                .map(|delta| delta.wrapping_sub(least).cast_unsigned() & mask)
                .collect();
            let width = |mini: &[u64]| mini.iter().map(|n| 64 - n.leading_zeros()).max();
            let widths: Vec<u32> = above.chunks(each).filter_map(width).collect();
            // What stands where there are no numbers any more is nobody's.
            out.extend((0..minis).map(|at| widths.get(at).map_or(99, |width| *width as u8)));
            for (mini, width) in above.chunks(each).zip(&widths) {
                let mut bytes = vec![0u8; each * *width as usize / 8];
                for (at, number) in mini.iter().enumerate() {
                    for bit in (0..*width as usize).filter(|bit| number >> bit & 1 == 1) {
                        let place = at * *width as usize + bit;
                        bytes[place / 8] |= 1 << (place % 8);
                    }
                }
                out.extend(bytes);
            }
        }
        out
    }

    /// Numbers whose differences have up to `width` bits.
    fn numbers(bits: u32) -> impl Strategy<Value = Vec<i64>> {
        let widths = proptest::collection::vec((0..=bits, any::<i64>()), 0..12);
        (widths, any::<i64>(), 1..70usize).prop_map(move |(widths, first, each)| {
            let mut number = first;
            let mut seed = first.cast_unsigned() | 1;
            let mut all = Vec::new();
            for (width, least) in widths {
                for _ in 0..each {
                    seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let mask = u64::MAX.checked_shr(64 - width).unwrap_or(0);
                    let above = (seed.rotate_left(17) & mask).cast_signed();
                    number = number.wrapping_add(least % 1000).wrapping_add(above);
                    all.push(if bits == 32 {
                        i64::from(number as i32)
                    } else {
                        number
                    });
                }
            }
            all
        })
    }

    proptest! {
        #[test]
        fn all_widths_and_shapes_come_back(
            wide in numbers(64),
            narrow in numbers(32),
            shape in prop_oneof![Just((4, 32)), Just((1, 128)), Just((2, 64)), Just((8, 32)), Just((4, 96))],
            at_once in 1..200usize,
            behind in 0..9usize,
        ) {
            for (bits, numbers) in [(64, wide), (32, narrow)] {
                let mut bytes = encode(&numbers, bits, shape);
                let len = bytes.len();
                bytes.extend(vec![0xa5; behind]);
                let mut deltas = Deltas::new(Bytes::from(bytes), bits).unwrap();
                prop_assert_eq!(deltas.left(), numbers.len());
                let mut read = Vec::new();
                while deltas.left() > 0 {
                    prop_assert!(deltas.rest().is_none());
                    deltas.read(at_once.min(deltas.left()), |number| read.push(number)).unwrap();
                }
                let mask = u64::MAX >> (64 - bits);
                let same = read.iter().map(|number| number & mask);
                let expected = numbers.iter().map(|number| number.cast_unsigned() & mask);
                prop_assert!(same.eq(expected));
                prop_assert_eq!(deltas.rest(), Some(len));
                let more = deltas.read(1, |_| {});
                prop_assert!(more.is_none());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for bits in [32, 64] {
                if let Some(mut deltas) = Deltas::new(Bytes::from(bytes.clone()), bits) {
                    while deltas.left() > 0 && deltas.read(deltas.left().min(7), |_| {}).is_some() {
                        if deltas.left() > 1 << 12 {
                            break;
                        }
                    }
                }
            }
            for has_prefixes in [true, false] {
                if let Some(mut lengths) = Lengths::new(Bytes::from(bytes.clone()), has_prefixes, 50) {
                    let _ = lengths.read(&Valid::all(3), &mut Text::new(3));
                }
            }
        }
    }
}
