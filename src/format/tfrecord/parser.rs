//! The push parser: chunks of a file in, records out. It reads nothing, and says how many bytes it still needs.

use bytes::Bytes;

use super::frame::{self, FOOTER, HEADER, OVERHEAD};
use super::frames::{Frames, MOST, Place};
use super::resync::Scan;
use crate::error::{Error, ErrorKind, RecordCheck, Result};
use crate::format::lfs;

/// A length past this that does not fit is taken for a wrong length, not for that of a file that was cut.
const PLAUSIBLE: u64 = 1 << 40;
/// A cap above this is none: sums with it do not overflow.
const CAP_MOST: u64 = 1 << 62;

/// What is checked, and what becomes of records that fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the checksum of the data is checked; that of the length always is.
    pub(crate) verify_data: bool,
    /// Most bytes of a record.
    pub(crate) most: u64,
    /// Length of the whole stream, where it is known.
    pub(crate) total: Option<u64>,
    /// Whether corrupt records are left out.
    pub(crate) skip: bool,
}

/// What came of the bytes so far.
#[derive(Debug)]
pub(crate) enum Step {
    /// Records, at least one.
    Frames(Frames),
    /// A record was left out; what follows is sound.
    Skipped(Bad),
    /// A record is corrupt, and nothing behind it can be told. Comes again if asked again.
    Corrupt(Bad),
    /// The stream is a Git LFS pointer. Comes again if asked again.
    Pointer,
    /// Nothing without this many more bytes, at least: [`push`](Parser::push) some, or [`finish`](Parser::finish).
    Want(u64),
    /// The stream ended behind its last record.
    End,
}

/// A corrupt record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    pub(crate) record: u64,
    pub(crate) check: RecordCheck,
    /// Offset at which it begins.
    pub(crate) start: u64,
    /// Offset of the first byte behind what is of no use because of it, as far as was read.
    pub(crate) end: u64,
}

/// The parser of one stream.
///
/// Memory: the chunk, and one record that lies across chunks; for that one no more is reserved than the stream is known
/// to have, or than has come.
#[derive(Debug)]
pub(crate) struct Parser {
    pub(super) rules: Rules,
    /// The chunk, parsed up to `at`.
    pub(super) block: Bytes,
    pub(super) at: usize,
    /// Offset of the chunk in the stream.
    pub(super) base: u64,
    /// The beginning of a record whose rest is in the next chunks, and its offset.
    pub(super) carry: Vec<u8>,
    pub(super) carry_at: u64,
    /// Number of the next record.
    pub(super) record: u64,
    pub(super) ended: bool,
    /// Bytes to leave out before the next record.
    leave_out: u64,
    /// Searching for the next record.
    pub(super) scan: Option<Scan>,
    /// Met, and to be told once the records before it are.
    met: Option<Met>,
    /// The last word.
    over: Option<Over>,
    /// Records in the last list, as a guess for the next.
    guess: usize,
}

#[derive(Clone, Copy, Debug)]
enum Met {
    Bad(Bad),
    Pointer,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Corrupt(Bad),
    Pointer,
    End,
}

/// Why a record cannot be cut from the bytes at hand.
enum Stop {
    /// It has this many bytes, header and footer included, as far as is known.
    Short(usize),
    Bad(RecordCheck, u64),
}

impl Parser {
    pub(crate) fn new(rules: Rules) -> Self {
        Parser {
            rules: Rules {
                most: rules.most.min(CAP_MOST),
                ..rules
            },
            block: Bytes::new(),
            at: 0,
            base: 0,
            carry: Vec::new(),
            carry_at: 0,
            record: 0,
            ended: false,
            leave_out: 0,
            scan: None,
            met: None,
            over: None,
            guess: 8,
        }
    }

    /// A parser that begins with record `number` at `offset` of the stream.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) fn starting_at(rules: Rules, offset: u64, number: u64) -> Self {
        Parser {
            base: offset,
            record: number,
            ..Parser::new(rules)
        }
    }

    /// The next bytes of the stream, after [`Step::Want`]. Any number of them.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert_eq!(self.at, self.block.len(), "the last chunk is used up");
        self.base += self.block.len() as u64;
        self.block = chunk;
        self.at = 0;
    }

    /// No more bytes follow.
    pub(crate) fn finish(&mut self) {
        self.ended = true;
    }

    /// Offset of the first byte that belongs to no record yet.
    pub(crate) fn position(&self) -> u64 {
        if self.carry.is_empty() {
            self.base + self.at as u64
        } else {
            self.carry_at
        }
    }

    /// Goes on with the bytes at hand.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] for a record across chunks.
    pub(crate) fn next(&mut self) -> Result<Step> {
        if let Some(over) = self.over {
            return Ok(match over {
                Over::Corrupt(bad) => Step::Corrupt(bad),
                Over::Pointer => Step::Pointer,
                Over::End => Step::End,
            });
        }
        if let Some(met) = self.met.take() {
            return self.tell(met);
        }
        if self.leave_out > 0 {
            let rest = (self.block.len() - self.at) as u64;
            let n = rest.min(self.leave_out);
            self.at += n as usize;
            self.leave_out -= n;
            if self.leave_out > 0 {
                return self.need(self.leave_out);
            }
        }
        if self.scan.is_some() {
            return self.resync();
        }
        if !self.carry.is_empty() {
            return self.complete();
        }
        self.cut()
    }

    /// The records that are whole in the chunk.
    fn cut(&mut self) -> Result<Step> {
        let block = self.block.clone();
        let mut places = Vec::new();
        let (base, begin) = (self.base, self.at);
        let mut at = begin;
        let mut stop = None;
        while places.len() < MOST {
            let rest = block.get(at..).unwrap_or_default();
            match self.record_at(rest, base + at as u64) {
                Ok(len) => {
                    if places.capacity() == 0 {
                        places.reserve_exact(self.guess);
                    }
                    places.push(Place {
                        start: at + HEADER,
                        len,
                    });
                    at += HEADER + len + FOOTER;
                }
                Err(why) => {
                    stop = Some((why, rest));
                    break;
                }
            }
        }
        self.at = at;
        let first = self.record;
        self.record += places.len() as u64;
        let mut want = None;
        match stop {
            Some((Stop::Bad(check, end), rest)) => {
                self.meet(check, base + at as u64, end, rest);
            }
            Some((Stop::Short(whole), rest)) => {
                if !rest.is_empty() {
                    self.carry_at = base + at as u64;
                    self.reserve(whole)?;
                    self.carry.extend_from_slice(rest);
                }
                self.at = block.len();
                want = Some((whole - rest.len()) as u64);
            }
            None => {}
        }
        if !places.is_empty() {
            self.guess = places.len().next_power_of_two().clamp(8, MOST);
            return Ok(Step::Frames(Frames {
                block,
                places,
                first,
                base,
                shard: 0,
            }));
        }
        match (self.met.take(), want) {
            (Some(met), _) => self.tell(met),
            (None, want) => self.need(want.unwrap_or(HEADER as u64)),
        }
    }

    /// The record whose beginning was carried over from the chunks before.
    fn complete(&mut self) -> Result<Step> {
        loop {
            let whole = match self.carry.first_chunk::<HEADER>() {
                None => HEADER,
                Some(header) => match self.judge(header, self.carry_at) {
                    Ok(len) => HEADER + len + FOOTER,
                    Err((check, end)) => {
                        let carry = std::mem::take(&mut self.carry);
                        let met = self.meet(check, self.carry_at, end, &carry);
                        self.carry = carry;
                        return self.tell(met);
                    }
                },
            };
            let rest = self.block.get(self.at..).unwrap_or_default();
            let take = rest.len().min(whole.saturating_sub(self.carry.len()));
            if take > 0 {
                self.reserve(whole)?;
                let rest = self.block.get(self.at..).unwrap_or_default();
                self.carry
                    .extend_from_slice(rest.get(..take).unwrap_or_default());
                self.at += take;
            }
            if self.carry.len() < whole {
                return self.need((whole - self.carry.len()) as u64);
            }
            if whole == HEADER {
                continue;
            }
            let carry = std::mem::take(&mut self.carry);
            let base = self.carry_at;
            return match self.record_at(&carry, base) {
                Ok(len) => {
                    let first = self.record;
                    self.record += 1;
                    Ok(Step::Frames(Frames {
                        block: carry.into(),
                        places: vec![Place { start: HEADER, len }],
                        first,
                        base,
                        shard: 0,
                    }))
                }
                Err(Stop::Bad(check, end)) => {
                    let met = self.meet(check, base, end, &carry);
                    self.tell(met)
                }
                // It has all its bytes, so this does not happen.
                Err(Stop::Short(more)) => self.need(more as u64),
            };
        }
    }

    /// Length of the data of the record that `bytes` begin with, checked.
    #[inline]
    fn record_at(&self, bytes: &[u8], start: u64) -> Result<usize, Stop> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return Err(Stop::Short(HEADER));
        };
        let len = self
            .judge(header, start)
            .map_err(|(check, end)| Stop::Bad(check, end))?;
        let whole = HEADER + len + FOOTER;
        let Some((data, rest)) = rest.split_at_checked(len) else {
            return Err(Stop::Short(whole));
        };
        let Some(footer) = rest.first_chunk::<FOOTER>() else {
            return Err(Stop::Short(whole));
        };
        if self.rules.verify_data && frame::masked_crc(data) != u32::from_le_bytes(*footer) {
            let end = start + whole as u64;
            return Err(Stop::Bad(RecordCheck::DataChecksum, end));
        }
        Ok(len)
    }

    /// Length of the data, if the header at offset `start` is right and the length can be; else why not, and where what
    /// is of no use ends.
    #[inline]
    pub(super) fn judge(
        &self,
        header: &[u8; HEADER],
        start: u64,
    ) -> Result<usize, (RecordCheck, u64)> {
        let Some(length) = frame::length(header) else {
            return Err((RecordCheck::LengthChecksum, start + HEADER as u64));
        };
        let left = self.left(start);
        if length > self.rules.most.min(left) {
            return Err(self.too_long(length, start, left));
        }
        // It is no more than the cap, which fits.
        Ok(length as usize)
    }

    /// Most bytes of data that a record at offset `start` can have.
    pub(super) fn left(&self, start: u64) -> u64 {
        let total = self.rules.total.unwrap_or(u64::MAX);
        total.saturating_sub(start).saturating_sub(OVERHEAD)
    }

    #[cold]
    fn too_long(&self, length: u64, start: u64, left: u64) -> (RecordCheck, u64) {
        let most = self.rules.most.min(left);
        if length <= left && length <= PLAUSIBLE {
            // Only the cap is against it, so that it can be left out by its length.
            let end = start.saturating_add(OVERHEAD).saturating_add(length);
            return (RecordCheck::Length { length, most }, end);
        }
        let end = self.rules.total.unwrap_or(start + HEADER as u64);
        if length > PLAUSIBLE || length > self.rules.most {
            (RecordCheck::Length { length, most }, end)
        } else {
            (RecordCheck::Truncated, end)
        }
    }

    /// Takes note of a corrupt record; `bytes` are what is at hand of it.
    fn meet(&mut self, check: RecordCheck, start: u64, end: u64, bytes: &[u8]) -> Met {
        let met = if start == 0 && lfs::is_pointer(bytes) {
            Met::Pointer
        } else {
            Met::Bad(Bad {
                record: self.record,
                check,
                start,
                end,
            })
        };
        self.met = Some(met);
        met
    }

    /// What is said about a corrupt record, and where parsing goes on behind it.
    fn tell(&mut self, met: Met) -> Result<Step> {
        self.met = None;
        let bad = match met {
            Met::Bad(bad) => bad,
            Met::Pointer => {
                self.over = Some(Over::Pointer);
                return Ok(Step::Pointer);
            }
        };
        if !self.rules.skip {
            self.over = Some(Over::Corrupt(bad));
            return Ok(Step::Corrupt(bad));
        }
        match bad.check {
            RecordCheck::LengthChecksum => {
                self.begin_scan(bad);
                return self.resync();
            }
            RecordCheck::Truncated => self.over = Some(Over::End),
            RecordCheck::Length { length, .. } => {
                let behind = bad.end.saturating_sub(bad.start);
                if behind == length.saturating_add(OVERHEAD) {
                    self.leave_out = behind.saturating_sub(self.carry.len() as u64);
                    self.carry.clear();
                } else {
                    self.over = Some(Over::End);
                }
            }
            RecordCheck::DataChecksum => {
                // The chunk still begins with it, unless it was carried over.
                let here = self.base + self.at as u64;
                self.at += bad.end.saturating_sub(here.max(bad.start)) as usize;
            }
        }
        self.record += 1;
        Ok(Step::Skipped(bad))
    }

    /// More bytes, or what it means that there are none.
    pub(super) fn need(&mut self, bytes: u64) -> Result<Step> {
        if !self.ended {
            // Its memory can be used for the next chunk.
            self.push(Bytes::new());
            return Ok(Step::Want(bytes));
        }
        let start = self.position();
        if self.carry.is_empty() {
            self.over = Some(Over::End);
            return Ok(Step::End);
        }
        let end = start + self.carry.len() as u64;
        let bad = Bad {
            record: self.record,
            check: RecordCheck::Truncated,
            start,
            end,
        };
        self.tell(Met::Bad(bad))
    }

    /// Room for a record of `whole` bytes: at once if the stream is known to have them, else as they come.
    fn reserve(&mut self, whole: usize) -> Result<()> {
        let here = self.block.len() - self.at;
        let more = if self.rules.total.is_some() {
            whole.saturating_sub(self.carry.len())
        } else {
            here.min(whole.saturating_sub(self.carry.len()))
        };
        if self.carry.capacity() - self.carry.len() >= more {
            return Ok(());
        }
        let outcome = if self.rules.total.is_some() {
            self.carry.try_reserve_exact(more)
        } else {
            self.carry.try_reserve(more)
        };
        outcome.map_err(|_| self.refused(whole))
    }

    pub(super) fn refused(&self, wanted: usize) -> Error {
        Error::new(ErrorKind::OutOfMemory {
            wanted: wanted as u64,
            cap: self.rules.most,
        })
    }

    pub(super) fn end_with(&mut self, over: Over) {
        self.over = Some(over);
    }
}
