//! What is dropped, forgotten or panics while reads are under way: memory stays until the engine is done with it, and
//! is released then. Run under valgrind as well, where a write to released memory shows.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[cfg(target_os = "linux")]
#[path = "drops/in_flight.rs"]
mod in_flight;

use std::any::Any;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::skip::require;
use feedwater::{
    Batch, BlockMut, Engine, EngineOptions, ErrorKind, Memory, OpenOptions, Opened, Place,
    Priority, ReadOptions, Reader, ReaderExt, Route,
};
use tempfile::TempDir;

/// Long enough for any machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

const LEN: usize = 2 << 20;

/// Heap memory that tells when it is released.
struct Watched {
    bytes: *mut u8,
    len: usize,
    released: mpsc::Sender<()>,
}

// SAFETY: it owns the allocation, and its pointer is only used as `Memory` says.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

// SAFETY: a heap allocation of its own, freed by drop and not touched otherwise.
unsafe impl Memory for Watched {
    fn place(&self) -> Place {
        Place::Host
    }
    fn ptr(&self) -> *mut u8 {
        self.bytes
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: made from a boxed slice of that length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.bytes, self.len)) });
        let _ = self.released.send(());
    }
}

fn watched(len: usize, released: &mpsc::Sender<()>) -> BlockMut {
    let bytes = Box::into_raw(vec![0xddu8; len].into_boxed_slice());
    BlockMut::new(Watched {
        bytes: bytes.cast(),
        len,
        released: released.clone(),
    })
}

fn content() -> &'static [u8] {
    static CONTENT: OnceLock<Vec<u8>> = OnceLock::new();
    CONTENT.get_or_init(|| (0..LEN).map(|i| (i * 7 + i / 1000) as u8).collect())
}

fn file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, content()).unwrap();
    (dir, path)
}

/// Readers of the file by every route that works here, each with threads of its own and as many requests in flight.
fn readers(path: &PathBuf, threads: usize) -> Vec<Arc<Opened>> {
    // SAFETY: nobody changes the file.
    let options = unsafe { OpenOptions::new().assume_immutable() };
    let threads = NonZeroUsize::new(threads).unwrap();
    let open = |route: Route, needs: &str| {
        let engine = EngineOptions::default().threads(threads).depth(threads);
        let options = options.clone().engine(Engine::new(engine)).only(route);
        require(needs, options.open(path))
    };
    let direct = open(Route::PreadDirect, "odirect");
    let direct_by_ring = direct
        .is_some()
        .then(|| open(Route::UringDirect, "uring"))
        .flatten();
    [
        open(Route::Pread, "files"),
        open(Route::Mmap, "files"),
        open(Route::Uring, "uring"),
        direct,
        direct_by_ring,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Reads of `size` bytes each, into watched memory.
fn batch(count: usize, size: usize, released: &mpsc::Sender<()>) -> Batch {
    (0..count).fold(Batch::new(), |batch, i| {
        let start = (i * 40_009 % (LEN - size)) as u64;
        batch.read_into(start..start + size as u64, watched(size, released))
    })
}

fn all_released(released: &mpsc::Receiver<()>, count: usize) {
    for _ in 0..count {
        released.recv_timeout(PATIENCE).expect("memory is released");
    }
    assert!(released.try_recv().is_err());
}

#[test]
fn dropped_while_under_way() {
    let (_dir, path) = file();
    for reader in readers(&path, 2) {
        let (tell, released) = mpsc::channel();
        for size in [100, 70_000, 1_500_000] {
            drop(reader.submit(batch(64, size, &tell)));
        }
        all_released(&released, 3 * 64);
        assert!(reader.read_all().wait().unwrap() == content(), "{reader:?}");
    }
}

#[test]
fn dropped_after_some_were_taken() {
    let (_dir, path) = file();
    for reader in readers(&path, 1) {
        let (tell, released) = mpsc::channel();
        let mut pending = reader.submit(batch(16, 300_000, &tell));
        let taken: Vec<_> = (0..3).map(|_| pending.wait_next().unwrap()).collect();
        drop(pending);
        for (index, outcome) in taken {
            let start = index * 40_009 % (LEN - 300_000);
            let block = outcome.unwrap();
            assert!(block.as_host().unwrap() == &content()[start..start + 300_000]);
        }
        all_released(&released, 16);
    }
}

#[test]
fn forgotten_with_reader_and_engine_dropped() {
    let (_dir, path) = file();
    for reader in readers(&path, 2) {
        let (tell, released) = mpsc::channel();
        let pending = reader.submit(batch(32, 200_000, &tell));
        drop(reader);
        let blocks = pending.wait().unwrap();
        assert_eq!(blocks.len(), 32);
        drop(blocks);
        all_released(&released, 32);
    }
    for reader in readers(&path, 2) {
        let (tell, _released) = mpsc::channel();
        // Its results are leaked, which harms nobody.
        std::mem::forget(reader.submit(batch(32, 200_000, &tell)));
        assert!(reader.read_all().wait().unwrap() == content());
    }
}

#[test]
fn bytes_outlive_everything() {
    let (_dir, path) = file();
    for reader in readers(&path, 2) {
        let bytes = reader.read(5..2_000_005).wait().unwrap();
        drop(reader);
        std::fs::remove_file(&path).ok();
        assert!(bytes == content()[5..2_000_005]);
        std::fs::write(&path, content()).ok();
    }
}

/// A waker that panics, as only a broken executor's does.
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::panic::resume_unwind(Box::new("a waker that panics"));
    }
}

#[test]
fn a_waker_that_panics_harms_nobody_else() {
    let (_dir, path) = file();
    for reader in readers(&path, 1) {
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        let waker = Waker::from(panics.clone());
        let (tell, released) = mpsc::channel();
        let mut pending = reader.submit(batch(8, 400_000, &tell));
        // If all is done already (a fast machine), there is nobody to wake.
        let first = pending.poll_next(&mut Context::from_waker(&waker));
        let rest = pending.into_iter().filter(|(_, outcome)| outcome.is_ok());
        assert_eq!(rest.count() + usize::from(first.is_ready()), 8);
        drop(first);
        assert!(reader.read_all().wait().unwrap() == content());
        all_released(&released, 8);
    }
}

/// Memory whose release panics, on whatever thread lets it go.
struct Grenade(Watched);

// SAFETY: as of the memory inside.
unsafe impl Memory for Grenade {
    fn place(&self) -> Place {
        self.0.place()
    }
    fn ptr(&self) -> *mut u8 {
        self.0.ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("memory that panics"));
        }
    }
}

#[test]
fn engine_threads_survive_memory_that_panics() {
    let (_dir, path) = file();
    for reader in readers(&path, 1) {
        let (tell, released) = mpsc::channel();
        let mut grenades = Vec::new();
        for _ in 0..8 {
            let bytes = Box::into_raw(vec![0u8; 2_000_000].into_boxed_slice());
            let memory = Grenade(Watched {
                bytes: bytes.cast(),
                len: 2_000_000,
                released: tell.clone(),
            });
            grenades.push(BlockMut::new(memory));
        }
        for three in [3, 3, 2] {
            let batch = grenades.drain(..three).fold(Batch::new(), |batch, block| {
                batch.read_into(0..2_000_000, block)
            });
            let pending = reader.submit(batch);
            // Whoever drops it last gets the panic: an engine thread, or this one.
            let here = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(pending)));
            let _ = here;
        }
        assert!(reader.read_all().wait().unwrap() == content(), "{reader:?}");
        all_released(&released, 8);
    }
}

#[test]
fn many_threads_submit_and_drop_at_random() {
    let (_dir, path) = file();
    let expect = content();
    for reader in readers(&path, 3) {
        let threads: Vec<_> = (0..8u64)
            .map(|seed| {
                let reader = reader.clone();
                std::thread::spawn(move || {
                    let mut x = seed * 2 + 1;
                    let mut next = |below: usize| {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                        (x >> 33) as usize % below
                    };
                    for _ in 0..20 {
                        let ranges: Vec<_> = (0..1 + next(12))
                            .map(|_| {
                                let start = next(LEN);
                                start as u64..(start + next(100_000)).min(LEN) as u64
                            })
                            .collect();
                        let priority = [Priority::Foreground, Priority::Prefetch][next(2)];
                        let options = ReadOptions::default().priority(priority);
                        let batch = Batch::of(ranges.clone()).options(options);
                        let mut pending = reader.submit(batch);
                        for _ in 0..next(ranges.len() + 2) {
                            let Some((index, outcome)) = pending.wait_next() else {
                                break;
                            };
                            let range = &ranges[index];
                            let right = &expect[range.start as usize..range.end as usize];
                            assert!(outcome.unwrap().as_host().unwrap() == right);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_batch_in_the_queue_of_an_engine_that_goes_is_still_done() {
    let (_dir, path) = file();
    let engine = Engine::new(EngineOptions::default().threads(NonZeroUsize::MIN));
    let options = OpenOptions::new().engine(engine).only(Route::Pread);
    let reader = options.open(&path).unwrap();
    drop(options);
    let pending: Vec<_> = (0..20)
        .map(|_| reader.read_many(&[0..LEN as u64, 5..9]))
        .collect();
    drop(reader);
    for pending in pending {
        let blocks = pending.wait().unwrap();
        assert!(blocks[0].as_host().unwrap() == content());
    }
}

#[test]
fn an_engine_that_was_shut_down_takes_nothing_more() {
    let (_dir, path) = file();
    // SAFETY: nobody changes the file.
    let promised = unsafe { OpenOptions::new().assume_immutable() };
    let engine = || Engine::new(EngineOptions::default());
    for options in [
        OpenOptions::new(),
        promised.clone(),
        OpenOptions::new().only(Route::Pread),
        promised.only(Route::Mmap),
    ] {
        let engine = engine();
        let options = options.engine(engine.clone());
        let reader = options.open(&path).unwrap();
        // In the page cache, so that nothing has to be waited for.
        assert!(reader.read_all().wait().unwrap() == content());
        assert!(engine.shut_down(Duration::MAX).is_complete());
        let (tell, released) = mpsc::channel();
        let mut pending = reader.submit(batch(2, 4096, &tell).any(0..10));
        for _ in 0..3 {
            let (at, outcome) = pending.try_next().unwrap();
            let failed = outcome.unwrap_err();
            assert!(
                matches!(failed.error.kind(), ErrorKind::Abandoned),
                "{failed}"
            );
            assert_eq!(failed.dest.is_some(), at < 2, "the memory comes back");
        }
        all_released(&released, 2);
        let again = options.open_async(&path).wait().unwrap_err();
        assert!(matches!(again.kind(), ErrorKind::Abandoned), "{again}");
        // What a caller does on its own thread goes on.
        let mut buf = [0; 10];
        reader.read_at(5, &mut buf).unwrap();
        assert_eq!(buf, content()[5..15]);
    }
}

#[test]
fn a_changed_file_gives_given_memory_back() {
    let (_dir, path) = file();
    let reader = feedwater::open(&path).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    let (tell, released) = mpsc::channel();
    let mut pending = reader.submit(batch(3, 100_000, &tell));
    for _ in 0..3 {
        let (_, outcome) = pending.wait_next().unwrap();
        let failed = outcome.unwrap_err();
        assert!(matches!(failed.error.kind(), ErrorKind::Changed { .. }));
        let block = failed.dest.expect("the memory comes back");
        assert_eq!((block.len(), block.filled_len()), (100_000, 0));
    }
    all_released(&released, 3);
}

/// All of these once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{
        FEW_DESCRIPTORS, MEMLOCK_0, NO_IO_URING, OLD_KERNEL, UNPRIVILEGED, again,
    };
    use super::common::file_systems::{FileSystem, again_on};

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, &[], 9);
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, &[], 9);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, &[], 9);
    }

    #[test]
    fn with_64_descriptors() {
        again(&FEW_DESCRIPTORS, &[], 9);
    }

    #[test]
    fn memlock_0() {
        again(&MEMLOCK_0, &[], 9);
    }

    #[test]
    fn on_tmpfs() {
        again_on(FileSystem::Tmpfs, &[], 9);
    }

    #[test]
    fn on_overlay() {
        again_on(FileSystem::Overlay, &[], 9);
    }

    #[test]
    fn on_4k_sectors() {
        again_on(FileSystem::Ext4Of4KiB, &[], 9);
    }

    #[test]
    fn on_xfs() {
        again_on(FileSystem::Xfs, &[], 9);
    }

    #[test]
    fn on_btrfs() {
        again_on(FileSystem::Btrfs, &[], 9);
    }

    #[test]
    fn on_fuse() {
        again_on(FileSystem::Fuse, &[], 9);
    }
}
