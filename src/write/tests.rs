//! Tests of writing with system calls that do in part, refuse and fail as scripted.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic)]

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::Mode;

use self::skip::require;
use super::calls::{Calls, Os};
use super::copy::{CopyOptions, CopyReport, copy_from};
use super::sink::{FileSink, SinkOptions, SyncMode};
use super::target::version_of;
use crate::backend::memory::MemoryReader;
use crate::error::{Error, ErrorKind, FileKind, Refusal, Result};
use crate::reader::LocalFile;

#[path = "../../tests/common/skip.rs"]
mod skip;

/// What a call does instead of its work.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Errno(i32),
    /// At most so many bytes.
    Short(usize),
    /// As if there were none of this fault.
    Pass,
}

/// The operating system with faults, taken in turn for each call, and a log of the calls.
#[derive(Debug, Default)]
struct Script {
    faults: Mutex<HashMap<&'static str, VecDeque<Fault>>>,
    log: Mutex<Vec<(&'static str, Range<u64>)>>,
}

impl Script {
    fn new(faults: &[(&'static str, &[Fault])]) -> Arc<Script> {
        let script = Script::default();
        for (call, list) in faults {
            let mut faults = script.faults.lock().unwrap();
            faults.insert(call, list.iter().copied().collect());
        }
        Arc::new(script)
    }

    fn turn(&self, call: &'static str, range: Range<u64>) -> io::Result<usize> {
        self.log.lock().unwrap().push((call, range));
        let mut faults = self.faults.lock().unwrap();
        match faults.get_mut(call).and_then(VecDeque::pop_front) {
            Some(Fault::Errno(code)) => Err(io::Error::from_raw_os_error(code)),
            Some(Fault::Short(n)) => Ok(n),
            Some(Fault::Pass) | None => Ok(usize::MAX),
        }
    }

    fn calls(&self) -> Vec<&'static str> {
        self.log.lock().unwrap().iter().map(|(c, _)| *c).collect()
    }

    fn ranges(&self, call: &str) -> Vec<Range<u64>> {
        let log = self.log.lock().unwrap();
        let of = log.iter().filter(|(c, _)| *c == call);
        of.map(|(_, range)| range.clone()).collect()
    }
}

impl Calls for Script {
    fn pwrite(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let direct = super::os::DIRECT
            .is_some_and(|flag| rustix::fs::fcntl_getfl(file).unwrap().contains(flag));
        let call = if direct { "direct pwrite" } else { "pwrite" };
        let most = self.turn(call, offset..offset + bytes.len() as u64)?;
        match bytes.len().min(most) {
            0 => Ok(0),
            // The system itself would not take a part of a page: it reports less than it did.
            n if direct => Os.pwrite(file, bytes, offset).map(|m| m.min(n)),
            n => Os.pwrite(file, &bytes[..n], offset),
        }
    }
    fn copy_range(
        &self,
        from: BorrowedFd<'_>,
        from_at: u64,
        to: &File,
        to_at: u64,
        len: usize,
    ) -> io::Result<usize> {
        let most = self.turn("copy_file_range", from_at..from_at + len as u64)?;
        match len.min(most) {
            0 => Ok(0),
            n => Os.copy_range(from, from_at, to, to_at, n),
        }
    }
    fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        self.turn("fallocate", 0..len)?;
        match Os.allocate(file, len) {
            // As on a system that has it.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            outcome => outcome,
        }
    }
    fn start_writeback(&self, file: &File, range: Range<u64>) {
        let _ = self.turn("sync_file_range", range.clone());
        Os.start_writeback(file, range);
    }
    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        self.turn("ftruncate", 0..len)?;
        Os.truncate(file, len)
    }
    fn chmod(&self, file: &File, mode: Mode) -> io::Result<()> {
        self.turn("fchmod", 0..0)?;
        Os.chmod(file, mode)
    }
    fn sync_file(&self, file: &File) -> io::Result<()> {
        self.turn("fsync", 0..0)?;
        Os.sync_file(file)
    }
    fn sync_dir(&self, dir: &File) -> io::Result<()> {
        self.turn("fsync of the directory", 0..0)?;
        Os.sync_dir(dir)
    }
    fn rename(&self, dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.turn("rename", 0..0)?;
        Os.rename(dir, from, to)
    }
    fn rename_new(&self, dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.turn("renameat2", 0..0)?;
        Os.rename_new(dir, from, to)
    }
    fn link(&self, dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.turn("link", 0..0)?;
        Os.link(dir, from, to)
    }
    fn unlink(&self, dir: &File, name: &OsStr) -> io::Result<()> {
        self.turn("unlink", 0..0)?;
        Os.unlink(dir, name)
    }
}

/// A directory with an old file in it.
struct Place {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        fs::write(&path, "old").unwrap();
        Place { dir, path }
    }

    fn content(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    /// The old file is there, as it was, and nothing else.
    fn assert_untouched(&self) {
        assert_eq!(self.content(), b"old");
        self.assert_alone();
    }

    fn assert_alone(&self) {
        let names: Vec<_> = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["target"]);
    }
}

fn sink(path: &Path, script: &Arc<Script>, options: SinkOptions) -> FileSink {
    options.create_with(path, script.clone()).unwrap()
}

fn assert_io(error: &Error, op: &str, code: i32) {
    match error.kind() {
        ErrorKind::Io { op: o, source } => {
            assert_eq!((*o, source.raw_os_error()), (op, Some(code)), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(error.engine(), Some("sink"));
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_commit_syncs_renames_and_syncs_the_directory_in_that_order() {
    let place = Place::new();
    let script = Script::new(&[]);
    let options = SinkOptions::new().mode(0o640).size_hint(100);
    let mut sink = sink(&place.path, &script, options);
    sink.append(b"new").unwrap();
    assert_eq!(script.calls(), ["fallocate"]);
    sink.commit().unwrap();
    let rest = [
        "pwrite",
        "ftruncate",
        "fchmod",
        "fsync",
        "rename",
        "fsync of the directory",
    ];
    assert_eq!(script.calls()[1..], rest);
    assert_eq!(place.content(), b"new");
    place.assert_alone();
}

#[test]
fn without_sync_nothing_is_waited_for() {
    let place = Place::new();
    fs::remove_file(&place.path).unwrap();
    let script = Script::new(&[]);
    let mut sink = sink(
        &place.path,
        &script,
        SinkOptions::new().sync(SyncMode::None),
    );
    sink.append(&pattern(20 << 20)).unwrap();
    sink.commit().unwrap();
    assert_eq!(script.calls(), ["pwrite", "rename"]);
}

#[test]
fn interrupted_and_short_writes_are_finished() {
    use Fault::{Errno, Short};
    let place = Place::new();
    let faults = [
        Errno(libc::EINTR),
        Short(1),
        Errno(libc::EINTR),
        Errno(libc::EINTR),
        Short(4000),
    ];
    let script = Script::new(&[("pwrite", &faults)]);
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    let bytes = pattern(10_000);
    sink.append(&bytes).unwrap();
    sink.commit().unwrap();
    assert_eq!(place.content(), bytes);
    let starts: Vec<_> = script.ranges("pwrite").iter().map(|r| r.start).collect();
    assert_eq!(starts, [0, 0, 1, 1, 1, 4001]);
}

#[test]
fn a_failed_write_says_where_stays_and_leaves_the_old_file() {
    use Fault::{Errno, Short};
    for code in [libc::ENOSPC, libc::EIO, libc::EFBIG, libc::EDQUOT] {
        let place = Place::new();
        let script = Script::new(&[("pwrite", &[Short(5), Errno(code)])]);
        let mut sink = sink(&place.path, &script, SinkOptions::new());
        sink.append(b"0123456789").unwrap();
        let error = sink.flush().unwrap_err();
        assert_io(&error, "pwrite", code);
        assert_eq!((error.offset(), error.length()), (Some(5), Some(5)));
        assert_eq!(error.name(), place.path.to_str());
        // The disk would take it now, but the first bytes are gone.
        assert_io(&sink.append(b"more").unwrap_err(), "pwrite", code);
        assert_io(&sink.commit().unwrap_err(), "pwrite", code);
        assert!(!script.calls().contains(&"rename"));
        place.assert_untouched();
    }
}

#[test]
fn a_write_of_nothing_is_an_error() {
    let place = Place::new();
    let script = Script::new(&[("pwrite", &[Fault::Short(0)])]);
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    sink.append(b"x").unwrap();
    let error = sink.commit().unwrap_err();
    assert_eq!(error.io_kind(), io::ErrorKind::WriteZero);
    place.assert_untouched();
}

#[test]
fn each_failed_step_before_the_rename_leaves_the_old_file_and_no_other() {
    for step in ["ftruncate", "fchmod", "fsync", "rename"] {
        let place = Place::new();
        let script = Script::new(&[(step, &[Fault::Errno(libc::EIO)])]);
        let options = SinkOptions::new().mode(0o600).size_hint(10);
        let mut sink = sink(&place.path, &script, options);
        sink.append(b"new").unwrap();
        assert_io(&sink.commit().unwrap_err(), step, libc::EIO);
        // Never tried again.
        assert_eq!(script.ranges(step).len(), 1);
        place.assert_untouched();
    }
}

#[test]
fn a_failed_directory_sync_is_an_error_though_the_content_is_new() {
    let place = Place::new();
    let step = "fsync of the directory";
    let script = Script::new(&[(step, &[Fault::Errno(libc::EIO)])]);
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    sink.append(b"new").unwrap();
    assert_io(&sink.commit().unwrap_err(), step, libc::EIO);
    assert_eq!(place.content(), b"new");
    place.assert_alone();
    assert!(!script.calls().contains(&"unlink"));
}

#[test]
fn a_file_system_without_syncs_of_directories_is_no_failure() {
    let place = Place::new();
    let fault = Fault::Errno(libc::EINVAL);
    let script = Script::new(&[("fsync of the directory", &[fault])]);
    let sink = sink(&place.path, &script, SinkOptions::new());
    sink.commit().unwrap();
    assert_eq!(place.content(), b"");
}

#[test]
fn direct_writes_take_whole_pages_and_the_cache_the_rest() {
    let place = Place::new();
    let page = crate::sys::page_size() as u64;
    // Ends within a page, as a signal or a full device can make it.
    let script = Script::new(&[("direct pwrite", &[Fault::Short(100)])]);
    let options = SinkOptions::new().direct(true);
    let created = options.create_with(&place.path, script.clone());
    let Some(mut sink) = require("odirect", created) else {
        return;
    };
    let bytes = pattern(3 * page as usize + 10);
    sink.append(&bytes).unwrap();
    sink.flush().unwrap();
    // A file system that took the flag may still refuse a part of a page where the short write ended.
    assert_eq!(
        script.ranges("direct pwrite"),
        [0..3 * page, page..3 * page]
    );
    assert_eq!(
        script.ranges("pwrite"),
        [100..page, 3 * page..3 * page + 10]
    );
    sink.append(b"tail").unwrap();
    sink.commit().unwrap();
    assert_eq!(script.ranges("pwrite").len(), 3);
    assert!(script.ranges("sync_file_range").is_empty());
    assert_eq!(place.content(), [&bytes[..], b"tail"].concat());
}

#[test]
fn direct_writes_that_are_refused_are_not_done_another_way() {
    let place = Place::new();
    let fault = Fault::Errno(libc::EINVAL);
    let script = Script::new(&[("direct pwrite", &[fault])]);
    let options = SinkOptions::new().direct(true);
    let created = options.create_with(&place.path, script.clone());
    let Some(mut sink) = require("odirect", created) else {
        return;
    };
    sink.append(&pattern(100_000)).unwrap();
    let error = sink.commit().unwrap_err();
    match error.kind() {
        ErrorKind::Unavailable {
            engine: "sink-direct",
            why: Refusal::Os { op, source },
        } => {
            let found = (*op, source.raw_os_error());
            assert_eq!(found, ("pwrite with O_DIRECT", Some(libc::EINVAL)));
        }
        other => panic!("{other:?}"),
    }
    assert!(script.ranges("pwrite").is_empty());
    place.assert_untouched();
}

#[test]
fn where_the_flag_is_unknown_a_link_refuses_an_existing_name() {
    for code in [libc::EINVAL, libc::ENOSYS] {
        let place = Place::new();
        let faults = [Fault::Errno(code), Fault::Errno(code)];
        let script = Script::new(&[("renameat2", &faults)]);
        let new = SinkOptions::new().overwrite(false);
        fs::remove_file(&place.path).unwrap();
        let mut first = sink(&place.path, &script, new.clone());
        let mut second = sink(&place.path, &script, new);
        first.append(b"first").unwrap();
        second.append(b"second").unwrap();
        first.commit().unwrap();
        let error = second.commit().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
        assert_eq!(script.ranges("link").len(), 2);
        assert_eq!(place.content(), b"first");
        place.assert_alone();
    }
}

#[test]
fn a_directory_that_came_to_the_name_is_named() {
    let place = Place::new();
    let sink = FileSink::create(&place.path).unwrap();
    fs::remove_file(&place.path).unwrap();
    fs::create_dir(&place.path).unwrap();
    let error = sink.commit().unwrap_err();
    let what = FileKind::Directory;
    assert!(matches!(error.kind(), ErrorKind::NotAFile { what: w } if *w == what));
    place.assert_alone();
}

#[test]
fn abort_reports_what_drop_cannot() {
    let place = Place::new();
    let script = Script::new(&[("unlink", &[Fault::Errno(libc::EACCES)])]);
    let error = sink(&place.path, &script, SinkOptions::new())
        .abort()
        .unwrap_err();
    assert_io(&error, "unlink of the temporary file", libc::EACCES);
    let script = Script::new(&[("unlink", &[Fault::Errno(libc::ENOENT)])]);
    sink(&place.path, &script, SinkOptions::new())
        .abort()
        .unwrap();
    assert_eq!(place.content(), b"old");
}

#[test]
fn no_room_for_the_size_hint_fails_at_once_and_no_fallocate_does_not() {
    let place = Place::new();
    let script = Script::new(&[("fallocate", &[Fault::Errno(libc::ENOSPC)])]);
    let options = SinkOptions::new().size_hint(1 << 20);
    let error = options.create_with(&place.path, script).unwrap_err();
    assert_io(&error, "fallocate", libc::ENOSPC);
    assert_eq!(error.length(), Some(1 << 20));
    place.assert_untouched();

    let script = Script::new(&[("fallocate", &[Fault::Errno(libc::EOPNOTSUPP)])]);
    let sink = sink(&place.path, &script, options);
    sink.commit().unwrap();
    assert_eq!(place.content(), b"");
}

#[test]
fn writeback_starts_early_and_covers_sequential_bytes_once() {
    let place = Place::new();
    let script = Script::new(&[]);
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    let bytes = pattern(5 << 20);
    for _ in 0..14 {
        sink.append(&bytes).unwrap();
    }
    sink.commit().unwrap();
    assert_eq!(
        script.ranges("sync_file_range"),
        [0..35 << 20, 35 << 20..70 << 20]
    );
}

#[test]
fn gathered_writes_are_few_and_later_ones_win() {
    let place = Place::new();
    let script = Script::new(&[]);
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    for _ in 0..10_000 {
        sink.append(b"abc").unwrap();
    }
    sink.write_at(1, b"--").unwrap();
    sink.write_at(3, b"+").unwrap();
    sink.commit().unwrap();
    assert_eq!(script.ranges("pwrite"), [0..30_000, 1..4]);
    let content = place.content();
    assert_eq!((&content[..5], content.len()), (&b"a--+b"[..], 30_000));
}

/// Whether `check` holds in a forked child, which lives no longer than that.
fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child works on memory and descriptors of its own and leaves through `_exit`.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!check())),
            child => {
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status == 0
            }
        }
    }
}

#[test]
fn a_forked_child_can_do_nothing_and_leaves_the_file_to_its_parent() {
    type Attempt = fn(FileSink) -> Result<()>;
    let attempts: [Attempt; 5] = [
        |mut sink| sink.append(b"x"),
        |mut sink| sink.flush(),
        FileSink::abort,
        |sink| sink.commit().map(drop),
        |mut sink| {
            let reader = Arc::new(MemoryReader::new("x"));
            let options = CopyOptions::default();
            copy_from(&reader, None, &mut sink, &options).map(drop)
        },
    ];
    for attempt in attempts {
        let place = Place::new();
        let mut sink = FileSink::create(&place.path).unwrap();
        sink.append(b"new").unwrap();
        let mut sink = Some(sink);
        assert!(holds_in_child(|| {
            let outcome = sink.take().map(attempt);
            matches!(outcome, Some(Err(e)) if matches!(e.kind(), ErrorKind::Forked))
        }));
        sink.unwrap().commit().unwrap();
        assert_eq!(place.content(), b"new");
        place.assert_alone();
    }
}

// The tests below are about copies.

/// Copies `range` of a file with `bytes` behind `before` bytes of something else.
fn copy_file(
    script: &Arc<Script>,
    place: &Place,
    bytes: &[u8],
    range: Range<u64>,
) -> Result<CopyReport> {
    let source = place.dir.path().join("target"); // read before it is replaced
    let before = 777;
    let mut content = vec![0xEE; before];
    content.extend_from_slice(bytes);
    fs::write(&source, content).unwrap();
    let file = File::open(&source).unwrap();
    let reader = Arc::new(MemoryReader::new(bytes.to_vec()));
    let kernel = LocalFile {
        fd: file.as_fd(),
        start: before as u64,
        version: version_of(&file).unwrap(),
    };
    let mut sink = sink(&place.path, script, SinkOptions::new());
    sink.append(b"head").unwrap();
    let options = CopyOptions::default().range(range).in_kernel(true);
    let report = copy_from(&reader, Some(kernel), &mut sink, &options)?;
    sink.append(b"tail").unwrap();
    sink.commit()?;
    Ok(report)
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    [b"head", bytes, b"tail"].concat()
}

#[cfg(all(target_os = "linux", not(feedwater_portable)))]
#[test]
fn the_kernel_copies_unaligned_ranges_and_interruptions_are_finished() {
    use Fault::{Errno, Pass, Short};
    let place = Place::new();
    let faults = [Errno(libc::EINTR), Short(3), Pass, Errno(libc::EINTR)];
    let script = Script::new(&[("copy_file_range", &faults)]);
    let bytes = pattern((3 << 20) + 11);
    let report = copy_file(&script, &place, &bytes, 5..(3 << 20) + 9).unwrap();
    assert_eq!((report.bytes, report.in_kernel), (3145732, 3145732));
    assert_eq!(report.route(), super::copy::CopyRoute::InKernel);
    assert!(report.refusal.is_none());
    assert_eq!(place.content(), framed(&bytes[5..(3 << 20) + 9]));
    place.assert_alone();
}

#[cfg(all(target_os = "linux", not(feedwater_portable)))]
#[test]
fn what_the_kernel_refuses_is_copied_from_where_it_stopped() {
    use Fault::{Errno, Pass, Short};
    let bytes = pattern((5 << 20) + 1);
    for code in [
        libc::EXDEV,
        libc::EINVAL,
        libc::ENOSYS,
        libc::EOPNOTSUPP,
        libc::EBADF,
        libc::EPERM,
        libc::EIO,
    ] {
        let place = Place::new();
        let faults = [Pass, Short(9), Errno(code)];
        let script = Script::new(&[("copy_file_range", &faults)]);
        let report = copy_file(&script, &place, &bytes, 1..bytes.len() as u64).unwrap();
        assert_eq!((report.bytes, report.in_kernel), (5 << 20, (1 << 20) + 9));
        assert_eq!(report.route(), super::copy::CopyRoute::Overlapped);
        match report.refusal {
            Some(Refusal::Os { op, source }) => {
                let found = (op, source.raw_os_error());
                assert_eq!(found, ("copy_file_range", Some(code)));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(place.content(), framed(&bytes[1..]));
    }
}

#[test]
fn a_kernel_that_copies_nothing_is_done_without() {
    let place = Place::new();
    let script = Script::new(&[("copy_file_range", &[Fault::Short(0)])]);
    let bytes = pattern(10_000);
    let report = copy_file(&script, &place, &bytes, 0..10_000).unwrap();
    assert_eq!((report.bytes, report.in_kernel), (10_000, 0));
    let refusal = Refusal::NotForThisFile {
        what: "copy_file_range gave nothing at offset 777".into(),
    };
    assert_eq!(report.refusal.unwrap().to_string(), refusal.to_string());
    assert_eq!(place.content(), framed(&bytes));
}

#[test]
fn a_full_disk_ends_a_copy_within_the_kernel() {
    let place = Place::new();
    let script = Script::new(&[("copy_file_range", &[Fault::Errno(libc::ENOSPC)])]);
    let error = copy_file(&script, &place, &pattern(10_000), 0..10_000).unwrap_err();
    assert_io(&error, "copy_file_range", libc::ENOSPC);
    assert_eq!((error.offset(), error.length()), (Some(4), Some(10_000)));
    assert_eq!(place.content().len(), 10_777);
    place.assert_alone();
}

#[cfg(all(target_os = "linux", not(feedwater_portable)))]
#[test]
fn a_source_that_changed_is_noticed_after_a_copy_within_the_kernel() {
    use std::io::Write;
    let place = Place::new();
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(&pattern(10_000)).unwrap();
    let version = version_of(&source).unwrap();
    source.write_all(b"longer").unwrap();
    let reader = Arc::new(MemoryReader::named("source", pattern(10_000)));
    let kernel = LocalFile {
        fd: source.as_fd(),
        start: 0,
        version,
    };
    let mut sink = FileSink::create(&place.path).unwrap();
    let error = copy_from(&reader, Some(kernel), &mut sink, &CopyOptions::default()).unwrap_err();
    let ErrorKind::Changed { opened, found } = error.kind() else {
        panic!("{error}");
    };
    assert_eq!((opened.size(), found.size()), (10_000, 10_006));
    assert_eq!(error.name(), Some("source"));
    let again = sink.commit().unwrap_err();
    assert!(matches!(again.kind(), ErrorKind::Changed { .. }), "{again}");
    place.assert_untouched();
}

#[test]
fn the_kernel_is_not_asked_where_the_options_forbid_it() {
    let place = Place::new();
    let script = Script::new(&[]);
    let file = File::open(&place.path).unwrap();
    let reader = Arc::new(MemoryReader::new("old"));
    let kernel = LocalFile {
        fd: file.as_fd(),
        start: 0,
        version: version_of(&file).unwrap(),
    };
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    let options = CopyOptions::default().in_kernel(false);
    let report = copy_from(&reader, Some(kernel), &mut sink, &options).unwrap();
    assert_eq!((report.in_kernel, report.bytes), (0, 3));
    assert!(script.ranges("copy_file_range").is_empty());
    sink.abort().unwrap();
}

#[test]
fn a_write_that_fails_on_the_other_thread_ends_the_copy() {
    let place = Place::new();
    let faults = [Fault::Pass, Fault::Pass, Fault::Errno(libc::ENOSPC)];
    let script = Script::new(&[("pwrite", &faults)]);
    let reader = Arc::new(MemoryReader::new(pattern(8 << 20)));
    let mut sink = sink(&place.path, &script, SinkOptions::new());
    let options = CopyOptions::default();
    let error = copy_from(&reader, None, &mut sink, &options).unwrap_err();
    assert_io(&error, "pwrite", libc::ENOSPC);
    assert_eq!(error.offset(), Some(512 << 10));
    assert_io(&sink.commit().unwrap_err(), "pwrite", libc::ENOSPC);
    place.assert_untouched();
}

#[test]
fn room_for_a_large_copy_is_reserved_once_and_a_full_disk_fails_before_the_bytes() {
    let place = Place::new();
    let script = Script::new(&[("fallocate", &[Fault::Pass, Fault::Errno(libc::ENOSPC)])]);
    let reader = Arc::new(MemoryReader::new(pattern(8 << 20)));
    let mut sink = sink(&place.path, &script, SinkOptions::new().size_hint(9 << 20));
    let options = CopyOptions::default();
    copy_from(&reader, None, &mut sink, &options).unwrap();
    let written = script.ranges("pwrite").len();
    let error = copy_from(&reader, None, &mut sink, &options).unwrap_err();
    assert_io(&error, "fallocate", libc::ENOSPC);
    assert_eq!(script.ranges("pwrite").len(), written);
    let last = script.ranges("fallocate").pop();
    assert_eq!(last, Some(0..16 << 20));
    drop(sink);
    place.assert_untouched();
}

#[test]
fn a_range_outside_the_source_leaves_the_sink_usable() {
    let place = Place::new();
    let reader = Arc::new(MemoryReader::new("abc"));
    let mut sink = FileSink::create(&place.path).unwrap();
    let options = CopyOptions::default().range(1..9);
    let error = copy_from(&reader, None, &mut sink, &options).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 3 }));
    sink.append(b"fine").unwrap();
    sink.commit().unwrap();
    assert_eq!(place.content(), b"fine");
}
