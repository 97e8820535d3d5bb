//! What the host does for a row group before its bytes go anywhere: the walk over page headers, and the tables of pages; beside a scan of the
//! same file by one thread of the host. Needs no GPU.
//!
//! Each row group is planned in bytes that are new in memory, by a copy that is not counted, as a scan has them that reads a file; and in the bytes of
//! the file, which were last looked at by the scan before. There each header costs what memory does, which can be microseconds where a virtual
//! machine shares it with others.
//!
//! It is to be 2 GB/s of the file at least, and, of bytes that are new, a tenth of the scan's time at most.

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

/// Plans all row groups of `file`, with bytes that are `copied` before or not, and gives the seconds that took, the pages, and the bytes of them.
fn planned(metadata: &Metadata, file: &Bytes, copied: bool) -> (f64, u64, u64) {
    let (mut seconds, mut pages, mut bytes) = (0.0, 0, 0);
    let mut copies = Vec::new();
    for (number, group) in metadata.parquet().row_groups().iter().enumerate() {
        let chunks = group.columns().iter().map(|column| {
            let (start, len) = column.byte_range();
            &file[start as usize..(start + len) as usize]
        });
        let mut chunks: Vec<_> = chunks.collect();
        if copied {
            copies.resize_with(chunks.len(), Vec::new);
            for (to, from) in copies.iter_mut().zip(&chunks) {
                to.clear();
                to.extend_from_slice(from);
            }
            chunks = copies.iter().map(Vec::as_slice).collect();
        }
        let begun = Instant::now();
        let planned = planning::planned(metadata, number, &chunks);
        seconds += begun.elapsed().as_secs_f64();
        pages += planned.0;
        bytes += planned.1;
    }
    (seconds, pages, bytes)
}

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
        "| planning on the host, 1 thread | bytes | pages | ns a page | GB/s of the file | ms of a scan, 1 thread | share (range) |\n|---|---|---:|---:|---:|---:|---:|"
    );
    for page in [128 << 10, 20_000, 1024, 128] {
        let file = file(rows, page);
        let metadata = Metadata::read(&MemoryReader::new(file.clone())).unwrap();
        let (_, pages, bytes) = planned(&metadata, &file, true);
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let (mut plans, mut scans) = ([Vec::new(), Vec::new()], Vec::new());
        // The first turn warms up.
        for turn in 0..=turns {
            // Before the other one, which looks at the same bytes.
            let (in_file, ..) = planned(&metadata, &file, false);
            let (copied, ..) = planned(&metadata, &file, true);
            let begun = Instant::now();
            for batch in scan(reader.clone()).threads(1).batches().unwrap() {
                batch.unwrap();
            }
            if turn > 0 {
                plans[0].push(copied);
                plans[1].push(in_file);
                scans.push(begun.elapsed().as_secs_f64());
            }
        }
        for (plans, state) in plans.iter().zip(["new in memory", "of the file"]) {
            let shares: Vec<f64> = plans.iter().zip(&scans).map(|(p, s)| p / s).collect();
            let (least, most) = shares.iter().fold((f64::MAX, 0f64), |(a, b), share| {
                (a.min(*share), b.max(*share))
            });
            let (seconds, scanned, share) = (median(plans), median(&scans), median(&shares));
            println!(
                "| pages of {page} rows of 8 bytes | {state} | {pages} | {:.0} | {:.1} | {:.1} | {:.2} % ({:.2}–{:.2}) |",
                seconds * 1e9 / pages as f64,
                bytes as f64 / seconds / 1e9,
                scanned * 1e3,
                share * 1e2,
                least * 1e2,
                most * 1e2
            );
            let _ = writeln!(
                json,
                r#"{{"work":"planning on the host","way":"pages of {page} rows of 8 bytes, {state}","seconds":{seconds:.6},"bytes":{bytes},"pages":{pages},"scan_seconds":{scanned:.6},"share":{share:.5}}}"#
            );
        }
    }
    println!();
}
