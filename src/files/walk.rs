//! What is below a directory.

use std::fmt;
use std::iter::FusedIterator;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::FileResult;
use super::answer::{EntryKind, FileAttributes};
use super::listing::Walking;
use crate::error::{Error, ErrorKind};
use crate::open::Engine;
use crate::reader::Priority;
use crate::sys::Generation;

/// One entry below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WalkEntry {
    /// What it is; what it leads to, where links are followed.
    pub kind: EntryKind,
    /// 1 for an entry of the directory itself, 2 for one of a directory in it.
    pub depth: usize,
    /// What `stat` tells, if it was asked for by [`Walk::stat`].
    pub attributes: Option<FileAttributes>,
}

#[derive(Clone, Debug)]
pub(super) struct WalkOptions {
    pub(super) root: Arc<Path>,
    pub(super) engine: Engine,
    pub(super) priority: Priority,
    pub(super) stat: bool,
    pub(super) follow: bool,
    pub(super) max_depth: usize,
    pub(super) max_entries: u64,
}

/// Finds everything below a directory: all entries of all directories, in no order, the directory itself left out.
///
/// Gives a builder: iterate over it (`into_iter` first, for `filter` and its kin), on a plain thread, or make a [stream](Walk::stream) of
/// it. Directories are listed while entries of others are looked at: by the thread that takes the results and, if there are more
/// processors, by threads of the engine; by up to sixteen if they are not in memory. What cannot be listed or looked at is an error
/// beside its path; it stops nothing (if `dir` itself cannot be listed, that error is the only result). Names need not be UTF-8. Threads
/// leave when 1024 entries are waiting to be taken. Directories that have been found and not been listed are remembered: their paths are
/// all that grows.
///
/// ```
/// use feedwater::{EntryKind, read_files, walk};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// # std::fs::create_dir(dir.join("below"))?;
/// # std::fs::write(dir.join("below/file"), "some bytes")?;
/// let mut found = Vec::new();
/// for entry in walk(dir) {
///     if entry.result?.kind == EntryKind::File {
///         found.push(entry.path);
///     }
/// }
/// for file in read_files(found) {
///     assert_eq!(file.result?.bytes, "some bytes");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn walk(dir: impl AsRef<Path>) -> Walk {
    Walk {
        options: WalkOptions {
            root: dir.as_ref().into(),
            engine: Engine::default(),
            priority: Priority::default(),
            stat: false,
            follow: false,
            max_depth: usize::MAX,
            max_entries: u64::MAX,
        },
    }
}

/// A walk to be made: options, then [`into_iter`](IntoIterator::into_iter) or [`stream`](Self::stream). Made by [`walk`].
#[derive(Clone, Debug)]
#[must_use = "nothing is done before it is iterated over"]
pub struct Walk {
    options: WalkOptions,
}

impl Walk {
    /// Gives the [attributes](WalkEntry::attributes) of each entry as well. Default: only what it is, which most file
    /// systems tell with the name.
    pub fn stat(mut self) -> Self {
        self.options.stat = true;
        self
    }

    /// Tells what a symbolic link leads to and goes there, or gives the link itself (default). If links are followed, one to
    /// nothing is an error, and so is a directory that is found below itself: `ELOOP`.
    pub fn follow_links(mut self, follow: bool) -> Self {
        self.options.follow = follow;
        self
    }

    /// Gives entries down to this depth: 1 for those of the directory itself. Default: all.
    pub fn max_depth(mut self, depth: usize) -> Self {
        self.options.max_depth = depth;
        self
    }

    /// Most entries, errors included. If there are more, the last result is the error
    /// [`TooMany`](ErrorKind::TooMany). Default: no bound.
    pub fn max_entries(mut self, entries: u64) -> Self {
        self.options.max_entries = entries;
        self
    }

    /// Works with the threads of `engine`. Default: [`Engine::default`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.options.engine = engine;
        self
    }

    /// Whose work goes first. Default: [`Priority::Foreground`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }

    /// The same for tasks, on any executor: all is done by threads of the engine.
    pub fn stream(self) -> WalkStream {
        WalkStream(self.into_iter())
    }
}

impl IntoIterator for Walk {
    type Item = FileResult<WalkEntry>;
    type IntoIter = Entries;

    fn into_iter(self) -> Entries {
        let root = self.options.root.clone();
        Entries {
            walking: Walking::new(&root, self.options),
            generation: Generation::current(),
            over: false,
            root,
        }
    }
}

/// What is below a directory: blocks its thread until the next entry. Made by [`Walk`].
pub struct Entries {
    walking: Arc<Walking>,
    root: Arc<Path>,
    generation: Generation,
    over: bool,
}

impl Entries {
    fn turn(&mut self, cx: Option<&mut Context<'_>>) -> Poll<Option<FileResult<WalkEntry>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if !self.generation.is_current() {
            self.over = true;
            return Poll::Ready(Some(FileResult {
                index: 0,
                path: self.root.clone(),
                result: Err(
                    Error::new(ErrorKind::Forked).named(&self.root.to_string_lossy().into())
                ),
            }));
        }
        let in_task = cx.is_some();
        let walking = self.walking.clone();
        loop {
            let mut guard = walking.lock();
            let state = &mut *guard;
            if let Some(entry) = state.ready.pop_front() {
                walking.engage(state, in_task);
                return Poll::Ready(Some(entry));
            }
            if state.is_over() {
                self.over = true;
                return Poll::Ready(None);
            }
            if walking.is_shut_down() {
                drop(guard);
                walking.fail(&Error::new(ErrorKind::Abandoned));
                continue;
            }
            walking.engage(state, in_task);
            let no_threads = state.no_threads.clone().filter(|_| !state.is_busy());
            if !in_task && (!walking.is_cold() || no_threads.is_some()) {
                drop(guard);
                if walking.step_here() {
                    continue;
                }
                // All of it is with others.
                guard = walking.lock();
                if !guard.ready.is_empty() || guard.is_over() {
                    continue;
                }
                if !guard.is_busy() {
                    continue;
                }
            } else if let (true, Some(error)) = (in_task, no_threads) {
                drop(guard);
                walking.fail(&error);
                continue;
            }
            match &cx {
                Some(cx) => {
                    let old = guard.waker.replace(cx.waker().clone());
                    drop(guard);
                    drop(old);
                    return Poll::Pending;
                }
                None => drop(walking.wait(guard)),
            }
        }
    }
}

impl Iterator for Entries {
    type Item = FileResult<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.turn(None) {
            Poll::Ready(next) => next,
            Poll::Pending => None, // not without a task
        }
    }
}

impl FusedIterator for Entries {}

impl Drop for Entries {
    fn drop(&mut self) {
        // After a fork another thread's hold on the lock may never end here.
        if self.generation.is_current() {
            self.walking.cancel();
        }
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

/// See [`Walk::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct WalkStream(Entries);

impl Stream for WalkStream {
    type Item = FileResult<WalkEntry>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.turn(Some(cx))
    }
}
