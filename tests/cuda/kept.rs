//! Large buffers, which are used again instead of being given back to the driver, and given back when something else needs their memory.
#![allow(unsafe_code)]

use std::sync::Arc;

use feedwater::cuda::{Device, DeviceBuffer, DeviceOptions, Guard, Stream};
use feedwater::{BlockMut, DeviceBytes, ErrorKind, Result};
use software_cuda_preload::Session;

use crate::hostile::{fill, filled};
use crate::support::*;

/// With chunks of 64 KiB, what is larger than a quarter of that is an allocation of its own.
fn small_chunks() -> DeviceOptions {
    DeviceOptions::default().chunk(64 << 10)
}

fn address(bytes: &DeviceBytes) -> u64 {
    bytes.ptr().addr() as u64
}

/// Memory that work in a stream writes to some times, so that it is in use until that is done: asked, a lazy stream does one of them.
fn written(gpu: &Device, stream: &Stream, block: BlockMut, byte: u8, times: u8) -> DeviceBytes {
    let bytes = filled(block);
    for _ in 0..times {
        fill(gpu, stream, address(&bytes), bytes.len(), byte);
    }
    gpu.used_in(stream, &bytes).unwrap();
    bytes
}

/// Calls that took memory, and pieces of memory that are taken: what both say did not change was neither taken nor given back.
fn taken(session: &Session) -> (u64, u64) {
    let counts = session.counts();
    (counts.allocations, counts.device_allocations)
}

#[test]
fn batches_of_one_shape_take_memory_once() {
    for streams in STREAMS {
        for guard in [Guard::None, Guard::Gaps] {
            let session = session(streams);
            if !is_software(&session) {
                return;
            }
            {
                let gpu = small_chunks().guard(guard).open(0).unwrap();
                let stream = gpu.stream().unwrap();
                let mut first = None;
                for batch in 0..20u8 {
                    // The last few rows are a little different each time.
                    let more = usize::from(batch) * 7 % 5;
                    let made: Vec<_> = [20_000, 100_000, 33_333, 60_000, 60_000, 70_000, 3000]
                        .map(|len| {
                            let block = gpu.allocate(len - more).unwrap();
                            written(&gpu, &stream, block, batch, 2)
                        })
                        .into();
                    for bytes in &made {
                        let host = gpu.to_host(bytes).unwrap();
                        assert!(host.iter().all(|byte| *byte == batch), "{streams}");
                    }
                    drop(made);
                    assert_eq!(gpu.stats().in_use, 0);
                    if batch == 1 {
                        first = Some(taken(&session));
                    }
                }
                assert_eq!(Some(taken(&session)), first, "{streams} {guard:?}");
                assert_eq!(gpu.stats().overruns, 0);
                gpu.trim();
                assert_eq!((gpu.stats().held, session.counts().device_bytes), (0, 0));
            }
            nothing_left(&session);
        }
    }
}

/// Whoever was told to read it still does.
#[test]
fn what_is_still_read_is_not_used_again() {
    let session = session("lazy");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = small_chunks().open(0).unwrap();
        let (stream, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let one = written(&gpu, &stream, gpu.allocate(50_000).unwrap(), 1, 40);
        let first = address(&one);
        drop(one);
        let two = written(&gpu, &other, gpu.allocate(50_000).unwrap(), 2, 2);
        assert_ne!(address(&two), first, "the first stream still writes to it");
        stream.synchronize().unwrap();
        assert_eq!(gpu.to_host(&two).unwrap(), vec![2; 50_000]);
        let three = gpu.allocate(50_000).unwrap();
        assert_eq!(address(&filled(three)), first);
    }
    nothing_left(&session);
}

/// Where there is no other memory, the use of what was given back is waited for, and the driver is not asked.
#[test]
fn at_the_bound_what_is_still_read_is_waited_for() {
    let session = session("lazy");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = small_chunks().memory(100_000).open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let mut made = Vec::new();
        let mut first = None;
        for byte in 0..9 {
            let block = gpu.allocate(80_000).unwrap();
            made.push(block.unfilled_ptr().addr());
            drop(written(&gpu, &stream, block, byte, 9));
            assert_eq!(*first.get_or_insert(taken(&session)), taken(&session));
        }
        made.dedup();
        assert_eq!((made.len(), session.counts().device_allocations), (1, 1));
        // Even what is much shorter, as there is no room beside it; small ones take its memory.
        let short = filled(gpu.allocate(30_000).unwrap());
        assert_eq!(address(&short), made[0] as u64);
        drop(short);
        assert_eq!(filled(gpu.allocate(100).unwrap()).len(), 100);
        assert_eq!(gpu.stats().held, 64 << 10);
    }
    nothing_left(&session);
}

#[test]
fn the_bound_holds_whatever_is_kept() {
    const BOUND: u64 = 400_000;
    for streams in STREAMS {
        for (keep, most) in [(None, BOUND), (Some(150_000), 150_000), (Some(0), 0)] {
            let session = session(streams);
            {
                let mut options = small_chunks().memory(BOUND);
                options.keep = keep;
                let gpu = options.open(0).unwrap();
                let stream = gpu.stream().unwrap();
                let mut there = Vec::new();
                for round in 0..200usize {
                    let len = 1 + round * 7919 % 120_000;
                    match gpu.allocate(len) {
                        Ok(block) => there.push(written(&gpu, &stream, block, round as u8, 2)),
                        // All that there is was given to somebody: none of it is kept.
                        Err(error) => {
                            let kind = error.kind();
                            assert!(matches!(kind, ErrorKind::OutOfMemory { .. }), "{error}");
                            let used: usize = there.iter().map(DeviceBytes::len).sum();
                            assert!(used + len + (64 << 10) * there.len() > BOUND as usize);
                            there.clear();
                        }
                    }
                    let stats = gpu.stats();
                    assert!(stats.held <= BOUND.next_multiple_of(4096), "{stats:?}");
                    if round % 3 == 0 {
                        there.truncate(round % 4);
                    }
                }
                there.clear();
                let held = gpu.stats().held;
                // And a chunk.
                assert!(held <= most + (64 << 10), "{held}");
                // Whatever is kept, all of it can be had in one piece.
                assert_eq!(gpu.allocate(390_000).unwrap().len(), 390_000);
                gpu.trim();
                assert_eq!(gpu.stats().held, 0);
            }
            nothing_left(&session);
        }
    }
}

/// A card that others fill: what is kept goes before anything is an error, and what is lost goes too.
#[test]
fn what_is_kept_goes_before_an_error() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    session.set("MEMORY", "1000000");
    {
        let gpu = small_chunks().keep(1 << 20).open(0).unwrap();
        let stream = gpu.stream().unwrap();
        type Take = fn(&Arc<Device>, &Stream) -> BlockMut;
        let takes: [Take; 4] = [
            |gpu, _| gpu.allocate(900_000).unwrap(),
            |gpu, _| gpu.allocate(1000).unwrap(),
            |gpu, stream| gpu.allocate_in(stream, 900_000).unwrap(),
            |gpu, _| gpu.managed(900_000).unwrap(),
        ];
        for take in takes {
            let each = (0..9).map(|byte| {
                let block = gpu.allocate(100_000).unwrap();
                written(&gpu, &stream, block, byte, 9)
            });
            drop(each.collect::<Vec<_>>());
            assert!(gpu.stats().held > 900_000);
            drop(take(&gpu, &stream));
            stream.synchronize().unwrap();
            gpu.trim();
        }
        drop(written(&gpu, &stream, gpu.allocate(100_000).unwrap(), 1, 2));
        session.fail_call(0, 719);
        assert!(gpu.memory().is_err());
        assert!(gpu.allocate(100_000).is_err());
    }
    session.fail_nothing();
    nothing_left(&session);
}

/// What is kept helps against no other error than that there is no room.
#[test]
fn an_error_that_is_not_of_room_lets_nothing_go() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = small_chunks().keep(1 << 20).open(0).unwrap();
        let stream = gpu.stream().unwrap();
        // So that there is a pool.
        drop(gpu.allocate_in(&stream, 1).unwrap());
        type Take = fn(&Arc<Device>, &Stream) -> Result<BlockMut>;
        let takes: [Take; 3] = [
            |gpu, _| gpu.allocate(500_000),
            |gpu, _| gpu.allocate(1000),
            |gpu, stream| gpu.allocate_in(stream, 500_000),
        ];
        for take in takes {
            let all = [100_000, 90_000].map(|len| gpu.allocate(len).unwrap());
            drop(all);
            let (held, before) = (gpu.stats().held, taken(&session));
            session.fail_call(0, 1);
            let error = take(&gpu, &stream).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Cuda { code: 1, .. }),
                "{error}"
            );
            assert_eq!(gpu.stats().held, held);
            assert_eq!(taken(&session).1, before.1);
        }
    }
    session.fail_nothing();
    nothing_left(&session);
}

#[test]
fn separate_buffers_are_new_each_time_and_gaps_are_looked_at_each_time() {
    let session = session("eager");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = small_chunks().guard(Guard::Separate).open(0).unwrap();
        let (before, _) = taken(&session);
        for number in 1..5 {
            drop(gpu.allocate(50_000).unwrap());
            assert_eq!(taken(&session), (before + number, 0));
        }
        let gpu = small_chunks().guard(Guard::Gaps).open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let mut addresses = Vec::new();
        for round in 0..4 {
            let block = gpu.allocate(50_000).unwrap();
            let buffer = block.memory().as_any().downcast_ref::<DeviceBuffer>();
            let at = buffer.unwrap().address();
            addresses.push(at);
            let bytes = filled(block);
            fill(&gpu, &stream, at, 50_000 + round % 2, 1);
            gpu.used_in(&stream, &bytes).unwrap();
            drop(bytes);
            assert_eq!(gpu.stats().overruns, round.div_ceil(2) as u64);
        }
        addresses.dedup();
        assert_eq!(addresses.len(), 1);
    }
    nothing_left(&session);
}
