//! Which ranges bring a set of tensors, and where in memory each of them comes to be.

use std::ops::Range;

use super::TensorInfo;

/// Ranges begin at multiples of this: memory that begins on a page boundary then has every byte at an address that is
/// congruent to its offset in the file, whether it was read through the page cache or, in whole blocks of the device,
/// past it.
pub(crate) const CONGRUENT: u64 = 64;

/// How ranges are made of tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Tensors so many bytes apart are read in one request, with what is between them.
    pub(crate) gap: u64,
    /// What each tensor's address is to be a multiple of: a power of two. `None`: it is left where the file has it.
    pub(crate) align: Option<usize>,
}

/// One range to read, and the tensors in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) range: Range<u64>,
    /// Positions in the list of tensors.
    pub(crate) tensors: Range<usize>,
    /// Where in the arena the range begins; for aligned ones.
    pub(crate) at: usize,
}

/// Ranges that are asked for together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) runs: Vec<Run>,
    /// Bytes of an arena for all of them, laid out by [`Run::at`].
    pub(crate) arena: usize,
}

impl Group {
    /// Bytes to read.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs
            .iter()
            .map(|run| run.range.end - run.range.start)
            .sum()
    }
}

/// One group of the `tensors` at these positions, which are in the order of their file.
pub(crate) fn group(tensors: &[TensorInfo], of: Range<usize>, shape: Shape) -> Group {
    let mut runs: Vec<Run> = Vec::new();
    let mut arena = 0;
    for (at, info) in tensors.iter().enumerate().take(of.end).skip(of.start) {
        let range = info.range();
        let last = runs.last_mut().filter(|run| joins(run, &range, shape));
        match last {
            Some(run) => {
                run.range.end = run.range.end.max(range.end);
                run.tensors.end = at + 1;
                arena = run.at + (run.range.end - run.range.start) as usize;
            }
            None => {
                let (start, place) = match shape.align {
                    Some(align) => (range.start, arena.next_multiple_of(align)),
                    None if range.is_empty() => (range.start, arena),
                    None => (range.start - range.start % CONGRUENT, arena),
                };
                arena = place + (range.end - start) as usize;
                runs.push(Run {
                    range: start..range.end,
                    tensors: at..at + 1,
                    at: place,
                });
            }
        }
    }
    Group { runs, arena }
}

/// Groups of about `size` bytes each: neighbours share one, a larger tensor has its own.
pub(crate) fn groups(tensors: &[TensorInfo], size: u64, shape: Shape) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut from = 0;
    for at in 1..=tensors.len() {
        let (Some(first), Some(last)) = (tensors.get(from), tensors.get(at - 1)) else {
            break;
        };
        let full = match tensors.get(at) {
            None => true,
            Some(next) => {
                let far = next.range().start.saturating_sub(last.range().end) > shape.gap;
                far || next.range().end - first.range().start > size
            }
        };
        if full {
            groups.push(group(tensors, from..at, shape));
            from = at;
        }
    }
    groups
}

/// Whether the next tensor is read with those of `run`.
fn joins(run: &Run, next: &Range<u64>, shape: Shape) -> bool {
    let Some(gap) = next.start.checked_sub(run.range.end) else {
        return false;
    };
    let near = match (run.range.is_empty(), next.is_empty()) {
        (false, false) => gap <= shape.gap,
        // For what has no bytes, none are read.
        (_, true) => gap == 0,
        // It begins anywhere, where a range that is read does not, unless each tensor has its place.
        (true, false) => gap == 0 && shape.align.is_some(),
    };
    let aligned = |align: usize| {
        let place = run.at as u64 + (next.start - run.range.start);
        place.is_multiple_of(align as u64)
    };
    near && shape.align.is_none_or(aligned)
}

#[cfg(test)]
mod tests {
    use super::super::header::tests::header;
    use super::*;
    use proptest::prelude::*;

    fn infos(sizes: &[usize]) -> Vec<TensorInfo> {
        let names: Vec<_> = (0..sizes.len()).map(|i| format!("t{i:03}")).collect();
        let tensors = names.iter().map(String::as_str).zip(sizes.iter().copied());
        header(&tensors.collect::<Vec<_>>()).tensors
    }

    #[test]
    fn neighbours_are_one_range_and_gaps_cut_it() {
        let all = infos(&[100, 5000, 300, 10]);
        let shape = Shape {
            gap: 299,
            align: None,
        };
        let whole = group(&all, 0..4, shape);
        let start = all[0].range().start;
        assert_eq!(whole.runs.len(), 1);
        assert_eq!(whole.runs[0].range, start - start % 64..all[3].range().end);
        let some = [all[0].clone(), all[1].clone(), all[3].clone()];
        let cut = group(&some, 0..3, shape);
        assert_eq!(cut.runs.len(), 2);
        let joined = group(
            &some,
            0..3,
            Shape {
                gap: 300,
                align: None,
            },
        );
        assert_eq!(joined.runs.len(), 1);
    }

    #[test]
    fn aligned_neighbours_stay_together_as_long_as_they_are_aligned_there() {
        let all = infos(&[128, 64, 100, 64]);
        let shape = Shape {
            gap: 0,
            align: Some(64),
        };
        let placed = group(&all, 0..4, shape);
        let places: Vec<_> = placed
            .runs
            .iter()
            .map(|r| (r.at, r.tensors.clone()))
            .collect();
        assert_eq!(places, [(0, 0..3), (320, 3..4)]);
        assert_eq!(placed.arena, 384);
    }

    proptest! {
        #[test]
        fn every_byte_of_every_tensor_is_in_its_run_at_the_place_it_is_to_have(
            sizes in proptest::collection::vec(prop_oneof![Just(0usize), 1usize..300, Just(64), Just(4096)], 1..30),
            keep in proptest::collection::vec(any::<bool>(), 30),
            gap in 0u64..500,
            align in prop_oneof![Just(None), Just(Some(1usize)), Just(Some(16)), Just(Some(64)), Just(Some(4096))],
            size in 1u64..10_000,
        ) {
            let all = infos(&sizes);
            let some: Vec<_> = all.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(info, _)| info.clone()).collect();
            let shape = Shape { gap, align };
            let mut seen = 0;
            let mut grouped = groups(&some, size, shape);
            grouped.push(group(&some, 0..some.len(), shape));
            for (number, group) in grouped.iter().enumerate() {
                if number + 1 == grouped.len() {
                    prop_assert_eq!(seen, some.len(), "each tensor is in one group");
                    seen = 0;
                }
                let mut end = 0;
                for run in &group.runs {
                    prop_assert_eq!(run.tensors.start, seen);
                    seen = run.tensors.end;
                    prop_assert!(align.is_none() || run.at >= end);
                    end = run.at + (run.range.end - run.range.start) as usize;
                    prop_assert!(end <= group.arena);
                    prop_assert!(run.range.is_empty() || align.is_some() || run.range.start % 64 == 0);
                    let mut needed = 0;
                    for info in &some[run.tensors.clone()] {
                        let range = info.range();
                        prop_assert!(run.range.start <= range.start && range.end <= run.range.end);
                        needed += range.end - range.start;
                        if let Some(align) = align {
                            prop_assert_eq!((run.at + (range.start - run.range.start) as usize) % align, 0);
                        }
                    }
                    let more = run.range.end - run.range.start - needed;
                    prop_assert!(more <= 63 + gap * run.tensors.len() as u64);
                }
            }
            prop_assert_eq!(seen, some.len());
        }
    }
}
