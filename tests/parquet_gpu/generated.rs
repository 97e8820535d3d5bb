//! Files that are made here: encodings, types, ways of being null, versions of pages, codecs.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::DataType;
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

use crate::cuda::{STREAMS, nothing_left, session};
use crate::support::{Agreed, agree, whole};
use crate::tables::{NULLS, Nulls, flat, written};

/// Small enough for an interpreter, and of several pages and row groups.
pub(crate) const ROWS: usize = 330;
pub(crate) const GROUPS: u64 = 2;

pub(crate) fn base() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_row_count_limit(70)
        .set_write_batch_size(10)
        .set_max_row_group_row_count(Some(200))
}

pub(crate) fn versions() -> [WriterVersion; 2] {
    [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]
}

pub(crate) fn codecs() -> [Compression; 7] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::ZSTD(Default::default()),
    ]
}

/// This encoding where there is no dictionary; booleans have PLAIN, and RLE in the second version.
pub(crate) fn encoded(
    set: WriterPropertiesBuilder,
    batch: &RecordBatch,
    encoding: Encoding,
) -> WriterPropertiesBuilder {
    let fields = batch.schema();
    let fields = fields.fields().iter();
    fields.fold(set, |set, field| match field.data_type() {
        DataType::Boolean => set,
        _ => set.set_column_encoding(field.name().as_str().into(), encoding),
    })
}

/// Fails unless the GPU decoded every row group of every column.
pub(crate) fn all_by_gpu(gpu: &Arc<Device>, what: &str, file: &Bytes) {
    let agreed = agree(gpu, what, file, &whole);
    let Agreed::Rows(rows, report) = agreed else {
        panic!("{what}");
    };
    assert_eq!(rows.num_columns(), report.columns.len());
    for column in &report.columns {
        let counts = (column.by_gpu, column.by_host);
        assert_eq!(counts, (GROUPS, 0), "{what}: {column:?}");
    }
}

#[test]
fn every_type_in_every_encoding_and_version() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = flat(ROWS, &NULLS);
        for version in versions() {
            let set = |dictionary| {
                base()
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
            };
            let (plain, split) = (Encoding::PLAIN, Encoding::BYTE_STREAM_SPLIT);
            // Full after few values: PLAIN pages follow pages of indices.
            let small = set(true).set_dictionary_page_size_limit(150);
            let ways = [
                ("dictionaries", set(true)),
                ("mixed", encoded(small, &batch, plain)),
                ("plain", encoded(set(false), &batch, plain)),
                ("split", encoded(set(false), &batch, split)),
            ];
            for (way, set) in ways {
                let file = written(&batch, set.build());
                all_by_gpu(&gpu, &format!("{way}, {version:?}"), &file);
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn every_codec() {
    let batch = flat(ROWS, &[Nulls::Some]);
    for (number, codec) in codecs().into_iter().enumerate() {
        let session = session(STREAMS[number % 2]);
        {
            let gpu = Device::open(0).unwrap();
            for version in versions() {
                let set = base().set_writer_version(version).set_compression(codec);
                let file = written(&batch, set.build());
                all_by_gpu(&gpu, &format!("{codec}, {version:?}"), &file);
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn int96() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for version in versions() {
            for dictionary in [false, true] {
                let set = base()
                    .set_writer_version(version)
                    .set_encoding(Encoding::PLAIN)
                    .set_dictionary_enabled(dictionary);
                let file = crate::tables::int96(ROWS / 2, set.build());
                all_by_gpu(&gpu, &format!("INT96, {version:?}, {dictionary}"), &file);
            }
        }
    }
    nothing_left(&session);
}

/// Buffers with gaps between them, and each an allocation of its own, in which a kernel that leaves its buffer is found out.
#[test]
fn buffers_kept_apart() {
    for guard in [Guard::Gaps, Guard::Separate] {
        let session = session("lazy");
        {
            let gpu = DeviceOptions::default().guard(guard).open(0).unwrap();
            let batch = flat(ROWS, &[Nulls::Required, Nulls::Some]);
            all_by_gpu(&gpu, "buffers", &written(&batch, base().build()));
            assert_eq!(gpu.stats().overruns, 0);
        }
        nothing_left(&session);
    }
}

/// Row counts at which words and tiles end.
#[test]
fn few_rows() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for rows in [1, 7, 8, 31, 32, 33, 63, 64, 65] {
            let batch = flat(rows, &NULLS);
            let set = base().set_max_row_group_row_count(Some(rows.div_ceil(2).max(1)));
            let file = written(&batch, set.build());
            let agreed = agree(&gpu, &format!("{rows} rows"), &file, &whole);
            let (by_gpu, by_host) = agreed.counts();
            assert!(by_gpu > 0 && by_host == 0, "{rows}: {by_gpu}, {by_host}");
        }
        let none = written(&flat(0, &NULLS), base().build());
        assert!(
            matches!(agree(&gpu, "no rows", &none, &whole), Agreed::Rows(rows, _) if rows.num_rows() == 0)
        );
    }
    nothing_left(&session);
}
