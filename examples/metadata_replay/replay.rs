//! One trace through one policy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use feedwater::Result;
use feedwater::cache::ManualClock;
use feedwater::cache::trace::{Operation, Trace, TraceKind, TraceOptions};
use serde_json::{Value, json};

use crate::args::Args;
use crate::backend::Simulated;
use crate::policy::{Cache, Policy};

pub(crate) struct Done {
    trace: &'static str,
    policy: &'static str,
    capacity: usize,
    accesses: u64,
    hit_rate: f64,
    qps: f64,
    backend_calls: u64,
    useful: u64,
    wasted: u64,
}

pub(crate) fn trace(args: &Args, kind: TraceKind) -> Arc<Trace> {
    let mut options = TraceOptions::new().seed(args.seed).accesses(args.accesses);
    if let Some(entries) = args.entries {
        options = options.entries(entries);
    }
    Arc::new(Trace::new(kind, &options))
}

/// Least entries that a cache may hold: `MetadataCache` has 64 KiB at least.
const LEAST: usize = 256;

/// Entries that a cache may hold.
pub(crate) fn capacity(args: &Args, trace: &Trace) -> usize {
    let share = trace.tree().entries() as f64 * args.capacity_percent / 100.0;
    (share as usize).max(LEAST)
}

pub(crate) fn run(
    args: &Args,
    trace: &Arc<Trace>,
    policy: Policy,
    capacity: usize,
) -> Result<Done> {
    let clock = Arc::new(ManualClock::new());
    let backend = Arc::new(Simulated::new(
        trace.clone(),
        clock.clone(),
        Duration::from_micros(args.latency_us),
        Duration::from_micros(args.entry_us),
    ));
    let mut cache = Cache::new(policy, trace, capacity, &backend, &clock)?;
    let (mut accesses, mut hits) = (0u64, 0u64);
    let mut path = String::new();
    let began = Instant::now();
    for operation in trace.operations() {
        let (_, hit) = match *operation {
            Operation::Stat(file) => {
                trace.tree().file_path(file, &mut path);
                cache.stat(&path, &backend)?
            }
            Operation::List(dir) => cache.list(trace.tree().dir_path(dir), &backend)?,
            Operation::Idle(time) => {
                clock.advance(time);
                cache.idle()?;
                continue;
            }
            // Operations that a later version may add.
            _ => continue,
        };
        accesses += 1;
        hits += u64::from(hit);
    }
    let seconds = began.elapsed().as_secs_f64() + backend.seconds();
    let (mut useful, mut wasted) = (0, 0);
    if let Cache::Ours { cache, .. } = &cache {
        let metrics = cache.metrics();
        hits = metrics.hits;
        useful = metrics.prefetch_useful;
        // Also those that are still there and that nobody asked for until the end.
        wasted = metrics.prefetched - useful;
    }
    Ok(Done {
        trace: trace.kind().name(),
        policy: policy.name(),
        capacity,
        accesses,
        hit_rate: hits as f64 / accesses.max(1) as f64,
        qps: accesses as f64 / seconds.max(1e-9),
        backend_calls: backend.requests(),
        useful,
        wasted,
    })
}

pub(crate) fn print_head(trace: &Trace, capacity: usize) {
    println!(
        "\n{}: {} names, capacity {capacity}\n{:<12} {:>9} {:>9} {:>10} {:>11} {:>9} {:>9}",
        trace.kind().name(),
        trace.tree().entries(),
        "policy",
        "accesses",
        "hit rate",
        "qps",
        "calls",
        "useful",
        "wasted",
    );
}

impl Done {
    pub(crate) fn row(&self) -> String {
        format!(
            "{:<12} {:>9} {:>8.2}% {:>10.0} {:>11} {:>9} {:>9}",
            self.policy,
            self.accesses,
            self.hit_rate * 100.0,
            self.qps,
            self.backend_calls,
            self.useful,
            self.wasted
        )
    }

    pub(crate) fn json(&self, args: &Args) -> String {
        object(&[
            ("trace", self.trace.into()),
            ("policy", self.policy.into()),
            ("capacity", self.capacity.into()),
            ("hit_rate", self.hit_rate.into()),
            ("qps", self.qps.into()),
            ("backend_calls", self.backend_calls.into()),
            ("useful", self.useful.into()),
            ("wasted", self.wasted.into()),
            ("accesses", self.accesses.into()),
            ("latency_us", args.latency_us.into()),
            ("entry_us", args.entry_us.into()),
            ("seed", args.seed.into()),
        ])
    }
}

/// With its keys in the order given, which a map of `serde_json` does not keep.
fn object(pairs: &[(&str, Value)]) -> String {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| format!("{}:{value}", json!(key)))
        .collect();
    format!("{{{}}}", pairs.join(","))
}
