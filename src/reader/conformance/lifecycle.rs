//! Many threads, and everything dropped or forgotten at any time.

use std::ops::Range;
use std::sync::{Arc, Barrier};

use super::Verdict;
use super::support::{Context, Fixture, arena, block_on, host, poll_once, same};
use crate::error::ErrorKind;
use crate::reader::{Batch, ChunkOptions, Pending, Reader, ReaderExt};

const LEN: u64 = 1_000_003;

fn ranges() -> Vec<Range<u64>> {
    (0..16).map(|i| i * 60_000..i * 60_000 + 64_000).collect()
}

/// Reads of both kinds: into memory of the caller and of the engine.
fn submit(reader: &dyn Reader) -> Pending {
    let both = ranges().into_iter().fold(Batch::new(), |batch, range| {
        batch.read_into(range.clone(), arena(64_000)).any(range)
    });
    reader.submit(both)
}

pub(super) fn threads(cx: &Context) -> Verdict {
    const THREADS: u64 = 8;
    let f = cx.open(LEN);
    let start = Barrier::new(THREADS as usize);
    let work = &|thread: u64| {
        let mut rng = cx.rng(100 + thread);
        start.wait();
        for round in 0..12 {
            let ranges: Vec<_> = (0..8).map(|_| rng.range(LEN, 20_000)).collect();
            if round % 3 == 0 {
                drop(f.reader().read_many(&ranges));
            }
            f.read(&ranges);
            let range = rng.range(LEN, 5_000);
            let mut buf = vec![0; (range.end - range.start) as usize];
            f.reader().read_at(range.start, &mut buf).unwrap();
            same(&range, &buf, f.at(&range));
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        for thread in all {
            // With its message, which the end of the scope would not pass on.
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    Ok(())
}

/// What was given up must not be felt by what comes after.
fn still_reads(f: &Fixture) {
    f.read(&[0..LEN, 3..9]);
}

pub(super) fn dropped_pending(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let reader = &**f.reader();
    for _ in 0..5 {
        drop(submit(reader));
        let mut pending = submit(reader);
        drop(poll_once(&mut pending));
        drop(pending);
        let mut pending = submit(reader);
        let first = pending.wait_next();
        drop(pending);
        assert!(first.is_some_and(|(_, outcome)| outcome.is_ok()));
        let mut pending = submit(reader);
        drop(pending.try_next());
        drop(pending.into_iter());
        let mut chunks = f
            .reader()
            .clone()
            .chunks(0..LEN, ChunkOptions::default().size(9_999));
        chunks.next().unwrap().unwrap();
        drop(chunks);
    }
    still_reads(&f);
    Ok(())
}

pub(super) fn forgotten_pending(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let reader = &**f.reader();
    std::mem::forget(submit(reader));
    let mut pending = submit(reader);
    std::mem::forget(poll_once(&mut pending));
    std::mem::forget(pending);
    let mut pending = submit(reader);
    assert!(
        pending
            .wait_next()
            .is_some_and(|(_, outcome)| outcome.is_ok())
    );
    std::mem::forget(pending);
    still_reads(&f);
    Ok(())
}

pub(super) fn reader_dropped_first(cx: &Context) -> Verdict {
    for awaited in [false, true] {
        let f = cx.open(LEN);
        let pending = f.reader().read_many(&ranges());
        let Fixture { opened, bytes } = f;
        let super::Opened { reader, keep, .. } = opened;
        drop(reader);
        let result = if awaited {
            block_on(pending)
        } else {
            pending.wait()
        };
        match result {
            Ok(blocks) => {
                for (range, block) in ranges().iter().zip(&blocks) {
                    let expected = &bytes[range.start as usize..range.end as usize];
                    same(range, host(block), expected);
                }
            }
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Abandoned),
                "the bytes or Abandoned expected, got: {error}"
            ),
        }
        drop(keep);
    }
    Ok(())
}

pub(super) fn bytes_outlive_the_reader(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let blocks = f.reader().read_many(&ranges()).wait().unwrap();
    let owned: Vec<_> = blocks.iter().map(|block| host(block).clone()).collect();
    drop(blocks);
    let Fixture { opened, bytes } = f;
    drop(opened);
    // Another reader, so that memory that was let go by mistake is likely used again.
    let other = cx.open(LEN - 1);
    other.read(&[0..LEN - 1]);
    let owned = Arc::new(owned);
    let elsewhere = owned.clone();
    let sums = std::thread::spawn(move || elsewhere.iter().map(|b| b.len()).sum::<usize>());
    assert_eq!(sums.join().expect("the other thread"), 16 * 64_000);
    for (range, found) in ranges().iter().zip(owned.iter()) {
        same(
            range,
            found,
            &bytes[range.start as usize..range.end as usize],
        );
    }
    Ok(())
}
