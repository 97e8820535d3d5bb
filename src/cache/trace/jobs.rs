//! The jobs: which names there are, and in which order they are asked for.

use std::time::Duration;

use super::random::{Random, Zipf};
use super::tree::{DirId, FileId, Tree};
use super::{Operation, TraceKind};

/// Images of a class.
const PER_CLASS: u64 = 500;

/// Workers that read an image tree at once, each its own class.
const WORKERS: usize = 8;

/// Between two epochs, or two parts of a job.
const PAUSE: Duration = Duration::from_secs(30);

pub(super) fn generate(
    kind: TraceKind,
    seed: u64,
    entries: u64,
    accesses: u64,
) -> (Tree, Vec<Operation>) {
    let mut job = Job {
        tree: Tree::new(),
        operations: Vec::new(),
        random: Random::new(seed ^ (kind as u64) << 56),
        accesses,
        made: 0,
    };
    match kind {
        TraceKind::ImageTree => {
            let classes = job.images(entries);
            let mut workers = Workers::new(&classes);
            for part in 0..4 {
                while job.made < accesses * (part + 1) / 4 {
                    let file = workers.next(&mut job);
                    job.stat(file);
                }
                job.idle();
            }
        }
        TraceKind::Shards => job.shards(entries),
        TraceKind::FlatPrefix => job.flat_prefix(entries),
        TraceKind::HivePartitions => {
            let days = job.table(entries);
            let mut query = Query::new(days);
            while !job.is_done() {
                query.step(&mut job);
            }
        }
        TraceKind::Checkpoints => job.checkpoints(entries),
        TraceKind::RecursiveListing => {
            job.images(entries);
            for _ in 0..3 {
                job.walk();
                job.idle();
            }
        }
        TraceKind::ShuffledEpochs => {
            let classes = job.images(entries);
            let mut all = job.files_of(&classes);
            while !job.is_done() {
                job.random.shuffle(&mut all);
                for file in &all {
                    job.stat(*file);
                }
                job.idle();
            }
        }
        TraceKind::UniformRandom => {
            let classes = job.images(entries);
            while !job.is_done() {
                let file = job.any(&classes);
                job.stat(file);
            }
        }
        TraceKind::ScanOnce => {
            let classes = job.images(entries);
            for file in job.files_of(&classes) {
                job.stat(file);
            }
        }
        TraceKind::Mixed => job.mixed(entries),
    }
    (job.tree, job.operations)
}

struct Job {
    tree: Tree,
    operations: Vec<Operation>,
    random: Random,
    accesses: u64,
    made: u64,
}

impl Job {
    fn is_done(&self) -> bool {
        self.made >= self.accesses
    }

    fn stat(&mut self, file: FileId) {
        if !self.is_done() {
            self.made += 1;
            self.operations.push(Operation::Stat(file));
        }
    }

    fn list(&mut self, dir: DirId) {
        if !self.is_done() {
            self.operations.push(Operation::List(dir));
        }
    }

    fn idle(&mut self) {
        if !self.is_done() {
            self.operations.push(Operation::Idle(PAUSE));
        }
    }

    /// Lists a directory and looks at all files in it.
    fn look_at(&mut self, dir: DirId) {
        self.list(dir);
        for file in self.tree.files_of(dir) {
            self.stat(file);
        }
    }

    fn walk(&mut self) {
        for dir in self.tree.dirs() {
            self.look_at(dir);
        }
    }

    fn files_of(&self, dirs: &[DirId]) -> Vec<FileId> {
        dirs.iter()
            .flat_map(|dir| self.tree.files_of(*dir))
            .collect()
    }

    /// Any file of directories that have equally many but for the last, evenly among directories.
    fn any(&mut self, dirs: &[DirId]) -> FileId {
        let at = self.random.below(dirs.len() as u64) as usize;
        let dir = dirs.get(at).copied().unwrap_or(DirId(0));
        self.any_of(dir)
    }

    fn any_of(&mut self, dir: DirId) -> FileId {
        let index = self.random.below(self.tree.count_of(dir)) as u32;
        FileId { dir, index }
    }

    /// Images by class, in an order that says nothing about how popular they are.
    fn images(&mut self, entries: u64) -> Vec<DirId> {
        let per_class = PER_CLASS.min(entries).max(1);
        let classes = (entries / per_class).max(1);
        let mut dirs: Vec<DirId> = (0..classes)
            .map(|class| {
                let dir = self.tree.dir(&format!("images/train/n{class:06}"));
                self.tree.fill(dir, per_class, ("img_", ".jpg"), 110_000);
                dir
            })
            .collect();
        self.random.shuffle(&mut dirs);
        dirs
    }

    fn shards(&mut self, entries: u64) {
        let dir = self.tree.dir("shards/train");
        self.tree.fill(dir, entries, ("part-", ".tar"), 256 << 20);
        let mut order: Vec<FileId> = self.tree.files_of(dir).collect();
        while !self.is_done() {
            self.list(dir);
            self.random.shuffle(&mut order);
            for file in &order {
                self.stat(*file);
            }
            self.idle();
        }
    }

    fn flat_prefix(&mut self, entries: u64) {
        let dir = self.tree.dir("lake/raw/objects");
        self.tree.fill(dir, entries, ("obj-", ".bin"), 32_000);
        let popular = Zipf::new(entries, 0.9);
        while !self.is_done() {
            let rank = popular.draw(&mut self.random);
            // Popular ones are not neighbours.
            let index = (rank.wrapping_mul(0x9e37_79b9) % entries) as u32;
            self.stat(FileId { dir, index });
        }
    }

    /// Days of a table, the oldest first.
    fn table(&mut self, entries: u64) -> Vec<DirId> {
        const PARTS: u64 = 24;
        let days = (entries / PARTS).max(1);
        (0..days)
            .map(|day| {
                let (year, month) = (2000 + day / 336, day / 28 % 12 + 1);
                let path = format!(
                    "warehouse/events/year={year}/month={month:02}/day={:02}",
                    day % 28 + 1
                );
                let dir = self.tree.dir(&path);
                self.tree.fill(dir, PARTS, ("part-", ".parquet"), 64 << 20);
                dir
            })
            .collect()
    }

    fn checkpoints(&mut self, entries: u64) {
        const RUNS: u64 = 4;
        const SHARDS: u64 = 64;
        let steps = (entries / RUNS / SHARDS).max(1);
        let runs: Vec<(DirId, Vec<DirId>)> = (0..RUNS)
            .map(|run| {
                let parent = self.tree.dir(&format!("runs/exp-{run}/checkpoints"));
                let steps = (0..steps).map(|step| {
                    let path = format!("runs/exp-{run}/checkpoints/step-{:08}", step * 1000);
                    let dir = self.tree.dir(&path);
                    self.tree
                        .fill(dir, SHARDS, ("shard-", ".safetensors"), 512 << 20);
                    dir
                });
                (parent, steps.collect())
            })
            .collect();
        let mut at = 0;
        while !self.is_done() {
            let run = self.random.below(RUNS) as usize;
            let Some((parent, dirs)) = runs.get(run) else {
                return;
            };
            let newest = at % dirs.len();
            self.list(*parent);
            // The new one is verified, the one before it compared; now and then an old one is loaded.
            let old = self.random.below(newest as u64 + 1) as usize;
            let back = if self.random.below(8) == 0 {
                newest - old
            } else {
                1
            };
            for step in [newest, newest.saturating_sub(back)] {
                if let Some(dir) = dirs.get(step) {
                    self.look_at(*dir);
                }
            }
            at += 1;
            if at.is_multiple_of(16) {
                self.idle();
            }
        }
    }

    fn mixed(&mut self, entries: u64) {
        let classes = self.images(entries / 2);
        let mut workers = Workers::new(&classes);
        let mut query = Query::new(self.table(entries / 4));
        let dir = self.tree.dir("archive/2019/raw/scans");
        self.tree.fill(dir, entries / 4, ("scan-", ".tif"), 1 << 20);
        let mut scan = self.tree.files_of(dir).collect::<Vec<_>>().into_iter();
        let mut turns = 0u64;
        while !self.is_done() {
            for _ in 0..16 {
                let file = workers.next(self);
                self.stat(file);
            }
            query.step(self);
            for file in scan.by_ref().take(4) {
                self.stat(file);
            }
            turns += 1;
            if turns.is_multiple_of(1000) {
                self.idle();
            }
        }
    }
}

/// Workers that each draw from a class of their own for a while.
struct Workers {
    classes: Vec<DirId>,
    popular: Zipf,
    at: [(DirId, u64); WORKERS],
    turn: usize,
}

impl Workers {
    fn new(classes: &[DirId]) -> Self {
        Workers {
            classes: classes.to_vec(),
            popular: Zipf::new(classes.len() as u64, 0.6),
            at: [(DirId(0), 0); WORKERS],
            turn: 0,
        }
    }

    fn next(&mut self, job: &mut Job) -> FileId {
        if job.random.below(20) == 0 {
            return job.any(&self.classes);
        }
        self.turn = (self.turn + 1) % WORKERS;
        let Some((class, left)) = self.at.get_mut(self.turn) else {
            return job.any(&self.classes);
        };
        if *left == 0 {
            let rank = self.popular.draw(&mut job.random) as usize;
            *class = self.classes.get(rank).copied().unwrap_or(DirId(0));
            // From one and a half times to two and a half times as many draws as images.
            let images = job.tree.count_of(*class);
            *left = images * 3 / 2 + job.random.below(images) + 1;
        }
        *left -= 1;
        let class = *class;
        job.any_of(class)
    }
}

/// Queries of a table, a day at each step.
struct Query {
    days: Vec<DirId>,
    recent: Zipf,
    range: std::ops::Range<usize>,
}

impl Query {
    fn new(days: Vec<DirId>) -> Self {
        Query {
            recent: Zipf::new(days.len() as u64, 0.8),
            days,
            range: 0..0,
        }
    }

    fn step(&mut self, job: &mut Job) {
        if self.range.is_empty() {
            let back = self.recent.draw(&mut job.random) as usize;
            let end = self.days.len() - back.min(self.days.len().saturating_sub(1));
            let days = 1 + job.random.below(14) as usize;
            self.range = end.saturating_sub(days)..end;
        }
        if let Some(day) = self.range.next().and_then(|day| self.days.get(day)) {
            job.look_at(*day);
        }
    }
}
