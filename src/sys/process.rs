//! Values of which a process has one, made anew in a child after a fork.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::fork::Generation;

/// Like a `OnceLock`, but a forked child gets a value of its own: locks in the parent's could be held there by
/// threads that do not exist here. Values are never freed.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<(Generation, T)>);

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value of this process, if there is one. Takes no lock.
    #[cfg_attr(
        any(
            not(feature = "io-uring"),
            not(target_os = "linux"),
            feedwater_portable
        ),
        allow(dead_code)
    )]
    pub(crate) fn peek(&self) -> Option<&'static T> {
        // SAFETY: null, or a leaked box that was published with `Release` below.
        let (generation, value) = unsafe { self.0.load(Ordering::Acquire).as_ref::<'static>() }?;
        generation.is_current().then_some(value)
    }

    /// The value of this process; made by `make` if there is none. Takes no lock.
    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &'static T {
        let now = Generation::current();
        let old = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a leaked box that was published with `Release` below.
        if let Some((generation, value)) = unsafe { old.as_ref::<'static>() }
            && *generation == now
        {
            return value;
        }
        let new = Box::into_raw(Box::new((now, make())));
        match self
            .0
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
        {
            // SAFETY: just leaked, never freed from now on.
            Ok(_) => unsafe { &(*new).1 },
            Err(winner) => {
                // SAFETY: `new` lost and was seen by nobody; `winner` was published by another thread of this
                // process (only they run here) and is never freed.
                unsafe {
                    drop(Box::from_raw(new));
                    &(*winner).1
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn all_threads_see_one_value() {
        static CELL: PerProcess<usize> = PerProcess::new();
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let threads: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(|| CELL.get(|| MADE.fetch_add(1, Ordering::Relaxed))))
            .collect();
        let values: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert!(values.iter().all(|v| std::ptr::eq(*v, values[0])));
    }
}
