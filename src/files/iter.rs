//! The one who takes the results: an iterator for a thread, a stream for a task.

use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::FileResult;
use super::desk::Task;
use super::job::Job;
use super::kind::Answer;
use super::options::Options;
use super::paths::Paths;
use super::ready::Done;
use super::report::{FilesReport, FilesWay};
use crate::error::{Error, ErrorKind, Refusal};
use crate::open::no_rings;
use crate::sys::Generation;

/// Paths taken at once.
const PULL: usize = 32;

/// Files that are in memory are taken up so far ahead.
const WARM_WINDOW: usize = 128;

/// The index of what is said of no path.
const NO_PATH: u64 = u64::MAX;

/// What became of many files: blocks its thread until the next result. Made by [`ManyFiles`](super::ManyFiles).
///
/// Dropped before the end it waits for nothing: what has not been begun is not, and what was opened is closed.
pub struct Files<I, T: Answer> {
    /// `None`: there are no more.
    paths: Option<Paths<I>>,
    job: Arc<Job<T>>,
    /// Paths taken.
    begun: u64,
    /// Those whose results were not given, with their numbers, in their order.
    outstanding: VecDeque<(u64, Arc<Path>)>,
    generation: Generation,
}

impl<I, T> Files<I, T>
where
    I: Iterator,
    I::Item: AsRef<Path>,
    T: Answer,
{
    pub(super) fn new(paths: Paths<I>, options: Options) -> Self {
        let refused = match options.only {
            Some(FilesWay::Rings) if !T::RINGS => Some(Refusal::NotForThisFile {
                what: "rings read files, and do nothing else with many of them".into(),
            }),
            Some(FilesWay::Rings) => no_rings(),
            _ => None,
        };
        let job = Job::new(options);
        if let Some(why) = refused {
            let engine = FilesWay::Rings.engine();
            job.fail(&Error::new(ErrorKind::Unavailable { engine, why }));
        }
        Files {
            paths: Some(paths),
            job,
            begun: 0,
            outstanding: VecDeque::new(),
            generation: Generation::current(),
        }
    }

    /// Takes some more paths, if there is room for them. `false`: there is none, or there are no more.
    fn pull(&mut self) -> bool {
        let most = self.job.desk.options.window_files;
        let most = match self.job.is_cold() {
            true => most,
            false => most.min(WARM_WINDOW),
        };
        let outstanding = self.outstanding.len();
        // Many at once, so that threads are woken for many.
        let room = most.saturating_sub(outstanding).min(PULL);
        if room == 0 || (room < PULL.min(most) && outstanding > 0) {
            return false;
        }
        let Some(paths) = &mut self.paths else {
            return false;
        };
        let (number, taken) = paths.take(room);
        if taken.len() < room {
            self.paths = None;
        }
        let turns = self.begun..;
        let tasks: Vec<_> = std::iter::zip(number.., taken)
            .zip(turns)
            .map(|((number, path), turn)| Task::new(turn, number, path))
            .collect();
        // Only now: if the caller's iterator panics, nobody waits for what was never begun.
        self.begun += tasks.len() as u64;
        let numbered = tasks.iter().map(|task| (task.number, task.path.clone()));
        self.outstanding.extend(numbered);
        let over = {
            let mut state = self.job.lock();
            state.queue.extend(tasks);
            if self.job.desk.options.engine.is_shut_down() && state.over.is_none() {
                state.over = Some(Error::new(ErrorKind::Abandoned));
            }
            state.over.clone()
        };
        if let Some(error) = over {
            self.job.fail(&error);
        }
        true
    }

    fn give(&mut self, done: Done<T>) -> FileResult<T> {
        let number = |(number, _): &(u64, _)| *number;
        if let Ok(at) = self
            .outstanding
            .binary_search_by_key(&done.file.index, number)
        {
            self.outstanding.remove(at);
        }
        self.job.desk.release(done.held);
        done.file
    }

    /// The next result; waits for it on this thread, or (`Pending`) lets the task be woken.
    fn turn(&mut self, cx: Option<&mut Context<'_>>) -> Poll<Option<FileResult<T>>> {
        if !self.generation.is_current() {
            return Poll::Ready(self.forked());
        }
        let in_task = cx.is_some();
        loop {
            let pulled = self.pull();
            let job = self.job.clone();
            let mut guard = job.lock();
            let state = &mut *guard;
            if let Some(done) = state.ready.pop() {
                let head = state.ready.head();
                job.desk
                    .head
                    .store(head, std::sync::atomic::Ordering::Relaxed);
                let given = self.give(done);
                job.unpark(state);
                let portion = job.engage(state);
                drop(guard);
                job.send(portion);
                return Poll::Ready(Some(given));
            }
            if self.outstanding.is_empty() {
                if self.paths.is_none() {
                    return Poll::Ready(None);
                }
                continue;
            }
            job.unpark(state);
            if let Some(task) = job.task_for_taker(state, in_task) {
                let patience = job.patience(state, &task, in_task);
                drop(guard);
                let attempt = T::attempt(&job.desk, &task, patience);
                job.tried(&mut job.lock(), task, attempt);
                continue;
            }
            if pulled {
                continue; // as many as there is room for, before anybody waits
            }
            if let Some(portion) = job.engage(state) {
                drop(guard);
                job.send(Some(portion));
                continue;
            }
            if let (Some(error), true) = (state.no_threads.clone(), !state.is_busy()) {
                // Whoever may wait does it itself.
                if in_task {
                    drop(guard);
                    job.fail(&error);
                }
                continue;
            }
            match &cx {
                Some(cx) => {
                    let old = state.waker.replace(cx.waker().clone());
                    drop(guard);
                    drop(old);
                    return Poll::Pending;
                }
                None => drop(job.wait(guard)),
            }
        }
    }

    /// In a forked child: what was begun is the parent's. Told once, of the next path, or of the last one that was begun
    /// and not given.
    fn forked(&mut self) -> Option<FileResult<T>> {
        let next = self.paths.take().map(|mut paths| paths.take_one_at_once());
        let last = std::mem::take(&mut self.outstanding).pop_back();
        if last.is_none() && matches!(next, None | Some(Poll::Ready(None))) {
            return None;
        }
        let next = match next {
            Some(Poll::Ready(next)) => next,
            Some(Poll::Pending) | None => None,
        };
        let error = Error::new(ErrorKind::Forked);
        let (index, path, error) = match next.or(last) {
            Some((index, path)) => {
                let error = error.named(&path.to_string_lossy().into());
                (index, path, error)
            }
            // Another taker had the paths when the process was forked, and this one has none: the error is of no path.
            None => (NO_PATH, Path::new("").into(), error),
        };
        Some(FileResult {
            index,
            path,
            result: Err(error),
        })
    }
}

impl<I, T: Answer> Files<I, T> {
    /// What was done so far, and by which way.
    pub fn report(&self) -> FilesReport {
        match self.generation.is_current() {
            true => self.job.report(),
            false => FilesReport::default(),
        }
    }
}

impl<I, T> Iterator for Files<I, T>
where
    I: Iterator,
    I::Item: AsRef<Path>,
    T: Answer,
{
    type Item = FileResult<T>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.turn(None) {
            Poll::Ready(next) => next,
            Poll::Pending => None, // not without a task
        }
    }
}

impl<I, T> FusedIterator for Files<I, T>
where
    I: Iterator,
    I::Item: AsRef<Path>,
    T: Answer,
{
}

impl<I, T: Answer> Drop for Files<I, T> {
    fn drop(&mut self) {
        // After a fork another thread's hold on the lock may never end here.
        if self.generation.is_current() {
            self.job.cancel();
        }
    }
}

impl<I, T: Answer> fmt::Debug for Files<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("begun", &self.begun)
            .field("outstanding", &self.outstanding.len())
            .finish_non_exhaustive()
    }
}

/// See [`ManyFiles::stream`](super::ManyFiles::stream).
#[must_use = "streams do nothing unless polled"]
pub struct FileStream<I, T: Answer>(Files<I, T>);

impl<I, T: Answer> FileStream<I, T> {
    pub(super) fn new(files: Files<I, T>) -> Self {
        FileStream(files)
    }

    /// What was done so far, and by which way.
    pub fn report(&self) -> FilesReport {
        self.0.report()
    }
}

/// Nothing in it is pinned.
impl<I, T: Answer> Unpin for FileStream<I, T> {}

impl<I, T> Stream for FileStream<I, T>
where
    I: Iterator,
    I::Item: AsRef<Path>,
    T: Answer,
{
    type Item = FileResult<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.turn(Some(cx))
    }
}

impl<I, T: Answer> fmt::Debug for FileStream<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileStream").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::num::NonZeroUsize;
    use std::path::Path;
    use std::sync::Arc;

    use super::{Files, NO_PATH};
    use crate::error::{Error, ErrorKind};
    use crate::files::paths::Paths;
    use crate::files::ready::Done;
    use crate::files::{FileContent, FileResult, read_files};

    type Content<'a> = Files<std::slice::Iter<'a, &'a str>, FileContent>;

    /// As when a file of this number was read.
    fn give(files: &mut Content<'_>, index: u64) {
        let path: Arc<Path> = Path::new("").into();
        let result = Err(Error::new(ErrorKind::Abandoned));
        files.give(Done {
            turn: index,
            file: FileResult {
                index,
                path,
                result,
            },
            held: 0,
        });
    }

    fn told(files: &mut Content<'_>) -> (u64, String) {
        let told = files.forked().unwrap();
        assert!(matches!(told.result.unwrap_err().kind(), ErrorKind::Forked));
        assert!(files.forked().is_none());
        (told.index, told.path.to_string_lossy().into_owned())
    }

    #[test]
    fn a_child_is_told_of_a_path_whose_result_was_not_given() {
        let paths = ["a", "b", "c"];
        for (given, last) in [
            (&[][..], Some((2, "c"))),
            (&[2], Some((1, "b"))),
            (&[1, 2], Some((0, "a"))),
            (&[0, 1], Some((2, "c"))),
            (&[2, 0, 1], None),
        ] {
            let mut files = read_files(&paths).into_iter();
            assert!(files.pull());
            given.iter().for_each(|index| give(&mut files, *index));
            match last {
                Some((index, path)) => assert_eq!(told(&mut files), (index, path.into())),
                None => assert!(files.forked().is_none()),
            }
        }
    }

    /// It may have them for ever in the child.
    #[test]
    fn where_another_taker_has_the_paths_no_path_is_told_twice() {
        let paths = ["a", "b", "c", "d"];
        let window = NonZeroUsize::MIN.saturating_add(3);
        let two = NonZeroUsize::MIN.saturating_add(1);
        for (given, last) in [(&[1][..], (0, "a")), (&[0, 1], (NO_PATH, ""))] {
            let mut parts = read_files(&paths).window_files(window).split(two);
            let (other, mut files) = (parts.pop().unwrap(), parts.pop().unwrap());
            assert!(files.pull());
            given.iter().for_each(|index| give(&mut files, *index));
            let Some(Paths::Shared(of_others)) = &other.paths else {
                panic!("they are shared");
            };
            let held = of_others.lock().unwrap();
            assert_eq!(told(&mut files), (last.0, last.1.into()));
            drop(held);
        }
    }

    #[test]
    fn parts_share_what_one_would_have() {
        let three = NonZeroUsize::MIN.saturating_add(2);
        let window = NonZeroUsize::MIN.saturating_add(29);
        let many = read_files(["a", "b"]).window_files(window);
        let parts = many.window_bytes(3000).split(three);
        assert_eq!(parts.len(), 3);
        for part in parts {
            let options = &part.job.desk.options;
            assert_eq!(
                (options.parts, options.window_files, options.window_bytes),
                (3, 10, 1000)
            );
        }
    }
}
