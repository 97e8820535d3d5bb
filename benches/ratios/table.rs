//! Measures the ways of a work and prints them.

use crate::turns::{self, Lane, Way, paired, spread};

/// A ratio to be printed: time of `base` over time of `ours`, so above 1 is faster.
pub(crate) struct Ratio {
    pub(crate) ours: &'static str,
    pub(crate) base: &'static str,
    /// What is aimed at.
    pub(crate) aim: f64,
}

/// Measures `ways` in `turns` turns and prints medians, and the medians of the paired ratios.
///
/// `bytes` and `items` say what one run does.
pub(crate) fn measure(
    work: &str,
    bytes: u64,
    items: u64,
    turns: usize,
    ways: &mut [Way<'_>],
    ratios: &[Ratio],
) {
    let lanes = turns::measure(turns, ways, &[]);
    println!("\n{work} ({turns} turns)");
    println!(
        "  {:<34} {:>10} {:>10} {:>10} {:>9}  how",
        "way", "median s", "cpu s", "GB/s", "ns/item"
    );
    for lane in &lanes {
        if let Some(why) = &lane.left_out {
            println!("  {:<34} left out: {why}", lane.name);
            continue;
        }
        let wall = spread(lane.samples.iter().map(|sample| sample.wall)).median;
        println!(
            "  {:<34} {:>10.4} {:>10.4} {:>10.2} {:>9.0}  {}",
            lane.name,
            wall,
            spread(lane.samples.iter().map(|sample| sample.cpu)).median,
            bytes as f64 / wall / 1e9,
            wall * 1e9 / items as f64,
            lane.how
        );
    }
    let measured = |name: &str| {
        lanes
            .iter()
            .find(|lane: &&Lane| lane.name == name && lane.left_out.is_none())
    };
    for ratio in ratios {
        let (Some(base), Some(ours)) = (measured(ratio.base), measured(ratio.ours)) else {
            continue;
        };
        let pairs = paired(&base.samples, &ours.samples);
        println!(
            "  {} against {}: {:.2}x (min {:.2}, max {:.2}; aim {:.2})",
            ratio.ours, ratio.base, pairs.median, pairs.least, pairs.most, ratio.aim
        );
    }
}
