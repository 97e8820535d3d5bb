//! What the driver is asked for, for each batch: as often for many features as for one.

use feedwater::Processor;
use feedwater::cuda::{Dense, Device, ElementType};
use feedwater::tfrecord::{Boundaries, ExampleSchema, Feature, ValueType, examples};

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

/// What one scan queues is waited for by no other.
#[test]
fn each_scan_works_in_its_own_stream() {
    if !is_software(&session("lazy")) {
        return;
    }
    let record = |row: u8| {
        let mut record = example([("a", bytes([&[row; 4]])), ("b", ints([i64::from(row)]))]);
        if row == 7 {
            // An unknown field behind the features: the host writes it anew.
            record.extend([0x50, 1]);
        }
        record
    };
    let file = file(&(0..30).map(record).collect::<Vec<_>>());
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let begin = |boundaries, processor| {
            let schema = ExampleSchema::new()
                .with(Feature::scalar("a", ValueType::Binary).required())
                .with(Feature::variable("b", ValueType::Int64));
            let row = Dense::cast(&[4], ElementType::U8, ElementType::F32);
            let scan = examples(open(&gpu, &file)).schema(schema).batch_rows(10);
            let scan = scan.on_device(&gpu).tensor("a", row).ahead(0);
            let scan = scan.boundaries(boundaries).processor(processor);
            scan.batches().unwrap()
        };
        let mut scans = [
            begin(Boundaries::Host, Processor::Gpu),
            begin(Boundaries::Device, Processor::Gpu),
            begin(Boundaries::Device, Processor::Cpu),
        ];
        let of = |scan: &mut feedwater::tfrecord::DeviceBatches| scan.next().unwrap().unwrap();
        let mut held = Vec::new();
        for _ in 0..3 {
            held.extend(scans.iter_mut().map(of));
        }
        assert_eq!(session.counts().kernel_streams, scans.len() as u64);
        for (at, batch) in held.iter().enumerate() {
            let rows = batch.columns().to_host().unwrap();
            assert_eq!(rows, held[at - at % 3].columns().to_host().unwrap());
            let first = gpu.to_host(batch.tensors()[0].bytes()).unwrap();
            assert_eq!(first[..4], (10.0 * (at / 3) as f32).to_le_bytes());
        }
    }
    nothing_left(&session);
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
