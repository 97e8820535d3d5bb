//! Decoded columns, beside a copy of as many bytes as come out.

use std::sync::Arc;

use feedwater::cuda::columns::{
    Column, Convert, Encoding, Leaf, Marks, Nested, NestedOutcome, Outcome, Page, Selection, Slots,
    Values,
};
use feedwater::cuda::testing::Kernels as _;
use feedwater::cuda::{Device, DeviceOptions};

use super::levels::{Nest, Step, Written};
use super::pages::{Arena, Random, Shape, Style, signed, varint};
use super::words::{KIND, Kind, Words, column};
use super::{Way, number, on_the_device, work};

/// Rows of a page. Writers make pages of 1 MiB, which is as many numbers of 8 bytes. Fewer are enough to see that all of it runs.
fn rows() -> u64 {
    number("FEEDWATER_BENCH_ROWS", 1 << 17)
}

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
fn texts_of_a_page() -> usize {
    rows() as usize * 2 / 5
}

/// A page of strings whose lengths are deltas, from 9 to 24 bytes; with `prefixes` they all begin with half of the one before, as sorted ones do.
fn deltas_page(arena: &mut Arena, prefixes: bool, random: &mut Random) {
    let count = texts_of_a_page();
    let lens: Vec<i64> = (0..count).map(|_| 9 + random.below(16) as i64).collect();
    let mut body = Vec::new();
    let mut kept: Vec<i64> = vec![0; count];
    if prefixes {
        for at in 1..count {
            // Every hundredth begins anew, from where a warp can begin.
            if at % 100 > 0 {
                kept[at] = lens[at].min(lens[at - 1]) / 2;
            }
        }
        stream(&mut body, &kept);
    }
    let stored: Vec<i64> = lens
        .iter()
        .zip(&kept)
        .map(|(len, kept)| len - kept)
        .collect();
    stream(&mut body, &stored);
    let bytes: i64 = stored.iter().sum();
    body.extend((0..bytes).map(|_| b'a' + random.below(26) as u8));
    let page = Page {
        body: arena.push(&body),
        v1: true,
        def_len: 0,
        entries: count as u64,
        nulls: None,
        encoding: match prefixes {
            true => Encoding::DeltaByteArray,
            false => Encoding::DeltaLengthByteArray,
        },
    };
    arena.columns.push(Column {
        values: Values::Bytes {
            large: false,
            utf8: true,
        },
        nullable: false,
        dictionary: None,
        pages: vec![page],
        convert: Convert::Same,
    });
}

/// Numbers below 32 as DELTA_BINARY_PACKED: blocks of 128, whose deltas have 6 bits above the least.
fn stream(out: &mut Vec<u8>, numbers: &[i64]) {
    for number in [128, 4, numbers.len() as u64] {
        varint(out, number);
    }
    signed(out, numbers[0]);
    let deltas: Vec<i64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for block in deltas.chunks(128) {
        signed(out, -32);
        out.extend([6; 4]);
        for mini in block.chunks(32) {
            let mut packed = [0u8; 24];
            for (at, delta) in mini.iter().enumerate() {
                for bit in 0..6 {
                    let place = at * 6 + bit;
                    packed[place / 8] |= (((delta + 32) >> bit & 1) as u8) << (place % 8);
                }
            }
            out.extend(packed);
        }
    }
}

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
        (
            "dictionary of strings, kept",
            Kind {
                convert: Convert::Indices { to: 4 },
                ..dictionary
            },
        ),
        (
            "decimals of any length",
            Kind {
                words: Words::Short(16),
                convert: Convert::WidenBigEndian { to: 16 },
                ..plain
            },
        ),
    ]
}

/// What a page is made of.
#[derive(Clone, Copy)]
enum What {
    Shape(Shape),
    Kind(Kind),
    Deltas(bool),
}

/// The column of an arena, with its page so many times.
fn repeated(arena: &mut Arena, pages: u64) -> Column {
    let mut column = arena.columns.remove(0);
    let page = column.pages.remove(0);
    let body = arena.bytes[page.body.start as usize..page.body.end as usize].to_vec();
    for _ in 0..pages {
        let begin = arena.bytes.len().next_multiple_of(64);
        arena.bytes.resize(begin, 0);
        arena.bytes.extend_from_slice(&body);
        let mut page = page.clone();
        page.body = begin as u64..arena.bytes.len() as u64;
        column.pages.push(page);
    }
    column
}

/// The leaf, with its page so many times, and the bytes of these.
fn repeated_leaf(mut written: Written, pages: u64) -> (Nested, Vec<u8>) {
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
    (leaf, bytes)
}

/// Each kind, with outputs of up to `len` bytes; `plain` makes the way that it is compared with.
pub(crate) fn columns(
    gpu: &Arc<Device>,
    len: u64,
    turns: u64,
    plain: &dyn Fn(u64) -> Way<'static>,
    json: &mut String,
) {
    let pages = (len / (8 * rows())).max(1);
    let shapes = kinds().into_iter();
    let shapes = shapes.map(|(name, shape)| (name, What::Shape(shape)));
    let texts = texts().into_iter();
    let texts = texts.map(|(name, kind)| (name, What::Kind(kind)));
    let deltas = [
        ("strings by lengths in deltas", What::Deltas(false)),
        ("strings that begin as others", What::Deltas(true)),
    ];
    for (name, what) in shapes.chain(texts).chain(deltas) {
        // One page, many times over, so that none is in a cache because of another.
        let mut arena = Arena::default();
        let random = &mut Random::new(1);
        let each = match what {
            What::Shape(shape) => {
                arena.column(shape, &[rows() as usize], random);
                match shape.values {
                    Values::Boolean => rows() / 8,
                    _ => rows() * 8,
                }
            }
            What::Kind(kind) => {
                column(&mut arena, kind, &[texts_of_a_page()], random);
                texts_of_a_page() as u64 * 16
            }
            What::Deltas(prefixes) => {
                deltas_page(&mut arena, prefixes, random);
                texts_of_a_page() as u64 * 16
            }
        };
        let columns = [repeated(&mut arena, pages)];
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
        let has_deltas = match what {
            What::Shape(shape) => shape.encoding == Encoding::DeltaBinaryPacked,
            What::Kind(_) => false,
            What::Deltas(_) => true,
        };
        if has_deltas {
            let options = DeviceOptions::default().tensor_sums(true);
            let other = options.open(gpu.ordinal()).unwrap();
            ways.push(decode(other, ", sums by tensor cores"));
        }
        // What another time found of where tiles begin.
        let marks = |known: &[Option<Arc<Marks>>]| {
            let (outcomes, _, marks) = gpu
                .marked(&there, &columns, &[], u64::MAX, Some(known))
                .unwrap();
            assert!(matches!(outcomes[..], [Outcome::Done(_)]), "{outcomes:?}");
            marks
        };
        if let [Some(known)] = &marks(&[None])[..] {
            let known = [Some(Arc::new(known.clone()))];
            let again = move || drop(marks(&known));
            ways.push(Way::new(format!("{name}, tiles known from before"), again));
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
    let pages = (len / (8 * rows())).max(1);
    for (name, nest) in [
        ("lists", Nest::of(&[Step::List])),
        ("lists, nullable", Nest::lists(1)),
        ("lists in lists, nullable", Nest::lists(2)),
        ("fixed-size lists of 16", Nest::of(&[Step::Fixed(16)])),
        (
            "structs, nullable",
            Nest::of(&[Step::Optional, Step::Optional]),
        ),
        ("strings in lists, nullable", Nest::lists(1)),
    ] {
        let mut written = Written::default();
        let random = &mut Random::new(1);
        match name.starts_with("strings") {
            true => written.words(&nest, Kind { len: 21, ..KIND }, &[rows() as usize], random),
            false => written.leaf(&nest, shape, &[rows() as usize], random),
        }
        let (leaf, bytes) = repeated_leaf(written, pages);
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
        let [NestedOutcome::Done(first)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        let (lists, offsets) = (first.slots[0], first.offsets.first().cloned().flatten());
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
        let mut ways = vec![plain(output), decode];
        // What another time found of where tiles begin.
        let marks = |known: &[Option<Arc<Marks>>]| {
            let (_, outcomes, marks) = gpu
                .marked(&there, &[], &leaves, u64::MAX, Some(known))
                .unwrap();
            assert!(
                matches!(outcomes[..], [NestedOutcome::Done(_)]),
                "{outcomes:?}"
            );
            marks
        };
        if let [Some(known)] = &marks(&[None])[..] {
            let known = [Some(Arc::new(known.clone()))];
            let again = move || drop(marks(&known));
            ways.push(Way::new(format!("{name}, tiles known from before"), again));
        }
        if let Some(offsets) = offsets {
            // As where a tensor is made of lists, which then have one size.
            ways.push(Way::new(
                format!("{name}, whether sizes are 2"),
                move || {
                    let _ = gpu.uneven(&offsets, 4, lists, 2).unwrap();
                },
            ));
        }
        work("nested", output, turns, ways, json);
    }
}

/// Leaves of which some rows are wanted: decoded from pages, with what their values are.
fn leaves(gpu: &Arc<Device>, len: u64) -> Vec<(&'static str, Selection)> {
    let pages = (len / (8 * rows())).max(1);
    let random = &mut Random::new(1);
    let eight = Shape {
        values: Values::Fixed { width: 8 },
        ..Shape::PLAIN
    };
    let nullable = Shape {
        nullable: true,
        valid: 200,
        ..eight
    };
    let booleans = Shape {
        values: Values::Boolean,
        ..nullable
    };
    let wide = Slots::Fixed { width: 8 };
    let mut all = Vec::new();
    for (name, slots, shape) in [
        ("8 bytes", wide, Some(eight)),
        ("8 bytes, nullable", wide, Some(nullable)),
        ("booleans, nullable", Slots::Bits, Some(booleans)),
        ("strings of 16 bytes", Slots::Text { large: false }, None),
    ] {
        let mut arena = Arena::default();
        match shape {
            Some(shape) => arena.column(shape, &[rows() as usize], random),
            None => column(
                &mut arena,
                Kind { len: 21, ..KIND },
                &[texts_of_a_page()],
                random,
            ),
        }
        let columns = [repeated(&mut arena, pages)];
        let there = on_the_device(gpu, arena.bytes);
        let Ok([Outcome::Done(values)]) =
            <[_; 1]>::try_from(gpu.columns(&there, &columns).unwrap())
        else {
            panic!("{name} cannot be decoded");
        };
        let leaf = Leaf {
            slots: vec![values.rows],
            values,
            offsets: Vec::new(),
            valid: Vec::new(),
        };
        let selection = Selection {
            leaf,
            slots,
            lists: Vec::new(),
            valid: Vec::new(),
            rows: Vec::new(),
        };
        all.push((name, selection));
    }
    let mut written = Written::default();
    written.leaf(&Nest::list(), eight, &[rows() as usize], random);
    let (leaf, bytes) = repeated_leaf(written, pages);
    let there = on_the_device(gpu, bytes);
    let (lists, valid) = (leaf.levels.lists.clone(), leaf.levels.valid.clone());
    let (_, outcomes) = gpu.nested(&there, &[], &[leaf], u64::MAX).unwrap();
    let Ok([NestedOutcome::Done(leaf)]) = <[_; 1]>::try_from(outcomes) else {
        panic!("lists cannot be decoded");
    };
    let selection = Selection {
        leaf,
        slots: wide,
        lists,
        valid,
        rows: Vec::new(),
    };
    all.push(("lists of 8 bytes, nullable", selection));
    all
}

/// Some rows of what is decoded, an eighth of `len` bytes for each leaf.
pub(crate) fn select(
    gpu: &Arc<Device>,
    len: u64,
    turns: u64,
    plain: &dyn Fn(u64) -> Way<'static>,
    json: &mut String,
) {
    for (name, selection) in leaves(gpu, len / 8) {
        let all = selection.leaf.slots[0];
        let ranges = |len: u64, step: u64| {
            let begins = (0..all / step).map(move |at| at * step);
            begins.map(|begin| begin..begin + len).collect::<Vec<_>>()
        };
        let half = all / 4..all - all / 4;
        for (choice, rows) in [
            ("half of the rows at once", vec![half]),
            ("100 rows of 200", ranges(100, 200)),
            ("every eighth row", ranges(1, 8)),
        ] {
            let count = rows.len();
            let selections = [Selection {
                rows,
                ..selection.clone()
            }];
            let made = gpu.select(&selections).unwrap();
            let output = bytes_of(&made[0]);
            drop(made);
            let select = Way::new(format!("{name}, {choice}, {count} ranges"), || {
                gpu.select(&selections).unwrap();
            });
            let output = output.min(len);
            work("select", output, turns, vec![plain(output), select], json);
        }
    }
}

/// Bytes of all buffers of a leaf.
fn bytes_of(leaf: &Leaf) -> u64 {
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
