//! Strings beside the reference: all ways in which they are stored, and all ways in which they are not right.

use super::*;
use crate::words::*;

/// Whether it has bytes of any length, which come out in more than one buffer.
pub(super) fn is_one(column: &Column) -> bool {
    matches!(column.values, Values::Bytes { .. })
        && !matches!(column.convert, Convert::WidenBigEndian { .. })
}

fn offsets(gpu: &Device, done: &Decoded, rows: u64) -> Vec<u64> {
    let bytes = gpu.to_host(done.offsets.as_ref().unwrap()).unwrap();
    let small = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    let large = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    match bytes.len() as u64 / (rows + 1) {
        4 => bytes.as_chunks().0.iter().map(small).collect(),
        8 => bytes.as_chunks().0.iter().map(large).collect(),
        other => panic!("offsets of {other} bytes"),
    }
}

/// What the device made, as the reference has it.
pub(super) fn on_the_host(gpu: &Device, column: &Column, done: Decoded) -> HostOutcome {
    let validity = done.validity.as_ref();
    let validity = validity.map(|bits| trimmed(gpu.to_host(bits).unwrap(), done.rows));
    let values = gpu.to_host(&done.values).unwrap();
    let nulls = done.nulls;
    match &done.dictionary {
        None => {
            assert!(!matches!(column.convert, Convert::Indices { .. }));
            HostOutcome::Strings {
                offsets: offsets(gpu, &done, done.rows),
                bytes: values,
                validity,
                nulls,
            }
        }
        Some(entries) => HostOutcome::Indices {
            values,
            offsets: offsets(gpu, entries, entries.rows),
            bytes: gpu.to_host(&entries.values).unwrap(),
            validity,
            nulls,
        },
    }
}

use Encoding::{Dictionary, Plain};

/// All ways through the kernels.
fn ways() -> Vec<Kind> {
    let nullable = Kind {
        nullable: true,
        valid: 190,
        ..KIND
    };
    vec![
        KIND,
        Kind {
            words: Words::Unicode,
            v1: false,
            large: true,
            ..nullable
        },
        Kind {
            words: Words::Bytes,
            style: Style::Mixed,
            ..nullable
        },
        Kind {
            encodings: &[Dictionary],
            words: Words::Unicode,
            style: Style::Mixed,
            ..KIND
        },
        Kind {
            encodings: &[Dictionary],
            large: true,
            v1: false,
            ..nullable
        },
        Kind {
            encodings: &[Dictionary, Plain],
            words: Words::Unicode,
            ..nullable
        },
        Kind {
            encodings: &[Dictionary],
            convert: Convert::Indices { to: 4 },
            ..nullable
        },
        Kind {
            encodings: &[Plain, Dictionary],
            words: Words::Short(16),
            convert: Convert::WidenBigEndian { to: 16 },
            ..nullable
        },
    ]
}

#[test]
fn all_encodings_versions_and_offsets() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut random = Random::new(1);
        let mut arena = Arena {
            gap: 3,
            ..Arena::default()
        };
        let encodings: [&[Encoding]; 3] = [&[Plain], &[Dictionary], &[Dictionary, Plain, Plain]];
        for (number, encodings) in encodings.into_iter().enumerate() {
            for words in [Words::Ascii, Words::Unicode, Words::Bytes] {
                for (nullable, v1) in [(false, number % 2 == 0), (true, false), (true, true)] {
                    let large = random.below(2) == 0;
                    let style = STYLES[(number + usize::from(v1)) % 4];
                    let kind = Kind {
                        encodings,
                        nullable,
                        valid: 180,
                        v1,
                        style,
                        words,
                        large,
                        ..KIND
                    };
                    column(&mut arena, kind, &[37, 1, 130], &mut random);
                }
            }
        }
        for to in [1, 2, 4, 8] {
            for (nullable, large) in [(false, true), (true, false)] {
                let kind = Kind {
                    encodings: &[Dictionary],
                    convert: Convert::Indices { to },
                    nullable,
                    large,
                    valid: 100,
                    words: Words::Unicode,
                    ..KIND
                };
                column(&mut arena, kind, &[37, 1, 130], &mut random);
            }
        }
        for (to, most) in [(16, 16), (32, 32), (32, 3)] {
            for encodings in encodings {
                let kind = Kind {
                    encodings,
                    convert: Convert::WidenBigEndian { to },
                    words: Words::Short(most),
                    nullable: most > 16,
                    valid: 200,
                    ..KIND
                };
                column(&mut arena, kind, &[37, 1, 130], &mut random);
            }
        }
        assert_eq!(compare(&gpu, &arena, "strings"), 0);
    }
    nothing_left(&session);
}

#[test]
fn all_lengths_around_words_and_tiles() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = separate();
            let mut random = Random::new(2);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            for kind in ways() {
                for len in [0usize, 1, 31, 32, 33, 1023, 1024, 1025, 2049] {
                    column(&mut arena, kind, &[len], &mut random);
                }
                column(&mut arena, kind, &[1, 31, 2, 1023, 7, 1025, 0], &mut random);
                column(&mut arena, kind, &[], &mut random);
            }
            assert_eq!(compare(&gpu, &arena, streams), 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn long_values_and_none_at_all() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(3);
        let mut arena = Arena::default();
        for kind in ways() {
            for (len, valid) in [(0, 200), (300, 128), (9_000, 200), (12, 0), (12, 256)] {
                let nullable = kind.nullable || valid != 200;
                let kind = Kind {
                    len,
                    valid,
                    nullable,
                    bits: 3,
                    ..kind
                };
                column(&mut arena, kind, &[30, 5, 11], &mut random);
            }
        }
        // One value that is the work of many blocks, and short ones around it.
        let words = [
            vec![b'a'; 7],
            "é".repeat(50_000).into_bytes(),
            vec![b'b'; 3],
        ];
        for words in [&words[..], &words[1..2]] {
            let page = arena.push(&plain(words));
            let entries = words.len() as u64;
            let described = Page {
                body: page,
                v1: true,
                def_len: 0,
                entries,
                nulls: None,
                encoding: Plain,
            };
            column(&mut arena, KIND, &[3], &mut random);
            arena.columns.last_mut().unwrap().pages.push(described);
        }
        assert_eq!(compare(&gpu, &arena, "long"), 0);
    }
    nothing_left(&session);
}

#[test]
fn many_tiles_and_pages() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(5);
        let mut arena = Arena::default();
        let pages: Vec<usize> = (0..120).map(|page| page * 7 % 90).collect();
        for kind in ways() {
            let kind = Kind { len: 6, ..kind };
            column(&mut arena, kind, &[12_000], &mut random);
            column(&mut arena, kind, &pages, &mut random);
        }
        assert_eq!(compare(&gpu, &arena, "many"), 0);
    }
    nothing_left(&session);
}

#[test]
fn all_orders_of_warps_without_a_race() {
    for order in ORDERS {
        let session = checked(order);
        {
            let gpu = separate();
            let mut random = Random::new(6);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            for kind in ways() {
                let kind = Kind { len: 4, ..kind };
                column(&mut arena, kind, &[45, 130], &mut random);
            }
            // More than a tile.
            let long = Kind {
                valid: 40,
                len: 2,
                ..ways()[5]
            };
            column(&mut arena, long, &[1030], &mut random);
            hostile(&mut arena);
            assert!(compare(&gpu, &arena, order) > 10);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// Adds a page with this body to the last column.
fn page(arena: &mut Arena, rows: u64, body: &[u8], encoding: Encoding) {
    let body = arena.push(body);
    let column = arena.columns.last_mut().unwrap();
    column.pages.push(Page {
        body,
        v1: true,
        def_len: 0,
        entries: rows,
        nulls: None,
        encoding,
    });
}

/// Pages that are not right, each the second of its column; and dictionaries.
fn hostile(arena: &mut Arena) {
    let mut random = Random::new(7);
    let huge = [
        &[4, 0, 0, 0][..],
        b"abcd",
        &[0xff, 0xff, 0xff, 0xff],
        b"efgh",
    ]
    .concat();
    let lengths: [(u64, &[u8]); 11] = [
        (1, &[]),
        (1, &[0, 0, 0]),
        (1, &[1, 0, 0, 0]),
        (1, &[0xff, 0xff, 0xff, 0x7f]),
        (1, &[1, 0, 0, 0, b'a', b'b']),
        (2, &[1, 0, 0, 0, b'a', 1, 0, 0]),
        (2, &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b']),
        (2, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (3, &huge),
        // Right.
        (2, &[0, 0, 0, 0, 0, 0, 0, 0]),
        (1, &[2, 0, 0, 0, b'a', b'b']),
    ];
    for (rows, body) in lengths {
        column(arena, KIND, &[40], &mut random);
        page(arena, rows, body, Plain);
        // The same as a dictionary, of which the second entry is used.
        column(arena, KIND, &[40], &mut random);
        let range = arena.push(body);
        arena.columns.last_mut().unwrap().dictionary = Some((range, rows));
        page(arena, 3, &[1, 6, u8::from(rows > 1)], Dictionary);
    }
    // Indices of two bits into three entries.
    let words = [b"a".to_vec(), "é".into(), Vec::new()];
    for convert in [Convert::Same, Convert::Indices { to: 2 }] {
        for body in [&[][..], &[33, 6, 0], &[2, 6, 3], &[2, 3, 0xe4], &[2, 6, 2]] {
            let range = arena.push(&plain(&words));
            let values = Values::Bytes {
                large: false,
                utf8: true,
            };
            arena.columns.push(Column {
                values,
                nullable: false,
                dictionary: Some((range, 3)),
                pages: Vec::new(),
                convert,
            });
            page(arena, 3, &[2, 6, 1], Dictionary);
            page(arena, 3, body, Dictionary);
        }
    }
    // Wider than the indices that are kept, though no index is.
    for (to, bits) in [(1, 8), (1, 9), (2, 16), (2, 17), (4, 32), (8, 32)] {
        let kept = Kind {
            encodings: &[Dictionary],
            convert: Convert::Indices { to },
            ..KIND
        };
        column(arena, kept, &[40], &mut random);
        page(
            arena,
            3,
            &[bits, 6, 1, 0, 0, 0][..2 + usize::from(bits).div_ceil(8)],
            Dictionary,
        );
    }
    // Decimals that are too long, and what is none.
    for (utf8, len) in [(false, 16), (false, 17), (true, 16)] {
        let body = plain([&vec![0x81; len]]);
        column(arena, KIND, &[], &mut random);
        page(arena, 1, &body, Plain);
        let column = arena.columns.last_mut().unwrap();
        column.values = Values::Bytes { large: false, utf8 };
        column.convert = Convert::WidenBigEndian { to: 16 };
    }
    // No page is decoded of these.
    let kept = Kind {
        encodings: &[Dictionary],
        convert: Convert::Indices { to: 4 },
        ..KIND
    };
    for change in [
        (|column: &mut Column| column.convert = Convert::Indices { to: 3 }) as fn(&mut Column),
        |column| column.dictionary = None,
        |column| column.pages[0].encoding = Plain,
        |column| column.convert = Convert::Widen { to: 8 },
        |column| column.pages[0].encoding = Encoding::Rle,
        |column| column.dictionary.as_mut().unwrap().1 = 1 << 20,
        |column| column.dictionary.as_mut().unwrap().1 += 1,
        |column| column.dictionary.as_mut().unwrap().0.end = 1 << 40,
    ] {
        column(arena, kept, &[40], &mut random);
        change(arena.columns.last_mut().unwrap());
    }
}

#[test]
fn what_is_wrong_with_a_page_is_said_and_harms_no_other() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut arena = Arena::default();
        hostile(&mut arena);
        let faults = compare(&gpu, &arena, "hostile");
        assert!(faults > 25 && faults < arena.columns.len(), "{faults}");
        let outcomes = reference::columns(&arena.bytes, &arena.columns);
        for wanted in [
            check::SHAPE,
            check::DICTIONARY,
            check::VALUES_LENGTH,
            check::BIT_WIDTH,
            check::INDEX,
            check::LENGTH,
        ] {
            let is = |outcome: &HostOutcome| matches!(outcome, HostOutcome::Fault { check, .. } if *check == wanted);
            assert!(outcomes.iter().any(is), "check {wanted}");
        }
    }
    nothing_left(&session);
}

/// Each of a few thousand sequences in a column of its own, as a value that others follow, and as an entry of a dictionary.
#[test]
fn utf8_is_what_the_standard_library_takes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = Arena::default();
        let mut random = Random::new(9);
        let others = [0x41, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc2];
        let mut sequences = Vec::new();
        for first in 0x7f..=0xffu8 {
            sequences.push(vec![first]);
            for second in others {
                sequences.push(vec![first, second]);
                sequences.push(vec![first, second, 0x80]);
                sequences.push(vec![first, second, 0xbf, 0x80]);
                sequences.push(vec![b'a', first, second, 0xc0, 0x80]);
            }
            sequences.push(vec![first, 0x80, 0x80, 0x80, 0x80]);
            sequences.push(vec![first, 0x90, 0x80, 0x41]);
        }
        let mut right = 0;
        for sequence in &sequences {
            // Behind and before other values, which must not make it whole.
            let before = vec![b'x'; random.below(9) as usize];
            let words = [before, sequence.clone(), vec![0x80; 0], b"yz".to_vec()];
            column(&mut arena, KIND, &[], &mut random);
            page(&mut arena, 4, &plain(&words), Plain);
            right += usize::from(std::str::from_utf8(sequence).is_ok());
        }
        for sequence in sequences.iter().step_by(7) {
            column(&mut arena, KIND, &[], &mut random);
            let range = arena.push(&plain([&vec![b'a'], sequence]));
            arena.columns.last_mut().unwrap().dictionary = Some((range, 2));
            // Only the other one is used.
            page(&mut arena, 5, &[1, 10, 0], Dictionary);
            right += usize::from(std::str::from_utf8(sequence).is_ok());
        }
        let faults = compare(&gpu, &arena, "UTF-8");
        assert_eq!(faults, arena.columns.len() - right);
        assert!(right > 100, "{right}");
    }
    nothing_left(&session);
}

/// A byte that is wrong anywhere in a long value, so at any place of a word, a tile and a part of the output.
#[test]
fn one_wrong_byte_is_found_anywhere() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = Arena::default();
        let text = "aé€𐍈".repeat(900).into_bytes();
        for at in (0..64).chain(8180..8204).chain(text.len() - 12..text.len()) {
            let mut text = text.clone();
            if let Some(byte) = text.get_mut(at) {
                *byte ^= 0xff;
                column(&mut arena, KIND, &[], &mut Random::new(1));
                page(&mut arena, 2, &plain([&b"ab".to_vec(), &text]), Plain);
            }
        }
        let faults = compare(&gpu, &arena, "one byte");
        assert_eq!(faults, arena.columns.len());
        assert!(faults > 90, "{faults}");
    }
    nothing_left(&session);
}

#[test]
fn bodies_with_changed_bytes_are_read_as_the_reference_does() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(8);
        for round in 0..4 {
            let mut arena = Arena {
                gap: round,
                ..Arena::default()
            };
            let kinds = ways();
            for number in 0..120 {
                let kind = kinds[number % kinds.len()];
                column(&mut arena, kind, &[70, 20 + number], &mut random);
                let column = arena.columns.last().unwrap();
                let pages = column.pages.iter().map(|page| page.body.clone());
                let pages: Vec<_> = pages
                    .chain(column.dictionary.iter().map(|(range, _)| range.clone()))
                    .collect();
                let page = &pages[random.below(pages.len() as u64) as usize];
                for _ in 0..1 + random.below(2) {
                    let place = random.below((page.end - page.start).min(60)) + page.start;
                    arena.bytes[place as usize] = match random.below(3) {
                        0 => random.next() as u8,
                        1 => arena.bytes[place as usize] ^ 1 << random.below(8),
                        _ => [0, 1, 2, 3, 0x7f, 0x80, 0xff][random.below(7) as usize],
                    };
                }
            }
            let faults = compare(&gpu, &arena, "mutated");
            assert!(faults > 10 && faults < 118, "{faults}");
        }
    }
    nothing_left(&session);
}

/// Bytes that offsets of 4 bytes cannot tell, and bytes that are not allowed: said before there is memory for them.
#[test]
fn too_many_bytes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = Arena::default();
        let long = vec![b'x'; 1 << 16];
        let range = arena.push(&plain([&long]));
        for large in [false, true] {
            column(&mut arena, KIND, &[], &mut Random::new(1));
            let column = arena.columns.last_mut().unwrap();
            column.dictionary = Some((range.clone(), 1));
            column.values = Values::Bytes { large, utf8: false };
            // A repeated value of no bits, 32,768 times in a page.
            page(&mut arena, 1 << 15, &[0, 0x80, 0x80, 4], Dictionary);
        }
        let there = put(&gpu, &arena.bytes, 0);
        let all = 1u64 << 31;
        let (mut small, mut large) = (arena.columns.clone(), arena.columns.split_off(1));
        small.truncate(1);
        let within = |columns: &[Column], most| {
            let (outcomes, nested) = gpu.nested(&there, columns, &[], most).unwrap();
            assert!(nested.is_empty());
            outcomes
        };
        let told = |columns: &[Column], most| match &within(columns, most)[..] {
            [Outcome::Large { bytes }] => Some(*bytes),
            [Outcome::Done(done)] => {
                assert_eq!(done.values.len() as u64, columns[0].rows() << 16);
                None
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(told(&small, u64::MAX), Some(all));
        assert_eq!(told(&large, all - 1), Some(all));
        // What fits is done.
        for column in small.iter_mut().chain(&mut large) {
            column.pages[0].entries = 3;
        }
        assert_eq!(told(&small, 3 << 16), None);
        assert_eq!(told(&small, (3 << 16) - 1), Some(3 << 16));
        assert_eq!(told(&large, u64::MAX), None);
        // All columns together.
        let both = [small.remove(0), large.remove(0)];
        let outcomes = within(&both, 4 << 16);
        assert!(
            matches!(outcomes[..], [Outcome::Done(_), Outcome::Large { .. }]),
            "{outcomes:?}"
        );
    }
    nothing_left(&session);
}

#[test]
fn nothing_and_columns_without_pages() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = Arena::default();
        for kind in ways() {
            column(&mut arena, kind, &[], &mut Random::new(9));
            column(&mut arena, kind, &[0], &mut Random::new(9));
            // A dictionary of no entries.
            let column = arena.columns.last_mut().unwrap();
            if let Some((range, entries)) = &mut column.dictionary {
                (range.end, *entries) = (range.start, 0);
            }
        }
        assert_eq!(compare(&gpu, &arena, "empty"), 0);
        arena.columns.truncate(1);
        assert_eq!(compare(&gpu, &arena, "one"), 0);
        assert_eq!(gpu.stats().in_use, 0);
    }
    nothing_left(&session);
}

#[test]
fn an_error_at_every_call_of_decoding() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    let mut arena = Arena::default();
    for kind in ways() {
        column(&mut arena, kind, &[9, 4], &mut Random::new(10));
    }
    let run = |session: &mut Session, inject: &dyn Fn(&mut Session)| {
        let outcome = {
            let gpu = separate();
            let there = put(&gpu, &arena.bytes, 0);
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
    for (call, code) in (0..calls).step_by(3).zip([1, 700].into_iter().cycle()) {
        if let Err(error) = run(&mut session, &|session| session.fail_call(call, code)) {
            let kind = error.kind();
            let typed = matches!(kind, ErrorKind::Cuda { .. } | ErrorKind::DeviceLost { .. });
            assert!(typed, "{error}");
            failed += 1;
        }
    }
    assert!(failed > 20, "{failed} of {calls}");
    for allocation in 0..12 {
        if let Err(error) = run(&mut session, &|session| session.fail_allocation(allocation)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
        }
    }
}

#[test]
fn pages_past_four_gigabytes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = Arena::default();
        for kind in ways() {
            column(&mut arena, kind, &[40, 300], &mut Random::new(11));
        }
        let wanted = reference::columns(&arena.bytes, &arena.columns);
        let there = far_away(&gpu, &mut arena);
        assert_eq!(on_the_device(&gpu, &there, &arena.columns), wanted);
    }
    nothing_left(&session);
}
