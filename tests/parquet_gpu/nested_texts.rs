//! Nested columns whose leaves are strings, dictionaries, deltas, and pages that are decompressed on the device.

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::{Compression, Encoding, Type};
use parquet::file::properties::{EnabledStatistics, WriterPropertiesBuilder, WriterVersion};

use crate::cuda::{STREAMS, nothing_left, session};
use crate::generated::versions;
use crate::mutations::{Random, mutate};
use crate::nested::{batch, fields, texts};
use crate::nesting::base;
use crate::support::{Agreed, agree, whole};
use crate::tables::written;

const ROWS: usize = 130;

/// Without a dictionary, and with these encodings of leaves by their types; others have PLAIN.
fn encoded(
    set: WriterPropertiesBuilder,
    batch: &RecordBatch,
    encoding: impl Fn(Type) -> Option<Encoding>,
) -> WriterPropertiesBuilder {
    let schema = ArrowSchemaConverter::new().convert(&batch.schema());
    let schema = schema.unwrap();
    let leaves = schema.columns().iter();
    leaves.fold(set.set_dictionary_enabled(false), |set, leaf| {
        let encoding = match leaf.physical_type() {
            Type::BOOLEAN => return set,
            other => encoding(other).unwrap_or(Encoding::PLAIN),
        };
        set.set_column_encoding(leaf.path().clone(), encoding)
    })
}

/// Fields of strings that are not to be dictionaries.
fn plain_texts(rows: usize, seed: u64) -> RecordBatch {
    let mut fields = texts();
    fields.truncate(fields.len() - 2);
    batch(fields, rows, seed)
}

/// Fails unless the GPU decoded all of it; gives pages that it decompressed, and that the host did.
fn all_by_gpu(gpu: &Arc<Device>, what: &str, file: &Bytes) -> (u64, u64) {
    let Agreed::Rows(rows, report) = agree(gpu, what, file, &whole) else {
        panic!("{what}");
    };
    assert_eq!(rows.num_columns(), report.columns.len());
    let mut pages = (0, 0);
    for column in &report.columns {
        let by_gpu = column.by_gpu > 0 && column.by_host == 0;
        assert!(by_gpu, "{what}: {column:?}");
        pages.0 += column.decompressed_by_gpu.pages;
        pages.1 += column.decompressed_by_host.pages;
    }
    pages
}

#[test]
fn strings_and_dictionaries_in_both_versions() {
    for (number, version) in versions().into_iter().enumerate() {
        let session = session(STREAMS[number]);
        {
            let gpu = Device::open(0).unwrap();
            let seed = 11 + number as u64;
            // All of them with dictionaries; those that stay such need one.
            let all = batch(texts(), ROWS, seed);
            let file = written(&all, base(version).build());
            all_by_gpu(&gpu, &format!("dictionaries, {version:?}"), &file);
            let some = plain_texts(ROWS, seed);
            // Full after few values: PLAIN pages follow pages of indices.
            let small = base(version).set_dictionary_page_size_limit(60);
            let set = small.set_encoding(Encoding::PLAIN);
            all_by_gpu(
                &gpu,
                &format!("mixed, {version:?}"),
                &written(&some, set.build()),
            );
            let set = encoded(base(version), &some, |_| None);
            all_by_gpu(
                &gpu,
                &format!("plain, {version:?}"),
                &written(&some, set.build()),
            );
        }
        nothing_left(&session);
    }
}

/// Row counts at which words end, each with other values.
#[test]
fn few_rows_of_strings() {
    let session = session("eager");
    {
        let guard = DeviceOptions::default().guard(Guard::Separate);
        let gpu = guard.open(0).unwrap();
        for rows in [1, 2, 8, 31, 32, 33] {
            let batch = batch(texts(), rows, rows as u64);
            let file = written(&batch, base(versions()[rows % 2]).build());
            all_by_gpu(&gpu, &format!("{rows} rows"), &file);
        }
    }
    nothing_left(&session);
}

#[test]
fn deltas_of_numbers_and_of_strings() {
    use Encoding::{DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY};
    let session = session("lazy");
    {
        let all = batch(
            [fields(), {
                let mut texts = texts();
                texts.truncate(texts.len() - 2);
                texts
            }]
            .concat(),
            70,
            21,
        );
        for (number, of_texts) in [DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY]
            .into_iter()
            .enumerate()
        {
            for tensor in [false, true] {
                let options = DeviceOptions::default().tensor_sums(tensor);
                let gpu = options.open(0).unwrap();
                let version = versions()[(number + usize::from(tensor)) % 2];
                let set = encoded(base(version), &all, |kind| match kind {
                    Type::INT32 | Type::INT64 => Some(DELTA_BINARY_PACKED),
                    Type::BYTE_ARRAY => Some(of_texts),
                    _ => None,
                });
                let what = format!("{of_texts}, {version:?}, tensor cores: {tensor}");
                all_by_gpu(&gpu, &what, &written(&all, set.build()));
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn pages_are_decompressed_on_the_device() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let numbers = batch(fields(), 60, 31);
        let strings = batch(texts(), 60, 32);
        for codec in [Compression::SNAPPY, Compression::LZ4_RAW] {
            for (version, batch) in versions().into_iter().zip([&numbers, &strings]) {
                let set = base(version).set_compression(codec);
                let file = written(batch, set.build());
                let what = format!("{codec}, {version:?}");
                let (by_gpu, by_host) = all_by_gpu(&gpu, &what, &file);
                // Of those of version 2 some have levels only, and some are not compressed, as that would not make them shorter.
                let few = version == WriterVersion::PARQUET_2_0 && by_host < by_gpu / 4;
                assert!(
                    by_gpu > 40 && (by_host == 0 || few),
                    "{what}: {by_gpu}, {by_host}"
                );
            }
        }
        let set = base(versions()[0]).set_compression(Compression::ZSTD(Default::default()));
        let (by_gpu, by_host) = all_by_gpu(&gpu, "ZSTD", &written(&strings, set.build()));
        assert!(by_gpu == 0 && by_host > 40, "{by_gpu}, {by_host}");
    }
    nothing_left(&session);
}

#[test]
fn files_with_changed_bytes() {
    const ROUNDS: usize = 150;
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let wanted = ["words", "people", "map_text", "fixed_text", "kinds"];
        let mut fields = texts();
        fields.retain(|field| wanted.contains(&field.name().as_str()));
        let all = batch(fields.clone(), 20, 41);
        fields.retain(|field| field.name() != "kinds");
        let some = batch(fields, 20, 42);
        let set = |version| base(version).set_statistics_enabled(EnabledStatistics::None);
        let deltas = |kind| match kind {
            Type::INT32 | Type::INT64 => Some(Encoding::DELTA_BINARY_PACKED),
            Type::BYTE_ARRAY => Some(Encoding::DELTA_BYTE_ARRAY),
            _ => None,
        };
        let [v1, v2] = versions();
        let files = [
            written(&all, set(v1).set_compression(Compression::SNAPPY).build()),
            written(&all, set(v2).build()),
            written(&some, encoded(set(v1), &some, |_| None).build()),
            written(&some, encoded(set(v2), &some, deltas).build()),
        ];
        let mut random = Random::new(0x5eed_0009);
        let (mut right, mut wrong, mut by_gpu, mut by_host) = (0, 0, 0, 0);
        for round in 0..ROUNDS {
            let mut file = files[round % files.len()].to_vec();
            let end = file.len() - 8;
            let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
            mutate(&mut file[4..end - footer as usize], &mut random);
            let agreed = agree(&gpu, &format!("round {round}"), &file.into(), &whole);
            match &agreed {
                Agreed::Rows(..) => right += 1,
                Agreed::Failed => wrong += 1,
            }
            let (gpu, host) = agreed.counts();
            (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
        }
        eprintln!("{right} right, {wrong} wrong; columns: {by_gpu} by the GPU, {by_host} not");
        assert!(right > 15 && wrong > 15 && by_gpu > 60, "{right} {wrong}");
        assert!(by_host > 0);
    }
    nothing_left(&session);
}
