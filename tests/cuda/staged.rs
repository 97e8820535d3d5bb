//! Host memory that the device copies from: page-locked, however many threads write to it, and used again as soon as it can be.

use feedwater::cuda::testing::filled_at_once;
use feedwater::cuda::{Device, DeviceOptions};

use crate::support::*;

/// Bytes of a block of the ring.
const BLOCK: usize = 8 << 10;

fn with_blocks(count: usize) -> DeviceOptions {
    let options = DeviceOptions::default().pinned_block(BLOCK);
    options.pinned(count * BLOCK)
}

/// Fills buffers, and looks at what is in them. How many blocks were not page-locked.
fn unpinned(gpu: &std::sync::Arc<Device>, counts: (usize, usize, usize)) -> u64 {
    let before = gpu.stats().unpinned;
    let (buffers, threads, rounds) = counts;
    let made = filled_at_once(gpu, counts, BLOCK).unwrap();
    assert_eq!(made.len(), buffers);
    for bytes in made {
        let bytes = gpu.to_host(&bytes).unwrap();
        assert_eq!(bytes.len(), threads * rounds * BLOCK);
        for (number, piece) in bytes.chunks(BLOCK).enumerate() {
            assert!(piece.iter().all(|byte| *byte == number as u8), "{number}");
        }
    }
    gpu.stats().unpinned - before
}

/// As many blocks as there are by default, which are smaller here.
#[test]
fn two_lanes_of_sixteen_threads_have_pinned_blocks() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let default = DeviceOptions::default();
            let blocks = default.pinned / default.pinned_block;
            let gpu = with_blocks(blocks).open(0).unwrap();
            assert_eq!(unpinned(&gpu, (2, 16, 5)), 0, "{streams}");
            let pinned = gpu.stats().pinned;
            assert!(pinned <= (blocks * BLOCK) as u64, "{pinned}");
        }
        nothing_left(&session);
    }
}

/// With fewer blocks than copies that may be under way, those that were queued give theirs back.
#[test]
fn who_finds_no_block_waits_for_copies_of_its_own() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = with_blocks(1).open(0).unwrap();
            assert_eq!(unpinned(&gpu, (1, 1, 20)), 0, "{streams}");
            let gpu = with_blocks(4).open(0).unwrap();
            assert_eq!(unpinned(&gpu, (1, 4, 9)), 0, "{streams}");
        }
        nothing_left(&session);
    }
}

/// Where others have all blocks in hand, nobody waits for them: they may be waiting for us.
#[test]
fn who_has_no_copies_to_wait_for_takes_other_memory() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = with_blocks(2).open(0).unwrap();
            let found = unpinned(&gpu, (2, 4, 3));
            assert!(found >= 6, "{streams}: {found}");
            let gpu = with_blocks(0).open(0).unwrap();
            assert_eq!(unpinned(&gpu, (2, 2, 12)), 48, "{streams}");
            assert_eq!(gpu.stats().pinned, 0);
        }
        nothing_left(&session);
    }
}
