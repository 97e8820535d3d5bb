//! Strings: where the values of pages end, then offsets of rows, then their bytes, once it is known how many there are.
//!
//! A dictionary page is the one page of a hidden column behind those that were asked for, so that its entries are found like other values.
#![allow(unsafe_code)]

use std::ops::Range;

use super::decode::{Decoding, Said, Spot};
use super::delta_strings::Texts;
use super::marks::PageMarks;
use super::{Column, Convert, Encoding, Page, Values};
use crate::cuda::frames::bytes_of;
use crate::cuda::launch::{Words, Work};
use crate::cuda::modules::Family;
use crate::cuda::scan;
use crate::error::Result;

/// Lengths are followed, and bytes get to their rows.
pub(in crate::cuda) const STRINGS: Family =
    Family::new("strings", include_str!("../kernels/strings.ptx"));

/// As in `kernels/strings.cu`.
const BLOCK: u32 = 128;
const WARP: u64 = 32;
const CHUNK: u64 = 8192;
const SOURCE: usize = 24;
const STRINGS_ENTRY: usize = 80;

/// Bytes in front of each PLAIN value: its length.
const GAP: u32 = 4;

/// What is uploaded already, and where.
pub(super) struct Tables<'a> {
    pub(super) job: &'a dyn Fn() -> Words,
    /// Where the arena is.
    pub(super) base: u64,
    pub(super) spots: Vec<Spot>,
    /// A word for the bytes of each column.
    pub(super) bytes: u64,
    pub(super) pages: usize,
    pub(super) tiles: u64,
    /// Where tiles of pages begin, as far as it is known, and whether it is to be kept.
    pub(super) known: &'a [PageMarks],
    pub(super) kept: bool,
    /// Whether tensor cores sum the deltas of lengths.
    pub(super) tensor: bool,
}

/// What [`find`] adds to them.
pub(super) struct Found {
    sources: u64,
    bytes: u64,
    before: u64,
    /// The table of columns, as it is now.
    table: u64,
    columns: Vec<Entry>,
    texts: Texts,
}

/// The entry of a column, of which all is zero if it is none of strings.
#[derive(Default)]
struct Entry {
    offsets: u64,
    values: u64,
    places: u64,
    bytes: u64,
    tiles: Range<u64>,
    rows: u64,
    chunk: u64,
    dictionary: Option<usize>,
    large: bool,
    utf8: bool,
    decimals: bool,
}

/// The column of a dictionary's entries.
pub(super) fn hidden(column: &Column) -> Option<Column> {
    let (Values::Bytes { large, utf8 }, Some((body, entries))) =
        (column.values, &column.dictionary)
    else {
        return None;
    };
    let page = Page {
        body: body.clone(),
        v1: true,
        def_len: 0,
        entries: *entries,
        nulls: None,
        encoding: Encoding::Plain,
    };
    let is_kept = matches!(column.convert, Convert::Indices { .. });
    Some(Column {
        values: Values::Bytes {
            large: large && is_kept,
            utf8,
        },
        nullable: false,
        dictionary: None,
        pages: vec![page],
        convert: Convert::Same,
    })
}

/// Values that a page may have at most: in PLAIN each has a length, if nothing else. Indices are none.
fn most_values(page: &Page) -> u64 {
    let len = page.body.end.saturating_sub(page.body.start);
    match page.encoding {
        Encoding::Dictionary => 0,
        Encoding::Plain => page.entries.min(len / u64::from(GAP)),
        _ => page.entries,
    }
}

/// Queues what finds the offsets of all rows of strings, and how many bytes they have. Decimals are done with it.
///
/// # Safety
/// What the tables lead to is there until the work is done; levels, ranks and runs of their pages are found by what was queued before.
pub(super) unsafe fn find(
    work: &mut Work<'_>,
    tables: &Tables<'_>,
    outputs: &[Decoding<'_>],
) -> Result<Found> {
    let each = || outputs.iter().filter(|output| is_bytes(&output.column));
    let pages = each().flat_map(|output| &output.column.pages);
    let values = pages.map(most_values).sum();
    let mut ends = work.scratch(bytes_of(values, 4)?)?;
    let mut sources = Words::with_capacity(tables.pages.saturating_mul(SOURCE))?;
    let mut columns = Vec::with_capacity(outputs.len());
    let mut texts = Texts::default();
    for (number, (output, spot)) in outputs.iter().zip(&tables.spots).enumerate() {
        let column = &output.column;
        for (number, page) in (spot.page..).zip(&column.pages) {
            let known = is_bytes(column) && page.encoding != Encoding::Dictionary;
            let body = tables.base + page.body.start;
            sources.u64(if known { ends } else { 0 }).u64(body);
            sources.u32(0).u32(GAP);
            if known {
                texts.add(work, number, page, ends)?;
                ends += most_values(page) * 4;
            }
        }
        let Values::Bytes { large, utf8 } = column.values else {
            columns.push(Entry::default());
            continue;
        };
        let mut entry = Entry {
            bytes: tables.bytes + number as u64 * 8,
            tiles: spot.tiles.clone(),
            rows: output.rows,
            dictionary: output.entries,
            large,
            utf8,
            decimals: !column.is_text(),
            ..Entry::default()
        };
        if let Some(offsets) = &output.offsets {
            entry.offsets = offsets.address();
            // Without a page that has places, none are written or looked at.
            let has_places = |page: &Page| page.encoding != Encoding::DeltaByteArray;
            if column.pages.iter().any(has_places) {
                entry.places = work.scratch(bytes_of(output.rows, 4)?)?;
            }
            if output.rows == 0 {
                // SAFETY: there is one of them, which is dropped after the work.
                unsafe { work.fill(entry.offsets, 0, if large { 8 } else { 4 })? };
            }
        }
        columns.push(entry);
    }
    let bytes = work.filled(bytes_of(tables.tiles, 8)?, 0)?;
    let mut found = Found {
        sources: work.upload(sources)?,
        bytes,
        before: 0,
        table: 0,
        columns,
        texts: Texts::default(),
    };
    if tables.tiles == 0 {
        return Ok(found);
    }
    found.upload(work, tables)?;
    let blocks = tables.tiles * u64::from(BLOCK);
    let job = found.job(tables, 0);
    // SAFETY: the job is a `StringJob` with tables of these lengths. Each value that `strings_walk` finds is inside of its page and has an
    // end of its own; the others stay inside of what it found.
    unsafe {
        let warps = tables.pages as u64 * WARP;
        work.launch(STRINGS, "strings_walk", BLOCK, warps, job)?;
    }
    if tables.known.iter().any(|page| !page.values.is_empty()) {
        let job = found.job(tables, 0);
        // SAFETY: as above; where tiles are said to begin is looked at before it is used.
        unsafe { work.launch(STRINGS, "strings_known", BLOCK, tables.tiles * WARP, job)? };
    }
    if !texts.is_empty() {
        let strings = || found.job(tables, 0);
        // SAFETY: as above: there is an end for each row of their pages.
        unsafe {
            let known = (tables.known, tables.kept);
            texts.find(work, tables.job, tables.tensor, known, strings)?;
        }
    }
    found.texts = texts;
    if each().any(|output| output.column.is_text()) {
        let job = found.job(tables, 0);
        // SAFETY: as above; a number for each tile, which were all filled.
        unsafe {
            work.launch(STRINGS, "strings_count", BLOCK, blocks, job)?;
            found.before = scan::rows(work, found.bytes, 1, tables.tiles)?;
        }
        let job = found.job(tables, 0);
        // SAFETY: as above, with a place for each row that one is written for, and an offset more.
        unsafe { work.launch(STRINGS, "strings_place", BLOCK, blocks, job)? };
    }
    let is_decimal = |column: &Column| matches!(column.convert, Convert::WidenBigEndian { .. });
    if each().any(|output| is_decimal(&output.column)) {
        let job = found.job(tables, 0);
        // SAFETY: as above, with room for the decimal of each row.
        unsafe { work.launch(STRINGS, "strings_decimals", BLOCK, blocks, job)? };
    }
    Ok(found)
}

/// Makes room for the bytes of all columns that nothing is wrong with, as far as they are allowed to have so many, and queues the copy; bytes
/// that are to be UTF-8 are looked at meanwhile. Whether there is anything to wait for.
///
/// # Safety
/// As for [`find`], whose work is done and `said` this.
pub(super) unsafe fn copy(
    work: &mut Work<'_>,
    tables: &Tables<'_>,
    mut found: Found,
    outputs: &mut [Decoding<'_>],
    said: &mut [Said],
    most: u64,
) -> Result<bool> {
    // Bytes of entries count for the column that keeps them, and what is wrong with these is wrong with that.
    let mut owners: Vec<usize> = (0..outputs.len()).collect();
    for (number, output) in outputs.iter().enumerate() {
        if let Some(owner) = output.entries.and_then(|entries| owners.get_mut(entries)) {
            *owner = number;
        }
    }
    let (mut all, mut chunks) = (0u64, 0);
    for (number, owner) in owners.into_iter().enumerate() {
        let Some(entry) = found.columns.get_mut(number) else {
            continue;
        };
        entry.chunk = chunks;
        let is_kept = owner == number || keeps(outputs, owner);
        let error = said.get(owner).map_or(0, |said| said.error);
        let (Some(output), Some(Said { bytes, .. })) = (outputs.get_mut(number), said.get(number))
        else {
            continue;
        };
        if error != u64::MAX || !output.column.is_text() {
            continue;
        }
        let bytes = *bytes;
        if is_kept {
            all = all.saturating_add(bytes);
            if all > most || !entry.large && bytes > i32::MAX as u64 {
                if let Some(said) = said.get_mut(owner) {
                    (said.is_large, said.bytes) = (true, bytes);
                }
                continue;
            }
            let values = work.output(bytes_of(bytes, 1)?)?;
            entry.values = values.address();
            output.values = Some(values);
        }
        if is_kept || entry.utf8 {
            chunks += bytes.div_ceil(CHUNK);
        }
    }
    if chunks == 0 {
        return Ok(false);
    }
    found.upload(work, tables)?;
    let job = found.job(tables, chunks);
    let threads = chunks * u64::from(BLOCK);
    // SAFETY: as in `find`: offsets and places are those of rows that nothing is wrong with, and there is room for all bytes. Pages of
    // DELTA_BYTE_ARRAY have no places: `strings_place` writes none, and `strings_copy` passes these pages over.
    unsafe { work.launch(STRINGS, "strings_copy", BLOCK, threads, job)? };
    if found.texts.is_prefixed() {
        let job = found.job(tables, chunks);
        // SAFETY: as above.
        unsafe { found.texts.bytes(work, job)? };
    }
    Ok(true)
}

fn is_bytes(column: &Column) -> bool {
    matches!(column.values, Values::Bytes { .. })
}

/// Whether a column's entries come out beside its indices.
fn keeps(outputs: &[Decoding<'_>], number: usize) -> bool {
    let output = outputs.get(number);
    output.is_some_and(|output| matches!(output.column.convert, Convert::Indices { .. }))
}

impl Found {
    /// What the lengths of values are read from, where they are deltas.
    pub(super) fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Brings the columns to the device, as they are now.
    fn upload(&mut self, work: &mut Work<'_>, tables: &Tables<'_>) -> Result<()> {
        let mut words = Words::with_capacity(self.columns.len().saturating_mul(STRINGS_ENTRY))?;
        for entry in &self.columns {
            let page = entry.dictionary.and_then(|at| tables.spots.get(at));
            let page = page.map_or(u32::MAX, |spot| spot.page as u32);
            words.u64(entry.offsets).u64(entry.values).u64(entry.places);
            words.u64(entry.bytes);
            words.u64(entry.tiles.start).u64(entry.tiles.end);
            words.u64(entry.rows).u64(entry.chunk);
            words.u32(page).u32(entry.large.into());
            words.u32(entry.utf8.into()).u32(entry.decimals.into());
        }
        self.table = work.upload(words)?;
        Ok(())
    }

    /// A `StringJob`.
    fn job(&self, tables: &Tables<'_>, chunks: u64) -> Words {
        let mut job = (tables.job)();
        job.u64(self.sources).u64(self.table);
        job.u64(self.bytes).u64(self.before);
        job.u64(self.columns.len() as u64).u64(chunks);
        job
    }
}
