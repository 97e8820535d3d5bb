//! The command line.

use feedwater::cache::trace::TraceKind;
use lexopt::prelude::*;

use crate::policy::Policy;

pub(crate) const HELP: &str = "\
Replays metadata accesses against caches and prints what each policy made of them.

Usage: metadata_replay [OPTIONS]

  --json               one object a line for each trace and policy
  --traces A,B         image_tree shards flat_prefix hive_partitions checkpoints recursive_listing
                       shuffled_epochs uniform_random scan_once mixed; default all
  --policies A,B       none lru moka quick_cache no_prefetch classic cost_aware; default all
  --capacity PERCENT   of the names in the tree, 256 at least; default 10
  --entries N          about how many files the tree has; default as suits the trace
  --accesses N         default 200000
  --seed N             default 1
  --latency-us N       of each request to the backend; default 200
  --entry-us N         for each name in a list or batch, on top; default 2
  --help

A request is one stat, one page of a listing, or one batch of stats; a page or batch has up to 1000 names. The latency is
added to a virtual clock: nothing sleeps. qps is accesses divided by the virtual seconds that the backend took plus the measured
seconds that the policy took itself. Passes run on the thread that begins them, so their time is counted too.

none asks the backend each time. lru, moka and quick_cache are those crates, holding as many answers (attributes, or a whole
listing) as the capacity says. no_prefetch, classic and cost_aware are feedwater's MetadataCache with as many bytes as that number of
attributes takes when each was asked for alone; what a pass brings takes less. no_prefetch neither fetches ahead nor warms up;
the other two do both, with the score of that name, the warm-up in the pauses of a trace. useful and wasted are names that passes
brought and that were, or were not, asked for afterwards. Nothing ages, as the others know no age.
";

#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) json: bool,
    pub(crate) traces: Vec<TraceKind>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) capacity_percent: f64,
    pub(crate) entries: Option<u64>,
    pub(crate) accesses: u64,
    pub(crate) seed: u64,
    pub(crate) latency_us: u64,
    pub(crate) entry_us: u64,
}

pub(crate) enum Wish {
    Replay(Args),
    Help,
}

pub(crate) fn parse() -> Result<Wish, lexopt::Error> {
    let mut args = Args {
        json: false,
        traces: TraceKind::ALL.to_vec(),
        policies: Policy::ALL.to_vec(),
        capacity_percent: 10.0,
        entries: None,
        accesses: 200_000,
        seed: 1,
        latency_us: 200,
        entry_us: 2,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("json") => args.json = true,
            Long("traces") => {
                let names = TraceKind::ALL.map(TraceKind::name);
                args.traces = list(
                    "trace",
                    &parser.value()?.string()?,
                    &names,
                    TraceKind::named,
                )?;
            }
            Long("policies") => {
                let names = Policy::ALL.map(Policy::name);
                args.policies = list("policy", &parser.value()?.string()?, &names, Policy::named)?;
            }
            Long("capacity") => args.capacity_percent = parser.value()?.parse()?,
            Long("entries") => args.entries = Some(parser.value()?.parse()?),
            Long("accesses") => args.accesses = parser.value()?.parse()?,
            Long("seed") => args.seed = parser.value()?.parse()?,
            Long("latency-us") => args.latency_us = parser.value()?.parse()?,
            Long("entry-us") => args.entry_us = parser.value()?.parse()?,
            Long("help") | Short('h') => return Ok(Wish::Help),
            other => return Err(other.unexpected()),
        }
    }
    if !(args.capacity_percent > 0.0 && args.capacity_percent <= 1000.0) {
        return Err("the capacity is a percentage above 0, 1000 at most".into());
    }
    if args.accesses == 0 || args.entries == Some(0) {
        return Err("a trace has at least one access and one entry".into());
    }
    if args.latency_us > 60_000_000 || args.entry_us > 1_000_000 {
        return Err("a request takes a minute at most, a name a second".into());
    }
    Ok(Wish::Replay(args))
}

/// Those of these names; `all` there are of `what`.
fn list<T>(
    what: &str,
    names: &str,
    all: &[&str],
    named: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, lexopt::Error> {
    let no = |name: &str| format!("there is no {what} {name:?}, but {}", all.join(", "));
    let one = |name: &str| named(name).ok_or_else(|| no(name).into());
    names.split(',').map(|name| one(name.trim())).collect()
}
