//! Memory of the device: what is given out, taken back, kept apart and refused.
#![allow(unsafe_code)]

use std::collections::BTreeSet;

use cudarc::driver::{result, sys};
use feedwater::cuda::{Advice, Device, DeviceBuffer, DeviceOptions, Guard, Side, Stream};
use feedwater::{Batch, BlockMut, DeviceBytes, ErrorKind, Place, Reader};
use software_cuda_preload::Device as On;

use crate::support::*;

fn address(block: &BlockMut) -> u64 {
    let buffer = block.memory().as_any().downcast_ref::<DeviceBuffer>();
    buffer.unwrap().address()
}

/// Queues the same byte for all of a range, as a kernel of somebody else's would write to it.
fn fill(gpu: &Device, stream: &Stream, to: u64, len: usize, value: u8) {
    // SAFETY: the range is memory that the test has.
    unsafe {
        result::ctx::set_current(gpu.raw_context().cast()).unwrap();
        result::memset_d8_async(to, value, len, stream.raw().cast()).unwrap();
    }
}

/// The bytes of a block that was filled.
fn filled(mut block: BlockMut, len: usize) -> DeviceBytes {
    // SAFETY: the caller has the device write that many.
    unsafe { block.advance(len) };
    block.freeze().into_device().unwrap()
}

#[test]
fn parts_are_aligned_and_nobody_elses() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut blocks = Vec::new();
        for round in 0..3 {
            for len in (1..200).map(|i| i * 37 % 9000 + 1) {
                let block = gpu.allocate(len).unwrap();
                assert_eq!((block.len(), block.place()), (len, Place::Device(0)));
                let align = if len >= 4096 { 4096 } else { 256 };
                assert!(address(&block).is_multiple_of(align), "{len}");
                blocks.push(block);
            }
            let mut spans: Vec<_> = blocks
                .iter()
                .map(|b| (address(b), b.len() as u64))
                .collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
            // Every other one goes.
            let mut index = round;
            blocks.retain(|_| {
                index += 1;
                index % 2 == 0
            });
        }
        // All of them from one request to the driver.
        assert_eq!(gpu.stats().held, 64 << 20);
        if session.device() == On::Software {
            assert_eq!(session.counts().device_allocations, 1);
        }
        drop(blocks);
        assert_eq!(gpu.stats().in_use, 0);
        gpu.trim();
        assert_eq!(gpu.stats().held, 0);
        assert!(gpu.allocate(0).unwrap().is_empty());
    }
    nothing_left(&session);
}

#[test]
fn where_nothing_is_kept_large_ones_go_at_once_and_chunks_when_they_are_empty() {
    let session = session("eager");
    {
        let options = DeviceOptions::default().chunk(1 << 20).keep(0);
        let gpu = options.open(0).unwrap();
        let large = gpu.allocate((256 << 10) + 1).unwrap();
        // And what the driver's alignment takes.
        let held = gpu.stats().held - ((256 << 10) + 256);
        assert!(held == 0 || held == 4096, "{held}");
        drop(large);
        assert_eq!(gpu.stats().held, 0);
        let blocks: Vec<_> = (0..10).map(|_| gpu.allocate(256 << 10).unwrap()).collect();
        assert_eq!(gpu.stats().held, 3 << 20);
        drop(blocks);
        // One is kept for the next.
        assert_eq!(gpu.stats().held, 1 << 20);
    }
    nothing_left(&session);
}

#[test]
fn what_is_past_the_bound_is_refused_before_the_card_is_asked() {
    let session = session("eager");
    {
        let gpu = DeviceOptions::default().memory(10 << 20).open(0).unwrap();
        let asked = session.counts().allocations;
        for len in [(10 << 20) + 1, 1 << 40, usize::MAX] {
            let error = gpu.allocate(len).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory { wanted, cap }
                    if *wanted == len as u64 && *cap == 10 << 20),
                "{error}"
            );
            let bytes = data(100);
            let reader = reader(&gpu, &bytes);
            assert!(read(&gpu, &reader, 0..100).is_ok() || len == 0);
        }
        // A read of more than there is room for: its error has the range.
        assert!(
            session.counts().allocations <= asked + 8,
            "small ones for the reads alone"
        );
        let _most = gpu.allocate(9 << 20).unwrap();
        let bytes = data(3 << 20);
        let asked = session.counts().allocations;
        let error = read(&gpu, &reader(&gpu, &bytes), 0..3 << 20).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            "{error}"
        );
        assert_eq!((error.offset(), error.length()), (Some(0), Some(3 << 20)));
        if session.device() == On::Software {
            assert_eq!(session.counts().allocations, asked);
        }
    }
    nothing_left(&session);
}

#[test]
fn a_card_that_is_full_is_emptied_of_what_nobody_uses_before_it_is_an_error() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    session.set("MEMORY", &(8 << 20).to_string());
    {
        let gpu = DeviceOptions::default().chunk(4 << 20).open(0).unwrap();
        // A chunk that is kept, empty.
        drop(gpu.allocate(100).unwrap());
        assert_eq!(gpu.stats().held, 4 << 20);
        let large = gpu.allocate(7 << 20).unwrap();
        // No room for a chunk, but for what is asked for.
        let small = gpu.allocate(1000).unwrap();
        let error = gpu.allocate(2 << 20).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfMemory { wanted, .. } if *wanted == 2 << 20)
        );
        drop((large, small));
        gpu.allocate(7 << 20).unwrap();
    }
    nothing_left(&session);
}

/// Allocations of so many KiB that are kept, the first of which was given back first.
fn kept(gpu: &std::sync::Arc<Device>, sizes: &[usize]) {
    let blocks: Vec<_> = sizes.iter().map(|kib| gpu.allocate(kib << 10)).collect();
    blocks.into_iter().for_each(|block| drop(block.unwrap()));
}

#[test]
fn no_more_of_what_is_kept_goes_than_is_needed() {
    const MIB: u64 = 1 << 20;
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    // By the bound, and by what the card has.
    for (memory, card) in [(40 * MIB, 1 << 32), (1 << 31, 40 * MIB)] {
        session.set("MEMORY", &card.to_string());
        let options = DeviceOptions::default().chunk(MIB).keep(64 * MIB);
        let gpu = options.memory(memory).open(0).unwrap();
        kept(&gpu, &[10 << 10, 11 << 10, 12 << 10]);
        assert_eq!(gpu.stats().held, 33 * MIB);
        // None of them is long enough, and the first goes.
        let large = gpu.allocate(16 << 20).unwrap();
        assert_eq!(gpu.stats().held, (11 + 12 + 16) * MIB);
        let asked = session.counts().device_allocations;
        let others = [12 << 20, 11 << 20].map(|len| gpu.allocate(len).unwrap());
        assert_eq!(session.counts().device_allocations, asked);
        drop((large, others));
        // All of them.
        let all = gpu.allocate(39 << 20).unwrap();
        assert_eq!(gpu.stats().held, 39 * MIB);
        drop(all);
    }
    session.set("MEMORY", &(1u64 << 32).to_string());
    // A chunk for a part, for which one goes.
    let options = DeviceOptions::default().chunk(4 << 20).keep(64 * MIB);
    let gpu = options.clone().memory(8 * MIB).open(0).unwrap();
    kept(&gpu, &[3584, 3072]);
    let part = gpu.allocate(1000).unwrap();
    assert_eq!(gpu.stats().held, 7 * MIB);
    drop((part, gpu));
    // There is no room for a chunk, whatever goes: but for the part itself.
    let gpu = options.memory(8 * MIB).open(0).unwrap();
    let used = gpu.allocate(5 << 20).unwrap();
    kept(&gpu, &[1536, 1280]);
    let part = gpu.allocate(1000).unwrap();
    let held = gpu.stats().held;
    assert!(held >= (5 << 20) + (2816 << 10) + 1000, "{held}");
    drop((part, used));
    drop(gpu);
    nothing_left(&session);
}

#[test]
fn memory_goes_to_others_only_after_its_last_use() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let stream = gpu.stream().unwrap();
            let block = gpu.allocate(5000).unwrap();
            let at = address(&block);
            // Each time that somebody asks, a lazy stream does one of them.
            (0..9).for_each(|_| fill(&gpu, &stream, at, 5000, 7));
            let bytes = filled(block, 5000);
            gpu.used_in(&stream, &bytes).unwrap();
            drop(bytes);
            let next = gpu.allocate(5000).unwrap();
            match (session.device(), streams) {
                (On::Software, "lazy") => assert_ne!(address(&next), at, "it is still in use"),
                (On::Software, _) => assert_eq!(address(&next), at),
                _ => {}
            }
            stream.synchronize().unwrap();
            drop(next);
            assert_eq!(address(&gpu.allocate(5000).unwrap()), at);
            // A copy to the host waits for it as well, though it is in another stream.
            let block = gpu.allocate(5000).unwrap();
            fill(&gpu, &stream, address(&block), 5000, 9);
            let bytes = filled(block, 5000);
            gpu.used_in(&stream, &bytes).unwrap();
            assert_eq!(gpu.to_host(&bytes).unwrap(), vec![9; 5000]);
            // And one of its own is freed after its use too.
            let block = gpu.allocate(40 << 20).unwrap();
            fill(&gpu, &stream, address(&block), 40 << 20, 9);
            let bytes = filled(block, 40 << 20);
            gpu.used_in(&stream, &bytes).unwrap();
            drop(bytes);
            stream.synchronize().unwrap();
        }
        nothing_left(&session);
    }
}

#[test]
fn a_read_goes_to_memory_after_the_uses_that_it_had() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let stream = gpu.stream().unwrap();
            let bytes = data(9000);
            let block = gpu.allocate(9000).unwrap();
            fill(&gpu, &stream, address(&block), 9000, 7);
            let buffer = block.memory().as_any().downcast_ref::<DeviceBuffer>();
            buffer.unwrap().used_by(stream.record().unwrap());
            let batch = Batch::new().read_into(0..9000, block);
            let blocks = reader(&gpu, &bytes).submit(batch).wait().unwrap();
            stream.synchronize().unwrap();
            assert_eq!(on_device(&gpu, &blocks[0]), bytes, "{streams}");
        }
        nothing_left(&session);
    }
}

#[test]
fn memory_of_a_stream_is_given_back_in_its_order() {
    for streams in STREAMS {
        for pools in ["on", "off"] {
            let mut session = session(streams);
            session.set("POOLS", pools);
            {
                let gpu = Device::open(0).unwrap();
                let (one, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
                for _ in 0..20 {
                    let block = gpu.allocate_in(&one, 1000).unwrap();
                    fill(&gpu, &one, address(&block), 1000, 5);
                    let bytes = filled(block, 1000);
                    gpu.used_in(&one, &bytes).unwrap();
                    assert_eq!(gpu.to_host(&bytes).unwrap(), vec![5; 1000]);
                    // Another stream uses it too, and nobody waits.
                    other.wait_for(&one.record().unwrap()).unwrap();
                    fill(&gpu, &other, bytes.ptr().addr() as u64, 1000, 6);
                    gpu.used_in(&other, &bytes).unwrap();
                }
                // A read goes to such memory only when it is there.
                let bytes = data(70_000);
                let block = gpu.allocate_in(&one, 70_000).unwrap();
                let batch = Batch::new().read_into(0..70_000, block);
                let blocks = reader(&gpu, &bytes).submit(batch).wait().unwrap();
                assert_eq!(on_device(&gpu, &blocks[0]), bytes);
                drop(blocks);
                let large = gpu.allocate_in(&one, 30 << 20).unwrap();
                fill(&gpu, &one, address(&large), 30 << 20, 5);
                drop(large);
                assert_eq!(gpu.stats().in_use, 0);
                assert!(gpu.allocate_in(&one, 0).unwrap().is_empty());
                one.synchronize().unwrap();
                other.synchronize().unwrap();
            }
            nothing_left(&session);
        }
    }
}

#[test]
fn a_write_past_a_buffer_is_found_in_its_gap() {
    let session = session("lazy");
    {
        let gpu = DeviceOptions::default().guard(Guard::Gaps).open(0).unwrap();
        let stream = gpu.stream().unwrap();
        for (len, written) in [
            (1000, 1000),
            (1000, 1001),
            (20 << 20, (20 << 20) + 64),
            (8, 7),
        ] {
            let before = gpu.stats().overruns;
            let block = gpu.allocate(len).unwrap();
            fill(&gpu, &stream, address(&block), written, 1);
            let bytes = filled(block, len);
            gpu.used_in(&stream, &bytes).unwrap();
            drop(bytes);
            let found = gpu.stats().overruns - before;
            assert_eq!(found, u64::from(written > len), "{len} {written}");
        }
    }
    nothing_left(&session);
}

#[test]
fn separate_buffers_are_allocations_of_their_own() {
    let session = session("eager");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = DeviceOptions::default()
            .guard(Guard::Separate)
            .open(0)
            .unwrap();
        let stream = gpu.stream().unwrap();
        let blocks = [
            gpu.allocate(1).unwrap(),
            gpu.allocate(1000).unwrap(),
            gpu.allocate_in(&stream, 50).unwrap(),
        ];
        assert_eq!(session.counts().device_allocations, 3);
        let addresses: BTreeSet<_> = blocks.iter().map(address).collect();
        assert_eq!(addresses.len(), 3);
    }
    nothing_left(&session);
}

#[test]
fn managed_memory_is_read_into_like_the_hosts() {
    for streams in STREAMS {
        let mut session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let stream = gpu.stream().unwrap();
            let bytes = data(100_000);
            let block = gpu.managed(100_000).unwrap();
            assert_eq!(block.place(), Place::Managed(0));
            // By a reader that knows nothing of devices.
            let plain = feedwater::MemoryReader::new(bytes.clone());
            let blocks = plain
                .submit(Batch::new().read_into(0..100_000, block))
                .wait()
                .unwrap();
            let got = blocks[0].as_host().unwrap();
            assert_eq!(got, &bytes);
            gpu.advise(got, Advice::ReadMostly).unwrap();
            gpu.advise(got, Advice::AccessedBy(Side::Host)).unwrap();
            gpu.prefetch(got, Side::Device, &stream).unwrap();
            gpu.prefetch(&got[5..7], Side::Host, &stream).unwrap();
            gpu.prefetch(&[], Side::Host, &stream).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(got, &bytes);
            assert_eq!(gpu.managed(0).unwrap().len(), 0);
            // Never more than is free, although the driver would allow it.
            let (free, total) = gpu.memory().unwrap();
            assert!(free <= total);
            let asked = session.counts().allocations;
            let error = gpu.managed(total as usize + 1).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::OutOfMemory { cap, .. } if *cap <= total));
            assert_eq!(session.counts().allocations, asked);
            if session.device() == On::Software {
                let error = gpu.advise(&bytes, Advice::ReadMostly).unwrap_err();
                assert!(matches!(
                    error.kind(),
                    ErrorKind::Cuda {
                        call: "cuMemAdvise",
                        ..
                    }
                ));
                session.set("MEMORY", "1000000");
                assert!(gpu.managed(950_000).is_err());
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn the_callers_context_is_as_it_was() {
    let session = session("eager");
    std::thread::spawn(|| {
        let gpu = Device::open(0).unwrap();
        assert_eq!(result::ctx::get_current().unwrap(), None);
        let block = gpu.allocate(5).unwrap();
        drop((gpu.memory().unwrap(), block));
        assert_eq!(result::ctx::get_current().unwrap(), None);
        let context: sys::CUcontext = gpu.raw_context().cast();
        // SAFETY: the context is retained as long as the device is open.
        unsafe { result::ctx::set_current(context).unwrap() };
        gpu.memory().unwrap();
        assert_eq!(result::ctx::get_current().unwrap(), Some(context));
    })
    .join()
    .unwrap();
    nothing_left(&session);
}
