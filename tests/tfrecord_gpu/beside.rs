//! A file through both processors.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow_array::RecordBatch;
use bytes::Bytes;
use feedwater::cuda::Device;
use feedwater::tfrecord::{
    DeviceReport, DeviceScan, ExampleScan, ExampleSchema, Feature, RecordOptions, ValueType,
};
use feedwater::{Error, OpenOptions, Opened, Processor};

/// CRC-32C as TFRecord stores it.
pub(crate) fn masked_crc(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The header of a record of this length.
pub(crate) fn header(length: u64) -> Vec<u8> {
    let length = length.to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes()].concat()
}

/// A record.
pub(crate) fn framed(data: &[u8]) -> Vec<u8> {
    let sum = masked_crc(data).to_le_bytes();
    [&header(data.len() as u64)[..], data, &sum].concat()
}

/// A file of these records.
pub(crate) fn file<'a>(records: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let records = records.into_iter();
    records.flat_map(|record| framed(record)).collect()
}

/// Bytes as a file whose reader delivers to the device, too.
pub(crate) fn open(gpu: &Arc<Device>, bytes: &[u8]) -> Arc<Opened> {
    let options = OpenOptions::new().device(gpu.clone());
    options
        .open_bytes(Bytes::copy_from_slice(bytes), "data.tfrecord")
        .unwrap()
}

/// All rows, and the error behind them.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) rows: RecordBatch,
    pub(crate) error: Option<Error>,
}

/// What the host makes of it.
pub(crate) fn by_host(scan: ExampleScan) -> Outcome {
    let mut batches = scan.threads(1).batches().unwrap();
    let schema = batches.schema().clone();
    let (mut all, mut error) = (Vec::new(), None);
    for batch in batches.by_ref() {
        match batch {
            Ok(batch) => all.push(batch),
            Err(refused) => error = Some(refused),
        }
    }
    let rows = concat_batches(&schema, &all).unwrap();
    Outcome { rows, error }
}

/// What comes of it on the device, and who did it.
pub(crate) fn by_device(scan: DeviceScan) -> (Outcome, DeviceReport) {
    let mut batches = scan.batches().unwrap();
    let schema = batches.schema().clone();
    let (mut all, mut error) = (Vec::new(), None);
    for batch in batches.by_ref() {
        match batch {
            Ok(batch) => all.push(batch.columns().to_host().unwrap()),
            Err(refused) => error = Some(refused),
        }
    }
    assert!(batches.next().is_none());
    let rows = concat_batches(&schema, &all).unwrap();
    let report = batches.report().clone();
    assert_eq!(
        report.gpu.rows + report.host.rows,
        rows.num_rows() as u64,
        "{report}"
    );
    (Outcome { rows, error }, report)
}

/// That two ways come to the same: values bit by bit, errors with all that they say.
#[track_caller]
pub(crate) fn same(host: &Outcome, device: &Outcome, what: &str) {
    assert_eq!(device.rows, host.rows, "{what}");
    match (&host.error, &device.error) {
        (None, None) => {}
        (Some(host), Some(device)) => {
            assert_eq!(device.to_string(), host.to_string(), "{what}");
            assert_eq!(
                format!("{:?}", device.kind()),
                format!("{:?}", host.kind()),
                "{what}"
            );
            let place = |error: &Error| {
                (
                    error.name().map(str::to_owned),
                    error.offset(),
                    error.length(),
                )
            };
            assert_eq!(place(device), place(host), "{what}");
        }
        (host, device) => panic!("{what}\nhost: {host:?}\ndevice: {device:?}"),
    }
}

/// Compares both for one file, and says who did it on the device.
#[track_caller]
pub(crate) fn compare(
    gpu: &Arc<Device>,
    bytes: &[u8],
    options: &RecordOptions,
    schema: &ExampleSchema,
    how: impl Fn(DeviceScan) -> DeviceScan,
) -> (Outcome, DeviceReport) {
    let scan = || ExampleScan::new(open(gpu, bytes), options).schema(schema.clone());
    let host = by_host(scan());
    let scan = scan()
        .batch_rows(50)
        .on_device(gpu)
        .processor(Processor::Gpu);
    let (device, report) = by_device(how(scan));
    same(&host, &device, &report.to_string());
    (device, report)
}

/// A feature of each kind, shape and way to be missing.
pub(crate) fn all_kinds() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("label", ValueType::Int64))
        .with(Feature::scalar("small", ValueType::Int32).or_default(-7i64))
        .with(Feature::scalar("byte", ValueType::UInt8).required())
        .with(Feature::scalar("x", ValueType::Float32))
        .with(Feature::scalar("image", ValueType::Binary))
        .with(Feature::scalar("text", ValueType::Utf8).or_default("nothing: ü"))
        .with(Feature::fixed("box", ValueType::Float32, [2, 2]))
        .with(Feature::fixed("many", ValueType::Float32, [40]).or_default(0.5f32))
        .with(Feature::fixed("pair", ValueType::Int64, [2]).or_default(vec![3i64, -4]))
        .with(Feature::fixed("words", ValueType::Utf8, [2]))
        .with(Feature::variable("ids", ValueType::Int64))
        .with(Feature::variable("floats", ValueType::Float32).or_default(vec![1.5f32, -2.0]))
        .with(
            Feature::variable("tags", ValueType::Binary).or_default(vec![
                b"a".to_vec(),
                Vec::new(),
                b"bcd".to_vec(),
            ]),
        )
        .with(Feature::variable("bytes", ValueType::UInt8))
        .with(Feature::variable("texts", ValueType::Utf8).column("renamed"))
}
