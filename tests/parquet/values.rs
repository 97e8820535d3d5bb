//! Values are those of the `parquet` crate's own reader, whatever is asked for and however it is decoded.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use feedwater::parquet::{Metadata, scan};
use feedwater::{ErrorKind, MemoryReader};
use proptest::prelude::*;

use crate::files::{joined, oracle, properties, table, write};

fn rows_of(batch: &RecordBatch, rows: impl Iterator<Item = u64>) -> RecordBatch {
    take_record_batch(batch, &arrow::array::UInt64Array::from_iter_values(rows)).unwrap()
}

#[test]
fn every_column_in_any_number_of_threads() {
    let file = write(&table(3500), properties());
    let expected = oracle(&file);
    for threads in [1, 2, 3, 20] {
        for rows in [1, 333, 1000, 8192] {
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let batches = scan(reader)
                .threads(threads)
                .batch_rows(rows)
                .batches()
                .unwrap();
            assert_eq!(batches.plan().row_groups.len(), 4);
            assert_eq!(batches.report().parts, threads.min(13));
            assert_eq!(
                joined(batches),
                expected,
                "{threads} threads, batches of {rows}"
            );
        }
    }
}

#[test]
fn one_row_group_is_shared_by_two_threads() {
    let file = write(&table(900), properties());
    let reader = Arc::new(MemoryReader::new(file.clone()));
    let batches = scan(reader).threads(2).batches().unwrap();
    assert_eq!((batches.report().parts, batches.report().threads), (2, 2));
    assert_eq!(joined(batches), oracle(&file));
}

#[test]
fn columns_by_name_and_by_path() {
    let file = write(&table(2500), properties());
    let whole = oracle(&file);
    let reader = Arc::new(MemoryReader::new(file));
    let metadata = Metadata::read(&*reader).unwrap();
    let some = |names: &[&str]| {
        let scan = scan(reader.clone()).metadata(metadata.clone()).threads(2);
        joined(scan.columns(names.iter().copied()).batches().unwrap())
    };
    let index = |name| whole.schema().index_of(name).unwrap();
    let columns = [index("id"), index("list"), index("map")];
    assert_eq!(
        some(&["map", "id", "list", "id"]),
        whole.project(&columns).unwrap()
    );
    let nested = some(&["nested.b"]);
    let b = nested.column(0).as_struct();
    assert_eq!(b.column_names(), ["b"]);
    let expected = whole.column(index("nested")).as_struct();
    assert_eq!(b.column(0), expected.column_by_name("b").unwrap());
    assert_eq!(b.nulls(), expected.nulls());
    let error = scan(reader.clone())
        .columns(["nested.c"])
        .batches()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}

#[test]
fn no_columns_are_counted_rows() {
    let file = write(&table(2500), properties());
    let reader = crate::readers::Recording::new(&file);
    let batches = scan(reader.clone()).columns([""; 0]).batches().unwrap();
    assert_eq!(
        batches
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>(),
        2500
    );
    assert_eq!(reader.asked().len(), 1);
}

#[test]
fn row_groups_in_the_order_given() {
    let file = write(&table(3500), properties());
    let whole = oracle(&file);
    let reader = Arc::new(MemoryReader::new(file));
    let batches = scan(reader.clone())
        .row_groups([3, 1])
        .threads(2)
        .batches()
        .unwrap();
    assert_eq!(
        joined(batches),
        rows_of(&whole, (3000..3500).chain(1000..2000))
    );
    for groups in [vec![4], vec![1, 1]] {
        assert!(scan(reader.clone()).row_groups(groups).batches().is_err());
    }
}

#[test]
fn other_arrow_types() {
    let file = write(&table(1200), properties());
    let whole = oracle(&file);
    let fields: Vec<_> = whole
        .schema()
        .fields()
        .iter()
        .map(|field| match field.name().as_str() {
            "text" => Arc::new(Field::new("text", DataType::Utf8View, false)),
            "category" => Arc::new(Field::new("category", DataType::LargeUtf8, true)),
            _ => field.clone(),
        })
        .collect();
    let schema = Arc::new(Schema::new(fields));
    let reader = Arc::new(MemoryReader::new(file));
    let batch = joined(
        scan(reader)
            .schema(schema.clone())
            .threads(2)
            .batches()
            .unwrap(),
    );
    assert_eq!(batch.schema().field(6).data_type(), &DataType::Utf8View);
    let text = batch.column_by_name("text").unwrap().as_string_view();
    let expected = whole.column_by_name("text").unwrap().as_string::<i32>();
    assert!(text.iter().eq(expected.iter()));
}

#[test]
fn metadata_of_other_content_are_refused() {
    let one = Arc::new(MemoryReader::new(write(&table(10), properties())));
    let other = Arc::new(MemoryReader::new(write(&table(20), properties())));
    let metadata = Metadata::read(&*one).unwrap();
    assert_eq!(metadata.num_rows(), 10);
    let error = scan(other).metadata(metadata).batches().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed { .. }), "{error}");
}

#[test]
fn take_in_any_order_and_more_than_once() {
    let file = write(&table(3500), properties());
    let whole = oracle(&file);
    let reader = Arc::new(MemoryReader::new(file));
    let metadata = Metadata::read(&*reader).unwrap();
    let take = |rows: &[u64]| {
        scan(reader.clone())
            .metadata(metadata.clone())
            .threads(2)
            .take(rows)
    };
    for rows in [
        vec![],
        vec![0],
        vec![3499, 0, 3499, 17, 1000, 999, 17],
        (0..3500).rev().collect(),
        (0..3500).step_by(63).collect(),
        (500..1500).collect(),
    ] {
        let expected = rows_of(&whole, rows.iter().copied());
        assert_eq!(take(&rows).unwrap(), expected, "{rows:?}");
    }
    for rows in [vec![3500], vec![1, u64::MAX]] {
        let error = take(&rows).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotFound { .. }),
            "{error}"
        );
    }
    let error = scan(reader.clone()).rows(0..1).take(&[0]).unwrap_err();
    assert_eq!(error.name(), Some("memory"));
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { .. }),
        "{error}"
    );
}

#[test]
fn without_a_page_index_the_rows_are_the_same() {
    let properties = properties()
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .set_offset_index_disabled(true);
    let file = write(&table(2500), properties);
    let whole = oracle(&file);
    let reader = Arc::new(MemoryReader::new(file));
    let rows = [2400, 5, 1300];
    let taken = scan(reader.clone()).take(&rows).unwrap();
    assert_eq!(taken, rows_of(&whole, rows.into_iter()));
    let some = joined(scan(reader).rows(990..1010).rows(3..5).batches().unwrap());
    assert_eq!(some, rows_of(&whole, (3..5).chain(990..1010)));
}

#[test]
fn a_file_without_rows() {
    let file = write(&table(0), properties());
    let reader = Arc::new(MemoryReader::new(file));
    let batches = scan(reader.clone()).batches().unwrap();
    assert_eq!(batches.schema().fields().len(), 13);
    assert_eq!(batches.count(), 0);
    assert_eq!(scan(reader).take(&[]).unwrap().num_rows(), 0);
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..2300u64, prop_oneof![1..5u64, 1..400u64]), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_rows_of_any_columns(
        ranges in ranges(),
        columns in prop::collection::btree_set(0..13usize, 1..6),
        threads in 1..4usize,
        batch_rows in 1..1500usize,
        indexes in any::<bool>(),
    ) {
        let file = shared();
        let whole = &file.1;
        let names: Vec<_> = columns.iter().map(|at| whole.schema().field(*at).name().clone()).collect();
        let mut scan = scan(Arc::new(MemoryReader::new(file.0.clone())))
            .columns(names)
            .threads(threads)
            .batch_rows(batch_rows)
            .indexes(indexes)
            .rows(0..0);
        let mut rows = std::collections::BTreeSet::new();
        for (start, len) in ranges {
            let end = (start + len).min(2300);
            scan = scan.rows(start..end);
            rows.extend(start..end);
        }
        let columns: Vec<_> = columns.into_iter().collect();
        let expected = rows_of(&whole.project(&columns).unwrap(), rows.into_iter());
        let batches = scan.batches().unwrap();
        let schema = batches.schema().clone();
        let batches: Vec<_> = batches.map(Result::unwrap).collect();
        prop_assert_eq!(concat_batches(&schema, &batches).unwrap(), expected);
    }

    #[test]
    fn any_rows_are_taken(rows in prop::collection::vec(0..2300u64, 0..60)) {
        let file = shared();
        let taken = scan(Arc::new(MemoryReader::new(file.0.clone()))).threads(2).take(&rows).unwrap();
        prop_assert_eq!(taken, rows_of(&file.1, rows.into_iter()));
    }
}

fn shared() -> &'static (bytes::Bytes, RecordBatch) {
    static FILE: std::sync::OnceLock<(bytes::Bytes, RecordBatch)> = std::sync::OnceLock::new();
    FILE.get_or_init(|| {
        let file = write(&table(2300), properties());
        let whole = oracle(&file);
        assert_eq!(whole.column(0).as_primitive::<Int64Type>().len(), 2300);
        (file, whole)
    })
}
