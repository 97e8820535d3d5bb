//! Many small reads, handed to cuFile as one batch.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ffi::{Entry, Event, Failure, To};
use super::handles::{Batch, device_buffer, unfilled};
use super::shared::{Shared, Span, Stop, original};
use crate::backend::workers::Work;
use crate::buffer::BlockMut;
use crate::error::{Error, ErrorKind};
use crate::reader::{Dest, Failed, Read, ReadOptions, Started, Ticket};

/// Most bytes of a read in a batch.
pub(super) const SMALL: u64 = 64 << 10;

/// Fewer reads are not worth a batch.
pub(super) const LEAST: usize = 4;

/// How long one call for events may take.
const PATIENCE: Duration = Duration::from_millis(100);

/// Reads of one batch.
pub(super) struct Group {
    shared: Arc<Shared>,
    options: ReadOptions,
    reads: Mutex<Vec<Started>>,
}

/// A read that has its memory.
struct Small {
    ticket: Ticket,
    range: Range<u64>,
    /// As many bytes as the range has are to be filled.
    block: BlockMut,
    callers: bool,
    to: To,
    /// In the file.
    offset: u64,
    len: u64,
    /// Of those, how many have to be there.
    needed: u64,
}

impl Group {
    pub(super) fn new(
        shared: &Arc<Shared>,
        reads: Vec<Started>,
        options: &ReadOptions,
    ) -> Arc<Self> {
        Arc::new(Group {
            shared: shared.clone(),
            options: options.clone(),
            reads: Mutex::new(reads),
        })
    }

    fn take(&self) -> Vec<Started> {
        std::mem::take(&mut self.reads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&self, ticket: Ticket, read: Read, stop: Stop) {
        self.shared.end(ticket, read, stop, &self.options);
    }

    /// Finds or takes the memory of all reads, one allocation for all that have none.
    fn prepare(&self, reads: Vec<Started>) -> Vec<Small> {
        let shared = &self.shared;
        let span = |read: &Read| Span::around(shared.offset(&read.range), read.len());
        let ours = reads
            .iter()
            .filter(|(read, _)| !matches!(read.dest, Dest::Into(_)));
        let bytes: u64 = ours.map(|(read, _)| span(read).whole).sum();
        let mut arena = match bytes {
            0 => None,
            bytes => Some(shared.device.allocate(bytes as usize)),
        };
        let counters = shared.inner.source().counters();
        let mut smalls = Vec::with_capacity(reads.len());
        for (read, ticket) in reads {
            if !ticket.wanted() {
                self.end(ticket, read, Stop::Unwanted);
                continue;
            }
            let (offset, len) = (shared.offset(&read.range), read.len());
            let small = match read.dest {
                Dest::Into(block) => {
                    let uses =
                        device_buffer(&block, &shared.device).map(|buffer| buffer.wait_for_uses());
                    if let Some(Err(error)) = uses {
                        let dest = Dest::Into(block);
                        let range = read.range;
                        self.end(ticket, Read { range, dest }, Stop::Error(error));
                        continue;
                    }
                    let to = unfilled(shared.driver, &block);
                    Small {
                        ticket,
                        range: read.range,
                        block,
                        callers: true,
                        to,
                        offset,
                        len,
                        needed: len,
                    }
                }
                dest => {
                    let span = Span::around(offset, len);
                    let mut whole = match &mut arena {
                        Some(Ok(arena)) => arena.split_to(span.whole as usize),
                        other => {
                            let error = match other {
                                Some(Err(error)) => error.clone(),
                                _ => Error::new(ErrorKind::Abandoned),
                            };
                            let range = read.range;
                            self.end(ticket, Read { range, dest }, Stop::Error(error));
                            continue;
                        }
                    };
                    let to = unfilled(shared.driver, &whole);
                    drop(whole.split_to(span.front as usize));
                    counters.add_wasted(span.whole - len);
                    Small {
                        ticket,
                        range: read.range,
                        block: whole.split_to(len as usize),
                        callers: false,
                        to,
                        offset: span.from,
                        len: span.whole,
                        needed: span.front + len,
                    }
                }
            };
            smalls.push(small);
        }
        smalls
    }

    fn run(&self) {
        let smalls = self.prepare(self.take());
        let outcomes = match self.read(&smalls) {
            Ok(outcomes) => outcomes,
            // Nothing was begun: one by one, then.
            Err(failure) => {
                tracing::debug!(%failure, "a batch of cuFile is read one by one");
                smalls.iter().map(|_| Outcome::Came(0)).collect()
            }
        };
        let shared = &self.shared;
        let finished: Vec<_> = smalls
            .into_iter()
            .zip(outcomes)
            .map(|(small, outcome)| (self.complete(&small, outcome), small))
            .collect();
        // One look for all: it comes after the last byte.
        let changed = shared.file.check_version().err();
        for (outcome, small) in finished {
            let stop = match (outcome, &changed) {
                (Ok(()), None) => {
                    let len = small.range.end - small.range.start;
                    // SAFETY: what has to be there is there: the bytes of the range.
                    unsafe { shared.deliver(small.ticket, small.block, len) };
                    continue;
                }
                (Ok(()), Some(error)) => Stop::Error(error.clone()),
                (Err(Some(stop)), _) => stop,
                (Err(None), _) => {
                    // Nobody knows whether it is still written to.
                    std::mem::forget(small.block);
                    let error = shared.inner.source().place(
                        Error::new(ErrorKind::Abandoned).by(super::ENGINE),
                        small.range,
                    );
                    small.ticket.finish(Err(Failed::from(error)));
                    continue;
                }
            };
            let dest = original(small.callers.then_some(small.block), &shared.device);
            let range = small.range;
            self.end(small.ticket, Read { range, dest }, stop);
        }
    }

    /// Brings what is missing of a read after its event. `Err(None)`: there was no event.
    fn complete(&self, small: &Small, outcome: Outcome) -> Result<(), Option<Stop>> {
        let counters = self.shared.inner.source().counters();
        let got = match outcome {
            Outcome::Came(got) => got,
            Outcome::Failed(failure) => return Err(Some(failure.into())),
            Outcome::Lost => return Err(None),
            Outcome::Unwanted => return Err(Some(Stop::Unwanted)),
        };
        counters.add_read(got);
        if got >= small.needed {
            return Ok(());
        }
        counters.add_retried(u64::from(got > 0));
        let (to, offset) = (small.to.behind(got), small.offset + got);
        // SAFETY: the memory is the read's, and the batch is done with it.
        unsafe {
            self.shared
                .read(to, offset, small.len - got, small.needed - got)
        }
        .map_err(Some)
    }

    /// Reads all by one batch, until each has an outcome.
    ///
    /// # Errors
    /// If none was begun.
    fn read(&self, smalls: &[Small]) -> Result<Vec<Outcome>, Failure> {
        let shared = &self.shared;
        let mut entries: Vec<_> = smalls
            .iter()
            .enumerate()
            .map(|(cookie, small)| {
                let (len, offset) = (small.len as usize, small.offset.cast_signed());
                Entry::new(shared.file.handle(), small.to, len, offset, cookie)
            })
            .collect();
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let mut outcomes: Vec<_> = entries.iter().map(|_| None).collect();
        let counters = shared.inner.source().counters();
        let bound = shared.device.context().call(|_| {
            // SAFETY: each entry's memory is its read's until `smalls` is given up, which is after its event, or never.
            Ok(unsafe { shared.submit(&mut entries) }.map(|batch| {
                counters.add_requests(entries.len() as u64);
                self.wait(batch, smalls, &entries, &mut outcomes)
            }))
        });
        match bound {
            Ok(begun) => begun?,
            // A device that is lost, before anything was begun: each read will meet the same error.
            Err(_) => return Ok(smalls.iter().map(|_| Outcome::Came(0)).collect()),
        }
        Ok(outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or(Outcome::Lost))
            .collect())
    }

    /// Takes events until there is one for each read, or none will come.
    fn wait(
        &self,
        mut batch: Batch,
        smalls: &[Small],
        entries: &[Entry],
        outcomes: &mut [Option<Outcome>],
    ) {
        let mut room = vec![Event::default(); entries.len()];
        let mut canceled = false;
        let mut pause = Duration::from_micros(10);
        while batch.under_way() > 0 {
            let begun = Instant::now();
            let events = match batch.events(&mut room, PATIENCE) {
                Ok(events) => events,
                Err(failure) => {
                    tracing::warn!(%failure, "the reads of a batch of cuFile are lost");
                    return;
                }
            };
            for event in events {
                let known = outcomes
                    .get_mut(event.cookie)
                    .zip(entries.get(event.cookie));
                if let Some((outcome, entry)) = known
                    && outcome.is_none()
                {
                    *outcome = Some(match event.outcome(entry.len()) {
                        Ok(got) => Outcome::Came(got as u64),
                        Err(_) if canceled => Outcome::Unwanted,
                        Err(failure) => Outcome::Failed(failure),
                    });
                }
            }
            if !events.is_empty() {
                pause = Duration::from_micros(10);
                continue;
            }
            if !canceled && !smalls.iter().any(|small| small.ticket.wanted()) {
                canceled = batch.cancel().is_ok();
            } else if begun.elapsed() < PATIENCE / 2 {
                // It did not wait.
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(2));
            }
        }
    }
}

/// How a read of a batch ended.
enum Outcome {
    /// So many bytes came.
    Came(u64),
    Failed(Failure),
    /// Given up, as nobody waits.
    Unwanted,
    /// Nothing was heard of it.
    Lost,
}

impl Shared {
    /// # Safety
    /// The memory of each entry is nobody else's until there was an event for it.
    unsafe fn submit(&self, entries: &mut [Entry]) -> Result<Batch, Failure> {
        let mut batch = Batch::set_up(self.driver, entries.len())?;
        // SAFETY: as the caller promises; the batch is new, and large enough.
        unsafe { batch.submit(entries) }?;
        Ok(batch)
    }
}

impl Work for Group {
    fn step(self: Arc<Self>) -> bool {
        self.shared.settle_thread();
        self.run();
        false
    }

    fn abandon(self: Arc<Self>, error: &Error) -> usize {
        let mut told = 0;
        for (read, ticket) in self.take() {
            told += usize::from(ticket.wanted());
            self.end(ticket, read, Stop::Error(error.clone()));
        }
        told
    }
}
