//! Pages of DELTA_BINARY_PACKED: their values become an array, which is the output itself where nothing else is to be done with
//! them. Where rows can be null, or values are converted, each is written to its row when it is made.
#![allow(unsafe_code)]

use super::decode::TILE;
use super::marks::{DeltaMark, DeltaMarks, PageMarks, Prefilled};
use super::{Column, Convert, Encoding, Values};
use crate::cuda::launch::{Ride, Words, Work};
use crate::cuda::modules::Family;
use crate::error::Result;

/// Streams of deltas become numbers.
pub(in crate::cuda) const DELTA: Family =
    Family::new("delta", include_str!("../kernels/delta.ptx"));

/// As in `kernels/delta.cuh`: bytes of a stream, of what is found of it, of a checkpoint.
const STREAM: usize = 32;
const BLOCKS: usize = 24;
const CHECKPOINT: usize = 40;

const BLOCK: u32 = 128;
const WARP: u64 = 32;

/// Whether values of the column's pages go where they stay: there are as many as rows, and nothing becomes of them.
fn is_direct(column: &Column) -> bool {
    !column.nullable && column.convert == Convert::Same
}

/// Bytes of the device's memory that decoding the column takes beside its output and the tables of all columns.
pub(super) fn scratch(column: &Column) -> u64 {
    let bytes = column.pages.iter().map(|page| {
        let (values, streams) = match page.encoding {
            Encoding::DeltaBinaryPacked => (0, 1),
            // Ends of values; and where there are two streams, the numbers of both.
            Encoding::DeltaLengthByteArray => (page.entries.saturating_mul(4), 1),
            Encoding::DeltaByteArray => (page.entries.saturating_mul(12), 2),
            _ => (0, 0),
        };
        let checkpoints = page.entries.div_ceil(TILE) * streams * CHECKPOINT as u64;
        values
            .saturating_add(checkpoints)
            .saturating_add((STREAM + BLOCKS) as u64 * streams)
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
    /// Whether they go to rows, where these are of the column; there is no array of them then.
    rows: bool,
    kind: Kind,
}

/// The streams of some columns.
#[derive(Default)]
pub(super) struct Deltas {
    /// By their pages, ascending.
    streams: Vec<Stream>,
    tiles: u64,
}

impl Deltas {
    /// Those of the columns, each with the address of its output.
    pub(super) fn of<'c>(columns: impl Iterator<Item = (&'c Column, u64)>) -> Self {
        let (mut streams, mut tiles, mut number) = (Vec::new(), 0, 0);
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
                        false => 0,
                    },
                    width,
                    rows: !direct,
                    kind: Kind::Numbers,
                });
                tiles += page.entries.div_ceil(TILE);
            }
        }
        Deltas { streams, tiles }
    }

    /// Adds a stream of lengths of a page with so many rows, which are to be at `values`. Gives its number.
    pub(super) fn lengths(&mut self, page: usize, entries: u64, values: u64, kind: Kind) -> usize {
        self.streams.push(Stream {
            page,
            tiles: self.tiles,
            values,
            width: 4,
            rows: false,
            kind,
        });
        self.tiles += entries.div_ceil(TILE);
        self.streams.len() - 1
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
            table.u32(stream.kind as u32).u32(stream.rows.into());
        }
        let table = work.upload(table)?;
        let room = |work: &mut Work<'_>, len| match kept {
            true => work.filled(len, 0),
            false => work.scratch(len),
        };
        let blocks = room(work, count * BLOCKS)?;
        let checkpoints = room(work, self.tiles as usize * CHECKPOINT)?;
        let (mut ends, mut begins) = (Prefilled::default(), Prefilled::default());
        let mut any = false;
        for (number, stream) in self.streams.iter().enumerate() {
            let of = known.get(stream.page).map(|page| &page.deltas);
            let Some(marks) = of.and_then(|deltas| deltas.get(stream.kind.number())) else {
                continue;
            };
            any = true;
            // One of this stream, and as many as it has tiles.
            ends.put((number * BLOCKS) as u64, entry_of(marks));
            begins.put(stream.tiles * CHECKPOINT as u64, entries_of(marks));
        }
        // SAFETY: entries of tables that were just taken, which only this work uses.
        unsafe {
            ends.stage(work, blocks)?;
            begins.stage(work, checkpoints)?;
        }
        let (emit, rows) = match tensor {
            true => ("delta_emit_tensor", "delta_rows_tensor"),
            false => ("delta_emit", "delta_rows"),
        };
        let (streams, tiles) = (count as u64, self.tiles);
        let has = |rows| self.streams.iter().any(|stream| stream.rows == rows);
        for (kernel, warps, wanted) in [
            ("delta_walk", streams, true),
            ("delta_known", tiles, any),
            ("delta_sums", tiles, true),
            ("delta_scan", streams, true),
            (emit, tiles, has(false)),
            (rows, tiles, has(true)),
        ] {
            if !wanted {
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
            streams: table,
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

/// Where streams, and what is found of each and of its tiles, are on the device.
#[derive(Clone, Copy, Default)]
pub(super) struct Tables {
    pub(super) streams: u64,
    pub(super) blocks: u64,
    pub(super) checkpoints: u64,
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
