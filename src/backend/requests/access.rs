//! Moving bytes of the file into memory, complete or with the reason.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::direct::DirectFile;
use crate::backend::file::OpenFile;
use crate::buffer::Pool;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Counters, Route, Step, fill};
use crate::sys::{self, FileSystem, ReadMode};

/// Bytes that go through a bounce block at once.
const BOUNCE: u64 = 1 << 20;

/// How the bytes of one file are had.
#[derive(Debug)]
pub(crate) struct Access {
    file: Arc<OpenFile>,
    direct: Option<Arc<DirectFile>>,
    /// Whether what direct reads are refused is read through the cache.
    fall_back: bool,
    /// A direct read was refused, so the next ones are not tried.
    refused: AtomicBool,
    drop_behind: bool,
    /// What deliveries are counted under.
    route: Route,
    /// Cleared when the system turns out not to know the flag.
    no_wait: AtomicBool,
    dont_cache: AtomicBool,
}

impl Access {
    /// Through the page cache.
    pub(crate) fn buffered(file: Arc<OpenFile>, route: Route, drop_behind: bool) -> Self {
        // An overlay does not know the flag: asking would be a request in vain.
        let no_wait = !file.file_system().is_layered();
        Access {
            file,
            route,
            direct: None,
            fall_back: false,
            refused: AtomicBool::new(false),
            drop_behind,
            no_wait: AtomicBool::new(no_wait),
            dont_cache: AtomicBool::new(drop_behind),
        }
    }

    /// Past the page cache; if `fall_back`, then what is refused goes through it.
    pub(crate) fn direct(
        file: Arc<OpenFile>,
        direct: Arc<DirectFile>,
        route: Route,
        fall_back: bool,
    ) -> Self {
        Access {
            direct: Some(direct),
            fall_back,
            ..Access::buffered(file, route, false)
        }
    }

    pub(crate) fn file(&self) -> &OpenFile {
        &self.file
    }

    /// Whether metadata comes from a server that answers when it likes.
    pub(crate) fn asks_a_server(&self) -> bool {
        matches!(self.file.file_system(), FileSystem::Network(_))
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// The descriptor for direct reads, refused or not.
    pub(crate) fn opened_direct(&self) -> Option<&DirectFile> {
        self.direct.as_deref()
    }

    /// The descriptor for direct reads, as long as they are not refused.
    pub(crate) fn direct_file(&self) -> Option<&DirectFile> {
        self.direct.as_deref().filter(|_| !self.was_refused())
    }

    /// Notes that a direct read failed for being direct. `true`: it is to be read through the cache instead.
    pub(crate) fn refuse_direct(&self, error: &Error) -> bool {
        let falls = self.fall_back && is_refusal(error);
        if falls {
            self.refused.store(true, Ordering::Relaxed);
        }
        falls
    }

    /// What requests should be multiples of, in offset and length.
    pub(crate) fn align(&self) -> u64 {
        self.direct.as_ref().map_or(1, |direct| direct.strictest())
    }

    /// Whether [`copy_resident`](Self::copy_resident) may find anything.
    pub(crate) fn can_copy_resident(&self) -> bool {
        !self.is_direct() && self.no_wait.load(Ordering::Relaxed)
    }

    /// Whether the system says that no byte of `range` is in the page cache.
    pub(crate) fn is_cold(&self, range: &Range<u64>) -> bool {
        let len = range.end - range.start;
        !matches!(self.file.file_system(), FileSystem::Memory(_))
            && self.file.resident_bytes(range.start, len) == Some(0)
    }

    /// Reads `range` to `target`. The range may reach past the end of the file as far as alignment made it; what
    /// lies within the file is then complete.
    ///
    /// # Safety
    /// `target..target + range.len()` is valid for writes, and nobody else uses it until this returns.
    pub(crate) unsafe fn read(
        &self,
        range: &Range<u64>,
        target: *mut u8,
        counters: &Counters,
        pool: &Pool,
    ) -> Result<()> {
        counters.begin_request();
        // SAFETY: the caller vouches for the same span.
        let outcome = unsafe { self.read_any(range, target, counters, pool) };
        counters.end_request();
        outcome
    }

    /// # Safety
    /// As for [`read`](Self::read).
    unsafe fn read_any(
        &self,
        range: &Range<u64>,
        target: *mut u8,
        counters: &Counters,
        pool: &Pool,
    ) -> Result<()> {
        let Some(direct) = self.direct_file() else {
            let within = range.start..range.end.min(self.file.len());
            // SAFETY: the caller vouches for `target..target + range.len()`, of which this is a part.
            return unsafe { self.read_buffered(&within, target, counters) };
        };
        let aligned_end = range.end.is_multiple_of(direct.align());
        let outcome = if aligned_end && direct.fits(range.start, target) {
            // SAFETY: the caller vouches for the same span.
            unsafe { self.read_aligned(direct, range, target, counters) }
        } else {
            // SAFETY: the caller vouches for the same span.
            unsafe { self.read_bounced(direct, range, target, counters, pool) }
        };
        match outcome {
            Err(error) if self.refuse_direct(&error) => {
                let within = range.start..range.end.min(self.file.len());
                // SAFETY: as above; the direct read is over.
                unsafe { self.read_buffered(&within, target, counters) }
            }
            outcome => outcome,
        }
    }

    /// Whether a direct read was refused, though opening for it was not.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// # Safety
    /// As for [`read`](Self::read).
    unsafe fn read_buffered(
        &self,
        range: &Range<u64>,
        target: *mut u8,
        counters: &Counters,
    ) -> Result<()> {
        let len = range.end - range.start;
        let mut retried = 0;
        let mut calls = 0;
        let step = fill(len, &mut retried, |done| {
            calls += 1;
            let mode = ReadMode {
                no_wait: false,
                dont_cache: self.dont_cache.load(Ordering::Relaxed),
            };
            // SAFETY: `done <= len`, so the rest lies within the caller's memory.
            let result = unsafe { pread(self.file.fd(), range, done, target, mode) };
            match result {
                Err(error) if mode.dont_cache && sys::is_mode_unsupported(&error) => {
                    self.dont_cache.store(false, Ordering::Relaxed);
                    // SAFETY: as above.
                    unsafe { pread(self.file.fd(), range, done, target, ReadMode::default()) }
                }
                result => result,
            }
        });
        counters.add_requests(calls);
        counters.add_retried(retried);
        self.settle(step, range)?;
        counters.add_read(len);
        if self.drop_behind && !self.dont_cache.load(Ordering::Relaxed) {
            sys::advise(self.file.fd(), range.start, len, false);
        }
        Ok(())
    }

    /// # Safety
    /// As for [`read`](Self::read).
    unsafe fn read_aligned(
        &self,
        direct: &DirectFile,
        range: &Range<u64>,
        target: *mut u8,
        counters: &Counters,
    ) -> Result<()> {
        let wanted = range.end.min(self.file.len()).saturating_sub(range.start);
        let mut retried = 0;
        let mut calls = 0;
        let step = fill(wanted, &mut retried, |done| {
            calls += 1;
            // After a short read the next one begins at the last aligned offset, and reads a little again.
            let again = done % direct.strictest();
            let from = done - again;
            // SAFETY: `from <= done <= range.len()`: within the caller's memory.
            let n = unsafe { pread(direct.fd(), range, from, target, ReadMode::default()) }?;
            Ok(n.saturating_sub(again as usize))
        });
        counters.add_requests(calls);
        counters.add_retried(retried);
        self.settle(step, range)?;
        counters.add_read(wanted);
        Ok(())
    }

    /// Reads by way of aligned memory, for ranges or addresses that the device does not take.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    unsafe fn read_bounced(
        &self,
        direct: &DirectFile,
        range: &Range<u64>,
        target: *mut u8,
        counters: &Counters,
        pool: &Pool,
    ) -> Result<()> {
        let align = direct.strictest();
        let end = range.end.min(self.file.len());
        let mut at = range.start;
        while at < end {
            let from = at - at % align;
            let to = end.min(from + BOUNCE.max(align));
            let wide = from..to.checked_next_multiple_of(align).unwrap_or(to);
            let block = pool.take_over_cap((wide.end - wide.start) as usize)?;
            let source = block.unfilled_ptr();
            // SAFETY: the block is ours and as long as the range; blocks of the pool begin on a page boundary.
            unsafe { self.read_aligned(direct, &wide, source, counters)? };
            // SAFETY: the block holds `from..to`, which was just read; `at..to` lies within `range`, so within
            // the caller's memory, which is not this block.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    source.add((at - from) as usize),
                    target.add((at - range.start) as usize),
                    (to - at) as usize,
                );
            }
            counters.add_bounced(to - at);
            counters.add_wasted((at - from) + (wide.end.min(self.file.len()) - to));
            at = to;
        }
        Ok(())
    }

    /// Copies what is in the page cache from the start of `range` on, and says how much it was. Never waits for
    /// a device; whatever stands in the way is left to a later [`read`](Self::read) to find and report.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub(crate) unsafe fn copy_resident(
        &self,
        range: &Range<u64>,
        target: *mut u8,
        counters: &Counters,
    ) -> u64 {
        let mode = ReadMode {
            // In a file system in memory nothing waits, and not all know the flag.
            no_wait: !matches!(self.file.file_system(), FileSystem::Memory(_)),
            dont_cache: self.dont_cache.load(Ordering::Relaxed),
        };
        let len = range.end - range.start;
        let mut done = 0;
        while done < len {
            counters.add_requests(1);
            // SAFETY: `done < len`, so the rest lies within the caller's memory.
            match unsafe { pread(self.file.fd(), range, done, target, mode) } {
                Ok(0) => break,
                Ok(n) => done += n as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if sys::is_mode_unsupported(&error) {
                        let flag = if mode.dont_cache {
                            &self.dont_cache
                        } else {
                            &self.no_wait
                        };
                        flag.store(false, Ordering::Relaxed);
                    }
                    break;
                }
            }
        }
        done
    }

    fn settle(&self, step: Step, range: &Range<u64>) -> Result<()> {
        match step {
            Step::Done => Ok(()),
            Step::Failed(error) => Err(Error::io("pread", error)),
            Step::Ended { at } => Err(self.ended("pread", range.start.saturating_add(at))),
        }
    }

    /// The error of a file that has no bytes at an `offset` within its length. The length was fixed at the open, so
    /// something changed: says what, if the file shows it.
    fn ended(&self, op: &'static str, offset: u64) -> Error {
        self.explain(no_bytes(op, offset))
    }

    /// The error, or that the file has changed if that explains it. Asks the system if so.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let ended = error.io_kind() == io::ErrorKind::UnexpectedEof;
        match (ended, error.kind()) {
            (true, ErrorKind::Io { .. }) => self.file.check_version().err().unwrap_or(error),
            _ => error,
        }
    }

    /// Passes on the hint that `range` will be read.
    pub(crate) fn hint(&self, range: &Range<u64>) {
        if !self.is_direct() && !self.drop_behind {
            sys::advise(self.file.fd(), range.start, range.end - range.start, true);
        }
    }
}

/// The error of a source that has no bytes at an `offset` within its length.
pub(crate) fn no_bytes(op: &'static str, offset: u64) -> Error {
    let what = format!("no bytes at offset {offset}");
    Error::io(op, io::Error::new(io::ErrorKind::UnexpectedEof, what))
}

/// Whether a direct read failed because it was direct.
fn is_refusal(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Io { source, .. } => {
            matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
        }
        _ => false,
    }
}

/// One `pread` of what is left of `range` behind its first `done` bytes.
///
/// # Safety
/// `target..target + range.len()` is valid for writes and not used otherwise meanwhile; `done <= range.len()`.
unsafe fn pread(
    fd: BorrowedFd<'_>,
    range: &Range<u64>,
    done: u64,
    target: *mut u8,
    mode: ReadMode,
) -> io::Result<usize> {
    let left = range.end - range.start - done;
    // SAFETY: within the span that the caller vouches for.
    unsafe {
        sys::pread(
            fd,
            target.add(done as usize),
            left as usize,
            range.start + done,
            mode,
        )
    }
}
