//! Plain calls of the standard library.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::job::{Job, Pages, Ran, Tally};
use crate::turns::Clock;

/// `pread`, one after another.
pub(crate) fn pread(job: &Job, clock: &mut Clock) -> Ran {
    let file = job.open()?;
    let mut pages = Pages::new(job.size);
    let mut tally = Tally::by(clock);
    clock.time(|| {
        for &at in &*job.offsets {
            file.read_exact_at(pages.all(), at)?;
            tally.take(at, pages.bytes(job.size));
        }
        Ok((tally, "1 in flight".into()))
    })
}

/// `pread` by as many threads as the depth, which are there before the clock starts.
pub(crate) fn pool(job: &Job, clock: &mut Clock) -> Ran {
    let file = job.open()?;
    let next = AtomicUsize::new(0);
    let (begin, end) = (Barrier::new(job.depth + 1), Barrier::new(job.depth + 1));
    let empty = Tally::by(clock);
    let work = |pages: &mut Pages| {
        let mut tally = empty;
        while let Some(&at) = job.offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
            file.read_exact_at(pages.all(), at)?;
            tally.take(at, pages.bytes(job.size));
        }
        Ok::<Tally, std::io::Error>(tally)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..job.depth)
            .map(|_| {
                scope.spawn(|| {
                    let mut pages = Pages::new(job.size);
                    begin.wait();
                    let done = work(&mut pages);
                    end.wait();
                    done
                })
            })
            .collect();
        clock.start();
        begin.wait();
        end.wait();
        clock.stop();
        let mut tally = empty;
        for thread in threads {
            tally.add(thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok((tally, format!("{} in flight", job.depth)))
    })
}

/// `read` from the start to the end.
pub(crate) fn stream(job: &Job, clock: &mut Clock) -> Ran {
    let mut file = job.open()?;
    let mut pages = Pages::new(job.size);
    let mut tally = Tally::by(clock);
    clock.time(|| {
        for &at in &*job.offsets {
            file.read_exact(pages.all())?;
            tally.take(at, pages.bytes(job.size));
        }
        Ok((tally, "1 in flight".into()))
    })
}
