//! Paths as they are taken, by one taker or by several who share them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Paths that have not been taken.
pub(super) enum Paths<I> {
    Own(Numbered<I>),
    /// With other takers.
    Shared(Arc<Mutex<Numbered<I>>>),
}

/// An iterator that is not asked again once it has ended, and how many of its paths were given.
pub(super) struct Numbered<I> {
    iter: Option<I>,
    /// Taken from the iterator before it panicked, and not given.
    kept: VecDeque<Arc<Path>>,
    given: u64,
}

impl<I> Paths<I>
where
    I: Iterator,
    I::Item: AsRef<Path>,
{
    pub(super) fn own(iter: I) -> Self {
        Paths::Own(Numbered::new(iter))
    }

    /// So many takers of the same paths.
    pub(super) fn shared(iter: I, takers: usize) -> Vec<Self> {
        let shared = Arc::new(Mutex::new(Numbered::new(iter)));
        (0..takers).map(|_| Paths::Shared(shared.clone())).collect()
    }

    /// The next `most` paths, or as many as there are, and the number of the first.
    pub(super) fn take(&mut self, most: usize) -> (u64, Vec<Arc<Path>>) {
        match self {
            Paths::Own(paths) => paths.take(most),
            // If the iterator panicked, what it gave before is kept.
            Paths::Shared(shared) => shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(most),
        }
    }

    /// One more, for a process in which nobody may hold the others up: `None` also if another taker has the paths now.
    pub(super) fn take_one_at_once(&mut self) -> Option<Arc<Path>> {
        let (_, mut one) = match self {
            Paths::Own(paths) => paths.take(1),
            Paths::Shared(shared) => match shared.try_lock() {
                Ok(mut paths) => paths.take(1),
                Err(TryLockError::Poisoned(paths)) => paths.into_inner().take(1),
                Err(TryLockError::WouldBlock) => return None,
            },
        };
        one.pop()
    }
}

impl<I> Numbered<I>
where
    I: Iterator,
    I::Item: AsRef<Path>,
{
    fn new(iter: I) -> Self {
        Numbered {
            iter: Some(iter),
            kept: VecDeque::new(),
            given: 0,
        }
    }

    fn take(&mut self, most: usize) -> (u64, Vec<Arc<Path>>) {
        while self.kept.len() < most
            && let Some(iter) = &mut self.iter
        {
            match iter.next() {
                Some(path) => self.kept.push_back(path.as_ref().into()),
                None => self.iter = None,
            }
        }
        let first = self.given;
        let taken: Vec<_> = self.kept.drain(..most.min(self.kept.len())).collect();
        self.given += taken.len() as u64;
        (first, taken)
    }
}
