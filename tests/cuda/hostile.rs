//! What is done against the rules, in the wrong order, at the wrong time, or with the largest numbers.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use cudarc::driver::result;
use feedwater::cuda::decompress::Codec;
use feedwater::cuda::testing::Kernels;
use feedwater::cuda::testing::filled as filled_by_pages;
use feedwater::cuda::{
    Advice, Checksum, Dense, Device, DeviceOptions, ElementType, Guard, Side, Stream,
};
use feedwater::{Batch, BlockMut, DeviceBytes, Error, ErrorKind, Reader};

use crate::decompress::{Stored, arena};
use crate::levels::{Nest, Written};
use crate::pages::Random;
use crate::support::*;
use crate::words::KIND;

/// Queues the same byte for all of a range.
pub(crate) fn fill(gpu: &Device, stream: &Stream, to: u64, len: usize, value: u8) {
    // SAFETY: the range is memory that the test has.
    unsafe {
        result::ctx::set_current(gpu.raw_context().cast()).unwrap();
        result::memset_d8_async(to, value, len, stream.raw().cast()).unwrap();
    }
}

/// All of a block, of which the test does not ask what is in most of it.
pub(crate) fn filled(mut block: BlockMut) -> DeviceBytes {
    let len = block.len();
    // SAFETY: the memory is there; no byte that nobody wrote is looked at.
    unsafe { block.advance(len) };
    block.freeze().into_device().unwrap()
}

pub(crate) fn address(bytes: &DeviceBytes) -> u64 {
    bytes.ptr().addr() as u64
}

/// A leaf of lists of strings.
fn nested_words() -> Written {
    let mut written = Written::default();
    written.words(&Nest::list(), KIND, &[40, 20], &mut Random::new(7));
    written
}

/// After calls that fail one after the other, nobody can know whether work that was queued is over. It must not write to memory that
/// somebody else has by then.
#[test]
fn work_that_cannot_be_waited_for_keeps_its_memory() {
    if !is_software(&session("lazy")) {
        return;
    }
    type Call = fn(&Arc<Device>, &DeviceBytes) -> feedwater::Result<()>;
    let cast: Call = |gpu, bytes| {
        let tensor = Dense::cast(&[250], ElementType::U8, ElementType::F32)
            .rows(&[5; 250])
            .affine(0, &[2.0; 250], &[1.0; 250]);
        gpu.dense(&tensor, bytes).map(drop)
    };
    let sums: Call = |gpu, bytes| {
        gpu.checksums(Checksum::Crc32, bytes, &[0..900, 5..6])
            .map(drop)
    };
    let nested: Call = |gpu, bytes| {
        let leaves = nested_words().leaves;
        gpu.nested(bytes, &[], &leaves, u64::MAX).map(drop)
    };
    // Compressed pages into memory that is filled from the host.
    let pages: Call = |gpu, _| {
        let bytes = snap::raw::Encoder::new().compress_vec(&data(3000)).unwrap();
        let (stored, bodies, len) = arena(&[Stored::new(Codec::Snappy, bytes, 3000)], 0);
        let made = filled_by_pages(gpu, &stored, &bodies, len)?;
        assert_eq!(gpu.to_host(&made)?, data(3000));
        Ok(())
    };
    let words: Bytes = nested_words().arena.bytes.into();
    for (call, bytes, times) in [
        (cast, data(1000), 40),
        (sums, data(1000), 40),
        (nested, words, 40),
        // Where more calls fail, the copies from the host cannot be waited for, and their memory is leaked.
        (pages, data(1000), 2),
    ] {
        let (mut failed, mut index, mut calls) = (0, 0, 1);
        while index < calls {
            let mut session = session("lazy");
            let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
            let there = read(&gpu, &reader(&gpu, &bytes), 0..bytes.len() as u64).unwrap();
            let there = there.into_device().unwrap();
            // The kernels are loaded.
            call(&gpu, &there).unwrap();
            let before = session.counts().calls;
            call(&gpu, &there).unwrap();
            calls = session.counts().calls - before;
            session.fail_calls(index, times, 1);
            failed += u64::from(call(&gpu, &there).is_err());
            session.fail_nothing();
            drop(there);
            let stream = gpu.stream().unwrap();
            let others: Vec<_> = (0..150)
                .map(|_| {
                    let bytes = filled(gpu.allocate(256).unwrap());
                    fill(&gpu, &stream, address(&bytes), 256, 7);
                    bytes
                })
                .collect();
            stream.synchronize().unwrap();
            // Now what is queued from before is done.
            for bytes in &others {
                assert_eq!(
                    gpu.to_host(bytes).unwrap(),
                    [7; 256],
                    "from call {index} on"
                );
            }
            drop((others, stream, gpu));
            nothing_left(&session);
            // All of the calls where two fail; of the others, which fail from then on, some.
            index += if times > 2 { calls.div_ceil(40) } else { 1 };
        }
        assert!(failed > 8, "{failed}");
    }
}

/// The same for memory whose use in a stream was told.
#[test]
fn memory_whose_uses_cannot_be_waited_for_is_not_used_again() {
    if !is_software(&session("lazy")) {
        return;
    }
    for in_order in [false, true] {
        for times in 1..12 {
            let mut session = session("lazy");
            session.set("POOLS", "off");
            {
                let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
                let stream = gpu.stream().unwrap();
                // So that the chunk stays, whatever is given back.
                let _kept = gpu.allocate(256).unwrap();
                let block = match in_order {
                    true => gpu.allocate_in(&stream, 4096).unwrap(),
                    false => gpu.allocate(4096).unwrap(),
                };
                let bytes = filled(block);
                // Asking, an event does one of them.
                (0..40).for_each(|_| fill(&gpu, &stream, address(&bytes), 4096, 1));
                if !in_order {
                    gpu.used_in(&stream, &bytes).unwrap();
                }
                session.fail_calls(0, times, 1);
                drop(bytes);
                gpu.trim();
                session.fail_nothing();
                let other = gpu.stream().unwrap();
                let others: Vec<_> = (0..15)
                    .map(|_| filled(gpu.allocate(4096).unwrap()))
                    .collect();
                for bytes in &others {
                    fill(&gpu, &other, address(bytes), 4096, 7);
                }
                other.synchronize().unwrap();
                stream.synchronize().unwrap();
                for bytes in &others {
                    assert_eq!(gpu.to_host(bytes).unwrap(), [7; 4096], "{in_order} {times}");
                }
            }
            nothing_left(&session);
        }
    }
}

/// A bit of everything that calls the driver, but for reads.
fn everything(guard: Guard) -> feedwater::Result<()> {
    let gpu = DeviceOptions::default()
        .chunk(64 << 10)
        .guard(guard)
        .open(0)?;
    let stream = gpu.stream()?;
    for len in [100, 40_000] {
        drop(gpu.allocate(len)?);
        let bytes = filled(gpu.allocate_in(&stream, len)?);
        gpu.used_in(&stream, &bytes)?;
        let event = stream.record()?;
        stream.wait_for(&event)?;
        drop(bytes);
        let _ = event.is_done()?;
        event.synchronize()?;
    }
    let mut managed = gpu.managed(5000)?;
    managed.put(&[7; 5000])?;
    let managed = managed.freeze().into_host()?;
    gpu.advise(&managed, Advice::ReadMostly)?;
    gpu.prefetch(&managed, Side::Device, &stream)?;
    let bytes = filled(gpu.allocate(1000)?);
    // SAFETY: the default stream is always there.
    let stream_of_others = unsafe { gpu.borrow_stream(std::ptr::null_mut()) };
    stream_of_others.synchronize()?;
    let module = gpu.module(feedwater::cuda::FAMILIES[0])?;
    module.function("crc")?;
    let sums = gpu.checksums(Checksum::Crc32c, &bytes, &[0..1000])?;
    let tensor = Dense::cast(&[10], ElementType::U8, ElementType::BF16).rows(&[3; 10]);
    let made = gpu.dense(&tensor, &bytes)?;
    assert_eq!((sums.len(), gpu.to_host(&made)?.len()), (1, 20));
    let _ = (gpu.pinned(5)?, gpu.memory()?);
    gpu.trim();
    stream.synchronize()?;
    assert_eq!(gpu.stats().overruns, 0);
    Ok(())
}

#[test]
fn an_error_at_every_call_of_everything_else() {
    if !is_software(&session("eager")) {
        return;
    }
    for streams in STREAMS {
        for guard in [Guard::None, Guard::Gaps] {
            let mut session = session(streams);
            let before = session.counts().calls;
            everything(guard).unwrap();
            nothing_left(&session);
            let calls = session.counts().calls - before;
            for code in [1, 2, 700] {
                let mut failed = 0;
                for index in 0..calls {
                    session.fail_call(index, code);
                    failed += u64::from(everything(guard).is_err());
                    session.fail_nothing();
                    nothing_left(&session);
                }
                // Hints, what is dropped, and what has another way go on.
                assert!(failed > 60, "{streams} {guard:?}: {failed} of {calls}");
            }
        }
    }
}

#[test]
fn what_a_pool_keeps_is_given_back_when_it_is_needed() {
    if !is_software(&session("lazy")) {
        return;
    }
    type Take = fn(&Device, &Stream) -> feedwater::Result<BlockMut>;
    let takes: [Take; 4] = [
        |gpu, _| gpu.allocate(6 << 20),
        |gpu, _| gpu.allocate(100),
        |gpu, _| gpu.managed(6 << 20),
        |gpu, stream| {
            // Chunks that nobody uses, too.
            drop(gpu.allocate(100)?);
            gpu.allocate_in(stream, 6 << 20)
        },
    ];
    for streams in STREAMS {
        for take in takes {
            let mut session = session(streams);
            session.set("MEMORY", &(8 << 20).to_string());
            {
                let gpu = DeviceOptions::default().chunk(4 << 20).open(0).unwrap();
                let stream = gpu.stream().unwrap();
                drop(gpu.allocate_in(&stream, 7 << 20).unwrap());
                stream.synchronize().unwrap();
                let (free, _) = gpu.memory().unwrap();
                assert!(free <= 1 << 20, "the pool keeps it: {free}");
                let block = take(&gpu, &stream).unwrap();
                drop(block);
                stream.synchronize().unwrap();
                gpu.trim();
                assert_eq!(gpu.memory().unwrap().0, 8 << 20);
                assert_eq!(gpu.stats().held, 0);
            }
            nothing_left(&session);
        }
    }
}

/// The driver promises multiples of 256 alone.
#[test]
fn memory_begins_where_it_is_said_to() {
    for guard in [Guard::None, Guard::Gaps, Guard::Separate] {
        let mut session = session("eager");
        // Where the card has no room for a chunk, each is what the driver gives for it.
        for memory in ["8000000000", "120000"] {
            session.set("MEMORY", memory);
            let gpu = DeviceOptions::default()
                .chunk(64 << 10)
                .guard(guard)
                .open(0)
                .unwrap();
            let _kept = (memory == "120000").then(|| gpu.allocate(60_000).unwrap());
            for len in [1, 300, 4095, 4096, 5000, 16_000, 20_000, 33_333] {
                let bytes = filled(gpu.allocate(len).unwrap());
                let align = match guard {
                    Guard::Separate => 256,
                    _ if len < 4096 => 256,
                    _ => 4096,
                };
                let at = address(&bytes);
                assert!(
                    at > 0 && at.is_multiple_of(align),
                    "{guard:?} {len} {at:#x}"
                );
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn a_gap_that_could_not_be_marked_is_not_found_written() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = DeviceOptions::default().guard(Guard::Gaps).open(0).unwrap();
        drop(gpu.allocate(5).unwrap());
        let mut failed = 0;
        for len in [5, 30 << 20] {
            for index in 0..10 {
                session.fail_call(index, 1);
                failed += u32::from(gpu.allocate(len).is_err());
                session.fail_nothing();
            }
        }
        assert!(failed > 5);
        assert_eq!(gpu.stats().overruns, 0);
        // And one that is written to in a stream of which nobody told is, however large the buffer.
        let stream = gpu.stream().unwrap();
        for (found, len) in [(1, 5000), (2, 30 << 20)] {
            let block = gpu.allocate_in(&stream, len).unwrap();
            let at = block.unfilled_ptr().addr() as u64;
            fill(&gpu, &stream, at, len + 1, 1);
            drop(block);
            assert_eq!(gpu.stats().overruns, found);
        }
    }
    nothing_left(&session);
}

#[test]
fn codes_that_end_the_process_for_the_device_are_those_of_a_lost_one() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    // Contained; the server of MPS is gone.
    for code in [226, 810] {
        let gpu = Device::open(0).unwrap();
        session.fail_call(0, code);
        let error = gpu.memory().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::DeviceLost { code: found, .. } if *found == code as u32),
            "{error}"
        );
        assert!(gpu.allocate(5).is_err());
    }
    nothing_left(&session);
}

/// Sizes of no element and of more than there are, in all places.
#[test]
fn tensors_of_impossible_shapes_are_errors_or_empty() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let there = read(&gpu, &reader(&gpu, &data(100)), 0..100).unwrap();
        let there = there.into_device().unwrap();
        const MOST: u64 = u64::MAX;
        let copy = |shape: &[u64]| Dense::copy(shape, 8);
        let empty = [
            copy(&[0, MOST, MOST, MOST]),
            copy(&[0, MOST, MOST, MOST]).strides(&[MOST; 4]),
            Dense::copy(&[0, MOST, MOST, MOST], 1).strides(&[MOST; 4]),
            copy(&[5, 0])
                .strides(&[MOST, MOST])
                .rows(&[1, 2, MOST, 4, 5]),
            copy(&[0]).rows(&[]),
            Dense::cast(&[3, 0, 2], ElementType::U8, ElementType::F32)
                .affine(0, &[1.0; 3], &[1.0; 3]),
        ];
        for tensor in &empty {
            let made = gpu.dense(tensor, &there).unwrap();
            assert!(made.is_empty(), "{tensor:?}");
        }
        let wrong = [
            copy(&[MOST, MOST, 0]),
            copy(&[1 << 32, 1 << 32]),
            copy(&[1 << 63, 2]),
            copy(&[1 << 61]),
            copy(&[2]).strides(&[MOST / 8]),
            copy(&[2, 2]).strides(&[MOST / 8, MOST / 8]),
            copy(&[2]).strides(&[1 << 61]).rows(&[1, 0]),
            copy(&[2, 0]).rows(&[1]),
            copy(&[12]).rows(&[MOST; 12]),
        ];
        for tensor in &wrong {
            let error = gpu.dense(tensor, &there).unwrap_err();
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::InvalidOption { .. } | ErrorKind::OutOfBounds { .. }
                ),
                "{tensor:?}: {error}"
            );
        }
        // One element again and again is more than the device has, and is asked for before a kernel runs.
        let error = gpu.dense(&Dense::copy(&[1 << 50], 1).strides(&[0]), &there);
        let error = error.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            "{error}"
        );
        #[allow(clippy::reversed_empty_ranges)]
        for segment in [0..MOST, MOST..MOST, 100..99, 101..101] {
            let error = gpu.checksums(Checksum::Crc32, &there, &[0..1, segment]);
            let error = error.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::OutOfBounds { len: 100 }),
                "{error}"
            );
        }
        assert_eq!(gpu.stats().in_use, 100);
    }
    nothing_left(&session);
}

/// Addresses and offsets of more than 32 bits, in memory that is there only where it is touched.
#[test]
fn offsets_past_four_gib() {
    const LEN: usize = (5 << 30) + 64;
    let session = session("eager");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = Device::open(0).unwrap();
        let bytes = data(1000);
        let mut whole = gpu.allocate(LEN).unwrap();
        let mut tail = whole.split_off(LEN - 1000);
        tail = {
            // Read to the end of it.
            let batch = Batch::new().read_into(0..1000, tail);
            let blocks = reader(&gpu, &bytes).submit(batch).wait().unwrap();
            assert_eq!(on_device(&gpu, &blocks[0]), bytes);
            drop(blocks);
            gpu.allocate(0).unwrap()
        };
        drop(tail);
        let whole = filled(whole);
        // What lies behind 4 GiB, and not what lies there modulo 4 GiB.
        let end = whole.len() as u64;
        let stream = gpu.stream().unwrap();
        fill(&gpu, &stream, address(&whole) + end - 256, 256, 0x5a);
        fill(
            &gpu,
            &stream,
            address(&whole) + (end - 256) % (1 << 32),
            256,
            0xa5,
        );
        stream.synchronize().unwrap();
        let rows = [end / 64 - 1, end / 64 - 2];
        let tensor = Dense::copy(&[2, 64], 1).strides(&[64, 1]).rows(&rows);
        let made = gpu
            .dense(&tensor, &whole.slice(whole.len() % 64..))
            .unwrap();
        assert_eq!(gpu.to_host(&made).unwrap(), [0x5a; 128]);
        let tensor = Dense::copy(&[2, 8], 1).strides(&[end - 8, 1]);
        let made = gpu.dense(&tensor, &whole).unwrap();
        assert_eq!(gpu.to_host(&made).unwrap()[8..], [0x5a; 8]);
        let far = end - 250..end - 1;
        let sums = gpu.checksums(Checksum::Crc32c, &whole, &[far]).unwrap();
        let near = read(&gpu, &reader(&gpu, &vec![0x5a; 249].into()), 0..249).unwrap();
        let near = near.into_device().unwrap();
        let wanted = gpu.checksums(Checksum::Crc32c, &near, &[0..249]).unwrap();
        assert_eq!(sums, wanted);
        let error = gpu.dense(&Dense::copy(&[end + 1], 1), &whole).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfBounds { .. }),
            "{error}"
        );
    }
    nothing_left(&session);
}

/// Everything of a device at once, and each of it dropped before all others.
#[test]
fn things_are_dropped_in_any_order() {
    for streams in STREAMS {
        for first in 0..11 {
            let session = session(streams);
            {
                let gpu = Device::open(0).unwrap();
                let bytes = data(100_000);
                let reader = reader(&gpu, &bytes);
                let block = read(&gpu, &reader, 0..100_000).unwrap();
                let pending = reader.submit(Batch::new().any_at(0..100_000, gpu.place()));
                let stream = gpu.stream().unwrap();
                let in_order = gpu.allocate_in(&stream, 5000).unwrap();
                let there = filled(gpu.allocate(5000).unwrap());
                fill(&gpu, &stream, address(&there), 5000, 5);
                gpu.used_in(&stream, &there).unwrap();
                let event = stream.record().unwrap();
                let module = gpu.module(feedwater::cuda::FAMILIES[0]).unwrap();
                let (pinned, managed) = (gpu.pinned(10).unwrap(), gpu.managed(10).unwrap());
                let mut all: Vec<Box<dyn std::any::Any>> = vec![
                    Box::new(gpu),
                    Box::new(reader),
                    Box::new(block),
                    Box::new(pending),
                    Box::new(stream),
                    Box::new(in_order),
                    Box::new(there),
                    Box::new(event),
                    Box::new(module),
                    Box::new(pinned),
                    Box::new(managed),
                ];
                all.rotate_left(first);
                all.into_iter().for_each(drop);
            }
            nothing_left(&session);
        }
    }
}

/// Reads of many threads, in the middle of which the device breaks down.
#[test]
fn a_device_that_breaks_down_under_many_threads() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    let bytes = data(200_000);
    for round in 0..20 {
        let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
        let reader = reader(&gpu, &bytes);
        let kind = |error: &Error| {
            assert!(
                matches!(error.kind(), ErrorKind::DeviceLost { code: 719, .. }),
                "{error}"
            );
        };
        // A thread that goes back to the context it had before tells nobody that it could not, and tries three times: four threads, 12 calls.
        session.fail_calls(40 + round * 17, 16, 719);
        thread::scope(|scope| {
            for number in 0..4u64 {
                let (gpu, reader, bytes) = (&gpu, &reader, &bytes);
                scope.spawn(move || {
                    // Until it is broken, which it soon is.
                    for turn in 0..1000 {
                        let start = number * 1000 + turn;
                        let block = match read(gpu, reader, start..start + 100_000) {
                            Ok(block) => block.into_device().unwrap(),
                            Err(error) => return kind(&error),
                        };
                        match gpu.to_host(&block) {
                            Ok(got) => {
                                assert!(got == bytes[start as usize..start as usize + 100_000])
                            }
                            Err(error) => return kind(&error),
                        }
                    }
                    panic!("it did not break");
                });
            }
        });
        assert!(gpu.memory().is_err());
        drop((gpu, reader));
        session.fail_nothing();
        nothing_left(&session);
    }
}

/// Streams, memory and reads of many threads at once, with nothing wrong.
#[test]
fn many_threads_share_a_device() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = DeviceOptions::default()
                .chunk(256 << 10)
                .pinned_block(64 << 10)
                .pinned(256 << 10)
                .open(0)
                .unwrap();
            let bytes = data(50_000);
            let reader = reader(&gpu, &bytes);
            thread::scope(|scope| {
                for number in 0..4u64 {
                    let (gpu, reader, bytes): (&Arc<Device>, _, _) = (&gpu, &reader, &bytes);
                    scope.spawn(move || {
                        let stream = gpu.stream().unwrap();
                        for turn in 0..20u64 {
                            let len = 1 + (number * 13 + turn * 997) % 40_000;
                            let block = read(gpu, reader, 0..len).unwrap().into_device().unwrap();
                            // Reused by others as soon as it is dropped.
                            let scratch = gpu.allocate_in(&stream, len as usize).unwrap();
                            let at = scratch.unfilled_ptr().addr() as u64;
                            fill(gpu, &stream, at, len as usize, number as u8);
                            let scratch = filled(scratch);
                            gpu.used_in(&stream, &scratch).unwrap();
                            let same = gpu.to_host(&scratch).unwrap();
                            assert!(same.iter().all(|byte| *byte == number as u8));
                            drop(scratch);
                            assert!(gpu.to_host(&block).unwrap() == bytes[..len as usize]);
                            drop(gpu.pinned(len as usize).unwrap());
                        }
                    });
                }
            });
            let stats = gpu.stats();
            assert_eq!((stats.in_use, stats.failed_releases), (0, 0));
            assert!(stats.pinned <= 256 << 10, "{stats:?}");
        }
        nothing_left(&session);
    }
}
