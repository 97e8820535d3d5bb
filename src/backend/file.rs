//! An open file as engines share it: descriptor, name, and the version it was opened in.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FileType;

use crate::error::{Error, ErrorKind, FileKind, Refusal, Result};
use crate::sys::{self, FileSystem};
use crate::version::{FileVersion, Version};

/// A regular file, open for reading.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    name: Arc<str>,
    version: FileVersion,
    file_system: FileSystem,
}

impl OpenFile {
    /// Opens a path. Never waits for a FIFO's writer and never reads a device.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let name: Arc<str> = path.to_string_lossy().into();
        let open = |flags| {
            std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(path)
        };
        let file = match open(sys::open_flags()) {
            // Somebody holds a lease on it (fcntl(2)), which the kernel asks back: that takes a moment.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && path.is_file() => {
                open(sys::open_flags() & !libc::O_NONBLOCK)
            }
            opened => opened,
        };
        let file = file
            .map_err(|error| match error.raw_os_error() {
                // What open says of a socket.
                Some(libc::ENXIO) => not_a_file(path),
                _ => Error::io("open", error),
            })
            .map_err(|error| error.named(&name))?;
        OpenFile::new(file, name)
    }

    /// Lets reads of a descriptor that [`open`](Self::open) made wait. Not for files that the kernel makes up: some
    /// of those would wait for ever.
    pub(crate) fn set_blocking(&self) -> Result<()> {
        sys::set_blocking(self.fd()).map_err(|error| Error::io("fcntl", error).named(&self.name))
    }

    /// Whether reads wait where they have to: a ring would fail them with `EAGAIN` otherwise, and the flag is shared
    /// with whoever holds a duplicate of the descriptor.
    pub(crate) fn check_blocking(&self) -> Result<(), Refusal> {
        let flags = rustix::fs::fcntl_getfl(&self.file).map_err(|error| Refusal::Os {
            op: "fcntl",
            source: Arc::new(error.into()),
        })?;
        if flags.contains(rustix::fs::OFlags::NONBLOCK) {
            return Err(Refusal::NotForThisFile {
                what: "the descriptor that was handed in has O_NONBLOCK".into(),
            });
        }
        Ok(())
    }

    /// Takes a file that is open already. Its position is neither used nor moved.
    pub(crate) fn from_file(file: File, name: Arc<str>) -> Result<Self> {
        let opened = OpenFile::new(file, name)?;
        // Its flags are shared with whoever holds a duplicate, so they stay; what reads here is a new opening.
        let io = |op| {
            let name = opened.name.clone();
            move |error| Error::io(op, error).named(&name)
        };
        let flags = rustix::fs::fcntl_getfl(&opened.file).map_err(|e| io("fcntl")(e.into()))?;
        if flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::WRONLY {
            let error = std::io::Error::from_raw_os_error(libc::EBADF);
            return Err(io("open for reading")(error));
        }
        if sys::is_direct(opened.file.as_fd()).map_err(io("fcntl"))? {
            let file = sys::reopen(opened.file.as_fd(), false).map_err(io("open"))?;
            let again = OpenFile::new(file, opened.name.clone())?;
            opened.same_file(&again)?;
            return Ok(again);
        }
        Ok(opened)
    }

    fn new(file: File, name: Arc<str>) -> Result<Self> {
        let io = |op, error: rustix::io::Errno| Error::io(op, error.into()).named(&name);
        let stat = rustix::fs::fstat(&file).map_err(|e| io("fstat", e))?;
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let file_system = sys::file_system(file.as_fd())
                    .map_err(|error| Error::io("fstatfs", error).named(&name))?;
                return Ok(OpenFile {
                    version: FileVersion::from_stat(&stat),
                    file_system,
                    file,
                    name,
                });
            }
            FileType::Directory => FileKind::Directory,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice => FileKind::CharacterDevice,
            FileType::BlockDevice => FileKind::BlockDevice,
            _ => FileKind::Unknown,
        };
        Err(Error::new(ErrorKind::NotAFile { what }).named(&name))
    }

    /// The same file opened once more with `O_DIRECT`; checked to be the same inode.
    pub(crate) fn reopen_direct(&self) -> Result<File> {
        let io = |error| Error::io("open with O_DIRECT", error).named(&self.name);
        let file = sys::reopen(self.fd(), true).map_err(io)?;
        let again = OpenFile::new(file, self.name.clone())?;
        self.same_file(&again)?;
        Ok(again.file)
    }

    fn same_file(&self, other: &OpenFile) -> Result<()> {
        if (self.version.dev, self.version.inode) == (other.version.dev, other.version.inode) {
            return Ok(());
        }
        Err(self.changed(other.version))
    }

    fn changed(&self, found: FileVersion) -> Error {
        Error::new(ErrorKind::Changed {
            opened: Version::File(self.version),
            found: Version::File(found),
        })
        .named(&self.name)
    }

    /// Compares the file with what was opened: one `fstat`.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] with both versions.
    pub(crate) fn check_version(&self) -> Result<()> {
        let stat = rustix::fs::fstat(&self.file)
            .map_err(|error| Error::io("fstat", error.into()).named(&self.name))?;
        let found = FileVersion::from_stat(&stat);
        if found == self.version {
            Ok(())
        } else {
            Err(self.changed(found))
        }
    }

    /// Bytes of `offset..offset + len` in the page cache. `None`: not known.
    pub(crate) fn resident_bytes(&self, offset: u64, len: u64) -> Option<u64> {
        if self.file_system.is_layered() {
            sys::resident_bytes_mapped(self.fd(), offset, len)
        } else {
            sys::resident_bytes(self.fd(), offset, len)
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn version(&self) -> FileVersion {
        self.version
    }

    pub(crate) fn len(&self) -> u64 {
        self.version.size
    }

    pub(crate) fn file_system(&self) -> FileSystem {
        self.file_system
    }
}

/// What a path that cannot be opened leads to.
fn not_a_file(path: &Path) -> Error {
    use std::os::unix::fs::FileTypeExt;
    let what = match std::fs::metadata(path).map(|meta| meta.file_type()) {
        Ok(kind) if kind.is_socket() => FileKind::Socket,
        Ok(kind) if kind.is_char_device() => FileKind::CharacterDevice,
        Ok(kind) if kind.is_block_device() => FileKind::BlockDevice,
        _ => FileKind::Unknown,
    };
    Error::new(ErrorKind::NotAFile { what })
}
