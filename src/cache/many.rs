//! The attributes of many paths: those that are not known in few calls of the backend.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::attributes::Attributes;
use super::inner::Place;
use super::key::{Key, Kind};
use super::metadata::{MetadataCache, as_path, attributes_of};
use super::node::{Node, Value, When, weight};
use super::pass;
use super::store::{Flight, Found};
use crate::error::Result;

/// Paths that the backend is asked for at once: as many as a page of an object store has.
const BATCH: usize = 1000;

impl MetadataCache {
    /// The attributes of many paths, in their order; links are followed. Those that are not known are asked for in calls of a
    /// thousand ([`MetadataBackend::stat_many`](super::MetadataBackend::stat_many)).
    ///
    /// Each is an answer of its own, as [`stat`](Self::stat) gives it: one bad path stops no other. For the prefetch trigger
    /// such a call, of all paths in one directory that were not known, is one access.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # for name in ["a", "b"] { std::fs::write(dir.path().join(name), "bytes")?; }
    /// let cache = feedwater::cache::MetadataCache::new();
    /// let found = cache.stat_many(["a", "no", "b"].map(|name| dir.path().join(name)));
    /// assert_eq!(found.iter().filter(|found| found.is_ok()).count(), 2);
    /// assert_eq!(cache.metrics().backend_calls, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stat_many<P: AsRef<Path>>(
        &self,
        paths: impl IntoIterator<Item = P>,
    ) -> Vec<Result<Attributes>> {
        let mut batch = Batch::default();
        for path in paths {
            match self.at_once(path.as_ref().as_os_str().as_bytes(), &mut batch.lately) {
                Ok(answer) => batch.answers.push(Some(answer)),
                Err(path) => {
                    batch.missing.push((batch.answers.len(), path));
                    batch.answers.push(None);
                }
            }
            if batch.missing.len() == BATCH {
                self.ask(&mut batch);
            }
        }
        self.ask(&mut batch);
        // All have been answered.
        batch.answers.into_iter().flatten().collect()
    }

    /// What is known; or the path as keys have it.
    fn at_once(
        &self,
        path: &[u8],
        lately: &mut Option<Lately>,
    ) -> std::result::Result<Result<Attributes>, Box<[u8]>> {
        let inner = &self.0;
        if let Err(error) = inner.check() {
            return Ok(Err(error));
        }
        let now = inner.now();
        if let Some(dir) = lately
            && let Some(name) = dir.name_of(path)
            && let Some(found) = self.again(dir, name, now)
        {
            return Ok(Ok(found));
        }
        let path = match self.alone_as_written(path, now) {
            Ok(answer) => return Ok(answer),
            Err(path) => path,
        };
        let Some(place) = inner.place(&path) else {
            return Err(path.into());
        };
        // Before the look: what is invalidated from now on is noticed.
        let changes = inner.changes();
        let Some(found) = self.among(&place, now) else {
            return Err(path.into());
        };
        *lately = self.lately(&place, changes);
        Ok(Ok(found))
    }

    /// Of the directory that was asked for last, a name that was asked for before. What has not been asked for since the pass
    /// is looked for in the ordinary way, which knows whether the pass was of use.
    fn again(&self, lately: &Lately, name: &[u8], now: u64) -> Option<Attributes> {
        let inner = &self.0;
        let Value::Children(children) = &lately.node.value else {
            return None;
        };
        if lately.changes != inner.changes() || !inner.is_fresh(&lately.node, now) {
            return None;
        }
        let found = children.again(name)?.clone();
        lately.node.usage.touch(now, inner.half_life);
        inner.metrics.hits.add_one();
        if inner.directories.hit(lately.dir, lately.depth, now) {
            pass::begin(inner, &lately.path, lately.dir, now);
        }
        Some(found)
    }

    fn lately(&self, place: &Place<'_>, changes: u64) -> Option<Lately> {
        Some(Lately {
            node: self.0.store.peek(Kind::CHILDREN, place.path)?,
            path: place.path.into(),
            dir: place.dir,
            depth: place.depth,
            changes,
        })
    }

    /// Answers what is missing.
    fn ask(&self, batch: &mut Batch) {
        if batch.missing.is_empty() {
            return;
        }
        let inner = &self.0;
        let now = inner.now();
        inner.metrics.misses.add(batch.missing.len() as u64);
        let missing = std::mem::take(&mut batch.missing);
        self.ask_together(&missing, &mut batch.answers, now);
        // What others are loading, and what comes twice. Only now, when none waits for this thread: two that wait for each
        // other would wait for ever.
        for (index, path) in &missing {
            if let Some(answer @ None) = batch.answers.get_mut(*index) {
                let place = inner.place(path);
                *answer = Some(self.load_attributes(path, place.as_ref(), now));
            }
        }
        let mut directories = HashSet::new();
        for (_, path) in &missing {
            if let Some(place) = inner.place(path)
                && directories.insert(place.dir)
                && inner.directories.missed(place.dir, place.depth, now)
            {
                pass::begin(inner, place.path, place.dir, now);
            }
        }
    }

    /// Answers those that nobody is loading, by one call.
    fn ask_together(
        &self,
        missing: &[(usize, Box<[u8]>)],
        answers: &mut [Option<Result<Attributes>>],
        now: u64,
    ) {
        let inner = &self.0;
        let mut flights: Vec<(usize, Key, Flight<'_>, bool)> = Vec::new();
        let mut room = inner.store.room(0);
        for (index, path) in missing {
            let key = Key::new(Kind::ATTRIBUTES, path);
            match inner
                .store
                .join_now(&key, |node| inner.is_usable(node, now))
            {
                Some(Found::Node(node)) => {
                    if let Some(answer) = answers.get_mut(*index) {
                        *answer = Some(attributes_of(&node));
                    }
                }
                Some(Found::Flight(flight)) => {
                    inner.count_stale(&flight);
                    let weight = weight(path, 0);
                    let fits = room.as_mut().is_some_and(|room| room.grow(weight));
                    flights.push((*index, key, flight, fits));
                }
                None => {}
            }
        }
        if flights.is_empty() {
            return;
        }
        let paths: Vec<PathBuf> = flights
            .iter()
            .map(|(_, key, ..)| as_path(&key.path).into_owned())
            .collect();
        let asked = inner.now();
        let results = inner.ask_many(&paths);
        let answered = inner.now();
        let when = When { asked, answered };
        for ((index, key, flight, fits), result) in flights.into_iter().zip(results) {
            let place = inner.place(&key.path);
            let node = inner.node_of_attributes(&key, result, when, fits, place.as_ref());
            let node = inner.land(flight, &key, node, now);
            if let Some(answer) = answers.get_mut(index) {
                *answer = Some(attributes_of(&node));
            }
        }
    }
}

#[derive(Default)]
struct Batch {
    /// In the order of the paths; `None` for what is missing.
    answers: Vec<Option<Result<Attributes>>>,
    missing: Vec<(usize, Box<[u8]>)>,
    lately: Option<Lately>,
}

/// The directory whose children were asked for last, as a pass brought them: most paths of a batch lie where the one before
/// lies.
struct Lately {
    path: Box<[u8]>,
    node: Arc<Node>,
    dir: u64,
    depth: u32,
    /// How often anything had been invalidated before it was looked for.
    changes: u64,
}

impl Lately {
    /// The name of a path in this directory, if it is written as keys are.
    fn name_of<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let name = match &*self.path {
            b"/" => path.strip_prefix(b"/")?,
            // Of a single relative name.
            b"." => path,
            dir => path.strip_prefix(dir)?.strip_prefix(b"/")?,
        };
        (!name.contains(&b'/')).then_some(name)
    }
}
