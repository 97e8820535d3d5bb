//! Opening: what can be opened, what is refused, and what is chosen.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::LOWER_FILE;
use common::skip::require;
use feedwater::{
    Batch, CachePolicy, Engine, EngineOptions, ErrorKind, FileKind, OpenOptions, Opened,
    PoolOptions, Reader, ReaderExt, Refusal, Route, Verdict, Version,
};
use tempfile::TempDir;

fn dir_with(content: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, content).unwrap();
    (dir, path)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096) as u8).collect()
}

fn kind(result: feedwater::Result<Arc<Opened>>) -> FileKind {
    match result.unwrap_err().kind() {
        ErrorKind::NotAFile { what } => *what,
        other => panic!("{other}"),
    }
}

fn only(route: Route, path: &Path) -> Arc<Opened> {
    OpenOptions::new().only(route).open(path).unwrap()
}

#[test]
fn every_route_reads_the_same_bytes() {
    let content = pattern(100_000);
    let (_dir, path) = dir_with(&content);
    // SAFETY: nobody changes the file.
    let promised = unsafe { OpenOptions::new().assume_immutable() };
    let mut readers = vec![
        feedwater::open(&path).unwrap(),
        only(Route::Pread, &path),
        promised.open(&path).unwrap(),
        promised.clone().only(Route::Mmap).open(&path).unwrap(),
        OpenOptions::new()
            .cache(CachePolicy::DropBehind)
            .open(&path)
            .unwrap(),
    ];
    let direct = OpenOptions::new().only(Route::PreadDirect).open(&path);
    readers.extend(require("odirect", direct));
    for reader in readers {
        assert_eq!(reader.read_all().wait().unwrap(), content, "{reader:?}");
        for range in [0..1, 511..513, 4095..4097, 99_999..100_000, 5..90_005] {
            let expect = &content[range.start as usize..range.end as usize];
            assert_eq!(reader.read(range.clone()).wait().unwrap(), expect);
            let mut buf = vec![0; expect.len()];
            reader.read_at(range.start, &mut buf).unwrap();
            assert_eq!(buf, expect);
        }
    }
}

#[test]
fn other_kinds_of_files_are_refused_and_nothing_waits() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(kind(feedwater::open(dir.path())), FileKind::Directory);
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(kind(feedwater::open(&fifo)), FileKind::Fifo);
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert_eq!(kind(feedwater::open(&socket)), FileKind::Socket);
    assert_eq!(
        kind(feedwater::open("/dev/zero")),
        FileKind::CharacterDevice
    );
    let link = dir.path().join("loop");
    symlink(&link, &link).unwrap();
    let error = feedwater::open(&link).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Io { op: "open", .. }),
        "{error}"
    );
}

#[test]
fn a_missing_path_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nothing here");
    let error = feedwater::open(&path).unwrap_err();
    assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound);
    assert_eq!(error.name(), path.to_str());
}

#[test]
fn an_empty_file_is_empty_and_a_pseudo_file_is_not() {
    let (_dir, path) = dir_with(b"");
    for reader in [feedwater::open(&path).unwrap(), only(Route::Pread, &path)] {
        assert_eq!(reader.source().len(), 0);
        assert!(reader.read_all().wait().unwrap().is_empty());
    }
    let procfs = fs::metadata("/proc/self/limits").map(|meta| assert_eq!(meta.len(), 0));
    if require("procfs", procfs).is_none() {
        return;
    }
    let limits = feedwater::open("/proc/self/limits").unwrap();
    let bytes = limits.read_all().wait().unwrap();
    assert!(bytes.starts_with(b"Limit"), "{bytes:?}");
    assert_eq!(limits.report().route(), Some(Route::Memory));
    let error = OpenOptions::new()
        .only(Route::Pread)
        .open("/proc/self/limits")
        .unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::Unavailable {
            engine: "pread",
            why: Refusal::NotForThisFile { .. }
        }
    ));
    // A file of sysfs says 4096 and gives a few bytes.
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    if cfg!(not(feedwater_portable))
        && let Ok(expect) = fs::read(path)
    {
        assert_eq!(
            feedwater::open(path).unwrap().read_all().wait().unwrap(),
            expect
        );
    }
}

#[test]
fn mapping_needs_the_promise() {
    let (_dir, path) = dir_with(b"bytes");
    let error = OpenOptions::new()
        .only(Route::Mmap)
        .open(&path)
        .unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::Unavailable {
            engine: "mmap",
            why: Refusal::NeedsPromise
        }
    ));
    let reader = feedwater::open(&path).unwrap();
    reader.read_all().wait().unwrap();
    assert_eq!(reader.source().counters().snapshot().route(Route::Mmap), 0);
    // SAFETY: nobody changes the file.
    let reader = unsafe { OpenOptions::new().assume_immutable() }
        .open(&path)
        .unwrap();
    let (a, b) = (
        reader.read(0..3).wait().unwrap(),
        reader.read(0..3).wait().unwrap(),
    );
    assert_eq!(a.as_ptr(), b.as_ptr(), "both are views of the same page");
    assert_eq!(reader.report().route(), Some(Route::Mmap));
}

#[test]
fn a_route_that_reads_no_files_is_refused() {
    let (_dir, path) = dir_with(b"bytes");
    for route in [Route::Memory, Route::Other] {
        let error = OpenOptions::new().only(route).open(&path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable { .. }),
            "{error}"
        );
    }
    let bytes = OpenOptions::new().open_bytes("abc", "name").unwrap();
    assert_eq!(bytes.read(1..2).wait().unwrap(), "b");
    let error = OpenOptions::new()
        .only(Route::Pread)
        .open_bytes("abc", "name")
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable { .. }),
        "{error}"
    );
}

#[test]
fn bypassing_the_cache_excludes_the_ways_through_it() {
    let (_dir, path) = dir_with(b"bytes");
    let error = OpenOptions::new()
        .cache(CachePolicy::Bypass)
        .only(Route::Pread)
        .open(&path)
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable { .. }),
        "{error}"
    );
}

#[test]
fn an_open_file_is_taken_and_its_position_left_alone() {
    use std::io::{Read, Seek, SeekFrom};
    let (_dir, path) = dir_with(b"0123456789");
    let mut file = File::open(&path).unwrap();
    file.seek(SeekFrom::Start(4)).unwrap();
    let shared = OwnedFd::from(file.try_clone().unwrap());
    let reader = OpenOptions::new().open_file(shared, "a name").unwrap();
    assert_eq!(reader.read(2..5).wait().unwrap(), "234");
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "456789");
    assert_eq!(&**reader.source().name(), "a name");
    let unreadable = File::options().write(true).open(&path).unwrap();
    let error = OpenOptions::new().open_file(unreadable, "w").unwrap_err();
    let ErrorKind::Io { source, .. } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(source.raw_os_error(), Some(libc::EBADF));
}

#[test]
fn opening_elsewhere_gives_the_same() {
    let (_dir, path) = dir_with(b"bytes");
    let reader = feedwater::open_async(&path).wait().unwrap();
    assert_eq!(reader.read_all().wait().unwrap(), "bytes");
    let reader = futures::executor::block_on(feedwater::open_async(&path)).unwrap();
    assert_eq!(
        futures::executor::block_on(reader.read_all()).unwrap(),
        "bytes"
    );
    let missing = path.with_extension("missing");
    let error = feedwater::open_async(&missing).wait().unwrap_err();
    assert_eq!(error.io_kind(), std::io::ErrorKind::NotFound);
    drop(feedwater::open_async(&path));
}

#[test]
fn changed_content_is_an_error_that_names_both_versions() {
    let content = pattern(50_000);
    let (_dir, path) = dir_with(&content);
    let writer = File::options().write(true).open(&path).unwrap();
    let reader = feedwater::open(&path).unwrap();
    reader.read_all().wait().unwrap();
    writer.write_at(b"!", 7).unwrap();
    let later = SystemTime::now() + Duration::from_secs(5);
    writer.set_modified(later).unwrap();
    let error = reader.read(0..100).wait().unwrap_err();
    let ErrorKind::Changed { opened, found } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(opened, reader.source().version());
    let (Version::File(opened), Version::File(found)) = (opened, found) else {
        panic!("{error}");
    };
    assert_eq!((opened.size, opened.inode), (found.size, found.inode));
    assert!(opened.mtime < found.mtime);
    let mut buf = [0; 10];
    let error = reader.read_at(0, &mut buf).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed { .. }), "{error}");
    // A new open reads the new content.
    assert_eq!(
        &feedwater::open(&path).unwrap().read(7..8).wait().unwrap()[..],
        b"!"
    );
}

#[test]
fn a_truncated_file_is_changed_and_never_short() {
    let content = pattern(50_000);
    let (_dir, path) = dir_with(&content);
    let reader = feedwater::open(&path).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(20_000)
        .unwrap();
    for range in [0..50_000, 30_000..40_000, 19_999..20_001] {
        let error = reader.read(range.clone()).wait().unwrap_err();
        let ErrorKind::Changed { found, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(found.size(), 20_000);
        assert_eq!(error.offset(), Some(range.start));
    }
}

#[test]
fn a_replaced_or_removed_path_is_no_error() {
    let (dir, path) = dir_with(b"old content");
    let reader = feedwater::open(&path).unwrap();
    let other = dir.path().join("other");
    fs::write(&other, b"new").unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(reader.read_all().wait().unwrap(), "old content");
    fs::remove_file(&path).unwrap();
    assert_eq!(reader.read(4..11).wait().unwrap(), "content");
    // Attributes are not content, nor is the number of links.
    let (dir, path) = dir_with(b"same");
    let reader = feedwater::open(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&path, dir.path().join("link")).unwrap();
    assert_eq!(reader.read_all().wait().unwrap(), "same");
}

#[test]
fn the_report_gives_every_route_a_reason() {
    let (_dir, path) = dir_with(&pattern(10_000));
    let reader = feedwater::open(&path).unwrap();
    reader.read_all().wait().unwrap();
    let report = reader.report();
    assert_eq!(report.route(), Some(Route::Pread));
    let used: Vec<_> = report
        .candidates
        .iter()
        .filter(|c| matches!(c.verdict, Verdict::Used))
        .map(|c| (c.route, c.bytes))
        .collect();
    assert_eq!(used, [(Route::Pread, 10_000)]);
    assert!(report.refused().all(|(_, why)| !why.is_empty()));
    let routes: Vec<_> = report.refused().map(|(route, _)| route).collect();
    let others = [
        Route::Memory,
        Route::Mmap,
        Route::UringDirect,
        Route::PreadDirect,
        Route::Uring,
    ];
    assert_eq!(routes, others);
    // Just written and read, so resident; unless the system does not tell.
    assert!(matches!(report.resident, None | Some(10_000)), "{report:?}");
    let text = report.to_string();
    assert!(text.contains("mmap: not used: needs the promise"), "{text}");
}

/// Bytes that were read past the page cache, by whatever engine.
fn read_directly(reader: &Opened) -> u64 {
    let counters = reader.source().counters().snapshot();
    let direct = Route::ALL
        .iter()
        .filter(|route| route.name().ends_with("-direct"));
    direct.map(|route| counters.route(*route)).sum()
}

#[test]
fn a_large_range_in_the_page_cache_is_read_from_there() {
    let content = pattern(6 << 20);
    let (_dir, path) = dir_with(&content);
    let reader = feedwater::open(&path).unwrap();
    assert!(reader.read_all().wait().unwrap() == content);
    assert_eq!(read_directly(&reader), 0, "{:?}", reader.report());
}

/// Local ones, on which direct I/O pays.
const ON_DEVICES: &[&str] = &["ext4", "xfs", "btrfs", "overlay"];

#[test]
fn a_large_range_on_a_device_is_read_directly() {
    let content = pattern(6 << 20);
    let (_dir, path) = dir_with(&content);
    let direct = OpenOptions::new().only(Route::PreadDirect).open(&path);
    if require("odirect", direct).is_none() {
        return;
    }
    let file = File::open(&path).unwrap();
    // Pages that another processor is just putting on its lists stay the first time.
    let cold = (0..4).any(|_| {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        feedwater::open(&path).unwrap().report().resident == Some(0)
    });
    let cold = cold
        .then_some(())
        .ok_or("the file's pages stay, or are not told of");
    if require("residency", cold).is_none() {
        return;
    }
    let reader = feedwater::open(&path).unwrap();
    assert!(reader.read_all().wait().unwrap() == content);
    let report = reader.report();
    let (_, on) = &report.facts[0];
    let expect = if ON_DEVICES.contains(&on.as_str()) {
        6 << 20
    } else {
        0
    };
    assert_eq!(read_directly(&reader), expect, "{report:?}");
    // Past the cache means that it is not there now; only btrfs brings some there all the same, when it finds memory that
    // is not faulted in.
    let past = expect > 0 && on != "btrfs";
    assert!(!past || report.resident == Some(0), "{report:?}");
}

#[test]
fn pooled_destinations_hold_direct_reads_of_any_alignment() {
    let content = pattern(3 << 20);
    let (_dir, path) = dir_with(&content);
    let direct = OpenOptions::new().only(Route::PreadDirect).open(&path);
    let Some(reader) = require("odirect", direct) else {
        return;
    };
    let engine = Engine::default();
    for shift in [0u64, 1, 7, 512, 4096] {
        for end in [2 << 20, (3 << 20) - 1, 3 << 20] {
            let range = shift..end;
            let expect = &content[range.start as usize..range.end as usize];
            let mut block = engine.pool().take(expect.len() + 600).unwrap();
            let mut unaligned = block.split_off(shift as usize % 600);
            unaligned.clear();
            let got = reader
                .submit(
                    Batch::new()
                        .any(range.clone())
                        .read_into(range.clone(), unaligned),
                )
                .wait()
                .unwrap();
            assert!(got[0].as_host().unwrap() == expect, "{range:?}");
            assert!(got[1].as_host().unwrap() == expect, "{range:?} given");
        }
    }
}

#[test]
fn many_tiny_ranges_take_few_requests() {
    let content = pattern(1 << 20);
    let (_dir, path) = dir_with(&content);
    let reader = feedwater::open(&path).unwrap();
    let ranges: Vec<_> = (0..1000u64)
        .rev()
        .map(|i| i * 1000..i * 1000 + 10)
        .collect();
    let blocks = reader.read_many(&ranges).wait().unwrap();
    for (range, block) in ranges.iter().zip(&blocks) {
        let expect = &content[range.start as usize..range.end as usize];
        assert_eq!(block.as_host().unwrap(), expect);
    }
    let counters = reader.source().counters().snapshot();
    assert_eq!(counters.requested, 10_000);
    assert!(counters.requests <= 2, "{counters:?}");
    assert_eq!(counters.wasted, 999 * 990);
    // The ten bytes do not pin the block that they came in.
    assert_eq!(counters.bounced, 10_000);
}

#[test]
fn bypassing_the_cache_is_meant_for_hints_and_copies_too() {
    let (_dir, path) = dir_with(&pattern(100_000));
    let bypass = OpenOptions::new().cache(CachePolicy::Bypass).open(&path);
    let Some(bypass) = require("odirect", bypass) else {
        return;
    };
    assert!(bypass.local_file().is_none());
    assert!(feedwater::open(&path).unwrap().local_file().is_some());
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let before = bypass.report().resident;
    let hint = Batch::new().prefetch(0..100_000);
    assert!(bypass.submit(hint).wait().unwrap()[0].is_empty());
    assert_eq!(bypass.report().resident, before);
}

#[test]
fn what_is_joined_needs_no_larger_block_than_each_alone() {
    let content = pattern(3 << 20);
    let (_dir, path) = dir_with(&content);
    let pool = PoolOptions::default().max_block(1 << 20);
    let engine = Engine::new(EngineOptions::default().pool(pool));
    for only in [Route::Pread, Route::PreadDirect] {
        let options = OpenOptions::new().engine(engine.clone()).only(only);
        let name = if only == Route::Pread {
            "files"
        } else {
            "odirect"
        };
        let Some(reader) = require(name, options.open(&path)) else {
            continue;
        };
        let ranges: Vec<_> = (0..5u64).map(|i| i << 19..(i + 1) << 19).collect();
        let blocks = reader.read_many(&ranges).wait().unwrap();
        for (range, block) in ranges.iter().zip(&blocks) {
            let right = &content[range.start as usize..range.end as usize];
            assert!(block.as_host().unwrap() == right, "{range:?}");
        }
        // Nor do streams ask for more at once.
        let chunks = reader.chunks(0..3 << 20, feedwater::ChunkOptions::default());
        let streamed: Vec<u8> = chunks.flat_map(|chunk| chunk.unwrap()).collect();
        assert!(streamed == content);
        assert!(reader.source().limits().stream <= 1 << 20);
        // Alignment is not the caller's business, nor is what bytes pass through.
        let odd = 7..7 + (1 << 20);
        let right = &content[7..7 + (1 << 20)];
        assert!(reader.read(odd.clone()).wait().unwrap() == right);
        let mut buf = vec![0; 2 << 20];
        reader.read_at(5, &mut buf).unwrap();
        assert!(buf == content[5..5 + (2 << 20)]);
        let error = reader.read(0..(1 << 20) + 1).wait().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
            "{error}"
        );
    }
}

#[test]
fn reading_past_the_end_through_a_cursor_gives_nothing() {
    use std::io::{Read, Seek, SeekFrom};
    let (_dir, path) = dir_with(b"0123456789");
    let mut cursor = feedwater::open(&path).unwrap().cursor();
    cursor.seek(SeekFrom::Start(11)).unwrap();
    for size in [1, 100_000] {
        assert_eq!(cursor.read(&mut vec![0; size]).unwrap(), 0);
    }
}

#[test]
fn an_opening_that_was_ready_says_so_when_asked_again() {
    let (_dir, path) = dir_with(b"bytes");
    let mut opening = feedwater::open_async(&path);
    futures::executor::block_on(&mut opening).unwrap();
    let error = opening.wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
}

#[test]
fn policies_that_contradict_a_route_are_refused() {
    let (_dir, path) = dir_with(b"bytes");
    let error = OpenOptions::new()
        .cache(CachePolicy::DropBehind)
        .only(Route::PreadDirect)
        .open(&path)
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { .. }),
        "{error}"
    );
}

#[test]
fn what_is_shared_between_threads_can_be() {
    fn shared<T: Send + Sync>() {}
    shared::<Opened>();
    shared::<feedwater::Pending>();
    shared::<feedwater::Ticket>();
    shared::<feedwater::BlockMut>();
    shared::<Engine>();
    shared::<feedwater::Error>();
}

#[test]
#[ignore = "run by again::on_overlay, where there are layers"]
fn a_file_of_a_lower_layer_that_is_written_has_changed() {
    let path = std::env::temp_dir().join(LOWER_FILE);
    let content = fs::read(&path).unwrap();
    assert!(content.len() > 10_000);
    let readers = [
        feedwater::open(&path).unwrap(),
        only(Route::Pread, &path),
        only(Route::PreadDirect, &path),
    ];
    for reader in &readers {
        assert!(reader.read_all().wait().unwrap() == content);
    }
    // From here on the path is another file, in the upper layer; what was opened is still the lower one.
    let writer = File::options().write(true).open(&path).unwrap();
    writer.write_at(b"!", 7).unwrap();
    writer
        .set_modified(SystemTime::now() + Duration::from_secs(5))
        .unwrap();
    for reader in &readers {
        let error = reader.read(0..100).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed { .. }), "{error}");
        let error = reader.read_at(0, &mut [0; 10]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed { .. }), "{error}");
    }
    let new = feedwater::open(&path).unwrap();
    assert_eq!(new.read(7..8).wait().unwrap(), "!");
}

#[test]
#[ignore = "run by again::without_io_uring, where it cannot be used"]
fn io_uring_is_refused_with_its_reason_and_nothing_else_is() {
    let content = pattern(6 << 20);
    let (_dir, path) = dir_with(&content);
    for name in ["uring", "uring-direct"] {
        // A build without the engine has no such route.
        let Ok(route) = name.parse::<Route>() else {
            continue;
        };
        let error = OpenOptions::new().only(route).open(&path).unwrap_err();
        let ErrorKind::Unavailable { engine, why } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!((*engine, error.name()), (name, path.to_str()));
        assert!(!why.to_string().is_empty());
        let reader = feedwater::open(&path).unwrap();
        let report = reader.report();
        let (_, verdict) = report
            .refused()
            .find(|(refused, _)| *refused == route)
            .unwrap();
        assert!(!verdict.is_empty(), "{report}");
    }
    let reader = feedwater::open(&path).unwrap();
    assert!(reader.read_all().wait().unwrap() == content);
    assert!(matches!(
        reader.report().route(),
        Some(Route::Pread | Route::PreadDirect)
    ));
}

/// All of these once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{
        FEW_DESCRIPTORS, MEMLOCK_0, NO_IO_URING, NO_IO_URING_CALLS, OLD_KERNEL, UNPRIVILEGED, again,
    };
    use super::common::file_systems::{FileSystem, again_on};

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, &[], 23);
        let refused = "io_uring_is_refused_with_its_reason_and_nothing_else_is";
        for how in [NO_IO_URING, NO_IO_URING_CALLS] {
            again(&how, &["--ignored", "--exact", refused], 1);
        }
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, &[], 23);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, &[], 23);
    }

    #[test]
    fn with_64_descriptors() {
        again(&FEW_DESCRIPTORS, &[], 23);
    }

    #[test]
    fn memlock_0() {
        again(&MEMLOCK_0, &[], 23);
    }

    #[test]
    fn on_tmpfs() {
        again_on(FileSystem::Tmpfs, &[], 23);
    }

    #[test]
    fn on_overlay() {
        again_on(FileSystem::Overlay, &[], 23);
        let lower = "a_file_of_a_lower_layer_that_is_written_has_changed";
        again_on(FileSystem::Overlay, &["--ignored", "--exact", lower], 1);
    }

    #[test]
    fn on_4k_sectors() {
        again_on(FileSystem::Ext4Of4KiB, &[], 23);
    }

    #[test]
    fn on_xfs() {
        again_on(FileSystem::Xfs, &[], 23);
    }

    #[test]
    fn on_btrfs() {
        again_on(FileSystem::Btrfs, &[], 23);
    }

    #[test]
    fn on_fuse() {
        again_on(FileSystem::Fuse, &[], 23);
    }
}
