//! Records in windows of a file that are read into the memory of a GPU.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::ahead::Wanted;
use super::feed::{Feed, Framed, Row, Taken, is_short};
use super::report::DeviceReport;
use crate::buffer::DeviceBytes;
use crate::cuda::example::Check;
use crate::cuda::frames::Frame;
use crate::cuda::{Device, Stream};
use crate::decode::tfrecord::example::pull::Cut;
use crate::error::{Error, ErrorKind, Result};
use crate::format::lfs;
use crate::format::tfrecord::frame::{HEADER, OVERHEAD};
use crate::format::tfrecord::parser::{Bad, Parser, Rules, Step};
use crate::reader::{Batch, Pending, Reader, ReaderExt};

/// Windows that are small, before larger ones are tried again.
const SMALL: u32 = 16;

/// How a file is gone through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Bytes of a window; a record that is longer has one of its own.
    pub(super) window: u64,
    pub(super) cut: Cut,
    /// Most bytes of a record.
    pub(super) most: u64,
    pub(super) verify_data: bool,
}

/// One file, window by window. The next one is read while the current one is decoded.
pub(super) struct Windows {
    reader: Arc<dyn Reader>,
    gpu: Arc<Device>,
    /// That of the scan.
    stream: Stream,
    way: Way,
    /// Where each record begins, and the end of the file, if that is known.
    offsets: Option<Arc<[u64]>>,
    /// Offset of the first byte that was not gone through, and number of the record there.
    position: u64,
    number: u64,
    ahead: Option<(Range<u64>, Pending)>,
    window: Option<DeviceBytes>,
    rows: VecDeque<Row>,
    /// What comes behind the rows.
    error: Option<Error>,
    ended: bool,
    /// Bytes of the next window: fewer than asked for, where the device had no memory for these.
    bytes: u64,
    /// So many windows more of fewer bytes.
    small: u32,
    /// How often they became fewer, and that was not told yet.
    halved: u64,
}

impl Windows {
    pub(super) fn new(
        reader: Arc<dyn Reader>,
        gpu: Arc<Device>,
        stream: Stream,
        way: Way,
        offsets: Option<Arc<[u64]>>,
    ) -> Self {
        Windows {
            reader,
            gpu,
            stream,
            way,
            offsets,
            position: 0,
            number: 0,
            ahead: None,
            window: None,
            rows: VecDeque::new(),
            error: None,
            ended: false,
            bytes: way.window,
            small: SMALL,
            halved: 0,
        }
    }

    /// Smaller windows from here on, down to those of one record.
    fn halve(&mut self) {
        let rest = self.len().saturating_sub(self.position);
        self.bytes = (self.bytes.min(rest) / 2).max(1);
        self.small = SMALL;
        self.halved += 1;
        self.ahead = None;
        self.gpu.trim();
    }

    /// Larger ones again, some windows after they had to become smaller.
    fn grow(&mut self) {
        if self.bytes < self.way.window {
            self.small -= 1;
            if self.small == 0 {
                self.bytes = self.bytes.saturating_mul(2).min(self.way.window);
                self.small = SMALL;
            }
        }
    }

    fn len(&self) -> u64 {
        self.reader.source().len()
    }

    /// The next rows, of a window of their own.
    fn advance(&mut self) -> Result<()> {
        let mut wanted = self.bytes;
        loop {
            if self.position >= self.len() {
                self.ended = true;
                return Ok(());
            }
            let found = match self.offsets.clone() {
                Some(offsets) => self.indexed(&offsets, wanted)?,
                None => self.scanned(wanted)?,
            };
            match found {
                Some(more) => wanted = more,
                None => return Ok(()),
            }
        }
    }

    /// The records of the next window, by their offsets.
    fn indexed(&mut self, offsets: &[u64], wanted: u64) -> Result<Option<u64>> {
        let from = usize::try_from(self.number).unwrap_or(usize::MAX);
        let starts = offsets.get(from..).unwrap_or_default();
        let end = self.position.saturating_add(wanted);
        let fitting = starts.iter().skip(1).take_while(|at| **at <= end).count();
        let count = fitting.max(1);
        let Some(end) = starts.get(count).copied() else {
            // Behind the last one: the file has more than its index.
            self.ended = true;
            return Ok(None);
        };
        let range = self.position..end;
        let next = {
            let end = end.saturating_add(self.bytes);
            let rest = starts.get(count + 1..).unwrap_or_default();
            let after = rest.iter().take_while(|at| **at <= end).last();
            after.or(rest.first()).map(|to| range.end..*to)
        };
        let window = self.read(range.clone(), next)?;
        for (start, end) in starts.iter().zip(starts.iter().skip(1)).take(count) {
            self.rows.push_back(Row {
                number: self.number,
                at: *start,
                shard: 0,
                frame: Frame {
                    data: start - range.start + HEADER as u64,
                    len: (end - start).saturating_sub(OVERHEAD),
                },
            });
            self.number += 1;
        }
        self.position = range.end;
        self.window = Some(window);
        Ok(None)
    }

    /// The records of the next window, by a scan of it. `Some`: the window has to have so many bytes.
    fn scanned(&mut self, wanted: u64) -> Result<Option<u64>> {
        let (start, len) = (self.position, self.len());
        let end = start.saturating_add(wanted).min(len);
        let window = self.read(start..end, None)?;
        let (left, most) = (len - start, self.way.most);
        let frames = self.gpu.frames(&self.stream, &window, left, most)?;
        let inside = (end - start, end == len);
        let whole = frames.iter().take_while(|frame| frame.end() <= inside.0);
        let whole = whole.count();
        let (whole, partial) = frames.split_at(whole);
        if let (true, Some(partial)) = (whole.is_empty(), partial.first()) {
            // Longer than the window, and not than the file.
            return Ok(Some(partial.end()));
        }
        self.found(start, whole);
        let behind = self.position;
        let rest = end - behind;
        self.window = Some(window.clone());
        let is_bad = partial.is_empty() && rest > 0 && (rest >= HEADER as u64 || inside.1);
        if is_bad {
            return self.by_host(start, &window);
        }
        if behind < len {
            let next = behind..behind.saturating_add(self.bytes).min(len);
            self.read_ahead(next);
        }
        if whole.is_empty() && rest > 0 {
            // Not even a header.
            return Ok(Some(wanted.max(OVERHEAD).saturating_mul(2)));
        }
        Ok(None)
    }

    fn found(&mut self, start: u64, frames: &[Frame]) {
        for frame in frames {
            self.rows.push_back(Row {
                number: self.number,
                at: start + frame.data - HEADER as u64,
                shard: 0,
                frame: *frame,
            });
            self.number += 1;
            self.position = start + frame.end();
        }
    }

    /// What the host's parser says of the rest of a window that begins with no record.
    fn by_host(&mut self, start: u64, window: &DeviceBytes) -> Result<Option<u64>> {
        let from = (self.position - start) as usize;
        let rest = self.gpu.to_host_in(&self.stream, &window.slice(from..))?;
        let rest: Bytes = rest.into();
        let rules = Rules {
            verify_data: false,
            most: self.way.most,
            total: Some(self.len()),
            skip: false,
        };
        let at_the_end = self.position + rest.len() as u64 == self.len();
        let mut parser = Parser::starting_at(rules, self.position, self.number);
        parser.push(rest);
        loop {
            match parser.next()? {
                Step::Frames(frames) => {
                    let places: Vec<_> = frames
                        .ranges()
                        .enumerate()
                        .map(|(at, range)| Frame {
                            data: frames.offset(at).unwrap_or_default() + HEADER as u64 - start,
                            len: range.len() as u64,
                        })
                        .collect();
                    self.found(start, &places);
                }
                Step::Corrupt(bad) | Step::Skipped(bad) => return Err(corrupt(bad)),
                Step::Pointer => {
                    return Err(Error::new(ErrorKind::Malformed {
                        format: "TFRecord",
                        part: None,
                        what: lfs::POINTER.into(),
                    }));
                }
                Step::Want(_) if at_the_end => parser.finish(),
                // It would have been found. With more bytes it is seen for certain.
                Step::Want(more) if self.rows.is_empty() => {
                    return Ok(Some((window.len() as u64).saturating_add(more)));
                }
                Step::Want(_) | Step::End => return Ok(None),
            }
        }
    }

    /// A window, in memory of its own; `next` is read meanwhile.
    fn read(&mut self, range: Range<u64>, next: Option<Range<u64>>) -> Result<DeviceBytes> {
        let pending = match self.ahead.take() {
            Some((ahead, pending)) if ahead == range => pending,
            _ => self.submit(range)?,
        };
        if let Some(next) = next {
            self.read_ahead(next);
        }
        let block = pending.wait()?.pop();
        let block = block.ok_or_else(|| Error::new(ErrorKind::Abandoned))?;
        block.into_device()
    }

    fn submit(&self, range: Range<u64>) -> Result<Pending> {
        let len = (range.end - range.start) as usize;
        let block = self.gpu.allocate(len)?;
        Ok(self.reader.submit(Batch::new().read_into(range, block)))
    }

    /// Starts reading what is wanted next. If there is no memory for it, it is read when it is its turn.
    fn read_ahead(&mut self, range: Range<u64>) {
        if let Ok(pending) = self.submit(range.clone()) {
            self.ahead = Some((range, pending));
        }
    }
}

impl Feed for Windows {
    fn next(&mut self, wanted: Wanted<'_>) -> Taken {
        while self.rows.is_empty() && !self.ended && self.error.is_none() {
            self.window = None;
            if let Err(error) = self.advance() {
                // What has begun is gone through anew, from the first byte that was not.
                if is_short(&error) && wanted() {
                    self.gpu.trim();
                    continue;
                }
                if is_short(&error) && self.bytes > 1 {
                    self.halve();
                    continue;
                }
                self.error = Some(error);
            }
            self.grow();
        }
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < self.way.cut.rows
            && (rows.is_empty() || bytes < self.way.cut.bytes)
            && let Some(row) = self.rows.pop_front()
        {
            bytes += (row.frame.len as usize).max(self.way.cut.row_bytes);
            rows.push(row);
        }
        let error = match self.rows.is_empty() {
            true => self.error.take(),
            false => None,
        };
        let last = error.is_some() || (self.ended && self.rows.is_empty());
        self.ended |= last;
        let framed = match &self.window {
            Some(window) => Framed::Device(window.clone()),
            None => Framed::Host(Vec::new()),
        };
        let check = match (self.offsets.is_some(), self.way.verify_data) {
            (_, true) => Some(Check::All),
            (true, false) => Some(Check::Lengths),
            (false, false) => None,
        };
        let name = self.reader.source().name();
        Taken {
            rows,
            framed,
            check,
            error: error.map(|error| error.named(name)),
            last,
        }
    }

    fn tell(&mut self, report: &mut DeviceReport) {
        report.halved += std::mem::take(&mut self.halved);
    }

    fn ways(&self) -> (Cow<'static, str>, Cow<'static, str>) {
        let boundaries = match self.offsets {
            Some(_) => "an index",
            None => "the GPU, in windows of the file",
        };
        let checks = match self.way.verify_data {
            true => "the GPU, with those of lengths",
            false => "nobody, as was asked for",
        };
        (boundaries.into(), checks.into())
    }
}

fn corrupt(bad: Bad) -> Error {
    let (record, check) = (bad.record, bad.check);
    Error::new(ErrorKind::CorruptRecord { record, check }).at(bad.start..bad.end)
}

/// The first bytes of a file, which say whether it is compressed.
pub(super) fn start_of(reader: &Arc<dyn Reader>) -> Result<Bytes> {
    let len = reader.source().len().min(HEADER as u64);
    reader.read(0..len).wait()
}
