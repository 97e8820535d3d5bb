//! cuFile's driver: opened once in a process, within a time limit, and not closed again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ffi::{Failure, Library, NAMES, To, codes};
use super::options::{GdsOptions, GdsState};
use crate::backend::workers::Workers;
use crate::cuda::{Device, topology};
use crate::sys::PerProcess;

/// Why something is not used.
pub(super) type Why = Arc<str>;

/// The driver, open.
pub(super) struct Driver {
    pub(super) library: Library,
    pub(super) state: GdsState,
    /// Most reads of a batch; 0: there are no batches.
    pub(super) batch: usize,
    /// Registered buffers: length by address.
    buffers: Mutex<BTreeMap<u64, u64>>,
    /// Threads, by the device that they read for.
    pools: Mutex<Vec<(u32, Arc<Pool>)>>,
}

/// Threads that read for one device.
pub(super) struct Pool {
    pub(super) workers: Workers,
    /// Processors next to the device; empty: not known.
    pub(super) cpus: Vec<u32>,
}

/// What was tried in this process.
#[derive(Default)]
struct Attempts {
    driver: Option<&'static Driver>,
    /// Why not, where only peer-to-peer would have done.
    direct: Option<Why>,
    /// Why not in any mode.
    any: Option<Why>,
}

impl Attempts {
    fn refused(&self, compatibility: bool) -> Option<&Why> {
        match compatibility {
            true => self.any.as_ref(),
            false => self.direct.as_ref(),
        }
    }
}

/// More than device memory is worth pinning for at once.
const MOST_BATCH: usize = 1024;

impl Driver {
    /// The driver, opened if it is not. Where it is not allowed to read in its `compatibility` mode (through the host's memory), that mode is
    /// switched off, unless somebody else opened the driver before. What failed once is not tried again.
    pub(super) fn of_process(
        device: &Arc<Device>,
        compatibility: bool,
        options: &GdsOptions,
    ) -> Result<&'static Driver, Why> {
        static ATTEMPTS: PerProcess<Mutex<Attempts>> = PerProcess::new();
        let mut attempts = lock(ATTEMPTS.get(Mutex::default));
        if let Some(driver) = attempts.driver {
            return Ok(driver);
        }
        if let Some(why) = attempts.refused(compatibility) {
            return Err(why.clone());
        }
        // A release of cuFile looks for it without end.
        if let Err(why) = is_readable(&options.kernel_modules) {
            attempts.direct = Some(why.clone());
            attempts.any = Some(why.clone());
            return Err(why);
        }
        let (device, limit) = (device.clone(), options.open_limit);
        let opened = within(
            limit,
            move || {
                device.context().bind_thread();
                let opened = open(compatibility);
                // Only now: while it hangs, the context has to be there.
                drop(device);
                opened
            },
            |late: Result<Driver, Why>| {
                if let Ok(driver) = late {
                    let _ = driver.library.driver_close();
                }
            },
        );
        match opened {
            Some(Ok(driver)) => {
                let driver: &'static Driver = Box::leak(Box::new(driver));
                attempts.driver = Some(driver);
                Ok(driver)
            }
            Some(Err(why)) => {
                attempts.direct = Some(why.clone());
                if compatibility {
                    attempts.any = Some(why.clone());
                }
                Err(why)
            }
            None => {
                let why: Why = format!("opening cuFile took more than {limit:?}, or its thread ended; it is left alone for good").into();
                tracing::warn!(%why);
                attempts.direct = Some(why.clone());
                attempts.any = Some(why.clone());
                Err(why)
            }
        }
    }

    /// Where an address is, as cuFile wants it: by the registered buffer that has all `len` bytes, if one does.
    pub(super) fn place(&self, address: u64, len: u64) -> To {
        let buffers = lock(&self.buffers);
        let before = buffers.range(..=address).next_back();
        match before {
            Some((&base, &whole)) if address - base <= whole && len <= whole - (address - base) => {
                To::in_buffer(base, address - base)
            }
            _ => To::address(address),
        }
    }

    /// Notes that a buffer is registered.
    pub(super) fn add_buffer(&self, address: u64, len: u64) {
        lock(&self.buffers).insert(address, len);
    }

    /// Notes that it is no longer.
    pub(super) fn remove_buffer(&self, address: u64) {
        lock(&self.buffers).remove(&address);
    }

    /// The threads that read for a device.
    pub(super) fn pool(&self, device: &Device) -> Arc<Pool> {
        let ordinal = device.ordinal();
        let find = |pools: &[(u32, Arc<Pool>)]| {
            let found = pools.iter().find(|(of, _)| *of == ordinal);
            found.map(|(_, pool)| pool.clone())
        };
        if let Some(pool) = find(&lock(&self.pools)) {
            return pool;
        }
        // Reads files, so without the lock.
        let address = device
            .info()
            .pci
            .as_deref()
            .and_then(|pci| pci.parse().ok());
        let topology = topology();
        let gpu = address.and_then(|address| topology.gpu(address));
        let pool = Arc::new(Pool {
            workers: Workers::new(THREADS),
            cpus: gpu.map_or_else(Vec::new, |gpu| gpu.location().cpus().to_vec()),
        });
        let mut pools = lock(&self.pools);
        if let Some(pool) = find(&pools) {
            return pool;
        }
        pools.push((ordinal, pool.clone()));
        pool
    }
}

/// Reads under way at once on a device: with pieces of 16 MiB enough for the fastest drives, and few enough for cuFile's own limits.
const THREADS: usize = 8;

/// Opens library and driver.
fn open(compatibility: bool) -> Result<Driver, Why> {
    let library = Library::open(&NAMES)?;
    let changed = !compatibility
        && library.use_count() == Some(0)
        && library.allows_compatibility() == Some(true)
        && library.allow_compatibility(false);
    let restore = || {
        if changed {
            library.allow_compatibility(true);
        }
    };
    let ours = match library.driver_open() {
        Ok(()) => true,
        Err(Failure::Code { code, .. }) if code == codes::DRIVER_ALREADY_OPEN => false,
        Err(failure) => {
            restore();
            let mode = if changed {
                "peer-to-peer reads are not possible here: "
            } else {
                ""
            };
            return Err(format!("{mode}{failure}").into());
        }
    };
    let properties = library.driver_properties().map_err(|failure| {
        if ours {
            let _ = library.driver_close();
            restore();
        }
        Why::from(failure.to_string())
    })?;
    const ALLOW_COMPATIBILITY: u32 = 1 << 1;
    const BATCHES: u32 = 1 << 1;
    // By nvidia-fs, or by the kernel's own peer-to-peer transfers.
    const NVME_P2P: u32 = 1 << 11;
    let direct = properties.major > 0 || properties.status & NVME_P2P != 0;
    let state = match (properties.control & ALLOW_COMPATIBILITY != 0, direct) {
        (false, _) => GdsState::PeerToPeer,
        (true, false) => GdsState::Compatibility,
        (true, true) => GdsState::Unknown,
    };
    let batches = library.has_batches() && properties.features & BATCHES != 0;
    let batch = if batches {
        properties.max_batch as usize
    } else {
        0
    };
    tracing::debug!(
        ?state,
        batch,
        nvidia_fs = properties.major,
        minor = properties.minor,
        "cuFile is open"
    );
    Ok(Driver {
        library,
        state,
        batch: batch.min(MOST_BATCH),
        buffers: Mutex::default(),
        pools: Mutex::default(),
    })
}

fn is_readable(modules: &Path) -> Result<(), Why> {
    std::fs::File::open(modules).map(drop).map_err(|error| {
        format!(
            "{} cannot be read, without which cuFile may hang: {error}",
            modules.display()
        )
        .into()
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is valid between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread is at that somebody may stop waiting for.
enum Slot<T> {
    Working,
    Done(T),
    Ended,
    GivenUp,
}

/// Does `work` in a thread of its own, and waits for it up to `limit`. `None`: it takes longer, or ended without a result; then the
/// thread is left to itself, and `late` gets what comes after all.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Option<T> {
    let shared = Arc::new((Mutex::new(Slot::Working), Condvar::new()));
    let theirs = shared.clone();
    /// A panic ends the wait as well.
    struct Ends<T>(Arc<(Mutex<Slot<T>>, Condvar)>);
    impl<T> Drop for Ends<T> {
        fn drop(&mut self) {
            let mut slot = lock(&self.0.0);
            if matches!(*slot, Slot::Working) {
                *slot = Slot::Ended;
            }
            drop(slot);
            self.0.1.notify_all();
        }
    }
    let spawned = std::thread::Builder::new()
        .name("feedwater-gds".into())
        .spawn(move || {
            let ends = Ends(theirs);
            let result = work();
            let mut slot = lock(&ends.0.0);
            if matches!(*slot, Slot::GivenUp) {
                drop(slot);
                late(result);
            } else {
                *slot = Slot::Done(result);
            }
        });
    spawned.ok()?;
    let deadline = Instant::now().checked_add(limit);
    let mut slot = lock(&shared.0);
    loop {
        match std::mem::replace(&mut *slot, Slot::Working) {
            Slot::Done(result) => return Some(result),
            Slot::Ended => return None,
            Slot::Working | Slot::GivenUp => {}
        }
        let left = deadline.map_or(limit, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        if left.is_zero() {
            *slot = Slot::GivenUp;
            return None;
        }
        let waited = shared.1.wait_timeout(slot, left);
        slot = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn what_is_done_in_time_is_handed_over() {
        assert_eq!(within(SOON, || 7, |_| panic!("it was in time")), Some(7));
        assert_eq!(within(Duration::MAX, || 8, drop), Some(8));
    }

    #[test]
    fn what_hangs_is_left_and_taken_back_if_it_comes_after_all() {
        let (open, gate) = channel::<()>();
        let (tell, told) = channel();
        let work = move || {
            gate.recv().unwrap();
            9
        };
        assert_eq!(
            within(Duration::from_millis(1), work, move |late| tell
                .send(late)
                .unwrap()),
            None
        );
        assert!(told.try_recv().is_err());
        open.send(()).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(9));
    }

    #[test]
    fn a_panic_ends_the_wait() {
        let begun = Instant::now();
        let panics = || -> i32 { std::panic::resume_unwind(Box::new("as the test wants it")) };
        assert_eq!(within(SOON, panics, |_| ()), None);
        assert!(begun.elapsed() < SOON);
    }

    #[test]
    fn the_list_of_modules_has_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let why = is_readable(&dir.path().join("modules")).unwrap_err();
        assert!(why.contains("without which cuFile may hang"), "{why}");
        std::fs::write(dir.path().join("modules"), "").unwrap();
        is_readable(&dir.path().join("modules")).unwrap();
    }
}
