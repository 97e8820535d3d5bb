//! One file by plain calls: open, look, read, look again, close.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::answer::{FileAttributes, FileContent};
use super::desk::{Desk, Task};
use super::report::FilesWay;
use crate::buffer::{Block, BlockMut};
use crate::error::{Error, ErrorKind, FileKind, Refusal, Result};
use crate::reader::VersionCheck;
use crate::sys::{self, CachedOpen, FileSystem, ReadMode};
use crate::version::{FileVersion, Version};

/// Most bytes taken from a file that does not tell its length.
const UNSIZED_MOST: u64 = 64 << 20;

/// How long an attempt may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as the device takes.
    All,
    /// None where the system can tell; where it cannot, as long as it takes.
    Some,
    /// None at all: nothing is done that might wait.
    None,
}

/// What an attempt came to.
#[derive(Debug)]
pub(super) enum Attempt<T> {
    Done(Result<T>),
    /// It would have to wait; because it is not in memory, if `cold`.
    WouldWait {
        cold: bool,
    },
    /// No ring is to read it.
    NotByRings,
    /// There is no room in the window for so many bytes.
    NoRoom(u64),
}

/// An open that may wait: of a path, or of what `openat2` could not tell.
fn open_waiting(path: &Path) -> Result<OwnedFd> {
    let open = |flags: i32| {
        let flags = OFlags::from_bits_retain(flags as _);
        rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()))
    };
    let flags = sys::open_flags();
    let opened = match open(flags) {
        // Somebody holds a lease on it (fcntl(2)), which the kernel asks back: that takes a moment.
        Err(Errno::AGAIN) if path.is_file() => open(flags & !libc::O_NONBLOCK),
        opened => opened,
    };
    opened.map_err(|error| not_opened(path, error.into()))
}

fn not_opened(path: &Path, error: io::Error) -> Error {
    // What open says of a socket, and of a device without a driver.
    if error.raw_os_error() == Some(libc::ENXIO) {
        let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let what = match kind {
            Ok(kind) => special(kind).unwrap_or(FileKind::Unknown),
            Err(_) => FileKind::Unknown,
        };
        return Error::new(ErrorKind::NotAFile { what });
    }
    Error::io("open", error)
}

/// What is no regular file.
pub(super) fn special(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => return None,
        FileType::Directory => FileKind::Directory,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::Unknown,
    })
}

fn fstat(fd: BorrowedFd<'_>) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(|error| Error::io("fstat", error.into()))
}

/// What ends an attempt early.
enum Stop {
    Error(Error),
    WouldWait { cold: bool },
    NoRoom(u64),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Error(error)
    }
}

/// Finds out where a file lives, for a ring that is to read it.
pub(super) fn find_out(desk: &Desk, task: &Task) -> Attempt<FileContent> {
    let found = open_waiting(&task.path).and_then(|fd| {
        let fd = fd.as_fd();
        let stat = fstat(fd)?;
        let version = FileVersion::from_stat(&stat);
        Ok((version.dev, desk.file_system(version.dev, fd)?))
    });
    match found {
        Ok((dev, FileSystem::Local(_) | FileSystem::Memory(_))) => {
            desk.learn(&task.path, dev);
            Attempt::WouldWait { cold: true }
        }
        Ok((_, on)) => {
            let what = format!("no ring reads files on {}", on.name()).into();
            Attempt::Done(Err(Error::new(ErrorKind::Unavailable {
                engine: FilesWay::Rings.engine(),
                why: Refusal::NotForThisFile { what },
            })))
        }
        Err(error) => Attempt::Done(Err(error)),
    }
}

/// Reads a file whole.
pub(super) fn read(desk: &Desk, task: &Task, patience: Patience) -> Attempt<FileContent> {
    let mut held = 0;
    let stop = match read_held(desk, task, patience, &mut held) {
        Ok(content) => return Attempt::Done(Ok(content)),
        Err(stop) => stop,
    };
    desk.release(held);
    match stop {
        Stop::Error(error) => Attempt::Done(Err(error)),
        Stop::WouldWait { cold } => Attempt::WouldWait { cold },
        Stop::NoRoom(len) => Attempt::NoRoom(len),
    }
}

fn read_held(
    desk: &Desk,
    task: &Task,
    patience: Patience,
    held: &mut u64,
) -> Result<FileContent, Stop> {
    let path = &*task.path;
    let cached = match patience {
        Patience::All => CachedOpen::NotOffered,
        _ => sys::open_cached(path, sys::open_flags()).map_err(|error| not_opened(path, error))?,
    };
    let fd = match cached {
        CachedOpen::Opened(fd) => fd,
        CachedOpen::WouldWait => return Err(Stop::WouldWait { cold: true }),
        CachedOpen::NotOffered if patience == Patience::None => {
            return Err(Stop::WouldWait { cold: false });
        }
        CachedOpen::NotOffered => open_waiting(path)?,
    };
    let fd = fd.as_fd();
    let stat = fstat(fd)?;
    if let Some(what) = special(FileType::from_raw_mode(stat.st_mode)) {
        return Err(Error::new(ErrorKind::NotAFile { what }).into());
    }
    let version = FileVersion::from_stat(&stat);
    let file_system = desk.file_system(version.dev, fd)?;
    let local = matches!(file_system, FileSystem::Local(_) | FileSystem::Memory(_));
    if let FileSystem::Local(_) | FileSystem::Memory(_) = file_system
        && desk.learns.load(Ordering::Relaxed)
    {
        desk.learn(path, version.dev);
    }
    if patience == Patience::None && !local {
        return Err(Stop::WouldWait { cold: false });
    }
    if matches!(file_system, FileSystem::Network(_)) {
        if patience == Patience::Some {
            return Err(Stop::WouldWait { cold: true }); // by several threads, each of which may wait
        }
        // It was opened so as not to wait for a FIFO; some of these take that for their reads too.
        sys::set_blocking(fd).map_err(|error| Error::io("fcntl", error))?;
    }
    if version.size == 0 || file_system == FileSystem::Pseudo {
        return Ok(read_unsized(desk, fd, version, file_system, held)?);
    }
    let Some(mut block) = desk.room(task.turn, version.size)? else {
        return Err(Stop::NoRoom(version.size));
    };
    *held = version.size;
    let no_wait = patience != Patience::All && matches!(file_system, FileSystem::Local(_));
    let short = !fill(fd, &mut block, no_wait, file_system)?;
    if short || desk.options.check == VersionCheck::Always {
        check(fd, version)?;
    }
    if short {
        let what = format!("no bytes at offset {}", block.filled_len());
        let error = io::Error::new(io::ErrorKind::UnexpectedEof, what);
        return Err(Error::io("pread", error).into());
    }
    Ok(content(version, block))
}

fn content(version: FileVersion, block: BlockMut) -> FileContent {
    let bytes = match block.freeze() {
        Block::Host(bytes) => bytes,
        Block::Device(_) => bytes::Bytes::new(), // blocks of the pool are in host memory
    };
    FileContent { bytes, version }
}

/// The file is as it was.
fn check(fd: BorrowedFd<'_>, opened: FileVersion) -> Result<()> {
    let found = FileVersion::from_stat(&fstat(fd)?);
    if found == opened {
        return Ok(());
    }
    Err(changed(opened, found))
}

fn changed(opened: FileVersion, found: FileVersion) -> Error {
    Error::new(ErrorKind::Changed {
        opened: Version::File(opened),
        found: Version::File(found),
    })
}

/// Reads until `block` is full. `false`: the file ended before.
fn fill(
    fd: BorrowedFd<'_>,
    block: &mut BlockMut,
    mut no_wait: bool,
    file_system: FileSystem,
) -> Result<bool, Stop> {
    while block.remaining() > 0 {
        let mode = ReadMode {
            no_wait,
            dont_cache: false,
        };
        let (at, len) = (block.filled_len() as u64, block.remaining());
        // SAFETY: so many bytes of the block are unfilled, and it is ours alone.
        match unsafe { sys::pread(fd, block.unfilled_ptr(), len, at, mode) } {
            Ok(0) => return Ok(false),
            // SAFETY: as many bytes were written to the first unfilled one.
            Ok(came) => unsafe { block.advance(came) },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if no_wait && error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Stop::WouldWait { cold: true });
            }
            Err(error) if no_wait && sys::is_mode_unsupported(&error) => {
                no_wait = false;
                // Of a layer that does not know the mode, a mapping tells what is in memory.
                let whole = at + len as u64;
                if file_system.is_layered()
                    && let Some(resident) = sys::resident_bytes_mapped(fd, 0, whole)
                    && resident < whole / 4 * 3
                {
                    return Err(Stop::WouldWait { cold: true });
                }
            }
            Err(error) => return Err(Error::io("pread", error).into()),
        }
    }
    Ok(true)
}

/// A file that does not tell its length, or has none: read to its end.
fn read_unsized(
    desk: &Desk,
    fd: BorrowedFd<'_>,
    version: FileVersion,
    file_system: FileSystem,
    held: &mut u64,
) -> Result<FileContent> {
    let most = UNSIZED_MOST.min(desk.options.max_file);
    let mut bytes = Vec::new();
    let mut room = [0u8; 4096];
    loop {
        match rustix::io::pread(fd, &mut room[..], bytes.len() as u64) {
            Ok(0) => break,
            Ok(came) => {
                bytes.extend_from_slice(room.get(..came).unwrap_or(&room));
                if bytes.len() as u64 > most {
                    return Err(Error::new(ErrorKind::TooLarge { cap: most }));
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("pread", error.into())),
        }
    }
    match file_system {
        FileSystem::Pseudo => {}
        // It was empty a moment ago, and is now, or was meanwhile, something else, whatever its version says.
        FileSystem::Local(_) | FileSystem::Memory(_) if !bytes.is_empty() => {
            return Err(changed(version, FileVersion::from_stat(&fstat(fd)?)));
        }
        _ if !bytes.is_empty() => check(fd, version)?,
        _ => {}
    }
    *held = bytes.len() as u64;
    desk.hold(*held);
    let bytes = bytes.into();
    Ok(FileContent { bytes, version })
}

/// Asks for the attributes of a path.
pub(super) fn stat(desk: &Desk, task: &Task, patience: Patience) -> Attempt<FileAttributes> {
    let path = &*task.path;
    let attributes = |stat: Stat| FileAttributes::of(&stat);
    let follow = desk.options.follow;
    if patience != Patience::All {
        match sys::open_cached(path, sys::look_flags(follow)) {
            Ok(CachedOpen::Opened(fd)) => return Attempt::Done(fstat(fd.as_fd()).map(attributes)),
            Ok(CachedOpen::WouldWait) => return Attempt::WouldWait { cold: true },
            Ok(CachedOpen::NotOffered) if patience == Patience::Some => {}
            Ok(CachedOpen::NotOffered) => return Attempt::WouldWait { cold: false },
            // The plain call needs no descriptor.
            Err(error) if sys::is_out_of_descriptors(&error) => {
                if patience == Patience::None {
                    return Attempt::WouldWait { cold: false };
                }
            }
            Err(error) => return Attempt::Done(Err(Error::io("stat", error))),
        }
    }
    let flags = match follow {
        true => AtFlags::empty(),
        false => AtFlags::SYMLINK_NOFOLLOW,
    };
    let stat = rustix::io::retry_on_intr(|| rustix::fs::statat(CWD, path, flags));
    Attempt::Done(
        stat.map(attributes)
            .map_err(|error| Error::io("stat", error.into())),
    )
}
