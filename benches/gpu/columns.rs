//! Decoded columns, beside a copy of as many bytes as come out.

use std::sync::Arc;

use feedwater::cuda::columns::{Convert, Encoding, NestedOutcome, Outcome, Values};
use feedwater::cuda::{Device, DeviceOptions};

use super::levels::{Nest, Step, Written};
use super::pages::{Arena, Random, Shape, Style};
use super::words::{KIND, Kind, Words, column};
use super::{Way, on_the_device, work};

/// Rows of a page. Writers make pages of 1 MiB, which is as many numbers of 8 bytes.
const ROWS: u64 = 1 << 17;

fn kinds() -> Vec<(&'static str, Shape)> {
    let plain = Shape {
        values: Values::Fixed { width: 8 },
        bits: 9,
        ..Shape::PLAIN
    };
    let nullable = Shape {
        nullable: true,
        valid: 200,
        ..plain
    };
    let of = |shape, encoding, style| Shape {
        encoding,
        style,
        ..shape
    };
    use Encoding::{ByteStreamSplit, DeltaBinaryPacked, Dictionary, Plain, Rle};
    vec![
        ("PLAIN", plain),
        ("PLAIN, nullable", nullable),
        ("split", of(plain, ByteStreamSplit, Style::Groups)),
        ("dictionary", of(plain, Dictionary, Style::Groups)),
        (
            "dictionary, short runs",
            of(plain, Dictionary, Style::Mixed),
        ),
        (
            "dictionary, nullable",
            of(nullable, Dictionary, Style::Groups),
        ),
        ("deltas", of(plain, DeltaBinaryPacked, Style::Groups)),
        (
            "deltas, nullable",
            of(nullable, DeltaBinaryPacked, Style::Groups),
        ),
        (
            "decimals of 8 bytes",
            Shape {
                convert: Convert::WidenBigEndian { to: 8 },
                ..plain
            },
        ),
        (
            "booleans, nullable",
            Shape {
                values: Values::Boolean,
                ..of(nullable, Plain, Style::Groups)
            },
        ),
        (
            "booleans in runs",
            Shape {
                values: Values::Boolean,
                ..of(plain, Rle, Style::Repeats)
            },
        ),
    ]
}

/// Strings of a page: 1 MiB of those of 16 bytes, with their lengths.
const TEXTS: usize = 52_428;

/// Strings of 16 bytes on average.
fn texts() -> Vec<(&'static str, Kind)> {
    let plain = Kind { len: 21, ..KIND };
    let dictionary = Kind {
        encodings: &[Encoding::Dictionary],
        bits: 9,
        ..plain
    };
    vec![
        ("strings of 16 bytes", plain),
        (
            "strings of 16 bytes, nullable",
            Kind {
                nullable: true,
                valid: 200,
                ..plain
            },
        ),
        (
            "strings of 16 bytes, not ASCII",
            Kind {
                words: Words::Unicode,
                len: 8,
                ..plain
            },
        ),
        ("dictionary of strings", dictionary),
    ]
}

/// Each kind, with outputs of up to `len` bytes; `plain` makes the way that it is compared with.
pub(crate) fn columns(
    gpu: &Arc<Device>,
    len: u64,
    turns: u64,
    plain: &dyn Fn(u64) -> Way<'static>,
    json: &mut String,
) {
    let pages = (len / (8 * ROWS)).max(1);
    let shapes = kinds().into_iter().map(|(name, shape)| (name, Ok(shape)));
    let texts = texts().into_iter().map(|(name, kind)| (name, Err(kind)));
    for (name, what) in shapes.chain(texts) {
        // One page, many times over, so that none is in a cache because of another.
        let mut arena = Arena::default();
        let random = &mut Random::new(1);
        let each = match what {
            Ok(shape) => {
                arena.column(shape, &[ROWS as usize], random);
                match shape.values {
                    Values::Boolean => ROWS / 8,
                    _ => ROWS * 8,
                }
            }
            Err(kind) => {
                column(&mut arena, kind, &[TEXTS], random);
                TEXTS as u64 * 16
            }
        };
        let mut column = arena.columns.remove(0);
        let page = column.pages.remove(0);
        let body = arena.bytes[page.body.start as usize..page.body.end as usize].to_vec();
        for _ in 0..pages {
            arena
                .bytes
                .resize(arena.bytes.len().next_multiple_of(64), 0);
            let begin = arena.bytes.len() as u64;
            arena.bytes.extend_from_slice(&body);
            let mut page = page.clone();
            page.body = begin..arena.bytes.len() as u64;
            column.pages.push(page);
        }
        let columns = [column];
        let read = arena.bytes.len() as u64;
        let there = on_the_device(gpu, arena.bytes);
        let output = pages * each;
        let decode = |gpu: Arc<Device>, by: &str| {
            let (there, columns) = (&there, &columns);
            Way::new(
                format!("{name}{by}, {pages} pages, {} MiB of them", read >> 20),
                move || {
                    let outcomes = gpu.columns(there, columns).unwrap();
                    assert!(matches!(outcomes[..], [Outcome::Done(_)]), "{outcomes:?}");
                },
            )
        };
        let mut ways = vec![plain(output.min(len)), decode(gpu.clone(), "")];
        if matches!(what, Ok(shape) if shape.encoding == Encoding::DeltaBinaryPacked) {
            let options = DeviceOptions::default().tensor_sums(true);
            let other = options.open(gpu.ordinal()).unwrap();
            ways.push(decode(other, ", sums by tensor cores"));
        }
        work("columns", output.min(len), turns, ways, json);
    }
}

/// The same of leaves in lists; outputs have offsets and bitmaps as well.
pub(crate) fn nested(
    gpu: &Arc<Device>,
    len: u64,
    turns: u64,
    plain: &dyn Fn(u64) -> Way<'static>,
    json: &mut String,
) {
    let shape = Shape {
        values: Values::Fixed { width: 8 },
        ..Shape::PLAIN
    };
    let pages = (len / (8 * ROWS)).max(1);
    for (name, nest) in [
        ("lists", Nest::of(&[Step::List])),
        ("lists, nullable", Nest::lists(1)),
        ("lists in lists, nullable", Nest::lists(2)),
        ("fixed-size lists of 16", Nest::of(&[Step::Fixed(16)])),
    ] {
        let mut written = Written::default();
        written.leaf(&nest, shape, &[ROWS as usize], &mut Random::new(1));
        let mut leaf = written.leaves.remove(0);
        let page = leaf.leaf.pages.remove(0);
        let body = page.body.start as usize..page.body.end as usize;
        let body = written.arena.bytes[body].to_vec();
        let mut bytes = Vec::new();
        for _ in 0..pages {
            bytes.resize(bytes.len().next_multiple_of(64), 0);
            let begin = bytes.len() as u64;
            bytes.extend_from_slice(&body);
            let mut page = page.clone();
            page.body = begin..bytes.len() as u64;
            leaf.leaf.pages.push(page);
        }
        leaf.levels.repetition = vec![0; leaf.leaf.pages.len()];
        leaf.levels.rows *= pages;
        let leaves = [leaf];
        let read = bytes.len() as u64;
        let there = on_the_device(gpu, bytes);
        let (_, outcomes) = gpu.nested(&there, &[], &leaves, u64::MAX).unwrap();
        let output: u64 = outcomes
            .iter()
            .map(|outcome| match outcome {
                NestedOutcome::Done(leaf) => leaf.values.values.len() as u64,
                _ => 0,
            })
            .sum();
        drop(outcomes);
        let decode = Way::new(
            format!("{name}, {pages} pages, {} MiB of them", read >> 20),
            || {
                let (_, outcomes) = gpu.nested(&there, &[], &leaves, u64::MAX).unwrap();
                assert!(
                    matches!(outcomes[..], [NestedOutcome::Done(_)]),
                    "{outcomes:?}"
                );
            },
        );
        let output = output.min(len);
        work("nested", output, turns, vec![plain(output), decode], json);
    }
}
