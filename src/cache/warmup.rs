//! Fetching in the background what is likely to be asked for: the best first, within a budget.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::attributes::{Attributes, EntryKind};
use super::clock::nanos;
use super::inner::Inner;
use super::key::{Key, Kind, split};
use super::metadata::{MetadataCache, as_path};
use super::node::{Node, Origin, UsageNow, Value, When, period};
use super::score::{ScoreInput, WarmupScore};
use super::store::{Flight, Found};
use crate::error::{Error, Result};
use crate::sys;

/// Paths that the backend is asked for at once; between two batches a pause, a stop or the end of the cache is noticed.
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

#[derive(Debug, Default)]
struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    paused: bool,
    stopped: bool,
    done: Option<WarmupReport>,
}

impl MetadataCache {
    /// Fetches in the background, on a thread of low priority, what is likely to be asked for: what left or grew too old and
    /// was used, and children of kept listings that nobody asked for yet. The best [score](WarmupScore) first.
    ///
    /// Dropping the cache ends it after the batch that it is in.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if no thread can be started, [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child process.
    pub fn warm_up(&self, budget: WarmupBudget) -> Result<Warmup> {
        self.0.check()?;
        let control = Arc::new(Control::default());
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

impl Warmup {
    /// Makes it stop after the batch that it is in, until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.0.state().paused = true;
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.0.state().paused = false;
        self.0.changed.notify_all();
    }

    /// Ends it after the batch that it is in.
    pub fn stop(&self) {
        self.0.state().stopped = true;
        self.0.changed.notify_all();
    }

    /// What it did, if it has ended.
    pub fn report(&self) -> Option<WarmupReport> {
        self.0.state().done
    }

    /// Waits for its end. Waits for [`resume`](Self::resume) too, if it is paused.
    pub fn wait(&self) -> WarmupReport {
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while paused. False if it is to end.
    fn may_go_on(&self, inner: &Weak<Inner>) -> bool {
        /// How often a paused warm-up looks whether its cache is still there.
        const LOOK: Duration = Duration::from_millis(200);
        let mut state = self.state();
        while state.paused && !state.stopped && inner.strong_count() > 0 {
            let waited = self.changed.wait_timeout(state, LOOK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        !state.stopped && inner.strong_count() > 0
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
    let mut best = candidates(&inner, budget);
    drop(inner);
    report.candidates = best.len();
    while !best.is_empty() {
        // Not held while paused, so that the cache can end.
        if !control.may_go_on(weak) {
            return control.end(report);
        }
        let Some(inner) = weak.upgrade() else {
            return control.end(report);
        };
        if inner.now() > latest || report.bytes >= budget.bytes {
            return control.end(report);
        }
        let rest = best.split_off(best.len().min(BATCH));
        batch(&inner, budget, &best, &mut report);
        best = rest;
    }
    report.complete = true;
    control.end(report);
}

/// Fetches some paths in one call.
fn batch(inner: &Arc<Inner>, budget: &WarmupBudget, best: &[Candidate], report: &mut WarmupReport) {
    let now = inner.now();
    let mut flights: Vec<(&Candidate, Key, Flight<'_>)> = Vec::new();
    let mut room = inner.store.room(0);
    for candidate in best {
        let key = Key::new(Kind::ATTRIBUTES, &candidate.path);
        let weight = super::node::weight(&candidate.path, 0);
        let fits = report.bytes.saturating_add(weight) <= budget.bytes;
        if !fits || !room.as_mut().is_some_and(|room| room.grow(weight)) {
            report.left_out += 1;
            continue;
        }
        match inner.store.join_now(&key, |node| inner.is_fresh(node, now)) {
            Some(Found::Flight(flight)) => {
                report.bytes += weight;
                flights.push((candidate, key, flight));
            }
            Some(Found::Node(_)) => {}
            None => report.left_out += 1,
        }
    }
    if flights.is_empty() {
        return;
    }
    let paths: Vec<PathBuf> = flights
        .iter()
        .map(|(candidate, ..)| as_path(&candidate.path).into_owned())
        .collect();
    let began = Instant::now();
    let results = inner.ask_many(&paths);
    let when = When {
        asked: now,
        answered: inner.now(),
    };
    let mut files: Vec<(PathBuf, Attributes)> = Vec::new();
    for (((candidate, key, flight), path), result) in flights.into_iter().zip(paths).zip(results) {
        let Ok(attributes) = result else {
            // Whoever waits loads next, and is told why it fails.
            report.left_out += 1;
            continue;
        };
        report.fetched += 1;
        if attributes.kind == EntryKind::File {
            files.push((path, attributes.clone()));
        }
        let value = Value::Attributes(attributes);
        let mut node = if inner.file_ttl == 0 && !inner.immutable {
            Node::not_kept(value, when)
        } else {
            Node::new(&key, value, 0, when, Origin::Warmed)
        };
        if let Some(place) = inner.place(&candidate.path) {
            (node.dir, node.depth) = (place.dir, place.depth);
        }
        inner.land(flight, &key, node, now);
    }
    drop(room);
    tracing::trace!(paths = files.len(), took = ?began.elapsed(), "warmed");
    for (path, attributes) in files {
        let left = budget.contents.saturating_sub(report.contents);
        if left == 0 {
            break;
        }
        let began = inner.now();
        if let Ok(bytes) = inner.ask_fetch(&path, attributes.size().min(left)) {
            let took = inner.now().saturating_sub(began);
            inner.costs.fetched(bytes, took);
            report.contents += bytes;
        }
    }
}

struct Candidate {
    score: f64,
    path: Box<[u8]>,
}

/// The lowest score is the greatest, so that a heap of the best gives its worst; then by path, to be the same each time.
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        by_score.then_with(|| self.path.cmp(&other.path))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// What is worth fetching, the best first, as many as the budget has entries.
fn candidates(inner: &Inner, budget: &WarmupBudget) -> Vec<Candidate> {
    let now = inner.now();
    let kept = inner.store.all();
    let left = inner.history.all();
    let siblings = Siblings::of(inner, &kept, &left, now);
    let (call_seconds, byte_seconds) = inner.costs.measured();
    let score = |path: &[u8], usage: UsageNow, size: Option<u64>| {
        let dir = split(path).map_or(0, |(dir, _)| inner.store.hash(dir));
        budget.score.score(&ScoreInput {
            accesses: u64::from(usage.accesses),
            heat: cooled(inner, usage, now),
            since_last: (usage.accesses > 0)
                .then(|| Duration::from_nanos(now.saturating_sub(usage.last))),
            size,
            siblings: siblings.mean(dir),
            contents: budget.contents > 0,
            call_seconds,
            byte_seconds,
        })
    };
    let mut best = Best {
        heap: BinaryHeap::new(),
        most: budget.entries,
    };
    for (key, record) in &left {
        if key.kind == Kind::ATTRIBUTES && !is_there(inner, &key.path, now) {
            best.offer(&key.path, score(&key.path, record.usage, record.size));
        }
    }
    for (key, node) in &kept {
        match &node.value {
            Value::Attributes(attributes) if !inner.is_fresh(node, now) => {
                let size = Some(attributes.size());
                best.offer(&key.path, score(&key.path, node.usage.now(), size));
            }
            Value::Listing(listing) => {
                let mut path = key.path.to_vec();
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                let stem = path.len();
                for (name, _) in listing.iter() {
                    path.truncate(stem);
                    path.extend_from_slice(name.as_bytes());
                    let asked = inner.store.peek(Kind::ATTRIBUTES, &path).is_some()
                        || (inner.history)
                            .get(&Key::new(Kind::ATTRIBUTES, &path))
                            .is_some();
                    if !asked && !is_there(inner, &path, now) {
                        best.offer(&path, score(&path, UsageNow::default(), None));
                    }
                }
            }
            _ => {}
        }
    }
    best.heap.into_sorted_vec()
}

fn is_there(inner: &Inner, path: &[u8], now: u64) -> bool {
    let alone = inner.store.peek(Kind::ATTRIBUTES, path);
    if alone.is_some_and(|node| inner.is_fresh(&node, now)) {
        return true;
    }
    let Some((dir, name)) = split(path) else {
        return false;
    };
    let among = inner.store.peek(Kind::CHILDREN, dir);
    among.is_some_and(|node| match &node.value {
        Value::Children(children) => children.peek(name).is_some() && inner.is_fresh(&node, now),
        _ => false,
    })
}

/// Heat as of now.
fn cooled(inner: &Inner, usage: UsageNow, now: u64) -> f64 {
    let periods = period(now, inner.half_life).saturating_sub(usage.period);
    usage.heat * 0.5_f64.powf(f64::from(periods))
}

/// The best so far. What scores nothing is not worth a call.
struct Best {
    heap: BinaryHeap<Candidate>,
    most: usize,
}

impl Best {
    fn offer(&mut self, path: &[u8], score: f64) {
        if score <= 0.0 || self.most == 0 {
            return;
        }
        if self.heap.len() >= self.most {
            // By path too where scores are equal: the order of the questions must not decide.
            let better = |worst: &Candidate| {
                let by_score = score.total_cmp(&worst.score);
                by_score.then_with(|| (*worst.path).cmp(path)).is_gt()
            };
            match self.heap.peek() {
                Some(worst) if better(worst) => self.heap.pop(),
                _ => return,
            };
        }
        let path = path.into();
        self.heap.push(Candidate { score, path });
    }
}

/// Heat of the files of each directory, and how many they are.
struct Siblings(HashMap<u64, (f64, f64)>);

impl Siblings {
    fn of(
        inner: &Inner,
        kept: &[(Key, Arc<Node>)],
        left: &[(Key, super::history::Record)],
        now: u64,
    ) -> Self {
        let mut dirs: HashMap<u64, (f64, f64)> = HashMap::new();
        let mut children: HashMap<u64, f64> = HashMap::new();
        let mut add = |path: &[u8], usage: UsageNow| {
            if let Some((dir, _)) = split(path) {
                let sum = dirs.entry(inner.store.hash(dir)).or_default();
                sum.0 += cooled(inner, usage, now);
                sum.1 += 1.0;
            }
        };
        for (key, record) in left.iter().filter(|(key, _)| key.kind == Kind::ATTRIBUTES) {
            add(&key.path, record.usage);
        }
        for (key, node) in kept {
            match &node.value {
                Value::Attributes(_) => add(&key.path, node.usage.now()),
                Value::Listing(listing) => {
                    children.insert(inner.store.hash(&key.path), listing.len() as f64);
                }
                _ => {}
            }
        }
        // Where all names are known, those that nobody asked for count too.
        for (dir, count) in children {
            if let Some(sum) = dirs.get_mut(&dir) {
                sum.1 = sum.1.max(count);
            }
        }
        Siblings(dirs)
    }

    fn mean(&self, dir: u64) -> f64 {
        self.0.get(&dir).map_or(0.0, |(sum, count)| sum / count)
    }
}
