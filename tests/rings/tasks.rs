//! Who waits: executors, tasks that move and sleep, threads that are gone when their reads are done.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use feedwater::{Batch, Block, Opened, Pending, ReadOptions, Reader, ReaderExt, Route};
use futures::StreamExt;

use crate::common::hanging::{Answer, What};
use crate::{LEN, PATIENCE, engine, file, hanging, open, read_now, right, rings, scattered};

/// Reads everywhere in the file by tasks that do so in each way there is.
async fn task(reader: Arc<Opened>, sleeps: bool) {
    let ranges = scattered(30, 2000);
    let blocks = reader.read_many(&ranges).await.unwrap();
    for (block, range) in std::iter::zip(blocks, &ranges) {
        assert!(block.as_host().unwrap()[..] == *right(range));
    }
    let mut stream = reader.read_many(&ranges).stream();
    let mut left = ranges.len();
    while let Some((index, outcome)) = stream.next().await {
        assert!(outcome.unwrap().as_host().unwrap()[..] == *right(&ranges[index]));
        left -= 1;
        if sleeps {
            tokio::time::sleep(Duration::from_micros(left as u64 * 10)).await;
        }
    }
    assert_eq!(left, 0);
    assert!(reader.read(5..LEN).await.unwrap()[..] == *right(&(5..LEN)));
}

#[test]
fn by_any_executor_or_none() {
    let (_dir, path) = file();
    for (_, reader) in rings(&path, 8) {
        futures::executor::block_on(task(reader.clone(), false));
        let current = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let many = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .enable_time()
            .build()
            .unwrap();
        for runtime in [current, many] {
            runtime.block_on(async {
                let tasks: Vec<_> = (0..12)
                    .map(|i| tokio::spawn(task(reader.clone(), i % 3 == 0)))
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
        }
    }
}

/// Says so when it wakes.
struct Bell(mpsc::Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Nobody listens to those of polls before the last one.
        let _ = self.0.send(());
    }
}

/// Polls on a thread of its own until nothing is ready: what was, and the bell of the last poll.
fn poll_elsewhere(
    mut pending: Pending,
    taken: &mut HashMap<usize, Block>,
) -> (Pending, mpsc::Receiver<()>) {
    let (ring, rung) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let waker = Waker::from(Arc::new(Bell(ring)));
        let mut ready = Vec::new();
        loop {
            match pending.poll_next(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some((index, outcome))) => ready.push((index, outcome.unwrap())),
                Poll::Ready(None) | Poll::Pending => return (pending, ready),
            }
        }
    });
    let (pending, ready) = thread.join().unwrap();
    taken.extend(ready);
    (pending, rung)
}

#[test]
fn a_task_that_moves_between_threads_and_sleeps_between_polls() {
    const READS: u64 = 12;
    let ranges: Vec<_> = (0..READS).map(|i| i * 20_000..i * 20_000 + 4096).collect();
    for route in [Route::Uring, Route::UringDirect] {
        let Some(fs) = hanging(LEN) else { return };
        let Some(reader) = open(&fs.path('a'), route, &engine(READS as usize)) else {
            continue;
        };
        fs.hold(What::Reads);
        let options = ReadOptions::default().gap(0);
        let mut pending = reader.submit(Batch::of(ranges.clone()).options(options));
        let mut taken = HashMap::new();
        fs.wait_for(READS as usize);
        // Polled on one thread, then on another: the second bell is the one that rings.
        let first;
        (pending, first) = poll_elsewhere(pending, &mut taken);
        let mut bell;
        (pending, bell) = poll_elsewhere(pending, &mut taken);
        assert!(taken.is_empty());
        for together in [1, 1, 3, 2, 5] {
            for _ in 0..together {
                // While the task sleeps.
                fs.answer(fs.wait_for(1)[0], Answer::Right);
            }
            let before = taken.len();
            while taken.len() < before + together {
                bell.recv_timeout(PATIENCE).expect("woken for what is done");
                (pending, bell) = poll_elsewhere(pending, &mut taken);
            }
        }
        assert!(first.try_recv().is_err(), "of a poll that was not the last");
        let mut last = pending;
        assert!(matches!(
            last.poll_next(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(None)
        ));
        for (index, block) in taken {
            let right = fs.content('a', ranges[index].clone());
            assert!(block.as_host().unwrap()[..] == right, "{route}");
        }
    }
}

#[test]
fn threads_that_end_right_after_submitting() {
    const THREADS: u64 = 100;
    for route in [Route::Pread, Route::Uring, Route::UringDirect] {
        let Some(fs) = hanging(LEN) else { return };
        let Some(reader) = open(&fs.path('a'), route, &engine(THREADS as usize)) else {
            continue;
        };
        let range = |i: u64| i * 20_480..i * 20_480 + 4096;
        fs.hold(What::Reads);
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let reader = reader.clone();
                std::thread::spawn(move || reader.read(range(i)))
            })
            .collect();
        let pending: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        // All are with the kernel, and those who handed them in are gone.
        fs.wait_for(THREADS as usize);
        fs.release();
        for (i, pending) in std::iter::zip(0.., pending) {
            assert!(
                pending.wait().unwrap() == fs.content('a', range(i)),
                "{route}"
            );
        }
    }
}

/// As another thread's reads are under way, neither those of the caller's own ring nor the driver's get mixed up.
#[test]
fn reads_on_the_spot_beside_others() {
    let (_dir, path) = file();
    let ranges = scattered(60, 3000);
    for (_, reader) in rings(&path, 4) {
        let pending: Vec<_> = (0..10).map(|_| reader.read_many(&ranges)).collect();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for (buffer, range) in
                        std::iter::zip(read_now(&reader, &ranges).unwrap(), &ranges)
                    {
                        assert!(buffer[..] == *right(range));
                    }
                });
            }
        });
        for pending in pending {
            for (block, range) in std::iter::zip(pending.wait().unwrap(), &ranges) {
                assert!(block.as_host().unwrap()[..] == *right(range));
            }
        }
    }
}
