//! Files of every type that kernels decode, and of some that they do not.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::{Decimal128Type, Decimal256Type};
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, FixedSizeBinaryArray, Float16Array, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, IntervalDayTimeArray,
    IntervalYearMonthArray, PrimitiveArray, RecordBatch, StringArray, Time32MillisecondArray,
    Time64NanosecondArray, TimestampMicrosecondArray, TimestampSecondArray, UInt8Array,
    UInt16Array, UInt32Array, UInt64Array,
};
use arrow_buffer::{IntervalDayTime, i256};
use arrow_schema::{Field, Schema};
use bytes::Bytes;
use half::f16;
use parquet::arrow::ArrowWriter;
use parquet::data_type::{Int96, Int96Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Whether a row has a value, by the way in which a column is nullable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// It cannot be null.
    Required,
    /// It can, and nothing is.
    None,
    Some,
    All,
}

pub(crate) const NULLS: [Nulls; 4] = [Nulls::Required, Nulls::None, Nulls::Some, Nulls::All];

impl Nulls {
    pub(crate) fn has(self, row: usize) -> bool {
        match self {
            Nulls::Required | Nulls::None => true,
            // Runs and single ones.
            Nulls::Some => !row.is_multiple_of(7) && row % 97 > 20,
            Nulls::All => false,
        }
    }
}

/// A number for a row: some come again and again, some only once.
fn number(row: usize) -> i64 {
    let row = row as i64;
    match row % 4 {
        0 => row % 11,
        1 => row.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64),
        2 => -row,
        _ => i64::MIN + row,
    }
}

fn floats(row: usize) -> f64 {
    match row % 9 {
        0 => f64::NAN,
        1 => f64::from_bits(0x7ff8_0000_0000_1234),
        2 => f64::NEG_INFINITY,
        3 => -0.0,
        _ => number(row) as f64 / 7.0,
    }
}

/// Columns of all types that the kernels decode, in each way of being nullable.
pub(crate) fn flat(rows: usize, ways: &[Nulls]) -> RecordBatch {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for nulls in ways {
        let mut add = |name: &str, array: ArrayRef| {
            let kind = array.data_type().clone();
            let nullable = *nulls != Nulls::Required;
            fields.push(Field::new(format!("{name}_{nulls:?}"), kind, nullable));
            arrays.push(array);
        };
        macro_rules! column {
            ($name:literal, $array:ty, $value:expr) => {
                let of = |row: usize| nulls.has(row).then(|| $value(row));
                add($name, Arc::new((0..rows).map(of).collect::<$array>()));
            };
        }
        column!("boolean", BooleanArray, |row| number(row) % 3 == 0);
        column!("i8", Int8Array, |row| number(row) as i8);
        column!("i16", Int16Array, |row| number(row) as i16);
        column!("i32", Int32Array, |row| number(row) as i32);
        column!("i64", Int64Array, number);
        column!("u8", UInt8Array, |row| number(row) as u8);
        column!("u16", UInt16Array, |row| number(row) as u16);
        column!("u32", UInt32Array, |row| number(row) as u32);
        column!("u64", UInt64Array, |row| number(row) as u64);
        column!("f16", Float16Array, |row| f16::from_f64(floats(row)));
        column!("f32", Float32Array, |row| floats(row) as f32);
        column!("f64", Float64Array, floats);
        column!("date32", Date32Array, |row| number(row) as i32);
        column!("time32", Time32MillisecondArray, |row| (number(row) as i32)
            .rem_euclid(86_400_000));
        column!("time64", Time64NanosecondArray, |row| number(row)
            .rem_euclid(86_400_000_000_000));
        column!("micros", TimestampMicrosecondArray, number);
        column!("seconds", TimestampSecondArray, |row| number(row)
            / 1_000_000);
        column!("months", IntervalYearMonthArray, |row| number(row) as i32);
        column!("days", IntervalDayTimeArray, |row| IntervalDayTime::new(
            number(row) as i32,
            row as i32
        ));
        // As INT32, INT64, and FIXED_LEN_BYTE_ARRAY of 9 and 16 bytes.
        for (precision, divisor) in [(9, 1 << 36), (18, 1 << 6), (20, 1), (38, 1)] {
            let of = |row: usize| {
                let value = i128::from(number(row) / divisor);
                nulls
                    .has(row)
                    .then_some(if precision == 38 { value << 60 } else { value })
            };
            let array: PrimitiveArray<Decimal128Type> = (0..rows).map(of).collect();
            let array = array.with_precision_and_scale(precision, 2).unwrap();
            add(&format!("decimal_{precision}"), Arc::new(array));
        }
        let wide = |row: usize| {
            let value = i256::from_i128(i128::from(number(row)));
            nulls
                .has(row)
                .then(|| value.wrapping_mul(value).wrapping_mul(value))
        };
        let array: PrimitiveArray<Decimal256Type> = (0..rows).map(wide).collect();
        add(
            "decimal_76",
            Arc::new(array.with_precision_and_scale(76, 3).unwrap()),
        );
        for width in [1, 3, 16, 37] {
            let of = |row: usize| {
                let byte = |at: usize| (number(row) >> (at % 8)) as u8;
                nulls
                    .has(row)
                    .then(|| (0..width).map(byte).collect::<Vec<u8>>())
            };
            let values = (0..rows).map(of);
            let array =
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, width as i32).unwrap();
            add(&format!("fixed_{width}"), Arc::new(array));
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// Numbers, strings, lists, which the host decodes, and dictionaries.
pub(crate) fn other(rows: usize) -> RecordBatch {
    let texts = (0..rows).map(|row| (row % 6 != 0).then(|| format!("text {}", row % 19)));
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in 0..rows {
        for item in 0..row % 4 {
            lists.values().append_value(["one", "two", "three"][item]);
        }
        lists.append(row % 5 != 0);
    }
    let words: arrow_array::DictionaryArray<arrow_array::types::Int32Type> =
        (0..rows).map(|row| ["a", "b", "c"][row % 3]).collect();
    let columns: [(&str, ArrayRef); 4] = [
        (
            "ids",
            Arc::new(Int64Array::from_iter_values((0..rows).map(number))),
        ),
        ("texts", Arc::new(texts.collect::<StringArray>())),
        ("lists", Arc::new(lists.finish())),
        ("words", Arc::new(words)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(crate) fn written(batch: &RecordBatch, properties: WriterProperties) -> Bytes {
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    file.into()
}

/// A file of one column of INT96, as old writers have timestamps.
pub(crate) fn int96(rows: usize, properties: WriterProperties) -> Bytes {
    let schema = parse_message_type("message m { optional int96 at; }").unwrap();
    let mut file = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut file, Arc::new(schema), Arc::new(properties)).unwrap();
    for group in 0..2 {
        let mut columns = writer.next_row_group().unwrap();
        let mut column = columns.next_column().unwrap().unwrap();
        let levels: Vec<i16> = (0..rows).map(|row| i16::from(row % 5 != 3)).collect();
        let values: Vec<Int96> = (0..rows)
            .filter(|row| row % 5 != 3)
            .map(|row| {
                let mut value = Int96::new();
                let nanos = (number(row) as u64).rem_euclid(86_400_000_000_000);
                // Around 1970, and days that wrap around in nanoseconds.
                let day = if row % 10 == 0 {
                    5_000_000
                } else {
                    2_440_000 + row as u32 + group
                };
                value.set_data(nanos as u32, (nanos >> 32) as u32, day);
                value
            })
            .collect();
        column
            .typed::<Int96Type>()
            .write_batch(&values, Some(&levels), None)
            .unwrap();
        column.close().unwrap();
        columns.close().unwrap();
    }
    writer.close().unwrap();
    file.into()
}
