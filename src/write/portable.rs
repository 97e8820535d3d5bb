//! In place of `linux.rs` where only POSIX is sure: what is missing says so, and the callers do without.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;

/// How a directory is opened on the way to the target.
pub(super) const WAYPOINT: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The flag for writing past the page cache, where there is one.
pub(super) const DIRECT: Option<OFlags> = None;

pub(super) fn copy_range(
    _: BorrowedFd<'_>,
    _: u64,
    _: &File,
    _: u64,
    _: usize,
) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn allocate(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn start_writeback(_: &File, _: Range<u64>) {}

pub(super) fn rename_new(_: &File, _: &OsStr, _: &OsStr) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
