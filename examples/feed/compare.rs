//! All ways of reading a file, one after the other, in turns.

use std::path::Path;

use feedwater::{Engine, Error, ErrorKind, OpenOptions, PoolOptions, Reader, Report, Route};
use indicatif::ProgressBar;

use crate::Failure;
use crate::args::{Args, Choice};
use crate::evict::evict;
use crate::process::{FRESH_FROM, Spent, fresh_blocks, measured};
use crate::read::{Cache, options, whole};

/// How the ways compare; no rows for an empty file.
#[derive(Default)]
pub(crate) struct Comparison {
    pub(crate) bytes: u64,
    pub(crate) turns: u32,
    pub(crate) rows: Vec<Row>,
    /// Engines that cannot read this file, and why.
    pub(crate) refused: Vec<(Route, String)>,
    /// Why there are no cold rows.
    pub(crate) not_cold: Option<String>,
}

/// One way in one state of the page cache; times are medians of the turns.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) cache: Cache,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// How many times as fast as `std::fs::read`: the median of the ratios within a turn.
    pub(crate) ratio: f64,
    /// `std::fs::read` against itself.
    pub(crate) is_control: bool,
    /// Of the last turn; `None` if it is not an engine of the crate.
    pub(crate) report: Option<Report>,
}

struct Way {
    name: &'static str,
    how: How,
}

enum How {
    Engine(Box<OpenOptions>, Engine),
    Std,
    Control,
    Tokio(tokio::runtime::Runtime),
}

/// A read of one way in one turn.
struct Sample {
    spent: Spent,
    report: Option<Report>,
}

pub(crate) fn compare(path: &Path, args: &Args, engine: &Engine) -> Result<Comparison, Failure> {
    // Refuses what is no file, too: `std::fs::read` would wait for the writer of a FIFO for ever.
    let bytes = feedwater::open(path)?.source().len();
    let mut comparison = Comparison {
        bytes,
        turns: args.turns.get(),
        ..Comparison::default()
    };
    if bytes == 0 {
        return Ok(comparison);
    }
    // The default limit of a block is the memory of the machine.
    let most = PoolOptions::default().max_block as u64 / 2;
    if bytes > most {
        let path = path.display();
        return Err(format!("{path}: {bytes} bytes are too many to compare: std::fs::read needs them all in memory (at most {most})").into());
    }
    let ways = ways(path, args, engine, &mut comparison)?;
    fresh_blocks();
    // Not measured: it starts threads, loads code, and brings the file into the page cache.
    for way in &ways {
        way.read(path, bytes)?;
    }
    let warm = turns(path, &ways, &comparison, || Ok(()))?;
    comparison.add(&ways, Cache::Warm, warm);
    match evict(path) {
        Err(why) => comparison.not_cold = Some(why),
        Ok(()) => {
            let cold = turns(path, &ways, &comparison, || {
                evict(path).map_err(|why| format!("{}: no longer cold: {why}", path.display()))
            })?;
            comparison.add(&ways, Cache::Cold, cold);
        }
    }
    Ok(comparison)
}

/// Every engine that can read the file, and the plain ways.
fn ways(
    path: &Path,
    args: &Args,
    engine: &Engine,
    comparison: &mut Comparison,
) -> Result<Vec<Way>, Failure> {
    let mut ways = vec![
        Way::new("std::fs::read", How::Std),
        Way::new("std::fs::read again", How::Control),
        Way::new("tokio::fs", How::Tokio(runtime()?)),
    ];
    for choice in Choice::all() {
        if args.engine.is_some_and(|only| only != choice) {
            continue;
        }
        let options = options(args, engine, choice);
        match (options.open(path), choice) {
            (Ok(_), _) => {
                let how = How::Engine(Box::new(options), engine.clone());
                ways.push(Way::new(choice.name(), how));
            }
            (Err(error), Choice::Only(route)) if args.engine.is_none() => {
                comparison.refused.push((route, why_refused(error)?));
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    Ok(ways)
}

/// The reason of an engine that cannot be used; other errors are the path's.
fn why_refused(error: Error) -> Result<String, Error> {
    match error.kind() {
        ErrorKind::Unavailable { why, .. } => Ok(why.to_string()),
        _ => Err(error),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().build()
}

/// Samples by turn, in the order of `ways`.
fn turns(
    path: &Path,
    ways: &[Way],
    comparison: &Comparison,
    prepare: impl Fn() -> Result<(), String>,
) -> Result<Vec<Vec<Sample>>, Failure> {
    let mut turns = Vec::new();
    for turn in 0..comparison.turns as usize {
        let mut samples: Vec<_> = ways.iter().map(|_| None).collect();
        // Each turn begins with another way and every other one goes backwards, so that none always follows the
        // same one.
        for step in 0..ways.len() {
            let at = (step + turn) % ways.len();
            let at = if turn % 2 == 0 {
                at
            } else {
                ways.len() - 1 - at
            };
            prepare()?;
            samples[at] = Some(ways[at].read(path, comparison.bytes)?);
        }
        turns.push(samples.into_iter().flatten().collect());
    }
    Ok(turns)
}

impl Way {
    fn new(name: &'static str, how: How) -> Self {
        Way { name, how }
    }

    /// Opens and reads the file into fresh memory; what was read is dropped after the clock has stopped.
    fn read(&self, path: &Path, bytes: u64) -> Result<Sample, Failure> {
        if let (How::Engine(_, engine), true) = (&self.how, bytes >= FRESH_FROM) {
            // The plain ways get fresh memory for a block of this size, so the crate does without its kept blocks.
            engine.pool().trim();
        }
        let plain = |(read, spent): (std::io::Result<Vec<u8>>, Spent)| {
            let failed = |what: String| format!("{}: {}: {what}", path.display(), self.name);
            let read = read.map_err(|error| failed(error.to_string()))?;
            if read.len() as u64 != bytes {
                return Err(failed(format!("{} bytes instead of {bytes}", read.len())));
            }
            let report = None;
            Ok(Sample { spent, report })
        };
        let sample = match &self.how {
            How::Std | How::Control => plain(measured(|| std::fs::read(path)))?,
            How::Tokio(runtime) => plain(measured(|| runtime.block_on(tokio::fs::read(path))))?,
            How::Engine(options, _) => {
                let (reader, spent) = measured(|| {
                    let reader = options.open(path)?;
                    let bytes = whole(&reader, &ProgressBar::hidden())?;
                    Ok::<_, Error>((reader, bytes))
                });
                let (reader, _bytes) = reader?;
                let report = Some(reader.report());
                Sample { spent, report }
            }
        };
        Ok(sample)
    }
}

impl Comparison {
    fn add(&mut self, ways: &[Way], cache: Cache, mut turns: Vec<Vec<Sample>>) {
        let base = ways.iter().position(|way| matches!(way.how, How::Std));
        for (at, way) in ways.iter().enumerate() {
            let over = |value: &dyn Fn(&[Sample]) -> f64| {
                median(turns.iter().map(|turn| value(turn)).collect())
            };
            let seconds = over(&|turn| turn[at].spent.seconds);
            let cpu_seconds = over(&|turn| turn[at].spent.cpu_seconds);
            let ratio = over(&|turn| {
                let base = base.map_or(f64::NAN, |base| turn[base].spent.seconds);
                base / turn[at].spent.seconds.max(1e-9)
            });
            let report = turns.last_mut().and_then(|turn| turn[at].report.take());
            self.rows.push(Row {
                name: way.name,
                cache,
                seconds,
                cpu_seconds,
                ratio,
                is_control: matches!(way.how, How::Control),
                report,
            });
        }
    }
}

/// Of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => f64::NAN,
        _ => (values[n / 2] + values[(n - 1) / 2]) / 2.0,
    }
}
