//! Examples of a TFRecord file in the page cache, as columns in the device's memory.

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, BinaryArray, FixedSizeListArray, Int64Array, RecordBatch};
use feedwater::cuda::{Dense, Device, ElementType};
use feedwater::tfrecord::{
    Boundaries, ExampleEncoder, ExampleScan, ExampleSchema, Feature, ValueType, Writer, examples,
};
use feedwater::{OpenOptions, Processor};

use super::{Pinned, Way, work};

/// Examples with a label, and `floats` numbers or `bytes` bytes of an image, which begins with `inner`; as many as make `len` bytes.
fn write(path: &Path, len: u64, floats: usize, bytes: usize, inner: &[u8]) -> (ExampleSchema, u64) {
    let rows = (len as usize / (floats * 4 + bytes + 60)).clamp(1, 1000);
    let label = Int64Array::from_iter_values((0..rows as i64).map(|row| row * 37 % 1000));
    let mut columns = vec![("label", Arc::new(label) as ArrayRef)];
    let mut schema =
        ExampleSchema::new().with(Feature::scalar("label", ValueType::Int64).required());
    if floats > 0 {
        let row = |row: usize| Some((0..floats).map(move |at| Some((row * at) as f32)));
        let lists = (0..rows).map(row);
        let lists =
            FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(lists, floats as i32);
        columns.push(("embedding", Arc::new(lists)));
        let feature = Feature::fixed("embedding", ValueType::Float32, [floats]);
        schema = schema.with(feature.required());
    }
    if bytes > 0 {
        let images = (0..rows).map(|row| (0..bytes).map(|at| ((at * row) >> 3) as u8).collect());
        let mut images: Vec<Vec<u8>> = images.collect();
        for image in &mut images {
            image[..inner.len()].copy_from_slice(inner);
        }
        columns.push(("image", Arc::new(BinaryArray::from_iter_values(&images))));
        schema = schema.with(Feature::scalar("image", ValueType::Binary).required());
    }
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut encoder = ExampleEncoder::new(&batch).unwrap();
    let mut records = vec![Vec::new(); rows];
    for (row, record) in records.iter_mut().enumerate() {
        encoder.encode(row, record).unwrap();
    }
    let mut writer = Writer::create(path).unwrap();
    let mut written = 0;
    while written < len {
        for record in &records {
            writer.write(record).unwrap();
            written += record.len() as u64 + 16;
        }
    }
    writer.commit().unwrap();
    (schema, written)
}

pub(crate) fn files(gpu: &Arc<Device>, len: u64, turns: u64, json: &mut String) {
    let dir = tempfile::tempdir().unwrap();
    let pixels = 96 * 96 * 3;
    // A file of a record, which looks like one of the file that it is in.
    let inner = dir.path().join("inner");
    let mut writer = Writer::create(&inner).unwrap();
    writer.write(&[7; 1000]).unwrap();
    writer.commit().unwrap();
    let (none, inner): (&[u8], _) = (&[], std::fs::read(inner).unwrap());
    for (name, floats, bytes, inner) in [
        ("examples of 1 KiB", 240, 0, none),
        ("examples with an image of 27 KiB", 0, pixels, none),
        (
            "examples with records in images of 27 KiB",
            0,
            pixels,
            &inner[..],
        ),
    ] {
        let path = dir.path().join(name);
        let (schema, written) = write(&path, len, floats, bytes, inner);
        let options = OpenOptions::new().device(gpu.clone());
        let reader = options.open(&path).unwrap();
        let scan = || -> ExampleScan { examples(reader.clone()).schema(schema.clone()) };
        let mut ways = vec![
            Pinned::new(gpu, written).way(),
            Way::new("columns in the host's memory, all threads", || {
                for batch in scan().batches().unwrap() {
                    batch.unwrap();
                }
            }),
            Way::new("columns in the host's memory, 16 threads", || {
                for batch in scan().threads(16).batches().unwrap() {
                    batch.unwrap();
                }
            }),
        ];
        for (name, processor, boundaries) in [
            (
                "on the device, decoded by the host",
                Processor::Cpu,
                Boundaries::Host,
            ),
            (
                "on the device, boundaries by the host",
                Processor::Gpu,
                Boundaries::Host,
            ),
            (
                "on the device, boundaries by the GPU",
                Processor::Gpu,
                Boundaries::Device,
            ),
        ] {
            let scan = &scan;
            ways.push(Way::new(name, move || {
                let scan = scan().on_device(gpu).processor(processor);
                for batch in scan.boundaries(boundaries).batches().unwrap() {
                    batch.unwrap();
                }
            }));
        }
        if bytes > 0 {
            let scan = &scan;
            ways.push(Way::new(
                "on the device, images as normalised f32",
                move || {
                    let row = Dense::cast(&[3, 96, 96], ElementType::U8, ElementType::F32)
                        .strides(&[1, 96 * 3, 3])
                        .affine(0, &[1.0 / 255.0; 3], &[-0.5; 3]);
                    let scan = scan().on_device(gpu).processor(Processor::Gpu);
                    for batch in scan.tensor("image", row).batches().unwrap() {
                        batch.unwrap();
                    }
                },
            ));
        }
        work(name, written, turns, ways, json);
        std::fs::remove_file(&path).unwrap();
    }
}
