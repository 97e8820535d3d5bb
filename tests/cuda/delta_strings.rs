//! Strings whose lengths are deltas beside their scalar reference, the sums by both ways.

use feedwater::ErrorKind;
use feedwater::cuda::columns::reference::{self, HostOutcome};
use feedwater::cuda::columns::{Column, Convert, Encoding, Outcome, Page, Values, check};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use software_cuda_preload::Session;

use crate::columns::{far_away, on_the_device};
use crate::delta::both;
use crate::kernels::{ORDERS, checked, put};
use crate::pages::*;
use crate::support::*;

use Encoding::{DeltaByteArray, DeltaLengthByteArray, Plain};

/// A stream of these numbers, of blocks as they are asked for, with the least widths.
fn encoded(numbers: &[i64], (block, minis): (u64, u64)) -> Vec<u8> {
    let mut out = Vec::new();
    for part in [block, minis, numbers.len() as u64] {
        varint(&mut out, part);
    }
    signed(&mut out, numbers.first().copied().unwrap_or(0));
    let deltas: Vec<i64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for deltas in deltas.chunks(block as usize) {
        let least = *deltas.iter().min().unwrap();
        signed(&mut out, least);
        let mini = (block / minis) as usize;
        let above: Vec<u64> = deltas.iter().map(|delta| (delta - least) as u64).collect();
        let bits = |above: &[u64]| 64 - above.iter().max().unwrap().leading_zeros();
        let widths: Vec<u32> = above.chunks(mini).map(bits).collect();
        out.extend((0..minis as usize).map(|at| widths.get(at).copied().unwrap_or(9) as u8));
        for (above, bits) in above.chunks(mini).zip(&widths) {
            let mut packed = vec![0u8; mini * *bits as usize / 8];
            for (number, value) in above.iter().enumerate() {
                for bit in 0..*bits as usize {
                    let place = number * *bits as usize + bit;
                    packed[place / 8] |= ((value >> bit & 1) << (place % 8)) as u8;
                }
            }
            out.extend(packed);
        }
    }
    out
}

/// What pages are like.
#[derive(Clone, Copy, Debug)]
struct Kind {
    encoding: Encoding,
    layout: (u64, u64),
    nullable: bool,
    v1: bool,
    utf8: bool,
    large: bool,
    /// Characters that a value has more than what it begins with, mostly.
    len: u64,
    /// Values of 256 that begin anew.
    anew: u64,
}

const KIND: Kind = Kind {
    encoding: DeltaLengthByteArray,
    layout: (128, 4),
    nullable: false,
    v1: true,
    utf8: true,
    large: false,
    len: 8,
    anew: 20,
};

/// Values, each with how many bytes of the one before it begins with.
fn words(kind: &Kind, count: usize, random: &mut Random) -> Vec<(usize, Vec<u8>)> {
    let mut words: Vec<(usize, Vec<u8>)> = Vec::new();
    for _ in 0..count {
        let before = words.last().map_or(&[][..], |(_, word)| word);
        let keep = match random.below(256) < kind.anew {
            true => 0,
            false => random.below(before.len().min(60) as u64 + 1) as usize,
        };
        // Of what is UTF-8, a part may end within a character, and the rest complete it.
        let keep = match kind.utf8 && keep < before.len() && before[keep] & 0xc0 == 0x80 {
            true => keep - 1,
            false => keep,
        };
        let is_whole = std::str::from_utf8(&before[..keep]).is_ok();
        let keep = if kind.utf8 && !is_whole { 0 } else { keep };
        let len = match random.below(20) {
            0 => 0,
            1 => kind.len * 6,
            _ => random.below(kind.len + 1),
        };
        let mut word = before[..keep].to_vec();
        for _ in 0..len {
            match kind.utf8 {
                true => {
                    let ends = [0x80, 0x80, 0x800, 0xd800, 0x11_0000];
                    let end = ends[random.below(5) as usize];
                    let char = char::from_u32(random.below(end) as u32).unwrap_or('-');
                    word.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                }
                false => word.push(random.next() as u8),
            }
        }
        // Common bytes may be more, or fewer are said to be.
        let common = before.iter().zip(&word).take_while(|(a, b)| a == b).count();
        let said = match random.below(4) {
            _ if keep == 0 => 0,
            0 => random.below(keep as u64 + 1) as usize,
            _ => common,
        };
        words.push((said, word));
    }
    words
}

fn body(encoding: Encoding, layout: (u64, u64), words: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    if encoding == Plain {
        for (_, word) in words {
            out.extend_from_slice(&(word.len() as u32).to_le_bytes());
            out.extend_from_slice(word);
        }
        return out;
    }
    let prefixed = encoding == DeltaByteArray;
    let prefix = |said: usize| if prefixed { said } else { 0 };
    if prefixed {
        let prefixes: Vec<i64> = words.iter().map(|(said, _)| *said as i64).collect();
        out.extend(encoded(&prefixes, layout));
    }
    let own = words.iter().map(|(said, word)| &word[prefix(*said)..]);
    let lengths: Vec<i64> = own.clone().map(|own| own.len() as i64).collect();
    out.extend(encoded(&lengths, layout));
    own.for_each(|own| out.extend_from_slice(own));
    out
}

/// Adds a column with pages of these many rows, some in PLAIN.
fn column(arena: &mut Arena, kind: Kind, pages: &[usize], random: &mut Random) {
    let mut described = Vec::new();
    for (number, &rows) in pages.iter().enumerate() {
        let encoding = if number % 4 == 3 {
            Plain
        } else {
            kind.encoding
        };
        let valid: Vec<u32> = (0..rows)
            .map(|_| u32::from(!kind.nullable || random.below(4) > 0))
            .collect();
        let count = valid.iter().filter(|valid| **valid == 1).count();
        let (mut page, mut def_len) = (Vec::new(), 0);
        if kind.nullable {
            let levels = hybrid(&valid, 1, Style::Mixed, random);
            if kind.v1 {
                page.extend_from_slice(&(levels.len() as u32).to_le_bytes());
            }
            def_len = levels.len() as u32;
            page.extend(levels);
        }
        page.extend(body(encoding, kind.layout, &words(&kind, count, random)));
        described.push(Page {
            body: arena.push(&page),
            v1: kind.v1,
            def_len,
            entries: rows as u64,
            nulls: (!kind.v1).then_some((rows - count) as u64),
            encoding,
        });
    }
    let (large, utf8) = (kind.large, kind.utf8);
    arena.columns.push(Column {
        values: Values::Bytes { large, utf8 },
        nullable: kind.nullable,
        dictionary: None,
        pages: described,
        convert: Convert::Same,
    });
}

/// Adds a column whose one page has this body.
fn page(arena: &mut Arena, encoding: Encoding, rows: u64, body: &[u8]) {
    let body = arena.push(body);
    arena.columns.push(Column {
        values: Values::Bytes {
            large: false,
            utf8: true,
        },
        nullable: false,
        dictionary: None,
        pages: vec![Page {
            body,
            v1: true,
            def_len: 0,
            entries: rows,
            nulls: None,
            encoding,
        }],
        convert: Convert::Same,
    });
}

/// Values that a warp sums.
const TILE: usize = 1024;

const ENCODINGS: [Encoding; 2] = [DeltaLengthByteArray, DeltaByteArray];

#[test]
fn all_lengths_kinds_and_layouts() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let mut random = Random::new(1);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            for encoding in ENCODINGS {
                for (number, rows) in [0usize, 1, 2, 31, 32, 33, 129, 1023, 1024, 1025, 2050]
                    .into_iter()
                    .enumerate()
                {
                    let kind = Kind {
                        encoding,
                        layout: LAYOUTS[number],
                        nullable: number % 2 == 0,
                        v1: number % 4 < 2,
                        utf8: number % 3 > 0,
                        large: number % 5 == 0,
                        ..KIND
                    };
                    column(&mut arena, kind, &[rows], &mut random);
                    let utf8 = number % 2 == 0;
                    let other = Kind { utf8, ..kind };
                    column(&mut arena, other, &[rows / 8, 7, 0, 65, 30], &mut random);
                }
                column(&mut arena, Kind { encoding, ..KIND }, &[], &mut random);
            }
            assert_eq!(both(&arena, streams), 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn runs_of_common_beginnings_of_all_lengths() {
    let session = session("eager");
    {
        let mut random = Random::new(2);
        let mut arena = Arena::default();
        for (anew, len) in [(0, 2), (256, 9), (1, 5), (128, 0), (30, 700)] {
            let kind = Kind {
                encoding: DeltaByteArray,
                anew,
                len,
                ..KIND
            };
            let rows = if len > 100 { 40 } else { 3300 };
            column(&mut arena, kind, &[rows, 10, rows / 2], &mut random);
            let nullable = Kind {
                nullable: true,
                utf8: false,
                ..kind
            };
            column(&mut arena, nullable, &[rows / 2, rows], &mut random);
        }
        assert_eq!(both(&arena, "runs"), 0);
    }
    nothing_left(&session);
}

#[test]
fn strings_of_deltas_in_all_orders_of_warps_without_a_race() {
    for order in ORDERS {
        let session = checked(order);
        {
            let mut random = Random::new(3);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            for encoding in ENCODINGS {
                let kind = Kind {
                    encoding,
                    nullable: true,
                    ..KIND
                };
                column(&mut arena, kind, &[45, 1300, 20, 33], &mut random);
            }
            hostile(&mut arena);
            assert!(both(&arena, order) > 5);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// Pages of three values that are not right.
fn hostile(arena: &mut Arena) {
    let layout = (128, 4);
    let of = |prefixes: Option<&[i64]>, lengths: &[i64], bytes: &[u8]| {
        let mut out = prefixes.map_or_else(Vec::new, |prefixes| encoded(prefixes, layout));
        out.extend(encoded(lengths, layout));
        out.extend_from_slice(bytes);
        out
    };
    for (lengths, bytes) in [
        (&[1, 2, 3][..], &b"abbccc"[..]),
        (&[1, 2, 3], b"abbcccd"),
        (&[1, 2, 3], b"abbcc"),
        (&[1, -1, 6], b"abbccc"),
        (&[-1, 1, 6], b"abbccc"),
        (&[i64::from(i32::MAX), 0, 0], b"abbccc"),
        (&[i64::from(i32::MAX); 3], b"abbccc"),
        (&[0, 0, 0], b""),
        (&[1, 2], b"abbccc"),
        (&[1, 2, 3, 0], b"abbccc"),
        // Not UTF-8, each alone, though they are together.
        (&[1, 1, 1], "\u{20ac}".as_bytes()),
        (&[0, 1, 1], "\u{e4}".as_bytes()),
    ] {
        page(arena, DeltaLengthByteArray, 3, &of(None, lengths, bytes));
    }
    for (prefixes, lengths, bytes) in [
        (&[0, 1, 2][..], &[1, 2, 3][..], &b"abbccc"[..]),
        (&[0, 1, 3], &[1, 2, 3], b"abbccc"),
        (&[0, 1, 4], &[1, 2, 3], b"abbccc"),
        (&[1, 1, 2], &[1, 2, 3], b"abbccc"),
        (&[0, -1, 2], &[1, 2, 3], b"abbccc"),
        (&[0, 0, 0], &[1, 2, 4], b"abbccc"),
        (&[0, 0, 0], &[1, -2, 4], b"abbccc"),
        (
            &[0, 0, i64::from(i32::MAX)],
            &[i64::from(i32::MAX), 0, 0],
            b"abbccc",
        ),
        (&[0, 0], &[1, 2, 3], b"abbccc"),
        (&[0, 0, 0], &[1, 2], b"abbccc"),
        (&[0, 0, 0, 0], &[1, 2, 3, 0], b"abbccc"),
        // A character that the next value ends otherwise, and one that it does not end.
        (&[0, 2, 2], &[3, 1, 1], b"\xe2\x82\xac\xad\xae"),
        (&[0, 2, 2], &[3, 1, 0], b"\xe2\x82\xac\xad"),
        (&[0, 2, 0], &[3, 1, 1], b"\xe2\x82\xac-a"),
    ] {
        page(
            arena,
            DeltaByteArray,
            3,
            &of(Some(prefixes), lengths, bytes),
        );
    }
    // Cut everywhere.
    let whole = of(Some(&[0, 1, 2]), &[1, 2, 4], b"abbcccc");
    for len in 0..whole.len() {
        page(arena, DeltaByteArray, 3, &whole[..len]);
    }
    let whole = of(None, &[1, 2, 4], b"abbcccc");
    for len in 0..whole.len() {
        page(arena, DeltaLengthByteArray, 3, &whole[..len]);
    }
}

#[test]
fn what_is_wrong_with_strings_of_deltas_is_said() {
    let session = session("lazy");
    {
        let mut arena = Arena::default();
        hostile(&mut arena);
        // Decimals, and what is not bytes.
        page(&mut arena, DeltaByteArray, 1, &[0; 9]);
        let column = arena.columns.last().unwrap().clone();
        for values in [Values::Boolean, Values::Fixed { width: 4 }] {
            let column = column.clone();
            arena.columns.push(Column { values, ..column });
        }
        arena.columns.push(Column {
            values: Values::Bytes {
                large: false,
                utf8: false,
            },
            convert: Convert::WidenBigEndian { to: 16 },
            ..column
        });
        let faults = both(&arena, "hostile");
        assert!(faults > 60 && faults + 4 < arena.columns.len(), "{faults}");
        let outcomes = reference::columns(&arena.bytes, &arena.columns);
        for why in [
            check::DELTA | check::DELTA_TEXT,
            check::DELTA | check::DELTA_COUNT,
            check::DELTA | check::DELTA_SHORT,
            check::DELTA | check::DELTA_HEADER,
            check::UTF8,
            check::SHAPE,
        ] {
            let is = |outcome: &HostOutcome| matches!(outcome, HostOutcome::Fault { check, .. } if *check == why);
            assert!(outcomes.iter().any(is), "check {why}");
        }
    }
    nothing_left(&session);
}

/// The number of one value is other than the rest, where tiles and what warps take at once begin and end.
#[test]
fn lengths_are_checked_up_to_the_edges_of_tiles() {
    let session = session("eager");
    {
        let mut arena = Arena::default();
        let mut wanted = Vec::new();
        let count = 2 * TILE + 3;
        let edges = [1, TILE - 1, TILE, TILE + 1, 2 * TILE - 1, 2 * TILE];
        for at in edges.into_iter().chain([30, 31, 32, 33, count - 1]) {
            // Each value has two bytes, one of them of the value before; that one has two, one, or as many as it says.
            for (prefix, length, is_right) in [
                (2, 1, true),
                (3, 1, false),
                (-1, 1, false),
                (-(1 << 30), 1, false),
                (2, 0, true),
                (0, -1, false),
                (1, -(1 << 30), false),
                (1, i64::from(i32::MAX), false),
            ] {
                let mut prefixes = vec![1; count];
                let mut lengths = vec![1; count];
                (prefixes[0], lengths[0]) = (0, 2);
                (prefixes[at], lengths[at]) = (prefix, length);
                let stored: i64 = lengths.iter().filter(|len| (0..9).contains(*len)).sum();
                let bytes = vec![b'a'; stored as usize];
                let body = [
                    encoded(&prefixes, (128, 4)),
                    encoded(&lengths, (128, 4)),
                    bytes,
                ];
                page(&mut arena, DeltaByteArray, count as u64, &body.concat());
                wanted.push(is_right);
                if prefix == 1 || length == -1 {
                    let body = [body[1].as_slice(), &body[2]].concat();
                    page(&mut arena, DeltaLengthByteArray, count as u64, &body);
                    wanted.push(false);
                }
            }
        }
        assert_eq!(
            both(&arena, "edges"),
            wanted.iter().filter(|is| !**is).count()
        );
        let outcomes = reference::columns(&arena.bytes, &arena.columns);
        for (outcome, is_right) in outcomes.iter().zip(wanted) {
            let wrong = check::DELTA | check::DELTA_TEXT;
            let is_wrong = matches!(outcome, HostOutcome::Fault { check, .. } if *check == wrong);
            assert_ne!(is_wrong, is_right);
        }
    }
    nothing_left(&session);
}

/// Of values with so many bytes no reference is made.
#[test]
fn ends_of_values_have_32_bits() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for (counts, len) in [
            ([1023, 1024, 1025], 1usize << 22),
            ([2047, 2048, 2050], 1 << 21),
        ] {
            for (count, is_right) in counts.into_iter().zip([true, false, false]) {
                let mut arena = Arena::default();
                let mut prefixes = vec![len as i64; count];
                let mut lengths = vec![0; count];
                (prefixes[0], lengths[0]) = (0, len as i64);
                let layout = (1024, 8);
                let numbers = [encoded(&prefixes, layout), encoded(&lengths, layout)];
                let body = [numbers.concat(), vec![b'a'; len]].concat();
                page(&mut arena, DeltaByteArray, count as u64, &body);
                let there = put(&gpu, &arena.bytes, 0);
                let outcomes = gpu.columns(&there, &arena.columns).unwrap();
                match &outcomes[0] {
                    Outcome::Large { bytes } => {
                        assert!(is_right);
                        assert_eq!(*bytes, (count * len) as u64);
                    }
                    Outcome::Fault { page: 0, check } => {
                        assert!(!is_right);
                        assert_eq!(*check, check::DELTA | check::DELTA_TEXT);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    nothing_left(&session);
}

/// Values that begin with more bytes of the one before than a warp keeps, and with what others of these have.
#[test]
fn long_beginnings() {
    let session = checked("shuffled:3");
    {
        let mut random = Random::new(7);
        let mut arena = Arena::default();
        for said in [
            &[0, 510, 511, 512, 513, 514][..],
            &[0, 1400, 512, 1, 1400, 700, 33, 32, 31],
            &[0, 1600, 0, 64, 600, 64, 513, 0, 900],
        ] {
            let mut words: Vec<(usize, Vec<u8>)> = Vec::new();
            for said in said {
                let before = words.last().map_or(&[][..], |(_, word)| word);
                let said = before.len().min(*said);
                let mut word = before[..said].to_vec();
                let end = if words.len() % 3 == 1 { 40 } else { 900 };
                word.extend((0..end).map(|_| random.below(128) as u8));
                words.push((said, word));
            }
            let body = body(DeltaByteArray, (128, 4), &words);
            page(&mut arena, DeltaByteArray, words.len() as u64, &body);
        }
        assert_eq!(both(&arena, "long"), 0);
    }
    nothing_left(&session);
    assert_eq!(session.counts().findings, 0);
}

/// Each pair of bytes that a rule of UTF-8 tells apart, and what makes a character of them; then characters, whole and not, across the places
/// that lanes take together, made by one value or by two.
#[test]
fn what_is_utf_8_is_told_of_bytes_as_they_are_made() {
    let session = session("eager");
    {
        let mut arena = Arena::default();
        let add = |arena: &mut Arena, words: &[(usize, Vec<u8>)]| {
            let body = body(DeltaByteArray, (128, 4), words);
            page(arena, DeltaByteArray, words.len() as u64, &body);
        };
        let edges = [
            0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1,
            0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff,
        ];
        for first in edges {
            for second in edges {
                let others = [2, 3, 4][usize::from(first >= 0xe0) + usize::from(first >= 0xf0)];
                let word = [first, second, 0x80, 0xbf][..others].to_vec();
                add(&mut arena, &[(0, word)]);
            }
        }
        for end in [32, 64, 512, 544] {
            for before in end - 4..end + 2 {
                for char in ["\u{e4}", "\u{20ac}", "\u{1f980}"] {
                    let whole = ["a".repeat(before).as_bytes(), char.as_bytes()].concat();
                    let mut other = whole.clone();
                    *other.last_mut().unwrap() = b'a';
                    let cut = whole[..whole.len() - 1].to_vec();
                    let longer = [&whole[..], &[0x80]].concat();
                    let followed = [&whole[..], b"a"].concat();
                    for word in [whole, other, cut, longer, followed] {
                        add(&mut arena, &[(0, word.clone())]);
                        let first = word[..before + 1].to_vec();
                        let valid = ["a".repeat(before).as_bytes(), "\u{e5}".as_bytes()].concat();
                        let said = valid.iter().zip(&word).take_while(|(a, b)| a == b).count();
                        add(&mut arena, &[(0, valid), (said, word.clone())]);
                        add(&mut arena, &[(0, first), (before, word)]);
                    }
                }
            }
        }
        let faults = both(&arena, "utf-8");
        let all = arena.columns.len();
        assert!(faults > all / 3 && faults < all - 100, "{faults} of {all}");
    }
    nothing_left(&session);
}

#[test]
fn strings_with_changed_bytes_are_read_as_the_reference_does() {
    let session = session("eager");
    {
        let mut random = Random::new(4);
        let mut arena = Arena {
            gap: 2,
            ..Arena::default()
        };
        for at in 0..200 {
            let kind = Kind {
                encoding: ENCODINGS[at % 2],
                utf8: at % 3 > 0,
                anew: 60,
                ..KIND
            };
            let count = [20, 140][at / 2 % 2];
            let words = words(&kind, count, &mut random);
            let mut body = body(kind.encoding, kind.layout, &words);
            let place = random.below(body.len() as u64) as usize;
            body[place] ^= match random.below(2) {
                0 => 1 << random.below(8),
                _ => random.next() as u8,
            };
            page(&mut arena, kind.encoding, count as u64, &body);
            if let Some(Values::Bytes { utf8, .. }) =
                arena.columns.last_mut().map(|column| &mut column.values)
            {
                *utf8 = kind.utf8;
            }
        }
        let faults = both(&arena, "mutated");
        assert!(faults > 30 && faults < 190, "{faults}");
    }
    nothing_left(&session);
}

/// A column of one encoding.
pub(crate) fn one(arena: &mut Arena, encoding: Encoding, pages: &[usize]) {
    let kind = Kind { encoding, ..KIND };
    column(arena, kind, pages, &mut Random::new(6));
}

/// Pages of both encodings.
pub(crate) fn few(rows: usize) -> Arena {
    let mut arena = Arena::default();
    for encoding in ENCODINGS {
        let kind = Kind {
            encoding,
            nullable: true,
            ..KIND
        };
        column(&mut arena, kind, &[rows, 7], &mut Random::new(5));
    }
    arena
}

#[test]
fn strings_of_deltas_past_four_gigabytes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = few(1100);
        let wanted = reference::columns(&arena.bytes, &arena.columns);
        let there = far_away(&gpu, &mut arena);
        assert_eq!(on_the_device(&gpu, &there, &arena.columns), wanted);
    }
    nothing_left(&session);
}

#[test]
fn an_error_at_every_call_of_decoding_strings_of_deltas() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    let arena = few(40);
    let run = |session: &mut Session, inject: &dyn Fn(&mut Session)| {
        let outcome = {
            let options = DeviceOptions::default().guard(Guard::Separate);
            let gpu = options.open(0).unwrap();
            let there = put(&gpu, &arena.bytes, 0);
            // Kernels are loaded, so that each call is one of decoding.
            gpu.columns(&there, &arena.columns).unwrap();
            let before = session.counts();
            inject(session);
            let outcome = gpu.columns(&there, &arena.columns);
            session.fail_nothing();
            outcome.map(|outcomes| {
                let done = |outcome: &Outcome| matches!(outcome, Outcome::Done(_));
                assert!(outcomes.iter().all(done));
                session.counts().calls - before.calls
            })
        };
        nothing_left(session);
        outcome
    };
    let calls = run(&mut session, &|_| {}).unwrap();
    let mut failed = 0;
    for call in (0..calls).step_by(3) {
        for code in [1, 700] {
            if let Err(error) = run(&mut session, &|session| session.fail_call(call, code)) {
                let kind = error.kind();
                let typed = matches!(kind, ErrorKind::Cuda { .. } | ErrorKind::DeviceLost { .. });
                assert!(typed, "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 40, "{failed} of {calls}");
    for allocation in 0..12 {
        if let Err(error) = run(&mut session, &|session| session.fail_allocation(allocation)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
        }
    }
}
