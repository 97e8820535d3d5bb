//! A source of metadata that takes its time on a virtual clock.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedwater::cache::trace::Trace;
use feedwater::cache::{Attributes, Detail, ListEntry, ManualClock, MetadataBackend};
use feedwater::{Error, Result};

/// Most names in one request, as object stores have it.
pub(crate) const PAGE: u64 = 1000;

#[derive(Debug)]
pub(crate) struct Simulated {
    trace: Arc<Trace>,
    clock: Arc<ManualClock>,
    latency: Duration,
    entry: Duration,
    requests: AtomicU64,
    /// Nanoseconds that requests took.
    took: AtomicU64,
}

impl Simulated {
    pub(crate) fn new(
        trace: Arc<Trace>,
        clock: Arc<ManualClock>,
        latency: Duration,
        entry: Duration,
    ) -> Self {
        Simulated {
            trace,
            clock,
            latency,
            entry,
            requests: AtomicU64::new(0),
            took: AtomicU64::new(0),
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.took.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// So many requests for so many names in pages.
    fn request(&self, requests: u64, names: u64) {
        let time = self.latency * requests as u32 + self.entry * names as u32;
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.took
            .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.clock.advance(time);
    }
}

impl MetadataBackend for Simulated {
    fn stat(&self, path: &Path) -> Result<Attributes> {
        self.request(1, 0);
        let found = path.to_str().and_then(|p| self.trace.tree().attributes(p));
        found.ok_or_else(|| absent("stat", path))
    }

    /// A page tells attributes too, so that a pass costs as many requests as a listing.
    fn list(
        &self,
        dir: &Path,
        _detail: Detail,
        each: &mut dyn FnMut(ListEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut names = 0u64;
        let there = dir.to_str().is_some_and(|path| {
            self.trace.tree().list(path, |name, attributes| {
                names += 1;
                let kind = attributes.kind;
                let entry = ListEntry::new(name.as_bytes(), kind, Some(attributes));
                each(entry).is_continue()
            })
        });
        self.request(names.div_ceil(PAGE).max(1), names);
        if there {
            Ok(())
        } else {
            Err(absent("list", dir))
        }
    }

    fn stat_many(&self, paths: &[PathBuf]) -> Vec<Result<Attributes>> {
        let names = paths.len() as u64;
        self.request(names.div_ceil(PAGE), names);
        let one = |path: &PathBuf| {
            let found = path.to_str().and_then(|p| self.trace.tree().attributes(p));
            found.ok_or_else(|| absent("stat", path))
        };
        paths.iter().map(one).collect()
    }
}

fn absent(op: &'static str, path: &Path) -> Error {
    Error::io(op, io::ErrorKind::NotFound.into()).named(&path.to_string_lossy().into())
}
