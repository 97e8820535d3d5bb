//! Which format a file has, by its first bytes.

use std::fmt;

/// A format that this crate decodes.
///
/// [`Format::of`] finds it by the content of a file: names lie, and formats with a magic number do not.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Apache Parquet: begins with `PAR1`.
    Parquet,
    /// Records with checksums, perhaps compressed as a whole: the checksum of the first length is right.
    TfRecord,
    /// Tensors behind a JSON header: its length comes first.
    Safetensors,
    /// One array of NumPy: begins with `\x93NUMPY`.
    Npy,
    /// Arrays of NumPy in a ZIP archive.
    Npz,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 5] = [
        Format::Parquet,
        Format::TfRecord,
        Format::Safetensors,
        Format::Npy,
        Format::Npz,
    ];

    /// Bytes from the start of a file that [`detect`](Self::detect) looks at.
    pub const HEAD: usize = 4096;

    /// Its name in lower case: `parquet`, `tfrecord`, `safetensors`, `npy` or `npz`. The cargo feature that decodes it has
    /// the same one (`npy` for both of NumPy's).
    pub fn name(self) -> &'static str {
        match self {
            Format::Parquet => "parquet",
            Format::TfRecord => "tfrecord",
            Format::Safetensors => "safetensors",
            Format::Npy => "npy",
            Format::Npz => "npz",
        }
    }

    /// The format of a file of `len` bytes that begins with `head`, its first [`HEAD`](Self::HEAD) bytes or all of it.
    ///
    /// A first look, which says what a file is meant to be: damage further on is found by who reads it. A file that
    /// is empty has no format. TFRecord files that are compressed as a whole are found with the feature `tfrecord`.
    ///
    /// ```
    /// use feedwater::Format;
    ///
    /// assert_eq!(Format::detect(b"\x93NUMPY\x01\x00", 128), Some(Format::Npy));
    /// assert_eq!(Format::detect(b"version https://git-lfs.github.com/spec/v1\n", 130), None);
    /// ```
    pub fn detect(head: &[u8], len: u64) -> Option<Format> {
        if head.starts_with(b"PAR1") {
            return Some(Format::Parquet);
        }
        if head.starts_with(b"\x93NUMPY") {
            return Some(Format::Npy);
        }
        // A member, or the end of an archive without any.
        if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
            return Some(Format::Npz);
        }
        if is_record(head)
            || super::compressed::first_bytes(head).is_some_and(|head| is_record(&head))
        {
            return Some(Format::TfRecord);
        }
        // The specification: the header begins with `{`, and lies within the file.
        let (length, header) = head.split_first_chunk()?;
        let fits = u64::from_le_bytes(*length) <= len.saturating_sub(8);
        (fits && header.first() == Some(&b'{')).then_some(Format::Safetensors)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a format, as [`Format::name`] has it.
impl std::str::FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let known = Format::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or(UnknownFormat)
    }
}

/// There is no format of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the formats are parquet, tfrecord, safetensors, npy and npz")]
pub struct UnknownFormat;

/// Whether a TFRecord begins here: the masked CRC-32C of its length is right.
fn is_record(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else {
        return false;
    };
    let Some(stored) = rest.first_chunk() else {
        return false;
    };
    masked(crc32c(length)) == u32::from_le_bytes(*stored)
}

/// Bit by bit: it is for eight bytes, once a file, and without any feature.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

/// As TFRecord stores it.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(length: u64) -> Vec<u8> {
        let mut head = length.to_le_bytes().to_vec();
        head.extend(masked(crc32c(&length.to_le_bytes())).to_le_bytes());
        head
    }

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283); // the check value of CRC-32/ISCSI
    }

    #[test]
    fn each_by_its_own_sign() {
        let safetensors = [&10u64.to_le_bytes()[..], br#"{"a":1}   "#].concat();
        for (head, format) in [
            (b"PAR1....".to_vec(), Format::Parquet),
            (b"\x93NUMPY\x01\x00".to_vec(), Format::Npy),
            (b"PK\x03\x04....".to_vec(), Format::Npz),
            (b"PK\x05\x06....".to_vec(), Format::Npz),
            (record(1 << 40), Format::TfRecord),
            (safetensors, Format::Safetensors),
        ] {
            assert_eq!(Format::detect(&head, head.len() as u64), Some(format));
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert_eq!("csv".parse::<Format>(), Err(UnknownFormat));
    }

    #[test]
    fn nothing_else_is_taken_for_one() {
        let longer = [&11u64.to_le_bytes()[..], b"{         "].concat();
        let mut flipped = record(77);
        flipped[9] ^= 1;
        for head in [
            &b""[..],
            b"P",
            b"{}",
            b"\x93NUMP",
            &[0; 12],
            &[0; 4096],
            &longer,
            &flipped,
        ] {
            assert_eq!(Format::detect(head, head.len() as u64), None, "{head:?}");
        }
    }
}
