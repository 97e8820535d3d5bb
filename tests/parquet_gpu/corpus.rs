//! Every file of the corpus, by both executors.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use feedwater::cuda::Device;

use crate::common::corpus;
use crate::cuda::{nothing_left, session};
use crate::support::{Agreed, agree, whole};
use crate::table::{Expected, FILES};

/// Files of which the GPU decodes all columns, so that they are not only an answer of the host.
const WHOLE: &[&str] = &[
    "alltypes_dictionary.parquet",
    "alltypes_plain.parquet",
    "alltypes_plain.snappy.parquet",
    "alltypes_tiny_pages.parquet",
    "alltypes_tiny_pages_plain.parquet",
    "binary.parquet",
    "binary_truncated_min_max.parquet",
    "byte_array_decimal.parquet",
    "byte_stream_split.zstd.parquet",
    "data_index_bloom_encoding_stats.parquet",
    "data_index_bloom_encoding_with_length.parquet",
    "datapage_v2_empty_datapage.snappy.parquet",
    "delta_binary_packed.parquet",
    "delta_byte_array.parquet",
    "delta_encoding_optional_column.parquet",
    "delta_encoding_required_column.parquet",
    "delta_length_byte_array.parquet",
    "fixed_length_byte_array.parquet",
    "fixed_length_decimal.parquet",
    "fixed_length_decimal_legacy.parquet",
    "float16_nonzeros_and_nans.parquet",
    "float16_zeros_and_nans.parquet",
    "geospatial/geography-points.parquet",
    "geospatial/geospatial.parquet",
    "hadoop_lz4_compressed_larger.parquet",
    "int32_decimal.parquet",
    "int64_decimal.parquet",
    "int96_from_spark.parquet",
    "lz4_raw_compressed_larger.parquet",
    "nan_in_stats.parquet",
    "non_hadoop_lz4_compressed.parquet",
    "rle-dict-snappy-checksum.parquet",
    "rle_boolean_encoding.parquet",
    "single_nan.parquet",
    "sort_columns.parquet",
    "unknown-logical-type.parquet",
];

/// The names of the files below a folder that can be interpreted: all but one, which inflates past 2 GiB.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    const TOO_LARGE: &[&str] = &["large_string_map.brotli.parquet"];
    let mut names = corpus::files(folder);
    names.retain(|name| !TOO_LARGE.contains(&name.as_str()));
    names
}

fn files(folder: &str) -> Vec<(String, Bytes)> {
    let Some(folder) = corpus::folder(folder) else {
        return Vec::new();
    };
    let read = |name: String| {
        let file = std::fs::read(folder.join(&name)).unwrap();
        (name, file.into())
    };
    names(&folder).into_iter().map(read).collect()
}

#[test]
fn both_executors_give_the_same() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let (mut by_gpu, mut by_host) = (0, 0);
        let files = files("parquet");
        for (name, file) in &files {
            let (_, expected) = FILES.iter().find(|(file, _)| file == name).unwrap();
            if matches!(expected, Expected::Csv | Expected::Aside) {
                continue;
            }
            let agreed = agree(&gpu, name, file, &whole);
            match (expected, &agreed) {
                (Expected::Rows(rows) | Expected::Uncounted(rows), Agreed::Rows(batch, report)) => {
                    assert_eq!(batch.num_rows(), *rows, "{name}");
                    let (gpu, host) = agreed.counts();
                    eprintln!("{name}: {report}");
                    if WHOLE.contains(&name.as_str()) {
                        assert!(gpu > 0 && host == 0, "{name}: {report}");
                    }
                    (by_gpu, by_host) = (by_gpu + gpu, by_host + host);
                }
                (Expected::Malformed { .. }, Agreed::Failed) => {}
                (expected, _) => panic!("{name}: not {expected:?}"),
            }
        }
        eprintln!("chunks: {by_gpu} by the GPU, {by_host} by the host");
        assert!(files.is_empty() || by_gpu > 500, "{by_gpu}");
    }
    nothing_left(&session);
}

/// Damaged files, and files of fuzzers: what one executor refuses, so does the other.
fn damaged(folder: &str) {
    let session = session("eager");
    {
        let gpu: Arc<Device> = Device::open(0).unwrap();
        for (name, file) in files(folder) {
            if !name.ends_with(".md") {
                agree(&gpu, &name, &file, &whole);
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn damaged_files() {
    damaged("parquet-bad");
}

#[test]
fn files_of_fuzzers() {
    damaged("parquet-fuzz");
}
