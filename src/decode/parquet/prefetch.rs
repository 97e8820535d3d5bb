//! Column chunks that are read before somebody asks for them, row group by row group.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::reader::{Batch, Pending, Priority, Reader};

/// Reads groups of ranges ahead: the group in use, and those after it that fit into a window of bytes.
///
/// Asking for bytes of a group means that those before it are done with: their memory is given back, and groups
/// after it are started. What is not there (passed, failed, not planned) is `None`, and the caller reads it itself.
#[derive(Debug)]
pub(super) struct Prefetch {
    reader: Arc<dyn Reader>,
    /// Most bytes of the group in use and those after it that are read or kept at once; the group in use always is.
    window: u64,
    /// Where each planned range begins and ends, and which it is: group, and position there. Sorted.
    index: Vec<(Range<u64>, usize, usize)>,
    state: Mutex<State>,
    /// A claim ended.
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    groups: Vec<Group>,
    /// The group in use.
    current: usize,
    /// Groups before this one have been started or passed.
    started: usize,
}

#[derive(Debug)]
struct Group {
    bytes: u64,
    ranges: Vec<Range<u64>>,
    there: Vec<Option<Bytes>>,
    /// Of the ranges that are not there yet. `None`: not started, at its end, or with the one who waits for it.
    pending: Option<Pending>,
    claimed: bool,
    passed: bool,
}

/// What is known about a range that was planned.
enum Found<'a> {
    There(Bytes),
    /// The caller waits for the next range of its group.
    Claimed(Claim<'a>),
    /// Somebody else waits.
    Awaited,
    Nowhere,
}

/// The right to wait for a group. The reads come back to the group when it ends, also if the wait was given up.
struct Claim<'a> {
    prefetch: &'a Prefetch,
    group: usize,
    pending: Option<Pending>,
}

impl Prefetch {
    /// Starts reading the first groups.
    pub(super) fn new(
        reader: Arc<dyn Reader>,
        groups: impl IntoIterator<Item = Vec<Range<u64>>>,
        window: u64,
    ) -> Self {
        let groups: Vec<_> = groups.into_iter().map(Group::new).collect();
        let mut index: Vec<_> = groups
            .iter()
            .enumerate()
            .flat_map(|(at, group)| {
                let ranges = group.ranges.iter().cloned().enumerate();
                ranges.map(move |(part, range)| (range, at, part))
            })
            .collect();
        index.sort_by_key(|(range, ..)| (range.start, range.end));
        let prefetch = Prefetch {
            reader,
            window,
            index,
            state: Mutex::new(State {
                groups,
                current: 0,
                started: 0,
            }),
            ended: Condvar::new(),
        };
        prefetch.start(&mut prefetch.lock());
        prefetch
    }

    /// The bytes of `range`, if they were planned and can be had; waits for them. Not for tasks.
    pub(super) fn wait(&self, range: &Range<u64>) -> Option<Bytes> {
        let (group, part) = self.find(range)?;
        loop {
            match self.look(group, part, range) {
                Found::There(bytes) => return Some(bytes),
                Found::Nowhere => return None,
                Found::Claimed(mut claim) => {
                    let next = claim.pending.as_mut().and_then(Pending::wait_next);
                    claim.put(next.map(|(part, outcome)| (part, outcome.ok())));
                }
                Found::Awaited => {
                    let state = self.lock();
                    if state.groups.get(group).is_some_and(|group| group.claimed) {
                        drop(
                            self.ended
                                .wait(state)
                                .unwrap_or_else(PoisonError::into_inner),
                        );
                    }
                }
            }
        }
    }

    /// As [`wait`](Self::wait), for tasks. Where another task waits for the group already, `None`: the bytes are then
    /// read twice, rather than that one task should depend on another being polled.
    pub(super) async fn bytes(&self, range: &Range<u64>) -> Option<Bytes> {
        let (group, part) = self.find(range)?;
        loop {
            match self.look(group, part, range) {
                Found::There(bytes) => return Some(bytes),
                Found::Nowhere | Found::Awaited => return None,
                Found::Claimed(mut claim) => {
                    let next = match claim.pending.as_mut() {
                        Some(pending) => poll_fn(|cx| pending.poll_next(cx)).await,
                        None => None,
                    };
                    claim.put(next.map(|(part, outcome)| (part, outcome.ok())));
                }
            }
        }
    }

    /// The rest of the planned range that holds the byte at `offset`.
    pub(super) fn rest(&self, offset: u64) -> Option<Range<u64>> {
        let (group, part) = self.find(&(offset..offset))?;
        let state = self.lock();
        let planned = state.groups.get(group)?.ranges.get(part)?;
        (offset < planned.end).then_some(offset..planned.end)
    }

    /// Group and position of the planned range that has all of `range`.
    fn find(&self, range: &Range<u64>) -> Option<(usize, usize)> {
        let after = self
            .index
            .partition_point(|(planned, ..)| planned.start <= range.start);
        let (planned, group, part) = self.index.get(after.checked_sub(1)?)?;
        (range.end <= planned.end).then_some((*group, *part))
    }

    fn look(&self, at: usize, part: usize, range: &Range<u64>) -> Found<'_> {
        let mut state = self.lock();
        self.advance(&mut state, at);
        let Some(group) = state.groups.get_mut(at) else {
            return Found::Nowhere;
        };
        if let (Some(Some(bytes)), Some(planned)) = (group.there.get(part), group.ranges.get(part))
        {
            return match slice(bytes, planned, range) {
                Some(bytes) => Found::There(bytes),
                None => Found::Nowhere,
            };
        }
        if group.claimed {
            return Found::Awaited;
        }
        match group.pending.take() {
            Some(pending) => {
                group.claimed = true;
                Found::Claimed(Claim {
                    prefetch: self,
                    group: at,
                    pending: Some(pending),
                })
            }
            None => Found::Nowhere,
        }
    }

    fn advance(&self, state: &mut State, to: usize) {
        if to <= state.current {
            return;
        }
        for group in state.groups.iter_mut().take(to).skip(state.current) {
            group.pass();
        }
        state.current = to;
        state.started = state.started.max(to);
        self.start(state);
    }

    fn start(&self, state: &mut State) {
        let mut held: u64 = state
            .groups
            .iter()
            .take(state.started)
            .skip(state.current)
            .map(|group| group.bytes)
            .sum();
        while let Some(group) = state.groups.get_mut(state.started) {
            held = held.saturating_add(group.bytes);
            if state.started > state.current && held > self.window {
                return;
            }
            let mut batch = Batch::of(group.ranges.iter().cloned());
            if state.started > state.current {
                batch.options.priority = Priority::Prefetch;
            }
            group.pending = Some(self.reader.submit(batch));
            state.started += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn new(ranges: Vec<Range<u64>>) -> Self {
        let lengths = ranges
            .iter()
            .map(|range| range.end.saturating_sub(range.start));
        Group {
            bytes: lengths.fold(0, u64::saturating_add),
            there: vec![None; ranges.len()],
            ranges,
            pending: None,
            claimed: false,
            passed: false,
        }
    }

    fn pass(&mut self) {
        self.passed = true;
        self.pending = None;
        self.there.clear();
    }
}

impl Claim<'_> {
    /// Keeps what came; `None` ends the reads.
    fn put(&mut self, next: Option<(usize, Option<crate::buffer::Block>)>) {
        let Some((part, block)) = next else {
            self.pending = None;
            return;
        };
        let bytes = block.and_then(|block| block.into_host().ok());
        let mut state = self.prefetch.lock();
        if let Some(group) = state.groups.get_mut(self.group)
            && let Some(place) = group.there.get_mut(part)
        {
            *place = bytes;
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.prefetch.lock();
        if let Some(group) = state.groups.get_mut(self.group) {
            group.claimed = false;
            if !group.passed {
                group.pending = self.pending.take();
            }
        }
        drop(state);
        self.prefetch.ended.notify_all();
    }
}

/// The part `range` of `bytes`, which are those of `whole`.
fn slice(bytes: &Bytes, whole: &Range<u64>, range: &Range<u64>) -> Option<Bytes> {
    let start = usize::try_from(range.start.checked_sub(whole.start)?).ok()?;
    let end = usize::try_from(range.end.checked_sub(whole.start)?).ok()?;
    (start <= end && end <= bytes.len()).then(|| bytes.slice(start..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::MemoryReader;

    fn reader() -> Arc<MemoryReader> {
        let bytes: Vec<u8> = (0..100).collect();
        Arc::new(MemoryReader::new(bytes))
    }

    fn asked(reader: &Arc<MemoryReader>) -> u64 {
        reader.source().counters().snapshot().requested
    }

    #[test]
    fn groups_are_read_within_the_window_and_given_back() {
        let reader = reader();
        let groups = (0..5).map(|g| vec![g * 20..g * 20 + 5, g * 20 + 10..g * 20 + 15]);
        let prefetch = Prefetch::new(reader.clone(), groups, 20);
        assert_eq!(asked(&reader), 20, "two groups fit");
        assert_eq!(prefetch.wait(&(11..13)).unwrap(), [11, 12][..]);
        assert_eq!(asked(&reader), 20, "the first is in use");
        assert_eq!(prefetch.wait(&(40..45)).unwrap()[0], 40);
        assert_eq!(asked(&reader), 40, "the third and the fourth");
        assert_eq!(prefetch.wait(&(0..5)), None, "passed");
        assert_eq!(prefetch.wait(&(4..12)), None, "not of one range");
        assert_eq!(prefetch.wait(&(99..100)), None, "not planned");
        assert_eq!(prefetch.rest(43), Some(43..45));
        assert_eq!(prefetch.rest(45), None);
    }

    #[test]
    fn a_group_larger_than_the_window_is_read_when_it_is_in_use() {
        let reader = reader();
        let prefetch = Prefetch::new(reader.clone(), [vec![0..50], vec![50..100]], 1);
        assert_eq!(asked(&reader), 50);
        assert_eq!(prefetch.wait(&(99..100)).unwrap(), [99][..]);
        assert_eq!(asked(&reader), 100);
    }

    #[test]
    fn what_cannot_be_read_is_nowhere_and_the_others_are_there() {
        let prefetch = Prefetch::new(reader(), [vec![90..101, 0..9]], 100);
        assert_eq!(prefetch.wait(&(90..95)), None);
        assert_eq!(prefetch.wait(&(8..9)).unwrap(), [8][..]);
    }

    #[test]
    fn many_threads_and_tasks_get_the_same() {
        let groups = (0..10).map(|g| vec![g * 10..g * 10 + 5, g * 10 + 5..g * 10 + 10]);
        let prefetch = Prefetch::new(reader(), groups, 30);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let prefetch = &prefetch;
                scope.spawn(move || {
                    for at in 0..100_u64 {
                        let range = at..at + 1;
                        let bytes = match thread % 2 {
                            0 => prefetch.wait(&range),
                            _ => futures::executor::block_on(prefetch.bytes(&range)),
                        };
                        if let Some(bytes) = bytes {
                            assert_eq!(u64::from(bytes[0]), at);
                        }
                    }
                });
            }
        });
        assert!(prefetch.wait(&(99..100)).is_some());
    }

    #[test]
    fn a_wait_that_is_given_up_gives_the_reads_back() {
        let prefetch = Prefetch::new(reader(), [vec![0..10]], 100);
        let Found::Claimed(claim) = prefetch.look(0, 0, &(0..1)) else {
            panic!("the bytes are there before anybody looked");
        };
        assert_eq!(
            futures::executor::block_on(prefetch.bytes(&(0..1))),
            None,
            "somebody waits"
        );
        drop(claim);
        assert_eq!(prefetch.wait(&(0..1)).unwrap(), [0][..]);
    }
}
