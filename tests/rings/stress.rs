//! Everything at once, at random.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedwater::{
    Batch, CachePolicy, Engine, EngineOptions, ErrorKind, OpenOptions, Opened, Priority,
    ReadOptions, Reader, Route,
};

use crate::common::quarantine::Quarantine;
use crate::common::skip::require;
use crate::{LEN, PATIENCE, content, file, read_now, right};

const THREADS: u64 = 8;
const ROUNDS: usize = 60;

/// A generator of numbers (an LCG, of which the upper half counts).
struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Says with which seed it failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("with FEEDWATER_SEED={}", self.0);
        }
    }
}

fn seed() -> Seed {
    let given = std::env::var("FEEDWATER_SEED").ok();
    Seed(given.and_then(|seed| seed.parse().ok()).unwrap_or(1))
}

/// Readers of the file by all ways, over engines that are shared, and narrow.
fn readers(path: &std::path::Path) -> (Vec<Engine>, Vec<Arc<Opened>>) {
    let engine = |threads: usize, depth: usize, bytes: usize| {
        let options = EngineOptions::default()
            .threads(threads.try_into().unwrap())
            .depth(depth.try_into().unwrap())
            .bytes_in_flight(bytes);
        Engine::new(options)
    };
    let engines = vec![
        engine(1, 1, 1),
        engine(2, 3, 100_000),
        engine(4, 16, 4 << 20),
    ];
    let only = |route| (Some(route), OpenOptions::new().only(route));
    // SAFETY: nobody changes the file.
    let promised = unsafe { OpenOptions::new().assume_immutable() };
    let options = [
        only(Route::Uring),
        only(Route::UringDirect),
        only(Route::Pread),
        only(Route::PreadDirect),
        (None, OpenOptions::new()),
        (None, OpenOptions::new().cache(CachePolicy::Keep)),
        (None, promised),
        (
            Some(Route::PreadDirect),
            OpenOptions::new().cache(CachePolicy::Bypass),
        ),
    ];
    let mut readers = Vec::new();
    for engine in &engines {
        for (route, options) in &options {
            let needs = match route {
                Some(Route::Uring | Route::UringDirect) => "uring",
                Some(Route::PreadDirect) => "odirect",
                _ => "files",
            };
            let opened = options.clone().engine(engine.clone()).open(path);
            readers.extend(require(needs, opened));
        }
    }
    (engines, readers)
}

fn ranges(random: &mut Random) -> Vec<Range<u64>> {
    (0..1 + random.below(12))
        .map(|_| {
            let most = match random.below(12) {
                0 => 1_500_000,
                1..4 => 100_000,
                _ => 5000,
            };
            let mut start = random.below(LEN);
            let mut end = (start + random.below(most)).min(LEN);
            if random.one_in(4) {
                start -= start % 4096;
                end = (end - end % 4096).max(start);
            }
            start..end
        })
        .collect()
}

fn options(random: &mut Random) -> ReadOptions {
    let mut options = ReadOptions::default();
    if random.one_in(3) {
        options = options.priority(Priority::Prefetch);
    }
    if random.one_in(3) {
        let depth = 1 + random.below(4) as usize;
        options = options.depth(depth.try_into().unwrap());
    }
    if random.one_in(2) {
        options = options.gap(random.below(20_000));
    }
    match random.below(6) {
        0 => options.deadline(Instant::now() + Duration::from_micros(random.below(3000))),
        1 => options.deadline(Instant::now() + PATIENCE),
        _ => options,
    }
}

fn round(random: &mut Random, reader: &Opened, memory: &Quarantine) {
    let ranges = ranges(random);
    if random.one_in(4) {
        for (buffer, range) in std::iter::zip(read_now(reader, &ranges).unwrap(), &ranges) {
            assert!(buffer[..] == *right(range), "{range:?} {reader:?}");
        }
        return;
    }
    let options = options(random);
    let soon = options.deadline.is_some();
    let into = random.one_in(2);
    let mut batch = Batch::new().options(options);
    for range in &ranges {
        let len = (range.end - range.start) as usize;
        batch = if into && len > 0 {
            let off = random.below(2) as usize * random.below(600) as usize;
            let mut block = memory.block(len + off);
            drop(block.split_to(off));
            batch.read_into(range.clone(), block)
        } else {
            batch.any(range.clone())
        };
    }
    let mut pending = reader.submit(batch);
    let check = |index: usize, outcome: Result<feedwater::Block, feedwater::Failed>| match outcome {
        Ok(block) => {
            let range = &ranges[index];
            let read = block.as_host().unwrap();
            assert!(read[..] == *right(range), "{range:?} {reader:?}");
        }
        Err(failed) => {
            let late = soon && matches!(failed.error.kind(), ErrorKind::TimedOut);
            assert!(late, "{failed} {reader:?}");
        }
    };
    match random.below(8) {
        0 => drop(pending),
        1 if !into => std::mem::forget(pending),
        2 | 3 => {
            for _ in 0..random.below(ranges.len() as u64 + 1) {
                if let Some((index, outcome)) = pending.wait_next() {
                    check(index, outcome);
                }
            }
        }
        4 => {
            use futures::StreamExt;
            let outcomes = futures::executor::block_on(pending.stream().collect::<Vec<_>>());
            assert_eq!(outcomes.len(), ranges.len());
            for (index, outcome) in outcomes {
                check(index, outcome);
            }
        }
        _ => {
            let mut left = ranges.len();
            for (index, outcome) in pending {
                check(index, outcome);
                left -= 1;
            }
            assert_eq!(left, 0);
        }
    }
}

#[test]
fn everything_at_once_at_random() {
    let (_dir, path) = file();
    assert_eq!(content().len() as u64, LEN);
    let (engines, readers) = readers(&path);
    let seed = seed();
    let memory = Quarantine::new();
    std::thread::scope(|threads| {
        for number in 0..THREADS {
            let (path, readers, memory) = (&path, &readers, &memory);
            let mut random = Random(seed.0 * THREADS + number);
            threads.spawn(move || {
                for _ in 0..ROUNDS {
                    if random.one_in(20) {
                        // So that some of it is cold; those who read it meanwhile do not care.
                        let file = std::fs::File::open(path).unwrap();
                        file.sync_all().unwrap();
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    }
                    let reader = &readers[random.below(readers.len() as u64) as usize];
                    round(&mut random, reader, memory);
                }
            });
        }
    });
    drop(readers);
    for engine in engines {
        assert!(engine.shut_down(PATIENCE).is_complete());
    }
    memory.wait_for_all(PATIENCE);
    memory.check();
}
