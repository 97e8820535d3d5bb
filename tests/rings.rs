//! What only rings can get wrong, and what exactly they ask of the kernel.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "rings/counts.rs"]
mod counts;
#[path = "rings/process.rs"]
mod process;
#[path = "rings/stress.rs"]
mod stress;
#[path = "rings/tasks.rs"]
mod tasks;
#[path = "rings/turns.rs"]
mod turns;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::hanging::Hanging;
use common::skip::require;
use feedwater::{Engine, EngineOptions, OpenOptions, Opened, ReadInto, Reader, Result, Route};
use tempfile::TempDir;

/// Long enough for any machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

const LEN: u64 = 3 << 20;

fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| (0..LEN).map(|i| (i * 13 + i / 997) as u8).collect())
}

fn right(range: &Range<u64>) -> &'static [u8] {
    &content()[range.start as usize..range.end as usize]
}

fn file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, content()).unwrap();
    (dir, path)
}

/// An engine of its own, with so many threads, also of the kernel, and requests in flight.
fn engine(room: usize) -> Engine {
    let room = NonZeroUsize::new(room).unwrap();
    Engine::new(EngineOptions::default().threads(room).depth(room))
}

/// A reader by this route, where the system has it.
fn open(path: &Path, route: Route, engine: &Engine) -> Option<Arc<Opened>> {
    let only = |route| OpenOptions::new().engine(engine.clone()).only(route);
    if route == Route::UringDirect {
        require("odirect", only(Route::PreadDirect).open(path))?;
    }
    let needs = match route {
        Route::Uring | Route::UringDirect => "uring",
        Route::PreadDirect => "odirect",
        _ => "files",
    };
    require(needs, only(route).open(path))
}

/// Both ways of rings, as far as the system has them.
fn rings(path: &Path, room: usize) -> Vec<(Route, Arc<Opened>)> {
    [Route::Uring, Route::UringDirect]
        .into_iter()
        .filter_map(|route| Some((route, open(path, route, &engine(room))?)))
        .collect()
}

/// Files that hang; `None` where the system has none.
fn hanging(len: u64) -> Option<Hanging> {
    require("fuse", Hanging::new(len, true))
}

/// Scattered ranges of `len` bytes, aligned and not.
fn scattered(count: u64, len: u64) -> Vec<Range<u64>> {
    let start = |i: u64| (i * 69_997 + i % 3) % (LEN - len);
    (0..count).map(|i| start(i)..start(i) + len).collect()
}

/// Reads all `ranges` on this thread, in one call.
fn read_now(reader: &Opened, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
    let mut buffers: Vec<_> = ranges
        .iter()
        .map(|range| vec![0; (range.end - range.start) as usize])
        .collect();
    let mut reads: Vec<_> = std::iter::zip(ranges, &mut buffers)
        .map(|(range, buffer)| ReadInto::new(range.start, buffer))
        .collect();
    reader.read_now(&mut reads)?;
    Ok(buffers)
}
