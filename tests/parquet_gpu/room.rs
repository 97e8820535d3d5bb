//! Batches of the host on a device that has less memory than they would take, and what a scan takes for its own.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions};
use feedwater::parquet::scan;
use feedwater::{ErrorKind, MemoryReader, Processor, Result};
use parquet::file::properties::WriterProperties;

use crate::cuda::{is_software, nothing_left, session};
use crate::support::{by_host, joined, whole};
use crate::tables::{other, written};

/// The rows of each batch, and all of them.
fn parts(
    gpu: &Arc<Device>,
    file: &Bytes,
    processor: Processor,
    memory: u64,
) -> Result<(Vec<usize>, RecordBatch)> {
    let reader = Arc::new(MemoryReader::new(file.clone()));
    let scan = scan(reader).on_device(gpu).processor(processor);
    let mut batches = scan.memory(memory).batches()?;
    let schema = batches.schema().clone();
    let mut parts = Vec::new();
    for batch in batches.by_ref() {
        parts.push(batch?.to_host()?);
    }
    let rows = parts.iter().map(RecordBatch::num_rows).collect();
    Ok((rows, joined(&schema, &parts)))
}

#[test]
fn all_columns_by_the_host_in_batches_that_fit() {
    let session = session("eager");
    {
        let set = WriterProperties::builder().set_max_row_group_row_count(Some(1500));
        let file = written(&other(3000), set.build());
        let right = by_host(&file, &whole).unwrap();
        let gpu = Device::open(0).unwrap();
        let (all, rows) = parts(&gpu, &file, Processor::Cpu, 1 << 30).unwrap();
        assert!(rows == right);
        // A quarter of half of it.
        let bytes = 64 << 10;
        let (some, rows) = parts(&gpu, &file, Processor::Cpu, bytes).unwrap();
        assert!(rows == right);
        assert!(some.len() > all.len(), "{some:?} {all:?}");
        let most = some.iter().max().unwrap();
        assert!(most * 8 <= bytes as usize / 8, "{some:?}");
        // A row is a batch where there is no more memory.
        let few = written(&other(20), WriterProperties::builder().build());
        let (rows, _) = parts(&gpu, &few, Processor::Cpu, 1).unwrap();
        assert_eq!(rows, [1; 20]);
    }
    nothing_left(&session);
}

#[test]
fn batches_are_halved_until_they_fit() {
    let session = session("eager");
    {
        let file = written(&other(3000), WriterProperties::builder().build());
        let right = by_host(&file, &whole).unwrap();
        for processor in [Processor::Cpu, Processor::Gpu] {
            let capped = DeviceOptions::default().chunk(4 << 10).keep(0);
            let gpu = capped.memory(40 << 10).open(0).unwrap();
            let (some, rows) = parts(&gpu, &file, processor, 1 << 30).unwrap();
            assert!(rows == right, "{processor:?}");
            assert!(some.len() > 2, "{processor:?}: {some:?}");
        }
        // Not even one row.
        let long: ArrayRef = Arc::new(StringArray::from_iter_values(["long ".repeat(10_000)]));
        let long = RecordBatch::try_from_iter([("long", long)]).unwrap();
        let file = written(&long, WriterProperties::builder().build());
        let capped = DeviceOptions::default().chunk(4 << 10);
        let gpu = capped.memory(20 << 10).open(0).unwrap();
        let error = parts(&gpu, &file, Processor::Cpu, 1 << 30).unwrap_err();
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
        assert!(error.name().is_some(), "{error}");
    }
    nothing_left(&session);
}

#[test]
fn no_memory_is_refused() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let file = written(&other(20), WriterProperties::builder().build());
        let refused = parts(&gpu, &file, Processor::Cpu, 0).unwrap_err();
        let scan = scan(Arc::new(MemoryReader::new(file))).on_device(&gpu);
        for error in [refused, scan.memory(0).explain().unwrap_err()] {
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::InvalidOption { .. }), "{error}");
            assert!(
                error.to_string().contains("`memory` has to be at least 1"),
                "{error}"
            );
            assert!(error.name().is_some(), "{error}");
        }
    }
    nothing_left(&session);
}

/// What a row group may take, of a scan that was told of no memory: as it says of one that takes more.
fn told(gpu: &Arc<Device>) -> u64 {
    let numbers: ArrayRef = Arc::new((0..300_000i64).collect::<Int64Array>());
    let batch = RecordBatch::try_from_iter([("numbers", numbers)]).unwrap();
    let set = WriterProperties::builder().set_dictionary_enabled(false);
    let file = written(&batch, set.build());
    let scan = scan(Arc::new(MemoryReader::new(file))).on_device(gpu);
    let mut batches = scan.processor(Processor::Gpu).batches().unwrap();
    let rows: usize = batches
        .by_ref()
        .map(|batch| batch.unwrap().num_rows())
        .sum();
    assert_eq!(rows, 300_000);
    let report = batches.report();
    let (why, _) = &report.columns[0].host_because[0];
    let (_, most) = why.split_once("more than the ").expect(why);
    most.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn a_scan_takes_half_of_what_the_device_could_give() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    session.set("MEMORY", &(8 << 20).to_string());
    {
        let options = DeviceOptions::default().chunk(4 << 10).keep(8 << 20);
        let gpu = options.clone().memory(2 << 20).open(0).unwrap();
        assert_eq!(told(&gpu), (2 << 20) / 4);
        // Of a bound, what is in use is taken.
        gpu.trim();
        let block = gpu.allocate(1 << 20).unwrap();
        assert_eq!(told(&gpu), (1 << 20) / 4);
        drop((block, gpu));
        // What is kept for the next buffers is free, though the driver does not have it.
        let gpu = options.open(0).unwrap();
        drop(gpu.allocate(4 << 20).unwrap());
        assert!(gpu.stats().held >= 4 << 20);
        assert!(gpu.memory().unwrap().0 <= 4 << 20);
        assert_eq!(told(&gpu), (8 << 20) / 4);
        // And so is what the pool of streams keeps.
        gpu.trim();
        let stream = gpu.stream().unwrap();
        drop(gpu.allocate_in(&stream, 4 << 20).unwrap());
        stream.synchronize().unwrap();
        assert!(gpu.memory().unwrap().0 <= 4 << 20);
        assert_eq!(told(&gpu), (8 << 20) / 4);
    }
    nothing_left(&session);
}
