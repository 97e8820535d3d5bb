//! Requests cut into pieces, for threads to claim one by one.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;

use super::job::{Cause, Job};
use super::transfer::Access;
use crate::backend::workers::Work;
use crate::buffer::Pool;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::plan::split;
use crate::reader::{Source, Ticket, VersionCheck};

/// What all pieces need.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) source: Source,
    pub(super) access: Arc<Access>,
    pub(super) pool: Pool,
    pub(super) check: VersionCheck,
}

impl Context {
    /// Whether the content is still that of the open, as far as it is to be checked after each request.
    pub(super) fn verify(&self) -> Result<()> {
        match self.check {
            VersionCheck::OnShortRead => Ok(()),
            VersionCheck::Always => self.access.file().check_version(),
        }
    }
}

/// Requests that were handed in together.
#[derive(Debug)]
pub(super) struct Batched {
    context: Context,
    jobs: Vec<Job>,
    pieces: Vec<(usize, Range<u64>)>,
    /// The next piece that nobody has claimed.
    next: AtomicUsize,
    bytes: u64,
    /// Requests that have not been delivered.
    open: Mutex<usize>,
    all_delivered: Condvar,
}

impl Batched {
    /// Cuts `jobs` at multiples of `piece` bytes; where the device needs an alignment, edges that do not have it
    /// become small pieces of their own, so that only they are bounced.
    pub(super) fn new(context: Context, mut jobs: Vec<Job>, piece: u64) -> Self {
        let align = context.access.align();
        let mut pieces = Vec::with_capacity(jobs.len());
        let mut bytes = 0;
        for (index, job) in jobs.iter_mut().enumerate() {
            let rest = job.rest();
            let before = pieces.len();
            bytes += rest.end - rest.start;
            let head = rest.start.next_multiple_of(align).min(rest.end);
            let tail = (rest.end - rest.end % align).max(head);
            let edges = [rest.start..head, tail..rest.end];
            pieces.extend(split(head..tail, piece).map(|range| (index, range)));
            pieces.extend(
                edges
                    .into_iter()
                    .filter(|range| !range.is_empty())
                    .map(|range| (index, range)),
            );
            job.set_pieces(pieces.len() - before);
        }
        Batched {
            open: Mutex::new(jobs.len()),
            context,
            jobs,
            pieces,
            next: AtomicUsize::new(0),
            bytes,
            all_delivered: Condvar::new(),
        }
    }

    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn mean_piece(&self) -> u64 {
        self.bytes / (self.pieces.len().max(1) as u64)
    }

    /// The first error of a request, for a caller that lent the memory.
    pub(super) fn error(&self) -> Option<Error> {
        self.jobs.iter().find_map(Job::error)
    }

    fn claim(&self) -> Option<Claimed<'_>> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let (job, range) = self.pieces.get(index)?;
        Some(Claimed {
            work: self,
            job: &self.jobs[*job],
            range: range.clone(),
            done: false,
        })
    }

    /// Gives up all pieces that nobody has claimed.
    pub(super) fn give_up(&self, error: &Error) {
        while let Some(mut piece) = self.claim() {
            piece.job.fail(Cause::NotTried(error.clone()));
            piece.done = true;
        }
    }

    /// A guard that does not go away before all requests are delivered.
    pub(super) fn wait_for_all(&self) -> WaitForAll<'_> {
        WaitForAll(self)
    }
}

impl Work for Batched {
    fn step(&self) -> bool {
        let Some(mut piece) = self.claim() else {
            return false;
        };
        let job = piece.job;
        if !job.wanted() {
            job.fail(Cause::NotTried(Error::new(ErrorKind::Abandoned)));
        } else if !job.failed() {
            let context = &self.context;
            // SAFETY: pieces of a job are disjoint and this one was claimed once; it counts as not done until
            // `piece` is dropped.
            let read = unsafe {
                job.read_piece(
                    &piece.range,
                    &context.access,
                    &context.source,
                    &context.pool,
                )
            };
            match read {
                Ok(()) => job.progress(piece.range.end - piece.range.start),
                Err(error) => job.fail(Cause::Read(error)),
            }
        }
        piece.done = true;
        true
    }
}

/// A piece that one thread has taken; dropping it, in whatever way, counts it as done.
struct Claimed<'a> {
    work: &'a Batched,
    job: &'a Job,
    range: Range<u64>,
    done: bool,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if !self.done {
            // Unwinding: those who wait must learn of it rather than wait for ever.
            self.job
                .fail(Cause::NotTried(Error::new(ErrorKind::Abandoned)));
        }
        if self.job.piece_done() {
            let _delivered = Delivered(self.work);
            let context = &self.work.context;
            self.job
                .deliver(&context.source, &context.access, &context.pool, || {
                    context.verify()
                });
        }
    }
}

/// Counts a request as delivered, also if delivering it panicked.
struct Delivered<'a>(&'a Batched);

impl Drop for Delivered<'_> {
    fn drop(&mut self) {
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open -= 1;
        if *open == 0 {
            self.0.all_delivered.notify_all();
        }
    }
}

/// See [`Batched::wait_for_all`]. While unwinding it gives up what nobody has begun, and waits for the rest.
pub(super) struct WaitForAll<'a>(&'a Batched);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        self.0.give_up(&Error::new(ErrorKind::Abandoned));
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        while *open > 0 {
            open = self
                .0
                .all_delivered
                .wait(open)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Hints to be passed to the system.
#[derive(Debug)]
pub(super) struct Hints {
    access: Arc<Access>,
    hints: Mutex<Vec<(Range<u64>, Ticket)>>,
}

impl Hints {
    pub(super) fn new(access: Arc<Access>, mut hints: Vec<(Range<u64>, Ticket)>) -> Self {
        hints.reverse(); // taken from the back
        Hints {
            access,
            hints: Mutex::new(hints),
        }
    }
}

impl Work for Hints {
    fn step(&self) -> bool {
        let next = {
            let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
            hints.pop()
        };
        let Some((range, ticket)) = next else {
            return false;
        };
        self.access.hint(&range);
        ticket.finish(Ok(Bytes::new().into()));
        true
    }
}
