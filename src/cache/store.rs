//! Entries by key within a bound, one load at a time for each key.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quick_cache::sync::{Cache, EntryAction, EntryResult, GuardResult, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use super::key::{Key, KeyRef, Kind};
use super::node::Node;

/// Share of a shard for entries that were asked for again; the rest is the queue that new ones pass through.
const HOT: f64 = 0.9;

/// Bytes of an ordinary entry, for the number of keys that are remembered after they left.
const ORDINARY: u64 = 512;

pub(crate) struct Store {
    cache: Inner,
    hasher: DefaultHashBuilder,
    /// Most bytes of one entry.
    most: u64,
    in_flight: AtomicU64,
    loads: u64,
    /// Counts invalidations of whole trees. A load that began before one is not kept.
    trees: AtomicU64,
    /// Held shared while a load is put in place, exclusively while a tree is invalidated.
    placing: RwLock<()>,
}

type Inner = Cache<Key, Arc<Node>, ByWeight, DefaultHashBuilder, Collect>;
type Guard<'a> = PlaceholderGuard<'a, Key, Arc<Node>, ByWeight, DefaultHashBuilder, Collect>;

/// What had to leave for something else, or was not let in.
pub(crate) type Left = Vec<(Key, Arc<Node>)>;

#[derive(Clone, Debug)]
struct ByWeight;

impl Weighter<Key, Arc<Node>> for ByWeight {
    fn weight(&self, _: &Key, node: &Arc<Node>) -> u64 {
        node.weight
    }
}

#[derive(Clone, Debug)]
struct Collect;

impl Lifecycle<Key, Arc<Node>> for Collect {
    type RequestState = Left;

    fn on_evict(&self, left: &mut Left, key: Key, node: Arc<Node>) {
        left.push((key, node));
    }
}

/// Bytes of a load in flight, given back when dropped.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    store: &'a Store,
    bytes: u64,
}

/// The right, and the duty, to load a key: nobody else does until it is dropped.
pub(crate) struct Flight<'a> {
    guard: Guard<'a>,
    store: &'a Store,
    trees: u64,
    /// What was there before, too old.
    pub(crate) old: Option<Arc<Node>>,
}

/// What a question found.
pub(crate) enum Found<'a> {
    /// An answer, which another load brought meanwhile.
    Node(Arc<Node>),
    /// Nothing: load it.
    Flight(Flight<'a>),
}

impl Store {
    /// At most `entries` bytes of entries in `shards` parts, and `loads` bytes of loads.
    pub(crate) fn new(entries: u64, loads: u64, shards: Option<usize>) -> Self {
        let shards = shards.unwrap_or_else(|| default_shards(entries));
        let shards = shards.next_power_of_two().max(1);
        let hasher = DefaultHashBuilder::default();
        // The number of shards is halved inside until each has 32 items, so a small cache must have few to begin with.
        let items = (entries / ORDINARY).max(32 * shards as u64);
        // Rounded up inside for each shard, so down here.
        let entries = entries - entries % shards as u64;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(usize::try_from(items).unwrap_or(usize::MAX))
            .weight_capacity(entries)
            .shards(shards)
            .hot_allocation(HOT)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(options, ByWeight, hasher.clone(), Collect),
            // Both numbers that it asks for are set above.
            Err(_) => Cache::with(items as usize, entries, ByWeight, hasher.clone(), Collect),
        };
        Store {
            most: (cache.shard_capacity() as f64 * HOT) as u64,
            cache,
            hasher,
            in_flight: AtomicU64::new(0),
            loads,
            trees: AtomicU64::new(0),
            placing: RwLock::new(()),
        }
    }

    /// Most bytes that an entry can have and be kept.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    pub(crate) fn entries(&self) -> usize {
        self.cache.len()
    }

    /// Bytes of entries and of loads in flight.
    pub(crate) fn held(&self) -> u64 {
        self.cache.weight() + self.in_flight.load(Ordering::Acquire)
    }

    /// Never 0.
    pub(crate) fn hash(&self, path: &[u8]) -> u64 {
        self.hasher.hash_one(path) | 1 << 63
    }

    pub(crate) fn get(&self, kind: Kind, path: &[u8]) -> Option<Arc<Node>> {
        self.cache.get(&KeyRef { path, kind })
    }

    /// Without counting as a use.
    pub(crate) fn peek(&self, kind: Kind, path: &[u8]) -> Option<Arc<Node>> {
        self.cache.peek(&KeyRef { path, kind })
    }

    /// Whether a load of the key is in flight (or it is there).
    pub(crate) fn is_loading(&self, key: &Key) -> bool {
        match self.cache.get_value_or_guard(key, Some(Duration::ZERO)) {
            GuardResult::Timeout => true,
            // The guard is dropped, as nothing is to be loaded; who joined meanwhile gets it.
            GuardResult::Value(_) | GuardResult::Guard(_) => false,
        }
    }

    /// Room for a load of `bytes`, if there is.
    pub(crate) fn room(&self, bytes: u64) -> Option<Room<'_>> {
        let mut room = Room {
            store: self,
            bytes: 0,
        };
        room.grow(bytes).then_some(room)
    }

    /// What is there and usable, or else the right to load it. Waits for a load that is in flight, without limit.
    pub(crate) fn join(&self, key: &Key, usable: impl Fn(&Node) -> bool) -> Found<'_> {
        loop {
            if let Some(found) = self.try_join(key, None, &usable) {
                return found;
            }
        }
    }

    /// The same without waiting: `None` if somebody else is loading.
    pub(crate) fn join_now(&self, key: &Key, usable: impl Fn(&Node) -> bool) -> Option<Found<'_>> {
        self.try_join(key, Some(Duration::ZERO), &usable)
    }

    fn try_join(
        &self,
        key: &Key,
        wait: Option<Duration>,
        usable: &impl Fn(&Node) -> bool,
    ) -> Option<Found<'_>> {
        match self.cache.get_value_or_guard(key, wait) {
            GuardResult::Value(node) if usable(&node) => Some(Found::Node(node)),
            GuardResult::Value(_) => self.replace(key, usable),
            GuardResult::Guard(guard) => Some(self.flight(guard, None)),
            GuardResult::Timeout => None,
        }
    }

    /// For tasks: waits without blocking the thread.
    pub(crate) async fn join_async(&self, key: &Key, usable: impl Fn(&Node) -> bool) -> Found<'_> {
        loop {
            match self.cache.get_value_or_guard_async(key).await {
                Ok(node) if usable(&node) => return Found::Node(node),
                Ok(_) => {
                    if let Some(found) = self.replace(key, &usable) {
                        return found;
                    }
                }
                Err(guard) => return self.flight(guard, None),
            }
        }
    }

    /// The right to load in place of an entry that is not usable.
    fn replace(&self, key: &Key, usable: &impl Fn(&Node) -> bool) -> Option<Found<'_>> {
        let still = |_: &Key, node: &mut Arc<Node>| {
            if usable(node) {
                EntryAction::Retain(node.clone())
            } else {
                EntryAction::ReplaceWithGuard
            }
        };
        match self.cache.entry(key, Some(Duration::ZERO), still) {
            EntryResult::Retained(node) => Some(Found::Node(node)),
            EntryResult::Replaced(guard, old) => Some(self.flight(guard, Some(old))),
            EntryResult::Vacant(guard) => Some(self.flight(guard, None)),
            EntryResult::Timeout | EntryResult::Removed(..) => None,
        }
    }

    fn flight<'a>(&'a self, guard: Guard<'a>, old: Option<Arc<Node>>) -> Found<'a> {
        Found::Flight(Flight {
            guard,
            store: self,
            // The load begins after this: a tree that was invalidated before does not touch it.
            trees: self.trees.load(Ordering::Acquire),
            old,
        })
    }

    /// Drops the entry, and makes a load of it that is in flight one that is not kept.
    pub(crate) fn remove(&self, kind: Kind, path: &[u8]) -> Option<(Key, Arc<Node>)> {
        self.cache.remove(&KeyRef { path, kind })
    }

    /// Drops all entries that `of_tree` names, and makes all loads in flight ones that are not kept.
    pub(crate) fn remove_tree(&self, of_tree: impl Fn(&Key) -> bool) -> u64 {
        {
            let _placing = self.placing.write().unwrap_or_else(PoisonError::into_inner);
            self.trees.fetch_add(1, Ordering::AcqRel);
        }
        let gone = AtomicU64::new(0);
        self.cache.retain(|key, _| {
            let goes = of_tree(key);
            gone.fetch_add(u64::from(goes), Ordering::Relaxed);
            !goes
        });
        gone.into_inner()
    }

    /// How many entries there are of which this is true. Looks at each.
    pub(crate) fn count(&self, is: impl Fn(&Key) -> bool) -> usize {
        self.cache.iter().filter(|(key, _)| is(key)).count()
    }

    pub(crate) fn all(&self) -> Vec<(Key, Arc<Node>)> {
        self.cache.iter().collect()
    }
}

impl Flight<'_> {
    /// Hands the node to all who wait, and keeps it if it fits. What had to leave comes back, and the node itself if it
    /// was not let in.
    pub(crate) fn land(self, node: Arc<Node>) -> Left {
        let mut left = Left::new();
        let _placing = (self.store.placing.read()).unwrap_or_else(PoisonError::into_inner);
        if self.store.trees.load(Ordering::Acquire) != self.trees {
            // Those who wait load anew, as they would have to be told what may be outdated.
            return left;
        }
        // An error says that it was invalidated meanwhile: those who waited have it, nobody else will.
        let _ = self.guard.insert_with_lifecycle(node, &mut left);
        left
    }
}

impl Room<'_> {
    /// Takes more. False, and no more is taken, if there is not so much.
    pub(crate) fn grow(&mut self, more: u64) -> bool {
        let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= self.store.loads);
        let grown = (self.store.in_flight)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .is_ok();
        if grown {
            self.bytes += more;
        }
        grown
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.store.in_flight.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("entries", &self.entries())
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

/// Up to four for each processor, of 1 MiB at least.
fn default_shards(entries: u64) -> usize {
    let most = std::thread::available_parallelism().map_or(1, |n| n.get()) * 4;
    let parts = usize::try_from(entries >> 20).unwrap_or(usize::MAX);
    let parts = parts.clamp(1, most);
    // Down to a power of two, as the cache below would round up.
    1 << parts.ilog2()
}
