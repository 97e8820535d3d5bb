//! Encodings that no writer makes, and bytes that are no examples.

use feedwater::cuda::Device;
use feedwater::tfrecord::{ExampleSchema, Feature, RecordOptions, ValueType};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::beside::*;
use crate::messages::{bytes, example, floats, ints};
use crate::support::*;
use crate::values::{record, records};
use crate::wire;

/// Those of `wire`.
fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::variable("a", ValueType::Int64))
        .with(Feature::variable("b", ValueType::Float32))
        .with(Feature::variable("label", ValueType::Binary).or_default(vec![b"no".to_vec()]))
        .with(Feature::scalar("", ValueType::Int64).or_default(-7i64))
}

/// Runs cases of a strategy, within one session.
fn cases<S: Strategy>(count: u32, strategy: S, mut test: impl FnMut(S::Value)) {
    let mut runner = TestRunner::new(Config::with_cases(count));
    for _ in 0..count {
        let tree = strategy.new_tree(&mut runner).unwrap();
        test(proptest::strategy::ValueTree::current(&tree));
    }
}

#[test]
fn any_encoding_of_an_example_is_read_as_by_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let (mut rewritten, mut faults) = (0, 0);
        let strategy = proptest::collection::vec(wire::example(), 1..4);
        cases(40, strategy, |records| {
            let (outcome, report) = compare(
                &gpu,
                &file(&records),
                &RecordOptions::new(),
                &schema(),
                |scan| scan,
            );
            rewritten += report.rewritten;
            faults += u32::from(outcome.error.is_some());
        });
        // Both were met.
        assert!(rewritten > 5 && faults > 3, "{rewritten} {faults}");
    }
    nothing_left(&session);
}

#[test]
fn damaged_examples_are_refused_or_read_as_by_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let damage = proptest::collection::vec((0..6, any::<u16>(), any::<u8>()), 1..4);
        let one = prop_oneof![wire::example().boxed(), (0u64..50).prop_map(record).boxed()];
        let strategy = (proptest::collection::vec(one, 1..6), damage);
        let (mut refused, mut by_gpu) = (0, 0);
        cases(60, strategy, |(mut records, damage)| {
            let target = records.len() / 2;
            for (how, at, value) in damage {
                let bytes = &mut records[target];
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
            let bytes = file(&records);
            for schema in [schema(), all_kinds_optional()] {
                let options = RecordOptions::new();
                let (outcome, report) = compare(&gpu, &bytes, &options, &schema, |scan| scan);
                refused += u32::from(outcome.error.is_some());
                by_gpu += report.gpu.rows;
            }
        });
        assert!(refused > 15 && by_gpu > 20, "{refused} {by_gpu}");
    }
    nothing_left(&session);
}

/// As `all_kinds`, so that records of `wire` have none of them.
fn all_kinds_optional() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("byte", ValueType::UInt8))
        .with(Feature::scalar("text", ValueType::Utf8))
        .with(Feature::variable("ids", ValueType::Int64))
        .with(Feature::variable("texts", ValueType::Utf8))
        .with(Feature::fixed("box", ValueType::Float32, [4]))
}

#[test]
fn lengths_near_the_end_of_64_bits_lead_nowhere() {
    let mut session = session("lazy");
    session.set("CHECKS", "all");
    {
        let gpu = Device::open(0).unwrap();
        let valid = example([("a", ints([1, 2, 3])), ("b", floats([1.0]))]);
        for at in 0..valid.len() {
            for length in [u64::MAX, (1 << 32) + 2] {
                let mut varint = Vec::new();
                prost::encoding::encode_varint(length, &mut varint);
                let bad = [&valid[..at], &varint, &valid[at + 1..]].concat();
                let bytes = file(&[valid.clone(), bad]);
                compare(&gpu, &bytes, &RecordOptions::new(), &schema(), |scan| scan);
            }
        }
    }
    nothing_left(&session);
}

/// One record among others has something that a column cannot have.
#[test]
fn what_a_schema_does_not_take_is_the_hosts_error() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let good = [("byte", ints([1]))];
        let long = vec![1i64; 100];
        let mut too_long = long.clone();
        too_long[77] = 256;
        let bad = [
            example([("label", ints([1]))]),
            example([("byte", ints([256]))]),
            example([("byte", ints([-1]))]),
            example([("byte", ints([]))]),
            example([("byte", ints([1, 2]))]),
            example([("byte", floats([1.0]))]),
            example([good[0].clone(), ("small", ints([1 << 31]))]),
            example([good[0].clone(), ("text", bytes([b"\xff"]))]),
            example([good[0].clone(), ("text", bytes([b"ab\xc3"]))]),
            example([good[0].clone(), ("text", bytes([b"\xed\xa0\x80"]))]),
            example([good[0].clone(), ("text", bytes([b"a\x80"]))]),
            example([
                good[0].clone(),
                ("texts", bytes([b"", b"\xf4\x90\x80\x80"])),
            ]),
            example([good[0].clone(), ("texts", bytes([b"\xc0\xaf"]))]),
            example([good[0].clone(), ("box", floats([1.0; 3]))]),
            example([good[0].clone(), ("words", bytes([b"one"]))]),
            example([good[0].clone(), ("bytes", ints(too_long))]),
        ];
        for bad in bad {
            let mut all = records(6);
            all.insert(4, bad);
            let bytes = file(&all);
            let options = RecordOptions::new();
            let (outcome, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| scan);
            assert_eq!(outcome.rows.num_rows(), 4, "{report}");
            assert!(outcome.error.is_some());
            assert_eq!(report.reasons[0].0, "a record is not what is asked for");
        }
        // What is at the edge of that is taken by the kernels.
        let fine = [
            example([good[0].clone(), ("bytes", ints(long))]),
            example([good[0].clone(), ("small", ints([-(1 << 31)]))]),
            example([
                good[0].clone(),
                (
                    "text",
                    bytes(["\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}\u{d7ff}\u{e000}".as_bytes()]),
                ),
            ]),
        ];
        let options = RecordOptions::new();
        let (_, report) = compare(&gpu, &file(&fine), &options, &all_kinds(), |scan| scan);
        assert_eq!((report.gpu.rows, report.rewritten), (3, 0));
    }
    nothing_left(&session);
}
