//! Single reads: sizes, destinations, and what goes wrong.

use std::fs::File;
use std::sync::Arc;

use feedwater::cuda::{DeviceBuffer, DeviceOptions};
use feedwater::gds::{Gds, GdsMode, GdsState};
use feedwater::{
    Batch, CounterSnapshot, ErrorKind, MemoryReader, OpenOptions, Place, Reader, ReaderExt, Route,
};
use software_cuda_preload::cufile::Cufile;

use crate::support::*;

const MIB: u64 = 1 << 20;

fn counters(reader: &Reading) -> CounterSnapshot {
    reader.source().counters().snapshot()
}

#[test]
fn ranges_of_all_sizes_go_by_cufile_and_aligned() {
    for streams in STREAMS {
        let session = session(streams);
        let cufile = Cufile::begin(&session);
        {
            let setting = Setting::new(33 << 20 | 77);
            let reader = setting.required();
            let len = reader.len();
            // One by one, so that none of them are a batch. The fifth has three pieces.
            for range in [
                0..1,
                4095..4097,
                4096..8192,
                70_000..300_001,
                5..len,
                len - 1..len,
                16 * MIB..32 * MIB,
            ] {
                setting.check(&reader, &[range]);
            }
            let report = reader.report();
            assert_eq!(report.state, GdsState::PeerToPeer);
            assert_eq!((report.reads, report.elsewhere, report.why), (7, 0, None));
            let counters = counters(&reader);
            assert_eq!(
                (counters.route(Route::Gds), counters.bounced, counters.reads),
                (report.bytes, 0, 7)
            );
            assert!(counters.wasted < 7 * 8192, "{counters:?}");
            let counts = cufile.counts();
            assert_eq!((counts.reads, counts.unaligned, counts.entries), (9, 0, 0));
            // And as before into the host's memory.
            assert_eq!(reader.read(5..500).wait().unwrap(), setting.bytes[5..500]);
        }
        nothing_left(&session, &cufile);
    }
}

#[test]
fn blocks_of_the_caller_are_filled_behind_what_is_there() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(200_000);
        let reader = setting.required();
        let mut arena = setting.block(150_000);
        let first = arena.split_to(50_001);
        let blocks = reader
            .submit(Batch::new().read_into(100..50_100, first))
            .wait()
            .unwrap();
        let second = reader
            .submit(Batch::new().read_into(60_000..159_999, arena))
            .wait()
            .unwrap();
        assert!(setting.content(&blocks[0]) == setting.bytes[100..50_100]);
        assert!(setting.content(&second[0]) == setting.bytes[60_000..159_999]);
        // This one is aligned, and takes no detour.
        let mut block = setting.block(9000);
        let whole = reader
            .submit(Batch::new().read_into(0..4096, block.split_to(4096)))
            .wait()
            .unwrap();
        assert!(setting.content(&whole[0]) == setting.bytes[..4096]);
        assert_eq!(counters(&reader).bounced, 50_000 + 99_999);
        // Nothing is asked for nothing.
        let empty = reader
            .submit(
                Batch::new()
                    .read_into(7..7, block)
                    .any_at(9..9, setting.gpu.place()),
            )
            .wait()
            .unwrap();
        assert_eq!((empty[0].len(), empty[1].len()), (0, 0));
        assert_eq!(reader.report().reads, 3);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_batch_may_mix_everything() {
    for streams in STREAMS {
        let session = session(streams);
        let cufile = Cufile::begin(&session);
        {
            let setting = Setting::new(300_000);
            let reader = setting.reader();
            let device = setting.gpu.place();
            let batch = Batch::new()
                .any(0..10)
                .any_at(10..200_000, device)
                .prefetch(40..50)
                .any_at(90..300_001, device)
                .read_into(50..60, feedwater::BlockMut::with_capacity(16))
                .read_into(0..9, setting.block(8))
                .any_at(0..9, Place::Device(5))
                .read_into(5..100_000, setting.block(100_000));
            let mut outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
            outcomes.sort_by_key(|(index, _)| *index);
            let mut outcomes = outcomes.into_iter().map(|(_, outcome)| outcome);
            let mut next = || outcomes.next().unwrap();
            assert_eq!(next().unwrap().into_host().unwrap(), setting.bytes[..10]);
            assert!(setting.content(&next().unwrap()) == setting.bytes[10..200_000]);
            assert_eq!(next().unwrap().len(), 0);
            let failed = next().unwrap_err().error;
            assert!(
                matches!(failed.kind(), ErrorKind::OutOfBounds { len: 300_000 }),
                "{failed}"
            );
            assert_eq!(next().unwrap().into_host().unwrap(), setting.bytes[50..60]);
            let failed = next().unwrap_err();
            assert!(matches!(
                failed.error.kind(),
                ErrorKind::DestinationTooSmall { room: 8, wanted: 9 }
            ));
            assert_eq!(failed.dest.unwrap().len(), 8);
            // A device that nobody gave.
            let failed = next().unwrap_err().error;
            assert!(
                matches!(failed.kind(), ErrorKind::Unsupported { .. }),
                "{failed}"
            );
            assert!(setting.content(&next().unwrap()) == setting.bytes[5..100_000]);
            assert_eq!((reader.report().reads, reader.report().elsewhere), (2, 0));
        }
        nothing_left(&session, &cufile);
    }
}

#[test]
fn what_cufile_fails_goes_the_other_way_and_is_reported() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(40 << 20);
        let reader = setting.reader();
        // The second piece of a large one, and a block of the caller's.
        cufile.fail("cuFileRead", 1, 5011);
        setting.check(&reader, &[3..40 * MIB]);
        let report = reader.report();
        assert_eq!((report.elsewhere, report.reads), (1, 0));
        assert_eq!(
            report.why.as_deref(),
            Some("cuFileRead failed: CUDA driver error (5011)")
        );
        cufile.fail("cuFileRead", 0, 5012);
        let block = setting.block(100_000);
        let blocks = reader
            .submit(Batch::new().read_into(77..100_000, block))
            .wait()
            .unwrap();
        assert!(setting.content(&blocks[0]) == setting.bytes[77..100_000]);
        // One that goes well, and the count begins again.
        setting.check(&reader, &[0..100]);
        for _ in 0..2 {
            cufile.fail("cuFileRead", 0, 5036);
            setting.check(&reader, &[0..100_000]);
        }
        assert_eq!(reader.report().state, GdsState::PeerToPeer);
        cufile.fail("cuFileRead", 0, 5036);
        setting.check(&reader, &[0..100_000]);
        let report = reader.report();
        assert!(
            matches!(&report.state, GdsState::Off { why } if why.contains("memory cannot be pinned")),
            "{report}"
        );
        assert_eq!((report.reads, report.elsewhere), (1, 5));
        // From now on nothing is asked of it.
        let before = cufile.counts().reads;
        setting.check(&reader, &[0..100_000]);
        assert_eq!(
            (cufile.counts().reads, reader.report().elsewhere),
            (before, 6)
        );
    }
    nothing_left(&session, &cufile);
}

#[test]
fn required_a_failure_is_an_error_that_says_where() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.required();
        cufile.fail("cuFileRead", 0, 5011);
        let failed = failure(
            &reader,
            Batch::new().read_into(7..50_000, setting.block(60_000)),
        );
        let ErrorKind::Cuda {
            call: "cuFileRead",
            code: 5011,
            name,
            ..
        } = failed.error.kind()
        else {
            panic!("{}", failed.error)
        };
        assert_eq!(&**name, "CUDA driver error");
        assert_eq!(
            (
                failed.error.offset(),
                failed.error.length(),
                failed.error.engine()
            ),
            (Some(7), Some(49_993), Some("gds"))
        );
        assert!(failed.error.name().unwrap().ends_with("/file"));
        let block = failed.dest.unwrap();
        assert_eq!((block.len(), block.filled_len()), (60_000, 0));
        // The reader goes on.
        let blocks = reader
            .submit(Batch::new().read_into(7..50_000, block))
            .wait()
            .unwrap();
        assert!(setting.content(&blocks[0]) == setting.bytes[7..50_000]);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn errors_of_the_system_are_those_of_the_read() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.reader();
        cufile.fail("cuFileRead", 0, libc::EIO);
        let failed = failure(&reader, setting.any(&[7..50_000]));
        let ErrorKind::Io {
            op: "cuFileRead",
            source,
        } = failed.error.kind()
        else {
            panic!("{}", failed.error)
        };
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        assert_eq!(reader.report().elsewhere, 0);
        // A signal is none.
        cufile.fail("cuFileRead", 0, libc::EINTR);
        setting.check(&reader, &[7..50_000]);
        assert_eq!(counters(&reader).retried, 1);
        assert_eq!(reader.report().elsewhere, 0);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn short_reads_are_finished() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(20 << 20);
        let reader = setting.required();
        cufile.shorten(0, 4097);
        setting.check(&reader, &[1..100_000]);
        cufile.shorten(1, 1);
        setting.check(&reader, &[5..20 * MIB]);
        assert_eq!((counters(&reader).retried, reader.report().reads), (2, 2));
        // Enough for what was asked for, less than what lies around it.
        cufile.shorten(0, 5000);
        setting.check(&reader, &[4096..9000]);
        assert_eq!(counters(&reader).retried, 2);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_file_that_changes_is_an_error_that_names_both_versions() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.reader();
        setting.check(&reader, &[0..100_000]);
        let file = File::options().write(true).open(&setting.path).unwrap();
        file.set_len(50_000).unwrap();
        for range in [0..100_000, 60_000..60_001, 0..10] {
            let failed = failure(&reader, setting.any(&[range]));
            let ErrorKind::Changed { opened, found } = failed.error.kind() else {
                panic!("{}", failed.error)
            };
            assert_eq!((opened.size(), found.size()), (100_000, 50_000));
        }
        assert_eq!(reader.report().elsewhere, 0);
        // The same of small ones in a batch.
        let outcomes = reader.submit(setting.any(&[0..9, 10..20, 99_000..99_009, 50..70, 70..90]));
        for (_, outcome) in outcomes {
            assert!(matches!(
                outcome.unwrap_err().error.kind(),
                ErrorKind::Changed { .. }
            ));
        }
    }
    nothing_left(&session, &cufile);
}

#[test]
fn earlier_uses_of_the_memory_are_waited_for() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let reader = setting.required();
        let stream = setting.gpu.stream().unwrap();
        let overwritten = |len: usize| {
            let block = setting.block(len);
            let buffer = block
                .memory()
                .as_any()
                .downcast_ref::<DeviceBuffer>()
                .unwrap();
            fill(buffer.address(), len, stream.raw());
            buffer.used_by(stream.record().unwrap());
            block
        };
        let alone = Batch::new().read_into(0..100_000, overwritten(100_000));
        let alone = reader.submit(alone).wait().unwrap();
        let mut small = Batch::new();
        for i in 0..5u64 {
            small = small.read_into(i * 100..i * 100 + 50, overwritten(50));
        }
        let small = reader.submit(small).wait().unwrap();
        stream.synchronize().unwrap();
        assert!(setting.content(&alone[0]) == setting.bytes);
        for (i, block) in small.iter().enumerate() {
            assert!(
                setting.content(block) == setting.bytes[i * 100..i * 100 + 50],
                "{i}"
            );
        }
    }
    nothing_left(&session, &cufile);
}

/// Queues a fill with a byte that no test expects.
#[allow(unsafe_code)]
fn fill(address: u64, len: usize, stream: *mut std::ffi::c_void) {
    use cudarc::driver::sys;
    // SAFETY: memory of the device that nobody else uses, and a stream of it; a context is set for the time of the call.
    unsafe {
        let mut context = std::ptr::null_mut();
        let before = sys::cuCtxGetCurrent(&mut context);
        assert_eq!(before, sys::CUresult::CUDA_SUCCESS);
        let mut primary = std::ptr::null_mut();
        assert_eq!(
            sys::cuDevicePrimaryCtxRetain(&mut primary, 0),
            sys::CUresult::CUDA_SUCCESS
        );
        sys::cuCtxSetCurrent(primary);
        let queued = sys::cuMemsetD8Async(address, 0xCC, len, stream.cast());
        assert_eq!(queued, sys::CUresult::CUDA_SUCCESS);
        sys::cuCtxSetCurrent(context);
        sys::cuDevicePrimaryCtxRelease_v2(0);
    }
}

#[test]
fn memory_that_a_drive_cannot_reach_goes_the_other_way() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let stream = setting.gpu.stream().unwrap();
        let pooled = || setting.gpu.allocate_in(&stream, 50_000).unwrap();
        let reader = setting.reader();
        let blocks = reader
            .submit(Batch::new().read_into(9..50_000, pooled()))
            .wait()
            .unwrap();
        assert!(setting.content(&blocks[0]) == setting.bytes[9..50_000]);
        let report = reader.report();
        assert_eq!((report.reads, report.elsewhere), (0, 1));
        assert_eq!(
            report.why.as_deref(),
            Some("memory that a drive cannot reach")
        );
        let failed = failure(
            &setting.required(),
            Batch::new().read_into(9..50_000, pooled()),
        );
        assert!(
            matches!(failed.error.kind(), ErrorKind::Unsupported { .. }),
            "{}",
            failed.error
        );
        assert_eq!(failed.dest.unwrap().len(), 50_000);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn without_room_on_the_device_the_read_says_so() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(2 << 20);
        let gpu = DeviceOptions::default().memory(1 << 20).open(0).unwrap();
        let options = setting.options(GdsMode::Require);
        let reader = Gds::new(staged(&setting.path, &gpu), &gpu, options).unwrap();
        let failed = failure(&reader, setting.any(&[0..2 * MIB]));
        assert!(
            matches!(failed.error.kind(), ErrorKind::OutOfMemory { cap, .. } if *cap == MIB),
            "{}",
            failed.error
        );
        // Many small ones that are too much together, beside one that has its memory.
        let mut batch = setting.any(&vec![0..60_000; 40]);
        batch = batch.read_into(0..9, gpu.allocate(9).unwrap());
        let outcomes: Vec<_> = reader.submit(batch).into_iter().collect();
        let done: Vec<_> = outcomes
            .iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|(index, _)| *index)
            .collect();
        assert_eq!((outcomes.len(), done), (41, vec![40]));
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_reader_without_a_file_is_served_as_before() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100);
        let below = Arc::new(MemoryReader::new(setting.bytes.clone()));
        let staged = feedwater::Staged::new(below, setting.gpu.clone(), Default::default());
        let staged = Arc::new(staged);
        let options = setting.options(GdsMode::Auto);
        let reader = Gds::new(staged.clone(), &setting.gpu, options).unwrap();
        setting.check(&reader, &[0..100, 5..6]);
        let report = reader.report();
        assert!(
            matches!(&report.state, GdsState::Off { why } if &**why == "the reader is not one of a local file"),
            "{report}"
        );
        assert_eq!(report.elsewhere, 2);
        let options = setting.options(GdsMode::Require);
        let error = Gds::new(staged, &setting.gpu, options).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable { engine: "gds", .. }),
            "{error}"
        );
    }
    nothing_left(&session, &cufile);
}

#[test]
fn a_slice_of_a_file_begins_where_it_begins() {
    let session = session("eager");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(100_000);
        let below = feedwater::open(&setting.path).unwrap();
        let slice = Arc::new(below.slice(5000..90_000).unwrap());
        let staged = feedwater::Staged::new(slice, setting.gpu.clone(), Default::default());
        let options = setting.options(GdsMode::Require);
        let reader = Gds::new(Arc::new(staged), &setting.gpu, options).unwrap();
        for range in [0..85_000, 3..4, 84_999..85_000] {
            let blocks = reader
                .submit(setting.any(std::slice::from_ref(&range)))
                .wait()
                .unwrap();
            assert!(
                setting.content(&blocks[0])
                    == *setting.wanted(&(range.start + 5000..range.end + 5000))
            );
        }
        assert_eq!(reader.report().reads, 3);
    }
    nothing_left(&session, &cufile);
}

#[test]
fn open_puts_cufile_in_front_of_the_way_through_the_host() {
    let session = session("lazy");
    let cufile = Cufile::begin(&session);
    {
        let setting = Setting::new(3 << 20);
        let open = || {
            let options = setting.options(GdsMode::Auto);
            OpenOptions::new().device(setting.gpu.clone()).gds(options)
        };
        let reader = open().open(&setting.path).unwrap();
        setting.check(&*reader, &[5..3 << 20]);
        let report = reader.report();
        assert_eq!(report.route(), Some(Route::Gds));
        assert_eq!(report.counters.bounced, 0);
        let fact = |report: &feedwater::Report| {
            let found = report
                .facts
                .iter()
                .find(|(name, _)| *name == "to the device");
            found.unwrap().1.clone()
        };
        assert!(
            fact(&report).contains(" (device 0): cuFile (peer-to-peer; "),
            "{report}"
        );
        assert!(fact(&report).ends_with("; 0 bytes through pinned memory"));
        let gds = |report: &feedwater::Report| {
            let mut candidates = report.candidates.iter();
            let found = candidates.find(|candidate| candidate.route == Route::Gds);
            let found = found.unwrap();
            (found.verdict.to_string(), found.bytes)
        };
        assert_eq!(gds(&report), ("used".into(), (3 << 20) - 5));
        // The host's memory as before, and what is no file.
        assert_eq!(reader.read(7..90).wait().unwrap(), setting.bytes[7..90]);
        let memory = open().open_bytes(setting.bytes.clone(), "bytes").unwrap();
        setting.check(&*memory, &[5..100]);
        let report = memory.report();
        let why = "the reader is not one of a local file";
        assert!(fact(&report).contains(&format!("off: {why}")), "{report}");
        assert_eq!(fact(&report).matches(why).count(), 1, "{report}");
        assert!(fact(&report).ends_with("; 95 bytes through pinned memory"));
        assert!(gds(&report).0.contains(why), "{report}");
        // One that goes the other way.
        cufile.fail("cuFileRead", 0, 5011);
        setting.check(&*reader, &[0..100_000]);
        let said = fact(&reader.report());
        assert!(
            said.ends_with(
                "1 read went another way: cuFileRead failed: CUDA driver error (5011); 100000 bytes through pinned memory"
            ),
            "{said}"
        );
        let required = open().gds(setting.options(GdsMode::Require));
        let error = required
            .open_bytes(setting.bytes.clone(), "bytes")
            .unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable { engine: "gds", .. }),
            "{error}"
        );
    }
    nothing_left(&session, &cufile);
}
