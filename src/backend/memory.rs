//! Bytes that are in memory already: the oracle of all tests, and the example of an engine.

use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::Block;
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Batch, Dest, Failed, Limits, Pending, Read, ReadInto, Reader, Route, Source};
use crate::sys::Generation;
use crate::version::Version;

const ENGINE: &str = "memory";

/// A reader of bytes in memory; results share them.
///
/// ```
/// use feedwater::{MemoryReader, ReaderExt};
///
/// let reader = MemoryReader::new("some bytes");
/// assert_eq!(reader.read(5..10).wait()?, "bytes");
/// # Ok::<(), feedwater::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryReader {
    bytes: Bytes,
    source: Source,
    generation: Generation,
}

impl MemoryReader {
    /// A reader of `bytes`, named "memory".
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        MemoryReader::named("memory", bytes)
    }

    /// A reader of `bytes` that errors call `name`.
    pub fn named(name: impl Into<Arc<str>>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let version = Version::Immutable {
            size: bytes.len() as u64,
        };
        MemoryReader::over(bytes, name, version)
    }

    /// A reader of bytes that were taken from elsewhere in the state that `version` names.
    pub(crate) fn over(bytes: Bytes, name: impl Into<Arc<str>>, version: Version) -> Self {
        MemoryReader {
            bytes,
            source: Source::new(name, ENGINE, version, Limits::default()),
            generation: Generation::current(),
        }
    }

    /// The bytes of a range that has been checked.
    fn view(&self, start: u64, end: u64) -> Bytes {
        // Both fit: they are within the length of a `Bytes`.
        self.bytes.slice(start as usize..end as usize)
    }

    fn deliver(&self, read: Read) -> Result<Block, Failed> {
        let Read { range, dest } = read;
        if !self.generation.is_current() {
            let error = self.source.error(ErrorKind::Forked, range);
            return Err(Failed::new(error, dest));
        }
        let counters = self.source.counters();
        let bytes = self.view(range.start, range.end);
        match dest {
            Dest::Prefetch => return Ok(Block::Host(Bytes::new())),
            Dest::Any(place) if !place.is_host_accessible() => {
                let what = format!("a destination in {place}").into();
                let kind = ErrorKind::Unsupported { what };
                return Err(self.source.error(kind, range).into());
            }
            Dest::Any(_) | Dest::Into(_) => {}
        }
        counters.add_requests(1);
        counters.add_read(bytes.len() as u64);
        match dest {
            Dest::Into(mut block) => {
                if let Err(error) = block.put(&bytes) {
                    let error = self.source.place(error, range);
                    return Err(Failed {
                        error,
                        dest: Some(block),
                    });
                }
                counters.add_route(Route::Memory, bytes.len() as u64);
                Ok(block.freeze())
            }
            _ => {
                counters.add_route(Route::Memory, bytes.len() as u64);
                Ok(bytes.into())
            }
        }
    }
}

impl Reader for MemoryReader {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(&self.source);
        for (read, ticket) in started {
            let outcome = self.deliver(read);
            ticket.finish(outcome);
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        if !self.generation.is_current() {
            return Err(Error::new(ErrorKind::Forked)
                .named(self.source.name())
                .by(ENGINE));
        }
        let counters = self.source.counters();
        for read in reads {
            let range = read.range();
            self.source.check(&range)?;
            counters.add_reads(1);
            let len = read.buf.len() as u64;
            counters.add_requested(len);
            counters.add_route(Route::Memory, len);
            read.buf.copy_from_slice(&self.view(range.start, range.end));
        }
        Ok(())
    }
}
