//! What was decoded and waits for the consumer, and what is decoded next.

use std::collections::VecDeque;
use std::task::Waker;

use arrow_array::RecordBatch;

use crate::error::Error;
use crate::format::parquet::malformed;

/// Where a scan is.
pub(super) struct State {
    /// For each part, the next row group to decode it of.
    pub(super) next: Vec<usize>,
    /// Row groups whose bytes were asked for: the first so many.
    pub(super) submitted: usize,
    /// Bytes asked for and not decoded yet.
    pub(super) held: u64,
    /// Row groups that were asked for and, as far as is known, have not come.
    pub(super) coming: Vec<usize>,
    /// Whether one has come.
    pub(super) arrived: bool,
    /// Whether bytes come at once, as far as it was tried.
    pub(super) at_hand: Option<bool>,
    /// Bytes decoded and not taken yet.
    pub(super) queued: u64,
    pub(super) groups: Vec<GroupState>,
    /// Row groups before it were delivered.
    pub(super) head: usize,
    pub(super) waker: Option<Waker>,
    /// Threads at work.
    pub(super) threads: usize,
    pub(super) ended: bool,
}

/// Where one of its row groups is.
pub(super) struct GroupState {
    pub(super) parts: Vec<Queue>,
    /// Parts that are not decoded yet.
    pub(super) left: usize,
    pub(super) failed: Option<Error>,
    /// Whether its pages are read one by one, so that none of its bytes are in the window.
    pub(super) paged: bool,
}

/// Batches of a part, with their bytes.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) batches: VecDeque<(RecordBatch, u64)>,
    pub(super) done: bool,
}

/// What there was for the consumer.
pub(super) enum Taken {
    Parts(Vec<RecordBatch>),
    Failed(Error),
    End,
    Nothing,
}

impl State {
    pub(super) fn queue(&mut self, group: usize, part: usize) -> Option<&mut Queue> {
        self.groups.get_mut(group)?.parts.get_mut(part)
    }

    /// Whether [`take`](Self::take) would give something.
    pub(super) fn has_next(&self, in_order: bool) -> bool {
        let Some(head) = self.groups.get(self.head) else {
            return true;
        };
        let most = if in_order { 1 } else { usize::MAX };
        let mut groups = self.groups.iter().skip(self.head).take(most);
        head.is_over() || groups.any(GroupState::is_ready)
    }

    pub(super) fn take(&mut self, in_order: bool) -> Taken {
        while self.groups.get(self.head).is_some_and(GroupState::is_over) {
            self.head += 1;
        }
        if self.head == self.groups.len() {
            return Taken::End;
        }
        let most = if in_order { 1 } else { usize::MAX };
        for group in self.groups.iter_mut().skip(self.head).take(most) {
            match group.take() {
                (Taken::Nothing, _) => {}
                (taken, freed) => {
                    self.queued = self.queued.saturating_sub(freed);
                    return taken;
                }
            }
        }
        Taken::Nothing
    }
}

impl GroupState {
    /// Whether every part has rows queued.
    pub(super) fn has_rows(&self) -> bool {
        self.parts.iter().all(|part| !part.batches.is_empty())
    }

    /// Whether there will be no more of it.
    pub(super) fn is_over(&self) -> bool {
        let drained = self
            .parts
            .iter()
            .all(|part| part.done && part.batches.is_empty());
        self.failed.is_none() && drained
    }

    pub(super) fn is_ready(&self) -> bool {
        self.has_rows() || self.failed.is_some() || self.left == 0 && !self.is_over()
    }

    /// The next rows of all parts, and the bytes that they leave free.
    pub(super) fn take(&mut self) -> (Taken, u64) {
        if self.has_rows() {
            let rows = self
                .parts
                .iter()
                .filter_map(|part| Some(part.batches.front()?.0.num_rows()))
                .min()
                .unwrap_or(0);
            let mut freed = 0;
            let mut batches = Vec::with_capacity(self.parts.len());
            for part in &mut self.parts {
                let Some((batch, size)) = part.batches.front_mut() else {
                    continue;
                };
                if batch.num_rows() == rows {
                    freed += *size;
                    batches.extend(part.batches.pop_front().map(|(batch, _)| batch));
                } else {
                    batches.push(batch.slice(0, rows));
                    *batch = batch.slice(rows, batch.num_rows() - rows);
                }
            }
            return (Taken::Parts(batches), freed);
        }
        if let Some(error) = self.failed.take() {
            return (Taken::Failed(error), 0);
        }
        if self.left == 0 && !self.is_over() {
            let error = malformed(
                None,
                "columns of a row group have different numbers of rows",
            );
            return (Taken::Failed(error), 0);
        }
        (Taken::Nothing, 0)
    }
}

/// The row group and the part that the thread of this number is to decode, unless there are no more. `next` has for each
/// part the next row group to decode it of.
pub(super) fn next_for(number: usize, next: &[usize], groups: usize) -> Option<(usize, usize)> {
    let own = number % next.len().max(1);
    let parts = next.iter().enumerate();
    parts
        .filter(|(_, group)| **group < groups)
        .min_by_key(|(part, group)| (*part != own, **group))
        .map(|(part, group)| (*group, part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_stay_with_their_part_and_help_in_the_order_of_delivery() {
        assert_eq!(next_for(0, &[0, 0], 5), Some((0, 0)));
        assert_eq!(next_for(1, &[0, 3], 5), Some((3, 1)));
        // More threads than parts share them.
        assert_eq!(next_for(3, &[0, 4], 5), Some((4, 1)));
        assert_eq!(next_for(2, &[5, 4, 3], 5), Some((3, 2)));
        assert_eq!(next_for(0, &[5, 4, 3], 5), Some((3, 2)));
        assert_eq!(next_for(0, &[5, 5], 5), None);
        assert_eq!(next_for(0, &[], 5), None);
    }
}
