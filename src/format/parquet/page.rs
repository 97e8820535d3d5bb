//! Pages before they are decoded: what their headers promise, and what no decoder should be given.

use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::Page;

use super::thrift::{DEPTH, fields, skip, struct_len, varint, zigzag};

/// Why a page is not decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageFault {
    /// It contradicts itself.
    Malformed(String),
    /// It uses what is not read.
    Unsupported(String),
}

/// What is looked at in the header of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// Bytes of the page before compression.
    pub(crate) uncompressed: i64,
    compressed: i64,
    pub(crate) is_dictionary: bool,
    /// Of a dictionary; 0 for other pages.
    entries: i64,
    /// Bytes of the header.
    pub(crate) len: usize,
}

impl PageHeader {
    /// The struct `PageHeader` (parquet.thrift) that `bytes` begin with, in Thrift's compact protocol.
    pub(crate) fn parse(bytes: &[u8]) -> Option<PageHeader> {
        let mut header = PageHeader::default();
        let mut rest = bytes;
        fields(&mut rest, DEPTH, &mut |rest, id, kind, depth| {
            match (id, kind) {
                (2, 5) => header.uncompressed = zigzag(varint(rest)?),
                (3, 5) => header.compressed = zigzag(varint(rest)?),
                (7, 12) => {
                    header.is_dictionary = true;
                    fields(rest, depth, &mut |rest, id, kind, depth| {
                        match (id, kind) {
                            (1, 5) => header.entries = zigzag(varint(rest)?),
                            _ => skip(rest, kind, depth)?,
                        }
                        Some(())
                    })?;
                }
                _ => skip(rest, kind, depth)?,
            }
            Some(())
        })?;
        header.len = bytes.len() - rest.len();
        Some(header)
    }

    /// Why its numbers cannot be, as [`implausible`] says.
    pub(crate) fn implausible(&self, codec: Compression, bits: i64) -> Option<String> {
        implausible(
            self.compressed,
            self.uncompressed,
            self.entries,
            codec,
            bits,
        )
    }
}

/// Why the numbers of a page header cannot be: more bytes than `codec` can make of those that are there, or more entries of a
/// dictionary than these bytes hold, if a value has at least so many `bits`. Who decodes allocates by these numbers.
///
/// Brotli has no such bound; one page takes 2 GiB at most, as the format counts it with 31 bits.
pub(super) fn implausible(
    compressed: i64,
    uncompressed: i64,
    entries: i64,
    codec: Compression,
    bits: i64,
) -> Option<String> {
    // Most bytes that one can become: a copy of 64 bytes takes 3 in Snappy (format_description.txt), a byte of a length
    // in LZ4 stands for 255 (lz4_Block_format.md), a match of 258 bytes takes 2 bits in DEFLATE (RFC 1951), a block of
    // 128 KiB takes 4 bytes in Zstandard (RFC 8878).
    let most = match codec {
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        Compression::GZIP(_) => 1032,
        Compression::ZSTD(_) => 32 << 10,
        _ => i64::from(i32::MAX),
    };
    let (from, to) = (compressed.max(0), uncompressed);
    // Not of one byte, since a frame with nothing in it has some.
    if to > from.saturating_add(1).saturating_mul(most) {
        return Some(format!(
            "a page header promises {to} bytes from {from}, more than {codec} can make"
        ));
    }
    if entries.saturating_mul(bits) > to.max(0).saturating_mul(8) {
        return Some(format!(
            "a dictionary page promises {entries} entries in {to} bytes"
        ));
    }
    None
}

/// Bits of the shortest value of a dictionary of this type.
pub(crate) fn least_bits(kind: Type, length: i32) -> i64 {
    match kind {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
        Type::INT64 | Type::DOUBLE => 64,
        Type::INT96 => 96,
        Type::FIXED_LEN_BYTE_ARRAY => 8 * i64::from(length.max(0)),
    }
}

/// Which levels the pages of a column have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    pub(crate) definition: bool,
    pub(crate) repetition: bool,
}

impl Levels {
    /// That a page is one that the `parquet` crate reads rightly, with memory that it can take.
    ///
    /// - Levels in the deprecated BIT_PACKED encoding are not. The format has them packed from the most significant bit on
    ///   (Encodings.md); the crate unpacks from the least significant one, and would deliver other nulls and lists than were
    ///   written. Columns without levels may name the encoding, as many writers do.
    /// - Nor is a page of one of the DELTA encodings that promises more values than the page has.
    #[allow(deprecated)] // The encoding that this is about.
    pub(crate) fn check(self, page: &Page) -> Result<(), PageFault> {
        if let Some((promised, values)) = self.too_many_deltas(page) {
            let what = format!("a page of {values} values promises {promised} of them");
            return Err(PageFault::Malformed(what));
        }
        let Page::DataPage {
            def_level_encoding,
            rep_level_encoding,
            ..
        } = page
        else {
            return Ok(());
        };
        for (has, encoding, which) in [
            (self.definition, def_level_encoding, "definition"),
            (self.repetition, rep_level_encoding, "repetition"),
        ] {
            if has && *encoding == Encoding::BIT_PACKED {
                let feature = format!("{which} levels in the BIT_PACKED encoding");
                return Err(PageFault::Unsupported(feature));
            }
        }
        Ok(())
    }

    /// How many values the header of a DELTA encoding promises, if that is more than the page has, and how many it has.
    fn too_many_deltas(self, page: &Page) -> Option<(u64, u64)> {
        let (Encoding::DELTA_BINARY_PACKED
        | Encoding::DELTA_LENGTH_BYTE_ARRAY
        | Encoding::DELTA_BYTE_ARRAY) = page.encoding()
        else {
            return None;
        };
        let mut rest = &page.buffer()[..];
        if let Page::DataPageV2 {
            def_levels_byte_len,
            rep_levels_byte_len,
            ..
        } = page
        {
            let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
            rest = rest.get(usize::try_from(levels).ok()?..)?;
        } else {
            let levels = [self.definition, self.repetition];
            for _ in levels.iter().filter(|has| **has) {
                let (length, levels) = rest.split_first_chunk::<4>()?;
                rest = levels.get(usize::try_from(u32::from_le_bytes(*length)).ok()?..)?;
            }
        }
        let values = u64::from(page.num_values());
        let mut promised = skip_deltas(&mut rest, values)?;
        // Lengths of prefixes are followed by those of suffixes.
        if promised <= values && page.encoding() == Encoding::DELTA_BYTE_ARRAY {
            promised = skip_deltas(&mut rest, values)?;
        }
        (promised > values).then_some((promised, values))
    }
}

/// How many frames a page of Hadoop's LZ4 codec is in, 0 if it is not framed so. `with_header`: its header comes first.
pub(crate) fn hadoop_frames(page: &[u8], with_header: bool) -> usize {
    let header = match with_header {
        true => struct_len(page).unwrap_or(page.len()),
        false => 0,
    };
    page.get(header..).map_or(0, frames)
}

/// In how many frames `page` is, if it is framed as Hadoop's codecs do, and 0 otherwise. Either each frame has its own
/// length (big-endian u32, like all here) before decompression, then that of its bytes; or the first length is that of all
/// frames together (`BlockCompressorStream`).
fn frames(page: &[u8]) -> usize {
    let walk = |each: bool| {
        let mut rest = page;
        let mut frames = 0;
        while !rest.is_empty() {
            if each || frames == 0 {
                rest = rest.get(4..)?;
            }
            let (length, bytes) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
            rest = bytes.get(length..)?;
            frames += 1;
        }
        Some(frames)
    };
    walk(true).or_else(|| walk(false)).unwrap_or(0)
}

/// Skips numbers in DELTA_BINARY_PACKED (Encodings.md): how many there are. If that is more than `most`, only their header.
fn skip_deltas(rest: &mut &[u8], most: u64) -> Option<u64> {
    let (block, parts, count, _first) =
        (varint(rest)?, varint(rest)?, varint(rest)?, varint(rest)?);
    if count > most {
        return Some(count);
    }
    let each = block.checked_div(parts)?;
    let mut left = count.saturating_sub(1);
    while left > 0 && each > 0 {
        let _least = varint(rest)?;
        let (widths, packed) = rest.split_at_checked(usize::try_from(parts).ok()?)?;
        *rest = packed;
        for width in widths {
            if left == 0 {
                break;
            }
            let bits = each.checked_mul(u64::from(*width))?;
            *rest = rest.get(usize::try_from(bits.div_ceil(8)).ok()?..)?;
            left = left.saturating_sub(each);
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const RLE: Encoding = Encoding::RLE;

    /// A dictionary of 3 entries in 8 bytes.
    const DICTIONARY: [u8; 13] = [0x15, 4, 0x15, 16, 0x15, 16, 0x4c, 0x15, 6, 0x15, 0, 0, 0];

    /// The header of a data page with these two sizes, its values in PLAIN and its levels in RLE.
    fn header(uncompressed: i64, compressed: i64) -> Vec<u8> {
        let mut out = vec![0x15, 0];
        for size in [uncompressed, compressed] {
            out.push(0x15);
            let mut value = ((size << 1) ^ (size >> 63)).cast_unsigned();
            while value >= 0x80 {
                out.push(value as u8 | 0x80);
                value >>= 7;
            }
            out.push(value as u8);
        }
        out.extend([0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0]);
        out
    }

    fn implausible(bytes: &[u8], codec: Compression, bits: i64) -> Option<String> {
        PageHeader::parse(bytes)?.implausible(codec, bits)
    }

    #[test]
    fn headers_say_what_they_promise() {
        let bytes = header(300, 70);
        let page = PageHeader {
            uncompressed: 300,
            compressed: 70,
            is_dictionary: false,
            entries: 0,
            len: bytes.len(),
        };
        assert_eq!(
            PageHeader::parse(&[&bytes[..], b"more"].concat()),
            Some(page)
        );
        for len in 0..bytes.len() {
            assert_eq!(PageHeader::parse(&bytes[..len]), None);
        }
        let dictionary = PageHeader::parse(&DICTIONARY).unwrap();
        assert!(dictionary.is_dictionary);
        assert_eq!((dictionary.entries, dictionary.uncompressed), (3, 8));
        assert_eq!(dictionary.len, DICTIONARY.len());
    }

    #[test]
    fn promises_that_no_codec_keeps_are_implausible() {
        for (codec, ratio) in [
            (Compression::SNAPPY, 22),
            (Compression::LZ4, 255),
            (Compression::LZ4_RAW, 255),
            (Compression::GZIP(Default::default()), 1032),
            (Compression::ZSTD(Default::default()), 32 << 10),
        ] {
            let most = 11 * ratio;
            assert_eq!(implausible(&header(most, 10), codec, 32), None);
            let said = implausible(&header(most + 1, 10), codec, 32).unwrap();
            assert!(said.contains("a page header promises"), "{said}");
            // Numbers that writers cannot mean, either.
            assert!(implausible(&header(most * 2, -5), codec, 32).is_some());
        }
        let brotli = Compression::BROTLI(Default::default());
        let most = i64::from(i32::MAX);
        assert_eq!(implausible(&header(most, 1), brotli, 32), None);
        let codec = Compression::UNCOMPRESSED;
        assert_eq!(implausible(&DICTIONARY, codec, 16), None);
        assert!(implausible(&DICTIONARY, codec, 32).is_some());
        assert_eq!(implausible(&DICTIONARY, codec, 0), None);
    }

    #[test]
    fn values_of_a_type_have_their_bits() {
        assert_eq!(least_bits(Type::BOOLEAN, 0), 1);
        // The length in front of each.
        assert_eq!(least_bits(Type::BYTE_ARRAY, 0), 32);
        assert_eq!(least_bits(Type::FIXED_LEN_BYTE_ARRAY, 5), 40);
        assert_eq!(least_bits(Type::FIXED_LEN_BYTE_ARRAY, -5), 0);
    }

    /// Blocks of 128 in 4 parts of 32; two numbers, whose one delta takes 1 bit.
    const TWO: [u8; 14] = [0x80, 1, 4, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    /// The same, with 2^32 numbers and nothing of them.
    const MANY: [u8; 9] = [0x80, 1, 4, 0xff, 0xff, 0xff, 0xff, 0x0f, 0];

    fn page(encoding: Encoding, body: &[u8], levels: [Encoding; 2]) -> Page {
        Page::DataPage {
            buf: Bytes::copy_from_slice(body),
            num_values: 2,
            encoding,
            def_level_encoding: levels[0],
            rep_level_encoding: levels[1],
            statistics: None,
        }
    }

    #[test]
    fn more_deltas_than_values_are_refused() {
        let mut rest = &[&TWO[..], &[7]].concat()[..];
        assert_eq!((skip_deltas(&mut rest, 2), rest), (Some(2), &[7][..]));
        let level = [1, 0, 0, 0, 9];
        for (encoding, body, ok) in [
            (Encoding::DELTA_BINARY_PACKED, vec![TWO.to_vec()], true),
            (Encoding::DELTA_BINARY_PACKED, vec![MANY.to_vec()], false),
            (
                Encoding::DELTA_LENGTH_BYTE_ARRAY,
                vec![MANY.to_vec()],
                false,
            ),
            (
                Encoding::DELTA_BYTE_ARRAY,
                vec![TWO.to_vec(), TWO.to_vec()],
                true,
            ),
            (
                Encoding::DELTA_BYTE_ARRAY,
                vec![TWO.to_vec(), MANY.to_vec()],
                false,
            ),
            // Of no other encoding, and where nothing can be told, it is for the decoder to say.
            (Encoding::PLAIN, vec![MANY.to_vec()], true),
            (Encoding::DELTA_BINARY_PACKED, vec![], true),
        ] {
            let body = body.concat();
            for (definition, repetition) in [(false, false), (true, false), (true, true)] {
                let levels = [definition, repetition].iter().filter(|has| **has).count();
                let whole = [level.repeat(levels), body.clone()].concat();
                let levels = Levels {
                    definition,
                    repetition,
                };
                let checked = levels.check(&page(encoding, &whole, [RLE; 2]));
                assert_eq!(checked.is_ok(), ok, "{encoding} {checked:?}");
                let v2 = Page::DataPageV2 {
                    buf: [&[9; 5][..], &body].concat().into(),
                    num_values: 2,
                    encoding,
                    num_nulls: 0,
                    num_rows: 2,
                    def_levels_byte_len: 3,
                    rep_levels_byte_len: 2,
                    is_compressed: false,
                    statistics: None,
                };
                assert_eq!(levels.check(&v2).is_ok(), ok, "{encoding}");
            }
        }
    }

    #[test]
    #[allow(deprecated)] // The encoding that this is about.
    fn bit_packed_levels_are_refused_where_there_are_levels() {
        let packed = Encoding::BIT_PACKED;
        for (definition, repetition, encodings, refused) in [
            (true, true, [RLE, RLE], None),
            (false, false, [packed, packed], None),
            (true, false, [RLE, packed], None),
            (true, false, [packed, RLE], Some("definition")),
            (true, true, [RLE, packed], Some("repetition")),
        ] {
            let levels = Levels {
                definition,
                repetition,
            };
            let checked = levels.check(&page(Encoding::PLAIN, &[], encodings));
            let refused = refused.map(|which| {
                PageFault::Unsupported(format!("{which} levels in the BIT_PACKED encoding"))
            });
            assert_eq!(checked.err(), refused);
        }
    }

    #[test]
    fn frames_are_counted_and_what_is_not_framed_has_none() {
        let frame = |uncompressed: u32, bytes: &[u8]| {
            let compressed = bytes.len() as u32;
            [
                &uncompressed.to_be_bytes()[..],
                &compressed.to_be_bytes(),
                bytes,
            ]
            .concat()
        };
        let two = [frame(5, b"abc"), frame(9, b"defg")].concat();
        // One length for both (`BlockCompressorStream`).
        let together = [frame(14, b"abc"), vec![0, 0, 0, 4], b"defg".to_vec()].concat();
        for (page, count) in [
            (&two[..], 2),
            (&together, 2),
            (&frame(5, b"abc"), 1),
            (&two[..two.len() - 1], 0),
            (b"text that is no frame", 0),
            (b"", 0),
        ] {
            assert_eq!(hadoop_frames(page, false), count);
            let whole = [&header(14, page.len() as i64), page].concat();
            assert_eq!(hadoop_frames(&whole, true), count);
        }
    }
}
