//! The system calls of writing behind one trait, so that tests can script what a disk rarely does.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, Mode};

use super::os;

/// One method a call; the default of each is the call itself.
pub(super) trait Calls: fmt::Debug + Send + Sync {
    fn pwrite(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }

    fn copy_range(
        &self,
        from: BorrowedFd<'_>,
        from_at: u64,
        to: &File,
        to_at: u64,
        len: usize,
    ) -> io::Result<usize> {
        os::copy_range(from, from_at, to, to_at, len)
    }

    fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        os::allocate(file, len)
    }

    fn start_writeback(&self, file: &File, range: Range<u64>) {
        os::start_writeback(file, range);
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn chmod(&self, file: &File, mode: Mode) -> io::Result<()> {
        Ok(rustix::fs::fchmod(file, mode)?)
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        // On Apple systems std asks for F_FULLFSYNC here, since their fsync leaves bytes in the drive's cache.
        file.sync_all()
    }

    fn sync_dir(&self, dir: &File) -> io::Result<()> {
        dir.sync_all()
    }

    fn rename(&self, dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat(dir, from, dir, to)?)
    }

    fn rename_new(&self, dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
        os::rename_new(dir, from, to)
    }

    /// A second name for a file; fails if `to` exists.
    fn link(&self, dir: &File, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(dir, from, dir, to, AtFlags::empty())?)
    }

    fn unlink(&self, dir: &File, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }
}

/// The operating system.
#[derive(Debug)]
pub(super) struct Os;

impl Calls for Os {}
