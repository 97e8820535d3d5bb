//! Reads to the device, through the public interface.

use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::{Batch, ErrorKind, OpenOptions, Place, Reader, ReaderExt, StagingOptions};

use crate::support::*;

#[test]
fn a_file_arrives_in_device_memory() {
    for streams in STREAMS {
        let session = session(streams);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes = data(9 << 20);
        std::fs::write(&path, &bytes).unwrap();
        {
            let gpu = Device::open(0).unwrap();
            let options = OpenOptions::new().device(gpu.clone());
            let reader = options.open(&path).unwrap();
            let block = read(&gpu, &reader, 0..reader.len()).unwrap();
            assert_eq!(on_device(&gpu, &block), bytes, "{streams}");
            // And as before into the host's memory.
            assert_eq!(reader.read(5..500).wait().unwrap(), bytes[5..500]);
            let report = reader.report();
            assert_eq!(report.counters.bounced, bytes.len() as u64);
            let fact = report
                .facts
                .iter()
                .find(|(name, _)| *name == "to the device");
            let said = &fact.unwrap().1;
            assert!(
                said.starts_with(&format!("{} (device 0): ", gpu.info().name)),
                "{said}"
            );
            assert!(
                said.ends_with("9437184 bytes through pinned memory"),
                "{said}"
            );
        }
        nothing_left(&session);
    }
}

#[test]
fn ranges_of_all_sizes_and_ways_to_wait() {
    let bytes = data(300_001);
    for streams in STREAMS {
        for guard in [Guard::None, Guard::Gaps, Guard::Separate] {
            let session = session(streams);
            {
                let gpu = DeviceOptions::default().guard(guard).open(0).unwrap();
                let reader = reader(&gpu, &bytes);
                let ranges = [
                    0..0,
                    0..1,
                    7..65_543,
                    65_536..131_072,
                    300_000..300_001,
                    0..300_001,
                ];
                let batch = ranges.iter().fold(Batch::new(), |batch, range| {
                    batch.any_at(range.clone(), gpu.place())
                });
                // As a task, one after the other, and whole.
                let blocks = futures::executor::block_on(reader.submit(batch)).unwrap();
                for (block, range) in blocks.iter().zip(&ranges) {
                    let wanted = &bytes[range.start as usize..range.end as usize];
                    assert_eq!(
                        on_device(&gpu, block),
                        wanted,
                        "{streams} {guard:?} {range:?}"
                    );
                }
                let stats = gpu.stats();
                let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                assert_eq!(
                    (stats.in_use, stats.overruns, stats.failed_releases),
                    (all, 0, 0)
                );
            }
            nothing_left(&session);
        }
    }
}

#[test]
fn one_block_of_many_parts_is_filled_behind_what_is_there() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let bytes = data(200_000);
            let reader = reader(&gpu, &bytes);
            let mut arena = gpu.allocate(150_000).unwrap();
            let first = arena.split_to(50_000);
            let batch = Batch::new()
                .read_into(100..50_100, first)
                .read_into(60_000..160_000, arena)
                .read_into(5..5, gpu.allocate(9).unwrap());
            let blocks = reader.submit(batch).wait().unwrap();
            assert_eq!(on_device(&gpu, &blocks[0]), bytes[100..50_100]);
            assert_eq!(on_device(&gpu, &blocks[1]), bytes[60_000..160_000]);
            assert_eq!(on_device(&gpu, &blocks[2]), b"");
            // A part of the bytes keeps all of the memory.
            let part = blocks[1].clone().into_device().unwrap().slice(10..20);
            drop(blocks);
            assert_eq!(gpu.to_host(&part).unwrap(), bytes[60_010..60_020]);
        }
        nothing_left(&session);
    }
}

#[test]
fn pinned_memory_is_a_destination_of_any_reader() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = data(100_000);
        let block = gpu.pinned(100_000).unwrap();
        assert_eq!(block.place(), Place::Pinned);
        let plain = OpenOptions::new()
            .open_bytes(bytes.clone(), "bytes")
            .unwrap();
        let batch = Batch::new().read_into(0..100_000, block);
        let blocks = plain.submit(batch).wait().unwrap();
        assert_eq!(blocks[0].as_host().unwrap(), &bytes);
        // One that was not given a device refuses its memory, and says which.
        let error = read(&gpu, &plain, 0..5).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }));
        assert!(error.to_string().contains("memory of device 0"), "{error}");
    }
    nothing_left(&session);
}

#[test]
fn staging_blocks_larger_than_the_rings_are_pinned_too_up_to_its_bound() {
    let session = session("eager");
    {
        let options = DeviceOptions::default()
            .pinned_block(64 << 10)
            .pinned(1 << 20);
        let gpu = options.open(0).unwrap();
        let bytes = data(4 << 20);
        let staging = |block: usize| {
            let staging = StagingOptions::default().block(block).depth(4);
            let options = OpenOptions::new().device(gpu.clone()).staging(staging);
            options.open_bytes(bytes.clone(), "bytes").unwrap()
        };
        for (block, pinned) in [(64 << 10, true), (256 << 10, true), (2 << 20, false)] {
            let before = gpu.stats().unpinned;
            let got = read(&gpu, &staging(block), 0..4 << 20).unwrap();
            assert_eq!(on_device(&gpu, &got), bytes);
            let stats = gpu.stats();
            assert_eq!(stats.unpinned == before, pinned, "{block} {stats:?}");
            assert!(stats.pinned <= 1 << 20, "{stats:?}");
        }
    }
    nothing_left(&session);
}
