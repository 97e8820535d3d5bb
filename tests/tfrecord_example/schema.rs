//! What a schema asks for, and what becomes of examples that do not have it.

use std::sync::Arc;

use arrow_schema::{DataType, Field};
use feedwater::ErrorKind;
use feedwater::tfrecord::{DefaultValues, ExampleDecoder, ExampleSchema, Feature, ValueType};

use super::cells::{Cell, cell, scalar_steps};
use super::messages::{
    self, FeatureList, FeatureLists, SequenceExample, bytes, example, floats, ints,
};

/// The error that the second of two records gets; the first one is sound, and so is the third.
fn refused(feature: Feature, good: &[u8], bad: &[u8]) -> String {
    let mut decoder = ExampleDecoder::new(&ExampleSchema::new().with(feature)).unwrap();
    assert!(decoder.push(good).unwrap());
    let error = decoder.push(bad).unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Malformed {
                format: "tf.train.Example",
                ..
            }
        ),
        "{error}"
    );
    assert!(decoder.push(good).unwrap());
    let batch = decoder.finish().unwrap();
    assert_eq!(batch.num_rows(), 2);
    assert_eq!(cell(batch.column(0), 0), cell(batch.column(0), 1));
    error.to_string()
}

#[test]
fn errors_name_the_record_the_feature_and_what_is_wrong() {
    let one = example([("x", ints([1]))]);
    let none = example([("y", ints([1]))]);
    let scalar = |values| Feature::scalar("x", values);
    let malformed = "malformed tf.train.Example (x): record 1: ";
    for (feature, good, bad, what) in [
        (
            scalar(ValueType::Int64).required(),
            &one,
            none.clone(),
            "it is missing",
        ),
        (
            scalar(ValueType::Int64),
            &one,
            example([("x", floats([1.0]))]),
            "it has floats, and not integers",
        ),
        (
            scalar(ValueType::Int64),
            &one,
            example([("x", ints([]))]),
            "it has 0 values, and not 1",
        ),
        (
            Feature::fixed("x", ValueType::Float32, [2, 2]),
            &example([("x", floats([1.0; 4]))]),
            example([("x", floats([1.0; 5]))]),
            "it has 5 values, and not 4",
        ),
        (
            scalar(ValueType::Int32),
            &one,
            example([("x", ints([1 << 31]))]),
            "the value 2147483648 does not fit its type",
        ),
        (
            Feature::variable("x", ValueType::UInt8),
            &one,
            example([("x", ints([255, -1]))]),
            "the value -1 does not fit its type",
        ),
        (
            scalar(ValueType::Utf8),
            &example([("x", bytes([b"ok"]))]),
            example([("x", bytes([b"\xff"]))]),
            "a value is not UTF-8",
        ),
    ] {
        assert_eq!(refused(feature, good, &bad), format!("{malformed}{what}"));
    }
    // Packed floats of 5 bytes.
    let bad = b"\x0a\x10\x0a\x0e\x0a\x01x\x12\x09\x12\x07\x0a\x05abcde";
    let good = example([("x", floats([1.0]))]);
    let error = refused(scalar(ValueType::Float32), &good, bad);
    assert_eq!(
        error,
        format!("{malformed}packed floats of 5 bytes, which is no multiple of 4")
    );
    // Not in a feature.
    let error = refused(scalar(ValueType::Float32), &good, b"\x0a\x7f");
    let expected = "malformed tf.train.Example: record 1: a length of 127 bytes where 0 are left";
    assert_eq!(error, expected);
}

#[test]
fn what_is_missing_is_null_or_the_default() {
    let given = example([
        ("a", ints([1])),
        ("b", floats([1.0, 2.0])),
        ("c", bytes([b"x", b""])),
        ("d", bytes([b"y"])),
        ("e", ints([7, 8])),
        ("f", ints([9; 6])),
    ]);
    let schema = ExampleSchema::new()
        .with(Feature::scalar("a", ValueType::Int64))
        .with(Feature::fixed("b", ValueType::Float32, [2]).column("box"))
        .with(Feature::variable("c", ValueType::Binary))
        .with(Feature::scalar("d", ValueType::Utf8).or_default("none"))
        .with(Feature::variable("e", ValueType::UInt8).or_default(vec![3i64, 4, 5]))
        .with(Feature::fixed("f", ValueType::Int32, [2, 3]).or_default(-1i64));
    let mut decoder = ExampleDecoder::new(&schema).unwrap();
    for record in [&given[..], b"", &given] {
        assert!(decoder.push(record).unwrap());
    }
    let batch = decoder.finish().unwrap();
    assert_eq!(batch.schema(), schema.arrow_schema().unwrap());
    let row = |row| -> Vec<_> {
        batch
            .columns()
            .iter()
            .map(|array| cell(array, row))
            .collect()
    };
    let text = |text: &str| text.as_bytes().to_vec();
    let first = [
        Cell::Ints(vec![1]),
        Cell::Floats(vec![1f32.to_bits(), 2f32.to_bits()]),
        Cell::Bytes(vec![text("x"), text("")]),
        Cell::Bytes(vec![text("y")]),
        Cell::Ints(vec![7, 8]),
        Cell::Ints(vec![9; 6]),
    ];
    let missing = [
        Cell::Null,
        Cell::Null,
        Cell::Null,
        Cell::Bytes(vec![text("none")]),
        Cell::Ints(vec![3, 4, 5]),
        Cell::Ints(vec![-1; 6]),
    ];
    assert_eq!(
        [row(0), row(1), row(2)],
        [first.to_vec(), missing.to_vec(), first.to_vec()]
    );
    // The decoder begins anew, without rows.
    assert_eq!(decoder.finish().unwrap().num_rows(), 0);
}

#[test]
fn fields_have_the_types_that_were_asked_for() {
    let schema = ExampleSchema::new()
        .with(Feature::scalar("a", ValueType::Int64).required())
        .with(Feature::fixed("b", ValueType::Float32, [4]))
        .with(Feature::fixed("c", ValueType::UInt8, [28, 28, 3]).required())
        .with(Feature::variable("d", ValueType::Utf8))
        .with_list(Feature::variable("e", ValueType::Binary));
    let arrow = schema.arrow_schema().unwrap();
    let item = |values| Arc::new(Field::new("item", values, false));
    assert_eq!(arrow.field(0), &Field::new("a", DataType::Int64, false));
    let fixed = DataType::FixedSizeList(item(DataType::Float32), 4);
    assert_eq!(arrow.field(1), &Field::new("b", fixed, true));
    let fixed = DataType::FixedSizeList(item(DataType::UInt8), 28 * 28 * 3);
    assert_eq!(arrow.field(2).data_type(), &fixed);
    let metadata = arrow.field(2).metadata();
    assert_eq!(metadata["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    assert_eq!(
        metadata["ARROW:extension:metadata"],
        "{\"shape\":[28,28,3]}"
    );
    let list = DataType::List(item(DataType::Utf8));
    assert_eq!(arrow.field(3), &Field::new("d", list, true));
    let steps = Field::new("item", DataType::List(item(DataType::Binary)), true);
    let list = DataType::List(Arc::new(steps));
    assert_eq!(arrow.field(4), &Field::new("e", list, true));
}

#[test]
fn schemas_that_make_no_sense_are_refused() {
    let x = |values| Feature::scalar("x", values);
    let invalid = [
        ExampleSchema::new()
            .with(x(ValueType::Int64))
            .with(x(ValueType::Int64)),
        ExampleSchema::new()
            .with(x(ValueType::Int64))
            .with_list(x(ValueType::Int64)),
        ExampleSchema::new().with(Feature::fixed("x", ValueType::Int64, [3, 0])),
        ExampleSchema::new().with(Feature::fixed("x", ValueType::Int64, [1 << 16, 1 << 15])),
        ExampleSchema::new().with(Feature::fixed("x", ValueType::Int64, [usize::MAX, 2])),
        ExampleSchema::new().with(x(ValueType::Int64).or_default(1f32)),
        ExampleSchema::new().with(x(ValueType::UInt8).or_default(256i64)),
        ExampleSchema::new().with(x(ValueType::Utf8).or_default(&b"\xff"[..])),
        ExampleSchema::new()
            .with(Feature::fixed("x", ValueType::Float32, [3]).or_default(vec![0f32; 2])),
        ExampleSchema::new()
            .with(x(ValueType::Binary).or_default(DefaultValues::Bytes(Vec::new()))),
    ];
    for schema in invalid {
        let error = ExampleDecoder::new(&schema).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("\"x\""), "{error}");
    }
    let apart = ExampleSchema::new()
        .with(x(ValueType::Int64))
        .with_list(x(ValueType::Int64).column("xs"));
    assert!(ExampleDecoder::new(&apart).is_ok());
}

#[test]
fn an_example_that_disagrees_with_what_was_inferred_says_so() {
    let first = [
        example([
            ("x", ints([1])),
            ("y", floats([1.0, 2.0])),
            ("z", bytes([b"a"])),
        ]),
        example([
            ("x", ints([2])),
            ("y", floats([1.0, 3.0])),
            ("z", bytes([b"a", b"b"])),
        ]),
        example([("empty", ints([]))]),
    ];
    let schema = ExampleSchema::infer(&first).unwrap();
    let shapes: Vec<_> = schema
        .features()
        .iter()
        .map(|f| (f.name(), f.shape()))
        .collect();
    let expected = [
        ("empty", None),
        ("x", Some(&[][..])),
        ("y", Some(&[2])),
        ("z", None),
    ];
    assert_eq!(shapes, expected);
    let inferred = "(its type was inferred from the first 3 examples)";
    for (bad, part, what) in [
        (
            example([("x", bytes([b"1"]))]),
            "x",
            "it has bytes, and not integers",
        ),
        (
            example([("y", floats([1.0]))]),
            "y",
            "it has 1 values, and not 2",
        ),
    ] {
        let mut decoder = ExampleDecoder::new(&schema).unwrap();
        for record in &first {
            assert!(decoder.push(record).unwrap());
        }
        let error = decoder.push(&bad).unwrap_err();
        let expected = format!("malformed tf.train.Example ({part}): record 3: {what} {inferred}");
        assert_eq!(error.to_string(), expected);
        assert_eq!(decoder.finish().unwrap().num_rows(), 3);
    }
    let other = example([("x", floats([1.0]))]);
    let error = ExampleSchema::infer([&first[0], &other]).unwrap_err();
    let expected =
        "malformed tf.train.Example (x): record 1: it has floats, and integers in a record before";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn features_that_are_not_asked_for_are_not_looked_into() {
    // "a" has a list that is none; "x" is sound.
    let record = b"\x0a\x1a\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x0a\x7f\x7f\x0a\x0c\x0a\x01x\x12\x07\x1a\x05\x0a\x03\x01\x02\x03";
    let mut decoder =
        ExampleDecoder::new(&ExampleSchema::new().with(Feature::variable("x", ValueType::Int64)))
            .unwrap();
    assert!(decoder.push(record).unwrap());
    assert_eq!(
        cell(decoder.finish().unwrap().column(0), 0),
        Cell::Ints(vec![1, 2, 3])
    );
    assert!(ExampleSchema::infer([record]).is_err());
    // Without columns there are rows all the same.
    let mut decoder = ExampleDecoder::new(&ExampleSchema::new()).unwrap();
    assert!(decoder.push(record).unwrap());
    let batch = decoder.finish().unwrap();
    assert_eq!((batch.num_rows(), batch.num_columns()), (1, 0));
}

#[test]
fn steps_are_missing_in_their_own_way() {
    let step = |kind| messages::Feature { kind };
    let steps = vec![step(Some(ints([1]))), step(None), step(Some(ints([2])))];
    let feature_list = [("xs".to_owned(), FeatureList { feature: steps })].into();
    let with = prost::Message::encode_to_vec(&SequenceExample {
        context: None,
        feature_lists: Some(FeatureLists { feature_list }),
    });
    let xs = || Feature::scalar("xs", ValueType::Int64);
    let one = |value| Cell::Ints(vec![value]);
    for (feature, expected, without) in [
        (xs(), Some(Cell::Null), Some(Cell::Null)),
        (
            xs().or_default(9i64),
            Some(one(9)),
            Some(Cell::Steps(Vec::new())),
        ),
        (xs().required(), None, None),
    ] {
        let schema = ExampleSchema::new().with_list(feature);
        let mut decoder = ExampleDecoder::new(&schema).unwrap();
        let pushed = decoder.push(&with);
        assert_eq!(pushed.is_ok(), expected.is_some());
        if let Err(error) = pushed {
            let expected = "malformed tf.train.SequenceExample (xs): record 0: it is missing";
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(decoder.push(b"").is_ok(), without.is_some());
        let batch = decoder.finish().unwrap();
        let mut row = 0;
        if let Some(expected) = expected {
            let steps = Cell::Steps(vec![one(1), expected, one(2)]);
            assert_eq!(scalar_steps(batch.column(0), row), steps);
            row += 1;
        }
        if let Some(without) = without {
            assert_eq!(scalar_steps(batch.column(0), row), without);
            row += 1;
        }
        assert_eq!(batch.num_rows(), row);
    }
}
