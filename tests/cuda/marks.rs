//! Where tiles of large pages begin, from another time: it makes no difference, whatever it says, or is a fault.

use std::sync::Arc;

use feedwater::DeviceBytes;
use feedwater::cuda::columns::nested_reference::HostLeaf;
use feedwater::cuda::columns::reference::HostOutcome;
use feedwater::cuda::columns::{
    Convert, DeltaMarks, Encoding, LEAST_BYTES, LEAST_ROWS, Mark, Marks, Outcome, Values, check,
};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use software_cuda_preload::Session;

use crate::columns::on_the_host;
use crate::delta_strings;
use crate::kernels::{checked, put};
use crate::levels::{Nest, Written};
use crate::nesting::on_the_host_all;
use crate::pages::*;
use crate::support::*;
use crate::words::{KIND, Kind, column};

/// Kernels that follow pages from their beginnings.
const WALKS: [&str; 4] = ["walk", "strings_walk", "nesting_walk", "delta_walk"];
/// Those that begin at known places.
const KNOWN: [&str; 4] = [
    "walk_known",
    "strings_known",
    "nesting_known",
    "delta_known",
];

/// Columns and a leaf with large pages, and small ones between them.
fn written(style: Style, v1: bool) -> Written {
    let random = &mut Random::new(3);
    let mut written = Written::default();
    let nullable = Shape {
        nullable: true,
        valid: 230,
        style,
        v1,
        ..Shape::PLAIN
    };
    let arena = &mut written.arena;
    let indices = Shape {
        encoding: Encoding::Dictionary,
        bits: 9,
        ..nullable
    };
    arena.column(indices, &[LEAST_ROWS as usize, 300, 4800], random);
    // Levels of pages whose values are not followed.
    arena.column(nullable, &[4500], random);
    // Runs of bits are short: so many that they are more bytes.
    let flags = Shape {
        values: Values::Boolean,
        encoding: Encoding::Rle,
        style: Style::Mixed,
        ..nullable
    };
    arena.column(flags, &[15_000], random);
    let texts = Kind {
        encodings: &[Encoding::Plain, Encoding::Dictionary],
        nullable: true,
        valid: 230,
        style,
        v1,
        ..KIND
    };
    column(arena, texts, &[4600, 7000, 30], random);
    let deltas = Shape {
        encoding: Encoding::DeltaBinaryPacked,
        bits: 7,
        ..nullable
    };
    arena.column(deltas, &[5000, 70], random);
    let others = Shape {
        nullable: false,
        values: Values::Fixed { width: 8 },
        bits: 9,
        ..deltas
    };
    arena.column(others, &[4100], random);
    for encoding in [Encoding::DeltaLengthByteArray, Encoding::DeltaByteArray] {
        delta_strings::one(arena, encoding, &[4500, 20]);
    }
    let nest = Nest::list();
    written.leaf(
        &nest,
        Shape {
            v1,
            style,
            ..Shape::PLAIN
        },
        &[5000, 40, 4500],
        random,
    );
    written
}

/// What the device makes of all, and the marks that it found.
struct Made {
    flat: Vec<HostOutcome>,
    nested: Vec<HostLeaf>,
    marks: Vec<Option<Marks>>,
}

fn made(
    gpu: &Arc<Device>,
    there: &DeviceBytes,
    all: &Written,
    known: Option<&[Option<Arc<Marks>>]>,
) -> Made {
    let columns = &all.arena.columns;
    let (flat, nested, marks) = gpu
        .marked(there, columns, &all.leaves, u64::MAX, known)
        .unwrap();
    let flat = columns
        .iter()
        .zip(flat)
        .map(|(column, outcome)| match outcome {
            Outcome::Fault { page, check } => HostOutcome::Fault { page, check },
            Outcome::Large { bytes } => panic!("{bytes} bytes"),
            Outcome::Done(done) => on_the_host(gpu, column, done),
        });
    Made {
        flat: flat.collect(),
        nested: on_the_host_all(gpu, &all.leaves, nested),
        marks,
    }
}

fn shared(marks: Vec<Option<Marks>>) -> Vec<Option<Arc<Marks>>> {
    marks.into_iter().map(|marks| marks.map(Arc::new)).collect()
}

fn steps(session: &Session, kernels: &[&str]) -> u64 {
    kernels
        .iter()
        .map(|kernel| session.work(kernel).steps)
        .sum()
}

fn separate() -> Arc<Device> {
    let options = DeviceOptions::default().guard(Guard::Separate);
    options.open(0).unwrap()
}

#[test]
fn what_is_known_makes_no_difference() {
    for (style, v1) in [(Style::Groups, true), (Style::Mixed, false)] {
        let session = session("lazy");
        {
            let gpu = separate();
            let all = written(style, v1);
            let there = put(&gpu, &all.arena.bytes, 3);
            let plain = made(&gpu, &there, &all, None);
            assert!(plain.marks.iter().all(Option::is_none));
            let nothing = vec![None; all.arena.columns.len() + all.leaves.len()];
            let first = made(&gpu, &there, &all, Some(&nothing));
            assert!(first.flat == plain.flat && first.nested == plain.nested);
            let counts: Vec<_> = first
                .marks
                .iter()
                .map(|marks| marks.as_ref().map(Marks::count))
                .collect();
            assert_eq!(counts, [2, 1, 1, 2, 1, 1, 1, 1, 2].map(Some));
            let strings = first.marks[3].as_ref().unwrap();
            assert_eq!(strings.pages[0].values.len(), 5);
            // Of the second page the values are indices; the third is small.
            assert_eq!(strings.pages[2].levels.len(), 0);
            assert!(strings.memory() < 1000);
            assert!(first.marks[8].as_ref().unwrap().pages[0].repeats.len() >= 5);
            let before = (steps(&session, &WALKS), steps(&session, &KNOWN));
            let known = shared(first.marks);
            let second = made(&gpu, &there, &all, Some(&known));
            assert!(second.flat == plain.flat && second.nested == plain.nested);
            assert!(second.marks.iter().all(Option::is_none));
            if session.device() == software_cuda_preload::Device::Software {
                assert_eq!(before.1, 0);
                // `before` is of two times.
                let (walks, parts) = (steps(&session, &WALKS) - before.0, steps(&session, &KNOWN));
                assert!(walks * 8 < before.0, "{walks} after {}", before.0);
                assert!(parts > 0 && parts < before.0, "{parts}, {}", before.0);
            }
        }
        nothing_left(&session);
    }
}

/// Pages of these rows of each kind of marks, and small ones between them.
fn of_each_kind(pages: &[usize]) -> Written {
    let random = &mut Random::new(5);
    let mut written = Written::default();
    let indices = Shape {
        encoding: Encoding::Dictionary,
        bits: 9,
        nullable: true,
        valid: 230,
        style: Style::Mixed,
        ..Shape::PLAIN
    };
    written.arena.column(indices, pages, random);
    column(&mut written.arena, KIND, pages, random);
    delta_strings::one(&mut written.arena, Encoding::DeltaByteArray, pages);
    written.leaf(&Nest::list(), Shape::PLAIN, pages, random);
    written
}

/// Tables are copied to the device whole, and not for each page.
#[test]
fn marks_of_many_pages_are_copied_at_once() {
    let session = session("eager");
    if !is_software(&session) {
        return;
    }
    let large = LEAST_ROWS as usize;
    let calls = [
        vec![large, 30, large],
        vec![large, 30, large, 30, large, large, large],
    ]
    .map(|pages| {
        let gpu = Device::open(0).unwrap();
        let all = of_each_kind(&pages);
        let there = put(&gpu, &all.arena.bytes, 0);
        let nothing = vec![None; all.arena.columns.len() + all.leaves.len()];
        let first = made(&gpu, &there, &all, Some(&nothing));
        let known = shared(first.marks);
        assert!(known.iter().all(Option::is_some));
        // Pages of strings take arrays of their own, whose memory is there by then.
        let again = || {
            gpu.marked(
                &there,
                &all.arena.columns,
                &all.leaves,
                u64::MAX,
                Some(&known),
            )
            .unwrap()
        };
        drop(again());
        let before = session.counts().calls;
        let made = again();
        let calls = session.counts().calls - before;
        drop(made);
        calls
    });
    assert_eq!(calls[0], calls[1]);
    nothing_left(&session);
}

/// A large page of each kind of marks.
fn few() -> Written {
    let random = &mut Random::new(4);
    let mut written = Written::default();
    let rows = LEAST_ROWS as usize;
    let indices = Shape {
        encoding: Encoding::Dictionary,
        bits: 9,
        nullable: true,
        valid: 230,
        style: Style::Mixed,
        ..Shape::PLAIN
    };
    written.arena.column(indices, &[rows], random);
    column(&mut written.arena, KIND, &[rows], random);
    delta_strings::one(&mut written.arena, Encoding::DeltaByteArray, &[rows]);
    written.leaf(&Nest::list(), Shape::PLAIN, &[rows], random);
    written
}

/// Any marks, and those of other bytes: the same values, or a fault. Bounds and unwritten memory are looked at.
#[test]
fn whatever_is_known_it_is_the_same_or_a_fault() {
    let session = checked("shuffled:7");
    {
        let gpu = separate();
        let mut all = few();
        let there = put(&gpu, &all.arena.bytes, 0);
        let nothing = vec![None; all.arena.columns.len() + all.leaves.len()];
        let right = made(&gpu, &there, &all, Some(&nothing));
        let random = &mut Random::new(9);
        let mut faults = 0;
        for round in 0..5 {
            let mut marks = right.marks.clone();
            for marks in marks.iter_mut().flatten() {
                for page in &mut marks.pages {
                    for stream in [&mut page.levels, &mut page.repeats, &mut page.values] {
                        if stream.is_empty() || random.below(2) == 0 {
                            continue;
                        }
                        let at = random.below(stream.len() as u64) as usize;
                        let other = random.below(stream.len() as u64) as usize;
                        match (round, random.below(3)) {
                            (0, _) => stream[at].byte = u32::MAX - random.below(9) as u32,
                            (1, _) => stream[at].skip = u32::MAX - random.below(9) as u32,
                            (2, _) => stream.swap(at, other),
                            (3, _) => stream.iter_mut().for_each(|mark| *mark = Mark::default()),
                            (_, 0) => stream[at].byte ^= 1 << random.below(14),
                            (_, 1) => stream[at].skip ^= 1 << random.below(11),
                            _ => stream.truncate(at),
                        }
                    }
                    for stream in &mut page.deltas {
                        if random.below(2) == 0 {
                            continue;
                        }
                        lie(stream, round, random);
                    }
                }
            }
            let known = made(&gpu, &there, &all, Some(&shared(marks)));
            faults += differing(&known, &right);
        }
        assert!(faults > 5, "{faults}");
        // The bytes changed, and what is known did not: never other values than those that are there.
        let known = shared(right.marks);
        let mut changed = 0;
        for _ in 0..3 {
            let bytes = &mut all.arena.bytes;
            let kept = bytes.clone();
            for _ in 0..12 {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            let there = put(&gpu, &all.arena.bytes, 0);
            let right = made(&gpu, &there, &all, None);
            let now = made(&gpu, &there, &all, Some(&known));
            changed += differing(&now, &right);
            all.arena.bytes = kept;
        }
        assert!(changed < 3 * 4, "{changed}");
    }
    nothing_left(&session);
    assert_eq!(session.counts().findings, 0);
}

/// Of pages whose levels are longer than they are nothing is looked at that only others have, whether it is known where their tiles begin or not.
#[test]
fn of_pages_whose_levels_are_wrong_nothing_else_is_read() {
    let session = checked("in-order");
    {
        let gpu = separate();
        let random = &mut Random::new(8);
        let rows = LEAST_ROWS as usize;
        let mut all = Written {
            arena: delta_strings::few(rows),
            ..Written::default()
        };
        let arena = &mut all.arena;
        for encoding in [Encoding::Dictionary, Encoding::DeltaBinaryPacked] {
            for convert in [Convert::Same, Convert::Widen { to: 8 }] {
                let shape = Shape {
                    encoding,
                    convert,
                    bits: 9,
                    nullable: true,
                    valid: 230,
                    ..Shape::PLAIN
                };
                arena.column(shape, &[30, rows, 40], random);
            }
        }
        let texts = Kind {
            nullable: true,
            valid: 230,
            ..KIND
        };
        column(arena, texts, &[rows, 40], random);
        all.leaf(&Nest::list(), Shape::PLAIN, &[40, rows], random);
        let there = put(&gpu, &all.arena.bytes, 0);
        let nothing = vec![None; all.arena.columns.len() + all.leaves.len()];
        let known = shared(made(&gpu, &there, &all, Some(&nothing)).marks);
        assert!(known.iter().all(Option::is_some));
        let leaves = all.leaves.iter().map(|nested| &nested.leaf);
        for page in all
            .arena
            .columns
            .iter()
            .chain(leaves)
            .flat_map(|column| &column.pages)
        {
            // The length of levels that the page begins with.
            all.arena.bytes[page.body.start as usize + 3] = 0x7f;
        }
        let there = put(&gpu, &all.arena.bytes, 0);
        for known in [None, Some(&nothing), Some(&known)] {
            let made = made(&gpu, &there, &all, known.map(Vec::as_slice));
            for found in made.flat {
                assert!(matches!(
                    found,
                    HostOutcome::Fault {
                        page: 0,
                        check: check::LEVELS_LENGTH
                    }
                ));
            }
            assert!(matches!(made.nested[0], HostLeaf::Fault { page: 0, .. }));
        }
    }
    nothing_left(&session);
    assert_eq!(session.findings(), Vec::<String>::new());
}

/// Says something else of where tiles of deltas begin.
fn lie(stream: &mut DeltaMarks, round: u64, random: &mut Random) {
    let at = random.below(stream.tiles.len() as u64) as usize;
    let other = random.below(stream.tiles.len() as u64) as usize;
    let tile = &mut stream.tiles[at];
    let any = random.next() as u32;
    match (round, random.below(6)) {
        (0, _) => tile.data = u32::MAX - any % 9,
        (1, _) => tile.widths = u32::MAX - any % 9,
        (2, _) => stream.tiles.swap(at, other),
        (3, _) => tile.mini = any,
        (_, 0) => tile.skip = any % 32,
        (_, 1) => tile.least ^= 1 << (any % 64),
        (_, 2) => tile.mini ^= 1 << (any % 3),
        (_, 3) => tile.data ^= 1 << (any % 12),
        (_, 4) => stream.end = any >> (any % 32),
        _ => stream.tiles.truncate(at),
    }
}

/// The same of deltas that go to rows, where tiles of values are others than those of rows: of values that may be in two tiles, either may be
/// wrong.
#[test]
fn whatever_is_known_of_deltas_of_rows_it_is_the_same_or_a_fault() {
    let session = checked("shuffled:5");
    {
        let gpu = separate();
        let random = &mut Random::new(11);
        let mut all = Written::default();
        for (width, valid, convert) in [
            (8, 200, Convert::Same),
            (4, 140, Convert::Widen { to: 16 }),
            (8, 256, Convert::Part { offset: 0, len: 3 }),
            (4, 256, Convert::Same),
        ] {
            let shape = Shape {
                values: Values::Fixed { width },
                encoding: Encoding::DeltaBinaryPacked,
                bits: 17,
                nullable: valid < 256,
                valid,
                convert,
                ..Shape::PLAIN
            };
            all.arena.column(shape, &[6500, 30, 4200], random);
        }
        let there = put(&gpu, &all.arena.bytes, 1);
        let right = made(&gpu, &there, &all, Some(&[None, None, None, None]));
        assert!(
            right
                .flat
                .iter()
                .all(|one| !matches!(one, HostOutcome::Fault { .. }))
        );
        let (mut faults, mut lies) = (0, 0);
        for round in 0..20 {
            let mut marks = right.marks.clone();
            for marks in marks.iter_mut().flatten() {
                let pages = marks.pages.iter_mut();
                for stream in pages.flat_map(|page| &mut page.deltas) {
                    if random.below(3) == 0 {
                        lie(stream, round, random);
                        lies += 1;
                    }
                }
            }
            let known = made(&gpu, &there, &all, Some(&shared(marks)));
            faults += differing(&known, &right);
        }
        assert!(faults > 10 && lies > 30, "{faults} of {lies}");
    }
    nothing_left(&session);
    assert_eq!(session.findings(), Vec::<String>::new());
}

/// How many are faults; fails if one is anything else than that, or the same.
fn differing(found: &Made, right: &Made) -> usize {
    let mut faults = 0;
    for (found, right) in found.flat.iter().zip(&right.flat) {
        let is_fault = matches!(found, HostOutcome::Fault { .. });
        assert!(is_fault || found == right);
        faults += usize::from(is_fault);
    }
    for (found, right) in found.nested.iter().zip(&right.nested) {
        let is_fault = matches!(found, HostLeaf::Fault { .. });
        assert!(is_fault || found == right);
        faults += usize::from(is_fault);
    }
    faults
}

/// What is small is walked over in no time, and takes no memory.
#[test]
fn marks_are_of_large_pages() {
    let session = session("eager");
    {
        let gpu = separate();
        let random = &mut Random::new(3);
        let mut all = Written::default();
        column(&mut all.arena, KIND, &[LEAST_ROWS as usize - 1], random);
        let few = Shape {
            nullable: true,
            valid: 256,
            style: Style::Repeats,
            encoding: Encoding::Dictionary,
            bits: 1,
            ..Shape::PLAIN
        };
        all.arena.column(few, &[LEAST_ROWS as usize * 2], random);
        let body = &all.arena.columns[1].pages[0].body;
        assert!(body.end - body.start < LEAST_BYTES);
        let there = put(&gpu, &all.arena.bytes, 0);
        let made = made(&gpu, &there, &all, Some(&[None, None]));
        assert!(made.marks.iter().all(Option::is_none));
    }
    nothing_left(&session);
}
