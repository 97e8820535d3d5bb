//! What choosing rows does for each that is wanted, counted by the software device: instructions of warps, and bytes moved. The table is
//! `select.tsv`, held as `counts.tsv` is; `FEEDWATER_WRITE_COUNTS=1 cargo test --test cuda counts` writes it.
//!
//! The least that has to be moved: what comes out, stored, and the sectors of 32 bytes that have some of it, loaded; of strings and lists also
//! those of the offsets that lead from ranges to ranges, once more, as another stage finds these; and the ranges.
//! That is what the stages of this pipeline need, with what one hands to the next. Not counted are fills, uploads of tables and read-backs; and a
//! sector counts once a launch.

use std::fmt::Write as _;
use std::ops::Range;

use feedwater::cuda::Device;
use feedwater::cuda::columns::nested_reference::HostLeaf;
use feedwater::cuda::columns::reference::HostOutcome;
use feedwater::cuda::columns::{Leaf, Offsets, Slots};
use feedwater::cuda::testing::Kernels as _;
use software_cuda_preload::Session;

use crate::counts::sectors;
use crate::pages::Random;
use crate::select::{Both, Form, PLAIN};
use crate::support::*;

const ROWS: u64 = 1 << 14;
const KERNELS: [&str; 6] = [
    "select_within",
    "scan_reduce",
    "scan_sums",
    "scan_emit",
    "select_totals",
    "select",
];

fn cases() -> Vec<(&'static str, Form)> {
    let eight = Form {
        slots: Slots::Fixed { width: 8 },
        ..PLAIN
    };
    vec![
        ("8 bytes", eight.clone()),
        (
            "8 bytes, nullable",
            Form {
                nullable: true,
                ..eight.clone()
            },
        ),
        (
            "booleans, nullable",
            Form {
                slots: Slots::Bits,
                nullable: true,
                ..PLAIN
            },
        ),
        (
            "strings of 16 bytes",
            Form {
                slots: Slots::Text { large: false },
                most: 48,
                ..PLAIN
            },
        ),
        (
            "lists of 8 bytes",
            Form {
                lists: vec![Offsets::Small],
                ..eight
            },
        ),
    ]
}

/// One range, ranges of 100 rows, and single rows.
fn choices() -> [(&'static str, Vec<Range<u64>>); 3] {
    let ranges =
        |len: u64, step: u64| (0..ROWS / step).map(move |at| at * step + 1..at * step + 1 + len);
    [
        ("half", vec![ROWS / 4..ROWS * 3 / 4]),
        ("hundreds", ranges(100, 200).collect()),
        ("every other", ranges(1, 2).collect()),
    ]
}

/// Bytes of all buffers.
fn bytes(leaf: &Leaf) -> u64 {
    let values = &leaf.values;
    let own = [
        Some(&values.values),
        values.offsets.as_ref(),
        values.validity.as_ref(),
    ];
    let lists = leaf.offsets.iter().map(Option::as_ref);
    let valid = leaf.valid.iter().map(|(bits, _)| Some(bits));
    let all = own.into_iter().chain(lists).chain(valid).flatten();
    all.map(|bytes| bytes.len() as u64).sum()
}

/// Bytes of the sectors that have slots of so many `bits`, in these ranges.
fn of(ranges: &[Range<u64>], bits: u64) -> u64 {
    let bytes = |slots: &Range<u64>| slots.start * bits / 8..(slots.end * bits).div_ceil(8);
    sectors(ranges.iter().map(bytes))
}

/// Bytes of the sectors that have the offsets of these ranges, and once more of those that tell where each begins and ends; and to what ranges
/// they lead.
fn led(
    ranges: &[Range<u64>],
    offsets: Option<&Vec<u64>>,
    is_large: bool,
) -> (u64, Vec<Range<u64>>) {
    let (offsets, width) = (offsets.unwrap(), if is_large { 8 } else { 4 });
    let ends = ranges.iter().flat_map(|range| [range.start, range.end]);
    let ends = sectors(ends.map(|at| at * width..(at + 1) * width));
    let at = |slot: u64| offsets[slot as usize];
    let to = ranges.iter().map(|range| at(range.start)..at(range.end));
    let to = to.filter(|range| !range.is_empty()).collect();
    (of(ranges, width * 8) + ends, to)
}

/// Bytes of the sectors that have these rows of the buffers of a leaf, offsets once more.
fn loaded(form: &Form, leaf: &HostLeaf, rows: &[Range<u64>]) -> u64 {
    let HostLeaf::Done {
        values, offsets, ..
    } = leaf
    else {
        panic!("{leaf:?}");
    };
    let (mut all, mut ranges) = (0, rows.to_vec());
    for (list, offsets) in form.lists.iter().zip(offsets) {
        // Which of them are null.
        all += of(&ranges, 1);
        let (loaded, to) = led(&ranges, offsets.as_ref(), *list == Offsets::Large);
        (all, ranges) = (all + loaded, to);
    }
    if form.nullable {
        all += of(&ranges, 1);
    }
    let bits = match form.slots {
        Slots::Bits => 1,
        Slots::Fixed { width } => u64::from(width) * 8,
        Slots::Text { large } => {
            let HostOutcome::Strings { offsets, .. } = values else {
                panic!("{values:?}");
            };
            let (loaded, to) = led(&ranges, Some(offsets), large);
            (all, ranges) = (all + loaded, to);
            8
        }
    };
    all + of(&ranges, bits)
}

#[test]
fn instructions_and_bytes_of_each_row_are_those_of_the_table() {
    if !is_software(&session("eager")) {
        return;
    }
    let mut table = String::from("case\trows\tkernel\tinstructions\tblock\tlaunch\tleast\n");
    for (name, form) in cases() {
        for (way, rows) in choices() {
            let mut session = session("eager");
            session.set("TRAFFIC", "on");
            {
                let gpu = Device::open(0).unwrap();
                let leaf = Both::of(&gpu, &form, ROWS, &mut Random::new(1));
                let made = gpu.select(&[leaf.selection(&rows)]).unwrap();
                let count = made[0].slots[0];
                let ranges = rows.len() as u64;
                // Starts and sums are read by what copies. What leads to others reads them as well, and writes starts and lengths; lengths
                // are read by what makes sums, and these are written.
                let kinds =
                    form.lists.len() as u64 + u64::from(matches!(form.slots, Slots::Text { .. }));
                let loaded = loaded(&form, &leaf.host, &rows);
                let least = bytes(&made[0]) + loaded + ranges * 16 * (1 + 4 * kinds);
                let (all, least) = count_of(&mut table, &session, (name, way), count, least);
                near(&format!("{name}, {way}"), all, least);
            }
            nothing_left(&session);
        }
    }
    held("tests/cuda/select.tsv", &table);
}

/// Adds the lines of a case; bytes of a row, and the least of them.
fn count_of(
    table: &mut String,
    session: &Session,
    (name, way): (&str, &str),
    rows: u64,
    least: u64,
) -> (f64, f64) {
    let per_row = |count: u64| count as f64 / rows as f64;
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
            "{name}\t{way}\t{kernel}\t{:.3}\t{:.3}\t{:.3}\t",
            per_row(work.steps),
            per_row(work.loaded + work.stored),
            per_row(launch)
        );
    }
    let (all, least) = (per_row(all), per_row(least));
    let _ = writeln!(table, "{name}\t{way}\tall\t\t\t{all:.3}\t{least:.3}");
    (all, least)
}
