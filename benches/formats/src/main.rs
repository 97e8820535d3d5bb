//! What this crate decodes, beside the crates that a user would pick, in one process, in alternating turns.
//!
//! ```sh
//! cd benches/formats
//! cargo run --release                          # all rows
//! cargo run --release -- parquet-flat tensors  # the rows whose names contain one of these
//! ```
//!
//! | row | what | beside |
//! |---|---|---|
//! | `parquet-FILE-BATCH-warm` | a file to Arrow batches of so many rows, all kept, by 2 threads; also by 1 | the `parquet` crate, 2 threads that share the row groups |
//! | `parquet-cold` | the same of a file that is not in the page cache | its bytes read alone, and decoded alone |
//! | `parquet-take` | 1,000 random rows; says how many bytes of the file that reads | all rows decoded |
//! | `tfrecord-FILE-records` | the records with both checksums | the `tfrecord` crate with and without checksums |
//! | `tfrecord-FILE-columns` | the `tf.train.Example`s to Arrow columns | the `tfrecord` crate to vectors |
//! | `tensors-warm` | all tensors of a safetensors file in memory of their own | the `safetensors` crate on a map, 2 threads that copy |
//! | `tensors-cold` | the same | `read_all` of the file |
//!
//! Parquet files: `flat_snappy` and `flat_zstd` (9 columns of numbers, strings, nulls), `enc_delta` (6 of them in DELTA and
//! BYTE_STREAM_SPLIT), `embeddings` (lists of 384 floats). TFRecord files: `images` (records of 50 KiB), `tiny` (about 60 bytes).
//!
//! Environment: `FEEDWATER_BENCH_DIR` (default: that of temporary files; it must be on the disk to be measured),
//! `FEEDWATER_BENCH_ROWS` (of the flat files, default 5,000,000), `FEEDWATER_BENCH_MIB` (of embeddings, images and tensors, default
//! 500), `FEEDWATER_BENCH_RECORDS` (tiny ones, default 2,000,000), `FEEDWATER_BENCH_TURNS` (default 11). Files are made when the first
//! row needs them, and go away at the end. Smaller ones measure how a scan begins, not how it decodes.
//!
//! How to read it: each way runs once in every turn, in another order each time, and once before to warm up. A ratio is
//! the time of the other way over the time of ours in the same turn, the median over the turns: above 1 is faster. What differs
//! less than a way from itself (`again`) is no finding. Threads of the peers exist before the clock starts and stay, so
//! that the allocator has given them their memory. CPU seconds are those of the whole process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::undocumented_unsafe_blocks
)]

mod data;
mod parquet_rows;
mod tensor_rows;
mod tfrecord_rows;

#[allow(dead_code)] // The files here are made by `data`.
#[path = "../../ratios/files.rs"]
mod files;
#[path = "../../ratios/table.rs"]
mod table;
#[path = "../../ratios/turns.rs"]
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;

use table::Ratio;
use turns::Way;

/// What a row is measured on.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
    turns: usize,
    rows: usize,
    mib: usize,
    records: usize,
}

impl Bench {
    /// The file of this name, made by `make` unless it is there.
    fn file(&self, name: &str, make: impl FnOnce(&std::path::Path)) -> PathBuf {
        let path = self.dir.path().join(name);
        if !path.exists() {
            make(&path);
        }
        path
    }
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut rows = parquet_rows::all();
    rows.extend(tfrecord_rows::all());
    rows.extend(tensor_rows::all());
    let unknown = |wanted: &&String| !rows.iter().any(|(name, _)| name.contains(wanted.as_str()));
    if let Some(what) = wanted.iter().find(unknown) {
        let names: Vec<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
        eprintln!(
            "{what}? usage: formats [ROW…]; rows whose names contain a ROW: {}",
            names.join(" ")
        );
        return ExitCode::FAILURE;
    }
    let dir =
        std::env::var_os("FEEDWATER_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let bench = Bench {
        // A folder of its own, which goes away with all that is in it.
        dir: tempfile::tempdir_in(dir).expect("a folder in FEEDWATER_BENCH_DIR"),
        turns: number("FEEDWATER_BENCH_TURNS", 11),
        rows: number("FEEDWATER_BENCH_ROWS", 5_000_000),
        mib: number("FEEDWATER_BENCH_MIB", 500),
        records: number("FEEDWATER_BENCH_RECORDS", 2_000_000),
    };
    for (name, row) in &rows {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            row(&bench, name);
        }
    }
    ExitCode::SUCCESS
}

/// A row: its name, and what measures it.
pub(crate) type Row = (String, Box<dyn Fn(&Bench, &str)>);

/// A number from the environment, above 0.
fn number(name: &str, default: usize) -> usize {
    let Ok(value) = std::env::var(name) else {
        return default;
    };
    match value.parse() {
        Ok(number) if number > 0 => number,
        _ => panic!("{name}={value} is no number above 0"),
    }
}

pub(crate) fn way<'a>(
    name: &str,
    prepare: impl FnMut() + 'a,
    mut run: impl FnMut() -> String + 'a,
) -> Way<'a> {
    Way {
        name: name.into(),
        prepare: Box::new(prepare),
        run: Box::new(move |clock| Ok(clock.time(&mut run))),
    }
}

pub(crate) fn ratio(ours: &'static str, base: &'static str, aim: f64) -> Ratio {
    Ratio { ours, base, aim }
}
