//! The clock that ages and windows are measured by; another one can be put in its place.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock: times since a beginning of its own, which never go back.
///
/// Everything in the cache that depends on time asks it: time to live, the window of the prefetch trigger, the cool-down
/// of a root, the decay of counts, the time limits of passes and warm-ups. Called once an access, from any thread.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Time since the beginning. Times beyond 584 years are taken for that.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock, from when the value was made.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock(Instant);

impl MonotonicClock {
    /// Begins now.
    pub fn new() -> Self {
        MonotonicClock(Instant::now())
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock that moves only when it is told to: for tests and simulations, which then need not sleep.
///
/// ```
/// use std::time::Duration;
/// use feedwater::cache::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// clock.advance(Duration::from_secs(3));
/// assert_eq!(clock.now(), Duration::from_secs(3));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Stands at zero.
    pub fn new() -> Self {
        ManualClock::default()
    }

    /// Moves on by `time`, to 584 years at most.
    pub fn advance(&self, time: Duration) {
        let by = nanos(time);
        let add = |now: u64| Some(now.saturating_add(by));
        // The closure always gives a value.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// In nanoseconds, saturating.
pub(crate) fn nanos(time: Duration) -> u64 {
    time.as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::from(time.subsec_nanos()))
}
