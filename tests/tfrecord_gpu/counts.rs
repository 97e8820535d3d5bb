//! What the kernels of TFRecords do for each byte of a window, counted by the software device, as `tests/cuda/counts.rs` does for those of
//! columns. The table is `counts.tsv`; `FEEDWATER_WRITE_COUNTS=1 cargo test --test tfrecord_gpu counts` writes it.
//!
//! The least is what the stages of this pipeline need, with what one hands to the next: it is no bound of other pipelines. Not counted are fills,
//! uploads of tables and read-backs; and a sector counts once a launch.

use std::fmt::Write as _;

use feedwater::cuda::{Checksum, Dense, Device, ElementType};
use feedwater::tfrecord::{
    Boundaries, ExampleScan, ExampleSchema, Feature, RecordOptions, ValueType,
};
use feedwater::{DeviceArray, Processor};
use software_cuda_preload::Session;

use crate::beside::*;
use crate::messages::{bytes, example, floats, ints};
use crate::support::*;

const KERNELS: [&str; 18] = [
    "frames_count",
    "frames_find",
    "frames_link",
    "frames_jump",
    "frames_pick",
    "frames_piece_counts",
    "frames_pieces",
    "frames_check",
    "crc",
    "scan_reduce",
    "scan_sums",
    "scan_emit",
    "example_index",
    "example_counts",
    "example_emit",
    "example_copy",
    "example_tensor",
    "dense",
];

/// Adds rows for what was done, of so many `bytes`, where stages had to read and write `least`.
fn counted(table: &mut String, session: &Session, name: &str, bytes: u64, least: u64) {
    let per_byte = |count: u64| count as f64 / bytes as f64;
    let mut all = 0;
    for kernel in KERNELS {
        let work = session.work(kernel);
        if work.launches == 0 {
            continue;
        }
        let launch = work.distinct_loaded + work.distinct_stored;
        all += launch;
        let _ = writeln!(
            table,
            "{name}\t{kernel}\t{:.3}\t{:.3}\t{:.3}",
            per_byte(work.steps),
            per_byte(work.loaded + work.stored),
            per_byte(launch)
        );
    }
    let (moved, least) = (per_byte(all), per_byte(least));
    let _ = writeln!(table, "{name}\tall\t\t\t{moved:.3}\t{least:.3}");
    near(name, moved, least);
}

/// Bytes of the buffers of an array.
fn bytes_of(array: &DeviceArray) -> u64 {
    let own: u64 = array
        .buffers()
        .iter()
        .map(|buffer| buffer.len() as u64)
        .sum();
    own + array.children().iter().map(bytes_of).sum::<u64>()
}

#[test]
fn instructions_and_bytes_of_each_byte_are_those_of_the_table() {
    if !is_software(&session("eager")) {
        return;
    }
    let mut table = String::from("case\tkernel\tinstructions\tblock\tlaunch\tleast\n");
    let traffic = || {
        let mut session = session("eager");
        session.set("TRAFFIC", "on");
        session
    };
    let label = Feature::scalar("label", ValueType::Int64).required();
    let values = Feature::fixed("values", ValueType::Float32, [240]).required();
    let ids = Feature::variable("ids", ValueType::Int64);
    let image = Feature::scalar("image", ValueType::Binary).required();
    let pixels = |row: usize| (0..1200).map(|at| (at * row) as u8).collect::<Vec<_>>();
    let ids_of = |row: usize| (0..200i64).map(move |at| at << (at * row as i64 % 50));
    let record = |kind: usize, row: usize| {
        let label = ("label", ints([row as i64]));
        let other = match kind {
            0 => {
                let values = (0..240).map(|at| (at * row) as f32);
                ("values", floats(values.collect::<Vec<_>>()))
            }
            1 => ("ids", ints(ids_of(row).collect::<Vec<_>>())),
            _ => ("image", bytes([&pixels(row)])),
        };
        example([label, other])
    };
    for (kind, name, feature) in [
        (0, "examples of 240 floats", values),
        (1, "examples of 200 integers", ids),
        (2, "examples with an image of 1,200 bytes", image.clone()),
        (3, "the same, normalised to f32", image),
    ] {
        let session = traffic();
        {
            let gpu = Device::open(0).unwrap();
            let records: Vec<_> = (0..40).map(|row| record(kind, row)).collect();
            let file = file(&records);
            let scan = ExampleScan::new(open(&gpu, &file), &RecordOptions::new());
            let schema = ExampleSchema::new().with(label.clone()).with(feature);
            let scan = scan.schema(schema).batch_rows(40).on_device(&gpu);
            let mut scan = scan
                .processor(Processor::Gpu)
                .boundaries(Boundaries::Device);
            if kind == 3 {
                let tensor = Dense::cast(&[3, 20, 20], ElementType::U8, ElementType::F32);
                let tensor = tensor.strides(&[1, 60, 3]);
                scan = scan.tensor("image", tensor.affine(0, &[1.0 / 255.0; 3], &[-0.5; 3]));
            }
            let mut batches = scan.batches().unwrap();
            let batch = batches.next().unwrap().unwrap();
            assert!(batches.next().is_none());
            let rows = batch.num_rows();
            assert_eq!((rows, batches.report().gpu.rows), (40, 40));
            // Three stages read all of it: the one that finds records, the one that checks them, and the one that decodes. The last one
            // writes columns and tensors. A fourth one reads integers: how many a list has is only known when its bytes were counted, and
            // only then what memory the column takes, and where in it those of each record go. Without that pass, what is moved would be 1.35
            // of the least: it could only ride on the one of the checksums.
            let varint = |value: i64| u64::from((64 - (value | 1).leading_zeros()).div_ceil(7));
            let lists: u64 = match kind {
                1 => (0..40).flat_map(ids_of).map(varint).sum(),
                _ => 0,
            };
            let columns: u64 = batch.columns().columns().iter().map(bytes_of).sum();
            let tensors = batch.tensors().iter().map(|tensor| tensor.bytes().len());
            let len = file.len() as u64;
            let least = 3 * len + lists + columns + tensors.sum::<usize>() as u64;
            counted(&mut table, &session, name, len, least);
        }
        nothing_left(&session);
    }
    let len = 48 << 10;
    for name in ["a checksum of 48 KiB", "u8 to f32, channels first"] {
        let session = traffic();
        {
            let gpu = Device::open(0).unwrap();
            let reader = reader(&gpu, &data(len));
            let block = read(&gpu, &reader, 0..len as u64).unwrap();
            let there = block.into_device().unwrap();
            // A checksum reads each byte; a tensor of floats has four for each that it reads.
            let least = if name.starts_with('a') {
                gpu.checksums(Checksum::Crc32c, &there, &[0..len as u64])
                    .unwrap();
                len
            } else {
                let image = Dense::cast(&[3, 128, 128], ElementType::U8, ElementType::F32);
                gpu.dense(&image.strides(&[1, 384, 3]), &there).unwrap();
                5 * len
            };
            counted(&mut table, &session, name, len as u64, least as u64);
        }
        nothing_left(&session);
    }
    held("tests/tfrecord_gpu/counts.tsv", &table);
}
