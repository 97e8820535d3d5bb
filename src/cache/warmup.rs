//! Fetching in the background what is likely to be asked for: the best first, within a budget.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::candidates::{Candidate, candidates};
use super::clock::nanos;
use super::inner::Inner;
use super::key::{Key, Kind};
use super::metadata::{MetadataCache, as_path};
use super::node::{Node, Origin, Value, When, weight};
use super::score::WarmupScore;
use super::store::{Flight, Found};
use crate::error::{Error, Result};
use crate::files::EntryKind;
use crate::sys::{self, Generation};

/// Paths that the backend is asked for at once; between two batches, or contents of files, a pause, a stop or the end of the
/// cache is noticed.
const BATCH: usize = 64;

/// What a warm-up may take.
#[derive(Clone, Debug)]
pub struct WarmupBudget {
    score: WarmupScore,
    entries: usize,
    bytes: u64,
    contents: u64,
    time: Duration,
}

impl Default for WarmupBudget {
    fn default() -> Self {
        WarmupBudget {
            score: WarmupScore::default(),
            entries: 10_000,
            bytes: 16 << 20,
            contents: 0,
            time: Duration::from_secs(60),
        }
    }
}

impl WarmupBudget {
    /// Metadata only: 10,000 entries, 16 MiB, one minute, [`WarmupScore::CostAware`].
    pub fn new() -> Self {
        WarmupBudget::default()
    }

    /// In which order. Default [`WarmupScore::CostAware`].
    #[must_use]
    pub fn score(mut self, score: WarmupScore) -> Self {
        self.score = score;
        self
    }

    /// Most paths that are fetched. Default 10,000.
    #[must_use]
    pub fn entries(mut self, entries: usize) -> Self {
        self.entries = entries;
        self
    }

    /// Most bytes of the cache that are filled. Default 16 MiB.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Most bytes of content that are fetched too (on a local file system into the page cache). Default 0: metadata only.
    #[must_use]
    pub fn contents(mut self, bytes: u64) -> Self {
        self.contents = bytes;
        self
    }

    /// Longest that it goes on, by the cache's clock, pauses included. Default 1 minute.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }
}

/// What a warm-up did.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmupReport {
    /// Paths that were worth fetching, up to [`WarmupBudget::entries`].
    pub candidates: usize,
    /// Paths whose attributes were fetched.
    pub fetched: usize,
    /// Paths that failed, or that somebody else was loading.
    pub left_out: usize,
    /// Bytes of the cache that were filled.
    pub bytes: u64,
    /// Bytes of content that were fetched.
    pub contents: u64,
    /// Whether it went through all candidates; else the budget was used up, or it was stopped.
    pub complete: bool,
}

/// A warm-up that runs in the background. Dropping it lets it run on.
#[derive(Clone, Debug)]
pub struct Warmup(Arc<Control>);

#[derive(Debug)]
struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// In a child process nobody works on it, and the lock may be held for ever.
    generation: Generation,
}

#[derive(Debug, Default)]
struct State {
    paused: bool,
    stopped: bool,
    done: Option<WarmupReport>,
}

impl MetadataCache {
    /// Fetches in the background, on a thread of low priority, what is likely to be asked for: what left or grew too old and
    /// was used, and children of kept listings and passes that nobody asked for yet; if contents are wanted, those of files
    /// whose attributes are known too. The best [score](WarmupScore) first.
    ///
    /// ```
    /// use feedwater::cache::{MetadataCache, WarmupBudget};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # std::fs::write(dir.path().join("a"), "some bytes")?;
    /// let cache = MetadataCache::new();
    /// cache.list(dir.path())?;
    /// cache.stat(dir.path().join("a"))?;
    /// let warmup = cache.warm_up(WarmupBudget::new().contents(1 << 20))?; // also into the page cache
    /// warmup.pause(); // while there is more important work
    /// warmup.resume();
    /// assert_eq!(warmup.wait().contents, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Dropping the cache ends it after the batch that it is in.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if no thread can be started, [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child process.
    pub fn warm_up(&self, budget: WarmupBudget) -> Result<Warmup> {
        self.0.check()?;
        let control = Arc::new(Control {
            state: Mutex::default(),
            changed: Condvar::new(),
            generation: Generation::current(),
        });
        let (for_thread, inner) = (control.clone(), Arc::downgrade(&self.0));
        std::thread::Builder::new()
            .name("feedwater-warm".into())
            .spawn(move || {
                sys::yield_to_others();
                // Also if the backend panics: those who wait are told.
                let _ends = Ends(for_thread.clone());
                run(&inner, &budget, &for_thread);
            })
            .map_err(|error| Error::io("spawn", error))?;
        Ok(Warmup(control))
    }
}

/// In a child process, where it does not run, it has no report, cannot be held, and is not waited for.
impl Warmup {
    /// Makes it stop after the batch of 64 paths, or the content of one file, that it is at, until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.0.change(|state| state.paused = true);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.0.change(|state| state.paused = false);
    }

    /// Ends it where a [`pause`](Self::pause) would make it stop.
    pub fn stop(&self) {
        self.0.change(|state| state.stopped = true);
    }

    /// What it did, if it has ended.
    pub fn report(&self) -> Option<WarmupReport> {
        self.0.is_here().then(|| self.0.state().done).flatten()
    }

    /// Waits for its end. If it is paused, that is after [`resume`](Self::resume), or when its
    /// [time](WarmupBudget::time) is over.
    pub fn wait(&self) -> WarmupReport {
        if !self.0.is_here() {
            return WarmupReport::default();
        }
        let mut state = self.0.state();
        loop {
            if let Some(report) = state.done {
                return report;
            }
            state = (self.0.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Control {
    /// Whether this is the process that it runs in.
    fn is_here(&self) -> bool {
        self.generation.is_current()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        if self.is_here() {
            change(&mut self.state());
            self.changed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while paused; then the cache. `None` if it is to end: it was stopped, its time is over, or the cache is gone.
    fn may_go_on(&self, weak: &Weak<Inner>, latest: u64) -> Option<Arc<Inner>> {
        /// How often a paused warm-up looks at the clock, and whether its cache is still there.
        const LOOK: Duration = Duration::from_millis(200);
        loop {
            // Not held while it waits, so that the cache can end.
            let inner = weak.upgrade().filter(|inner| inner.now() <= latest)?;
            let (paused, stopped) = {
                let state = self.state();
                (state.paused, state.stopped)
            };
            if stopped || !paused {
                return (!stopped).then_some(inner);
            }
            drop(inner);
            let state = self.state();
            if state.paused && !state.stopped {
                drop(self.changed.wait_timeout(state, LOOK));
            }
        }
    }

    fn end(&self, report: WarmupReport) {
        self.state().done.get_or_insert(report);
        self.changed.notify_all();
    }
}

struct Ends(Arc<Control>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end(WarmupReport::default());
    }
}

fn run(weak: &Weak<Inner>, budget: &WarmupBudget, control: &Control) {
    let mut report = WarmupReport::default();
    let Some(inner) = weak.upgrade() else {
        return;
    };
    let latest = inner.now().saturating_add(nanos(budget.time));
    let best = candidates(&inner, budget.score, budget.entries, budget.contents > 0);
    drop(inner);
    report.candidates = best.len();
    for best in best.chunks(BATCH) {
        let used_up = report.bytes >= budget.bytes && report.contents >= budget.contents;
        let inner = control.may_go_on(weak, latest);
        let Some(inner) = inner.filter(|_| !used_up) else {
            return control.end(report);
        };
        let files = batch(&inner, budget, best, &mut report);
        drop(inner);
        for (path, size) in files {
            let left = budget.contents.saturating_sub(report.contents);
            if left == 0 {
                break;
            }
            let Some(inner) = control.may_go_on(weak, latest) else {
                return control.end(report);
            };
            let began = inner.now();
            let limit = size.min(left);
            if let Ok(bytes) = inner.ask_fetch(&path, limit) {
                // A backend may say more than it was asked for.
                let bytes = bytes.min(limit);
                let took = inner.now().saturating_sub(began);
                inner.costs.fetched(bytes, took);
                report.contents += bytes;
            }
        }
    }
    report.complete = true;
    control.end(report);
}

/// Fetches the attributes of some paths in one call. Those that are files come back with their sizes, the best first.
fn batch(
    inner: &Arc<Inner>,
    budget: &WarmupBudget,
    best: &[Candidate],
    report: &mut WarmupReport,
) -> Vec<(PathBuf, u64)> {
    let now = inner.now();
    let mut files = Vec::new();
    let mut flights: Vec<(usize, &Candidate, Key, Flight<'_>)> = Vec::new();
    let mut room = inner.store.room(0);
    for (place, candidate) in best.iter().enumerate() {
        if let Some(size) = candidate.known_size {
            files.push((place, as_path(&candidate.path).into_owned(), size));
            continue;
        }
        let key = Key::new(Kind::ATTRIBUTES, &candidate.path);
        let weight = weight(&candidate.path, 0);
        let fits = report.bytes.saturating_add(weight) <= budget.bytes;
        if !fits || !room.as_mut().is_some_and(|room| room.grow(weight)) {
            report.left_out += 1;
            continue;
        }
        match inner.store.join_now(&key, |node| inner.is_fresh(node, now)) {
            Some(Found::Flight(flight)) => {
                report.bytes += weight;
                flights.push((place, candidate, key, flight));
            }
            // Somebody asked meanwhile.
            Some(Found::Node(_)) => {}
            None => report.left_out += 1,
        }
    }
    if !flights.is_empty() {
        let paths: Vec<PathBuf> = flights
            .iter()
            .map(|(_, candidate, ..)| as_path(&candidate.path).into_owned())
            .collect();
        let results = inner.ask_many(&paths);
        let when = When {
            asked: now,
            answered: inner.now(),
        };
        for ((flight, path), result) in flights.into_iter().zip(paths).zip(results) {
            let (place, candidate, key, flight) = flight;
            let Ok(attributes) = result else {
                // Whoever waits loads next, and is told why it fails.
                report.left_out += 1;
                continue;
            };
            report.fetched += 1;
            if attributes.kind == EntryKind::File {
                files.push((place, path, attributes.size()));
            }
            let value = Value::Attributes(attributes);
            let mut node = if inner.file_ttl == 0 {
                Node::not_kept(value, when)
            } else {
                Node::new(&key, value, 0, when, Origin::Warmed)
            };
            if let Some(place) = inner.place(&candidate.path) {
                (node.dir, node.depth) = (place.dir, place.depth);
            }
            inner.land(flight, &key, node, now);
        }
    }
    drop(room);
    files.sort_unstable_by_key(|(place, ..)| *place);
    files
        .into_iter()
        .map(|(_, path, size)| (path, size))
        .collect()
}
