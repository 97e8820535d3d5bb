//! The ways of this crate.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use feedwater::{
    Batch, ChunkOptions, Engine, EngineOptions, OpenOptions, Opened, ReadInto, ReadOptions, Reader,
    ReaderExt, Route,
};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, Runtime};

use crate::job::{Fault, Job, Pages, Ran, Tally};
use crate::turns::Clock;

/// The routes that are measured by name. One that this build does not know, or that does not work for the file, is
/// left out.
const NAMED: [&str; 4] = ["pread", "pread-direct", "uring", "uring-direct"];

/// How a reader is opened: by the crate's own choice or by one route.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) name: &'static str,
    options: OpenOptions,
}

/// What there is to open with, and what there is not, with the reason.
pub(crate) struct Openers {
    pub(crate) usable: Vec<Opener>,
    pub(crate) left_out: Vec<(&'static str, String)>,
}

impl Openers {
    /// Tries all routes on the file.
    pub(crate) fn find(path: &Path) -> Openers {
        let auto = Opener {
            name: "auto",
            options: OpenOptions::new(),
        };
        let mut found = Openers {
            usable: vec![auto],
            left_out: Vec::new(),
        };
        for name in NAMED {
            let opener = name.parse::<Route>().and_then(|route| {
                let options = OpenOptions::new().only(route);
                options.open(path)?;
                Ok(Opener { name, options })
            });
            match opener {
                Ok(opener) => found.usable.push(opener),
                Err(error) => found.left_out.push((name, error.to_string())),
            }
        }
        found
    }
}

impl Opener {
    /// The same, with an engine of exactly this depth by rings, which may have as many threads: routes that read by
    /// threads cannot have more reads in flight.
    pub(crate) fn depth(&self, depth: usize) -> Opener {
        let least = EngineOptions::default().threads;
        let threads = NonZeroUsize::new(depth).map_or(least, |depth| depth.max(least));
        let depth = NonZeroUsize::new(depth).unwrap_or(NonZeroUsize::MIN);
        let engine = Engine::new(EngineOptions::default().threads(threads).depth(depth));
        Opener {
            name: self.name,
            options: self.options.clone().engine(engine),
        }
    }

    fn open(&self, job: &Job) -> feedwater::Result<Arc<Opened>> {
        self.options.open(&job.path)
    }

    /// All reads in one batch, results taken as they come.
    pub(crate) fn submit(&self, job: &Job, clock: &mut Clock) -> Ran {
        let reader = self.open(job)?;
        let depth = NonZeroUsize::new(job.depth).ok_or("no depth")?;
        let mut tally = Tally::by(clock);
        clock.time(|| {
            let options = ReadOptions::default().depth(depth).gap(0);
            let mut pending = reader.submit(Batch::of(ranges(job)).options(options));
            while let Some((index, outcome)) = pending.wait_next() {
                tally.take(job.offsets[index], &outcome?.into_host()?);
            }
            Ok((tally, how(&reader)))
        })
    }

    /// Batches of some hundred reads, the next one handed in before this one is waited for, as loaders do: the memory
    /// of one is that of the next but one, as the few buffers of the others are theirs.
    pub(crate) fn batches(&self, job: &Job, clock: &mut Clock) -> Ran {
        const BATCH: usize = 256;
        let reader = self.open(job)?;
        let depth = NonZeroUsize::new(job.depth).ok_or("no depth")?;
        let mut tally = Tally::by(clock);
        clock.time(|| {
            let options = ReadOptions::default().depth(depth).gap(0);
            let mut batches = job.offsets.chunks(BATCH);
            let mut under_way = VecDeque::new();
            loop {
                while under_way.len() < 2
                    && let Some(offsets) = batches.next()
                {
                    let ranges = offsets.iter().map(|&at| at..at + job.size as u64);
                    let batch = Batch::of(ranges).options(options.clone());
                    under_way.push_back((offsets, reader.submit(batch)));
                }
                let Some((offsets, pending)) = under_way.pop_front() else {
                    break;
                };
                for (&at, block) in offsets.iter().zip(pending.wait()?) {
                    tally.take(at, &block.into_host()?);
                }
            }
            Ok((tally, how(&reader)))
        })
    }

    /// All reads at once into memory that is there, on this thread.
    pub(crate) fn read_now(&self, job: &Job, clock: &mut Clock) -> Ran {
        let reader = self.open(job)?;
        let mut pages = Pages::new(job.size * job.offsets.len());
        let mut tally = Tally::by(clock);
        clock.time(|| {
            let parts = pages.all().chunks_mut(job.size);
            let mut reads: Vec<_> = job
                .offsets
                .iter()
                .zip(parts)
                .map(|(&at, part)| ReadInto::new(at, part))
                .collect();
            reader.read_now(&mut reads)?;
            for read in &reads {
                tally.take(read.offset, read.buf);
            }
            Ok((tally, how(&reader)))
        })
    }

    /// All reads in one batch, results in its order.
    pub(crate) fn read_many(&self, job: &Job, clock: &mut Clock) -> Ran {
        let reader = self.open(job)?;
        let ranges: Vec<_> = ranges(job).collect();
        let mut tally = Tally::by(clock);
        clock.time(|| {
            let blocks = reader.read_many(&ranges).wait()?;
            for (range, block) in ranges.iter().zip(blocks) {
                tally.take(range.start, &block.into_host()?);
            }
            Ok((tally, how(&reader)))
        })
    }

    /// As many reads as the depth are awaited at once, each by itself, by one task of a runtime of one thread.
    pub(crate) fn awaited(&self, job: &Job, clock: &mut Clock) -> Ran {
        let reader = self.open(job)?;
        let runtime = Builder::new_current_thread().build()?;
        let (reader, size) = (&reader, job.size as u64);
        let mut tally = Tally::by(clock);
        let task = async {
            let mut reads = job.offsets.iter().map(|&at| async move {
                let bytes = reader.read(at..at + size).await;
                (at, bytes)
            });
            let mut in_flight = FuturesUnordered::new();
            in_flight.extend(reads.by_ref().take(job.depth));
            while let Some((at, bytes)) = in_flight.next().await {
                tally.take(at, &bytes?);
                in_flight.extend(reads.next());
            }
            Ok::<(), Fault>(())
        };
        clock.time(|| runtime.block_on(task))?;
        Ok((tally, format!("{}, {} awaited", how(reader), job.depth)))
    }

    /// One after another, each awaited in a task of `runtime`.
    pub(crate) fn awaited_one(&self, job: &Job, clock: &mut Clock, runtime: &Runtime) -> Ran {
        let reader = self.open(job)?;
        let (offsets, size) = (job.offsets.clone(), job.size as u64);
        let mut tally = Tally::by(clock);
        let reads = reader.clone();
        let task = async move {
            for &at in &*offsets {
                tally.take(at, &reads.read(at..at + size).await?);
            }
            Ok::<Tally, feedwater::Error>(tally)
        };
        let done = clock.time(|| runtime.block_on(runtime.spawn(task)))?;
        Ok((done?, how(&reader)))
    }

    /// One after another, into memory that is there.
    pub(crate) fn read_at(&self, job: &Job, clock: &mut Clock) -> Ran {
        let reader = self.open(job)?;
        let mut pages = Pages::new(job.size);
        let mut tally = Tally::by(clock);
        clock.time(|| {
            for &at in &*job.offsets {
                reader.read_at(at, pages.all())?;
                tally.take(at, pages.bytes(job.size));
            }
            Ok((tally, how(&reader)))
        })
    }

    /// One after another, each waited for.
    pub(crate) fn read_wait(&self, job: &Job, clock: &mut Clock) -> Ran {
        let reader = self.open(job)?;
        let mut tally = Tally::by(clock);
        clock.time(|| {
            for range in ranges(job) {
                tally.take(range.start, &reader.read(range).wait()?);
            }
            Ok((tally, how(&reader)))
        })
    }

    /// The whole file in order.
    pub(crate) fn chunks(&self, job: &Job, clock: &mut Clock, options: &ChunkOptions) -> Ran {
        let reader = self.open(job)?;
        let mut tally = Tally::by(clock);
        clock.time(|| {
            let mut at = 0;
            for chunk in reader.chunks(0..reader.len(), options.clone()) {
                let chunk = chunk?;
                tally.take(at, &chunk);
                at += chunk.len() as u64;
            }
            Ok((tally, how(&reader)))
        })
    }
}

fn ranges(job: &Job) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
    job.offsets.iter().map(|&at| at..at + job.size as u64)
}

/// What the reader says it did.
fn how(reader: &Opened) -> String {
    let counters = reader.source().counters().snapshot();
    let route = counters.main_route().map_or("nothing", Route::name);
    let (requests, reads, depth) = (counters.requests, counters.reads, counters.most_in_flight);
    format!("{route}, {requests} requests, {reads} reads, depth {depth}")
}
