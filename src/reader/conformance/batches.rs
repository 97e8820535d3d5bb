//! Many ranges at once.

use std::num::NonZeroUsize;

use super::Verdict;
use super::support::{Context, arena, host, in_order, is_out_of_bounds, same};
use crate::reader::{Batch, Priority, ReadOptions, Reader, ReaderExt};

const LEN: u64 = 300_001;

pub(super) fn any_order(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    // Duplicates, one inside another, overlaps, touching ones, empty ones, backwards.
    f.read(&[
        100_000..150_000,
        0..10,
        100_000..150_000,
        0..10,
        120_000..120_001,
        149_999..200_000,
        200_000..200_001,
        7..7,
        LEN..LEN,
        LEN - 1..LEN,
        5..LEN,
        0..LEN,
    ]);
    f.read(&[]);
    f.read(&[9..9]);
    let mut rng = cx.rng(1);
    for most in [10, 5_000, LEN] {
        let mut ranges: Vec<_> = (0..24).map(|_| rng.range(LEN, most)).collect();
        ranges.push(ranges[3].clone());
        f.read(&ranges);
    }
    Ok(())
}

pub(super) fn coalesced(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let mut rng = cx.rng(2);
    for gap in [0, 1, 4096, LEN, u64::MAX] {
        let ranges: Vec<_> = (0..40).map(|_| rng.range(LEN, 3_000)).collect();
        let options = ReadOptions::default().gap(gap);
        let batch = Batch::of(ranges.iter().cloned()).options(options);
        f.check_all(&ranges, &f.reader().submit(batch).wait().unwrap());
    }
    Ok(())
}

pub(super) fn thousand_tiny_ranges(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let mut rng = cx.rng(3);
    let ranges: Vec<_> = (0..1000).map(|_| rng.range(LEN, 16)).collect();
    f.read(&ranges);
    Ok(())
}

#[allow(clippy::reversed_empty_ranges)]
pub(super) fn bad_among_good(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let reader = f.reader();
    let reads = [
        0..5_000,
        LEN - 1..LEN + 1,
        4_000..6_000,
        9..3,
        LEN..LEN,
        u64::MAX - 1..u64::MAX,
        4_000..6_000,
        LEN + 1..LEN + 1,
        LEN - 10..LEN,
    ];
    let pending = reader.submit(Batch::of(reads.iter().cloned()));
    let outcomes = in_order(pending, reads.len());
    for (outcome, range) in outcomes.into_iter().zip(&reads) {
        if range.start <= range.end && range.end <= LEN {
            let block = outcome.unwrap_or_else(|failed| panic!("a good read: {}", failed.error));
            same(range, host(&block), f.at(range));
        } else {
            is_out_of_bounds(&outcome.unwrap_err().error, reader, range);
        }
    }
    // As one result, the batch is the error.
    let error = reader
        .submit(Batch::of([0..1, LEN..LEN + 1, 1..2]))
        .wait()
        .unwrap_err();
    is_out_of_bounds(&error, reader, &(LEN..LEN + 1));
    Ok(())
}

pub(super) fn hints(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let reader = f.reader();
    let before = reader.source().counters().snapshot().requested;
    for block in reader
        .submit(hint_batch(&[0..LEN, 5..10, 3..3]))
        .wait()
        .unwrap()
    {
        assert!(block.is_empty(), "a hint delivers an empty block");
    }
    let after = reader.source().counters().snapshot().requested;
    assert_eq!(after, before, "bytes of hints count as requested");
    let range = LEN..LEN + 1;
    let error = reader
        .submit(hint_batch(std::slice::from_ref(&range)))
        .wait()
        .unwrap_err();
    is_out_of_bounds(&error, reader, &range);
    reader.prefetch(&[0..LEN]);

    let batch = Batch::new()
        .prefetch(0..LEN)
        .any(10..5_000)
        .read_into(4_000..9_000, arena(5_000))
        .prefetch(100..200)
        .any(0..0);
    let blocks = reader.submit(batch).wait().unwrap();
    for (block, range) in blocks
        .iter()
        .zip([0..0, 10..5_000, 4_000..9_000, 0..0, 0..0])
    {
        same(&range, host(block), f.at(&range));
    }
    Ok(())
}

pub(super) fn depth_and_priority(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let mut rng = cx.rng(4);
    let mut batches = Vec::new();
    for (depth, priority) in [
        (1, Priority::Prefetch),
        (1, Priority::Foreground),
        (2, Priority::Prefetch),
        (usize::MAX, Priority::Foreground),
    ] {
        let ranges: Vec<_> = (0..30).map(|_| rng.range(LEN, 20_000)).collect();
        let options = ReadOptions::default()
            .depth(NonZeroUsize::new(depth).unwrap())
            .priority(priority);
        let batch = Batch::of(ranges.iter().cloned()).options(options);
        // All in flight together: those that yield have to come too.
        batches.push((ranges, f.reader().submit(batch)));
    }
    for (ranges, pending) in batches {
        f.check_all(&ranges, &pending.wait().unwrap());
    }
    Ok(())
}

fn hint_batch(ranges: &[std::ops::Range<u64>]) -> Batch {
    ranges
        .iter()
        .fold(Batch::new(), |batch, range| batch.prefetch(range.clone()))
}
