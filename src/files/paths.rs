//! Paths as they are taken, by one taker or by several who share them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::Poll;

/// Paths that have not been taken.
pub(super) enum Paths<I> {
    Own(Numbered<I>),
    /// With other takers.
    Shared(Arc<Mutex<Numbered<I>>>),
}

/// An iterator that is not asked again once it has ended, and how many of its paths were given.
pub(super) struct Numbered<I> {
    iter: Option<I>,
    given: u64,
    /// What it gave before it panicked, for who asks next.
    left: Vec<Arc<Path>>,
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
            // A panic of the iterator left what it gave before, for this taker.
            Paths::Shared(shared) => shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(most),
        }
    }

    /// One more and its number, for a process in which nobody may hold the others up; `Pending` if another taker has the paths now, who may
    /// have them for ever there.
    pub(super) fn take_one_at_once(&mut self) -> Poll<Option<(u64, Arc<Path>)>> {
        let (number, mut one) = match self {
            Paths::Own(paths) => paths.take(1),
            Paths::Shared(shared) => match shared.try_lock() {
                Ok(mut paths) => paths.take(1),
                Err(TryLockError::Poisoned(paths)) => paths.into_inner().take(1),
                Err(TryLockError::WouldBlock) => return Poll::Pending,
            },
        };
        Poll::Ready(one.pop().map(|path| (number, path)))
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
            given: 0,
            left: Vec::new(),
        }
    }

    fn take(&mut self, most: usize) -> (u64, Vec<Arc<Path>>) {
        let first = self.given;
        self.left.reserve(most.saturating_sub(self.left.len()));
        while self.left.len() < most
            && let Some(iter) = &mut self.iter
        {
            match iter.next() {
                Some(path) => self.left.push(path.as_ref().into()),
                None => self.iter = None,
            }
        }
        // Only now: if the iterator panics, none of these was given, and none is lost.
        let later = self.left.split_off(most.min(self.left.len()));
        let taken = std::mem::replace(&mut self.left, later);
        self.given += taken.len() as u64;
        (first, taken)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    #[test]
    fn paths_that_another_taker_has_are_no_end_of_them() {
        let mut parts = Paths::shared(["a", "b"].iter(), 2);
        let Some(Paths::Shared(of_others)) = parts.pop() else {
            panic!("they are shared");
        };
        let mut part = parts.pop().unwrap();
        let held = of_others.lock().unwrap();
        assert_eq!(part.take_one_at_once(), Poll::Pending);
        drop(held);
        for (number, path) in (0..).zip(["a", "b"]) {
            let one = Some((number, Path::new(path).into()));
            assert_eq!(part.take_one_at_once(), Poll::Ready(one));
        }
        assert_eq!(part.take_one_at_once(), Poll::Ready(None));
    }

    #[test]
    fn a_panic_of_the_iterator_loses_no_path_and_moves_no_number() {
        let paths = (0..7).map(|number| {
            if number == 3 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            number.to_string()
        });
        let mut parts = Paths::shared(paths, 2);
        let (mut one, mut other) = (parts.pop().unwrap(), parts.pop().unwrap());
        let numbers = |(first, taken): (u64, Vec<Arc<Path>>)| {
            let texts = taken.iter().map(|path| path.to_string_lossy().into_owned());
            (first, texts.collect::<Vec<_>>().join(" "))
        };
        assert_eq!(numbers(one.take(1)), (0, "0".into()));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.take(5)));
        assert!(panicked.is_err());
        assert_eq!(numbers(other.take(1)), (1, "1".into()));
        assert_eq!(numbers(other.take(3)), (2, "2 4 5".into()));
        assert_eq!(numbers(one.take(3)), (5, "6".into()));
        assert_eq!(numbers(other.take(3)), (6, String::new()));
    }
}
