//! What the driver is asked for, for each batch: as often for many features as for one.

use feedwater::Processor;
use feedwater::cuda::{Dense, Device, ElementType};
use feedwater::tfrecord::{ExampleSchema, Feature, ValueType, examples};

use crate::beside::*;
use crate::messages::{Kind, bytes, example, ints};
use crate::support::*;

/// Times that the host waits, copies from it that are queued, and launches.
type Asked = (u64, u64, u64);

/// For each batch of ten records but the first. None is decoded ahead, so that they can be told apart.
fn asked(records: &[Vec<u8>], schema: ExampleSchema, tensors: &[&'static str]) -> Vec<Asked> {
    let session = session("lazy");
    let mut all = Vec::new();
    {
        let gpu = Device::open(0).unwrap();
        let scan = examples(open(&gpu, &file(records))).schema(schema);
        let mut scan = scan.batch_rows(10).on_device(&gpu).ahead(0);
        for feature in tensors {
            let row = Dense::cast(&[4], ElementType::U8, ElementType::F32);
            scan = scan.tensor(*feature, row.affine(0, &[0.5; 4], &[1.0; 4]));
        }
        let mut batches = scan.processor(Processor::Gpu).batches().unwrap();
        assert_eq!(batches.next().unwrap().unwrap().num_rows(), 10);
        loop {
            let before = session.counts();
            let Some(batch) = batches.next() else { break };
            let after = session.counts();
            assert_eq!(batch.unwrap().num_rows(), 10);
            all.push((
                after.waits - before.waits,
                after.uploads - before.uploads,
                after.launches - before.launches,
            ));
        }
        assert_eq!(batches.report().host.rows, 0);
    }
    nothing_left(&session);
    all
}

#[test]
fn a_batch_is_read_back_once_whatever_its_features() {
    if !is_software(&session("eager")) {
        return;
    }
    let names = ["a", "b", "c", "d", "e", "f"];
    let record = |row: usize| {
        let of = |at: usize| -> Kind {
            match at {
                0 | 1 => bytes([&[row as u8; 4]]),
                2 | 3 => bytes([&b"some text"[..row % 9], b"x"]),
                _ => ints([row as i64, 7]),
            }
        };
        example(
            names
                .into_iter()
                .enumerate()
                .map(|(at, name)| (name, of(at))),
        )
    };
    let records: Vec<_> = (0..40).map(record).collect();
    let feature = |at: usize| match at {
        0 | 1 => Feature::scalar(names[at], ValueType::Binary).required(),
        2 => Feature::variable(names[at], ValueType::Utf8).or_default("nothing"),
        3 => Feature::fixed(names[at], ValueType::Binary, [2]).or_default("y"),
        _ => Feature::variable(names[at], ValueType::Int64),
    };
    let of = |all: &[usize]| {
        let features = all.iter().map(|at| feature(*at));
        features.fold(ExampleSchema::new(), ExampleSchema::with)
    };
    let one = asked(&records, of(&[2]), &[]);
    assert_eq!(one.len(), 3);
    // For the records, which are copied to the device; for what was found; and for the columns.
    let (waits, ..) = one[0];
    assert_eq!(waits, 3);
    let all = asked(&records, of(&[0, 1, 2, 3, 4, 5]), &[]);
    assert_eq!(all, one);
    let tensor = asked(&records, of(&[0, 2]), &["a"]);
    let tensors = asked(&records, of(&[0, 1, 2, 3, 4, 5]), &["a", "b"]);
    assert_eq!(tensors, tensor);
    // Tensors have one launch, and what it is told of each of them.
    for ((waits, uploads, launches), one) in tensors.into_iter().zip(one) {
        assert_eq!((waits, uploads, launches), (one.0, one.1 + 1, one.2 + 1));
    }
}
