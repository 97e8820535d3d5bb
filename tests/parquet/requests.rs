//! What exactly is read.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use feedwater::MemoryReader;
use feedwater::parquet::{Metadata, SkipReason, column, scan};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};

use crate::files::{properties, table, write};
use crate::readers::Recording;

const TAIL: u64 = 64 << 10;

fn file() -> (Bytes, ParquetMetaData) {
    let properties = properties()
        .set_compression(parquet::basic::Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_column_dictionary_enabled("category".into(), true);
    let file = write(&table(4000), properties);
    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Required)
        .parse_and_finish(&file)
        .unwrap();
    (file, metadata)
}

fn leaf(metadata: &ParquetMetaData, name: &str) -> usize {
    let columns = metadata.file_metadata().schema_descr().columns();
    columns
        .iter()
        .position(|column| column.path().string() == name)
        .unwrap()
}

fn chunk(metadata: &ParquetMetaData, group: usize, name: &str) -> Range<u64> {
    let (start, len) = metadata
        .row_group(group)
        .column(leaf(metadata, name))
        .byte_range();
    start..start + len
}

fn pages(metadata: &ParquetMetaData, group: usize, name: &str, pages: Range<usize>) -> Range<u64> {
    let index = metadata.page_index().unwrap();
    let index = index.offset_index(group, leaf(metadata, name)).unwrap();
    let locations = &index.page_locations()[pages];
    let last = locations.last().unwrap();
    locations[0].offset as u64..last.offset as u64 + last.compressed_page_size as u64
}

/// The first read of the tail, and then `more`.
fn after_the_tail(file: &Bytes, more: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let len = file.len() as u64;
    let mut all = vec![len - TAIL..len];
    all.extend(more);
    all
}

#[test]
fn a_projection_reads_its_chunks() {
    let (file, metadata) = file();
    let reader = Recording::new(&file);
    let batches = scan(reader.clone())
        .columns(["text"])
        .threads(1)
        .batches()
        .unwrap();
    assert_eq!(
        batches
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>(),
        4000
    );
    let chunks = (0..4).map(|group| chunk(&metadata, group, "text"));
    assert_eq!(reader.asked(), after_the_tail(&file, chunks));
}

#[test]
fn neighbours_are_one_request_and_gaps_are_closed_on_demand() {
    let (file, metadata) = file();
    let reader = Recording::new(&file);
    let scan = || scan(reader.clone()).row_groups([0]).threads(2);
    scan()
        .columns(["id", "u32"])
        .batches()
        .unwrap()
        .for_each(|batch| drop(batch.unwrap()));
    let (id, u32, u64) = (
        chunk(&metadata, 0, "id"),
        chunk(&metadata, 0, "u32"),
        chunk(&metadata, 0, "u64"),
    );
    assert_eq!(id.end, u32.start);
    assert_eq!(reader.asked(), after_the_tail(&file, [id.start..u32.end]));
    scan()
        .columns(["id", "u64"])
        .batches()
        .unwrap()
        .for_each(|batch| drop(batch.unwrap()));
    assert_eq!(
        reader.asked(),
        after_the_tail(&file, [id.clone(), u64.clone()])
    );
    let gap = u32.end - u32.start;
    let plan = scan().columns(["id", "u64"]).gap(gap).explain().unwrap();
    assert_eq!(plan.row_groups[0].requests, [id.start..u64.end]);
    assert_eq!(plan.bytes_read() - plan.bytes_needed(), gap);
}

#[test]
fn a_predicate_reads_the_pages_that_may_match() {
    let (file, metadata) = file();
    let reader = Recording::new(&file);
    let wanted = column("id").ge(1150).and(column("id").lt(1250));
    let scan = || {
        scan(reader.clone())
            .columns(["text"])
            .filter(wanted.clone())
            .threads(1)
    };
    let batches = scan().batches().unwrap();
    assert_eq!(
        batches
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>(),
        100
    );
    // Rows 1100 to 1300 are in two pages of each column. The indexes lie in the tail.
    let data = [
        pages(&metadata, 1, "id", 1..3),
        pages(&metadata, 1, "text", 1..3),
    ];
    assert_eq!(reader.asked(), after_the_tail(&file, data));
    let plan = scan().explain().unwrap();
    let whys: Vec<_> = plan
        .skipped
        .iter()
        .map(|skip| (skip.row_group, skip.rows, skip.reason))
        .collect();
    assert_eq!(
        whys,
        [
            (0, 1000, SkipReason::Statistics),
            (2, 1000, SkipReason::Statistics),
            (3, 1000, SkipReason::Statistics),
            (1, 800, SkipReason::PageIndex),
        ]
    );
    assert_eq!(plan.row_groups[0].columns[1].pages, Some((2, 10)));
    let text = plan.to_string();
    assert!(
        text.contains("text: ") && text.contains(", 2 of 10 pages"),
        "{text}"
    );
}

#[test]
fn indexes_that_are_not_in_the_tail_are_one_request() {
    // Enough row groups that the footer alone is larger than the first read.
    let properties = properties()
        .set_max_row_group_row_count(Some(40))
        .set_data_page_row_count_limit(10)
        .set_write_batch_size(5);
    let file = write(&table(4000), properties);
    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Required)
        .parse_and_finish(&file)
        .unwrap();
    let len = file.len() as u64;
    let footer = u64::from(u32::from_le_bytes(
        file[file.len() - 8..file.len() - 4].try_into().unwrap(),
    )) + 8;
    assert!(footer > TAIL);
    let reader = Recording::new(&file);
    let taken = scan(reader.clone())
        .columns(["text"])
        .threads(1)
        .take(&[85])
        .unwrap();
    assert_eq!(taken.num_rows(), 1);
    let chunk = metadata.row_group(2).column(leaf(&metadata, "text"));
    let expected = [
        len - TAIL..len,
        len - footer..len,
        chunk.offset_index_range().unwrap(),
    ];
    let asked = reader.asked();
    assert_eq!(asked[..3], expected);
    // The dictionary of the chunk is right before its first page.
    let start = chunk.byte_range().0;
    assert_eq!(asked[3..], [start..pages(&metadata, 2, "text", 0..1).end]);
}

#[test]
fn take_reads_the_pages_of_its_rows_and_their_dictionary() {
    let (file, metadata) = file();
    let reader = Recording::new(&file);
    let taken = scan(reader.clone())
        .columns(["id", "category"])
        .threads(1)
        .take(&[2950, 310, 320])
        .unwrap();
    assert_eq!(taken.num_rows(), 3);
    let dictionary = |group| {
        let first = pages(&metadata, group, "category", 0..1);
        chunk(&metadata, group, "category").start..first.start
    };
    let data = [
        pages(&metadata, 0, "id", 3..4),
        dictionary(0),
        pages(&metadata, 0, "category", 3..4),
        pages(&metadata, 2, "id", 9..10),
        dictionary(2),
        pages(&metadata, 2, "category", 9..10),
    ];
    assert!(!dictionary(0).is_empty());
    assert_eq!(reader.asked(), after_the_tail(&file, data));
}

/// As many of all rows as 1,000 of 5 million.
#[test]
fn rows_far_apart_take_one_part_in_fifty_of_a_file_of_small_pages() {
    const ROWS: u64 = 100_000;
    let numbers = Int64Array::from_iter_values((0..ROWS as i64).map(|row| row * 7_919 % 99_991));
    let texts = arrow::array::StringArray::from_iter_values(
        (0..ROWS).map(|row| format!("https://example.org/{:08x}", row * 7_919)),
    );
    let table = arrow::array::RecordBatch::try_from_iter([
        ("number", Arc::new(numbers) as _),
        ("text", Arc::new(texts) as _),
    ]);
    let properties = properties()
        .set_max_row_group_row_count(Some(20_000))
        .set_data_page_row_count_limit(64)
        .set_write_batch_size(64)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None);
    let file = write(&table.unwrap(), properties);
    let reader = Recording::new(&file);
    let metadata = Metadata::read(&*reader).unwrap();
    let rows: Vec<u64> = (0..20).map(|n| (n * 48_271 + 17) % ROWS).collect();
    let scan = || scan(reader.clone()).metadata(metadata.clone()).threads(1);
    let groups = metadata.parquet().row_groups().iter();
    let chunks = groups.flat_map(|group| group.columns()).map(|chunk| {
        let (start, len) = chunk.byte_range();
        start + len
    });
    // Behind the data come the indexes, which are not counted.
    let end = chunks.max().unwrap();
    reader.asked();
    assert_eq!(scan().take(&rows).unwrap().num_rows(), 20);
    let asked = reader.asked();
    let pages: u64 = asked
        .iter()
        .filter(|range| range.start < end)
        .map(|range| range.end - range.start)
        .sum();
    assert!(
        pages > 0 && pages * 50 < file.len() as u64,
        "{pages} of {}",
        file.len()
    );
}

/// Runs of few rows between which pages were not read, with few rows before and behind them.
#[test]
fn take_of_two_rows_of_a_small_group_whatever_is_between_them() {
    let properties = properties()
        .set_max_row_group_row_count(Some(150))
        .set_data_page_row_count_limit(10)
        .set_write_batch_size(5);
    let reader = Arc::new(MemoryReader::new(write(&table(300), properties)));
    let metadata = Metadata::read(&*reader).unwrap();
    for first in [0, 1, 9, 40, 85] {
        for second in (first + 55..150).step_by(3) {
            let rows = [first, second, 150 + second];
            let taken = scan(reader.clone())
                .metadata(metadata.clone())
                .columns(["id"])
                .take(&rows)
                .unwrap();
            let ids = taken.column(0).as_primitive::<Int64Type>();
            assert_eq!(ids.values(), &rows.map(|row| row as i64));
        }
    }
}

#[test]
fn bloom_filters_are_read_for_equality_alone() {
    let strings = arrow::array::StringArray::from_iter_values(
        (0..4000).map(|row| format!("{:x}", row * 7_919 % 4001)),
    );
    let numbers =
        arrow::array::Int64Array::from_iter_values((0..4000).map(|row| row * 7_919 % 4001));
    let batch = arrow::array::RecordBatch::try_from_iter([
        ("s", std::sync::Arc::new(strings) as _),
        ("n", std::sync::Arc::new(numbers) as _),
    ])
    .unwrap();
    let properties = properties()
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::Chunk)
        .set_compression(parquet::basic::Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_bloom_filter_enabled(true);
    let file = write(&batch, properties);
    let count = |predicate| {
        let reader = Recording::new(&file);
        let batches = scan(reader).filter(predicate).batches().unwrap();
        let skipped = batches
            .plan()
            .skipped
            .iter()
            .filter(|skip| skip.reason == SkipReason::BloomFilter)
            .count();
        (
            batches
                .map(|batch| batch.unwrap().num_rows())
                .sum::<usize>(),
            skipped,
        )
    };
    let group_of = |wanted: i64| {
        (0..4000)
            .position(|row| row * 7_919 % 4001 == wanted)
            .unwrap()
            / 1000
    };
    assert!(group_of(17) < 4);
    let (rows, skipped) = count(column("n").eq(17));
    assert_eq!(rows, 1);
    assert!(skipped >= 2, "{skipped}");
    let (rows, skipped) = count(column("s").is_in(["11", "nowhere"]));
    assert_eq!(rows, 1);
    assert!(skipped >= 2, "{skipped}");
    assert_eq!(count(column("n").eq(17).negate()), (3999, 0));
    assert_eq!(count(column("n").lt(17)).1, 0);
}

#[test]
fn a_small_file_is_one_request() {
    let file = write(&table(50), properties());
    assert!((file.len() as u64) < TAIL);
    let reader = Recording::new(&file);
    let batches = scan(reader.clone()).batches().unwrap();
    assert_eq!(
        batches
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>(),
        50
    );
    assert_eq!(reader.asked(), [0..file.len() as u64]);
}
