//! Encodings that are valid and that no writer makes: fields twice and in any order, unknown ones, parts of messages,
//! packed values beside others.

use proptest::collection::vec;
use proptest::prelude::*;

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn key(field: u32, wire: u8) -> Vec<u8> {
    varint(u64::from(field) << 3 | u64::from(wire))
}

fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    [key(number, 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..12)
}

/// An unknown field of any wire type, with a number that no message has.
fn unknown() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![4u32..40, Just((1 << 29) - 1)];
    let leaf = (number.clone(), any::<u64>(), any_bytes(), 0..4).prop_map(
        |(number, value, bytes, wire)| match wire {
            0 => [key(number, 0), varint(value)].concat(),
            1 => [key(number, 1), value.to_le_bytes().to_vec()].concat(),
            2 => field(number, &bytes),
            _ => [key(number, 5), (value as u32).to_le_bytes().to_vec()].concat(),
        },
    );
    leaf.prop_recursive(3, 8, 3, move |inner| {
        (number.clone(), vec(inner, 0..3))
            .prop_map(|(number, inside)| [key(number, 3), inside.concat(), key(number, 4)].concat())
    })
}

/// Fields of a message in any order, now and then an unknown one between them.
fn message(
    fields: impl Strategy<Value = Vec<u8>>,
    count: std::ops::Range<usize>,
) -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![9 => fields, 1 => unknown()], count).prop_map(|fields| fields.concat())
}

fn integer() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..300,
        any::<u64>(),
        (0u32..64).prop_map(|bits| 1 << bits)
    ]
}

fn int64_list() -> impl Strategy<Value = Vec<u8>> {
    let packed = vec(integer(), 0..20).prop_map(|values| {
        let packed: Vec<_> = values.into_iter().flat_map(varint).collect();
        field(1, &packed)
    });
    let single = integer().prop_map(|value| [key(1, 0), varint(value)].concat());
    message(prop_oneof![packed, single], 0..3)
}

fn float_list() -> impl Strategy<Value = Vec<u8>> {
    let packed = vec(any::<[u8; 4]>(), 0..9).prop_map(|values| field(1, &values.concat()));
    let single = any::<[u8; 4]>().prop_map(|value| [key(1, 5), value.to_vec()].concat());
    message(prop_oneof![packed, single], 0..3)
}

fn bytes_list() -> impl Strategy<Value = Vec<u8>> {
    message(any_bytes().prop_map(|value| field(1, &value)), 0..3)
}

/// A `Feature`: nearly always with one list.
fn feature() -> impl Strategy<Value = Vec<u8>> {
    let list = || {
        prop_oneof![
            bytes_list().prop_map(|list| field(1, &list)),
            float_list().prop_map(|list| field(2, &list)),
            int64_list().prop_map(|list| field(3, &list)),
        ]
    };
    prop_oneof![
        6 => list(),
        2 => message(list(), 0..4),
    ]
}

/// The names that features have: few, so that they meet.
pub(crate) const NAMES: [&str; 5] = ["", "a", "b", "label", "a longer name of a feature: ü"];

fn entry(value: impl Strategy<Value = Vec<u8>> + Clone) -> impl Strategy<Value = Vec<u8>> {
    let name = (0..NAMES.len()).prop_map(|at| field(1, NAMES[at].as_bytes()));
    let pair = (name.clone(), value.clone(), any::<bool>()).prop_map(|(name, value, swap)| {
        let value = field(2, &value);
        if swap {
            [value, name].concat()
        } else {
            [name, value].concat()
        }
    });
    let any = message(
        prop_oneof![name, value.prop_map(|value| field(2, &value))],
        0..5,
    );
    prop_oneof![5 => pair, 1 => any]
}

fn features() -> impl Strategy<Value = Vec<u8>> {
    let feature = feature().boxed();
    message(entry(feature).prop_map(|entry| field(1, &entry)), 0..6)
}

fn feature_lists() -> impl Strategy<Value = Vec<u8>> {
    let steps = message(feature().prop_map(|step| field(1, &step)), 0..4).boxed();
    message(entry(steps).prop_map(|entry| field(1, &entry)), 0..4)
}

/// A valid `Example`.
pub(crate) fn example() -> impl Strategy<Value = Vec<u8>> {
    message(features().prop_map(|features| field(1, &features)), 0..3)
}

/// A valid `SequenceExample`.
pub(crate) fn sequence_example() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        features().prop_map(|features| field(1, &features)),
        feature_lists().prop_map(|lists| field(2, &lists)),
    ];
    message(part, 0..4)
}
