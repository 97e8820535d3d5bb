//! Where tiles of large pages begin, kept from one epoch to the next.

use std::sync::{Arc, Mutex};

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use bytes::Bytes;
use feedwater::cache::{CacheMetrics, CacheOptions, LEAST_CAPACITY, MetadataCache};
use feedwater::cuda::Device;
use feedwater::{Batch, MemoryReader, Pending, ReadInto, Reader, Result, Source};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use software_cuda_preload::{Device as On, Session};

use crate::cuda::{nothing_left, session};
use crate::page_lists::epoch;
use crate::support::{by_host, whole};
use crate::tables::written;

const ROWS: usize = 5000;
const WALKS: [&str; 3] = ["walk", "strings_walk", "nesting_walk"];

/// A row group with a page of each column: strings, numbers of a dictionary, lists.
pub(crate) fn file(rows: usize, len: impl Fn(usize) -> usize) -> Bytes {
    let texts =
        (0..rows).map(|row| (row % 9 != 4).then(|| "text of some bytes"[..len(row)].to_owned()));
    let numbers: Int32Array = (0..rows)
        .map(|row| (row % 5 != 0).then_some((row * row % 301) as i32))
        .collect();
    let mut lists = ListBuilder::new(Int32Builder::new());
    for row in 0..rows {
        for item in 0..row % 3 {
            lists
                .values()
                .append_option((item + row % 7 != 2).then_some((row * 7 % 100) as i32));
        }
        lists.append(row % 8 != 0);
    }
    let columns: [(&str, ArrayRef); 3] = [
        ("texts", Arc::new(texts.collect::<StringArray>())),
        ("numbers", Arc::new(numbers)),
        ("lists", Arc::new(lists.finish())),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let set = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_dictionary_enabled("texts".into(), false);
    written(&batch, set.build())
}

fn walked(session: &Session) -> u64 {
    WALKS.iter().map(|kernel| session.work(kernel).steps).sum()
}

/// Hits, misses and, of these, stale answers since then.
fn counted(cache: &MetadataCache, before: CacheMetrics) -> [u64; 3] {
    let now = cache.metrics();
    [
        now.hits - before.hits,
        now.misses - before.misses,
        now.stale - before.stale,
    ]
}

#[test]
fn the_next_epochs_follow_no_page_from_its_beginning() {
    let session = session("lazy");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table.parquet");
    {
        let gpu = Device::open(0).unwrap();
        let cache = MetadataCache::new();
        let bytes = file(ROWS, |row| row % 11);
        std::fs::write(&path, &bytes).unwrap();
        let right = by_host(&bytes, &whole).unwrap();
        let mut first = 0;
        for marked in [0, 3, 3] {
            let before = walked(&session);
            let (reader, metrics) = (cache.open(&path).unwrap(), cache.metrics());
            let (rows, report) = epoch(&gpu, reader, &cache).unwrap();
            assert!(rows == right);
            // A miss is a walk over headers: whether there are marks is neither hit nor miss.
            assert_eq!(
                counted(&cache, metrics),
                if marked == 0 { [0, 3, 0] } else { [3, 0, 0] }
            );
            assert!(report.columns.iter().all(|column| column.by_gpu == 1));
            assert_eq!(report.pages_marked, marked);
            let steps = walked(&session) - before;
            match marked {
                0 => first = steps,
                _ if session.device() == On::Software => {
                    assert!(steps * 4 < first, "{steps} after {first}")
                }
                _ => {}
            }
        }
        let (_, report) = epoch(&gpu, cache.open(&path).unwrap(), &cache).unwrap();
        let text = report.to_string();
        let said = "\n3 pages decoded from places in them that were known before";
        assert!(text.contains(said), "{text}");
        let explained = cache.explain(&path);
        assert_eq!(explained.parts, 6, "{explained}");
        // Another version of the file is followed anew.
        let bytes = file(ROWS + 7, |row| (row + 3) % 13);
        std::fs::write(&path, &bytes).unwrap();
        let right = by_host(&bytes, &whole).unwrap();
        for marked in [0, 3] {
            let (reader, metrics) = (cache.open(&path).unwrap(), cache.metrics());
            let (rows, report) = epoch(&gpu, reader, &cache).unwrap();
            assert!(rows == right);
            assert_eq!(report.pages_marked, marked);
            // Page lists of the old version are stale. So are its marks, but nobody missed them.
            assert_eq!(
                counted(&cache, metrics),
                if marked == 0 { [0, 3, 3] } else { [3, 0, 0] }
            );
        }
    }
    nothing_left(&session);
}

/// Whose content changes while its version does not, against all rules.
#[derive(Debug)]
struct Swapped {
    source: Source,
    now: Mutex<Arc<MemoryReader>>,
}

impl Swapped {
    fn now(&self) -> Arc<MemoryReader> {
        self.now.lock().unwrap().clone()
    }
}

impl Reader for Swapped {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        self.now().submit(batch)
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.now().read_now(reads)
    }
}

#[test]
fn other_bytes_of_the_same_version_are_decoded_by_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let cache = MetadataCache::new();
        let before = file(ROWS, |_| 8);
        // As long, and all pages are where they were.
        let after = file(ROWS, |row| {
            if row % 9 == 4 {
                8
            } else if (row - row / 9) % 2 == 0 {
                7
            } else {
                9
            }
        });
        assert_eq!(before.len(), after.len());
        let first = Arc::new(MemoryReader::new(before.clone()));
        let reader = Arc::new(Swapped {
            source: first.source().clone(),
            now: Mutex::new(first),
        });
        for (bytes, hosts) in [(&before, 0), (&after, 1), (&before, 0)] {
            *reader.now.lock().unwrap() = Arc::new(MemoryReader::new(bytes.clone()));
            let right = by_host(bytes, &whole).unwrap();
            let (rows, report) = epoch(&gpu, reader.clone(), &cache).unwrap();
            assert!(rows == right);
            let by_host: Vec<_> = report.columns.iter().map(|column| column.by_host).collect();
            assert_eq!(by_host, [hosts, 0, 0]);
        }
    }
    nothing_left(&session);
}

/// A cache that has no room follows them again.
#[test]
fn the_bound_holds() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let cache = CacheOptions::new()
            .capacity(LEAST_CAPACITY)
            .build()
            .unwrap();
        for seed in 0..3 {
            let bytes = file(ROWS, |row| (row + seed) % 11);
            let right = by_host(&bytes, &whole).unwrap();
            let reader = Arc::new(MemoryReader::new(bytes));
            for _ in 0..2 {
                let (rows, _) = epoch(&gpu, reader.clone(), &cache).unwrap();
                assert!(rows == right);
                assert!(cache.metrics().bytes <= LEAST_CAPACITY);
            }
        }
    }
    nothing_left(&session);
}
