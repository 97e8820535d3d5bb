//! One entry: its value, when and why it was loaded, and how it is used.

use std::any::Any;
use std::fmt;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::attributes::{Attributes, Listing, NameTable};
use super::key::Key;
use super::metrics::Metrics;
use super::root::Root;
use crate::error::Error;
use crate::version::Version;

/// Bytes that an entry takes beside its path, node and value: its slot in the table of its shard with those of half as many
/// keys that left (72 bytes each), its place in the index, and the heads and rounding of two allocations.
const OVERHEAD: u64 = 160;

/// Weight of what must not be kept: more than any shard holds, so it is handed to those who wait and to nobody else.
pub(crate) const NOT_KEPT: u64 = u64::MAX;

/// Why an entry is there.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Somebody asked.
    Asked,
    /// A pass over its directory.
    Prefetched,
    /// A warm-up.
    Warmed,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    /// When the backend was asked, by the cache's clock.
    pub(crate) asked: u64,
    /// When it had answered.
    pub(crate) answered: u64,
    pub(crate) weight: u64,
    /// The directory that its accesses count for; 0 if they count for none.
    pub(crate) dir: u64,
    /// How many names its path has below its root.
    pub(crate) depth: u32,
    pub(crate) origin: Origin,
    pub(crate) usage: Usage,
}

pub(crate) enum Value {
    Attributes(Attributes),
    Listing(Arc<Listing>),
    Children(Box<Children>),
    Parsed {
        version: Version,
        value: Arc<dyn Any + Send + Sync>,
    },
    /// The path was not there.
    Absent(Error),
    /// The load failed; never kept.
    Failed(Error),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Value::Attributes(_) => "Attributes",
            Value::Listing(_) => "Listing",
            Value::Children(_) => "Children",
            Value::Parsed { .. } => "Parsed",
            Value::Absent(_) => "Absent",
            Value::Failed(_) => "Failed",
        })
    }
}

impl Value {
    /// Bytes behind the node.
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Value::Attributes(attributes) => attributes.more_bytes(),
            Value::Listing(listing) => size_of::<Listing>() + 32 + listing.table.held(),
            Value::Children(children) => children.bytes(),
            Value::Parsed { .. } => 0,
            Value::Absent(_) | Value::Failed(_) => 256,
        };
        bytes as u64
    }
}

/// Weight of an entry under `key` whose value takes `more` bytes behind the node.
pub(crate) fn weight(path: &[u8], more: u64) -> u64 {
    let fixed = OVERHEAD + path.len() as u64 + size_of::<Node>() as u64;
    fixed.saturating_add(more)
}

impl Node {
    /// A node that is kept if it fits; `more` are bytes that the value has beyond what it tells by itself.
    pub(crate) fn new(key: &Key, value: Value, more: u64, when: When, origin: Origin) -> Self {
        Node {
            weight: weight(&key.path, value.bytes().saturating_add(more)),
            value,
            asked: when.asked,
            answered: when.answered,
            dir: 0,
            depth: 0,
            origin,
            usage: Usage::default(),
        }
    }

    /// Whether it was asked for less than `ttl` ago; always if that is `u64::MAX`.
    pub(crate) fn is_younger(&self, ttl: u64, now: u64) -> bool {
        ttl == u64::MAX || self.asked.saturating_add(ttl) > now
    }

    /// A node that only those see who wait for it now.
    pub(crate) fn not_kept(value: Value, when: When) -> Self {
        Node {
            value,
            asked: when.asked,
            answered: when.answered,
            weight: NOT_KEPT,
            dir: 0,
            depth: 0,
            origin: Origin::Asked,
            usage: Usage::default(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
}

/// How often and how lately an entry was asked for. Threads that hit at the same time may count as one.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    accesses: AtomicU32,
    /// Number of the half-life in which `heat` was brought up to date.
    period: AtomicU32,
    /// Accesses, in 256ths, halved for each half-life since.
    heat: AtomicU32,
    last: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UsageNow {
    pub(crate) accesses: u32,
    /// Accesses, halved for each half-life since; as of the last.
    pub(crate) heat: f64,
    pub(crate) period: u32,
    pub(crate) last: u64,
}

impl Usage {
    pub(crate) fn of(now: UsageNow) -> Self {
        Usage {
            accesses: now.accesses.into(),
            period: now.period.into(),
            heat: ((now.heat * 256.0) as u32).into(),
            last: now.last.into(),
        }
    }

    pub(crate) fn touch(&self, now: u64, half_life: u64) {
        let accesses = self.accesses.load(Ordering::Relaxed);
        self.accesses
            .store(accesses.saturating_add(1), Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
        let period = period(now, half_life);
        let before = self.period.load(Ordering::Relaxed);
        let mut heat = self.heat.load(Ordering::Relaxed);
        if before != period {
            heat = heat.checked_shr(period.saturating_sub(before)).unwrap_or(0);
            self.period.store(period, Ordering::Relaxed);
        }
        self.heat.store(heat.saturating_add(256), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> UsageNow {
        UsageNow {
            accesses: self.accesses.load(Ordering::Relaxed),
            heat: f64::from(self.heat.load(Ordering::Relaxed)) / 256.0,
            period: self.period.load(Ordering::Relaxed),
            last: self.last.load(Ordering::Relaxed),
        }
    }
}

pub(crate) fn period(now: u64, half_life: u64) -> u32 {
    u32::try_from(now / half_life.max(1)).unwrap_or(u32::MAX)
}

/// The attributes of a directory's children, brought by one pass.
#[derive(Debug)]
pub(crate) struct Children {
    table: NameTable<Attributes>,
    /// Whether they make a listing: all are there, and no symbolic link among them, whose own kind is not kept here.
    pub(crate) lists: bool,
    used: Bits,
    /// Those that were invalidated since.
    dead: Bits,
    /// Whether a name was invalidated since, be it one of these or a new one: then they make no listing any more.
    outdated: AtomicBool,
    root: Arc<Root>,
    /// How many children cost as much as a call, as measured when the pass ended.
    per_call: Option<f64>,
    metrics: Arc<Metrics>,
}

impl Children {
    pub(crate) fn new(
        mut table: NameTable<Attributes>,
        lists: bool,
        root: Arc<Root>,
        per_call: Option<f64>,
        metrics: Arc<Metrics>,
    ) -> Self {
        table.finish();
        let count = table.rows.len();
        Children {
            table,
            lists,
            used: Bits::new(count),
            dead: Bits::new(count),
            outdated: AtomicBool::new(false),
            root,
            per_call,
            metrics,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.rows.len()
    }

    fn bytes(&self) -> usize {
        let etags: usize = self.table.rows.iter().map(|r| r.value.more_bytes()).sum();
        size_of::<Children>() + 16 + self.table.held() + etags + self.len().div_ceil(32) * 8
    }

    /// The attributes of a child that is there and was not invalidated.
    pub(crate) fn peek(&self, name: &[u8]) -> Option<&Attributes> {
        let index = self.table.find(name)?;
        (!self.dead.get(index)).then_some(())?;
        self.table.rows.get(index).map(|row| &row.value)
    }

    /// The same, and counts it as useful, once; not if it was asked for before the pass (`ahead` is false), as then the pass
    /// foresaw nothing.
    pub(crate) fn take(&self, name: &[u8], ahead: bool) -> Option<&Attributes> {
        let index = self.table.find(name)?;
        (!self.dead.get(index)).then_some(())?;
        if self.used.set(index) && ahead {
            self.metrics.prefetch_useful.add(1);
            self.root.useful(self.per_call);
        }
        self.table.rows.get(index).map(|row| &row.value)
    }

    /// The attributes of a child that is there, was not invalidated, and was asked for before.
    pub(crate) fn again(&self, name: &[u8]) -> Option<&Attributes> {
        let index = self.table.find(name)?;
        (self.used.get(index) && !self.dead.get(index)).then_some(())?;
        self.table.rows.get(index).map(|row| &row.value)
    }

    /// Whether a child of this name was found, invalidated since or not.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.table.find(name).is_some()
    }

    /// Gives a child up. Whether it was there.
    pub(crate) fn kill(&self, name: &[u8]) -> bool {
        self.outdated.store(true, Ordering::Release);
        self.table
            .find(name)
            .is_some_and(|index| self.dead.set(index))
    }

    /// Whether any child was invalidated, or a name that was not among them.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    /// Those that were not invalidated, and whether each was asked for.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (&[u8], &Attributes, bool)> {
        let all = self.names().enumerate();
        all.filter(|(index, _)| !self.dead.get(*index))
            .map(|(index, (name, attributes))| (name, attributes, self.used.get(index)))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = (&[u8], &Attributes)> {
        self.table
            .rows
            .iter()
            .map(|row| (self.table.name(row), &row.value))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        let wasted = self.len().saturating_sub(self.used.count());
        self.metrics.prefetch_wasted.add(wasted as u64);
    }
}

#[derive(Debug)]
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(count: usize) -> Self {
        Bits((0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn get(&self, index: usize) -> bool {
        let word = self.0.get(index / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (index % 64) & 1 == 1)
    }

    /// Whether it was not set before.
    fn set(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        match self.0.get(index / 64) {
            // Loaded first, as most are set already and a load does not take the line from others.
            Some(word) if word.load(Ordering::Acquire) & bit == 0 => {
                word.fetch_or(bit, Ordering::AcqRel) & bit == 0
            }
            _ => false,
        }
    }

    fn count(&self) -> usize {
        let ones = |word: &AtomicU64| word.load(Ordering::Relaxed).count_ones() as usize;
        self.0.iter().map(ones).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_halves_with_each_half_life() {
        let usage = Usage::default();
        for _ in 0..4 {
            usage.touch(5, 100);
        }
        assert_eq!(usage.now().heat, 4.0);
        usage.touch(210, 100); // two half-lives later
        assert_eq!(usage.now().heat, 2.0);
        assert_eq!(usage.now().accesses, 5);
        usage.touch(u64::MAX, 1);
        assert_eq!(usage.now().heat, 1.0);
        let again = Usage::of(usage.now());
        assert_eq!(again.now(), usage.now());
    }

    #[test]
    fn bits_are_set_once() {
        let bits = Bits::new(130);
        assert!(bits.set(129) && !bits.set(129) && bits.get(129) && !bits.get(128));
        assert!(!bits.set(500));
        assert_eq!(bits.count(), 1);
    }
}
