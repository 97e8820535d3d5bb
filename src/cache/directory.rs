//! The trigger: which directories were asked for often enough of late. A bounded table with O(1) state for each.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock::nanos;
use super::options::{MOST_HITS, PrefetchOptions};

/// Directories of one set, of which the one without an access for longest is forgotten first.
const WAYS: usize = 4;

#[derive(Debug)]
pub(crate) struct Directories {
    sets: Box<[Set]>,
    hits: usize,
    window: u64,
    depth: u32,
}

#[derive(Debug, Default)]
struct Set {
    /// Directories whose accesses need not be noted while they hit: they were fetched, or their root is off.
    resting: [AtomicU64; WAYS],
    slots: Mutex<[Slot; WAYS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Hash of the directory's path; 0 if the slot is free.
    dir: u64,
    /// How many of the last accesses are noted.
    noted: u8,
    /// Where the next one goes.
    next: u8,
    depths: [u8; MOST_HITS],
    times: [u64; MOST_HITS],
    last: u64,
}

/// What the trigger knows of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) within_window: usize,
    pub(crate) mean_depth: f64,
    pub(crate) resting: bool,
}

impl Directories {
    pub(crate) fn new(options: &PrefetchOptions) -> Self {
        // Where nothing is fetched ahead, nothing is watched.
        let watched = match options.roots.is_empty() {
            true => 1,
            false => options.directories,
        };
        let sets = watched.div_ceil(WAYS).next_power_of_two();
        Directories {
            sets: (0..sets).map(|_| Set::default()).collect(),
            hits: options.hits,
            window: nanos(options.window),
            depth: options.depth,
        }
    }

    /// Notes an access that hit. True if that begins a pass. Free while the directory rests.
    pub(crate) fn hit(&self, dir: u64, depth: u32, now: u64) -> bool {
        let set = self.set(dir);
        let rests = set.resting.iter().any(|r| r.load(Ordering::Relaxed) == dir);
        !rests && self.note(set, dir, depth, now)
    }

    /// Notes an access that missed, which ends the directory's rest. True if that begins a pass.
    pub(crate) fn missed(&self, dir: u64, depth: u32, now: u64) -> bool {
        self.note(self.set(dir), dir, depth, now)
    }

    /// Accesses that hit are not noted until one misses.
    pub(crate) fn rest(&self, dir: u64) {
        let set = self.set(dir);
        let slots = set.slots();
        let place = slots.iter().position(|slot| slot.dir == dir);
        if let Some(mark) = place.and_then(|place| set.resting.get(place)) {
            mark.store(dir, Ordering::Relaxed);
        }
    }

    /// What is known at `now`.
    pub(crate) fn seen(&self, dir: u64, now: u64) -> Option<Seen> {
        let set = self.set(dir);
        let slots = set.slots();
        let (slot, mark) = slots
            .iter()
            .zip(&set.resting)
            .find(|(slot, _)| slot.dir == dir)?;
        let (within_window, mean_depth) = slot.within(now, self.window, self.hits);
        Some(Seen {
            within_window,
            mean_depth,
            resting: mark.load(Ordering::Relaxed) == dir,
        })
    }

    fn set(&self, dir: u64) -> &Set {
        // A power of two, so never empty.
        let index = (dir as usize) & (self.sets.len() - 1);
        #[allow(clippy::indexing_slicing)]
        &self.sets[index]
    }

    fn note(&self, set: &Set, dir: u64, depth: u32, now: u64) -> bool {
        let mut slots = set.slots();
        let place = match slots.iter().position(|slot| slot.dir == dir) {
            Some(place) => place,
            None => {
                // A free one first: at the beginning of the clock, the others are as old.
                let oldest = |place: &usize| slots.get(*place).map(|s| (s.dir != 0, s.last));
                (0..WAYS).min_by_key(oldest).unwrap_or(0)
            }
        };
        let (Some(slot), Some(mark)) = (slots.get_mut(place), set.resting.get(place)) else {
            return false;
        };
        if slot.dir != dir {
            *slot = Slot {
                dir,
                ..Slot::default()
            };
        }
        if mark.load(Ordering::Relaxed) != 0 {
            mark.store(0, Ordering::Relaxed);
        }
        slot.push(depth, now, self.hits);
        let (within, mean) = slot.within(now, self.window, self.hits);
        if within < self.hits || mean < f64::from(self.depth) {
            return false;
        }
        // Begin anew: what led to this pass leads to no other.
        slot.noted = 0;
        slot.next = 0;
        true
    }
}

impl Set {
    fn slots(&self) -> MutexGuard<'_, [Slot; WAYS]> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn push(&mut self, depth: u32, now: u64, ring: usize) {
        let next = usize::from(self.next);
        if let (Some(time), Some(at)) = (self.times.get_mut(next), self.depths.get_mut(next)) {
            *time = now;
            *at = u8::try_from(depth).unwrap_or(u8::MAX);
        }
        self.next = ((next + 1) % ring) as u8; // 8 at most
        self.noted = self.noted.saturating_add(1).min(ring as u8);
        self.last = now;
    }

    /// Of the last `ring` accesses: how many lie within the window, and how deep those are on average.
    fn within(&self, now: u64, window: u64, ring: usize) -> (usize, f64) {
        let noted = usize::from(self.noted);
        let next = usize::from(self.next);
        let places: [usize; MOST_HITS] =
            array::from_fn(|back| (next + ring - 1 - back % ring) % ring);
        let recent = places
            .iter()
            .take(noted.min(ring))
            .filter_map(|place| Some((self.times.get(*place)?, self.depths.get(*place)?)))
            .filter(|(time, _)| now.saturating_sub(**time) <= window);
        let (count, sum) = recent.fold((0, 0), |(count, sum), (_, depth)| {
            (count + 1, sum + u32::from(*depth))
        });
        (count, f64::from(sum) / f64::from(count.max(1) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// All accesses of one directory since its last pass: slow and obvious.
    #[derive(Default)]
    struct Naive(Vec<(u64, u32)>);

    impl Naive {
        fn note(&mut self, depth: u32, now: u64, hits: usize, window: u64, least: u32) -> bool {
            self.0.push((now, depth));
            let last = self.0.iter().rev().take(hits);
            let recent: Vec<u32> = last
                .filter(|(at, _)| now - at <= window)
                .map(|(_, depth)| *depth)
                .collect();
            let mean = recent.iter().sum::<u32>() as f64 / recent.len() as f64;
            let begins = recent.len() >= hits && mean >= f64::from(least);
            if begins {
                self.0.clear();
            }
            begins
        }
    }

    proptest! {
        #[test]
        fn the_window_is_that_of_a_list_of_all_accesses(
            hits in 1usize..=8,
            window in 1u64..50,
            least in 1u32..6,
            accesses in prop::collection::vec((0u64..3, 0u64..30, 0u32..9), 1..200),
        ) {
            let options = PrefetchOptions::new()
                .hits(hits)
                .window(Duration::from_nanos(window))
                .depth(least);
            let table = Directories::new(&options);
            let mut naive = [Naive::default(), Naive::default(), Naive::default()];
            let mut now = 0;
            for (dir, step, depth) in accesses {
                now += step;
                let begins = table.missed(dir + 1, depth, now);
                let wanted = naive[dir as usize].note(depth, now, hits, window, least);
                prop_assert_eq!(begins, wanted);
            }
        }
    }

    #[test]
    fn a_free_place_is_taken_before_one_of_time_zero() {
        let table = Directories::new(&PrefetchOptions::new().directories(4));
        for dir in 1..=4 {
            table.missed(dir, 4, 0);
        }
        assert!((1..=4).all(|dir| table.seen(dir, 0).is_some()));
    }

    #[test]
    fn at_rest_only_misses_are_noted() {
        let table = Directories::new(&PrefetchOptions::new());
        assert!(!table.missed(7, 4, 0) && !table.missed(7, 4, 1) && table.missed(7, 4, 2));
        table.rest(7);
        for now in 3..100 {
            assert!(!table.hit(7, 4, now));
        }
        assert!(table.seen(7, 100).unwrap().resting);
        assert!(!table.missed(7, 4, 100));
        assert!(!table.hit(7, 4, 101));
        assert!(table.hit(7, 4, 102));
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_one_without_an_access_for_longest() {
        let table = Directories::new(&PrefetchOptions::new().directories(4));
        for dir in 1..=5 {
            table.missed(dir, 4, dir);
        }
        assert_eq!(table.seen(1, 9), None);
        assert_eq!(table.seen(5, 9).unwrap().within_window, 1);
        assert_eq!(table.sets.len() * WAYS, 4);
        assert!(size_of::<Set>() / WAYS <= 160, "{}", size_of::<Set>());
    }
}
