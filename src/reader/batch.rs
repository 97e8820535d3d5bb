//! What is asked for: ranges, each with a destination.

use std::ops::Range;

use super::options::ReadOptions;
use super::pending::{Failed, Pending, Ticket};
use super::source::Source;
use crate::buffer::{Block, BlockMut, Place};
use crate::error::{Error, ErrorKind};

/// Where the bytes of one range are to go.
#[derive(Debug)]
#[non_exhaustive]
pub enum Dest {
    /// Memory of the engine's choice at this place: often without a copy (a mapping, memory, a shared block).
    /// Plain engines know [`Place::Host`] only and refuse the others.
    Any(Place),
    /// The unfilled part of this block, of which as many bytes are filled as the range has. What is delivered is all
    /// that is filled then, with what was before.
    Into(BlockMut),
    /// Nowhere: the bytes are brought as near as the engine can without waiting (the page cache, a cache
    /// wrapper), and an empty block is delivered. A hint; an engine that cannot does nothing.
    Prefetch,
}

/// One range and its destination.
#[derive(Debug)]
pub struct Read {
    /// Bytes of the source, as offsets from its start.
    pub range: Range<u64>,
    /// Where they go.
    pub dest: Dest,
}

impl Read {
    /// Length of the range in bytes; 0 if it is reversed.
    pub fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Whether no byte is asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A read that an engine has to do: a valid range, a destination with room, and the ticket to finish.
pub type Started = (Read, Ticket);

/// Reads to be planned and started together.
#[derive(Debug, Default)]
pub struct Batch {
    /// The reads; results carry their positions here.
    pub reads: Vec<Read>,
    /// How to do them.
    pub options: ReadOptions,
    /// Reads that a wrapper refused.
    refused: Vec<(usize, Error)>,
}

impl Batch {
    /// No reads yet, default options.
    pub fn new() -> Self {
        Batch::default()
    }

    /// One read per range, into host memory of the engine's choice.
    pub fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut batch = Batch::new();
        for range in ranges {
            batch = batch.any(range);
        }
        batch
    }

    /// Adds a read into host memory of the engine's choice.
    #[must_use]
    pub fn any(self, range: Range<u64>) -> Self {
        self.push(range, Dest::Any(Place::Host))
    }

    /// Adds a read into memory at `place`, of the engine's choice.
    #[must_use]
    pub fn any_at(self, range: Range<u64>, place: Place) -> Self {
        self.push(range, Dest::Any(place))
    }

    /// Adds a read into `block`.
    #[must_use]
    pub fn read_into(self, range: Range<u64>, block: BlockMut) -> Self {
        self.push(range, Dest::Into(block))
    }

    /// Adds a hint that `range` will be read soon.
    #[must_use]
    pub fn prefetch(self, range: Range<u64>) -> Self {
        self.push(range, Dest::Prefetch)
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: ReadOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the read at `index` fail with `error`, for wrappers that narrow what an inner reader would allow.
    pub fn refuse(&mut self, index: usize, error: Error) {
        self.refused.push((index, error));
    }

    fn push(mut self, range: Range<u64>, dest: Dest) -> Self {
        self.reads.push(Read { range, dest });
        self
    }

    /// Splits the batch into the engine's half and the caller's half.
    ///
    /// Every [`Reader::submit`](super::Reader::submit) begins with it. Reads that no engine could do (out of
    /// bounds, a destination too small, another process) are finished with their error here, empty ones with an
    /// empty block, so that all engines answer alike; only the others come out, in order.
    pub fn start(self, source: &Source) -> (Vec<Started>, ReadOptions, Pending) {
        let counters = source.counters();
        counters.add_reads(self.reads.len() as u64);
        let pending = Pending::new(source, &self.reads, self.options.deadline);
        let mut started = Vec::with_capacity(self.reads.len());
        let mut requested = 0u64;
        let mut refused = self.refused;
        refused.sort_by_key(|(index, _)| *index);
        refused.dedup_by_key(|(index, _)| *index);
        let mut refused = refused.into_iter().peekable();
        for (index, read) in self.reads.into_iter().enumerate() {
            let ticket = Ticket::new(&pending, index, &read);
            if let Some((_, error)) = refused.next_if(|(at, _)| *at == index) {
                let error = source.place(error, read.range.clone());
                ticket.finish(Err(Failed::new(error, read.dest)));
                continue;
            }
            if let Err(error) = source.check(&read.range) {
                ticket.finish(Err(Failed::new(error, read.dest)));
                continue;
            }
            let wanted = read.len();
            match read.dest {
                Dest::Into(block) if (block.remaining() as u64) < wanted => {
                    let room = block.remaining() as u64;
                    let kind = ErrorKind::DestinationTooSmall { room, wanted };
                    let error = source.error(kind, read.range);
                    ticket.finish(Err(Failed {
                        error,
                        dest: Some(block),
                    }));
                }
                Dest::Into(block) if wanted == 0 => ticket.finish(Ok(block.freeze())),
                Dest::Any(Place::Host) if wanted == 0 => {
                    ticket.finish(Ok(Block::Host(bytes::Bytes::new())));
                }
                Dest::Prefetch if wanted == 0 => {
                    ticket.finish(Ok(Block::Host(bytes::Bytes::new())));
                }
                dest => {
                    if !matches!(dest, Dest::Prefetch) {
                        requested = requested.saturating_add(wanted);
                    }
                    let range = read.range;
                    started.push((Read { range, dest }, ticket));
                }
            }
        }
        counters.add_requested(requested);
        (started, self.options, pending)
    }
}

/// A range that is read into memory of the caller before the call returns.
#[derive(Debug)]
pub struct ReadInto<'a> {
    /// Offset of the first byte in the source.
    pub offset: u64,
    /// As many bytes as are wanted.
    pub buf: &'a mut [u8],
}

impl<'a> ReadInto<'a> {
    /// Reads `buf.len()` bytes from `offset` on.
    pub fn new(offset: u64, buf: &'a mut [u8]) -> Self {
        ReadInto { offset, buf }
    }

    /// The bytes wanted. Saturates at the end of the offsets, past any source's length.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.buf.len() as u64)
    }
}

/// The error of a plain engine about a place that it cannot deliver to.
pub(crate) fn refuse_place(source: &Source, read: &Read) -> Option<Error> {
    let place = match &read.dest {
        Dest::Any(Place::Host) | Dest::Prefetch => return None,
        Dest::Any(place) => *place,
        Dest::Into(block) if block.place().is_host_accessible() => return None,
        Dest::Into(block) => block.place(),
    };
    let advice = match place {
        Place::Device(_) => {
            ", from a reader that does not go there: `OpenOptions::device` opens one that does"
        }
        _ => "",
    };
    let what = format!("a destination in {place}{advice}").into();
    Some(source.error(ErrorKind::Unsupported { what }, read.range.clone()))
}
