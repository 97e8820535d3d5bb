//! Streams of DELTA_BINARY_PACKED beside their scalar reference, the sums by both ways: all widths, layouts of blocks, and what is wrong.

use std::sync::Arc;

use feedwater::cuda::columns::reference::{self, HostOutcome};
use feedwater::cuda::columns::{Column, Convert, Encoding, Page, Values, check};
use feedwater::cuda::{Device, DeviceOptions, Guard};

use crate::columns::compare;
use crate::kernels::{ORDERS, checked};
use crate::pages::*;
use crate::support::*;

/// Adds a column whose one page has a body.
fn page(arena: &mut Arena, width: u32, rows: usize, body: &[u8]) {
    let start = arena.bytes.len() + arena.gap;
    arena.bytes.resize(start, 0xee);
    arena.bytes.extend_from_slice(body);
    arena.columns.push(Column {
        values: Values::Fixed { width },
        nullable: false,
        dictionary: None,
        pages: vec![Page {
            body: start as u64..arena.bytes.len() as u64,
            v1: true,
            def_len: 0,
            entries: rows as u64,
            nulls: None,
            encoding: Encoding::DeltaBinaryPacked,
        }],
        convert: Convert::Same,
    });
}

/// Both ways to sum.
fn devices() -> [Arc<Device>; 2] {
    [false, true].map(|tensor| {
        let options = DeviceOptions::default().guard(Guard::Separate);
        options.tensor_sums(tensor).open(0).unwrap()
    })
}

/// Compares all columns by both ways; gives how many are faults.
pub(crate) fn both(arena: &Arena, what: &str) -> usize {
    let faults = devices().map(|gpu| compare(&gpu, arena, what));
    assert_eq!(faults[0], faults[1]);
    faults[0]
}

#[test]
fn all_widths_of_deltas() {
    let session = session("lazy");
    {
        let mut random = Random::new(1);
        for width in [4, 8] {
            let mut arena = Arena::default();
            for bits in 0..=width * 8 {
                for count in [33, 300, 1150] {
                    arena.gap = random.below(9) as usize;
                    let layout = Layout {
                        bits: Some(bits),
                        ..Layout::any(width, &mut random)
                    };
                    let body = stream(&layout, count, &mut random);
                    page(&mut arena, width, count, &body);
                }
            }
            assert_eq!(both(&arena, "widths"), 0);
        }
    }
    nothing_left(&session);
}

#[test]
fn all_layouts_at_all_lengths() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let mut random = Random::new(2);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            for (number, block) in LAYOUTS.into_iter().enumerate() {
                for count in [
                    0, 1, 2, 31, 32, 33, 34, 127, 128, 129, 130, 1023, 1024, 1025, 1026, 2048,
                    2049, 2050, 5000,
                ] {
                    let width = [4, 8][(number + count) % 2];
                    let layout = Layout {
                        block,
                        ..Layout::any(width, &mut random)
                    };
                    let body = stream(&layout, count, &mut random);
                    page(&mut arena, width, count, &body);
                }
            }
            assert_eq!(both(&arena, streams), 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn pages_that_are_nullable_or_converted_or_many() {
    let session = session("eager");
    {
        let mut random = Random::new(3);
        let mut arena = Arena {
            gap: 3,
            ..Arena::default()
        };
        let conversions = [
            (4, Convert::Same),
            (8, Convert::Same),
            (4, Convert::Part { offset: 0, len: 1 }),
            (4, Convert::Part { offset: 0, len: 2 }),
            (4, Convert::Widen { to: 8 }),
            (8, Convert::Widen { to: 16 }),
            (8, Convert::Widen { to: 32 }),
            (4, Convert::DaysToMilliseconds),
        ];
        for (width, convert) in conversions {
            for (nullable, v1, valid) in [
                (false, true, 256),
                (true, true, 200),
                (true, false, 256),
                (true, false, 0),
            ] {
                let shape = Shape {
                    values: Values::Fixed { width },
                    encoding: Encoding::DeltaBinaryPacked,
                    nullable,
                    valid,
                    v1,
                    convert,
                    ..Shape::PLAIN
                };
                arena.column(shape, &[1, 37, 1030, 0, 64, 2100], &mut random);
            }
        }
        // Pages of other encodings beside them, in one column.
        let mut mixed = arena.columns[0].clone();
        let plain: Vec<u8> = (0..40).collect();
        let start = arena.bytes.len() as u64;
        arena.bytes.extend(&plain);
        mixed.pages.insert(
            1,
            Page {
                body: start..start + 40,
                entries: 10,
                encoding: Encoding::Plain,
                ..mixed.pages[0].clone()
            },
        );
        let converted = Column {
            convert: Convert::Widen { to: 16 },
            ..mixed.clone()
        };
        arena.columns.extend([mixed, converted]);
        assert_eq!(both(&arena, "kinds"), 0);
    }
    nothing_left(&session);
}

#[test]
fn many_tiles() {
    let session = session("eager");
    {
        let mut random = Random::new(4);
        let mut arena = Arena::default();
        for (width, block) in [(8, (128, 4)), (4, (256, 4)), (8, (1 << 20, 1 << 15))] {
            let layout = Layout {
                width,
                block,
                bits: None,
                cut: false,
            };
            let body = stream(&layout, 60_000, &mut random);
            page(&mut arena, width, 60_000, &body);
        }
        assert_eq!(both(&arena, "tiles"), 0);
    }
    nothing_left(&session);
}

#[test]
fn deltas_in_all_orders_of_warps_without_a_race() {
    for order in ORDERS {
        let session = checked(order);
        {
            let mut random = Random::new(5);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            for (width, nullable) in [(4, false), (8, true)] {
                let shape = Shape {
                    values: Values::Fixed { width },
                    encoding: Encoding::DeltaBinaryPacked,
                    nullable,
                    valid: 200,
                    ..Shape::PLAIN
                };
                arena.column(shape, &[45, 1300], &mut random);
            }
            hostile(&mut arena);
            assert!(both(&arena, order) > 10);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// Streams of three values of four bytes that are not right, or odd.
fn hostile(arena: &mut Arena) {
    let head = |parts: [u64; 3]| {
        let mut out = Vec::new();
        for part in parts {
            varint(&mut out, part);
        }
        out
    };
    let mut bodies: Vec<Vec<u8>> = Vec::new();
    for parts in [
        [0, 4, 3],
        [127, 4, 3],
        [64, 1, 3],
        [128, 0, 3],
        [128, 8, 3],
        [128, 3, 3],
        [128, 256, 3],
        [1 << 31, 1 << 26, 3],
        [1 << 32 | 128, 4, 3],
        [u64::MAX, 1, 3],
        [128, 1 << 32 | 4, 3],
        [128, 4, 2],
        [128, 4, 0],
        [128, 4, 4],
        [128, 4, 1 << 32 | 3],
        [128, 4, u64::MAX],
        // These are right.
        [128, 4, 3],
        [1 << 30, 1 << 2, 3],
    ] {
        bodies.push([&head(parts)[..], &[6, 3, 2, 0, 0, 0, 0xe4]].concat());
    }
    let right = [0x80, 1, 4, 3];
    let after: [&[u8]; 16] = [
        // First values and least deltas at the ends of the type, and past them.
        &[0xfe, 0xff, 0xff, 0xff, 0x0f, 2, 0, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0, 0, 0, 0],
        &[0x80, 0x80, 0x80, 0x80, 0x10, 2, 0, 0, 0, 0],
        &[0x81, 0x80, 0x80, 0x80, 0x10, 2, 0, 0, 0, 0],
        &[2, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0],
        &[2, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0, 0],
        // Ten bytes, with bits past the 64th; eleven.
        &[
            0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7e, 2, 0, 0, 0, 0,
        ],
        &[
            0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 2, 0, 0, 0, 0,
        ],
        &[
            2, 0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 0, 0, 0, 0,
        ],
        &[
            2, 0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 0, 0, 0, 0,
        ],
        // Widths that the type has not; and of miniblocks that have no values, which are nothing.
        &[2, 2, 33, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[2, 2, 255, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[2, 2, 1, 255, 255, 255, 1],
        &[2, 2, 32, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        &[2, 2, 32, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1],
        &[2, 2, 0, 0, 0],
    ];
    bodies.extend(after.map(|after| [&right[..], after].concat()));
    // Cut everywhere.
    let whole = [&right[..], &[2, 3, 9, 0, 0, 0, 7, 8, 9]].concat();
    bodies.extend((0..whole.len()).map(|len| whole[..len].to_vec()));
    for body in bodies {
        page(arena, 4, 3, &body);
    }
    page(arena, 8, 3, &[0x80, 1, 4, 3, 2, 2, 65, 0, 0, 0]);
}

#[test]
fn what_is_wrong_with_a_stream_is_said() {
    let session = session("lazy");
    {
        let mut arena = Arena::default();
        hostile(&mut arena);
        // In a wide block the first that is wrong is the one that is told.
        let mut wide = Vec::new();
        for part in [1280, 40, 1281, 2, 2] {
            varint(&mut wide, part);
        }
        let widths = wide.len();
        wide.extend([1; 40]);
        wide.extend([0x5a; 160]);
        page(&mut arena, 4, 1281, &wide);
        for (mini, bits) in [(3, 40), (36, 33), (39, 2), (0, 32), (31, 32), (32, 32)] {
            let mut body = wide.clone();
            body[widths + mini] = bits;
            body[widths + 38] = 77;
            page(&mut arena, 4, 1281, &body);
        }
        // No stream has booleans or three bytes.
        page(&mut arena, 3, 1, &[0x80, 1, 4, 1, 2]);
        let column = arena.columns.last().unwrap().clone();
        arena.columns.push(Column {
            values: Values::Boolean,
            ..column
        });
        let faults = both(&arena, "hostile");
        assert!(faults > 30 && faults + 4 < arena.columns.len(), "{faults}");
        let outcomes = reference::columns(&arena.bytes, &arena.columns);
        for why in [
            check::DELTA_HEADER,
            check::DELTA_BLOCK,
            check::DELTA_COUNT,
            check::DELTA_RANGE,
            check::DELTA_WIDTH,
            check::DELTA_SHORT,
        ] {
            let is = |outcome: &HostOutcome| matches!(outcome, HostOutcome::Fault { check, .. } if *check == check::DELTA | why);
            assert!(outcomes.iter().any(is), "check {why}");
        }
    }
    nothing_left(&session);
}

#[test]
fn streams_with_changed_bytes_are_read_as_the_reference_does() {
    let session = session("eager");
    {
        let mut random = Random::new(6);
        let mut arena = Arena {
            gap: 2,
            ..Arena::default()
        };
        for at in 0..300 {
            let width = [4, 8][at % 2];
            let count = [20, 140, 300][at % 3];
            let layout = Layout {
                cut: true,
                ..Layout::any(width, &mut random)
            };
            let mut body = stream(&layout, count, &mut random);
            // Half of them where headers are.
            let end = if at % 4 < 2 { 16 } else { body.len() };
            let place = random.below(end.min(body.len()) as u64) as usize;
            body[place] ^= match random.below(2) {
                0 => 1 << random.below(8),
                _ => random.next() as u8,
            };
            page(&mut arena, width, count, &body);
        }
        let faults = both(&arena, "mutated");
        assert!(faults > 50 && faults < 270, "{faults}");
    }
    nothing_left(&session);
}
