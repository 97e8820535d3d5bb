//! What the kernels of columns do for each value, counted by the software device: instructions of warps, and bytes moved. The table is
//! `counts.tsv`; a change of more than 5 % is either a mistake, or goes into it: `FEEDWATER_WRITE_COUNTS=1 cargo test --test cuda counts`.
//!
//! Bytes are of sectors of 32, loaded and stored; those that several blocks touch are counted for each in `block`, once for a launch in
//! `launch`. Real caches are somewhere between: a small dictionary is loaded once, and the edge of a tile maybe twice.
//!
//! The least is what the stages of this pipeline need, with what one hands to the next: it is no bound of other pipelines. Not counted are fills,
//! uploads of tables and read-backs; and a sector counts once a launch.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use feedwater::DeviceBytes;
use feedwater::cuda::columns::{
    Column, Convert, Encoding, Marks, Nested, NestedOutcome, Outcome, Values,
};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions};
use software_cuda_preload::{Session, Work};

use crate::delta_strings;
use crate::kernels::put;
use crate::levels::{Nest, Step, Written};
use crate::pages::*;
use crate::support::*;
use crate::words::*;

const ROWS: usize = 1 << 14;
const KERNELS: [&str; 30] = [
    "nesting_walk",
    "nesting_known",
    "nesting_levels",
    "nesting_totals",
    "nesting_slots",
    "walk",
    "walk_known",
    "rle",
    "ranks",
    "delta_walk",
    "delta_sums",
    "delta_scan",
    "delta_emit",
    "delta_emit_tensor",
    "delta_rows",
    "delta_rows_tensor",
    "fixed",
    "booleans",
    "strings_walk",
    "strings_known",
    "delta_text_scan",
    "delta_text_ends",
    "strings_count",
    "scan_reduce",
    "scan_sums",
    "scan_emit",
    "strings_place",
    "strings_decimals",
    "strings_copy",
    "delta_text_bytes",
];

/// What the name of a case ends with whose sums are made by tensor cores.
const TENSOR: &str = "by tensor cores";

/// What the name of a case ends with of which it is known from another time where tiles begin.
const AGAIN: &str = "known from before";

fn texts() -> Vec<(&'static str, Kind)> {
    use Encoding::{Dictionary, Plain};
    // 16 bytes on average.
    let plain = Kind { len: 21, ..KIND };
    let nullable = Kind {
        nullable: true,
        valid: 200,
        ..plain
    };
    let dictionary = Kind {
        encodings: &[Dictionary],
        bits: 9,
        ..plain
    };
    let kept = Convert::Indices { to: 4 };
    let decimals = Kind {
        words: Words::Short(16),
        convert: Convert::WidenBigEndian { to: 16 },
        ..plain
    };
    vec![
        ("strings of 16 bytes", plain),
        ("strings of 16 bytes, nullable", nullable),
        (
            "strings of 16 bytes, not ASCII",
            Kind {
                words: Words::Unicode,
                len: 8,
                ..plain
            },
        ),
        ("strings of 250 bytes", Kind { len: 333, ..plain }),
        ("dictionary of strings", dictionary),
        (
            "dictionary of strings, mixed with PLAIN",
            Kind {
                encodings: &[Dictionary, Plain],
                nullable: true,
                valid: 200,
                ..dictionary
            },
        ),
        (
            "dictionary of strings, kept",
            Kind {
                convert: kept,
                ..dictionary
            },
        ),
        ("decimals of any length", decimals),
        ("strings of 16 bytes, known from before", plain),
        ("strings of 16 bytes, nullable, known from before", nullable),
    ]
}

fn cases() -> Vec<(&'static str, Shape)> {
    let eight = Shape {
        values: Values::Fixed { width: 8 },
        bits: 9,
        ..Shape::PLAIN
    };
    let nullable = Shape {
        nullable: true,
        valid: 200,
        ..eight
    };
    let boolean = Shape {
        values: Values::Boolean,
        ..nullable
    };
    let of = |shape, encoding, style| Shape {
        encoding,
        style,
        ..shape
    };
    use Encoding::{ByteStreamSplit, DeltaBinaryPacked, Dictionary, Rle};
    vec![
        ("PLAIN of 8 bytes", eight),
        ("PLAIN of 4 bytes", Shape::PLAIN),
        ("PLAIN of 8 bytes, nullable", nullable),
        (
            "split of 8 bytes",
            of(eight, ByteStreamSplit, Style::Groups),
        ),
        (
            "split of 8 bytes, nullable",
            of(nullable, ByteStreamSplit, Style::Groups),
        ),
        (
            "dictionary of 8 bytes",
            of(eight, Dictionary, Style::Groups),
        ),
        (
            "dictionary of 8 bytes, short runs",
            of(eight, Dictionary, Style::Mixed),
        ),
        (
            "dictionary of 8 bytes, nullable",
            of(nullable, Dictionary, Style::Groups),
        ),
        (
            "deltas of 8 bytes",
            of(eight, DeltaBinaryPacked, Style::Groups),
        ),
        (
            "deltas of 8 bytes, by tensor cores",
            of(eight, DeltaBinaryPacked, Style::Groups),
        ),
        (
            "deltas of 4 bytes",
            Shape {
                bits: 9,
                ..of(Shape::PLAIN, DeltaBinaryPacked, Style::Groups)
            },
        ),
        (
            "deltas of 8 bytes, nullable",
            of(nullable, DeltaBinaryPacked, Style::Groups),
        ),
        (
            "deltas of 8 bytes, nullable, by tensor cores",
            of(nullable, DeltaBinaryPacked, Style::Groups),
        ),
        (
            "deltas of 4 bytes, nullable, as 16 bytes",
            Shape {
                values: Values::Fixed { width: 4 },
                convert: Convert::Widen { to: 16 },
                ..of(nullable, DeltaBinaryPacked, Style::Groups)
            },
        ),
        ("booleans, nullable", boolean),
        (
            "booleans in runs, nullable",
            of(boolean, Rle, Style::Repeats),
        ),
        (
            "decimals of 9 bytes",
            Shape {
                values: Values::Fixed { width: 9 },
                convert: Convert::WidenBigEndian { to: 16 },
                ..eight
            },
        ),
        (
            "INT96",
            Shape {
                values: Values::Fixed { width: 12 },
                convert: Convert::Int96 {
                    per_second: 1_000_000_000,
                },
                ..eight
            },
        ),
    ]
}

/// Bytes of the sectors that ascending ranges touch, each once.
pub(crate) fn sectors(ranges: impl IntoIterator<Item = Range<u64>>) -> u64 {
    let (mut all, mut next) = (0, 0);
    for range in ranges {
        let end = range.end.div_ceil(32);
        all += end.saturating_sub(next.max(range.start / 32));
        next = next.max(end);
    }
    all * 32
}

/// A number of 7 bits a byte, and where it ends.
fn unsigned(bytes: &[u8], at: usize) -> (u64, usize) {
    let len = bytes[at..].iter().take_while(|byte| **byte >= 0x80).count() + 1;
    let number = bytes[at..at + len].iter().enumerate();
    let number = number.fold(0, |sum, (place, byte)| {
        sum | u64::from(byte & 0x7f) << (place * 7)
    });
    (number, at + len)
}

/// What has to be loaded to find where the runs between these bytes begin: the sectors with their headers.
fn headers(arena: &[u8], range: Range<u64>, bits: u64) -> u64 {
    let mut at = range.start;
    sectors(std::iter::from_fn(|| {
        let header = (at < range.end).then_some(at..at + 1)?;
        let (run, end) = unsigned(arena, at as usize);
        at = end as u64
            + match run & 1 {
                1 => (run >> 1) * bits,
                _ => bits.div_ceil(8),
            };
        Some(header)
    }))
}

/// What has to be loaded to find where the strings between these bytes begin: the sectors with their lengths.
fn lengths(arena: &[u8], range: Range<u64>) -> u64 {
    let mut at = range.start;
    sectors(std::iter::from_fn(|| {
        let length = (at < range.end).then_some(at..at + 4)?;
        at += 4 + u64::from(four(arena, at));
        Some(length)
    }))
}

fn four(arena: &[u8], at: u64) -> u32 {
    let at = at as usize;
    u32::from_le_bytes(arena[at..at + 4].try_into().unwrap())
}

/// Where deltas end that begin there.
fn deltas_end(arena: &[u8], begin: u64) -> u64 {
    let (block, at) = unsigned(arena, begin as usize);
    let (minis, at) = unsigned(arena, at);
    let (count, at) = unsigned(arena, at);
    let (_, mut at) = unsigned(arena, at);
    let (mini, mut left) = (block / minis, count.saturating_sub(1));
    while left > 0 {
        let (_, widths) = unsigned(arena, at);
        at = widths + minis as usize;
        for width in &arena[widths..at] {
            if left > 0 {
                at += (mini * u64::from(*width) / 8) as usize;
                left = left.saturating_sub(mini);
            }
        }
    }
    at as u64
}

/// The least: pages and output. Headers of runs once more, as their ends are found before their values are; and
/// bits of rows that are not null once more, as they are found before values get to their rows. Lengths of strings once more, as they lead
/// from one to the next; and where each begins on its page and in the output, which is found before bytes are copied. Deltas twice, as sums of
/// parts come before values. Of what is between values that are looked for, nothing: whole sectors are loaded where there is one.
fn least(arena: &[u8], column: &Column, outcome: &Outcome) -> u64 {
    let Outcome::Done(done) = outcome else {
        panic!("{outcome:?}");
    };
    let is_text = matches!(column.values, Values::Bytes { .. });
    let mut all = done.values.len() as u64;
    for strings in [Some(done), done.dictionary.as_deref()]
        .into_iter()
        .flatten()
    {
        if let Some(offsets) = &strings.offsets {
            all += 2 * offsets.len() as u64 + 8 * strings.rows;
        }
    }
    if let Some(entries) = &done.dictionary {
        all += entries.values.len() as u64;
    }
    if is_text && matches!(column.convert, Convert::WidenBigEndian { .. }) {
        all += 8 * done.rows;
    }
    all += 2 * done.validity.as_ref().map_or(0, |bits| bits.len() as u64);
    if let Some((range, _)) = &column.dictionary {
        all += range.end - range.start;
        if is_text {
            all += lengths(arena, range.clone());
        }
    }
    for page in &column.pages {
        let (mut at, end) = (page.body.start, page.body.end);
        all += end - at;
        if column.nullable {
            let levels = at + 4..at + 4 + u64::from(four(arena, at));
            at = levels.end;
            all += headers(arena, levels, 1);
        }
        // Lengths in deltas are numbers between, and so is with how many bytes of the one before a value begins. They are written, and read by
        // those that find ends; where bytes are made of those before, by these as well.
        all += match page.encoding {
            Encoding::Dictionary => headers(arena, at + 1..end, u64::from(arena[at as usize])),
            Encoding::Rle => headers(arena, at + 4..end, 1),
            Encoding::DeltaBinaryPacked => end - at,
            Encoding::DeltaLengthByteArray => deltas_end(arena, at) - at + 2 * 4 * page.entries,
            Encoding::DeltaByteArray => {
                deltas_end(arena, deltas_end(arena, at)) - at + 2 * 3 * 4 * page.entries
            }
            Encoding::Plain if is_text => lengths(arena, at..end),
            _ => 0,
        };
    }
    if column.pages[0].encoding == Encoding::DeltaByteArray {
        // What a value begins with is at hand, as the one before was just made. Nobody looks at offsets again; and where the rest of it is on the
        // page, lengths tell as well.
        let offsets = done.offsets.as_ref().unwrap();
        all -= offsets.len() as u64 + 8 * done.rows;
    }
    all
}

/// Leaves of nested columns, counted for each level.
fn nested_cases() -> Vec<(&'static str, Nest)> {
    use Step::{Fixed, List, Optional};
    vec![
        ("lists, required", Nest::of(&[List])),
        ("lists, nullable", Nest::list()),
        ("lists in lists, nullable", Nest::lists(2)),
        ("structs, nullable", Nest::of(&[Optional, Optional])),
        ("fixed-size lists of 16", Nest::of(&[Fixed(16)])),
    ]
}

/// The least for a leaf: pages, and headers of levels once more, as of flat ones; then a byte for each level, written and read; offsets; bitmaps, of
/// which that of the values is read twice, to count them and to place them. Of strings what is so of flat ones.
fn least_nested(arena: &[u8], nested: &Nested, outcome: &NestedOutcome) -> u64 {
    let NestedOutcome::Done(leaf) = outcome else {
        panic!("{outcome:?}");
    };
    let bitmap = |bits: &DeviceBytes| bits.len() as u64;
    let mut all = leaf.values.values.len() as u64;
    all += leaf
        .values
        .validity
        .as_ref()
        .map_or(0, |bits| 3 * bitmap(bits));
    all += leaf.valid.iter().map(|(bits, _)| bitmap(bits)).sum::<u64>();
    all += leaf.offsets.iter().flatten().map(bitmap).sum::<u64>();
    for page in &nested.leaf.pages {
        let mut at = page.body.start;
        all += page.body.end - at + 2 * page.entries;
        let lists = nested.levels.lists.len() as u32;
        for most in [lists, nested.levels.max_def] {
            if most > 0 {
                let levels = at + 4..at + 4 + u64::from(four(arena, at));
                at = levels.end;
                all += headers(arena, levels, u64::from(u32::BITS - most.leading_zeros()));
            }
        }
        if leaf.values.offsets.is_some() {
            all += lengths(arena, at..page.body.end);
        }
    }
    if let Some(offsets) = &leaf.values.offsets {
        all += 2 * bitmap(offsets) + 8 * leaf.values.rows;
    }
    all
}

/// What was done between two times.
fn since(now: &Work, before: &Work) -> Work {
    Work {
        launches: now.launches - before.launches,
        steps: now.steps - before.steps,
        loaded: now.loaded - before.loaded,
        stored: now.stored - before.stored,
        distinct_loaded: now.distinct_loaded - before.distinct_loaded,
        distinct_stored: now.distinct_stored - before.distinct_stored,
    }
}

#[test]
fn instructions_and_bytes_of_each_value_are_those_of_the_table() {
    if !is_software(&session("eager")) {
        return;
    }
    // What was counted `before` is not of the case.
    let count = |table: &mut String,
                 session: &Session,
                 name: &str,
                 values: u64,
                 least: u64,
                 before: Option<[Work; KERNELS.len()]>| {
        let per_value = |count: u64| count as f64 / values as f64;
        let mut all = 0;
        let before = before.unwrap_or_default();
        for (kernel, before) in KERNELS.into_iter().zip(before) {
            let work = since(&session.work(kernel), &before);
            if work.launches == 0 {
                continue;
            }
            let launch = work.distinct_loaded + work.distinct_stored;
            all += launch;
            let _ = writeln!(
                table,
                "{name}\t{kernel}\t{:.3}\t{:.3}\t{:.3}\t",
                per_value(work.steps),
                per_value(work.loaded + work.stored),
                per_value(launch)
            );
        }
        let (all, least) = (per_value(all), per_value(least));
        let _ = writeln!(table, "{name}\tall\t\t\t{all:.3}\t{least:.3}");
        (all, least)
    };
    let mut table = String::from("case\tkernel\tinstructions\tblock\tlaunch\tleast\n");
    let pages = [ROWS / 2; 2];
    type Fill = Box<dyn Fn(&mut Arena)>;
    let shapes = cases().into_iter().map(|(name, shape)| -> (&str, Fill) {
        let fill = move |arena: &mut Arena| arena.column(shape, &pages, &mut Random::new(1));
        (name, Box::new(fill))
    });
    let texts = texts().into_iter().map(|(name, kind)| -> (&str, Fill) {
        let fill = move |arena: &mut Arena| column(arena, kind, &pages, &mut Random::new(1));
        (name, Box::new(fill))
    });
    let deltas = [
        (
            "strings by lengths in deltas",
            Encoding::DeltaLengthByteArray,
        ),
        ("strings that begin as others", Encoding::DeltaByteArray),
    ];
    let deltas = deltas.into_iter().map(|(name, encoding)| -> (&str, Fill) {
        (
            name,
            Box::new(move |arena: &mut Arena| delta_strings::one(arena, encoding, &pages)),
        )
    });
    for (name, fill) in shapes.chain(texts).chain(deltas) {
        let mut session = session("eager");
        session.set("TRAFFIC", "on");
        {
            let options = DeviceOptions::default().tensor_sums(name.ends_with(TENSOR));
            let gpu = options.open(0).unwrap();
            let mut arena = Arena::default();
            fill(&mut arena);
            let there = put(&gpu, &arena.bytes, 0);
            let decode = |known: &[Option<Arc<Marks>>]| {
                let known = name.ends_with(AGAIN).then_some(known);
                gpu.marked(&there, &arena.columns, &[], u64::MAX, known)
                    .unwrap()
            };
            let (mut outcomes, _, marks) = decode(&[None]);
            let before = KERNELS.map(|kernel| session.work(kernel));
            let mut first = None;
            if name.ends_with(AGAIN) {
                let marks: Vec<_> = marks.into_iter().map(|marks| marks.map(Arc::new)).collect();
                assert!(marks[0].is_some());
                outcomes = decode(&marks).0;
                first = Some(before);
            }
            let least = least(&arena.bytes, &arena.columns[0], &outcomes[0]);
            let (all, least) = count(&mut table, &session, name, ROWS as u64, least, first);
            near(name, all, least);
        }
        nothing_left(&session);
    }
    let texts = ("strings in lists, nullable", Nest::list());
    for (name, nest) in nested_cases().into_iter().chain([texts]) {
        let mut session = session("eager");
        session.set("TRAFFIC", "on");
        {
            let gpu = Device::open(0).unwrap();
            let mut written = Written::default();
            let shape = Shape {
                values: Values::Fixed { width: 8 },
                ..Shape::PLAIN
            };
            let pages = [ROWS / 2, ROWS / 2];
            let random = &mut Random::new(1);
            match name.starts_with("strings") {
                true => written.words(&nest, Kind { len: 21, ..KIND }, &pages, random),
                false => written.leaf(&nest, shape, &pages, random),
            }
            let there = put(&gpu, &written.arena.bytes, 0);
            let (_, outcomes) = gpu.nested(&there, &[], &written.leaves, u64::MAX).unwrap();
            let leaf = &written.leaves[0];
            let least = least_nested(&written.arena.bytes, leaf, &outcomes[0]);
            let levels = leaf.leaf.rows();
            let (all, least) = count(&mut table, &session, name, levels, least, None);
            near(name, all, least);
        }
        nothing_left(&session);
    }
    held("tests/cuda/counts.tsv", &table);
}
