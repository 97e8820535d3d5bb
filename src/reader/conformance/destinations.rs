//! Memory that the caller gives.

use std::ops::Range;
use std::time::Duration;

use super::Verdict;
use super::support::{
    Context, arena as new_arena, device, host, in_order, is_out_of_bounds, same, watched,
};
use crate::buffer::Place;
use crate::error::ErrorKind;
use crate::reader::{Batch, Reader};

const LEN: u64 = 100_003;

fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

pub(super) fn arena(cx: &Context) -> Verdict {
    let mut rng = cx.rng(5);
    let random: Vec<_> = (0..20).map(|_| rng.range(LEN, 9_000)).collect();
    pieces(cx, &random, 0);
    // The whole, and overlapping parts of it, each into its own piece.
    pieces(cx, &[0..LEN, 4_096..8_192, 4_096..8_192, LEN - 1..LEN], 0);
    Ok(())
}

pub(super) fn misaligned(cx: &Context) -> Verdict {
    for shift in [1, 7, 512] {
        pieces(cx, &[0..4_096, 4_096..12_288, 1..20_000, 512..1_024], shift);
    }
    Ok(())
}

/// Reads each range into its own piece of an arena, `shift` bytes off a page and right between bytes of others,
/// and also into memory of the engine's choice in the same batch.
fn pieces(cx: &Context, ranges: &[Range<u64>], shift: usize) {
    const GUARD: &[u8] = b"...";
    let f = cx.open(LEN);
    let all = ranges
        .iter()
        .map(|range| size(range) + GUARD.len())
        .sum::<usize>();
    let mut rest = new_arena(shift + all);
    drop(rest.split_to(shift));
    let (mut batch, mut addresses, mut guards) = (Batch::new(), Vec::new(), Vec::new());
    for range in ranges {
        let piece = rest.split_to(size(range));
        addresses.push(piece.unfilled_ptr().addr());
        batch = batch.read_into(range.clone(), piece).any(range.clone());
        let mut guard = rest.split_to(GUARD.len());
        guard.put(GUARD).unwrap();
        guards.push(guard);
    }
    let blocks = f.reader().submit(batch).wait().unwrap();
    for ((pair, range), address) in blocks.chunks(2).zip(ranges).zip(addresses) {
        let given = host(&pair[0]);
        same(range, given, f.at(range));
        if !given.is_empty() {
            let found = given.as_ptr().addr();
            assert_eq!(found, address, "{range:?} is not in the memory given");
        }
        same(range, host(&pair[1]), f.at(range));
    }
    for guard in guards {
        assert_eq!(
            guard.filled(),
            GUARD,
            "memory beside a destination was written"
        );
    }
}

pub(super) fn larger_than_the_range(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let ranges = [0..1, 10..4_106, 50_000..50_000, LEN - 5_000..LEN];
    let batch = ranges.iter().fold(Batch::new(), |batch, range| {
        batch.read_into(range.clone(), new_arena(2 * size(range) + 4_096))
    });
    f.check_all(&ranges, &f.reader().submit(batch).wait().unwrap());
    Ok(())
}

pub(super) fn filled_before(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let (first, second) = (100..5_000, 0..3);
    let block = |room| {
        let mut block = new_arena(room);
        block.put(b"head").unwrap();
        block
    };
    // Only the unfilled part counts as room, to the byte.
    let batch = Batch::new()
        .read_into(first.clone(), block(4 + size(&first)))
        .read_into(second.clone(), block(4_096))
        .read_into(7..7, block(4));
    let blocks = f.reader().submit(batch).wait().unwrap();
    for (block, range) in blocks.iter().zip([first, second, 7..7]) {
        let (head, rest) = host(block).split_at(4);
        assert_eq!(head, b"head", "what was filled before stays in front");
        same(&range, rest, f.at(&range));
    }
    Ok(())
}

pub(super) fn too_small(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let reader = f.reader();
    let block = |room: usize| {
        let mut block = new_arena(4 + room);
        block.put(b"head").unwrap();
        block
    };
    let reads = [
        (0..100, block(99)),
        (5..4_101, block(4_096)),
        (0..1, block(0)),
        (LEN - 1..LEN + 1, block(50)),
        (0..5_000, block(4_999)),
    ];
    let rooms: Vec<_> = reads
        .iter()
        .map(|(range, block)| (range.clone(), block.remaining()))
        .collect();
    let batch = reads
        .into_iter()
        .fold(Batch::new(), |batch, (range, block)| {
            batch.read_into(range, block)
        });
    let outcomes = in_order(reader.submit(batch), rooms.len());
    for (index, (outcome, (range, room))) in outcomes.into_iter().zip(rooms).enumerate() {
        if index == 1 {
            let block = outcome.unwrap();
            same(&range, &host(&block)[4..], f.at(&range));
            continue;
        }
        let failed = outcome.unwrap_err();
        if index == 3 {
            is_out_of_bounds(&failed.error, reader, &range);
        } else {
            let wanted = range.end - range.start;
            assert!(
                matches!(failed.error.kind(), ErrorKind::DestinationTooSmall { room: r, wanted: w }
                    if (*r, *w) == (room as u64, wanted)),
                "DestinationTooSmall ({room} for {wanted}) expected, got: {}",
                failed.error
            );
            // The offset may be that of a reader below.
            assert!(failed.error.offset().is_some());
            assert_eq!(failed.error.length(), Some(wanted));
        }
        let dest = failed
            .dest
            .expect("the caller's memory comes back with the error");
        assert_eq!((dest.filled(), dest.remaining()), (&b"head"[..], room));
    }
    Ok(())
}

pub(super) fn released(cx: &Context) -> Verdict {
    let f = cx.open(LEN);
    let gone = |what: &str, heard: std::sync::mpsc::Receiver<()>| {
        // The engine may need a moment after the outcome, or to notice that nobody waits.
        let wait = cx.subject.patience().min(Duration::from_secs(10));
        heard
            .recv_timeout(wait)
            .unwrap_or_else(|_| panic!("memory is kept: {what}"));
    };
    let (memory, heard) = watched(9_000);
    let batch = Batch::new().read_into(0..9_000, memory);
    drop(f.reader().submit(batch).wait().unwrap());
    gone("given to a read that is done and was dropped", heard);

    let (memory, heard) = watched(9_000);
    drop(f.reader().submit(Batch::new().read_into(0..9_000, memory)));
    gone("given to a batch that nobody waits for", heard);

    let (memory, heard) = watched(9_000);
    let batch = Batch::new().read_into(0..9_001, memory);
    let failed = f.reader().submit(batch).wait_next().unwrap().1.unwrap_err();
    drop(failed);
    gone("given to a read that was refused", heard);

    let (memory, heard) = watched(9_000);
    let blocks = f
        .reader()
        .submit(Batch::new().read_into(0..9_000, memory))
        .wait()
        .unwrap();
    let part = host(&blocks[0]).slice(8_000..);
    drop(blocks);
    assert!(
        heard.try_recv().is_err(),
        "memory that is still shared went"
    );
    same(&(8_000..9_000), &part, f.at(&(8_000..9_000)));
    drop(part);
    gone("of bytes that were dropped", heard);
    Ok(())
}

pub(super) fn device_refused(cx: &Context) -> Verdict {
    if cx.can.device {
        return Err("the subject serves devices".into());
    }
    let f = cx.open(LEN);
    let batch = Batch::new()
        .any_at(5..105, Place::Device(7))
        .read_into(6..106, device(4_096, 7))
        .any(7..107);
    let mut outcomes = in_order(f.reader().submit(batch), 3);
    let good = outcomes.pop().unwrap().unwrap();
    same(&(7..107), host(&good), f.at(&(7..107)));
    for (index, outcome) in outcomes.into_iter().enumerate() {
        let failed = outcome.unwrap_err();
        assert!(
            matches!(failed.error.kind(), ErrorKind::Unsupported { .. }),
            "Unsupported expected for a device, got: {}",
            failed.error
        );
        assert_eq!(failed.error.length(), Some(100));
        if index == 1 {
            let dest = failed
                .dest
                .expect("the caller's memory comes back with the error");
            assert_eq!((dest.place(), dest.remaining()), (Place::Device(7), 4_096));
        }
    }
    Ok(())
}
