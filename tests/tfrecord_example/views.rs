//! Columns of views: the values of those that copy, in the memory that was read.

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use bytes::Bytes;
use feedwater::ChunkOptions;
use feedwater::tfrecord::{
    ExampleDecoder, ExampleScan, ExampleSchema, Feature, RecordOptions, ValueType, Writer,
};
use proptest::prelude::*;

use super::messages::{bytes, example, ints};
use super::wire;

type Of = fn(ValueType) -> Feature;

/// Shapes and ways to be missing, of a feature that the generated examples have often, and of one that they never have.
const FEATURES: [(&str, Of); 6] = [
    ("variable", |values| Feature::variable("", values)),
    ("scalar", |values| Feature::scalar("", values)),
    ("two", |values| Feature::fixed("", values, [2])),
    ("default", |values| {
        Feature::scalar("", values).or_default("a default of more than twelve bytes")
    }),
    ("absent", |values| Feature::fixed("no such", values, [3])),
    ("required", |values| {
        Feature::variable("", values).required()
    }),
];

/// As the column that copies has it.
fn copied(array: &ArrayRef) -> ArrayRef {
    let to = |kind: &DataType| match kind {
        DataType::BinaryView => DataType::Binary,
        DataType::Utf8View => DataType::Utf8,
        other => other.clone(),
    };
    let field = |field: &arrow_schema::FieldRef| {
        let kind = to(field.data_type());
        std::sync::Arc::new(field.as_ref().clone().with_data_type(kind))
    };
    let kind = match array.data_type() {
        DataType::List(item) => DataType::List(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        other => to(other),
    };
    cast(array, &kind).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_encoding_gives_the_values_and_errors_of_columns_that_copy(
        records in proptest::collection::vec(wire::example(), 1..8),
        tell in any::<bool>(),
    ) {
        for (name, of) in FEATURES {
            for (view, copy) in [
                (ValueType::BinaryView, ValueType::Binary),
                (ValueType::Utf8View, ValueType::Utf8),
            ] {
                let decoder = |values| {
                    ExampleDecoder::new(&ExampleSchema::new().with(of(values))).unwrap()
                };
                let (mut views, mut copies) = (decoder(view), decoder(copy));
                for record in &records {
                    let block = Bytes::from(record.clone());
                    if tell {
                        views.read_from(&block);
                    }
                    match (views.push(&block), copies.push(record)) {
                        (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
                        (Err(ours), Err(theirs)) => {
                            prop_assert_eq!(ours.to_string(), theirs.to_string());
                        }
                        (ours, theirs) => prop_assert!(false, "{}: {:?} {:?}", name, ours, theirs),
                    }
                }
                // The examples are gone by now; what of them is pointed to is not.
                let (views, copies) = (views.finish().unwrap(), copies.finish().unwrap());
                let ours = copied(views.column(0));
                prop_assert_eq!(&ours, copies.column(0), "{}", name);
            }
        }
    }
}

fn image(id: i64) -> Vec<u8> {
    vec![id as u8; 100 + (id as usize * 7919) % 9000]
}

#[test]
fn images_of_a_file_are_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("images.tfrecord");
    let mut writer = Writer::create(&path).unwrap();
    for id in 0..2000 {
        let record = example([("id", ints([id])), ("image", bytes([&image(id)[..]]))]);
        writer.write(&record).unwrap();
    }
    writer.commit().unwrap();
    let schema = ExampleSchema::new().with(Feature::scalar("image", ValueType::BinaryView));
    // Records lie across chunks, and batches across blocks.
    let options = RecordOptions::new().chunks(ChunkOptions::default().size(64 << 10));
    for (rows, threads) in [(7, 1), (300, 2)] {
        let reader = feedwater::open(&path).unwrap();
        let scan = ExampleScan::new(reader, &options).schema(schema.clone());
        let batches = scan.batch_rows(rows).threads(threads).batches().unwrap();
        let mut id = 0;
        let mut kept = Vec::new();
        for batch in batches {
            let batch = batch.unwrap();
            let images = batch.column(0).as_binary_view();
            assert_eq!(images.data_buffers()[0].len(), 0, "something was copied");
            kept.push(images.clone());
        }
        for images in kept {
            for found in images.iter() {
                assert_eq!(found.unwrap(), image(id));
                id += 1;
            }
        }
        assert_eq!(id, 2000);
    }
}
