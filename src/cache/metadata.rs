//! The cache: attributes, listings and parsed values, kept within a bound and no longer than they hold.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::attributes::{Attributes, Listing, NameTable};
use super::backend::Detail;
use super::inner::{Inner, Place};
use super::key::{Key, Kind, spelled};
use super::metrics::CacheMetrics;
use super::node::{Node, Origin, Value, When, weight};
use super::options::CacheOptions;
use super::pass;
use super::root::RootState;
use super::store::Found;
use crate::error::{Error, ErrorKind, Result};
use crate::files::EntryKind;

/// Attributes, directory listings and parsed values of files, kept in memory within a hard bound.
///
/// ```
/// use feedwater::cache::CacheOptions;
///
/// # let dir = tempfile::tempdir()?;
/// # std::fs::write(dir.path().join("a.jpg"), "some bytes")?;
/// let cache = CacheOptions::new().capacity(64 << 20).build()?;
/// let attributes = cache.stat(dir.path().join("a.jpg"))?; // asks the system
/// let again = cache.stat(dir.path().join("a.jpg"))?; // does not
/// assert_eq!((attributes.size(), again), (10, attributes.clone()));
/// for (name, kind) in cache.list(dir.path())?.iter() {
///     println!("{name:?} {kind:?}");
/// }
/// println!("{}", cache.explain(dir.path().join("a.jpg")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - **Age.** Attributes are at most [`CacheOptions::file_ttl`] old, counted from when they were asked for, listings
///   [`CacheOptions::listing_ttl`]; an older answer is never given. Parsed values are compared with the version of the file
///   each time. Under [`CacheOptions::immutable`] nothing ages.
/// - **Own writes:** call [`invalidate`](Self::invalidate) after them, or [`invalidate_tree`](Self::invalidate_tree). What is being loaded
///   at that moment is handed to those who asked before, and not kept. Files that are opened are compared with what is kept
///   of them: [`open`](Self::open), [`validate`](Self::validate).
/// - **One load at a time.** Threads that miss the same entry wait for one call of the backend and share its answer, errors
///   too. A load that panics, or whose task is dropped, leaves the next in line to load.
/// - **Bound.** Entries, loads in flight that are to be kept, and the memory of what left together take
///   [`CacheOptions::capacity`] bytes at most. What does not fit is handed out and not kept.
/// - **Paths** that differ in `//`, `/./` and a slash at the end are one. Relative ones are kept as they are given: a program that
///   changes its working directory should not use them. A file that is reached by another path (through a link) is another
///   entry, and is invalidated by its age only.
/// - **Tasks.** A hit never waits; a miss blocks its thread, so on an executor it belongs to where blocking is allowed.
/// - **Fork.** In a child process every question answers [`ErrorKind::Forked`].
///
/// Cloning is cheap and shares the entries. S3-FIFO decides what leaves (the crate `quick_cache`).
#[derive(Clone)]
pub struct MetadataCache(pub(crate) Arc<Inner>);

impl MetadataCache {
    /// A cache with the default options: 64 MiB, 2 s for files, 30 s for listings. [`CacheOptions`] has others.
    pub fn new() -> Self {
        MetadataCache::with(CacheOptions::new())
    }

    pub(crate) fn with(options: CacheOptions) -> Self {
        MetadataCache(Arc::new(Inner::new(options)))
    }

    /// The attributes of a path; links are followed.
    ///
    /// A hit costs a hash of the path and no system call or allocation (besides the count on an entity tag). A miss blocks this
    /// thread for a call of the backend; [`stat_many`](Self::stat_many) makes one call for many.
    ///
    /// # Errors
    /// What the backend says; for a path that is not there [`ErrorKind::Io`] with [`std::io::ErrorKind::NotFound`].
    /// [`ErrorKind::Forked`] in a child process.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        let inner = &self.0;
        inner.check()?;
        let path = path.as_ref().as_os_str().as_bytes();
        let now = inner.now();
        let path = match self.alone_as_written(path, now) {
            Ok(answer) => return answer,
            Err(path) => path,
        };
        let place = inner.place(&path);
        if let Some(place) = &place
            && let Some(found) = self.among(place, now)
        {
            return Ok(found);
        }
        inner.metrics.misses.add(1);
        if let Some(place) = &place
            && inner.directories.missed(place.dir, place.depth, now)
            && pass::begin(inner, place.path, place.dir, now)
            && let Some(found) = inner.among_children(place, now, false)
        {
            return Ok(found);
        }
        self.load_attributes(&path, place.as_ref(), now)
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// What the backend says. [`ErrorKind::TooLarge`] for 4 GiB of names. [`ErrorKind::Forked`] in a child process.
    pub fn list(&self, dir: impl AsRef<Path>) -> Result<Arc<Listing>> {
        let inner = &self.0;
        inner.check()?;
        let path = spelled(dir.as_ref().as_os_str().as_bytes());
        let now = inner.now();
        if let Some(node) = inner.store.get(Kind::LISTING, &path)
            && inner.is_fresh(&node, now)
        {
            let answer = listing_of(&node);
            inner.hit(&node, &path, now);
            return answer;
        }
        self.list_slowly(&path, now)
    }

    /// Drops all that is kept of a path, and what its directory tells of it. To be called after writing, creating, renaming (for
    /// both names) or removing it: after a commit of a [`FileSink`](crate::FileSink), say, which knows of no cache.
    ///
    /// Costs some look-ups. A load that is in flight is not kept, so who invalidates sees its own writes. What a scan to a GPU keeps of the pages
    /// of a file stays until it is evicted: it is compared with the file's version each time.
    ///
    /// ```
    /// use feedwater::FileSink;
    /// use feedwater::cache::CacheOptions;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("table.bin");
    /// # std::fs::write(&path, "old")?;
    /// let cache = CacheOptions::new().immutable(true).build()?;
    /// assert_eq!(cache.stat(&path)?.size(), 3);
    /// let mut sink = FileSink::create(&path)?;
    /// sink.append(b"new rows")?;
    /// let version = sink.commit()?;
    /// cache.invalidate(&path);
    /// assert_eq!(cache.stat(&path)?.version, feedwater::Version::File(version));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invalidate(&self, path: impl AsRef<Path>) {
        if self.0.check().is_ok() {
            self.0
                .invalidate(&spelled(path.as_ref().as_os_str().as_bytes()));
        }
    }

    /// Drops all that is kept of a directory and everything below it. Costs a look at every entry of the cache.
    pub fn invalidate_tree(&self, dir: impl AsRef<Path>) {
        if self.0.check().is_ok() {
            self.0
                .invalidate_tree(&spelled(dir.as_ref().as_os_str().as_bytes()));
        }
    }

    /// What was done so far.
    pub fn metrics(&self) -> CacheMetrics {
        if self.0.check().is_err() {
            return CacheMetrics::default();
        }
        let entries = self.0.store.entries() as u64;
        self.0.metrics.snapshot(entries, self.0.held())
    }

    /// Whether passes run below each root, and its account. Empty in a child process.
    pub fn roots(&self) -> Vec<RootState> {
        if self.0.check().is_err() {
            return Vec::new();
        }
        self.0.roots.iter().map(|root| root.state()).collect()
    }

    /// Waits until no pass is waiting or running, or the time is over. True in the first case.
    pub fn settle(&self, most: Duration) -> bool {
        self.0.check().is_ok() && self.0.worker.settle(most)
    }

    /// The answer of an entry of its own, which counts as a hit; or the path in the spelling of keys. That is looked for only
    /// where the path is not found as it is written: most are written so.
    #[inline]
    pub(crate) fn alone_as_written<'a>(
        &self,
        path: &'a [u8],
        now: u64,
    ) -> std::result::Result<Result<Attributes>, Cow<'a, [u8]>> {
        if let Some(answer) = self.alone(path, now) {
            return Ok(answer);
        }
        match spelled(path) {
            Cow::Owned(path) => self.alone(&path, now).ok_or(Cow::Owned(path)),
            same => Err(same),
        }
    }

    /// The answer of an entry of its own, which counts as a hit.
    #[inline]
    pub(crate) fn alone(&self, path: &[u8], now: u64) -> Option<Result<Attributes>> {
        let inner = &self.0;
        let node = inner.store.get(Kind::ATTRIBUTES, path)?;
        if !inner.is_fresh(&node, now) {
            return None;
        }
        let answer = attributes_of(&node);
        inner.hit(&node, path, now);
        Some(answer)
    }

    /// What a pass over the directory brought, which counts as a hit.
    pub(crate) fn among(&self, place: &Place<'_>, now: u64) -> Option<Attributes> {
        let inner = &self.0;
        let found = inner.among_children(place, now, true)?;
        inner.metrics.hits.add_one();
        if inner.directories.hit(place.dir, place.depth, now) {
            pass::begin(inner, place.path, place.dir, now);
        }
        Some(found)
    }

    /// Asks the backend for a path, or waits for another thread that is asking.
    pub(crate) fn load_attributes(
        &self,
        path: &[u8],
        place: Option<&Place<'_>>,
        now: u64,
    ) -> Result<Attributes> {
        let inner = &self.0;
        let key = Key::new(Kind::ATTRIBUTES, path);
        let flight = match inner.store.join(&key, |node| inner.is_usable(node, now)) {
            Found::Node(node) => return attributes_of(&node),
            Found::Flight(flight) => flight,
        };
        inner.count_stale(&flight);
        let room = inner.store.room(weight(path, 0));
        let asked = inner.now();
        let result = inner.ask_stat(path);
        let answered = inner.now();
        inner.costs.call(answered.saturating_sub(asked));
        let when = When { asked, answered };
        let node = inner.node_of_attributes(&key, result, when, room.is_some(), place);
        let node = inner.land(flight, &key, node, now);
        drop(room);
        attributes_of(&node)
    }

    fn list_slowly(&self, path: &[u8], now: u64) -> Result<Arc<Listing>> {
        let inner = &self.0;
        let place = inner.place_of_dir(path);
        if place.is_some()
            && let Some(found) = inner.listing_of_children(path, now)
        {
            inner.metrics.hits.add_one();
            return Ok(found);
        }
        inner.metrics.misses.add(1);
        if let Some((dir, depth)) = place
            && inner.directories.missed(dir, depth, now)
            && pass::begin(inner, path, dir, now)
            && let Some(found) = inner.listing_of_children(path, now)
        {
            return Ok(found);
        }
        let key = Key::new(Kind::LISTING, path);
        let flight = match inner.store.join(&key, |node| inner.is_usable(node, now)) {
            Found::Node(node) => return listing_of(&node),
            Found::Flight(flight) => flight,
        };
        inner.count_stale(&flight);
        let mut room = inner.store.room(weight(path, CHARGE));
        let asked = inner.now();
        let mut table = NameTable::<EntryKind>::new();
        let mut too_large = false;
        let result = inner.ask_list(path, Detail::Names, &mut |entry| {
            if !table.push(entry.name, entry.kind) {
                too_large = true;
                return ControlFlow::Break(());
            }
            let held = weight(path, table.held() as u64);
            if let Some(taken) = &mut room
                && held > taken.bytes()
                && (held > inner.store.most() || !taken.grow(CHARGE.max(held - taken.bytes())))
            {
                // It is the caller's from here on.
                room = None;
            }
            ControlFlow::Continue(())
        });
        let answered = inner.now();
        let when = When { asked, answered };
        let mut node = match result {
            Ok(()) if too_large => {
                let cap = u64::from(u32::MAX);
                Node::not_kept(
                    Value::Failed(
                        Error::new(ErrorKind::TooLarge { cap }).named(&super::inner::name(path)),
                    ),
                    when,
                )
            }
            Err(error) if is_absent(&error) && inner.negative_ttl > 0 && room.is_some() => {
                Node::new(&key, Value::Absent(error), 0, when, Origin::Asked)
            }
            Err(error) => Node::not_kept(Value::Failed(error), when),
            Ok(()) => {
                table.finish();
                inner.metrics.backend_entries.add(table.rows.len() as u64);
                let value = Value::Listing(Arc::new(Listing { table }));
                if room.is_none() || inner.listing_ttl == 0 {
                    inner.metrics.bypassed.add(u64::from(room.is_none()));
                    Node::not_kept(value, when)
                } else {
                    Node::new(&key, value, 0, when, Origin::Asked)
                }
            }
        };
        if let Some((dir, depth)) = place {
            (node.dir, node.depth) = (dir, depth);
        }
        let node = inner.land(flight, &key, node, now);
        drop(room);
        listing_of(&node)
    }
}

impl Default for MetadataCache {
    fn default() -> Self {
        MetadataCache::new()
    }
}

impl fmt::Debug for MetadataCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataCache")
            .field("capacity", &self.0.capacity)
            .field("backend", &self.0.backend)
            .field("metrics", &self.metrics())
            .finish()
    }
}

/// In what steps a load of unknown size takes its bytes.
pub(crate) const CHARGE: u64 = 4 << 10;

pub(crate) fn attributes_of(node: &Node) -> Result<Attributes> {
    match &node.value {
        Value::Attributes(attributes) => Ok(attributes.clone()),
        other => Err(error_of(other)),
    }
}

fn listing_of(node: &Node) -> Result<Arc<Listing>> {
    match &node.value {
        Value::Listing(listing) => Ok(listing.clone()),
        other => Err(error_of(other)),
    }
}

fn error_of(value: &Value) -> Error {
    match value {
        Value::Absent(error) | Value::Failed(error) => error.clone(),
        // Keys tell kinds apart, so nothing else is found.
        _ => Error::new(ErrorKind::Abandoned),
    }
}

pub(crate) fn is_absent(error: &Error) -> bool {
    error.io_kind() == std::io::ErrorKind::NotFound
}

/// The path as the backend is to get it.
pub(crate) fn as_path(path: &[u8]) -> Cow<'_, Path> {
    Cow::Borrowed(Path::new(std::ffi::OsStr::from_bytes(path)))
}
