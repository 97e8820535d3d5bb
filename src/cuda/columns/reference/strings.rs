//! Values of any length, one after the other.

use std::ops::Range;

use crate::cuda::columns::{Column, Values};

pub(super) fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
}

/// Values one after the other, and where each begins.
pub(super) fn joined<'a>(values: impl Iterator<Item = &'a [u8]>) -> (Vec<u64>, Vec<u8>) {
    let (mut offsets, mut bytes) = (vec![0], Vec::new());
    for value in values {
        bytes.extend_from_slice(value);
        offsets.push(bytes.len() as u64);
    }
    (offsets, bytes)
}

/// The entries of the dictionary page, as far as there is one.
pub(super) fn dictionary<'a>(
    part: &impl Fn(&Range<u64>) -> &'a [u8],
    column: &Column,
) -> Option<Vec<Vec<u8>>> {
    let Some((range, count)) = &column.dictionary else {
        return Some(Vec::new());
    };
    match column.values {
        Values::Boolean => Some(Vec::new()),
        Values::Fixed { width } => Some(
            part(range)
                .chunks(width as usize)
                .map(<[u8]>::to_vec)
                .collect(),
        ),
        Values::Bytes { .. } => lengths(part(range), *count as usize),
    }
}

/// `count` values, each behind its length, and nothing else.
pub(super) fn lengths(mut section: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    for _ in 0..count {
        let (len, rest) = section.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        values.push(value.to_vec());
        section = rest;
    }
    section.is_empty().then_some(values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::cuda::columns::reference::{HostOutcome, columns};
    use crate::cuda::columns::{Column, Convert, Encoding, Page, Values, check};

    use super::*;

    #[test]
    fn lengths_lead_from_one_value_to_the_next() {
        let section = [1, 0, 0, 0, b'a', 0, 0, 0, 0, 2, 0, 0, 0, b'b', b'c'];
        let values = lengths(&section, 3).unwrap();
        assert_eq!(values, [&b"a"[..], b"", b"bc"]);
        let (offsets, bytes) = joined(values.iter().map(Vec::as_slice));
        assert_eq!((offsets, bytes), (vec![0, 1, 1, 3], b"abc".to_vec()));
        // One too few or too many, or a byte.
        assert_eq!(lengths(&section, 2), None);
        assert_eq!(lengths(&section, 4), None);
        assert_eq!(lengths(&section[..14], 3), None);
        assert_eq!(lengths(&[0xff; 5], 1), None);
        assert_eq!(lengths(&[], 0).unwrap(), Vec::<Vec<u8>>::new());
    }

    /// Three rows of indices 1, 1, 0 into entries of these bytes.
    fn indices(entries: &[u8], count: u64, convert: Convert, utf8: bool) -> HostOutcome {
        let mut arena = entries.to_vec();
        let start = arena.len() as u64;
        arena.extend([1, 3, 0b011]);
        let column = Column {
            values: Values::Bytes { large: false, utf8 },
            nullable: false,
            dictionary: Some((0..start, count)),
            pages: vec![Page {
                body: start..start + 3,
                v1: true,
                def_len: 0,
                entries: 3,
                nulls: None,
                encoding: Encoding::Dictionary,
            }],
            convert,
        };
        columns(&arena, &[column]).remove(0)
    }

    #[test]
    fn indices_lead_to_entries_or_stay() {
        let entries = [1, 0, 0, 0, b'a', 2, 0, 0, 0, 0xc3, 0xa9];
        let strings = |offsets: &[u64], bytes: &[u8]| HostOutcome::Strings {
            offsets: offsets.to_vec(),
            bytes: bytes.to_vec(),
            validity: None,
            nulls: 0,
        };
        let made = indices(&entries, 2, Convert::Same, true);
        assert_eq!(made, strings(&[0, 2, 4, 5], "ééa".as_bytes()));
        let made = indices(&entries, 2, Convert::Indices { to: 2 }, true);
        let wanted = HostOutcome::Indices {
            values: vec![1, 0, 1, 0, 0, 0],
            offsets: vec![0, 1, 3],
            bytes: "aé".into(),
            validity: None,
            nulls: 0,
        };
        assert_eq!(made, wanted);
        let fault = |check| HostOutcome::Fault { page: 0, check };
        let same = Convert::Same;
        assert_eq!(indices(&entries, 3, same, true), fault(check::DICTIONARY));
        assert_eq!(indices(&entries[..5], 1, same, true), fault(check::INDEX));
        let mut wrong = entries;
        wrong[10] = b'b';
        assert_eq!(indices(&wrong, 2, same, true), fault(check::UTF8));
        let made = indices(&wrong, 2, same, false);
        assert_eq!(made, strings(&[0, 2, 4, 5], b"\xc3b\xc3ba"));
        let wide = Convert::WidenBigEndian { to: 16 };
        let HostOutcome::Done { values, .. } = indices(&entries, 2, wide, false) else {
            unreachable!()
        };
        assert_eq!(values[..4], [0xa9, 0xc3, 0xff, 0xff]);
        assert_eq!(values[32..36], [b'a', 0, 0, 0]);
        assert_eq!(indices(&entries, 2, wide, true), fault(check::SHAPE));
    }
}
