//! Both executors on one file.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use feedwater::cuda::Device;
use feedwater::parquet::{DeviceScanReport, Scan, scan};
use feedwater::{ErrorKind, MemoryReader, Processor, Result};

/// A scan of a file in memory, as both executors begin it.
pub(crate) type Asked<'a> = &'a dyn Fn(Scan<MemoryReader>) -> Scan<MemoryReader>;

pub(crate) fn whole(scan: Scan<MemoryReader>) -> Scan<MemoryReader> {
    scan
}

fn of(file: &Bytes, asked: Asked<'_>) -> Scan<MemoryReader> {
    asked(scan(Arc::new(MemoryReader::new(file.clone()))).threads(2))
}

/// All rows of batches.
pub(crate) fn joined(schema: &SchemaRef, batches: &[RecordBatch]) -> RecordBatch {
    for batch in batches {
        for column in batch.columns() {
            column.to_data().validate_full().unwrap();
        }
    }
    arrow::compute::concat_batches(schema, batches).unwrap()
}

pub(crate) fn by_host(file: &Bytes, asked: Asked<'_>) -> Result<RecordBatch> {
    let batches = of(file, asked).batches()?;
    let schema = batches.schema().clone();
    let batches: Vec<_> = batches.collect::<Result<_>>()?;
    Ok(joined(&schema, &batches))
}

pub(crate) fn on_device(
    gpu: &Arc<Device>,
    file: &Bytes,
    processor: Processor,
    asked: Asked<'_>,
) -> Result<(RecordBatch, DeviceScanReport)> {
    let scan = of(file, asked).on_device(gpu).processor(processor);
    let mut batches = scan.batches()?;
    let schema = batches.schema().clone();
    let mut host = Vec::new();
    for batch in batches.by_ref() {
        host.push(batch?.to_host()?);
    }
    Ok((joined(&schema, &host), batches.report()))
}

/// What both make of a file, after it is made sure that it is the same.
pub(crate) enum Agreed {
    Rows(RecordBatch, DeviceScanReport),
    /// Both failed, for the same reason.
    Failed,
}

impl Agreed {
    /// Row groups of columns that the GPU decoded, and that the host did.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match self {
            Agreed::Rows(_, report) => {
                let sum = |of: fn(&feedwater::parquet::DeviceColumnReport) -> u64| {
                    report.columns.iter().map(of).sum()
                };
                (sum(|column| column.by_gpu), sum(|column| column.by_host))
            }
            Agreed::Failed => (0, 0),
        }
    }
}

/// Fails unless both executors say the same.
pub(crate) fn agree(gpu: &Arc<Device>, what: &str, file: &Bytes, asked: Asked<'_>) -> Agreed {
    let host = by_host(file, asked);
    let device = on_device(gpu, file, Processor::Gpu, asked);
    match (host, device) {
        (Ok(host), Ok((device, report))) => {
            assert_eq!(host.num_rows(), device.num_rows(), "{what}");
            for (at, field) in host.schema().fields().iter().enumerate() {
                let (host, device) = (host.column(at).to_data(), device.column(at).to_data());
                assert!(host == device, "{what}: {field}: {host:?}, not {device:?}");
            }
            Agreed::Rows(device, report)
        }
        (Err(host), Err(device)) => {
            // Where several columns are damaged, it depends on the threads which one is told of.
            for error in [&host, &device] {
                assert!(
                    matches!(
                        error.kind(),
                        ErrorKind::Malformed { .. }
                            | ErrorKind::UnsupportedFeature { .. }
                            | ErrorKind::Panicked { .. }
                    ),
                    "{what}: {error}"
                );
            }
            assert!(device.name().is_some(), "{what}: {device}");
            Agreed::Failed
        }
        (Ok(_), Err(error)) => panic!("{what}: by the device: {error}"),
        (Err(error), Ok(_)) => panic!("{what}: by the host: {error}"),
    }
}
