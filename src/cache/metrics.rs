//! What the cache did, counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A snapshot of what a cache did since it was made. Each number only grows, except the last two.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheMetrics {
    /// Questions answered from memory. Whether there are marks of a page, which scans to a GPU ask, is none of them, nor a miss if there are not.
    pub hits: u64,
    /// Questions for which the backend was asked, or another thread that was asking it already.
    pub misses: u64,
    /// Misses for which there was an answer, but one too old, or of another version. Part of the misses.
    pub stale: u64,
    /// Calls of the backend: one for each `stat`, `list`, `stat_many` and `fetch`.
    pub backend_calls: u64,
    /// Names for which the backend was asked, or which it told.
    pub backend_entries: u64,
    /// Calls of the backend that failed.
    pub backend_failures: u64,
    /// Passes over directories that were begun.
    pub prefetch_passes: u64,
    /// Children whose attributes passes brought.
    pub prefetched: u64,
    /// Children of those that were asked for while they were there.
    pub prefetch_useful: u64,
    /// Children of those that were gone (evicted, too old, invalidated) before anybody asked.
    pub prefetch_wasted: u64,
    /// Times the trigger switched itself off for a root.
    pub prefetch_switched_off: u64,
    /// Entries that had to go for others.
    pub evictions: u64,
    /// Entries that were dropped since their content may have changed.
    pub invalidations: u64,
    /// Answers that were handed out and not kept: larger than an entry may be, or no room for one more load in flight.
    pub bypassed: u64,
    /// Entries that are kept.
    pub entries: u64,
    /// Bytes that entries, loads in flight and the memory of what left take; never above the bound.
    pub bytes: u64,
}

impl CacheMetrics {
    /// Hits of all questions, from 0 to 1; 0 where there were none.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits.saturating_add(self.misses);
        if all == 0 {
            return 0.0;
        }
        self.hits as f64 / all as f64
    }
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) hits: Spread,
    pub(crate) misses: Count,
    pub(crate) stale: Count,
    pub(crate) backend_calls: Count,
    pub(crate) backend_entries: Count,
    pub(crate) backend_failures: Count,
    pub(crate) prefetch_passes: Count,
    pub(crate) prefetched: Count,
    pub(crate) prefetch_useful: Count,
    pub(crate) prefetch_wasted: Count,
    pub(crate) prefetch_switched_off: Count,
    pub(crate) evictions: Count,
    pub(crate) invalidations: Count,
    pub(crate) bypassed: Count,
}

impl Metrics {
    pub(crate) fn snapshot(&self, entries: u64, bytes: u64) -> CacheMetrics {
        CacheMetrics {
            hits: self.hits.sum(),
            misses: self.misses.get(),
            stale: self.stale.get(),
            backend_calls: self.backend_calls.get(),
            backend_entries: self.backend_entries.get(),
            backend_failures: self.backend_failures.get(),
            prefetch_passes: self.prefetch_passes.get(),
            prefetched: self.prefetched.get(),
            prefetch_useful: self.prefetch_useful.get(),
            prefetch_wasted: self.prefetch_wasted.get(),
            prefetch_switched_off: self.prefetch_switched_off.get(),
            evictions: self.evictions.get(),
            invalidations: self.invalidations.get(),
            bypassed: self.bypassed.get(),
            entries,
            bytes,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter in several places, so that threads that all hit do not fight for one cache line.
#[derive(Debug, Default)]
pub(crate) struct Spread([Line; LINES]);

const LINES: usize = 16;

#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

impl Spread {
    pub(crate) fn add_one(&self) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        let mine = MINE.get();
        let mine = if mine == usize::MAX {
            let new = NEXT.fetch_add(1, Ordering::Relaxed) % LINES;
            MINE.set(new);
            new
        } else {
            mine
        };
        if let Some(line) = self.0.get(mine) {
            line.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.0
            .iter()
            .map(|line| line.0.load(Ordering::Relaxed))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hit_is_lost_between_threads() {
        let spread = Spread::default();
        std::thread::scope(|scope| {
            for _ in 0..LINES + 3 {
                scope.spawn(|| (0..1000).for_each(|_| spread.add_one()));
            }
        });
        assert_eq!(spread.sum(), 1000 * (LINES as u64 + 3));
    }

    #[test]
    fn the_rate_of_nothing_is_nothing() {
        assert_eq!(CacheMetrics::default().hit_rate(), 0.0);
        let three_of_four = CacheMetrics {
            hits: 3,
            misses: 1,
            ..CacheMetrics::default()
        };
        assert_eq!(three_of_four.hit_rate(), 0.75);
    }
}
