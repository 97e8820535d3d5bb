//! Kernels of nested leaves beside their scalar reference, and what they make of levels that are not right.

use std::sync::Arc;

use feedwater::cuda::columns::nested_reference::{self, HostLeaf};
use feedwater::cuda::columns::reference;
use feedwater::cuda::columns::{
    Convert, Encoding, List, Nested, NestedOutcome, Offsets, Outcome, Uneven, Values, check,
};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::{DeviceBytes, ErrorKind};
use software_cuda_preload::Session;

use crate::columns::{on_the_host, trimmed};
use crate::kernels::{ORDERS, checked, put};
use crate::levels::*;
use crate::pages::*;
use crate::support::*;
use crate::words::{KIND, Kind, Words};

/// What the device makes of leaves, as the reference has it.
fn on_the_device(gpu: &Device, arena: &DeviceBytes, leaves: &[Nested]) -> Vec<HostLeaf> {
    let (flat, outcomes) = gpu.nested(arena, &[], leaves, u64::MAX).unwrap();
    assert!(flat.is_empty());
    on_the_host_all(gpu, leaves, outcomes)
}

/// What it made of them, as the reference has it.
pub(crate) fn on_the_host_all(
    gpu: &Device,
    leaves: &[Nested],
    outcomes: Vec<NestedOutcome>,
) -> Vec<HostLeaf> {
    assert_eq!(outcomes.len(), leaves.len());
    let host = |bytes: &DeviceBytes| gpu.to_host(bytes).unwrap();
    let of = |(nested, outcome): (&Nested, NestedOutcome)| {
        let leaf = match outcome {
            NestedOutcome::Fault { page, check } => return HostLeaf::Fault { page, check },
            NestedOutcome::Large { bytes } => panic!("{bytes} bytes"),
            NestedOutcome::Done(leaf) => leaf,
        };
        let numbers = |(list, offsets): (&List, Option<DeviceBytes>)| {
            let bytes = host(&offsets?);
            let width = match list.offsets {
                Offsets::Small => 4,
                _ => 8,
            };
            let number = |bytes: &[u8]| {
                let mut word = [0; 8];
                word[..width].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            };
            Some(bytes.chunks_exact(width).map(number).collect())
        };
        let slots = leaf.slots.clone();
        let of_leaf = leaf.values.rows;
        assert_eq!(slots.last(), Some(&of_leaf));
        let valid = nested.levels.valid.iter().zip(leaf.valid);
        HostLeaf::Done {
            values: on_the_host(gpu, &nested.leaf, leaf.values),
            offsets: nested
                .levels
                .lists
                .iter()
                .zip(leaf.offsets)
                .map(numbers)
                .collect(),
            valid: valid
                .map(|(valid, (bits, nulls))| {
                    (trimmed(host(&bits), slots[valid.depth as usize]), nulls)
                })
                .collect(),
            slots,
        }
    };
    leaves.iter().zip(outcomes).map(of).collect()
}

/// Compares all leaves; those that are faults are counted.
pub(crate) fn compare(gpu: &Arc<Device>, written: &Written, what: &str) -> usize {
    let bytes = &written.arena.bytes;
    let offset = bytes.len().next_multiple_of(256) - bytes.len();
    let there = put(gpu, bytes, offset);
    let found = on_the_device(gpu, &there, &written.leaves);
    let wanted = nested_reference::nested(bytes, &written.leaves);
    for ((leaf, found), wanted) in written.leaves.iter().zip(&found).zip(&wanted) {
        assert!(
            found == wanted,
            "{what}: {leaf:?}\nis {}\nnot {}",
            short(found),
            short(wanted)
        );
    }
    let faults = wanted
        .iter()
        .filter(|outcome| matches!(outcome, HostLeaf::Fault { .. }));
    faults.count()
}

fn short(outcome: &HostLeaf) -> String {
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

const EIGHT: Shape = Shape {
    values: Values::Fixed { width: 8 },
    bits: 5,
    ..Shape::PLAIN
};

/// Values that take different ways through the kernels.
fn ways() -> Vec<Shape> {
    use Encoding::{ByteStreamSplit, DeltaBinaryPacked, Dictionary, Rle};
    let of = |values, encoding, style, v1| Shape {
        values,
        encoding,
        style,
        v1,
        ..EIGHT
    };
    let eight = EIGHT.values;
    vec![
        of(eight, Encoding::Plain, Style::Groups, true),
        of(eight, Dictionary, Style::Mixed, false),
        of(eight, ByteStreamSplit, Style::Repeats, true),
        of(Values::Boolean, Encoding::Plain, Style::Mixed, false),
        of(Values::Boolean, Rle, Style::Groups, true),
        Shape {
            values: Values::Fixed { width: 3 },
            convert: Convert::WidenBigEndian { to: 8 },
            ..of(eight, Encoding::Plain, Style::Cut, false)
        },
        of(eight, DeltaBinaryPacked, Style::Groups, true),
        Shape {
            values: Values::Fixed { width: 4 },
            convert: Convert::Widen { to: 16 },
            ..of(eight, DeltaBinaryPacked, Style::Mixed, false)
        },
    ]
}

/// Values of any length that do.
fn texts() -> Vec<Kind> {
    use Encoding::{Dictionary, Plain};
    let of = |encodings, words, large, v1| Kind {
        encodings,
        words,
        large,
        v1,
        ..KIND
    };
    vec![
        of(&[Plain], Words::Unicode, false, true),
        of(&[Plain], Words::Bytes, true, false),
        of(&[Dictionary], Words::Unicode, false, false),
        of(&[Dictionary, Plain], Words::Ascii, true, true),
        Kind {
            convert: Convert::Indices { to: 4 },
            ..of(&[Dictionary], Words::Unicode, false, true)
        },
        Kind {
            convert: Convert::WidenBigEndian { to: 16 },
            ..of(&[Plain, Dictionary], Words::Short(16), false, false)
        },
    ]
}

#[test]
fn all_kinds_of_nesting_and_of_strings() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = separate();
            let mut random = Random::new(31);
            let mut written = Written::default();
            written.arena.gap = 3;
            for (number, nest) in nests().iter().enumerate() {
                for (turn, kind) in texts().into_iter().enumerate() {
                    let style = STYLES[(number + turn) % 4];
                    let kind = Kind { style, ..kind };
                    written.words(nest, kind, &[40, 1, 90, 3], &mut random);
                }
            }
            assert_eq!(compare(&gpu, &written, streams), 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn strings_of_all_lengths_around_words_and_tiles() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut random = Random::new(32);
        let mut written = Written::default();
        written.arena.gap = 1;
        for (number, nest) in nests().iter().enumerate() {
            let kind = texts()[number % 6];
            for entries in [0usize, 1, 32, 33, 1023, 1025] {
                written.words(nest, kind, &[entries], &mut random);
            }
            written.words(nest, kind, &[1, 31, 2, 1023, 7, 1025], &mut random);
            written.words(nest, kind, &[], &mut random);
        }
        assert_eq!(compare(&gpu, &written, "lengths"), 0);
    }
    nothing_left(&session);
}

/// Bytes of pages of strings changed by chance, and dictionaries that are not UTF-8.
#[test]
fn mutated_pages_of_strings() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(33);
        let nests = nests();
        let mut faults = 0;
        for round in 0..60 {
            let mut written = Written::default();
            written.arena.gap = 1;
            let nest = &nests[round % nests.len()];
            written.words(nest, texts()[round % 6], &[40, 70], &mut random);
            let leaf = &written.leaves[0].leaf;
            let mut ranges: Vec<_> = leaf.pages.iter().map(|page| page.body.clone()).collect();
            ranges.extend(leaf.dictionary.iter().map(|(range, _)| range.clone()));
            for _ in 0..1 + random.below(2) {
                let range = &ranges[random.below(ranges.len() as u64) as usize];
                if !range.is_empty() {
                    let at = range.start + random.below(range.end - range.start);
                    let byte = &mut written.arena.bytes[at as usize];
                    *byte = match random.below(3) {
                        0 => random.next() as u8,
                        1 => *byte ^ 1 << random.below(8),
                        _ => [0, 1, 2, 3, 0x7f, 0x80, 0xff][random.below(7) as usize],
                    };
                }
            }
            faults += compare(&gpu, &written, &format!("round {round}"));
        }
        assert!(faults > 10 && faults < 55, "{faults}");
    }
    nothing_left(&session);
}

/// Bytes that are known when lengths were read.
#[test]
fn strings_in_lists_are_too_large() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(34);
        let mut written = Written::default();
        written.words(&Nest::list(), KIND, &[500], &mut random);
        written.leaf(&Nest::list(), EIGHT, &[50], &mut random);
        let there = put(&gpu, &written.arena.bytes, 0);
        let decode = |most| gpu.nested(&there, &[], &written.leaves, most).unwrap().1;
        let all = match &decode(u64::MAX)[..] {
            [NestedOutcome::Done(leaf), NestedOutcome::Done(_)] => leaf.values.values.len() as u64,
            other => panic!("{other:?}"),
        };
        assert!(all > 0);
        assert!(matches!(
            decode(all)[..],
            [NestedOutcome::Done(_), NestedOutcome::Done(_)]
        ));
        let large = decode(all - 1);
        assert!(
            matches!(&large[..], [NestedOutcome::Large { bytes }, NestedOutcome::Done(_)] if *bytes == all),
            "{large:?}"
        );
    }
    nothing_left(&session);
}

#[test]
fn all_kinds_of_nesting_and_of_values() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = separate();
            let mut random = Random::new(21);
            let mut written = Written::default();
            written.arena.gap = 3;
            for (number, nest) in nests().iter().enumerate() {
                for (turn, shape) in ways().into_iter().enumerate() {
                    let style = STYLES[(number + turn) % 4];
                    let shape = Shape { style, ..shape };
                    written.leaf(nest, shape, &[40, 1, 90, 3], &mut random);
                }
            }
            assert_eq!(compare(&gpu, &written, streams), 0);
        }
        nothing_left(&session);
    }
}

/// The device fills the offset of a leaf without pages, which nobody asks a number of: that it could not is told all the same.
#[test]
fn a_wait_for_a_leaf_without_pages_that_fails_is_told() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = separate();
        let mut written = Written::default();
        written.leaf(&Nest::list(), ways()[0], &[], &mut Random::new(24));
        assert!(written.leaves[0].leaf.pages.is_empty());
        let arena = put(&gpu, b"no pages", 0);
        let nested = || gpu.nested(&arena, &[], &written.leaves, u64::MAX);
        let (calls, waits) = (session.counts().calls, session.counts().waits);
        let done = nested().unwrap();
        assert_eq!(session.counts().waits - waits, 1);
        let calls = session.counts().calls - calls;
        drop(done);
        let told = (0..calls).filter(|call| {
            session.fail_call(*call, 1);
            let error = nested().err();
            session.fail_nothing();
            error.is_some_and(|error| error.to_string().contains("cuStreamSynchronize"))
        });
        assert_eq!(told.count(), 1);
    }
    nothing_left(&session);
}

#[test]
fn all_lengths_around_words_and_tiles() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut random = Random::new(22);
        let mut written = Written::default();
        written.arena.gap = 1;
        for (number, nest) in nests().iter().enumerate() {
            let shape = ways()[number % 8];
            for entries in [0usize, 1, 31, 32, 33, 1023, 1024, 1025, 2049] {
                written.leaf(nest, shape, &[entries], &mut random);
            }
            // Pages end inside of lists where they may, and some have no row at all.
            written.leaf(nest, shape, &[1, 31, 2, 1023, 7, 1025], &mut random);
            written.leaf(nest, shape, &[], &mut random);
        }
        assert_eq!(compare(&gpu, &written, "lengths"), 0);
    }
    nothing_left(&session);
}

#[test]
fn rows_of_many_pages_and_pages_of_many_rows() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut random = Random::new(23);
        let mut written = Written::default();
        let pages: Vec<usize> = (0..150).map(|page| page * 7 % 90 + 1).collect();
        for nest in nests() {
            let long = Nest {
                more: if nest.lists.len() == 1 { 250 } else { 180 },
                ..nest.clone()
            };
            let v1 = Shape { v1: true, ..EIGHT };
            written.leaf(&long, v1, &pages, &mut random);
            written.leaf(&nest, v1, &[9000], &mut random);
        }
        assert_eq!(compare(&gpu, &written, "many"), 0);
    }
    nothing_left(&session);
}

#[test]
fn all_null_and_nothing_null() {
    let session = session("eager");
    {
        let gpu = separate();
        let mut random = Random::new(24);
        let mut written = Written::default();
        for nest in nests() {
            for there in [0, 256] {
                for style in [Style::Repeats, Style::Groups] {
                    let nest = Nest {
                        there,
                        ..nest.clone()
                    };
                    let shape = Shape { style, ..EIGHT };
                    written.leaf(&nest, shape, &[1400, 40], &mut random);
                }
            }
        }
        assert_eq!(compare(&gpu, &written, "nulls"), 0);
    }
    nothing_left(&session);
}

#[test]
fn all_orders_of_warps_without_a_race() {
    for order in ORDERS {
        let session = checked(order);
        {
            let gpu = separate();
            let mut random = Random::new(25);
            let mut written = Written::default();
            written.arena.gap = 1;
            for (number, nest) in nests().iter().enumerate() {
                written.leaf(nest, ways()[number % 8], &[45, 1060], &mut random);
                if number % 4 == 0 {
                    let kind = texts()[number / 4 % 6];
                    written.words(nest, kind, &[45, 1060], &mut random);
                }
            }
            hostile(&mut written);
            assert!(compare(&gpu, &written, order) > 10);
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// A leaf of these pages, each of repetition and definition levels, and as many values as the second say.
fn pages_of(written: &mut Written, nest: &Nest, v1: bool, pages: &[(&[u32], &[u32])]) {
    let mut random = Random::new(1);
    let pages: Vec<(Vec<u32>, Vec<u32>)> = pages
        .iter()
        .map(|(reps, defs)| (reps.to_vec(), defs.to_vec()))
        .collect();
    let shape = Shape { v1, ..EIGHT };
    written.pages(nest, shape, &pages, &mut random);
}

/// Levels that are not right, one way each.
fn hostile(written: &mut Written) {
    let list = Nest::list();
    let deep = Nest::lists(2);
    let good: (&[u32], &[u32]) = (&[0, 1, 0], &[3, 3, 0]);
    // Rows begin with a list that goes on, or a page of version 2 does.
    pages_of(written, &list, true, &[(&[1, 1, 0], &[3, 3, 0])]);
    pages_of(written, &list, true, &[good, (&[1, 1, 0], &[3, 3, 0])]);
    pages_of(written, &list, false, &[good, (&[1, 1, 0], &[3, 3, 0])]);
    // A null and an empty list go on; and one that is right does, in the next page.
    pages_of(written, &list, true, &[(&[0, 1], &[0, 3])]);
    pages_of(written, &list, true, &[(&[0, 1], &[1, 3])]);
    pages_of(written, &list, true, &[(&[0], &[3]), (&[1, 0], &[2, 0])]);
    pages_of(written, &list, true, &[(&[0], &[1]), (&[1, 0], &[3, 0])]);
    // An item that is none.
    pages_of(written, &list, true, &[good, (&[0, 1], &[3, 1])]);
    // Levels that are too high for their bits to tell.
    pages_of(written, &deep, true, &[(&[0, 3], &[5, 5])]);
    pages_of(written, &deep, true, &[(&[0, 2], &[5, 7])]);
    pages_of(written, &deep, true, &[(&[0, 2], &[3, 5])]);
    pages_of(written, &deep, true, &[(&[0, 1], &[2, 5])]);
    // Fixed-size lists: too short, too long, empty, the last of them, and null ones.
    let fixed = Nest::fixed(2);
    for (reps, defs) in [
        (&[0, 1, 0, 1][..], &[3, 2, 3, 3][..]),
        (&[0, 0, 1], &[3, 3, 3]),
        (&[0, 1, 1, 0, 1], &[3, 3, 3, 3, 3]),
        (&[0, 1, 0], &[3, 3, 3]),
        (&[0, 0, 1], &[1, 3, 3]),
        (&[0, 0, 1, 0], &[0, 3, 3, 0]),
    ] {
        pages_of(written, &fixed, true, &[(reps, defs)]);
    }
    // Fixed-size lists of lists, one null.
    let mut outer = Nest::lists(2);
    outer.lists[0].offsets = Offsets::Fixed { size: 2 };
    pages_of(written, &outer, true, &[(&[0, 1, 0, 1], &[5, 5, 3, 2])]);
    pages_of(written, &outer, true, &[(&[0, 1, 0], &[5, 5, 0])]);
    pages_of(written, &outer, true, &[(&[0, 1, 0], &[5, 5, 5])]);
    // Other rows, more slots, and other nulls than there should be.
    pages_of(written, &list, true, &[good]);
    written.leaves.last_mut().unwrap().levels.rows += 1;
    pages_of(written, &list, true, &[good]);
    written.leaves.last_mut().unwrap().levels.most = 1;
    pages_of(written, &list, false, &[good, good]);
    written.leaves.last_mut().unwrap().leaf.pages[1].nulls = Some(2);
    // Values are missing.
    pages_of(written, &list, true, &[good]);
    written.leaves.last_mut().unwrap().leaf.pages[0].body.end -= 1;
    // Streams of levels.
    for (reps, defs) in [
        (&[][..], &[6, 3][..]),
        (&[6], &[6, 3]),
        (&[6, 2], &[6, 3]),
        (&[6, 0, 0], &[6, 3]),
        (&[6, 0, 0, 0, 9], &[6, 3]),
        (&[0, 0], &[6, 3]),
        (&[0x86], &[6, 3]),
        (&[3], &[6, 3]),
        (&[6, 0], &[]),
        (&[6, 0], &[4, 3]),
        (&[6, 0], &[6]),
        (&[6, 0], &[6, 4]),
        (&[6, 0], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80]),
        (&[6, 0], &[3, 0]),
        (&[6, 0], &[6, 3, 9, 9]),
        (&[0xfe, 0xff, 0xff, 0xff, 0x0f, 0], &[6, 3]),
    ] {
        written.streams(&list, EIGHT, 3, reps, defs, &[7; 24]);
        // A length that is too long, of each.
        if reps.len() == 2 && defs.len() == 2 {
            for at in [0, 6] {
                written.streams(&list, EIGHT, 3, reps, defs, &[7; 24]);
                let start = written.leaves.last().unwrap().leaf.pages[0].body.start as usize;
                written.arena.bytes[start + at + 3] = 0x7f;
            }
        }
    }
    for len in [0, 3, 5, 7, 9, 11] {
        written.streams(&list, EIGHT, 3, &[6, 0], &[6, 3], &[7; 24]);
        let body = &mut written.leaves.last_mut().unwrap().leaf.pages[0].body;
        body.end = body.start + len;
    }
    // Descriptions that are of nothing.
    for change in [
        (|nested: &mut Nested| nested.levels.max_def = 32) as fn(&mut Nested),
        |nested| nested.levels.max_def = 0,
        |nested| nested.levels.lists[0].full = 4,
        |nested| nested.levels.lists.resize(5, nested.levels.lists[0]),
        |nested| nested.levels.repetition.clear(),
        |nested| nested.levels.valid[0].depth = 2,
        |nested| nested.leaf.nullable = false,
        |nested| nested.levels.lists[0].offsets = Offsets::Fixed { size: 0 },
        |nested| nested.leaf.pages[0].body.end = 1 << 50,
        |nested| {
            nested.leaf.pages[0].v1 = false;
            nested.levels.repetition[0] = u32::MAX;
        },
    ] {
        pages_of(written, &list, true, &[good]);
        change(written.leaves.last_mut().unwrap());
    }
}

#[test]
fn what_is_wrong_with_levels_is_said_and_harms_no_other() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut written = Written::default();
        hostile(&mut written);
        let faults = compare(&gpu, &written, "hostile");
        assert!(
            faults > 40 && faults < written.leaves.len(),
            "{faults} of {}",
            written.leaves.len()
        );
        // All that can be wrong is among them.
        let outcomes = nested_reference::nested(&written.arena.bytes, &written.leaves);
        for wanted in [
            check::SHAPE,
            check::LEVELS_LENGTH,
            check::LEVELS | check::END,
            check::LEVELS | check::HEADER,
            check::LEVELS | check::RUN_BYTES,
            check::LEVELS | check::RUN_VALUE,
            check::NULLS,
            check::VALUES_LENGTH,
            check::REPEATS | check::END,
            check::REPEATS | check::HEADER,
            check::REPEATS | check::RUN_LENGTH,
            check::REPEATS | check::RUN_BYTES,
            check::REPEATS | check::RUN_VALUE,
            check::REPEATS_REST,
            check::LEVEL,
            check::BEGIN,
            check::CONTINUED,
            check::FIXED_SIZE,
            check::ROWS,
            check::SLOTS,
        ] {
            let is = |outcome: &HostLeaf| matches!(outcome, HostLeaf::Fault { check, .. } if *check == wanted);
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
        for round in 0..3 {
            let mut random = Random::new(30 + round);
            let mut written = Written::default();
            written.arena.gap = round as usize;
            let (nests, ways) = (nests(), ways());
            for number in 0..90 {
                let nest = &nests[number % nests.len()];
                written.leaf(
                    nest,
                    ways[number % ways.len()],
                    &[70, 20 + number],
                    &mut random,
                );
                let leaf = &written.leaves.last().unwrap().leaf;
                let page = leaf.pages[random.below(2) as usize].body.clone();
                let len = (page.end - page.start).min(40);
                if len == 0 {
                    continue;
                }
                for _ in 0..1 + random.below(2) {
                    let place = random.below(len) + page.start;
                    let byte = &mut written.arena.bytes[place as usize];
                    *byte = match random.below(3) {
                        0 => random.next() as u8,
                        1 => *byte ^ 1 << random.below(8),
                        _ => [0, 1, 2, 3, 0x7f, 0x80, 0xff][random.below(7) as usize],
                    };
                }
            }
            let faults = compare(&gpu, &written, "mutated");
            assert!(faults > 15 && faults < 89, "{faults}");
        }
    }
    nothing_left(&session);
}

/// Flat and nested ones, together and with what is wrong beside them.
#[test]
fn flat_columns_are_decoded_with_them() {
    let session = session("lazy");
    {
        let gpu = separate();
        let mut random = Random::new(27);
        let mut written = Written::default();
        let shape = Shape {
            nullable: true,
            valid: 200,
            ..EIGHT
        };
        written.arena.column(shape, &[40, 1060], &mut random);
        written.leaf(&Nest::list(), EIGHT, &[500, 1030], &mut random);
        pages_of(&mut written, &Nest::list(), true, &[(&[1], &[3])]);
        written.arena.column(EIGHT, &[70], &mut random);
        written.leaf(&Nest::lists(2), EIGHT, &[500], &mut random);
        let there = put(&gpu, &written.arena.bytes, 0);
        let columns = &written.arena.columns;
        let (flat, nested) = gpu
            .nested(&there, columns, &written.leaves, u64::MAX)
            .unwrap();
        let wanted = reference::columns(&written.arena.bytes, columns);
        for (outcome, wanted) in flat.iter().zip(&wanted) {
            let (Outcome::Done(done), reference::HostOutcome::Done { values, .. }) =
                (outcome, wanted)
            else {
                panic!("{outcome:?}");
            };
            assert!(gpu.to_host(&done.values).unwrap() == *values);
        }
        assert!(matches!(
            nested[..],
            [
                NestedOutcome::Done(_),
                NestedOutcome::Fault { .. },
                NestedOutcome::Done(_)
            ]
        ));
        drop((flat, nested));
        // Nothing but faults, and nothing at all.
        let (_, nested) = gpu
            .nested(&there, &[], &written.leaves[1..2], u64::MAX)
            .unwrap();
        assert!(matches!(nested[..], [NestedOutcome::Fault { .. }]));
        let (flat, nested) = gpu.nested(&there, &[], &[], u64::MAX).unwrap();
        assert!(flat.is_empty() && nested.is_empty());
    }
    nothing_left(&session);
}

#[test]
fn an_error_at_every_call_of_decoding() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    let mut written = Written::default();
    for nest in nests().iter().step_by(5) {
        written.leaf(nest, EIGHT, &[40, 33], &mut Random::new(28));
        written.words(nest, KIND, &[40, 30], &mut Random::new(29));
    }
    let run = |session: &mut Session, inject: &dyn Fn(&mut Session)| {
        let outcome = {
            let gpu = separate();
            let there = put(&gpu, &written.arena.bytes, 0);
            gpu.nested(&there, &[], &written.leaves, u64::MAX).unwrap();
            let before = session.counts();
            inject(session);
            let outcome = gpu.nested(&there, &[], &written.leaves, u64::MAX);
            session.fail_nothing();
            outcome.map(|outcomes| (outcomes, session.counts().calls - before.calls))
        };
        let outcome = outcome.map(|((_, outcomes), calls)| {
            let done = |outcome: &NestedOutcome| matches!(outcome, NestedOutcome::Done(_));
            assert!(outcomes.iter().all(done));
            calls
        });
        nothing_left(session);
        outcome
    };
    let calls = run(&mut session, &|_| {}).unwrap();
    let mut failed = 0;
    for (call, code) in (0..calls).step_by(5).zip([1, 700].into_iter().cycle()) {
        if let Err(error) = run(&mut session, &|session| session.fail_call(call, code)) {
            let kind = error.kind();
            let typed = matches!(kind, ErrorKind::Cuda { .. } | ErrorKind::DeviceLost { .. });
            assert!(typed, "{error}");
            failed += 1;
        }
    }
    assert!(failed > 10, "{failed} of {calls}");
    for allocation in 0..20 {
        if let Err(error) = run(&mut session, &|session| session.fail_allocation(allocation)) {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
        }
    }
}

#[test]
fn lists_of_one_length_by_offsets_of_four_and_of_eight_bytes_at_their_places() {
    let session = session("lazy");
    {
        let gpu = separate();
        let small: Vec<u8> = (0..100u32).flat_map(|at| (at * 3).to_le_bytes()).collect();
        let large: Vec<u8> = (0..100u64).flat_map(|at| (at * 3).to_le_bytes()).collect();
        for (width, mut bytes) in [(4, small), (8, large)] {
            let there = put(&gpu, &bytes, 0);
            assert_eq!(gpu.uneven(&there, width, 99, 3).unwrap(), None);
            bytes[70 * width] -= 1;
            let there = put(&gpu, &bytes, 0);
            let uneven = gpu.uneven(&there, width, 99, 3).unwrap();
            let (list, items) = (69, 2);
            assert_eq!(uneven, Some(Uneven { list, items }));
            // Those of other bytes, and at other addresses, no kernel can read.
            let refused = |there: &DeviceBytes, width| {
                let error = gpu.uneven(there, width, 20, 3).unwrap_err();
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::InvalidOption { .. }), "{error}");
            };
            for other in [0, 1, 2, 3, 5, 12, 16] {
                refused(&there, other);
            }
            for by in [1, 2, width / 2, width - 1] {
                refused(&there.slice(by..), width);
            }
        }
    }
    nothing_left(&session);
}
