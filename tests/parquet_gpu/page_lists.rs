//! Page lists that are kept from one epoch to the next.

use std::sync::Arc;

use bytes::Bytes;
use feedwater::cache::{CacheOptions, LEAST_CAPACITY, MetadataCache};
use feedwater::cuda::Device;
use feedwater::parquet::{DeviceScanReport, scan};
use feedwater::{MemoryReader, Processor, Reader, Result};
use parquet::file::properties::WriterProperties;

use crate::cuda::{nothing_left, session};
use crate::support::{by_host, whole};
use crate::tables::{Nulls, flat, written};

fn file(rows: usize) -> Bytes {
    let set = WriterProperties::builder()
        .set_data_page_row_count_limit(20)
        .set_write_batch_size(10)
        .set_max_row_group_row_count(Some(100));
    let batch = flat(rows, &[Nulls::Some]).project(&[0, 3, 11]).unwrap();
    written(&batch, set.build())
}

/// Rows of a scan with a cache, and what it says of itself.
pub(crate) fn epoch(
    gpu: &Arc<Device>,
    reader: Arc<impl Reader + 'static>,
    cache: &MetadataCache,
) -> Result<(arrow_array::RecordBatch, DeviceScanReport)> {
    let scan = scan(reader).threads(2).on_device(gpu);
    let scan = scan.processor(Processor::Gpu).page_lists(cache);
    let mut batches = scan.batches()?;
    let schema = batches.schema().clone();
    let mut host = Vec::new();
    for batch in batches.by_ref() {
        host.push(batch?.to_host()?);
    }
    let rows = arrow::compute::concat_batches(&schema, &host).unwrap();
    Ok((rows, batches.report()))
}

#[test]
fn the_second_epoch_walks_over_no_headers() {
    let session = session("lazy");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table.parquet");
    {
        let gpu = Device::open(0).unwrap();
        let cache = MetadataCache::new();
        let bytes = file(250);
        std::fs::write(&path, &bytes).unwrap();
        let right = by_host(&bytes, &whole).unwrap();
        for (walked, known) in [(9, 0), (0, 9), (0, 9)] {
            let reader = cache.open(&path).unwrap();
            let before = cache.metrics();
            let (rows, report) = epoch(&gpu, reader, &cache).unwrap();
            assert!(rows == right);
            // A miss is a walk: that a page has no marks is none.
            let after = cache.metrics();
            let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
            assert_eq!((hits, misses), (known, walked));
            assert!(report.columns.iter().all(|column| column.by_gpu == 3));
            let counts = (report.page_lists_walked, report.page_lists_known);
            assert_eq!(counts, (walked, known));
        }
        let (_, report) = epoch(&gpu, cache.open(&path).unwrap(), &cache).unwrap();
        let text = report.to_string();
        let known = "\n9 column chunks that a cache knew the pages of\n";
        let walked = "whose pages were found by a walk over their headers";
        assert!(text.contains(known) && !text.contains(walked), "{text}");
        // They are told of, and no others are.
        let explained = cache.explain(&path);
        assert_eq!((explained.parsed, explained.parts), (0, 9), "{explained}");
        assert!(explained.to_string().contains("and 9 of parts: page lists"));
        let others = dir.path().join("table.parquet2");
        assert_eq!(cache.explain(others).parts, 0);
        // They are compared with the version, so that they stay.
        cache.invalidate(&path);
        let (_, report) = epoch(&gpu, cache.open(&path).unwrap(), &cache).unwrap();
        assert_eq!(report.page_lists_known, 9);
        // Another version of the file has other pages.
        let bytes = file(330);
        std::fs::write(&path, &bytes).unwrap();
        let right = by_host(&bytes, &whole).unwrap();
        for (walked, known) in [(12, 0), (0, 12)] {
            let (rows, report) = epoch(&gpu, cache.open(&path).unwrap(), &cache).unwrap();
            assert!(rows == right);
            let counts = (report.page_lists_walked, report.page_lists_known);
            assert_eq!(counts, (walked, known));
        }
    }
    nothing_left(&session);
}

/// Readers of memory have one name, and each a version of its own.
#[test]
fn lists_of_others_are_not_taken() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let cache = MetadataCache::new();
        for rows in [150, 151, 150] {
            let bytes = file(rows);
            let right = by_host(&bytes, &whole).unwrap();
            let reader = Arc::new(MemoryReader::new(bytes));
            for walked in [6, 0] {
                let (got, report) = epoch(&gpu, reader.clone(), &cache).unwrap();
                assert!(got == right);
                assert_eq!(report.page_lists_walked, walked);
            }
        }
    }
    nothing_left(&session);
}

/// What does not fit into the cache is walked for again; so is what is damaged, of which nothing is kept.
#[test]
fn the_bound_holds_and_damage_is_not_kept() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let cache = CacheOptions::new()
            .capacity(LEAST_CAPACITY)
            .build()
            .unwrap();
        let batch = flat(2000, &[Nulls::Required]).project(&[3]).unwrap();
        let set = WriterProperties::builder()
            .set_data_page_row_count_limit(1)
            .set_write_batch_size(1)
            .set_dictionary_enabled(false);
        let bytes = written(&batch, set.build());
        let right = by_host(&bytes, &whole).unwrap();
        let reader = Arc::new(MemoryReader::new(bytes.clone()));
        for _ in 0..2 {
            let (rows, report) = epoch(&gpu, reader.clone(), &cache).unwrap();
            assert!(rows == right);
            assert_eq!((report.page_lists_walked, report.page_lists_known), (1, 0));
            assert!(cache.metrics().bytes <= LEAST_CAPACITY);
        }
        let mut damaged = file(90).to_vec();
        damaged[4..8].fill(0xff);
        let reader = Arc::new(MemoryReader::new(damaged));
        let cache = MetadataCache::new();
        for _ in 0..2 {
            epoch(&gpu, reader.clone(), &cache).unwrap_err();
        }
    }
    nothing_left(&session);
}
