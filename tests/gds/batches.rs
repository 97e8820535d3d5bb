//! Many small reads at once.

use std::ops::Range;

use feedwater::{Batch, ErrorKind, Reader};
use software_cuda_preload::cufile::Cufile;

use crate::support::*;

/// Ranges that lie all over the file, aligned and not.
fn ranges(count: u64, len: u64) -> Vec<Range<u64>> {
    let range = |i: u64| {
        let start = i * 37_003 % (len - 5000);
        start..start + 1 + i * 97 % 5000
    };
    (0..count).map(range).collect()
}

#[test]
fn many_small_reads_are_few_batches_whatever_the_order_of_events() {
    for streams in STREAMS {
        let session = session(streams);
        let cufile = Cufile::begin(&session);
        {
            let setting = Setting::new(3 << 20);
            let reader = setting.required();
            let ranges = ranges(300, 3 << 20);
            setting.check(&reader, &ranges);
            let counts = cufile.counts();
            // 128 fit into one.
            assert_eq!((counts.submits, counts.entries, counts.reads), (3, 300, 0));
            assert_eq!((counts.unaligned, counts.batches), (0, 0));
            assert_eq!((reader.report().reads, reader.report().elsewhere), (300, 0));
            // Few are not worth one.
            setting.check(&reader, &ranges[..3]);
            assert_eq!((cufile.counts().submits, cufile.counts().reads), (3, 3));
        }
        nothing_left(&session, &cufile);
    }
}

#[test]
fn small_reads_into_parts_of_one_block_and_large_ones_beside_them() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(3 << 20);
        let reader = setting.required();
        let ranges = ranges(50, 3 << 20);
        let mut arena = setting.block(
            ranges
                .iter()
                .map(|range| (range.end - range.start) as usize)
                .sum(),
        );
        let mut batch = Batch::new().any_at(0..2 << 20, setting.gpu.place());
        for range in &ranges {
            batch = batch.read_into(
                range.clone(),
                arena.split_to((range.end - range.start) as usize),
            );
        }
        let blocks = reader.submit(batch).wait().unwrap();
        assert!(setting.content(&blocks[0]) == setting.bytes[..2 << 20]);
        for (block, range) in blocks[1..].iter().zip(&ranges) {
            assert!(setting.content(block) == setting.wanted(range), "{range:?}");
        }
        let counts = cufile.counts();
        assert_eq!((counts.submits, counts.entries, counts.reads), (1, 50, 1));
    }
    nothing_left(&session, &cufile);
}

#[test]
fn slow_short_and_failing_entries() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(1 << 20);
        let reader = setting.reader();
        let ranges = ranges(10, 1 << 20);
        cufile.delay(5);
        cufile.shorten(2, 1);
        cufile.fail("entry", 4, 5011);
        setting.check(&reader, &ranges);
        let report = reader.report();
        assert_eq!((report.reads, report.elsewhere), (9, 1));
        assert!(
            report
                .why
                .as_deref()
                .unwrap()
                .contains("CUDA driver error (5011)"),
            "{report}"
        );
        // The rest of the short one came by itself.
        assert_eq!((cufile.counts().entries, cufile.counts().reads), (10, 1));
        // What the system failed is an error of that read alone.
        cufile.fail("entry", 0, libc::EIO);
        let outcomes: Vec<_> = reader.submit(setting.any(&ranges)).into_iter().collect();
        let failed: Vec<_> = outcomes
            .into_iter()
            .filter_map(|(index, outcome)| Some((index, outcome.err()?.error)))
            .collect();
        assert_eq!(failed.len(), 1);
        let (index, error) = &failed[0];
        let ErrorKind::Io { source, .. } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        assert_eq!(
            (error.offset(), error.engine()),
            (Some(ranges[*index].start), Some("gds"))
        );
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_batch_that_cannot_be_begun_is_read_one_by_one() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(1 << 20);
        let reader = setting.required();
        let ranges = ranges(10, 1 << 20);
        for (call, code) in [("cuFileBatchIOSetUp", 5030), ("cuFileBatchIOSubmit", 5035)] {
            let before = cufile.counts().reads;
            cufile.fail(call, 0, code);
            setting.check(&reader, &ranges);
            assert_eq!(cufile.counts().reads - before, 10, "{call}");
        }
        assert_eq!(cufile.counts().entries, 0);
        assert_eq!((reader.report().reads, reader.report().elsewhere), (20, 0));
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_batch_that_nothing_is_heard_of_keeps_its_memory() {
    crate::common::alone::alone("batches::events_that_never_come");
}

/// In a process of its own: what may still be written to stays for good.
#[test]
#[ignore = "run by another one, in a process of its own"]
fn events_that_never_come() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    let setting = Setting::new(1 << 20);
    let reader = setting.reader();
    let ranges = ranges(6, 1 << 20);
    let mut batch = Batch::new();
    for range in &ranges {
        batch = batch.read_into(range.clone(), setting.block(5000));
    }
    let before = setting.gpu.stats().in_use;
    // One is told of, then no more.
    cufile.fail("cuFileBatchIOGetStatus", 1, 5030);
    let outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
    let (done, lost): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|(_, outcome)| outcome.is_ok());
    assert_eq!((done.len(), lost.len()), (1, 5));
    for (_, outcome) in lost {
        let failed = outcome.unwrap_err();
        assert!(
            matches!(failed.error.kind(), ErrorKind::Abandoned),
            "{}",
            failed.error
        );
        assert!(failed.dest.is_none());
    }
    drop(done);
    // One block is free again; the others are nobody's.
    assert_eq!(before - setting.gpu.stats().in_use, 5000);
    assert_eq!(cufile.counts().batches, 1);
    // The reader goes on.
    setting.check(&reader, &ranges);
}
