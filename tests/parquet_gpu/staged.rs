//! What a scan asks the driver for: memory of the device once, and host memory that is page-locked, however many threads there are.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions};
use feedwater::{Processor, Result};
use parquet::file::properties::WriterProperties;
use software_cuda_preload::Session;

use crate::cuda::{STREAMS, is_software, nothing_left, session};
use crate::support::{by_host, on_device, whole};
use crate::tables::written;

const ROWS: usize = 10_000;

/// Row groups of one shape: two columns of numbers, in pages of about 4 KiB.
fn file(groups: usize) -> Bytes {
    let numbers = |from: i64| -> ArrayRef {
        let rows = (0..(groups * ROWS) as i64).map(|row| row * row + from);
        Arc::new(Int64Array::from_iter_values(rows))
    };
    let columns = [("a", numbers(5)), ("b", numbers(-7))];
    let set = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(100)
        .set_max_row_group_row_count(Some(ROWS));
    written(&RecordBatch::try_from_iter(columns).unwrap(), set.build())
}

/// Blocks of the ring of this size, as many as there are by default.
fn small_blocks(bytes: usize) -> DeviceOptions {
    let default = DeviceOptions::default();
    let blocks = default.pinned / default.pinned_block;
    default.pinned_block(bytes).pinned(blocks * bytes)
}

#[test]
fn sixteen_threads_write_to_pinned_memory() {
    let file = file(6);
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = small_blocks(8 << 10).open(0).unwrap();
            let right = by_host(&file, &whole).unwrap();
            for _ in 0..3 {
                let (rows, report) =
                    on_device(&gpu, &file, Processor::Gpu, &|scan| scan.threads(16)).unwrap();
                assert!(rows == right);
                assert_eq!(report.columns[0].by_gpu, 6);
            }
            let stats = gpu.stats();
            assert_eq!(stats.unpinned, 0, "{streams}: {stats:?}");
            assert!(stats.pinned > 0);
        }
        nothing_left(&session);
    }
}

/// A column that the host decoded, of more bytes than the ring has.
#[test]
fn columns_of_the_host_go_through_few_blocks() {
    let file = file(3);
    for streams in STREAMS {
        let session = session(streams);
        {
            let options = DeviceOptions::default().pinned_block(8 << 10);
            // A block for each lane, and another one.
            let gpu = options.pinned(3 * (8 << 10)).open(0).unwrap();
            let right = by_host(&file, &whole).unwrap();
            let (rows, report) = on_device(&gpu, &file, Processor::Cpu, &whole).unwrap();
            assert!(rows == right);
            assert_eq!(report.columns[0].by_host, 3);
            let stats = gpu.stats();
            assert_eq!((stats.unpinned, stats.pinned), (0, 3 * (8 << 10)));
        }
        nothing_left(&session);
    }
}

/// Takes each batch of a scan, and lets go of it before the next.
fn drained(gpu: &Arc<Device>, file: &Bytes) -> Result<usize> {
    let reader = Arc::new(feedwater::MemoryReader::new(file.clone()));
    let scan = feedwater::parquet::scan(reader).threads(2);
    let batches = scan.on_device(gpu).processor(Processor::Gpu).batches()?;
    batches.map(|batch| Ok(batch?.num_rows())).sum()
}

/// Calls that took memory, and pieces of it that are taken.
fn taken(session: &Session) -> (u64, u64) {
    let counts = session.counts();
    (counts.allocations, counts.device_allocations)
}

#[test]
fn row_groups_of_one_shape_take_memory_for_the_first_few() {
    const GROUPS: usize = 16;
    let file = file(GROUPS);
    for streams in STREAMS {
        let session = session(streams);
        if !is_software(&session) {
            return;
        }
        {
            // What is longer than 16 KiB is an allocation of its own: at least pages and two columns of each row group.
            let gpu = small_blocks(64 << 10).chunk(64 << 10).open(0).unwrap();
            drained(&gpu, &file).unwrap();
            let before = taken(&session);
            drained(&gpu, &file).unwrap();
            let after = taken(&session);
            // Streams and marks of the lanes; and how many row groups are worked on at once is a matter of threads, so that it can be more now.
            let calls = after.0 - before.0;
            assert!(calls < GROUPS as u64, "{streams}: {calls}");
            // And so less was given back.
            assert!(after.1 >= before.1, "{streams}: {before:?}, {after:?}");
            gpu.trim();
            assert_eq!((gpu.stats().in_use, gpu.stats().held), (0, 0));
        }
        nothing_left(&session);
    }
}
