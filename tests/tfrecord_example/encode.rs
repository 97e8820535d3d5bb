//! Examples made of rows: what was put in comes back, and `prost` reads the same.

use std::sync::Arc;

use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{
    ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeListArray, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, LargeBinaryArray, LargeListArray,
    LargeStringArray, ListArray, RecordBatch, StringArray, StringViewArray, UInt8Array,
    UInt16Array, UInt32Array, UInt64Array,
};
use feedwater::ErrorKind;
use feedwater::tfrecord::{ExampleDecoder, ExampleEncoder, ExampleSchema, Feature, ValueType};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;

use super::cells::{Cell, cell};
use super::messages::Example;

fn encoded(batch: &RecordBatch) -> Vec<Vec<u8>> {
    let mut encoder = ExampleEncoder::new(batch).unwrap();
    (0..encoder.rows())
        .map(|row| {
            let mut out = Vec::new();
            encoder.encode(row, &mut out).unwrap();
            out
        })
        .collect()
}

fn decoded(schema: &ExampleSchema, records: &[Vec<u8>]) -> RecordBatch {
    let mut decoder = ExampleDecoder::new(schema).unwrap();
    for record in records {
        assert!(decoder.push(record).unwrap());
    }
    decoder.finish().unwrap()
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

type Row = (
    (Option<i64>, Option<i32>, Option<u8>, Option<u32>),
    (Option<String>, Option<Vec<u8>>),
    (Option<Vec<i64>>, Option<[u32; 3]>, Option<Vec<String>>),
);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let scalars = (
        option::of(any::<i64>()),
        option::of(any::<i32>()),
        option::of(any::<u8>()),
        option::of(any::<u32>()),
    );
    let bytes = (
        option::of("\\PC{0,40}"),
        option::of(vec(any::<u8>(), 0..200)),
    );
    let lists = (
        option::of(vec(any::<i64>(), 0..20)),
        option::of(any::<[u32; 3]>()),
        option::of(vec("[a-zü]{0,5}", 0..4)),
    );
    vec((scalars, bytes, lists), 1..20)
}

/// The columns of rows, and the schema that reads them.
fn columns(rows: &[Row]) -> (RecordBatch, ExampleSchema) {
    let of = rows.iter();
    let floats = |bits: &[u32; 3]| bits.map(|bits| Some(f32::from_bits(bits)));
    let names = of.clone().map(|row| row.2.2.as_ref());
    let mut words =
        arrow_array::builder::ListBuilder::new(arrow_array::builder::StringBuilder::new());
    for words_of in names {
        words.append_option(words_of.map(|words| words.iter().map(Some)));
    }
    let batch = batch(vec![
        (
            "label",
            Arc::new(Int64Array::from_iter(of.clone().map(|row| row.0.0))) as ArrayRef,
        ),
        (
            "small",
            Arc::new(Int32Array::from_iter(of.clone().map(|row| row.0.1))),
        ),
        (
            "byte",
            Arc::new(UInt8Array::from_iter(of.clone().map(|row| row.0.2))),
        ),
        (
            "x",
            Arc::new(Float32Array::from_iter(
                of.clone().map(|row| row.0.3.map(f32::from_bits)),
            )),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter(
                of.clone().map(|row| row.1.0.as_ref()),
            )),
        ),
        (
            "image",
            Arc::new(BinaryArray::from_iter(
                of.clone().map(|row| row.1.1.as_ref()),
            )),
        ),
        (
            "ids",
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
                of.clone()
                    .map(|row| row.2.0.as_ref().map(|v| v.iter().map(|v| Some(*v)))),
            )),
        ),
        (
            "box",
            Arc::new(
                FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
                    of.map(|row| row.2.1.as_ref().map(floats)),
                    3,
                ),
            ),
        ),
        ("words", Arc::new(words.finish())),
    ]);
    let schema = ExampleSchema::new()
        .with(Feature::scalar("label", ValueType::Int64))
        .with(Feature::scalar("small", ValueType::Int32))
        .with(Feature::scalar("byte", ValueType::UInt8))
        .with(Feature::scalar("x", ValueType::Float32))
        .with(Feature::scalar("text", ValueType::Utf8))
        .with(Feature::scalar("image", ValueType::Binary))
        .with(Feature::variable("ids", ValueType::Int64))
        .with(Feature::fixed("box", ValueType::Float32, [3]))
        .with(Feature::variable("words", ValueType::Utf8));
    (batch, schema)
}

fn cells(batch: &RecordBatch) -> Vec<Vec<Cell>> {
    let row = |row| {
        batch
            .columns()
            .iter()
            .map(|array| cell(array, row))
            .collect()
    };
    (0..batch.num_rows()).map(row).collect()
}

proptest! {
    #[test]
    fn rows_come_back(rows in rows(), from in any::<prop::sample::Index>()) {
        let (batch, schema) = columns(&rows);
        let records = encoded(&batch);
        let back = decoded(&schema, &records);
        prop_assert_eq!(cells(&back), cells(&batch));
        // Lists decoded have no nulls inside, which is all that was lost of the types.
        let again = encoded(&back);
        prop_assert_eq!(&again, &records);
        // A slice has its own rows.
        let from = from.index(rows.len());
        prop_assert_eq!(&encoded(&batch.slice(from, rows.len() - from)), &records[from..]);
        // The same as `prost` reads them, and not longer than it writes them.
        for (record, row) in records.iter().zip(cells(&batch)) {
            let message = Example::decode(&record[..]).unwrap();
            prop_assert_eq!(message.encoded_len(), record.len());
            let features = message.features.unwrap_or_default().feature;
            for (field, expected) in batch.schema().fields().iter().zip(row) {
                prop_assert_eq!(Cell::from(features.get(field.name())), expected);
            }
        }
    }

    #[test]
    fn offsets_of_64_bits_have_the_same_rows(rows in rows()) {
        let (batch, schema) = columns(&rows);
        let large = decoded(&schema.clone().large_offsets(true), &encoded(&batch));
        prop_assert_eq!(large.schema(), schema.large_offsets(true).arrow_schema().unwrap());
        prop_assert!(large.column(5).as_any().is::<LargeBinaryArray>());
        prop_assert!(large.column(6).as_any().is::<LargeListArray>());
        let texts = large.column(4).as_any().downcast_ref::<LargeStringArray>().unwrap();
        for (at, row) in rows.iter().enumerate() {
            prop_assert_eq!(texts.iter().nth(at).unwrap(), row.1.0.as_deref());
            prop_assert_eq!(cell(large.column(6), at), cell(batch.column(6), at));
        }
        prop_assert_eq!(encoded(&large), encoded(&batch));
    }
}

#[test]
fn each_type_has_its_list() {
    let integers: Vec<(&str, ArrayRef)> = vec![
        ("i8", Arc::new(Int8Array::from(vec![-128]))),
        ("i16", Arc::new(Int16Array::from(vec![-300]))),
        ("u16", Arc::new(UInt16Array::from(vec![u16::MAX]))),
        ("u32", Arc::new(UInt32Array::from(vec![u32::MAX]))),
        ("bool", Arc::new(BooleanArray::from(vec![true]))),
    ];
    let values = [-128, -300, 65_535, 4_294_967_295, 1];
    let bytes: Vec<(&str, ArrayRef)> = vec![
        ("large", Arc::new(LargeBinaryArray::from(vec![&b"xy"[..]]))),
        ("view", Arc::new(BinaryViewArray::from(vec![&b"xy"[..]]))),
        ("text", Arc::new(LargeStringArray::from(vec!["xy"]))),
        ("text view", Arc::new(StringViewArray::from(vec!["xy"]))),
    ];
    let names: Vec<_> = integers
        .iter()
        .chain(&bytes)
        .map(|(name, _)| *name)
        .collect();
    let record = encoded(&batch(integers.into_iter().chain(bytes).collect())).remove(0);
    let features = Example::decode(&record[..])
        .unwrap()
        .features
        .unwrap()
        .feature;
    assert_eq!(features.len(), names.len());
    for (at, name) in names.iter().enumerate() {
        let expected = match values.get(at) {
            Some(value) => Cell::Ints(vec![*value]),
            None => Cell::Bytes(vec![b"xy".to_vec()]),
        };
        assert_eq!(Cell::from(features.get(*name)), expected, "{name}");
    }
}

#[test]
fn what_examples_cannot_say_is_refused_by_name() {
    for array in [
        Arc::new(UInt64Array::from(vec![1])) as ArrayRef,
        Arc::new(Float64Array::from(vec![1.0])),
    ] {
        let batch = batch(vec![
            ("fine", Arc::new(Int8Array::from(vec![1]))),
            ("odd", array),
        ]);
        let error = ExampleEncoder::new(&batch).unwrap_err();
        let ErrorKind::UnsupportedFeature { part, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(part.as_deref(), Some("odd"));
    }
    let lists = [
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![Some(3), None]),
    ];
    let lists = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let batch = batch(vec![("ids", lists)]);
    let mut encoder = ExampleEncoder::new(&batch).unwrap();
    let mut out = b"before".to_vec();
    encoder.encode(1, &mut out).unwrap();
    assert_eq!(out, b"before", "an example without features has no bytes");
    let error = encoder.encode(2, &mut out).unwrap_err();
    let expected = "tf.train.Example (ids): not supported: a null inside the list of row 2";
    assert_eq!(
        (error.to_string().as_str(), &out[..]),
        (expected, &b"before"[..])
    );
    let error = encoder.encode(3, &mut out).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
    encoder.encode(0, &mut out).unwrap();
    assert!(out.len() > 6);
}
