//! What a question costs: known paths beside a loop of `std::fs::metadata` and beside plain caches, and a miss beside the plain call.
//!
//! 20,000 files in 40 directories, in the caches of the kernel. moka and quick_cache hold all of them by their paths as text, with
//! the same time to live where they know one; they do not spell paths, watch directories or follow versions. The misses go to a cache that
//! keeps nothing (a time to live of 0), and to one whose entries have to leave for others (a fiftieth of what is asked for fits).
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use feedwater::cache::{Attributes, CacheOptions, MetadataCache, PrefetchOptions};

const DIRS: usize = 40;
const FILES: usize = 500;

fn tree(root: &std::path::Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for dir in 0..DIRS {
        let dir = root.join(format!("images/train/n{dir:06}"));
        std::fs::create_dir_all(&dir).unwrap();
        for file in 0..FILES {
            let path = dir.join(format!("img_{file:07}.jpg"));
            std::fs::write(&path, "x").unwrap();
            paths.push(path);
        }
    }
    paths
}

/// In an order that is not that in which they were made, and copied, so that neither are the bytes of the paths.
fn shuffled(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = paths.to_vec();
    (1..paths.len()).for_each(|i| paths.swap(i, i.wrapping_mul(0x9e37_79b9) % (i + 1)));
    paths
}

fn stat_all(cache: &MetadataCache, paths: &[PathBuf]) -> u64 {
    paths
        .iter()
        .map(|path| cache.stat(path).unwrap().size())
        .sum()
}

/// A thousand at a time, as a loader asks for the files of some batches.
fn stat_many(cache: &MetadataCache, paths: &[PathBuf]) -> u64 {
    paths
        .chunks(1000)
        .flat_map(|some| cache.stat_many(some))
        .map(|found| found.unwrap().size())
        .sum()
}

fn metadata_all(paths: &[PathBuf]) -> u64 {
    paths
        .iter()
        .map(|path| std::fs::metadata(path).unwrap().len())
        .sum()
}

fn questions(c: &mut Criterion) {
    let root = tempfile::tempdir().unwrap();
    let paths = tree(root.path());
    let hour = Duration::from_secs(3600);
    let kept = || CacheOptions::new().file_ttl(hour);
    let ahead = || PrefetchOptions::new().root(root.path()).waste(0.9);

    let mixed = shuffled(&paths);
    for (order, paths) in [("in order", &paths), ("shuffled", &mixed)] {
        let mut group = c.benchmark_group(format!("stat of 20000 known paths {order}"));
        group.sample_size(20);
        group.throughput(Throughput::Elements(paths.len() as u64));
        group.bench_function("std::fs::metadata", |b| {
            b.iter(|| metadata_all(black_box(paths)))
        });
        for (name, options) in [
            ("cache, asked for one by one", kept()),
            ("cache, below a root", kept().prefetch(ahead().depth(100))),
            ("cache, brought by passes", kept().prefetch(ahead())),
            ("cache, immutable", CacheOptions::new().immutable(true)),
        ] {
            let cache = options.build().unwrap();
            stat_all(&cache, paths);
            assert!(cache.settle(hour));
            let before = cache.metrics();
            group.bench_function(name, |b| b.iter(|| stat_all(&cache, black_box(paths))));
            let after = cache.metrics();
            // What is measured are hits.
            assert_eq!(after.misses, before.misses, "{name}");
        }
        let cache = kept().prefetch(ahead()).build().unwrap();
        stat_all(&cache, paths);
        assert!(cache.settle(hour));
        stat_all(&cache, paths);
        group.bench_function("cache, brought by passes, stat_many", |b| {
            b.iter(|| stat_many(&cache, black_box(paths)))
        });
        plain_caches(&mut group, paths, hour);
        group.finish();
    }

    let mut group = c.benchmark_group("stat of 20000 paths that miss");
    group.sample_size(20);
    group.throughput(Throughput::Elements(paths.len() as u64));
    group.bench_function("std::fs::metadata", |b| {
        b.iter(|| metadata_all(black_box(&paths)))
    });
    group.bench_function("stat_files", |b| {
        b.iter(|| {
            let found = feedwater::stat_files(black_box(&paths)).into_iter();
            found
                .map(|file| file.result.unwrap().version.size)
                .sum::<u64>()
        })
    });
    let none = CacheOptions::new().file_ttl(Duration::ZERO);
    let cache = none.build().unwrap();
    group.bench_function("cache that keeps nothing, stat_many", |b| {
        b.iter(|| {
            let found = cache.stat_many(black_box(&paths)).into_iter();
            found.map(|found| found.unwrap().size()).sum::<u64>()
        })
    });
    assert_eq!(cache.metrics().hits, 0);
    for (name, options) in [
        (
            "cache that keeps nothing",
            CacheOptions::new().file_ttl(Duration::ZERO),
        ),
        ("cache that is too small", kept().capacity(200 << 10)),
        (
            "cache that is too small, below a root",
            kept().capacity(200 << 10).prefetch(ahead().allowance(0)),
        ),
    ] {
        let cache = options.build().unwrap();
        stat_all(&cache, &paths);
        let before = cache.metrics();
        group.bench_function(name, |b| b.iter(|| stat_all(&cache, black_box(&paths))));
        let after = cache.metrics();
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        assert!(misses > hits * 20, "{name}: {hits} hits, {misses} misses");
    }
    group.finish();
}

/// What a program would write that keeps attributes by itself.
fn plain_caches(group: &mut BenchmarkGroup<'_, WallTime>, paths: &[PathBuf], ttl: Duration) {
    let known: Vec<(Box<str>, Attributes)> = paths
        .iter()
        .map(|path| {
            let metadata = std::fs::metadata(path).unwrap();
            (path.to_str().unwrap().into(), Attributes::from(&metadata))
        })
        .collect();
    let moka = moka::sync::Cache::builder()
        .max_capacity(100_000)
        .time_to_live(ttl)
        .build();
    let quick = quick_cache::sync::Cache::new(100_000);
    for (path, attributes) in known {
        moka.insert(path.clone(), attributes.clone());
        quick.insert(path, attributes);
    }
    moka.run_pending_tasks();
    group.bench_function("moka", |b| {
        b.iter(|| sizes(black_box(paths), |path| moka.get(path)))
    });
    group.bench_function("quick_cache", |b| {
        b.iter(|| sizes(black_box(paths), |path| quick.get(path)))
    });
}

fn sizes(paths: &[PathBuf], find: impl Fn(&str) -> Option<Attributes>) -> u64 {
    let size = |path: &PathBuf| find(path.to_str().unwrap()).unwrap().size();
    paths.iter().map(size).sum()
}

criterion_group!(benches, questions);
criterion_main!(benches);
