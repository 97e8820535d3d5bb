//! Where a file is to appear: the directory, the name in it, and what has that name now.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode};
use rustix::io::Errno;

use super::os;
use crate::error::{Error, ErrorKind, FileKind, Result};
use crate::version::FileVersion;

/// The directory that a name is in, and the name. The directory is held open, so that later steps mean the same
/// one even if it is moved or the process changes its own.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) dir: File,
    pub(super) name: OsString,
    /// Permission bits of the file that has the name now.
    pub(super) mode: Option<Mode>,
}

/// As many links as Linux follows in one path.
const MAX_LINKS: usize = 40;

/// Finds the place that `path` names. With `replace` a link at its end is followed, as `open` does for writing;
/// without, anything that has the name is an error, a dangling link too, as with `O_EXCL`. With `durable` the
/// directory is opened so that it can be synced.
pub(super) fn locate(path: &Path, replace: bool, durable: bool) -> Result<Target> {
    let (mut parent, mut name) = split(path)?;
    let mut dir: Option<OwnedFd> = None;
    for _ in 0..=MAX_LINKS {
        let flags = os::WAYPOINT | OFlags::CLOEXEC;
        let here = match &dir {
            None => rustix::fs::openat(CWD, &parent, flags, Mode::empty()),
            Some(dir) => rustix::fs::openat(dir, &parent, flags, Mode::empty()),
        }
        .map_err(|e| Error::io("open of the directory", e.into()))?;
        if replace {
            match rustix::fs::readlinkat(&here, &name, Vec::new()) {
                Ok(link) => {
                    // A link of procfs leads to what has no path: only the kernel can follow it.
                    present(&here, &name, AtFlags::empty())?;
                    (parent, name) = split(Path::new(OsStr::from_bytes(link.as_bytes())))?;
                    dir = Some(here);
                    continue;
                }
                Err(Errno::INVAL | Errno::NOENT) => {}
                Err(e) => return Err(Error::io("readlink", e.into())),
            }
        }
        let mode = present(&here, &name, AtFlags::SYMLINK_NOFOLLOW);
        if !replace && !matches!(mode, Ok(None)) {
            return Err(match mode {
                Err(error) if matches!(error.kind(), ErrorKind::Io { .. }) => error,
                _ => Error::new(ErrorKind::AlreadyExists),
            });
        }
        let mode = mode?;
        let dir = if durable {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&here, ".", flags, Mode::empty())
                .map_err(|e| Error::io("open of the directory", e.into()))?
        } else {
            here
        };
        return Ok(Target {
            dir: dir.into(),
            name,
            mode,
        });
    }
    Err(Error::io("readlink", Errno::LOOP.into()))
}

/// Parent directory and last component; a path that can only mean a directory is refused.
fn split(path: &Path) -> Result<(OsString, OsString)> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(Error::io("open", Errno::NOENT.into()));
    }
    // `Path` would drop these endings, and with them what they say.
    let directory = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
    match (directory, path.parent(), path.file_name()) {
        (false, Some(parent), Some(name)) => {
            let parent = match parent.as_os_str() {
                empty if empty.is_empty() => OsStr::new("."),
                parent => parent,
            };
            Ok((parent.to_owned(), name.to_owned()))
        }
        _ => Err(not_a_file(FileKind::Directory)),
    }
}

/// Permission bits of the regular file `name`, `None` if there is nothing.
fn present(dir: &OwnedFd, name: &OsStr, flags: AtFlags) -> Result<Option<Mode>> {
    match rustix::fs::statat(dir, name, flags) {
        Ok(stat) => {
            let mode = stat.st_mode as RawMode;
            let what = match FileType::from_raw_mode(mode) {
                FileType::RegularFile => {
                    // Without set-user-ID and the like, which belonged to the old content.
                    return Ok(Some(Mode::from_raw_mode(mode & 0o777)));
                }
                FileType::Directory => FileKind::Directory,
                FileType::Fifo => FileKind::Fifo,
                FileType::Socket => FileKind::Socket,
                FileType::CharacterDevice => FileKind::CharacterDevice,
                FileType::BlockDevice => FileKind::BlockDevice,
                FileType::Symlink | FileType::Unknown => FileKind::Unknown,
            };
            Err(not_a_file(what))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(Error::io("stat", e.into())),
    }
}

pub(super) fn not_a_file(what: FileKind) -> Error {
    Error::new(ErrorKind::NotAFile { what })
}

/// More collisions than this mean that something else is wrong.
const MAX_NAMES: usize = 64;

/// A new file for writing with a hidden name that nobody has: `.feedwater-`, 16 hexadecimal digits, `.tmp`.
pub(super) fn create_temporary(dir: &File, mode: Mode) -> Result<(OsString, File)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    for attempt in 0..MAX_NAMES {
        // Keys differ between processes and between calls. A fork inherits them, thus the process id; what
        // still collides is found by O_EXCL.
        let random = RandomState::new().hash_one((std::process::id(), attempt));
        let name = OsString::from(format!(".feedwater-{random:016x}.tmp"));
        match rustix::fs::openat(dir, &name, flags, mode) {
            Ok(fd) => return Ok((name, fd.into())),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(Error::io("create of the temporary file", e.into())),
        }
    }
    Err(Error::io(
        "create of the temporary file",
        Errno::EXIST.into(),
    ))
}

/// What `fstat` tells about an open file.
pub(super) fn version_of(file: &File) -> io::Result<FileVersion> {
    Ok(FileVersion::from(&file.metadata()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_can_only_be_directories_are_refused() {
        for path in ["/", ".", "..", "a/..", "a/", "a/."] {
            let error = split(Path::new(path)).unwrap_err();
            let what = FileKind::Directory;
            assert!(
                matches!(error.kind(), ErrorKind::NotAFile { what: w } if *w == what),
                "{path}"
            );
        }
        let error = split(Path::new("")).unwrap_err();
        assert_eq!(error.io_kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_parent_of_a_bare_name_is_here() {
        let pair = |a: &str, b: &str| (OsString::from(a), OsString::from(b));
        assert_eq!(split(Path::new("x")).unwrap(), pair(".", "x"));
        assert_eq!(split(Path::new("/x")).unwrap(), pair("/", "x"));
        assert_eq!(split(Path::new("a/../x")).unwrap(), pair("a/..", "x"));
    }
}
