//! Rows for which a predicate is true, exactly, whatever statistics lead past.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{
    Decimal128Type, Float32Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
    UInt32Type, UInt64Type,
};
use feedwater::parquet::{Predicate, column, scan};
use feedwater::{ErrorKind, MemoryReader};
use proptest::prelude::*;

use crate::files::{oracle, properties, table, write};

const ROWS: usize = 2300;

fn shared() -> &'static (bytes::Bytes, RecordBatch) {
    static FILE: std::sync::OnceLock<(bytes::Bytes, RecordBatch)> = std::sync::OnceLock::new();
    FILE.get_or_init(|| {
        let file = write(&table(ROWS), properties().set_bloom_filter_enabled(true));
        let whole = oracle(&file);
        (file, whole)
    })
}

/// The ids of rows that the predicate is true for; all scans agree about them.
fn ids(predicate: &Predicate) -> Vec<i64> {
    let run = |threads, indexes, batch| {
        let reader = Arc::new(MemoryReader::new(shared().0.clone()));
        let scan = scan(reader)
            .filter(predicate.clone())
            .columns(["id", "text"]);
        let batches = scan
            .threads(threads)
            .indexes(indexes)
            .batch_rows(batch)
            .batches()
            .unwrap();
        let mut ids = Vec::new();
        for batch in batches {
            let batch = batch.unwrap();
            assert_eq!(batch.num_columns(), 2);
            let text = batch.column(1).as_string::<i32>();
            for (row, id) in batch
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .iter()
                .enumerate()
            {
                assert!(text.value(row).ends_with(&format!("{id:08}")));
                ids.push(*id);
            }
        }
        ids
    };
    let found = run(2, true, 8192);
    assert_eq!(run(1, false, 77), found);
    found
}

fn expected(holds: impl Fn(usize) -> Option<bool>) -> Vec<i64> {
    (0..ROWS)
        .filter(|row| holds(*row) == Some(true))
        .map(|row| row as i64)
        .collect()
}

fn of<T: arrow::datatypes::ArrowPrimitiveType>(name: &str, row: usize) -> Option<T::Native> {
    let array = shared().1.column_by_name(name).unwrap().as_primitive::<T>();
    array.is_valid(row).then(|| array.value(row))
}

#[test]
fn unsigned_numbers_are_compared_as_such() {
    let middle = 1u64 << 63;
    assert_eq!(
        ids(&column("u64").lt(middle)),
        expected(|row| of::<UInt64Type>("u64", row).map(|value| value < middle))
    );
    assert_eq!(
        ids(&column("u64").ge(middle + 1000)),
        expected(|row| of::<UInt64Type>("u64", row).map(|value| value >= middle + 1000))
    );
    let some = u32::MAX - 1234;
    assert_eq!(ids(&column("u32").eq(some)), [1234]);
    assert_eq!(
        ids(&column("u32").gt(some)),
        expected(|row| of::<UInt32Type>("u32", row).map(|value| value > some))
    );
    assert_eq!(ids(&column("u32").gt(-1)).len(), ROWS);
    assert_eq!(ids(&column("u32").lt(-1)).len(), 0);
}

#[test]
fn nan_is_neither_smaller_nor_larger_and_never_lost() {
    let value = |row| of::<Float64Type>("f64", row);
    assert_eq!(
        ids(&column("f64").lt(100.5)),
        expected(|row| value(row).map(|value| value < 100.5))
    );
    // NaN is not smaller: the negation is true for it, in every row group.
    let not = ids(&column("f64").lt(1e9).negate());
    assert_eq!(
        not,
        expected(|row| value(row).map(|value| value.is_nan() || value >= 1e9))
    );
    assert!(not.len() > 30);
    assert_eq!(
        ids(&column("f64").ne(7.0)),
        expected(|row| value(row).map(|value| value != 7.0))
    );
    assert_eq!(ids(&column("f64").eq(f64::NAN)), [0i64; 0]);
    assert_eq!(
        ids(&column("f64").ne(f64::NAN)),
        expected(|row| value(row).map(|_| true))
    );
    assert_eq!(ids(&column("f32").eq(0.1)), [0i64; 0]);
    assert_eq!(ids(&column("f32").eq(-0.0)), [0]);
    assert_eq!(
        ids(&column("f32").eq(12.5)),
        expected(|row| of::<Float32Type>("f32", row).map(|value| value == 12.5))
    );
}

#[test]
fn bounds_that_were_truncated_lose_nothing() {
    // The statistics have the first 64 bytes, which are the same in all rows.
    let text = |row: i64| format!("{}{row:08}", "x".repeat(100));
    for row in [0, 999, 1000, 2299] {
        assert_eq!(ids(&column("text").eq(text(row))), [row]);
    }
    assert_eq!(ids(&column("text").lt(text(1001))).len(), 1001);
    assert_eq!(ids(&column("text").gt("x".repeat(100))).len(), ROWS);
    assert_eq!(ids(&column("text").gt("y")).len(), 0);
    assert_eq!(
        ids(&column("text").is_in([text(5), text(2000), "z".into()])),
        [5, 2000]
    );
}

#[test]
fn nulls_are_undecided() {
    let a = |row: usize| {
        let nested: &StructArray = shared().1.column_by_name("nested").unwrap().as_struct();
        let a = nested
            .column_by_name("a")
            .unwrap()
            .as_primitive::<Int32Type>();
        (nested.is_valid(row) && a.is_valid(row)).then(|| a.value(row))
    };
    assert_eq!(
        ids(&column("nested.a").is_null()),
        expected(|row| Some(a(row).is_none()))
    );
    assert_eq!(
        ids(&column("nested.a").is_not_null()),
        expected(|row| Some(a(row).is_some()))
    );
    assert_eq!(
        ids(&column("nested.a").lt(40)),
        expected(|row| a(row).map(|value| value < 40))
    );
    assert_eq!(
        ids(&column("nested.a").lt(40).negate()),
        expected(|row| a(row).map(|value| value >= 40))
    );
    // Undecided or true is true, undecided and false is false.
    let either = column("nested.a").lt(40).or(column("id").lt(3));
    assert_eq!(
        ids(&either),
        expected(|row| Some(row < 3 || a(row).is_some_and(|value| value < 40)))
    );
    let neither = column("nested.a").lt(40).and(column("id").lt(3)).negate();
    assert_eq!(
        ids(&neither),
        expected(|row| match a(row) {
            Some(value) => Some(!(value < 40 && row < 3)),
            None => (row >= 3).then_some(true),
        })
    );
}

#[test]
fn other_types() {
    assert_eq!(
        ids(&column("price").ge(3)),
        expected(|row| of::<Decimal128Type>("price", row).map(|value| value >= 300))
    );
    assert_eq!(
        ids(&column("time").lt(5000)),
        expected(|row| of::<TimestampMicrosecondType>("time", row).map(|value| value < 5000))
    );
    let flag = |row: usize| {
        let array = shared().1.column_by_name("flag").unwrap().as_boolean();
        array.is_valid(row).then(|| array.value(row))
    };
    assert_eq!(
        ids(&column("flag").eq(false)),
        expected(|row| flag(row).map(|value| !value))
    );
    let names = shared().1.column_by_name("category").unwrap();
    let names: StringArray = arrow::compute::cast(names, &arrow::datatypes::DataType::Utf8)
        .unwrap()
        .as_string()
        .clone();
    let name = |row: usize| names.is_valid(row).then(|| names.value(row).to_owned());
    assert_eq!(
        ids(&column("category").eq("green")),
        expected(|row| name(row).map(|name| name == "green"))
    );
    assert_eq!(
        ids(&column("category").is_in(["blue", "red"])),
        expected(|row| name(row).map(|name| name != "green"))
    );
}

/// 260 becomes 4 when it is read as 8 bits, which its bounds say nothing about.
#[test]
fn a_bound_outside_the_type_casts_doubt_on_the_other() {
    use parquet::data_type::Int32Type as Physical;
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message m { required int32 a (INTEGER(8, false)); }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut file = Vec::new();
    let options = Arc::new(properties().build());
    let mut writer = SerializedFileWriter::new(&mut file, schema, options).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = [5, 260, 6];
    column
        .typed::<Physical>()
        .write_batch(&values, None, None)
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let rows = |predicate| {
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let batches = scan(reader).filter(predicate).batches().unwrap();
        batches
            .map(|batch| batch.unwrap().num_rows())
            .sum::<usize>()
    };
    assert_eq!(rows(feedwater::parquet::column("a").lt(5)), 1);
    assert_eq!(rows(feedwater::parquet::column("a").eq(4)), 1);
    assert_eq!(rows(feedwater::parquet::column("a").ge(5)), 2);
}

#[test]
fn predicates_without_a_meaning_are_refused() {
    let reader = Arc::new(MemoryReader::new(shared().0.clone()));
    for predicate in [
        column("id").eq("text"),
        column("id").eq(1.5),
        column("text").eq(1),
        column("list").eq(1),
        column("nested").is_null(),
        column("f64").lt(i128::MAX),
    ] {
        let shown = predicate.to_string();
        let error = scan(reader.clone())
            .filter(predicate)
            .batches()
            .unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{shown}: {error}"
        );
    }
    let error = scan(reader)
        .filter(column("nothing").is_null())
        .batches()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}

/// What a predicate says of a row.
#[derive(Clone)]
struct Oracle(Arc<dyn Fn(usize) -> Option<bool> + Send + Sync>);

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Oracle")
    }
}

/// Predicates on two columns, and what each says of a row.
fn predicates() -> impl Strategy<Value = (Predicate, Oracle)> {
    let leaf = (0..4usize, 0..6usize, -100..2500i64).prop_map(|(kind, operator, key)| {
        let name = ["id", "u64", "f64", "nested.a"][kind];
        let predicate = |value: feedwater::parquet::Value| match operator {
            0 => column(name).eq(value),
            1 => column(name).ne(value),
            2 => column(name).lt(value),
            3 => column(name).le(value),
            4 => column(name).gt(value),
            _ => column(name).is_null(),
        };
        let key = if kind == 1 {
            i128::from(key) + (1 << 63) - 500
        } else {
            i128::from(key)
        };
        let predicate = predicate(if kind == 2 {
            (key as f64).into()
        } else {
            key.into()
        });
        let value = move |row: usize| -> Option<f64> {
            match kind {
                0 => Some(row as f64),
                // The difference is exact as a float.
                1 => {
                    of::<UInt64Type>("u64", row).map(|value| (i128::from(value) - (1 << 63)) as f64)
                }
                2 => of::<Float64Type>("f64", row),
                _ => (!row.is_multiple_of(13) && !row.is_multiple_of(5)).then_some(row as f64),
            }
        };
        let key = if kind == 1 {
            (key - (1 << 63)) as f64
        } else {
            key as f64
        };
        let oracle = Oracle(Arc::new(move |row| {
            let value = value(row);
            if operator == 5 {
                return Some(value.is_none());
            }
            value.map(|value| match operator {
                0 => value == key,
                1 => value != key,
                2 => value < key,
                3 => value <= key,
                _ => value > key,
            })
        }));
        (predicate, oracle)
    });
    leaf.prop_recursive(3, 8, 2, |inner| {
        (inner.clone(), inner, 0..3usize).prop_map(|((a, x), (b, y), kind)| {
            let predicate = match kind {
                0 => a.and(b),
                1 => a.or(b),
                _ => a.negate(),
            };
            let oracle = Oracle(Arc::new(move |row| match (kind, x.0(row), y.0(row)) {
                (0, Some(false), _) | (0, _, Some(false)) => Some(false),
                (0, Some(true), Some(true)) => Some(true),
                (1, Some(true), _) | (1, _, Some(true)) => Some(true),
                (1, Some(false), Some(false)) => Some(false),
                (2, x, _) => x.map(|x| !x),
                _ => None,
            }));
            (predicate, oracle)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_predicate((predicate, oracle) in predicates()) {
        prop_assert_eq!(ids(&predicate), expected(|row| oracle.0(row)), "{}", predicate);
    }
}
