//! What is remembered of entries that left: why, and how much they were used. Bounded.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quick_cache::DefaultHashBuilder;

use super::key::Key;
use super::node::UsageNow;

/// Why an entry is not there any more.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Departure {
    /// Others needed its place.
    Evicted,
    /// It was invalidated.
    Invalidated,
    /// It is larger than an entry may be, or there was no room for one more load in flight.
    NotKept,
    /// The last load failed.
    Failed,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Departure::Evicted => "it was evicted, since others needed its place",
            Departure::Invalidated => "it was invalidated",
            Departure::NotKept => {
                "it was handed out and not kept: larger than an entry may be, or no room for one more load in flight"
            }
            Departure::Failed => "the last load failed",
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) departure: Departure,
    pub(crate) at: u64,
    pub(crate) usage: UsageNow,
    pub(crate) size: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct History {
    most: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<Key, Record, DefaultHashBuilder>,
    /// In the order in which they came; may name some that are gone.
    order: VecDeque<Key>,
    bytes: u64,
}

impl History {
    /// Remembers as much as fits into `most` bytes.
    pub(crate) fn new(most: u64) -> Self {
        History {
            most,
            inner: Mutex::default(),
        }
    }

    pub(crate) fn put(&self, key: Key, record: Record) {
        let cost = cost(&key);
        if cost > self.most {
            return;
        }
        let mut inner = self.inner();
        if let Some(known) = inner.records.get_mut(&key) {
            *known = record;
            return;
        }
        while inner.bytes + cost > self.most {
            let Some(oldest) = inner.order.pop_front() else {
                break;
            };
            // Its bytes go with its place in the order, so that both are bounded by one number.
            inner.bytes -= self::cost(&oldest);
            inner.records.remove(&oldest);
        }
        inner.bytes += cost;
        inner.order.push_back(key.clone());
        inner.records.insert(key, record);
    }

    /// What is remembered of the key, to begin from when it comes back.
    pub(crate) fn take(&self, key: &Key) -> Option<Record> {
        self.inner().records.remove(key)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Record> {
        self.inner().records.get(key).copied()
    }

    pub(crate) fn all(&self) -> Vec<(Key, Record)> {
        let inner = self.inner();
        inner.records.iter().map(|(k, r)| (k.clone(), *r)).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.inner().bytes
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Twice the key and the record for the spare places of a table and of a queue that grow by doubling.
fn cost(key: &Key) -> u64 {
    let fixed = 2 * (2 * size_of::<Key>() + size_of::<Record>()) + 32;
    (fixed + key.path.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::key::Kind;

    fn record(at: u64) -> Record {
        Record {
            departure: Departure::Evicted,
            at,
            usage: UsageNow::default(),
            size: None,
        }
    }

    #[test]
    fn the_oldest_are_forgotten_and_the_bytes_never_pass_the_bound() {
        let history = History::new(2000);
        let key = |n: u64| Key::new(Kind::ATTRIBUTES, format!("/dir/{n:04}").as_bytes());
        for n in 0..500 {
            history.put(key(n), record(n));
            assert!(history.bytes() <= 2000);
            if n % 3 == 0 {
                history.take(&key(n));
            }
        }
        assert!(history.get(&key(0)).is_none());
        assert_eq!(history.get(&key(499)).map(|r| r.at), Some(499));
        history.put(key(499), record(7));
        assert_eq!(history.take(&key(499)).map(|r| r.at), Some(7));
        assert!(history.get(&key(499)).is_none());
        let inner = history.inner();
        assert!(inner.order.len() < 20, "{}", inner.order.len());
    }

    #[test]
    fn nothing_is_remembered_where_nothing_fits() {
        let history = History::new(0);
        let key = Key::new(Kind::LISTING, b"/a");
        history.put(key.clone(), record(1));
        assert!(history.get(&key).is_none());
    }
}
