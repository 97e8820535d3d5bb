//! What readers share: threads, memory and their bounds.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::backend::workers::Workers;
use crate::buffer::{Pool, PoolOptions};
use crate::sys::PerProcess;

/// Bounds of an [`Engine`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Most threads that wait for devices. Default 32: what a fast disk needs for random reads through `pread`.
    /// They are started when needed and end after ten idle seconds.
    pub threads: NonZeroUsize,
    /// Bounds of the pool that blocks come from.
    pub pool: PoolOptions,
}

/// Threads that wait for a device cost little: each holds a stack of which it touches a page or two.
const THREADS: NonZeroUsize = NonZeroUsize::new(32).unwrap();

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            threads: THREADS,
            pool: PoolOptions::default(),
        }
    }
}

impl EngineOptions {
    /// Sets [`threads`](Self::threads).
    #[must_use]
    pub fn threads(mut self, threads: NonZeroUsize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets [`pool`](Self::pool).
    #[must_use]
    pub fn pool(mut self, pool: PoolOptions) -> Self {
        self.pool = pool;
        self
    }
}

/// The threads and the memory that readers share; cloning shares it.
///
/// Most programs use [`Engine::default`], of which the process has one. Another engine is for work that should
/// have bounds of its own. An engine lives as long as a reader of it; what is in flight is finished.
///
/// ```
/// use std::num::NonZeroUsize;
/// use feedwater::{Engine, EngineOptions, OpenOptions};
///
/// let engine = Engine::new(EngineOptions::default().threads(NonZeroUsize::new(2).unwrap()));
/// let options = OpenOptions::new().engine(engine);
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("file");
/// # std::fs::write(&path, "x")?;
/// let reader = options.open(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    workers: Arc<Workers>,
    pool: Pool,
}

impl Engine {
    /// An engine of its own. Starts nothing yet.
    pub fn new(options: EngineOptions) -> Self {
        Engine(Arc::new(Inner {
            workers: Arc::new(Workers::new(options.threads.get())),
            pool: Pool::new(options.pool),
        }))
    }

    /// The pool that blocks come from, for blocks to read into.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    pub(super) fn workers(&self) -> &Arc<Workers> {
        &self.0.workers
    }
}

impl Default for Engine {
    /// The engine of this process, with default options. A forked child gets one of its own.
    fn default() -> Self {
        static ENGINE: PerProcess<Engine> = PerProcess::new();
        ENGINE.get(|| Engine::new(EngineOptions::default())).clone()
    }
}
