//! Tables of what is to be done, up to eleven launches, and one wait for what they found; for strings six launches and one wait more, and
//! seven where their lengths are deltas.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use super::delta::{self, Deltas};
use super::marks::{
    BEGINS, DeltaMarks, KNOWN_LEVELS, KNOWN_VALUES, Known, MARK, PageMarks, Prefilled, Streams,
    marks_of,
};
use super::strings::{self, hidden};
use super::{Column, Convert, Decoded, Encoding, Outcome, Page, Values};
use crate::buffer::DeviceBytes;
use crate::cuda::device::Device;
use crate::cuda::frames::bytes_of;
use crate::cuda::launch::{Output, Ride, Words, Work};
use crate::cuda::modules::Family;
use crate::error::{Error, ErrorKind, Result};

/// Runs are followed.
pub(in crate::cuda) const WALK: Family = Family::new("walk", include_str!("../kernels/walk.ptx"));
/// Levels become bits.
pub(in crate::cuda) const RLE: Family = Family::new("rle", include_str!("../kernels/rle.ptx"));
/// Values get to their rows.
pub(in crate::cuda) const FIXED: Family =
    Family::new("fixed", include_str!("../kernels/fixed.ptx"));

/// Rows of a tile, and threads of a block (`kernels/columns.cuh`).
pub(super) const TILE: u64 = 1024;
pub(super) const BLOCK: u32 = 128;
pub(super) const WARP: u64 = 32;

/// Bytes of the tables' entries: a page, a column, what is found of a page.
pub(super) const PAGE: usize = 64;
const COLUMN: usize = 64;
pub(super) const FOUND: usize = 24;

impl Device {
    /// Decodes columns whose pages are in `arena`, and waits for them.
    ///
    /// Takes, besides the output, 88 bytes of the device's memory for each page, and 28 for each 1,024 rows of one; for strings 8 bytes for
    /// each row or entry of a dictionary as well; of DELTA_BINARY_PACKED 144 and 68. Of what is wrong with pages, a column's outcome tells the
    /// first.
    ///
    /// # Errors
    /// Those of the device; nothing that the bytes or the columns say is one. [`ErrorKind::Unsupported`] for an arena of another
    /// device, [`ErrorKind::OutOfMemory`], [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub(crate) fn columns(&self, arena: &DeviceBytes, columns: &[Column]) -> Result<Vec<Outcome>> {
        Ok(self.nested(arena, columns, &[], u64::MAX)?.0)
    }
}

/// A column that is being decoded.
pub(super) struct Decoding<'a> {
    pub(super) column: Cow<'a, Column>,
    pub(super) rows: u64,
    /// Of strings, `None` until they are counted.
    pub(super) values: Option<Output>,
    pub(super) offsets: Option<Output>,
    pub(super) validity: Option<Output>,
    /// Its rows are slots, and its bitmap is filled by others.
    slots: bool,
    /// Where the column of its dictionary's entries is, among those that are decoded.
    pub(super) entries: Option<usize>,
    /// The other way round.
    of: Option<usize>,
    /// Where the tiles of its pages begin.
    pub(super) known: Known,
    /// The same, as it was found now, if that was wanted.
    pub(super) marks: Vec<PageMarks>,
}

/// Bytes of a bitmap: whole words.
pub(super) fn bitmap_len(rows: u64) -> u64 {
    rows.div_ceil(32) * 4
}

/// What is said of a column.
#[derive(Clone, Copy)]
pub(super) struct Said {
    /// Its first error; all bits if there is none.
    pub(super) error: u64,
    pub(super) nulls: u64,
    /// Bytes of strings.
    pub(super) bytes: u64,
    /// Whether they are too many.
    pub(super) is_large: bool,
}

/// Words that kernels say of a column.
const SAID: usize = 3;

impl<'a> Decoding<'a> {
    /// Memory for what a column becomes.
    pub(super) fn new(
        device: &Device,
        work: &Work<'_>,
        column: Cow<'a, Column>,
        slots: bool,
    ) -> Result<Self> {
        let rows = column.rows();
        let bitmap = Some(bitmap_len(rows));
        let buffer = |len: Option<u64>| match len {
            Some(len) => work.output(len as usize),
            None => {
                let (wanted, cap) = (u64::MAX, device.info().memory);
                Err(Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda"))
            }
        };
        let (mut values, mut offsets) = (None, None);
        match (column.output_width(), column.values) {
            (None, Values::Bytes { large, .. }) => {
                let each = if large { 8 } else { 4 };
                offsets = Some(buffer(
                    rows.checked_add(1).and_then(|rows| rows.checked_mul(each)),
                )?);
            }
            (None, _) => values = Some(buffer(bitmap)?),
            (Some(width), _) => values = Some(buffer(rows.checked_mul(u64::from(width)))?),
        }
        Ok(Decoding {
            validity: column.nullable.then(|| buffer(bitmap)).transpose()?,
            column,
            rows,
            values,
            offsets,
            slots,
            entries: None,
            of: None,
            known: Known::default(),
            marks: Vec::new(),
        })
    }

    /// # Safety
    /// The kernels are done, and this is what they said.
    pub(super) unsafe fn outcome(
        self,
        said: Said,
        entries: Option<Decoding<'_>>,
    ) -> Result<Outcome> {
        if said.error != u64::MAX {
            return Ok(Outcome::Fault {
                page: (said.error >> 32) as u32,
                check: said.error as u32,
            });
        }
        if said.is_large {
            return Ok(Outcome::Large { bytes: said.bytes });
        }
        let keeps = matches!(self.column.convert, Convert::Indices { .. });
        // SAFETY: as the caller promises; a column's errors are those of its dictionary as well.
        let mut done = unsafe { self.written(said.nulls)? };
        if let Some(entries) = entries.filter(|_| keeps) {
            // SAFETY: as above.
            done.dictionary = Some(Box::new(unsafe { entries.written(0)? }));
        }
        Ok(Outcome::Done(done))
    }

    /// # Safety
    /// The kernels are done, and found nothing wrong.
    unsafe fn written(self, nulls: u64) -> Result<Decoded> {
        let written = |output: Output| {
            // SAFETY: without an error, kernels wrote each row; bitmaps were filled before.
            unsafe { output.written() }
        };
        let values = self.values.map(written).transpose()?;
        Ok(Decoded {
            values: values.ok_or_else(|| Error::new(ErrorKind::Abandoned).by("cuda"))?,
            offsets: self.offsets.map(written).transpose()?,
            dictionary: None,
            validity: self.validity.map(written).transpose()?,
            nulls,
            rows: self.rows,
        })
    }

    /// Its entry of the table. Errors and nulls of the column are at these addresses.
    fn describe(&self, words: &mut Words, arena: u64, error: u64, nulls: u64) {
        let column = &self.column;
        let (dictionary, entries) = match &column.dictionary {
            Some((_, entries)) if matches!(column.convert, Convert::Indices { .. }) => {
                (0, *entries as u32)
            }
            Some((range, entries)) => (arena + range.start, *entries as u32),
            None => (0, 0),
        };
        let output = column.output_width().unwrap_or(0);
        let width = match (column.values, column.convert) {
            (Values::Fixed { width }, _) => width,
            // Of what is at 0 with one byte each, an index is the address.
            (Values::Bytes { .. }, Convert::Indices { .. }) => 1,
            (Values::Boolean | Values::Bytes { .. }, _) => 0,
        };
        let (convert, argument) = match column.convert {
            Convert::Indices { .. } => (6, 0),
            _ if width == 0 && column.values != Values::Boolean => (5, 0),
            Convert::Same => (0, 0),
            Convert::Part { offset, .. } => (0, offset),
            Convert::Widen { .. } => (1, 0),
            Convert::WidenBigEndian { .. } => (2, 0),
            Convert::DaysToMilliseconds => (3, 0),
            Convert::Int96 { per_second } => (4, per_second),
        };
        // What one thread writes at a time.
        let unit = match column.convert {
            Convert::Widen { .. } | Convert::WidenBigEndian { .. } => 4,
            _ => 1 << output.trailing_zeros().min(3),
        };
        let validity = self.validity.as_ref().map_or(0, Output::address);
        words
            .u64(dictionary)
            .u64(self.values.as_ref().map_or(0, Output::address))
            .u64(validity);
        words.u64(error).u64(nulls).u32(entries).u32(width);
        words
            .u32(unit)
            .u32(output / unit)
            .u32(convert)
            .u32(argument);
    }
}

/// Adds the columns of the entries of dictionaries, behind those that were asked for.
pub(super) fn add_entries(
    device: &Device,
    work: &Work<'_>,
    outputs: &mut Vec<Decoding<'_>>,
) -> Result<()> {
    for number in 0..outputs.len() {
        let entries = outputs.get(number);
        let Some(entries) = entries.and_then(|output| hidden(&output.column)) else {
            continue;
        };
        let mut decoding = Decoding::new(device, work, Cow::Owned(entries), false)?;
        decoding.of = Some(number);
        let at = outputs.len();
        outputs.push(decoding);
        if let Some(output) = outputs.get_mut(number) {
            output.entries = Some(at);
        }
    }
    Ok(())
}

/// Where a page is, for the kernels.
#[derive(Clone, Copy)]
pub(super) struct At {
    /// Where the arena begins.
    pub(super) arena: u64,
    /// Its first row.
    pub(super) first: u64,
    /// Its first tile.
    pub(super) tiles: u64,
    /// Its column, and its number there.
    pub(super) of: (u32, u32),
    /// Whether levels were made slots.
    pub(super) slots: bool,
    /// What is known of its tiles, as a flag.
    pub(super) known: u32,
    /// Whether it has to begin with a row, whatever its version.
    pub(super) begins: bool,
    /// Bytes of levels of lists in version 2.
    pub(super) repetition: u32,
}

/// The entry of a page.
pub(super) fn describe(words: &mut Words, page: &Page, at: At) {
    let encoding = match page.encoding {
        Encoding::Plain => 0,
        Encoding::Dictionary => 1,
        Encoding::Rle => 2,
        Encoding::ByteStreamSplit => 3,
        Encoding::DeltaBinaryPacked => 4,
        Encoding::DeltaLengthByteArray => 5,
        Encoding::DeltaByteArray => 6,
    };
    let len = (page.body.end - page.body.start) as u32;
    let nulls = page.nulls.map_or(u32::MAX, |nulls| nulls as u32);
    words.u64(at.arena + page.body.start);
    words.u64(at.first).u64(at.tiles);
    words.u32(len).u32(page.entries as u32);
    words.u32(at.of.0).u32(at.of.1);
    words
        .u32(page.def_len)
        .u32(nulls)
        .u32(page.v1.into())
        .u32(encoding);
    let flags = u32::from(at.slots) | at.known | if at.begins { BEGINS } else { 0 };
    words.u32(flags).u32(at.repetition);
}

/// Where a column is in the tables.
pub(super) struct Spot {
    /// Its first page.
    pub(super) page: usize,
    pub(super) tiles: Range<u64>,
}

/// Where what is found of tiles is, on the device: an array of each, as in `kernels/columns.cuh`.
#[derive(Clone, Copy, Default)]
pub(super) struct Tiles {
    pub(super) levels: u64,
    values: u64,
    pages: u64,
    bases: u64,
    counts: u64,
}

impl Tiles {
    /// Room for so many. Where they begin can be looked at later, of levels and then of values, if that is to be `kept`.
    fn new(work: &mut Work<'_>, count: u64, kept: bool) -> Result<Self> {
        let (marks, numbers) = (bytes_of(count, 2 * MARK)?, bytes_of(count, 12)?);
        let levels = match kept {
            true => work.filled(marks, 0)?,
            false => work.take(marks)?,
        };
        let pages = work.take(numbers)?;
        Ok(Tiles {
            levels,
            values: levels + count * MARK as u64,
            pages,
            bases: pages + count * 4,
            counts: pages + count * 8,
        })
    }

    /// Those of levels alone, by where the arrays are.
    pub(super) fn of_levels(levels: u64, pages: u64) -> Self {
        Tiles {
            levels,
            pages,
            ..Tiles::default()
        }
    }

    pub(super) fn describe(&self, job: &mut Words) {
        job.u64(self.levels).u64(self.values);
        job.u64(self.pages).u64(self.bases).u64(self.counts);
    }
}

/// Queues all kernels and waits for them; columns have at most `most` bytes of strings together. Gives what they say of each column, and
/// `more` words that are zero at first, which what `before` queues may write: it is queued in front, and gets the address of those words.
pub(super) fn decode(
    device: &Device,
    work: &mut Work<'_>,
    (base, len): (u64, u64),
    outputs: &mut [Decoding<'_>],
    most: u64,
    more: usize,
    before: impl FnOnce(&mut Work<'_>, u64) -> Result<()>,
) -> Result<(Vec<Said>, Vec<u64>)> {
    let count = outputs.len();
    let pages: usize = outputs.iter().map(|output| output.column.pages.len()).sum();
    let any = |is: fn(&Column) -> bool| outputs.iter().any(|output| is(&output.column));
    let strings = any(|column| matches!(column.values, Values::Bytes { .. }));
    // Columns without pages are all there already, and nothing is read for them; but strings have an offset in any case.
    if pages == 0 && !strings {
        // What was queued for them is waited for all the same: offsets and bitmaps of leaves without pages.
        work.ended()?;
        let nothing = Said {
            error: u64::MAX,
            nulls: 0,
            bytes: 0,
            is_large: false,
        };
        return Ok((vec![nothing; count], vec![0; more]));
    }
    let said = work.take((count * SAID + more) * 8)?;
    let word = |what: usize, number: usize| said + ((what * count + number) * 8) as u64;
    // SAFETY: all of them are of what was just taken.
    unsafe {
        work.fill(said, 0xff, count * 8)?;
        work.fill(word(1, 0), 0, count * 16 + more * 8)?;
    }
    before(work, word(SAID, 0))?;
    let mut page_words = Words::with_capacity(pages * PAGE)?;
    let mut column_words = Words::with_capacity(count * COLUMN)?;
    let (mut tiles, mut spots) = (0, Vec::with_capacity(count));
    let targets = outputs.iter().map(|output| {
        let values = output.values.as_ref().map_or(0, Output::address);
        (&*output.column, values)
    });
    let deltas = Deltas::of(targets);
    let (mut page_number, mut flags) = (0, 0);
    let (mut levels_known, mut values_known) = (Prefilled::default(), Prefilled::default());
    // What is known of each page.
    let mut known_pages = Vec::new();
    for (number, output) in outputs.iter().enumerate() {
        let error = word(0, output.of.unwrap_or(number));
        output.describe(&mut column_words, base, error, word(1, number));
        // Bitmaps are put together from parts.
        let bits = (output.column.values == Values::Boolean).then_some(&output.values);
        let validity = output.validity.as_ref().filter(|_| !output.slots);
        for bitmap in bits.into_iter().flatten().chain(validity) {
            // SAFETY: the memory was taken for as many rows, and is dropped after the work.
            unsafe { work.fill(bitmap.address(), 0, bitmap_len(output.rows) as usize)? };
        }
        let (mut first, begin) = (0, tiles);
        for (of, page) in output.column.pages.iter().enumerate() {
            let streams = Streams::of(&output.column, page, output.slots);
            let (marks, known) = output
                .known
                .of_page(of, streams, page.entries.div_ceil(TILE));
            levels_known.add(tiles, &marks.levels);
            values_known.add(tiles, &marks.values);
            flags |= known;
            known_pages.push(marks);
            let at = At {
                arena: base,
                first,
                tiles,
                of: (number as u32, output.of.map_or(of as u32, |_| u32::MAX)),
                slots: output.slots,
                known,
                begins: false,
                repetition: 0,
            };
            describe(&mut page_words, page, at);
            first += page.entries;
            tiles += page.entries.div_ceil(TILE);
        }
        spots.push(Spot {
            page: page_number,
            tiles: begin..tiles,
        });
        page_number += output.column.pages.len();
    }
    let page_table = work.upload(page_words)?;
    let columns = work.upload(column_words)?;
    let found = work.take(pages * FOUND)?;
    let keep = outputs.iter().any(|output| output.known.is_wanted());
    let of_tiles = Tiles::new(work, tiles, keep)?;
    // SAFETY: entries of the arrays that were just taken, which only this work uses.
    unsafe {
        levels_known.stage(work, of_tiles.levels)?;
        values_known.stage(work, of_tiles.values)?;
    }
    let (begin, end) = (base, base + len);
    let job = |stage| {
        let mut job = Words::default();
        job.u64(page_table).u64(columns).u64(found);
        of_tiles.describe(&mut job);
        job.u64(pages as u64).u64(tiles).u64(begin).u64(end);
        job.u64(begin.next_multiple_of(4)).u64(end & !3);
        job.u32(stage).u32(0);
        job
    };
    let (page_warps, tile_warps) = (pages as u64 * WARP, tiles * WARP);
    let (page_blocks, tile_blocks) = (pages as u64 * 128, tiles * 128);
    let has = |encodings: &[Encoding]| {
        let mut pages = outputs.iter().flat_map(|output| &output.column.pages);
        pages.any(|page| encodings.contains(&page.encoding))
    };
    let mut found_deltas = delta::Tables::default();
    // SAFETY: the job is a `Job` with tables of these lengths. Pages and dictionaries are inside of the arena, which the caller holds, and
    // outputs have a place for each row, as `Column::shape` and `Decoding::new` saw to; both stay until the work is done. What
    // kernels find and lead others to is checked by `walk` and `ranks`. Without pages there is nothing to do.
    unsafe {
        if pages > 0 {
            work.launch(WALK, "walk", BLOCK, page_warps, job(0))?;
            if flags & KNOWN_LEVELS != 0 {
                work.launch(WALK, "walk_known", BLOCK, tile_warps, job(0))?;
            }
            if any(|column| column.nullable) {
                work.launch(RLE, "rle", BLOCK, tile_warps, job(0))?;
            }
            work.launch(RLE, "ranks", BLOCK, page_blocks, job(0))?;
            if has(&[Encoding::Dictionary, Encoding::Rle]) {
                work.launch(WALK, "walk", BLOCK, page_warps, job(1))?;
                if flags & KNOWN_VALUES != 0 {
                    work.launch(WALK, "walk_known", BLOCK, tile_warps, job(1))?;
                }
            }
            let tensor = device.tensor_sums();
            found_deltas = deltas.launch(work, || job(0), tensor, &known_pages, keep)?;
            // Deltas are at their rows already.
            if any(|column| column.is_fixed() && !column.is_all_deltas()) {
                work.launch(FIXED, "fixed", BLOCK, tile_blocks, job(0))?;
            }
            if any(|column| column.values == Values::Boolean) {
                work.launch(FIXED, "booleans", BLOCK, tile_blocks, job(0))?;
            }
        }
    }
    let found = |work: &mut Work<'_>| -> Result<(Vec<Said>, Vec<u64>)> {
        // SAFETY: so many words, which were filled.
        let words = unsafe { work.look::<8>(said, count * SAID + more)? };
        let mut words: Vec<u64> = words.into_iter().map(u64::from_ne_bytes).collect();
        let more = words.split_off((count * SAID).min(words.len()));
        let word = |what: usize, number: usize| words.get(what * count + number).copied();
        let said = (0..count).map(|number| Said {
            error: word(0, number).unwrap_or_default(),
            nulls: word(1, number).unwrap_or_default(),
            bytes: word(2, number).unwrap_or_default(),
            is_large: false,
        });
        Ok((said.collect(), more))
    };
    let noted = is_noted(outputs);
    if !strings {
        // SAFETY: they were to be kept.
        let noted = noted.then(|| unsafe {
            let marks = work.ride(of_tiles.levels, tiles as usize * 2 * MARK);
            (marks, deltas.asked(work, found_deltas))
        });
        let found = found(work)?;
        if let Some((marks, asked)) = noted {
            let deltas = deltas.marks(work, asked)?;
            note_marks(work, outputs, marks, deltas)?;
        }
        return Ok(found);
    }
    let tables = strings::Tables {
        job: &|| job(0),
        base,
        spots,
        bytes: word(2, 0),
        pages,
        tiles,
        known: &known_pages,
        kept: keep,
        tensor: device.tensor_sums(),
    };
    // SAFETY: the tables are those of the launches before.
    let table = unsafe { strings::find(work, &tables, outputs)? };
    // SAFETY: as above.
    let noted = noted.then(|| unsafe {
        let tiles = work.ride(of_tiles.levels, tiles as usize * 2 * MARK);
        let asked = deltas.asked(work, found_deltas);
        (tiles, asked, table.texts().asked(work))
    });
    let (mut all, more) = found(work)?;
    if let Some((tiles, asked, asked_texts)) = noted {
        let mut marks = deltas.marks(work, asked)?;
        marks.extend(table.texts().marks(work, asked_texts)?);
        note_marks(work, outputs, tiles, marks)?;
    }
    // SAFETY: as above, and what was said of these columns.
    if unsafe { strings::copy(work, &tables, table, outputs, &mut all, most)? } {
        for (said, again) in all.iter_mut().zip(found(work)?.0) {
            said.error = again.error;
        }
    }
    Ok((all, more))
}

/// Whether somebody wants to know where tiles of an output begin, and it has large pages.
fn is_to_be_noted(output: &Decoding<'_>) -> bool {
    let mut pages = output.column.pages.iter();
    output.known.is_wanted()
        && pages.any(|page| Streams::of(&output.column, page, output.slots).any())
}

fn is_noted(outputs: &[Decoding<'_>]) -> bool {
    outputs.iter().any(is_to_be_noted)
}

/// Looks where the tiles of large pages begin, of columns of which that is wanted and not known; of deltas it is told, by their pages. The work
/// is done.
fn note_marks(
    work: &mut Work<'_>,
    outputs: &mut [Decoding<'_>],
    marks: Ride,
    mut deltas: Vec<(usize, DeltaMarks)>,
) -> Result<()> {
    deltas.sort_by_key(|(page, _)| *page);
    let (mut deltas, mut page_number) = (deltas.into_iter().peekable(), 0);
    let marks = work.ridden_as::<MARK>(marks)?;
    let (mut levels, mut values) = marks.split_at(marks.len() / 2);
    for output in outputs {
        let keep = is_to_be_noted(output);
        for page in &output.column.pages {
            let tiles = page.entries.div_ceil(TILE) as usize;
            let (own_levels, other_levels) = levels.split_at(tiles.min(levels.len()));
            let (own_values, other_values) = values.split_at(tiles.min(values.len()));
            (levels, values) = (other_levels, other_values);
            let of_page = |(page, _): &(usize, DeltaMarks)| *page == page_number;
            let mut streams_of = Vec::new();
            while let Some((_, marks)) = deltas.next_if(of_page) {
                streams_of.push(marks);
            }
            page_number += 1;
            if !keep {
                continue;
            }
            let streams = Streams::of(&output.column, page, output.slots);
            let wanted = |own: &[[u8; MARK]], wanted: bool| match wanted {
                true => marks_of(own),
                false => Vec::new(),
            };
            output.marks.push(PageMarks {
                levels: wanted(own_levels, streams.levels),
                repeats: Vec::new(),
                values: wanted(own_values, streams.values),
                deltas: match streams_of.len() == streams.deltas {
                    true => streams_of,
                    false => Vec::new(),
                },
            });
        }
    }
    Ok(())
}
