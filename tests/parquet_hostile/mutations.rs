//! Small files with bytes changed at random, the same for each seed.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int32Array, RecordBatch};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::{Outcome, scanned, through_source};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

const ROWS: usize = 60;

fn batch() -> RecordBatch {
    let numbers = (0..ROWS as i32).map(|n| (n % 7 != 0).then_some(n * 31));
    let mut lists = ListBuilder::new(StringBuilder::new());
    let mut texts = StringBuilder::new();
    for row in 0..ROWS {
        for item in 0..row % 4 {
            lists.values().append_value(["one", "two", "three"][item]);
        }
        lists.append(row % 5 != 0);
        texts.append_value(format!("text number {}", row % 11));
    }
    let columns: [(&str, ArrayRef); 5] = [
        ("numbers", Arc::new(numbers.collect::<Int32Array>())),
        (
            "floats",
            Arc::new(Float64Array::from_iter_values((0..ROWS).map(|n| n as f64))),
        ),
        (
            "flags",
            Arc::new(
                (0..ROWS)
                    .map(|n| Some(n % 3 == 0))
                    .collect::<BooleanArray>(),
            ),
        ),
        ("texts", Arc::new(texts.finish())),
        ("lists", Arc::new(lists.finish())),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn file(properties: WriterProperties) -> Vec<u8> {
    let batch = batch();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

/// Codecs, encodings, both versions of data pages, with and without page indexes.
fn files() -> Vec<Vec<u8>> {
    let base = || {
        WriterProperties::builder()
            .set_data_page_row_count_limit(16)
            .set_write_batch_size(8)
    };
    let plain = || base().set_dictionary_enabled(false);
    let v2 = WriterVersion::PARQUET_2_0;
    let sets = [
        base(),
        base().set_compression(Compression::SNAPPY),
        base().set_compression(Compression::LZ4),
        base()
            .set_compression(Compression::LZ4_RAW)
            .set_writer_version(v2),
        base().set_compression(Compression::GZIP(Default::default())),
        base().set_compression(Compression::BROTLI(Default::default())),
        base()
            .set_compression(Compression::ZSTD(Default::default()))
            .set_writer_version(v2),
        plain(),
        plain().set_writer_version(v2),
        plain()
            .set_column_encoding("numbers".into(), Encoding::DELTA_BINARY_PACKED)
            .set_column_encoding("texts".into(), Encoding::DELTA_BYTE_ARRAY)
            .set_column_encoding("floats".into(), Encoding::BYTE_STREAM_SPLIT),
        plain()
            .set_column_encoding("texts".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY)
            .set_column_encoding("flags".into(), Encoding::RLE)
            .set_offset_index_disabled(true),
    ];
    sets.into_iter().map(|set| file(set.build())).collect()
}

/// Changes that damage does, and that hostile people make.
fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(file.len());
        match random.below(6) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = random.next() as u8,
            2 => file[at] = [0, 0x7f, 0x80, 0xff][random.below(4)],
            3 => {
                // Numbers at their ends, as varints and as they are.
                let end = (at + 5).min(file.len());
                let number = [0xff, 0xff, 0xff, 0xff, 0x0f];
                file[at..end].copy_from_slice(&number[..end - at]);
            }
            4 => {
                let len = random.below(32).min(file.len() - at);
                let from = random.below(file.len() - len + 1);
                file.copy_within(from..from + len, at);
            }
            _ => {
                let end = (at + 1 + random.below(16)).min(file.len());
                let kept = file.len() - (end - at);
                // What is left must still be called a file.
                if kept > 12 {
                    file.drain(at..end);
                }
            }
        }
    }
}

fn fuzz(seed: u64, rounds: usize, mut at: impl FnMut(&mut Vec<u8>, &mut Random)) -> [usize; 4] {
    let files = files();
    let mut random = Random(seed);
    let mut seen = [0; 4];
    for round in 0..rounds {
        let mut file = files[round % files.len()].clone();
        at(&mut file, &mut random);
        let file = Bytes::from(file);
        let outcome = std::panic::catch_unwind(|| {
            through_source(&file);
            scanned(&file, 1 + round % 2)
        });
        let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed}, round {round}"));
        seen[match outcome {
            Outcome::Rows(_) => 0,
            Outcome::Malformed => 1,
            Outcome::Unsupported => 2,
            Outcome::Panicked => 3,
        }] += 1;
    }
    eprintln!("rows, malformed, unsupported, panicked: {seen:?}");
    seen
}

#[test]
fn the_files_are_right_before_they_are_changed() {
    for file in files() {
        assert_eq!(scanned(&file.into(), 2), Outcome::Rows(ROWS));
    }
}

#[test]
fn anywhere_in_a_file() {
    let seen = fuzz(0x5eed_0001, 1500, mutate);
    // Both happen, or the changes are too weak or too strong to find anything.
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}

#[test]
fn in_footers() {
    let seen = fuzz(0x5eed_0002, 1500, |file, random| {
        let end = file.len() - 8;
        let length = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
        let mut footer = file.split_off(end - length as usize);
        let tail = footer.split_off(footer.len() - 8);
        mutate(&mut footer, random);
        file.extend(&footer);
        file.extend((footer.len() as u32).to_le_bytes());
        file.extend(&tail[4..]);
    });
    assert!(seen[1] > 100, "{seen:?}");
}

#[test]
fn in_pages() {
    let seen = fuzz(0x5eed_0003, 1500, |file, random| {
        let end = file.len() - 8;
        let length = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
        let footer = file.split_off(end - length as usize);
        let len = file.len();
        mutate(file, random);
        // Offsets of the footer stay right for what did not move.
        file.resize(len, 0);
        file.extend(footer);
    });
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}
