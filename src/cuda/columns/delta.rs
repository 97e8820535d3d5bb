//! Pages of DELTA_BINARY_PACKED: their values become an array, which is the output itself where nothing else is to be done with
//! them, and otherwise what the other kernels take for values in PLAIN.
#![allow(unsafe_code)]

use super::decode::TILE;
use super::marks::{DeltaMark, DeltaMarks, PageMarks};
use super::{Column, Convert, Encoding, Values};
use crate::cuda::launch::{Ride, Words, Work};
use crate::cuda::modules::Family;
use crate::error::Result;

/// Streams of deltas become numbers.
pub(in crate::cuda) const DELTA: Family =
    Family::new("delta", include_str!("../kernels/delta.ptx"));

/// As in `kernels/delta.cuh`: bytes of a stream, of what is found of it, of a checkpoint; and the alignment of arrays, which lets threads store
/// 16 bytes at once.
const STREAM: usize = 32;
const BLOCKS: usize = 24;
const CHECKPOINT: usize = 40;
const ALIGN: u64 = 16;

const BLOCK: u32 = 128;
const WARP: u64 = 32;

/// Whether values of the column's pages go where they stay: there are as many as rows, and nothing becomes of them.
fn is_direct(column: &Column) -> bool {
    !column.nullable && column.convert == Convert::Same
}

/// Bytes that the values of a DELTA_BINARY_PACKED page take until they get to their rows.
fn kept(column: &Column, entries: u64) -> u64 {
    match column.values {
        Values::Fixed { width } if !is_direct(column) => entries.saturating_mul(u64::from(width)),
        _ => 0,
    }
}

/// Bytes of the device's memory that decoding the column takes beside its output and the tables of all columns.
pub(super) fn scratch(column: &Column) -> u64 {
    let bytes = column.pages.iter().map(|page| {
        let (values, streams) = match page.encoding {
            Encoding::DeltaBinaryPacked => (kept(column, page.entries), 1),
            // Ends of values; and where there are two streams, the numbers of both.
            Encoding::DeltaLengthByteArray => (page.entries.saturating_mul(4), 1),
            Encoding::DeltaByteArray => (page.entries.saturating_mul(12), 2),
            _ => (0, 0),
        };
        let checkpoints = page.entries.div_ceil(TILE) * streams * CHECKPOINT as u64;
        values.saturating_add(checkpoints).saturating_add(2 * ALIGN)
    });
    bytes.fold(0, u64::saturating_add)
}

/// What the values of a stream are, as in `kernels/delta.cuh`.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Numbers = 0,
    Lengths = 1,
    /// They follow those of the stream before, which is of the same page.
    NextLengths = 2,
}

/// A stream of deltas.
struct Stream {
    /// In the table of pages.
    page: usize,
    /// The first of its tiles among those of all streams.
    tiles: u64,
    /// Where its values go.
    values: u64,
    width: u32,
    direct: bool,
    kind: Kind,
}

/// The streams of some columns.
#[derive(Default)]
pub(super) struct Deltas {
    /// By their pages, ascending.
    streams: Vec<Stream>,
    tiles: u64,
    /// The memory of values that get to their rows later, and its end.
    memory: (u64, u64),
}

impl Deltas {
    /// Those of the columns, each with the address of its output; memory for what they need is taken.
    pub(super) fn of<'c>(
        work: &mut Work<'_>,
        columns: impl Iterator<Item = (&'c Column, u64)>,
    ) -> Result<Self> {
        let (mut streams, mut tiles, mut end, mut number) = (Vec::new(), 0, 0u64, 0);
        for (column, output) in columns {
            let mut first = 0;
            for page in &column.pages {
                let rows = first;
                (first, number) = (first + page.entries, number + 1);
                let Values::Fixed { width } = column.values else {
                    continue;
                };
                if page.encoding != Encoding::DeltaBinaryPacked {
                    continue;
                }
                let direct = is_direct(column);
                streams.push(Stream {
                    page: number - 1,
                    tiles,
                    values: match direct {
                        true => output + rows * u64::from(width),
                        false => end,
                    },
                    width,
                    direct,
                    kind: Kind::Numbers,
                });
                tiles += page.entries.div_ceil(TILE);
                end = (end + kept(column, page.entries)).next_multiple_of(ALIGN);
            }
        }
        let memory = work.scratch(usize::try_from(end).unwrap_or(usize::MAX))?;
        for stream in streams.iter_mut().filter(|stream| !stream.direct) {
            stream.values += memory;
        }
        Ok(Deltas {
            streams,
            tiles,
            memory: (memory, memory + end),
        })
    }

    /// Adds a stream of lengths of a page with so many rows, which are to be at `values`. Gives its number.
    pub(super) fn lengths(&mut self, page: usize, entries: u64, values: u64, kind: Kind) -> usize {
        self.streams.push(Stream {
            page,
            tiles: self.tiles,
            values,
            width: 4,
            direct: true,
            kind,
        });
        self.tiles += entries.div_ceil(TILE);
        self.streams.len() - 1
    }

    /// Where the values of a page are that get to their rows by the kernel `fixed`; 0 for others.
    pub(super) fn plain(&self, page: usize) -> u64 {
        let found = self
            .streams
            .binary_search_by_key(&page, |stream| stream.page);
        let found = found.ok().and_then(|at| self.streams.get(at));
        found.map_or(0, |stream| if stream.direct { 0 } else { stream.values })
    }

    /// The memory that those are in, if there are any.
    pub(super) fn memory(&self) -> Option<(u64, u64)> {
        let (begin, end) = self.memory;
        (begin < end).then_some(self.memory)
    }

    /// Queues the kernels. `job` is that of the kernels of columns; `known` has what is known of each page, or nothing. Gives where what is
    /// found of the streams is; all of it can be looked at later if it is to be `kept`.
    ///
    /// # Safety
    /// The job has the pages that these streams are of, what was found of them up to `ranks`, and the columns whose outputs were named. Where
    /// lengths go, there is room for as many as their pages have rows.
    pub(super) unsafe fn launch(
        &self,
        work: &mut Work<'_>,
        job: impl Fn() -> Words,
        tensor: bool,
        known: &[PageMarks],
        kept: bool,
    ) -> Result<Tables> {
        let count = self.streams.len();
        if count == 0 {
            return Ok(Tables::default());
        }
        let mut table = Words::with_capacity(count * STREAM)?;
        for stream in &self.streams {
            table.u64(stream.values).u64(stream.tiles);
            table.u32(stream.page as u32).u32(stream.width);
            table.u32(stream.kind as u32).u32(0);
        }
        let table = work.upload(table)?;
        let room = |work: &mut Work<'_>, len| match kept {
            true => work.filled(len, 0),
            false => work.scratch(len),
        };
        let blocks = room(work, count * BLOCKS)?;
        let checkpoints = room(work, self.tiles as usize * CHECKPOINT)?;
        let mut any = false;
        for (number, stream) in self.streams.iter().enumerate() {
            let of = known.get(stream.page).map(|page| &page.deltas);
            let Some(marks) = of.and_then(|deltas| deltas.get(stream.kind.number())) else {
                continue;
            };
            any = true;
            let (ends, tiles) = (entry_of(marks), entries_of(marks));
            let at = blocks + (number * BLOCKS) as u64;
            let first = checkpoints + stream.tiles * CHECKPOINT as u64;
            // SAFETY: entries of tables that were just taken, which only this work uses: one of this stream, and as many as it has tiles.
            unsafe {
                work.stage(&[&ends], at)?;
                work.stage(&[&tiles], first)?;
            }
        }
        let emit = match tensor {
            true => "delta_emit_tensor",
            false => "delta_emit",
        };
        let (streams, tiles) = (count as u64, self.tiles);
        for (kernel, warps) in [
            ("delta_walk", streams),
            ("delta_known", if any { tiles } else { 0 }),
            ("delta_sums", tiles),
            ("delta_scan", streams),
            (emit, tiles),
        ] {
            if warps == 0 && kernel == "delta_known" {
                continue;
            }
            let mut job = job();
            job.u64(table).u64(blocks).u64(checkpoints);
            job.u64(streams).u64(tiles);
            // SAFETY: the job is a `DeltaJob` with tables of these lengths, values have room for all rows of their page, and what the
            // kernels follow in the pages is checked by the first.
            unsafe { work.launch(DELTA, kernel, BLOCK, warps * WARP, job)? };
        }
        Ok(Tables {
            blocks,
            checkpoints,
        })
    }

    /// Has what is found of the streams copied at the next wait.
    ///
    /// # Safety
    /// The tables are those of [`launch`](Self::launch), to be kept.
    pub(super) unsafe fn asked(&self, work: &mut Work<'_>, tables: Tables) -> Option<[Ride; 2]> {
        if self.streams.is_empty() {
            return None;
        }
        // SAFETY: so many entries, which were filled.
        unsafe {
            let blocks = work.ride(tables.blocks, self.streams.len() * BLOCKS);
            let checkpoints = work.ride(tables.checkpoints, self.tiles as usize * CHECKPOINT);
            Some([blocks, checkpoints])
        }
    }

    /// Where the tiles of each stream begin, with its page.
    pub(super) fn marks(
        &self,
        work: &mut Work<'_>,
        asked: Option<[Ride; 2]>,
    ) -> Result<Vec<(usize, DeltaMarks)>> {
        let Some([blocks, checkpoints]) = asked else {
            return Ok(Vec::new());
        };
        let blocks = work.ridden_as::<BLOCKS>(blocks)?;
        let checkpoints = work.ridden_as::<CHECKPOINT>(checkpoints)?;
        let next = self.streams.iter().skip(1).map(|stream| stream.tiles);
        let ends = next.chain([self.tiles]);
        let streams = self.streams.iter().zip(ends).zip(&blocks);
        let marks = streams.map(|((stream, end), blocks)| {
            let tiles = checkpoints.get(stream.tiles as usize..end as usize);
            let tiles = tiles.unwrap_or_default().iter();
            let marks = DeltaMarks {
                end: match stream.kind {
                    Kind::Numbers => 0,
                    Kind::Lengths | Kind::NextLengths => word(blocks, 4),
                },
                tiles: tiles.map(mark_of).collect(),
            };
            (stream.page, marks)
        });
        Ok(marks.collect())
    }
}

/// Where what is found of streams is, on the device.
#[derive(Clone, Copy, Default)]
pub(super) struct Tables {
    /// Of each stream.
    pub(super) blocks: u64,
    checkpoints: u64,
}

impl Kind {
    /// Which of its page's streams it is.
    fn number(self) -> usize {
        usize::from(matches!(self, Kind::NextLengths))
    }
}

/// The entry of a stream of which it is known where it ends.
fn entry_of(marks: &DeltaMarks) -> Vec<u8> {
    let words = [0, 0, 0, 0, marks.end, 0];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The entries of its tiles. Sums are zero until somebody makes them.
fn entries_of(marks: &DeltaMarks) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(marks.tiles.len() * CHECKPOINT);
    for mark in &marks.tiles {
        bytes.extend(0u64.to_ne_bytes());
        bytes.extend(mark.least.to_ne_bytes());
        let words = [0, mark.widths, mark.mini, mark.data, mark.skip, 0];
        bytes.extend(words.iter().flat_map(|word: &u32| word.to_ne_bytes()));
    }
    bytes
}

fn mark_of(checkpoint: &[u8; CHECKPOINT]) -> DeltaMark {
    let word = |at| word(checkpoint, at);
    let mut least = [0; 8];
    for (to, from) in least.iter_mut().zip(checkpoint.iter().skip(8)) {
        *to = *from;
    }
    DeltaMark {
        least: u64::from_ne_bytes(least),
        widths: word(5),
        mini: word(6),
        data: word(7),
        skip: word(8),
    }
}

/// A word of an entry.
fn word(entry: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    for (to, from) in word.iter_mut().zip(entry.iter().skip(at * 4)) {
        *to = *from;
    }
    u32::from_ne_bytes(word)
}
