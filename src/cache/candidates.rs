//! What a warm-up should fetch, the best first.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use super::attributes::Attributes;
use super::history::Record;
use super::inner::Inner;
use super::key::{Key, Kind, split, stem};
use super::node::{Node, UsageNow, Value, period};
use super::score::{ScoreInput, WarmupScore};
use crate::files::EntryKind;

/// A path that is worth fetching.
pub(crate) struct Candidate {
    score: f64,
    pub(crate) path: Box<[u8]>,
    /// Size of a file whose attributes are known, so that only its content is to be fetched.
    pub(crate) known_size: Option<u64>,
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

/// What is worth fetching, the best first, at most `entries`; with `contents` also files whose attributes are known.
pub(crate) fn candidates(
    inner: &Inner,
    score: WarmupScore,
    entries: usize,
    contents: bool,
) -> Vec<Candidate> {
    let now = inner.now();
    let kept = inner.store.all();
    let left = inner.history.all();
    let siblings = Siblings::of(inner, &kept, &left, now);
    let (call_seconds, byte_seconds) = inner.costs.measured();
    let score = |path: &[u8], usage: UsageNow, size: Option<u64>| {
        let dir = split(path).map_or(0, |(dir, _)| inner.store.hash(dir));
        score.score(&ScoreInput {
            accesses: u64::from(usage.accesses),
            heat: cooled(inner, usage, now),
            since_last: (usage.accesses > 0)
                .then(|| Duration::from_nanos(now.saturating_sub(usage.last))),
            size,
            siblings: siblings.mean(dir),
            contents,
            call_seconds,
            byte_seconds,
        })
    };
    let mut best = Best {
        heap: BinaryHeap::new(),
        most: entries,
    };
    for (key, record) in &left {
        if key.kind == Kind::ATTRIBUTES && !is_there(inner, &key.path, now) {
            best.offer(&key.path, score(&key.path, record.usage, record.size), None);
        }
    }
    for (key, node) in &kept {
        let fresh = inner.is_fresh(node, now);
        let only_content = |found: &Attributes| {
            let is_file = found.kind == EntryKind::File;
            (fresh && is_file).then(|| found.size())
        };
        match &node.value {
            Value::Attributes(found) => {
                let known = only_content(found);
                if !fresh || (contents && known.is_some()) {
                    let score = score(&key.path, node.usage.now(), Some(found.size()));
                    best.offer(&key.path, score, known);
                }
            }
            Value::Children(children) if !fresh || contents => {
                let asked = UsageNow {
                    accesses: 1,
                    heat: 1.0,
                    ..node.usage.now()
                };
                let mut path = Below::of(&key.path);
                for (name, found, used) in children.alive() {
                    let path = path.name(name);
                    let known = only_content(found);
                    if (fresh && known.is_none()) || is_known(inner, path) {
                        continue;
                    }
                    let usage = if used { asked } else { UsageNow::default() };
                    best.offer(path, score(path, usage, Some(found.size())), known);
                }
            }
            Value::Listing(listing) => {
                let mut path = Below::of(&key.path);
                for (name, _) in listing.iter() {
                    let path = path.name(name.as_bytes());
                    if !is_known(inner, path) && !is_among_children(inner, path) {
                        best.offer(path, score(path, UsageNow::default(), None), None);
                    }
                }
            }
            _ => {}
        }
    }
    best.heap.into_sorted_vec()
}

/// Whether a path is looked at on its own, as it was asked for alone.
fn is_known(inner: &Inner, path: &[u8]) -> bool {
    inner.store.peek(Kind::ATTRIBUTES, path).is_some()
        || (inner.history)
            .get(&Key::new(Kind::ATTRIBUTES, path))
            .is_some()
}

/// Whether a path is looked at with those that a pass brought, fresh or not.
fn is_among_children(inner: &Inner, path: &[u8]) -> bool {
    let children = split(path).and_then(|(dir, _)| inner.store.peek(Kind::CHILDREN, dir));
    children.is_some_and(|node| {
        let name = split(path).map_or(&b""[..], |(_, name)| name);
        matches!(&node.value, Value::Children(children) if children.peek(name).is_some())
    })
}

/// Paths below a directory, one after the other in the same memory.
struct Below {
    path: Vec<u8>,
    stem: usize,
}

impl Below {
    fn of(dir: &[u8]) -> Self {
        let path = stem(dir);
        Below {
            stem: path.len(),
            path,
        }
    }

    fn name(&mut self, name: &[u8]) -> &[u8] {
        self.path.truncate(self.stem);
        self.path.extend_from_slice(name);
        &self.path
    }
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
    fn offer(&mut self, path: &[u8], score: f64, known_size: Option<u64>) {
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
        self.heap.push(Candidate {
            score,
            path: path.into(),
            known_size,
        });
    }
}

/// Heat of the files of each directory, and how many they are.
struct Siblings(HashMap<u64, (f64, f64)>);

impl Siblings {
    fn of(inner: &Inner, kept: &[(Key, Arc<Node>)], left: &[(Key, Record)], now: u64) -> Self {
        let mut dirs: HashMap<u64, (f64, f64)> = HashMap::new();
        let mut children: HashMap<u64, f64> = HashMap::new();
        let mut passes = Vec::new();
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
                    let most = children.entry(inner.store.hash(&key.path)).or_default();
                    *most = most.max(listing.len() as f64);
                }
                Value::Children(of_pass) => {
                    let dir = inner.store.hash(&key.path);
                    let most: &mut f64 = children.entry(dir).or_default();
                    *most = most.max(of_pass.len() as f64);
                    passes.push((dir, cooled(inner, node.usage.now(), now)));
                }
                _ => {}
            }
        }
        // What a pass answered was asked of the directory, and not of one child more than of another.
        for (dir, heat) in passes {
            dirs.entry(dir).or_insert((0.0, 1.0)).0 += heat;
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
