//! One request: a span of the file, the memory it goes to, and who is told when it is there.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::transfer::Access;
use crate::buffer::{Block, BlockMut, Pool};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Failed, Source, Ticket};

/// A read that a request serves.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) range: Range<u64>,
    /// The caller's block, to be copied into from the shared one.
    pub(super) dest: Option<BlockMut>,
    pub(super) ticket: Ticket,
}

/// Who waits, and the memory that is kept for them until all of it is written.
#[derive(Debug)]
enum Finish {
    /// One read into a block of the caller's, which begins where the span does.
    Given { block: BlockMut, part: Part },
    /// Reads that share a block of ours.
    Shared { block: BlockMut, parts: Vec<Part> },
    /// Memory that a caller lends, who waits on the spot.
    Borrowed,
}

/// Why a request was not done.
#[derive(Clone, Debug)]
pub(super) enum Cause {
    /// The system failed to read it.
    Read(Error),
    /// It was not tried.
    NotTried(Error),
}

#[derive(Debug)]
pub(super) struct Job {
    span: Range<u64>,
    target: *mut u8,
    /// Bytes from the start of the span that are there already.
    copied: u64,
    /// Pieces that are not done.
    left: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cause: Option<Cause>,
    finish: Option<Finish>,
}

// SAFETY: `target` points into the block that `finish` keeps, or into memory whose lender waits. Writes to it are
// to disjoint pieces (`Batched` claims each once), and `finish` is taken only after the last piece.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    fn new(span: Range<u64>, target: *mut u8, finish: Finish) -> Self {
        Job {
            span,
            target,
            copied: 0,
            left: AtomicUsize::new(0),
            state: Mutex::new(State {
                cause: None,
                finish: Some(finish),
            }),
        }
    }

    /// A read into the unfilled part of the caller's block, which has room for it.
    pub(super) fn given(block: BlockMut, part: Part) -> Self {
        Job::new(
            part.range.clone(),
            block.unfilled_ptr(),
            Finish::Given { block, part },
        )
    }

    /// Reads that share `block`, which is as long as `span`.
    pub(super) fn shared(span: Range<u64>, block: BlockMut, parts: Vec<Part>) -> Self {
        Job::new(span, block.unfilled_ptr(), Finish::Shared { block, parts })
    }

    /// A read into memory of a caller who waits.
    ///
    /// # Safety
    /// `target..target + range.len()` is valid for writes, and not used by others, until all pieces are done or
    /// the job is dropped.
    pub(super) unsafe fn borrowed(range: Range<u64>, target: *mut u8) -> Self {
        Job::new(range, target, Finish::Borrowed)
    }

    pub(super) fn span(&self) -> &Range<u64> {
        &self.span
    }

    /// What has not been copied yet.
    pub(super) fn rest(&self) -> Range<u64> {
        self.span.start + self.copied..self.span.end
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what is in the page cache, before any piece has been handed out.
    pub(super) fn copy_resident(&mut self, access: &Access, source: &Source) -> u64 {
        // SAFETY: the target is as long as the span; `&mut self`, so no piece is being read.
        self.copied = unsafe { access.copy_resident(&self.span, self.target, source.counters()) };
        self.copied
    }

    pub(super) fn set_pieces(&mut self, pieces: usize) {
        *self.left.get_mut() = pieces;
    }

    /// One piece is done, or given up. `true`: it was the last.
    pub(super) fn piece_done(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Reads `piece`, a part of the span.
    ///
    /// # Safety
    /// No other thread reads an overlapping piece, and the memory of the request is kept until this returns: by
    /// what `deliver` will take, while a piece is not done, or by whoever has taken it.
    pub(super) unsafe fn read_piece(
        &self,
        piece: &Range<u64>,
        access: &Access,
        source: &Source,
        pool: &Pool,
    ) -> Result<()> {
        // SAFETY: within the target, which is kept until the last piece is done; the piece is the caller's.
        unsafe {
            let target = self.target.add((piece.start - self.span.start) as usize);
            access.read(piece, target, source.counters(), pool)
        }
    }

    /// Notes why the request cannot be delivered; the first reason stays.
    pub(super) fn fail(&self, cause: Cause) {
        self.lock().cause.get_or_insert(cause);
    }

    pub(super) fn failed(&self) -> bool {
        self.lock().cause.is_some()
    }

    pub(super) fn error(&self) -> Option<Error> {
        self.lock().cause.clone().map(|cause| match cause {
            Cause::Read(error) | Cause::NotTried(error) => error,
        })
    }

    /// Whether anybody still waits for it.
    pub(super) fn wanted(&self) -> bool {
        match &self.lock().finish {
            Some(Finish::Given { part, .. }) => part.ticket.wanted(),
            Some(Finish::Shared { parts, .. }) => parts.iter().any(|part| part.ticket.wanted()),
            Some(Finish::Borrowed) | None => true,
        }
    }

    /// Tells a lone waiter how far it is.
    pub(super) fn progress(&self, bytes: u64) {
        match &self.lock().finish {
            Some(Finish::Given { part, .. }) => part.ticket.add_progress(bytes),
            Some(Finish::Shared { parts, .. }) if parts.len() == 1 => {
                parts[0].ticket.add_progress(bytes);
            }
            _ => {}
        }
    }

    /// Hands out what was read, or the reason why not. Called once, after the last piece.
    pub(super) fn deliver(
        &self,
        source: &Source,
        access: &Access,
        pool: &Pool,
        verify: impl Fn() -> Result<()>,
    ) {
        let (cause, finish) = {
            let mut state = self.lock();
            // The cause stays, for a caller who lent the memory and asks afterwards.
            (state.cause.clone(), state.finish.take())
        };
        let Some(finish) = finish else { return };
        let outcome = match (cause, &finish) {
            (None, _) => verify(),
            (Some(Cause::NotTried(error)), _) => Err(error),
            (Some(Cause::Read(error)), Finish::Shared { parts, .. })
                if parts.len() > 1 && matches!(error.kind(), ErrorKind::Io { .. }) =>
            {
                if let Finish::Shared { block, parts } = finish {
                    self.deliver_one_by_one(block, parts, source, access, pool, verify);
                }
                return;
            }
            (Some(Cause::Read(error)), _) => Err(error),
        };
        match (finish, outcome) {
            (Finish::Borrowed, _) => {}
            (Finish::Given { mut block, part }, Ok(())) => {
                let len = part.range.end - part.range.start;
                // SAFETY: the span is the part's range; every byte of it was read.
                unsafe { block.advance(len as usize) };
                source.counters().add_route(access.route(), len);
                part.ticket.finish(Ok(block.freeze()));
            }
            (Finish::Given { block, part }, Err(error)) => {
                let error = source.place(error, part.range);
                part.ticket.finish(Err(Failed {
                    error,
                    dest: Some(block),
                }));
            }
            (Finish::Shared { mut block, parts }, Ok(())) => {
                let read = self.span.end.min(access.file().len()) - self.span.start;
                // SAFETY: every byte of the span that lies within the file was read.
                unsafe { block.advance(read as usize) };
                let held = block.len();
                let bytes = frozen(block);
                for part in parts {
                    let outcome = self.cut(&bytes, held, &part.range, source);
                    hand_out(part, outcome, source, access);
                }
            }
            (Finish::Shared { parts, .. }, Err(error)) => {
                for part in parts {
                    hand_out(part, Err(error.clone()), source, access);
                }
            }
        }
    }

    /// A joined request failed: each read is tried alone, so that one bad spot fails only those that touch it.
    fn deliver_one_by_one(
        &self,
        block: BlockMut,
        parts: Vec<Part>,
        source: &Source,
        access: &Access,
        pool: &Pool,
        verify: impl Fn() -> Result<()>,
    ) {
        let align = access.align();
        let mut outcomes = Vec::with_capacity(parts.len());
        for part in &parts {
            let start = part.range.start - part.range.start % align;
            let end = part.range.end.next_multiple_of(align).min(self.span.end);
            // SAFETY: within the span; all pieces are done, so nobody else uses the memory, and `block` keeps it.
            let read = unsafe { self.read_piece(&(start..end), access, source, pool) };
            outcomes.push(read.and_then(|()| verify()));
        }
        for (part, outcome) in parts.into_iter().zip(outcomes) {
            let from = (part.range.start - self.span.start) as usize;
            let len = (part.range.end - part.range.start) as usize;
            let outcome = outcome.map(|()| {
                // SAFETY: this part of the block was just read.
                let read = unsafe {
                    std::slice::from_raw_parts(block.unfilled_ptr().add(from).cast_const(), len)
                };
                source.counters().add_bounced(len as u64);
                Bytes::copy_from_slice(read)
            });
            hand_out(part, outcome, source, access);
        }
    }

    /// The bytes of `range`, copied out if they would pin a block of over four times their size.
    fn cut(
        &self,
        bytes: &Bytes,
        held: usize,
        range: &Range<u64>,
        source: &Source,
    ) -> Result<Bytes> {
        let from = (range.start - self.span.start) as usize;
        let to = (range.end - self.span.start) as usize;
        let slice = bytes.slice(from..to);
        if held / 4 > slice.len() {
            source.counters().add_bounced(slice.len() as u64);
            return Ok(Bytes::copy_from_slice(&slice));
        }
        Ok(slice)
    }
}

/// The filled bytes of a host block.
fn frozen(block: BlockMut) -> Bytes {
    match block.freeze() {
        Block::Host(bytes) => bytes,
        Block::Device(_) => Bytes::new(), // blocks of the pool are in host memory
    }
}

/// Finishes one part with bytes of a shared block, or with the error.
fn hand_out(part: Part, outcome: Result<Bytes>, source: &Source, access: &Access) {
    let len = part.range.end - part.range.start;
    let placed = |error: Error| source.place(error, part.range.clone());
    let outcome = match (outcome, part.dest) {
        (Ok(bytes), None) => Ok(bytes.into()),
        (Ok(bytes), Some(mut block)) => {
            source.counters().add_bounced(len);
            match block.put(&bytes) {
                Ok(()) => Ok(block.freeze()),
                Err(error) => Err(Failed {
                    error: placed(error),
                    dest: Some(block),
                }),
            }
        }
        (Err(error), dest) => Err(Failed {
            error: placed(error),
            dest,
        }),
    };
    if outcome.is_ok() {
        source.counters().add_route(access.route(), len);
    }
    part.ticket.finish(outcome);
}
