//! The hybrid of runs and bit-packed groups that levels and indices are stored in ([Encodings: RLE]).
//!
//! [Encodings: RLE]: https://github.com/apache/parquet-format/blob/master/Encodings.md#run-length-encoding--bit-packing-hybrid-rle--3

use arrow_buffer::BooleanBufferBuilder;
use arrow_buffer::bit_chunk_iterator::UnalignedBitChunk;
use bytes::Bytes;

/// Numbers of one width, read in order.
pub(super) struct Runs {
    bytes: Bytes,
    /// Where the next run begins.
    at: usize,
    /// Bits of a number, 32 at most.
    width: usize,
    state: State,
    /// Numbers that are left of the run.
    left: usize,
}

#[derive(Clone, Copy)]
enum State {
    Same(u32),
    /// Where the next number begins, in bits.
    Packed(usize),
}

/// What the next numbers are.
pub(super) enum Run<'a> {
    /// The same number again and again.
    Same(u32),
    /// Numbers one behind the other, from this bit on.
    Packed(&'a [u8], usize),
}

impl Runs {
    /// `None`: no number has so many bits.
    pub(super) fn new(bytes: Bytes, width: u8) -> Option<Self> {
        (width <= 32).then_some(Runs {
            bytes,
            at: 0,
            width: width.into(),
            state: State::Same(0),
            left: 0,
        })
    }

    /// The same, if the first run is as it should be, or there is none: the crate looks before it needs to.
    pub(super) fn begun(bytes: Bytes, width: u8) -> Option<Self> {
        let mut runs = Runs::new(bytes, width)?;
        if !runs.is_spent() {
            runs.next_run()?;
        }
        Some(runs)
    }

    /// Bits one behind the other.
    pub(super) fn bits(bytes: Bytes) -> Self {
        Runs {
            left: bytes.len().saturating_mul(8),
            at: bytes.len(),
            bytes,
            width: 1,
            state: State::Packed(0),
        }
    }

    /// Appends the next `count` numbers, which are bits. `None`: there are fewer, or other ones.
    pub(super) fn read_bits(&mut self, count: usize, out: &mut BooleanBufferBuilder) -> Option<()> {
        let mut wanted = count;
        while wanted > 0 {
            let n = self.some(wanted)?;
            match self.run() {
                Run::Same(value @ 0..=1) => out.append_n(n, value == 1),
                Run::Same(_) => return None,
                Run::Packed(bytes, bit) => out.append_packed_range(bit..bit + n, bytes),
            }
            self.skip(n);
            wanted -= n;
        }
        Some(())
    }

    /// Replaces what is in `out` by the next `count` numbers. `None`: there are fewer.
    pub(super) fn read(&mut self, count: usize, out: &mut Vec<u32>) -> Option<()> {
        out.clear();
        let mut wanted = count;
        while wanted > 0 {
            let n = self.some(wanted)?;
            match self.run() {
                Run::Same(value) => out.extend(std::iter::repeat_n(value, n)),
                Run::Packed(bytes, bit) => unpack(bytes, bit, self.width, n, out),
            }
            self.skip(n);
            wanted -= n;
        }
        Some(())
    }

    /// How many of the next `count` numbers, which are bits, are 0. `None`: there are fewer, or other ones.
    pub(super) fn zeros(&mut self, count: usize) -> Option<usize> {
        let (mut wanted, mut ones) = (count, 0);
        while wanted > 0 {
            let n = self.some(wanted)?;
            ones += match self.run() {
                Run::Same(0) => 0,
                Run::Same(1) => n,
                Run::Same(_) => return None,
                Run::Packed(bytes, bit) => UnalignedBitChunk::new(bytes, bit, n).count_ones(),
            };
            self.skip(n);
            wanted -= n;
        }
        Some(count - ones)
    }

    /// How many numbers of one run are next, `wanted` at most. `None`: there are no more.
    pub(super) fn some(&mut self, wanted: usize) -> Option<usize> {
        if self.left == 0 {
            self.next_run()?;
        }
        Some(wanted.min(self.left))
    }

    /// Whether nothing comes behind this run. The crate reads some of it, needed or not; padding of zeros ends it.
    pub(super) fn is_spent(&self) -> bool {
        self.bytes.get(self.at).is_none_or(|byte| *byte == 0)
    }

    /// The run that they are of.
    pub(super) fn run(&self) -> Run<'_> {
        match self.state {
            State::Same(value) => Run::Same(value),
            State::Packed(bit) => Run::Packed(&self.bytes, bit),
        }
    }

    /// Leaves out `count` of them.
    pub(super) fn skip(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
        if let State::Packed(bit) = &mut self.state {
            *bit += count * self.width;
        }
    }

    fn next_run(&mut self) -> Option<()> {
        let header = self.varint()?;
        let count = usize::try_from(header >> 1).ok()?;
        if header & 1 == 0 {
            let len = self.width.div_ceil(8);
            let bytes = self.bytes.get(self.at..self.at + len)?;
            let mut value = [0; 4];
            value.get_mut(..len)?.copy_from_slice(bytes);
            self.at += len;
            let value = u32::from_le_bytes(value);
            if u64::from(value) >> self.width != 0 {
                return None;
            }
            self.state = State::Same(value);
            self.left = count;
        } else {
            // The last groups may be cut short.
            let there = self.bytes.len() - self.at;
            let len = there.min(count.checked_mul(self.width)?);
            self.state = State::Packed(self.at.checked_mul(8)?);
            self.left = match (len * 8).checked_div(self.width) {
                Some(numbers) => numbers,
                None => count.checked_mul(8)?,
            };
            self.at += len;
        }
        // Nobody writes runs of nothing.
        (self.left > 0).then_some(())
    }

    /// Of 32 bits: longer runs have more values than a page.
    fn varint(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u32::from(byte & 0x7f);
            value |= bits.checked_shl(shift).filter(|v| v >> shift == bits)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// Appends `count` numbers of `width` bits, the first at `bit`. They are there.
fn unpack(bytes: &[u8], bit: usize, width: usize, count: usize, out: &mut Vec<u32>) {
    out.reserve(count);
    // One by one up to where a byte begins, then eight at a time, which are `width` bytes, and the rest one by one.
    let single = |at: usize| number(bytes, bit + at * width, width);
    let ragged = (0..8).find(|at| (bit + at * width).is_multiple_of(8));
    let head = ragged.unwrap_or(count).min(count);
    out.extend((0..head).map(single));
    let rest = bytes.get((bit + head * width) / 8..).unwrap_or_default();
    let groups = (count - head) / 8;
    macro_rules! of_width {
        ($($width:literal)*) => {
            match width {
                $($width => unpack_groups::<$width>(rest, groups, out),)*
                _ => 0,
            }
        };
    }
    let done = of_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
    out.extend((head + done * 8..count).map(single));
}

/// Appends `groups` of eight numbers, as long as there are 8 bytes behind each. How many it did.
fn unpack_groups<const WIDTH: usize>(bytes: &[u8], groups: usize, out: &mut Vec<u32>) -> usize {
    for group in 0..groups {
        let start = group * WIDTH;
        let Some(bytes) = bytes.get(start..start + WIDTH + 8) else {
            return group;
        };
        let mut eight = [0; 8];
        for (at, to) in eight.iter_mut().enumerate() {
            *to = number(bytes, at * WIDTH, WIDTH);
        }
        out.extend_from_slice(&eight);
    }
    groups
}

/// The number of `width` bits at `bit`; bits that are not there are 0.
#[inline(always)]
fn number(bytes: &[u8], bit: usize, width: usize) -> u32 {
    let rest = bytes.get(bit / 8..).unwrap_or_default();
    let word = match rest.first_chunk() {
        Some(word) => *word,
        None => {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(rest) {
                *to = *from;
            }
            word
        }
    };
    let mask = (1u64 << width) - 1;
    (u64::from_le_bytes(word) >> (bit % 8) & mask) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn varint(out: &mut Vec<u8>, mut value: u32) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// Runs as they are said to be, in the plainest way; and the numbers in them.
    fn encode(runs: &[(bool, Vec<u32>)], width: usize) -> (Vec<u8>, Vec<u32>) {
        let (mut out, mut numbers) = (Vec::new(), Vec::new());
        for (packed, run) in runs {
            if *packed {
                let groups = run.len().div_ceil(8);
                varint(&mut out, (groups as u32) << 1 | 1);
                let mut bits = vec![0u8; groups * width];
                for (at, number) in run.iter().enumerate() {
                    for bit in 0..width {
                        let place = at * width + bit;
                        bits[place / 8] |= ((number >> bit & 1) as u8) << (place % 8);
                    }
                }
                out.extend(bits);
                numbers.extend(run);
                numbers.resize(numbers.len() + groups * 8 - run.len(), 0);
            } else {
                varint(&mut out, (run.len() as u32) << 1);
                out.extend(&run[0].to_le_bytes()[..width.div_ceil(8)]);
                numbers.extend(std::iter::repeat_n(run[0], run.len()));
            }
        }
        (out, numbers)
    }

    fn runs() -> impl Strategy<Value = (usize, Vec<(bool, Vec<u32>)>)> {
        (0..=32usize).prop_flat_map(|width| {
            let most = (1u64 << width) - 1;
            let run = prop::collection::vec(0..=most as u32, 1..70);
            let runs = prop::collection::vec((any::<bool>(), run), 1..6);
            (Just(width), runs)
        })
    }

    proptest! {
        #[test]
        fn numbers_come_as_they_were_written((width, runs) in runs(), step in 1..50usize) {
            let (bytes, numbers) = encode(&runs, width);
            let mut read = Runs::new(bytes.into(), width as u8).unwrap();
            let mut some = Vec::new();
            for part in numbers.chunks(step) {
                read.read(part.len(), &mut some).unwrap();
                prop_assert_eq!(&some, part);
            }
            prop_assert!(read.read(1, &mut some).is_none());
            prop_assert!(read.read(0, &mut some).is_some());
        }

        #[test]
        fn bits_come_as_they_were_written(runs in prop::collection::vec((any::<bool>(), prop::collection::vec(0..=1u32, 1..300)), 1..6), step in 1..90usize) {
            let (bytes, numbers) = encode(&runs, 1);
            let mut read = Runs::new(bytes.into(), 1).unwrap();
            for part in numbers.chunks(step) {
                let mut bits = BooleanBufferBuilder::new(0);
                read.read_bits(part.len(), &mut bits).unwrap();
                let bits: Vec<u32> = bits.finish().iter().map(u32::from).collect();
                prop_assert_eq!(&bits[..], part);
            }
            prop_assert!(read.read_bits(1, &mut BooleanBufferBuilder::new(0)).is_none());
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200), width in 0..=40u8, count in 0..5000usize) {
            if let Some(mut runs) = Runs::new(bytes.clone().into(), width) {
                let mut out = Vec::new();
                while runs.read(count.max(1), &mut out).is_some() {
                    prop_assert_eq!(out.len(), count.max(1));
                    // A run may be as long as it likes; what is read of it is what was asked for.
                    if runs.left > 1 << 20 {
                        break;
                    }
                }
            }
            let mut bits = Runs::bits(bytes.clone().into());
            let mut out = BooleanBufferBuilder::new(0);
            prop_assert!(bits.read_bits(bytes.len() * 8, &mut out).is_some());
            prop_assert!(bits.read_bits(1, &mut out).is_none());
        }
    }

    #[test]
    fn the_last_groups_may_be_cut_short() {
        // Eight numbers of 3 bits are said to be there; the 2 bytes of the last five are not.
        let mut runs = Runs::new(vec![3, 0b10_001_000].into(), 3).unwrap();
        let mut out = Vec::new();
        runs.read(2, &mut out).unwrap();
        assert_eq!(out, [0, 1]);
        assert!(runs.read(1, &mut out).is_none());
        // A bit is 0 or 1.
        let mut runs = Runs::new(vec![4, 2].into(), 1).unwrap();
        assert!(
            runs.read_bits(1, &mut BooleanBufferBuilder::new(0))
                .is_none()
        );
        // More than 32 bits of length, and runs of nothing.
        for bytes in [
            &[0xff; 6][..],
            &[0xfe, 0xff, 0xff, 0xff, 0x1f, 1],
            &[0, 1],
            &[1],
        ] {
            let mut runs = Runs::new(bytes.to_vec().into(), 1).unwrap();
            assert!(runs.read(1, &mut out).is_none(), "{bytes:?}");
        }
    }
}
