//! The offset index kept in a file: where each record of a TFRecord file begins.
//!
//! Little-endian: the magic bytes, what identifies the file (its length, inode, and time of modification), the number of
//! records, the length of the list, CRC-32C of all that; then the list, which has the length of each record's data as
//! LEB128, and CRC-32C of it. Frames follow each other without gaps, so that lengths are enough.

use super::frame::{OVERHEAD, masked_crc};

/// What it begins with.
pub(crate) const MAGIC: &[u8; 8] = b"FWTFRIX1";
/// Magic, the four fields of the identity, count, length of the list.
const FIELDS: usize = 8 + 8 + 8 + 8 + 4 + 8 + 8;
const HEADER: usize = FIELDS + 4;
/// Most bytes of a `u64` as LEB128.
const VARINT: usize = 10;

/// What the file was when its index was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) size: u64,
    pub(crate) inode: u64,
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

/// Most bytes that the index of a file of `size` bytes can have: a record takes more room than its entry.
pub(crate) fn most(size: u64) -> u64 {
    size.saturating_add((HEADER + 4) as u64)
}

/// The index of records whose frames begin at `offsets`; the last one is where the file ends.
pub(crate) fn encode(identity: &Identity, offsets: &[u64]) -> Vec<u8> {
    let mut list = Vec::with_capacity(offsets.len() * 3);
    for (start, end) in offsets.iter().zip(offsets.iter().skip(1)) {
        put_varint(&mut list, (end - start).saturating_sub(OVERHEAD));
    }
    let count = offsets.len().saturating_sub(1) as u64;
    let mut bytes = Vec::with_capacity(HEADER + list.len() + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&identity.size.to_le_bytes());
    bytes.extend_from_slice(&identity.inode.to_le_bytes());
    bytes.extend_from_slice(&identity.seconds.to_le_bytes());
    bytes.extend_from_slice(&identity.nanoseconds.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&(list.len() as u64).to_le_bytes());
    let sum = masked_crc(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let sum = masked_crc(&list);
    bytes.extend_from_slice(&list);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The offsets in an index, as [`encode`] takes them; `None` if it is of another state of the file, or damaged.
///
/// Allocates eight times as many bytes as it is given, at most.
pub(crate) fn decode(bytes: &[u8], identity: &Identity) -> Option<Vec<u64>> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let (fields, sum) = header.split_at(FIELDS);
    if masked_crc(fields).to_le_bytes() != *sum {
        return None;
    }
    let mut fields = Fields(fields);
    let same = fields.take::<8>()? == *MAGIC
        && u64::from_le_bytes(fields.take()?) == identity.size
        && u64::from_le_bytes(fields.take()?) == identity.inode
        && i64::from_le_bytes(fields.take()?) == identity.seconds
        && u32::from_le_bytes(fields.take()?) == identity.nanoseconds;
    let count = u64::from_le_bytes(fields.take()?);
    let length = u64::from_le_bytes(fields.take()?);
    let (list, sum) = rest.split_last_chunk::<4>()?;
    // Each entry takes a byte at least, which bounds what is allocated below.
    if !same || list.len() as u64 != length || count > length {
        return None;
    }
    if masked_crc(list).to_le_bytes() != *sum {
        return None;
    }
    let mut offsets = Vec::new();
    offsets.try_reserve_exact(count as usize + 1).ok()?;
    let (mut at, mut list) = (0_u64, list);
    offsets.push(at);
    for _ in 0..count {
        let (len, rest) = take_varint(list)?;
        list = rest;
        at = at.checked_add(len)?.checked_add(OVERHEAD)?;
        offsets.push(at);
    }
    (list.is_empty() && at == identity.size).then_some(offsets)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
}

fn put_varint(list: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        list.push(value as u8 | 0x80);
        value >>= 7;
    }
    list.push(value as u8);
}

fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (i, byte) in bytes.iter().enumerate().take(VARINT) {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * i);
        if shifted >> (7 * i) != bits {
            return None;
        }
        value |= shifted;
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(i + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offsets(lengths: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0];
        let mut at = 0;
        for len in lengths {
            at += len + OVERHEAD;
            offsets.push(at);
        }
        offsets
    }

    fn identity(size: u64) -> Identity {
        Identity {
            size,
            inode: 77,
            seconds: -5,
            nanoseconds: 999_999_999,
        }
    }

    proptest! {
        #[test]
        fn it_comes_back_and_only_for_the_same_file(
            lengths in proptest::collection::vec(prop_oneof![0u64..300, 0u64..1 << 40], 0..50),
        ) {
            let offsets = offsets(&lengths);
            let id = identity(*offsets.last().unwrap());
            let bytes = encode(&id, &offsets);
            prop_assert!(bytes.len() as u64 <= most(id.size));
            prop_assert_eq!(decode(&bytes, &id), Some(offsets));
            let others = [
                Identity { size: id.size + 1, ..id },
                Identity { inode: 1, ..id },
                Identity { seconds: 5, ..id },
                Identity { nanoseconds: 0, ..id },
            ];
            for other in others {
                prop_assert_eq!(decode(&bytes, &other), None);
            }
        }

        #[test]
        fn no_damage_passes(at: prop::sample::Index, flip in 1u8.., cut: prop::sample::Index) {
            let offsets = offsets(&[3, 0, 500, 70_000]);
            let id = identity(*offsets.last().unwrap());
            let mut bytes = encode(&id, &offsets);
            prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())], &id), None);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert_eq!(decode(&bytes, &id), None);
        }
    }

    /// Sums that are right do not make the content right.
    #[test]
    fn a_hostile_index_neither_panics_nor_allocates() {
        let id = identity(u64::MAX);
        let make = |count: u64, list: &[u8]| {
            let mut bytes = encode(&id, &[0]);
            bytes.truncate(FIELDS);
            bytes[36..44].copy_from_slice(&count.to_le_bytes());
            bytes[44..52].copy_from_slice(&(list.len() as u64).to_le_bytes());
            let sum = masked_crc(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            bytes.extend_from_slice(list);
            bytes.extend_from_slice(&masked_crc(list).to_le_bytes());
            bytes
        };
        assert_eq!(decode(&make(u64::MAX, &[0; 5]), &id), None);
        assert_eq!(decode(&make(6, &[0; 5]), &id), None, "too few entries");
        assert_eq!(decode(&make(4, &[0; 5]), &id), None, "too many entries");
        assert_eq!(decode(&make(1, &[0x80; 11]), &id), None, "no end");
        let large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(decode(&make(1, &large), &id), None, "the sum overflows");
        let too_large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(decode(&make(1, &too_large), &id), None, "no u64");
        // Its list says that the file has 16 bytes, or 116.
        let id16 = identity(16);
        let bytes = encode(&id16, &[0, 16]);
        assert_eq!(decode(&bytes, &id16), Some(vec![0, 16]));
        assert_eq!(decode(&encode(&id16, &[0, 116]), &id16), None);
    }
}
