//! Bytes that are in memory already: the oracle of all tests, and the example of an engine.

use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::Block;
use crate::error::Result;
use crate::reader::{
    Batch, Dest, Failed, Limits, Pending, Read, ReadInto, Reader, Route, Source, refuse_place,
};
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
#[derive(Clone, Debug)]
pub struct MemoryReader {
    bytes: Bytes,
    source: Source,
}

impl MemoryReader {
    /// A reader of `bytes`, named "memory".
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        MemoryReader::named("memory", bytes)
    }

    /// A reader of `bytes` that errors call `name`.
    pub fn named(name: impl Into<Arc<str>>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let version = Version::immutable(bytes.len() as u64);
        MemoryReader::over(bytes, name, version)
    }

    /// A reader of bytes that were taken from elsewhere in the state that `version` names.
    pub(crate) fn over(bytes: Bytes, name: impl Into<Arc<str>>, version: Version) -> Self {
        MemoryReader {
            bytes,
            source: Source::new(name, ENGINE, version, Limits::default()),
        }
    }

    /// The bytes of a range that has been checked.
    fn view(&self, start: u64, end: u64) -> Bytes {
        // Both fit: they are within the length of a `Bytes`.
        self.bytes.slice(start as usize..end as usize)
    }

    fn deliver(&self, read: Read) -> Result<Block, Failed> {
        if let Some(error) = refuse_place(&self.source, &read) {
            return Err(Failed::new(error, read.dest));
        }
        let Read { range, dest } = read;
        if matches!(dest, Dest::Prefetch) {
            return Ok(Block::Host(Bytes::new()));
        }
        let bytes = self.view(range.start, range.end);
        let counters = self.source.counters();
        counters.add_requests(1);
        counters.add_read(bytes.len() as u64);
        counters.add_route(Route::Memory, bytes.len() as u64);
        let Dest::Into(mut block) = dest else {
            return Ok(bytes.into());
        };
        match block.put(&bytes) {
            Ok(()) => Ok(block.freeze()),
            Err(error) => Err(Failed {
                error: self.source.place(error, range),
                dest: Some(block),
            }),
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
        let counters = self.source.counters();
        for read in reads {
            let range = read.range();
            self.source.check(&range)?;
            counters.add_reads(1);
            let len = read.buf.len() as u64;
            counters.add_requested(len);
            counters.add_requests(1);
            counters.add_read(len);
            counters.add_route(Route::Memory, len);
            read.buf.copy_from_slice(&self.view(range.start, range.end));
        }
        Ok(())
    }
}
