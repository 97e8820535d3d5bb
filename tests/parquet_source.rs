//! `parquet::Source`: what exactly it reads, and what becomes of errors. And `parquet::Writer`, end to end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io;
use std::io::Read as _;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use feedwater::fault::{Faults, Faulty};
use feedwater::parquet::{Source, WriterOptions};
use feedwater::{ErrorKind, MemoryReader, Reader};
use futures::executor::block_on;
use futures::{StreamExt, TryStreamExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::ChunkReader;

/// Three columns of `rows` rows in row groups of 10,000, in pages of some KiB; not compressible.
fn file(rows: i64) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let column = |seed: i64| -> ArrayRef {
        let mix = move |n: i64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) ^ seed;
        Arc::new(Int64Array::from_iter_values((0..rows).map(mix)))
    };
    let columns = [("a", column(1)), ("b", column(2)), ("c", column(3))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(10_000))
        .set_data_page_row_count_limit(1000)
        .set_write_batch_size(500)
        .set_dictionary_enabled(false)
        .build();
    let options = WriterOptions::new().properties(properties);
    let mut writer = options.create(&path, batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let (version, footer) = writer.commit().unwrap();
    assert_eq!(footer.file_metadata().num_rows(), rows);
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(version.size, bytes.len() as u64);
    bytes
}

fn plain(bytes: &[u8]) -> Vec<RecordBatch> {
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    ParquetRecordBatchReader::try_new(bytes, 700)
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

fn blocking(source: Source) -> Vec<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(source).unwrap();
    let batches = builder.with_batch_size(700).build().unwrap();
    batches.collect::<Result<_, _>>().unwrap()
}

fn in_tasks(source: Source) -> Vec<RecordBatch> {
    block_on(async {
        let builder = ParquetRecordBatchStreamBuilder::new(source).await.unwrap();
        let batches = builder.with_batch_size(700).build().unwrap();
        batches.try_collect().await.unwrap()
    })
}

/// Rows alone: the two readers cut batches at row groups differently.
fn rows(batches: &[RecordBatch]) -> RecordBatch {
    arrow::compute::concat_batches(&batches[0].schema(), batches).unwrap()
}

fn memory(bytes: &[u8]) -> (Arc<MemoryReader>, Source) {
    let reader = Arc::new(MemoryReader::new(bytes.to_vec()));
    (reader.clone(), Source::new(reader))
}

/// Reads and bytes asked for so far.
fn asked(reader: &dyn Reader) -> (u64, u64) {
    let counters = reader.source().counters().snapshot();
    (counters.reads, counters.requested)
}

fn footer_of(source: &Source) -> Arc<ParquetMetaData> {
    let footer = ArrowReaderMetadata::load(source, Default::default()).unwrap();
    footer.metadata().clone()
}

fn chunk(footer: &ParquetMetaData, row_group: usize, column: usize) -> Range<u64> {
    let (start, len) = footer.row_group(row_group).column(column).byte_range();
    start..start + len
}

const TAIL: u64 = 64 << 10;

#[test]
fn a_small_file_is_one_read() {
    let bytes = file(1000);
    assert!((bytes.len() as u64) < TAIL);
    for read in [blocking, in_tasks] {
        let (reader, source) = memory(&bytes);
        assert_eq!(rows(&read(source)), rows(&plain(&bytes)));
        assert_eq!(asked(&*reader), (1, bytes.len() as u64));
    }
}

#[test]
fn the_footer_is_one_read_and_row_groups_are_one_batch_each() {
    let bytes = file(35_000);
    let (reader, mut source) = memory(&bytes);
    let footer = block_on(source.get_metadata(None)).unwrap();
    assert_eq!(asked(&*reader), (1, TAIL));
    assert_eq!(footer.num_row_groups(), 4);
    let (first, second) = (chunk(&footer, 0, 0), chunk(&footer, 1, 2));
    let found = block_on(source.get_byte_ranges(vec![second.clone(), first.clone()])).unwrap();
    let part = |range: &Range<u64>| &bytes[range.start as usize..range.end as usize];
    assert_eq!(
        (&found[0][..], &found[1][..]),
        (part(&second), part(&first))
    );
    let wanted = TAIL + first.end - first.start + second.end - second.start;
    assert_eq!(asked(&*reader), (3, wanted));
    // Of the end, what is there is not read again.
    let end = bytes.len() as u64;
    let found = block_on(AsyncFileReader::get_bytes(&mut source, end - 9..end - 1)).unwrap();
    assert_eq!(found, part(&(end - 9..end - 1)));
    assert_eq!(asked(&*reader).0, 3);
    assert_eq!(rows(&in_tasks(source)), rows(&plain(&bytes)));
}

#[test]
fn of_mixed_ranges_each_gets_its_own_bytes() {
    let bytes = file(35_000);
    let (reader, mut source) = memory(&bytes);
    let end = bytes.len() as u64;
    let ranges = vec![end - 8..end, 4..9, end - TAIL..end - TAIL + 3, 0..4, 7..7];
    let found = block_on(source.get_byte_ranges(ranges.clone())).unwrap();
    for (range, found) in ranges.iter().zip(&found) {
        assert_eq!(found, &bytes[range.start as usize..range.end as usize]);
    }
    assert_eq!(asked(&*reader), (4, TAIL + 5 + 4));
    let error = block_on(source.get_byte_ranges(vec![0..4, 5..end + 1])).unwrap_err();
    assert!(matches!(error, ParquetError::EOF(_)), "{error}");
}

#[test]
fn what_is_read_ahead_is_read_once() {
    let bytes = file(45_000);
    for read in [blocking, in_tasks] {
        for window in [0, 300_000, usize::MAX] {
            let (reader, source) = memory(&bytes);
            let footer = footer_of(&source);
            let columns = ProjectionMask::all();
            let groups = 0..footer.num_row_groups();
            let source = source
                .window(window)
                .prefetching(&footer, groups, &columns)
                .unwrap();
            let data: u64 = (0..footer.num_row_groups())
                .flat_map(|group| (0..3).map(move |column| (group, column)))
                .map(|(group, column)| chunk(&footer, group, column))
                .map(|chunk| chunk.end - chunk.start)
                .sum();
            assert_eq!(rows(&read(source)), rows(&plain(&bytes)));
            assert_eq!(asked(&*reader), (1 + 15, TAIL + data), "window {window}");
        }
    }
}

#[test]
fn what_was_not_read_ahead_is_read_all_the_same() {
    let bytes = file(45_000);
    for read in [blocking, in_tasks] {
        let (_, source) = memory(&bytes);
        let footer = footer_of(&source);
        let schema = footer.file_metadata().schema_descr();
        let columns = ProjectionMask::leaves(schema, [1]);
        // Not in the order in which they will be asked for, and not all.
        let source = source.prefetching(&footer, [3, 1], &columns).unwrap();
        assert_eq!(rows(&read(source)), rows(&plain(&bytes)));
    }
    let (_, source) = memory(&bytes);
    let footer = footer_of(&source);
    let error = source
        .prefetching(&footer, [5], &ProjectionMask::all())
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}

#[test]
fn streams_go_on_past_what_is_in_memory() {
    let bytes = file(25_000);
    let (_, source) = memory(&bytes);
    let footer = footer_of(&source);
    let all = ProjectionMask::all();
    let source = source.prefetching(&footer, [0], &all).unwrap();
    let first = chunk(&footer, 0, 0);
    for start in [0, first.start + 1, first.end - 1, bytes.len() as u64 - 5] {
        let mut read = Vec::new();
        source
            .get_read(start)
            .unwrap()
            .read_to_end(&mut read)
            .unwrap();
        assert!(read == bytes[start as usize..], "from {start}");
    }
    let past = source.get_read(bytes.len() as u64 + 1).unwrap_err();
    assert!(matches!(past, ParquetError::EOF(_)), "{past}");
    let past = ChunkReader::get_bytes(&source, 5, bytes.len()).unwrap_err();
    assert!(matches!(past, ParquetError::EOF(_)), "{past}");
}

/// A reader that fails with EIO from the second read on.
fn failing(bytes: &[u8]) -> Source {
    let disk = Arc::new(MemoryReader::new(bytes.to_vec()));
    let faults = Faults::seeded(1).fail_after(TAIL, io::Error::from_raw_os_error(5));
    Source::new(Arc::new(Faulty::new(disk, faults)))
}

fn assert_eio(error: ParquetError) {
    let ParquetError::External(inner) = error else {
        panic!("{error}");
    };
    let error = inner.downcast_ref::<feedwater::Error>().unwrap();
    let ErrorKind::Io { source, .. } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(source.raw_os_error(), Some(5));
}

#[test]
fn errors_of_the_reader_are_carried_whole() {
    let bytes = file(35_000);
    let source = failing(&bytes);
    let footer = footer_of(&source);
    assert_eio(ChunkReader::get_bytes(&source, 4, 10).unwrap_err());
    let all = ProjectionMask::all();
    let ahead = source.clone().prefetching(&footer, [0, 1], &all).unwrap();
    assert_eio(ChunkReader::get_bytes(&ahead, 4, 10).unwrap_err());
    let mut task = source.clone();
    assert_eio(block_on(task.get_byte_ranges(vec![4..10, 20..30])).unwrap_err());
    let error = block_on(async {
        let builder = ParquetRecordBatchStreamBuilder::new(failing(&bytes)).await;
        builder.unwrap().build().unwrap().next().await.unwrap()
    });
    assert_eio(error.unwrap_err());
    // The crate's blocking reader keeps the words alone.
    let mut batches = ParquetRecordBatchReader::try_new(source, 100).unwrap();
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("os error 5"), "{error}");
}

#[test]
fn many_readers_share_one_source() {
    let bytes = file(35_000);
    let expected = rows(&plain(&bytes));
    let (_, source) = memory(&bytes);
    let footer = footer_of(&source);
    let all = ProjectionMask::all();
    let source = source.prefetching(&footer, 0..4, &all).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (source, expected) = (source.clone(), &expected);
            scope.spawn(move || {
                let read = [blocking, in_tasks][thread % 2];
                assert_eq!(&rows(&read(source)), expected);
            });
        }
    });
}
