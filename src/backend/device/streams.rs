//! Which way of reading long streams is the faster one on a device: found out by the first long stream itself.

use std::time::{Duration, Instant};

/// A way of reading what is not in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the page cache, with the kernel reading ahead.
    Buffered,
    /// Past it.
    Direct,
}

/// Rates of streams, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    pub(crate) buffered: f64,
    pub(crate) direct: f64,
}

impl Rates {
    /// The way to take. Past the cache costs a fraction of the processor's time, so it also wins when it is not much
    /// slower.
    pub(crate) fn better(&self) -> Way {
        if self.direct >= 0.9 * self.buffered {
            Way::Direct
        } else {
            Way::Buffered
        }
    }
}

/// Windows of each way; the medians count.
const WINDOWS: usize = 3;

/// Bytes of a window, at least. In the first half of each, what the other way had begun still comes in.
const WINDOW: u64 = 64 << 20;

/// A window holds at least so many requests, as there may be so many in flight from before.
const REQUESTS: u64 = 8;

/// A stream that takes turns between the two ways.
///
/// It looks only at when requests are handed in: once as many are in flight as the reader allows itself, they are
/// handed in as fast as others are done and taken.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Bytes handed in within this window.
    at: u64,
    window: u64,
    /// When the half of this window was reached, and how far it was then.
    half: Option<(Instant, u64)>,
    buffered: Vec<f64>,
    direct: Vec<f64>,
}

impl Trial {
    pub(crate) fn new() -> Self {
        Trial {
            at: 0,
            window: WINDOW,
            half: None,
            buffered: Vec::with_capacity(WINDOWS),
            direct: Vec::with_capacity(WINDOWS),
        }
    }

    /// The way for the next request, which has `len` bytes.
    pub(crate) fn next(&mut self, len: u64, now: Instant) -> Way {
        self.window = self.window.max(REQUESTS * len);
        if self.at >= self.window {
            if let Some((since, from)) = self.half {
                let spent = now.saturating_duration_since(since);
                let rate =
                    (self.at - from) as f64 / spent.max(Duration::from_nanos(1)).as_secs_f64();
                match self.way() {
                    Way::Buffered => self.buffered.push(rate),
                    Way::Direct => self.direct.push(rate),
                }
            }
            self.at = 0;
            self.half = None;
        }
        if self.half.is_none() && self.at >= self.window / 2 {
            self.half = Some((now, self.at));
        }
        self.at += len;
        self.way()
    }

    fn way(&self) -> Way {
        if self.buffered.len() <= self.direct.len() {
            Way::Buffered
        } else {
            Way::Direct
        }
    }

    /// What was found, once there are enough windows.
    pub(crate) fn found(&self) -> Option<Rates> {
        if self.direct.len() < WINDOWS {
            return None;
        }
        Some(Rates {
            buffered: median(&self.buffered),
            direct: median(&self.direct),
        })
    }
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams over a device with these rates in MiB per second, until the trial has found them.
    fn stream(buffered: u64, direct: u64, len: u64) -> (Rates, u64) {
        let mut trial = Trial::new();
        let mut now = Instant::now();
        let mut bytes = 0;
        loop {
            let way = trial.next(len, now);
            if let Some(rates) = trial.found() {
                return (rates, bytes);
            }
            let rate = match way {
                Way::Buffered => buffered,
                Way::Direct => direct,
            };
            bytes += len;
            now += Duration::from_secs_f64(len as f64 / (rate << 20) as f64);
        }
    }

    fn near(rate: f64, mib: u64) -> bool {
        (rate / (mib << 20) as f64 - 1.0).abs() < 0.01
    }

    #[test]
    fn finds_both_rates_and_takes_the_better_way() {
        let (rates, bytes) = stream(2000, 1000, 512 << 10);
        assert!(
            near(rates.buffered, 2000) && near(rates.direct, 1000),
            "{rates:?}"
        );
        assert_eq!(rates.better(), Way::Buffered);
        assert_eq!(bytes, 2 * WINDOWS as u64 * WINDOW);
        assert_eq!(stream(1000, 1500, 8 << 20).0.better(), Way::Direct);
        assert_eq!(
            stream(1000, 950, 4 << 20).0.better(),
            Way::Direct,
            "at less cost"
        );
    }

    #[test]
    fn one_slow_window_does_not_decide() {
        let mut trial = Trial::new();
        let mut now = Instant::now();
        let mut handed_in = 0u64;
        while trial.found().is_none() {
            let way = trial.next(1 << 20, now);
            // Somebody else takes the device during the first direct window.
            let slow = way == Way::Direct && handed_in < 2 * WINDOW;
            handed_in += 1 << 20;
            now += Duration::from_millis(if slow { 50 } else { 1 });
        }
        let rates = trial.found().unwrap();
        assert!(
            near(rates.direct, 1000) && near(rates.buffered, 1000),
            "{rates:?}"
        );
    }

    #[test]
    fn large_requests_make_large_windows() {
        let (_, bytes) = stream(1000, 1000, 64 << 20);
        assert_eq!(bytes, 2 * WINDOWS as u64 * REQUESTS * (64 << 20));
    }
}
