//! What writing asks of Linux beyond std.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{FallocateFlags, OFlags, RenameFlags};

/// How a directory is opened on the way to the target: no right to read it is needed.
pub(super) const WAYPOINT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// The flag for writing past the page cache, where there is one.
pub(super) const DIRECT: Option<OFlags> = Some(OFlags::DIRECT);

/// Copies within the kernel: through the page cache, by shared extents, or on the server, as the file system can.
pub(super) fn copy_range(
    from: BorrowedFd<'_>,
    mut from_at: u64,
    to: &File,
    mut to_at: u64,
    len: usize,
) -> io::Result<usize> {
    let n = rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)?;
    Ok(n)
}

/// Reserves room for the first `len` bytes; the length of the file stays.
pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(
        file,
        FallocateFlags::KEEP_SIZE,
        0,
        len,
    )?)
}

/// Starts writing the dirty pages of `range` to the device, without waiting for them. Best effort: an error of
/// the device stays on record for the `fsync` to come.
pub(super) fn start_writeback(file: &File, range: Range<u64>) {
    let (Ok(offset), Ok(len)) = (
        i64::try_from(range.start),
        i64::try_from(range.end - range.start),
    ) else {
        return;
    };
    // SAFETY: takes no memory; the descriptor is open as long as `file` is borrowed.
    let _ = unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE)
    };
}

/// Renames unless `to` exists.
pub(super) fn rename_new(dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
    Ok(rustix::fs::renameat_with(
        dir,
        from,
        dir,
        to,
        RenameFlags::NOREPLACE,
    )?)
}
