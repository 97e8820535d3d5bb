//! A file that appears whole or not at all.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, RawMode};

use super::calls::{Calls, Os};
use super::output::{Output, refused};
use super::target::{Target, create_temporary, locate, not_a_file, version_of};
use super::{ENGINE, os};
use crate::buffer::{BlockMut, Pool};
use crate::error::{Error, ErrorKind, FileKind, Refusal, Result};
use crate::sys::Generation;
use crate::version::FileVersion;

/// Small writes are gathered up to this before they go to the system.
const STAGE: usize = 256 << 10;
/// The same for direct writes, each of which waits for the device.
const STAGE_DIRECT: usize = 4 << 20;

/// What [`FileSink::commit`] waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SyncMode {
    /// Content and name are on stable storage: `fsync` of the file, and of the directory after the rename.
    #[default]
    Full,
    /// Nothing. Other processes see the whole new content or the whole old one; after a crash of the system
    /// there may be either, or on some file systems an empty file.
    None,
}

/// How a [`FileSink`] writes.
///
/// ```
/// use feedwater::{SinkOptions, SyncMode};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.bin");
/// let mut sink = SinkOptions::new().sync(SyncMode::None).overwrite(false).create(&path)?;
/// sink.append(b"rows")?;
/// sink.commit()?;
/// # assert_eq!(std::fs::read(path)?, b"rows");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until `create`"]
pub struct SinkOptions {
    size_hint: u64,
    direct: bool,
    sync: SyncMode,
    mode: Option<u32>,
    overwrite: bool,
    pool: Option<Pool>,
}

impl Default for SinkOptions {
    fn default() -> Self {
        SinkOptions {
            size_hint: 0,
            direct: false,
            sync: SyncMode::default(),
            mode: None,
            overwrite: true,
            pool: None,
        }
    }
}

impl SinkOptions {
    /// The defaults: through the page cache, [`SyncMode::Full`], replacing what is there.
    pub fn new() -> Self {
        SinkOptions::default()
    }

    /// Bytes that will be written, as far as known. Default 0: not known.
    ///
    /// Room for them is reserved at the start where the file system can (`fallocate`), so that a full disk
    /// fails at [`create`](Self::create); what was not used is given back at the commit. Writing more is fine.
    pub fn size_hint(mut self, bytes: u64) -> Self {
        self.size_hint = bytes;
        self
    }

    /// Writes past the page cache (`O_DIRECT`), or fails. Default false.
    ///
    /// Whole pages are written directly, in pieces of up to 4 MiB; what does not fill a page (the tail, and both
    /// ends of a [`write_at`](FileSink::write_at)) goes through the cache. Bytes are copied once, except for
    /// large pieces whose address and offset are page-aligned. Some file systems accept the flag and
    /// use their cache all the same.
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// What a commit waits for. Default [`SyncMode::Full`].
    pub fn sync(mut self, sync: SyncMode) -> Self {
        self.sync = sync;
        self
    }

    /// Permission bits of the file, exactly: the umask is not applied. At most `0o7777`.
    ///
    /// Default: those of the file that is replaced, without set-user-ID and the like; for a new file what any new
    /// file gets (`0o666` less the umask, or what default ACLs of the directory say).
    pub fn mode(mut self, bits: u32) -> Self {
        self.mode = Some(bits);
        self
    }

    /// Whether an existing file is replaced. Default true. With false, anything that has the name is
    /// [`AlreadyExists`](ErrorKind::AlreadyExists), at [`create`](Self::create) and again at the commit, where the
    /// check and the rename are one step; of two such sinks exactly one commits.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Where the block for gathering small writes comes from. Default: a pool of its own.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Creates the temporary file. Costs about six system calls.
    ///
    /// # Errors
    /// [`NotAFile`](ErrorKind::NotAFile) if `path` leads to a directory, device, pipe or socket;
    /// [`AlreadyExists`](ErrorKind::AlreadyExists) without [`overwrite`](Self::overwrite);
    /// [`Unavailable`](ErrorKind::Unavailable) if direct writes were asked for and are refused;
    /// [`InvalidOption`](ErrorKind::InvalidOption) for a mode past `0o7777`; else [`Io`](ErrorKind::Io): no such
    /// directory, no right to write in it, for [`SyncMode::Full`] no right to read it, no room for
    /// [`size_hint`](Self::size_hint).
    pub fn create(&self, path: impl AsRef<Path>) -> Result<FileSink> {
        self.create_with(path.as_ref(), Arc::new(Os))
    }

    pub(super) fn create_with(&self, path: &Path, calls: Arc<dyn Calls>) -> Result<FileSink> {
        let name: Arc<str> = path.to_string_lossy().into();
        let place = |error: Error| error.named(&name).by(ENGINE);
        if self.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(place(Error::new(ErrorKind::InvalidOption {
                what: "mode has more than permission bits (0o7777)".into(),
            })));
        }
        let full = self.sync == SyncMode::Full;
        let Target {
            dir,
            name: target,
            mode: old,
        } = locate(path, self.overwrite, full).map_err(place)?;
        let wanted = self.mode.map(|bits| Mode::from_raw_mode(bits as RawMode));
        let mode = wanted.or(old);
        // Nobody else may read the unfinished file if the finished one might be closed to them. A new file's
        // bits are left to the kernel, which alone knows the umask and the directory's ACLs.
        let first = Mode::from_raw_mode(if mode.is_some() { 0o600 } else { 0o666 });
        let (temporary, file) = create_temporary(&dir, first).map_err(place)?;
        let mut sink = FileSink {
            out: Output {
                calls,
                name: name.clone(),
                file,
                direct: None,
                early_writeback: full,
                dirty: 0..0,
            },
            dir,
            target,
            temporary: Some(temporary),
            options: self.clone(),
            mode,
            len: 0,
            reserved: 0,
            stage: None,
            stage_at: 0,
            failed: None,
            copying: false,
            generation: Generation::current(),
        };
        if self.direct {
            sink.open_direct().map_err(place)?;
        }
        sink.reserve(self.size_hint)?;
        Ok(sink)
    }
}

/// Writes a file that appears whole at [`commit`](Self::commit), or not at all.
///
/// Bytes go to a hidden temporary file in the same directory (`.feedwater-` and 16 hexadecimal digits,
/// `.tmp`), which a rename then puts in place of the target. Until that moment, and after any error before it, the
/// old file is there, untouched; its readers keep it. Dropping the sink removes the temporary file, also
/// when a panic unwinds; a process that is killed leaves it behind.
///
/// - **Links.** A symbolic link at `path` is followed when the sink is created, and what it leads to is
///   replaced, as writing through it would do; the link stays. (Without
///   [`overwrite`](SinkOptions::overwrite) a link is something that exists.)
/// - **What is kept** of a replaced file: its permission bits. Its owner, ACLs, extended attributes
///   and other hard links are not: the new file is another inode.
/// - **Small writes** are gathered in a block of 256 KiB (direct: 4 MiB), so that wrapping in a `BufWriter` gains
///   nothing. An error can therefore show at a later call. With [`SyncMode::Full`], writeback starts
///   every 32 MiB of sequential bytes (`sync_file_range`), so that the `fsync` finds little left.
/// - **After a failed write** the sink answers every call with that same error, and cannot be committed.
/// - **Fork.** In a child every call answers [`Forked`](ErrorKind::Forked); dropping it there leaves the parent's
///   file alone.
///
/// ```
/// use feedwater::FileSink;
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("weights.bin");
/// let mut sink = FileSink::create(&path)?;
/// sink.append(b"header..")?;
/// sink.append(&[7; 1000])?;
/// sink.write_at(6, b"!!")?;
/// assert!(!path.exists());
/// let version = sink.commit()?;
/// assert_eq!(version.size, 1008);
/// assert!(std::fs::read(&path)?.starts_with(b"header!!"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing appears without a commit"]
pub struct FileSink {
    pub(super) out: Output,
    dir: File,
    target: OsString,
    /// Name of the temporary file, as long as there is one to remove.
    temporary: Option<OsString>,
    options: SinkOptions,
    /// Permission bits to set before the rename.
    mode: Option<Mode>,
    len: u64,
    /// Room was asked for up to here.
    reserved: u64,
    /// Bytes that follow each other from `stage_at` on and are not with the system yet.
    stage: Option<BlockMut>,
    stage_at: u64,
    /// The first failure: the content has a hole from then on.
    failed: Option<Error>,
    /// A copy has begun and not ended.
    copying: bool,
    generation: Generation,
}

impl FileSink {
    /// A sink for `path` with the default [options](SinkOptions).
    ///
    /// # Errors
    /// Those of [`SinkOptions::create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        SinkOptions::new().create(path)
    }

    /// Length in bytes of what has been written: the highest end of all writes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes` at the end.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_at(self.len, bytes)
    }

    /// Writes `bytes` from `offset` on; where writes overlap, the last one stays. What lies before it and is never
    /// written reads as zero. Empty `bytes` change nothing.
    ///
    /// # Errors
    /// [`Io`](ErrorKind::Io) with the offset and length that were not written: no space, a quota, a failed
    /// device, a file too large for the file system or for `RLIMIT_FSIZE` (a process that goes past the latter
    /// must ignore `SIGXFSZ` to see the error); [`Unavailable`](ErrorKind::Unavailable) if the file system refuses
    /// a direct write only now; [`Forked`](ErrorKind::Forked); and
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if the pool refuses the block for small writes.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let outcome = self.push(offset, bytes);
        self.or_fail(outcome)
    }

    /// Hands gathered bytes to the system; they are on stable storage only after a [`commit`](Self::commit).
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at).
    pub fn flush(&mut self) -> Result<()> {
        self.usable()?;
        let outcome = self.flush_stage();
        self.or_fail(outcome)
    }

    /// Puts the file in place of the target, and says which version it is.
    ///
    /// The order is what makes it safe:
    /// 1. the rest of the bytes, the length and the permission bits;
    /// 2. `fsync` of the file. A rename alone orders nothing: a journal may hold the new name while the blocks
    ///    were never written. (ext4's `auto_da_alloc` starts that writeback at a rename over an existing file, ext4(5);
    ///    others do not, and a new name gets nothing.) A failed `fsync` is never tried again: the kernel may
    ///    have marked the lost pages clean, and the next call would report success ("fsyncgate", 2018; fsync(2));
    /// 3. the rename, which replaces the target in one step for every process (rename(2));
    /// 4. `fsync` of the directory, without which the name itself may be lost (fsync(2)).
    ///
    /// [`SyncMode::None`] leaves out 2 and 4.
    ///
    /// # Errors
    /// After every error the temporary file is gone. From steps 1 to 3 the target is what it was:
    /// the error of an earlier write, [`Io`](ErrorKind::Io) with the operation and the range,
    /// [`AlreadyExists`](ErrorKind::AlreadyExists), [`NotAFile`](ErrorKind::NotAFile) if a directory has
    /// come to the name, [`Forked`](ErrorKind::Forked). A failed "fsync of the directory" is the exception: the new
    /// content is in place, but a crash may bring back the old.
    pub fn commit(mut self) -> Result<FileVersion> {
        if self.copying {
            return Err(self.error(ErrorKind::Abandoned));
        }
        self.flush()?;
        let whole = 0..self.len;
        let out = &self.out;
        let calls = &out.calls;
        let full = self.options.sync == SyncMode::Full;
        if self.reserved > self.len {
            calls
                .truncate(&out.file, self.len)
                .map_err(|e| out.failed("ftruncate", e, whole.clone()))?;
        }
        if let Some(mode) = self.mode {
            calls
                .chmod(&out.file, mode)
                .map_err(|e| out.failed("fchmod", e, whole.clone()))?;
        }
        if full {
            calls
                .sync_file(&out.file)
                .map_err(|e| out.failed("fsync", e, whole.clone()))?;
        }
        self.rename()?;
        self.temporary = None;
        let out = &self.out;
        if full {
            match out.calls.sync_dir(&self.dir) {
                // A file system that knows no fsync of directories keeps names safe by itself or not at all.
                Err(e) if !not_offered(&e) => {
                    return Err(out.failed("fsync of the directory", e, whole));
                }
                _ => {}
            }
        }
        version_of(&out.file).map_err(|e| out.failed("fstat", e, whole))
    }

    /// Gives up: removes the temporary file. Dropping does the same without a word about errors.
    ///
    /// # Errors
    /// [`Io`](ErrorKind::Io) if it could not be removed, [`Forked`](ErrorKind::Forked) in a child, where it is
    /// left to the parent.
    pub fn abort(mut self) -> Result<()> {
        if !self.generation.is_current() {
            return Err(self.error(ErrorKind::Forked));
        }
        self.remove().map_err(|e| {
            Error::io("unlink of the temporary file", e)
                .named(&self.out.name)
                .by(ENGINE)
        })
    }

    pub(super) fn usable(&self) -> Result<()> {
        if !self.generation.is_current() {
            return Err(self.error(ErrorKind::Forked));
        }
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// A copy into it begins: until it ends, the sink holds a part.
    pub(super) fn begin(&mut self) {
        self.copying = true;
    }

    /// The copy ended well.
    pub(super) fn end(&mut self) {
        self.copying = false;
    }

    /// Remembers a failure, so that no commit takes the file for whole.
    pub(super) fn or_fail<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome
            && self.failed.is_none()
        {
            self.failed = Some(error.clone());
        }
        outcome
    }

    pub(super) fn is_direct(&self) -> bool {
        self.out.direct.is_some()
    }

    /// Takes note of bytes that the kernel itself put behind the end.
    pub(super) fn grown_by(&mut self, bytes: u64) {
        let start = self.len;
        self.len += bytes;
        self.out.wrote(start..self.len);
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind).named(&self.out.name).by(ENGINE)
    }

    fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|end| i64::try_from(*end).is_ok()) else {
            let error = io::Error::from_raw_os_error(libc::EFBIG);
            let range = offset..end.unwrap_or(u64::MAX);
            return Err(self.out.failed("pwrite", error, range));
        };
        let staged = self.staged() as u64;
        if staged > 0 && self.stage_at + staged != offset {
            self.flush_stage()?;
        }
        let size = if self.is_direct() {
            STAGE_DIRECT
        } else {
            STAGE
        };
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let n = if self.staged() == 0 {
                self.out.unstaged(at, rest, size)
            } else {
                0
            };
            let n = if n > 0 {
                self.out.write(at, &rest[..n])?;
                n
            } else {
                self.put(at, rest, size)?
            };
            at += n as u64;
            rest = &rest[n..];
        }
        self.len = self.len.max(end);
        Ok(())
    }

    fn staged(&self) -> usize {
        self.stage.as_ref().map_or(0, BlockMut::filled_len)
    }

    /// Gathers the start of `bytes`, as much as fits; a full block is written.
    fn put(&mut self, at: u64, bytes: &[u8], size: usize) -> Result<usize> {
        let mut block = match self.stage.take() {
            Some(block) => block,
            None => {
                let pool = self.options.pool.get_or_insert_default();
                pool.take(size)
                    .map_err(|e| e.named(&self.out.name).by(ENGINE))?
            }
        };
        if block.filled_len() == 0 {
            self.stage_at = at;
        }
        let n = bytes.len().min(block.remaining());
        let outcome = block.put(&bytes[..n]);
        let full = block.remaining() == 0;
        self.stage = Some(block);
        outcome?;
        if full {
            self.flush_stage()?;
        }
        Ok(n)
    }

    pub(super) fn flush_stage(&mut self) -> Result<()> {
        let Some(block) = &mut self.stage else {
            return Ok(());
        };
        let outcome = self.out.write(self.stage_at, block.filled());
        block.clear();
        outcome
    }

    fn open_direct(&mut self) -> Result<()> {
        let (Some(flag), Some(name)) = (os::DIRECT, &self.temporary) else {
            return Err(Error::new(ErrorKind::Unavailable {
                engine: "sink-direct",
                why: Refusal::NotOnThisSystem {
                    what: "O_DIRECT".into(),
                },
            }));
        };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | flag;
        match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                let same = self.is_ours(version_of(&file));
                if !same {
                    return Err(self.replaced());
                }
                self.out.direct = Some(file);
                Ok(())
            }
            Err(e) => Err(refused("open with O_DIRECT", e.into())),
        }
    }

    /// Reserves room for the first `len` bytes, where that is offered.
    pub(super) fn reserve(&mut self, len: u64) -> Result<()> {
        if len <= self.reserved {
            return Ok(());
        }
        let out = &self.out;
        match out.calls.allocate(&out.file, len) {
            Ok(()) => self.reserved = len,
            Err(e) if no_room(&e) => return Err(out.failed("fallocate", e, self.reserved..len)),
            // Not offered by this file system, or not for such a length: then without.
            Err(_) => {}
        }
        Ok(())
    }

    /// Whether a version is of the temporary file, and not of one that somebody put in its place.
    fn is_ours(&self, found: io::Result<FileVersion>) -> bool {
        match (version_of(&self.out.file), found) {
            (Ok(ours), Ok(found)) => (ours.dev, ours.inode) == (found.dev, found.inode),
            _ => false,
        }
    }

    fn replaced(&self) -> Error {
        let what = "somebody put another file in the place of the temporary one";
        self.error(ErrorKind::Unavailable {
            engine: ENGINE,
            why: Refusal::NotForThisFile { what: what.into() },
        })
    }

    fn rename(&self) -> Result<()> {
        let Some(temporary) = &self.temporary else {
            return Ok(());
        };
        // A name can always be taken by others who may write to the directory; this sees all but the last moment.
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        let there = rustix::fs::statat(&self.dir, temporary, flags);
        let ours = rustix::fs::fstat(&self.out.file);
        if let (Ok(there), Ok(ours)) = (there, ours)
            && (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)
        {
            return Err(self.replaced());
        }
        let calls = &self.out.calls;
        let outcome = if self.options.overwrite {
            calls.rename(&self.dir, temporary, &self.target)
        } else {
            match calls.rename_new(&self.dir, temporary, &self.target) {
                // The flag is not known to this kernel or file system. A link also refuses an existing name.
                Err(e) if not_offered(&e) => calls
                    .link(&self.dir, temporary, &self.target)
                    .map(|()| drop(calls.unlink(&self.dir, temporary))),
                outcome => outcome,
            }
        };
        outcome.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => self.error(ErrorKind::AlreadyExists),
            io::ErrorKind::IsADirectory => not_a_file(FileKind::Directory)
                .named(&self.out.name)
                .by(ENGINE),
            _ => self.out.failed("rename", e, 0..self.len),
        })
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some(temporary) = self.temporary.take() else {
            return Ok(());
        };
        match self.out.calls.unlink(&self.dir, &temporary) {
            // Somebody cleaned up: nothing is left, which is what was wanted.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        if self.generation.is_current() {
            // `abort` is the way to hear about an error.
            let _ = self.remove();
        }
    }
}

/// [`append`](FileSink::append) for code that wants a `Write`; errors hold the crate's [`Error`].
impl io::Write for FileSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(FileSink::flush(self)?)
    }
}

impl fmt::Debug for FileSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSink")
            .field("path", &self.out.name)
            .field("len", &self.len)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// The target has no room, which no other way of writing could change.
pub(super) fn no_room(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
    )
}

fn not_offered(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(
            error.raw_os_error(),
            Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)
        )
}
