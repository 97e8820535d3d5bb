//! How one record is framed: its length, its data, and a masked CRC-32C of each.
//!
//! Source: "TFRecord and tf.train.Example" in TensorFlow's guide, and `record_writer.h`: `uint64 length`, `uint32`
//! masked CRC of the length, the data, `uint32` masked CRC of the data, all little-endian.

/// Bytes before the data: the length and its checksum.
pub(crate) const HEADER: usize = 12;
/// Bytes behind the data: its checksum.
pub(crate) const FOOTER: usize = 4;
/// Bytes of a frame that are not data.
pub(crate) const OVERHEAD: u64 = (HEADER + FOOTER) as u64;

const MASK_DELTA: u32 = 0xa282_ead8;

/// The length that a header has, or `None` if its checksum is wrong.
#[inline]
pub(crate) fn length(header: &[u8; HEADER]) -> Option<u64> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    let length = [a, b, c, d, e, f, g, h];
    let found = u32::from_le_bytes([i, j, k, l]);
    (mask(crc_of_eight(length)) == found).then(|| u64::from_le_bytes(length))
}

/// The header of a record of `length` bytes.
pub(crate) fn header(length: u64) -> [u8; HEADER] {
    let length = length.to_le_bytes();
    let mut header = [0; HEADER];
    let (head, sum) = header.split_at_mut(8);
    head.copy_from_slice(&length);
    sum.copy_from_slice(&mask(crc_of_eight(length)).to_le_bytes());
    header
}

/// The footer of a record with this data.
pub(crate) fn footer(data: &[u8]) -> [u8; FOOTER] {
    masked_crc(data).to_le_bytes()
}

/// The checksum of data as it is stored.
#[inline]
pub(crate) fn masked_crc(data: &[u8]) -> u32 {
    mask(crc_fast::crc32_iscsi(data))
}

/// A checksum of data that itself holds checksums finds less; hence the rotation and the constant.
#[inline]
fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// CRC-32C of the eight bytes of a length, by tables: for so few bytes the call to code that is chosen at run time
/// costs more than the work.
#[inline]
fn crc_of_eight(bytes: [u8; 8]) -> u32 {
    let [a, b, c, d, e, f, g, h] = bytes;
    let first = u32::from_le_bytes([a, b, c, d]) ^ u32::MAX;
    let [a, b, c, d] = first.to_le_bytes();
    let at = |table: usize, byte: u8| TABLES[table][byte as usize];
    let crc = at(7, a) ^ at(6, b) ^ at(5, c) ^ at(4, d) ^ at(3, e) ^ at(2, f) ^ at(1, g) ^ at(0, h);
    crc ^ u32::MAX
}

/// `TABLES[n][byte]`: the remainder of the byte with `n` zero bytes behind it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    // The polynomial of Castagnoli, bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as the definition has it.
    fn slow_crc(data: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in data {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        !crc
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        // RFC 3720, B.4.
        assert_eq!(slow_crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc_fast::crc32_iscsi(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn sums_are_masked_as_tensorflow_masks_them() {
        let header = header(107);
        assert_eq!(&header[..8], &[107, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(length(&header), Some(107));
        let crc = slow_crc(b"foo");
        let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8); // `crc32c.h`
        assert_eq!(masked_crc(b"foo"), masked);
        assert_eq!(masked_crc(b""), MASK_DELTA);
    }

    proptest! {
        #[test]
        fn both_ways_to_sum_agree(data in proptest::collection::vec(any::<u8>(), 0..700)) {
            prop_assert_eq!(crc_fast::crc32_iscsi(&data), slow_crc(&data));
        }

        #[test]
        fn a_length_comes_back_and_no_flipped_bit_passes(value: u64, bit in 0usize..96) {
            let mut bytes = header(value);
            prop_assert_eq!(length(&bytes), Some(value));
            prop_assert_eq!(crc_of_eight(value.to_le_bytes()), slow_crc(&value.to_le_bytes()));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(length(&bytes), None);
        }
    }
}
