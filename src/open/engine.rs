//! What readers share: threads, memory and their bounds.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::profile::DeviceProfile;
use crate::backend::device::{Bounds, Device, Devices, Rates};
use crate::backend::uring::Rings;
use crate::backend::workers::Workers;
use crate::buffer::{Pool, PoolOptions};
use crate::sys::PerProcess;

/// Bounds of an [`Engine`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Most threads that wait for devices. Default 32: what a fast disk needs for random reads through `pread`.
    /// They are started when needed and end after ten idle seconds. Each ring may have as many of the kernel's own
    /// threads besides (of each of their two kinds), for files that cannot be read without waiting.
    pub threads: NonZeroUsize,
    /// Most requests in flight on one block device by rings, of all readers together; what nobody waits for
    /// ([`Priority::Prefetch`](crate::Priority::Prefetch)) gets half. Default 128: where random reads of the disks
    /// that were measured stopped getting faster. Every ring may have one request in flight all the same: that of the
    /// device, and that of each thread in [`read_now`](crate::Reader::read_now), which has room for 128.
    pub depth: NonZeroUsize,
    /// Most bytes in flight on one block device by rings; one request of each ring is always allowed. Default 32 MiB.
    pub bytes_in_flight: usize,
    /// How fast devices stream, as an earlier process found out ([`Engine::profiles`]); the last one for a device
    /// counts. Default: none. What is not given, the first long stream finds out, within its first 400 MB or so that are
    /// not in the page cache.
    pub profiles: Vec<DeviceProfile>,
    /// Bounds of the pool that blocks come from. Default: those of [`PoolOptions::default`].
    pub pool: PoolOptions,
}

/// Threads that wait for a device cost little: each holds a stack of which it touches a page or two.
const THREADS: NonZeroUsize = NonZeroUsize::new(32).unwrap();

const DEPTH: NonZeroUsize = NonZeroUsize::new(128).unwrap();
const FOREVER: Duration = Duration::from_secs(1 << 30);

const BYTES_IN_FLIGHT: usize = 32 << 20;

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            threads: THREADS,
            depth: DEPTH,
            bytes_in_flight: BYTES_IN_FLIGHT,
            profiles: Vec::new(),
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

    /// Sets [`depth`](Self::depth).
    #[must_use]
    pub fn depth(mut self, requests: NonZeroUsize) -> Self {
        self.depth = requests;
        self
    }

    /// Sets [`bytes_in_flight`](Self::bytes_in_flight).
    #[must_use]
    pub fn bytes_in_flight(mut self, bytes: usize) -> Self {
        self.bytes_in_flight = bytes;
        self
    }

    /// Adds to [`profiles`](Self::profiles).
    #[must_use]
    pub fn profile(mut self, profile: DeviceProfile) -> Self {
        self.profiles.push(profile);
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
    rings: Rings,
    devices: Devices,
    given: Vec<DeviceProfile>,
    pool: Pool,
    shut_down: AtomicBool,
}

impl Engine {
    /// An engine of its own. Starts nothing yet.
    pub fn new(options: EngineOptions) -> Self {
        Engine(Arc::new(Inner {
            workers: Arc::new(Workers::new(options.threads.get())),
            rings: Rings::new(options.threads.get()),
            devices: Devices::new(Bounds {
                depth: options.depth.get(),
                bytes: options.bytes_in_flight,
            }),
            given: options.profiles,
            pool: Pool::new(options.pool),
            shut_down: AtomicBool::new(false),
        }))
    }

    /// The pool that blocks come from, for blocks to read into.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// How fast devices stream, as far as it is known: what was found out so far, and what was
    /// [given](EngineOptions::profiles) for other devices. To be saved, and given to [`EngineOptions::profile`] by a later
    /// process.
    pub fn profiles(&self) -> Vec<DeviceProfile> {
        let devices = self.0.devices.all();
        let mut profiles: Vec<_> = devices
            .iter()
            .filter_map(|device| DeviceProfile::of(device))
            .collect();
        // Whoever saves them over the old ones must not lose those of a device that was not read this time.
        for given in self.0.given.iter().rev() {
            if profiles.iter().all(|known| known.device != given.device) {
                profiles.push(given.clone());
            }
        }
        profiles
    }

    /// Takes no more work, blocks for `timeout` at most until what was handed in is done, and gives up the rest.
    ///
    /// For good, and for everybody who shares it: shutting down [`Engine::default`] ends the reads of the whole process.
    /// Reads of files that are given up, or submitted later, fail with [`Abandoned`](crate::ErrorKind::Abandoned). Memory
    /// that the system may still write to (a device that hangs) is kept until it is done, or for ever. Reads of
    /// [`read_now`](crate::Reader::read_now) belong to their callers; they go on. So do reads of bytes in memory. Not
    /// needed at the end of a program: an engine that is dropped finishes what it has.
    ///
    /// ```
    /// use std::time::Duration;
    /// use feedwater::{Engine, EngineOptions};
    ///
    /// let engine = Engine::new(EngineOptions::default());
    /// // … open and read with it, then:
    /// let shutdown = engine.shut_down(Duration::from_secs(5));
    /// assert!(shutdown.is_complete(), "{} left", shutdown.left);
    /// ```
    pub fn shut_down(&self, timeout: Duration) -> Shutdown {
        let now = Instant::now();
        // Too far to be told from never: some decades.
        let deadline = now.checked_add(timeout).unwrap_or(now + FOREVER);
        self.0.shut_down.store(true, Ordering::Relaxed);
        let rings = self.0.rings.shut_down(deadline);
        let threads = self.0.workers.shut_down(deadline);
        Shutdown {
            left: rings + threads,
        }
    }

    /// Whether [`shut_down`](Self::shut_down) has begun.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.shut_down.load(Ordering::Relaxed)
    }

    pub(super) fn workers(&self) -> &Arc<Workers> {
        &self.0.workers
    }

    pub(super) fn rings(&self) -> &Rings {
        &self.0.rings
    }

    /// Most requests in flight on one device by rings.
    pub(super) fn device_depth(&self) -> usize {
        self.0.devices.depth()
    }

    /// The device of files with this `st_dev`, with the rates that were given for it.
    pub(super) fn device(&self, dev: u64) -> Arc<Device> {
        let device = self.0.devices.of(dev);
        if device.rates().is_none() {
            let given = self.0.given.iter();
            let of_this = |profile: &&DeviceProfile| device.name() == Some(&*profile.device);
            if let Some(profile) = given.rev().find(of_this) {
                device.set_rates(Rates {
                    buffered: profile.buffered as f64,
                    direct: profile.direct as f64,
                });
            }
        }
        device
    }
}

/// What [`Engine::shut_down`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// Requests in rings, and threads, that the system did not let go in time. Their memory is not freed before it is
    /// done with them.
    pub left: usize,
}

impl Shutdown {
    /// Whether everything was done in time.
    pub fn is_complete(&self) -> bool {
        self.left == 0
    }
}

impl Default for Engine {
    /// The engine of this process, with default options. A forked child gets one of its own.
    fn default() -> Self {
        static ENGINE: PerProcess<Engine> = PerProcess::new();
        ENGINE.get(|| Engine::new(EngineOptions::default())).clone()
    }
}
