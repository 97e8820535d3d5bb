//! Cards with little memory: what does not fit as a whole comes in parts.

use feedwater::cuda::DeviceOptions;
use feedwater::tfrecord::{Boundaries, ExampleSchema, Feature, ValueType, examples};
use feedwater::{ErrorKind, Processor};

use crate::beside::*;
use crate::messages::{bytes, example, ints};
use crate::support::*;

fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("id", ValueType::Int64).required())
        .with(Feature::scalar("image", ValueType::Binary))
}

/// Small records, a large one, and small ones.
fn records() -> Vec<Vec<u8>> {
    let record = |id: i64| {
        let len = if id == 9 { 90_000 } else { 9_000 };
        let image = data(len + id as usize).to_vec();
        example([("id", ints([id])), ("image", bytes([&image]))])
    };
    (0..16).map(record).collect()
}

const ONE: &str = "the device has no memory for a record beside its columns";

/// The same rows and the same error with ever less memory, until there is none for a record.
#[test]
fn a_batch_that_is_too_large_comes_in_parts_and_a_record_from_the_host() {
    if !is_software(&session("eager")) {
        return;
    }
    let good = file(&records());
    let mut bad = good.clone();
    // Behind the large one.
    let at = file(&records()[..13]).len();
    bad[at + 2_000] ^= 4;
    for (boundaries, ahead) in [
        (Boundaries::Host, 0),
        (Boundaries::Host, 2),
        (Boundaries::Device, 0),
        (Boundaries::Device, 1),
    ] {
        let session = session("eager");
        for (file, rows) in [(&good, 16), (&bad, 13)] {
            let (mut parts, mut one, mut none) = (0, 0, 0);
            for memory in (0..11).map(|less| (1088 - 96 * less) << 10) {
                let options = DeviceOptions::default().chunk(1 << 14);
                let gpu = options.memory(memory).open(0).unwrap();
                let scan = || examples(open(&gpu, file)).schema(schema());
                let device = scan().on_device(&gpu).processor(Processor::Gpu);
                let device = device.boundaries(boundaries).ahead(ahead);
                let (device, report) = by_device(device);
                if let Some(error) = &device.error
                    && matches!(error.kind(), ErrorKind::OutOfMemory { .. })
                {
                    assert!(device.rows.num_rows() <= 9, "{memory}: {report}");
                    none += 1;
                    continue;
                }
                assert_eq!(none, 0, "{memory} has room, and more had not");
                same(&by_host(scan()), &device, &report.to_string());
                assert_eq!(device.rows.num_rows(), rows, "{report}");
                parts += u64::from(report.halved > 0);
                one += u64::from(report.reasons.contains(&(ONE.into(), 1)));
                let said = report.to_string();
                assert_eq!(
                    said.contains("halved for want of the device's memory"),
                    report.halved > 0
                );
            }
            assert!(
                parts > 0 && none > 0,
                "{boundaries:?} {ahead} {parts} {none}"
            );
            // A window holds the records, whoever decodes them; and a batch that is found corrupt is the host's before there are columns.
            assert!(one > 0 || rows < 16 || boundaries == Boundaries::Device);
        }
        nothing_left(&session);
    }
}

/// Of what the host decodes, columns are copied in parts.
#[test]
fn columns_of_the_host_that_are_too_large_come_in_parts() {
    if !is_software(&session("eager")) {
        return;
    }
    let session = session("eager");
    {
        let options = DeviceOptions::default().chunk(1 << 14);
        let gpu = options.memory(80 << 10).open(0).unwrap();
        let records = &records()[..9];
        let scan = || examples(open(&gpu, &file(records))).schema(schema());
        let device = scan().batch_rows(100).on_device(&gpu);
        let device = device.processor(Processor::Cpu).ahead(0);
        let (device, report) = by_device(device);
        same(&by_host(scan()), &device, &report.to_string());
        assert!(report.halved > 0 && report.host.batches > 1, "{report}");
    }
    nothing_left(&session);
}
