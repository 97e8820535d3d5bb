//! Whole files, many at once: open, look, read, close, each step asked of the ring when the one before is done.
//!
//! Steps linked in the kernel were measured too (open, read and close by a registered slot): 20,000 cold files of 4 to
//! 32 KiB took as long (0.6 to 0.8 s, as also by 32 threads; one after the other 2.7 s), and warm ones too. Linked, a
//! file's size and version could not be asked of the very file that is read, so they are not.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use rustix::fs::FileType;

use super::operation::{MOST, MOST_REFUSALS, is_not_now};
use crate::backend::whole::{Want, WholeFile};
use crate::buffer::{Block, BlockMut};
use crate::error::{Error, ErrorKind, FileKind, Result};
use crate::reader::VersionCheck;
use crate::sys;
use crate::version::{FileVersion, Timestamp, Version};

/// Taken as the size of a file that has not been looked at, for the bytes in flight on its device.
pub(super) const GUESS: u64 = 64 << 10;

/// Files to be read whole.
pub(crate) struct Files {
    paths: Vec<Arc<Path>>,
    /// The next one that nobody has begun.
    next: AtomicUsize,
    /// Whoever waits knows what became of it.
    told: Box<[AtomicBool]>,
    /// Nobody waits any more: what has not been begun is not, what was opened is closed.
    cancelled: AtomicBool,
    check: VersionCheck,
    want: Arc<dyn Want>,
    /// Descriptors whose close failed. They are gone all the same (close(2)), and so is nothing that was read.
    failed_closes: AtomicUsize,
}

impl Files {
    pub(crate) fn new(
        paths: Vec<Arc<Path>>,
        check: VersionCheck,
        want: Arc<dyn Want>,
    ) -> Arc<Self> {
        Arc::new(Files {
            told: paths.iter().map(|_| AtomicBool::new(false)).collect(),
            paths,
            next: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            check,
            want,
            failed_closes: AtomicUsize::new(0),
        })
    }

    /// Nobody waits any more.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || !self.want.is_wanted()
    }

    #[cfg(test)]
    pub(crate) fn failed_closes(&self) -> usize {
        self.failed_closes.load(Ordering::Relaxed)
    }

    /// The next file that nobody has begun. Those whose path is none are told so here.
    pub(super) fn claim(self: &Arc<Self>) -> Option<FileOperation> {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let path = self.paths.get(index)?;
            if self.is_cancelled() {
                self.tell(index, Err(Error::new(ErrorKind::Abandoned)));
                continue;
            }
            match CString::new(path.as_os_str().as_bytes()) {
                Ok(name) => return Some(FileOperation::new(self.clone(), index, name)),
                Err(_) => {
                    let error =
                        io::Error::new(io::ErrorKind::InvalidInput, "a path with a NUL byte");
                    self.tell(index, Err(Error::io("open", error)));
                }
            }
        }
    }

    /// Gives up what has not been begun.
    pub(super) fn give_up(&self, error: &Error) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.paths.len() {
                return;
            }
            self.tell(index, Err(error.clone()));
        }
    }

    /// Gives up everything: who waits is told, and what was opened is closed when the kernel is done.
    pub(super) fn abandon(&self, error: &Error) {
        self.cancel();
        self.give_up(error);
        for index in 0..self.paths.len() {
            self.tell(index, Err(error.clone()));
        }
    }

    /// Once for each.
    fn tell(&self, index: usize, outcome: Result<Option<WholeFile>>) {
        let told = self.told.get(index);
        if told.is_none_or(|told| told.swap(true, Ordering::Relaxed)) {
            return;
        }
        let named = |error: Error| match self.paths.get(index) {
            Some(path) => error.named(&self.name(path)).by("uring"),
            None => error,
        };
        self.want.tell(index, outcome.map_err(named));
    }

    fn name(&self, path: &Path) -> Arc<str> {
        path.to_string_lossy().into()
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("files", &self.paths.len())
            .field("begun", &self.next)
            .finish_non_exhaustive()
    }
}

/// How far a file is.
#[derive(Debug)]
enum Stage {
    Open,
    Look {
        fd: OwnedFd,
    },
    Read {
        fd: OwnedFd,
        version: FileVersion,
        block: BlockMut,
    },
    /// Once more, as it may have changed while it was read.
    LookAgain {
        fd: OwnedFd,
        version: FileVersion,
        block: BlockMut,
    },
    /// The descriptor is the kernel's to close.
    Close {
        fd: i32,
        outcome: Result<Option<WholeFile>>,
    },
    /// Told.
    Over,
}

/// What is to be done after an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileStep {
    Ask,
    Over,
}

/// One file on its way through a ring.
pub(super) struct FileOperation {
    files: Arc<Files>,
    index: usize,
    path: CString,
    found: Box<MaybeUninit<libc::statx>>,
    stage: Stage,
    refusals: u32,
    may_wait: bool,
}

impl FileOperation {
    fn new(files: Arc<Files>, index: usize, path: CString) -> Self {
        FileOperation {
            files,
            index,
            path,
            found: Box::new(MaybeUninit::zeroed()),
            stage: Stage::Open,
            refusals: 0,
            may_wait: false,
        }
    }

    /// What to ask for. All it points to stays where it is until the operation is dropped.
    pub(super) fn entry(&mut self) -> squeue::Entry {
        let found = self.found.as_mut_ptr();
        let look = |fd: i32| {
            opcode::Statx::new(types::Fd(fd), c"".as_ptr(), found.cast())
                .flags(libc::AT_EMPTY_PATH)
                .mask(libc::STATX_BASIC_STATS)
                .build()
        };
        let entry = match &self.stage {
            Stage::Open => opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), self.path.as_ptr())
                .flags(libc::O_RDONLY | sys::open_flags())
                .build(),
            Stage::Look { fd } | Stage::LookAgain { fd, .. } => look(fd.as_raw_fd()),
            Stage::Read { fd, block, .. } => {
                let left = (block.remaining() as u64).min(MOST);
                opcode::Read::new(types::Fd(fd.as_raw_fd()), block.unfilled_ptr(), left as u32)
                    .offset(block.filled_len() as u64)
                    .build()
            }
            Stage::Close { fd, .. } => opcode::Close::new(types::Fd(*fd)).build(),
            Stage::Over => opcode::Nop::new().build(),
        };
        if self.may_wait {
            return entry.flags(squeue::Flags::ASYNC);
        }
        entry
    }

    /// What the answer to the last entry means: a number that is not negative, or an error number below 0.
    pub(super) fn answer(&mut self, result: i32) -> FileStep {
        let error = io::Error::from_raw_os_error(result.saturating_neg());
        let not_now = is_not_now(&error);
        let closing = matches!(self.stage, Stage::Close { .. });
        if result < 0 && not_now && !closing && self.refusals < MOST_REFUSALS {
            self.refusals += 1;
            self.may_wait = error.raw_os_error() == Some(libc::EAGAIN);
            return FileStep::Ask;
        }
        self.refusals = 0;
        self.may_wait = false;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Open if result < 0 => {
                let error = match error.raw_os_error() {
                    // What open says of a socket.
                    Some(libc::ENXIO) => not_a_file(FileKind::Socket),
                    _ => Error::io("open", error),
                };
                self.over(Err(error))
            }
            Stage::Open => {
                // SAFETY: the kernel opened it for this operation, and nobody else knows it.
                let fd = unsafe { OwnedFd::from_raw_fd(result) };
                if self.files.is_cancelled() {
                    return self.close(fd, Err(Error::new(ErrorKind::Abandoned)));
                }
                self.stage = Stage::Look { fd };
                FileStep::Ask
            }
            Stage::Look { fd } if result < 0 => self.close(fd, Err(Error::io("statx", error))),
            Stage::Look { fd } => match self.begin_reading() {
                Ok((_, None)) => self.close(fd, Ok(None)),
                Ok((version, Some(block))) if version.size == 0 => {
                    self.close(fd, Ok(content(version, block)))
                }
                Ok((version, Some(block))) => {
                    // It was opened so as not to wait for a FIFO; some file systems take that for their reads too.
                    if let Err(error) = sys::set_blocking(fd.as_fd()) {
                        return self.close(fd, Err(Error::io("fcntl", error)));
                    }
                    self.stage = Stage::Read { fd, version, block };
                    FileStep::Ask
                }
                Err(error) => self.close(fd, Err(error)),
            },
            Stage::Read { fd, .. } if result < 0 => self.close(fd, Err(Error::io("read", error))),
            Stage::Read { fd, version, block } => self.read(fd, version, block, result as usize),
            Stage::LookAgain { fd, .. } if result < 0 => {
                self.close(fd, Err(Error::io("statx", error)))
            }
            Stage::LookAgain { fd, version, block } => {
                let found = self.looked().1;
                let outcome = if found != version {
                    Err(Error::new(ErrorKind::Changed {
                        opened: Version::File(version),
                        found: Version::File(found),
                    }))
                } else if block.remaining() > 0 {
                    Err(ended(block.filled_len()))
                } else {
                    Ok(content(version, block))
                };
                self.close(fd, outcome)
            }
            Stage::Close { outcome, .. } => {
                if result < 0 {
                    self.files.failed_closes.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(path = %self.path.to_string_lossy(), %error, "close failed");
                }
                self.over(outcome)
            }
            Stage::Over => FileStep::Over,
        }
    }

    fn read(
        &mut self,
        fd: OwnedFd,
        version: FileVersion,
        mut block: BlockMut,
        came: usize,
    ) -> FileStep {
        if came == 0 {
            // It has fewer bytes than it had: another look says what it is now.
            self.stage = Stage::LookAgain { fd, version, block };
            return FileStep::Ask;
        }
        // SAFETY: the kernel read so many bytes to the first unfilled one, of as many as were left.
        unsafe { block.advance(came) };
        if block.remaining() > 0 {
            self.stage = Stage::Read { fd, version, block };
            return FileStep::Ask;
        }
        if self.files.check == VersionCheck::OnShortRead {
            return self.close(fd, Ok(content(version, block)));
        }
        self.stage = Stage::LookAgain { fd, version, block };
        FileStep::Ask
    }

    /// What the last look found.
    fn looked(&self) -> (FileType, FileVersion) {
        // SAFETY: zeroed at first, and since then written to by the kernel alone, which is done with it.
        let found = unsafe { self.found.assume_init_ref() };
        let time = |t: &libc::statx_timestamp| Timestamp {
            seconds: t.tv_sec,
            nanoseconds: t.tv_nsec,
        };
        let version = FileVersion {
            dev: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            size: found.stx_size,
            mtime: time(&found.stx_mtime),
            ctime: time(&found.stx_ctime),
        };
        (FileType::from_raw_mode(found.stx_mode.into()), version)
    }

    fn begin_reading(&self) -> Result<(FileVersion, Option<BlockMut>)> {
        let (kind, version) = self.looked();
        match kind {
            FileType::RegularFile => {}
            FileType::Directory => return Err(not_a_file(FileKind::Directory)),
            FileType::Fifo => return Err(not_a_file(FileKind::Fifo)),
            FileType::Socket => return Err(not_a_file(FileKind::Socket)),
            FileType::CharacterDevice => return Err(not_a_file(FileKind::CharacterDevice)),
            FileType::BlockDevice => return Err(not_a_file(FileKind::BlockDevice)),
            _ => return Err(not_a_file(FileKind::Unknown)),
        }
        let block = self.files.want.room(self.index, &version)?;
        // Of another size it would be read wrongly.
        let fits = |block: &BlockMut| block.remaining() as u64 == version.size;
        Ok((version, block.filter(fits)))
    }

    fn close(&mut self, fd: OwnedFd, outcome: Result<Option<WholeFile>>) -> FileStep {
        self.stage = Stage::Close {
            fd: fd.into_raw_fd(),
            outcome,
        };
        FileStep::Ask
    }

    fn over(&mut self, outcome: Result<Option<WholeFile>>) -> FileStep {
        self.tell(outcome);
        FileStep::Over
    }

    fn tell(&self, outcome: Result<Option<WholeFile>>) {
        self.files.tell(self.index, outcome);
    }

    /// Gives it up before it was begun.
    pub(super) fn give_up(self, error: &Error) {
        self.tell(Err(error.clone()));
    }

    /// Gives it up while the kernel may still write to its memory, which is never freed.
    pub(super) fn leak(self) {
        // Also if telling others panics.
        let file = ManuallyDrop::new(self);
        file.tell(Err(Error::new(ErrorKind::Abandoned)));
    }
}

impl Drop for FileOperation {
    fn drop(&mut self) {
        // Not reached with anybody still waiting, unless telling others panicked.
        self.tell(Err(Error::new(ErrorKind::Abandoned)));
    }
}

impl fmt::Debug for FileOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOperation")
            .field("path", &self.path)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

fn not_a_file(what: FileKind) -> Error {
    Error::new(ErrorKind::NotAFile { what })
}

/// There is nothing where there was something, and the file does not show why.
fn ended(offset: usize) -> Error {
    let what = format!("no bytes at offset {offset}");
    Error::io("read", io::Error::new(io::ErrorKind::UnexpectedEof, what))
}

fn content(version: FileVersion, block: BlockMut) -> Option<WholeFile> {
    let bytes = match block.freeze() {
        Block::Host(bytes) => bytes,
        Block::Device(_) => Bytes::new(), // blocks of the pool are in host memory
    };
    Some(WholeFile { version, bytes })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs::{self, File};
    use std::num::NonZeroUsize;
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::super::fixture::skipped;
    use super::super::{Rings, facts};
    use super::*;
    use crate::backend::device::{Bounds, Device};
    use crate::buffer::Pool;
    use crate::reader::ReadOptions;

    type Told = mpsc::Receiver<(usize, Result<WholeFile>)>;

    /// Tells what it is told; nobody need listen any more.
    struct Telling(Mutex<mpsc::Sender<(usize, Result<WholeFile>)>>, Pool);

    impl Want for Telling {
        fn room(&self, _: usize, version: &FileVersion) -> Result<Option<BlockMut>> {
            self.1.take(version.size as usize).map(Some)
        }
        fn tell(&self, index: usize, outcome: Result<Option<WholeFile>>) {
            let outcome = outcome.map(|whole| whole.expect("there was room"));
            let _ = self.0.lock().unwrap().send((index, outcome));
        }
    }

    fn files(paths: Vec<PathBuf>) -> (Arc<Files>, Told) {
        let (tell, told) = mpsc::channel();
        let want = Arc::new(Telling(Mutex::new(tell), Pool::default()));
        let paths = paths.into_iter().map(Into::into).collect();
        (Files::new(paths, VersionCheck::Always, want), told)
    }

    fn device() -> Arc<Device> {
        let bounds = Bounds {
            depth: 16,
            bytes: 1 << 20,
        };
        Arc::new(Device::new(None, bounds))
    }

    /// Reads all of `paths` by a ring; `None` where there are none.
    fn read(paths: &[PathBuf]) -> Option<HashMap<usize, Result<WholeFile>>> {
        let (files, told) = files(paths.to_vec());
        let rings = Rings::new(4);
        if let Err(why) =
            facts().and_then(|_| rings.read(files.clone(), &device(), &ReadOptions::default()))
        {
            skipped("uring", why);
            return None;
        }
        let patience = Duration::from_secs(60);
        let outcomes = paths.iter().map(|_| told.recv_timeout(patience).unwrap());
        let outcomes: HashMap<_, _> = outcomes.collect();
        assert_eq!(outcomes.len(), paths.len(), "each is told once");
        assert_eq!(rings.shut_down(Instant::now() + patience), 0);
        assert_eq!(files.failed_closes(), 0);
        Some(outcomes)
    }

    #[test]
    fn many_files_come_whole_and_bad_ones_stop_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for i in 0..300usize {
            let path = dir.path().join(format!("file {i}"));
            // Empty, smaller than a page, larger than one request in flight.
            let len = [0, 1, 100, 4096, 70_001, 3 << 20][i % 6];
            fs::write(&path, vec![i as u8; len]).unwrap();
            paths.push(path);
        }
        let count = paths.len();
        paths.push(dir.path().join("nothing"));
        paths.push(dir.path().to_path_buf());
        let circle = dir.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        paths.push(circle);
        let fifo = dir.path().join("fifo");
        let c_path = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
        paths.push(fifo);
        paths.push("/dev/zero".into());
        paths.push("a\0b".into());
        let Some(outcomes) = read(&paths) else { return };
        for (i, path) in paths[..count].iter().enumerate() {
            let whole = outcomes[&i].as_ref().unwrap();
            assert_eq!(whole.bytes, fs::read(path).unwrap(), "{}", path.display());
            assert_eq!(
                whole.version,
                FileVersion::from(&fs::metadata(path).unwrap())
            );
        }
        let error = |at: usize| outcomes[&(count + at)].as_ref().unwrap_err().clone();
        let raw = |error: &Error| match error.kind() {
            ErrorKind::Io { source, .. } => source.raw_os_error(),
            _ => None,
        };
        assert_eq!(raw(&error(0)), Some(libc::ENOENT));
        assert_eq!(raw(&error(2)), Some(libc::ELOOP));
        for (at, kind) in [
            (1, FileKind::Directory),
            (3, FileKind::Fifo),
            (4, FileKind::CharacterDevice),
        ] {
            let error = error(at);
            assert!(
                matches!(error.kind(), ErrorKind::NotAFile { what } if *what == kind),
                "{error}"
            );
        }
        assert!(matches!(error(5).kind(), ErrorKind::Io { .. }));
        for at in 0..6 {
            assert_eq!(
                error(at).name(),
                Some(&*paths[count + at].to_string_lossy())
            );
        }
    }

    /// Descriptors of this process that lead below `dir`.
    fn open_below(dir: &Path) -> usize {
        let fds = fs::read_dir("/proc/self/fd").unwrap();
        fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
            .filter(|target| target.starts_with(dir))
            .count()
    }

    #[test]
    fn cancelled_files_are_told_and_late_descriptors_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "content").unwrap();
        let (files, told) = files(vec![path.clone(); 2]);
        let mut opened_late = files.claim().unwrap();
        files.cancel();
        let late = File::open(&path).unwrap().into_raw_fd();
        assert_eq!(opened_late.answer(late), FileStep::Ask);
        assert!(matches!(opened_late.stage, Stage::Close { fd, .. } if fd == late));
        // SAFETY: this is the close that the operation asks for.
        assert_eq!(unsafe { libc::close(late) }, 0);
        assert_eq!(opened_late.answer(0), FileStep::Over);
        assert!(files.claim().is_none(), "what was not begun is not");
        assert_eq!(open_below(dir.path()), 0);
        drop(opened_late);
        let outcomes: Vec<_> = told.try_iter().collect();
        assert_eq!(outcomes.len(), 2);
        for (_, outcome) in outcomes {
            assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::Abandoned));
        }
    }

    /// Does what the operation asks for, with reads of at most `most` bytes; closes give `closed`.
    fn play(file: &mut FileOperation, most: usize, closed: i32) {
        loop {
            let _ = file.entry();
            let found = file.found.as_mut_ptr();
            // SAFETY: each call is given what the operation would give the kernel.
            let result = unsafe {
                match &file.stage {
                    Stage::Open => {
                        libc::open(file.path.as_ptr(), libc::O_RDONLY | sys::open_flags())
                    }
                    Stage::Look { fd } | Stage::LookAgain { fd, .. } => {
                        let mask = libc::STATX_BASIC_STATS;
                        let flags = libc::AT_EMPTY_PATH;
                        libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, mask, found)
                    }
                    Stage::Read { fd, block, .. } => {
                        let len = block.remaining().min(most);
                        let at = block.filled_len() as i64;
                        libc::pread(fd.as_raw_fd(), block.unfilled_ptr().cast(), len, at) as i32
                    }
                    Stage::Close { fd, .. } => {
                        libc::close(*fd);
                        closed
                    }
                    Stage::Over => return,
                }
            };
            // Each step is asked for once more after an interruption.
            if !matches!(file.stage, Stage::Close { .. }) && file.refusals == 0 && result >= 0 {
                if let Stage::Open = file.stage {
                    // SAFETY: opened a moment ago, for nobody.
                    unsafe { libc::close(result) };
                }
                assert_eq!(file.answer(-libc::EINTR), FileStep::Ask);
                continue;
            }
            if file.answer(result) == FileStep::Over {
                return;
            }
        }
    }

    #[test]
    fn short_reads_are_finished_and_a_close_that_fails_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        fs::write(&path, &content).unwrap();
        let (files, told) = files(vec![path]);
        play(&mut files.claim().unwrap(), 999, -libc::EIO);
        let (_, outcome) = told.try_recv().unwrap();
        assert_eq!(outcome.unwrap().bytes, content);
        assert_eq!(files.failed_closes(), 1);
        assert!(told.try_recv().is_err(), "told once");
    }

    #[test]
    fn a_file_that_shrinks_or_grows_while_it_is_read_has_changed() {
        for new_len in [5000, 0, 20_000] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            fs::write(&path, vec![7; 10_000]).unwrap();
            let (files, told) = files(vec![path.clone()]);
            let mut file = files.claim().unwrap();
            // Up to the first read.
            while !matches!(file.stage, Stage::Read { .. }) {
                let result = match &file.stage {
                    Stage::Open => File::open(&path).unwrap().into_raw_fd(),
                    Stage::Look { fd } => {
                        let found = file.found.as_mut_ptr();
                        let mask = libc::STATX_BASIC_STATS;
                        // SAFETY: what the operation would give the kernel.
                        unsafe {
                            libc::statx(
                                fd.as_raw_fd(),
                                c"".as_ptr(),
                                libc::AT_EMPTY_PATH,
                                mask,
                                found,
                            )
                        }
                    }
                    stage => panic!("{stage:?}"),
                };
                assert_eq!(file.answer(result), FileStep::Ask);
            }
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(new_len)
                .unwrap();
            play(&mut file, 3000, 0);
            let (_, outcome) = told.try_recv().unwrap();
            let error = outcome.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Changed { .. }),
                "{new_len}: {error}"
            );
        }
    }

    #[test]
    fn without_room_a_file_is_closed_and_told_so() {
        struct NoRoom(Mutex<mpsc::Sender<Result<Option<WholeFile>>>>);
        impl Want for NoRoom {
            fn room(&self, _: usize, version: &FileVersion) -> Result<Option<BlockMut>> {
                assert_eq!(version.size, 5);
                Ok(None)
            }
            fn tell(&self, _: usize, outcome: Result<Option<WholeFile>>) {
                self.0.lock().unwrap().send(outcome).unwrap();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "bytes").unwrap();
        let (tell, told) = mpsc::channel();
        let want = Arc::new(NoRoom(Mutex::new(tell)));
        let files = Files::new(vec![path.into()], VersionCheck::Always, want);
        play(&mut files.claim().unwrap(), 999, 0);
        assert!(told.try_recv().unwrap().unwrap().is_none());
        assert!(told.try_recv().is_err(), "told once");
        assert_eq!(open_below(dir.path()), 0);
    }

    #[test]
    fn depth_is_an_option() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x").unwrap();
        let (files, told) = files(vec![path; 50]);
        let rings = Rings::new(1);
        let device = device();
        let options = ReadOptions::default().depth(NonZeroUsize::new(3).unwrap());
        if let Err(why) = facts().and_then(|_| rings.read(files, &device, &options)) {
            return skipped("uring", why);
        }
        for _ in 0..50 {
            told.recv_timeout(Duration::from_secs(60))
                .unwrap()
                .1
                .unwrap();
        }
        assert!(device.most_requests() <= 3, "{}", device.most_requests());
    }
}
