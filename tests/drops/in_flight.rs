//! Reads that the kernel has for as long as the test wants, while things are dropped, forgotten and shut down.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedwater::{
    Batch, Engine, EngineOptions, ErrorKind, OpenOptions, Opened, Pending, ReadOptions, Reader,
    ReaderExt, Route,
};

use crate::common::hanging::{Hanging, What};
use crate::common::quarantine::Quarantine;
use crate::common::skip::require;
use crate::{LEN, PATIENCE};

/// Reads that are with the kernel while things are dropped.
const IN_FLIGHT: usize = 64;

/// Bytes of each.
const SIZE: u64 = 4096;

/// A reader of a file that hangs, by a route with room for [`IN_FLIGHT`] requests, and what it reads into.
struct Hung {
    fs: Hanging,
    engine: Engine,
    reader: Arc<Opened>,
    memory: Quarantine,
    route: Route,
}

impl Hung {
    /// One for each route that reads files by requests; none where the system has no such file.
    fn each() -> impl Iterator<Item = Hung> {
        let routes = [
            Route::Pread,
            Route::PreadDirect,
            Route::Uring,
            Route::UringDirect,
        ];
        routes.into_iter().filter_map(|route| {
            let fs = require("fuse", Hanging::new(LEN as u64, true))?;
            let room = NonZeroUsize::new(IN_FLIGHT).unwrap();
            let engine = Engine::new(EngineOptions::default().threads(room).depth(room));
            let options = OpenOptions::new().engine(engine.clone()).only(route);
            let needs = match route {
                Route::Uring | Route::UringDirect => "uring",
                _ => "fuse",
            };
            let reader = require(needs, options.open(fs.path('a')))?;
            fs.hold(What::Reads);
            Some(Hung {
                fs,
                engine,
                reader,
                memory: Quarantine::new(),
                route,
            })
        })
    }

    fn offset(index: usize) -> u64 {
        index as u64 * 3 * SIZE
    }

    /// Reads at as many places, which are not joined, into the next blocks of the quarantine.
    fn batch(&self, count: usize) -> Batch {
        let batch = (0..count).fold(Batch::new(), |batch, i| {
            let block = self.memory.block(SIZE as usize);
            batch.read_into(Hung::offset(i)..Hung::offset(i) + SIZE, block)
        });
        batch.options(ReadOptions::default().gap(0))
    }

    /// Submits as many reads as there is room for; each is with the kernel when this returns.
    fn fill(&self) -> Pending {
        let pending = self.reader.submit(self.batch(IN_FLIGHT));
        let mut held: Vec<_> = self
            .fs
            .wait_for(IN_FLIGHT)
            .iter()
            .map(|h| h.offset)
            .collect();
        held.sort_unstable();
        assert!(held.into_iter().eq((0..IN_FLIGHT).map(Hung::offset)));
        pending
    }

    fn right(&self, index: usize) -> Vec<u8> {
        let offset = Hung::offset(index);
        self.fs.content('a', offset..offset + SIZE)
    }

    fn all_right(&self, pending: Pending) {
        for (i, block) in pending.wait().unwrap().into_iter().enumerate() {
            assert!(
                block.as_host().unwrap()[..] == self.right(i),
                "{i} {}",
                self.route
            );
        }
    }
}

#[test]
fn dropped_with_64_in_flight() {
    for hung in Hung::each() {
        drop(hung.fill());
        assert_eq!(hung.memory.released(), 0, "{}", hung.route);
        hung.fs.release();
        hung.memory.wait_for(IN_FLIGHT, PATIENCE);
        hung.all_right(hung.reader.submit(hung.batch(IN_FLIGHT)));
        hung.memory.check();
    }
}

#[test]
fn forgotten_with_64_in_flight() {
    for hung in Hung::each() {
        std::mem::forget(hung.fill());
        hung.fs.release();
        assert!(hung.engine.shut_down(PATIENCE).is_complete());
        // Its results are leaked, and with them the memory.
        for i in 0..IN_FLIGHT {
            assert!(
                hung.memory.content(i) == hung.right(i),
                "{i} {}",
                hung.route
            );
        }
    }
}

#[test]
fn reader_and_engine_dropped_with_64_in_flight() {
    for waited in [true, false] {
        for hung in Hung::each() {
            let pending = hung.fill();
            let Hung {
                fs, engine, memory, ..
            } = hung;
            drop((hung.reader, engine));
            assert_eq!(memory.released(), 0);
            if waited {
                fs.release();
                let blocks = pending.wait().unwrap();
                for (i, block) in blocks.iter().enumerate() {
                    let right = fs.content('a', Hung::offset(i)..Hung::offset(i) + SIZE);
                    assert!(block.as_host().unwrap()[..] == right, "{i} {}", hung.route);
                }
            } else {
                drop(pending);
                assert_eq!(memory.released(), 0);
                fs.release();
            }
            memory.wait_for(IN_FLIGHT, PATIENCE);
            memory.check();
        }
    }
}

#[test]
fn a_deadline_holds_against_reads_that_hang() {
    for hung in Hung::each() {
        let batch = hung.batch(IN_FLIGHT);
        // Enough for all of them to come to the kernel, as a rule.
        let soon = Instant::now() + Duration::from_millis(200);
        let options = batch.options.clone().deadline(soon);
        let mut pending = hung.reader.submit(batch.options(options));
        let mut given_back = Vec::new();
        while let Some((_, outcome)) = pending.wait_next() {
            let failed = outcome.unwrap_err();
            let late = matches!(failed.error.kind(), ErrorKind::TimedOut);
            assert!(late, "{failed}");
            given_back.extend(failed.dest);
        }
        // What the kernel has is neither released nor given back.
        let held = hung.fs.held().len();
        let at_rest = hung.memory.released() + given_back.len();
        assert!(
            held + at_rest <= IN_FLIGHT,
            "{held} {at_rest} {}",
            hung.route
        );
        hung.fs.release();
        drop(given_back);
        hung.memory.wait_for(IN_FLIGHT, PATIENCE);
        hung.memory.check();
    }
}

fn is_abandoned<T>(outcome: feedwater::Result<T>) -> bool {
    outcome.is_err_and(|error| matches!(error.kind(), ErrorKind::Abandoned))
}

/// After a shutdown nothing is taken any more.
fn refuses_everything(hung: &Hung) {
    let reader = &hung.reader;
    assert!(is_abandoned(reader.read(0..10).wait()), "{}", hung.route);
    assert!(is_abandoned(futures::executor::block_on(
        reader.read_many(&[0..9, 70_000..80_000])
    )));
    let options = OpenOptions::new().engine(hung.engine.clone());
    assert!(is_abandoned(options.open_async(hung.fs.path('b')).wait()));
    // What the caller does on its own thread is its own.
    let mut buf = [0; 100];
    reader.read_at(7, &mut buf).unwrap();
    assert!(buf[..] == hung.fs.content('a', 7..107));
}

#[test]
fn shut_down_at_once_with_64_in_flight_and_more_waiting() {
    for hung in Hung::each() {
        let flying = hung.fill();
        let waiting = hung.reader.submit(hung.batch(IN_FLIGHT));
        let shutdown = hung.engine.shut_down(Duration::ZERO);
        assert_eq!(shutdown.left, IN_FLIGHT, "{}", hung.route);
        for mut pending in [flying, waiting] {
            let mut told = 0;
            // All are there: nobody waits for the kernel.
            while let Some((_, outcome)) = pending.try_next() {
                let failed = outcome.unwrap_err();
                assert!(
                    matches!(failed.error.kind(), ErrorKind::Abandoned),
                    "{failed}"
                );
                told += 1;
            }
            assert_eq!(told, IN_FLIGHT, "{}", hung.route);
        }
        let early = hung.memory.released();
        assert!(
            early <= IN_FLIGHT,
            "{early} released with {IN_FLIGHT} in flight"
        );
        hung.fs.release();
        hung.memory.wait_for(2 * IN_FLIGHT, PATIENCE);
        hung.memory.check();
        refuses_everything(&hung);
        assert!(hung.engine.shut_down(PATIENCE).is_complete());
    }
}

#[test]
fn shut_down_in_time_is_complete() {
    for hung in Hung::each() {
        let flying = hung.fill();
        let waiting = hung.reader.submit(hung.batch(IN_FLIGHT));
        std::thread::scope(|threads| {
            let shutting = threads.spawn(|| hung.engine.shut_down(PATIENCE));
            // Once it has begun, no more is taken, while what was handed in goes on.
            let end = Instant::now() + PATIENCE;
            loop {
                let mut late = hung.reader.read(0..10);
                match futures::FutureExt::now_or_never(&mut late) {
                    Some(outcome) => break assert!(is_abandoned(outcome)),
                    None => assert!(Instant::now() < end),
                }
                std::thread::yield_now();
            }
            assert!(!shutting.is_finished());
            hung.fs.release();
            assert!(shutting.join().unwrap().is_complete(), "{}", hung.route);
        });
        hung.all_right(flying);
        hung.all_right(waiting);
        hung.memory.check();
        refuses_everything(&hung);
    }
}

/// `fstat` asks the server as well, after the read.
#[test]
fn shut_down_at_once_while_versions_are_asked_for() {
    const READS: usize = 8;
    for hung in Hung::each() {
        hung.fs.release();
        hung.fs.hold(What::Attributes);
        let mut pending = hung.reader.submit(hung.batch(READS));
        // The thread that serves a ring asks for one file after the other.
        let asking = match hung.route {
            Route::Uring | Route::UringDirect => 1,
            _ => READS,
        };
        hung.fs.wait_for(asking);
        let left = hung.engine.shut_down(Duration::ZERO).left;
        assert!((asking..=READS).contains(&left), "{left} {}", hung.route);
        for _ in 0..READS {
            let (_, outcome) = pending.try_next().expect("told at once");
            assert!(is_abandoned(outcome.map_err(|failed| failed.error)));
        }
        hung.fs.release();
        hung.memory.wait_for(READS, PATIENCE);
        hung.memory.check();
    }
}
