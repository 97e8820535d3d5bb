//! Measuring in turns: every way of doing a work once per turn, in alternating order, so that drift hits all alike.
//!
//! Shared by `benches/ratios` and `benches/rings`.

use std::time::Instant;

/// Does the work by the clock, and says how (the route, the requests), or why it cannot.
type Run<'a> = dyn FnMut(&mut Clock) -> Result<String, String> + 'a;

/// One way of doing a work.
pub(crate) struct Way<'a> {
    pub(crate) name: String,
    /// Runs before each run.
    pub(crate) prepare: Box<dyn FnMut() + 'a>,
    pub(crate) run: Box<Run<'a>>,
}

/// Measures a part of a run; what comes before it starts and after it stops is not counted.
pub(crate) struct Clock {
    /// Which turn this is. Turn 0 warms up: it is not counted.
    pub(crate) turn: usize,
    started: Option<(Instant, f64)>,
    pub(crate) sample: Option<Sample>,
}

/// What a run took, in seconds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

impl Clock {
    pub(crate) fn start(&mut self) {
        let cpu = cpu_seconds(libc::RUSAGE_SELF);
        self.started = Some((Instant::now(), cpu));
    }

    pub(crate) fn stop(&mut self) {
        if let Some((start, cpu)) = self.started.take() {
            self.sample = Some(Sample {
                wall: start.elapsed().as_secs_f64(),
                cpu: cpu_seconds(libc::RUSAGE_SELF) - cpu,
            });
        }
    }

    /// Measures one call.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.start();
        let value = work();
        self.stop();
        value
    }
}

/// What a way came to.
pub(crate) struct Lane {
    pub(crate) name: String,
    /// One for each turn, if it was not left out.
    pub(crate) samples: Vec<Sample>,
    pub(crate) how: String,
    /// Why it was not measured to the end.
    pub(crate) left_out: Option<String>,
}

/// Measures `ways` in `turns` turns. One more lane comes last, if any of the ways at `repeat` works: the one that was
/// fastest in turn 0, once more in each turn. Its ratio to itself is the noise.
pub(crate) fn measure(turns: usize, ways: &mut [Way<'_>], repeat: &[usize]) -> Vec<Lane> {
    let lane = |name: String| Lane {
        name,
        samples: Vec::new(),
        how: String::new(),
        left_out: None,
    };
    let mut lanes: Vec<Lane> = ways.iter().map(|way| lane(way.name.clone())).collect();
    // Which way each lane runs.
    let mut of: Vec<usize> = (0..ways.len()).collect();
    let mut fastest: Option<(f64, usize)> = None;
    for turn in 0..=turns {
        let count = lanes.len();
        for at in 0..count {
            // Backwards every other turn, and begun elsewhere each time.
            let at = if turn % 2 == 0 { at } else { count - 1 - at };
            let at = (at + turn) % count;
            let (lane, way) = (&mut lanes[at], &mut ways[of[at]]);
            if lane.left_out.is_some() {
                continue;
            }
            (way.prepare)();
            let mut clock = Clock {
                turn,
                started: None,
                sample: None,
            };
            let result = (way.run)(&mut clock);
            match (result, clock.sample) {
                (Err(why), _) => lane.left_out = Some(why),
                (Ok(_), None) => lane.left_out = Some("it did not use the clock".into()),
                (Ok(how), Some(sample)) if clock.turn > 0 => {
                    lane.samples.push(sample);
                    lane.how = how;
                }
                (Ok(_), Some(sample)) => {
                    let faster = fastest.is_none_or(|(wall, _)| sample.wall < wall);
                    if faster && repeat.contains(&at) {
                        fastest = Some((sample.wall, at));
                    }
                }
            }
        }
        if let (0, Some((_, at))) = (turn, fastest) {
            lanes.push(lane(format!("{} again", ways[at].name)));
            of.push(at);
        }
    }
    lanes
}

/// The middle of some values, and the outermost.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Time of `base` over time of `ours` in the same turn, so above 1 is faster.
pub(crate) fn paired(base: &[Sample], ours: &[Sample]) -> Spread {
    spread(
        base.iter()
            .zip(ours)
            .map(|(base, ours)| base.wall / ours.wall),
    )
}

pub(crate) fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        return Spread {
            median: f64::NAN,
            least: f64::NAN,
            most: f64::NAN,
        };
    }
    Spread {
        median: (values[n / 2] + values[(n - 1) / 2]) / 2.0,
        least: values[0],
        most: values[n - 1],
    }
}

/// User and system time of this process (`RUSAGE_SELF`) or of those that it waited for (`RUSAGE_CHILDREN`).
pub(crate) fn cpu_seconds(who: libc::c_int) -> f64 {
    // SAFETY: rusage is plain data and the pointer is valid for the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
