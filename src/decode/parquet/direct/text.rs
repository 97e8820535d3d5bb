//! Strings and bytes of any length.

use arrow_buffer::bit_chunk_iterator::{BitChunks, UnalignedBitChunk};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};

/// Copied at once, whatever the length: most strings are shorter, and a copy of a known length is a few instructions.
const STEP: usize = 64;

/// Strings to be, one behind the other.
pub(super) struct Text {
    /// Where each ends, and 0 before.
    offsets: Vec<i32>,
    bytes: Vec<u8>,
}

impl Text {
    /// Room for `rows` of them.
    pub(super) fn new(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows.saturating_add(1));
        offsets.push(0);
        Text {
            offsets,
            bytes: Vec::new(),
        }
    }

    /// Appends as many strings as `valid` says, and empty ones where it says there is none, of a PLAIN page from `at` on, with
    /// memory for `expected` bytes. What comes after them; `None` if they are not all there, or too many bytes.
    pub(super) fn plain(
        &mut self,
        page: &[u8],
        at: usize,
        valid: &Valid<'_>,
        expected: usize,
    ) -> Option<usize> {
        // Strings are not all of the same length.
        self.bytes.reserve_exact(expected + expected / 64 + STEP);
        let mut from = at;
        self.each(valid, |to| {
            let len = length(page, from)?;
            from += 4;
            append(to, page, from, len)?;
            from += len;
            Some(())
        })?;
        Some(from)
    }

    /// The same of a dictionary, by the numbers of its entries. `None` if it has not all of them.
    pub(super) fn indexed(
        &mut self,
        dictionary: &Words,
        indices: &[u32],
        valid: &Valid<'_>,
    ) -> Option<()> {
        let mut all = 0;
        for index in indices {
            all += dictionary.word(*index)?.1;
        }
        self.bytes.reserve_exact(all + STEP);
        let mut indices = indices.iter();
        self.each(valid, |to| {
            let (from, len) = dictionary.word(*indices.next()?)?;
            append(to, &dictionary.bytes, from, len)
        })
    }

    /// Appends what `string` does for each that `valid` says there is, and empty ones for the others. `None` if it says so, or there are
    /// too many bytes.
    fn each(
        &mut self,
        valid: &Valid<'_>,
        mut string: impl FnMut(&mut Vec<u8>) -> Option<()>,
    ) -> Option<()> {
        // Not a part of `self`, so that it can be in registers.
        let mut bytes = std::mem::take(&mut self.bytes);
        let done = self.end_each(valid, || {
            string(&mut bytes)?;
            Some(bytes.len())
        });
        self.bytes = bytes;
        done
    }

    /// Notes where strings end, the one after the other; where `valid` says that there is none, the one before.
    fn end_each(
        &mut self,
        valid: &Valid<'_>,
        mut end: impl FnMut() -> Option<usize>,
    ) -> Option<()> {
        let mut last = self.offsets.last().copied().unwrap_or(0);
        let mut dense = Vec::new();
        let ends = match valid.bits {
            None => &mut self.offsets,
            Some(_) => &mut dense,
        };
        // One loop for both, so that there is one copy of what it calls, in place.
        let mut longest = 0;
        ends.reserve(valid.count);
        for _ in 0..valid.count {
            longest = end()?;
            ends.push(longest as i32);
        }
        // The offsets ascend, so that they all fit if the last one does.
        i32::try_from(longest).ok()?;
        let Some((bits, start)) = valid.bits else {
            return Some(());
        };
        let mut ends = dense.iter();
        for (word, len) in words(bits, start, valid.rows) {
            self.offsets.extend((0..len).map(|at| {
                if word >> at & 1 == 1 {
                    last = ends.next().copied().unwrap_or(last);
                }
                last
            }));
        }
        Some(())
    }

    /// The offsets, which ascend, and the bytes.
    pub(super) fn finish(self) -> (OffsetBuffer<i32>, Buffer) {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        (offsets, Buffer::from_vec(self.bytes))
    }
}

/// Which of some rows have a value.
pub(super) struct Valid<'a> {
    /// How many rows.
    pub(super) rows: usize,
    /// How many of them have one.
    pub(super) count: usize,
    /// A bit for each, from this one on; `None`: they all have.
    pub(super) bits: Option<(&'a [u8], usize)>,
}

impl<'a> Valid<'a> {
    /// Those of `bits` from `start` on.
    pub(super) fn of(bits: &'a [u8], start: usize, rows: usize) -> Self {
        let count = UnalignedBitChunk::new(bits, start, rows).count_ones();
        Valid {
            rows,
            count,
            bits: (count < rows).then_some((bits, start)),
        }
    }

    /// All of them.
    pub(super) fn all(rows: usize) -> Self {
        Valid {
            rows,
            count: rows,
            bits: None,
        }
    }
}

/// Bits, in words of at most 64.
pub(super) fn words(bits: &[u8], start: usize, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let chunks = BitChunks::new(bits, start, len);
    let rest = (chunks.remainder_bits(), chunks.remainder_len());
    let whole = chunks.iter().map(|word| (word, 64));
    whole.chain([rest])
}

/// The entries of a dictionary.
pub(super) struct Words {
    /// Where each begins, and how long it is.
    places: Vec<(u32, u32)>,
    /// And some behind, so that each can be copied in one go.
    bytes: Vec<u8>,
}

impl Words {
    /// At most `count` words of a PLAIN page. `None` if one is cut short, or, where it `is_text`, no text.
    pub(super) fn new(page: &[u8], count: usize, is_text: bool) -> Option<Self> {
        let (mut places, mut bytes) = (Vec::new(), Vec::with_capacity(page.len() + STEP));
        let mut at = 0;
        while places.len() < count && at < page.len() {
            let len = length(page, at)?;
            at += 4;
            let start = u32::try_from(bytes.len()).ok()?;
            places.push((start, u32::try_from(len).ok()?));
            bytes.extend_from_slice(page.get(at..at.checked_add(len)?)?);
            at += len;
        }
        if is_text {
            let text = str::from_utf8(&bytes).ok()?;
            let apart = |(start, _): &(u32, u32)| text.is_char_boundary(*start as usize);
            if !places.iter().all(apart) {
                return None;
            }
        }
        bytes.extend([0; STEP]);
        Some(Words { places, bytes })
    }

    /// Where the entry of this number begins, and how long it is.
    fn word(&self, index: u32) -> Option<(usize, usize)> {
        let (start, len) = *self.places.get(index as usize)?;
        Some((start as usize, len as usize))
    }
}

/// The length of the string at `at`.
fn length(page: &[u8], at: usize) -> Option<usize> {
    let len = page.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*len)).ok()
}

/// Appends the `len` bytes at `start`.
fn append(to: &mut Vec<u8>, from: &[u8], start: usize, len: usize) -> Option<()> {
    let from = from.get(start..)?;
    match from.first_chunk::<STEP>() {
        // With some that come behind them, which are taken away again.
        Some(bytes) if len <= STEP => {
            let end = to.len() + len;
            to.extend_from_slice(bytes);
            to.truncate(end);
        }
        _ => to.extend_from_slice(from.get(..len)?),
    }
    Some(())
}
