//! Sets of rows.

use std::ops::Range;

use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

/// A set of rows: ranges in ascending order that neither touch nor are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows(Vec<Range<u64>>);

impl Rows {
    /// No rows.
    pub(crate) fn none() -> Self {
        Rows(Vec::new())
    }

    /// The first `count` rows.
    pub(crate) fn all(count: u64) -> Self {
        Rows::of([0..count])
    }

    /// The rows of `ranges`, in whatever order they are.
    pub(crate) fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<_> = ranges
            .into_iter()
            .filter(|range| range.start < range.end)
            .collect();
        if !ranges.is_sorted_by_key(|range| range.start) {
            ranges.sort_unstable_by_key(|range| range.start);
        }
        let mut rows = Rows(Vec::with_capacity(ranges.len()));
        for range in ranges {
            rows.append(range);
        }
        rows
    }

    /// Adds a range that begins no earlier than those before.
    fn append(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
    }

    /// The ranges, ascending.
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// How many rows.
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the last row.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| range.end)
    }

    /// The rows in both.
    pub(crate) fn intersect(&self, other: &Rows) -> Rows {
        let (mut at, mut theirs) = (0, 0);
        let mut rows = Rows::none();
        while let (Some(a), Some(b)) = (self.0.get(at), other.0.get(theirs)) {
            let both = a.start.max(b.start)..a.end.min(b.end);
            if both.start < both.end {
                rows.append(both);
            }
            if a.end <= b.end {
                at += 1;
            } else {
                theirs += 1;
            }
        }
        rows
    }

    /// The rows in either.
    pub(crate) fn union(&self, other: &Rows) -> Rows {
        Rows::of(self.0.iter().chain(&other.0).cloned())
    }

    /// The rows of `span`, counted from its start.
    pub(crate) fn within(&self, span: Range<u64>) -> Rows {
        let first = self.0.partition_point(|range| range.end <= span.start);
        let mut rows = Rows::none();
        for range in self.0.get(first..).unwrap_or_default() {
            let (start, end) = (range.start.max(span.start), range.end.min(span.end));
            if start >= end {
                break;
            }
            rows.append(start - span.start..end - span.start);
        }
        rows
    }

    /// Whether any row of `span` is in the set.
    pub(crate) fn meets(&self, span: Range<u64>) -> bool {
        let first = self.0.partition_point(|range| range.end <= span.start);
        self.0
            .get(first)
            .is_some_and(|range| !span.is_empty() && range.start < span.end)
    }

    /// The same rows, and those of gaps of fewer than `gap` rows between them.
    pub(crate) fn closing(&self, gap: u64) -> Rows {
        let mut rows = Rows(Vec::with_capacity(self.0.len()));
        for range in &self.0 {
            match rows.0.last_mut() {
                Some(last) if range.start - last.end < gap => last.end = range.end,
                _ => rows.0.push(range.clone()),
            }
        }
        rows
    }

    /// The rows as positions among those of `outer`, which has all of them.
    pub(crate) fn positions_in(&self, outer: &Rows) -> Rows {
        let mut rows = Rows::none();
        let (mut before, mut at) = (0, 0);
        for range in &self.0 {
            while let Some(around) = outer.0.get(at) {
                if range.start < around.end {
                    let start = before + range.start.saturating_sub(around.start);
                    rows.append(start..start + (range.end - range.start));
                    break;
                }
                before += around.end - around.start;
                at += 1;
            }
        }
        rows
    }

    /// The rows at these positions among those of `outer`: [`positions_in`](Self::positions_in) undone.
    pub(crate) fn placed_in(&self, outer: &Rows) -> Rows {
        let mut rows = Rows::none();
        let mut before = 0;
        for around in &outer.0 {
            let len = around.end - around.start;
            for range in &self.within(before..before + len).0 {
                rows.append(around.start + range.start..around.start + range.end);
            }
            before += len;
        }
        rows
    }

    /// As the selection of a reader of `count` rows.
    ///
    /// The crate skips by runs where these are long, and otherwise by a bit mask, for which it decodes across pages that
    /// were not read. It judges by the mean of all runs, so the last one, behind all rows that are wanted, is made long
    /// enough to decide it; it is cut off before anything is read.
    pub(crate) fn selection(&self, count: u64) -> RowSelection {
        /// Twice the mean below which it takes a mask.
        const LONG: usize = 64;
        let mut selectors = Vec::with_capacity(self.0.len() * 2 + 1);
        let mut at = 0;
        for range in &self.0 {
            if range.start > at {
                selectors.push(RowSelector::skip((range.start - at) as usize));
            }
            selectors.push(RowSelector::select((range.end - range.start) as usize));
            at = range.end;
        }
        let rest = count.saturating_sub(at) as usize;
        selectors.push(RowSelector::skip(rest.max(LONG * (selectors.len() + 1))));
        RowSelection::from(selectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn set(rows: &Rows) -> BTreeSet<u64> {
        rows.ranges().iter().flat_map(Clone::clone).collect()
    }

    fn rows() -> impl Strategy<Value = Rows> {
        prop::collection::vec((0..60u64, 0..9u64), 0..8)
            .prop_map(|ranges| Rows::of(ranges.into_iter().map(|(at, len)| at..at + len)))
    }

    proptest! {
        #[test]
        fn they_are_sets(a in rows(), b in rows(), start in 0..70u64, len in 0..40u64, gap in 0..9u64) {
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(a.len(), x.len() as u64);
            prop_assert_eq!(set(&a.intersect(&b)), x.intersection(&y).copied().collect());
            prop_assert_eq!(set(&a.union(&b)), x.union(&y).copied().collect());
            let span = start..start + len;
            let inside: BTreeSet<_> = x.iter().filter(|row| span.contains(row)).map(|row| row - start).collect();
            prop_assert_eq!(a.meets(span.clone()), !inside.is_empty());
            prop_assert_eq!(set(&a.within(span)), inside);
            let closed = a.closing(gap);
            prop_assert!(set(&closed).is_superset(&x));
            for pair in closed.ranges().windows(2) {
                prop_assert!(pair[1].start - pair[0].end >= gap.max(1));
            }
            prop_assert_eq!(closed.end(), a.end());
            for pair in a.ranges().windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            prop_assert_eq!(a.positions_in(&closed).placed_in(&closed), a.clone());
            let dense: BTreeSet<_> = set(&closed).iter().enumerate()
                .filter(|(_, row)| x.contains(row)).map(|(at, _)| at as u64).collect();
            prop_assert_eq!(set(&a.positions_in(&closed)), dense);
            let selection = a.selection(100);
            prop_assert_eq!(selection.row_count() as u64, a.len());
        }
    }
}
