//! What a reader reads.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;
use crate::version::{FileVersion, Version};

/// What a reader reads, fixed at its open: name, length, version and limits. Cloning shares the counters.
#[derive(Clone)]
pub struct Source {
    name: Arc<str>,
    engine: &'static str,
    version: Version,
    limits: Limits,
    counters: Arc<Counters>,
    generation: Generation,
}

/// What suits a source; planners above use it to shape their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// A good size of one request in bytes, when there is a choice. Default 1 MiB.
    pub preferred: usize,
    /// A good size of one request in bytes while a stream ([`Chunks`](super::Chunks)) has to wait for its bytes; smaller
    /// chunks are then cut from it. Default 0: no larger than the chunks.
    pub stream: usize,
    /// Ranges at most this many bytes apart are cheaper read in one request. Default 0.
    pub gap: u64,
    /// Requests worth having in flight at once. Default 1.
    pub depth: usize,
    /// Offsets and addresses that are multiples of this are read without a bounce. Default 1: any.
    pub align: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            preferred: 1 << 20,
            stream: 0,
            gap: 0,
            depth: 1,
            align: 1,
        }
    }
}

impl Limits {
    /// Sets [`preferred`](Self::preferred), in bytes.
    #[must_use]
    pub fn preferred(mut self, bytes: usize) -> Self {
        self.preferred = bytes;
        self
    }

    /// Sets [`stream`](Self::stream), in bytes.
    #[must_use]
    pub fn stream(mut self, bytes: usize) -> Self {
        self.stream = bytes;
        self
    }

    /// Sets [`gap`](Self::gap), in bytes.
    #[must_use]
    pub fn gap(mut self, bytes: u64) -> Self {
        self.gap = bytes;
        self
    }

    /// Sets [`depth`](Self::depth), in requests.
    #[must_use]
    pub fn depth(mut self, requests: usize) -> Self {
        self.depth = requests;
        self
    }

    /// Sets [`align`](Self::align), in bytes.
    #[must_use]
    pub fn align(mut self, bytes: usize) -> Self {
        self.align = bytes;
        self
    }
}

impl Source {
    /// Describes a source for `engine`, with fresh counters.
    pub fn new(
        name: impl Into<Arc<str>>,
        engine: &'static str,
        version: Version,
        limits: Limits,
    ) -> Self {
        Source {
            name: name.into(),
            engine,
            version,
            limits,
            counters: Arc::default(),
            generation: Generation::current(),
        }
    }

    /// The same source read by another engine: name, version and counters shared.
    #[must_use]
    pub fn through(&self, engine: &'static str, limits: Limits) -> Self {
        Source {
            engine,
            limits,
            ..self.clone()
        }
    }

    /// Path, URL or other name, as errors show it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Name of the engine that reads it.
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    /// Length in bytes.
    // A source of no bytes is nothing special, so there is no `is_empty`.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.version.size()
    }

    /// What was opened.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// What suits it.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What has been read so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Checks that `start <= end <= len`, and that this is still the process that the source was opened in.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] or [`ErrorKind::Forked`], named and placed.
    pub fn check(&self, range: &Range<u64>) -> Result<()> {
        let kind = if range.start > range.end || range.end > self.len() {
            ErrorKind::OutOfBounds { len: self.len() }
        } else if !self.generation.is_current() {
            ErrorKind::Forked
        } else {
            return Ok(());
        };
        Err(self.error(kind, range.clone()))
    }

    /// An error about `range` of this source.
    pub fn error(&self, kind: ErrorKind, range: Range<u64>) -> Error {
        self.place(Error::new(kind), range)
    }

    /// Adds name, engine and range to an error that has none yet.
    pub fn place(&self, error: Error, range: Range<u64>) -> Error {
        error.named(&self.name).at(range).by(self.engine)
    }

    pub(super) fn derived(&self, name: Arc<str>, version: Version, limits: Limits) -> Self {
        Source {
            name,
            version,
            limits,
            ..self.clone()
        }
    }
}

/// A file of this system that holds the bytes of a reader; see [`Reader::local_file`](super::Reader::local_file).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LocalFile<'a> {
    /// Open for reading. Its position means nothing.
    pub fd: BorrowedFd<'a>,
    /// Where in the file offset 0 of the reader is.
    pub start: u64,
    /// The whole file, as it was opened.
    pub version: FileVersion,
}

impl<'a> LocalFile<'a> {
    /// The bytes of `fd` from `start` on, in the state that `version` names.
    pub fn new(fd: BorrowedFd<'a>, start: u64, version: FileVersion) -> Self {
        LocalFile { fd, start, version }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .field("engine", &self.engine)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
