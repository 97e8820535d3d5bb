//! What the kernel does, one byte after the other. For tests.

use super::{Codec, check};

/// A page, or why it is not decompressed; the numbers are the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Which of them were copied from, so that they have to be loaded again.
    pub copied: Vec<bool>,
}

/// Decompresses `stored`, of which the first `plain` bytes are not compressed, to a page of `len` bytes.
///
/// # Errors
/// What is wrong, of [`check`].
pub fn decompress(codec: Codec, stored: &[u8], plain: usize, len: usize) -> Result<Page, u32> {
    let (levels, rest) = stored.split_at_checked(plain).ok_or(check::SHAPE)?;
    let values = len.checked_sub(plain).ok_or(check::SHAPE)?;
    let mut page = Made {
        bytes: Vec::new(),
        copied: Vec::new(),
        len: values,
    };
    let mut rest = Rest(rest);
    match codec {
        Codec::Snappy => snappy(&mut rest, &mut page)?,
        Codec::Lz4 => lz4(&mut rest, &mut page)?,
    }
    if page.bytes.len() != values {
        return Err(check::SIZE);
    }
    let mut bytes = levels.to_vec();
    bytes.append(&mut page.bytes);
    let mut copied = vec![false; plain];
    copied.append(&mut page.copied);
    Ok(Page { bytes, copied })
}

/// What is left of the stored bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], u32> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(check::END)?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of so many bytes, the lowest first.
    fn number(&mut self, count: usize) -> Result<usize, u32> {
        let bytes = self.take(count)?.iter().rev();
        Ok(bytes.fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
}

struct Made {
    bytes: Vec<u8>,
    copied: Vec<bool>,
    len: usize,
}

impl Made {
    fn room(&self) -> usize {
        self.len - self.bytes.len()
    }

    fn literal(&mut self, rest: &mut Rest<'_>, count: usize) -> Result<(), u32> {
        if count > rest.0.len() {
            return Err(check::END);
        }
        if count > self.room() {
            return Err(check::ROOM);
        }
        self.bytes.extend_from_slice(rest.take(count)?);
        self.copied.resize(self.bytes.len(), false);
        Ok(())
    }

    fn copy(&mut self, offset: usize, count: usize) -> Result<(), u32> {
        if count > self.room() {
            return Err(check::ROOM);
        }
        for _ in 0..count {
            let from = self.bytes.len().checked_sub(offset).ok_or(check::OFFSET)?;
            let byte = self.bytes.get(from).ok_or(check::OFFSET)?;
            self.bytes.push(*byte);
            self.copied.push(false);
            if let Some(copied) = self.copied.get_mut(from) {
                *copied = true;
            }
        }
        Ok(())
    }
}

fn offset_of(page: &Made, offset: usize) -> Result<usize, u32> {
    match offset {
        1.. if offset <= page.bytes.len() => Ok(offset),
        _ => Err(check::OFFSET),
    }
}

fn snappy(rest: &mut Rest<'_>, page: &mut Made) -> Result<(), u32> {
    let (mut promised, mut shift) = (0usize, 0);
    loop {
        if shift == 35 {
            return Err(check::HEADER);
        }
        let byte = rest.number(1)?;
        promised |= (byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            break;
        }
    }
    if promised != page.len {
        return Err(check::SIZE);
    }
    while !rest.0.is_empty() {
        let tag = rest.number(1)?;
        let kind = tag & 3;
        if kind == 0 {
            let count = match tag >> 2 {
                count @ 60.. => rest.number(count - 59)?,
                count => count,
            };
            page.literal(rest, count + 1)?;
            continue;
        }
        let more = rest.number(if kind == 3 { 4 } else { kind })?;
        let (offset, count) = match kind {
            1 => (tag >> 5 << 8 | more, (tag >> 2 & 7) + 4),
            _ => (more, (tag >> 2) + 1),
        };
        let offset = offset_of(page, offset)?;
        page.copy(offset, count)?;
    }
    Ok(())
}

/// The number in front of which a nibble is, with the bytes behind if it is 15; no more than `most`, as far as those go.
fn with_bytes(
    rest: &mut Rest<'_>,
    mut count: usize,
    full: usize,
    most: usize,
) -> Result<usize, u32> {
    if count < full {
        return Ok(count);
    }
    loop {
        // As many as the kernel takes at once.
        let (bytes, sum) = match rest.0 {
            [255, 255, 255, 255, ..] => (4, 4 * 255),
            [byte, ..] => (1, usize::from(*byte)),
            [] => return Err(check::END),
        };
        let last = rest.take(bytes)?;
        if count > most || sum > most - count {
            return Err(check::ROOM);
        }
        count += sum;
        if last != [255] && last.len() == 1 {
            return Ok(count);
        }
    }
}

fn lz4(rest: &mut Rest<'_>, page: &mut Made) -> Result<(), u32> {
    loop {
        let token = rest.number(1)?;
        let count = with_bytes(rest, token >> 4, 15, page.room())?;
        page.literal(rest, count)?;
        if rest.0.is_empty() {
            return Ok(());
        }
        let offset = rest.number(2)?;
        let offset = offset_of(page, offset)?;
        let count = with_bytes(rest, (token & 15) + 4, 19, page.room())?;
        page.copy(offset, count)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the decoders of the host make of a page, if they take it: `snap`, and `lz4_flex` as the `parquet` crate has it.
    fn by_host(codec: Codec, stored: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut page = vec![0; len];
        let made = match codec {
            Codec::Snappy => match snap::raw::decompress_len(stored) {
                Ok(promised) if promised == len => {
                    let made = snap::raw::Decoder::new().decompress(stored, &mut page);
                    made.ok()
                }
                _ => None,
            },
            Codec::Lz4 => lz4_flex::block::decompress_into(stored, &mut page).ok(),
        };
        (made? == len).then_some(page)
    }

    /// Every stream of up to `count` bytes of `tags` behind `before`, as pages of each of these lengths: how many are right.
    fn all(codec: Codec, before: &[u8], tags: &[u8], count: u32, lens: &[usize]) -> usize {
        let mut right = 0;
        for count in 0..=count {
            for mut number in 0..tags.len().pow(count) {
                let mut tail = Vec::new();
                for _ in 0..count {
                    tail.push(tags[number % tags.len()]);
                    number /= tags.len();
                }
                for len in lens {
                    let mut stored = Vec::new();
                    if codec == Codec::Snappy {
                        stored.push(*len as u8);
                    }
                    stored.extend_from_slice(before);
                    stored.extend_from_slice(&tail);
                    let wanted = by_host(codec, &stored, *len);
                    let found = decompress(codec, &stored, 0, *len);
                    assert_eq!(
                        found.as_ref().ok().map(|page| &page.bytes),
                        wanted.as_ref(),
                        "{codec:?} {stored:?} {len}: {found:?}"
                    );
                    right += usize::from(wanted.is_some());
                }
            }
        }
        right
    }

    #[test]
    fn the_decoders_of_the_host_take_the_same_streams() {
        let every: Vec<u8> = (0..=255).collect();
        for codec in [Codec::Snappy, Codec::Lz4] {
            // Room for the copies of 16 bytes at once that decoders make where they can.
            let before: [&[u8]; 3] = match codec {
                Codec::Snappy => [&[], b"\x0cabcd", b"\x4cabcdefghijklmnopqrst"],
                Codec::Lz4 => [
                    &[],
                    b"\x41abcd\x01\x00",
                    b"\xf1\x05abcdefghijklmnopqrst\x01\x00",
                ],
            };
            let mut right = 0;
            for before in before {
                right += all(codec, before, &every, 2, &[0, 1, 4, 9, 10, 13, 25, 28, 70]);
                let some = [0, 1, 2, 3, 4, 5, 15, 16, 31, 33, 64, 128, 240, 244, 255];
                right += all(codec, before, &some, 4, &[0, 2, 5, 9, 10, 30]);
            }
            assert!(right > 300, "{right}");
        }
    }
}
