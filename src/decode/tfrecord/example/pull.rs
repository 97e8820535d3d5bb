//! Records cut into batches, in order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use super::decoder::ExampleDecoder;
use super::pool::Done;
use crate::decode::tfrecord::walk::Waiter;
use crate::decode::tfrecord::{FrameBatches, Skipped};
use crate::error::{Error, Result};
use crate::format::tfrecord::frame::OVERHEAD;
use crate::format::tfrecord::frames::Frames;
use crate::reader::Reader;

/// Where records come from.
pub(super) trait Source: Send {
    /// The next ones. Without a task to wake it blocks, and is never pending.
    fn next(&mut self, waiter: Waiter<'_, '_>) -> Poll<Option<Result<Frames>>>;

    /// The corrupt records that were left out so far.
    fn skipped(&self) -> &Skipped;
}

impl<R: Reader + ?Sized> Source for FrameBatches<R> {
    fn next(&mut self, waiter: Waiter<'_, '_>) -> Poll<Option<Result<Frames>>> {
        self.poll(waiter)
    }

    fn skipped(&self) -> &Skipped {
        FrameBatches::skipped(self)
    }
}

/// Cuts records into batches.
pub(super) struct Pull {
    source: Box<dyn Source>,
    /// What was read already, before what the source has.
    first: VecDeque<Frames>,
    /// Records of which a batch has taken a part, and the first that it has not.
    rest: Option<(Arc<Frames>, usize)>,
    names: Arc<[Arc<str>]>,
    cut: Cut,
}

/// Where batches end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// With so many rows.
    pub(super) rows: usize,
    /// With the record with which it has so many bytes.
    pub(super) bytes: usize,
    /// What a record counts at least: a row takes memory even if its record has no bytes.
    pub(super) row_bytes: usize,
}

/// The records of one batch.
pub(super) struct Job {
    pub(super) parts: Vec<(Arc<Frames>, Range<usize>)>,
    names: Arc<[Arc<str>]>,
    /// What came instead of further records.
    pub(super) error: Option<Error>,
    /// No records follow.
    pub(super) last: bool,
}

impl Pull {
    pub(super) fn new(
        source: Box<dyn Source>,
        first: Vec<Frames>,
        names: Vec<Arc<str>>,
        cut: Cut,
    ) -> Self {
        Pull {
            source,
            first: first.into(),
            rest: None,
            names: names.into(),
            cut,
        }
    }

    pub(super) fn skipped(&self) -> &Skipped {
        self.source.skipped()
    }

    /// The records of the next batch. Blocks.
    pub(super) fn next(&mut self) -> Job {
        let mut job = Job {
            parts: Vec::new(),
            names: self.names.clone(),
            error: None,
            last: false,
        };
        let (mut rows, mut bytes) = (0, 0);
        while rows < self.cut.rows && (rows == 0 || bytes < self.cut.bytes) {
            let (frames, from) = match self.rest.take() {
                Some(rest) => rest,
                None => match self.frames() {
                    Some(Ok(frames)) => (Arc::new(frames), 0),
                    end => {
                        job.error = end.and_then(Result::err);
                        job.last = true;
                        break;
                    }
                },
            };
            let mut to = from;
            for range in frames.ranges().skip(from).take(self.cut.rows - rows) {
                to += 1;
                bytes += range.len().max(self.cut.row_bytes);
                if bytes >= self.cut.bytes {
                    break;
                }
            }
            rows += to - from;
            if to < frames.len() {
                self.rest = Some((frames.clone(), to));
            }
            job.parts.push((frames, from..to));
        }
        job
    }

    fn frames(&mut self) -> Option<Result<Frames>> {
        match self.first.pop_front() {
            Some(frames) => Some(Ok(frames)),
            None => match self.source.next(None) {
                Poll::Ready(frames) => frames,
                Poll::Pending => None,
            },
        }
    }
}

impl Job {
    /// The batch of the records; several where offsets of 32 bits do not reach. Memory of records is released as they are
    /// done.
    pub(super) fn decode(self, decoder: &mut ExampleDecoder) -> Done {
        let mut batches = Vec::new();
        let mut error = self.error;
        'records: for (frames, range) in self.parts {
            decoder.read_from(frames.block());
            for at in range {
                let Some(record) = frames.get(at) else {
                    continue;
                };
                let number = frames.first() + at as u64;
                let pushed = loop {
                    match decoder.push_record(number, record) {
                        Ok(false) => match decoder.finish() {
                            Ok(batch) => batches.push(batch),
                            Err(error) => break Err(error),
                        },
                        pushed => break pushed,
                    }
                };
                if let Err(refused) = pushed {
                    error = Some(place(refused, &self.names, &frames, at));
                    break 'records;
                }
            }
        }
        if decoder.rows() > 0 {
            match decoder.finish() {
                Ok(batch) => batches.push(batch),
                Err(refused) => error = Some(refused),
            }
        }
        Done { batches, error }
    }
}

/// Adds file, offset and length of the frame of the record at `at`.
pub(super) fn place(error: Error, names: &[Arc<str>], frames: &Frames, at: usize) -> Error {
    let error = match names.get(frames.shard()) {
        Some(name) => error.named(name),
        None => error,
    };
    match (frames.offset(at), frames.get(at)) {
        (Some(offset), Some(data)) => error.at(offset..offset + OVERHEAD + data.len() as u64),
        _ => error,
    }
}
