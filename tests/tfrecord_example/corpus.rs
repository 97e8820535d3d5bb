//! The files of the corpus, by their values.

use std::path::{Path, PathBuf};

use feedwater::tfrecord::{ExampleDecoder, ExampleSchema, Feature, ValueType};

use super::cells::{Cell, cell};
use super::common::skip;

/// The records of a file that has no damage.
fn records(name: &str) -> Option<Vec<Vec<u8>>> {
    let root = std::env::var_os("FEEDWATER_CORPUS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus"),
        PathBuf::from,
    );
    let bytes = skip::require("corpus", std::fs::read(root.join("tfrecord").join(name)))?;
    let mut rest = &bytes[..];
    let mut records = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = u64::from_le_bytes(*length) as usize;
        records.push(after[4..4 + length].to_vec());
        rest = &after[4 + length + 4..];
    }
    assert_eq!(records.len(), 4);
    Some(records)
}

/// The ten values of record `at`, counted on from the one before.
fn ten(at: usize) -> impl Iterator<Item = usize> {
    10 * at..10 * at + 10
}

fn floats(at: usize) -> Cell {
    Cell::Floats(ten(at).map(|v| (v as f32).to_bits()).collect())
}

fn integers(at: usize) -> Cell {
    Cell::Ints(ten(at).map(|v| 10 * v as i64).collect())
}

fn text() -> Cell {
    Cell::Bytes(vec![b"test str".to_vec()])
}

#[test]
fn examples_have_the_values_that_were_written() {
    let Some(records) = records("pytorch-data_example.tfrecord") else {
        return;
    };
    let given = ExampleSchema::new()
        .with(Feature::scalar("x_byte", ValueType::Utf8).required())
        .with(Feature::fixed("x_float", ValueType::Float32, [2, 5]))
        .with(Feature::variable("x_int", ValueType::Int32));
    let inferred = ExampleSchema::infer(&records[..2]).unwrap();
    for schema in [given, inferred] {
        let mut decoder = ExampleDecoder::new(&schema).unwrap();
        for record in &records {
            assert!(decoder.push(record).unwrap());
        }
        let batch = decoder.finish().unwrap();
        assert_eq!(batch.num_rows(), 4);
        for row in 0..4 {
            let cells: Vec<_> = batch
                .columns()
                .iter()
                .map(|array| cell(array, row))
                .collect();
            assert_eq!(cells, [text(), floats(row), integers(row)]);
        }
    }
}

#[test]
fn sequence_examples_have_the_values_that_were_written() {
    let Some(records) = records("pytorch-data_sequence_example.tfrecord") else {
        return;
    };
    let given = ExampleSchema::new()
        .with(Feature::scalar("x_byte", ValueType::Binary))
        .with(Feature::fixed("x_float", ValueType::Float32, [10]))
        .with(Feature::variable("x_int", ValueType::Int64))
        .with_list(Feature::variable("x_byte_seq", ValueType::Binary).required())
        .with_list(Feature::fixed("x_float_seq", ValueType::Float32, [10]))
        .with_list(Feature::fixed("x_int_seq", ValueType::Int64, [10]));
    let inferred = ExampleSchema::infer(&records).unwrap();
    for schema in [&given, &inferred] {
        let mut decoder = ExampleDecoder::new(schema).unwrap();
        for record in &records {
            assert!(decoder.push(record).unwrap());
        }
        let batch = decoder.finish().unwrap();
        for row in 0..4 {
            let at = |name| cell(batch.column_by_name(name).unwrap(), row);
            assert_eq!(at("x_byte"), text());
            assert_eq!(at("x_float"), floats(row));
            assert_eq!(at("x_int"), integers(row));
            // Their number of steps differs from record to record, and is the same in one.
            let Cell::Steps(steps) = at("x_float_seq") else {
                panic!("{:?}", at("x_float_seq"));
            };
            let times = steps.len();
            assert!(times > 0);
            assert_eq!(steps, vec![floats(row); times]);
            assert_eq!(at("x_int_seq"), Cell::Steps(vec![integers(row); times]));
            let bytes = Cell::Steps(vec![text(); times]);
            if schema == &given {
                assert_eq!(at("x_byte_seq"), bytes);
            } else {
                let array = batch.column_by_name("x_byte_seq").unwrap();
                assert_eq!(super::cells::scalar_steps(array, row), bytes);
            }
        }
    }
}
