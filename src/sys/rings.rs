//! What rings need of Linux beside themselves.

use std::fs::File;
use std::io;

/// A file in memory with this content.
pub(crate) fn file_in_memory(content: &[u8]) -> io::Result<File> {
    let file = rustix::fs::memfd_create(c"feedwater", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::io::pwrite(&file, content, 0)?;
    Ok(file.into())
}

/// `RLIMIT_MEMLOCK` in bytes. `None`: unlimited.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// A descriptor that others write to, to wake a thread that waits in a ring.
pub(crate) fn event() -> io::Result<std::os::fd::OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
