//! A file system in memory that counts, fails, panics and waits as a test wants it.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use feedwater::cache::{Attributes, CacheOptions, Detail, ListEntry, ManualClock, MetadataBackend};
use feedwater::{EntryKind, Error, Result, Version};

type Hook = Box<dyn Fn(&Path) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Fake {
    files: Mutex<BTreeMap<PathBuf, u64>>,
    pub(crate) stats: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) fetched: AtomicU64,
    /// Run in each stat and list, after the answer was found out.
    hook: Mutex<Option<Arc<Hook>>>,
    /// Run in each fetch, before it is counted.
    fetch_hook: Mutex<Option<Arc<Hook>>>,
    /// Whether listings come without attributes.
    pub(crate) bare: bool,
    /// Whether fetches say that they brought more than there can be.
    pub(crate) boasts: AtomicBool,
    /// Whether batches lack an answer.
    pub(crate) short: AtomicBool,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl Fake {
    pub(crate) fn with<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        let fake = Fake::default();
        for path in paths {
            fake.put(path, 1);
        }
        fake
    }

    /// The version is also the size.
    pub(crate) fn put(&self, path: impl AsRef<Path>, version: u64) {
        let path = path.as_ref().to_owned();
        self.files.lock().unwrap().insert(path, version);
    }

    pub(crate) fn remove(&self, path: impl AsRef<Path>) {
        self.files.lock().unwrap().remove(path.as_ref());
    }

    pub(crate) fn on_call(&self, hook: impl Fn(&Path) + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    pub(crate) fn on_fetch(&self, hook: impl Fn(&Path) + Send + Sync + 'static) {
        *self.fetch_hook.lock().unwrap() = Some(Arc::new(Box::new(hook)));
    }

    pub(crate) fn stats(&self) -> u64 {
        self.stats.load(Ordering::SeqCst)
    }

    pub(crate) fn lists(&self) -> u64 {
        self.lists.load(Ordering::SeqCst)
    }

    fn find(&self, path: &Path) -> Option<Attributes> {
        let files = self.files.lock().unwrap();
        match files.get(path) {
            Some(version) => Some(attributes(*version)),
            None => files
                .keys()
                .any(|file| file.starts_with(path))
                .then(|| Attributes::new(EntryKind::Directory, tag(0))),
        }
    }

    fn call(&self, path: &Path) {
        let hook = self.hook.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(path);
        }
    }
}

pub(crate) fn tag(version: u64) -> Version {
    Version::Etag {
        etag: version.to_string().into(),
        size: version,
    }
}

pub(crate) fn attributes(version: u64) -> Attributes {
    Attributes::new(EntryKind::File, tag(version))
}

impl MetadataBackend for Fake {
    fn stat(&self, path: &Path) -> Result<Attributes> {
        self.stats.fetch_add(1, Ordering::SeqCst);
        let found = self.find(path);
        self.call(path);
        found.ok_or_else(|| absent(path))
    }

    fn list(
        &self,
        dir: &Path,
        detail: Detail,
        each: &mut dyn FnMut(ListEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let children: BTreeMap<Vec<u8>, PathBuf> = self
            .files
            .lock()
            .unwrap()
            .keys()
            .filter_map(|file| {
                let name = file.strip_prefix(dir).ok()?.components().next()?;
                let name = name.as_os_str().as_bytes().to_vec();
                Some((name.clone(), dir.join(std::ffi::OsStr::from_bytes(&name))))
            })
            .collect();
        self.call(dir);
        if children.is_empty() {
            return Err(absent(dir));
        }
        for (name, path) in children {
            let Some(found) = self.find(&path) else {
                continue;
            };
            let told = (detail == Detail::Attributes && !self.bare).then(|| found.clone());
            if each(ListEntry::new(&name, found.kind, told)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn stat_many(&self, paths: &[PathBuf]) -> Vec<Result<Attributes>> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        self.call(Path::new("many"));
        let one = |path: &PathBuf| self.find(path).ok_or_else(|| absent(path));
        let missing = usize::from(self.short.load(Ordering::SeqCst));
        let answered = paths.len() - missing;
        paths.iter().take(answered).map(one).collect()
    }

    fn fetch(&self, path: &Path, limit: u64) -> Result<u64> {
        let size = self.find(path).ok_or_else(|| absent(path))?.size();
        let bytes = size.min(limit);
        let hook = self.fetch_hook.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(path);
        }
        self.fetched.fetch_add(bytes, Ordering::SeqCst);
        match self.boasts.load(Ordering::SeqCst) {
            true => Ok(u64::MAX),
            false => Ok(bytes),
        }
    }
}

fn absent(path: &Path) -> Error {
    Error::io("stat", io::ErrorKind::NotFound.into()).named(&path.to_string_lossy().into())
}

/// Options over a fake and a clock that stands still.
pub(crate) fn options(fake: &Arc<Fake>, clock: &Arc<ManualClock>) -> CacheOptions {
    CacheOptions::new()
        .backend(fake.clone())
        .clock(clock.clone())
}

/// A door that is shut until it is opened, and tells how many stand before it.
#[derive(Default)]
pub(crate) struct Door {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Door {
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            state = self.changed.wait(state).unwrap();
        }
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// Waits until so many came.
    pub(crate) fn came(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        while state.1 < count {
            state = self.changed.wait(state).unwrap();
        }
    }
}
