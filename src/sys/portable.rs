//! What every Unix offers, in place of `linux`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use super::facts::CachedOpen;

pub(crate) use super::facts::{DirectAlign, FileSystem};

/// How a read by position behaves. Neither mode is offered here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadMode {
    /// Fail with `Unsupported`.
    pub(crate) no_wait: bool,
    /// Fail with `Unsupported`.
    pub(crate) dont_cache: bool,
}

/// Some systems refuse more than `INT_MAX` bytes at once.
const MAX_READ: usize = 0x4000_0000;

/// One `pread` of up to `len` bytes to `ptr`. May be short.
///
/// # Safety
/// `ptr..ptr + len` is valid for writes and nobody else uses it until the call returns.
pub(crate) unsafe fn pread(
    fd: BorrowedFd<'_>,
    ptr: *mut u8,
    len: usize,
    offset: u64,
    mode: ReadMode,
) -> io::Result<usize> {
    if mode.no_wait || mode.dont_cache {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let offset =
        libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the caller vouches for the memory; the descriptor is borrowed, so open.
    let n = unsafe { libc::pread(fd.as_raw_fd(), ptr.cast(), len.min(MAX_READ), offset) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Whether an error of [`pread`] says that the mode is not known.
pub(crate) fn is_mode_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

/// Flags for opening any path to read without side effects.
pub(crate) fn open_flags() -> i32 {
    libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC
}

/// Not offered.
pub(crate) fn look_flags(_follow: bool) -> i32 {
    0
}

/// Not offered.
pub(crate) fn open_cached(_: &Path, _flags: i32) -> io::Result<CachedOpen> {
    Ok(CachedOpen::NotOffered)
}

/// How many descriptors this process may have open.
pub(crate) fn descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Nothing to do: `O_NONBLOCK` means nothing for a regular file.
pub(crate) fn set_blocking(_: BorrowedFd<'_>) -> io::Result<()> {
    Ok(())
}

fn not_offered<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Not offered.
pub(crate) fn direct_align(_: BorrowedFd<'_>) -> io::Result<Option<DirectAlign>> {
    not_offered()
}

/// Not offered.
pub(crate) fn reopen(_: BorrowedFd<'_>, _direct: bool) -> io::Result<File> {
    not_offered()
}

/// Not known.
pub(crate) fn file_system(_: BorrowedFd<'_>) -> io::Result<FileSystem> {
    Ok(FileSystem::Local("local"))
}

/// Not known.
pub(crate) fn resident_bytes(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> Option<u64> {
    None
}

/// Not known.
pub(crate) fn resident_bytes_mapped(_: BorrowedFd<'_>, _offset: u64, _len: u64) -> Option<u64> {
    None
}

/// Not offered.
pub(crate) fn advise(_: BorrowedFd<'_>, _offset: u64, _len: u64, _needed: bool) {}

/// Bytes of memory that the machine has: not known here, so no bound but that of the address space.
pub(crate) fn total_memory() -> u64 {
    isize::MAX as u64
}

/// Not offered, so nobody can have asked for it.
pub(crate) fn is_direct(_: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(false)
}

/// Not known.
pub(crate) fn huge_pages_are_free(_: usize) -> bool {
    false
}

/// Not offered.
///
/// # Safety
/// None needed.
pub(crate) unsafe fn advise_huge(_: *mut u8, _: usize) {}

/// Not offered.
///
/// # Safety
/// None needed.
pub(crate) unsafe fn populate(_: *mut u8, _: usize) {}

/// Not offered.
pub(crate) fn word_wiped_on_fork() -> Option<&'static std::sync::atomic::AtomicU64> {
    None
}

/// Not known.
pub(crate) fn block_device(_: u64) -> Option<super::BlockDevice> {
    None
}

#[cfg_attr(not(feature = "cache"), allow(dead_code))]
pub(crate) fn yield_to_others() {}
