//! Pages of DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY: streams of lengths become ends of values, as `strings` takes them; and the bytes
//! of the latter, which are no part of their page.
#![allow(unsafe_code)]

use super::decode::TILE;
use super::delta::{Deltas, Kind, Tables};
use super::marks::{DeltaMarks, PageMarks};
use super::{Encoding, Page};
use crate::cuda::frames::bytes_of;
use crate::cuda::launch::{Ride, Words, Work};
use crate::cuda::modules::Family;
use crate::error::Result;

/// Lengths become ends, and beginnings are put in front of what is stored.
pub(in crate::cuda) const DELTA_STRINGS: Family = Family::new(
    "delta_strings",
    include_str!("../kernels/delta_strings.ptx"),
);

/// As in `kernels/delta_strings.cu`: bytes of a tile's entry.
const TEXT_TILE: usize = 12;
const BLOCK: u32 = 128;
const WARP: u64 = 32;

/// The pages of some columns.
#[derive(Default)]
pub(super) struct Texts {
    streams: Deltas,
    /// The table of pages, until it is uploaded.
    words: Words,
    count: u64,
    tiles: u64,
    /// Whether there is one whose bytes have to be made.
    prefixed: bool,
    /// Once they are queued, where the streams and what is found of them are.
    found: Tables,
    /// And the pages, and their tiles.
    tables: [u64; 2],
}

impl Texts {
    /// Adds a page, which is number `number` among all; its values end where the numbers from `ends` on say, once [`find`](Self::find) is
    /// done. Of other encodings it does nothing.
    pub(super) fn add(
        &mut self,
        work: &mut Work<'_>,
        number: usize,
        page: &Page,
        ends: u64,
    ) -> Result<()> {
        let entries = page.entries;
        let (prefixes, lengths, stream) = match page.encoding {
            Encoding::DeltaLengthByteArray => {
                let streams = &mut self.streams;
                let stream = streams.lengths(number, entries, ends, Kind::Lengths);
                (0, ends, stream)
            }
            Encoding::DeltaByteArray => {
                let prefixes = work.scratch(bytes_of(entries, 4)?)?;
                let lengths = work.scratch(bytes_of(entries, 4)?)?;
                let streams = &mut self.streams;
                streams.lengths(number, entries, prefixes, Kind::Lengths);
                let last = streams.lengths(number, entries, lengths, Kind::NextLengths);
                self.prefixed = true;
                (prefixes, lengths, last)
            }
            _ => return Ok(()),
        };
        self.words.u64(prefixes).u64(lengths).u64(self.tiles);
        self.words.u32(number as u32).u32(stream as u32);
        self.count += 1;
        self.tiles += entries.div_ceil(TILE);
        Ok(())
    }

    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there are bytes to be made.
    pub(super) fn is_prefixed(&self) -> bool {
        self.prefixed
    }

    /// Queues what finds the ends. `job` is that of the kernels of columns, `strings` that of those of strings.
    ///
    /// # Safety
    /// As for [`Deltas::launch`]; the job of strings has sources whose ends have room for as many as their pages have rows.
    pub(super) unsafe fn find(
        &mut self,
        work: &mut Work<'_>,
        job: impl Fn() -> Words,
        tensor: bool,
        (known, kept): (&[PageMarks], bool),
        strings: impl Fn() -> Words,
    ) -> Result<()> {
        // SAFETY: as the caller promises; the arrays for lengths were made as long.
        self.found = unsafe { self.streams.launch(work, job, tensor, known, kept)? };
        let texts = work.upload(std::mem::take(&mut self.words))?;
        let tiles = work.scratch(bytes_of(self.tiles, TEXT_TILE)?)?;
        self.tables = [texts, tiles];
        for (kernel, warps) in [
            ("delta_text_scan", self.count),
            ("delta_text_ends", self.tiles),
        ] {
            let job = self.job(strings());
            // SAFETY: the job is a `TextJob` with tables of these lengths; lengths are those of the streams, as many as values. Of a page
            // whose sums are wrong, or a length of which is negative, the first finds it, and the second makes no ends.
            unsafe { work.launch(DELTA_STRINGS, kernel, BLOCK, warps * WARP, job)? };
        }
        Ok(())
    }

    /// Has what is found of the streams copied at the next wait.
    ///
    /// # Safety
    /// [`find`](Self::find) was to keep that.
    pub(super) unsafe fn asked(&self, work: &mut Work<'_>) -> Option<[Ride; 2]> {
        // SAFETY: as the caller promises.
        unsafe { self.streams.asked(work, self.found) }
    }

    /// Where the tiles of each stream begin, with its page.
    pub(super) fn marks(
        &self,
        work: &mut Work<'_>,
        asked: Option<[Ride; 2]>,
    ) -> Result<Vec<(usize, DeltaMarks)>> {
        self.streams.marks(work, asked)
    }

    /// Queues what makes the bytes of values that begin as the ones before, where the columns in `strings` have theirs.
    ///
    /// # Safety
    /// [`find`](Self::find) is done, and so is what finds where bytes of tiles go; columns have room for all of theirs, or none. Those have none
    /// that something is wrong with: of their pages, values may begin with more than there is.
    pub(super) unsafe fn bytes(&self, work: &mut Work<'_>, strings: Words) -> Result<()> {
        let job = self.job(strings);
        let threads = self.tiles * WARP;
        // SAFETY: as in `find`. Where there is room, no value begins with more bytes than the one before has, and all are where sums of lengths
        // say, which neither the page nor the room is exceeded by.
        unsafe { work.launch(DELTA_STRINGS, "delta_text_bytes", BLOCK, threads, job) }
    }

    fn job(&self, mut job: Words) -> Words {
        let Tables {
            streams,
            blocks,
            checkpoints,
        } = self.found;
        job.u64(streams).u64(blocks).u64(checkpoints);
        for table in self.tables {
            job.u64(table);
        }
        job.u64(self.count).u64(self.tiles);
        job
    }
}
