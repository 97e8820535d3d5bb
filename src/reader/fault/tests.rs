#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(clippy::single_range_in_vec_init)]

use super::*;
use crate::backend::memory::MemoryReader;
use crate::buffer::Place;
use crate::reader::ReaderExt;
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::mpsc;

fn content(len: usize) -> Bytes {
    let mut rng = SplitMix::new(77);
    (0..len).map(|_| rng.next() as u8).collect()
}

fn faulty(len: usize, faults: Faults) -> Faulty<MemoryReader> {
    Faulty::new(Arc::new(MemoryReader::new(content(len))), faults)
}

/// Outcomes in the order of the batch: the bytes, or the name of the error.
fn outcomes(pending: Pending) -> Vec<Result<Bytes, String>> {
    let mut outcomes: Vec<_> = pending.into_iter().collect();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes
        .into_iter()
        .map(|(_, outcome)| match outcome {
            Ok(block) => Ok(block.into_host().unwrap()),
            Err(failed) => Err(format!("{}", failed.error)),
        })
        .collect()
}

fn later() -> Range<Duration> {
    // Longer than any test may take: what waits so long comes only through a drop or a deadline.
    Duration::from_secs(3600)..Duration::from_secs(3601)
}

/// Says when it is dropped.
#[derive(Debug)]
struct Watched(MemoryReader, mpsc::Sender<()>);

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

impl Reader for Watched {
    fn source(&self) -> &Source {
        self.0.source()
    }
    fn submit(&self, batch: Batch) -> Pending {
        self.0.submit(batch)
    }
    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.0.read_now(reads)
    }
}

#[test]
fn without_faults_it_reads_in_single_steps() {
    let reader = faulty(10_000, Faults::seeded(1));
    assert_eq!(reader.read_all().wait().unwrap(), content(10_000));
    assert_eq!(reader.injected(), Injected::default());
    let counted = reader.source().counters().snapshot();
    assert_eq!((counted.reads, counted.requested), (1, 10_000));
    assert_eq!(
        (counted.requests, counted.read, counted.retried),
        (1, 10_000, 0)
    );
    assert_eq!(counted.route(Route::Other), 10_000);
    assert_eq!(reader.source().engine(), "fault");
    assert_eq!(reader.source().version(), reader.inner().source().version());
}

#[test]
fn always_short_still_brings_every_byte_and_counts_as_retried() {
    let reader = faulty(10_000, Faults::seeded(1).short(1.0));
    assert_eq!(reader.read_all().wait().unwrap(), content(10_000));
    let (injected, counted) = (reader.injected(), reader.source().counters().snapshot());
    assert!(injected.short > 0);
    // Every step but the last, which is one byte long, is short, and each is followed by another.
    assert_eq!(counted.retried, injected.short);
    assert_eq!(counted.requests, injected.short + 1);
    assert_eq!(counted.read, 10_000);
}

#[test]
fn always_interrupted_ends_after_eight() {
    let reader = faulty(100, Faults::seeded(1).interrupted(1.0));
    assert_eq!(
        reader.read(5..50).wait().unwrap(),
        content(100).slice(5..50)
    );
    assert_eq!(reader.injected().interrupted, 8);
    let mut buf = [0; 10];
    reader.read_at(90, &mut buf).unwrap();
    assert_eq!(buf, content(100)[90..]);
    assert_eq!(reader.injected().interrupted, 16);
    let counted = reader.source().counters().snapshot();
    assert_eq!((counted.retried, counted.requests), (16, 18));
}

#[test]
fn pieces_of_a_large_read_are_not_counted_as_short() {
    let len = 2 * PIECE as usize + 100;
    let reader = faulty(len, Faults::seeded(1));
    assert_eq!(
        reader.read(50..len as u64).wait().unwrap(),
        content(len).slice(50..)
    );
    let counted = reader.source().counters().snapshot();
    assert_eq!((counted.requests, counted.retried), (3, 0));
}

#[test]
fn fails_after_so_many_bytes_and_gives_the_block_back_as_it_was() {
    let eio = io::Error::from_raw_os_error(libc::EIO);
    let reader = faulty(100, Faults::seeded(1).fail_after(60, eio));
    let block = || {
        let mut block = BlockMut::with_capacity(64);
        block.put(b"head").unwrap();
        block
    };
    let batch = Batch::new().any(0..40).read_into(40..80, block());
    let mut all: Vec<_> = reader.submit(batch).into_iter().collect();
    let (index, outcome) = all.pop().unwrap();
    let failed = outcome.unwrap_err();
    assert_eq!(index, 1);
    assert!(
        matches!(failed.error.kind(), ErrorKind::Io { op: "read", source }
        if source.raw_os_error() == Some(libc::EIO))
    );
    let place = (failed.error.offset(), failed.error.length());
    assert_eq!(place, (Some(40), Some(40)));
    assert_eq!(failed.error.engine(), Some("fault"));
    assert_eq!(failed.dest.unwrap().filled(), b"head");
    assert_eq!(all[0].1.as_ref().unwrap().len(), 40);
    // 20 of its bytes had come.
    assert_eq!(reader.source().counters().snapshot().read, 60);
    let mut buf = [0; 1];
    let error = reader.read_at(0, &mut buf).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }));
    assert_eq!(reader.injected().failed, 2);
    // Empty reads and hints ask for no byte.
    assert!(reader.read(7..7).wait().unwrap().is_empty());
    assert!(reader.submit(Batch::new().prefetch(0..100)).wait().unwrap()[0].is_empty());
}

#[test]
fn an_interruption_given_as_the_failure_ends_the_read_too() {
    let faults = Faults::seeded(1).fail_after(0, io::ErrorKind::Interrupted.into());
    let error = faulty(10, faults).read(0..5).wait().unwrap_err();
    assert_eq!(error.io_kind(), io::ErrorKind::Interrupted);
}

#[test]
fn changed_content_names_both_versions() {
    let found = Version::immutable(7);
    let reader = faulty(100, Faults::seeded(1).change_after(10, found.clone()));
    let mut buf = [0; 10];
    reader.read_at(0, &mut buf).unwrap();
    let error = reader.read(20..30).wait().unwrap_err();
    let ErrorKind::Changed { opened, found: now } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(opened, reader.source().version());
    assert_eq!(now, &found);
    assert_eq!((error.offset(), error.length()), (Some(20), Some(10)));
    assert_eq!(reader.injected().changed, 1);
}

#[test]
fn of_a_failure_and_a_change_the_earlier_comes_first() {
    let version = Version::immutable(7);
    let eio = || io::Error::from_raw_os_error(libc::EIO);
    for (fails, changes, failed) in [(5, 6, true), (6, 5, false), (5, 5, true)] {
        let faults = Faults::seeded(1)
            .fail_after(fails, eio())
            .change_after(changes, version.clone());
        let error = faulty(10, faults).read(0..10).wait().unwrap_err();
        match error.kind() {
            ErrorKind::Io { .. } => assert!(failed),
            ErrorKind::Changed { .. } => assert!(!failed),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn the_nth_request_is_abandoned_and_no_other() {
    let reader = faulty(100, Faults::seeded(1).abandon_nth(1));
    let batch = Batch::new()
        .any(0..10)
        .any(5..5)
        .read_into(10..30, BlockMut::with_capacity(20))
        .any(30..40);
    for (index, outcome) in reader.submit(batch) {
        match outcome {
            Ok(_) => assert_ne!(index, 2),
            Err(failed) => {
                assert_eq!(index, 2);
                assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
                assert_eq!(failed.error.offset(), Some(10));
                assert!(failed.dest.is_none());
            }
        }
    }
    assert_eq!(reader.injected().abandoned, 1);

    let reader = faulty(100, Faults::seeded(1).abandon(1.0));
    let error = reader.read_at(3, &mut [0; 4]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned));
    assert_eq!((error.offset(), error.length()), (Some(3), Some(4)));
}

#[test]
fn the_shuffled_order_is_another_one_and_the_same_for_a_seed() {
    let order = |seed| {
        let reader = faulty(64, Faults::seeded(seed).shuffle());
        let order: Vec<_> = reader
            .submit(Batch::of((0..32).map(|i| i..i + 1)))
            .into_iter()
            .map(|(index, outcome)| {
                assert_eq!(
                    outcome.unwrap().as_host().unwrap(),
                    &content(64)[index..=index]
                );
                index
            })
            .collect();
        assert_eq!(reader.injected().shuffled, 1);
        order
    };
    let first = order(5);
    assert!(!first.is_sorted());
    assert_eq!(first, order(5));
    assert_ne!(first, order(6));
    let mut sorted = first;
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..32));
}

#[test]
fn hints_go_after_reads() {
    let reader = faulty(64, Faults::seeded(1));
    let batch = Batch::new().prefetch(0..9).any(0..5);
    let order: Vec<_> = reader.submit(batch).into_iter().map(|(i, _)| i).collect();
    assert_eq!(order, [1, 0]);
}

#[test]
fn a_slow_reader_returns_from_submit_and_keeps_deadlines() {
    let reader = faulty(64, Faults::seeded(1).slow(later()));
    let mut pending = reader.read_many(&[0..1, 1..2]);
    assert!(pending.try_next().is_none());
    assert_eq!(reader.injected().delayed, 2);
    let soon = Instant::now() + Duration::from_millis(5);
    let options = ReadOptions::default().deadline(soon);
    let error = reader
        .submit(Batch::of([0..1]).options(options))
        .wait()
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut));
}

#[test]
fn waits_are_those_of_the_range() {
    let delay = Duration::from_millis(3);
    let reader = faulty(64, Faults::seeded(1).slow(delay..delay));
    let began = Instant::now();
    reader.read(0..9).wait().unwrap();
    reader.read_at(0, &mut [0; 9]).unwrap();
    assert!(began.elapsed() >= 2 * delay);
    assert_eq!(reader.injected().delayed, 2);
}

#[test]
fn dropped_with_work_outstanding_it_does_that_and_its_thread_ends() {
    let (sender, gone) = mpsc::channel();
    let inner = Arc::new(Watched(MemoryReader::new(content(100)), sender));
    let reader = Faulty::new(inner, Faults::seeded(1).slow(later()));
    let pending = reader.read_many(&[0..10, 90..100]);
    drop(reader.read(0..50));
    drop(reader);
    let blocks = pending.wait().unwrap();
    assert_eq!(blocks[1].as_host().unwrap(), &content(100)[90..]);
    // Sent when the thread lets go of the last share.
    gone.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_panic_below_abandons_one_read_and_no_other() {
    #[derive(Debug)]
    struct Panics(MemoryReader);
    impl Reader for Panics {
        fn source(&self) -> &Source {
            self.0.source()
        }
        fn submit(&self, batch: Batch) -> Pending {
            self.0.submit(batch)
        }
        fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
            if reads[0].offset == 1 {
                std::panic::resume_unwind(Box::new("engine bug"));
            }
            self.0.read_now(reads)
        }
    }
    let reader = Faulty::new(
        Arc::new(Panics(MemoryReader::new("abc"))),
        Faults::seeded(1),
    );
    let error = reader.read(1..2).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned));
    assert_eq!(reader.read(2..3).wait().unwrap(), "c");
}

#[test]
fn device_reads_are_handed_on_and_errors_below_come_through() {
    let reader = faulty(64, Faults::seeded(1));
    let batch = Batch::new().any_at(3..9, Place::Device(2));
    let error = reader.submit(batch).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }));
    assert_eq!(error.engine(), Some("memory"));
    assert_eq!((error.offset(), error.length()), (Some(3), Some(6)));

    let eio = io::Error::from_raw_os_error(libc::EIO);
    let inner = Arc::new(faulty(64, Faults::seeded(1).fail_after(10, eio)));
    let reader = Faulty::new(inner, Faults::seeded(1).short(1.0));
    let error = reader.read(0..64).wait().unwrap_err();
    assert_eq!(
        error.io_kind(),
        io::Error::from_raw_os_error(libc::EIO).kind()
    );
    assert_eq!((error.offset(), error.length()), (Some(0), Some(64)));
}

#[test]
fn bounds_are_checked_before_anything_is_read() {
    let reader = faulty(64, Faults::seeded(1));
    let (mut good, mut bad) = ([0; 4], [0; 4]);
    let error = reader
        .read_now(&mut [ReadInto::new(0, &mut good), ReadInto::new(62, &mut bad)])
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 64 }));
    assert_eq!(error.offset(), Some(62));
    assert_eq!(reader.source().counters().snapshot().requests, 0);
}

fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
    let range = (0u64..=5000, 0u64..=5000).prop_map(|(a, b)| a.min(b)..a.max(b));
    proptest::collection::vec(range, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn harmless_faults_leave_every_byte_right(
        seed: u64, short in 0.0..1.0, interrupted in 0.0..1.0, ranges in ranges(),
    ) {
        let micros = Duration::from_micros;
        let faults = Faults::seeded(seed)
            .short(short)
            .interrupted(interrupted)
            .slow(micros(0)..micros(200))
            .shuffle();
        let oracle = MemoryReader::new(content(5000));
        let reader = faulty(5000, faults);
        let expected = outcomes(oracle.read_many(&ranges));
        prop_assert_eq!(&outcomes(reader.read_many(&ranges)), &expected);
        let mut buffers: Vec<_> = ranges.iter().map(|r| vec![0; (r.end - r.start) as usize]).collect();
        let mut reads: Vec<_> = ranges
            .iter()
            .zip(&mut buffers)
            .map(|(range, buf)| ReadInto::new(range.start, buf))
            .collect();
        reader.read_now(&mut reads).unwrap();
        for (buffer, expected) in buffers.iter().zip(expected) {
            prop_assert_eq!(buffer, &expected.unwrap());
        }
    }

    #[test]
    fn the_same_seed_has_the_same_outcomes(seed: u64, ranges in ranges(), fails in 0u64..50_000) {
        let run = || {
            let reader = faulty(5000, Faults::seeded(seed)
                .short(0.5)
                .interrupted(0.3)
                .abandon(0.2)
                .fail_after(fails, io::ErrorKind::StorageFull.into())
                .shuffle());
            let (front, back) = ranges.split_at(ranges.len() / 2);
            let both = (outcomes(reader.read_many(front)), outcomes(reader.read_many(back)));
            (both, reader.injected(), reader.source().counters().snapshot())
        };
        prop_assert_eq!(run(), run());
    }
}
