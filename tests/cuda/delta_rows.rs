//! Deltas of columns whose rows can be null, or whose values are converted: each value is written to its row when it is made. Beside the scalar
//! reference, the sums by both ways.

use std::sync::Arc;

use feedwater::cuda::columns::reference::{self, HostOutcome};
use feedwater::cuda::columns::{Column, Convert, Encoding, Page, Values, check};
use feedwater::cuda::{Device, DeviceOptions, Guard};

use crate::columns::compare;
use crate::delta::both;
use crate::kernels::{ORDERS, checked};
use crate::pages::*;
use crate::support::*;

/// Conversions of integers, by their width.
const CONVERSIONS: [(u32, Convert); 14] = [
    (4, Convert::Same),
    (8, Convert::Same),
    (4, Convert::Part { offset: 0, len: 1 }),
    (4, Convert::Part { offset: 0, len: 2 }),
    (4, Convert::Part { offset: 1, len: 3 }),
    (8, Convert::Part { offset: 2, len: 6 }),
    (4, Convert::Widen { to: 4 }),
    (4, Convert::Widen { to: 8 }),
    (4, Convert::Widen { to: 32 }),
    (8, Convert::Widen { to: 8 }),
    (8, Convert::Widen { to: 16 }),
    (4, Convert::WidenBigEndian { to: 16 }),
    (8, Convert::WidenBigEndian { to: 8 }),
    (4, Convert::DaysToMilliseconds),
];

/// A page by which rows are not null, with a stream of that many values or of another number.
struct Rows {
    valid: Vec<u32>,
    stream: Vec<u8>,
    v1: bool,
    /// Version 2: what the header says, if it is not so.
    nulls: Option<u64>,
}

impl Rows {
    fn new(width: u32, valid: Vec<u32>, v1: bool, random: &mut Random) -> Self {
        let count = valid.iter().sum::<u32>() as usize;
        Rows {
            stream: stream(&Layout::any(width, random), count, random),
            valid,
            v1,
            nulls: None,
        }
    }
}

fn column(
    arena: &mut Arena,
    (width, convert): (u32, Convert),
    pages: &[Rows],
    random: &mut Random,
) {
    let pages = pages.iter().map(|page| {
        let style = STYLES[random.below(4) as usize];
        let levels = hybrid(&page.valid, 1, style, random);
        let len = levels.len() as u32;
        let head = len.to_le_bytes();
        let head: &[u8] = if page.v1 { &head } else { &[] };
        let nulls = page.valid.iter().filter(|valid| **valid == 0).count();
        Page {
            body: arena.push(&[head, &levels, &page.stream].concat()),
            v1: page.v1,
            def_len: len,
            entries: page.valid.len() as u64,
            nulls: (!page.v1).then(|| page.nulls.unwrap_or(nulls as u64)),
            encoding: Encoding::DeltaBinaryPacked,
        }
    });
    let pages = pages.collect();
    arena.columns.push(Column {
        values: Values::Fixed { width },
        nullable: true,
        dictionary: None,
        pages,
        convert,
    });
}

/// Which of so many rows are not null, of 256.
fn chance(rows: usize, valid: u64, random: &mut Random) -> Vec<u32> {
    let valid = (0..rows).map(|_| u32::from(random.below(256) < valid));
    valid.collect()
}

#[test]
fn every_length_with_all_some_and_no_values() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let mut random = Random::new(1);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            let lengths = [
                0, 1, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 2048, 3100,
            ];
            let mut number = 0;
            for rows in lengths {
                for valid in [0, 3, 128, 200, 256] {
                    number += 1;
                    let kind = CONVERSIONS[number % 2];
                    let valid = chance(rows, valid, &mut random);
                    let page = Rows::new(kind.0, valid, number % 3 == 0, &mut random);
                    column(&mut arena, kind, &[page], &mut random);
                }
            }
            assert_eq!(both(&arena, streams), 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn every_conversion_with_pages_that_begin_anywhere() {
    let session = session("eager");
    {
        let mut random = Random::new(2);
        let mut arena = Arena {
            gap: 3,
            ..Arena::default()
        };
        for (number, kind) in CONVERSIONS.into_iter().enumerate() {
            let lengths = [7, 1100, 37, 700, 2];
            let pages = lengths.map(|rows| {
                let valid = chance(rows, 180, &mut random);
                Rows::new(kind.0, valid, number % 2 == 0, &mut random)
            });
            column(&mut arena, kind, &pages, &mut random);
            // No row can be null, and values are converted.
            let shape = Shape {
                values: Values::Fixed { width: kind.0 },
                encoding: Encoding::DeltaBinaryPacked,
                convert: kind.1,
                ..Shape::PLAIN
            };
            arena.column(shape, &[1, 1050, 33], &mut random);
        }
        assert_eq!(both(&arena, "conversions"), 0);
    }
    nothing_left(&session);
}

/// Rows of one tile have values of two, and the other way round; and whole tiles of rows have none.
#[test]
fn tiles_of_rows_and_of_values_begin_at_different_places() {
    let session = session("eager");
    {
        let mut random = Random::new(3);
        let mut arena = Arena::default();
        for kind in [CONVERSIONS[0], CONVERSIONS[1], CONVERSIONS[10]] {
            let spread = [
                // Values behind rows without any, between them, and in front of them.
                [vec![0; 5000], vec![1; 3000], vec![0; 4000], vec![1; 20]].concat(),
                [vec![1; 1000], vec![0; 3100], vec![1; 1000], vec![0; 90]].concat(),
                // One in a hundred; and one null in a hundred.
                chance(9000, 3, &mut random),
                chance(9000, 253, &mut random),
                // The first row alone, and the last.
                [vec![1], vec![0; 4094], vec![1]].concat(),
                [vec![0; 4096], vec![1]].concat(),
                // A word of rows, then none, by turns.
                (0..6000).map(|row| row / 32 % 2).collect(),
            ];
            for valid in spread {
                let page = Rows::new(kind.0, valid, true, &mut random);
                column(&mut arena, kind, &[page], &mut random);
            }
        }
        assert_eq!(both(&arena, "places"), 0);
    }
    nothing_left(&session);
}

/// Streams of fewer or more values than levels tell of, and headers that tell of other nulls.
#[test]
fn streams_and_levels_that_do_not_agree() {
    for order in ORDERS {
        let session = checked(order);
        {
            let mut random = Random::new(4);
            let mut arena = Arena {
                gap: 1,
                ..Arena::default()
            };
            let kind = CONVERSIONS[1];
            let mut add = |rows: usize, values: usize, v1, nulls: Option<u64>| {
                let valid = (0..rows).map(|row| u32::from(row % 3 > 0)).collect();
                let layout = Layout::any(kind.0, &mut random);
                let page = Rows {
                    valid,
                    stream: stream(&layout, values, &mut random),
                    v1,
                    nulls,
                };
                column(&mut arena, kind, &[page], &mut random);
            };
            for v1 in [true, false] {
                // 800 are wanted: fewer are too few, and more than there are rows are too many.
                for values in [0, 1, 799, 800, 801, 1200, 1201, 3000] {
                    add(1201, values, v1, None);
                }
            }
            add(1201, 800, false, Some(400));
            add(1201, 800, false, Some(0));
            add(1201, 800, false, Some(1201));
            let outcomes = reference::columns(&arena.bytes, &arena.columns);
            let faults = |why: u32| {
                let is = |outcome: &&HostOutcome| matches!(outcome, HostOutcome::Fault { check, .. } if *check == why);
                outcomes.iter().filter(is).count()
            };
            let counts = faults(check::DELTA | check::DELTA_COUNT);
            assert_eq!((counts, faults(check::NULLS)), (8, 3));
            assert_eq!(both(&arena, order), 11);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// Any byte of a page may be another.
#[test]
fn pages_with_changed_bytes() {
    let session = session("eager");
    {
        let mut random = Random::new(5);
        let mut arena = Arena {
            gap: 2,
            ..Arena::default()
        };
        for number in 0..200 {
            let kind = CONVERSIONS[number % 2];
            let valid = chance([40, 200, 1100][number % 3], 200, &mut random);
            let page = Rows::new(kind.0, valid, number % 4 < 2, &mut random);
            column(&mut arena, kind, &[page], &mut random);
            let body = arena.columns[number].pages[0].body.clone();
            let end = if number % 2 == 0 { 40 } else { u64::MAX };
            let at = body.start + random.below(end.min(body.end - body.start));
            arena.bytes[at as usize] ^= 1 << random.below(8);
        }
        let faults = both(&arena, "changed");
        assert!(faults > 20 && faults < 180, "{faults}");
    }
    nothing_left(&session);
}

/// One block goes from tile to tile; what it had of the one before is not seen in the next.
#[test]
fn few_blocks() {
    for (blocks, order) in [(1, "shuffled:3"), (2, "apart")] {
        let session = checked(order);
        for tensor in [false, true] {
            let options = DeviceOptions::default().guard(Guard::Separate);
            let gpu: Arc<Device> = options.blocks(blocks).tensor_sums(tensor).open(0).unwrap();
            let mut random = Random::new(6);
            let mut arena = Arena::default();
            for kind in [CONVERSIONS[0], CONVERSIONS[1], CONVERSIONS[8]] {
                let pages = [2500, 40, 1030, 3].map(|rows| {
                    let valid = chance(rows, 150, &mut random);
                    Rows::new(kind.0, valid, true, &mut random)
                });
                column(&mut arena, kind, &pages, &mut random);
            }
            assert_eq!(compare(&gpu, &arena, order), 0);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}
