//! What asking the backend was measured to cost.

use std::sync::atomic::{AtomicU64, Ordering};

/// How much the newest measurement counts in the mean.
const NEWEST: f64 = 1.0 / 16.0;

/// Moving means, as the bits of `f64`; 0 before the first measurement.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    call: AtomicU64,
    byte: AtomicU64,
    child: AtomicU64,
}

impl Costs {
    /// A call took so many nanoseconds.
    pub(crate) fn call(&self, nanos: u64) {
        mix(&self.call, nanos as f64 / 1e9);
    }

    /// A pass that brought so many children took so many nanoseconds.
    pub(crate) fn pass(&self, children: u64, nanos: u64) {
        if children > 0 {
            mix(&self.child, nanos as f64 / 1e9 / children as f64);
        }
    }

    /// How many children of a pass cost as much as one call; `None` before both were measured.
    pub(crate) fn children_per_call(&self) -> Option<f64> {
        let read = |cell: &AtomicU64| f64::from_bits(cell.load(Ordering::Relaxed));
        let (call, child) = (read(&self.call), read(&self.child));
        (call > 0.0 && child > 0.0).then(|| call / child)
    }

    /// Fetching so many bytes took so many nanoseconds.
    pub(crate) fn fetched(&self, bytes: u64, nanos: u64) {
        if bytes > 0 {
            mix(&self.byte, nanos as f64 / 1e9 / bytes as f64);
        }
    }

    /// Seconds for a call, and for a byte.
    pub(crate) fn measured(&self) -> (f64, f64) {
        let read = |cell: &AtomicU64| f64::from_bits(cell.load(Ordering::Relaxed));
        (read(&self.call), read(&self.byte))
    }
}

/// Lost updates do no harm, so none is repeated.
fn mix(cell: &AtomicU64, new: f64) {
    let old = f64::from_bits(cell.load(Ordering::Relaxed));
    let mean = if old == 0.0 {
        new
    } else {
        old + (new - old) * NEWEST
    };
    cell.store(mean.to_bits(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_follow_what_is_measured() {
        let costs = Costs::default();
        assert_eq!(costs.measured(), (0.0, 0.0));
        for _ in 0..200 {
            costs.call(200_000);
            costs.fetched(1000, 1_000_000);
        }
        costs.fetched(0, 5);
        let (call, byte) = costs.measured();
        assert!((call - 200e-6).abs() < 1e-9 && (byte - 1e-6).abs() < 1e-12);
        costs.call(200_000_000);
        assert!(costs.measured().0 > 0.01);
        assert_eq!(costs.children_per_call(), None);
        costs.pass(0, 7);
        costs.pass(100, 1_000_000);
        let ratio = costs.measured().0 / 10e-6;
        assert_eq!(costs.children_per_call(), Some(ratio));
    }
}
