//! What the host does for a row group before its bytes go anywhere: the walk over page headers, and the tables of pages. Needs no GPU.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;
use feedwater::MemoryReader;
use feedwater::parquet::{Metadata, planning};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::WriterProperties;

use super::{median, number};

/// Four columns of numbers in pages of so many rows, most of which Snappy makes no shorter.
fn file(rows: usize, page: usize) -> Bytes {
    let columns = (0..4u64).map(|column| {
        let numbers = (0..rows as u64).map(|n| (n + column).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let array = Int64Array::from_iter_values(numbers.map(u64::cast_signed));
        (format!("column_{column}"), Arc::new(array) as ArrayRef)
    });
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let set = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::PLAIN)
        .set_data_page_row_count_limit(page)
        .set_write_batch_size(page.min(1024));
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(set.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file.into()
}

pub(crate) fn planning() {
    let rows = number("FEEDWATER_BENCH_PLAN_ROWS", 4 << 20) as usize;
    let turns = number("FEEDWATER_BENCH_TURNS", 11);
    println!(
        "| planning on the host, 1 thread | pages | ns a page | GB/s of the file |\n|---|---:|---:|---:|"
    );
    for page in [128 << 10, 20_000, 1024, 128] {
        let file = file(rows, page);
        let metadata = Metadata::read(&MemoryReader::new(file.clone())).unwrap();
        let (pages, bytes) = planning::planned(&metadata, &file);
        let seconds: Vec<f64> = (0..turns)
            .map(|_| {
                let begun = Instant::now();
                assert_eq!(planning::planned(&metadata, &file), (pages, bytes));
                begun.elapsed().as_secs_f64()
            })
            .collect();
        let seconds = median(&seconds);
        println!(
            "| pages of {page} rows of 8 bytes | {pages} | {:.0} | {:.1} |",
            seconds * 1e9 / pages as f64,
            bytes as f64 / seconds / 1e9
        );
    }
    println!();
}
