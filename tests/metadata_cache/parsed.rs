//! Footers and indexes of real files, kept with the version of the file that they are of.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use feedwater::cache::{CacheOptions, MetadataCache};
use feedwater::parquet::{self, Metadata};
use feedwater::tfrecord::{self, Index};
use feedwater::{FileSink, Opened, Reader, Result, Version};

fn write_table(path: &Path, rows: i64) {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let mut writer = parquet::Writer::create(path, batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.commit().unwrap();
}

/// The footer of a file from the cache, or read and kept.
fn footer(cache: &MetadataCache, path: &Path, reads: &AtomicU64) -> (Arc<Opened>, Arc<Metadata>) {
    let reader = cache.open(path).unwrap();
    let load = || {
        reads.fetch_add(1, Ordering::SeqCst);
        let metadata = Metadata::read(&*reader)?;
        let bytes = metadata.parquet().memory_size() as u64 + (64 << 10);
        Ok((metadata, bytes))
    };
    let version = reader.source().version();
    let metadata = cache.parsed::<Metadata>(path, version, load).unwrap();
    (reader.clone(), metadata)
}

#[test]
fn the_footer_of_a_parquet_file_is_read_once_and_again_when_the_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table.parquet");
    write_table(&path, 1000);
    let cache = CacheOptions::new().immutable(true).build().unwrap();
    let (reads, start) = (AtomicU64::new(0), Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                assert_eq!(footer(&cache, &path, &reads).1.num_rows(), 1000);
            });
        }
    });
    assert_eq!(reads.load(Ordering::SeqCst), 1);

    // With it, a scan of no columns asks the file for nothing; without it, for the footer.
    let (reader, metadata) = footer(&cache, &path, &reads);
    let requests = |reader: &Opened| reader.source().counters().snapshot().requests;
    let plan = parquet::scan(reader.clone()).metadata((*metadata).clone());
    assert_eq!(
        plan.columns(["n"]).rows(0..0).explain().unwrap().requests(),
        0
    );
    assert_eq!(requests(&reader), 0);
    parquet::scan(reader.clone()).rows(0..0).explain().unwrap();
    assert!(requests(&reader) > 0);
    let scan = parquet::scan(reader).metadata((*metadata).clone());
    let rows: Result<Vec<_>> = scan.batches().unwrap().collect();
    assert_eq!(
        rows.unwrap()
            .iter()
            .map(RecordBatch::num_rows)
            .sum::<usize>(),
        1000
    );
    assert_eq!(reads.load(Ordering::SeqCst), 1);

    // Another file of the name has another version: nobody needs to say so.
    write_table(&path, 70);
    assert_eq!(footer(&cache, &path, &reads).1.num_rows(), 70);
    assert_eq!(footer(&cache, &path, &reads).1.num_rows(), 70);
    assert_eq!(reads.load(Ordering::SeqCst), 2);
    let metrics = cache.metrics();
    assert_eq!(metrics.hits + metrics.misses, 7);
    assert_eq!(metrics.stale, 1);
    assert!(metrics.bytes > metadata.parquet().memory_size() as u64);
}

#[test]
fn the_index_of_a_tfrecord_file_is_built_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.tfrecord");
    let mut writer = tfrecord::Writer::create(&path).unwrap();
    for n in 0..100 {
        writer.write(format!("record {n}").as_bytes()).unwrap();
    }
    let version = Version::File(writer.commit().unwrap());
    let cache = MetadataCache::new();
    let builds = AtomicU64::new(0);
    let index = || {
        let load = || {
            builds.fetch_add(1, Ordering::SeqCst);
            let index = Index::build(feedwater::open(&path)?)?;
            let bytes = 8 * (index.len() + 1);
            Ok((index, bytes))
        };
        cache
            .parsed::<Index<Opened>>(&path, &version, load)
            .unwrap()
    };
    assert_eq!(index().get(99).wait().unwrap(), "record 99");
    assert_eq!(index().get(7).wait().unwrap(), "record 7");
    assert_eq!(builds.load(Ordering::SeqCst), 1);
    // Both formats may keep a value of one path.
    let sum = cache
        .parsed::<u64>(&path, &version, || Ok((42, 8)))
        .unwrap();
    assert_eq!((*sum, cache.explain(&path).parsed), (42, 2));
}

#[test]
fn who_commits_a_file_and_invalidates_it_sees_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let cache = CacheOptions::new().immutable(true).build().unwrap();
    for len in [3usize, 5, 8] {
        let mut sink = FileSink::create(&path).unwrap();
        sink.append(&vec![b'x'; len]).unwrap();
        let version = Version::File(sink.commit().unwrap());
        if len > 3 {
            // Promised not to change, so what was known is told until it is invalidated.
            assert_ne!(cache.stat(&path).unwrap().version, version);
        }
        cache.invalidate(&path);
        let known = cache.stat(&path).unwrap();
        assert_eq!((&known.version, known.size()), (&version, len as u64));
        assert_eq!(cache.list(dir.path()).unwrap().len(), 1);
    }
    std::fs::rename(&path, dir.path().join("g")).unwrap();
    cache.invalidate(&path);
    cache.invalidate(dir.path().join("g"));
    let error = cache.stat(&path).unwrap_err();
    assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound);
    assert_eq!(cache.stat(dir.path().join("g")).unwrap().size(), 8);
    let listing = cache.list(dir.path()).unwrap();
    assert_eq!((listing.get("f"), listing.len()), (None, 1));
}
