//! The works that decode: all batches, records or tensors are kept until the clock stops.

use std::path::PathBuf;

use feedwater::tfrecord::{
    ExampleScan, ExampleSchema, Feature, RecordOptions, ShardSet, ValueType,
};
use feedwater::{parquet, safetensors};

use crate::{Args, Outcome};

/// `pq scan --file NAME [--threads N] [--batch ROWS] [--warmup N]`, as `parquet/NAME` in the folder of data.
pub(crate) fn pq(args: &Args, path: &[PathBuf]) -> Outcome {
    let reader = args.options().open(&path[0])?;
    let mut scan = parquet::scan(reader).batch_rows(args.number("batch", 8192));
    if args.get("threads").is_some() {
        scan = scan.threads(args.number("threads", 1));
    }
    let batches = scan.batches()?.collect::<Result<Vec<_>, _>>()?;
    let bytes: usize = batches
        .iter()
        .map(|batch| batch.get_array_memory_size())
        .sum();
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    Ok((bytes as u64, rows as u64, 0))
}

/// `tf iterate|parse --file images|tiny [--batch ROWS] [--views 1]`, all files of that name in `tfrecord`.
pub(crate) fn tf(args: &Args, files: &[PathBuf]) -> Outcome {
    let set = ShardSet::of(files.iter().cloned()).open_with(args.options());
    let options = RecordOptions::new();
    let (mut bytes, mut items) = (0u64, 0u64);
    match args.words.get(1).map(String::as_str) {
        Some("iterate") => {
            for record in set.records(&options) {
                bytes += record?.data.len() as u64;
                items += 1;
            }
        }
        Some("parse") => {
            let mut scan =
                ExampleScan::of_shards(&set, &options).batch_rows(args.number("batch", 4096));
            if args.get("threads").is_some() {
                scan = scan.threads(args.number("threads", 1));
            }
            if args.get("views").is_some() {
                // The features that `tf.io.parse_example` is asked for beside it.
                scan = scan.schema(
                    ExampleSchema::new()
                        .with(Feature::scalar("image", ValueType::BinaryView).required())
                        .with(Feature::scalar("label", ValueType::Int64).required())
                        .with(Feature::fixed("embedding", ValueType::Float32, [128]).required()),
                );
            }
            let batches = scan.batches()?.collect::<Result<Vec<_>, _>>()?;
            bytes = batches
                .iter()
                .map(|batch| batch.get_array_memory_size() as u64)
                .sum();
            items = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        }
        _ => return Err("tf: iterate or parse".into()),
    }
    Ok((bytes, items, 0))
}

/// `st load|align|in-order`, of `model.safetensors`.
pub(crate) fn st(args: &Args, path: &[PathBuf]) -> Outcome {
    let file = safetensors::open(args.options().open(&path[0])?)?;
    let tensors: Vec<_> = match args.words.get(1).map(String::as_str) {
        Some("load") => file.load().wait()?.iter().cloned().collect(),
        Some("align") => file.load().align(64).wait()?.iter().cloned().collect(),
        Some("in-order") => file.load().in_order().collect::<Result<_, _>>()?,
        _ => return Err("st: load, align or in-order".into()),
    };
    let bytes = tensors
        .iter()
        .map(|tensor| tensor.bytes().len() as u64)
        .sum();
    Ok((bytes, tensors.len() as u64, 0))
}
