//! One request: a span of the file, the memory it goes to, and who is told when it is there.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::Context;
use super::access::Access;
use super::salvage::{copy_of, salvage};
use crate::buffer::{Block, BlockMut, Pool};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Failed, Source, Ticket, VersionCheck};

/// A read that a request serves.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) range: Range<u64>,
    /// The caller's block, to be copied into from the shared one.
    pub(crate) dest: Option<BlockMut>,
    pub(crate) ticket: Ticket,
}

/// Who waits, and the memory that is kept for them until all of it is written.
#[derive(Debug)]
enum Finish {
    /// One read into a block of the caller's, which begins where the span does.
    Given { block: BlockMut, part: Part },
    /// Reads that share a block of ours.
    Shared {
        /// Taken when the request is begun: a large batch needs memory for what is under way, not for all of it at once.
        block: Option<BlockMut>,
        parts: Vec<Part>,
    },
    /// Memory that a caller lends, who waits on the spot.
    Borrowed,
}

/// Why a request was not done.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// The system failed to read it.
    Read(Error),
    /// It was not tried.
    NotTried(Error),
}

/// What came of a request.
enum Settled {
    All(Result<()>),
    /// Of each part.
    Each(Vec<Result<()>>),
}

impl Settled {
    fn of(&self, part: usize) -> Result<()> {
        match self {
            Settled::All(outcome) => outcome.clone(),
            Settled::Each(outcomes) => match outcomes.get(part) {
                Some(outcome) => outcome.clone(),
                None => Err(Error::new(ErrorKind::Abandoned)),
            },
        }
    }
}

impl Finish {
    /// Reads that wait for it.
    fn parts(&self) -> usize {
        match self {
            Finish::Given { .. } => 1,
            Finish::Shared { parts, .. } => parts.len(),
            Finish::Borrowed => 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Job {
    span: Range<u64>,
    /// Null as long as there is no memory.
    target: AtomicPtr<u8>,
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
    /// Memory of a request that was given up while the system may still write to it; goes with the job.
    held: Option<BlockMut>,
}

// SAFETY: `target` points into the block that `finish` keeps, or into memory whose lender waits. Writes to it are
// to disjoint pieces (`Batched` claims each once). `deliver` takes `finish` only after the last piece; `abandon` may take
// it before, and leaves the block in `held`, which stays as long as the job.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    fn new(span: Range<u64>, target: *mut u8, finish: Finish) -> Self {
        Job {
            span,
            target: AtomicPtr::new(target),
            copied: 0,
            left: AtomicUsize::new(0),
            state: Mutex::new(State {
                cause: None,
                finish: Some(finish),
                held: None,
            }),
        }
    }

    /// A read into the unfilled part of the caller's block, which has room for it.
    pub(crate) fn given(block: BlockMut, part: Part) -> Self {
        Job::new(
            part.range.clone(),
            block.unfilled_ptr(),
            Finish::Given { block, part },
        )
    }

    /// Reads that share a block of ours, as long as `span`.
    pub(crate) fn shared(span: Range<u64>, parts: Vec<Part>) -> Self {
        Job::new(
            span,
            std::ptr::null_mut(),
            Finish::Shared { block: None, parts },
        )
    }

    /// Has memory for the bytes.
    pub(crate) fn take_memory(&self, context: &Context) -> Result<()> {
        if !self.target.load(Ordering::Acquire).is_null() {
            return Ok(());
        }
        let mut state = self.lock();
        match &mut state.finish {
            Some(Finish::Shared { block, .. }) if block.is_none() => {
                let new = context.block(self.span.end - self.span.start)?;
                self.target.store(new.unfilled_ptr(), Ordering::Release);
                *block = Some(new);
                Ok(())
            }
            Some(_) => Ok(()),
            // It was given up.
            None => Err(Error::new(ErrorKind::Abandoned)),
        }
    }

    /// A read into memory of a caller who waits.
    ///
    /// # Safety
    /// `target..target + range.len()` is valid for writes, and not used by others, until all pieces are done or
    /// the job is dropped.
    pub(crate) unsafe fn borrowed(range: Range<u64>, target: *mut u8) -> Self {
        Job::new(range, target, Finish::Borrowed)
    }

    pub(crate) fn span(&self) -> &Range<u64> {
        &self.span
    }

    /// What has not been copied yet.
    pub(crate) fn rest(&self) -> Range<u64> {
        self.span.start + self.copied..self.span.end
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what is in the page cache, before any piece has been handed out.
    pub(crate) fn copy_resident(&mut self, access: &Access, source: &Source) -> u64 {
        let target = *self.target.get_mut();
        if target.is_null() {
            return 0;
        }
        // SAFETY: the target is as long as the span; `&mut self`, so no piece is being read.
        self.copied = unsafe { access.copy_resident(&self.span, target, source.counters()) };
        self.copied
    }

    pub(crate) fn set_pieces(&mut self, pieces: usize) {
        *self.left.get_mut() = pieces;
    }

    /// One piece is done, or given up. `true`: it was the last.
    pub(crate) fn piece_done(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Where the byte at `offset` goes, which lies within the span.
    pub(crate) fn target_of(&self, offset: u64) -> *mut u8 {
        self.target
            .load(Ordering::Acquire)
            .wrapping_add(offset.saturating_sub(self.span.start) as usize)
    }

    /// Tells those who wait that nothing will come, and keeps the memory for as long as the job lives, since the
    /// system may still write to it. `false`: they had been told something before.
    pub(crate) fn abandon(&self, source: &Source, error: &Error) -> bool {
        let parts = {
            let mut state = self.lock();
            state.cause.get_or_insert(Cause::NotTried(error.clone()));
            let (block, parts) = match state.finish.take() {
                Some(Finish::Given { block, part }) => (Some(block), vec![part]),
                Some(Finish::Shared { block, parts }) => (block, parts),
                // Whoever lent the memory waits for the pieces, whatever happens.
                Some(Finish::Borrowed) => {
                    state.finish = Some(Finish::Borrowed);
                    return false;
                }
                None => return false,
            };
            state.held = block;
            parts
        };
        for part in parts {
            let error = source.place(error.clone(), part.range);
            // The caller's own block was only to be copied to, so it is at rest.
            let dest = part.dest;
            part.ticket.finish(Err(Failed { error, dest }));
        }
        true
    }

    /// Reads `piece`, a part of the span.
    ///
    /// # Safety
    /// No other thread reads an overlapping piece, and the memory of the request is kept until this returns: by
    /// `finish` while a piece is not done, by `held` if it was given up, or by whoever lent it.
    pub(crate) unsafe fn read_piece(
        &self,
        piece: &Range<u64>,
        access: &Access,
        source: &Source,
        pool: &Pool,
    ) -> Result<()> {
        // SAFETY: within the target; the caller vouches for the piece and for who keeps the memory.
        unsafe { access.read(piece, self.target_of(piece.start), source.counters(), pool) }
    }

    /// Notes why the request cannot be delivered; the first reason stays.
    pub(crate) fn fail(&self, cause: Cause) {
        self.lock().cause.get_or_insert(cause);
    }

    pub(crate) fn failed(&self) -> bool {
        self.lock().cause.is_some()
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.lock().cause.clone().map(|cause| match cause {
            Cause::Read(error) | Cause::NotTried(error) => error,
        })
    }

    /// Whether anybody still waits for it.
    pub(crate) fn wanted(&self) -> bool {
        match &self.lock().finish {
            Some(Finish::Given { part, .. }) => part.ticket.wanted(),
            Some(Finish::Shared { parts, .. }) => parts.iter().any(|part| part.ticket.wanted()),
            Some(Finish::Borrowed) | None => true,
        }
    }

    /// Tells a lone waiter how far it is.
    pub(crate) fn progress(&self, bytes: u64) {
        match &self.lock().finish {
            Some(Finish::Given { part, .. }) => part.ticket.add_progress(bytes),
            Some(Finish::Shared { parts, .. }) if parts.len() == 1 => {
                parts[0].ticket.add_progress(bytes);
            }
            _ => {}
        }
    }

    /// Whether [`deliver`](Self::deliver) may wait for a device or a server.
    pub(crate) fn delivery_waits(&self, context: &Context) -> bool {
        let state = self.lock();
        let asks = context.access.asks_a_server();
        match (&state.cause, &state.finish) {
            // Whoever lent the memory waits anyway.
            (_, None | Some(Finish::Borrowed)) | (Some(Cause::NotTried(_)), _) => false,
            (None, _) => asks && context.check == VersionCheck::Always,
            (Some(Cause::Read(_)), Some(finish)) => asks || finish.parts() > 1,
        }
    }

    /// Hands out what was read, or the reason why not. Called once, after the last piece.
    ///
    /// What may wait comes first: until it is over, those who wait can be told that it is given up.
    pub(crate) fn deliver(&self, context: &Context, verify: impl FnOnce(&Context) -> Result<()>) {
        let Context { source, access, .. } = context;
        let Some(outcome) = self.settle(context, verify) else {
            return;
        };
        let Some(finish) = self.lock().finish.take() else {
            return;
        };
        match finish {
            Finish::Borrowed => {}
            Finish::Given { mut block, part } => match outcome.of(0) {
                Ok(()) => {
                    let len = part.range.end - part.range.start;
                    // SAFETY: the span is the part's range; every byte of it was read.
                    unsafe { block.advance(len as usize) };
                    source.counters().add_route(access.route(), len);
                    part.ticket.finish(Ok(block.freeze()));
                }
                Err(error) => {
                    let error = source.place(error, part.range);
                    part.ticket.finish(Err(Failed {
                        error,
                        dest: Some(block),
                    }));
                }
            },
            Finish::Shared { block: None, parts } => {
                // Without memory nothing was read, so there is an error.
                let error = outcome.of(0).err();
                let error = error.unwrap_or_else(|| Error::new(ErrorKind::Abandoned));
                for part in parts {
                    hand_out(part, Err(error.clone()), context);
                }
            }
            Finish::Shared {
                block: Some(mut block),
                parts,
            } => match outcome {
                Settled::All(Ok(())) => {
                    let read = self.span.end.min(access.file().len()) - self.span.start;
                    // SAFETY: every byte of the span that lies within the file was read.
                    unsafe { block.advance(read as usize) };
                    let held = block.len();
                    let bytes = frozen(block);
                    for part in parts {
                        let outcome = self.cut(&bytes, held, &part.range, source);
                        hand_out(part, outcome, context);
                    }
                }
                outcome => {
                    for (at, part) in parts.into_iter().enumerate() {
                        let copied = outcome
                            .of(at)
                            .map(|()| copy_of(&block, &self.span, &part.range, context));
                        hand_out(part, copied, context);
                    }
                }
            },
        }
    }

    /// What is to be told. `None`: nothing, as who lent the memory looks for himself.
    fn settle(
        &self,
        context: &Context,
        verify: impl FnOnce(&Context) -> Result<()>,
    ) -> Option<Settled> {
        let (cause, borrowed, ranges) = {
            let state = self.lock();
            // Else all are told.
            let finish = state.finish.as_ref()?;
            let ranges: Vec<_> = match finish {
                Finish::Shared { parts, .. } => {
                    parts.iter().map(|part| part.range.clone()).collect()
                }
                _ => Vec::new(),
            };
            let borrowed = matches!(finish, Finish::Borrowed);
            (state.cause.clone(), borrowed, ranges)
        };
        let target = self.target.load(Ordering::Acquire);
        Some(match cause {
            None if borrowed => return None,
            None => Settled::All(verify(context)),
            Some(Cause::NotTried(error)) => Settled::All(Err(error)),
            Some(Cause::Read(error)) => {
                let error = context.access.explain(error);
                if borrowed {
                    self.lock().cause = Some(Cause::Read(error));
                    return None;
                }
                match error.kind() {
                    ErrorKind::Io { .. } if ranges.len() > 1 && !target.is_null() => {
                        // SAFETY: all pieces are done, so nobody else writes to the target; the memory is kept until
                        // `finish` is taken, by `deliver` alone, or for as long as the job lives.
                        Settled::Each(unsafe { salvage(&self.span, target, &ranges, context) })
                    }
                    _ => Settled::All(Err(error)),
                }
            }
        })
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
fn hand_out(part: Part, outcome: Result<Bytes>, context: &Context) {
    let Context { source, access, .. } = context;
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
