//! What all reads of one file by cuFile share, and how one of them is done and ends.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::driver::{Driver, Pool, Why};
use super::ffi::{Failure, To};
use super::handles::FileHandle;
use super::{ENGINE, relay};
use crate::buffer::BlockMut;
use crate::cuda::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Dest, Failed, Read, ReadOptions, Reader, Route, Ticket};
use crate::sys;

/// Offsets, lengths and addresses that are multiples of this go the short way through cuFile.
pub(super) const ALIGN: u64 = 4096;

/// Failures of cuFile in a row after which a file is read another way.
const MOST_FAILURES: usize = 3;

/// One file.
pub(super) struct Shared {
    pub(super) driver: &'static Driver,
    pub(super) device: Arc<Device>,
    pub(super) file: FileHandle,
    /// For what goes the other way.
    pub(super) inner: Arc<dyn Reader>,
    /// Where in the file the reader's first byte is.
    pub(super) start: u64,
    /// Nothing may go the other way.
    pub(super) required: bool,
    pub(super) pool: Arc<Pool>,
    pub(super) tally: Tally,
}

/// What was done.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) reads: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) elsewhere: AtomicU64,
    /// Why the last one went the other way.
    pub(super) why: Mutex<Option<Why>>,
    /// In a row.
    failures: AtomicUsize,
    /// Why cuFile is no longer asked.
    pub(super) off: OnceLock<Why>,
}

/// Why a read is not done.
pub(super) enum Stop {
    /// Nobody waits for it.
    Unwanted,
    /// By an error that another way would meet as well.
    Error(Error),
    /// cuFile failed it.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        match failure.is_of_the_system() {
            true => Stop::Error(failure.into()),
            false => Stop::Failed(failure),
        }
    }
}

/// A range of the file, with what lies around it up to the next multiples of [`ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Where it begins in the file.
    pub(super) from: u64,
    /// Bytes before what is wanted.
    pub(super) front: u64,
    /// All of them.
    pub(super) whole: u64,
}

impl Span {
    pub(super) fn around(start: u64, len: u64) -> Self {
        let from = start / ALIGN * ALIGN;
        let front = start - from;
        Span {
            from,
            front,
            // A length of a file and a page more: no overflow.
            whole: (front + len).next_multiple_of(ALIGN),
        }
    }
}

impl Tally {
    /// Notes a read that goes the other way.
    pub(super) fn note(&self, why: Why) {
        self.elsewhere.fetch_add(1, Ordering::Relaxed);
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

impl Shared {
    /// Where a range of the reader begins in the file.
    pub(super) fn offset(&self, range: &Range<u64>) -> u64 {
        // The source was checked to lie within its file.
        self.start.saturating_add(range.start)
    }

    /// Reads `len` bytes from `offset` of the file, of which the first `needed` have to be there.
    ///
    /// # Safety
    /// `len` bytes from `to` on are memory of the device, which nobody else uses until the call returns.
    pub(super) unsafe fn read(
        &self,
        to: To,
        offset: u64,
        len: u64,
        needed: u64,
    ) -> Result<(), Stop> {
        let counters = self.inner.source().counters();
        let end = offset.saturating_add(len);
        i64::try_from(end).map_err(|_| Stop::Error(no_bytes(offset)))?;
        let mut done = 0;
        while done < needed {
            let left = usize::try_from(len - done).unwrap_or(usize::MAX);
            let at = (offset + done).cast_signed();
            counters.begin_request();
            let outcome = self.device.context().call(|_| {
                // SAFETY: as the caller promises; the file is registered as long as `self` lives, and the context is current.
                Ok(unsafe {
                    self.driver
                        .library
                        .read(self.file.handle(), to.behind(done), left, at)
                })
            });
            counters.end_request();
            counters.add_requests(1);
            match outcome.map_err(Stop::Error)? {
                Ok(0) => return Err(Stop::Error(no_bytes(offset + done))),
                Ok(got) => {
                    done += got as u64;
                    counters.add_read(got as u64);
                    counters.add_retried(u64::from(done < needed));
                }
                Err(failure) if failure.is_interrupted() => counters.add_retried(1),
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// Delivers a block that is filled: `len` bytes are there behind what was in it before.
    ///
    /// # Safety
    /// They are.
    pub(super) unsafe fn deliver(&self, ticket: Ticket, mut block: BlockMut, len: u64) {
        let counters = self.inner.source().counters();
        counters.add_reads(1);
        counters.add_requested(len);
        counters.add_route(Route::Gds, len);
        self.tally.reads.fetch_add(1, Ordering::Relaxed);
        self.tally.bytes.fetch_add(len, Ordering::Relaxed);
        self.tally.failures.store(0, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { block.advance(len as usize) };
        ticket.finish(Ok(block.freeze()));
    }

    /// Ends a read that was not done: by its error, or by doing it the other way.
    pub(super) fn end(&self, ticket: Ticket, read: Read, stop: Stop, options: &ReadOptions) {
        let source = self.inner.source();
        let error = match stop {
            Stop::Unwanted => Error::new(ErrorKind::Abandoned),
            Stop::Error(error) => self.explain(error),
            Stop::Failed(failure) if self.required => failure.into(),
            Stop::Failed(failure) => {
                tracing::debug!(%failure, name = %source.name(), "a read goes another way than cuFile");
                let why = Why::from(failure.to_string());
                if self.tally.failures.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_FAILURES {
                    let _ = self.tally.off.set(why.clone());
                }
                self.tally.note(why);
                return relay::forward(&*self.inner, vec![(read, ticket)], options);
            }
        };
        let counters = source.counters();
        counters.add_reads(1);
        counters.add_requested(read.len());
        let error = source.place(error.by(ENGINE), read.range);
        ticket.finish(Err(Failed::new(error, read.dest)));
    }

    /// The error, or that the file has changed if that explains it.
    fn explain(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Io { .. } => self.file.check_version().err().unwrap_or(error),
            _ => error,
        }
    }

    /// Keeps this thread near the device, once for each thread.
    pub(super) fn settle_thread(&self) {
        thread_local! {
            static SETTLED: Cell<bool> = const { Cell::new(false) };
        }
        if !SETTLED.replace(true) && !self.pool.cpus.is_empty() {
            sys::prefer_cpus(&self.pool.cpus);
        }
    }
}

/// The error of a file that has no bytes where its length says that there are some.
fn no_bytes(offset: u64) -> Error {
    let what = format!("there are no bytes at offset {offset} of the file");
    Error::io(
        "cuFileRead",
        io::Error::new(io::ErrorKind::UnexpectedEof, what),
    )
}

/// A destination as it was, for the way back.
pub(super) fn original(block: Option<BlockMut>, device: &Device) -> Dest {
    block.map_or(Dest::Any(device.place()), Dest::Into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_aligned_and_cover_what_is_wanted() {
        for (start, len, from, front, whole) in [
            (0, 1, 0, 0, 4096),
            (4096, 4096, 4096, 0, 4096),
            (4095, 2, 0, 4095, 8192),
            (5000, 100_000, 4096, 904, 102_400),
        ] {
            assert_eq!(Span::around(start, len), Span { from, front, whole });
        }
        let last = Span::around(i64::MAX as u64 - 1, 1);
        assert_eq!((last.from + last.whole, last.front), (1 << 63, 4094));
    }
}
