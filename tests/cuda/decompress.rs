//! Pages decompressed on the device beside the decoders of the host: what one takes, the other takes, with the same bytes.

use std::sync::Arc;

use feedwater::cuda::decompress::{Body, Codec, check, reference};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Checksum, Device, DeviceOptions, Guard};
use software_cuda_preload::Session;

use crate::kernels::{ORDERS, checked, crc_reference, put};
use crate::pages::Random;
use crate::support::*;

pub(crate) const CODECS: [Codec; 2] = [Codec::Snappy, Codec::Lz4];

/// A page as it is stored, and the bytes that its header promises.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) codec: Codec,
    pub(crate) plain: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) len: usize,
}

impl Stored {
    pub(crate) fn new(codec: Codec, bytes: Vec<u8>, len: usize) -> Self {
        Stored {
            codec,
            plain: 0,
            bytes,
            len,
        }
    }

    /// What the host makes of it: `snap`, and `lz4_flex` as the `parquet` crate has it.
    fn by_host(&self) -> Option<Vec<u8>> {
        let (plain, rest) = self.bytes.split_at_checked(self.plain)?;
        let mut page = plain.to_vec();
        page.resize(self.len, 0);
        let to = page.get_mut(self.plain..)?;
        let len = match self.codec {
            Codec::Snappy => match snap::raw::decompress_len(rest) {
                Ok(len) if len == to.len() => snap::raw::Decoder::new().decompress(rest, to).ok(),
                _ => None,
            },
            Codec::Lz4 => lz4_flex::block::decompress_into(rest, to).ok(),
        };
        (len? == self.len - self.plain).then_some(page)
    }
}

/// Pages beside each other, at places that are not aligned to anything if `gap` is odd, with a few bytes between.
pub(crate) fn arena(pages: &[Stored], gap: u64) -> (Vec<u8>, Vec<Body>, usize) {
    let (mut stored, mut bodies, mut end) = (Vec::new(), Vec::new(), 0);
    for page in pages {
        stored.resize(stored.len() + gap as usize, 0xcc);
        let source = stored.len() as u64;
        stored.extend_from_slice(&page.bytes);
        let target = end + gap;
        end = target + page.len as u64;
        bodies.push(Body {
            source: source..stored.len() as u64,
            plain: page.plain as u64,
            codec: page.codec,
            target: target..end,
            gap: 0,
            crc: None,
        });
    }
    stored.resize(stored.len().next_multiple_of(4), 0xcc);
    (stored, bodies, end as usize)
}

/// Compares all pages with what the host makes of them, and gives how many are right.
pub(crate) fn compare(gpu: &Arc<Device>, pages: &[Stored], gap: u64, what: &str) -> usize {
    let (stored, bodies, len) = arena(pages, gap);
    // What is stored ends where an allocation does, so that a read past it is one of memory that is not there.
    let offset = stored.len().next_multiple_of(256) - stored.len();
    let there = put(gpu, &stored, offset);
    let (made, checks) = gpu.decompress(&there, &bodies, len).unwrap();
    let made = gpu.to_host(&made).unwrap();
    let (mut end, mut right) = (0, 0);
    for ((page, body), check) in pages.iter().zip(&bodies).zip(&checks) {
        let (from, to) = (body.target.start as usize, body.target.end as usize);
        assert!(made[end..from].iter().all(|byte| *byte == 0), "{what}");
        end = to;
        let reference = reference::decompress(page.codec, &page.bytes, page.plain, page.len);
        assert_eq!(*check, reference.err().unwrap_or(0), "{what}: {page:?}");
        match page.by_host() {
            Some(wanted) => {
                assert_eq!(*check, 0, "{what}: {page:?}");
                assert!(made[from..to] == wanted, "{what}: {page:?}");
                right += 1;
            }
            None => {
                assert_ne!(*check, 0, "{what}: {page:?}");
                assert!(made[from..to].iter().all(|byte| *byte == 0), "{what}");
            }
        }
    }
    right
}

fn separate() -> Arc<Device> {
    let options = DeviceOptions::default().guard(Guard::Separate);
    options.open(0).unwrap()
}

fn with_device(session: &Session, test: impl FnOnce(&Arc<Device>)) {
    let gpu = separate();
    test(&gpu);
    drop(gpu);
    nothing_left(session);
}

/// Streams put together by hand.
mod streams {
    use super::Codec;

    pub(super) enum Part<'a> {
        Literal(&'a [u8]),
        /// Offset and length.
        Match(usize, usize),
    }

    fn snappy_literal(out: &mut Vec<u8>, bytes: &[u8]) {
        let count = bytes.len() - 1;
        match count {
            0..60 => out.push((count << 2) as u8),
            _ => {
                let size = (1..4).find(|size| count >> (8 * size) == 0).unwrap_or(4);
                out.push(((59 + size) << 2) as u8);
                out.extend_from_slice(&count.to_le_bytes()[..size]);
            }
        }
        out.extend_from_slice(bytes);
    }

    /// Copies of up to 64 bytes; with each form that has room for the offset in turn.
    fn snappy_match(out: &mut Vec<u8>, offset: usize, mut len: usize) {
        while len > 0 {
            let now = len.min(64);
            len -= now;
            match (now % 3, now) {
                (0, 4..12) if offset < 2048 => {
                    out.push((1 | (now - 4) << 2 | offset >> 8 << 5) as u8);
                    out.push(offset as u8);
                }
                (0 | 1, _) if offset < 65536 => {
                    out.push((2 | (now - 1) << 2) as u8);
                    out.extend_from_slice(&offset.to_le_bytes()[..2]);
                }
                _ => {
                    out.push((3 | (now - 1) << 2) as u8);
                    out.extend_from_slice(&offset.to_le_bytes()[..4]);
                }
            }
        }
    }

    fn lz4_number(out: &mut Vec<u8>, mut number: usize) {
        while number >= 255 {
            out.push(255);
            number -= 255;
        }
        out.push(number as u8);
    }

    fn lz4_element(out: &mut Vec<u8>, literal: &[u8], found: Option<(usize, usize)>) {
        let len = found.map_or(0, |(_, len)| len - 4);
        out.push((literal.len().min(15) << 4 | len.min(15)) as u8);
        if literal.len() >= 15 {
            lz4_number(out, literal.len() - 15);
        }
        out.extend_from_slice(literal);
        if let Some((offset, _)) = found {
            out.extend_from_slice(&offset.to_le_bytes()[..2]);
            if len >= 15 {
                lz4_number(out, len - 15);
            }
        }
    }

    /// Matches have at least 4 bytes. Gives the stream, and its length before.
    pub(super) fn stream(codec: Codec, parts: &[Part<'_>]) -> (Vec<u8>, usize) {
        let len = parts.iter().map(|part| match part {
            Part::Literal(bytes) => bytes.len(),
            Part::Match(_, len) => *len,
        });
        let len = len.sum();
        let mut out = Vec::new();
        if codec == Codec::Snappy {
            let mut left = len;
            while left >= 0x80 {
                out.push(left as u8 | 0x80);
                left >>= 7;
            }
            out.push(left as u8);
        }
        let mut literal: &[u8] = &[];
        for part in parts {
            match (codec, part) {
                (Codec::Snappy, Part::Literal(bytes)) => snappy_literal(&mut out, bytes),
                (Codec::Snappy, Part::Match(offset, len)) => snappy_match(&mut out, *offset, *len),
                (Codec::Lz4, Part::Literal(bytes)) => literal = bytes,
                (Codec::Lz4, Part::Match(offset, len)) => {
                    lz4_element(&mut out, literal, Some((*offset, *len)));
                    literal = &[];
                }
            }
        }
        if codec == Codec::Lz4 {
            lz4_element(&mut out, literal, None);
        }
        (out, len)
    }
}

use streams::Part::{Literal, Match};

fn page(codec: Codec, parts: &[streams::Part<'_>]) -> Stored {
    let (bytes, len) = streams::stream(codec, parts);
    Stored::new(codec, bytes, len)
}

/// Bytes of which none is like the one before.
pub(crate) fn noise(len: usize, random: &mut Random) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

pub(crate) fn compressed(codec: Codec, bytes: &[u8]) -> Stored {
    let stored = match codec {
        Codec::Snappy => snap::raw::Encoder::new().compress_vec(bytes).unwrap(),
        Codec::Lz4 => lz4_flex::block::compress(bytes),
    };
    Stored::new(codec, stored, bytes.len())
}

/// Numbers that repeat here and there, as pages have them.
pub(crate) fn like_a_page(len: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        match random.below(4) {
            0 => bytes.extend_from_slice(&random.next().to_le_bytes()),
            1 => bytes.resize(bytes.len() + random.below(40) as usize, 7),
            _ => {
                let from = random.below(bytes.len().max(1) as u64) as usize;
                let to = (from + random.below(70) as usize).min(bytes.len());
                bytes.extend_from_within(from.min(to)..to);
            }
        }
    }
    bytes.truncate(len);
    bytes
}

/// All streams of up to three bytes that matter, alone and after some bytes that can be copied.
#[test]
fn all_short_streams() {
    const TAGS: [u8; 15] = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x0f, 0x10, 0x1f, 0x21, 0x40, 0x80, 0xf0, 0xf4, 0xff,
    ];
    let session = session("eager");
    with_device(&session, |gpu| {
        for codec in CODECS {
            let before: [&[u8]; 2] = match codec {
                Codec::Snappy => [&[], &[0x0c, b'a', b'b', b'c', b'd']],
                Codec::Lz4 => [&[], &[0x41, b'a', b'b', b'c', b'd', 1, 0]],
            };
            let mut pages = Vec::new();
            for before in before {
                for count in 0..=3 {
                    for number in 0..TAGS.len().pow(count) {
                        let tags = (0..count).map(|at| TAGS[number / 15usize.pow(at) % 15]);
                        let lens: &[usize] = match before.is_empty() {
                            true => &[0, 1, 2, 4],
                            false => &[4, 8, 9, 10],
                        };
                        for &len in lens {
                            let mut bytes = Vec::new();
                            if codec == Codec::Snappy {
                                bytes.push(len as u8);
                            }
                            bytes.extend_from_slice(before);
                            bytes.extend(tags.clone());
                            pages.push(Stored::new(codec, bytes, len));
                        }
                    }
                }
            }
            let right = compare(gpu, &pages, 1, "short");
            eprintln!("{codec:?}: {right} right of {}", pages.len());
            assert!(right > 50 && right * 2 < pages.len(), "{right}");
        }
    });
}

/// Lengths in front of Snappy's elements, in more bytes than they need as well.
#[test]
fn lengths_of_snappy() {
    let session = session("eager");
    with_device(&session, |gpu| {
        let literal = [0x08, 1, 2, 3];
        let mut pages = Vec::new();
        for length in [
            &[3][..],
            &[0x83, 0],
            &[0x83, 0x80, 0],
            &[0x83, 0x80, 0x80, 0x80, 0],
            &[0x83, 0x80, 0x80, 0x80, 0x10],
            &[0x83, 0x80, 0x80, 0x80, 0x70],
            &[0x83, 0x80, 0x80, 0x80, 0x80, 0],
            &[0x83, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
            &[2],
            &[4],
            &[],
            &[0xff],
        ] {
            pages.push(Stored::new(Codec::Snappy, [length, &literal].concat(), 3));
            pages.push(Stored::new(Codec::Snappy, length.to_vec(), 0));
        }
        assert_eq!(compare(gpu, &pages, 3, "lengths"), 4);
    });
}

/// Overlapping copies of all short distances, lengths around what a warp does at once, and around where copies become those of words.
#[test]
fn matches_of_all_distances_and_lengths() {
    for streams in STREAMS {
        let session = session(streams);
        with_device(&session, |gpu| {
            let mut random = Random::new(3);
            let bytes = noise(70_000, &mut random);
            for codec in CODECS {
                let mut pages = Vec::new();
                let lens = [4, 5, 18, 19, 31, 32, 33, 63, 64, 65, 127, 128, 129, 271];
                for offset in 1..=40 {
                    for (number, len) in lens.into_iter().enumerate() {
                        if (offset + number) % 4 == 0 || len < 20 && offset < 20 {
                            let before = Literal(&bytes[..offset + number % 3]);
                            pages.push(page(codec, &[before, Match(offset, len)]));
                        }
                    }
                }
                for (offset, len) in [
                    (1, 5000),
                    (2, 1024),
                    (3, 1023),
                    (5, 3001),
                    (100, 1500),
                    (1021, 2100),
                    (1023, 4000),
                    (1024, 1023),
                    (1024, 1024),
                    (1024, 1025),
                    (1025, 3000),
                    (2000, 1996),
                    (2000, 1997),
                    (2000, 1998),
                    (2000, 2001),
                ] {
                    let parts = [Literal(&bytes[..2001]), Match(offset, len), Match(7, 9)];
                    pages.push(page(codec, &parts));
                }
                assert_eq!(compare(gpu, &pages, 5, streams), pages.len());
            }
        });
    }
}

#[test]
fn far_matches_and_literals_of_all_lengths() {
    let session = session("lazy");
    with_device(&session, |gpu| {
        let mut random = Random::new(4);
        let bytes = noise(70_000, &mut random);
        for codec in CODECS {
            let far = [
                Literal(&bytes[..66_000]),
                Match(65_535, 300),
                Match(65_535, 4),
            ];
            let mut pages = vec![page(codec, &far)];
            if codec == Codec::Snappy {
                pages.push(page(codec, &[Literal(&bytes), Match(69_999, 65)]));
                pages.push(page(codec, &[Literal(&bytes), Match(70_001, 65)]));
            }
            for len in [
                1, 14, 15, 16, 31, 32, 33, 59, 60, 61, 62, 127, 128, 129, 130, 131, 255, 256, 257,
                269, 270, 271, 524, 525, 526, 1000,
            ] {
                pages.push(page(codec, &[Literal(&bytes[len..len * 2])]));
                let parts = [Literal(&bytes[..len]), Match(1, 4), Literal(&bytes[9..12])];
                pages.push(page(codec, &parts));
            }
            // Numbers of more bytes than they need, and more than there is.
            if codec == Codec::Snappy {
                for (head, right) in [
                    (&[0xf0, 2][..], true),
                    (&[0xf4, 2, 0], true),
                    (&[0xf8, 2, 0, 0], true),
                    (&[0xfc, 2, 0, 0, 0], true),
                    (&[0xfc, 0xff, 0xff, 0xff, 0xff], false),
                    (&[0xfc, 2, 0, 0, 1], false),
                ] {
                    let bytes = [&[3][..], head, &[7, 8, 9]].concat();
                    let stored = Stored::new(codec, bytes, 3);
                    assert_eq!(stored.by_host().is_some(), right);
                    pages.push(stored);
                }
            }
            for gap in 1..=4 {
                let part = if gap == 1 { &pages } else { &pages[2..] };
                let wrong = part.iter().filter(|page| page.by_host().is_none()).count();
                let right = compare(gpu, part, gap, "literals");
                assert_eq!(right + wrong, part.len());
            }
        }
    });
}

/// What encoders make of all kinds of bytes, with levels in front that are not compressed; whole, cut, with bytes behind, and changed.
#[test]
fn streams_of_encoders_and_what_damage_makes_of_them() {
    let session = session("lazy");
    with_device(&session, |gpu| {
        let mut random = Random::new(5);
        for codec in CODECS {
            let mut whole = Vec::new();
            for len in [0, 1, 2, 5, 31, 33, 100, 500, 2000] {
                whole.push(compressed(codec, &like_a_page(len, &mut random)));
                whole.push(compressed(codec, &noise(len, &mut random)));
                whole.push(compressed(codec, &vec![9; len]));
                let pattern = like_a_page(13, &mut random);
                whole.push(compressed(codec, &pattern.repeat(len / 13)));
            }
            for (number, page) in whole.iter_mut().enumerate() {
                // Of a page of version 2.
                let levels = noise([0, 3, 130][number % 3], &mut random);
                page.plain = levels.len();
                page.len += levels.len();
                page.bytes.splice(0..0, levels);
            }
            assert_eq!(compare(gpu, &whole, 4, "whole"), whole.len());
            let mut changed = Vec::new();
            for round in 0..600 {
                let mut page = whole[round % whole.len()].clone();
                let at = random.below(page.bytes.len().max(1) as u64) as usize;
                match round % 8 {
                    0 => page.bytes.truncate(at.max(page.plain)),
                    1 => page.bytes.push(random.next() as u8),
                    2 => page.len += 1,
                    3 if page.len > page.plain => page.len -= 1,
                    4 => page.bytes.push(0),
                    _ => {}
                }
                for _ in 0..round % 3 {
                    let at = random.below(page.bytes.len().max(1) as u64) as usize;
                    if let Some(byte) = page.bytes.get_mut(at) {
                        *byte = [random.next() as u8, 0xff, *byte ^ 1][round / 8 % 3];
                    }
                }
                changed.push(page);
            }
            let right = compare(gpu, &changed, 3, "changed");
            eprintln!("{codec:?}: {right} right of {}", changed.len());
            assert!(right > 100 && right + 100 < changed.len(), "{right}");
        }
    });
}

/// A warp's copies wait for each other: all schedules, with checks of races.
#[test]
fn lanes_wait_for_what_they_read() {
    for order in ORDERS {
        let session = checked(order);
        with_device(&session, |gpu| {
            let mut random = Random::new(6);
            let bytes = noise(300, &mut random);
            let mut pages = Vec::new();
            for codec in CODECS {
                pages.push(compressed(codec, &like_a_page(400, &mut random)));
                for (offset, len) in [(1, 40), (33, 70), (150, 147), (150, 148), (300, 290)] {
                    let parts = [
                        Literal(&bytes),
                        Match(offset, len),
                        Match(len, 9),
                        Literal(&bytes[..5]),
                    ];
                    pages.push(page(codec, &parts));
                }
                // The last word of the source ends where the target begins, or just after it.
                for len in 160..164 {
                    for offset in [len, len + 1, len + 2, len + 3] {
                        pages.push(page(
                            codec,
                            &[Literal(&bytes[..len + 4]), Match(offset, len)],
                        ));
                    }
                }
                pages.push(page(codec, &[Literal(&bytes[..3]), Match(3, 2100)]));
                pages.push(Stored::new(codec, vec![4, 0x0c, 1, 2, 3], 4));
            }
            assert_eq!(compare(gpu, &pages, 1, order), pages.len() - 2);
        });
    }
}

/// Pages of several MiB, one that becomes 250 times as much, and one that says so.
#[test]
fn large_pages() {
    let session = session("eager");
    with_device(&session, |gpu| {
        let mut random = Random::new(7);
        let mut bytes = vec![0; 3 << 20];
        bytes[1 << 20..][..100_000].copy_from_slice(&noise(100_000, &mut random));
        let mut pages: Vec<_> = CODECS.map(|codec| compressed(codec, &bytes)).into();
        pages.push(Stored::new(Codec::Lz4, vec![0xff; 20_000], 3 << 20));
        assert_eq!(compare(gpu, &pages, 2, "large"), 2);
    });
}

#[test]
fn checksums_are_those_of_what_is_stored() {
    for streams in STREAMS {
        let session = session(streams);
        with_device(&session, |gpu| {
            let mut random = Random::new(8);
            let crc = |bytes: &[u8]| crc_reference(Checksum::Crc32, bytes);
            let mut pages: Vec<_> = [0, 10, 5000, 200_000]
                .map(|len| compressed(Codec::Snappy, &noise(len, &mut random)))
                .into();
            pages[2].bytes.splice(0..0, [9; 11]);
            pages[2].plain = 11;
            pages[2].len += 11;
            let (stored, mut bodies, len) = arena(&pages, 4);
            for (number, (page, body)) in pages.iter().zip(&mut bodies).enumerate() {
                body.crc = (number != 1).then(|| crc(&page.bytes));
            }
            let there = put(gpu, &stored, 0);
            let (made, checks) = gpu.decompress(&there, &bodies, len).unwrap();
            assert_eq!(checks, [0; 4]);
            // It is decompressed all the same, which nobody may look at.
            bodies[2].crc = bodies[2].crc.map(|crc| crc ^ 1);
            bodies[3].crc = bodies[2].crc;
            let (_, checks) = gpu.decompress(&there, &bodies, len).unwrap();
            assert_eq!(checks, [0, 0, check::CRC, check::CRC]);
            drop(made);
        });
    }
}

#[test]
fn ranges_that_do_not_fit_are_refused_and_gaps_are_zeros() {
    let session = session("eager");
    with_device(&session, |gpu| {
        let page = compressed(Codec::Snappy, &[5; 100]);
        let mut stored = page.bytes.clone();
        stored.resize(stored.len().next_multiple_of(4) + 4, 0);
        let there = put(gpu, &stored, 0);
        let (count, len) = (page.bytes.len() as u64, 200);
        let right = Body {
            source: 0..count,
            plain: 0,
            codec: Codec::Snappy,
            target: 50..150,
            gap: 50,
            crc: None,
        };
        let change = |change: &dyn Fn(&mut Body)| {
            let mut body = right.clone();
            change(&mut body);
            body
        };
        let end = stored.len() as u64;
        let wrong = [
            change(&|body| body.source = 0..end + 1),
            change(&|body| body.source = count..0),
            change(&|body| (body.target.start, body.target.end) = (151, 150)),
            change(&|body| body.gap = 51),
            change(&|body| body.gap = u64::MAX),
            change(&|body| body.target = 101..201),
            change(&|body| body.plain = count + 1),
            change(&|body| (body.plain, body.target) = (101, 50..150)),
        ];
        let mut bodies = wrong.to_vec();
        let (made, checks) = gpu.decompress(&there, &bodies, len).unwrap();
        assert_eq!(checks, [check::SHAPE; 8]);
        assert!(gpu.to_host(&made).unwrap().iter().all(|byte| *byte == 0));
        bodies.insert(3, right.clone());
        let (made, checks) = gpu.decompress(&there, &bodies, len).unwrap();
        assert_eq!(checks.iter().position(|check| *check == 0), Some(3));
        let wanted = [vec![0; 50], vec![5; 100], vec![0; 50]].concat();
        assert_eq!(gpu.to_host(&made).unwrap(), wanted);
        // The last word that is loaded has to be there.
        let short = there.slice(..page.bytes.len());
        let (_, checks) = gpu.decompress(&short, &[right], len).unwrap();
        let whole = count.is_multiple_of(4);
        assert_eq!(checks, [if whole { 0 } else { check::SHAPE }]);
        let (made, checks) = gpu.decompress(&there, &[], 0).unwrap();
        assert_eq!((made.len(), checks.len()), (0, 0));
    });
}
