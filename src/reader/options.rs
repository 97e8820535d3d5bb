//! How a batch is to be read.

use std::num::NonZeroUsize;
use std::time::Instant;

/// Options of a [`Batch`](super::Batch); the default is right for most.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReadOptions {
    /// When to give up: ranges not done by then fail with [`TimedOut`](crate::ErrorKind::TimedOut). Default:
    /// never. Holds for every engine, also one that hangs.
    pub deadline: Option<Instant>,
    /// Who goes first. Default: foreground.
    pub priority: Priority,
    /// Most requests of this batch in flight at once. Default: as the engine sees fit.
    pub depth: Option<NonZeroUsize>,
    /// Ranges that lie at most this many bytes apart are read in one request. Default: the source's
    /// [`Limits::gap`](super::Limits::gap). `Some(0)` joins only what touches or overlaps.
    pub gap: Option<u64>,
}

impl ReadOptions {
    /// Sets the [deadline](Self::deadline).
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the [priority](Self::priority).
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the [depth](Self::depth).
    #[must_use]
    pub fn depth(mut self, depth: NonZeroUsize) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Sets the [coalescing gap](Self::gap) in bytes.
    #[must_use]
    pub fn gap(mut self, bytes: u64) -> Self {
        self.gap = Some(bytes);
        self
    }
}

/// Whose reads go first where an engine has to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Foreground,
    /// Nobody waits yet; it yields to foreground reads of the same engine.
    Prefetch,
}

/// What reading leaves in the page cache. Chosen when a source is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CachePolicy {
    /// Whatever is fastest now: most of what is not in the cache is read past it and does not stay there (until as many
    /// bytes as the file has were read that way, if that is a quarter of the memory at most); everything else goes
    /// through it. The rules: [`Opened`](crate::Opened).
    ///
    /// open(2) advises against direct reads that are under way while the process forks without exec; for such a
    /// program `Keep` is the policy.
    #[default]
    Auto,
    /// Read through the cache, so that what is read stays while there is room: for data that is read again soon
    /// and fits into memory.
    Keep,
    /// Read past the cache (`O_DIRECT`) or fail to open; serves streams larger than memory.
    Bypass,
    /// Read through the cache, and drop what was read behind it, so that streaming does not evict what others
    /// use. What was resident before may be dropped as well.
    DropBehind,
}

/// When the version of the content is compared with that at the open. Chosen when a source is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VersionCheck {
    /// After every request to the system, before its bytes are delivered: one `fstat`.
    #[default]
    Always,
    /// Only when a read came back short. Saves the call where `fstat` crosses a network.
    OnShortRead,
}
