//! Sequences of metadata accesses as training and query jobs make them, from a seed: to measure caches with.
//!
//! A [`Trace`] is a [`Tree`] of names (nothing of it needs to exist) and a list of [`Operation`]s on it. The same kind, options
//! and version of this crate give the same trace on every machine.
//!
//! ```
//! use feedwater::cache::trace::{Operation, Trace, TraceKind, TraceOptions};
//!
//! let trace = Trace::new(TraceKind::ImageTree, &TraceOptions::new().seed(1).entries(1000).accesses(5000));
//! let stats = trace.operations().iter().filter(|op| matches!(op, Operation::Stat(_)));
//! assert_eq!(stats.count(), 5000);
//! assert!(trace.tree().entries() >= 1000);
//! ```

mod jobs;
mod random;
mod tree;

use std::time::Duration;

pub use tree::{DirId, FileId, Tree};

/// What kind of job makes the accesses.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceKind {
    /// Images in a directory for each class, 500 each, 4 names deep. Eight workers each draw about twice as many images as a class
    /// has from one class, with replacement, then go on to another (popular ones more often, by Zipf's law); every
    /// twentieth access is any image.
    ImageTree,
    /// Shards in one directory, listed at the begin of each epoch and read in an order of its own.
    Shards,
    /// Objects in one flat prefix, popular ones more often by Zipf's law. As many as [`TraceOptions::entries`] says, 10^6 by default.
    FlatPrefix,
    /// A table with Hive partitions by year, month and day: queries list the days of a range, mostly a recent one, and
    /// look at every part of them.
    HivePartitions,
    /// Runs that write checkpoints of several shards, look at the last ones, and list the run.
    Checkpoints,
    /// The whole tree listed and looked at, three times.
    RecursiveListing,
    /// Every image once in each epoch, shuffled over all classes.
    ShuffledEpochs,
    /// Any image, evenly: nothing to learn. Adverse.
    UniformRandom,
    /// Every file once, directory after directory. Adverse, as nothing comes again.
    ScanOnce,
    /// Parts of an image tree, of queries of a table, and of a scan, interleaved.
    Mixed,
}

impl TraceKind {
    /// All kinds.
    pub const ALL: [TraceKind; 10] = [
        TraceKind::ImageTree,
        TraceKind::Shards,
        TraceKind::FlatPrefix,
        TraceKind::HivePartitions,
        TraceKind::Checkpoints,
        TraceKind::RecursiveListing,
        TraceKind::ShuffledEpochs,
        TraceKind::UniformRandom,
        TraceKind::ScanOnce,
        TraceKind::Mixed,
    ];

    /// A name for tables and options.
    pub fn name(self) -> &'static str {
        match self {
            TraceKind::ImageTree => "image_tree",
            TraceKind::Shards => "shards",
            TraceKind::FlatPrefix => "flat_prefix",
            TraceKind::HivePartitions => "hive_partitions",
            TraceKind::Checkpoints => "checkpoints",
            TraceKind::RecursiveListing => "recursive_listing",
            TraceKind::ShuffledEpochs => "shuffled_epochs",
            TraceKind::UniformRandom => "uniform_random",
            TraceKind::ScanOnce => "scan_once",
            TraceKind::Mixed => "mixed",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        TraceKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    fn default_entries(self) -> u64 {
        match self {
            TraceKind::FlatPrefix => 1_000_000,
            TraceKind::Shards => 4_096,
            _ => 100_000,
        }
    }
}

/// Size and seed of a trace.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    seed: u64,
    entries: Option<u64>,
    accesses: u64,
}

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions {
            seed: 1,
            entries: None,
            accesses: 200_000,
        }
    }
}

impl TraceOptions {
    /// Seed 1, 200,000 accesses, and as many entries as suit the kind.
    pub fn new() -> Self {
        TraceOptions::default()
    }

    /// What decides everything that looks random. Default 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// About how many files the tree has, from 1 to 10^8. Default: 100,000; 4,096 shards; 10^6 in the flat prefix.
    #[must_use]
    pub fn entries(mut self, entries: u64) -> Self {
        self.entries = Some(entries.clamp(1, MOST));
        self
    }

    /// How many accesses ([`Operation::Stat`]) there are; those of one scan or epoch end it early, or go on with the next. Default 200,000,
    /// at most 10^8.
    /// [`TraceKind::ScanOnce`] and [`TraceKind::RecursiveListing`] have as many as the tree has files (three times) at most.
    #[must_use]
    pub fn accesses(mut self, accesses: u64) -> Self {
        self.accesses = accesses.min(MOST);
        self
    }
}

/// Most files of a tree, and most accesses.
const MOST: u64 = 100_000_000;

/// One step of a trace.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The attributes of a file are asked for.
    Stat(FileId),
    /// A directory is listed.
    List(DirId),
    /// Nothing is asked for so long: between epochs, or a restart. When a cache may warm up.
    Idle(Duration),
}

/// A tree of names and what is asked of it.
#[derive(Clone, Debug)]
pub struct Trace {
    kind: TraceKind,
    tree: Tree,
    operations: Vec<Operation>,
}

impl Trace {
    /// Generates a trace. Takes some 100 ns for each access, and memory for the list: 24 bytes each.
    pub fn new(kind: TraceKind, options: &TraceOptions) -> Self {
        let entries = options.entries.unwrap_or(kind.default_entries());
        let (tree, operations) = jobs::generate(kind, options.seed, entries, options.accesses);
        Trace {
            kind,
            tree,
            operations,
        }
    }

    /// What kind it is.
    pub fn kind(&self) -> TraceKind {
        self.kind
    }

    /// The names.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// What is asked of them, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }
}

#[cfg(test)]
mod tests;
