//! Values that were parsed from files, such as footers and indexes, each kept with the version of the file that it is of.

use std::any::{Any, TypeId};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::attributes::same_content;
use super::inner::Inner;
use super::key::{Key, Kind, spelled};
use super::metadata::MetadataCache;
use super::node::{Node, Origin, Value, When, weight};
use super::store::{Flight, Found};
use crate::error::{Error, ErrorKind, Result};
use crate::version::Version;

impl MetadataCache {
    /// What `load` makes of the content of `path`, such as a footer or an index: kept as long as the content is of `version`.
    ///
    /// `version` is that of the file now, as [`Source::version`](crate::Source::version) of an open reader tells; an entry of another version
    /// (or of another change time) is replaced. `load` gives the value and the bytes of memory that it takes. There is one entry for each path and type.
    ///
    /// `load` must not ask for the same path and type again: it would wait for itself. What it takes while it runs is its own; the
    /// bound counts the value from when it comes back. A value that holds a reader keeps its file open.
    ///
    /// ```
    /// use feedwater::Reader;
    /// use feedwater::cache::MetadataCache;
    /// use feedwater::parquet::{self, Metadata};
    ///
    /// # use std::sync::Arc;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("table.parquet");
    /// # let column: arrow_array::ArrayRef = Arc::new(arrow_array::Int64Array::from_iter_values(0..1000));
    /// # let batch = arrow_array::RecordBatch::try_from_iter([("n", column)])?;
    /// # let mut writer = parquet::Writer::create(&path, batch.schema())?;
    /// # writer.write(&batch)?;
    /// # writer.commit()?;
    /// let cache = MetadataCache::new();
    /// let reader = cache.open(&path)?;
    /// let footer = cache.parsed::<Metadata>(&path, reader.source().version(), || {
    ///     let footer = Metadata::read(&*reader)?;
    ///     let bytes = footer.parquet().memory_size() as u64 + (64 << 10); // the tail is kept too
    ///     Ok((footer, bytes))
    /// })?;
    /// for batch in parquet::scan(reader).metadata((*footer).clone()).batches()? { // reads no footer
    ///     assert_eq!(batch?.num_rows(), 1000);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// What is kept of `path`, of `version`: for values that are made elsewhere and [kept](Self::keep) if there was nothing. Neither a
    /// hit nor a miss: nobody loads for it.
    #[cfg_attr(not(all(feature = "cuda", feature = "parquet")), allow(dead_code))]
    pub(crate) fn kept<T: Any + Send + Sync>(
        &self,
        path: &Path,
        version: &Version,
    ) -> Option<Arc<T>> {
        let question = self.parsed_question::<T>(path, version).ok()?;
        let node = question.find()?;
        node.usage.touch(question.now, self.0.half_life);
        question.answer(&node).ok()
    }

    /// Keeps a value of `bytes` bytes that was parsed from `version` of `path`, unless there is one, or somebody brings one now. One of another
    /// version that was there is not counted as stale: nobody missed it.
    #[cfg_attr(not(all(feature = "cuda", feature = "parquet")), allow(dead_code))]
    pub(crate) fn keep<T: Any + Send + Sync>(
        &self,
        path: &Path,
        version: &Version,
        value: T,
        bytes: u64,
    ) {
        let Ok(question) = self.parsed_question::<T>(path, version) else {
            return;
        };
        let found = self
            .0
            .store
            .join_now(&question.key, |node| question.fits(node));
        if let Some(Found::Flight(flight)) = found {
            let asked = self.0.now();
            // Who has no room keeps nothing.
            let _ = question.land(flight, asked, (value, bytes));
        }
    }

    fn parsed_question<'a, T: Any + Send + Sync>(
        &'a self,
        path: &Path,
        version: &'a Version,
    ) -> Result<ParsedQuestion<'a, T>> {
        self.0.check()?;
        let path = spelled(path.as_os_str().as_bytes());
        self.0.types.saw(&path);
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
        let found = self.find();
        let Some(node) = found else {
            self.inner.metrics.misses.add(1);
            return None;
        };
        self.inner.hit(&node, &self.key.path, self.now);
        self.answer(&node).ok()
    }

    fn find(&self) -> Option<Arc<Node>> {
        let node = self.inner.store.get(self.key.kind, &self.key.path);
        node.filter(|node| self.fits(node))
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

/// The name of the entries for a part of a file, of which there are many: no path has a zero byte, so that it is not that of another file.
#[cfg_attr(not(all(feature = "cuda", feature = "parquet")), allow(dead_code))]
pub(crate) fn part_of(path: &str, part: fmt::Arguments<'_>) -> PathBuf {
    format!("{path}\0{part}").into()
}

/// What the names of all parts of a file begin with.
pub(crate) fn stem_of_parts(path: &[u8]) -> Vec<u8> {
    [path, b"\0"].concat()
}

/// The types of parsed values that this cache has seen, as numbers: few, as a program names each in its code.
#[derive(Debug, Default)]
pub(crate) struct Types {
    known: RwLock<Vec<TypeId>>,
    /// Whether there was one of a part of a file.
    parts: AtomicBool,
}

impl Types {
    /// Takes note of what a value is of.
    fn saw(&self, path: &[u8]) {
        if !self.have_parts() && path.contains(&0) {
            self.parts.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there can be values of parts of files.
    pub(crate) fn have_parts(&self) -> bool {
        self.parts.load(Ordering::Relaxed)
    }

    fn kind_of(&self, id: TypeId) -> Kind {
        let find = |types: &Vec<TypeId>| types.iter().position(|known| *known == id);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let index = match find(&known) {
            Some(index) => index,
            None => {
                drop(known);
                let mut types = self.known.write().unwrap_or_else(PoisonError::into_inner);
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
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.len();
        (0..known as u32).map(|index| Kind(Kind::PARSED + index))
    }
}
