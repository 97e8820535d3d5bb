//! What `Auto` chooses for what is in the page cache and what is not, and what it says of it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::skip::require;
use feedwater::{
    Batch, CachePolicy, ChunkOptions, DeviceProfile, Engine, EngineOptions, OpenOptions, Opened,
    ReadInto, Reader, ReaderExt, Route, Verdict,
};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

struct Fixture {
    _dir: TempDir,
    path: PathBuf,
    content: Vec<u8>,
}

/// A file of which no byte is in the page cache; `None` where that, or a way past the cache, is not to be had.
fn cold_file(len: usize) -> Option<Fixture> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let content: Vec<u8> = (0..len).map(|i| (i / 251 + i * 7) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let fixture = Fixture {
        _dir: dir,
        path,
        content,
    };
    let direct = OpenOptions::new().only(Route::UringDirect);
    require("uring", direct.open(&fixture.path).map(drop))?;
    require("residency", fixture.evict())?;
    Some(fixture)
}

impl Fixture {
    /// Drops the file's pages from the cache.
    fn evict(&self) -> Result<(), String> {
        let file = File::open(&self.path).unwrap();
        file.sync_all().unwrap();
        let advice = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&file, 0, None, advice).map_err(|error| error.to_string())?;
        match feedwater::open(&self.path).unwrap().report().resident {
            Some(0) => Ok(()),
            Some(left) => Err(format!("{left} bytes stay in the page cache")),
            None => Err("the system does not tell what is in the page cache".into()),
        }
    }

    fn open(&self, options: OpenOptions) -> Arc<Opened> {
        options.open(&self.path).unwrap()
    }

    fn check(&self, offset: u64, bytes: &[u8]) {
        let from = offset as usize;
        assert!(
            bytes == &self.content[from..from + bytes.len()],
            "at {offset}"
        );
    }
}

/// An engine of its own, so that what others find out does not matter.
fn alone() -> OpenOptions {
    OpenOptions::new().engine(Engine::new(EngineOptions::default()))
}

/// An engine that is told how fast the device of `path` streams.
fn told(path: &Path, buffered: u64, direct: u64) -> Option<OpenOptions> {
    let report = feedwater::open(path).unwrap().report();
    let device = report.facts.iter().find(|(name, _)| *name == "device");
    let (_, device) = require("device", device.ok_or("no device is known"))?;
    let profile = DeviceProfile::new(device.as_str(), buffered, direct);
    let engine = Engine::new(EngineOptions::default().profile(profile));
    Some(OpenOptions::new().engine(engine))
}

fn by(reader: &Opened, route: Route) -> u64 {
    reader.source().counters().snapshot().route(route)
}

/// Offsets that neither touch nor follow each other.
fn scattered(len: usize) -> impl Iterator<Item = u64> {
    let count = len / (64 << 10) - 1;
    (0..count).map(move |i| ((i * 7 % count) * (64 << 10) + 100) as u64)
}

#[test]
fn cold_scattered_ranges_go_past_the_cache_with_many_in_flight() {
    let Some(file) = cold_file(8 * MIB) else {
        return;
    };
    let reader = file.open(alone());
    let offsets: Vec<u64> = scattered(8 * MIB).collect();
    let mut batch = Batch::of(offsets.iter().map(|at| *at..at + 4000));
    batch.options = batch.options.gap(0);
    let blocks = reader.submit(batch).wait().unwrap();
    for (at, block) in offsets.iter().zip(&blocks) {
        file.check(*at, block.as_host().unwrap());
    }
    let counters = reader.source().counters().snapshot();
    assert_eq!(counters.main_route(), Some(Route::UringDirect));
    assert_eq!(
        counters.requests,
        offsets.len() as u64,
        "one for each range"
    );
    assert!(counters.most_in_flight > 1, "{counters:?}");
    assert!(counters.most_in_flight <= 128, "{counters:?}");
    // Nothing of it came into the cache.
    assert_eq!(reader.report().resident, Some(0));
}

#[test]
fn cold_scattered_ranges_are_read_at_once_on_the_callers_thread() {
    let Some(file) = cold_file(8 * MIB) else {
        return;
    };
    let depth = NonZeroUsize::new(4).unwrap();
    let engine = Engine::new(EngineOptions::default().depth(depth));
    let reader = file.open(OpenOptions::new().engine(engine));
    let offsets: Vec<u64> = scattered(8 * MIB).collect();
    let mut memory = vec![0u8; offsets.len() * 4000];
    let mut reads: Vec<_> = memory
        .chunks_mut(4000)
        .zip(&offsets)
        .map(|(buf, at)| ReadInto::new(*at, buf))
        .collect();
    reader.read_now(&mut reads).unwrap();
    for read in &reads {
        file.check(read.offset, read.buf);
    }
    let counters = reader.source().counters().snapshot();
    assert_eq!(counters.main_route(), Some(Route::UringDirect));
    assert_eq!(counters.requests, offsets.len() as u64);
    assert_eq!(counters.most_in_flight, 4, "as the engine allows");
}

#[test]
fn what_is_cached_is_copied_and_what_is_not_is_read_in_one_batch() {
    let Some(file) = cold_file(8 * MIB) else {
        return;
    };
    // Every second MiB is brought into the cache, by somebody else, without reading ahead.
    let other = File::open(&file.path).unwrap();
    rustix::fs::fadvise(&other, 0, None, rustix::fs::Advice::Random).unwrap();
    for i in (0..8).step_by(2) {
        let mut part = vec![0; MIB];
        std::os::unix::fs::FileExt::read_exact_at(&other, &mut part, (i * MIB) as u64).unwrap();
    }
    let reader = file.open(alone());
    let ranges: Vec<_> = (0..8u64)
        .map(|i| (i << 20) + 1000..(i << 20) + 9000)
        .collect();
    for (range, block) in ranges.iter().zip(reader.read_many(&ranges).wait().unwrap()) {
        file.check(range.start, block.as_host().unwrap());
    }
    assert_eq!(by(&reader, Route::Pread), 4 * 8000);
    assert_eq!(by(&reader, Route::UringDirect), 4 * 8000);
    let mut memory = vec![0u8; 8 * 8000];
    let mut reads: Vec<_> = memory
        .chunks_mut(8000)
        .zip(&ranges)
        .map(|(buf, range)| ReadInto::new(range.start, buf))
        .collect();
    reader.read_now(&mut reads).unwrap();
    for read in &reads {
        file.check(read.offset, read.buf);
    }
    assert_eq!(by(&reader, Route::Pread), 8 * 8000);
    assert_eq!(by(&reader, Route::UringDirect), 8 * 8000);
}

#[test]
fn one_small_range_on_the_spot_is_a_plain_call() {
    let Some(file) = cold_file(MIB) else { return };
    let reader = file.open(alone());
    let mut buf = [0; 100];
    reader.read_at(500_000, &mut buf).unwrap();
    file.check(500_000, &buf);
    assert_eq!(by(&reader, Route::Pread), 100);
}

#[test]
fn small_ranges_in_a_row_are_left_to_the_kernels_reading_ahead() {
    let Some(file) = cold_file(4 * MIB) else {
        return;
    };
    let reader = file.open(alone());
    for i in 0..64u64 {
        let at = i * 16_384;
        file.check(at, &reader.read(at..at + 16_384).wait().unwrap());
    }
    let past = by(&reader, Route::UringDirect);
    assert!(
        past <= 16_384,
        "{past} bytes before it was seen to be a row"
    );
    assert!(by(&reader, Route::Pread) >= 63 * 16_384);
}

#[test]
fn keeping_keeps() {
    let Some(file) = cold_file(8 * MIB) else {
        return;
    };
    let reader = file.open(alone().cache(CachePolicy::Keep));
    let ranges: Vec<_> = scattered(8 * MIB).map(|at| at..at + 4000).collect();
    for (range, block) in ranges.iter().zip(reader.read_many(&ranges).wait().unwrap()) {
        file.check(range.start, block.as_host().unwrap());
    }
    // Scattered ones by a ring; some may be there already, as the kernel reads ahead.
    assert!(by(&reader, Route::Uring) > 0);
    assert_eq!(by(&reader, Route::UringDirect), 0);
    assert!(reader.report().resident.unwrap() >= (ranges.len() * 4000) as u64);
}

#[test]
fn what_was_read_once_past_the_cache_is_kept_the_next_time() {
    let Some(file) = cold_file(8 * MIB) else {
        return;
    };
    let reader = file.open(alone());
    let whole = 8 * MIB as u64;
    assert!(reader.read_all().wait().unwrap() == file.content);
    assert_eq!(by(&reader, Route::UringDirect), whole);
    assert!(reader.read_all().wait().unwrap() == file.content);
    assert_eq!(by(&reader, Route::UringDirect), whole, "not again");
    assert_eq!(by(&reader, Route::Pread), whole);
    let why = reader.report().to_string();
    assert!(reader.report().resident == Some(whole), "{why}");
}

#[test]
fn a_device_that_is_known_to_stream_better_through_the_cache_does() {
    let Some(file) = cold_file(16 * MIB) else {
        return;
    };
    for (buffered, direct, route) in [
        (2_000_000_000, 1_000_000_000, Route::Pread),
        (1_000_000_000, 950_000_000, Route::UringDirect),
    ] {
        require("residency", file.evict()).unwrap();
        let Some(options) = told(&file.path, buffered, direct) else {
            return;
        };
        let reader = file.open(options);
        let mut at = 0;
        let chunks = ChunkOptions::default().size(MIB).window(8 * MIB);
        for chunk in reader.chunks(0..reader.len(), chunks) {
            let chunk = chunk.unwrap();
            file.check(at, &chunk);
            at += chunk.len() as u64;
        }
        assert_eq!(at, 16 * MIB as u64);
        let report = reader.report();
        assert_eq!(report.route(), Some(route), "{report}");
        assert!(report.to_string().contains(" MB/s past it"), "{report}");
        // The first chunk is no stream yet.
        assert!(by(&reader, route) >= 15 * MIB as u64, "{report}");
        let said = report.to_string().contains("faster through the page cache");
        assert_eq!(said, route == Route::Pread, "{report}");
    }
}

#[test]
fn a_long_stream_finds_out_which_way_is_better_and_tells() {
    // Six windows of 64 MiB, and some beyond.
    let Some(file) = cold_file(480 * MIB) else {
        return;
    };
    let engine = Engine::new(EngineOptions::default());
    let reader = file.open(OpenOptions::new().engine(engine.clone()));
    assert!(engine.profiles().is_empty());
    let mut at = 0;
    for chunk in reader.chunks(0..reader.len(), ChunkOptions::default()) {
        let chunk = chunk.unwrap();
        file.check(at, &chunk);
        at += chunk.len() as u64;
    }
    assert_eq!(at, 480 * MIB as u64);
    for route in [Route::Pread, Route::UringDirect] {
        let bytes = by(&reader, route);
        assert!(bytes >= 100 * MIB as u64, "{route}: {bytes}");
    }
    let known = require(
        "device",
        engine.profiles().pop().ok_or("no device is known"),
    );
    if let Some(profile) = known {
        assert!(profile.buffered > 0 && profile.direct > 0, "{profile}");
        // As another process would be told.
        let line = profile.to_string();
        assert_eq!(line.parse::<DeviceProfile>().unwrap(), profile);
    }
}

#[test]
fn bypassing_uses_a_ring_or_says_why_not() {
    let Some(file) = cold_file(MIB) else { return };
    let reader = file.open(alone().cache(CachePolicy::Bypass));
    file.check(12_345, &reader.read(12_345..99_999).wait().unwrap());
    assert_eq!(reader.report().route(), Some(Route::UringDirect));
    let report = reader.report();
    assert!(
        report
            .candidates
            .iter()
            .all(|candidate| match candidate.route {
                Route::UringDirect => matches!(candidate.verdict, Verdict::Used),
                _ => !matches!(candidate.verdict, Verdict::Used),
            }),
        "{report}"
    );
}

#[test]
fn in_memory_nothing_is_asked_for() {
    let shm = Path::new("/dev/shm");
    let Some(dir) = require("tmpfs", tempfile::tempdir_in(shm)) else {
        return;
    };
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 3 * MIB]).unwrap();
    let reader = alone().open(&path).unwrap();
    assert!(reader.read_all().wait().unwrap() == vec![7; 3 * MIB]);
    assert_eq!(reader.report().route(), Some(Route::Pread));
}
