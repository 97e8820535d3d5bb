//! The cache: attributes, listings and parsed values, kept within a bound and no longer than they hold.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::attributes::{Attributes, EntryKind, Listing, NameTable, same_content};
use super::backend::Detail;
use super::inner::Inner;
use super::key::{Key, Kind, spelled, split};
use super::metrics::CacheMetrics;
use super::node::{Node, Origin, Value, When, weight};
use super::options::CacheOptions;
use super::pass;
use super::root::RootState;
use super::store::{Flight, Found};
use crate::error::{Error, ErrorKind, Result};
use crate::open::{Opened, open};
use crate::reader::Reader;
use crate::version::Version;

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
///   at that moment is handed to those who asked before, and not kept.
/// - **One load at a time.** Threads that miss the same entry wait for one call of the backend and share its answer, errors
///   too. A load that panics, or whose task is dropped, leaves the next in line to load.
/// - **Bound.** Entries, loads in flight that are to be kept, and the memory of what left together take
///   [`CacheOptions::capacity`] bytes at most. What does not fit is handed out and not kept.
/// - **Paths** that differ in `//`, `/./` and a slash at the end are one. Relative ones are kept as they are given: a program that
///   changes its working directory should not use them. A file that is reached by another path (through a link) is another
///   entry, and is invalidated by its age only.
/// - **Fork.** In a child process every question answers [`ErrorKind::Forked`].
///
/// Cloning is cheap and shares the entries. S3-FIFO decides what leaves (the crate `quick_cache`).
#[derive(Clone)]
pub struct MetadataCache(pub(crate) Arc<Inner>);

/// What [`MetadataCache::validate`] found.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Nothing was known of the path.
    Unknown,
    /// What is kept is of this version.
    Same,
    /// Only the change time differs: attributes were dropped, to be asked again, and so is what was parsed.
    Revalidate,
    /// The file is another one, or has another content: all that was kept of it was dropped.
    Changed,
}

impl MetadataCache {
    /// A cache with the default options: 64 MiB, 2 s for files, 30 s for listings.
    ///
    /// # Errors
    /// None with these options.
    pub fn new() -> Result<Self> {
        CacheOptions::new().build()
    }

    pub(crate) fn with(options: CacheOptions) -> Self {
        MetadataCache(Arc::new(Inner::new(options)))
    }

    /// The attributes of a path; links are followed.
    ///
    /// A hit costs a hash of the path and no system call or allocation (besides the count on an entity tag).
    ///
    /// # Errors
    /// What the backend says; for a path that is not there [`ErrorKind::Io`] with [`std::io::ErrorKind::NotFound`].
    /// [`ErrorKind::Forked`] in a child process.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        let inner = &self.0;
        inner.check()?;
        let path = spelled(path.as_ref().as_os_str().as_bytes());
        let now = inner.now();
        if let Some(node) = inner.store.get(Kind::ATTRIBUTES, &path)
            && inner.is_fresh(&node, now)
        {
            let answer = attributes_of(&node);
            inner.hit(&node, &path, now);
            return answer;
        }
        self.stat_slowly(&path, now)
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

    /// What `load` makes of the content of `path`, such as a footer or an index: kept as long as the content is of `version`.
    ///
    /// `version` is that of the file now, as [`Source::version`](crate::Source::version) of an open reader tells; an entry of another version
    /// (or of another change time) is replaced. `load` gives the value and the bytes of memory that it takes. There is one entry for each path and type.
    ///
    /// `load` must not ask for the same path and type again: it would wait for itself.
    ///
    /// # Errors
    /// Those of `load`, which are not shared: whoever waited loads next. [`ErrorKind::Forked`] in a child process.
    pub fn parsed<T: Any + Send + Sync>(
        &self,
        path: impl AsRef<Path>,
        version: &Version,
        load: impl FnOnce() -> Result<(T, u64)>,
    ) -> Result<Arc<T>> {
        let question = self.parsed_question::<T>(path.as_ref(), version)?;
        if let Some(value) = question.at_once() {
            return Ok(value);
        }
        match self.0.store.join(&question.key, |node| question.fits(node)) {
            Found::Node(node) => question.answer(&node),
            Found::Flight(flight) => {
                let asked = question.begin(&flight);
                question.land(flight, asked, load()?)
            }
        }
    }

    /// Like [`parsed`](Self::parsed), for a load that is awaited. Dropping the future leaves the next in line to load.
    ///
    /// # Errors
    /// As [`parsed`](Self::parsed).
    pub async fn parsed_async<T: Any + Send + Sync>(
        &self,
        path: impl AsRef<Path>,
        version: &Version,
        load: impl Future<Output = Result<(T, u64)>>,
    ) -> Result<Arc<T>> {
        let question = self.parsed_question::<T>(path.as_ref(), version)?;
        if let Some(value) = question.at_once() {
            return Ok(value);
        }
        let fits = |node: &Node| question.fits(node);
        match self.0.store.join_async(&question.key, fits).await {
            Found::Node(node) => question.answer(&node),
            Found::Flight(flight) => {
                let asked = question.begin(&flight);
                question.land(flight, asked, load.await?)
            }
        }
    }

    /// Opens a file to read, and compares its version with what is kept of it: see [`validate`](Self::validate).
    ///
    /// # Errors
    /// As [`open`](crate::open). [`ErrorKind::Forked`] in a child process.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Arc<Opened>> {
        self.0.check()?;
        let reader = open(path.as_ref())?;
        self.validate(path, reader.source().version());
        Ok(reader)
    }

    /// Compares the version of an open file (device, inode, size, modification time; then change time) with what is kept of
    /// the path, and drops what is not true any more. Call it with what `fstat` told; costs no system call.
    pub fn validate(&self, path: impl AsRef<Path>, version: &Version) -> Validation {
        let inner = &self.0;
        if inner.check().is_err() {
            return Validation::Unknown;
        }
        let path = spelled(path.as_ref().as_os_str().as_bytes());
        let alone = inner.store.peek(Kind::ATTRIBUTES, &path);
        let among = split(&path).and_then(|(dir, name)| {
            let children = inner.store.peek(Kind::CHILDREN, dir)?;
            match &children.value {
                Value::Children(children) => children.peek(name).cloned(),
                _ => None,
            }
        });
        let kept = match alone.as_deref().map(|node| &node.value) {
            Some(Value::Attributes(attributes)) => Some(attributes.clone()),
            // It is there now.
            Some(Value::Absent(_)) => {
                inner.invalidate(&path);
                return Validation::Changed;
            }
            _ => among.clone(),
        };
        let versions = [kept, among];
        let mut versions = versions.iter().flatten().map(|kept| &kept.version);
        let Some(first) = versions.clone().next() else {
            return Validation::Unknown;
        };
        if versions.all(|kept| same_content(kept, version)) {
            return Validation::Same;
        }
        let found = if first == version {
            Validation::Revalidate
        } else {
            Validation::Changed
        };
        inner.metrics.stale.add(1);
        inner.invalidate_content(&path);
        found
    }

    /// Drops all that is kept of a path, and what its directory tells of it. To be called after writing, creating, renaming or removing it.
    ///
    /// Costs some look-ups. A load that is in flight is not kept.
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

    /// Whether passes run below each root, and its account.
    pub fn roots(&self) -> Vec<RootState> {
        self.0.roots.iter().map(|root| root.state()).collect()
    }

    /// Waits until no pass is waiting or running, or the time is over. True in the first case.
    pub fn settle(&self, most: Duration) -> bool {
        self.0.check().is_ok() && self.0.worker.settle(most)
    }

    fn stat_slowly(&self, path: &[u8], now: u64) -> Result<Attributes> {
        let inner = &self.0;
        let place = inner.place(path);
        if let Some(place) = &place
            && let Some(found) = inner.among_children(place, now, true)
        {
            inner.metrics.hits.add_one();
            if inner.directories.hit(place.dir, place.depth, now) {
                pass::begin(inner, place.path, place.dir, now);
            }
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
        let when = When { asked, answered };
        let (value, ttl) = match result {
            Ok(attributes) => (Value::Attributes(attributes), inner.file_ttl),
            Err(error) if is_absent(&error) && inner.negative_ttl > 0 => {
                (Value::Absent(error), inner.negative_ttl)
            }
            Err(error) => (Value::Failed(error), 0),
        };
        let mut node = if ttl == 0 {
            Node::not_kept(value, when)
        } else if room.is_none() {
            inner.metrics.bypassed.add(1);
            Node::not_kept(value, when)
        } else {
            Node::new(&key, value, 0, when, Origin::Asked)
        };
        if let Some(place) = &place {
            (node.dir, node.depth) = (place.dir, place.depth);
        }
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

    fn parsed_question<'a, T: Any + Send + Sync>(
        &'a self,
        path: &Path,
        version: &'a Version,
    ) -> Result<ParsedQuestion<'a, T>> {
        self.0.check()?;
        let path = spelled(path.as_os_str().as_bytes());
        let kind = self.0.types.kind_of(TypeId::of::<T>());
        Ok(ParsedQuestion {
            inner: &self.0,
            key: Key::new(kind, &path),
            version,
            now: self.0.now(),
            _type: std::marker::PhantomData,
        })
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

/// A question for a value that was parsed from a version of a file.
struct ParsedQuestion<'a, T> {
    inner: &'a Arc<Inner>,
    key: Key,
    version: &'a Version,
    now: u64,
    _type: std::marker::PhantomData<fn() -> T>,
}

impl<T: Any + Send + Sync> ParsedQuestion<'_, T> {
    fn fits(&self, node: &Node) -> bool {
        match &node.value {
            Value::Parsed { version, .. } => same_content(version, self.version),
            _ => false,
        }
    }

    fn at_once(&self) -> Option<Arc<T>> {
        let node = self.inner.store.get(self.key.kind, &self.key.path)?;
        if !self.fits(&node) {
            self.inner.metrics.misses.add(1);
            return None;
        }
        self.inner.hit(&node, &self.key.path, self.now);
        self.answer(&node).ok()
    }

    fn begin(&self, flight: &Flight<'_>) -> u64 {
        self.inner.count_stale(flight);
        self.inner.now()
    }

    fn answer(&self, node: &Node) -> Result<Arc<T>> {
        let value = match &node.value {
            Value::Parsed { value, .. } => value.clone().downcast::<T>().ok(),
            _ => None,
        };
        // The kind of the key is that of the type, so nothing else is found under it.
        value.ok_or_else(|| {
            Error::new(ErrorKind::Abandoned).named(&super::inner::name(&self.key.path))
        })
    }

    fn land(&self, flight: Flight<'_>, asked: u64, (value, bytes): (T, u64)) -> Result<Arc<T>> {
        let value = Arc::new(value);
        let answered = self.inner.now();
        let when = When { asked, answered };
        let of_node = Value::Parsed {
            version: self.version.clone(),
            value: value.clone(),
        };
        let room = self
            .inner
            .store
            .room(weight(&self.key.path, bytes.saturating_add(16)));
        let node = if room.is_none() {
            self.inner.metrics.bypassed.add(1);
            Node::not_kept(of_node, when)
        } else {
            Node::new(
                &self.key,
                of_node,
                bytes.saturating_add(16),
                when,
                Origin::Asked,
            )
        };
        self.inner.land(flight, &self.key, node, self.now);
        Ok(value)
    }
}

/// The types of parsed values that this cache has seen, as numbers: few, as a program names each in its code.
#[derive(Debug, Default)]
pub(crate) struct Types(RwLock<Vec<TypeId>>);

impl Types {
    fn kind_of(&self, id: TypeId) -> Kind {
        let find = |types: &Vec<TypeId>| types.iter().position(|known| *known == id);
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let index = match find(&known) {
            Some(index) => index,
            None => {
                drop(known);
                let mut types = self.0.write().unwrap_or_else(PoisonError::into_inner);
                find(&types).unwrap_or_else(|| {
                    types.push(id);
                    types.len() - 1
                })
            }
        };
        Kind(Kind::PARSED + index as u32)
    }

    /// The kinds of all of them.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).len();
        (0..known as u32).map(|index| Kind(Kind::PARSED + index))
    }
}

fn attributes_of(node: &Node) -> Result<Attributes> {
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

fn is_absent(error: &Error) -> bool {
    error.io_kind() == std::io::ErrorKind::NotFound
}

/// The path as the backend is to get it.
pub(crate) fn as_path(path: &[u8]) -> Cow<'_, Path> {
    Cow::Borrowed(Path::new(std::ffi::OsStr::from_bytes(path)))
}
