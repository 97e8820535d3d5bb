//! Batches that are decoded before they are taken.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use feedwater::cuda::{Device, DeviceOptions};
use feedwater::tfrecord::{Boundaries, DeviceScan, Index, RecordOptions, examples};
use feedwater::{Error, ErrorKind, Processor};
use futures::{Stream, StreamExt};
use software_cuda_preload::Session;

use crate::beside::*;
use crate::common::alone::alone;
use crate::support::*;
use crate::values::{record, records};

fn scan(gpu: &Arc<Device>, file: &[u8], ahead: usize) -> DeviceScan {
    let scan = examples(open(gpu, file)).schema(all_kinds()).batch_rows(10);
    scan.on_device(gpu).processor(Processor::Gpu).ahead(ahead)
}

/// Waits until so many batches were begun on the device; fails if there were more.
fn begun(session: &Session, batches: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let launches = session.work("example_index").launches;
        assert!(launches <= batches, "{launches}");
        if launches == batches {
            return;
        }
        assert!(Instant::now() < deadline, "{launches} of {batches}");
        std::thread::yield_now();
    }
}

/// Waits until what is ahead probably goes no further: the driver was not called for a while. Nothing depends on it but what is seen.
fn idle(session: &Session) {
    let (mut calls, mut unchanged) = (0, 0);
    while unchanged < 20_000 {
        let now = session.counts().calls;
        unchanged = if now == calls { unchanged + 1 } else { 0 };
        calls = now;
        std::thread::yield_now();
    }
}

#[test]
fn batches_and_errors_come_in_order_however_many_are_ahead() {
    let good = file(&records(64));
    let mut bad = good.clone();
    let at = file(&records(37)).len();
    bad[at + 20] ^= 4;
    let mut odd = records(64);
    odd[44] = vec![0xff; 9];
    let odd = file(&odd);
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let index = Index::build(open(&gpu, &good)).unwrap();
            for ahead in [0, 1, 2, 7] {
                for (file, rows) in [(&good, 64), (&bad, 37), (&odd, 44)] {
                    for boundaries in [Boundaries::Host, Boundaries::Device] {
                        let options = RecordOptions::new();
                        let (outcome, report) =
                            compare(&gpu, file, &options, &all_kinds(), |scan| {
                                let scan = scan.boundaries(boundaries).window_bytes(6000);
                                scan.ahead(ahead)
                            });
                        assert_eq!(outcome.rows.num_rows(), rows, "{report}");
                        assert_eq!(outcome.error.is_some(), rows < 64);
                    }
                }
                let (outcome, _) = by_device(scan(&gpu, &good, ahead).index(&index));
                assert_eq!(outcome.rows.num_rows(), 64);
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn the_second_batch_is_begun_before_the_first_is_taken_and_no_more_than_may_be() {
    if !is_software(&session("eager")) {
        return;
    }
    let file = file(&records(70));
    for ahead in [0, 1, 2, 3] {
        let session = session("lazy");
        {
            let gpu = Device::open(0).unwrap();
            let mut batches = scan(&gpu, &file, ahead).batches().unwrap();
            for taken in 0..7 {
                begun(&session, (taken + ahead as u64).min(7));
                assert_eq!(batches.report().gpu.batches, taken);
                assert_eq!(batches.next().unwrap().unwrap().num_rows(), 10);
            }
            assert!(batches.next().is_none());
            begun(&session, 7);
        }
        nothing_left(&session);
    }
}

/// A stream has one ahead at least, and no more than it may.
#[test]
fn a_stream_begins_when_it_is_polled_and_is_as_far_ahead() {
    if !is_software(&session("eager")) {
        return;
    }
    let file = file(&records(70));
    for ahead in [0, 1, 3] {
        let session = session("lazy");
        {
            let gpu = Device::open(0).unwrap();
            let mut stream = scan(&gpu, &file, ahead).stream();
            begun(&session, 0);
            for taken in 1..=7 {
                let batch = futures::executor::block_on(stream.next());
                assert_eq!(batch.unwrap().unwrap().num_rows(), 10);
                begun(&session, (taken + ahead.max(1) as u64).min(7));
            }
            assert!(futures::executor::block_on(stream.next()).is_none());
        }
        nothing_left(&session);
    }
}

#[test]
fn batches_that_are_not_taken_leave_nothing() {
    let file = file(&records(70));
    let bytes = file.len();
    for streams in STREAMS {
        let session = session(streams);
        for (ahead, taken) in [(0, 1), (1, 0), (2, 0), (2, 1), (3, 4)] {
            for boundaries in [Boundaries::Host, Boundaries::Device] {
                let gpu = Device::open(0).unwrap();
                let scan = scan(&gpu, &file, ahead).boundaries(boundaries);
                let mut batches = scan.window_bytes(bytes / 3).batches().unwrap();
                let kept: Vec<_> = batches.by_ref().take(taken).collect();
                drop(batches);
                // What was taken stays.
                for batch in kept {
                    assert!(batch.unwrap().columns().to_host().unwrap().num_rows() > 0);
                }
            }
            nothing_left(&session);
        }
    }
}

/// With memory for one batch and not for two, batches that are ahead wait.
#[test]
fn nothing_fails_ahead_that_does_not_fail_when_it_is_asked_for() {
    if !is_software(&session("eager")) {
        return;
    }
    let session = session("eager");
    let file = file(&records(70));
    let all = |memory: u64, ahead: usize, boundaries| -> Result<usize, Error> {
        let options = DeviceOptions::default().chunk(1 << 16);
        let gpu = options.memory(memory).open(0).unwrap();
        let scan = scan(&gpu, &file, ahead).boundaries(boundaries);
        let (mut rows, mut batches) = (0, scan.window_bytes(file.len() / 4).batches()?);
        loop {
            if ahead > 0 {
                idle(&session);
            }
            let Some(batch) = batches.next() else {
                return Ok(rows);
            };
            rows += batch?.num_rows();
        }
    };
    for boundaries in [Boundaries::Host, Boundaries::Device] {
        // The least with which it works, to a page.
        let (mut few, mut enough) = (0u64, 1 << 22);
        while enough - few > 4096 {
            let middle = few.midpoint(enough);
            match all(middle, 0, boundaries) {
                Ok(rows) => {
                    assert_eq!(rows, 70);
                    enough = middle;
                }
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
                        "{error}"
                    );
                    few = middle;
                }
            }
        }
        for ahead in [1, 2, 5] {
            assert_eq!(all(enough, ahead, boundaries).unwrap(), 70, "{ahead}");
        }
        let error = all(few / 2, 2, boundaries).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            "{error}"
        );
    }
    nothing_left(&session);
}

#[test]
fn in_a_child_the_thread_is_missed() {
    alone("ahead::in_a_child_alone");
}

#[test]
#[ignore = "run by `in_a_child_the_thread_is_missed`, in a process of its own"]
fn in_a_child_alone() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let all: Vec<_> = (0..40).map(record).collect();
        let file = file(&all);
        let mut batches = scan(&gpu, &file, 2).batches().unwrap();
        assert!(batches.next().unwrap().is_ok());
        let mut stream = scan(&gpu, &file, 2).stream();
        assert!(futures::executor::block_on(stream.next()).unwrap().is_ok());
        // SAFETY: the child runs on the only thread it has, touches no lock but those of the code under test and of the allocator (which
        // glibc makes usable again in a child), and leaves through `_exit` in any case.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let checks = AssertUnwindSafe(|| {
                let is_forked = |error: &Error| {
                    matches!(error.kind(), ErrorKind::Forked)
                        && error.name() == Some("data.tfrecord")
                };
                let forked = batches
                    .next()
                    .is_some_and(|batch| batch.is_err_and(|error| is_forked(&error)));
                let over = batches.next().is_none();
                drop(batches);
                let mut polled = || {
                    let mut cx = Context::from_waker(Waker::noop());
                    std::pin::Pin::new(&mut stream).poll_next(&mut cx)
                };
                let told = matches!(polled(), Poll::Ready(Some(Err(error))) if is_forked(&error));
                let ended = matches!(polled(), Poll::Ready(None));
                drop(stream);
                [!forked, !over, !told, !ended]
                    .iter()
                    .fold(0, |all, wrong| 2 * all + i32::from(*wrong))
            });
            // SAFETY: ends a child that hangs, and leaves without running anything of the parent's.
            unsafe {
                libc::alarm(30);
                libc::_exit(catch_unwind(checks).unwrap_or(255))
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, with a place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{status:#x}");
        // The parent goes on as if nothing had been.
        let rows = stream.map(|batch| batch.unwrap().num_rows());
        let rows: Vec<_> = futures::executor::block_on(rows.collect());
        assert_eq!(rows, [10, 10, 10]);
        assert_eq!(
            batches
                .map(|batch| batch.unwrap().num_rows())
                .sum::<usize>(),
            30
        );
    }
    nothing_left(&session);
}
