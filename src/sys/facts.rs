//! What the system tells about a file.

/// The alignment that direct I/O needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlign {
    /// Of the memory address, in bytes. 0: no direct I/O.
    pub(crate) memory: usize,
    /// Of the file offset and the length, in bytes. 0: no direct I/O.
    pub(crate) offset: u64,
}

/// Where a file lives, as far as the way of reading depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// On a device of this machine.
    Local(&'static str),
    /// In memory; there is nothing below the page cache.
    Memory(&'static str),
    /// Behind a network or a process: latencies are not those of a device.
    Network(&'static str),
    /// Made by the kernel when it is read; sizes mean nothing.
    Pseudo,
}

impl FileSystem {
    /// Whether it can copy files without moving all bytes through this machine's memory: by sharing blocks, or on
    /// its server.
    pub(crate) fn copies_by_itself(self) -> bool {
        matches!(
            self,
            FileSystem::Network(_) | FileSystem::Local("btrfs" | "xfs" | "bcachefs" | "zfs")
        )
    }

    /// Whether the pages of its files are cached as those of other files, in layers below.
    pub(crate) fn is_layered(self) -> bool {
        self == FileSystem::Local("overlay")
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            FileSystem::Local(name) | FileSystem::Memory(name) | FileSystem::Network(name) => name,
            FileSystem::Pseudo => "pseudo",
        }
    }
}

/// Whether an error is about the process or the machine at this moment, so that another try may succeed.
pub(crate) fn is_passing(error: &std::io::Error) -> bool {
    // By its kind where it was made anew with more to say.
    error.kind() == std::io::ErrorKind::OutOfMemory
        || matches!(
            error.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
        )
}

/// What an open that must not wait came to.
#[derive(Debug)]
pub(crate) enum CachedOpen {
    /// All of the path was in memory.
    Opened(std::os::fd::OwnedFd),
    /// Something of the path is not in memory (or is being changed).
    WouldWait,
    /// The system cannot do it.
    NotOffered,
}

/// A block device, as far as the way of reading depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockDevice {
    /// As the kernel calls it: `nvme0n1`, `vda`.
    pub(crate) name: String,
    /// Requests that its queue holds.
    pub(crate) queue: Option<usize>,
    /// Bytes that the kernel reads ahead of a stream, at most.
    pub(crate) read_ahead: Option<u64>,
}

/// Whether the process, or the system, has no descriptor left.
pub(crate) fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
