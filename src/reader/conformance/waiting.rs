//! Outcomes: in which order, by which way, until when, and how they are counted.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::Verdict;
use super::support::{Context, Fixture, block_on, collect, host, in_order, poll_once, same};
use crate::error::ErrorKind;
use crate::reader::{Batch, Pending, ReadInto, ReadOptions, Reader, ReaderExt, Route};

const LEN: u64 = 200_003;

/// Eight ranges that overlap here and there.
fn ranges() -> Vec<std::ops::Range<u64>> {
    (0..8).map(|i| i * 20_000..i * 20_000 + 30_000).collect()
}

fn submit(f: &Fixture) -> Pending {
    f.reader().read_many(&ranges())
}

pub(super) fn completion_order(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let check = |outcomes: Vec<_>| {
        for (range, outcome) in ranges().iter().zip(in_order(outcomes, 8)) {
            same(range, host(&outcome.unwrap()), f.at(range));
        }
    };
    check(submit(&f).into_iter().collect());
    check(collect(submit(&f).stream()));
    let mut pending = submit(&f);
    let mut taken = Vec::new();
    while let Some(done) = pending.wait_next() {
        taken.push(done);
        taken.extend(pending.try_next());
    }
    check(taken);
    assert!(pending.wait_next().is_none() && pending.try_next().is_none());
    assert!(matches!(poll_once(&mut pending), Poll::Ready(None)));
    Ok(())
}

pub(super) fn awaited(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    f.check_all(&ranges(), &block_on(submit(&f)).unwrap());
    let range = 77..LEN;
    same(
        &range,
        &block_on(f.reader().read(range.clone())).unwrap(),
        f.at(&range),
    );
    let error = block_on(f.reader().read(0..LEN + 1)).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfBounds { len: LEN }),
        "{error}"
    );
    // Started when it is made: somebody else's wait brings it as well.
    let first = f.reader().read(0..10);
    let second = f.reader().read(10..20);
    same(&(10..20), &block_on(second).unwrap(), f.at(&(10..20)));
    same(&(0..10), &block_on(first).unwrap(), f.at(&(0..10)));
    Ok(())
}

pub(super) fn another_waker(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    // The task moved after its first poll: only the waker of the last poll counts.
    let mut pending = submit(&f);
    let mut outcomes = Vec::new();
    if let Poll::Ready(Some(done)) = poll_once(&mut pending) {
        outcomes.push(done);
    }
    let elsewhere = std::thread::spawn(move || collect(pending.stream()));
    outcomes.extend(elsewhere.join().expect("the other thread"));
    assert!(in_order(outcomes, 8).iter().all(Result::is_ok));
    // A thread waits for what a task polled before.
    let mut pending = submit(&f);
    let polled = poll_once(&mut pending);
    let mut outcomes: Vec<_> = pending.into_iter().collect();
    if let Poll::Ready(Some(done)) = polled {
        outcomes.push(done);
    }
    assert!(in_order(outcomes, 8).iter().all(Result::is_ok));
    Ok(())
}

pub(super) fn progress(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let mut pending = submit(&f);
    let mut last = pending.progress();
    assert_eq!((last.reads, last.bytes), (8, 8 * 30_000));
    let mut taken = 0;
    while let Some((_, outcome)) = pending.wait_next() {
        outcome.unwrap();
        taken += 1;
        let now = pending.progress();
        assert!(now.reads_done >= taken && now.reads_done >= last.reads_done);
        assert!(now.bytes_done >= last.bytes_done && now.bytes_done <= now.bytes);
        last = now;
    }
    assert_eq!((last.reads_done, last.bytes_done), (last.reads, last.bytes));
    Ok(())
}

pub(super) fn deadlines(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let until = |deadline| {
        let options = ReadOptions::default().deadline(deadline);
        f.reader().submit(Batch::of(ranges()).options(options))
    };
    // What was done before it was asked for is delivered; the rest timed out.
    let on_time = |outcomes: Vec<_>| {
        for (range, outcome) in ranges().iter().zip(in_order(outcomes, 8)) {
            match outcome {
                Ok(block) => same(range, host(&block), f.at(range)),
                Err(failed) => assert!(
                    matches!(failed.error.kind(), ErrorKind::TimedOut),
                    "TimedOut expected past the deadline, got: {}",
                    failed.error
                ),
            }
        }
    };
    on_time(until(Instant::now()).into_iter().collect());
    on_time(collect(until(Instant::now()).stream()));
    // Somewhere in between.
    for micros in [10, 100, 1000] {
        on_time(
            until(Instant::now() + Duration::from_micros(micros))
                .into_iter()
                .collect(),
        );
    }
    let far = Instant::now() + Duration::from_secs(100_000);
    f.check_all(&ranges(), &until(far).wait().unwrap());
    f.check_all(&ranges(), &block_on(until(far)).unwrap());
    // One that has passed is no reason to stay away from the next batch.
    f.check_all(&ranges(), &submit(&f).wait().unwrap());
    Ok(())
}

pub(super) fn counters(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let counters = f.reader().source().counters();
    let before = counters.snapshot();
    let reads = [0..10_000, 50_000..90_001, 100_000..100_000, LEN..LEN + 5];
    let batch = Batch::of(reads).options(ReadOptions::default().gap(0));
    for (_, outcome) in f.reader().submit(batch) {
        drop(outcome);
    }
    let now = counters.snapshot();
    let wanted = 10_000 + 40_001;
    assert_eq!(
        now.reads - before.reads,
        4,
        "reads, empty and failed ones included"
    );
    assert_eq!(
        now.requested - before.requested,
        wanted,
        "bytes of valid ranges"
    );
    let by = |route| now.route(route) - before.route(route);
    let delivered: u64 = Route::ALL.iter().copied().map(by).sum();
    assert_eq!(delivered, wanted, "bytes delivered, over all routes");
    let in_memory = by(Route::Memory) + by(Route::Mmap);
    let (read, wasted) = (now.read - before.read, now.wasted - before.wasted);
    assert!(read + in_memory >= wanted, "{read} bytes read for {wanted}");
    assert!(wasted <= read, "more wasted ({wasted}) than read ({read})");

    let mut buf = [0; 100];
    let before = now;
    f.reader()
        .read_now(&mut [ReadInto::new(9, &mut buf)])
        .unwrap();
    let now = counters.snapshot();
    assert_eq!(now.reads - before.reads, 1);
    assert_eq!(now.requested - before.requested, 100);
    let by = |route| now.route(route) - before.route(route);
    assert_eq!(Route::ALL.iter().copied().map(by).sum::<u64>(), 100);
    Ok(())
}
