//! What is registered is given back, whoever is dropped when.

use std::time::{Duration, Instant};

use feedwater::cuda::DeviceBuffer;
use feedwater::{Batch, ErrorKind, ReadOptions, Reader};
use software_cuda_preload::cufile::Cufile;

use crate::support::*;

#[test]
fn a_hundred_readers_leave_nothing() {
    for streams in STREAMS {
        let session = session(streams);
        let cufile = Cufile::begin(&session);
        {
            let setting = Setting::new(100_000);
            for i in 0..100u64 {
                let reader = setting.required();
                setting.check(&reader, &[i..i + 50, 0..9, 10..20, 30..31, 50_000..60_000]);
                let block = reader.reusable(4096).unwrap();
                reader
                    .submit(Batch::new().read_into(0..4096, block))
                    .wait()
                    .unwrap();
                if i % 2 == 0 {
                    let pending = reader.submit(setting.any(&[0..100_000]));
                    drop(reader);
                    pending.wait().unwrap();
                }
            }
            until(&cufile, |counts| counts.handles == 0);
            let counts = cufile.counts();
            assert_eq!((counts.opened, counts.registrations), (1, 100));
            // The file is closed after that.
            let deadline = Instant::now() + SOON;
            while descriptors(&setting) > 0 {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
        }
        nothing_left(&session, &cufile);
    }
}

/// Descriptors of this process that lead to the file.
fn descriptors(setting: &Setting) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let leads = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.ok()?.path())
            .ok()
            .filter(|path| *path == setting.path)
    };
    entries.filter_map(leads).count()
}

#[test]
fn buffers_are_registered_where_they_are_used_again() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(300_000);
        let reader = setting.required();
        // Others are not.
        setting.check(&reader, &[0..100_000, 5..6]);
        assert_eq!(cufile.counts().registrations, 0);
        let mut block = reader.reusable(200_000).unwrap();
        assert!(
            block.memory().as_any().is::<DeviceBuffer>(),
            "others find it"
        );
        assert_eq!(block.place(), setting.gpu.place());
        for round in 0..3u64 {
            let tail = block.split_off(100_000);
            let batch = Batch::new()
                .read_into(round..100_000 + round, block)
                .read_into(0..100_000, tail);
            let blocks = reader.submit(batch).wait().unwrap();
            assert!(
                setting.content(&blocks[0])
                    == setting.bytes[round as usize..100_000 + round as usize]
            );
            assert!(setting.content(&blocks[1]) == setting.bytes[..100_000]);
            assert_eq!(cufile.counts().registered, 2 * (round + 1));
            drop(blocks);
            until(&cufile, |counts| counts.buffers == 0);
            block = reader.reusable(200_000).unwrap();
        }
        // The memory outlives the reader.
        drop(reader);
        until(&cufile, |counts| counts.handles == 0);
        assert_eq!(cufile.counts().buffers, 1);
        drop(block);
        assert_eq!((cufile.counts().buffers, cufile.counts().wrong), (0, 0));
        // Where there is no room to pin it, it is an ordinary one.
        let reader = setting.required();
        cufile.fail("cuFileBufRegister", 0, 5036);
        let block = reader.reusable(100_000).unwrap();
        assert_eq!(cufile.counts().buffers, 0);
        let blocks = reader
            .submit(Batch::new().read_into(0..100_000, block))
            .wait()
            .unwrap();
        assert!(setting.content(&blocks[0]) == setting.bytes[..100_000]);
        assert_eq!(reader.reusable(0).unwrap().len(), 0);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn reads_under_way_keep_what_they_need_whoever_is_dropped() {
    for streams in STREAMS {
        let session = session(streams);
        let cufile = Cufile::begin(&session);
        {
            let setting = Setting::new(40 << 20);
            let reader = setting.required();
            cufile.hold(true);
            let block = reader.reusable(100_000).unwrap();
            let batch = setting.any(&[0..40 << 20]).read_into(5..100_000, block);
            let pending = reader.submit(batch);
            let small = reader.submit(setting.any(&[0..9, 10..20, 30..31, 50..60]));
            // Three pieces of the large one, the block, and the first of the batch.
            until(&cufile, |counts| counts.waiting == 5);
            drop((pending, small, reader));
            let counts = cufile.counts();
            assert_eq!((counts.handles, counts.buffers), (1, 1));
            assert!(setting.gpu.stats().in_use >= 40 << 20);
            cufile.hold(false);
            until(&cufile, |counts| counts.leaks().is_none());
            // What nobody waited for was not begun any more.
            assert!(cufile.counts().reads <= 4, "{:?}", cufile.counts());
        }
        nothing_left(&session, &cufile);
    }
}

#[test]
fn a_deadline_holds_while_cufile_hangs() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.reader();
        for ranges in [vec![0..100_000], vec![0..9, 10..20, 30..31, 50..60]] {
            cufile.hold(true);
            let soon = Instant::now() + Duration::from_millis(20);
            let batch = setting
                .any(&ranges)
                .options(ReadOptions::default().deadline(soon));
            let pending = reader.submit(batch);
            until(&cufile, |counts| counts.waiting > 0);
            let error = pending.wait().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
            cufile.hold(false);
            until(&cufile, |counts| counts.waiting == 0 && counts.batches == 0);
        }
        setting.check(&reader, &[0..100_000]);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_batch_that_nobody_waits_for_is_given_up() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.required();
        // More calls than any machine makes before it is seen that nobody waits.
        cufile.delay(u64::MAX);
        let pending = reader.submit(setting.any(&[0..9, 10..20, 30..31, 50..60]));
        until(&cufile, |counts| counts.submits == 1);
        drop(pending);
        until(&cufile, |counts| counts.cancels == 1);
        cufile.delay(0);
        until(&cufile, |counts| counts.batches == 0);
        assert_eq!(cufile.counts().entries, 0, "none was read");
        setting.check(&reader, &[0..9, 10..20, 30..31, 50..60]);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_device_that_is_lost_gives_everything_back() {
    crate::common::alone::alone("lifetimes::lost");
}

/// In a process of its own, as such a device stays lost to it.
#[test]
#[ignore = "run by another one, in a process of its own"]
fn lost() {
    const ILLEGAL_ADDRESS: i32 = 700;
    let mut session = session("eager");
    Cufile::begin(&session);
    let setting = Setting::new(100_000);
    let reader = setting.required();
    let block = reader.reusable(4096).unwrap();
    session.fail_call(0, ILLEGAL_ADDRESS);
    assert!(setting.gpu.memory().is_err());
    let failed = failure(&reader, Batch::new().read_into(0..100, block));
    assert!(
        matches!(failed.error.kind(), ErrorKind::DeviceLost { device: 0, .. }),
        "{}",
        failed.error
    );
    for (_, outcome) in reader.submit(setting.any(&[0..9, 10..20, 30..31, 50..60])) {
        let error = outcome.unwrap_err().error;
        assert!(
            matches!(error.kind(), ErrorKind::DeviceLost { .. }),
            "{error}"
        );
    }
    drop((failed, reader));
    let cufile = Cufile::begin(&session);
    until(&cufile, |counts| counts.leaks().is_none());
}

#[test]
fn a_forked_child_is_told_so_and_leaves_the_parents_registrations_alone() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.required();
        let block = reader.reusable(4096).unwrap();
        let batches = [
            setting.any(&[0..10, 5..50_000]),
            setting.any(&[0..9, 10..20, 30..31, 50..60]),
        ];
        // SAFETY: the child waits for nothing of the parent's and leaves through `_exit`.
        #[allow(unsafe_code)]
        let status = unsafe {
            match libc::fork() {
                0 => {
                    let mut forked = 0;
                    for batch in batches {
                        for (_, outcome) in reader.submit(batch) {
                            if let Err(failed) = outcome {
                                forked +=
                                    usize::from(matches!(failed.error.kind(), ErrorKind::Forked));
                            }
                        }
                    }
                    let refused = setting
                        .open(setting.options(feedwater::gds::GdsMode::Auto))
                        .is_err();
                    drop((reader, block));
                    let left = cufile.counts();
                    let kept = (left.handles, left.buffers) == (1, 1);
                    libc::_exit(if forked == 6 && refused && kept { 0 } else { 1 })
                }
                child => {
                    let mut status = -1;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    status
                }
            }
        };
        assert_eq!(status, 0);
        setting.check(&reader, &[0..100_000]);
    }
    nothing_left(&session, &cufile);
}
