//! What a question costs: known paths beside a loop of `std::fs::metadata`, and a miss beside the plain call.
//!
//! 20,000 files in 40 directories, in the caches of the kernel. The misses go to a cache that keeps nothing (a time to live of 0), and
//! to one whose entries have to leave for others (a fiftieth of what is asked for fits).
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use feedwater::cache::{CacheOptions, MetadataCache, PrefetchOptions};

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
        group.finish();
    }

    let mut group = c.benchmark_group("stat of 20000 paths that miss");
    group.sample_size(20);
    group.throughput(Throughput::Elements(paths.len() as u64));
    group.bench_function("std::fs::metadata", |b| {
        b.iter(|| metadata_all(black_box(&paths)))
    });
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

criterion_group!(benches, questions);
criterion_main!(benches);
