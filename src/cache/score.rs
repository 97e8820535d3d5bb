//! In which order a warm-up fetches.

use std::time::Duration;

/// What a file of unknown size is taken for, in bytes: large enough not to come before files that are known to be small.
pub const UNKNOWN_SIZE: u64 = 1 << 20;

/// Bytes that an entry takes besides its content, for [`WarmupScore::CostAware`].
const ENTRY: f64 = 512.0;

/// How much one access of each sibling counts beside one of the file itself.
const PRIOR: f64 = 0.5;

/// What a call is taken to cost in seconds before any was measured: one that goes to a disk.
const CALL: f64 = 100e-6;

/// What a byte is taken to cost in seconds before any was measured: a disk of 1 GB/s.
const BYTE: f64 = 1e-9;

/// In which order a warm-up fetches: the highest score first.
///
/// Every score is a finite number and not negative, whatever it is computed from.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WarmupScore {
    /// `recency × log10(accesses + 1) / (KiB + 1)`, with `recency = max(0.1, 1 / (1 + hours since the last access))`.
    ///
    /// Known faults: what was never read scores 0, size outweighs all else, and counts never age.
    Classic,
    /// Expected accesses × seconds that having it saves each time / bytes that it takes.
    ///
    /// Expected accesses are those of the file, halved for each half-life since, plus half the mean of its siblings: so a
    /// child that was never read has the score of its directory. A fetch costs what calls and bytes of this backend were measured to cost; a
    /// large file takes more room but saves more, so its size does not outweigh all else.
    #[default]
    CostAware,
}

/// What a score is computed from.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreInput {
    /// Accesses ever.
    pub accesses: u64,
    /// Accesses, halved for each half-life since.
    pub heat: f64,
    /// Time since the last access; `None` if there was none.
    pub since_last: Option<Duration>,
    /// Bytes of content; `None` if unknown, which counts as [`UNKNOWN_SIZE`].
    pub size: Option<u64>,
    /// Mean heat of the other files in the directory.
    pub siblings: f64,
    /// Whether the content is fetched too; else only [`Classic`](WarmupScore::Classic) looks at the size.
    pub contents: bool,
    /// Seconds that a call of the backend was measured to take; 0 if not measured.
    pub call_seconds: f64,
    /// Seconds that a byte was measured to take; 0 if not measured.
    pub byte_seconds: f64,
}

impl Default for ScoreInput {
    fn default() -> Self {
        ScoreInput {
            accesses: 0,
            heat: 0.0,
            since_last: None,
            size: None,
            siblings: 0.0,
            contents: false,
            call_seconds: 0.0,
            byte_seconds: 0.0,
        }
    }
}

impl WarmupScore {
    /// The score. A number that is not one (NaN), or negative, counts as 0; one beyond the largest as that.
    ///
    /// ```
    /// use std::time::Duration;
    /// use feedwater::cache::{ScoreInput, WarmupScore};
    ///
    /// let mut input = ScoreInput::default();
    /// (input.accesses, input.size) = (9, Some(1024));
    /// input.since_last = Some(Duration::from_secs(3600));
    /// assert_eq!(WarmupScore::Classic.score(&input), 0.5 * 1.0 / 2.0);
    /// ```
    pub fn score(self, input: &ScoreInput) -> f64 {
        let size = input.size.unwrap_or(UNKNOWN_SIZE) as f64;
        let score = match self {
            WarmupScore::Classic => {
                let hours = input
                    .since_last
                    .map_or(f64::INFINITY, |since| since.as_secs_f64() / 3600.0);
                let recency = (1.0 / (1.0 + hours)).max(0.1);
                let often = (input.accesses as f64 + 1.0).log10();
                recency * often / (size / 1024.0 + 1.0)
            }
            WarmupScore::CostAware => {
                let size = if input.contents { size } else { 0.0 };
                let call = measured_or(input.call_seconds, CALL);
                let byte = measured_or(input.byte_seconds, BYTE);
                let expected = sound(input.heat) + PRIOR * sound(input.siblings);
                expected * (call + size * byte) / (ENTRY + size)
            }
        };
        sound(score)
    }
}

fn measured_or(seconds: f64, otherwise: f64) -> f64 {
    let seconds = sound(seconds);
    if seconds > 0.0 { seconds } else { otherwise }
}

/// Finite and not negative.
fn sound(number: f64) -> f64 {
    if number.is_nan() {
        0.0
    } else {
        number.clamp(0.0, f64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(s: u64) -> Option<Duration> {
        Some(Duration::from_secs(s))
    }

    #[test]
    fn classic_is_the_formula() {
        let score = |accesses, hours: Option<u64>, size| {
            let since_last = hours.and_then(|h| seconds(h * 3600));
            WarmupScore::Classic.score(&ScoreInput {
                accesses,
                since_last,
                size,
                ..ScoreInput::default()
            })
        };
        assert_eq!(score(99, Some(0), Some(0)), 2.0);
        assert_eq!(score(9, Some(3), Some(3072)), 0.25 / 4.0);
        assert_eq!(score(9, Some(1000), Some(0)), 0.1);
        assert_eq!(score(9, None, Some(0)), 0.1);
        assert_eq!(score(0, Some(0), Some(0)), 0.0);
        assert_eq!(
            score(9, Some(0), None),
            score(9, Some(0), Some(UNKNOWN_SIZE))
        );
    }

    #[test]
    fn cost_aware_repairs_the_faults_of_classic() {
        let input = ScoreInput::default();
        let score = |input: ScoreInput| WarmupScore::CostAware.score(&input);
        // A child that was never read has the score of its directory.
        let hot = ScoreInput {
            siblings: 4.0,
            ..input
        };
        assert!(
            score(hot)
                > score(ScoreInput {
                    siblings: 1.0,
                    ..input
                })
        );
        assert_eq!(WarmupScore::Classic.score(&hot), 0.0);
        // Size does not outweigh all: 64 MiB read a hundred times come before 4 KiB read once, long ago.
        let large = ScoreInput {
            accesses: 100,
            heat: 100.0,
            since_last: seconds(60),
            size: Some(64 << 20),
            contents: true,
            ..input
        };
        let small = ScoreInput {
            accesses: 1,
            heat: 0.01,
            since_last: seconds(60),
            size: Some(4 << 10),
            contents: true,
            ..input
        };
        assert!(score(large) > score(small));
        assert!(WarmupScore::Classic.score(&large) < WarmupScore::Classic.score(&small));
        // Counts age: the same number of accesses, cooled down.
        let cold = ScoreInput { heat: 1.0, ..large };
        assert!(score(cold) < score(large));
        // A backend that is slow for each call makes small files worth more.
        let slow = |input: ScoreInput| {
            score(ScoreInput {
                call_seconds: 0.1,
                ..input
            })
        };
        assert!(slow(small) / slow(large) > score(small) / score(large));
    }

    proptest! {
        #[test]
        fn every_score_is_finite_and_not_negative(
            accesses: u64,
            heat in prop::num::f64::ANY,
            siblings in prop::num::f64::ANY,
            call_seconds in prop::num::f64::ANY,
            byte_seconds in prop::num::f64::ANY,
            since in prop::option::of(any::<u64>()),
            size in prop::option::of(any::<u64>()),
            contents: bool,
        ) {
            let since_last = since.map(Duration::from_secs);
            let input = ScoreInput {
                accesses, heat, since_last, size, siblings, contents, call_seconds, byte_seconds,
            };
            for score in [WarmupScore::Classic, WarmupScore::CostAware] {
                let score = score.score(&input);
                prop_assert!(score.is_finite() && score >= 0.0, "{}", score);
            }
        }
    }
}
