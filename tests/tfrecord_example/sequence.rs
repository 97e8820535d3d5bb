//! `SequenceExample`s made of rows: what was put in comes back, and `prost` reads the same.

use std::sync::Arc;

use arrow_array::builder::{
    BinaryViewBuilder, FixedSizeListBuilder, Float32Builder, Int64Builder, LargeListBuilder,
    ListBuilder, StringBuilder,
};
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use feedwater::ErrorKind;
use feedwater::tfrecord::{ExampleDecoder, ExampleEncoder, ExampleSchema, Feature, ValueType};
use proptest::prelude::*;
use prost::Message;

use super::cells::{Cell, cell, scalar_steps};
use super::messages::{FeatureList, SequenceExample};
use super::wire;

fn records(mut encoder: ExampleEncoder<'_>) -> Vec<Vec<u8>> {
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

fn steps(list: &FeatureList) -> Cell {
    let steps = list.feature.iter();
    Cell::Steps(steps.map(|step| Cell::from(Some(step))).collect())
}

/// What `prost` reads, without features that have no list, and feature lists none of whose steps has one: those are in no
/// column.
fn by_prost(bytes: &[u8]) -> Vec<(bool, String, Cell)> {
    let example = SequenceExample::decode(bytes).unwrap();
    let context = example.context.unwrap_or_default().feature;
    let context = context
        .into_iter()
        .map(|(name, feature)| (false, name, Cell::from(Some(&feature))))
        .filter(|(_, _, cell)| *cell != Cell::Null);
    let lists = example.feature_lists.unwrap_or_default().feature_list;
    let lists = lists
        .into_iter()
        .filter(|(_, list)| list.feature.iter().any(|step| step.kind.is_some()))
        .map(|(name, list)| (true, name, steps(&list)));
    let mut all: Vec<_> = context.chain(lists).collect();
    all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Any encoding, decoded to columns and encoded again, is the same message.
    #[test]
    fn what_was_decoded_is_encoded_as_the_same_message(
        all in proptest::collection::vec(wire::sequence_example(), 1..4),
        from in any::<prop::sample::Index>(),
    ) {
        // Kinds that differ are not to be had as columns.
        let Ok(schema) = ExampleSchema::infer(&all) else {
            return Ok(());
        };
        let batch = decoded(&schema, &all);
        let again = records(ExampleEncoder::with_schema(&batch, &schema).unwrap());
        for (ours, theirs) in again.iter().zip(&all) {
            prop_assert_eq!(by_prost(ours), by_prost(theirs));
        }
        prop_assert_eq!(&decoded(&schema, &again), &batch);
        // A slice has its own rows.
        let from = from.index(all.len());
        let slice = batch.slice(from, all.len() - from);
        prop_assert_eq!(&records(ExampleEncoder::with_schema(&slice, &schema).unwrap()), &again[from..]);
    }
}

/// Nested lists of each kind, with nulls in each place that can have one.
fn nested() -> RecordBatch {
    let label = Int64Array::from(vec![Some(7), None, Some(9)]);
    let mut ids = ListBuilder::new(ListBuilder::new(Int64Builder::new()));
    ids.values().append_value([Some(1), Some(-2)]);
    ids.values().append_null();
    ids.values().append_value([]);
    ids.append(true);
    ids.append(false);
    ids.append(true);
    let mut boxes = LargeListBuilder::new(FixedSizeListBuilder::new(Float32Builder::new(), 2));
    for pair in [[1.0, 2.0], [3.0, 4.0]] {
        boxes.values().values().append_slice(&pair);
        boxes.values().append(true);
    }
    boxes.append(true);
    boxes.append(true);
    boxes.append(false);
    let mut frames = FixedSizeListBuilder::new(ListBuilder::new(BinaryViewBuilder::new()), 1);
    for row in 0..3u8 {
        // Longer and shorter than what a view has within itself.
        let bytes = vec![row; 10 * usize::from(row) + 1];
        frames.values().append_value([Some(bytes)]);
        frames.append(true);
    }
    RecordBatch::try_from_iter_with_nullable([
        ("ids", Arc::new(ids.finish()) as ArrayRef, true),
        ("boxes", Arc::new(boxes.finish()), true),
        ("label", Arc::new(label), true),
        ("frames", Arc::new(frames.finish()), true),
    ])
    .unwrap()
}

#[test]
fn nested_lists_are_feature_lists() {
    let batch = nested();
    let all = records(ExampleEncoder::new(&batch).unwrap());
    let ints = |values: &[i64]| Cell::Ints(values.to_vec());
    let floats = |values: &[f32]| Cell::Floats(values.iter().map(|v| v.to_bits()).collect());
    let frame = |row: u8| {
        let bytes = vec![row; 10 * usize::from(row) + 1];
        Cell::Steps(vec![Cell::Bytes(vec![bytes])])
    };
    let expected = [
        vec![
            (false, "label", ints(&[7])),
            (
                true,
                "boxes",
                Cell::Steps(vec![floats(&[1.0, 2.0]), floats(&[3.0, 4.0])]),
            ),
            (true, "frames", frame(0)),
            (
                true,
                "ids",
                Cell::Steps(vec![ints(&[1, -2]), Cell::Null, ints(&[])]),
            ),
        ],
        vec![(true, "frames", frame(1))],
        vec![(false, "label", ints(&[9])), (true, "frames", frame(2))],
    ];
    for ((record, expected), row) in all.iter().zip(expected).zip(0..) {
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(list, name, cell)| (list, name.to_owned(), cell))
            .collect();
        assert_eq!(by_prost(record), expected, "row {row}");
        // Not longer than `prost` writes it, but for the list without steps, of which it leaves out that it is one.
        let message = SequenceExample::decode(&record[..]).unwrap();
        let left_out = if row == 0 { 0 } else { 2 };
        assert_eq!(message.encoded_len(), record.len() - left_out);
    }
    // A list without steps is there, and not null.
    let message = SequenceExample::decode(&all[1][..]).unwrap();
    let lists = message.feature_lists.unwrap().feature_list;
    assert_eq!(lists.get("boxes"), Some(&FeatureList::default()));
    assert_eq!(lists.get("ids"), None);
    let message = SequenceExample::decode(&all[2][..]).unwrap();
    let lists = message.feature_lists.unwrap().feature_list;
    assert_eq!(lists.get("boxes"), None);
    assert_eq!(lists.get("ids"), Some(&FeatureList::default()));

    let schema = ExampleSchema::new()
        .with(Feature::scalar("label", ValueType::Int64))
        .with_list(Feature::variable("ids", ValueType::Int64))
        .with_list(Feature::fixed("boxes", ValueType::Float32, [2]))
        .with_list(Feature::variable("frames", ValueType::Binary));
    let back = decoded(&schema, &all);
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        let found = back.column_by_name(field.name()).unwrap();
        for row in 0..3 {
            if field.name() == "frames" {
                assert_eq!(cell(found, row), frame(row as u8));
            } else {
                assert_eq!(cell(found, row), cell(array, row), "{} {row}", field.name());
            }
        }
    }
    // In another order of columns, but the context always comes first.
    assert_eq!(all[0].first(), Some(&0x0a));
    assert_eq!(
        records(ExampleEncoder::new(&batch.slice(1, 2)).unwrap()),
        all[1..]
    );
}

#[test]
fn a_schema_says_which_lists_are_feature_lists_and_what_they_are_called() {
    let list = |values: Vec<Option<Vec<Option<i64>>>>| -> ArrayRef {
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(values))
    };
    let clicks = list(vec![Some(vec![Some(1), None, Some(3)]), None, Some(vec![])]);
    let words = StringArray::from(vec!["a", "b", "c"]);
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("clicks column", clicks.clone(), true),
        ("left out", Arc::new(words) as ArrayRef, true),
    ])
    .unwrap();
    let feature = Feature::scalar("clicks", ValueType::Int64).column("clicks column");
    let schema = ExampleSchema::new().with_list(feature);
    let all = records(ExampleEncoder::with_schema(&batch, &schema).unwrap());
    let one = |value| Cell::Ints(vec![value]);
    assert_eq!(
        by_prost(&all[0]),
        [(
            true,
            "clicks".to_owned(),
            Cell::Steps(vec![one(1), Cell::Null, one(3)])
        )]
    );
    assert!(
        all[1].is_empty(),
        "an example without features has no bytes"
    );
    let back = decoded(&schema, &all);
    assert_eq!(back.num_columns(), 1);
    for row in 0..3 {
        assert_eq!(
            scalar_steps(back.column(0), row),
            scalar_steps_of(&clicks, row)
        );
    }
    // The same column as a feature of the context cannot have the null.
    let feature = Feature::variable("clicks", ValueType::Int64).column("clicks column");
    let schema = ExampleSchema::new().with(feature);
    let mut encoder = ExampleEncoder::with_schema(&batch, &schema).unwrap();
    let mut out = Vec::new();
    let error = encoder.encode(0, &mut out).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tf.train.Example (clicks): not supported: a null inside the list of row 0"
    );
    encoder.encode(2, &mut out).unwrap();
    assert_eq!(
        by_prost(&out),
        [(false, "clicks".to_owned(), Cell::Ints(vec![]))]
    );
}

/// The same of a list with nulls inside.
fn scalar_steps_of(array: &ArrayRef, row: usize) -> Cell {
    use arrow_array::cast::AsArray;
    if array.is_null(row) {
        return Cell::Null;
    }
    let inner = array.as_list::<i32>().value(row);
    Cell::Steps((0..inner.len()).map(|step| cell(&inner, step)).collect())
}

#[test]
fn what_sequence_examples_cannot_say_is_refused_by_name() {
    let mut deep = ListBuilder::new(ListBuilder::new(ListBuilder::new(StringBuilder::new())));
    deep.append(true);
    let deep: ArrayRef = Arc::new(deep.finish());
    let mut holes = ListBuilder::new(ListBuilder::new(Int64Builder::new()));
    holes.values().append_value([Some(1), None]);
    holes.append(true);
    let number: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([
        ("deep", deep),
        ("holes", Arc::new(holes.finish())),
        ("number", number),
    ])
    .unwrap();
    let part_of = |error: feedwater::Error| match error.kind() {
        ErrorKind::UnsupportedFeature { part, format, .. } => {
            (*format, part.as_deref().unwrap_or_default().to_owned())
        }
        _ => panic!("{error}"),
    };
    let sequence = "tf.train.SequenceExample";
    let error = ExampleEncoder::new(&batch).unwrap_err();
    assert_eq!(part_of(error), (sequence, "deep".into()));
    let some = batch.project(&[1, 2]).unwrap();
    let mut encoder = ExampleEncoder::new(&some).unwrap();
    let mut out = b"before".to_vec();
    let error = encoder.encode(0, &mut out).unwrap_err();
    assert_eq!(part_of(error), (sequence, "holes".into()));
    assert_eq!(out, b"before");
    for (schema, named) in [
        (
            ExampleSchema::new().with_list(Feature::scalar("number", ValueType::Int64)),
            (sequence, "number"),
        ),
        (
            ExampleSchema::new().with(Feature::scalar("number", ValueType::Float32)),
            ("tf.train.Example", "number"),
        ),
        (
            ExampleSchema::new().with(Feature::variable("holes", ValueType::Int64)),
            ("tf.train.Example", "holes"),
        ),
    ] {
        let error = ExampleEncoder::with_schema(&batch, &schema).unwrap_err();
        assert_eq!(part_of(error), (named.0, named.1.into()));
    }
    let schema = ExampleSchema::new().with(Feature::scalar("none", ValueType::Int64));
    let error = ExampleEncoder::with_schema(&batch, &schema).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}
