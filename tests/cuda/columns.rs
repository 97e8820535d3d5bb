//! Kernels of flat columns beside their scalar reference: on all shapes of pages, and on pages that are not right.
#![allow(unsafe_code)]

use std::sync::Arc;

use feedwater::cuda::columns::reference::{self, HostOutcome};
use feedwater::cuda::columns::{
    Column, Convert, Decoded, Encoding, MOST_WIDTH, Outcome, Page, Values, check,
};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions, Guard, lend};
use feedwater::{Batch, DeviceBytes, ErrorKind, Reader};
use software_cuda_preload::Session;

use crate::kernels::{ORDERS, checked, put};
use crate::pages::*;
use crate::support::*;

#[path = "columns/strings.rs"]
mod strings;

/// The bits that `rows` have of a bitmap, whose others have to be zero.
pub(crate) fn trimmed(mut bitmap: Vec<u8>, rows: u64) -> Vec<u8> {
    assert_eq!(bitmap.len() as u64, rows.div_ceil(32) * 4);
    let rest = bitmap.split_off(rows.div_ceil(8) as usize);
    assert!(rest.iter().all(|byte| *byte == 0));
    bitmap
}

/// What the device makes of columns, as the reference has it.
pub(crate) fn on_the_device(
    gpu: &Device,
    arena: &DeviceBytes,
    columns: &[Column],
) -> Vec<HostOutcome> {
    let outcomes = gpu.columns(arena, columns).unwrap();
    assert_eq!(outcomes.len(), columns.len());
    let outcomes = columns.iter().zip(outcomes);
    outcomes
        .map(|(column, outcome)| match outcome {
            Outcome::Fault { page, check } => HostOutcome::Fault { page, check },
            Outcome::Large { bytes } => panic!("{bytes} bytes"),
            Outcome::Done(done) => on_the_host(gpu, column, done),
        })
        .collect()
}

/// What it made of a column, as the reference has it.
pub(crate) fn on_the_host(gpu: &Device, column: &Column, done: Decoded) -> HostOutcome {
    if strings::is_one(column) {
        return strings::on_the_host(gpu, column, done);
    }
    let values = gpu.to_host(&done.values).unwrap();
    HostOutcome::Done {
        values: match column.values {
            Values::Boolean => trimmed(values, done.rows),
            Values::Fixed { .. } | Values::Bytes { .. } => values,
        },
        validity: done
            .validity
            .map(|bits| trimmed(gpu.to_host(&bits).unwrap(), done.rows)),
        nulls: done.nulls,
        rows: done.rows,
    }
}

/// Compares all columns; those that are faults are counted.
pub(crate) fn compare(gpu: &Arc<Device>, arena: &Arena, what: &str) -> usize {
    // The arena ends where an allocation does, so that a read past it is one of memory that is not there.
    let offset = arena.bytes.len().next_multiple_of(256) - arena.bytes.len();
    let there = put(gpu, &arena.bytes, offset);
    let found = on_the_device(gpu, &there, &arena.columns);
    let wanted = reference::columns(&arena.bytes, &arena.columns);
    for ((column, found), wanted) in arena.columns.iter().zip(&found).zip(&wanted) {
        assert!(
            found == wanted,
            "{what}: {column:?}\nis {}\nnot {}",
            short(found),
            short(wanted)
        );
    }
    let faults = wanted
        .iter()
        .filter(|outcome| matches!(outcome, HostOutcome::Fault { .. }));
    faults.count()
}

fn short(outcome: &HostOutcome) -> String {
    let mut text = format!("{outcome:?}");
    text.truncate(2000);
    text
}

fn separate() -> Arc<Device> {
    DeviceOptions::default()
        .guard(Guard::Separate)
        .open(0)
        .unwrap()
}

const fn fixed(width: u32) -> Values {
    Values::Fixed { width }
}

/// All encodings that go with widths and conversions.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    let mut add = |values, encodings: &[Encoding], convert| {
        for &encoding in encodings {
            shapes.push(Shape {
                values,
                encoding,
                convert,
                bits: 9,
                ..Shape::PLAIN
            });
        }
    };
    let numbers = [
        Encoding::Plain,
        Encoding::Dictionary,
        Encoding::ByteStreamSplit,
    ];
    add(
        Values::Boolean,
        &[Encoding::Plain, Encoding::Rle],
        Convert::Same,
    );
    for width in [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32] {
        add(fixed(width), &numbers, Convert::Same);
    }
    for len in [1, 2] {
        add(fixed(4), &numbers, Convert::Part { offset: 0, len });
    }
    add(fixed(12), &numbers, Convert::Part { offset: 4, len: 8 });
    add(fixed(12), &numbers, Convert::Part { offset: 0, len: 4 });
    for (width, to) in [(4, 4), (4, 8), (4, 16), (4, 32), (8, 8), (8, 16), (8, 32)] {
        add(fixed(width), &numbers, Convert::Widen { to });
    }
    for (width, to) in [
        (1, 4),
        (3, 4),
        (4, 4),
        (7, 8),
        (9, 16),
        (16, 16),
        (13, 32),
        (32, 32),
    ] {
        add(fixed(width), &numbers, Convert::WidenBigEndian { to });
    }
    add(fixed(4), &numbers, Convert::DaysToMilliseconds);
    let deltas = [Encoding::DeltaBinaryPacked];
    add(fixed(4), &deltas, Convert::Same);
    add(fixed(8), &deltas, Convert::Same);
    add(fixed(4), &deltas, Convert::Widen { to: 8 });
    for per_second in [1, 1_000, 1_000_000, 1_000_000_000] {
        add(fixed(12), &numbers[..2], Convert::Int96 { per_second });
    }
    shapes
}

#[test]
fn all_encodings_widths_and_conversions() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut random = Random::new(1);
        let mut arena = Arena {
            gap: 3,
            ..Arena::default()
        };
        for (number, shape) in shapes().into_iter().enumerate() {
            // Each with and without nulls, in both versions, and all kinds of runs in turn.
            for (nullable, v1) in [(false, number % 2 == 0), (true, false), (true, true)] {
                let style = STYLES[(number + usize::from(v1)) % 4];
                let shape = Shape {
                    nullable,
                    v1,
                    style,
                    valid: 180,
                    ..shape
                };
                arena.column(shape, &[37, 1, 130], &mut random);
            }
        }
        assert_eq!(compare(&gpu, &arena, "shapes"), 0);
    }
    nothing_left(&session);
}

/// A few shapes that take different ways through the kernels.
fn ways() -> Vec<Shape> {
    let way = |values, encoding, nullable, v1, style, convert| Shape {
        values,
        encoding,
        nullable,
        v1,
        style,
        convert,
        bits: 7,
        valid: 200,
    };
    use Encoding::{ByteStreamSplit, DeltaBinaryPacked, Dictionary, Plain, Rle};
    vec![
        way(fixed(8), Plain, false, true, Style::Groups, Convert::Same),
        way(fixed(4), Plain, true, true, Style::Mixed, Convert::Same),
        way(
            fixed(8),
            Dictionary,
            false,
            false,
            Style::Mixed,
            Convert::Same,
        ),
        way(
            fixed(4),
            Dictionary,
            true,
            false,
            Style::Repeats,
            Convert::Part { offset: 0, len: 1 },
        ),
        way(
            fixed(8),
            ByteStreamSplit,
            true,
            true,
            Style::Cut,
            Convert::Same,
        ),
        way(
            fixed(5),
            Plain,
            true,
            false,
            Style::Groups,
            Convert::WidenBigEndian { to: 16 },
        ),
        way(
            Values::Boolean,
            Plain,
            true,
            true,
            Style::Groups,
            Convert::Same,
        ),
        way(
            Values::Boolean,
            Rle,
            true,
            true,
            Style::Mixed,
            Convert::Same,
        ),
        way(
            Values::Boolean,
            Rle,
            false,
            false,
            Style::Cut,
            Convert::Same,
        ),
        way(
            fixed(8),
            DeltaBinaryPacked,
            false,
            true,
            Style::Cut,
            Convert::Same,
        ),
        way(
            fixed(4),
            DeltaBinaryPacked,
            true,
            false,
            Style::Mixed,
            Convert::Same,
        ),
    ]
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
            let lens = [0usize, 1, 31, 32, 33, 1023, 1024, 1025, 2047, 2048, 2049];
            for shape in ways() {
                for len in lens {
                    arena.column(shape, &[len], &mut random);
                }
                // The bits of pages begin anywhere in a word.
                arena.column(shape, &[1, 31, 2, 1023, 7, 1025, 0], &mut random);
                arena.column(shape, &[], &mut random);
            }
            assert_eq!(compare(&gpu, &arena, streams), 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn nulls_none_and_all_and_in_long_runs() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(3);
        let mut arena = Arena::default();
        for shape in ways() {
            for (valid, style) in [
                (0, Style::Repeats),
                (0, Style::Groups),
                (256, Style::Repeats),
                (256, Style::Groups),
                (3, Style::Mixed),
                (253, Style::Mixed),
            ] {
                let shape = Shape {
                    nullable: true,
                    valid,
                    style,
                    ..shape
                };
                arena.column(shape, &[1500, 40, 2100], &mut random);
            }
        }
        assert_eq!(compare(&gpu, &arena, "nulls"), 0);
    }
    nothing_left(&session);
}

#[test]
fn all_widths_of_indices() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut random = Random::new(4);
        let mut arena = Arena::default();
        for bits in 0..=32 {
            for style in STYLES {
                arena.gap = random.below(4) as usize;
                let encoding = Encoding::Dictionary;
                let shape = Shape {
                    values: fixed(4),
                    encoding,
                    bits,
                    style,
                    ..Shape::PLAIN
                };
                arena.column(shape, &[300, 1100], &mut random);
            }
        }
        assert_eq!(compare(&gpu, &arena, "widths"), 0);
    }
    nothing_left(&session);
}

#[test]
fn the_last_bytes_of_an_arena_and_nothing_past_them() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(12);
        let packed = ways().into_iter().chain([1, 3, 11, 31].map(|bits| Shape {
            encoding: Encoding::Dictionary,
            bits,
            ..Shape::PLAIN
        }));
        for shape in packed {
            // Packed to the last bit, which is that of the arena and of its allocation.
            for rows in [1, 13, 45] {
                let mut arena = Arena::default();
                let style = Style::Cut;
                arena.column(Shape { style, ..shape }, &[rows], &mut random);
                assert_eq!(compare(&gpu, &arena, "the end"), 0);
            }
        }
        // And levels, of rows that are all null.
        let shape = Shape {
            nullable: true,
            valid: 0,
            style: Style::Cut,
            ..Shape::PLAIN
        };
        let mut arena = Arena::default();
        arena.column(shape, &[300], &mut random);
        assert_eq!(compare(&gpu, &arena, "the end"), 0);
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
        let pages: Vec<usize> = (0..200).map(|page| page * 7 % 90).collect();
        for shape in ways() {
            arena.column(shape, &[150_000], &mut random);
            arena.column(shape, &pages, &mut random);
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
            for shape in ways() {
                arena.column(shape, &[45, 1060], &mut random);
            }
            // And with pages that end early in each kernel.
            hostile(&mut arena);
            assert!(compare(&gpu, &arena, order) > 10);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// Pages that are not right, each the second of its column.
fn hostile(arena: &mut Arena) {
    let mut random = Random::new(7);
    let levels = |levels: &[u8]| {
        let mut body = (levels.len() as u32).to_le_bytes().to_vec();
        body.extend_from_slice(levels);
        body
    };
    // Rows, and a body of levels; none of them has values.
    let wrong_levels: Vec<(u64, Vec<u8>)> = vec![
        (3, vec![]),
        (3, vec![0, 0, 0]),
        (3, vec![1, 0, 0, 0]),
        (3, vec![255; 12]),
        (3, levels(&[])),
        (3, levels(&[4, 0])),
        (3, levels(&[6])),
        (3, levels(&[6, 2])),
        (3, levels(&[0, 0, 6, 0])),
        (3, levels(&[1, 6, 0])),
        (3, levels(&[3])),
        (9, levels(&[3, 0])),
        (9, levels(&[5, 0])),
        (3, levels(&[0x86])),
        (3, levels(&[0x86, 0x80, 0x80, 0x80, 0x80, 0, 0])),
        (3, levels(&[0x86, 0x80, 0x80, 0x80, 0x10, 0])),
        (3, levels(&[0x87, 0x80, 0x80, 0x80, 0x02, 0])),
        (3, levels(&[255; 9])),
        // Right, and of a page whose values are missing.
        (3, levels(&[6, 1])),
        // Right as they are.
        (3, levels(&[6, 0])),
        (3, levels(&[0xfe, 0xff, 0xff, 0xff, 0x0f, 0])),
        (3, levels(&[6, 0, 9, 9, 9])),
    ];
    let shape = Shape {
        nullable: true,
        valid: 100,
        ..Shape::PLAIN
    };
    for (rows, body) in wrong_levels {
        arena.column(shape, &[40], &mut random);
        second(arena, rows, &body, |_| {});
    }
    // Of version 2, with a length of levels or a number of nulls that does not fit.
    for (def_len, nulls) in [
        (2, 3),
        (2, 2),
        (2, 0),
        (2, 4),
        (3, 3),
        (1, 3),
        (u32::MAX, 3),
    ] {
        arena.column(shape, &[40], &mut random);
        second(arena, 3, &[6, 0], |page| {
            (page.v1, page.def_len, page.nulls) = (false, def_len, Some(nulls));
        });
    }
    // Indices of two bits into three entries.
    let indices: [&[u8]; 17] = [
        &[],
        &[33, 6, 0],
        &[255, 6, 0],
        &[2],
        &[2, 6],
        &[2, 4, 1],
        &[2, 6, 4],
        &[2, 6, 3],
        &[2, 3, 0xe4],
        &[2, 3, 0x24],
        &[2, 3, 0x24, 0],
        &[2, 3, 0x24, 0, 1],
        &[2, 3, 0x24, 0, 0, 9],
        &[0, 6],
        &[32, 6, 0, 0, 0],
        &[32, 6, 0, 0, 0, 128],
        &[32, 0x81, 0x80, 0x80, 0x80, 0x0f, 0, 0, 0, 0],
    ];
    let shape = Shape {
        encoding: Encoding::Dictionary,
        bits: 2,
        ..Shape::PLAIN
    };
    for body in indices {
        arena.column(shape, &[40], &mut random);
        if let Some((range, entries)) = arena
            .columns
            .last_mut()
            .and_then(|column| column.dictionary.as_mut())
        {
            (range.end, *entries) = (range.end - 4, 3);
        }
        arena.columns.last_mut().unwrap().pages.remove(0);
        second(arena, 3, body, |_| {});
    }
    let booleans: [&[u8]; 6] = [
        &[0, 0, 0],
        &[2, 0, 0, 0, 6],
        &[2, 0, 0, 0, 6, 2],
        &[2, 0, 0, 0, 6, 1],
        &[2, 0, 0, 0, 6, 1, 77],
        &[3, 0, 0, 0, 6, 1, 77],
    ];
    let shape = Shape {
        values: Values::Boolean,
        encoding: Encoding::Rle,
        ..Shape::PLAIN
    };
    for body in booleans {
        arena.column(shape, &[40], &mut random);
        second(arena, 3, body, |_| {});
    }
    // Sections that are too short or too long by a byte.
    for (encoding, values) in [
        (Encoding::Plain, fixed(4)),
        (Encoding::ByteStreamSplit, fixed(4)),
        (Encoding::Plain, fixed(3)),
        (Encoding::Plain, Values::Boolean),
    ] {
        let shape = Shape {
            encoding,
            values,
            ..Shape::PLAIN
        };
        let right = match values {
            Values::Fixed { width } => 3 * width as usize,
            _ => 1,
        };
        for len in [right - 1, right, right + 1] {
            arena.column(shape, &[40], &mut random);
            second(arena, 3, &vec![0x5a; len], |_| {});
        }
    }
    // No page is decoded of these, so the device is not asked.
    for change in [
        (|column: &mut Column| column.dictionary = None) as fn(&mut Column),
        |column| column.pages[0].body.end = u64::MAX,
        |column| {
            let body = &mut column.pages[0].body;
            (body.start, body.end) = (body.end, body.start);
        },
        |column| column.pages[0].entries = 1 << 31,
        |column| column.pages[0].nulls = Some(1),
        |column| column.convert = Convert::Int96 { per_second: 7 },
        |column| column.dictionary.as_mut().unwrap().1 += 1,
        |column| column.dictionary.as_mut().unwrap().0.end = 1 << 40,
    ] {
        let encoding = Encoding::Dictionary;
        arena.column(
            Shape {
                encoding,
                bits: 3,
                ..Shape::PLAIN
            },
            &[40],
            &mut random,
        );
        change(arena.columns.last_mut().unwrap());
    }
}

/// Adds a page with this body to the last column.
fn second(arena: &mut Arena, rows: u64, body: &[u8], change: impl Fn(&mut Page)) {
    let begin = arena.bytes.len() as u64;
    arena.bytes.extend_from_slice(body);
    let column = arena.columns.last_mut().unwrap();
    let mut page = Page {
        body: begin..arena.bytes.len() as u64,
        v1: true,
        def_len: 0,
        entries: rows,
        nulls: None,
        encoding: match (column.values, &column.dictionary) {
            (_, Some(_)) => Encoding::Dictionary,
            _ => column
                .pages
                .first()
                .map_or(Encoding::Plain, |page| page.encoding),
        },
    };
    change(&mut page);
    column.pages.push(page);
}

#[test]
fn what_is_wrong_with_a_page_is_said_and_harms_no_other() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut arena = Arena::default();
        hostile(&mut arena);
        let faults = compare(&gpu, &arena, "hostile");
        assert!(
            faults > 50 && faults < arena.columns.len(),
            "{faults} of {}",
            arena.columns.len()
        );
        // All that can be wrong is among them.
        let outcomes = reference::columns(&arena.bytes, &arena.columns);
        for wanted in [
            check::SHAPE,
            check::DICTIONARY,
            check::LEVELS_LENGTH,
            check::LEVELS | check::END,
            check::LEVELS | check::HEADER,
            check::LEVELS | check::RUN_LENGTH,
            check::LEVELS | check::RUN_BYTES,
            check::LEVELS | check::RUN_VALUE,
            check::NULLS,
            check::VALUES_LENGTH,
            check::BIT_WIDTH,
            check::TRAILING,
            check::RUNS | check::END,
            check::RUNS | check::RUN_BYTES,
            check::RUNS | check::RUN_VALUE,
            check::INDEX,
        ] {
            let is = |outcome: &HostOutcome| matches!(outcome, HostOutcome::Fault { check, .. } if *check == wanted);
            assert!(outcomes.iter().any(is), "check {wanted}");
        }
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
            let shapes = ways();
            for number in 0..120 {
                let shape = Shape {
                    nullable: number % 3 > 0,
                    ..shapes[number % shapes.len()]
                };
                arena.column(shape, &[70, 20 + number], &mut random);
                let column = arena.columns.last().unwrap();
                // Most runs and all lengths are at the beginning.
                let page = column.pages[random.below(2) as usize].body.clone();
                for _ in 0..1 + random.below(2) {
                    let place = random.below((page.end - page.start).min(24)) + page.start;
                    arena.bytes[place as usize] = match random.below(3) {
                        0 => random.next() as u8,
                        1 => arena.bytes[place as usize] ^ 1 << random.below(8),
                        _ => [0, 1, 2, 3, 0x7f, 0x80, 0xff][random.below(7) as usize],
                    };
                }
            }
            let faults = compare(&gpu, &arena, "mutated");
            assert!(faults > 10 && faults < 115, "{faults}");
        }
    }
    nothing_left(&session);
}

#[test]
fn nothing_and_columns_without_pages() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let there = put(&gpu, &[], 0);
        assert!(gpu.columns(&there, &[]).unwrap().is_empty());
        let mut arena = Arena::default();
        let shape = Shape {
            nullable: true,
            ..Shape::PLAIN
        };
        arena.column(shape, &[], &mut Random::new(9));
        arena.column(
            Shape {
                encoding: Encoding::Plain,
                ..shape
            },
            &[0, 0],
            &mut Random::new(9),
        );
        assert_eq!(compare(&gpu, &arena, "empty"), 0);
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
    for shape in ways() {
        arena.column(shape, &[40, 33], &mut Random::new(10));
    }
    let wanted = reference::columns(&arena.bytes, &arena.columns);
    let run = |session: &mut Session, inject: &dyn Fn(&mut Session)| {
        let outcome = {
            let gpu = separate();
            let there = put(&gpu, &arena.bytes, 0);
            // Kernels are loaded, so that each call is one of decoding.
            gpu.columns(&there, &arena.columns).unwrap();
            let before = session.counts();
            inject(session);
            let outcome = gpu.columns(&there, &arena.columns);
            session.fail_nothing();
            outcome.map(|outcomes| (outcomes, session.counts().calls - before.calls))
        };
        let outcome = outcome.map(|(outcomes, calls)| {
            let done = |outcome: &Outcome| matches!(outcome, Outcome::Done(_));
            assert!(outcomes.iter().all(done));
            assert_eq!(outcomes.len(), wanted.len());
            calls
        });
        nothing_left(session);
        outcome
    };
    let calls = run(&mut session, &|_| {}).unwrap();
    let mut failed = 0;
    for (call, code) in (0..calls).zip([1, 700].into_iter().cycle()) {
        if let Err(error) = run(&mut session, &|session| session.fail_call(call, code)) {
            let kind = error.kind();
            let typed = matches!(kind, ErrorKind::Cuda { .. } | ErrorKind::DeviceLost { .. });
            assert!(typed, "{error}");
            failed += 1;
        }
    }
    // Many of the others give memory back, which no caller is told of.
    assert!(failed > 20, "{failed} of {calls}");
    // Memory is looked for once more after some was given back, so that one refusal alone is none.
    for allocation in 0..8 {
        if let Err(error) = run(&mut session, &|session| session.fail_allocation(allocation)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
        }
    }
}

/// The arena at the end of a device allocation of which only that is ever touched, and its columns there.
pub(crate) fn far_away(gpu: &Arc<Device>, arena: &mut Arena) -> DeviceBytes {
    let (len, at) = (arena.bytes.len(), (5u64 << 30) + 1);
    let whole = gpu.allocate(at as usize + len).unwrap();
    let memory = Arc::new(whole);
    let lent = |offset: usize, len: usize| {
        let begin = memory.memory().ptr().wrapping_add(offset);
        // SAFETY: a part of memory that its owner keeps, and that nobody else uses.
        unsafe { lend(gpu.place(), begin, len, memory.clone()) }
    };
    let bytes = reader(gpu, &arena.bytes.clone().into());
    let batch = Batch::new().read_into(0..len as u64, lent(at as usize, len));
    drop(bytes.submit(batch).wait().unwrap());
    let mut block = lent(0, at as usize + len);
    // SAFETY: what is read of it was written.
    unsafe { block.advance(block.remaining()) };
    let there = block.freeze().into_device().unwrap();
    for column in &mut arena.columns {
        let pages = column.pages.iter_mut().map(|page| &mut page.body);
        for range in pages.chain(column.dictionary.iter_mut().map(|(range, _)| range)) {
            *range = range.start + at..range.end + at;
        }
    }
    there
}

#[test]
fn pages_past_four_gigabytes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut arena = Arena::default();
        for shape in ways() {
            arena.column(shape, &[40, 1100], &mut Random::new(11));
        }
        let wanted = reference::columns(&arena.bytes, &arena.columns);
        let there = far_away(&gpu, &mut arena);
        assert_eq!(on_the_device(&gpu, &there, &arena.columns), wanted);
    }
    nothing_left(&session);
}

/// The widest values that kernels count in 32 bits, and wider ones.
#[test]
fn values_of_the_most_bytes_and_of_more() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut arena = Arena::default();
        for (width, rows) in [(MOST_WIDTH, 2), (MOST_WIDTH - 1, 1), (MOST_WIDTH + 1, 2)] {
            let entry: Vec<u8> = (0..width).map(|at| (at * 7 + at / 251) as u8).collect();
            let entry = arena.push(&entry);
            // Indices of no bits, which are all 0.
            let body = arena.push(&[0, rows << 1]);
            let page = Page {
                body,
                v1: true,
                def_len: 0,
                entries: rows.into(),
                nulls: None,
                encoding: Encoding::Dictionary,
            };
            arena.columns.push(Column {
                values: fixed(width),
                nullable: false,
                dictionary: Some((entry, 1)),
                pages: vec![page],
                convert: Convert::Same,
            });
        }
        let offset = arena.bytes.len().next_multiple_of(256) - arena.bytes.len();
        let there = put(&gpu, &arena.bytes, offset);
        let found = on_the_device(&gpu, &there, &arena.columns);
        assert!(found[..2] == reference::columns(&arena.bytes, &arena.columns[..2]));
        for (outcome, bytes) in found.iter().zip([2 * MOST_WIDTH, MOST_WIDTH - 1]) {
            let HostOutcome::Done { values, .. } = outcome else {
                panic!("a fault");
            };
            assert_eq!(values.len(), bytes as usize);
        }
        let (page, check) = (0, check::SHAPE);
        assert!(found[2] == HostOutcome::Fault { page, check });
    }
    nothing_left(&session);
}
