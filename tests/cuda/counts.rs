//! What the kernels of columns do for each value, counted by the software device: instructions of warps, and bytes moved. The table is
//! `counts.tsv`; a change of more than 5 % is either a mistake, or goes into it: `FEEDWATER_WRITE_COUNTS=1 cargo test --test cuda counts`.
//!
//! Bytes are of sectors of 32, loaded and stored; those that several blocks touch are counted for each in `block`, once for a launch in
//! `launch`. Real caches are somewhere between: a small dictionary is loaded once, and the edge of a tile maybe twice.

use std::fmt::Write as _;
use std::path::Path;

use feedwater::DeviceBytes;
use feedwater::cuda::columns::{Column, Convert, Encoding, Nested, NestedOutcome, Outcome, Values};
use feedwater::cuda::{Device, DeviceOptions};
use software_cuda_preload::Session;

use crate::kernels::put;
use crate::levels::{Nest, Step, Written};
use crate::pages::*;
use crate::support::*;
use crate::words::*;

const ROWS: usize = 1 << 14;
const KERNELS: [&str; 22] = [
    "nesting_walk",
    "nesting_levels",
    "nesting_totals",
    "nesting_slots",
    "walk",
    "rle",
    "ranks",
    "delta_walk",
    "delta_sums",
    "delta_scan",
    "delta_emit",
    "delta_emit_tensor",
    "fixed",
    "booleans",
    "strings_walk",
    "strings_count",
    "scan_reduce",
    "scan_sums",
    "scan_emit",
    "strings_place",
    "strings_decimals",
    "strings_copy",
];

/// What the name of a case ends with whose sums are made by tensor cores.
const TENSOR: &str = "by tensor cores";

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

/// The least that the stages have to move: pages and output; runs once more, as their ends are found before their values are; and bits of
/// rows that are not null once more, as they are found before values get to their rows. Pages of strings twice, as their lengths lead from
/// one to the next; and where each begins on its page and in the output, which is found before bytes are copied. Pages of deltas twice, as
/// sums of parts come before values; and their values, where they do not stay where they are made, are written and read once more.
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
        all += (range.end - range.start) * if is_text { 2 } else { 1 };
    }
    for page in &column.pages {
        let len = page.body.end - page.body.start;
        let body = &arena[page.body.start as usize..];
        let levels = match column.nullable {
            true => 4 + u64::from(u32::from_le_bytes(body[..4].try_into().unwrap())),
            false => 0,
        };
        let runs = match page.encoding {
            Encoding::Dictionary | Encoding::Rle | Encoding::DeltaBinaryPacked => len,
            _ if is_text => len,
            _ => levels,
        };
        all += len + runs;
        if page.encoding == Encoding::DeltaBinaryPacked && column.nullable {
            all += 2 * 8 * (page.entries - done.nulls / column.pages.len() as u64);
        }
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

/// The least for a leaf: pages, and levels once more, as of flat ones; then a byte for each level, written and read; offsets; bitmaps, of which that
/// of the values is read twice, to count them and to place them. Of strings what is so of flat ones.
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
        let body = &arena[page.body.start as usize..page.body.end as usize];
        let len = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap()) as usize;
        let mut levels = 0;
        if !nested.levels.lists.is_empty() {
            levels += 4 + len(0);
        }
        levels += 4 + len(levels);
        all += body.len() as u64 + levels as u64 + 2 * page.entries;
        if leaf.values.offsets.is_some() {
            all += (body.len() - levels) as u64;
        }
    }
    if let Some(offsets) = &leaf.values.offsets {
        all += 2 * bitmap(offsets) + 8 * leaf.values.rows;
    }
    all
}

#[test]
fn instructions_and_bytes_of_each_value_are_those_of_the_table() {
    if !is_software(&session("eager")) {
        return;
    }
    let count = |table: &mut String, session: &Session, name: &str, values: u64, least: u64| {
        let per_value = |count: u64| count as f64 / values as f64;
        let mut all = 0;
        for kernel in KERNELS {
            let work = session.work(kernel);
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
    let shapes = cases().into_iter().map(|(name, shape)| (name, Ok(shape)));
    let texts = texts().into_iter().map(|(name, kind)| (name, Err(kind)));
    for (name, what) in shapes.chain(texts) {
        let mut session = session("eager");
        session.set("TRAFFIC", "on");
        {
            let options = DeviceOptions::default().tensor_sums(name.ends_with(TENSOR));
            let gpu = options.open(0).unwrap();
            let mut arena = Arena::default();
            let (pages, random) = ([ROWS / 2; 2], &mut Random::new(1));
            match what {
                Ok(shape) => arena.column(shape, &pages, random),
                Err(kind) => column(&mut arena, kind, &pages, random),
            }
            let there = put(&gpu, &arena.bytes, 0);
            let outcomes = gpu.columns(&there, &arena.columns).unwrap();
            let least = least(&arena.bytes, &arena.columns[0], &outcomes[0]);
            let (all, least) = count(&mut table, &session, name, ROWS as u64, least);
            assert!(
                all <= least * 1.3 + 0.25,
                "{name}: {all} bytes a value, the least is {least}"
            );
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
            let (all, least) = count(&mut table, &session, name, levels, least);
            assert!(
                all <= least * 1.3 + 0.25,
                "{name}: {all} bytes a level, the least is {least}"
            );
        }
        nothing_left(&session);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/counts.tsv");
    if std::env::var_os("FEEDWATER_WRITE_COUNTS").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let lines = |text: &str| text.lines().count();
    assert_eq!(lines(&committed), lines(&table), "{table}");
    for (was, is) in committed.lines().zip(table.lines()) {
        for (was_one, is_one) in was.split('\t').zip(is.split('\t')) {
            let near = match (was_one.parse::<f64>(), is_one.parse::<f64>()) {
                (Ok(was), Ok(is)) => (was - is).abs() <= 0.05 * was + 0.002,
                _ => was_one == is_one,
            };
            assert!(near, "was {was}\nis {is}");
        }
    }
}
