//! What all clones of a cache share, and the steps that its operations are made of.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::attributes::{Attributes, Listing, NameTable};
use super::backend::{Detail, ListEntry, MetadataBackend};
use super::clock::{Clock, nanos};
use super::costs::Costs;
use super::directory::Directories;
use super::history::{Departure, History, Record};
use super::key::{Key, Kind, spelled, split};
use super::metadata::{as_path, is_absent};
use super::metrics::Metrics;
use super::node::{NOT_KEPT, Node, Origin, Usage, Value, When};
use super::options::{CacheOptions, PrefetchOptions};
use super::parsed::Types;
use super::root::Root;
use super::store::{Flight, Left, Store};
use super::worker::Worker;
use crate::error::{Error, ErrorKind, Result};
use crate::files::EntryKind;
use crate::sys::Generation;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) history: History,
    pub(crate) directories: Directories,
    pub(crate) roots: Vec<Arc<Root>>,
    pub(crate) prefetch: PrefetchOptions,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) costs: Costs,
    pub(crate) backend: Arc<dyn MetadataBackend>,
    pub(crate) worker: Worker,
    pub(crate) types: Types,
    clock: Arc<dyn Clock>,
    generation: Generation,
    pub(crate) capacity: u64,
    /// Nanoseconds; 0 keeps nothing, `u64::MAX` keeps it for ever.
    pub(crate) file_ttl: u64,
    pub(crate) listing_ttl: u64,
    /// 0 if it is not kept that a path is not there.
    pub(crate) negative_ttl: u64,
    pub(crate) half_life: u64,
    /// How often anything was invalidated.
    changes: AtomicU64,
}

/// Where a path lies below a root: its directory, and how deep it is.
pub(crate) struct Place<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) dir: u64,
    pub(crate) depth: u32,
}

impl Inner {
    pub(crate) fn new(options: CacheOptions) -> Self {
        // A sixteenth for loads in flight, in a small cache more, so that one pass over a directory has room; half as much
        // for the memory of what left; the rest for entries.
        let loads = (options.capacity / 16).max((options.capacity / 4).min(256 << 10));
        let history = options.capacity / 32;
        let root = |path: &PathBuf| {
            use std::os::unix::ffi::OsStrExt;
            let path = spelled(path.as_os_str().as_bytes());
            Arc::new(Root::new(&path, &options.prefetch))
        };
        let mut roots: Vec<_> = options.prefetch.roots.iter().map(root).collect();
        let ttl = |ttl| match options.immutable {
            true => u64::MAX,
            false => nanos(ttl),
        };
        // The innermost first.
        roots.sort_by_key(|root| std::cmp::Reverse(root.path.len()));
        Inner {
            store: Store::new(options.capacity - loads - history, loads, options.shards),
            history: History::new(history),
            directories: Directories::new(&options.prefetch),
            roots,
            metrics: Arc::default(),
            costs: Costs::default(),
            backend: options.backend,
            worker: Worker::new(),
            types: Types::default(),
            clock: options.clock,
            generation: Generation::current(),
            capacity: options.capacity,
            file_ttl: ttl(options.file_ttl),
            listing_ttl: ttl(options.listing_ttl),
            negative_ttl: options.negative_ttl.map_or(0, nanos),
            half_life: nanos(options.half_life).max(1),
            prefetch: options.prefetch,
            changes: AtomicU64::new(0),
        }
    }

    /// Whether this is the process that made the cache: in a child, locks may be held by threads that do not exist there.
    pub(crate) fn check(&self) -> Result<()> {
        if self.generation.is_current() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Forked))
        }
    }

    pub(crate) fn now(&self) -> u64 {
        nanos(self.clock.now())
    }

    pub(crate) fn held(&self) -> u64 {
        self.store.held() + self.history.bytes()
    }

    /// Whether the node is still young enough.
    pub(crate) fn is_fresh(&self, node: &Node, now: u64) -> bool {
        let ttl = match &node.value {
            Value::Absent(_) => self.negative_ttl,
            Value::Attributes(_) | Value::Children(_) => self.file_ttl,
            Value::Listing(_) => self.listing_ttl,
            Value::Failed(_) => return false,
            // Compared with its version each time.
            Value::Parsed { .. } => return true,
        };
        node.is_younger(ttl, now)
    }

    /// Whether a question of `now` may be answered by the node, which another load may have brought since: fresh, or asked for
    /// after the question was, or a failure that came after it.
    pub(crate) fn is_usable(&self, node: &Node, now: u64) -> bool {
        match &node.value {
            Value::Failed(_) => node.answered >= now,
            _ => self.is_fresh(node, now) || node.asked >= now,
        }
    }

    /// Counts a hit. Begins a pass if the directory has come to that.
    pub(crate) fn hit(self: &Arc<Self>, node: &Node, path: &[u8], now: u64) {
        self.metrics.hits.add_one();
        node.usage.touch(now, self.half_life);
        if node.dir != 0 && self.directories.hit(node.dir, node.depth, now) {
            let dir = match &node.value {
                Value::Listing(_) => Some(path),
                _ => split(path).map(|(dir, _)| dir),
            };
            if let Some(dir) = dir {
                super::pass::begin(self, dir, node.dir, now);
            }
        }
    }

    pub(crate) fn count_stale(&self, flight: &Flight<'_>) {
        self.metrics.stale.add(u64::from(flight.old.is_some()));
    }

    pub(crate) fn root_of(&self, path: &[u8]) -> Option<(&Arc<Root>, u32)> {
        self.roots
            .iter()
            .find_map(|root| Some((root, root.depth(path)?)))
    }

    /// Where a path lies, if passes may bring it.
    pub(crate) fn place<'a>(&self, path: &'a [u8]) -> Option<Place<'a>> {
        if self.roots.is_empty() {
            return None;
        }
        let (_, depth) = self.root_of(path)?;
        let (dir, name) = split(path)?;
        (depth >= self.prefetch.depth).then(|| Place {
            path: dir,
            name,
            dir: self.store.hash(dir),
            depth,
        })
    }

    /// The same of a directory that is listed.
    pub(crate) fn place_of_dir(&self, path: &[u8]) -> Option<(u64, u32)> {
        if self.roots.is_empty() {
            return None;
        }
        let (_, depth) = self.root_of(path)?;
        // Its children are one deeper.
        (depth + 1 >= self.prefetch.depth).then(|| (self.store.hash(path), depth))
    }

    /// The attributes of a path that a pass brought; `ahead` if it was before they were asked for.
    pub(crate) fn among_children(
        &self,
        place: &Place<'_>,
        now: u64,
        ahead: bool,
    ) -> Option<Attributes> {
        let node = self.store.get(Kind::CHILDREN, place.path)?;
        let Value::Children(children) = &node.value else {
            return None;
        };
        if !self.is_fresh(&node, now) {
            return None;
        }
        let found = children.take(place.name, ahead)?.clone();
        node.usage.touch(now, self.half_life);
        Some(found)
    }

    /// The listing of a directory whose children a pass brought.
    pub(crate) fn listing_of_children(&self, path: &[u8], now: u64) -> Option<Arc<Listing>> {
        let node = self.store.get(Kind::CHILDREN, path)?;
        let Value::Children(children) = &node.value else {
            return None;
        };
        // As attributes they may hold longer than a listing does.
        let fresh = self.is_fresh(&node, now) && node.is_younger(self.listing_ttl, now);
        if !children.lists || children.is_outdated() || !fresh {
            return None;
        }
        let mut table = NameTable::<EntryKind>::new();
        for (name, attributes) in children.names() {
            if !table.push(name, attributes.kind) {
                return None;
            }
        }
        table.finish();
        Some(Arc::new(Listing { table }))
    }

    /// An entry for what the backend said of a path; `fits` if there was room for it among the loads in flight.
    pub(crate) fn node_of_attributes(
        &self,
        key: &Key,
        result: Result<Attributes>,
        when: When,
        fits: bool,
        place: Option<&Place<'_>>,
    ) -> Node {
        let (value, ttl) = match result {
            Ok(attributes) => (Value::Attributes(attributes), self.file_ttl),
            Err(error) if is_absent(&error) && self.negative_ttl > 0 => {
                (Value::Absent(error), self.negative_ttl)
            }
            Err(error) => (Value::Failed(error), 0),
        };
        let mut node = if ttl == 0 {
            Node::not_kept(value, when)
        } else if !fits {
            self.metrics.bypassed.add(1);
            Node::not_kept(value, when)
        } else {
            Node::new(key, value, 0, when, Origin::Asked)
        };
        if let Some(place) = place {
            (node.dir, node.depth) = (place.dir, place.depth);
        }
        node
    }

    pub(crate) fn ask_stat(&self, path: &[u8]) -> Result<Attributes> {
        self.metrics.backend_calls.add(1);
        self.metrics.backend_entries.add(1);
        self.failing(self.backend.stat(&as_path(path)))
    }

    pub(crate) fn ask_list(
        &self,
        path: &[u8],
        detail: Detail,
        each: &mut dyn FnMut(ListEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.metrics.backend_calls.add(1);
        self.failing(self.backend.list(&as_path(path), detail, each))
    }

    pub(crate) fn ask_many(&self, paths: &[PathBuf]) -> Vec<Result<Attributes>> {
        self.metrics.backend_calls.add(1);
        self.metrics.backend_entries.add(paths.len() as u64);
        self.backend.stat_many(paths)
    }

    pub(crate) fn ask_fetch(&self, path: &Path, limit: u64) -> Result<u64> {
        self.metrics.backend_calls.add(1);
        self.failing(self.backend.fetch(path, limit))
    }

    fn failing<T>(&self, result: Result<T>) -> Result<T> {
        self.metrics
            .backend_failures
            .add(u64::from(result.is_err()));
        result
    }

    /// Hands a node to all who wait for it and keeps it if it may. Its use goes on from what is remembered.
    pub(crate) fn land(
        &self,
        flight: Flight<'_>,
        key: &Key,
        mut node: Node,
        now: u64,
    ) -> Arc<Node> {
        let before = match &flight.old {
            Some(old) => Some(old.usage.now()),
            None => self.history.take(key).map(|record| record.usage),
        };
        if let Some(before) = before {
            node.usage = Usage::of(before);
        }
        if node.origin == Origin::Asked {
            node.usage.touch(now, self.half_life);
        }
        let not_kept = match &node.value {
            Value::Failed(_) => Some(Departure::Failed),
            _ if node.weight == NOT_KEPT => Some(Departure::NotKept),
            _ => None,
        };
        if let Some(departure) = not_kept {
            self.remember(key.clone(), &node, departure, now);
        }
        let node = Arc::new(node);
        self.left(flight.land(node.clone()), key, &node, now);
        node
    }

    /// Counts and remembers what had to leave for `node`.
    fn left(&self, left: Left, key: &Key, node: &Arc<Node>, now: u64) {
        for (gone, old) in left {
            if Arc::ptr_eq(&old, node) {
                if old.weight != NOT_KEPT {
                    self.metrics.bypassed.add(1);
                    self.remember(gone, &old, Departure::NotKept, now);
                }
            } else if gone != *key {
                self.metrics.evictions.add(1);
                self.remember(gone, &old, Departure::Evicted, now);
            }
        }
    }

    pub(crate) fn remember(&self, key: Key, node: &Node, departure: Departure, now: u64) {
        let size = match &node.value {
            Value::Attributes(attributes) => Some(attributes.size()),
            _ => None,
        };
        let record = Record {
            departure,
            at: now,
            usage: node.usage.now(),
            size,
        };
        self.history.put(key, record);
    }

    /// Drops what is kept of a path and what its directory tells of it.
    pub(crate) fn invalidate(&self, path: &[u8]) {
        self.invalidate_content(path);
        self.forget(Kind::LISTING, path);
        self.forget(Kind::CHILDREN, path);
        if let Some((dir, _)) = split(path) {
            self.forget(Kind::LISTING, dir);
            // Its times changed.
            self.forget(Kind::ATTRIBUTES, dir);
            self.forget_child(dir);
        }
        self.changed();
    }

    /// How often anything was invalidated. What was looked up before this number grew may be untrue.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// After the last of it is gone: so who reads the new number does not find it any more.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Drops what is kept of the content of a path: attributes and parsed values.
    pub(crate) fn invalidate_content(&self, path: &[u8]) {
        self.forget(Kind::ATTRIBUTES, path);
        self.forget_child(path);
        for kind in self.types.kinds() {
            self.forget(kind, path);
        }
        self.changed();
    }

    pub(crate) fn invalidate_tree(&self, dir: &[u8]) {
        let below = |key: &Key| super::key::depth_below(dir, &key.path).is_some();
        let gone = self.store.remove_tree(below);
        self.metrics.invalidations.add(gone);
        self.invalidate(dir);
    }

    /// Also makes a load that is in flight one that is not kept.
    fn forget(&self, kind: Kind, path: &[u8]) {
        if let Some((key, node)) = self.store.remove(kind, path) {
            self.metrics.invalidations.add(1);
            self.remember(key, &node, Departure::Invalidated, self.now());
        }
    }

    /// Gives up what a pass over its directory told of a path.
    fn forget_child(&self, path: &[u8]) {
        let Some((dir, name)) = split(path) else {
            return;
        };
        match self.store.peek(Kind::CHILDREN, dir) {
            Some(node) => {
                if let Value::Children(children) = &node.value
                    && children.kill(name)
                {
                    self.metrics.invalidations.add(1);
                }
            }
            // A pass may be in flight, and may have been past this name already.
            None => self.forget(Kind::CHILDREN, dir),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.worker.close();
        }
    }
}

/// The name of a source in errors.
pub(crate) fn name(path: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(path).into()
}
