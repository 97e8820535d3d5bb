//! Files that other software wrote.

use feedwater::Processor;
use feedwater::cuda::Device;
use feedwater::tfrecord::{Boundaries, ExampleScan, ExampleSchema, Feature, ValueType, examples};

use crate::beside::*;
use crate::common::corpus;
use crate::support::*;

#[test]
fn each_file_has_the_values_that_the_host_finds() {
    let Some(dir) = corpus::folder("tfrecord") else {
        return;
    };
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let on_device = |scan: ExampleScan| scan.on_device(&gpu).processor(Processor::Gpu);
        let given = ExampleSchema::new()
            .with(Feature::scalar("x_byte", ValueType::Utf8).required())
            .with(Feature::fixed("x_float", ValueType::Float32, [2, 5]))
            .with(Feature::variable("x_int", ValueType::Int32));
        for (name, on_gpu) in [
            // Examples, and sequences, whose context has the same place in the bytes.
            ("pytorch-data_example.tfrecord", 4),
            ("pytorch-data_sequence_example.tfrecord", 0),
        ] {
            let bytes = std::fs::read(dir.join(name)).unwrap();
            for boundaries in [Boundaries::Host, Boundaries::Device] {
                let scan = || examples(open(&gpu, &bytes));
                let host = by_host(scan());
                let (device, report) = by_device(on_device(scan()).boundaries(boundaries));
                same(&host, &device, name);
                assert_eq!(
                    (device.rows.num_rows(), report.gpu.rows),
                    (4, on_gpu),
                    "{name}"
                );
                let scan = || scan().schema(given.clone());
                let host = by_host(scan());
                let (device, report) = by_device(on_device(scan()).boundaries(boundaries));
                same(&host, &device, name);
                // The lists of a sequence are a field that an example does not have.
                let rewritten = if on_gpu == 0 { 4 } else { 0 };
                assert_eq!(
                    (report.gpu.rows, report.rewritten),
                    (4, rewritten),
                    "{name}"
                );
            }
        }
    }
    nothing_left(&session);
}
