//! Numbers that a seed determines, for faults and tests that can be repeated. Not for secrets.

use std::ops::Range;
use std::time::Duration;

/// The output function of SplitMix64 (Steele, Lea, Flood, 2014): every bit of the result depends on every bit of
/// `z`.
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    /// A sequence of its own for each combination of `parts`.
    pub(crate) fn of(seed: u64, parts: &[u64]) -> Self {
        let fold = |seed, part: &u64| mix(seed ^ mix(part.wrapping_add(GAMMA)));
        SplitMix(parts.iter().fold(mix(seed), fold))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `bound`; 0 if that is 0. The bias is at most `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with this probability; never from 0 down, always from 1 up.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        // 53 bits: as many as the fraction of an `f64` holds, so 1.0 itself never comes out.
        let drawn = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        drawn < probability
    }

    /// A duration in the range; its start if the range is empty.
    pub(crate) fn duration(&mut self, range: &Range<Duration>) -> Duration {
        let span = range.end.saturating_sub(range.start).as_nanos();
        let nanos = self.below(u64::try_from(span).unwrap_or(u64::MAX));
        range.start.saturating_add(Duration::from_nanos(nanos))
    }
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        // First outputs of the reference implementation (splitmix64.c, Vigna) for seed 1234567.
        let mut rng = SplitMix::new(1_234_567);
        let first: Vec<_> = (0..3).map(|_| rng.next()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn bounds_are_kept() {
        let mut rng = SplitMix::of(1, &[2, 3]);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0.0) && rng.chance(1.0));
        let (short, long) = (Duration::from_millis(2), Duration::from_millis(3));
        assert!((0..100).all(|_| (short..long).contains(&rng.duration(&(short..long)))));
        assert_eq!(rng.duration(&(long..short)), long);
    }

    #[test]
    fn every_part_matters() {
        let first = |parts: &[u64]| SplitMix::of(9, parts).next();
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[0]), first(&[0, 0]));
    }
}
