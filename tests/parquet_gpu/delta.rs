//! Files with the DELTA encodings, by the `parquet` crate's writer: types, ways of being null, layouts of blocks, all widths; and damaged ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray,
};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{
    DeltaBinaryPackedEncoderOptions, EnabledStatistics, WriterProperties, WriterPropertiesBuilder,
    WriterVersion,
};
use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::cuda::{nothing_left, session};
use crate::generated::all_by_gpu;
use crate::mutations::{Random, mutate};
use crate::support::{Agreed, agree, whole};
use crate::tables::{NULLS, Nulls, flat, written};

/// Columns of [`flat`] that are INT32 or INT64 in the file.
const INTEGERS: [&str; 14] = [
    "i8_",
    "i16_",
    "i32_",
    "i64_",
    "u8_",
    "u16_",
    "u32_",
    "u64_",
    "date32_",
    "time32_",
    "time64_",
    "micros_",
    "decimal_9_",
    "decimal_18_",
];

fn integers(rows: usize, ways: &[Nulls]) -> RecordBatch {
    let batch = flat(rows, ways);
    let schema = batch.schema();
    let is = |name: &str| INTEGERS.iter().any(|integer| name.starts_with(integer));
    let fields = schema.fields().iter().enumerate();
    let wanted: Vec<_> = fields
        .filter(|(_, field)| is(field.name()))
        .map(|(at, _)| at)
        .collect();
    assert_eq!(wanted.len(), INTEGERS.len() * ways.len());
    batch.project(&wanted).unwrap()
}

fn deltas(version: WriterVersion) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_writer_version(version)
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .set_statistics_enabled(EnabledStatistics::None)
}

fn both(what: &str, file: &Bytes) {
    for tensor in [false, true] {
        let gpu = DeviceOptions::default()
            .tensor_sums(tensor)
            .open(0)
            .unwrap();
        all_by_gpu(&gpu, &format!("{what}, tensor cores: {tensor}"), file);
    }
}

const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];

#[test]
fn every_integer_in_every_layout_and_version() {
    let session = session("lazy");
    {
        let batch = integers(330, &NULLS);
        for (number, version) in VERSIONS.into_iter().enumerate() {
            for (block, minis) in [(128, 4), (256, 4), (384, 3), (1280, 40)] {
                let layout = DeltaBinaryPackedEncoderOptions::try_new(block, minis).unwrap();
                let codec = [Compression::SNAPPY, Compression::UNCOMPRESSED][number];
                let set = deltas(version)
                    .set_compression(codec)
                    .set_data_page_row_count_limit(if block == 128 { 70 } else { 300 })
                    .set_write_batch_size(10)
                    .set_max_row_group_row_count(Some(200))
                    .set_delta_binary_packed_encoder_options(layout);
                let file = written(&batch, set.build());
                both(&format!("{block}, {minis}, {version:?}"), &file);
            }
        }
    }
    nothing_left(&session);
}

/// Columns whose deltas have each width, of both types, and the ends of these.
fn widths(rows: usize) -> RecordBatch {
    let mut random = Random(7);
    let mut columns: Vec<(String, ArrayRef)> = Vec::new();
    for bits in 0..=64u32 {
        let above = |number: u64| {
            if bits == 0 { 0 } else { number >> (64 - bits) }
        };
        let mut sum = 0u64;
        let mut next = |value: usize| {
            // All of them so far apart that they have so many bits.
            let delta = match value % 5 {
                0 => 0,
                1 => above(u64::MAX),
                _ => above(random.next()),
            };
            sum = sum.wrapping_add(delta);
            sum
        };
        let wide: Vec<i64> = (0..rows).map(|row| next(row) as i64).collect();
        let narrow: Vec<i32> = (0..rows).map(|row| next(row) as i32).collect();
        columns.push((format!("i64_{bits}"), Arc::new(Int64Array::from(wide))));
        if bits <= 32 {
            columns.push((format!("i32_{bits}"), Arc::new(Int32Array::from(narrow))));
        }
    }
    let ends = |row: usize| [i64::MIN, i64::MAX, 0, -1, 1][row * row % 5];
    let wide = (0..rows).map(ends).collect::<Vec<_>>();
    let narrow = (0..rows).map(|row| (ends(row) >> 32) as i32);
    columns.push(("i32_ends".into(), Arc::new(narrow.collect::<Int32Array>())));
    columns.push(("i64_ends".into(), Arc::new(Int64Array::from(wide))));
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn every_width_of_deltas() {
    let session = session("eager");
    {
        let batch = widths(300);
        for version in VERSIONS {
            let set = deltas(version).set_max_row_group_row_count(Some(200));
            both("widths", &written(&batch, set.build()));
        }
    }
    nothing_left(&session);
}

/// Texts that have much in common, and none.
fn strings(rows: usize) -> RecordBatch {
    let text = |row: usize| match row % 7 {
        0 => String::new(),
        1 => "\u{20ac}uro".repeat(row % 5),
        2 => format!("{row}"),
        _ => format!(
            "a beginning of {} and {row} others, {}",
            row / 40,
            "\u{e4}".repeat(row % 3)
        ),
    };
    let all = || (0..rows).map(text);
    let some = || (0..rows).map(|row| (row % 5 != 3).then(|| text(row)));
    let bytes = (0..rows).map(|row| (row % 11 != 2).then(|| vec![row as u8 | 0x80; row % 9]));
    let columns: [(&str, ArrayRef); 5] = [
        ("all", Arc::new(StringArray::from_iter_values(all()))),
        ("some", Arc::new(some().collect::<StringArray>())),
        ("large", Arc::new(some().collect::<LargeStringArray>())),
        ("bytes", Arc::new(bytes.collect::<BinaryArray>())),
        (
            "none",
            Arc::new((0..rows).map(|_| None::<&str>).collect::<StringArray>()),
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(
        columns.map(|(name, array)| (name, array, name != "all")),
    )
    .unwrap()
}

#[test]
fn strings_in_every_layout_and_version() {
    let session = session("lazy");
    {
        let batch = strings(330);
        for encoding in [
            Encoding::DELTA_LENGTH_BYTE_ARRAY,
            Encoding::DELTA_BYTE_ARRAY,
        ] {
            for (number, version) in VERSIONS.into_iter().enumerate() {
                for (block, minis) in [(128, 4), (384, 3)] {
                    let layout = DeltaBinaryPackedEncoderOptions::try_new(block, minis).unwrap();
                    let codec = [Compression::SNAPPY, Compression::UNCOMPRESSED][number];
                    let set = deltas(version)
                        .set_encoding(encoding)
                        .set_compression(codec)
                        .set_data_page_row_count_limit(if block == 128 { 70 } else { 300 })
                        .set_write_batch_size(10)
                        .set_max_row_group_row_count(Some(200))
                        .set_delta_binary_packed_encoder_options(layout);
                    let file = written(&batch, set.build());
                    both(&format!("{encoding}, {block}, {version:?}"), &file);
                }
            }
        }
    }
    nothing_left(&session);
}

/// Dictionaries that are full after few values: pages of deltas follow pages of indices, as writers of the second version make them.
#[test]
fn deltas_behind_indices() {
    let session = session("eager");
    {
        let files = [
            (Encoding::DELTA_BINARY_PACKED, integers(400, &NULLS)),
            (Encoding::DELTA_LENGTH_BYTE_ARRAY, strings(400)),
            (Encoding::DELTA_BYTE_ARRAY, strings(400)),
        ];
        for (encoding, batch) in files {
            let set = deltas(WriterVersion::PARQUET_2_0)
                .set_encoding(encoding)
                .set_dictionary_enabled(true)
                .set_dictionary_page_size_limit(150)
                .set_data_page_row_count_limit(30)
                .set_write_batch_size(10)
                .set_max_row_group_row_count(Some(200));
            let file = written(&batch, set.build());
            let used = encodings(&file, 0);
            assert!(used.contains(&encoding) && used.contains(&Encoding::RLE_DICTIONARY));
            both(&format!("{encoding} behind indices"), &file);
        }
    }
    nothing_left(&session);
}

/// The encodings of a column.
fn encodings(file: &Bytes, column: usize) -> Vec<Encoding> {
    let reader = SerializedFileReader::new(file.clone()).unwrap();
    let group = reader.metadata().row_group(0);
    group.column(column).encodings().collect()
}

#[test]
fn damaged_pages() {
    const ROUNDS: usize = 160;
    const SEED: u64 = 0x5eed_0006;
    let session = session("eager");
    {
        let batch = integers(90, &[Nulls::Required, Nulls::Some]);
        let wanted: Vec<_> = (0..batch.num_columns()).filter(|at| at % 4 == 3).collect();
        let batch = batch.project(&wanted).unwrap();
        let numbers = |version| (batch.clone(), deltas(version));
        let strings = |encoding, version| {
            let set = deltas(version).set_encoding(encoding);
            (strings(90).project(&[0, 1, 3]).unwrap(), set)
        };
        let files = [
            numbers(VERSIONS[0]),
            numbers(VERSIONS[1]),
            strings(Encoding::DELTA_LENGTH_BYTE_ARRAY, VERSIONS[0]),
            strings(Encoding::DELTA_BYTE_ARRAY, VERSIONS[1]),
        ];
        let files = files.map(|(batch, set)| {
            let set = set
                .set_data_page_row_count_limit(40)
                .set_write_batch_size(8);
            written(&batch, set.build()).to_vec()
        });
        let mut random = Random(SEED);
        let (mut right, mut wrong, mut by_gpu, mut by_host) = (0, 0, 0, 0);
        for round in 0..ROUNDS {
            let gpu = DeviceOptions::default().tensor_sums(round % 8 > 3);
            let gpu: Arc<Device> = gpu.open(0).unwrap();
            let mut file = files[round % 4].clone();
            let end = file.len() - 8;
            let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
            mutate(&mut file[4..end - footer as usize], &mut random);
            let what = format!("seed {SEED:#x}, round {round}");
            let agreed = catch_unwind(AssertUnwindSafe(|| {
                agree(&gpu, &what, &file.into(), &whole)
            }));
            let agreed = agreed.unwrap_or_else(|_| panic!("{what}"));
            match &agreed {
                Agreed::Rows(..) => right += 1,
                Agreed::Failed => wrong += 1,
            }
            let (gpu, host) = agreed.counts();
            (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
        }
        eprintln!("{right} right, {wrong} wrong; chunks: {by_gpu} by the GPU, {by_host} not");
        assert!(right > 20 && wrong > 20 && by_gpu > 100, "{right} {wrong}");
    }
    nothing_left(&session);
}
