//! What exactly reaches the kernel for a batch, and what comes of its answers.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use feedwater::{
    Batch, BlockMut, CounterSnapshot, Engine, EngineOptions, ErrorKind, OpenOptions, Opened,
    PoolOptions, Reader, ReaderExt, Refusal, Route,
};

use crate::common::hanging::{Answer, Hanging, What};
use crate::common::quarantine::Quarantine;
use crate::common::skip::require;
use crate::{LEN, content, engine, file, hanging, open, read_now, right, rings, scattered};

/// Requests, and bytes read, wasted and bounced, and requests that were repeated.
type Counts = (u64, u64, u64, u64, u64);

fn counted(before: &CounterSnapshot, now: &CounterSnapshot) -> Counts {
    (
        now.requests - before.requests,
        now.read - before.read,
        now.wasted - before.wasted,
        now.bounced - before.bounced,
        now.retried - before.retried,
    )
}

fn counts<T>(reader: &Opened, work: impl FnOnce() -> T) -> (Counts, T) {
    let counters = reader.source().counters();
    let before = counters.snapshot();
    let done = work();
    (counted(&before, &counters.snapshot()), done)
}

/// Of a batch of `ranges`, whose bytes are compared.
fn counts_of(reader: &Opened, ranges: &[Range<u64>]) -> Counts {
    let (counts, blocks) = counts(reader, || reader.read_many(ranges).wait().unwrap());
    for (block, range) in std::iter::zip(&blocks, ranges) {
        assert!(block.as_host().unwrap()[..] == *right(range), "{range:?}");
    }
    counts
}

/// What direct requests to this file are multiples of.
fn align_of(reader: &Opened) -> u64 {
    reader.source().limits().align as u64
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// How much of the file a direct request for `range` brings.
fn widened(range: &Range<u64>, align: u64) -> Range<u64> {
    range.start - range.start % align..range.end.next_multiple_of(align).min(LEN)
}

#[test]
fn scattered_reads_are_one_request_each() {
    let (_dir, path) = file();
    let ranges = scattered(40, 700);
    for (route, reader) in rings(&path, 16) {
        // On the spot, whatever is in the page cache.
        let (now, buffers) = counts(&reader, || read_now(&reader, &ranges).unwrap());
        for (buffer, range) in std::iter::zip(&buffers, &ranges) {
            assert!(buffer[..] == *right(range), "{range:?}");
        }
        if route == Route::Uring {
            assert_eq!(now, (40, bytes(&ranges), 0, 0, 0));
            continue;
        }
        let align = align_of(&reader);
        let wide: Vec<_> = ranges.iter().map(|range| widened(range, align)).collect();
        let waste = bytes(&wide) - bytes(&ranges);
        assert_eq!(now, (40, bytes(&wide), waste, bytes(&ranges), 0));
        // Into memory of ours, bytes land where they stay.
        let (requests, read, _, bounced, retried) = counts_of(&reader, &ranges);
        assert_eq!((requests, read, retried), (40, bytes(&wide), 0));
        // What would keep four times its size is copied.
        let small = |(wide, range): &(&Range<u64>, &Range<u64>)| {
            (wide.end - wide.start) / 4 > range.end - range.start
        };
        let copied = std::iter::zip(&wide, &ranges).filter(small);
        let copied: u64 = copied.map(|(_, range)| range.end - range.start).sum();
        assert_eq!(bounced, copied);
    }
}

#[test]
fn neighbours_are_one_request() {
    let (_dir, path) = file();
    let ranges: Vec<_> = (0..30).map(|i| 1000 + i * 1500..2000 + i * 1500).collect();
    let span = 1000..2000 + 29 * 1500;
    for (route, reader) in rings(&path, 16) {
        if route == Route::UringDirect {
            let (requests, read, ..) = counts_of(&reader, &ranges);
            let wide = widened(&span, align_of(&reader));
            assert_eq!((requests, read), (1, wide.end - wide.start));
        }
    }
    let Some(fs) = hanging(LEN) else { return };
    let Some(reader) = open(&fs.path('a'), Route::Uring, &engine(16)) else {
        return;
    };
    let (counts, blocks) = counts(&reader, || reader.read_many(&ranges).wait().unwrap());
    // Slices of a thousand would keep the whole block, so they are copied.
    assert_eq!(counts, (1, span.end - span.start, 29 * 500, 30_000, 0));
    for (block, range) in std::iter::zip(&blocks, &ranges) {
        assert!(block.as_host().unwrap()[..] == fs.content('a', range.clone()));
    }
}

#[test]
fn large_ranges_are_cut_at_multiples_of_the_piece() {
    let (_dir, path) = file();
    // In one block, up to three times a piece and a little.
    let range = 100..LEN - 50;
    for (route, reader) in rings(&path, 16) {
        let piece = match route {
            Route::Uring => 256 << 10,
            _ => 1 << 20,
        };
        let (requests, ..) = counts_of(&reader, std::slice::from_ref(&range));
        assert_eq!(requests, LEN / piece, "{route}");
        let (now, buffers) = counts(&reader, || {
            read_now(&reader, std::slice::from_ref(&range)).unwrap()
        });
        assert!(buffers[0][..] == *right(&range));
        if route == Route::Uring {
            assert_eq!(now, (LEN / piece, range.end - range.start, 0, 0, 0));
        }
    }
}

#[test]
fn of_large_unaligned_ranges_only_the_edges_are_bounced() {
    let (_dir, path) = file();
    let Some(reader) = open(&path, Route::UringDirect, &engine(16)) else {
        return;
    };
    let align = align_of(&reader);
    let memory = Quarantine::new();
    // The address is as far from an aligned one as the offset.
    let range = 100..(2 << 20) + 50;
    let mut block = memory.block(3 << 20);
    drop(block.split_to(100));
    let (counts, blocks) = counts(&reader, || {
        let batch = Batch::new().read_into(range.clone(), block);
        reader.submit(batch).wait().unwrap()
    });
    assert!(blocks[0].as_host().unwrap()[..] == *right(&range));
    let wide = widened(&range, align);
    let (len, read) = (range.end - range.start, wide.end - wide.start);
    let edges = align - 100 + 50;
    // Two pieces of a MiB, and the edges.
    assert_eq!(counts, (4, read, read - len, edges, 0));
}

#[test]
fn memory_that_the_device_does_not_take_is_reached_by_a_bounce() {
    let (_dir, path) = file();
    let Some(reader) = open(&path, Route::UringDirect, &engine(16)) else {
        return;
    };
    let range = 0..LEN;
    let memory = Quarantine::new();
    let mut block = memory.block(LEN as usize + 1);
    drop(block.split_to(1));
    let (counts, blocks) = counts(&reader, || {
        let batch = Batch::new().read_into(range.clone(), block);
        reader.submit(batch).wait().unwrap()
    });
    assert!(blocks[0].as_host().unwrap()[..] == *content());
    assert_eq!(counts, (3, LEN, 0, LEN, 0));
}

/// A reader of a file that hangs, by each way of rings.
fn scripted() -> impl Iterator<Item = (Route, Hanging, Arc<Opened>)> {
    let routes = [Route::Uring, Route::UringDirect];
    routes.into_iter().filter_map(|route| {
        let fs = hanging(LEN)?;
        let reader = open(&fs.path('a'), route, &engine(16))?;
        Some((route, fs, reader))
    })
}

#[test]
fn short_answers_are_finished() {
    for (route, fs, reader) in scripted() {
        fs.hold(What::Reads);
        let range = 4096..5 * 4096;
        let (counts, bytes) = counts(&reader, || {
            let pending = reader.read(range.clone());
            // Half a page more than one; then what is missing, from an aligned offset on if need be.
            for (short, asked, again) in [
                (6144, (4096, 4 * 4096), 0),
                (4096, (4096 + 6144, 4 * 4096 - 6144), 2048),
            ] {
                let held = fs.wait_for(1)[0];
                let again = if route == Route::Uring { 0 } else { again };
                assert_eq!((held.offset + again, held.len - again), asked, "{route}");
                fs.answer(held, Answer::Short(short));
            }
            fs.wait_for(1);
            fs.release();
            pending.wait().unwrap()
        });
        assert!(bytes[..] == fs.content('a', range.clone()), "{route}");
        let (requests, read, wasted, _, retried) = counts;
        assert_eq!(
            (requests, read, wasted, retried),
            (3, 4 * 4096, 0, 2),
            "{route}"
        );
    }
}

#[test]
fn interruptions_are_repeated() {
    for (route, fs, reader) in scripted() {
        fs.hold(What::Reads);
        let range = 4096..3 * 4096;
        let (counts, bytes) = counts(&reader, || {
            let pending = reader.read(range.clone());
            for number in [libc::EINTR, libc::EAGAIN, libc::EAGAIN, libc::EINTR] {
                fs.answer(fs.wait_for(1)[0], Answer::Error(number));
            }
            fs.answer(fs.wait_for(1)[0], Answer::Right);
            pending.wait().unwrap()
        });
        assert!(bytes[..] == fs.content('a', range), "{route}");
        assert_eq!(counts, (5, 8192, 0, 0, 4), "{route}");
    }
}

#[test]
fn an_answer_without_bytes_within_the_length_is_an_error() {
    for (route, fs, reader) in scripted() {
        for now in [false, true] {
            fs.hold(What::Reads);
            let range = 8192..16_384;
            let error = std::thread::scope(|threads| {
                let reading = threads.spawn(|| match now {
                    true => read_now(&reader, std::slice::from_ref(&range)).unwrap_err(),
                    false => reader.read(range.clone()).wait().unwrap_err(),
                });
                fs.answer(fs.wait_for(1)[0], Answer::Short(0));
                reading.join().unwrap()
            });
            assert_eq!(error.io_kind(), io::ErrorKind::UnexpectedEof, "{error}");
            assert_eq!((error.offset(), error.length()), (Some(8192), Some(8192)));
            assert_eq!(error.engine(), Some(route.name()));
            fs.release();
            assert!(reader.read(range.clone()).wait().unwrap() == fs.content('a', range));
        }
    }
}

#[test]
fn one_bad_spot_fails_only_those_that_touch_it() {
    for (route, fs, reader) in scripted() {
        let ranges = [0..4096, 4096..8192, 8192..9000];
        fs.hold(What::Reads);
        let pending = reader.read_many(&ranges);
        // All in one; then each alone.
        fs.answer(fs.wait_for(1)[0], Answer::Error(libc::EIO));
        for answer in [Answer::Right, Answer::Error(libc::EIO), Answer::Right] {
            fs.answer(fs.wait_for(1)[0], answer);
        }
        let mut failed = 0;
        for (index, outcome) in pending {
            match outcome {
                Ok(block) => {
                    let right = fs.content('a', ranges[index].clone());
                    assert!(block.as_host().unwrap()[..] == right, "{route}");
                }
                Err(why) => {
                    assert_eq!((index, why.error.offset()), (1, Some(4096)), "{route}");
                    let ErrorKind::Io { source, .. } = why.error.kind() else {
                        panic!("{why}");
                    };
                    assert_eq!(source.raw_os_error(), Some(libc::EIO));
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, 1, "{route}");
    }
}

/// Who waits for parts that are read again learns of a shutdown as well.
#[test]
fn shut_down_while_parts_are_read_again() {
    for route in [Route::Pread, Route::Uring, Route::UringDirect] {
        let Some(fs) = hanging(LEN) else { return };
        let engine = engine(4);
        let Some(reader) = open(&fs.path('a'), route, &engine) else {
            continue;
        };
        fs.hold(What::Reads);
        let mut pending = reader.read_many(&[0..4096, 4096..8192]);
        fs.answer(fs.wait_for(1)[0], Answer::Error(libc::EIO));
        fs.wait_for(1);
        assert_eq!(engine.shut_down(std::time::Duration::ZERO).left, 1);
        for _ in 0..2 {
            let (_, outcome) = pending.try_next().expect("told at once");
            let failed = outcome.unwrap_err();
            assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
        }
        fs.release();
    }
}

/// A range may be larger than the pool's blocks if the memory is the caller's.
#[test]
fn the_cap_on_blocks_is_not_for_bounces() {
    let (_dir, path) = file();
    let pool = PoolOptions::default().max_block(1000);
    let engine = Engine::new(EngineOptions::default().pool(pool));
    let Some(reader) = open(&path, Route::UringDirect, &engine) else {
        return;
    };
    let block = BlockMut::with_capacity(100_000);
    let batch = Batch::new().read_into(5..100_005, block);
    let blocks = reader.submit(batch).wait().unwrap();
    assert!(blocks[0].as_host().unwrap()[..] == *right(&(5..100_005)));
    let error = reader.read(5..1006).wait().unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::OutOfMemory { cap: 1000, .. }
    ));
}

#[test]
fn rings_are_refused_on_fuse() {
    let Some(fs) = hanging(LEN) else { return };
    for route in [Route::Uring, Route::UringDirect] {
        let options = OpenOptions::new().only(route);
        if require("uring", options.open(fs.path('a'))).is_none() {
            continue;
        }
        let error = options.open(fs.bare_path('a')).unwrap_err();
        let ErrorKind::Unavailable { engine, why } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(engine, &route.name());
        assert!(matches!(why, Refusal::NotForThisFile { .. }), "{why}");
        // Read by position, short answers are finished there as well.
        let reader = feedwater::open(fs.bare_path('a')).unwrap();
        fs.hold(What::Reads);
        let pending = reader.read(5..50_000);
        fs.answer(fs.wait_for(1)[0], Answer::Short(1000));
        fs.release();
        assert!(pending.wait().unwrap() == fs.content('a', 5..50_000));
        let now = reader.source().counters().snapshot();
        assert_eq!(now.main_route(), Some(Route::Pread));
    }
}
