//! Finding the next record behind a length that cannot be trusted.
//!
//! A place is taken for a record only if both of its checksums are right: 64 bits of evidence. (Data that holds
//! whole TFRecords itself can still be taken for some.)

use super::frame::{self, FOOTER, HEADER};
use super::parser::{Bad, Over, Parser, Step};
use crate::error::Result;

/// Work that places which turn out wrong may cost, whatever was gone through so far: bytes summed or moved. A file can be
/// made so that every twelfth byte begins a promising header; without a bound, that would be quadratic.
const WORK: u64 = 64 << 20;
/// The same, for each byte that was gone through.
const WORK_PER_BYTE: u64 = 4;

/// A search that goes on.
#[derive(Debug)]
pub(super) struct Scan {
    bad: Bad,
    /// Bytes to gather before it goes on.
    gather: usize,
    work: u64,
}

impl Parser {
    pub(super) fn begin_scan(&mut self, bad: Bad) {
        self.scan = Some(Scan {
            bad,
            gather: 0,
            work: 0,
        });
        if self.carry.is_empty() {
            self.at += 1;
        } else {
            self.carry.remove(0);
            self.carry_at += 1;
        }
    }

    /// Goes on searching.
    pub(super) fn resync(&mut self) -> Result<Step> {
        let Some(mut scan) = self.scan.take() else {
            return self.need(HEADER as u64);
        };
        if !self.carry.is_empty() {
            let rest = self.block.slice(self.at.min(self.block.len())..);
            self.gather(&rest)?;
            if self.carry.len() < scan.gather && !self.ended {
                let missing = scan.gather - self.carry.len();
                self.scan = Some(scan);
                return self.need(missing as u64);
            }
            self.base = self.carry_at;
            self.block = std::mem::take(&mut self.carry).into();
            self.at = 0;
        }
        scan.gather = 0;
        let block = self.block.clone();
        loop {
            let rest = block.get(self.at..).unwrap_or_default();
            let start = self.base + self.at as u64;
            let Some((header, behind)) = rest.split_first_chunk::<HEADER>() else {
                if self.ended {
                    // Nothing more was found: what is left is of no use.
                    let end = start + rest.len() as u64;
                    self.at = block.len();
                    self.end_with(Over::End);
                    self.record += 1;
                    return Ok(Step::Skipped(Bad { end, ..scan.bad }));
                }
                scan.gather = HEADER;
                return self.gather_from(scan, start, rest);
            };
            if let Ok(len) = self.promise(header, start) {
                let data = behind.get(..len);
                let footer = behind.get(len..).and_then(|b| b.first_chunk::<FOOTER>());
                if let (Some(data), Some(footer)) = (data, footer) {
                    scan.work += len as u64;
                    if frame::masked_crc(data) == u32::from_le_bytes(*footer) {
                        self.record += 1;
                        return Ok(Step::Skipped(Bad {
                            end: start,
                            ..scan.bad
                        }));
                    }
                } else if !self.ended {
                    scan.work += rest.len() as u64;
                    scan.gather = HEADER + len + FOOTER;
                }
                let gone = start - scan.bad.start;
                if scan.work > WORK + gone.saturating_mul(WORK_PER_BYTE) {
                    self.end_with(Over::Corrupt(scan.bad));
                    return Ok(Step::Corrupt(scan.bad));
                }
                if scan.gather > rest.len() {
                    return self.gather_from(scan, start, rest);
                }
            }
            scan.gather = 0;
            self.at += 1;
        }
    }

    /// The length in a header, if it can be one.
    #[inline]
    fn promise(&self, header: &[u8; HEADER], start: u64) -> Result<usize, ()> {
        // Most bytes are no header, and most of those no length that fits: that is cheaper to see than the sum.
        let [a, b, c, d, e, f, g, h, ..] = *header;
        let length = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        if length > self.rules.most.min(self.left(start)) {
            return Err(());
        }
        self.judge(header, start).map_err(drop)
    }

    /// Keeps `rest`, which begins at offset `start`, until there is more.
    fn gather_from(&mut self, scan: Scan, start: u64, rest: &[u8]) -> Result<Step> {
        let missing = scan.gather - rest.len();
        self.scan = Some(scan);
        self.carry_at = start;
        self.gather(rest)?;
        self.need(missing as u64)
    }

    /// Moves the rest of the chunk behind what is carried.
    fn gather(&mut self, rest: &[u8]) -> Result<()> {
        self.at = self.block.len();
        if self.carry.try_reserve(rest.len()).is_err() {
            return Err(self.refused(self.carry.len() + rest.len()));
        }
        self.carry.extend_from_slice(rest);
        Ok(())
    }
}
