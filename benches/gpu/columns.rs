//! Decoded columns, beside a copy of as many bytes as come out.

use std::sync::Arc;

use feedwater::cuda::columns::{Convert, Encoding, Outcome, Values};
use feedwater::cuda::{Device, DeviceOptions};

use super::pages::{Arena, Random, Shape, Style};
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

/// Each kind, with outputs of up to `len` bytes; `plain` makes the way that it is compared with.
pub(crate) fn columns(
    gpu: &Arc<Device>,
    len: u64,
    turns: u64,
    plain: &dyn Fn(u64) -> Way<'static>,
    json: &mut String,
) {
    let pages = (len / (8 * ROWS)).max(1);
    for (name, shape) in kinds() {
        // One page, many times over, so that none is in a cache because of another.
        let mut arena = Arena::default();
        arena.column(shape, &[ROWS as usize], &mut Random::new(1));
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
        let output = match shape.values {
            Values::Boolean => pages * ROWS / 8,
            Values::Fixed { .. } | Values::Bytes { .. } => pages * ROWS * 8,
        };
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
        if shape.encoding == Encoding::DeltaBinaryPacked {
            let options = DeviceOptions::default().tensor_sums(true);
            let other = options.open(gpu.ordinal()).unwrap();
            ways.push(decode(other, ", sums by tensor cores"));
        }
        work("columns", output.min(len), turns, ways, json);
    }
}
