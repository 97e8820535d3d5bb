//! Features of bytes that become rows of tensors.

use feedwater::cuda::{Dense, Device, ElementType};
use feedwater::tfrecord::{ExampleSchema, Feature, ValueType, examples};
use feedwater::{ErrorKind, Processor};
use half::{bf16, f16};

use crate::beside::*;
use crate::messages::{bytes, example, floats, ints};
use crate::support::*;

const SHAPE: (u64, u64, u64) = (5, 7, 3); // height, width, channels

fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("label", ValueType::Int64))
        .with(Feature::scalar("image", ValueType::Binary).required())
}

fn image(seed: u8) -> Vec<u8> {
    let len = SHAPE.0 * SHAPE.1 * SHAPE.2;
    (0..len as u8).map(|i| i.wrapping_mul(37) ^ seed).collect()
}

fn record(at: u8) -> Vec<u8> {
    // So that images begin anywhere.
    let more = vec![1.0f32; usize::from(at % 3)];
    let label = ("label", ints([i64::from(at) * 1000]));
    example([
        label,
        ("more", floats(more)),
        ("image", bytes([&image(at)])),
    ])
}

#[test]
fn images_are_normalised_and_transposed_as_they_are_taken_from_records() {
    let all: Vec<_> = (0..70).map(record).collect();
    let file = file(&all);
    let (h, w, c) = SHAPE;
    let (scale, bias) = ([0.017, 0.018, 0.019], [-2.1, -2.0, -1.8]);
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            for to in [
                ElementType::F32,
                ElementType::F16,
                ElementType::BF16,
                ElementType::U8,
            ] {
                let row = Dense::cast(&[c, h, w], ElementType::U8, to)
                    .strides(&[1, w * c, c])
                    .affine(0, &scale, &bias);
                for processor in [Processor::Gpu, Processor::Cpu] {
                    let scan = examples(open(&gpu, &file)).schema(schema()).batch_rows(33);
                    let scan = scan.on_device(&gpu).processor(processor);
                    let mut batches = scan.tensor("image", row.clone()).batches().unwrap();
                    assert_eq!(batches.schema().fields().len(), 1);
                    let mut at = 0;
                    for batch in batches.by_ref() {
                        let batch = batch.unwrap();
                        let rows = batch.num_rows();
                        let tensor = batch.tensor("image").unwrap();
                        assert_eq!(tensor.shape(), [rows as u64, c, h, w]);
                        assert!(tensor.dlpack().is_ok());
                        let found = gpu.to_host(tensor.bytes()).unwrap();
                        let mut wanted = Vec::new();
                        for number in at..at + rows {
                            let image = image(number as u8);
                            for channel in 0..c {
                                for pixel in 0..h * w {
                                    let byte = image[(pixel * c + channel) as usize];
                                    let channel = channel as usize;
                                    let value = f32::from(byte) * scale[channel] + bias[channel];
                                    match to {
                                        ElementType::F32 => wanted.extend(value.to_le_bytes()),
                                        ElementType::F16 => {
                                            wanted.extend(f16::from_f32(value).to_le_bytes());
                                        }
                                        ElementType::BF16 => {
                                            wanted.extend(bf16::from_f32(value).to_le_bytes());
                                        }
                                        _ => wanted.push(value.round_ties_even() as u8),
                                    }
                                }
                            }
                        }
                        assert!(found == wanted, "{to:?} {processor:?} {streams}");
                        let labels = batch.columns().column("label").unwrap();
                        assert!(labels.tensor().is_ok());
                        at += rows;
                    }
                    assert_eq!(at, 70);
                    let on_gpu = batches.report().gpu.rows;
                    assert_eq!(on_gpu, if processor == Processor::Gpu { 70 } else { 0 });
                }
            }
        }
        nothing_left(&session);
    }
}

/// Numbers of several bytes that begin anywhere.
#[test]
fn elements_need_not_be_aligned_in_records() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let numbers = |at: u8| -> Vec<u8> {
            (0..6)
                .flat_map(|i| (f32::from(at) * 0.37 - i as f32).to_le_bytes())
                .collect()
        };
        let record = |at: u8| {
            let more = "x".repeat(usize::from(at % 5));
            example([
                ("image", bytes([&numbers(at)])),
                ("more", bytes([more.as_bytes()])),
            ])
        };
        let all: Vec<_> = (0..40).map(record).collect();
        let scan = examples(open(&gpu, &file(&all))).schema(schema());
        let row = Dense::cast(&[2, 3], ElementType::F32, ElementType::F32);
        let scan = scan.on_device(&gpu).tensor("image", row);
        let batch = scan.batches().unwrap().next().unwrap().unwrap();
        let wanted: Vec<u8> = (0..40).flat_map(numbers).collect();
        let tensor = batch.tensor("image").unwrap();
        assert_eq!(gpu.to_host(tensor.bytes()).unwrap(), wanted);
        assert_eq!(tensor.shape(), [40, 2, 3]);
    }
    nothing_left(&session);
}

#[test]
fn bytes_of_another_length_are_an_error_in_their_place() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut all: Vec<_> = (0..50).map(record).collect();
        all[41] = example([("image", bytes([&[1, 2, 3]]))]);
        // Refused by the schema, and later: the first one counts.
        all[43] = example([("label", ints([1]))]);
        let bytes = file(&all);
        let start = file(&all[..41]).len() as u64;
        for processor in [Processor::Gpu, Processor::Cpu] {
            let scan = examples(open(&gpu, &bytes)).schema(schema()).batch_rows(30);
            let row = Dense::cast(&[105], ElementType::U8, ElementType::F32);
            let scan = scan
                .on_device(&gpu)
                .processor(processor)
                .tensor("image", row);
            let (outcome, _) = by_device(scan);
            assert_eq!(outcome.rows.num_rows(), 41);
            let error = outcome.error.unwrap();
            assert!(matches!(error.kind(), ErrorKind::Malformed { .. }));
            let text = error.to_string();
            let said = "record 41: it has 3 bytes, and a row of the tensor is made of 105";
            assert!(text.contains(said), "{text}");
            assert_eq!(error.offset(), Some(start));
            assert_eq!(error.name(), Some("data.tfrecord"));
        }
    }
    nothing_left(&session);
}

#[test]
fn tensors_that_there_cannot_be_are_refused_before_anything_is_read() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let row = || Dense::cast(&[4], ElementType::U8, ElementType::F32);
        let of = |feature: Feature, row: Dense| {
            let schema = ExampleSchema::new().with(feature);
            let scan = examples(open(&gpu, &[])).schema(schema).on_device(&gpu);
            scan.tensor("x", row).batches().map(drop)
        };
        let binary = || Feature::scalar("x", ValueType::Binary).required();
        assert!(of(binary(), row()).is_ok());
        assert!(
            of(
                Feature::scalar("x", ValueType::Binary).or_default(&b"four"[..]),
                row()
            )
            .is_ok()
        );
        let refused = [
            of(Feature::scalar("y", ValueType::Binary).required(), row()),
            of(Feature::scalar("x", ValueType::Binary), row()),
            of(Feature::scalar("x", ValueType::Int64).required(), row()),
            of(Feature::variable("x", ValueType::Binary).required(), row()),
            of(
                Feature::scalar("x", ValueType::Binary).or_default(&b"five!"[..]),
                row(),
            ),
            of(binary(), Dense::copy(&[4], 1)),
            of(
                binary(),
                Dense::cast(&[2, 2, 2, 2], ElementType::U8, ElementType::F32),
            ),
            of(binary(), row().rows(&[0, 1, 2, 3])),
            of(binary(), row().strides(&[2])),
            of(
                binary(),
                Dense::cast(&[0], ElementType::U8, ElementType::F32),
            ),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            let error = refused.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidOption { .. }),
                "{at}: {error}"
            );
            let text = error.to_string();
            assert!(text.contains("feature \"x\": "), "{at}: {text}");
        }
    }
    nothing_left(&session);
}
