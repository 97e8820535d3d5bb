//! What the host does for a row group before its bytes go anywhere: the walk over page headers, and the tables of pages; beside a scan of the
//! same file by one thread of the host. Needs no GPU.
//!
//! It is to be 2 GB/s of the file at least, and a tenth of the scan's time at most.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;
use feedwater::MemoryReader;
use feedwater::parquet::{Metadata, planning, scan};
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

pub(crate) fn planning(json: &mut String) {
    let rows = number("FEEDWATER_BENCH_PLAN_ROWS", 4 << 20) as usize;
    let turns = number("FEEDWATER_BENCH_TURNS", 11);
    println!(
        "| planning on the host, 1 thread | pages | ns a page | GB/s of the file | ms of a scan, 1 thread | share (range) |\n|---|---:|---:|---:|---:|---:|"
    );
    for page in [128 << 10, 20_000, 1024, 128] {
        let file = file(rows, page);
        let metadata = Metadata::read(&MemoryReader::new(file.clone())).unwrap();
        let (pages, bytes) = planning::planned(&metadata, &file);
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let (mut plans, mut scans) = (Vec::new(), Vec::new());
        // The first turn warms up.
        for turn in 0..=turns {
            let begun = Instant::now();
            assert_eq!(planning::planned(&metadata, &file), (pages, bytes));
            let plan = begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            for batch in scan(reader.clone()).threads(1).batches().unwrap() {
                batch.unwrap();
            }
            if turn > 0 {
                plans.push(plan);
                scans.push(begun.elapsed().as_secs_f64());
            }
        }
        let shares: Vec<f64> = plans.iter().zip(&scans).map(|(p, s)| p / s).collect();
        let (least, most) = shares.iter().fold((f64::MAX, 0f64), |(a, b), share| {
            (a.min(*share), b.max(*share))
        });
        let (seconds, scanned, share) = (median(&plans), median(&scans), median(&shares));
        println!(
            "| pages of {page} rows of 8 bytes | {pages} | {:.0} | {:.1} | {:.1} | {:.2} % ({:.2}–{:.2}) |",
            seconds * 1e9 / pages as f64,
            bytes as f64 / seconds / 1e9,
            scanned * 1e3,
            share * 1e2,
            least * 1e2,
            most * 1e2
        );
        let _ = writeln!(
            json,
            r#"{{"work":"planning on the host","way":"pages of {page} rows of 8 bytes","seconds":{seconds:.6},"bytes":{bytes},"pages":{pages},"scan_seconds":{scanned:.6},"share":{share:.5}}}"#
        );
    }
    println!();
}
