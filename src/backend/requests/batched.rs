//! Requests cut into pieces, to be claimed one by one by whoever reads them.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::Context;
use super::job::{Cause, Job};
use crate::backend::workers::Work;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::Priority;
use crate::reader::plan::split;

/// Smaller requests are not cut, and bounced whole if they are not aligned: copying them costs less than another one or
/// two.
const WHOLE_BELOW: u64 = 64 << 10;

/// Requests that were handed in together.
#[derive(Debug)]
pub(crate) struct Batched {
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
    /// Cuts `jobs` at multiples of `piece` bytes; where the device needs an alignment, edges of large requests that do not
    /// have it become small pieces of their own, so that only they are bounced.
    pub(crate) fn new(context: Context, mut jobs: Vec<Job>, piece: u64) -> Arc<Self> {
        let align = context.access().align();
        let mut pieces = Vec::with_capacity(jobs.len());
        let mut bytes = 0;
        for (index, job) in jobs.iter_mut().enumerate() {
            let rest = job.rest();
            let before = pieces.len();
            bytes += rest.end - rest.start;
            if rest.end - rest.start < WHOLE_BELOW {
                let whole = (!rest.is_empty()).then_some((index, rest));
                job.set_pieces(usize::from(whole.is_some()));
                pieces.extend(whole);
                continue;
            }
            let head = rest.start.next_multiple_of(align).min(rest.end);
            let tail = (rest.end - rest.end % align).max(head);
            // What has to be bounced anyway is not cut for its edges.
            let lands = context
                .access()
                .direct_file()
                .is_none_or(|direct| direct.fits(head, job.target_of(head)));
            let (head, tail) = match lands {
                true => (head, tail),
                false => (rest.start, rest.end),
            };
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
        Arc::new(Batched {
            open: Mutex::new(jobs.len()),
            context,
            jobs,
            pieces,
            next: AtomicUsize::new(0),
            bytes,
            all_delivered: Condvar::new(),
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn mean_piece(&self) -> u64 {
        self.bytes / (self.pieces.len().max(1) as u64)
    }

    /// The first error of a request and its range, for a caller that lent the memory.
    pub(crate) fn error(&self) -> Option<(Error, Range<u64>)> {
        self.jobs
            .iter()
            .find_map(|job| Some((job.error()?, job.span().clone())))
    }

    /// The next piece that nobody has claimed.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Piece> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let (job, range) = self.pieces.get(index)?;
        Some(Piece {
            work: self.clone(),
            job: *job,
            range: range.clone(),
            closed: false,
        })
    }

    /// Gives up all pieces that nobody has claimed.
    pub(crate) fn give_up(self: &Arc<Self>, error: &Error) {
        while let Some(piece) = self.claim() {
            piece.skip(error.clone());
        }
    }

    /// Gives up everything: what is being read is told to have failed, though its memory is kept until it is done.
    /// The number of requests that somebody waited for.
    pub(crate) fn abandon(self: &Arc<Self>, error: &Error) -> usize {
        let abandon = |job: &&Job| job.abandon(&self.context.source, error);
        let told = self.jobs.iter().filter(abandon).count();
        self.give_up(error);
        told
    }

    /// Hands out a request, all of whose pieces are done.
    fn deliver(&self, job: usize, verify: impl FnOnce(&Context) -> Result<()>) {
        let _delivered = Delivered(self);
        self.jobs[job].deliver(&self.context, verify);
    }

    /// A guard that does not go away before all requests are delivered.
    pub(crate) fn wait_for_all(self: &Arc<Self>) -> WaitForAll {
        WaitForAll(self.clone())
    }
}

impl Work for Batched {
    fn step(self: Arc<Self>) -> bool {
        let Some(piece) = self.claim() else {
            return false;
        };
        if let Some(piece) = piece.if_wanted() {
            let context = &self.context;
            // SAFETY: the piece is claimed and stays so until it is finished below.
            let read = unsafe {
                piece.job().read_piece(
                    &piece.range,
                    &context.access,
                    &context.source,
                    &context.pool,
                )
            };
            piece.finish(read, Context::verify);
        }
        true
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        Batched::abandon(&self, error)
    }
}

/// A piece that one reader has taken; dropping it, in whatever way, counts it as done.
///
/// While it exists, its part of the request's memory is its owner's alone to be written to.
#[derive(Debug)]
pub(crate) struct Piece {
    work: Arc<Batched>,
    job: usize,
    range: Range<u64>,
    closed: bool,
}

impl Piece {
    fn job(&self) -> &Job {
        &self.work.jobs[self.job]
    }

    /// What all pieces of the batch need.
    pub(crate) fn context(&self) -> &Context {
        &self.work.context
    }

    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where its first byte goes: memory as long as the range, valid for writes while the piece is neither finished,
    /// skipped nor dropped.
    pub(crate) fn target(&self) -> *mut u8 {
        self.job().target_of(self.range.start)
    }

    /// The piece, if somebody waits for it, the request has not failed, and there is memory for it; else it is done with.
    pub(crate) fn if_wanted(self) -> Option<Piece> {
        if !self.job().wanted() {
            self.skip(Error::new(ErrorKind::Abandoned));
            return None;
        }
        if self.job().failed() {
            // Of a request that failed nothing more is needed, and its first error stays.
            self.skip(Error::new(ErrorKind::Abandoned));
            return None;
        }
        if let Err(error) = self.job().take_memory(&self.work.context) {
            self.skip(error);
            return None;
        }
        Some(self)
    }

    /// Notes what came of reading it. Of the last piece of a request: delivers, after `verify`.
    pub(crate) fn finish(
        mut self,
        result: Result<()>,
        verify: impl FnOnce(&Context) -> Result<()>,
    ) {
        match result {
            Ok(()) => self.job().progress(self.range.end - self.range.start),
            Err(error) => self.job().fail(Cause::Read(error)),
        }
        self.close(verify);
    }

    /// Gives it up untried.
    pub(crate) fn skip(mut self, error: Error) {
        self.job().fail(Cause::NotTried(error));
        self.close(Context::verify);
    }

    /// Gives it up while the system may still write to its memory, which is never freed.
    pub(crate) fn leak(self) {
        // Also if telling others panics.
        let piece = ManuallyDrop::new(self);
        let error = Error::new(ErrorKind::Abandoned);
        piece.job().abandon(&piece.work.context.source, &error);
    }

    fn close(&mut self, verify: impl FnOnce(&Context) -> Result<()>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if !self.job().piece_done() {
            return;
        }
        let context = &self.work.context;
        if context.apart && self.job().delivery_waits(context) {
            let delivery: Arc<dyn Work> = Arc::new(Delivery {
                work: self.work.clone(),
                job: self.job,
                begun: AtomicBool::new(false),
            });
            let run = context.workers.run(&delivery, 1, Priority::Foreground);
            if let Err(error) = run {
                delivery.abandon(&error);
            }
        } else {
            self.work.deliver(self.job, verify);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !self.closed {
            // Nobody knows whether it was read: those who wait must learn of it.
            let error = Error::new(ErrorKind::Abandoned);
            self.job().fail(Cause::NotTried(error));
        }
        self.close(Context::verify);
    }
}

/// Handing out a request, which may wait, by a thread that may.
struct Delivery {
    work: Arc<Batched>,
    job: usize,
    begun: AtomicBool,
}

impl Work for Delivery {
    fn step(self: Arc<Self>) -> bool {
        let first = !self.begun.swap(true, Ordering::Relaxed);
        if first {
            self.work.deliver(self.job, Context::verify);
        }
        first
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        let job = &self.work.jobs[self.job];
        usize::from(job.abandon(&self.work.context.source, error))
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
pub(crate) struct WaitForAll(Arc<Batched>);

impl Drop for WaitForAll {
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
