//! Files to read, and the oracle: the `parquet` crate's own reader.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, Float32Array, Float64Array,
    Int32Array, Int32Builder, Int64Array, ListBuilder, MapBuilder, RecordBatch, StringArray,
    StringBuilder, StructArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Fields, Int8Type, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};

/// `rows` rows of many types; values follow from the row's number.
pub(crate) fn table(rows: usize) -> RecordBatch {
    let range = 0..rows as i64;
    let some = |row: i64, of: i64| row % of != 0;
    let mut lists = ListBuilder::new(Int32Builder::new());
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in range.clone() {
        for value in 0..row % 4 {
            lists
                .values()
                .append_option((value != 2).then_some((row * 10 + value) as i32));
        }
        lists.append(some(row, 7));
        for value in 0..row % 3 {
            maps.keys().append_value(format!("key {value}"));
            maps.values()
                .append_option((value != 1).then_some(row as i32));
        }
        maps.append(some(row, 11)).unwrap();
    }
    let a = Int32Array::from_iter(range.clone().map(|row| some(row, 5).then_some(row as i32)));
    let b = StringArray::from_iter(
        range
            .clone()
            .map(|row| some(row, 3).then(|| format!("b{row}"))),
    );
    let fields = Fields::from(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Utf8, true),
    ]);
    let nulls = NullBuffer::from_iter(range.clone().map(|row| some(row, 13)));
    let nested = StructArray::new(fields, vec![Arc::new(a), Arc::new(b)], Some(nulls));
    let categories: DictionaryArray<Int8Type> = range
        .clone()
        .map(|row| some(row, 9).then_some(["red", "green", "blue"][row as usize % 3]))
        .collect();
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        (
            "id",
            Arc::new(Int64Array::from_iter_values(range.clone())),
            false,
        ),
        (
            "u32",
            Arc::new(UInt32Array::from_iter_values(
                range.clone().map(|row| u32::MAX - row as u32),
            )),
            false,
        ),
        (
            "u64",
            Arc::new(UInt64Array::from_iter(
                range
                    .clone()
                    .map(|row| some(row, 4).then_some((1 << 63) - 500 + row as u64)),
            )),
            true,
        ),
        (
            "f32",
            Arc::new(Float32Array::from_iter_values(
                range.clone().map(|row| row as f32 / 8.0),
            )),
            false,
        ),
        (
            "f64",
            Arc::new(Float64Array::from_iter(range.clone().map(|row| {
                some(row, 6).then_some(if row % 50 == 1 { f64::NAN } else { row as f64 })
            }))),
            true,
        ),
        (
            "flag",
            Arc::new(BooleanArray::from_iter(
                range.clone().map(|row| some(row, 8).then_some(row < 1500)),
            )),
            true,
        ),
        (
            "text",
            Arc::new(StringArray::from_iter_values(
                range
                    .clone()
                    .map(|row| format!("{}{row:08}", "x".repeat(100))),
            )),
            false,
        ),
        ("category", Arc::new(categories), true),
        (
            "price",
            Arc::new(
                Decimal128Array::from_iter(
                    range
                        .clone()
                        .map(|row| some(row, 10).then_some(i128::from(row) - 1000)),
                )
                .with_precision_and_scale(20, 2)
                .unwrap(),
            ),
            true,
        ),
        (
            "time",
            Arc::new(
                TimestampMicrosecondArray::from_iter_values(range.map(|row| row * 1000))
                    .with_timezone("UTC"),
            ),
            false,
        ),
        ("list", Arc::new(lists.finish()), true),
        ("map", Arc::new(maps.finish()), true),
        ("nested", Arc::new(nested), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Row groups of 1,000 rows, pages of 100.
pub(crate) fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(1000))
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(50)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_compression(Compression::SNAPPY)
}

pub(crate) fn write(batch: &RecordBatch, properties: WriterPropertiesBuilder) -> Bytes {
    let mut file = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    file.into()
}

/// The whole file as the `parquet` crate reads it.
pub(crate) fn oracle(file: &Bytes) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone())
        .unwrap()
        .build()
        .unwrap();
    let schema = reader.schema_of();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

trait SchemaOf {
    fn schema_of(&self) -> SchemaRef;
}

impl<R: arrow::array::RecordBatchReader> SchemaOf for R {
    fn schema_of(&self) -> SchemaRef {
        self.schema()
    }
}

/// All batches as one.
pub(crate) fn joined(batches: feedwater::parquet::Batches) -> RecordBatch {
    let schema = batches.schema().clone();
    let batches: Vec<_> = batches.map(Result::unwrap).collect();
    for batch in &batches {
        assert_eq!(batch.schema(), schema);
        assert!(batch.num_rows() > 0);
    }
    concat_batches(&schema, &batches).unwrap()
}
