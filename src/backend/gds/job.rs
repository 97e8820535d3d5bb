//! One read of its own: cut into pieces, which several threads read.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ffi::To;
use super::handles::{device_buffer, unfilled};
use super::shared::{Shared, Span, Stop, original};
use crate::backend::workers::Work;
use crate::buffer::BlockMut;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Dest, Failed, Read, ReadOptions, Ticket};

/// Most bytes of one call to cuFile. Pieces end at multiples of it.
pub(super) const PIECE: u64 = 16 << 20;

/// A read.
pub(super) struct Job {
    shared: Arc<Shared>,
    options: ReadOptions,
    range: Range<u64>,
    state: Mutex<State>,
}

struct State {
    /// Until somebody has finished it.
    ticket: Option<Ticket>,
    target: Target,
    /// Pieces that threads are at.
    busy: usize,
    /// The first one.
    stop: Option<Stop>,
}

enum Target {
    /// Nothing was begun.
    Waiting(Dest),
    Begun(Begun),
    /// Handed out.
    Gone,
}

struct Begun {
    block: BlockMut,
    /// The caller's, who wants it back.
    callers: bool,
    /// Where the first byte of `all` goes.
    to: To,
    /// In the file.
    all: Range<u64>,
    /// Where what has to be there ends, in the file.
    needed: u64,
    next: u64,
}

/// A piece: where it goes, where it begins in the file, its bytes, and those that have to be there.
struct Piece {
    to: To,
    offset: u64,
    len: u64,
    needed: u64,
}

impl Job {
    pub(super) fn new(
        shared: &Arc<Shared>,
        read: Read,
        ticket: Ticket,
        options: &ReadOptions,
    ) -> Arc<Self> {
        Arc::new(Job {
            shared: shared.clone(),
            options: options.clone(),
            range: read.range,
            state: Mutex::new(State {
                ticket: Some(ticket),
                target: Target::Waiting(read.dest),
                busy: 0,
                stop: None,
            }),
        })
    }

    /// Pieces that it will have.
    pub(super) fn pieces(&self) -> usize {
        usize::try_from((self.range.end - self.range.start).div_ceil(PIECE)).unwrap_or(usize::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or takes the memory. Waits for earlier uses of it: cuFile's reads are in no stream.
    fn begin(&self, dest: Dest) -> Result<Begun, (Dest, Error)> {
        let shared = &self.shared;
        let start = shared.offset(&self.range);
        let len = self.range.end - self.range.start;
        match dest {
            Dest::Into(block) => {
                let uses =
                    device_buffer(&block, &shared.device).map(|buffer| buffer.wait_for_uses());
                if let Some(Err(error)) = uses {
                    return Err((Dest::Into(block), error));
                }
                shared.inner.source().counters().add_bounced(
                    match is_aligned(&block, start, len) {
                        true => 0,
                        false => len,
                    },
                );
                Ok(Begun {
                    to: unfilled(shared.driver, &block),
                    block,
                    callers: true,
                    all: start..start + len,
                    needed: start + len,
                    next: start,
                })
            }
            dest => {
                let span = Span::around(start, len);
                let mut whole = match shared.device.allocate(span.whole as usize) {
                    Ok(whole) => whole,
                    Err(error) => return Err((dest, error)),
                };
                let to = unfilled(shared.driver, &whole);
                // What lies around it is the block's neighbour, whose memory stays as long as the block.
                drop(whole.split_to(span.front as usize));
                let block = whole.split_to(len as usize);
                shared
                    .inner
                    .source()
                    .counters()
                    .add_wasted(span.whole - len);
                Ok(Begun {
                    block,
                    callers: false,
                    to,
                    all: span.from..span.from + span.whole,
                    needed: start + len,
                    next: span.from,
                })
            }
        }
    }

    /// Cuts the next piece, if there is one to be read.
    fn claim(&self, state: &mut State) -> Option<Piece> {
        if state.stop.is_some() {
            return None;
        }
        if !state.ticket.as_ref().is_some_and(Ticket::wanted) {
            state.stop = Some(Stop::Unwanted);
            return None;
        }
        if let Target::Waiting(_) = state.target
            && let Target::Waiting(dest) = std::mem::replace(&mut state.target, Target::Gone)
        {
            state.target = match self.begin(dest) {
                Ok(begun) => Target::Begun(begun),
                Err((dest, error)) => {
                    state.stop = Some(Stop::Error(error));
                    Target::Waiting(dest)
                }
            };
        }
        let Target::Begun(begun) = &mut state.target else {
            return None;
        };
        // Behind what has to be there is nothing, or what nobody asked for.
        if begun.next >= begun.needed {
            return None;
        }
        let (offset, end) = (
            begun.next,
            ((begun.next / PIECE + 1) * PIECE).min(begun.all.end),
        );
        begun.next = end;
        state.busy += 1;
        Some(Piece {
            to: begun.to.behind(offset - begun.all.start),
            offset,
            len: end - offset,
            needed: end.min(begun.needed) - offset,
        })
    }

    /// Takes everything out if no thread will come to it any more.
    fn finished(&self, state: &mut State) -> Option<(Ticket, Target, Option<Stop>)> {
        let left = matches!(&state.target, Target::Begun(begun) if begun.next < begun.needed);
        let waits = matches!(state.target, Target::Waiting(_));
        if state.busy > 0 || ((left || waits) && state.stop.is_none()) {
            return None;
        }
        let target = std::mem::replace(&mut state.target, Target::Gone);
        // Told already: only the memory was still needed.
        let ticket = state.ticket.take()?;
        Some((ticket, target, state.stop.take()))
    }

    fn finish(&self, (ticket, target, stop): (Ticket, Target, Option<Stop>)) {
        let shared = &self.shared;
        let (block, callers) = match target {
            Target::Begun(begun) => (begun.block, begun.callers),
            Target::Waiting(dest) => {
                let range = self.range.clone();
                let stop = stop.unwrap_or(Stop::Unwanted);
                return shared.end(ticket, Read { range, dest }, stop, &self.options);
            }
            Target::Gone => return,
        };
        let stop = stop.or_else(|| shared.file.check_version().err().map(Stop::Error));
        match stop {
            None => {
                // SAFETY: every piece was read, and the pieces are all of the range.
                unsafe { shared.deliver(ticket, block, self.range.end - self.range.start) }
            }
            Some(stop) => {
                let dest = original(callers.then_some(block), &shared.device);
                let range = self.range.clone();
                shared.end(ticket, Read { range, dest }, stop, &self.options);
            }
        }
    }
}

impl Work for Job {
    fn step(self: Arc<Self>) -> bool {
        self.shared.settle_thread();
        let mut state = self.lock();
        let Some(piece) = self.claim(&mut state) else {
            let finished = self.finished(&mut state);
            drop(state);
            if let Some(finished) = finished {
                self.finish(finished);
            }
            return false;
        };
        drop(state);
        // SAFETY: the piece lies in the memory of the block, which stays in the state while a thread is busy; no other piece has it.
        let outcome = unsafe {
            self.shared
                .read(piece.to, piece.offset, piece.len, piece.needed)
        };
        let mut state = self.lock();
        state.busy -= 1;
        match outcome {
            Ok(()) => {
                let start = piece.offset.max(self.shared.offset(&self.range));
                let read = (piece.offset + piece.needed).saturating_sub(start);
                if let Some(ticket) = &state.ticket {
                    ticket.add_progress(read);
                }
            }
            Err(stop) => {
                state.stop.get_or_insert(stop);
            }
        }
        let finished = self.finished(&mut state);
        let more = finished.is_none() && state.stop.is_none();
        drop(state);
        if let Some(finished) = finished {
            self.finish(finished);
        }
        more
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        let mut state = self.lock();
        state.stop.get_or_insert(Stop::Error(error.clone()));
        if let Some(finished) = self.finished(&mut state) {
            let wanted = finished.0.wanted();
            drop(state);
            self.finish(finished);
            return usize::from(wanted);
        }
        let ticket = state.ticket.take();
        drop(state);
        ticket.map_or(0, |ticket| {
            let wanted = ticket.wanted();
            ticket.finish(Err(Failed::from(error.clone())));
            usize::from(wanted)
        })
    }
}

/// Whether cuFile can read straight into a block, without memory of its own between.
fn is_aligned(block: &BlockMut, start: u64, len: u64) -> bool {
    use super::shared::ALIGN;
    let address = block.unfilled_ptr().addr() as u64;
    [address, start, len]
        .iter()
        .all(|number| number.is_multiple_of(ALIGN))
}

/// The error for work that no thread can be had for.
pub(super) fn no_thread(error: &Error) -> Error {
    match error.kind() {
        ErrorKind::Abandoned | ErrorKind::Forked => error.clone(),
        _ => error.clone().by(super::ENGINE),
    }
}
