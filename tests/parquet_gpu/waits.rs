//! How often a lane waits for the device and copies to it, for each row group: waits leave the device without work, and each copy is a call,
//! so that both are held to a number.

use std::sync::Arc;

use arrow_array::RecordBatch;
use bytes::Bytes;

use feedwater::cache::MetadataCache;
use feedwater::cuda::Device;
use feedwater::parquet::scan;
use feedwater::{MemoryReader, Processor};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use software_cuda_preload::{Counts, Session};

use crate::codecs::checksummed;
use crate::cuda::{is_software, nothing_left, session};
use crate::support::{Asked, whole};
use crate::tables::{Nulls, flat, written};
use crate::{marks, nested, strings};

fn of(batch: &RecordBatch, compression: Compression) -> Bytes {
    let set = WriterProperties::builder()
        .set_compression(compression)
        .set_data_page_row_count_limit(60)
        .set_write_batch_size(10);
    written(batch, set.build())
}

/// What a scan makes the device do.
fn counted(session: &Session, scanned: impl Fn()) -> Counts {
    let before = session.counts();
    scanned();
    let after = session.counts();
    Counts {
        calls: after.calls - before.calls,
        allocations: after.allocations - before.allocations,
        launches: after.launches - before.launches,
        waits: after.waits - before.waits,
        uploads: after.uploads - before.uploads,
        ..Counts::default()
    }
}

/// The second scan of a file of one row group, when kernels are loaded and memory is there.
fn of_row_group(
    session: &Session,
    gpu: &Arc<Device>,
    file: &Bytes,
    processor: Processor,
    asked: Asked<'_>,
) -> Counts {
    let scanned = || {
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let scan = asked(scan(reader).threads(1)).on_device(gpu);
        let batches = scan.processor(processor).batches().unwrap();
        let batches = batches.map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(batches.len(), 1);
    };
    scanned();
    counted(session, scanned)
}

#[test]
fn waits_of_a_row_group() {
    let session = session("eager");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = Device::open(0).unwrap();
        let numbers = flat(300, &[Nulls::Some]).project(&[0, 3, 11]).unwrap();
        let texts = strings::strings(300, &[Nulls::Some])
            .project(&[0, 1])
            .unwrap();
        let small = flat(9000, &[Nulls::Required]).project(&[0, 1, 4]).unwrap();
        let lists = nested::batch(nested::fields()[..2].to_vec(), 300, 1);
        let words = nested::batch(nested::texts()[..2].to_vec(), 300, 1);
        let (plain, snappy) = (Compression::UNCOMPRESSED, Compression::SNAPPY);
        let (gpu_alone, auto) = (Processor::Gpu, Processor::Auto);
        let some: Asked<'_> = &|scan| scan.rows(70..130);
        let all: Asked<'_> = &whole;
        // Numbers: whether anything was wrong. Strings: before that, how many bytes they have; lists: how many items. Some rows: how many items
        // and bytes those have, if there are any; and that they are there. Columns of the host: that they are.
        for (what, file, processor, asked, held) in [
            ("numbers", of(&numbers, plain), gpu_alone, all, [1, 3]),
            (
                "checksums",
                checksummed(&of(&numbers, plain)),
                gpu_alone,
                all,
                [1, 4],
            ),
            ("Snappy", of(&numbers, snappy), gpu_alone, all, [1, 4]),
            ("texts", of(&texts, snappy), gpu_alone, all, [2, 7]),
            ("lists", of(&lists, snappy), gpu_alone, all, [2, 9]),
            (
                "lists of texts",
                of(&words, snappy),
                gpu_alone,
                all,
                [3, 12],
            ),
            (
                "some numbers",
                of(&numbers, snappy),
                gpu_alone,
                some,
                [2, 6],
            ),
            ("some texts", of(&texts, snappy), gpu_alone, some, [4, 11]),
            (
                "some lists of texts",
                of(&words, snappy),
                gpu_alone,
                some,
                [5, 18],
            ),
            (
                "two columns of the host",
                of(&small, snappy),
                auto,
                all,
                [2, 7],
            ),
        ] {
            let counts = of_row_group(&session, &gpu, &file, processor, asked);
            // Copies to the device are what is decoded and tables of it, and none for each kernel.
            let found = [counts.waits, counts.uploads];
            assert_eq!(found, held, "{what}: {counts:?}");
        }
    }
    nothing_left(&session);
}

/// Where tiles begin is copied to the host with the rest.
#[test]
fn marks_take_no_waits() {
    let session = session("eager");
    if !is_software(&session) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table.parquet");
    std::fs::write(&path, marks::file(5000, |_| 9)).unwrap();
    {
        let (gpu, cache) = (Device::open(0).unwrap(), MetadataCache::new());
        for is_marked in [false, true] {
            let counts = counted(&session, || {
                let scan = scan(cache.open(&path).unwrap()).on_device(&gpu);
                let scan = scan.processor(Processor::Gpu).page_lists(&cache);
                let mut batches = scan.batches().unwrap();
                assert_eq!(batches.by_ref().map(Result::unwrap).count(), 1);
                assert_eq!(batches.report().pages_marked > 0, is_marked);
            });
            assert_eq!(counts.waits, 3, "{counts:?}");
        }
    }
    nothing_left(&session);
}
