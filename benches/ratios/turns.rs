//! Measuring in turns: every way of doing a work once per turn, in alternating order, so that drift hits all alike.

use std::collections::BTreeMap;
use std::time::Instant;

/// One way of doing a work.
pub(crate) struct Way<'a> {
    pub(crate) name: &'static str,
    /// Runs before the clock starts.
    pub(crate) prepare: Box<dyn FnMut() + 'a>,
    /// Does the work, and says how (the route, the requests).
    pub(crate) run: Box<dyn FnMut() -> String + 'a>,
}

/// A ratio to be printed: time of `base` over time of `ours`, so above 1 is faster.
pub(crate) struct Ratio {
    pub(crate) ours: &'static str,
    pub(crate) base: &'static str,
    /// What is aimed at.
    pub(crate) aim: f64,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    wall: f64,
    cpu: f64,
}

/// Measures `ways` in `turns` turns and prints medians, and the medians of the paired ratios.
///
/// `units` says how many units of work a run does, `unit` what they are; times are per unit for `ns`, rates else.
pub(crate) fn measure(
    work: &str,
    bytes: u64,
    items: u64,
    turns: usize,
    ways: &mut [Way<'_>],
    ratios: &[Ratio],
) {
    let mut samples: BTreeMap<&'static str, Vec<Sample>> = BTreeMap::new();
    let mut notes: BTreeMap<&'static str, String> = BTreeMap::new();
    for turn in 0..=turns {
        let count = ways.len();
        for at in 0..count {
            // Backwards every other turn, and begun elsewhere each time.
            let at = if turn % 2 == 0 { at } else { count - 1 - at };
            let way = &mut ways[(at + turn) % count];
            (way.prepare)();
            let cpu = cpu_seconds();
            let start = Instant::now();
            let note = (way.run)();
            let sample = Sample {
                wall: start.elapsed().as_secs_f64(),
                cpu: cpu_seconds() - cpu,
            };
            if turn > 0 {
                samples.entry(way.name).or_default().push(sample);
                notes.insert(way.name, note);
            }
        }
    }
    println!("\n{work} ({turns} turns)");
    println!(
        "  {:<34} {:>10} {:>10} {:>10} {:>9}  how",
        "way", "median s", "cpu s", "GB/s", "ns/item"
    );
    for way in ways.iter() {
        let s = &samples[way.name];
        let wall = median(s.iter().map(|s| s.wall));
        println!(
            "  {:<34} {:>10.4} {:>10.4} {:>10.2} {:>9.0}  {}",
            way.name,
            wall,
            median(s.iter().map(|s| s.cpu)),
            bytes as f64 / wall / 1e9,
            wall * 1e9 / items as f64,
            notes[way.name]
        );
    }
    for ratio in ratios {
        let pairs: Vec<f64> = samples[ratio.base]
            .iter()
            .zip(&samples[ratio.ours])
            .map(|(base, ours)| base.wall / ours.wall)
            .collect();
        let (min, max) = pairs
            .iter()
            .fold((f64::MAX, 0.0f64), |(a, b), &x| (a.min(x), b.max(x)));
        println!(
            "  {} against {}: {:.2}x (min {min:.2}, max {max:.2}; aim {:.2})",
            ratio.ours,
            ratio.base,
            median(pairs.iter().copied()),
            ratio.aim
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        return f64::NAN;
    }
    (values[n / 2] + values[(n - 1) / 2]) / 2.0
}

/// User and system time of this process.
pub(crate) fn cpu_seconds() -> f64 {
    // SAFETY: rusage is plain data and the pointer is valid for the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
