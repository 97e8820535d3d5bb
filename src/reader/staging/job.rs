//! One device read: its destination cut into pieces and put together again.

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::transfer::STAGING;
use crate::buffer::{Block, BlockMut, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Dest, Failed, Read, Ticket};

/// A device read from its submission to its outcome.
pub(super) struct Job {
    pub(super) ticket: Ticket,
    /// Of the source, for errors.
    name: Arc<str>,
    range: Range<u64>,
    /// Offset of the first byte that is in no piece yet.
    next: u64,
    target: Target,
    /// Destinations in the order of the range: with us before their copy and after it, with the transfer between.
    pieces: Vec<Option<BlockMut>>,
    copied: usize,
    /// Copies under way.
    copies: usize,
    failed: Option<Error>,
    /// Whether the memory is the caller's, who wants it back.
    callers: bool,
}

enum Target {
    Unallocated(Place),
    Memory {
        /// What the caller had filled before, maybe nothing.
        head: BlockMut,
        /// What is in no piece yet.
        rest: BlockMut,
    },
}

/// A block's filled part, and the part to fill.
fn halves(mut block: BlockMut) -> Target {
    let head = block.split_to(block.filled_len());
    Target::Memory { head, rest: block }
}

impl Job {
    pub(super) fn new(read: Read, ticket: Ticket, name: &Arc<str>) -> Self {
        let (target, callers) = match read.dest {
            Dest::Into(block) => (halves(block), true),
            Dest::Any(place) => (Target::Unallocated(place), false),
            Dest::Prefetch => (Target::Unallocated(Place::Host), false),
        };
        Job {
            ticket,
            name: name.clone(),
            next: read.range.start,
            range: read.range,
            target,
            pieces: Vec::new(),
            copied: 0,
            copies: 0,
            failed: None,
            callers,
        }
    }

    /// Makes sure that there is memory to cut pieces from.
    pub(super) fn allocate(
        &mut self,
        allocate: impl FnOnce(Place, usize) -> Result<BlockMut>,
    ) -> Result<()> {
        let Target::Unallocated(place) = self.target else {
            return Ok(());
        };
        // Fits, since this is a 64-bit platform.
        let len = (self.range.end - self.range.start) as usize;
        let mut block = allocate(place, len)?;
        block.clear();
        if block.place() != place || block.len() < len {
            let what = format!(
                "the transfer allocated {} bytes in {} for {len} bytes in {place}",
                block.len(),
                block.place()
            );
            return Err(broken(what));
        }
        self.target = halves(block);
        Ok(())
    }

    /// The next piece to be cut: up to the next multiple of `block` bytes. `None` if there is none.
    pub(super) fn peek(&self, block: u64) -> Option<Range<u64>> {
        let end = (self.next / block + 1).saturating_mul(block);
        (self.next < self.range.end).then(|| self.next..end.min(self.range.end))
    }

    /// Cuts the piece that `peek` showed; its number.
    pub(super) fn cut(&mut self, range: &Range<u64>) -> usize {
        if let Target::Memory { rest, .. } = &mut self.target {
            let piece = rest.split_to((range.end - range.start) as usize);
            self.pieces.push(Some(piece));
            self.next = range.end;
        }
        self.pieces.len().saturating_sub(1)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.failed.is_none()
    }

    /// The destination of a piece, which the transfer gets now.
    pub(super) fn lend(&mut self, piece: usize) -> Option<BlockMut> {
        let block = self.pieces.get_mut(piece)?.take()?;
        self.copies += 1;
        Some(block)
    }

    /// Takes the destination of a piece back from the transfer.
    pub(super) fn take_back(&mut self, piece: usize, outcome: Result<BlockMut, Failed>) {
        self.copies -= 1;
        let dest = match outcome {
            Ok(block) => {
                match block.remaining() {
                    0 => {
                        self.copied += 1;
                        self.ticket.add_progress(block.len() as u64);
                    }
                    left => self.fail(broken(format!(
                        "the transfer left {left} of {} bytes uncopied",
                        block.len()
                    ))),
                }
                Some(block)
            }
            Err(failed) => {
                self.fail(failed.error.by(STAGING));
                failed.dest
            }
        };
        if let Some(slot) = self.pieces.get_mut(piece) {
            *slot = dest;
        }
    }

    /// Remembers the first failure, as one of the whole read.
    pub(super) fn fail(&mut self, error: Error) {
        if self.failed.is_none() {
            self.failed = Some(error.named(&self.name).moved_to(self.range.clone()));
        }
    }

    /// Whether the outcome is decided and no copy writes to memory that somebody waits to get back.
    pub(super) fn is_over(&self) -> bool {
        match self.failed {
            Some(_) => self.copies == 0 || !self.callers || !self.ticket.wanted(),
            None => self.next == self.range.end && self.copied == self.pieces.len(),
        }
    }

    /// Hands the outcome to the waiter.
    pub(super) fn finish(mut self) {
        let failed = self.failed.take();
        let block = match failed {
            Some(_) if !self.callers => None,
            _ => join(self.target, self.pieces, failed.is_some()),
        };
        let outcome = match (failed, block) {
            (None, Some(block)) => Ok(block.freeze()),
            (Some(error), dest) => Err(Failed { error, dest }),
            (None, None) => {
                let error = broken("the transfer gave back another block than it got");
                Err(error.named(&self.name).moved_to(self.range).into())
            }
        };
        deliver(self.ticket, outcome);
    }
}

/// Finishes a ticket; a waker of the caller's that panics must not take other reads along.
pub(super) fn deliver(ticket: Ticket, outcome: Result<Block, Failed>) {
    let _ = catch_unwind(AssertUnwindSafe(|| ticket.finish(outcome)));
}

/// The whole block again; with `undo`, filled as it was at first. `None` if a piece is missing.
fn join(target: Target, pieces: Vec<Option<BlockMut>>, undo: bool) -> Option<BlockMut> {
    let Target::Memory { mut head, rest } = target else {
        return None;
    };
    for piece in pieces {
        let mut piece = piece?;
        if undo {
            piece.clear();
        }
        head.unsplit(piece).ok()?;
    }
    head.unsplit(rest).ok()?;
    Some(head)
}

/// A transfer or an engine that does not keep its contract.
pub(super) fn broken(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let source = io::Error::new(io::ErrorKind::InvalidData, what);
    Error::new(ErrorKind::Io {
        op: "staging",
        source: Arc::new(source),
    })
    .by(STAGING)
}
