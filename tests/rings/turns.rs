//! Who goes first, and how many at once.

use std::collections::HashSet;
use std::ops::Range;

use feedwater::{Batch, Engine, EngineOptions, OpenOptions, Priority, ReadOptions, Reader, Route};

use crate::common::hanging::{Answer, Held, What};
use crate::common::skip::require;
use crate::{LEN, engine, hanging, open};

const SIZE: u64 = 4096;

/// Reads that lie apart, from the `first` one on.
fn ranges(first: u64, count: u64) -> Vec<Range<u64>> {
    let start = |i: u64| (first + i) * 5 * SIZE;
    (0..count).map(|i| start(i)..start(i) + SIZE).collect()
}

fn batch(ranges: &[Range<u64>], priority: Priority) -> Batch {
    let options = ReadOptions::default().priority(priority).gap(0);
    Batch::of(ranges.iter().cloned()).options(options)
}

fn within<'a>(held: &'a [Held], ranges: &'a [Range<u64>]) -> impl Iterator<Item = Held> + 'a {
    held.iter()
        .copied()
        .filter(|held| ranges.iter().any(|range| range.start == held.offset))
}

#[test]
fn prefetch_has_half_of_the_depth_and_the_foreground_goes_first() {
    const DEPTH: usize = 8;
    for route in [Route::Uring, Route::UringDirect] {
        let Some(fs) = hanging(LEN) else { return };
        let Some(reader) = open(&fs.path('a'), route, &engine(DEPTH)) else {
            continue;
        };
        let (ahead, wanted) = (ranges(0, 20), ranges(20, 20));
        fs.hold(What::Reads);
        let prefetched = reader.submit(batch(&ahead, Priority::Prefetch));
        fs.wait_for(DEPTH / 2);
        let foreground = reader.submit(batch(&wanted, Priority::Foreground));
        let held = fs.wait_for(DEPTH);
        assert_eq!(
            within(&held, &ahead).count(),
            DEPTH / 2,
            "{route}: {held:?}"
        );
        let mut came: HashSet<u64> = within(&held, &wanted).map(|held| held.offset).collect();
        // Whoever makes room, the foreground takes it as long as there is some.
        let mut oldest = within(&held, &ahead).collect::<Vec<_>>().into_iter();
        while came.len() < wanted.len() {
            let held = fs.wait_for(DEPTH);
            let done = oldest.next().or_else(|| within(&held, &wanted).next());
            fs.answer(done.unwrap(), Answer::Right);
            let held = fs.wait_for(DEPTH);
            let new: Vec<_> = within(&held, &wanted)
                .map(|held| held.offset)
                .filter(|offset| !came.contains(offset))
                .collect();
            assert_eq!(new.len(), 1, "{route}: {held:?}");
            came.extend(new);
        }
        // Then the others have their turn, when half of the room is free.
        let held = fs.wait_for(DEPTH);
        assert_eq!(within(&held, &wanted).count(), DEPTH);
        for done in &held[..=DEPTH / 2] {
            fs.answer(*done, Answer::Right);
        }
        let held = fs.wait_for(DEPTH / 2);
        assert_eq!(within(&held, &ahead).count(), 1, "{route}: {held:?}");
        fs.release();
        for (pending, ranges) in [(prefetched, ahead), (foreground, wanted)] {
            for (block, range) in std::iter::zip(pending.wait().unwrap(), ranges) {
                assert!(
                    block.as_host().unwrap()[..] == fs.content('a', range),
                    "{route}"
                );
            }
        }
        let most = ("most in flight by rings", DEPTH.to_string());
        assert!(reader.report().facts.contains(&most), "{route}");
    }
}

#[test]
fn batches_take_turns_and_keep_to_their_depth() {
    let Some(fs) = hanging(LEN) else { return };
    let Some(reader) = open(&fs.path('a'), Route::Uring, &engine(6)) else {
        return;
    };
    let (first, second) = (ranges(0, 20), ranges(20, 20));
    fs.hold(What::Reads);
    let mut narrow = batch(&first, Priority::Foreground);
    narrow.options = narrow.options.depth(2.try_into().unwrap());
    let narrow = reader.submit(narrow);
    let held = fs.wait_for(2);
    assert_eq!(held.len(), 2);
    let other = reader.submit(batch(&second, Priority::Foreground));
    let held = fs.wait_for(6);
    assert_eq!(within(&held, &first).count(), 2, "{held:?}");
    // The room of two that are done goes to one of each batch, whichever they were of.
    for done in [within(&held, &first).next(), within(&held, &second).next()] {
        fs.answer(done.unwrap(), Answer::Right);
        assert!(within(&fs.wait_for(6), &first).count() <= 2);
    }
    let held = fs.wait_for(6);
    assert_eq!(within(&held, &first).count(), 2, "{held:?}");
    fs.release();
    assert_eq!(
        (narrow.wait().unwrap().len(), other.wait().unwrap().len()),
        (20, 20)
    );
}

/// What the kernel would not do on the spot, its threads do: as many at once as the engine has.
#[test]
fn those_that_have_to_wait_do_so_side_by_side() {
    const READS: usize = 10;
    for route in [Route::Uring, Route::UringDirect] {
        let Some(fs) = hanging(LEN) else { return };
        let Some(reader) = open(&fs.path('a'), route, &engine(READS)) else {
            continue;
        };
        fs.hold(What::Reads);
        let ranges = ranges(0, READS as u64);
        let pending = reader.submit(batch(&ranges, Priority::Foreground));
        for held in fs.wait_for(READS) {
            fs.answer(held, Answer::Error(libc::EAGAIN));
        }
        fs.wait_for(READS);
        fs.release();
        for (block, range) in std::iter::zip(pending.wait().unwrap(), ranges) {
            let right = fs.content('a', range);
            assert!(block.as_host().unwrap()[..] == right, "{route}");
        }
    }
}

#[test]
fn bytes_in_flight_are_bounded() {
    let Some(fs) = hanging(LEN) else { return };
    let options = EngineOptions::default().bytes_in_flight(3 * SIZE as usize);
    let options = OpenOptions::new()
        .engine(Engine::new(options))
        .only(Route::Uring);
    let Some(reader) = require("uring", options.open(fs.path('a'))) else {
        return;
    };
    fs.hold(What::Reads);
    let ranges = ranges(0, 10);
    let pending = reader.submit(batch(&ranges, Priority::Foreground));
    for answered in 0..7 {
        // Three, and the next ones only in their place.
        let held = fs.wait_for(3);
        let next = [answered, answered + 1, answered + 2].map(|i| ranges[i].start);
        let mut offsets: Vec<_> = held.iter().map(|held| held.offset).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, next);
        let oldest = held.iter().min_by_key(|held| held.offset).unwrap();
        fs.answer(*oldest, Answer::Right);
    }
    fs.release();
    assert_eq!(pending.wait().unwrap().len(), 10);
}
