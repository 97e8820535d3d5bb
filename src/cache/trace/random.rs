//! Numbers that a seed determines.

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(mix(seed ^ 0x6665_6564_7761_7465))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// In `0.0..1.0`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

pub(super) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Ranks by Zipf's law: rank `k` of `n` with a probability that falls as `1 / k^s`, drawn by the inverse of the continuous
/// distribution with the same density.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    count: u64,
    exponent: f64,
}

impl Zipf {
    /// `exponent` from above 0 to below 1.
    pub(super) fn new(count: u64, exponent: f64) -> Self {
        Zipf { count, exponent }
    }

    /// A rank below the count, 0 the likeliest.
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let power = 1.0 - self.exponent;
        let end = (self.count as f64 + 1.0).powf(power);
        let at = (1.0 + random.unit() * (end - 1.0)).powf(1.0 / power);
        (at as u64)
            .saturating_sub(1)
            .min(self.count.saturating_sub(1))
    }
}
