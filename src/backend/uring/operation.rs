//! A piece of a request on its way through a ring, as a machine of two steps: what to ask next, and what the answer
//! means. Pure, but for the memory it copies from a bounce block at the end.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::backend::requests::{DirectFile, Piece};
use crate::buffer::BlockMut;
use crate::error::{Error, Result};
use crate::reader::Counters;

/// Most bytes of one read: below 2 GiB, where results stop fitting, and a multiple of any alignment that is met.
pub(super) const MOST: u64 = 1 << 30;

/// So many answers in a row that say "not now" are taken for a no.
pub(super) const MOST_REFUSALS: u32 = 1000;

/// One read to ask the kernel for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) fd: RawFd,
    pub(super) offset: u64,
    pub(super) target: *mut u8,
    pub(super) len: u32,
    /// A thread of the kernel is to do it: on the spot, it was said that it would wait.
    pub(super) may_wait: bool,
}

/// What an answer means.
#[derive(Debug)]
pub(super) enum Step {
    /// Ask again, by what [`ReadOperation::call`] says now.
    Again,
    /// All bytes are there, or none will come.
    Done(Result<()>),
}

#[derive(Debug)]
enum Way {
    Buffered,
    Direct,
    /// By way of aligned memory that begins `before` bytes ahead of the piece.
    Bounced {
        block: BlockMut,
        before: u64,
    },
}

/// A piece being read.
#[derive(Debug)]
pub(super) struct ReadOperation {
    piece: Piece,
    way: Way,
    /// Bytes wanted from the start of what is read, and those that are there.
    wanted: u64,
    done: u64,
    refusals: u32,
    may_wait: bool,
}

impl ReadOperation {
    /// Decides how the piece is to be read. Without memory to bounce it through, it is finished with the error.
    pub(super) fn new(piece: Piece) -> Result<Self, (Piece, Error)> {
        let mut operation = ReadOperation {
            piece,
            way: Way::Buffered,
            wanted: 0,
            done: 0,
            refusals: 0,
            may_wait: false,
        };
        match operation.choose_way() {
            Ok(()) => Ok(operation),
            Err(error) => Err((operation.piece, error)),
        }
    }

    fn choose_way(&mut self) -> Result<()> {
        let context = self.piece.context();
        let range = self.piece.range();
        let within = range.end.min(context.access().file().len());
        self.done = 0;
        self.wanted = within.saturating_sub(range.start);
        let Some(direct) = context.access().direct_file() else {
            self.way = Way::Buffered;
            return Ok(());
        };
        let aligned = range.end.is_multiple_of(direct.align());
        if aligned && direct.fits(range.start, self.piece.target()) {
            self.way = Way::Direct;
            return Ok(());
        }
        let align = direct.strictest();
        let before = range.start % align;
        let start = range.start - before;
        let end = within.checked_next_multiple_of(align).unwrap_or(within);
        let block = context.pool().take_over_cap((end - start) as usize)?;
        self.wanted = within - start;
        self.way = Way::Bounced { block, before };
        Ok(())
    }

    pub(super) fn piece(&self) -> &Piece {
        &self.piece
    }

    /// It is with the kernel from now on.
    pub(super) fn launched(&self) {
        self.counters().begin_request();
    }

    /// It is no longer with the kernel.
    pub(super) fn landed(&self) {
        self.counters().end_request();
    }

    pub(super) fn into_piece(self) -> Piece {
        self.piece
    }

    fn counters(&self) -> &Counters {
        self.piece.context().source().counters()
    }

    /// Gives it up while the kernel may still write to its memory, none of which is ever freed.
    pub(super) fn leak(self) {
        std::mem::forget(self.way);
        self.piece.leak();
    }

    /// The descriptor for what is not read through the page cache.
    fn direct(&self) -> Option<&DirectFile> {
        match self.way {
            Way::Buffered => None,
            // Refused meanwhile by an answer to another piece: this one is in the middle of it all the same.
            Way::Direct | Way::Bounced { .. } => self.piece.context().access().opened_direct(),
        }
    }

    /// Bytes at the end of what is done that have to be read again to stay aligned.
    fn again(&self) -> u64 {
        self.direct()
            .map_or(0, |direct| self.done % direct.strictest())
    }

    /// What to ask for. The memory stays valid until the operation is finished, dropped, or asked again.
    pub(super) fn call(&self) -> Call {
        let range = self.piece.range();
        let from = self.done - self.again();
        let (start, target, len) = match &self.way {
            Way::Buffered => (range.start, self.piece.target(), self.wanted),
            Way::Direct => (range.start, self.piece.target(), range.end - range.start),
            Way::Bounced { block, before } => {
                let start = range.start - before;
                (start, block.unfilled_ptr(), block.remaining() as u64)
            }
        };
        let fd = match self.direct() {
            Some(direct) => direct.fd().as_raw_fd(),
            None => self.piece.context().access().file().fd().as_raw_fd(),
        };
        Call {
            fd,
            offset: start + from,
            target: target.wrapping_add(from as usize),
            len: (len - from).min(MOST) as u32,
            may_wait: self.may_wait,
        }
    }

    /// What the answer to the last [`call`](Self::call) means: bytes that came, or an error number below 0.
    pub(super) fn answer(&mut self, result: i32) -> Step {
        self.counters().add_requests(1);
        let Ok(came) = u64::try_from(result) else {
            return self.failed(io::Error::from_raw_os_error(result.saturating_neg()));
        };
        let again = self.again();
        if came <= again {
            // No byte that was not there before: the source ends here.
            let at = self.call().offset + came;
            return Step::Done(Err(self.piece.context().access().ended("read", at)));
        }
        self.refusals = 0;
        self.may_wait = false;
        self.done += came - again;
        if self.done < self.wanted {
            self.counters().add_retried(1);
            return Step::Again;
        }
        self.counters().add_read(self.wanted);
        self.bring_home();
        Step::Done(Ok(()))
    }

    fn failed(&mut self, error: io::Error) -> Step {
        let not_now = matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
        if not_now && self.refusals < MOST_REFUSALS {
            self.refusals += 1;
            // What cannot be done without waiting is done by a thread that waits.
            self.may_wait = error.raw_os_error() == Some(libc::EAGAIN);
            self.counters().add_retried(1);
            return Step::Again;
        }
        let error = Error::io("read", error);
        if self.direct().is_some() && self.piece.context().access().refuse_direct(&error) {
            self.way = Way::Buffered;
            return match self.choose_way() {
                Ok(()) => Step::Again,
                Err(error) => Step::Done(Err(error)),
            };
        }
        Step::Done(Err(error))
    }

    /// Copies what was bounced to where it belongs.
    fn bring_home(&mut self) {
        let Way::Bounced { block, before } = &self.way else {
            return;
        };
        let range = self.piece.range();
        let context = self.piece.context();
        let end = range.end.min(context.access().file().len());
        let len = end - range.start;
        // SAFETY: the block holds everything from `before` bytes ahead of the piece to `end`, which was read; the
        // target is the piece's, is as long as it, and is not this block.
        unsafe {
            std::ptr::copy_nonoverlapping(
                block.unfilled_ptr().add(*before as usize).cast_const(),
                self.piece.target(),
                len as usize,
            );
        }
        let counters = context.source().counters();
        counters.add_bounced(len);
        counters.add_wasted(self.wanted - len);
    }
}
