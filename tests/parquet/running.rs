//! Scans at work: order, windows, threads, streams.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::compute::{concat_batches, sort_to_indices, take_record_batch};
use arrow::datatypes::Int64Type;
use feedwater::parquet::{Metadata, column, scan};
use feedwater::{ErrorKind, MemoryReader};
use futures::StreamExt;

use crate::files::{joined, oracle, properties, table, write};
use crate::readers::{Copying, Counting, Later, Panicking, Recording};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn as_ready_has_the_same_rows() {
    let file = write(&table(3500), properties());
    let expected = oracle(&file);
    let reader = Arc::new(MemoryReader::new(file));
    let batches = scan(reader)
        .as_ready()
        .threads(3)
        .batch_rows(100)
        .batches()
        .unwrap();
    let schema = batches.schema().clone();
    let batches: Vec<_> = batches.map(Result::unwrap).collect();
    for batch in &batches {
        let ids = batch.column(0).as_primitive::<Int64Type>();
        assert!(ids.values().windows(2).all(|pair| pair[0] + 1 == pair[1]));
    }
    let all = concat_batches(&schema, &batches).unwrap();
    let order = sort_to_indices(all.column(0), None, None).unwrap();
    assert_eq!(take_record_batch(&all, &order).unwrap(), expected);
}

#[test]
fn a_stream_on_any_executor() {
    let file = write(&table(2500), properties());
    let expected = oracle(&file);
    let reader = Arc::new(MemoryReader::new(file));
    let stream = scan(reader.clone()).threads(2).batch_rows(300).stream();
    let batches: Vec<_> = futures::executor::block_on(stream.map(Result::unwrap).collect());
    assert_eq!(
        concat_batches(&batches[0].schema(), &batches).unwrap(),
        expected
    );
    let stream = scan(reader.clone()).columns(["nothing"]).stream();
    let outcomes: Vec<_> = futures::executor::block_on(stream.collect());
    assert_eq!(outcomes.len(), 1);
    assert!(matches!(
        outcomes[0].as_ref().unwrap_err().kind(),
        ErrorKind::NotFound { .. }
    ));
    let tokio = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let rows = tokio.block_on(async {
        let metadata = Metadata::read_async(&*reader).await.unwrap();
        let stream = scan(reader)
            .metadata(metadata)
            .filter(column("id").lt(1700))
            .stream();
        stream
            .fold(
                0,
                |rows, batch| async move { rows + batch.unwrap().num_rows() },
            )
            .await
    });
    assert_eq!(rows, 1700);
}

#[test]
fn the_window_bounds_what_was_asked_and_not_decoded() {
    let file = write(&table(8000), properties());
    let tail = file.len() as u64 - (64 << 10);
    let metadata = Metadata::read(&MemoryReader::new(file.clone())).unwrap();
    let largest = metadata
        .parquet()
        .row_groups()
        .iter()
        .map(|group| group.compressed_size() as u64)
        .max()
        .unwrap();
    for window in [1, largest * 5 / 2] {
        let reader = Counting::new(&file, tail);
        let batches = scan(reader.clone())
            .window(window as usize)
            .threads(3)
            .batch_rows(100)
            .batches()
            .unwrap();
        assert_eq!(joined(batches).num_rows(), 8000);
        let most = reader.most.load(Ordering::SeqCst);
        assert!(
            most > 0 && most <= window.max(largest),
            "{most} of {window}, {largest}"
        );
    }
}

#[test]
fn row_groups_come_one_after_the_other_and_small_ones_together() {
    const VALUE: usize = 1 << 20;
    // Rows of a row group: more than what comes together, and a quarter of that.
    for (rows, most) in [(20, 1..=2), (4, 3..=5)] {
        let values = (0..6 * rows).map(|row| vec![row as u8; VALUE]);
        let values = arrow::array::BinaryArray::from_iter_values(values);
        let batch =
            arrow::array::RecordBatch::try_from_iter([("a", Arc::new(values) as _)]).unwrap();
        let properties = properties()
            .set_max_row_group_row_count(Some(rows))
            .set_compression(parquet::basic::Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None);
        let file = write(&batch, properties);
        let reader = Later::new(&file);
        let batches = scan(reader.clone()).threads(2).batches().unwrap();
        assert_eq!(joined(batches), batch);
        assert!(most.contains(&reader.most()), "{} of {rows}", reader.most());
    }
}

/// Row groups of more than 1 MiB, and their properties.
fn large_groups() -> (
    arrow::array::RecordBatch,
    parquet::file::properties::WriterPropertiesBuilder,
) {
    // Numbers that no codec makes smaller, so that a row group has more than 1 MiB.
    let numbers = (0..400_000u64)
        .map(|row| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (row << 7)).rotate_left(17));
    let numbers: arrow::array::UInt64Array = numbers
        .map(|number| (number % 9 != 0).then_some(number))
        .collect();
    let batch = arrow::array::RecordBatch::try_from_iter([
        ("a", Arc::new(numbers.clone()) as _),
        ("b", Arc::new(numbers) as _),
    ])
    .unwrap();
    let properties = properties()
        .set_max_row_group_row_count(Some(150_000))
        .set_data_page_row_count_limit(20_000)
        .set_dictionary_enabled(false);
    (batch, properties)
}

#[test]
fn bytes_at_hand_are_read_page_by_page() {
    let (batch, properties) = large_groups();
    for compression in [
        parquet::basic::Compression::SNAPPY,
        parquet::basic::Compression::UNCOMPRESSED,
    ] {
        let file = write(&batch, properties.clone().set_compression(compression));
        let reader = Copying::new(&file);
        let batches = scan(reader.clone()).threads(2).batches().unwrap();
        let chunks: Vec<_> = batches
            .plan()
            .row_groups
            .iter()
            .flat_map(|group| group.requests.clone())
            .collect();
        assert_eq!(joined(batches), oracle(&file));
        let now = reader.now.lock().unwrap();
        // More than one request for each page, none of them outside what was planned.
        assert!(now.len() > 40, "{}", now.len());
        let planned = |range: &std::ops::Range<u64>| {
            chunks
                .iter()
                .any(|chunk| chunk.start <= range.start && range.end <= chunk.end)
        };
        assert!(now.iter().all(planned));
    }
}

#[test]
fn what_the_reader_fails_with_while_pages_are_read_comes_out_as_it_went_in() {
    let (batch, properties) = large_groups();
    let file = write(&batch, properties);
    // In the first header, in the first page, and later.
    for most in [0, 1, 2, 3, 20, 31] {
        let reader = Copying::failing_after(&file, most);
        let batches = scan(reader.clone()).threads(1).batches().unwrap();
        let error = batches.filter_map(Result::err).next().unwrap();
        let ErrorKind::Io { source, .. } = error.kind() else {
            panic!("{most}: {error}");
        };
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        let failed = reader.now.lock().unwrap()[most].clone();
        assert_eq!(error.offset(), Some(failed.start), "{most}");
    }
}

/// Wherever it panics: as it is asked for row groups, as it is tried out, as pages are read.
#[test]
fn a_panic_of_the_reader_is_told() {
    let (large, properties_of_large) = large_groups();
    for file in [
        write(&table(3500), properties()),
        write(&large, properties_of_large),
    ] {
        let reader = Copying::new(&file);
        let metadata = Metadata::read(&*reader).unwrap();
        let expected = oracle(&file);
        for threads in [1, 3] {
            for most in 0..12 {
                let scan = scan(Panicking::after(&reader, most)).metadata(metadata.clone());
                let mut batches = scan.threads(threads).batches().unwrap();
                let mut rows = 0;
                let failed = batches.by_ref().find_map(|batch| match batch {
                    Ok(batch) => {
                        assert_eq!(batch, expected.slice(rows, batch.num_rows()));
                        rows += batch.num_rows();
                        None
                    }
                    Err(error) => Some(error),
                });
                let Some(error) = failed else {
                    // It was asked no more often.
                    assert_eq!(rows, expected.num_rows(), "{threads} {most}");
                    assert!(most >= 4, "{threads} {most}");
                    continue;
                };
                let ErrorKind::Panicked { message, .. } = error.kind() else {
                    panic!("{threads} {most}: {error}");
                };
                assert_eq!(&**message, "on purpose");
                assert_eq!(error.name(), Some("memory"));
                assert!(batches.next().is_none());
            }
        }
    }
}

/// What it panics by as the next row group is tried out is nothing of the one before.
#[test]
fn a_panic_of_the_reader_is_of_the_row_group_that_it_was_asked_for() {
    let (large, properties) = large_groups();
    let mut file = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut file, large.schema(), Some(properties.build()))
            .unwrap();
    // Small ones are not tried out.
    writer.write(&large.slice(0, 1000)).unwrap();
    writer.flush().unwrap();
    writer.write(&large.slice(1000, 150_000)).unwrap();
    writer.close().unwrap();
    let reader = Copying::new(&file.into());
    let metadata = Metadata::read(&*reader).unwrap();
    let columns = metadata.parquet().row_group(1).columns().iter();
    let second = columns.map(|column| column.byte_range().0).min().unwrap();
    for threads in [1, 2] {
        let scan = scan(Panicking::from(&reader, second)).metadata(metadata.clone());
        let mut batches = scan.threads(threads).batches().unwrap();
        let first = batches.next().unwrap().unwrap();
        assert_eq!(first, large.slice(0, 1000));
        let error = batches.next().unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Panicked { .. }),
            "{error}"
        );
        assert!(batches.next().is_none());
    }
}

#[test]
fn nothing_is_asked_for_further_ahead_of_the_consumer_than_the_window_goes() {
    const WINDOW: usize = 100 << 10;
    let file = write(&table(20_000), properties());
    let mut batches = scan(Recording::new(&file))
        .window(WINDOW)
        .threads(2)
        .batch_rows(100)
        .batches()
        .unwrap();
    // 20 row groups of 1000 rows.
    let bytes: Vec<u64> = batches
        .plan()
        .row_groups
        .iter()
        .map(|group| group.bytes_read)
        .collect();
    let largest = bytes.iter().max().unwrap();
    // What is asked for and not decoded, what is decoded and waits, and what each thread is at.
    let most = WINDOW as u64 + 4 * largest;
    assert!(
        bytes.iter().sum::<u64>() > 2 * most,
        "the file is too small"
    );
    let mut rows = 0;
    while let Some(batch) = batches.next() {
        rows += batch.unwrap().num_rows();
        let delivered: u64 = bytes.iter().take(rows / 1000).sum();
        let asked = batches.report().bytes;
        assert!(asked <= delivered + most, "{asked} at row {rows}");
    }
    assert_eq!((rows, batches.report().rows), (20_000, 20_000));
}

#[test]
fn dropping_it_mid_way_ends_its_threads() {
    let file = write(&table(8000), properties());
    for taken in [0, 1, 5] {
        let reader = Recording::new(&file);
        let (sender, dropped) = mpsc::channel();
        reader.tell_when_dropped(sender);
        let mut batches = scan(reader)
            .threads(3)
            .window(1 << 10)
            .batch_rows(100)
            .batches()
            .unwrap();
        for _ in 0..taken {
            batches.next().unwrap().unwrap();
        }
        drop(batches);
        // The threads hold the reader: the last of them drops it.
        dropped.recv_timeout(LONG).unwrap();
    }
}

#[test]
fn a_scan_that_is_done_has_no_threads() {
    let reader = Recording::new(&write(&table(3000), properties()));
    let (sender, dropped) = mpsc::channel();
    reader.tell_when_dropped(sender);
    assert_eq!(
        joined(scan(reader).threads(3).batches().unwrap()).num_rows(),
        3000
    );
    dropped.recv_timeout(LONG).unwrap();
}

#[test]
fn an_error_comes_where_it_is_and_ends_the_scan() {
    let file = write(&table(3500), properties());
    let metadata = Metadata::read(&MemoryReader::new(file.clone())).unwrap();
    let (start, len) = metadata.parquet().row_group(2).column(0).byte_range();
    let mut bad = file.to_vec();
    bad[start as usize..(start + len) as usize].fill(0xff);
    for threads in [1, 2] {
        let mut batches = scan(Arc::new(MemoryReader::new(bad.clone())))
            .threads(threads)
            .batches()
            .unwrap();
        let rows = batches
            .by_ref()
            .take(2)
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>();
        assert_eq!(rows, 2000);
        let error = batches.next().unwrap().unwrap_err();
        let ErrorKind::Malformed { part, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(part.as_deref(), Some("id"));
        assert_eq!(error.offset(), Some(start));
        assert_eq!(error.name(), Some("memory"));
        assert!(batches.next().is_none());
    }
}

#[test]
fn options_without_a_meaning_are_refused() {
    let reader = Arc::new(MemoryReader::new(write(&table(10), properties())));
    for scan in [
        scan(reader.clone()).threads(0),
        scan(reader.clone()).batch_rows(0),
    ] {
        let error = scan.batches().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        // It says which option, and what would do.
        let text = error.to_string();
        assert!(text.contains("` has to be at least 1"), "{text}");
    }
    // Nor are indexes told of of which nothing is read.
    let plan = scan(reader.clone()).explain().unwrap().to_string();
    assert!(plan.contains("\nmetadata in 1 request\n"), "{plan}");
    let error = scan(reader).rows(5..11).batches().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}

#[test]
fn what_is_no_parquet_file_is_malformed() {
    for bytes in [
        "",
        "PAR1",
        "PAR1PAR1",
        "no parquet file at all",
        "PAR1\0\0\0\0PAR1",
        "PAR1\0\0\0\x7fPAR1",
    ] {
        let error = Metadata::read(&MemoryReader::new(bytes)).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Malformed { .. }),
            "{bytes:?}: {error}"
        );
        assert!(error.name().is_some());
    }
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    let error = Metadata::read(&MemoryReader::new(pointer)).unwrap_err();
    assert!(error.to_string().contains("`git lfs pull`"), "{error}");
}
