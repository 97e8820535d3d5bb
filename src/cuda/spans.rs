//! Which parts of a chunk of memory are free.

use std::collections::BTreeMap;

/// Free spans of an address range, by their start; neighbours are joined.
#[derive(Debug)]
pub(super) struct Spans {
    free: BTreeMap<u64, u64>,
    whole: (u64, u64),
}

impl Spans {
    /// All of it free.
    pub(super) fn new(start: u64, len: u64) -> Self {
        Spans {
            free: BTreeMap::from([(start, len)]),
            whole: (start, len),
        }
    }

    /// Takes `len` bytes from a multiple of `align` on, which is a power of two: the first place that has them.
    pub(super) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let fits = |(&start, &room): (&u64, &u64)| {
            let at = start.checked_next_multiple_of(align)?;
            let end = at.checked_add(len)?;
            (end <= start + room).then_some((start, room, at, end))
        };
        let (start, room, at, end) = self.free.iter().find_map(fits)?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if end < start + room {
            self.free.insert(end, start + room - end);
        }
        Some(at)
    }

    /// Gives a span back that was taken.
    pub(super) fn give(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start + len);
        let before = self.free.range(..start).next_back();
        if let Some((&at, &room)) = before
            && at + room == start
        {
            self.free.remove(&at);
            start = at;
        }
        if let Some(room) = self.free.remove(&end) {
            end += room;
        }
        self.free.insert(start, end - start);
    }

    /// Whether nothing is taken.
    pub(super) fn is_free(&self) -> bool {
        let (start, len) = self.whole;
        self.free.get(&start) == Some(&len)
    }

    /// Whether an address lies in it.
    pub(super) fn has(&self, address: u64) -> bool {
        let (start, len) = self.whole;
        address >= start && address - start < len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_whatever_the_order() {
        let mut spans = Spans::new(4096, 1000);
        let parts: Vec<_> = (0..10).map(|_| spans.take(100, 1).unwrap()).collect();
        assert_eq!(spans.take(1, 1), None);
        for index in [3, 1, 2, 9, 0, 5, 7, 6, 8] {
            spans.give(parts[index], 100);
            assert!(!spans.is_free());
        }
        spans.give(parts[4], 100);
        assert!(spans.is_free() && spans.has(5095) && !spans.has(5096));
    }

    proptest::proptest! {
        /// What is taken is aligned, inside, and nobody else's; what is given back can be taken again.
        #[test]
        fn no_two_overlap_and_nothing_is_lost(
            steps in proptest::collection::vec((1u64..5000, 0u32..13, proptest::prelude::any::<bool>()), 1..200),
        ) {
            let (start, len) = (0x7000_0100, 64 << 10);
            let mut spans = Spans::new(start, len);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (size, align, gives) in steps {
                if gives && !taken.is_empty() {
                    let (at, len) = taken.swap_remove(size as usize % taken.len());
                    spans.give(at, len);
                } else if let Some(at) = spans.take(size, 1 << align) {
                    proptest::prop_assert!(at.is_multiple_of(1 << align));
                    proptest::prop_assert!(at >= start && at + size <= start + len);
                    proptest::prop_assert!(taken.iter().all(|(other, len)| at + size <= *other || other + len <= at));
                    taken.push((at, size));
                }
                let free: u64 = spans.free.values().sum();
                proptest::prop_assert_eq!(free + taken.iter().map(|(_, len)| len).sum::<u64>(), len);
            }
            for (at, len) in taken {
                spans.give(at, len);
            }
            proptest::prop_assert!(spans.is_free());
        }
    }
}
