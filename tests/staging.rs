//! Device destinations through `Staged`, with made-up devices and engines that tests drive by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod device;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use device::*;
use feedwater::{
    Batch, BlockMut, Error, ErrorKind, Failed, Limits, Memory, MemoryReader, Place, Priority,
    ReadOptions, Reader, ReaderExt, Staged, StagingOptions, Transfer, TransferDone,
};

fn small(block: usize, depth: usize) -> StagingOptions {
    StagingOptions::default().block(block).depth(depth)
}

fn over_memory(len: usize, device: Device, options: StagingOptions) -> Staged<MemoryReader> {
    let reader = Arc::new(MemoryReader::new(data(len)));
    Staged::new(reader, Arc::new(device), options)
}

fn by_hand(
    len: usize,
    device: Device,
    options: StagingOptions,
) -> (Staged<ByHand>, Receiver<Submitted>) {
    let (reader, submitted) = ByHand::new(data(len), Limits::default());
    let staged = Staged::new(Arc::new(reader), Arc::new(device), options);
    (staged, submitted)
}

fn any(range: std::ops::Range<u64>) -> Batch {
    Batch::new().any_at(range, DEVICE)
}

fn within(time: Duration) -> ReadOptions {
    ReadOptions::default().deadline(Instant::now() + time)
}

/// The only outcome of a batch, which must have failed.
fn failure(reader: &dyn Reader, batch: Batch) -> Failed {
    let mut outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
    assert_eq!(outcomes.len(), 1);
    outcomes.pop().unwrap().1.unwrap_err()
}

#[test]
fn every_range_arrives_whatever_the_pieces() {
    let bytes = data(1000);
    for (block, depth) in [(1, 1), (7, 2), (64, 3), (1000, 1), (1 << 20, 4)] {
        let reader = over_memory(1000, Device::instant(), small(block, depth));
        for (start, end) in [
            (0, 0),
            (1000, 1000),
            (0, 1),
            (3, 68),
            (64, 128),
            (999, 1000),
            (0, 1000),
        ] {
            let blocks = reader.submit(any(start..end)).wait().unwrap();
            let got = on_device(&blocks[0]);
            assert_eq!(
                got,
                bytes[start as usize..end as usize],
                "{start}..{end} by {block}"
            );
        }
    }
}

#[test]
fn pieces_of_one_arena_are_filled_behind_what_is_there() {
    let reader = over_memory(100, Device::instant(), small(8, 2));
    let mut arena = device_block(DEVICE, 64);
    let mut first = arena.split_to(30);
    device_put(&mut first, b"head");
    let batch = Batch::new()
        .read_into(10..30, first)
        .read_into(50..84, arena)
        .read_into(5..5, device_block(DEVICE, 9));
    let blocks = reader.submit(batch).wait().unwrap();
    assert_eq!(
        on_device(&blocks[0]),
        [b"head", &data(100)[10..30]].concat()
    );
    assert_eq!(on_device(&blocks[1]), data(100)[50..84]);
    assert_eq!(on_device(&blocks[2]), b"");
}

#[test]
fn copies_that_end_out_of_order_are_put_in_order() {
    let held = Mutex::new(Vec::new());
    let device = Device::new(move |_, copy| {
        let mut held = held.lock().unwrap();
        held.push(copy);
        if held.len() == 4 {
            held.drain(..).rev().for_each(Copy::complete);
        }
    });
    let reader = over_memory(160, device, small(10, 4));
    let blocks = reader.submit(any(0..160)).wait().unwrap();
    assert_eq!(on_device(&blocks[0]), data(160));
}

#[test]
fn a_device_with_a_thread_of_its_own_and_a_task_that_waits() {
    let (device, copies) = Device::by_hand();
    let engine = std::thread::spawn(move || copies.into_iter().for_each(Copy::complete));
    let reader = over_memory(10_000, device, small(64, 3));
    let batch = any(1..9_999).any_at(0..5, DEVICE);
    let blocks = futures::executor::block_on(reader.submit(batch)).unwrap();
    assert_eq!(on_device(&blocks[0]), data(10_000)[1..9_999]);
    assert_eq!(on_device(&blocks[1]), data(10_000)[..5]);
    drop(reader);
    engine.join().unwrap();
}

#[test]
fn never_more_staging_blocks_than_the_depth_over_all_reads() {
    let (device, copies) = Device::by_hand();
    let gauge = device.gauge.clone();
    let reader = over_memory(1000, device, small(10, 3));
    let one = reader.submit(any(0..500));
    let two = reader.submit(any(500..1000));
    let mut held = Vec::new();
    for _ in 0..100 {
        held.push(copies.recv_timeout(SOON).unwrap());
        if held.len() == 3 {
            assert_eq!(gauge.live(), 3);
            held.remove(1).complete();
        }
    }
    held.into_iter().for_each(Copy::complete);
    assert_eq!(on_device(&one.wait().unwrap()[0]), data(1000)[..500]);
    assert_eq!(on_device(&two.wait().unwrap()[0]), data(1000)[500..]);
    let largest = gauge.largest.load(Ordering::SeqCst);
    assert_eq!((gauge.peak(), largest), (3, 10));
}

#[test]
fn reading_goes_on_while_a_copy_is_under_way() {
    let (device, copies) = Device::by_hand();
    let (reader, submitted) = by_hand(30, device, small(10, 2));
    let pending = reader.submit(any(0..30));
    submitted.recv_timeout(SOON).unwrap().fulfil();
    let first = copies.recv_timeout(SOON).unwrap();
    // Asked for, read and handed over while the first copy is not done.
    submitted.recv_timeout(SOON).unwrap().fulfil();
    let second = copies.recv_timeout(SOON).unwrap();
    second.complete();
    let third = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(pending.progress().bytes_done, 10);
    assert!(submitted.try_recv().is_err());
    first.complete();
    third.fulfil();
    copies.recv_timeout(SOON).unwrap().complete();
    assert_eq!(on_device(&pending.wait().unwrap()[0]), data(30));
}

#[test]
fn a_failing_copy_fails_its_read_and_gives_the_block_back_as_it_was() {
    let device = Device::new(|number, copy| match number {
        2 => copy.fail(device_error()),
        _ => copy.complete(),
    });
    let reader = over_memory(100, device, small(10, 1));
    let mut block = device_block(DEVICE, 80);
    device_put(&mut block, b"abc");
    let failed = failure(&reader, Batch::new().read_into(0..60, block));
    let ErrorKind::Io { op: "copy", source } = failed.error.kind() else {
        panic!("{}", failed.error)
    };
    assert_eq!(source.raw_os_error(), Some(5));
    assert_eq!(
        (failed.error.offset(), failed.error.length()),
        (Some(0), Some(60))
    );
    assert_eq!(
        (failed.error.engine(), failed.error.name()),
        (Some("staging"), Some("memory"))
    );
    let block = failed.dest.unwrap();
    assert_eq!((block.len(), block.filled_len()), (80, 3));
    // The reader goes on.
    let blocks = reader
        .submit(Batch::new().read_into(20..90, block))
        .wait()
        .unwrap();
    assert_eq!(on_device(&blocks[0]), [b"abc", &data(100)[20..90]].concat());
}

#[test]
fn one_failing_read_leaves_the_others_of_the_batch_alone() {
    let device = Device::new(|number, copy| match number {
        0 => copy.fail(device_error()),
        _ => copy.complete(),
    });
    let reader = over_memory(100, device, small(10, 2));
    let mut outcomes: Vec<_> = reader
        .submit(any(0..35).any_at(35..100, DEVICE))
        .into_iter()
        .collect();
    outcomes.sort_by_key(|(index, _)| *index);
    let (_, first) = outcomes.remove(0);
    assert!(matches!(
        first.unwrap_err().error.kind(),
        ErrorKind::Io { op: "copy", .. }
    ));
    assert_eq!(
        on_device(&outcomes[0].1.as_ref().unwrap().clone()),
        data(100)[35..]
    );
}

#[test]
fn a_block_that_the_device_may_still_write_does_not_come_back() {
    let device = Device::new(|_, copy| copy.done.finish(Err(device_error().into())));
    let reader = over_memory(10, device, small(4, 1));
    let failed = failure(
        &reader,
        Batch::new().read_into(0..10, device_block(DEVICE, 10)),
    );
    assert!(matches!(
        failed.error.kind(),
        ErrorKind::Io { op: "copy", .. }
    ));
    assert!(failed.dest.is_none());
}

#[test]
fn the_callers_block_comes_back_only_when_no_copy_writes_to_it() {
    let (device, copies) = Device::by_hand();
    let reader = over_memory(20, device, small(10, 2));
    let mut pending = reader.submit(Batch::new().read_into(0..20, device_block(DEVICE, 20)));
    let (one, two) = (
        copies.recv_timeout(SOON).unwrap(),
        copies.recv_timeout(SOON).unwrap(),
    );
    one.fail(device_error());
    // Something that passes through the same thread after the failure.
    let other = reader.submit(any(0..1));
    copies.recv_timeout(SOON).unwrap().complete();
    other.wait().unwrap();
    assert!(pending.try_next().is_none());
    two.complete();
    let (_, outcome) = pending.wait_next().unwrap();
    assert_eq!(outcome.unwrap_err().dest.unwrap().filled_len(), 0);
}

#[test]
fn a_panicking_device_abandons_the_read_and_the_next_one_works() {
    let device = Device::new(|number, copy| {
        assert!(number != 1, "as the test wants it");
        copy.complete();
    });
    let reader = over_memory(100, device, small(10, 1));
    let failed = failure(&reader, any(0..100));
    assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
    assert_eq!(
        (failed.error.engine(), failed.error.length()),
        (Some("staging"), Some(100))
    );
    let blocks = reader.submit(any(0..100)).wait().unwrap();
    assert_eq!(on_device(&blocks[0]), data(100));
    for what in ["reaches", "allocate", "staging"] {
        let mut device = Device::instant();
        device.panics = Some(what);
        let reader = over_memory(100, device, small(10, 1));
        for _ in 0..2 {
            let failed = failure(&reader, any(0..100));
            assert!(
                matches!(failed.error.kind(), ErrorKind::Abandoned),
                "{what}"
            );
        }
        // Host reads do not notice.
        assert_eq!(reader.read(3..5).wait().unwrap(), data(100)[3..5]);
    }
}

#[test]
fn copies_dropped_unfinished_abandon_the_read() {
    let reader = over_memory(100, Device::new(|_, _| {}), small(10, 4));
    let failed = failure(
        &reader,
        Batch::new().read_into(0..100, device_block(DEVICE, 100)),
    );
    assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
    assert_eq!(
        (failed.error.engine(), failed.error.name()),
        (Some("staging"), Some("memory"))
    );
    assert!(failed.dest.is_none());
}

#[test]
fn a_deadline_holds_against_a_device_that_never_finishes() {
    let mut device = Device::new(|_, copy| std::mem::forget(copy));
    let gone = device.dropped();
    let reader = over_memory(100, device, small(10, 1));
    for _ in 0..2 {
        let batch = any(0..100).options(within(Duration::from_millis(20)));
        let failed = failure(&reader, batch);
        assert!(matches!(failed.error.kind(), ErrorKind::TimedOut));
        let block = device_block(DEVICE, 100);
        let batch = Batch::new().read_into(0..100, block);
        let pending = reader.submit(batch.options(within(Duration::from_millis(20))));
        let error = futures::executor::block_on(pending).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
    }
    drop(reader);
    gone.recv_timeout(SOON).unwrap();
}

#[test]
fn a_block_that_the_device_holds_counts_until_it_lets_go() {
    let (device, copies) = Device::by_hand();
    let gauge = device.gauge.clone();
    let reader = over_memory(100, device, small(10, 1));
    let stuck = reader.submit(any(0..100));
    let held = copies.recv_timeout(SOON).unwrap();
    drop(stuck);
    let batch = any(0..10).options(within(Duration::from_millis(20)));
    let failed = failure(&reader, batch);
    assert!(matches!(failed.error.kind(), ErrorKind::TimedOut));
    let last = reader.submit(any(90..100));
    held.complete();
    let next = copies.recv_timeout(SOON).unwrap();
    assert_eq!(next.from, data(100)[90..]);
    next.complete();
    assert_eq!(on_device(&last.wait().unwrap()[0]), data(100)[90..]);
    assert_eq!(gauge.peak(), 1);
}

#[test]
fn errors_of_the_engine_below_are_those_of_the_read() {
    let (reader, submitted) = by_hand(100, Device::instant(), small(10, 1));
    let mut pending = reader.submit(Batch::new().read_into(5..95, device_block(DEVICE, 90)));
    submitted.recv_timeout(SOON).unwrap().fulfil();
    let error = Error::io("disk", std::io::Error::from_raw_os_error(5)).by("by-hand");
    submitted.recv_timeout(SOON).unwrap().fail(&error);
    let failed = pending.wait_next().unwrap().1.unwrap_err();
    assert!(matches!(
        failed.error.kind(),
        ErrorKind::Io { op: "disk", .. }
    ));
    assert_eq!(
        (failed.error.offset(), failed.error.length()),
        (Some(5), Some(90))
    );
    assert_eq!(
        (failed.error.engine(), failed.error.name()),
        (Some("by-hand"), Some("by hand"))
    );
    let block = failed.dest.unwrap();
    assert_eq!((block.len(), block.filled_len()), (90, 0));

    let mut pending = reader.submit(Batch::new().read_into(5..95, block));
    drop(submitted.recv_timeout(SOON).unwrap());
    let failed = pending.wait_next().unwrap().1.unwrap_err();
    assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
    assert_eq!(failed.error.engine(), Some("by-hand"));
    assert_eq!(failed.dest.unwrap().len(), 90);
}

#[test]
fn refused_memory_is_the_error_of_the_read() {
    let mut device = Device::instant();
    device.caps = (50, 8);
    let reader = over_memory(100, device, small(10, 2));
    let failed = failure(&reader, any(0..51));
    let kind = failed.error.kind();
    assert!(
        matches!(
            kind,
            ErrorKind::OutOfMemory {
                wanted: 51,
                cap: 50
            }
        ),
        "{kind}"
    );
    assert_eq!(failed.error.engine(), Some("staging"));
    let failed = failure(
        &reader,
        Batch::new().read_into(0..10, device_block(DEVICE, 20)),
    );
    let kind = failed.error.kind();
    assert!(
        matches!(kind, ErrorKind::OutOfMemory { wanted: 10, cap: 8 }),
        "{kind}"
    );
    assert_eq!(failed.dest.unwrap().len(), 20);
    let blocks = reader.submit(any(0..8)).wait().unwrap();
    assert_eq!(on_device(&blocks[0]), data(100)[..8]);
}

#[test]
fn a_place_that_the_transfer_does_not_reach_is_unsupported() {
    let reader = over_memory(100, Device::instant(), small(10, 1));
    let elsewhere = Place::Device(8);
    let batch = Batch::new().read_into(1..5, device_block(elsewhere, 30));
    let failed = failure(&reader, batch);
    let ErrorKind::Unsupported { what } = failed.error.kind() else {
        panic!("{}", failed.error)
    };
    assert!(what.starts_with("a destination in memory of device 8, from a reader"));
    assert!(what.contains("`OpenOptions::device`"), "{what}");
    assert_eq!(
        (failed.error.offset(), failed.error.engine()),
        (Some(1), Some("memory")),
        "the reader below might have reached it"
    );
    assert_eq!(failed.dest.unwrap().len(), 30);
    let failed = failure(&reader, Batch::new().any_at(0..1, elsewhere));
    assert!(matches!(failed.error.kind(), ErrorKind::Unsupported { .. }));
}

#[test]
fn a_batch_may_mix_everything() {
    let (reader, submitted) = by_hand(100, Device::instant(), small(10, 2));
    let batch = Batch::new()
        .any(0..10)
        .any_at(10..35, DEVICE)
        .prefetch(40..50)
        .any_at(90..101, DEVICE)
        .read_into(50..60, BlockMut::with_capacity(16))
        .read_into(0..9, device_block(DEVICE, 8));
    let mut pending = reader.submit(batch);
    let mut wrong = [pending.wait_next().unwrap(), pending.wait_next().unwrap()];
    wrong.sort_by_key(|(index, _)| *index);
    let [(3, Err(bounds)), (5, Err(tight))] = wrong else {
        panic!()
    };
    assert!(matches!(
        bounds.error.kind(),
        ErrorKind::OutOfBounds { len: 100 }
    ));
    let kind = tight.error.kind();
    assert!(
        matches!(kind, ErrorKind::DestinationTooSmall { room: 8, wanted: 9 }),
        "{kind}"
    );
    assert_eq!(tight.dest.unwrap().len(), 8);
    // Host reads and hints went down in the call itself, together.
    let host = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(host.starts(), [0, 40, 50]);
    for _ in 0..3 {
        submitted.recv_timeout(SOON).unwrap().fulfil();
    }
    let (index, outcome) = pending.wait_next().unwrap();
    assert_eq!(
        (index, on_device(&outcome.unwrap())),
        (1, data(100)[10..35].to_vec())
    );
    host.fulfil();
    let rest: Vec<_> = pending
        .into_iter()
        .map(|(index, block)| (index, block.unwrap().into_host().unwrap()))
        .collect();
    let expected = [
        (4, data(100).slice(50..60)),
        (2, data(0)),
        (0, data(100).slice(0..10)),
    ];
    assert_eq!(rest, expected);
}

#[test]
fn a_batch_for_the_host_goes_down_unchanged() {
    let (reader, submitted) = by_hand(100, Device::instant(), small(10, 2));
    let depth = NonZeroUsize::new(5).unwrap();
    let options = ReadOptions::default().depth(depth).gap(9);
    let _pending = reader.submit(Batch::of([0..50, 60..70]).prefetch(1..2).options(options));
    let down = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(down.starts(), [0, 60, 1]);
    assert_eq!(
        (down.options.depth, down.options.gap),
        (Some(depth), Some(9))
    );
    let mut buf = [0; 4];
    reader.read_at(96, &mut buf).unwrap();
    assert_eq!(buf, data(100)[96..]);
    assert_eq!(reader.source().name(), reader.inner().source().name());
}

#[test]
fn small_ranges_share_a_staging_block_at_congruent_addresses() {
    let (reader, submitted) = ByHand::new(data(4096), Limits::default().align(16));
    let device = Device::instant();
    let gauge = device.gauge.clone();
    let reader = Staged::new(Arc::new(reader), Arc::new(device), small(1000, 4));
    let mut batch = Batch::new();
    for i in 0..20u64 {
        batch = batch.any_at(i * 100 + i..i * 100 + i + 7, DEVICE);
    }
    let pending = reader.submit(batch);
    let down = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(down.reads.len(), 20);
    for (read, _) in &down.reads {
        let feedwater::Dest::Into(block) = &read.dest else {
            panic!()
        };
        assert_eq!(
            block.unfilled_ptr().addr() as u64 % 16,
            read.range.start % 16
        );
    }
    down.fulfil();
    for (i, block) in pending.wait().unwrap().iter().enumerate() {
        assert_eq!(on_device(block), data(4096)[i * 101..i * 101 + 7]);
    }
    assert_eq!(gauge.peak(), 1);
}

#[test]
fn a_dropped_pending_skips_what_was_not_begun() {
    let (device, copies) = Device::by_hand();
    let (reader, submitted) = by_hand(100, device, small(10, 1));
    let pending = reader.submit(any(0..100));
    let first = submitted.recv_timeout(SOON).unwrap();
    drop(pending);
    drop(reader.submit(any(70..80)));
    let other = reader.submit(any(50..60));
    first.fulfil();
    let next = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(next.starts(), [50]);
    next.fulfil();
    let copy = copies.recv_timeout(SOON).unwrap();
    assert_eq!(copy.from, data(100)[50..60]);
    copy.complete();
    assert_eq!(on_device(&other.wait().unwrap()[0]), data(100)[50..60]);
}

#[test]
fn foreground_reads_get_staging_blocks_before_prefetch_ones() {
    let (reader, submitted) = by_hand(100, Device::instant(), small(10, 1));
    let prefetch = ReadOptions::default().priority(Priority::Prefetch);
    let early = reader.submit(any(0..30).options(prefetch));
    let first = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(
        (first.starts(), first.priority()),
        (vec![0], Priority::Prefetch)
    );
    let urgent = reader.submit(any(50..70));
    first.fulfil();
    let mut order = Vec::new();
    for _ in 0..4 {
        let next = submitted.recv_timeout(SOON).unwrap();
        order.extend(next.starts());
        next.fulfil();
    }
    assert_eq!(order, [50, 60, 10, 20]);
    assert_eq!(on_device(&urgent.wait().unwrap()[0]), data(100)[50..70]);
    assert_eq!(on_device(&early.wait().unwrap()[0]), data(100)[..30]);
}

#[test]
fn the_depth_of_a_batch_bounds_its_pieces_in_flight() {
    let (reader, submitted) = by_hand(100, Device::instant(), small(10, 3));
    let one = ReadOptions::default().depth(NonZeroUsize::MIN);
    let narrow = reader.submit(any(0..20).any_at(20..25, DEVICE).options(one));
    let first = submitted.recv_timeout(SOON).unwrap();
    let wide = reader.submit(any(50..70));
    let second = submitted.recv_timeout(SOON).unwrap();
    let third = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(
        [first.starts(), second.starts(), third.starts()],
        [[0], [50], [60]]
    );
    first.fulfil();
    let fourth = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(fourth.starts(), [10]);
    fourth.fulfil();
    second.fulfil();
    third.fulfil();
    let fifth = submitted.recv_timeout(SOON).unwrap();
    assert_eq!(fifth.starts(), [20]);
    fifth.fulfil();
    narrow.wait().unwrap();
    wide.wait().unwrap();
}

#[test]
fn reads_in_flight_outlive_the_wrapper_and_the_thread_ends_with_them() {
    let (mut device, copies) = Device::by_hand();
    let gone = device.dropped();
    let reader = over_memory(100, device, small(10, 2));
    let pending = reader.submit(any(0..100));
    let first = copies.recv_timeout(SOON).unwrap();
    drop(reader);
    assert!(gone.try_recv().is_err());
    first.complete();
    for _ in 1..10 {
        copies.recv_timeout(SOON).unwrap().complete();
    }
    assert_eq!(on_device(&pending.wait().unwrap()[0]), data(100));
    gone.recv_timeout(SOON).unwrap();
}

#[test]
fn the_thread_ends_even_if_a_copy_that_nobody_waits_for_never_does() {
    let (mut device, copies) = Device::by_hand();
    let gone = device.dropped();
    let reader = over_memory(100, device, small(10, 2));
    let batch = Batch::new().read_into(0..100, device_block(DEVICE, 100));
    let pending = reader.submit(batch);
    let stuck = copies.recv_timeout(SOON).unwrap();
    drop(pending);
    drop(reader);
    gone.recv_timeout(SOON).unwrap();
    stuck.complete();
}

#[test]
fn a_transfer_that_breaks_its_contract_is_an_error_and_never_wrong_bytes() {
    // Gives the block back unfilled.
    let lazy = Device::new(|_, copy| copy.done.finish(Ok(copy.to)));
    // Gives back another block that looks right.
    let swapping = Device::new(|_, copy| {
        let mut other = device_block(DEVICE, copy.from.len());
        device_put(&mut other, &copy.from);
        copy.done.finish(Ok(other));
    });
    for device in [lazy, swapping] {
        let reader = over_memory(100, device, small(10, 1));
        let failed = failure(&reader, any(0..100));
        assert!(matches!(
            failed.error.kind(),
            ErrorKind::Io { op: "staging", .. }
        ));
        assert_eq!(failed.error.io_kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(
            (failed.error.name(), failed.error.length()),
            (Some("memory"), Some(100))
        );
    }
}

/// A device whose first allocation panics when it is released, on whatever thread that is.
#[derive(Debug)]
struct Fragile {
    device: Device,
    broken: AtomicBool,
}

struct PanicsOnDrop(DeviceMemory);

// SAFETY: forwards to memory that keeps the contract.
#[allow(unsafe_code)]
unsafe impl Memory for PanicsOnDrop {
    fn place(&self) -> Place {
        self.0.place()
    }
    fn ptr(&self) -> *mut u8 {
        self.0.ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self.0.as_any()
    }
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

impl Transfer for Fragile {
    fn reaches(&self, place: Place) -> bool {
        self.device.reaches(place)
    }
    fn allocate(&self, place: Place, len: usize) -> feedwater::Result<BlockMut> {
        if self.broken.swap(true, Ordering::SeqCst) {
            return self.device.allocate(place, len);
        }
        Ok(BlockMut::new(PanicsOnDrop(DeviceMemory::new(place, len))))
    }
    fn staging(&self, len: usize) -> feedwater::Result<BlockMut> {
        self.device.staging(len)
    }
    fn copy(&self, from: Bytes, to: BlockMut, done: TransferDone) {
        self.device.copy(from, to, done);
    }
}

#[test]
fn a_thread_that_a_destructor_kills_is_started_again() {
    let device = Device::new(|number, copy| match number {
        0 => copy.fail(device_error()),
        _ => copy.complete(),
    });
    let fragile = Fragile {
        device,
        broken: AtomicBool::new(false),
    };
    let below = Arc::new(MemoryReader::new(data(100)));
    let reader = Staged::new(below, Arc::new(fragile), small(100, 1));
    let error = failure(&reader, any(0..100)).error;
    assert!(matches!(error.kind(), ErrorKind::Io { op: "copy", .. }));
    // Reads that meet the thread on its way down are abandoned; none hangs, and later ones work.
    let blocks = loop {
        match reader.submit(any(0..100)).wait() {
            Ok(blocks) => break blocks,
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(on_device(&blocks[0]), data(100));
}

#[test]
fn counters_are_those_below_and_staged_bytes_are_bounced() {
    let reader = over_memory(100, Device::instant(), small(10, 2));
    reader.submit(any(0..95)).wait().unwrap();
    let counters = reader.source().counters().snapshot();
    assert_eq!(
        (counters.reads, counters.requested, counters.bounced),
        (10, 95, 95)
    );
}

#[test]
fn a_forked_child_is_told_so_and_does_not_hang() {
    let (device, copies) = Device::by_hand();
    let reader = over_memory(100, device, small(10, 1));
    let pending = reader.submit(any(0..10));
    let copy = copies.recv_timeout(SOON).unwrap();
    // SAFETY: the child waits for nothing of the parent's and leaves through `_exit`.
    #[allow(unsafe_code)]
    let status = unsafe {
        match libc::fork() {
            0 => {
                let batch = any(0..10).any(0..5).any_at(0..101, DEVICE);
                let mut forked = 0;
                for (_, outcome) in reader.submit(batch) {
                    if let Err(failed) = outcome {
                        forked += usize::from(matches!(failed.error.kind(), ErrorKind::Forked));
                    }
                }
                // Neither the wrapper nor a copy of the parent's wakes anything here.
                copy.complete();
                drop((reader, pending));
                libc::_exit(if forked == 2 { 0 } else { 1 })
            }
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            }
        }
    };
    assert_eq!(status, 0);
    copy.complete();
    assert_eq!(on_device(&pending.wait().unwrap()[0]), data(100)[..10]);
}

/// All of these once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{NO_IO_URING, OLD_KERNEL, UNPRIVILEGED, again};

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, &[], 29);
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, &[], 29);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, &[], 29);
    }
}
