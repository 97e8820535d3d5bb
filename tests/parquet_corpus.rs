//! Every file of the corpus: the same values in every way of reading as by the `parquet` crate with the standard library, or
//! the typed error that the table has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "parquet_corpus/table.rs"]
mod table;
#[path = "parquet_corpus/ways.rs"]
mod ways;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{Field, Schema};
use common::corpus;
use common::skip::require;
use feedwater::ErrorKind;
use feedwater::parquet::scan;
use table::{Expected, FILES};
use ways::{SCANS, THROUGH_SOURCE, plain, plain_counted, scanned, streamed};

#[test]
fn every_file_is_claimed() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    corpus::assert_claimed(&folder, FILES.iter().map(|(name, _)| *name));
}

#[test]
fn the_crate_reads_the_same_through_source() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    for (name, expected) in FILES {
        let path = folder.join(name);
        let rows = match expected {
            Expected::Rows(rows) => Some(*rows),
            Expected::Uncounted(_) => Some(0),
            Expected::Malformed { .. } => None,
            Expected::Large | Expected::Csv | Expected::Aside => continue,
        };
        let plain = plain(&path);
        for (way, read) in THROUGH_SOURCE {
            match (&plain, read(&path)) {
                (Ok(plain), Ok(read)) => {
                    assert_eq!(Some(read.num_rows()), rows, "{name}, {way}");
                    assert_eq!(&read, plain, "{name}, {way}");
                }
                (Err(plain), Err(read)) => {
                    assert_eq!(rows, None, "{name}, {way}: {read}");
                    // The blocking reader and the stream say the same in other wraps.
                    let (plain, read) = (plain.to_string(), read.to_string());
                    let last = plain.rsplit(": ").next().unwrap();
                    assert!(read.ends_with(last), "{name}, {way}: {read}, not {plain}");
                }
                (plain, read) => panic!("{name}, {way}: {read:?}, not {plain:?}"),
            }
        }
    }
}

#[test]
fn scans_give_the_same_in_any_batches_and_threads() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    for (name, expected) in FILES {
        let path = folder.join(name);
        let (plain, rows) = match expected {
            Expected::Rows(rows) => (plain(&path).unwrap(), *rows),
            Expected::Uncounted(rows) => (plain_counted(&path).unwrap(), *rows),
            _ => continue,
        };
        assert_eq!(plain.num_rows(), rows, "{name}");
        for (size, threads) in SCANS {
            let read = scanned(&path, *size, *threads);
            let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(read, plain, "{name}: {size} rows, {threads} threads");
        }
        assert_eq!(streamed(&path).unwrap(), plain, "{name}, as a stream");
    }
}

#[test]
fn what_cannot_be_read_is_the_typed_error() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    for (name, expected) in FILES {
        let Expected::Malformed { columns, says } = expected else {
            continue;
        };
        let path = folder.join(name);
        for (size, threads) in SCANS {
            let error = scanned(&path, *size, *threads).unwrap_err();
            let ErrorKind::Malformed { format, part, what } = error.kind() else {
                panic!("{name}: {error}");
            };
            assert_eq!(*format, "parquet");
            assert!(what.contains(says), "{name}: {error}");
            assert_eq!(error.name(), path.to_str(), "{name}: {error}");
            if !columns.is_empty() {
                let part = part.as_deref().unwrap();
                assert!(columns.contains(&part), "{name}: {error}");
                let len = std::fs::metadata(&path).unwrap().len();
                let offset = error.offset().unwrap();
                assert!((4..len).contains(&offset), "{name}: {error}");
            }
        }
    }
}

/// Columns by the writer's own text, where empty means null if there may be nulls.
fn expected_of(csv: &Path, like: &Schema) -> RecordBatch {
    let nullable = like.fields().iter().map(|field| {
        let kind = field.data_type().clone();
        Field::new(field.name(), kind, true)
    });
    let schema = Arc::new(Schema::new(nullable.collect::<Vec<_>>()));
    let reader = arrow::csv::ReaderBuilder::new(schema.clone())
        .with_header(true)
        .with_batch_size(10_000)
        .build(File::open(csv).unwrap())
        .unwrap();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    ways::joined(&schema, &batches)
}

#[test]
fn values_are_those_that_the_writer_meant() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    let mut files = 0;
    for (name, expected) in FILES {
        let (Expected::Csv, Some(stem)) = (expected, name.strip_suffix("_expect.csv")) else {
            continue;
        };
        files += 1;
        let path = folder.join(format!("{stem}.parquet"));
        let read = scanned(&path, 64, 2).unwrap();
        let meant = expected_of(&folder.join(name), &read.schema());
        assert_eq!(read.num_rows(), meant.num_rows(), "{name}");
        for (index, field) in read.schema().fields().iter().enumerate() {
            let (read, meant) = (read.column(index), meant.column(index));
            assert_eq!(read.data_type(), meant.data_type());
            let same = match read.as_string_opt::<i32>() {
                Some(read) if !field.is_nullable() => {
                    let meant = meant.as_string::<i32>().iter();
                    read.iter().eq(meant.map(|text| text.or(Some(""))))
                }
                _ => read.to_data() == meant.to_data(),
            };
            assert!(same, "{name}, {field}: {read:?}, not {meant:?}");
        }
    }
    assert_eq!(files, 4);
}

/// A page of 1 GiB, the batch that it goes to, and the same of the page after it.
fn enough_memory() -> Result<(), String> {
    const NEEDED: u64 = 6 << 20;
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| e.to_string())?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    match kib {
        Some(kib) if kib >= NEEDED => Ok(()),
        Some(kib) => Err(format!("{kib} KiB are available, of {NEEDED}")),
        None => Err("MemAvailable is not in /proc/meminfo".to_owned()),
    }
}

#[test]
fn a_batch_of_more_than_2_gib_comes_in_two() {
    let Some(folder) = corpus::folder("parquet") else {
        return;
    };
    if require("memory", enough_memory()).is_none() {
        return;
    }
    let path = folder.join("large_string_map.brotli.parquet");
    let batches = scan(feedwater::open(path).unwrap()).threads(1).batches();
    let mut lengths = Vec::new();
    for batch in batches.unwrap() {
        let batch = batch.unwrap();
        let maps = batch.column(0).as_map();
        let keys = maps.keys().as_string::<i32>();
        assert_eq!((maps.len(), keys.len()), (1, 1));
        assert_eq!(maps.values().null_count(), 0);
        let key = keys.value(0).as_bytes();
        // All of it is one letter: compared with itself a byte further, which is as fast as memory is.
        assert_eq!(key[..key.len() - 1], key[1..]);
        assert_eq!(key[0], b'a');
        lengths.push(key.len());
    }
    assert_eq!(lengths, [1 << 30, 1 << 30]);
}
