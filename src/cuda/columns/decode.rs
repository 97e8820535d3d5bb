//! Tables of what is to be done, up to eleven launches, and one wait for what they found.
#![allow(unsafe_code)]

use super::delta::Deltas;
use super::{Column, Convert, Decoded, Encoding, Outcome, Page, Values};
use crate::buffer::DeviceBytes;
use crate::cuda::device::Device;
use crate::cuda::launch::{Output, Words, Work};
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
const BLOCK: u32 = 128;
const WARP: u64 = 32;

/// Bytes of the tables' entries: a page, a column, what is found of a page, a tile.
const PAGE: usize = 64;
const COLUMN: usize = 64;
const FOUND: usize = 24;
const TILE_ENTRY: usize = 32;

impl Device {
    /// Decodes columns whose pages are in `arena`, and waits for them.
    ///
    /// Takes, besides the output, 88 bytes of the device's memory for each page, and 32 for each 1,024 rows of one; of DELTA_BINARY_PACKED
    /// 128 and 72, and the values once more where they are converted or can be null. Of what is wrong with pages, a column's outcome tells
    /// the first.
    ///
    /// # Errors
    /// Those of the device; nothing that the bytes or the columns say is one. [`ErrorKind::Unsupported`] for an arena of another
    /// device, [`ErrorKind::OutOfMemory`], [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn columns(&self, arena: &DeviceBytes, columns: &[Column]) -> Result<Vec<Outcome>> {
        self.must_be_here(arena.place())?;
        let shapes: Vec<_> = columns
            .iter()
            .map(|column| column.shape(arena.len() as u64))
            .collect();
        let fit = columns
            .iter()
            .zip(&shapes)
            .filter(|(_, shape)| shape.is_ok());
        let outputs = fit
            .map(|(column, _)| Decoding::new(self, column))
            .collect::<Result<Vec<_>>>()?;
        // Dropped before the outputs, when something fails: it waits for what writes to them.
        let work = Work::new(self);
        let found = decode(work, arena, &outputs, self.tensor_sums())?;
        let mut done = outputs.into_iter().zip(found);
        let outcomes = shapes.into_iter().map(|shape| match shape {
            Err((page, check)) => Some(Ok(Outcome::Fault { page, check })),
            Ok(()) => done.next().map(|(output, found)| {
                // SAFETY: `decode` waited for the kernels, and this is what they said.
                unsafe { output.outcome(found) }
            }),
        });
        outcomes.flatten().collect()
    }
}

/// A column that is being decoded.
struct Decoding<'a> {
    column: &'a Column,
    rows: u64,
    values: Output,
    validity: Option<Output>,
}

/// Bytes of a bitmap: whole words.
fn bitmap_len(rows: u64) -> u64 {
    rows.div_ceil(32) * 4
}

/// What kernels say of a column: its first error, all bits if there is none, and its nulls.
type Said = (u64, u64);

impl<'a> Decoding<'a> {
    fn new(device: &Device, column: &'a Column) -> Result<Self> {
        let rows = column.rows();
        let bitmap = Some(bitmap_len(rows));
        let values = match column.output_width() {
            None => bitmap,
            Some(width) => rows.checked_mul(u64::from(width)),
        };
        let buffer = |len: Option<u64>| match len {
            Some(len) => device.output(len as usize),
            None => {
                let (wanted, cap) = (u64::MAX, device.info().memory);
                Err(Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda"))
            }
        };
        Ok(Decoding {
            column,
            rows,
            values: buffer(values)?,
            validity: column.nullable.then(|| buffer(bitmap)).transpose()?,
        })
    }

    /// # Safety
    /// The kernels are done, and this is what they said.
    unsafe fn outcome(self, (error, nulls): Said) -> Result<Outcome> {
        if error != u64::MAX {
            return Ok(Outcome::Fault {
                page: (error >> 32) as u32,
                check: error as u32,
            });
        }
        let written = |output: Output| {
            // SAFETY: without an error, kernels wrote each row; bitmaps were filled before.
            unsafe { output.written() }
        };
        Ok(Outcome::Done(Decoded {
            values: written(self.values)?,
            validity: self.validity.map(written).transpose()?,
            nulls,
            rows: self.rows,
        }))
    }

    /// Its entry of the table. Errors and nulls of the column are at these addresses.
    fn describe(&self, words: &mut Words, arena: u64, error: u64, nulls: u64) {
        let column = self.column;
        let (dictionary, entries) = match &column.dictionary {
            Some((range, entries)) => (arena + range.start, *entries as u32),
            None => (0, 0),
        };
        let output = column.output_width().unwrap_or(0);
        let width = match column.values {
            Values::Boolean => 0,
            Values::Fixed { width } => width,
        };
        let (convert, argument) = match column.convert {
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
            .u64(self.values.address())
            .u64(validity);
        words.u64(error).u64(nulls).u32(entries).u32(width);
        words
            .u32(unit)
            .u32(output / unit)
            .u32(convert)
            .u32(argument);
    }
}

/// The entry of a page, which is the `number`th of its column.
fn describe(
    words: &mut Words,
    page: &Page,
    arena: u64,
    (first, tiles): (u64, u64),
    of: (u32, u32),
    plain: u64,
) {
    let encoding = match page.encoding {
        Encoding::Plain => 0,
        Encoding::Dictionary => 1,
        Encoding::Rle => 2,
        Encoding::ByteStreamSplit => 3,
        Encoding::DeltaBinaryPacked => 4,
    };
    let len = (page.body.end - page.body.start) as u32;
    let nulls = page.nulls.map_or(u32::MAX, |nulls| nulls as u32);
    words.u64(arena + page.body.start).u64(first).u64(tiles);
    words.u32(len).u32(page.entries as u32).u32(of.0).u32(of.1);
    words
        .u32(page.def_len)
        .u32(nulls)
        .u32(page.v1.into())
        .u32(encoding)
        .u64(plain);
}

fn decode(
    mut work: Work<'_>,
    arena: &DeviceBytes,
    outputs: &[Decoding<'_>],
    tensor: bool,
) -> Result<Vec<Said>> {
    let pages: usize = outputs.iter().map(|output| output.column.pages.len()).sum();
    let each = || outputs.iter().map(|output| output.column);
    // A column without pages is all there already, and nothing is read for it.
    if pages == 0 {
        return Ok(vec![(u64::MAX, 0); outputs.len()]);
    }
    let base = work.reads(arena)?;
    let said = work.take(outputs.len() * 16)?;
    let half = outputs.len() * 8;
    let nulls = said + half as u64;
    // SAFETY: both halves are of what was just taken.
    unsafe {
        work.fill(said, 0xff, half)?;
        work.fill(nulls, 0, half)?;
    }
    let mut page_words = Words::with_capacity(pages * PAGE)?;
    let mut column_words = Words::with_capacity(outputs.len() * COLUMN)?;
    let mut tiles = 0;
    let targets = outputs.iter();
    let targets = targets.map(|output| (output.column, output.values.address()));
    let deltas = Deltas::of(&mut work, targets)?;
    let mut page_number = 0;
    for (number, output) in outputs.iter().enumerate() {
        let at = number as u64 * 8;
        output.describe(&mut column_words, base, said + at, nulls + at);
        // Bitmaps are put together from parts.
        let bits = (output.column.values == Values::Boolean).then_some(&output.values);
        for bitmap in bits.into_iter().chain(&output.validity) {
            // SAFETY: the memory was taken for as many rows, and is dropped after the work.
            unsafe { work.fill(bitmap.address(), 0, bitmap_len(output.rows) as usize)? };
        }
        let mut first = 0;
        for (of, page) in output.column.pages.iter().enumerate() {
            let of = (number as u32, of as u32);
            let plain = deltas.plain(page_number);
            describe(&mut page_words, page, base, (first, tiles), of, plain);
            page_number += 1;
            first += page.entries;
            tiles += page.entries.div_ceil(TILE);
        }
    }
    let page_table = work.upload(page_words)?;
    let columns = work.upload(column_words)?;
    let found = work.take(pages * FOUND)?;
    let tile_table = work.take(tiles as usize * TILE_ENTRY)?;
    let (begin, end) = (base, base + arena.len() as u64);
    let job_in = |(begin, end): (u64, u64), stage| {
        let mut job = Words::default();
        job.u64(page_table).u64(columns).u64(found).u64(tile_table);
        job.u64(pages as u64).u64(tiles).u64(begin).u64(end);
        job.u64(begin.next_multiple_of(4)).u64(end & !3);
        job.u32(stage).u32(0);
        job
    };
    let job = |stage| job_in((begin, end), stage);
    let (page_warps, tile_warps) = (pages as u64 * WARP, tiles * WARP);
    let (page_blocks, tile_blocks) = (pages as u64 * 128, tiles * 128);
    let has = |encodings: &[Encoding]| {
        let mut pages = each().flat_map(|column| &column.pages);
        pages.any(|page| encodings.contains(&page.encoding))
    };
    let booleans = each().any(|column| column.values == Values::Boolean);
    let numbers = each().any(|column| column.values != Values::Boolean);
    // SAFETY: the job is a `Job` with tables of these lengths. Pages and dictionaries are inside of the arena, which the caller holds, and
    // outputs have a place for each row, as `Column::shape` and `Decoding::new` saw to; both stay until the work is done. What
    // kernels find and lead others to is checked by `walk` and `ranks`.
    unsafe {
        work.launch(WALK, "walk", BLOCK, page_warps, job(0))?;
        if each().any(|column| column.nullable) {
            work.launch(RLE, "rle", BLOCK, tile_warps, job(0))?;
        }
        work.launch(RLE, "ranks", BLOCK, page_blocks, job(0))?;
        if has(&[Encoding::Dictionary, Encoding::Rle]) {
            work.launch(WALK, "walk", BLOCK, page_warps, job(1))?;
        }
        deltas.launch(&mut work, || job(0), tensor)?;
        if numbers {
            work.launch(FIXED, "fixed", BLOCK, tile_blocks, job(0))?;
        }
        if let Some(memory) = deltas.memory() {
            work.launch(FIXED, "fixed", BLOCK, tile_blocks, job_in(memory, 1))?;
        }
        if booleans {
            work.launch(FIXED, "booleans", BLOCK, tile_blocks, job(0))?;
        }
    }
    // SAFETY: a word for the error and one for the nulls of each.
    let words = unsafe { work.finish::<8>(said, outputs.len() * 2)? };
    let mut words = words.into_iter().map(u64::from_ne_bytes);
    let errors: Vec<u64> = words.by_ref().take(outputs.len()).collect();
    Ok(errors.into_iter().zip(words).collect())
}
