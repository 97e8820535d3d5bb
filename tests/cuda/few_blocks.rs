//! Launches of few blocks: each goes on to the next tile, page or part until nothing is left, as those of large inputs do. What a block keeps of
//! the one before must not be seen in the next.

use std::sync::Arc;

use feedwater::cuda::columns::{Convert, Encoding, Values};
use feedwater::cuda::decompress::Codec;
use feedwater::cuda::{Checksum, Dense, Device, DeviceOptions, ElementType, Guard, testing};

use crate::columns;
use crate::decompress::{self, compressed, like_a_page};
use crate::delta_strings;
use crate::kernels::{checked, crc_reference, put};
use crate::levels::{Nest, Step, Written};
use crate::nesting;
use crate::pages::*;
use crate::support::*;
use crate::words::{KIND, Kind, column};

/// A device whose launches have so many blocks at most.
fn few(blocks: u32) -> Arc<Device> {
    let options = DeviceOptions::default().guard(Guard::Separate);
    options.blocks(blocks).open(0).unwrap()
}

/// Runs a test with one block, and with three, in which warps meet other tiles; the orders of warps differ, and races are looked for.
fn with_few(test: impl Fn(&Arc<Device>)) {
    for (blocks, order) in [(1, "shuffled:7"), (3, "apart")] {
        let session = checked(order);
        test(&few(blocks));
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{blocks}");
    }
}

const PAGES: [usize; 4] = [2100, 1, 1030, 40];

#[test]
fn flat_columns() {
    use Encoding::{ByteStreamSplit, DeltaBinaryPacked, Dictionary, Plain, Rle};
    let nullable = Shape {
        nullable: true,
        valid: 200,
        style: Style::Mixed,
        bits: 9,
        ..Shape::PLAIN
    };
    let bits = Shape {
        values: Values::Boolean,
        ..nullable
    };
    let mut arena = Arena::default();
    let random = &mut Random::new(1);
    for encoding in [Plain, Dictionary, ByteStreamSplit, DeltaBinaryPacked] {
        let shape = Shape {
            encoding,
            ..nullable
        };
        arena.column(shape, &PAGES, random);
    }
    let widened = Shape {
        convert: Convert::Widen { to: 8 },
        nullable: false,
        ..nullable
    };
    arena.column(widened, &PAGES, random);
    for encoding in [Plain, Rle] {
        arena.column(Shape { encoding, ..bits }, &PAGES, random);
    }
    with_few(|gpu| assert_eq!(columns::compare(gpu, &arena, "flat"), 0));
}

#[test]
fn strings() {
    use Encoding::{Dictionary, Plain};
    let mut arena = Arena::default();
    let random = &mut Random::new(2);
    let kind = Kind {
        encodings: &[Plain, Dictionary],
        nullable: true,
        valid: 200,
        ..KIND
    };
    column(&mut arena, kind, &PAGES, random);
    // More parts of 8 KiB than blocks.
    let long = Kind { len: 60, ..KIND };
    column(&mut arena, long, &[700, 300], random);
    let decimals = Kind {
        words: crate::words::Words::Short(16),
        convert: Convert::WidenBigEndian { to: 16 },
        ..KIND
    };
    column(&mut arena, decimals, &[1100, 9], random);
    with_few(|gpu| assert_eq!(columns::compare(gpu, &arena, "strings"), 0));
    let deltas = delta_strings::few(2100);
    with_few(|gpu| assert_eq!(columns::compare(gpu, &deltas, "deltas"), 0));
}

#[test]
fn lists() {
    let mut written = Written::default();
    let random = &mut Random::new(3);
    let shape = Shape {
        style: Style::Mixed,
        ..Shape::PLAIN
    };
    for nest in [
        Nest::list(),
        Nest::lists(2),
        Nest::of(&[Step::Optional, Step::Fixed(3)]),
    ] {
        written.leaf(&nest, shape, &[2100, 30, 1030], random);
    }
    with_few(|gpu| assert_eq!(nesting::compare(gpu, &written, "lists"), 0));
}

#[test]
fn pages_are_decompressed() {
    let random = &mut Random::new(4);
    let pages: Vec<_> = (0..14)
        .map(|number| {
            let codec = [Codec::Snappy, Codec::Lz4][number % 2];
            compressed(codec, &like_a_page(300 + number * 37, random))
        })
        .collect();
    with_few(|gpu| assert_eq!(decompress::compare(gpu, &pages, 1, "pages"), pages.len()));
}

#[test]
fn sums_checksums_and_tensors() {
    let mut random = Random::new(5);
    let mut row = || {
        (0..2500)
            .map(|_| random.below(1 << 34))
            .collect::<Vec<u64>>()
    };
    let rows = [row(), row(), row()];
    let sums = rows.iter().map(|row| {
        let mut sums = vec![0];
        row.iter()
            .for_each(|number| sums.push(sums[sums.len() - 1] + number));
        sums
    });
    let sums: Vec<_> = sums.collect();
    let bytes = data(3000);
    let segments: Vec<_> = (0..30u64).map(|at| at * 97..at * 97 + 60 + at).collect();
    let checksums: Vec<_> = segments
        .iter()
        .map(|range| {
            crc_reference(
                Checksum::Crc32c,
                &bytes[range.start as usize..range.end as usize],
            )
        })
        .collect();
    let floats: Vec<u8> = bytes
        .iter()
        .flat_map(|byte| f32::from(*byte).to_le_bytes())
        .collect();
    with_few(|gpu| {
        assert!(testing::sums(gpu, &rows).unwrap() == sums);
        let there = put(gpu, &bytes, 1);
        assert_eq!(
            gpu.checksums(Checksum::Crc32c, &there, &segments).unwrap(),
            checksums
        );
        let cast = Dense::cast(&[3000], ElementType::U8, ElementType::F32);
        let made = gpu.dense(&cast, &there).unwrap();
        assert!(gpu.to_host(&made).unwrap() == floats);
    });
}
