//! The files that are measured. What is in them is drawn by a generator of random numbers with a fixed seed.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, ListBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array,
    RecordBatch, StringArray, TimestampMicrosecondArray,
};
use feedwater::parquet::WriterOptions;
use feedwater::safetensors::{Dtype, NewTensor};
use feedwater::tfrecord::{ExampleEncoder, Writer};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};

/// Floats of an embedding in `embeddings`.
const DIM: usize = 384;

/// Rows that are made at once.
const STEP: usize = 50_000;

const ROW_GROUP: usize = 500_000;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Random(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// From -1 to 1, with all bits of a fraction drawn.
    fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// A value, or null in so many of 100.
    fn or_null<T>(&mut self, percent: u64, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let value = value(self);
        (self.below(100) >= percent).then_some(value)
    }
}

/// The flat columns, or the six of `enc_delta`.
fn flat(random: &mut Random, rows: std::ops::Range<usize>, all: bool) -> RecordBatch {
    let n = rows.len();
    let mut columns: Vec<(&str, ArrayRef, bool)> = Vec::new();
    let ids = rows.clone().map(|row| row as i64 + 10_000_000);
    columns.push(("id", Arc::new(Int64Array::from_iter_values(ids)), true));
    let mut at = 1_700_000_000_000_000 + rows.start as i64 * 2500;
    let times = (0..n).map(|_| {
        at += random.below(5000) as i64;
        at
    });
    let times = TimestampMicrosecondArray::from_iter_values(times);
    columns.push(("ts", Arc::new(times), true));
    let numbers = (0..n).map(|_| random.below(20_000) as i32);
    columns.push(("k32", Arc::new(Int32Array::from_iter_values(numbers)), true));
    if all {
        let numbers: Int64Array = (0..n)
            .map(|_| random.or_null(10, |random| random.below(1 << 41) as i64 - (1 << 40)))
            .collect();
        columns.push(("i64n", Arc::new(numbers), true));
    }
    let numbers: Float64Array = (0..n).map(|_| random.or_null(5, Random::float)).collect();
    columns.push(("f64n", Arc::new(numbers), true));
    let numbers = (0..n).map(|_| random.float() as f32);
    columns.push((
        "f32",
        Arc::new(Float32Array::from_iter_values(numbers)),
        true,
    ));
    if all {
        let flags: BooleanArray = (0..n)
            .map(|_| random.or_null(2, |random| random.below(10) < 3))
            .collect();
        columns.push(("flag", Arc::new(flags), true));
        let strings: Vec<String> = (0..500)
            .map(|i| format!("category-{i:03}-{}", "x".repeat(i % 13)))
            .collect();
        let strings: StringArray = (0..n)
            .map(|_| random.or_null(10, |random| strings[random.below(500) as usize].as_str()))
            .collect();
        columns.push(("cat", Arc::new(strings), true));
    }
    let urls = rows.map(|row| {
        let key = random.below(1 << 32);
        format!("https://example.org/item/{row:09}?k={key:08x}")
    });
    let urls = StringArray::from_iter_values(urls);
    columns.push(("url", Arc::new(urls), true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns")
}

/// Pages of 1 MiB, as most writers make them.
fn properties(codec: Compression) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(codec)
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_data_page_row_count_limit(usize::MAX)
}

fn write(
    path: &Path,
    properties: WriterPropertiesBuilder,
    rows: usize,
    mut make: impl FnMut(std::ops::Range<usize>) -> RecordBatch,
) {
    let first = make(0..0);
    let options = WriterOptions::new().properties(properties.build());
    let mut writer = options.create(path, first.schema()).expect("create");
    let mut at = 0;
    while at < rows {
        let end = rows.min(at + STEP);
        writer.write(&make(at..end)).expect("write");
        at = end;
    }
    writer.commit().expect("commit");
}

pub(crate) fn flat_snappy(path: &Path, rows: usize) {
    let mut random = Random::new();
    let make = |range| flat(&mut random, range, true);
    write(path, properties(Compression::SNAPPY), rows, make);
}

pub(crate) fn flat_zstd(path: &Path, rows: usize) {
    let mut random = Random::new();
    let make = |range| flat(&mut random, range, true);
    let codec = Compression::ZSTD(ZstdLevel::default());
    write(path, properties(codec), rows, make);
}

pub(crate) fn enc_delta(path: &Path, rows: usize) {
    let mut random = Random::new();
    let make = |range| flat(&mut random, range, false);
    let mut properties = properties(Compression::SNAPPY).set_dictionary_enabled(false);
    for (column, encoding) in [
        ("id", Encoding::DELTA_BINARY_PACKED),
        ("ts", Encoding::DELTA_BINARY_PACKED),
        ("k32", Encoding::DELTA_BINARY_PACKED),
        ("f64n", Encoding::BYTE_STREAM_SPLIT),
        ("f32", Encoding::BYTE_STREAM_SPLIT),
        ("url", Encoding::DELTA_BYTE_ARRAY),
    ] {
        properties = properties.set_column_encoding(column.into(), encoding);
    }
    write(path, properties, rows, make);
}

pub(crate) fn embeddings(path: &Path, mib: usize) {
    let rows = ((mib << 20) / (DIM * 4)).max(10);
    let mut random = Random::new();
    let properties = properties(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(rows / 10));
    write(path, properties, rows, |range| {
        let ids = range.clone().map(|row| row as i64);
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
        let mut lists = ListBuilder::new(Float32Builder::new());
        for _ in range {
            let there = random.below(100) > 0;
            if there {
                let values = lists.values();
                (0..DIM).for_each(|_| values.append_value(random.float() as f32));
            }
            lists.append(there);
        }
        let lists: ArrayRef = Arc::new(lists.finish());
        let columns = [("id", ids, true), ("embedding", lists, true)];
        RecordBatch::try_from_iter_with_nullable(columns).expect("columns")
    });
}

/// The flat columns in pages of 48 rows, with the page index, for random rows; dictionaries only where values come again:
/// each that a row needs a page of is read with it.
pub(crate) fn small_pages(path: &Path, rows: usize) {
    let mut random = Random::new();
    let make = |range| flat(&mut random, range, true);
    let properties = properties(Compression::SNAPPY)
        .set_data_page_row_count_limit(48)
        .set_write_batch_size(48)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled("cat".into(), true);
    write(path, properties, rows, make);
}

/// Records of about 50 KiB: an image, a label, 128 floats.
pub(crate) fn images(path: &Path, mib: usize) {
    const SIZE: usize = 50 << 10;
    let mut random = Random::new();
    let pool: Vec<u8> = (0..8 << 20).map(|_| random.next() as u8).collect();
    let count = ((mib << 20) / SIZE).max(1);
    examples(path, count, 500, |rows| {
        let images = (0..rows).map(|_| {
            let len = SIZE * 4 / 5 + random.below(SIZE as u64 * 2 / 5) as usize;
            let at = random.below((pool.len() - len) as u64) as usize;
            &pool[at..at + len]
        });
        let images: ArrayRef = Arc::new(BinaryArray::from_iter_values(images));
        let columns = [
            ("image", images),
            ("label", labels(&mut random, rows)),
            ("embedding", floats(&mut random, rows, 128)),
        ];
        RecordBatch::try_from_iter(columns).expect("columns")
    });
}

/// Records of about 60 bytes: a label, 4 floats.
pub(crate) fn tiny(path: &Path, count: usize) {
    let mut random = Random::new();
    examples(path, count, STEP, |rows| {
        let label = labels(&mut random, rows);
        let columns = [("label", label), ("x", floats(&mut random, rows, 4))];
        RecordBatch::try_from_iter(columns).expect("columns")
    });
}

fn labels(random: &mut Random, rows: usize) -> ArrayRef {
    let labels = (0..rows).map(|_| random.below(1000) as i64);
    Arc::new(Int64Array::from_iter_values(labels))
}

fn floats(random: &mut Random, rows: usize, each: usize) -> ArrayRef {
    let mut lists = FixedSizeListBuilder::new(Float32Builder::new(), each as i32);
    for _ in 0..rows {
        (0..each).for_each(|_| lists.values().append_value(random.float() as f32));
        lists.append(true);
    }
    Arc::new(lists.finish())
}

fn examples(path: &Path, count: usize, step: usize, mut make: impl FnMut(usize) -> RecordBatch) {
    let mut writer = Writer::create(path).expect("create");
    let mut record = Vec::new();
    let mut left = count;
    while left > 0 {
        let batch = make(left.min(step));
        let mut encoder = ExampleEncoder::new(&batch).expect("encoder");
        for row in 0..batch.num_rows() {
            record.clear();
            encoder.encode(row, &mut record).expect("encode");
            writer.write(&record).expect("write");
        }
        left -= batch.num_rows();
    }
    writer.commit().expect("commit");
}

/// A model: most bytes in large tensors, most tensors small.
pub(crate) fn model(path: &Path, mib: usize) {
    let mut random = Random::new();
    let pool: Vec<u8> = (0..32 << 20).map(|_| random.next() as u8).collect();
    let mut tensors = Vec::new();
    let mut left = mib << 20;
    while left > 0 {
        let layer = tensors.len();
        let len = match layer % 8 {
            0 => 32 << 20,
            1 | 2 => 2 << 20,
            _ => 16 << 10,
        };
        let len = left.min(len) / 4 * 4;
        if len == 0 {
            break;
        }
        left -= len;
        let name = format!("model.layers.{layer:03}.weight");
        tensors.push(NewTensor::new(name, Dtype::F32, [len / 4], &pool[..len]));
    }
    feedwater::safetensors::save(path, &tensors, &Default::default()).expect("save");
}
