//! Column chunks whose bytes are in memory already (the page cache): read page by page, right before each is decoded.
//!
//! Reading row groups ahead would copy them through memory that is larger than any cache, and on a busy machine pay for
//! every page of it anew. A page that is read into memory that was used a moment ago stays in the processor's cache until
//! it is decompressed. When the bytes turn out to come slowly, later row groups are read ahead after all.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use super::buffers::Buffers;
use super::job::Done;
use crate::error::{Error, Result};
use crate::format::parquet::Chunk;
use crate::reader::{Batch, Pending, ReadInto};

/// What is read to learn whether bytes are at hand, twice.
const PROBE: u64 = 4096;

/// A page header is about 30 bytes, and some hundred with statistics.
const HEADER: usize = 1024;

/// Slower than this in bytes per second is no page cache.
const SLOWEST: u64 = 700 << 20;

/// How much must have been read before its rate says something.
const ENOUGH: u64 = 8 << 20;

/// Shorter reads say more about the call.
const TELLING: u64 = 64 << 10;

/// The two ways to read of a source.
pub(super) trait Bring: Send + Sync {
    /// [`Reader::submit`](crate::Reader::submit).
    fn submit(&self, batch: Batch) -> Pending;
    /// [`Reader::read_now`](crate::Reader::read_now).
    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()>;
}

impl<R: crate::reader::Reader + ?Sized> Bring for Arc<R> {
    fn submit(&self, batch: Batch) -> Pending {
        crate::reader::Reader::submit(&**self, batch)
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        crate::reader::Reader::read_now(&**self, reads)
    }
}

/// Whether the bytes at `range` are at hand, and each read copies them. Where nothing is copied there is nothing to spare.
pub(super) fn is_copied_at_once(bring: &dyn Bring, range: &Range<u64>) -> bool {
    let probe = range.start..range.end.min(range.start.saturating_add(PROBE));
    let read = || {
        let mut pending = bring.submit(Batch::new().any(probe.clone()));
        match pending.try_next() {
            Some((_, Ok(block))) => block.into_host().ok(),
            _ => None,
        }
    };
    let Some(first) = read() else {
        return false;
    };
    read().is_some_and(|second| second.as_ptr() != first.as_ptr())
}

/// Reads pages of a scan on the threads that decode them.
pub(super) struct Resident {
    bring: Arc<dyn Bring>,
    done: Arc<Done>,
    buffers: Arc<Buffers>,
    bytes: AtomicU64,
    nanos: AtomicU64,
    slow: AtomicBool,
}

impl Resident {
    pub(super) fn new(bring: Arc<dyn Bring>, buffers: Arc<Buffers>, done: Arc<Done>) -> Self {
        Resident {
            bring,
            done,
            buffers,
            bytes: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            slow: AtomicBool::new(false),
        }
    }

    /// Whether bytes came slowly.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let len = (range.end - range.start) as usize;
        let begun = Instant::now();
        let bytes = self.buffers.filled(len, |buf| {
            self.bring.read_now(&mut [ReadInto::new(range.start, buf)])
        })?;
        self.measure(len as u64, begun.elapsed());
        Ok(bytes)
    }

    fn measure(&self, len: u64, took: Duration) {
        self.done.requests.fetch_add(1, Ordering::Relaxed);
        self.done.bytes.fetch_add(len, Ordering::Relaxed);
        if len < TELLING {
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let nanos = self
            .nanos
            .fetch_add(nanos, Ordering::Relaxed)
            .saturating_add(nanos);
        let bytes = self.bytes.fetch_add(len, Ordering::Relaxed) + len;
        if bytes > ENOUGH {
            let rate = u128::from(bytes) * 1_000_000_000 / u128::from(nanos.max(1));
            self.slow
                .store(rate < u128::from(SLOWEST), Ordering::Relaxed);
            // Halved, so that it follows what comes.
            self.bytes.store(bytes / 2, Ordering::Relaxed);
            self.nanos.store(nanos / 2, Ordering::Relaxed);
        }
    }
}

/// Why a page could not be brought. On its way through the crate's reader an error becomes text.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<Error>>>);

impl Failure {
    fn note(&self, error: &Error) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.get_or_insert_with(|| error.clone());
    }

    /// The error, once.
    pub(super) fn take(&self) -> Option<Error> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.take()
    }
}

/// The bytes of a column chunk: in memory, or brought when they are needed.
pub(super) enum Column {
    Here(Chunk),
    Resident {
        resident: Arc<Resident>,
        range: Range<u64>,
        last: Arc<AtomicU64>,
        failure: Failure,
    },
}

impl Length for Column {
    fn len(&self) -> u64 {
        match self {
            Column::Here(chunk) => chunk.len(),
            Column::Resident { range, .. } => range.end - range.start,
        }
    }
}

impl ChunkReader for Column {
    type T = Headers;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        match self {
            Column::Here(chunk) => Ok(Headers {
                bytes: chunk.get_read(start)?.into_inner(),
                more: None,
            }),
            Column::Resident {
                resident,
                range,
                last,
                failure,
            } => {
                last.store(start, Ordering::Relaxed);
                if start < range.start || start > range.end {
                    return Err(outside(start));
                }
                Ok(Headers {
                    bytes: Bytes::new(),
                    more: Some((resident.clone(), start..range.end, failure.clone())),
                })
            }
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        match self {
            Column::Here(chunk) => chunk.get_bytes(start, length),
            Column::Resident {
                resident,
                range,
                failure,
                ..
            } => {
                let end = start.saturating_add(length as u64);
                if start < range.start || end > range.end {
                    return Err(outside(start));
                }
                let bytes = resident.read(start..end);
                bytes.map_err(|error| {
                    failure.note(&error);
                    ParquetError::External(Box::new(error))
                })
            }
        }
    }
}

fn outside(start: u64) -> ParquetError {
    ParquetError::EOF(format!("offset {start} is outside the column chunk"))
}

/// Reads a page header, whose length nobody knows beforehand.
pub(super) struct Headers {
    bytes: Bytes,
    /// What can be read on when that is used up.
    more: Option<(Arc<Resident>, Range<u64>, Failure)>,
}

impl io::Read for Headers {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty()
            && let Some((resident, rest, failure)) = &mut self.more
            && !rest.is_empty()
        {
            let end = rest.end.min(rest.start + HEADER as u64);
            self.bytes = resident.read(rest.start..end).map_err(|error| {
                failure.note(&error);
                io::Error::from(error)
            })?;
            rest.start = end;
        }
        let len = buf.len().min(self.bytes.len());
        let head = self.bytes.split_to(len);
        if let Some(buf) = buf.get_mut(..len) {
            buf.copy_from_slice(&head);
        }
        Ok(len)
    }
}
