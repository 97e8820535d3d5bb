//! Calls of the driver that fail, memory that there is not, reads that nobody waits for: typed errors, and nothing left.

use std::time::{Duration, Instant};

use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions};
use feedwater::{Batch, Error, ErrorKind, ReadOptions, Reader, Result};
use software_cuda_preload::Session;

use crate::support::*;

/// Opens, reads in a few pieces, looks at it, closes.
fn scenario(bytes: &Bytes) -> Result<Vec<u8>> {
    let gpu = Device::open(0)?;
    let reader = reader(&gpu, bytes);
    let late = Instant::now() + Duration::from_secs(60);
    let batch = Batch::new()
        .any_at(0..bytes.len() as u64, gpu.place())
        .any_at(5..10, gpu.place())
        .options(ReadOptions::default().deadline(late));
    let mut blocks = reader.submit(batch).wait()?;
    let small = gpu.to_host(&blocks.remove(1).into_device()?)?;
    assert_eq!(small, bytes[5..10]);
    gpu.to_host(&blocks.remove(0).into_device()?)
}

fn is_of_cuda(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Cuda { .. }
            | ErrorKind::DeviceLost { .. }
            | ErrorKind::OutOfMemory { .. }
            | ErrorKind::Unavailable { .. }
            | ErrorKind::Forked
    )
}

/// Runs the scenario with a failure at each index, until it is past the end. How many of them failed.
fn at_each_index(streams: &str, inject: impl Fn(&mut Session, u64)) -> u64 {
    let mut session = session(streams);
    let bytes = data(200_000);
    let before = session.counts();
    assert_eq!(scenario(&bytes).unwrap(), bytes);
    nothing_left(&session);
    // Threads take turns, so that the number of calls is not always the same.
    let most = session.counts().calls - before.calls + 20;
    let mut failed = 0;
    for index in 0..most {
        inject(&mut session, index);
        match scenario(&bytes) {
            Ok(got) => assert_eq!(got, bytes, "{streams}, index {index}"),
            Err(error) => {
                assert!(is_of_cuda(&error), "{streams}, index {index}: {error}");
                failed += 1;
            }
        }
        session.fail_nothing();
        nothing_left(&session);
    }
    assert_eq!(scenario(&bytes).unwrap(), bytes);
    nothing_left(&session);
    failed
}

#[test]
fn an_error_at_every_call() {
    if !is_software(&session("eager")) {
        return;
    }
    for streams in STREAMS {
        // Invalid value: of this call alone. An illegal address: of everything from now on. Not known here.
        for code in [1, 700, 98_765] {
            let failed = at_each_index(streams, |session, index| session.fail_call(index, code));
            assert!(failed > 20, "{streams} {code}: {failed}");
        }
    }
}

#[test]
fn no_memory_at_every_allocation() {
    if !is_software(&session("eager")) {
        return;
    }
    for streams in STREAMS {
        let failed = at_each_index(streams, Session::fail_allocation);
        // Memory that cannot be pinned, and a chunk that cannot be had where less would do, are no errors.
        assert!((3..30).contains(&failed), "{streams}: {failed}");
    }
}

#[test]
fn a_lost_device_says_so_from_then_on_and_gives_back_what_it_has() {
    let mut session = session("lazy");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = Device::open(0).unwrap();
        let bytes = data(200_000);
        let reader = reader(&gpu, &bytes);
        let block = read(&gpu, &reader, 0..200_000).unwrap();
        session.fail_call(0, 719);
        let error = gpu.memory().unwrap_err();
        let lost = |error: &Error| {
            matches!(
                error.kind(),
                ErrorKind::DeviceLost {
                    device: 0,
                    code: 719,
                    ..
                }
            )
        };
        assert!(lost(&error), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("device 0 is lost to this process: "),
            "{text}"
        );
        assert!(text.contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{text}");
        // By every other call, although the driver would take them.
        assert!(lost(&gpu.allocate(5).unwrap_err()));
        assert!(lost(&gpu.stream().unwrap_err()));
        assert!(lost(
            &gpu.to_host(&block.into_device().unwrap()).unwrap_err()
        ));
        let failed = read(&gpu, &reader, 0..100).unwrap_err();
        assert!(lost(&failed), "{failed}");
        assert_eq!(failed.name(), Some("bytes"));
    }
    nothing_left(&session);
    // The host's memory does it still, and so does the device when it is opened anew.
    let bytes = data(1000);
    assert_eq!(scenario(&bytes).unwrap(), bytes);
    nothing_left(&session);
}

#[test]
fn the_callers_block_comes_back_with_the_error() {
    let mut session = session("eager");
    if !is_software(&session) {
        return;
    }
    {
        let gpu = Device::open(0).unwrap();
        let bytes = data(100);
        let reader = reader(&gpu, &bytes);
        // Once, so that what is made at first is there.
        read(&gpu, &reader, 0..100).unwrap();
        let block = gpu.allocate(100).unwrap();
        let at = block.unfilled_ptr();
        // The copy itself: asking for the context comes before it.
        session.fail_call(2, 1);
        let batch = Batch::new().read_into(0..100, block);
        let mut outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
        let failed = outcomes.remove(0).1.unwrap_err();
        assert!(
            matches!(failed.error.kind(), ErrorKind::Cuda { code: 1, .. }),
            "{failed:?}"
        );
        let block = failed.dest.unwrap();
        assert_eq!((block.unfilled_ptr(), block.filled_len()), (at, 0));
        session.fail_nothing();
        let batch = Batch::new().read_into(0..100, block);
        let blocks = reader.submit(batch).wait().unwrap();
        assert_eq!(on_device(&gpu, &blocks[0]), bytes);
    }
    nothing_left(&session);
}

#[test]
fn reads_that_nobody_waits_for_leave_memory_to_others_only_when_their_copies_are_done() {
    for streams in STREAMS {
        let session = session(streams);
        {
            // Little memory, so that what is given back is used again at once.
            let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
            let (bytes, others) = (data(50_000), Bytes::from(vec![0xdd; 50_000]));
            let (wanted, unwanted) = (reader(&gpu, &bytes), reader(&gpu, &others));
            for len in (0..60).map(|turn| 1 + turn * 800) {
                for _ in 0..3 {
                    drop(unwanted.submit(Batch::new().any_at(0..len, gpu.place())));
                }
                let block = read(&gpu, &wanted, 0..len).unwrap();
                assert_eq!(
                    on_device(&gpu, &block),
                    bytes[..len as usize],
                    "{streams} {len}"
                );
            }
            // And with all of it gone before a copy is done.
            drop(unwanted.submit(Batch::new().any_at(0..50_000, gpu.place())));
        }
        nothing_left(&session);
    }
}

#[test]
fn a_hundred_times_open_and_close() {
    for streams in STREAMS {
        let session = session(streams);
        let bytes = data(1000);
        for _ in 0..100 {
            assert_eq!(scenario(&bytes).unwrap(), bytes);
        }
        nothing_left(&session);
    }
}
