//! How a cache is set up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::backend::MetadataBackend;
use super::clock::{Clock, MonotonicClock};
use super::local::LocalFiles;
use super::metadata::MetadataCache;
use crate::error::{Error, ErrorKind, Result};

/// The least bound on bytes: below it hardly a directory of some files fits.
pub const LEAST_CAPACITY: u64 = 64 << 10;

/// How a [`MetadataCache`] is set up; the default suits files that others may change.
///
/// ```
/// use feedwater::cache::{CacheOptions, PrefetchOptions};
///
/// let cache = CacheOptions::new()
///     .capacity(256 << 20)
///     .immutable(true) // nothing below changes while this runs
///     .prefetch(PrefetchOptions::new().root("/data/images"))
///     .build()?;
/// # Ok::<(), feedwater::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheOptions {
    pub(crate) capacity: u64,
    pub(crate) shards: Option<usize>,
    pub(crate) file_ttl: Duration,
    pub(crate) listing_ttl: Duration,
    pub(crate) negative_ttl: Option<Duration>,
    pub(crate) immutable: bool,
    pub(crate) half_life: Duration,
    pub(crate) backend: Arc<dyn MetadataBackend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) prefetch: PrefetchOptions,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions {
            capacity: 64 << 20,
            shards: None,
            file_ttl: Duration::from_secs(2),
            listing_ttl: Duration::from_secs(30),
            negative_ttl: None,
            immutable: false,
            half_life: Duration::from_secs(3600),
            backend: Arc::new(LocalFiles::new()),
            clock: Arc::new(MonotonicClock::new()),
            prefetch: PrefetchOptions::default(),
        }
    }
}

impl CacheOptions {
    /// 64 MiB, 2 s for files, 30 s for listings, no negative entries, the local file system, no prefetching.
    pub fn new() -> Self {
        CacheOptions::default()
    }

    /// The hard bound in bytes on entries, loads in flight and the memory of what left. Default 64 MiB, at least 64 KiB.
    ///
    /// A sixteenth (in caches below 4 MiB a quarter, up to 256 KiB) is for loads in flight, and so the most that one listing, pass or
    /// parsed value can have and be kept; a thirty-second for the memory of what left; the rest for entries. What an answer takes once it
    /// was handed out, after the cache let it go, is the holder's; so are the fixed tables: 160 bytes for each of
    /// [`PrefetchOptions::directories`] if there is a root, and some KiB of counters.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// In how many parts, each with its lock and its share of the bytes, entries are kept. Default: up to four for each
    /// processor, of 1 MiB at least. Rounded up to a power of two; at most 4096, of 4 KiB at least. An entry can be as large as
    /// nine tenths of a part.
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// How long attributes hold, from when they were asked for. Default 2 s.
    #[must_use]
    pub fn file_ttl(mut self, ttl: Duration) -> Self {
        self.file_ttl = ttl;
        self
    }

    /// How long listings hold, from when they were asked for. Default 30 s.
    #[must_use]
    pub fn listing_ttl(mut self, ttl: Duration) -> Self {
        self.listing_ttl = ttl;
        self
    }

    /// How long it holds that a path is not there. Default: `None`, it is asked each time.
    #[must_use]
    pub fn negative_ttl(mut self, ttl: Option<Duration>) -> Self {
        self.negative_ttl = ttl;
        self
    }

    /// Whether nothing changes but by [`MetadataCache::invalidate`]: answers then never grow too old. Default: no.
    #[must_use]
    pub fn immutable(mut self, immutable: bool) -> Self {
        self.immutable = immutable;
        self
    }

    /// After how long without an access the weight of earlier accesses halves, for
    /// [`WarmupScore::CostAware`](super::WarmupScore::CostAware). Default one hour.
    #[must_use]
    pub fn half_life(mut self, time: Duration) -> Self {
        self.half_life = time;
        self
    }

    /// Where metadata comes from. Default [`LocalFiles`].
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn MetadataBackend>) -> Self {
        self.backend = backend;
        self
    }

    /// By which clock ages and windows are measured. Default [`MonotonicClock`].
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// When the attributes of a whole directory are fetched ahead. Default: never, as no root is named.
    #[must_use]
    pub fn prefetch(mut self, prefetch: PrefetchOptions) -> Self {
        self.prefetch = prefetch;
        self
    }

    /// Makes the cache. Starts no thread: the one for passes starts with the first pass.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a capacity below 64 KiB, for too many shards, and for a number of [`PrefetchOptions`]
    /// that makes no sense.
    pub fn build(self) -> Result<MetadataCache> {
        if self.capacity < LEAST_CAPACITY {
            return Err(invalid("the capacity is below 64 KiB"));
        }
        let parts = self.shards.unwrap_or(1);
        if !(1..=MOST_SHARDS).contains(&parts) {
            return Err(invalid("the shards are 1 to 4096"));
        }
        if self.capacity / (parts as u64) < LEAST_SHARD {
            return Err(invalid("a shard has less than 4 KiB"));
        }
        self.prefetch.check()?;
        Ok(MetadataCache::with(self))
    }
}

/// When a directory's children are fetched in one pass before they are asked for.
///
/// The trigger: a directory below a [root](Self::root) to which at least [`hits`](Self::hits) accesses came within the
/// [`window`](Self::window), and whose accesses lie on average at least [`depth`](Self::depth) names below the root. One pass lists
/// it with the attributes of its children. Accesses that are answered by a pass do not count towards another; what a pass left out, or
/// what was evicted since, does.
///
/// A pass costs the root allowance, one for each child. A child that is asked for saved a call, and gives back as many as cost
/// what a call costs, as measured on this backend: two at least, `1 / (1 − waste)` at most. So a listing that tells all
/// attributes in one request may waste more than a directory whose children are asked for one by one. A root whose allowance is used up is
/// off: no pass below it, until useful children bring it back, or a cool-down (doubled each time) grants it a probe.
#[derive(Clone, Debug)]
pub struct PrefetchOptions {
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) hits: usize,
    pub(crate) window: Duration,
    pub(crate) depth: u32,
    pub(crate) directories: usize,
    pub(crate) max_entries: usize,
    pub(crate) max_bytes: u64,
    pub(crate) max_time: Duration,
    pub(crate) waste: f64,
    pub(crate) allowance: u64,
    pub(crate) probe: u64,
    pub(crate) cool_down: Duration,
    pub(crate) max_cool_down: Duration,
    pub(crate) run: PrefetchRun,
}

/// On whose time a pass runs.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchRun {
    /// On a thread of the cache, at low priority.
    Background,
    /// On the thread whose access began it, before that is answered: then all is determined by the order of accesses.
    Inline,
}

/// Most accesses that the trigger may ask for: as many times are kept for each directory.
pub(crate) const MOST_HITS: usize = 8;

/// Most parts of a cache: more have no use on any machine, and their table would take memory of its own.
const MOST_SHARDS: usize = 4096;

/// Least bytes of a part: some entries fit.
const LEAST_SHARD: u64 = 4 << 10;

/// Most directories that are watched: their table takes 2.5 GiB.
const MOST_DIRECTORIES: usize = 1 << 24;

impl Default for PrefetchOptions {
    fn default() -> Self {
        PrefetchOptions {
            roots: Vec::new(),
            hits: 3,
            window: Duration::from_secs(300),
            depth: 4,
            directories: 4096,
            max_entries: 10_000,
            max_bytes: 4 << 20,
            max_time: Duration::from_secs(2),
            waste: 0.9,
            allowance: 4096,
            probe: 512,
            cool_down: Duration::from_secs(60),
            max_cool_down: Duration::from_secs(3600),
            run: PrefetchRun::Background,
        }
    }
}

impl PrefetchOptions {
    /// No root, so never; else 3 accesses within 5 minutes, 4 names below the root.
    pub fn new() -> Self {
        PrefetchOptions::default()
    }

    /// Fetches ahead below this directory too. Of nested roots the innermost counts.
    #[must_use]
    pub fn root(mut self, path: impl AsRef<Path>) -> Self {
        self.roots.push(path.as_ref().to_owned());
        self
    }

    /// Accesses within the window that begin a pass, 1 to 8. Default 3.
    #[must_use]
    pub fn hits(mut self, accesses: usize) -> Self {
        self.hits = accesses;
        self
    }

    /// The sliding window. Default 5 minutes.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Least mean depth of the accesses below the root, in names. Default 4.
    #[must_use]
    pub fn depth(mut self, names: u32) -> Self {
        self.depth = names;
        self
    }

    /// Directories that are watched at once, 1 to 16,777,216, 160 bytes each; of more, those without an access for longest are forgotten. Default 4096.
    #[must_use]
    pub fn directories(mut self, directories: usize) -> Self {
        self.directories = directories;
        self
    }

    /// Most children that one pass fetches. Default 10,000.
    #[must_use]
    pub fn max_entries(mut self, children: usize) -> Self {
        self.max_entries = children;
        self
    }

    /// Most bytes of memory that one pass fills. Default 4 MiB; half a shard at most in any case.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Longest that one pass lists, looked at between two children. Default 2 s.
    #[must_use]
    pub fn max_time(mut self, time: Duration) -> Self {
        self.max_time = time;
        self
    }

    /// Share of wasted children, from 0 up to below 1, above which a root is switched off, however little they cost. Default 0.9; half
    /// where a child costs as much as a call.
    #[must_use]
    pub fn waste(mut self, share: f64) -> Self {
        self.waste = share;
        self
    }

    /// Children that may be fetched below a root before any had to prove useful. Default 4096.
    #[must_use]
    pub fn allowance(mut self, children: u64) -> Self {
        self.allowance = children;
        self
    }

    /// Children that a root that is off may fetch once it cooled down. Default 512.
    #[must_use]
    pub fn probe(mut self, children: u64) -> Self {
        self.probe = children;
        self
    }

    /// How long a root is off before its first probe; twice as long after each one that was wasted. Default 1 minute.
    #[must_use]
    pub fn cool_down(mut self, time: Duration) -> Self {
        self.cool_down = time;
        self
    }

    /// Longest cool-down. Default 1 hour.
    #[must_use]
    pub fn max_cool_down(mut self, time: Duration) -> Self {
        self.max_cool_down = time;
        self
    }

    /// On whose time a pass runs. Default [`PrefetchRun::Background`].
    #[must_use]
    pub fn run(mut self, run: PrefetchRun) -> Self {
        self.run = run;
        self
    }

    fn check(&self) -> Result<()> {
        if !(1..=MOST_HITS).contains(&self.hits) {
            return Err(invalid("the accesses that begin a pass are 1 to 8"));
        }
        if !(0.0..1.0).contains(&self.waste) {
            return Err(invalid("the share of waste is from 0 up to below 1"));
        }
        if !(1..=MOST_DIRECTORIES).contains(&self.directories) {
            return Err(invalid(
                "the directories that are watched are 1 to 16,777,216",
            ));
        }
        Ok(())
    }
}

fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOption { what: what.into() })
}
