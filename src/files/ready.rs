//! What has been done and not been taken.

use std::collections::{BTreeMap, VecDeque};

use super::FileResult;

/// A result, and the bytes that it holds room for.
#[derive(Debug)]
pub(super) struct Done<T> {
    pub(super) turn: u64,
    pub(super) file: FileResult<T>,
    pub(super) held: u64,
}

/// Results in the order in which they are given.
#[derive(Debug)]
pub(super) enum Ready<T> {
    AsTheyCome(VecDeque<Done<T>>),
    InOrder {
        next: u64,
        done: BTreeMap<u64, Done<T>>,
    },
}

impl<T> Ready<T> {
    pub(super) fn new(in_order: bool) -> Self {
        match in_order {
            false => Ready::AsTheyCome(VecDeque::new()),
            true => Ready::InOrder {
                next: 0,
                done: BTreeMap::new(),
            },
        }
    }

    pub(super) fn push(&mut self, one: Done<T>) {
        match self {
            Ready::AsTheyCome(done) => done.push_back(one),
            Ready::InOrder { done, .. } => drop(done.insert(one.turn, one)),
        }
    }

    /// The next one, if it is there.
    pub(super) fn pop(&mut self) -> Option<Done<T>> {
        match self {
            Ready::AsTheyCome(done) => done.pop_front(),
            Ready::InOrder { next, done } => {
                let one = done.remove(next)?;
                *next += 1;
                Some(one)
            }
        }
    }

    pub(super) fn has_next(&self) -> bool {
        match self {
            Ready::AsTheyCome(done) => !done.is_empty(),
            Ready::InOrder { next, done } => done.contains_key(next),
        }
    }

    /// The turn of the one that is next; `u64::MAX` if any is.
    pub(super) fn head(&self) -> u64 {
        match self {
            Ready::AsTheyCome(_) => u64::MAX,
            Ready::InOrder { next, .. } => *next,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Ready::AsTheyCome(done) => done.len(),
            Ready::InOrder { done, .. } => done.len(),
        }
    }
}
