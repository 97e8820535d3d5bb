//! The work of a walk: directories are listed while entries of others are looked at.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use super::FileResult;
use super::answer::{EntryKind, FileAttributes};
use super::job::is_out_of_descriptors;
use super::walk::{WalkEntry, WalkOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::open::Work;
use crate::sys::{self, CachedOpen};

/// Entries that are listed in one step.
const LIST: usize = 256;

/// Entries that are looked at in one step.
const LOOK: usize = 64;

/// Entries that are found and not taken; then the threads leave.
const AHEAD: usize = 1024;

/// Most threads, where directories are not in memory.
const COLD_THREADS: usize = 16;

/// A directory on the way.
#[derive(Debug)]
struct Dir {
    path: Arc<Path>,
    /// Of its entries: 1 for those of the root.
    depth: usize,
    /// Device and inode of it and of those above it, where links are followed, to notice a loop.
    above: Option<Arc<Above>>,
}

impl Dir {
    /// Whether a directory is this one or above it.
    fn check_no_loop(&self, found: &FileAttributes) -> Result<()> {
        let id = (found.version.dev, found.version.inode);
        let mut above = self.above.as_deref();
        while let Some(one) = above {
            if one.id == id {
                let circle = std::io::Error::from_raw_os_error(libc::ELOOP);
                return Err(Error::io("open", circle));
            }
            above = one.next.as_deref();
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Above {
    id: (u64, u64),
    next: Option<Arc<Above>>,
}

/// A directory that is open.
#[derive(Debug)]
struct Listing {
    dir: Arc<Dir>,
    entries: rustix::fs::Dir,
}

/// An entry to be looked at.
#[derive(Debug)]
struct Entry {
    path: Arc<Path>,
    listed: FileType,
    dir: Arc<Dir>,
}

#[derive(Debug)]
enum Task {
    Look(Vec<Entry>),
    List(Listing),
    Open(Arc<Dir>),
}

#[derive(Debug, Default)]
pub(super) struct State {
    look: Vec<Vec<Entry>>,
    listings: Vec<Listing>,
    dirs: Vec<Arc<Dir>>,
    pub(super) ready: VecDeque<FileResult<WalkEntry>>,
    found: u64,
    working: usize,
    seats: usize,
    pub(super) waits: bool,
    pub(super) waker: Option<Waker>,
    pub(super) no_threads: Option<Error>,
}

#[derive(Debug)]
pub(super) struct Walking {
    options: WalkOptions,
    state: Mutex<State>,
    arrived: Condvar,
    cancelled: AtomicBool,
    cold: AtomicBool,
    processors: usize,
}

/// What a step found.
#[derive(Debug, Default)]
struct Found {
    entries: Vec<(Arc<Path>, Result<WalkEntry>)>,
    look: Vec<Vec<Entry>>,
    listing: Option<Listing>,
    dirs: Vec<Arc<Dir>>,
}

impl Walking {
    pub(super) fn new(root: &Path, options: WalkOptions) -> Arc<Self> {
        let root = Arc::new(Dir {
            path: root.into(),
            depth: 1,
            above: None,
        });
        let dirs = match options.max_depth {
            0 => Vec::new(),
            _ => vec![root],
        };
        Arc::new(Walking {
            state: Mutex::new(State {
                dirs,
                ..State::default()
            }),
            options,
            arrived: Condvar::new(),
            cancelled: AtomicBool::new(false),
            cold: AtomicBool::new(false),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock, and the lists are valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_cold(&self) -> bool {
        self.cold.load(Ordering::Relaxed)
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.options.engine.is_shut_down()
    }

    pub(super) fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waits = true;
        while state.waits {
            state = self
                .arrived
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Asks for threads, as far as there is work for more.
    pub(super) fn engage(self: &Arc<Self>, state: &mut State, in_task: bool) {
        let least = usize::from(in_task);
        let most = match self.is_cold() {
            true => COLD_THREADS,
            false => (self.processors - 1).clamp(least, COLD_THREADS),
        };
        if state.ready.len() > AHEAD / 2 {
            return;
        }
        let wanted = state.waiting().min(most.min(self.options.engine.threads()));
        let missing = wanted.saturating_sub(state.seats);
        if missing == 0 {
            return;
        }
        let work: Arc<dyn Work> = self.clone();
        let options = &self.options;
        match options.engine.run(&work, missing, options.priority) {
            Ok(()) => state.seats += missing,
            Err(error) => state.no_threads = Some(error),
        }
    }

    /// Does one step on this thread. `false`: there is none to be done.
    pub(super) fn step_here(self: &Arc<Self>) -> bool {
        let task = {
            let mut state = self.lock();
            let Some(task) = state.pop() else {
                return false;
            };
            state.working += 1;
            task
        };
        self.perform(task)
    }

    /// `false`: it is to be tried again when others have closed something.
    fn perform(self: &Arc<Self>, task: Task) -> bool {
        let mut working = Working {
            walking: self,
            found: Found::default(),
        };
        let found = &mut working.found;
        match task {
            Task::Look(entries) => self.look(entries, found),
            Task::List(listing) => self.list(listing, found),
            Task::Open(dir) => match self.open(&dir) {
                Ok(listing) => self.list(listing, found),
                Err(error) if is_out_of_descriptors(&error) && self.others_work() => {
                    found.dirs.push(dir);
                    return false;
                }
                Err(error) => found.entries.push((dir.path.clone(), Err(error))),
            },
        }
        true
    }

    fn others_work(&self) -> bool {
        let state = self.lock();
        state.working > 1 || !state.listings.is_empty()
    }

    fn open(&self, dir: &Arc<Dir>) -> Result<Listing> {
        let io = |op| move |error: rustix::io::Errno| Error::io(op, error.into());
        let is_root = dir.depth == 1;
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if !is_root && !self.options.follow {
            flags |= OFlags::NOFOLLOW; // it was no link when it was listed
        }
        let cached = sys::open_cached(&dir.path, flags.bits() as i32)
            .map_err(|error| Error::io("open", error))?;
        let fd: OwnedFd = match cached {
            CachedOpen::Opened(fd) => fd,
            told => {
                let cold = matches!(told, CachedOpen::WouldWait);
                self.cold.store(cold, Ordering::Relaxed);
                rustix::io::retry_on_intr(|| {
                    rustix::fs::openat(CWD, &*dir.path, flags, Mode::empty())
                })
                .map_err(io("open"))?
            }
        };
        let mut dir = dir.clone();
        if self.options.follow {
            let stat = rustix::fs::fstat(fd.as_fd()).map_err(io("fstat"))?;
            let attributes = FileAttributes::of(&stat);
            let id = (attributes.version.dev, attributes.version.inode);
            dir.check_no_loop(&attributes)?; // it may have been moved meanwhile
            let next = dir.above.clone();
            dir = Arc::new(Dir {
                path: dir.path.clone(),
                depth: dir.depth,
                above: Some(Arc::new(Above { id, next })),
            });
        }
        let entries = rustix::fs::Dir::new(fd).map_err(io("open"))?;
        Ok(Listing { dir, entries })
    }

    fn list(&self, mut listing: Listing, found: &mut Found) {
        let mut look = Vec::new();
        for _ in 0..LIST {
            let entry = match listing.entries.read() {
                None => {
                    found.add_look(look);
                    return;
                }
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    let error = Error::io("getdents", error.into());
                    found.entries.push((listing.dir.path.clone(), Err(error)));
                    found.add_look(look);
                    return;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let path: Arc<Path> = listing.dir.path.join(OsStr::from_bytes(name)).into();
            let listed = entry.file_type();
            let unknown = matches!(listed, FileType::Unknown);
            let followed = self.options.follow && matches!(listed, FileType::Symlink);
            if self.options.stat || unknown || followed {
                look.push(Entry {
                    path,
                    listed,
                    dir: listing.dir.clone(),
                });
                if look.len() == LOOK {
                    found.add_look(std::mem::take(&mut look));
                }
            } else {
                found.add(self, path, EntryKind::of(listed), None, &listing.dir);
            }
        }
        found.add_look(look);
        found.listing = Some(listing);
    }

    fn look(&self, entries: Vec<Entry>, found: &mut Found) {
        let flags = match self.options.follow {
            true => AtFlags::empty(),
            false => AtFlags::SYMLINK_NOFOLLOW,
        };
        for (at, entry) in entries.into_iter().enumerate() {
            if self.cancelled.load(Ordering::Relaxed) {
                return;
            }
            if at == 0 && entry.listed == FileType::RegularFile {
                let tried = sys::open_cached(&entry.path, sys::look_flags(self.options.follow));
                if let Ok(tried) = tried {
                    let cold = matches!(tried, CachedOpen::WouldWait);
                    self.cold.store(cold, Ordering::Relaxed);
                }
            }
            let looked = rustix::io::retry_on_intr(|| rustix::fs::statat(CWD, &*entry.path, flags));
            match looked {
                Ok(stat) => {
                    let attributes = FileAttributes::of(&stat);
                    if attributes.kind == EntryKind::Directory
                        && let Err(error) = entry.dir.check_no_loop(&attributes)
                    {
                        found.entries.push((entry.path, Err(error)));
                        continue;
                    }
                    let told = self.options.stat.then_some(attributes);
                    found.add(self, entry.path, attributes.kind, told, &entry.dir);
                }
                Err(error) => {
                    let error = Error::io("stat", error.into());
                    found.entries.push((entry.path, Err(error)));
                }
            }
        }
    }

    /// Nobody waits any more.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        let waker = state.waker.take();
        let left = state.drop_all();
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop((left, ready, waker));
    }

    /// What was not found yet is not; `error` is the last that is told.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = self.lock();
        let left = state.drop_all();
        if self.cancelled.swap(true, Ordering::Relaxed) {
            return;
        }
        let index = state.found;
        state.found += 1;
        state.ready.push_back(FileResult {
            index,
            path: self.options.root.clone(),
            result: Err(error
                .clone()
                .named(&self.options.root.to_string_lossy().into())),
        });
        self.wake(state);
        drop(left);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        let waits = std::mem::take(&mut state.waits);
        drop(state);
        if waits {
            self.arrived.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes up what a step found.
    fn deliver(self: &Arc<Self>, found: Found) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.working = state.working.saturating_sub(1);
        if !self.cancelled.load(Ordering::Relaxed) {
            for (path, result) in found.entries {
                if state.found >= self.options.max_entries {
                    drop(guard);
                    let cap = self.options.max_entries;
                    return self.fail(&Error::new(ErrorKind::TooMany { cap }));
                }
                let index = state.found;
                state.found += 1;
                let named = |error: Error| error.named(&path.to_string_lossy().into());
                state.ready.push_back(FileResult {
                    index,
                    result: result.map_err(named),
                    path,
                });
            }
            state.look.extend(found.look);
            state.listings.extend(found.listing);
            state.dirs.extend(found.dirs);
            let in_task = state.waker.is_some();
            self.engage(state, in_task);
        }
        if !state.ready.is_empty() || state.working == 0 {
            self.wake(guard);
        }
    }
}

impl State {
    /// What is open goes before what is to be opened, so that few are.
    fn pop(&mut self) -> Option<Task> {
        if let Some(entries) = self.look.pop() {
            return Some(Task::Look(entries));
        }
        if let Some(listing) = self.listings.pop() {
            return Some(Task::List(listing));
        }
        self.dirs.pop().map(Task::Open)
    }

    fn waiting(&self) -> usize {
        self.look.len() + self.listings.len() + self.dirs.len()
    }

    /// Whether everything has been found.
    pub(super) fn is_over(&self) -> bool {
        self.waiting() == 0 && self.working == 0
    }

    /// Whether somebody is at work, or will be.
    pub(super) fn is_busy(&self) -> bool {
        self.working > 0 || self.seats > 0
    }

    fn drop_all(&mut self) -> impl Sized + use<> {
        (
            std::mem::take(&mut self.look),
            std::mem::take(&mut self.listings),
            std::mem::take(&mut self.dirs),
        )
    }
}

impl Found {
    fn add_look(&mut self, entries: Vec<Entry>) {
        if !entries.is_empty() {
            self.look.push(entries);
        }
    }

    fn add(
        &mut self,
        walking: &Walking,
        path: Arc<Path>,
        kind: EntryKind,
        attributes: Option<FileAttributes>,
        dir: &Arc<Dir>,
    ) {
        let depth = dir.depth;
        if kind == EntryKind::Directory && depth < walking.options.max_depth {
            self.dirs.push(Arc::new(Dir {
                path: path.clone(),
                depth: depth + 1,
                above: dir.above.clone(),
            }));
        }
        let entry = WalkEntry {
            kind,
            depth,
            attributes,
        };
        self.entries.push((path, Ok(entry)));
    }
}

/// A step; what it found is taken up when it is dropped, also if something panics.
struct Working<'a> {
    walking: &'a Arc<Walking>,
    found: Found,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The thread will not come back.
            let mut state = self.walking.lock();
            state.seats = state.seats.saturating_sub(1);
        }
        self.walking.deliver(std::mem::take(&mut self.found));
    }
}

impl Work for Walking {
    fn step(self: Arc<Self>) -> bool {
        let task = {
            let state = &mut *self.lock();
            let ahead = state.ready.len() >= AHEAD || self.cancelled.load(Ordering::Relaxed);
            let task = if ahead { None } else { state.pop() };
            let Some(task) = task else {
                state.seats = state.seats.saturating_sub(1);
                return false;
            };
            state.working += 1;
            task
        };
        if self.perform(task) {
            return true;
        }
        let mut state = self.lock();
        state.seats = state.seats.saturating_sub(1);
        // Who takes the entries may have counted on this thread.
        self.wake(state);
        false
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        self.fail(error);
        1
    }
}
