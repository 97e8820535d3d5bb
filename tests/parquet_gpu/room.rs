//! Batches of the host on a device that has less memory than they would take.

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions};
use feedwater::parquet::scan;
use feedwater::{ErrorKind, MemoryReader, Processor, Result};
use parquet::file::properties::WriterProperties;

use crate::cuda::{nothing_left, session};
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
        let capped = DeviceOptions::default().chunk(256);
        let gpu = capped.memory(512).open(0).unwrap();
        let error = parts(&gpu, &file, Processor::Cpu, 1 << 30).unwrap_err();
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
        assert!(error.name().is_some(), "{error}");
    }
    nothing_left(&session);
}
