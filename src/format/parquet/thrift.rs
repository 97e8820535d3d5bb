//! Thrift's compact protocol, as far as page headers need it: fields that are looked at, and others that are skipped.
//!
//! Source: `thrift-compact-protocol.md` of Apache Thrift. Everything is `None` where the bytes end too early, are no such
//! encoding, or lie deeper in each other than page headers do.

/// Deepest nesting of a page header that is followed.
pub(super) const DEPTH: usize = 8;

/// What takes a field: its bytes and what follows, its number, its type, and how deep it may go.
type Take<'a> = dyn FnMut(&mut &[u8], i64, u8, usize) -> Option<()> + 'a;

/// Walks over the fields of a struct.
pub(super) fn fields(rest: &mut &[u8], depth: usize, take: &mut Take<'_>) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut id = 0_i64;
    loop {
        let head = byte(rest)?;
        if head == 0 {
            return Some(());
        }
        id = match head >> 4 {
            0 => zigzag(varint(rest)?),
            more => id.checked_add(i64::from(more))?,
        };
        take(rest, id, head & 15, depth)?;
    }
}

/// Skips a value of a type of the protocol.
pub(super) fn skip(rest: &mut &[u8], kind: u8, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match kind {
        // The value of a boolean field is its type.
        1 | 2 => {}
        3 => _ = byte(rest)?,
        4..=6 => _ = varint(rest)?,
        7 => *rest = rest.get(8..)?,
        8 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            *rest = rest.get(length..)?;
        }
        9 | 10 => {
            let head = byte(rest)?;
            let count = match head >> 4 {
                15 => varint(rest)?,
                count => u64::from(count),
            };
            for _ in 0..count {
                match head & 15 {
                    1 | 2 => _ = byte(rest)?,
                    kind => skip(rest, kind, depth)?,
                }
            }
        }
        12 => fields(rest, depth + 1, &mut |rest, _, kind, depth| {
            skip(rest, kind, depth)
        })?,
        // Page headers have no maps.
        _ => return None,
    }
    Some(())
}

/// Length of the struct that `bytes` begin with.
pub(super) fn struct_len(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    skip(&mut rest, 12, DEPTH)?;
    Some(bytes.len() - rest.len())
}

/// A number without sign, of 64 bits at most.
pub(super) fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(rest)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The number with sign that a [`varint`] stands for.
pub(super) fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (first, others) = rest.split_first()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_come_back() {
        for value in (0..64).flat_map(|bits| [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits]) {
            let mut bytes = Vec::new();
            let mut left = value;
            while left >= 0x80 {
                bytes.push(left as u8 | 0x80);
                left >>= 7;
            }
            bytes.push(left as u8);
            let mut rest = &bytes[..];
            assert_eq!((varint(&mut rest), rest), (Some(value), &[][..]));
            for cut in 0..bytes.len() {
                assert_eq!(varint(&mut &bytes[..cut]), None);
            }
        }
        assert_eq!(varint(&mut &[0x80; 11][..]), None);
        for (encoded, value) in [(0, 0), (1, -1), (2, 1), (u64::MAX, i64::MIN)] {
            assert_eq!(zigzag(encoded), value);
        }
    }

    #[test]
    fn every_type_is_skipped_and_bad_ones_are_not_followed() {
        // Fields 1 to 9: true, false, a byte, i16, i32, i64, a double, bytes, a list of two i32; then a set of 15 bytes and a
        // struct in a struct.
        let mut whole = vec![0x11, 0x12, 0x13, 7, 0x14, 0x80, 1, 0x15, 2, 0x16, 3, 0x17];
        whole.extend([0; 8]);
        whole.extend([0x18, 2, b'a', b'b', 0x19, 0x25, 1, 0x80, 1]);
        whole.extend([0x1a, 0xf3, 15]);
        whole.extend([9; 15]);
        whole.extend([0x1c, 0x1c, 0, 0, 0]);
        let longer = [&whole[..], &[1, 2, 3]].concat();
        assert_eq!(struct_len(&longer), Some(whole.len()));
        for len in 0..whole.len() {
            assert_eq!(struct_len(&whole[..len]), None, "{len}");
        }
        assert_eq!(struct_len(&[0x1c; 100]), None, "too deep");
        assert_eq!(
            struct_len(&[0x19, 0xf5, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]),
            None,
            "more elements than bytes"
        );
        assert_eq!(struct_len(&[0x1b, 0]), None, "a map");
    }

    #[test]
    fn fields_have_their_numbers() {
        // Field 1, field 17 by its own number, field 19.
        let bytes = [0x15, 2, 0x05, 34, 4, 0x25, 6, 0, 99];
        let mut rest = &bytes[..];
        let mut seen = Vec::new();
        let walked = fields(&mut rest, DEPTH, &mut |rest, id, kind, _| {
            seen.push((id, kind, zigzag(varint(rest)?)));
            Some(())
        });
        assert_eq!((walked, rest), (Some(()), &[99][..]));
        assert_eq!(seen, [(1, 5, 1), (17, 5, 2), (19, 5, 3)]);
    }
}
