//! A slow engine from outside, used in every way that a reader can be used.

use std::io::{BufRead, Read as _, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use feedwater::{
    Batch, BlockMut, ChunkOptions, ErrorKind, Pending, Priority, ReadOptions, Reader, ReaderExt,
};
use futures::StreamExt;

use crate::device::data;
use crate::slow::{Remote, RemoteOptions};

const LEN: usize = 20_000;

fn remote(options: RemoteOptions) -> Arc<Remote> {
    Arc::new(Remote::new(data(LEN), options))
}

fn closed() -> RemoteOptions {
    RemoteOptions {
        opens_at: usize::MAX,
        ..RemoteOptions::default()
    }
}

/// 40 ranges of different lengths.
fn ranges() -> Vec<std::ops::Range<u64>> {
    (0..40u64).map(|i| i * 500..i * 500 + 10 * i + 1).collect()
}

fn check(blocks: &[feedwater::Block]) {
    assert_eq!(blocks.len(), 40);
    for (range, block) in ranges().iter().zip(blocks) {
        let expected = &data(LEN)[range.start as usize..range.end as usize];
        assert_eq!(block.as_host().unwrap(), expected);
    }
}

fn all(reader: &Remote) -> Pending {
    reader.read_many(&ranges())
}

fn soon() -> ReadOptions {
    ReadOptions::default().deadline(Instant::now() + Duration::from_millis(20))
}

#[test]
fn blocks_come_in_input_order_and_outcomes_in_completion_order() {
    let reader = remote(RemoteOptions {
        lanes: 40,
        ..RemoteOptions::default()
    });
    check(&all(&reader).wait().unwrap());
    reader.log.served.lock().unwrap().clear();
    let mut order = Vec::new();
    for (index, outcome) in all(&reader) {
        let range = &ranges()[index];
        let expected = &data(LEN)[range.start as usize..range.end as usize];
        assert_eq!(outcome.unwrap().as_host().unwrap(), expected);
        order.push(range.start);
    }
    assert_eq!(order, *reader.log.served.lock().unwrap());
    assert!(!order.is_sorted());
}

#[test]
fn a_tasks_executor_is_its_own_business() {
    let reader = remote(RemoteOptions::default());
    check(&futures::executor::block_on(all(&reader)).unwrap());
    let current = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    check(&current.block_on(all(&reader)).unwrap());
    let many = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..4).map(|_| many.spawn(all(&reader))).collect();
    for task in tasks {
        check(&many.block_on(task).unwrap().unwrap());
    }
}

#[test]
fn outcomes_are_a_stream() {
    let reader = remote(RemoteOptions::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut outcomes: Vec<_> = runtime.block_on(all(&reader).stream().collect());
    outcomes.sort_by_key(|(index, _)| *index);
    let blocks: Vec<_> = outcomes
        .into_iter()
        .map(|(_, block)| block.unwrap())
        .collect();
    check(&blocks);
}

#[test]
fn many_threads_read_at_once() {
    let reader = remote(RemoteOptions::default());
    std::thread::scope(|scope| {
        for start in 0..8usize {
            let reader = &reader;
            scope.spawn(move || {
                let mut buf = [0; 100];
                for offset in (start..LEN - 100).step_by(1999) {
                    reader.read_at(offset as u64, &mut buf).unwrap();
                    assert_eq!(buf, data(LEN)[offset..offset + 100]);
                }
            });
        }
    });
}

#[test]
fn each_read_has_its_own_outcome_and_the_next_try_its_own() {
    let options = RemoteOptions {
        failures: 4,
        seed: 42,
        ..RemoteOptions::default()
    };
    let reader = remote(options.clone());
    let mut failed = 0;
    for (index, outcome) in all(&reader) {
        let range = ranges()[index].clone();
        assert_eq!(outcome.is_err(), options.fails(range.start), "{range:?}");
        let Err(error) = outcome.map_err(|f| f.error) else {
            continue;
        };
        assert!(matches!(error.kind(), ErrorKind::Io { op: "GET", .. }));
        assert_eq!(error.io_kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(error.offset(), Some(range.start));
        assert_eq!(error.length(), Some(range.end - range.start));
        assert_eq!(error.name(), Some("remote://bucket/key"));
        assert_eq!(error.engine(), Some("slow-remote"));
        failed += 1;
    }
    assert!((1..40).contains(&failed), "{failed}");
    let error = all(&reader).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { op: "GET", .. }));
    let good = ranges()
        .into_iter()
        .find(|range| !options.fails(range.start))
        .unwrap();
    reader.read(good).wait().unwrap();
}

#[test]
fn a_failed_read_gives_its_block_back() {
    let reader = remote(RemoteOptions {
        failures: 16,
        ..RemoteOptions::default()
    });
    let mut block = BlockMut::with_capacity(64);
    block.put(b"mine").unwrap();
    let (_, outcome) = reader
        .submit(Batch::new().read_into(7..17, block))
        .wait_next()
        .unwrap();
    assert_eq!(outcome.unwrap_err().dest.unwrap().filled(), b"mine");
}

#[test]
fn partial_progress_is_seen_before_anything_is_done() {
    let reader = remote(closed());
    let mut pending = reader.submit(Batch::of([0..100, 100..110]));
    reader.progress(30);
    let progress = pending.progress();
    // More than a read has is not counted.
    assert_eq!((progress.bytes_done, progress.bytes), (40, 110));
    assert_eq!((progress.reads_done, progress.reads), (0, 2));
    assert!(pending.try_next().is_none());
    reader.open();
    while let Some((_, outcome)) = pending.wait_next() {
        outcome.unwrap();
    }
    let progress = pending.progress();
    assert_eq!((progress.bytes_done, progress.reads_done), (110, 2));
}

#[test]
fn a_deadline_holds_though_the_engine_does_nothing() {
    let reader = remote(closed());
    let batch = || Batch::of([0..10, 20..30]).options(soon());
    for (_, outcome) in reader.submit(batch()) {
        let error = outcome.unwrap_err().error;
        assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
        assert_eq!(
            (error.length(), error.engine()),
            (Some(10), Some("slow-remote"))
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let error = runtime.block_on(reader.submit(batch())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
    reader.open();
    assert_eq!(reader.read(0..5).wait().unwrap(), data(5));
    // What nobody waited for was never requested.
    assert_eq!(reader.log.skipped.load(Ordering::SeqCst), 4);
    assert_eq!(*reader.log.served.lock().unwrap(), [0]);
}

#[test]
fn dropped_reads_are_skipped() {
    let reader = remote(closed());
    drop(all(&reader));
    let last = reader.read(3..9);
    reader.open();
    assert_eq!(last.wait().unwrap(), data(LEN)[3..9]);
    assert_eq!(reader.log.skipped.load(Ordering::SeqCst), 40);
}

#[test]
fn prefetch_yields_to_foreground() {
    let reader = remote(RemoteOptions {
        lanes: 1,
        ..closed()
    });
    let later = ReadOptions::default().priority(Priority::Prefetch);
    let early = reader.submit(Batch::of([0..10, 10..20]).options(later));
    let urgent = reader.read_many(&[50..60, 60..70]);
    reader.open();
    urgent.wait().unwrap();
    early.wait().unwrap();
    assert_eq!(*reader.log.served.lock().unwrap(), [50, 60, 0, 10]);
}

#[test]
fn an_engine_that_panics_midway_abandons_what_is_left() {
    let reader = remote(RemoteOptions {
        lanes: 1,
        panics_at: Some(3),
        ..RemoteOptions::default()
    });
    let mut done = 0;
    for (index, outcome) in all(&reader) {
        match outcome {
            Ok(_) => done += 1,
            Err(failed) => {
                assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
                assert_eq!(failed.error.offset(), Some(ranges()[index].start));
            }
        }
    }
    assert_eq!(done, 3);
    let error = futures::executor::block_on(reader.read(0..1)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned));
    let error = reader.read_at(0, &mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned));
}

#[test]
fn dropping_the_engine_abandons_what_it_has_not_done() {
    let reader = remote(closed());
    let (blocking, task) = (all(&reader), all(&reader));
    drop(reader);
    let task = futures::executor::block_on(task).unwrap_err();
    for error in [blocking.wait().unwrap_err(), task] {
        assert!(matches!(error.kind(), ErrorKind::Abandoned));
        assert_eq!(error.engine(), Some("slow-remote"));
    }
}

#[test]
fn chunks_stay_in_their_window_and_use_it() {
    let options = ChunkOptions::default().size(1000).window(4500);
    let reader = remote(RemoteOptions {
        opens_at: 5,
        ..RemoteOptions::default()
    });
    let mut got = Vec::new();
    let mut chunks = reader.clone().chunks(500..LEN as u64, options.clone());
    loop {
        let taken = got.len() as u64;
        let Some(chunk) = chunks.next() else { break };
        let asked = reader.log.submitted.load(Ordering::SeqCst);
        assert!(asked - taken <= 4500, "{asked} asked for, {taken} taken");
        got.extend(chunk.unwrap());
        assert_eq!(chunks.remaining(), (LEN - 500 - got.len()) as u64);
    }
    assert_eq!(got, data(LEN)[500..]);
    assert_eq!(reader.log.peak.load(Ordering::SeqCst), 4500);

    let reader = remote(RemoteOptions::default());
    let stream = reader.clone().chunks(0..LEN as u64, options).stream();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let task = runtime.spawn(stream.map(|chunk| chunk.unwrap().to_vec()).concat());
    assert_eq!(runtime.block_on(task).unwrap(), data(LEN));
    assert!(reader.log.peak.load(Ordering::SeqCst) <= 4500);
}

#[test]
fn chunks_end_with_the_first_error() {
    let options = RemoteOptions {
        failures: 2,
        seed: 3,
        ..RemoteOptions::default()
    };
    let reader = remote(options.clone());
    let good = (0..20u64).take_while(|i| !options.fails(i * 1000)).count();
    assert!((1..20).contains(&good), "the seed fails chunk {good}");
    let outcomes: Vec<_> = reader
        .chunks(0..LEN as u64, ChunkOptions::default())
        .collect();
    assert_eq!(outcomes.len(), good + 1);
    let error = outcomes.last().unwrap().as_ref().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { op: "GET", .. }));
    assert_eq!(error.offset(), Some(good as u64 * 1000));
}

#[test]
fn a_cursor_over_it_reads_lines_and_seeks() {
    let text: String = (0..3000).map(|i| format!("line {i}\n")).collect();
    let reader = Arc::new(Remote::new(text.clone(), RemoteOptions::default()));
    let lines = reader.clone().cursor().lines().map(Result::unwrap);
    assert!(lines.eq(text.lines()));
    let mut cursor = reader.cursor();
    cursor.seek(SeekFrom::End(-10)).unwrap();
    let mut end = String::new();
    cursor.read_to_string(&mut end).unwrap();
    assert_eq!(end, text[text.len() - 10..]);
}

#[test]
fn behind_dyn_and_sliced_it_is_the_same() {
    let reader: Arc<dyn Reader> = remote(RemoteOptions::default());
    let slice = Arc::new(reader.slice(1000..2000).unwrap());
    assert_eq!(slice.tail(10).wait().unwrap(), data(LEN)[1990..2000]);
    let error = slice.read(995..1001).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 1000 }));
    assert_eq!(error.engine(), Some("slow-remote"));
}
