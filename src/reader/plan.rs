//! Planning as pure functions: which requests serve a set of ranges. No I/O happens here.

use std::ops::Range;

/// One contiguous request and the ranges it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes to read.
    pub range: Range<u64>,
    /// Where its ranges stand in [`Plan::order`].
    pub parts: Range<usize>,
}

/// Requests that together serve all ranges, in the order of their offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Positions of the input ranges, sorted by where they start.
    pub order: Vec<usize>,
    /// The requests, sorted, each serving at least one range. They overlap only where the ranges do.
    pub requests: Vec<Request>,
    /// Bytes that are read only because they lie in gaps.
    pub waste: u64,
}

impl Plan {
    /// The input positions that `request` serves.
    pub fn parts(&self, request: &Request) -> &[usize] {
        self.order.get(request.parts.clone()).unwrap_or_default()
    }
}

/// Joins ranges into requests: those that overlap or lie at most `gap` bytes apart, while the request stays within
/// `max` bytes, and those that lie within another one. Only bytes where two ranges overlap whose union is larger than
/// `max` are read twice. Empty and reversed ranges are left out.
///
/// O(n log n) in time, O(n) in space, for any input; nothing overflows.
///
/// ```
/// use feedwater::plan::coalesce;
///
/// let plan = coalesce(&[100..200, 0..10, 210..220], 16, 1 << 20);
/// let ranges: Vec<_> = plan.requests.iter().map(|r| r.range.clone()).collect();
/// assert_eq!(ranges, [0..10, 100..220]);
/// assert_eq!(plan.parts(&plan.requests[1]), [0, 2]);
/// assert_eq!(plan.waste, 10);
/// ```
pub fn coalesce(ranges: &[Range<u64>], gap: u64, max: u64) -> Plan {
    let mut order: Vec<usize> = (0..ranges.len())
        .filter(|&i| !ranges[i].is_empty())
        .collect();
    order.sort_unstable_by_key(|&i| (ranges[i].start, ranges[i].end, i));
    let mut plan = Plan::default();
    for (at, &i) in order.iter().enumerate() {
        let range = &ranges[i];
        if let Some(last) = plan.requests.last_mut() {
            let end = last.range.end.max(range.end);
            let within = range.end <= last.range.end;
            let near = range.start.saturating_sub(last.range.end) <= gap;
            if within || (near && end - last.range.start <= max) {
                plan.waste += range.start.saturating_sub(last.range.end);
                last.range.end = end;
                last.parts.end = at + 1;
                continue;
            }
        }
        plan.requests.push(Request {
            range: range.clone(),
            parts: at..at + 1,
        });
    }
    plan.order = order;
    plan
}

/// Cuts `range` into pieces that end at multiples of `piece` bytes, except the last one.
///
/// Cutting at multiples of the offset, not of the range's start, keeps every inner piece aligned for the device.
/// A `piece` of 0 is taken as 1.
///
/// ```
/// let pieces: Vec<_> = feedwater::plan::split(10..35, 16).collect();
/// assert_eq!(pieces, [10..16, 16..32, 32..35]);
/// ```
pub fn split(range: Range<u64>, piece: u64) -> impl ExactSizeIterator<Item = Range<u64>> {
    let piece = piece.max(1);
    let first = range.start / piece;
    let count = if range.is_empty() {
        0
    } else {
        (range.end - 1) / piece - first + 1
    };
    (0..usize::try_from(count).unwrap_or(usize::MAX)).map(move |i| {
        let start = (first + i as u64) * piece;
        start.max(range.start)..start.saturating_add(piece).min(range.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        proptest::collection::vec((0u64..500, 0u64..60), 0..60).prop_map(|v| {
            v.into_iter()
                .map(|(start, len)| start..start + len)
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_byte_is_read_and_waste_is_counted_within_the_bound(
            ranges in ranges(), gap in 0u64..40, max in prop_oneof![0u64..200, Just(600)],
        ) {
            let plan = coalesce(&ranges, gap, max);
            let mut asked = vec![false; 600];
            for r in &ranges {
                for i in r.clone() { asked[i as usize] = true; }
            }
            let mut read = vec![0u32; 600];
            for r in &plan.requests {
                for i in r.range.clone() { read[i as usize] += 1; }
            }
            for i in 0..600 {
                prop_assert!(!asked[i] || read[i] >= 1, "byte {} not read", i);
                prop_assert!(asked[i] || read[i] <= 1, "gap byte {} read twice", i);
            }
            let extra = (0..600).filter(|&i| read[i] == 1 && !asked[i]).count();
            prop_assert_eq!(plan.waste, extra as u64);
            let longest = ranges.iter().map(|r| r.end - r.start).max().unwrap_or(0);
            for request in &plan.requests {
                prop_assert!(request.range.end - request.range.start <= max.max(longest));
            }
            if max >= 600 {
                prop_assert!(read.iter().all(|&n| n <= 1), "without a bound nothing is read twice");
            }
        }

        #[test]
        fn every_range_is_a_part_of_exactly_one_request(
            ranges in ranges(), gap in 0u64..40, max in 0u64..200,
        ) {
            let plan = coalesce(&ranges, gap, max);
            let mut seen = vec![0; ranges.len()];
            for request in &plan.requests {
                for &part in plan.parts(request) {
                    seen[part] += 1;
                    let r = &ranges[part];
                    prop_assert!(request.range.start <= r.start && r.end <= request.range.end);
                }
            }
            for (i, r) in ranges.iter().enumerate() {
                prop_assert_eq!(seen[i], u32::from(!r.is_empty()));
            }
        }

        #[test]
        fn requests_are_as_joined_as_allowed(ranges in ranges(), gap in 0u64..40) {
            let plan = coalesce(&ranges, gap, u64::MAX);
            for pair in plan.requests.windows(2) {
                prop_assert!(pair[1].range.start - pair[0].range.end > gap);
            }
        }

        #[test]
        fn pieces_cover_the_range_in_order(start in 0u64..300, len in 0u64..300, piece in 0u64..64) {
            let mut at = start;
            let pieces: Vec<_> = split(start..start + len, piece).collect();
            prop_assert_eq!(pieces.len(), split(start..start + len, piece).len());
            for p in pieces {
                prop_assert_eq!(p.start, at);
                prop_assert!(!p.is_empty());
                prop_assert!(p.end == start + len || p.end % piece.max(1) == 0);
                at = p.end;
            }
            prop_assert_eq!(at, start + len);
        }
    }

    #[test]
    fn the_ends_of_the_offsets_do_not_overflow() {
        let end = u64::MAX;
        let plan = coalesce(&[end - 1..end, 0..1, end - 5..end - 3], u64::MAX, u64::MAX);
        assert_eq!(plan.requests.len(), 1);
        assert_eq!(plan.requests[0].range, 0..end);
        let pieces: Vec<_> = split(end - 3..end, 1 << 62).collect();
        assert_eq!(pieces, [end - 3..end]);
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn empty_and_reversed_ranges_cost_nothing() {
        assert_eq!(coalesce(&[5..5, 9..3], 100, 100), Plan::default());
    }
}
