//! Many small files: the plain ways beside ours, in one process, in turns: `cargo bench --bench files [-- WORK…]`.
//!
//! Environment: `FEEDWATER_BENCH_DIR` (default: a temporary directory; it must be on the disk to be measured),
//! `FEEDWATER_BENCH_FILES` (default 20000, of 4 to 32 KiB: a run takes tenths of a second), `FEEDWATER_BENCH_TURNS`
//! (default 11). Cold means that the files' pages were dropped; with `FEEDWATER_BENCH_DROP_CACHES=1` names and inodes too,
//! which takes root and slows down whatever else runs.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::undocumented_unsafe_blocks
)]

#[path = "../ratios/table.rs"]
mod table;
#[path = "../ratios/turns.rs"]
mod turns;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use feedwater::cache::{CacheOptions, PrefetchOptions};
use feedwater::{FileContent, Files, FilesWay, read_files, stat_files};
use futures::StreamExt;
use rustix::fs::{Advice, fadvise};
use table::Ratio;
use turns::{Clock, Way};

const TOGETHER: usize = 32;

fn number(name: &str, default: usize) -> usize {
    let value = std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok());
    value.unwrap_or(default)
}

struct Tree {
    paths: Vec<PathBuf>,
    bytes: u64,
}

impl Tree {
    fn make(dir: &Path, count: usize) -> Self {
        let mut bytes = 0;
        let paths = (0..count).map(|i| {
            let below = dir.join(format!("{}", i / 200));
            fs::create_dir_all(&below).unwrap();
            let path = below.join(format!("{i}"));
            let len = (4 << 10) + (i * 7919) % (28 << 10);
            fs::write(&path, vec![i as u8; len]).unwrap();
            bytes += len as u64;
            path
        });
        let paths = paths.collect();
        Tree { paths, bytes }
    }

    fn make_cold(&self) {
        for path in &self.paths {
            let file = File::open(path).unwrap();
            file.sync_data().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        }
        if std::env::var_os("FEEDWATER_BENCH_DROP_CACHES").is_some_and(|value| value == "1") {
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        }
    }
}

/// All ways give the same number: of bytes.
type Read<'a> = Box<dyn Fn(&Tree) -> (u64, String) + 'a>;

fn plain(tree: &Tree) -> (u64, String) {
    let bytes = tree
        .paths
        .iter()
        .map(|path| fs::read(path).unwrap().len() as u64);
    (bytes.sum(), "one thread".into())
}

fn by_threads(tree: &Tree, one: impl Fn(&Path) -> u64 + Sync) -> (u64, String) {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(path) = tree.paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    bytes.fetch_add(one(path), Ordering::Relaxed);
                }
            });
        }
    });
    (bytes.into_inner(), format!("{TOGETHER} threads"))
}

async fn tokio_fs(tree: &Tree) -> (u64, String) {
    let reads = futures::stream::iter(tree.paths.clone());
    let mut reads = reads
        .map(|path| tokio::spawn(async move { tokio::fs::read(path).await.unwrap().len() as u64 }))
        .buffer_unordered(TOGETHER);
    let mut bytes = 0;
    while let Some(read) = reads.next().await {
        bytes += read.unwrap();
    }
    (bytes, format!("{TOGETHER} tasks"))
}

fn ours(tree: &Tree, only: Option<FilesWay>) -> (u64, String) {
    let many = read_files(&tree.paths);
    let mut all = match only {
        Some(way) => many.only(way).into_iter(),
        None => many.into_iter(),
    };
    let bytes = all
        .by_ref()
        .map(|file| file.result.unwrap().bytes.len() as u64);
    (bytes.sum(), all.report().to_string())
}

/// As many takers as there are processors.
fn ours_in_parts(tree: &Tree) -> (u64, String) {
    let parts = std::thread::available_parallelism().unwrap();
    let bytes = |files: Files<_, FileContent>| -> u64 {
        files
            .map(|file| file.result.unwrap().bytes.len() as u64)
            .sum()
    };
    let sum = std::thread::scope(|scope| {
        let parts = read_files(&tree.paths).split(parts);
        let takers: Vec<_> = parts
            .into_iter()
            .map(|part| scope.spawn(move || bytes(part)))
            .collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    (sum, format!("{parts} parts"))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn ours_stat(tree: &Tree) -> (u64, String) {
    let mut all = stat_files(&tree.paths).into_iter();
    let bytes = all.by_ref().map(|file| file.result.unwrap().version.size);
    (bytes.sum(), all.report().to_string())
}

fn measure(
    work: &str,
    tree: &Tree,
    turns: usize,
    cold: bool,
    ways: Vec<(&str, Read<'_>)>,
    ratios: &[Ratio],
) {
    let mut ways: Vec<_> = ways
        .into_iter()
        .map(|(name, read)| Way {
            name: name.into(),
            prepare: Box::new(move || {
                if cold {
                    tree.make_cold();
                }
            }),
            run: Box::new(move |clock: &mut Clock| {
                let (bytes, how) = clock.time(|| read(tree));
                assert_eq!(bytes, tree.bytes, "all of it");
                Ok(how)
            }),
        })
        .collect();
    table::measure(
        work,
        tree.bytes,
        tree.paths.len() as u64,
        turns,
        &mut ways,
        ratios,
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let within = std::env::var_os("FEEDWATER_BENCH_DIR");
    let dir = match within {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let tree = Tree::make(dir.path(), number("FEEDWATER_BENCH_FILES", 20_000));
    let turns = number("FEEDWATER_BENCH_TURNS", 11);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ratio = |ours, base, aim| Ratio { ours, base, aim };
    for (work, cold) in [("files-warm", false), ("files-cold", true)] {
        if !wanted.is_empty() && !wanted.iter().any(|name| work.contains(name.as_str())) {
            continue;
        }
        let mut ways: Vec<(&str, Read<'_>)> = vec![
            ("plain", Box::new(plain)),
            ("plain again", Box::new(plain)),
            (
                "32 threads",
                Box::new(|tree| by_threads(tree, |path| fs::read(path).unwrap().len() as u64)),
            ),
            ("ours", Box::new(|tree| ours(tree, None))),
            ("ours in parts", Box::new(ours_in_parts)),
            (
                "ours in a task",
                Box::new(|tree| {
                    let mut all = read_files(&tree.paths).stream();
                    let bytes = runtime.block_on(async {
                        let mut bytes = 0;
                        while let Some(file) = all.next().await {
                            bytes += file.result.unwrap().bytes.len() as u64;
                        }
                        bytes
                    });
                    (bytes, all.report().to_string())
                }),
            ),
            (
                "tokio::fs",
                Box::new(|tree| runtime.block_on(tokio_fs(tree))),
            ),
        ];
        if cold {
            ways.push((
                "ours by threads",
                Box::new(|tree| ours(tree, Some(FilesWay::Threads))),
            ));
            ways.push((
                "ours by rings",
                Box::new(|tree| ours(tree, Some(FilesWay::Rings))),
            ));
        }
        let (loop_aim, tokio_aim) = if cold { (3.0, 1.0) } else { (1.0, 2.3) };
        let ratios = [
            ratio("plain again", "plain", 1.0),
            ratio("ours", "plain", loop_aim),
            ratio("ours", "32 threads", 1.0),
            ratio("ours in parts", "32 threads", 1.0),
            ratio("ours", "tokio::fs", tokio_aim),
            ratio("ours in a task", "tokio::fs", tokio_aim),
            ratio("ours by threads", "32 threads", 1.0),
            ratio("ours by rings", "32 threads", 1.0),
        ];
        measure(work, &tree, turns, cold, ways, &ratios);
    }
    for (work, cold) in [("stat-warm", false), ("stat-cold", true)] {
        if !wanted.is_empty() && !wanted.iter().any(|name| work.contains(name.as_str())) {
            continue;
        }
        let ways: Vec<(&str, Read<'_>)> = vec![
            (
                "plain",
                Box::new(|tree: &Tree| {
                    (
                        tree.paths.iter().map(|path| size(path)).sum(),
                        "one thread".into(),
                    )
                }),
            ),
            ("32 threads", Box::new(|tree| by_threads(tree, size))),
            ("ours", Box::new(ours_stat)),
        ];
        let ratios = [
            ratio("ours", "plain", 1.0),
            ratio("ours", "32 threads", 1.0),
        ];
        measure(work, &tree, turns, cold, ways, &ratios);
    }
    let work = "stat-known";
    if wanted.is_empty() || wanted.iter().any(|name| work.contains(name.as_str())) {
        let hour = std::time::Duration::from_secs(3600);
        let cache = CacheOptions::new().file_ttl(hour).build().unwrap();
        let found = cache.stat_many(&tree.paths);
        assert!(found.iter().all(Result::is_ok));
        let ahead = PrefetchOptions::new().root(dir.path()).depth(1).waste(0.9);
        let passed = CacheOptions::new().file_ttl(hour).prefetch(ahead);
        let passed = passed.build().unwrap();
        for _ in 0..2 {
            let found = tree.paths.iter().map(|path| passed.stat(path));
            assert!(found.into_iter().all(|found| found.is_ok()));
            assert!(passed.settle(hour));
        }
        let alone = || tree.paths.iter().map(|path| size(path)).sum();
        let ways: Vec<(&str, Read<'_>)> = vec![
            ("plain", Box::new(|_| (alone(), "one thread".into()))),
            ("plain again", Box::new(|_| (alone(), "one thread".into()))),
            (
                "cache",
                Box::new(|tree| {
                    let sizes = tree.paths.iter().map(|path| cache.stat(path));
                    (
                        sizes.map(|found| found.unwrap().size()).sum(),
                        "one by one".into(),
                    )
                }),
            ),
            (
                "cache, many",
                Box::new(|tree| {
                    let sizes = tree
                        .paths
                        .chunks(1000)
                        .flat_map(|some| cache.stat_many(some));
                    (
                        sizes.map(|found| found.unwrap().size()).sum(),
                        "a thousand at once".into(),
                    )
                }),
            ),
        ];
        let ways = ways.into_iter().chain([(
            "passes, many",
            Box::new(|tree: &Tree| {
                let sizes = tree
                    .paths
                    .chunks(1000)
                    .flat_map(|some| passed.stat_many(some));
                (
                    sizes.map(|found| found.unwrap().size()).sum(),
                    "a thousand at once".into(),
                )
            }) as Read<'_>,
        )]);
        let ways = ways.collect();
        let ratios = [
            ratio("plain again", "plain", 1.0),
            ratio("cache", "plain", 10.0),
            ratio("cache, many", "plain", 10.0),
            ratio("passes, many", "plain", 10.0),
        ];
        measure(work, &tree, turns, false, ways, &ratios);
    }
}
