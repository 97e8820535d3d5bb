//! Records in batches, framed on the host or on the device.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use super::ahead::Wanted;
use super::report::DeviceReport;
use crate::buffer::DeviceBytes;
use crate::cuda::example::Check;
use crate::cuda::frames::Frame;
use crate::cuda::{Device, Stream};
use crate::decode::tfrecord::example::pull::Pull;
use crate::error::{Error, ErrorKind, RecordCheck, Result};
use crate::format::tfrecord::frame::{self, FOOTER, HEADER, OVERHEAD};
use crate::format::tfrecord::frames::Frames;

/// Where batches of records come from.
pub(super) trait Feed: Send {
    /// The records of the next batch. Blocks. What fails for want of the device's memory is tried again if it is [wanted](Wanted).
    fn next(&mut self, wanted: Wanted<'_>) -> Taken;

    /// Adds what came of it so far.
    fn tell(&mut self, report: &mut DeviceReport);

    /// What found them, and what checks the checksums of their data.
    fn ways(&self) -> (Cow<'static, str>, Cow<'static, str>);
}

/// The records of one batch.
pub(super) struct Taken {
    pub(super) rows: Vec<Row>,
    pub(super) framed: Framed,
    /// Which checksums nobody has checked yet.
    pub(super) check: Option<Check>,
    /// What came instead of further records.
    pub(super) error: Option<Error>,
    /// No records follow.
    pub(super) last: bool,
}

impl Taken {
    /// Bytes of the records, if the host has them.
    pub(super) fn bytes_to_upload(&self) -> Option<u64> {
        match &self.framed {
            Framed::Host(_) => Some(self.rows.iter().map(|row| row.frame.len + OVERHEAD).sum()),
            Framed::Device(_) => None,
        }
    }

    /// The first half of them, and the second with what comes behind; as they are if there is no more than one.
    pub(super) fn halves(self) -> Result<(Taken, Taken), Taken> {
        let middle = self.rows.len() / 2;
        self.split_at(middle)
    }

    /// The first so many of them, and the others with what comes behind; as they are if one of both would have none.
    pub(super) fn split_at(mut self, count: usize) -> Result<(Taken, Taken), Taken> {
        let cut = match self.rows.get(count) {
            Some(row) if count > 0 => row.frame.data - HEADER as u64,
            _ => return Err(self),
        };
        let mut rows = self.rows.split_off(count);
        let (first, second, moved) = self.framed.split_at(cut);
        for row in &mut rows {
            row.frame.data -= moved;
        }
        let second = Taken {
            rows,
            framed: second,
            check: self.check,
            error: self.error.take(),
            last: self.last,
        };
        self.framed = first;
        self.last = false;
        Ok((self, second))
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its number in its file.
    pub(super) number: u64,
    /// Offset of its frame in its file.
    pub(super) at: u64,
    /// Which file.
    pub(super) shard: usize,
    /// Where it is in the bytes of the batch.
    pub(super) frame: Frame,
}

impl Row {
    /// The bytes of its frame in its file.
    pub(super) fn range(&self) -> Range<u64> {
        self.at..self.at.saturating_add(self.frame.len + OVERHEAD)
    }
}

/// Where the frames of a batch are.
pub(super) enum Framed {
    /// One part behind the other.
    Host(Vec<Bytes>),
    Device(DeviceBytes),
}

impl Framed {
    /// Those before an offset, those from there on, and by how much offsets of these become less. Windows on the device are there as a
    /// whole, and stay whole.
    fn split_at(self, cut: u64) -> (Framed, Framed, u64) {
        let mut first = match self {
            Framed::Device(bytes) => {
                return (Framed::Device(bytes.clone()), Framed::Device(bytes), 0);
            }
            Framed::Host(parts) => parts,
        };
        let (mut begin, mut second) = (0, Vec::new());
        let across = first.iter().position(|part| {
            let is_across = cut < begin + part.len() as u64;
            if !is_across {
                begin += part.len() as u64;
            }
            is_across
        });
        if let Some(at) = across {
            second = first.split_off(at);
            if let Some(part) = second.first_mut() {
                let before = part.split_to((cut - begin) as usize);
                if !before.is_empty() {
                    first.push(before);
                }
            }
        }
        (Framed::Host(first), Framed::Host(second), cut)
    }

    /// They, on the device.
    pub(super) fn on_device(&self, gpu: &Device, stream: &Stream) -> Result<DeviceBytes> {
        match self {
            Framed::Device(bytes) => Ok(bytes.clone()),
            Framed::Host(parts) => {
                let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
                gpu.upload_joined(stream, &parts)
            }
        }
    }

    /// Those of `rows`, on the host: parts one behind the other, and where the first begins in the bytes of the batch.
    pub(super) fn on_host(
        &self,
        gpu: &Device,
        stream: &Stream,
        rows: &[Row],
    ) -> Result<(Vec<Bytes>, u64)> {
        match self {
            Framed::Host(parts) => Ok((parts.clone(), 0)),
            Framed::Device(bytes) => {
                let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
                    return Ok((Vec::new(), 0));
                };
                let begin = first.frame.data - HEADER as u64;
                let part = bytes.slice(begin as usize..last.frame.end() as usize);
                Ok((vec![gpu.to_host_in(stream, &part)?.into()], begin))
            }
        }
    }
}

/// The frames of rows, in their order, that lie in `parts`, one behind the other, the first of which begins at `begin`.
pub(super) fn frames_of<'a>(
    parts: &'a [Bytes],
    mut begin: u64,
    rows: impl Iterator<Item = Row> + 'a,
) -> impl Iterator<Item = (Row, &'a [u8])> + 'a {
    let mut part = 0;
    rows.map(move |row| {
        let from = row.frame.data - HEADER as u64;
        while let Some(bytes) = parts.get(part)
            && from >= begin + bytes.len() as u64
        {
            begin += bytes.len() as u64;
            part += 1;
        }
        let bytes = parts.get(part).map_or(&[][..], |part| &part[..]);
        let (from, to) = (from - begin, row.frame.end() - begin);
        let frame = bytes.get(from as usize..to as usize);
        (row, frame.unwrap_or_default())
    })
}

/// The data of a record, or the check that it fails.
pub(super) fn data_of(
    row: &Row,
    framed: &[u8],
    check: Option<Check>,
) -> Result<Range<usize>, RecordCheck> {
    let (Some(header), Some(footer)) = (
        framed.first_chunk::<HEADER>(),
        framed.last_chunk::<FOOTER>(),
    ) else {
        return Err(RecordCheck::Truncated);
    };
    let data = HEADER..framed.len().saturating_sub(FOOTER).max(HEADER);
    let most = row.frame.len;
    match frame::length(header) {
        None if check.is_some() => return Err(RecordCheck::LengthChecksum),
        Some(length) if length != most => return Err(RecordCheck::Length { length, most }),
        _ => {}
    }
    let bytes = framed.get(data.clone()).unwrap_or_default();
    if check == Some(Check::All) && frame::masked_crc(bytes) != u32::from_le_bytes(*footer) {
        return Err(RecordCheck::DataChecksum);
    }
    Ok(data)
}

/// Whether there was no memory.
pub(super) fn is_short(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory { .. })
}

/// The error for a record, with its place.
pub(super) fn corrupt(row: &Row, check: RecordCheck) -> Error {
    let record = row.number;
    Error::new(ErrorKind::CorruptRecord { record, check }).at(row.range())
}

/// Records that the host finds as bytes pass.
pub(super) struct Walked {
    pull: Pull,
    check: Option<Check>,
    verify_data: bool,
    why: &'static str,
}

impl Walked {
    /// `check`: what the walk leaves to be checked, of data if that is to be [verified](crate::tfrecord::RecordOptions::verify_data).
    /// `why`: why not the device finds them, if that was asked for, behind a comma.
    pub(super) fn new(
        pull: Pull,
        check: Option<Check>,
        verify_data: bool,
        why: &'static str,
    ) -> Self {
        Walked {
            pull,
            check,
            verify_data,
            why,
        }
    }
}

/// Who checks what the host decodes.
pub(super) fn by_host(verify_data: bool) -> &'static str {
    match verify_data {
        true => "the host",
        false => "nobody, as was asked for",
    }
}

impl Feed for Walked {
    fn next(&mut self, _: Wanted<'_>) -> Taken {
        let job = self.pull.next();
        let (mut rows, mut parts, mut begin) = (Vec::new(), Vec::new(), 0u64);
        for (frames, range) in &job.parts {
            let Some(span) = span(frames, range) else {
                continue;
            };
            let places = frames.ranges().enumerate();
            for (at, place) in places.take(range.end).skip(range.start) {
                rows.push(Row {
                    number: frames.first() + at as u64,
                    at: frames.offset(at).unwrap_or_default(),
                    shard: frames.shard(),
                    frame: Frame {
                        data: begin + (place.start - span.start) as u64,
                        len: place.len() as u64,
                    },
                });
            }
            begin += span.len() as u64;
            parts.push(frames.block().slice(span));
        }
        Taken {
            rows,
            framed: Framed::Host(parts),
            check: self.check,
            error: job.error,
            last: job.last,
        }
    }

    fn tell(&mut self, report: &mut DeviceReport) {
        let skipped = self.pull.skipped();
        if skipped.records() > report.skipped.records() {
            report.skipped = skipped.clone();
        }
    }

    fn ways(&self) -> (Cow<'static, str>, Cow<'static, str>) {
        let checks = match self.check {
            Some(_) => "the GPU, with those of lengths",
            None => by_host(self.verify_data),
        };
        let boundaries = format!("the host, while bytes pass{}", self.why);
        (boundaries.into(), checks.into())
    }
}

/// Where the frames of some records are in their block: from the first header to the last footer.
fn span(frames: &Frames, range: &Range<usize>) -> Option<Range<usize>> {
    let first = frames.ranges().nth(range.start)?;
    let last = frames.ranges().nth(range.end.checked_sub(1)?)?;
    Some(first.start.checked_sub(HEADER)?..last.end + FOOTER)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Records of these lengths, so many in each part, all bytes of each its number.
    pub(in super::super) fn taken(parts: &[&[u64]]) -> Taken {
        let (mut rows, mut blocks, mut at) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let mut block = Vec::new();
            for len in *part {
                let number = rows.len() as u64;
                let frame = Frame {
                    data: at + HEADER as u64,
                    len: *len,
                };
                rows.push(Row {
                    number,
                    at,
                    shard: 0,
                    frame,
                });
                block.extend(vec![number as u8; (len + OVERHEAD) as usize]);
                at += len + OVERHEAD;
            }
            blocks.push(block.into());
        }
        Taken {
            rows,
            framed: Framed::Host(blocks),
            check: None,
            error: Some(Error::new(ErrorKind::Abandoned)),
            last: true,
        }
    }

    /// Numbers of the records, each checked to have its bytes.
    fn numbers(taken: &Taken) -> Vec<u64> {
        let Framed::Host(parts) = &taken.framed else {
            panic!("they are the host's");
        };
        let rows = taken.rows.iter().copied();
        let numbers = frames_of(parts, 0, rows).map(|(row, framed)| {
            assert_eq!(framed.len() as u64, row.frame.len + OVERHEAD);
            assert!(framed.iter().all(|byte| u64::from(*byte) == row.number));
            row.number
        });
        numbers.collect()
    }

    #[test]
    fn halves_have_their_records_and_what_comes_behind_is_the_last_ones() {
        for parts in [
            &[&[3, 0, 9, 4, 1][..]][..],
            &[&[3, 0], &[9, 4, 1]],
            &[&[3], &[0, 9, 4], &[1]],
            &[&[3, 0, 9], &[], &[4], &[1]],
        ] {
            let (mut left, mut seen) = (vec![taken(parts)], Vec::new());
            while let Some(taken) = left.pop() {
                let wanted: Vec<_> = taken.rows.iter().map(|row| row.number).collect();
                assert_eq!(numbers(&taken), wanted);
                assert_eq!(taken.error.is_some(), left.is_empty());
                assert_eq!(taken.last, left.is_empty());
                match taken.halves() {
                    Ok((first, second)) => left.extend([second, first]),
                    Err(one) => seen.extend(numbers(&one)),
                }
            }
            assert_eq!(seen, [0, 1, 2, 3, 4]);
        }
    }
}
