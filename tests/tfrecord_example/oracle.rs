//! Whatever `prost` reads from bytes, the columns have; what it refuses is refused.

use std::collections::{BTreeMap, BTreeSet};

use feedwater::tfrecord::{ExampleDecoder, ExampleSchema, Feature, ValueType};
use feedwater::{Error, ErrorKind};
use proptest::prelude::*;
use prost::Message;

use super::cells::{Cell, cell, scalar_steps};
use super::messages::{self, Example, FeatureList, Kind, SequenceExample};
use super::wire;

/// `Ok(None)`: the steps of a list are of different kinds, of which no column can be made.
fn by_prost(bytes: &[u8]) -> Result<Option<Vec<(String, Cell)>>, prost::DecodeError> {
    let example = SequenceExample::decode(bytes)?;
    let mut cells = Vec::new();
    let context = example.context.unwrap_or_default().feature;
    for (name, feature) in &context {
        cells.push((name.clone(), Cell::from(Some(feature))));
    }
    for (name, list) in &example.feature_lists.unwrap_or_default().feature_list {
        let kinds: BTreeSet<_> = list.feature.iter().filter_map(kind).collect();
        if kinds.len() > 1 {
            return Ok(None);
        }
        let name = match context.get(name) {
            Some(feature) if feature.kind.is_some() => format!("feature_lists/{name}"),
            _ => name.clone(),
        };
        // Without a kind there is no column.
        cells.push((
            name,
            if kinds.is_empty() {
                Cell::Null
            } else {
                steps(list)
            },
        ));
    }
    cells.retain(|(_, cell)| *cell != Cell::Null);
    cells.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Some(cells))
}

fn kind(feature: &messages::Feature) -> Option<u8> {
    Some(match feature.kind.as_ref()? {
        Kind::Bytes(_) => 0,
        Kind::Float(_) => 1,
        Kind::Int64(_) => 2,
    })
}

fn steps(list: &FeatureList) -> Cell {
    Cell::Steps(
        list.feature
            .iter()
            .map(|step| Cell::from(Some(step)))
            .collect(),
    )
}

/// The same by a schema that is inferred from the bytes themselves, which looks at everything in them.
fn by_us(bytes: &[u8]) -> Result<Vec<(String, Cell)>, Error> {
    let schema = ExampleSchema::infer([bytes])?;
    let mut decoder = ExampleDecoder::new(&schema)?;
    assert!(decoder.push(bytes)?);
    let batch = decoder.finish()?;
    assert_eq!(batch.num_rows(), 1);
    let lists_from = schema.features().len();
    let scalars = schema.list_features().iter();
    let scalars: Vec<_> = scalars.map(|f| f.shape() == Some(&[])).collect();
    let mut cells: Vec<_> = batch
        .columns()
        .iter()
        .enumerate()
        .map(|(at, array)| {
            let scalar = at.checked_sub(lists_from).is_some_and(|at| scalars[at]);
            let cell = if scalar {
                scalar_steps(array, 0)
            } else {
                cell(array, 0)
            };
            (batch.schema().field(at).name().clone(), cell)
        })
        .collect();
    cells.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(cells)
}

fn compare(bytes: &[u8]) {
    match (by_prost(bytes), by_us(bytes)) {
        (Ok(Some(theirs)), Ok(ours)) => assert_eq!(ours, theirs, "{bytes:?}"),
        (Ok(None) | Err(_), Err(error)) => {
            assert!(
                matches!(error.kind(), ErrorKind::Malformed { .. }),
                "{error}"
            );
        }
        (theirs, ours) => panic!("{bytes:?}\ntheirs: {theirs:?}\nours: {ours:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_encoding_of_an_example_is_read_as_by_prost(bytes in wire::example()) {
        prop_assert!(by_prost(&bytes).is_ok());
        compare(&bytes);
    }

    #[test]
    fn any_encoding_of_a_sequence_example_is_read_as_by_prost(bytes in wire::sequence_example()) {
        prop_assert!(by_prost(&bytes).is_ok());
        compare(&bytes);
    }

    /// Damage: bytes changed, left out, put in, moved, the end cut off.
    #[test]
    fn damaged_examples_are_refused_as_by_prost_or_read_as_by_it(
        bytes in prop_oneof![wire::example(), wire::sequence_example()],
        damage in proptest::collection::vec((0..6, any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes;
        for (how, at, value) in damage {
            let at = usize::from(at) % (bytes.len() + 1);
            match how {
                0 if at < bytes.len() => bytes[at] = value,
                1 if at < bytes.len() => bytes[at] ^= 1 << (value % 8),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 => bytes.insert(at, value),
                4 => bytes.truncate(at),
                _ => {
                    let end = (at + usize::from(value) % 20).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        compare(&bytes);
    }

    /// Rows of a schema that is given, each as the message says or an error, beside each other in one batch.
    #[test]
    fn rows_are_what_the_messages_have_and_errors_leave_no_trace(
        records in proptest::collection::vec(wire::example(), 1..12),
    ) {
        let schema = ExampleSchema::new()
            .with(Feature::variable("a", ValueType::Int64))
            .with(Feature::fixed("b", ValueType::Float32, [2]))
            .with(Feature::scalar("label", ValueType::Int32).or_default(-7i64))
            .with(Feature::variable("", ValueType::Binary).or_default(Vec::<Vec<u8>>::new()));
        let mut decoder = ExampleDecoder::new(&schema).unwrap();
        let mut rows = Vec::new();
        for record in &records {
            let message = Example::decode(&record[..]).unwrap();
            let features = message.features.unwrap_or_default().feature;
            let expected = row(&features);
            let ours = decoder.push(record);
            prop_assert_eq!(ours.is_ok(), expected.is_some(), "{:?} {:?}", ours, features);
            rows.extend(expected);
            prop_assert_eq!(decoder.rows(), rows.len());
        }
        let batch = decoder.finish().unwrap();
        prop_assert_eq!(batch.num_rows(), rows.len());
        for (at, expected) in rows.iter().enumerate() {
            let ours: Vec<_> = batch.columns().iter().map(|array| cell(array, at)).collect();
            prop_assert_eq!(&ours, expected);
        }
    }
}

/// The row that the schema of `rows_are_what…` makes of the features, or `None` if it cannot.
fn row(features: &BTreeMap<String, messages::Feature>) -> Option<Vec<Cell>> {
    let of = |name: &str| Cell::from(features.get(name));
    let a = match of("a") {
        cell @ (Cell::Null | Cell::Ints(_)) => cell,
        _ => return None,
    };
    let b = match of("b") {
        Cell::Null => Cell::Null,
        Cell::Floats(values) if values.len() == 2 => Cell::Floats(values),
        _ => return None,
    };
    let label = match of("label") {
        Cell::Null => Cell::Ints(vec![-7]),
        Cell::Ints(values) if values.len() == 1 && i32::try_from(values[0]).is_ok() => {
            Cell::Ints(values)
        }
        _ => return None,
    };
    let empty = match of("") {
        Cell::Null => Cell::Bytes(Vec::new()),
        cell @ Cell::Bytes(_) => cell,
        _ => return None,
    };
    Some(vec![a, b, label, empty])
}

#[test]
fn groups_are_skipped_as_deep_as_by_prost() {
    for depth in [1, 95, 96, 97, 98, 99, 100, 101, 102, 5000] {
        // Field 9 of an example, and of the list of a feature.
        let groups = [vec![0x4b; depth], vec![0x4c; depth]].concat();
        compare(&groups);
        let mut nested = groups;
        for key in [0x1a, 0x12, 0x0a, 0x0a] {
            let mut length = Vec::new();
            prost::encoding::encode_varint(nested.len() as u64, &mut length);
            nested = [vec![key], length, nested].concat();
            compare(&nested);
        }
    }
}

#[test]
fn lengths_near_the_end_of_64_bits_are_refused() {
    let valid = messages::example([("x", messages::ints([1, 2, 3]))]);
    for at in 0..valid.len() {
        for length in [u64::MAX, u64::MAX - 9, 1 << 63, 1 << 32, (1 << 31) - 1] {
            let mut varint = Vec::new();
            prost::encoding::encode_varint(length, &mut varint);
            let bytes = [&valid[..at], &varint, &valid[at + 1..]].concat();
            compare(&bytes);
        }
    }
}
