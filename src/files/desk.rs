//! What everybody who works on a job needs: its options, memory within bounds, and which file systems there are.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::options::Options;
use crate::buffer::{BlockMut, Slabs};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::{self, FileSystem};

/// One path to be worked on.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// When it is its turn among those of its taker.
    pub(super) turn: u64,
    /// Which of all paths it is.
    pub(super) number: u64,
    pub(super) path: Arc<Path>,
    /// It cannot be done without waiting.
    pub(super) waits: bool,
    /// No ring is to read it.
    pub(super) not_by_rings: bool,
}

impl Task {
    pub(super) fn new(turn: u64, number: u64, path: Arc<Path>) -> Self {
        Task {
            turn,
            number,
            path,
            waits: false,
            not_by_rings: false,
        }
    }
}

/// File systems that are remembered.
const KNOWN_MOST: usize = 64;

/// Directories that are remembered.
const DIRS_MOST: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Desk {
    pub(super) options: Options,
    slabs: Slabs,
    /// Bytes of contents that are being read, or were and have not been taken.
    bytes: AtomicU64,
    /// The most there were.
    most_bytes: AtomicU64,
    /// The file that is delivered next, if the order is that of the paths. It is never kept waiting for room that
    /// those behind it have.
    pub(super) head: AtomicU64,
    /// The file system of the first file, which most files are on.
    first_known: OnceLock<(u64, FileSystem)>,
    known: Mutex<Vec<(u64, FileSystem)>>,
    /// The `st_dev` of a file in each directory (by the hash of its path) that has files on a device of this machine.
    /// Never wrong by much: a file that is elsewhere all the same is noticed before it is read.
    dirs: Mutex<HashMap<u64, u64>>,
    /// Whether directories are remembered.
    pub(super) learns: AtomicBool,
    /// Nobody waits any more.
    pub(super) cancelled: AtomicBool,
}

impl Desk {
    pub(super) fn new(options: Options) -> Self {
        let pool = options.engine.pool().clone();
        Desk {
            slabs: Slabs::new(pool, !options.apart),
            bytes: AtomicU64::new(0),
            most_bytes: AtomicU64::new(0),
            head: AtomicU64::new(if options.in_order { 0 } else { u64::MAX }),
            first_known: OnceLock::new(),
            known: Mutex::default(),
            dirs: Mutex::default(),
            learns: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            options,
        }
    }

    /// Memory for a file. `None`: there is none within the window now.
    pub(super) fn room(&self, turn: u64, len: u64) -> Result<Option<BlockMut>> {
        self.check_size(len)?;
        if !self.reserve(turn, len) {
            return Ok(None);
        }
        let taken = usize::try_from(len).map_err(|_| self.too_large(len));
        match taken.and_then(|len| self.slabs.take(len)) {
            Ok(block) => Ok(Some(block)),
            Err(error) => {
                self.release(len);
                Err(error)
            }
        }
    }

    /// Whether a file may have so many bytes.
    pub(super) fn check_size(&self, len: u64) -> Result<()> {
        if len > self.options.max_file {
            return Err(self.too_large(len));
        }
        Ok(())
    }

    fn too_large(&self, wanted: u64) -> Error {
        let cap = self.options.max_file;
        Error::new(ErrorKind::OutOfMemory { wanted, cap })
    }

    fn reserve(&self, turn: u64, len: u64) -> bool {
        // Added only where it fits: bytes that others would see and that are taken back at once count as held, and the
        // head adds its own to what is there.
        let added = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
                let now = before.saturating_add(len);
                let fits = before == 0 || now <= self.options.window_bytes;
                (fits || turn == self.head.load(Ordering::Relaxed)).then_some(now)
            });
        if let Ok(before) = added {
            self.note(before.saturating_add(len));
        }
        added.is_ok()
    }

    /// Notes bytes that are there already.
    pub(super) fn hold(&self, len: u64) {
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        self.note(before.saturating_add(len));
    }

    fn note(&self, bytes: u64) {
        // Written to only if it is more: it is looked at by all.
        if bytes > self.most_bytes.load(Ordering::Relaxed) {
            self.most_bytes.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes were taken, or are not wanted.
    pub(super) fn release(&self, len: u64) {
        self.bytes.fetch_sub(len, Ordering::Relaxed);
    }

    /// Whether a file of `len` bytes would get room now. 0: any file at all.
    pub(super) fn has_room(&self, turn: u64, len: u64) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        bytes == 0
            || bytes.saturating_add(len.max(1)) <= self.options.window_bytes
            || turn == self.head.load(Ordering::Relaxed)
    }

    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes.load(Ordering::Relaxed)
    }

    /// What a file with this `st_dev` lives on. Asks the first time.
    pub(super) fn file_system(&self, dev: u64, fd: BorrowedFd<'_>) -> Result<FileSystem> {
        if let Some(known) = self.known_file_system(dev) {
            return Ok(known);
        }
        let found = sys::file_system(fd).map_err(|error| Error::io("fstatfs", error))?;
        if self.first_known.set((dev, found)).is_ok() {
            return Ok(found);
        }
        let mut known = self.lock_known();
        if known.len() >= KNOWN_MOST {
            known.swap_remove(0);
        }
        known.push((dev, found));
        Ok(found)
    }

    pub(super) fn known_file_system(&self, dev: u64) -> Option<FileSystem> {
        if let Some((id, known)) = self.first_known.get()
            && *id == dev
        {
            return Some(*known);
        }
        let known = self.lock_known();
        let found = known.iter().find(|(id, _)| *id == dev);
        found.map(|(_, file_system)| *file_system)
    }

    /// Remembers that a file of this directory is on a device of this machine.
    pub(super) fn learn(&self, path: &Path, dev: u64) {
        let mut dirs = self.lock_dirs();
        if dirs.len() >= DIRS_MOST {
            dirs.clear();
        }
        dirs.insert(hash_of_dir(path), dev);
    }

    /// The device of files beside this one, if it is one of this machine.
    pub(super) fn device_of(&self, path: &Path) -> Option<u64> {
        self.lock_dirs().get(&hash_of_dir(path)).copied()
    }

    fn lock_dirs(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_known(&self) -> MutexGuard<'_, Vec<(u64, FileSystem)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash_of_dir(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.parent()
        .map(|dir| dir.as_os_str().as_bytes())
        .hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::*;
    use crate::open::Engine;
    use crate::reader::{Priority, VersionCheck};

    fn desk(window_bytes: u64) -> Desk {
        Desk::new(Options {
            engine: Engine::default(),
            in_order: true,
            window_files: 16,
            window_bytes,
            max_file: u64::MAX,
            priority: Priority::default(),
            check: VersionCheck::default(),
            only: None,
            apart: false,
            follow: true,
            parts: 1,
        })
    }

    #[test]
    fn who_gets_no_room_adds_nothing_for_a_moment_either() {
        let desk = desk(100);
        assert!(desk.reserve(9, 100));
        thread::scope(|scope| {
            for other in 1..4 {
                let desk = &desk;
                scope.spawn(move || (0..20_000).for_each(|_| assert!(!desk.reserve(other, 50))));
            }
            for _ in 0..20_000 {
                // The next one in order gets room all the same.
                assert!(desk.reserve(0, 50));
                desk.release(50);
            }
        });
        assert_eq!(desk.most_bytes(), 150);
    }
}
