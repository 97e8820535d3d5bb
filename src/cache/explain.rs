//! Why an entry is there or not, in words and in numbers.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::history::Departure;
use super::key::{Key, Kind, spelled, split};
use super::metadata::MetadataCache;
use super::node::{Node, Origin, Value};
use super::parsed::stem_of_parts;
use super::root::RootState;
use crate::error::counted;

/// What a cache knows of one path, and why. Made by [`MetadataCache::explain`].
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The path, as the cache spells it.
    pub path: PathBuf,
    /// Its attributes, as an entry of their own.
    pub attributes: Presence,
    /// Its attributes among the children of its directory, that a pass brought.
    pub among_children: Presence,
    /// Its listing, if it is a directory.
    pub listing: Presence,
    /// Values parsed from it.
    pub parsed: usize,
    /// Values parsed from parts of it, of any version: the page lists and marks that scans to a GPU keep. They are found by the name of the
    /// file as text, so that there are none for a path that is not UTF-8.
    pub parts: usize,
    /// Accesses of its directory within the window that count towards a pass, if it is watched.
    pub accesses_in_window: Option<usize>,
    /// Their mean depth below the root, in names.
    pub mean_depth: f64,
    /// What a pass needs: accesses, and mean depth.
    pub needed: (usize, u32),
    /// The root that it lies below, if any.
    pub root: Option<RootState>,
}

/// Whether an entry is there.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there and answers questions.
    Fresh {
        /// Time since the backend was asked.
        age: Duration,
        /// Why it is there.
        origin: Origin,
        /// Bytes that it takes (all children together).
        bytes: u64,
        /// Accesses that it answered.
        accesses: u32,
    },
    /// It is there but too old: the next question asks the backend.
    TooOld {
        /// Time since the backend was asked.
        age: Duration,
    },
    /// Somebody is loading it now.
    Loading,
    /// It was there, or was asked for, and is not there now.
    Gone {
        /// Why not.
        why: Departure,
        /// How long ago.
        ago: Duration,
    },
    /// Nobody asked for it, or so long ago that it is forgotten.
    NotKnown,
}

impl MetadataCache {
    /// Why the entries of a path are there or not. For people and tests; costs a microsecond or some, and a look at every entry once a scan to a
    /// GPU has looked for pages in this cache, for as long as the cache lives.
    pub fn explain(&self, path: impl AsRef<Path>) -> Explanation {
        let inner = &self.0;
        let path = spelled(path.as_ref().as_os_str().as_bytes());
        let mut found = Explanation {
            path: PathBuf::from(std::ffi::OsStr::from_bytes(&path)),
            attributes: Presence::NotKnown,
            among_children: Presence::NotKnown,
            listing: Presence::NotKnown,
            parsed: 0,
            parts: 0,
            accesses_in_window: None,
            mean_depth: 0.0,
            needed: (inner.prefetch.hits, inner.prefetch.depth),
            root: None,
        };
        if inner.check().is_err() {
            return found;
        }
        let now = inner.now();
        found.attributes = self.presence(Kind::ATTRIBUTES, &path, now);
        found.listing = self.presence(Kind::LISTING, &path, now);
        let there = |kind: &Kind| inner.store.peek(*kind, &path).is_some();
        found.parsed = inner.types.kinds().filter(there).count();
        if inner.types.have_parts() {
            let stem = stem_of_parts(&path);
            found.parts = inner.store.count(|key| key.path.starts_with(&stem));
        }
        if let Some((dir, name)) = split(&path) {
            found.among_children = self.presence_of_child(dir, name, now);
            if let Some(seen) = inner.directories.seen(inner.store.hash(dir), now) {
                found.accesses_in_window = Some(seen.within_window);
                found.mean_depth = seen.mean_depth;
            }
        }
        found.root = inner.root_of(&path).map(|(root, _)| root.state());
        found
    }

    fn presence(&self, kind: Kind, path: &[u8], now: u64) -> Presence {
        let inner = &self.0;
        if let Some(node) = inner.store.peek(kind, path) {
            return self.of_node(&node, now);
        }
        let key = Key::new(kind, path);
        if inner.store.is_loading(&key) {
            return Presence::Loading;
        }
        match inner.history.get(&key) {
            Some(record) => Presence::Gone {
                why: record.departure,
                ago: Duration::from_nanos(now.saturating_sub(record.at)),
            },
            None => Presence::NotKnown,
        }
    }

    fn presence_of_child(&self, dir: &[u8], name: &[u8], now: u64) -> Presence {
        let inner = &self.0;
        let Some(node) = inner.store.peek(Kind::CHILDREN, dir) else {
            return self.presence(Kind::CHILDREN, dir, now);
        };
        match &node.value {
            Value::Children(children) if children.peek(name).is_some() => self.of_node(&node, now),
            Value::Children(children) if children.has(name) => Presence::Gone {
                why: Departure::Invalidated,
                ago: Duration::ZERO,
            },
            _ => Presence::NotKnown,
        }
    }

    fn of_node(&self, node: &Node, now: u64) -> Presence {
        let age = Duration::from_nanos(now.saturating_sub(node.asked));
        if !self.0.is_fresh(node, now) {
            return Presence::TooOld { age };
        }
        Presence::Fresh {
            age,
            origin: node.origin,
            bytes: node.weight,
            accesses: node.usage.now().accesses,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.path.display())?;
        writeln!(f, "  attributes: {}", self.attributes)?;
        writeln!(
            f,
            "  among its directory's children: {}",
            self.among_children
        )?;
        writeln!(f, "  listing: {}", self.listing)?;
        write!(f, "  parsed values: {}", self.parsed)?;
        match self.parts {
            0 => writeln!(f)?,
            parts => writeln!(f, ", and {parts} of parts: page lists and marks")?,
        }
        let (accesses, depth) = self.needed;
        match (&self.root, self.accesses_in_window) {
            (None, _) => write!(f, "  below no root, so nothing is fetched ahead")?,
            (Some(root), seen) => {
                let seen = seen.unwrap_or(0);
                write!(
                    f,
                    "  directory: {seen} of {accesses} accesses in the window, mean depth {:.1} of {depth}; root {} is {}, \
                     {} of {} children useful",
                    self.mean_depth,
                    root.path.display(),
                    if root.on {
                        "on"
                    } else {
                        "off, as too many were wasted"
                    },
                    root.useful,
                    root.fetched,
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Presence::Fresh {
                age,
                origin,
                bytes,
                accesses,
            } => {
                let origin = match origin {
                    Origin::Asked => "somebody asked",
                    Origin::Prefetched => "a pass brought it",
                    Origin::Warmed => "a warm-up brought it",
                };
                write!(
                    f,
                    "there, since {origin} {age:?} ago; {}, {}",
                    counted(u64::from(*accesses), "access"),
                    counted(*bytes, "byte")
                )
            }
            Presence::TooOld { age } => write!(f, "there, but too old ({age:?})"),
            Presence::Loading => f.write_str("being loaded"),
            Presence::Gone { why, ago } => write!(f, "not there: {why}, {ago:?} ago"),
            Presence::NotKnown => {
                f.write_str("not there: nobody asked, or so long ago that it is forgotten")
            }
        }
    }
}
