//! The first bytes of what a GZIP or ZLIB stream holds.

use std::io::Read;

use flate2::read::{GzDecoder, ZlibDecoder};

/// Enough to recognise a format by; `None` if `head` begins no such stream, or ends too early.
pub(crate) fn first_bytes(head: &[u8]) -> Option<[u8; 12]> {
    let mut first = [0; 12];
    let inflated = match head {
        [0x1f, 0x8b, ..] => GzDecoder::new(head).read_exact(&mut first),
        // RFC 1950: method 8, and both bytes together a multiple of 31.
        [a, b, ..] if a & 0x0f == 8 && u16::from_be_bytes([*a, *b]).is_multiple_of(31) => {
            ZlibDecoder::new(head).read_exact(&mut first)
        }
        _ => return None,
    };
    inflated.ok().map(|()| first)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    #[test]
    fn of_both_kinds_of_streams() {
        let content = b"twelve bytes and more";
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(content).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(content).unwrap();
        for stream in [gzip.finish().unwrap(), zlib.finish().unwrap()] {
            assert_eq!(first_bytes(&stream).unwrap(), content[..12]);
            assert_eq!(first_bytes(&stream[..6]), None);
        }
        assert_eq!(first_bytes(content), None);
        assert_eq!(first_bytes(b""), None);
    }
}
