//! Writing files: atomic sinks and copies, through the public interface.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::skip::require;
use feedwater::{
    Batch, BlockMut, CopyOptions, CopyRoute, Error, ErrorKind, FileKind, FileSink, Limits,
    MemoryReader, Pending, Pool, PoolOptions, ReadInto, Reader, SinkOptions, Source, Started,
    SyncMode, Version, copy,
};
use proptest::prelude::*;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn fast() -> SinkOptions {
    SinkOptions::new().sync(SyncMode::None)
}

/// A directory where direct writes work, if the temporary one is such.
fn direct_dir() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir().unwrap();
    let probe = fast().direct(true).create(dir.path().join("probe"));
    let probe = probe.and_then(|mut sink| {
        sink.append(&pattern(1 << 16))?;
        sink.flush()
    });
    require("odirect", probe).map(|()| dir)
}

/// The ways to write that all must give the same bytes, each with a directory for it.
fn ways() -> Vec<(SinkOptions, tempfile::TempDir)> {
    let mut ways = vec![(fast(), tempfile::tempdir().unwrap())];
    if let Some(dir) = direct_dir() {
        ways.push((fast().direct(true), dir));
    }
    ways
}

const SIZES: [usize; 10] = [
    0,
    1,
    4095,
    4096,
    4097,
    256 << 10,
    1 << 20,
    (1 << 20) + 1,
    4 << 20,
    (9 << 20) + 4097,
];

#[test]
fn every_size_arrives_in_one_piece_or_many() {
    for (options, dir) in ways() {
        for size in SIZES {
            let bytes = pattern(size);
            for piece in [size.max(1), 1000, 300_001] {
                let path = dir.path().join("file");
                let mut sink = options.clone().size_hint(5000).create(&path).unwrap();
                for part in bytes.chunks(piece) {
                    sink.append(part).unwrap();
                }
                assert_eq!(sink.len(), size as u64);
                let version = sink.commit().unwrap();
                assert!(fs::read(&path).unwrap() == bytes, "{size} by {piece}");
                let meta = fs::metadata(&path).unwrap();
                assert_eq!((version.size, version.inode), (size as u64, meta.ino()));
                assert_eq!(version.dev, meta.dev());
                assert_eq!(version.mtime.seconds, meta.mtime());
                assert_eq!(i64::from(version.ctime.nanoseconds), meta.ctime_nsec());
            }
        }
        assert_eq!(names(dir.path()), ["file"]);
    }
}

#[test]
fn aligned_memory_is_written_as_it_is() {
    for (options, dir) in ways() {
        let path = dir.path().join("file");
        let len = (4 << 20) + 5000;
        let mut block = Pool::default().take(len).unwrap();
        block.put(&pattern(len)).unwrap();
        let mut sink = options.create(&path).unwrap();
        sink.append(block.filled()).unwrap();
        sink.append(b"end").unwrap();
        sink.commit().unwrap();
        let content = fs::read(&path).unwrap();
        assert!(content[..len] == *block.filled() && content[len..] == *b"end");
    }
}

#[test]
fn full_sync_gives_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut sink = FileSink::create(&path).unwrap();
    sink.write_all(b"through ").unwrap();
    io::copy(&mut &b"std::io"[..], &mut sink).unwrap();
    Write::flush(&mut sink).unwrap();
    sink.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"through std::io");
}

#[derive(Clone, Debug)]
enum Op {
    Append(usize),
    WriteAt(u64, usize),
    Flush,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = prop_oneof![0..10_usize, 4000..4200_usize, 0..600_000_usize];
    let offset = prop_oneof![
        0..20_000_u64,
        (0..40_u64).prop_map(|page| page * 4096),
        0..900_000_u64
    ];
    let op = prop_oneof![
        3 => len.clone().prop_map(Op::Append),
        4 => (offset, len).prop_map(|(offset, len)| Op::WriteAt(offset, len)),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 0..14)
}

/// Runs `ops` on a sink and on a `Vec`.
fn check_ops(options: &SinkOptions, dir: &Path, ops: &[Op]) {
    let path = dir.join("file");
    let mut sink = options.create(&path).unwrap();
    let mut oracle = Vec::new();
    for (turn, op) in ops.iter().enumerate() {
        let (offset, len) = match *op {
            Op::Append(len) => (oracle.len(), len),
            Op::WriteAt(offset, len) => (offset as usize, len),
            Op::Flush => {
                sink.flush().unwrap();
                continue;
            }
        };
        let bytes: Vec<u8> = (0..len).map(|i| (i + turn * 31 + 1) as u8).collect();
        match op {
            Op::Append(_) => sink.append(&bytes).unwrap(),
            _ => sink.write_at(offset as u64, &bytes).unwrap(),
        }
        if len > 0 {
            oracle.resize(oracle.len().max(offset + len), 0);
            oracle[offset..offset + len].copy_from_slice(&bytes);
        }
        assert_eq!(sink.len(), oracle.len() as u64);
    }
    sink.commit().unwrap();
    assert!(fs::read(&path).unwrap() == oracle, "{ops:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn any_pattern_of_writes_equals_a_vec(ops in ops()) {
        let dir = tempfile::tempdir().unwrap();
        check_ops(&fast(), dir.path(), &ops);
    }

    #[test]
    fn any_pattern_of_direct_writes_equals_a_vec(ops in ops()) {
        if let Some(dir) = direct_dir() {
            check_ops(&fast().direct(true), dir.path(), &ops);
        }
    }
}

#[test]
fn a_reader_sees_the_old_file_or_the_new_one() {
    const LEN: usize = 300_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, vec![0; LEN]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let bytes = fs::read(&path).unwrap();
                assert_eq!(bytes.len(), LEN + usize::from(bytes[0]));
                assert!(bytes.iter().all(|b| *b == bytes[0]));
                assert!(bytes[0] >= last, "an older file came back");
                last = bytes[0];
            }
        });
        for turn in 1..=100_u8 {
            let bytes = vec![turn; LEN + usize::from(turn)];
            let mut sink = fast().create(&path).unwrap();
            let (head, tail) = bytes.split_at(LEN / 2);
            sink.append(head).unwrap();
            sink.flush().unwrap();
            sink.append(tail).unwrap();
            sink.commit().unwrap();
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn readers_of_the_old_file_keep_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "old").unwrap();
    let old = File::open(&path).unwrap();
    let mut sink = fast().create(&path).unwrap();
    sink.append(b"new one").unwrap();
    sink.commit().unwrap();
    assert_eq!(io::read_to_string(old).unwrap(), "old");
    assert_eq!(fs::read(&path).unwrap(), b"new one");
}

#[test]
fn drop_abort_and_panic_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let begin = || {
        let mut sink = FileSink::create(&path).unwrap();
        sink.append(&pattern(1 << 20)).unwrap();
        let names = names(dir.path());
        assert_eq!(names.len(), 1);
        assert!(names[0].starts_with(".feedwater-") && names[0].ends_with(".tmp"));
        sink
    };
    drop(begin());
    assert!(names(dir.path()).is_empty());
    begin().abort().unwrap();
    assert!(names(dir.path()).is_empty());
    let panicked = std::panic::catch_unwind(|| {
        let _sink = begin();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.is_err());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn without_overwrite_an_existing_name_is_refused_early_and_late() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let new = fast().overwrite(false);
    let mut first = new.create(&path).unwrap();
    let mut second = new.create(&path).unwrap();
    first.append(b"first").unwrap();
    second.append(b"second").unwrap();
    first.commit().unwrap();
    let late = second.commit().unwrap_err();
    let early = new.create(&path).unwrap_err();
    for error in [late, early] {
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
        assert_eq!(error.io_kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(error.name(), path.to_str());
    }
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(names(dir.path()), ["file"]);

    // A link is something, whatever it leads to; so is a directory.
    symlink("nowhere", dir.path().join("link")).unwrap();
    fs::create_dir(dir.path().join("dir")).unwrap();
    for taken in ["link", "dir"] {
        let error = new.create(dir.path().join(taken)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
    }
}

#[test]
fn permissions_are_the_wanted_ones_and_closed_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let temporary = || dir.path().join(&names(dir.path())[0]);

    // A new file gets what any new file gets.
    let plain = dir.path().join("plain");
    drop(File::create(&plain).unwrap());
    fast().create(&path).unwrap().commit().unwrap();
    assert_eq!(mode(&path), mode(&plain));

    // A replaced one hands on its bits, but not set-user-ID.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4646)).unwrap();
    let sink = fast().create(&path).unwrap();
    assert_eq!(mode(&temporary()), 0o600);
    sink.commit().unwrap();
    assert_eq!(mode(&path), 0o646);

    // A named one is exact, even if it closes the file to its writer.
    for bits in [0o666, 0o400, 0o1777, 0] {
        let mut sink = fast().mode(bits).create(&path).unwrap();
        sink.append(b"x").unwrap();
        assert_eq!(mode(&temporary()), 0o600);
        sink.commit().unwrap();
        assert_eq!(mode(&path), bits);
    }
    let error = fast().mode(0o10_000).create(&path).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { .. }),
        "{error}"
    );
    assert_eq!(names(dir.path()), ["file", "plain"]);
}

#[test]
fn a_link_is_followed_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/b/file"), "old").unwrap();
    symlink("a/first", at("link")).unwrap();
    symlink("b/file", at("a/first")).unwrap();
    symlink(at("a/b/new"), at("dangling")).unwrap();
    for (link, file) in [("link", "a/b/file"), ("dangling", "a/b/new")] {
        let mut sink = fast().create(at(link)).unwrap();
        sink.append(b"new").unwrap();
        sink.commit().unwrap();
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink());
        assert_eq!(fs::read(at(file)).unwrap(), b"new");
    }
    assert!(fs::symlink_metadata(at("a/first")).unwrap().is_symlink());
    assert_eq!(names(&at("a/b")), ["file", "new"]);

    symlink("loop", at("loop")).unwrap();
    let error = fast().create(at("loop")).unwrap_err();
    // What the system says about it.
    let same = File::open(at("loop")).unwrap_err().raw_os_error();
    match error.kind() {
        ErrorKind::Io { source, .. } => assert_eq!(source.raw_os_error(), same),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_a_file_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    symlink("/dev/null", at("null")).unwrap();
    symlink("dir/", at("link")).unwrap();
    for (path, kind) in [
        (at("dir"), FileKind::Directory),
        (at("dir/"), FileKind::Directory),
        (at("dir/.."), FileKind::Directory),
        (at("link"), FileKind::Directory),
        (at("file/"), FileKind::Directory),
        (at("socket"), FileKind::Socket),
        (at("null"), FileKind::CharacterDevice),
    ] {
        let error = fast().create(&path).unwrap_err();
        match error.kind() {
            ErrorKind::NotAFile { what } => assert_eq!(*what, kind, "{path:?}"),
            other => panic!("{path:?}: {other:?}"),
        }
        assert_eq!(error.name(), path.to_str());
    }
    assert_eq!(names(dir.path()), ["dir", "link", "null", "socket"]);
}

#[test]
fn a_missing_directory_is_an_error_with_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing/file");
    let error = FileSink::create(&path).unwrap_err();
    assert_eq!(error.io_kind(), io::ErrorKind::NotFound);
    assert!(matches!(
        error.kind(),
        ErrorKind::Io {
            op: "open of the directory",
            ..
        }
    ));
    assert_eq!(
        (error.name(), error.engine()),
        (path.to_str(), Some("sink"))
    );
}

#[test]
fn a_directory_that_is_moved_takes_the_file_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (before, after) = (dir.path().join("before"), dir.path().join("after"));
    fs::create_dir(&before).unwrap();
    let mut sink = FileSink::create(before.join("file")).unwrap();
    sink.append(b"moved").unwrap();
    fs::rename(&before, &after).unwrap();
    sink.commit().unwrap();
    assert_eq!(fs::read(after.join("file")).unwrap(), b"moved");
    assert_eq!(names(&after), ["file"]);
}

#[test]
fn an_offset_past_what_files_can_have_is_an_error_and_ends_the_sink() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for offset in [u64::MAX, i64::MAX as u64] {
        let mut sink = fast().create(&path).unwrap();
        sink.write_at(offset, b"").unwrap();
        let error = sink.write_at(offset, b"xy").unwrap_err();
        assert_eq!(error.io_kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(error.offset(), Some(offset));
        assert_eq!(
            sink.commit().unwrap_err().io_kind(),
            io::ErrorKind::FileTooLarge
        );
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_pool_that_refuses_the_block_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(PoolOptions::default().max_block(1000));
    let options = fast().pool(&pool);
    let mut sink = options.create(dir.path().join("file")).unwrap();
    let error = sink.append(b"small").unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::OutOfMemory { cap: 1000, .. }
    ));
    drop(sink);
    assert!(names(dir.path()).is_empty());
}

/// Runs an ignored test of this file in a process of its own, started by `shell`, where `"$@"` is that process.
fn in_child(test: &str, shell: &str, dir: &Path) -> io::Result<std::process::Output> {
    Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(std::env::current_exe()?)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("FEEDWATER_TEST_DIR", dir)
        .output()
}

fn assert_passed(output: &std::process::Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn child_dir() -> PathBuf {
    std::env::var_os("FEEDWATER_TEST_DIR").unwrap().into()
}

/// Writes more than there is room for; the old file must stay and the new one go.
fn write_too_much(options: &SinkOptions, expected: io::ErrorKind) {
    let path = child_dir().join("file");
    fs::write(&path, "old").unwrap();
    let mut sink = options.create(&path).unwrap();
    let bytes = pattern(4 << 20);
    let error = sink.append(&bytes).unwrap_err();
    assert_eq!(error.io_kind(), expected, "{error}");
    let (offset, length) = (error.offset().unwrap(), error.length().unwrap());
    assert!(offset > 0, "nothing at all was written: {error}");
    assert_eq!((offset + length, error.engine()), (4 << 20, Some("sink")));
    assert_eq!(sink.commit().unwrap_err().io_kind(), expected);

    let reader = Arc::new(MemoryReader::new(bytes));
    let mut sink = options.create(&path).unwrap();
    let error = copy(&reader, &mut sink, &CopyOptions::default()).unwrap_err();
    assert_eq!(error.io_kind(), expected, "{error}");
    drop(sink);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(&child_dir()), ["file"]);
}

#[test]
#[ignore = "run by past_the_limit_of_the_process in a process of its own"]
fn past_the_limit_of_the_process_child() {
    write_too_much(&fast(), io::ErrorKind::FileTooLarge);
}

#[test]
fn past_the_limit_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    // 512-byte blocks: 1 MiB. The signal that comes with the error stays ignored across the exec.
    let shell = r#"trap "" XFSZ; ulimit -f 2048; exec "$@""#;
    let output = in_child("past_the_limit_of_the_process_child", shell, dir.path()).unwrap();
    assert_passed(&output);
}

#[test]
#[ignore = "run by a_full_disk in a process of its own"]
fn a_full_disk_child() {
    write_too_much(&fast(), io::ErrorKind::StorageFull);
    // Room can be reserved only where the system has `fallocate`.
    if cfg!(all(target_os = "linux", not(feedwater_portable))) {
        let options = fast().size_hint(4 << 20);
        let error = options.create(child_dir().join("file")).unwrap_err();
        assert_eq!(error.io_kind(), io::ErrorKind::StorageFull);
        assert_eq!((error.offset(), error.length()), (Some(0), Some(4 << 20)));
        assert_eq!(names(&child_dir()), ["file"]);
    }
}

#[test]
fn a_full_disk() {
    // A file system of 1 MiB that only the child and what it starts can see, and that goes with it.
    const MOUNT: &str = "mount -t tmpfs -o size=1m tmpfs";
    let dir = tempfile::tempdir().unwrap();
    let probe = Command::new("unshare")
        .args(["-rm", "sh", "-c"])
        .arg(format!(r#"{MOUNT} "$0""#))
        .arg(dir.path())
        .output();
    let probe = match probe {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    };
    if require("mount", probe).is_none() {
        return;
    }
    let shell =
        format!(r#"exec unshare -rm sh -c '{MOUNT} "$FEEDWATER_TEST_DIR" && exec "$@"' sh "$@""#);
    assert_passed(&in_child("a_full_disk_child", &shell, dir.path()).unwrap());
}

/// Fails from an offset on.
#[derive(Debug)]
struct FailsFrom(u64, MemoryReader);

impl FailsFrom {
    fn error(&self, range: std::ops::Range<u64>) -> Option<Error> {
        let error = Error::io("read", io::Error::from_raw_os_error(5));
        (range.end > self.0).then(|| self.1.source().place(error, range))
    }
}

impl Reader for FailsFrom {
    fn source(&self) -> &Source {
        self.1.source()
    }
    fn submit(&self, mut batch: Batch) -> Pending {
        for index in 0..batch.reads.len() {
            if let Some(error) = self.error(batch.reads[index].range.clone()) {
                batch.refuse(index, error);
            }
        }
        self.1.submit(batch)
    }
    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> feedwater::Result<()> {
        match reads.iter().find_map(|read| self.error(read.range())) {
            Some(error) => Err(error),
            None => self.1.read_now(reads),
        }
    }
}

#[test]
fn a_reader_that_fails_midway_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "old").unwrap();
    for (len, fails) in [(10_000, 5000), (8 << 20, 5 << 20)] {
        let inner = MemoryReader::named("source", pattern(len));
        let reader = Arc::new(FailsFrom(fails, inner));
        let mut sink = fast().create(&path).unwrap();
        let options = CopyOptions::default().chunk(1000);
        let error = copy(&reader, &mut sink, &options).unwrap_err();
        assert_eq!(error.name(), Some("source"));
        assert_eq!(error.offset(), Some(fails / 1000 * 1000));
        // What is there is a part, so it must not be taken for the whole.
        assert_eq!(sink.commit().unwrap_err().name(), Some("source"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["file"]);
    }
}

#[test]
fn copies_of_any_range_and_chunk_equal_the_source() {
    let bytes = pattern((5 << 20) + 123);
    let len = bytes.len() as u64;
    let reader: Arc<dyn Reader> = Arc::new(MemoryReader::new(bytes.clone()));
    for (options, dir) in ways() {
        let path = dir.path().join("file");
        for range in [
            0..len,
            0..0,
            1..2,
            4095..4097,
            4096..len,
            777..(3 << 20) + 5,
        ] {
            for chunk in [None, Some(4097), Some(1 << 20), Some(64 << 20)] {
                let mut how = CopyOptions::default().range(range.clone()).window(1 << 20);
                how.chunk = chunk;
                let mut sink = options.create(&path).unwrap();
                let report = copy(&reader, &mut sink, &how).unwrap();
                assert_eq!(
                    (report.bytes, report.in_kernel),
                    (range.end - range.start, 0)
                );
                assert_eq!(report.route(), CopyRoute::Overlapped);
                sink.commit().unwrap();
                let part = &bytes[range.start as usize..range.end as usize];
                assert!(fs::read(&path).unwrap() == part, "{range:?} {chunk:?}");
            }
        }
    }
}

#[test]
fn many_copies_make_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let reader = Arc::new(MemoryReader::new("abcdefgh"));
    let mut sink = fast().create(&path).unwrap();
    for range in [6..8, 0..3, 2..2, 3..6] {
        copy(&reader, &mut sink, &CopyOptions::default().range(range)).unwrap();
    }
    sink.append(b"!").unwrap();
    sink.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"ghabcdef!");
}

/// A device that answers only when a full window of reads has been asked for. If that never comes it answers after a
/// while all the same, so that a test fails rather than hangs.
#[derive(Debug)]
struct Windowed {
    source: Source,
    send: mpsc::Sender<Started>,
}

/// Answers reads of `bytes`, `window` at a time; the result is the smallest group that was answered.
fn device(bytes: &[u8], window: usize, asked: &mpsc::Receiver<Started>) -> usize {
    let mut smallest = window;
    while let Ok(first) = asked.recv() {
        let mut group = vec![first];
        while group.len() < window {
            match asked.recv_timeout(Duration::from_secs(10)) {
                Ok(next) => group.push(next),
                Err(_) => break,
            }
        }
        smallest = smallest.min(group.len());
        for (read, ticket) in group {
            let part = &bytes[read.range.start as usize..read.range.end as usize];
            let mut block = BlockMut::with_capacity(part.len());
            block.put(part).unwrap();
            ticket.finish(Ok(block.freeze()));
        }
    }
    smallest
}

impl Reader for Windowed {
    fn source(&self) -> &Source {
        &self.source
    }
    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(&self.source);
        for started in started {
            self.send.send(started).unwrap();
        }
        pending
    }
    fn read_now(&self, _: &mut [ReadInto<'_>]) -> feedwater::Result<()> {
        Err(Error::new(ErrorKind::Unsupported {
            what: "reading at once".into(),
        }))
    }
}

#[test]
fn a_window_of_reads_is_in_flight() {
    let bytes = pattern(64 << 10);
    let size = bytes.len() as u64;
    let version = Version::immutable(size);
    let (send, asked) = mpsc::channel();
    let reader = Arc::new(Windowed {
        source: Source::new("device", "test", version, Limits::default()),
        send,
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut sink = fast().create(&path).unwrap();
    let options = CopyOptions::default().chunk(4 << 10).window(16 << 10);
    let content = bytes.as_slice();
    let smallest = std::thread::scope(|scope| {
        let device = scope.spawn(move || device(content, 4, &asked));
        copy(&reader, &mut sink, &options).unwrap();
        drop(reader);
        device.join().unwrap()
    });
    assert_eq!(smallest, 4);
    sink.commit().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn another_file_in_the_place_of_the_temporary_one_is_not_committed() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    fs::write(&target, b"old").unwrap();
    let mut sink = FileSink::create(&target).unwrap();
    sink.append(b"mine").unwrap();
    let temporary = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path != &target)
        .unwrap();
    fs::remove_file(&temporary).unwrap();
    fs::write(&temporary, b"theirs").unwrap();
    let error = sink.commit().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable { .. }),
        "{error}"
    );
    assert_eq!(fs::read(&target).unwrap(), b"old");
}

/// All of these once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{FEW_DESCRIPTORS, NO_IO_URING, OLD_KERNEL, UNPRIVILEGED, again};
    use super::common::file_systems::{FileSystem, again_on};

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, &[], 23);
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
    fn on_tmpfs() {
        again_on(FileSystem::Tmpfs, &[], 23);
    }

    #[test]
    fn on_overlay() {
        again_on(FileSystem::Overlay, &[], 23);
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
        // What looks files up by their paths may find none between the look-up and the opening when a file is
        // replaced, as this one does.
        let replaced = "--skip=a_reader_sees_the_old_file_or_the_new_one";
        again_on(FileSystem::Fuse, &[replaced], 22);
    }
}
