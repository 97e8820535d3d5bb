//! Damaged files: checksums that are wrong, and bytes that fell over anywhere.

use feedwater::cuda::Device;
use feedwater::tfrecord::{Boundaries, ExampleSchema, Feature, Index, RecordOptions, ValueType};
use feedwater::{ErrorKind, RecordCheck};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use crate::beside::*;
use crate::messages::{bytes, example, ints};
use crate::support::*;
use crate::values::records;

fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("id", ValueType::Int64).required())
        .with(Feature::variable("text", ValueType::Utf8))
}

/// Records of some ten bytes.
fn small(count: usize) -> Vec<Vec<u8>> {
    let record = |id: usize| {
        let text = "some text".repeat(id % 5);
        let text = ("text", bytes([text.as_bytes()]));
        example([("id", ints([id as i64])), text])
    };
    (0..count).map(record).collect()
}

#[test]
fn checksums_are_found_wrong_on_the_device() {
    let all = small(60);
    let good = file(&all);
    let start = |number: usize| file(&all[..number]).len();
    for (streams, numbers) in [("eager", &[0, 31, 49][..]), ("lazy", &[50, 59])] {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let index = Index::build(open(&gpu, &good)).unwrap();
            for &number in numbers {
                let len = all[number].len();
                let places = [
                    (0, RecordCheck::LengthChecksum),
                    (9, RecordCheck::LengthChecksum),
                    (12, RecordCheck::DataChecksum),
                    (12 + len / 2, RecordCheck::DataChecksum),
                    (12 + len - 1, RecordCheck::DataChecksum),
                    (12 + len + 3, RecordCheck::DataChecksum),
                ];
                for (at, check) in places {
                    let mut bytes = good.clone();
                    bytes[start(number) + at] ^= 0x10;
                    let options = RecordOptions::new();
                    for boundaries in [Boundaries::Host, Boundaries::Device] {
                        let (outcome, report) =
                            compare(&gpu, &bytes, &options, &schema(), |scan| {
                                scan.boundaries(boundaries).window_bytes(2000)
                            });
                        let error = outcome.error.unwrap();
                        let ErrorKind::CorruptRecord {
                            record,
                            check: found,
                        } = error.kind()
                        else {
                            panic!("{error}");
                        };
                        assert_eq!((*record, *found), (number as u64, check), "{report}");
                        assert_eq!(error.offset(), Some(start(number) as u64));
                    }
                    // With an index, as the host reads a record by its number.
                    let scan = feedwater::tfrecord::examples(open(&gpu, &bytes));
                    let scan = scan.schema(schema()).on_device(&gpu).index(&index);
                    let (outcome, _) = by_device(scan);
                    let range = index.range(number as u64).unwrap();
                    let error = outcome.error.unwrap();
                    assert_eq!(outcome.rows.num_rows(), number);
                    assert_eq!(error.offset(), Some(range.start));
                    assert!(
                        matches!(error.kind(), ErrorKind::CorruptRecord { record, check: found } if *record == number as u64 && *found == check),
                        "{error}"
                    );
                }
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn checksums_of_data_are_not_looked_at_if_nobody_wants_it() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let all = records(20);
        let mut bytes = file(&all);
        let at = file(&all[..7]).len() - 2;
        bytes[at] ^= 1;
        let options = RecordOptions::new().verify_data(false);
        for boundaries in [Boundaries::Host, Boundaries::Device] {
            let (outcome, report) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| {
                scan.boundaries(boundaries)
            });
            assert_eq!((outcome.rows.num_rows(), report.gpu.rows), (20, 20));
        }
    }
    nothing_left(&session);
}

/// A record of several pieces, each of which a warp sums.
#[test]
fn long_records_are_summed_in_pieces() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let long = |len: usize| {
            let value: Vec<u8> = data(len).to_vec();
            example([("byte", ints([1])), ("image", bytes([&value]))])
        };
        let all = vec![long(10), long(150_000), long(65_500), long(131_072)];
        let good = file(&all);
        for flip in [None, Some(40_000), Some(140_000), Some(good.len() - 30)] {
            let mut bytes = good.clone();
            if let Some(at) = flip {
                bytes[at] ^= 2;
            }
            for boundaries in [Boundaries::Host, Boundaries::Device] {
                let options = RecordOptions::new();
                let (outcome, _) = compare(&gpu, &bytes, &options, &all_kinds(), |scan| {
                    scan.boundaries(boundaries).window_bytes(100_000)
                });
                assert_eq!(outcome.error.is_some(), flip.is_some());
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn files_that_fell_over_anywhere_are_read_as_by_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let damage = (0..5, any::<prop::sample::Index>(), any::<u8>());
        let strategy = (
            0u64..100,
            proptest::collection::vec(damage, 0..3),
            60usize..500,
        );
        let mut runner = TestRunner::new(Config::default());
        let mut refused = 0;
        for turn in 0..90 {
            let (seed, damage, window) = strategy.new_tree(&mut runner).unwrap().current();
            let all: Vec<_> = small(seed as usize % 5 + 3);
            let mut bytes = file(&all);
            for (how, at, value) in damage {
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] = value,
                    1 => bytes[at] ^= 1 << (value % 8),
                    2 => drop(bytes.remove(at)),
                    3 => bytes.insert(at, value),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let options = RecordOptions::new().verify_data(turn % 3 > 0);
            for boundaries in [Boundaries::Host, Boundaries::Device] {
                let (outcome, _) = compare(&gpu, &bytes, &options, &schema(), |scan| {
                    scan.boundaries(boundaries).window_bytes(window)
                });
                refused += u32::from(outcome.error.is_some());
            }
        }
        assert!((40..170).contains(&refused), "{refused}");
    }
    nothing_left(&session);
}
