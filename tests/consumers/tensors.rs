//! A loader that wants tensors on a device, from a slow engine that knows host memory only.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use feedwater::{Batch, ErrorKind, Reader, ReaderExt, Staged, StagingOptions};

use crate::device::{DEVICE, Device, SOON, data, device_block, on_device};
use crate::slow::{Remote, RemoteOptions};

const LEN: usize = 50_000;

/// Tensors one behind the other, of awkward sizes.
fn tensors() -> Vec<std::ops::Range<u64>> {
    let mut start = 17;
    (0..12u64)
        .map(|i| {
            let range = start..start + i * i * 60 + 3;
            start = range.end + i;
            range
        })
        .collect()
}

fn staged(remote: Remote, device: Device, block: usize, depth: usize) -> Arc<dyn Reader> {
    let options = StagingOptions::default().block(block).depth(depth);
    Arc::new(Staged::new(Arc::new(remote), Arc::new(device), options))
}

#[test]
fn a_plain_engine_refuses_the_device_and_gives_the_block_back() {
    let reader = Remote::new(data(100), RemoteOptions::default());
    let batch = Batch::new()
        .any_at(0..10, DEVICE)
        .read_into(0..10, device_block(DEVICE, 10));
    let mut outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
    outcomes.sort_by_key(|(index, _)| *index);
    let blocks: Vec<_> = outcomes
        .into_iter()
        .map(|(_, outcome)| {
            let failed = outcome.unwrap_err();
            let ErrorKind::Unsupported { what } = failed.error.kind() else {
                panic!("{}", failed.error)
            };
            assert!(what.contains("memory of device 7"), "{what}");
            assert_eq!(failed.error.length(), Some(10));
            failed.dest.map(|block| block.len())
        })
        .collect();
    assert_eq!(blocks, [None, Some(10)]);
}

#[test]
fn one_arena_on_the_device_takes_all_tensors_of_a_batch() {
    let device = Device::instant();
    let gauge = device.gauge.clone();
    let reader = staged(
        Remote::new(data(LEN), RemoteOptions::default()),
        device,
        1024,
        3,
    );
    let total: u64 = tensors().iter().map(|r| r.end - r.start).sum();
    let mut arena = device_block(DEVICE, total as usize);
    let mut batch = Batch::new();
    for range in tensors() {
        let block = arena.split_to((range.end - range.start) as usize);
        batch = batch.read_into(range, block);
    }
    let blocks = reader.submit(batch).wait().unwrap();
    for (range, block) in tensors().iter().zip(&blocks) {
        let expected = &data(LEN)[range.start as usize..range.end as usize];
        assert_eq!(on_device(block), expected);
    }
    assert!((1..=3).contains(&gauge.peak()), "{}", gauge.peak());
    assert!(gauge.largest.load(Ordering::SeqCst) <= 1024);
}

#[test]
fn tensors_and_their_header_come_in_one_batch_to_a_task() {
    let reader = staged(
        Remote::new(data(LEN), RemoteOptions::default()),
        Device::instant(),
        700,
        2,
    );
    let batch = tensors()
        .into_iter()
        .fold(Batch::new().any(0..17), |batch, range| {
            batch.any_at(range, DEVICE)
        });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let blocks = runtime.block_on(reader.submit(batch)).unwrap();
    assert_eq!(blocks[0].as_host().unwrap(), &data(17));
    for (range, block) in tensors().iter().zip(&blocks[1..]) {
        let expected = &data(LEN)[range.start as usize..range.end as usize];
        assert_eq!(on_device(block), expected);
    }
    // Through the same wrapper, everything that a reader can do on the host.
    assert_eq!(
        reader
            .clone()
            .slice(5..9)
            .unwrap()
            .read_all()
            .wait()
            .unwrap(),
        data(9)[5..]
    );
}

#[test]
fn the_engine_reads_while_the_device_copies() {
    // The device ends its first copy only when the second one has been read and asked for.
    let (second, begun) = channel();
    let (first, waiting) = (std::sync::Mutex::new(None), AtomicUsize::new(0));
    let device = Device::new(move |number, copy| {
        waiting.fetch_add(1, Ordering::SeqCst);
        let mut first = first.lock().unwrap();
        match number {
            0 => *first = Some(copy),
            _ => {
                second.send(waiting.load(Ordering::SeqCst)).unwrap();
                copy.complete();
                if let Some(first) = first.take() {
                    first.complete();
                }
            }
        }
    });
    let reader = staged(
        Remote::new(data(LEN), RemoteOptions::default()),
        device,
        1000,
        2,
    );
    let pending = reader.submit(Batch::new().any_at(0..2000, DEVICE));
    assert_eq!(begun.recv_timeout(SOON).unwrap(), 2);
    assert_eq!(on_device(&pending.wait().unwrap()[0]), data(2000));
}

#[test]
fn a_failing_engine_fails_the_tensors_that_it_could_not_read() {
    let options = RemoteOptions {
        failures: 5,
        seed: 11,
        ..RemoteOptions::default()
    };
    // Blocks larger than any tensor, so that each is one request.
    let reader = staged(
        Remote::new(data(LEN), options.clone()),
        Device::instant(),
        1 << 16,
        4,
    );
    let batch = tensors()
        .into_iter()
        .fold(Batch::new(), |batch, range| batch.any_at(range, DEVICE));
    let mut failed = 0;
    for (index, outcome) in reader.submit(batch) {
        let range = &tensors()[index];
        match outcome {
            Ok(block) => {
                let expected = &data(LEN)[range.start as usize..range.end as usize];
                assert_eq!(on_device(&block), expected);
            }
            Err(error) => {
                let error = error.error;
                assert!(options.fails(range.start));
                assert!(matches!(error.kind(), ErrorKind::Io { op: "GET", .. }));
                assert_eq!(error.offset(), Some(range.start));
                assert_eq!(error.engine(), Some("slow-remote"));
                failed += 1;
            }
        }
    }
    assert!((1..12).contains(&failed), "{failed}");
}
