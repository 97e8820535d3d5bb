//! Bytes onto a file completely: what the system does in part is finished here, and what it refuses is an error
//! that says where.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::ENGINE;
use super::calls::Calls;
use crate::error::{Error, ErrorKind, Refusal, Result};

/// Sequential bytes after which their writeback is started, so that little is left for the `fsync`. Where it was
/// measured (ext4), steps of 8 to 64 MiB gained the same when bytes were made while others were written; copies
/// between files of one disk, which has no time to spare, lost with steps of 8 MiB and did not with 32.
const WRITEBACK_STEP: u64 = 32 << 20;

/// A file that is being written, through the page cache or past it.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) calls: Arc<dyn Calls>,
    /// Path of the target, as errors show it.
    pub(super) name: Arc<str>,
    pub(super) file: File,
    /// The same file opened with `O_DIRECT`.
    pub(super) direct: Option<File>,
    /// Whether writeback is to start while bytes still come.
    pub(super) early_writeback: bool,
    /// The latest sequential run whose writeback has not been started.
    pub(super) dirty: Range<u64>,
}

impl Output {
    /// Writes all of `bytes` at `offset`. With a direct file everything in whole pages goes past the cache if its
    /// address is congruent to its offset; the rest is written through the cache. No page is ever written both
    /// ways by one call; between calls the kernel keeps both views the same.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (file, part) = self.way(at, &bytes[done..]);
            match self.calls.pwrite(file, part, at) {
                Ok(0) => {
                    let error = io::ErrorKind::WriteZero.into();
                    return Err(self.failed("pwrite", error, at..end));
                }
                Ok(n) => done += n.min(part.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let direct = self.direct.as_ref().is_some_and(|d| std::ptr::eq(d, file));
                    if direct && error.raw_os_error() == Some(libc::EINVAL) {
                        return Err(refused("pwrite with O_DIRECT", error)
                            .named(&self.name)
                            .at(at..end));
                    }
                    return Err(self.failed("pwrite", error, at..end));
                }
            }
        }
        self.wrote(offset..end);
        Ok(())
    }

    /// Bytes from the start of `bytes` that need no staging; 0 if they should be gathered first.
    pub(super) fn unstaged(&self, offset: u64, bytes: &[u8], stage: usize) -> usize {
        let page = crate::sys::page_size();
        if self.direct.is_none() {
            return if bytes.len() >= stage { bytes.len() } else { 0 };
        }
        match (offset % page as u64) as usize {
            0 if bytes.as_ptr().align_offset(page) == 0 && bytes.len() >= stage => {
                bytes.len() - bytes.len() % page
            }
            0 => 0,
            after => bytes.len().min(page - after),
        }
    }

    /// Which file takes how much of `bytes` next.
    fn way<'a>(&self, offset: u64, bytes: &'a [u8]) -> (&File, &'a [u8]) {
        let Some(direct) = &self.direct else {
            return (&self.file, bytes);
        };
        let page = crate::sys::page_size();
        let after = (offset % page as u64) as usize;
        let whole = bytes.len() - bytes.len() % page;
        if after == 0 && whole > 0 && bytes.as_ptr().align_offset(page) == 0 {
            (direct, &bytes[..whole])
        } else if after > 0 {
            // Also after a short direct write that ended within a page.
            (&self.file, &bytes[..bytes.len().min(page - after)])
        } else {
            (&self.file, bytes)
        }
    }

    /// Takes note of bytes that are in the page cache now, and starts their writeback when there are enough.
    pub(super) fn wrote(&mut self, range: Range<u64>) {
        if !self.early_writeback || self.direct.is_some() {
            return;
        }
        if self.dirty.end == range.start {
            self.dirty.end = range.end;
        } else {
            self.dirty = range;
        }
        if self.dirty.end - self.dirty.start >= WRITEBACK_STEP {
            let range = self.dirty.clone();
            self.dirty.start = self.dirty.end;
            self.calls.start_writeback(&self.file, range);
        }
    }

    /// A failed system call on this file.
    pub(super) fn failed(&self, op: &'static str, error: io::Error, range: Range<u64>) -> Error {
        Error::io(op, error).named(&self.name).at(range).by(ENGINE)
    }
}

/// The file system does not do direct writes.
pub(super) fn refused(op: &'static str, source: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable {
        engine: "sink-direct",
        why: Refusal::Os {
            op,
            source: Arc::new(source),
        },
    })
    .by(ENGINE)
}
