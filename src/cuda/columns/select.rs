//! Some rows of what was decoded: each buffer becomes one of its own with their part of it.
//!
//! Rows that are wanted are ranges. Ranges of lists lead to ranges of their items, and those of strings to ranges of bytes, which is found on
//! the device; so that one kernel copies all buffers, and only lists and strings take a wait more, for how much there is.
#![allow(unsafe_code)]

use std::ops::Range;

use super::decode::{BLOCK, bitmap_len};
use super::{Column, Convert, Decoded, Leaf, List, Offsets, Valid, Values};
use crate::buffer::DeviceBytes;
use crate::cuda::device::Device;
use crate::cuda::launch::{Output, Words, Work};
use crate::cuda::modules::Family;
use crate::cuda::scan;
use crate::cuda::stream::Stream;
use crate::error::{Error, ErrorKind, Result};

/// Rows that are wanted get to where they go.
pub(in crate::cuda) const SELECT: Family =
    Family::new("select", include_str!("../kernels/select.ptx"));

/// As in `kernels/select.cu`.
const BYTES_OF_PIECE: u64 = 8192;
const BITS_OF_PIECE: u64 = 512 * 32;
const OFFSETS_OF_PIECE: u64 = 1024;
const BYTES: u32 = 0;
const BITS: u32 = 1;
const OFFSETS: u32 = 2;

/// Rows that are wanted of a leaf.
#[derive(Clone, Debug)]
pub struct Selection {
    /// What was decoded. Lists have offsets, but those of a fixed size.
    pub leaf: Leaf,
    /// What its values are.
    pub slots: Slots,
    /// The lists that it is in, from the outermost.
    pub lists: Vec<List>,
    /// What its bitmaps are of.
    pub valid: Vec<Valid>,
    /// Which rows: in ascending order, disjoint.
    pub rows: Vec<Range<u64>>,
}

/// What the values of a leaf are, once they are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// A bit each.
    Bits,
    /// So many bytes each.
    Fixed {
        /// At least 1.
        width: u32,
    },
    /// Bytes of any length, by offsets.
    Text {
        /// Whether these are of 8 bytes, not 4.
        large: bool,
    },
}

impl Slots {
    /// Those of a column.
    pub fn of(column: &Column) -> Self {
        match (column.output_width(), column.values, column.convert) {
            (Some(width), ..) => Slots::Fixed { width },
            (None, Values::Bytes { large, .. }, Convert::Same) => Slots::Text { large },
            (None, ..) => Slots::Bits,
        }
    }
}

/// Bytes of the device's memory for each range of rows, for each kind of slots that it leads to: of rows, of items, of bytes.
pub(crate) const RANGE: u64 = 24;

impl Device {
    /// Copies the rows that are wanted of leaves, in `stream`, and waits for them. What a dictionary has stays as it is, and is shared.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for rows that are not there or not in order, and for buffers that are not of such a leaf; those of the
    /// device.
    pub(crate) fn select(&self, stream: &Stream, selections: &[Selection]) -> Result<Vec<Leaf>> {
        for selection in selections {
            selection.check()?;
        }
        let mut work = Work::in_stream(self, stream);
        let spaces = spaces(&mut work, selections)?;
        let mut parts = Parts::default();
        let mut made = Vec::with_capacity(selections.len());
        for (selection, spaces) in selections.iter().zip(&spaces) {
            made.push(Made::new(self, &mut work, &mut parts, selection, spaces)?);
        }
        let set = parts.launch(&mut work)?;
        let mut set = set.into_iter();
        let made = selections.iter().zip(&spaces).zip(made);
        let leaves = made.map(|((selection, spaces), made)| {
            // SAFETY: the kernel is done, and wrote each byte of what has as many as there are slots.
            unsafe { made.leaf(selection, spaces, &mut set) }
        });
        leaves.collect()
    }
}

impl Selection {
    /// Whether the buffers have what the description says, and the rows are there.
    fn check(&self) -> Result<()> {
        let leaf = &self.leaf;
        let depths = self.lists.len() + 1;
        let mut right = leaf.slots.len() == depths && leaf.offsets.len() == self.lists.len();
        right &= leaf.valid.len() == self.valid.len() && leaf.slots.iter().all(|n| *n < MOST);
        let slots = |depth: usize| leaf.slots.get(depth).copied().unwrap_or(0);
        right &= leaf.values.rows == slots(depths - 1);
        let has = |bytes: &DeviceBytes, count: u64, width: u64| {
            let there = bytes.len() as u64;
            let aligned = (bytes.ptr().addr() as u64).is_multiple_of(width.min(8));
            aligned && count.checked_mul(width).is_some_and(|len| len <= there)
        };
        let one_more = |slots: u64| slots.saturating_add(1);
        for (depth, (list, offsets)) in self.lists.iter().zip(&leaf.offsets).enumerate() {
            right &= match (list.offsets, offsets) {
                (Offsets::Small, Some(offsets)) => has(offsets, one_more(slots(depth)), 4),
                (Offsets::Large, Some(offsets)) => has(offsets, one_more(slots(depth)), 8),
                (Offsets::Fixed { size }, _) => {
                    slots(depth).checked_mul(size.into()) == Some(slots(depth + 1))
                }
                _ => false,
            };
        }
        let bitmap = |bits: &DeviceBytes, slots: u64| has(bits, slots.div_ceil(32), 4);
        for (valid, (bits, _)) in self.valid.iter().zip(&leaf.valid) {
            let depth = valid.depth as usize;
            right &= depth < depths && bitmap(bits, slots(depth));
        }
        let (values, count) = (&leaf.values, slots(depths - 1));
        right &= values
            .validity
            .as_ref()
            .is_none_or(|bits| bitmap(bits, count));
        right &= match (self.slots, &values.offsets) {
            (Slots::Bits, None) => bitmap(&values.values, count),
            (Slots::Fixed { width: 0 }, _) => false,
            (Slots::Fixed { width }, None) => {
                let len = values.values.len() as u64;
                count
                    .checked_mul(width.into())
                    .is_some_and(|all| all <= len)
            }
            (Slots::Text { large }, Some(offsets)) => {
                has(offsets, one_more(count), if large { 8 } else { 4 })
            }
            _ => false,
        };
        if !right {
            return Err(invalid("rows of buffers that are not those of the leaf"));
        }
        let mut end = 0;
        for range in &self.rows {
            if range.start < end || range.end < range.start || range.end > slots(0) {
                let what = format!("rows {range:?} of {}, after row {end}", slots(0));
                return Err(invalid(what));
            }
            end = range.end;
        }
        Ok(())
    }

    /// How many kinds of slots it has: rows, items of each list, and bytes of strings.
    fn kinds(&self) -> usize {
        1 + self.lists.len() + usize::from(matches!(self.slots, Slots::Text { .. }))
    }

    /// What leads from the kind of slots `kind` to the next one: offsets or none, bytes of an offset, items of each otherwise, and how many
    /// slots there are.
    fn step(&self, kind: usize) -> (Option<&DeviceBytes>, u32, u64, u64) {
        let values = &self.leaf.values;
        let Some(list) = self.lists.get(kind) else {
            let width = match self.slots {
                Slots::Text { large: true } => 8,
                _ => 4,
            };
            let bytes = values.values.len() as u64;
            return (values.offsets.as_ref(), width, 0, bytes);
        };
        let offsets = self.leaf.offsets.get(kind).and_then(Option::as_ref);
        let slots = self.leaf.slots.get(kind + 1).copied().unwrap_or(0);
        match list.offsets {
            Offsets::Fixed { size } => (None, 0, size.into(), slots),
            Offsets::Large => (offsets, 8, 0, slots),
            Offsets::Small | Offsets::None => (offsets, 4, 0, slots),
        }
    }
}

/// Slots of a depth at most: their sums stay numbers.
const MOST: u64 = 1 << 48;

fn invalid(what: impl Into<String>) -> Error {
    let what = what.into().into();
    Error::new(ErrorKind::InvalidOption { what }).by("cuda")
}

/// Ranges of one kind of slots, on the device.
#[derive(Clone, Copy, Default)]
struct Space {
    starts: u64,
    before: u64,
    count: u64,
    /// How many slots they are.
    all: u64,
}

impl Space {
    fn describe(&self, words: &mut Words) {
        words.u64(self.starts).u64(self.before).u64(self.count);
    }
}

/// Ranges of all kinds of slots of each leaf, from those of rows on. Waits for how many they are, if that is not known.
fn spaces(work: &mut Work<'_>, selections: &[Selection]) -> Result<Vec<Vec<Space>>> {
    let mut all: Vec<Vec<Space>> = Vec::with_capacity(selections.len());
    for (number, selection) in selections.iter().enumerate() {
        let before = number.checked_sub(1);
        let before = before.and_then(|at| Some((selections.get(at)?, all.get(at)?.first()?)));
        let space = match before {
            Some((before, space)) if before.rows == selection.rows => *space,
            _ => rows(work, &selection.rows)?,
        };
        all.push(vec![space]);
    }
    let most = selections.iter().map(|selection| selection.rows.len());
    let most = most.max().unwrap_or(0) as u64;
    let kinds = selections.iter().map(Selection::kinds).max().unwrap_or(0);
    for kind in 1..kinds {
        let these: Vec<_> = selections
            .iter()
            .zip(&mut all)
            .filter(|(selection, _)| selection.kinds() > kind)
            .collect();
        let count = these.len() as u64;
        let room = count.saturating_mul(most).saturating_mul(8);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let (starts, lengths) = (work.scratch(room)?, work.scratch(room)?);
        let mut entries = Words::default();
        for (number, (selection, spaces)) in (0u64..).zip(&these) {
            let (offsets, width, size, slots) = selection.step(kind - 1);
            let offsets = offsets.map(|bytes| work.reads(bytes)).transpose()?;
            spaces
                .last()
                .copied()
                .unwrap_or_default()
                .describe(&mut entries);
            entries.u64(offsets.unwrap_or(0)).u64(size).u64(slots);
            let at = number * most * 8;
            entries.u64(starts + at).u64(lengths + at);
            entries.u32((width == 8).into()).u32(0);
        }
        let mut job = Words::default();
        job.u64(work.upload(entries)?).u64(count).u64(most);
        // SAFETY: the job is a `WithinJob` whose entries have places for so many ranges. Ranges of lists are of lists that are there, as
        // `Selection::check` and the kernel before saw to, and so are their offsets; all of it stays until the work is done.
        let before = unsafe {
            work.launch(SELECT, "select_within", BLOCK, count * most, job)?;
            scan::rows(work, lengths, count, most)?
        };
        for (number, (_, spaces)) in (0u64..).zip(these) {
            spaces.push(Space {
                starts: starts + number * most * 8,
                before: before + number * (most + 1) * 8,
                count: spaces.first().map_or(0, |rows| rows.count),
                all: 0,
            });
        }
    }
    totals(work, &mut all)?;
    Ok(all)
}

/// Brings ranges of rows to the device.
fn rows(work: &mut Work<'_>, ranges: &[Range<u64>]) -> Result<Space> {
    let len = ranges.len();
    let mut words = Words::with_capacity((2 * len + 1) * 8)?;
    for range in ranges {
        words.u64(range.start);
    }
    let mut all = 0;
    for range in ranges {
        words.u64(all);
        all += range.end - range.start;
    }
    words.u64(all);
    let starts = work.upload(words)?;
    Ok(Space {
        starts,
        before: starts + len as u64 * 8,
        count: len as u64,
        all,
    })
}

/// Waits for how many slots the ranges are that were found on the device.
fn totals(work: &mut Work<'_>, all: &mut [Vec<Space>]) -> Result<()> {
    let mut found: Vec<&mut Space> = all
        .iter_mut()
        .flat_map(|spaces| spaces.iter_mut().skip(1))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let count = found.len();
    let mut ranges = Words::default();
    for space in &found {
        space.describe(&mut ranges);
    }
    let totals = work.take(count * 8)?;
    let mut job = Words::default();
    job.u64(work.upload(ranges)?).u64(count as u64).u64(totals);
    // SAFETY: the job is a `TotalsJob` with a place for each; the sums were just queued.
    let words = unsafe {
        work.launch(SELECT, "select_totals", BLOCK, count as u64, job)?;
        work.look::<8>(totals, count)?
    };
    for (space, word) in found.iter_mut().zip(words) {
        space.all = u64::from_ne_bytes(word);
    }
    Ok(())
}

/// Buffers to be made, in one launch.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    bitmaps: usize,
    pieces: u64,
}

struct Part {
    of: Space,
    source: u64,
    output: u64,
    len: u64,
    items: Space,
    piece: u64,
    what: u32,
    width: u32,
}

impl Parts {
    /// One buffer of what `source` has of the slots of `of`. `items`: what its offsets are of.
    fn add(
        &mut self,
        device: &Device,
        work: &mut Work<'_>,
        source: &DeviceBytes,
        (what, width): (u32, u32),
        of: Space,
        items: Space,
    ) -> Result<Output> {
        let (bytes, pieces) = match what {
            BITS => (Some(bitmap_len(of.all)), of.all.div_ceil(BITS_OF_PIECE)),
            OFFSETS => {
                let offsets = of.all.saturating_add(1);
                let bytes = offsets.checked_mul(width.into());
                (bytes, offsets.div_ceil(OFFSETS_OF_PIECE))
            }
            _ => {
                let bytes = of.all.checked_mul(width.into());
                (bytes, bytes.unwrap_or(0).div_ceil(BYTES_OF_PIECE))
            }
        };
        let len = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let len = len.ok_or_else(|| {
            let (wanted, cap) = (u64::MAX, device.info().memory);
            Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda")
        })?;
        let output = work.output(len)?;
        self.parts.push(Part {
            of,
            source: work.reads(source)?,
            output: output.address(),
            len: source.len() as u64,
            items,
            piece: self.pieces,
            what,
            width,
        });
        self.bitmaps += usize::from(what == BITS);
        self.pieces = self.pieces.saturating_add(pieces);
        Ok(output)
    }

    /// Makes them, and waits for it. How many bits are set in each bitmap.
    fn launch(self, work: &mut Work<'_>) -> Result<Vec<u64>> {
        let set = work.filled(self.bitmaps * 8, 0)?;
        let mut count = set;
        let mut words = Words::default();
        for part in &self.parts {
            part.of.describe(&mut words);
            words.u64(part.source).u64(part.output).u64(part.len);
            words.u64(count);
            if part.what == BITS {
                count += 8;
            }
            part.items.describe(&mut words);
            words.u64(part.piece).u32(part.what).u32(part.width);
        }
        let mut job = Words::default();
        job.u64(work.upload(words)?).u64(self.parts.len() as u64);
        job.u64(self.pieces);
        // SAFETY: the job is a `SelectJob`. Each output has a place for each slot of its ranges, which are of slots that are there; sources
        // are the caller's, and outputs are dropped in the order of the work.
        unsafe {
            let threads = self.pieces.saturating_mul(u64::from(BLOCK));
            work.launch(SELECT, "select", BLOCK, threads, job)?;
            let words = work.look::<8>(set, self.bitmaps)?;
            Ok(words.into_iter().map(u64::from_ne_bytes).collect())
        }
    }
}

/// Memory for what a leaf becomes.
struct Made {
    offsets: Vec<Option<Output>>,
    valid: Vec<Output>,
    validity: Option<Output>,
    text: Option<Output>,
    values: Output,
}

impl Made {
    fn new(
        device: &Device,
        work: &mut Work<'_>,
        parts: &mut Parts,
        selection: &Selection,
        spaces: &[Space],
    ) -> Result<Self> {
        let (leaf, none) = (&selection.leaf, Space::default());
        let space = |kind: usize| spaces.get(kind).copied().unwrap_or_default();
        let mut add = |source: &DeviceBytes, what, of, items| {
            parts.add(device, work, source, what, of, items)
        };
        let mut offsets = Vec::with_capacity(selection.lists.len());
        for kind in 0..selection.lists.len() {
            let (own, width, ..) = selection.step(kind);
            let own = own.map(|own| add(own, (OFFSETS, width), space(kind), space(kind + 1)));
            offsets.push(own.transpose()?);
        }
        let mut valid = Vec::with_capacity(selection.valid.len());
        for (of, (bits, _)) in selection.valid.iter().zip(&leaf.valid) {
            valid.push(add(bits, (BITS, 0), space(of.depth as usize), none)?);
        }
        let deepest = selection.lists.len();
        let values = &leaf.values;
        let validity = values.validity.as_ref();
        let validity = validity.map(|bits| add(bits, (BITS, 0), space(deepest), none));
        let validity = validity.transpose()?;
        let (mut text, mut of) = (None, space(deepest));
        if let (Slots::Text { .. }, Some(own)) = (selection.slots, &values.offsets) {
            let (_, width, ..) = selection.step(deepest);
            text = Some(add(own, (OFFSETS, width), of, space(deepest + 1))?);
            of = space(deepest + 1);
        }
        let what = match selection.slots {
            Slots::Bits => (BITS, 0),
            Slots::Fixed { width } => (BYTES, width),
            Slots::Text { .. } => (BYTES, 1),
        };
        let values = add(&values.values, what, of, none)?;
        Ok(Made {
            offsets,
            valid,
            validity,
            text,
            values,
        })
    }

    /// The leaf of all of it; `set` has how many bits are set in each bitmap, in the order in which they were made.
    ///
    /// # Safety
    /// The kernel is done.
    unsafe fn leaf(
        self,
        selection: &Selection,
        spaces: &[Space],
        set: &mut impl Iterator<Item = u64>,
    ) -> Result<Leaf> {
        let written = |output: Output| {
            // SAFETY: as the caller promises: the kernel writes each word of a bitmap, each offset and each byte.
            unsafe { output.written() }
        };
        let deepest = selection.lists.len();
        let slots: Vec<_> = spaces
            .iter()
            .take(deepest + 1)
            .map(|space| space.all)
            .collect();
        let of = |depth: usize| slots.get(depth).copied().unwrap_or(0);
        let mut nulls = |depth: usize| of(depth).saturating_sub(set.next().unwrap_or(0));
        let offsets = self.offsets.into_iter();
        let offsets = offsets.map(|offsets| offsets.map(written).transpose());
        let offsets = offsets.collect::<Result<_>>()?;
        let mut valid = Vec::with_capacity(self.valid.len());
        for (bits, of) in self.valid.into_iter().zip(&selection.valid) {
            let count = nulls(of.depth as usize);
            valid.push((written(bits)?, count));
        }
        let null_values = match &self.validity {
            Some(_) => nulls(deepest),
            None => 0,
        };
        if selection.slots == Slots::Bits {
            set.next();
        }
        let values = Decoded {
            values: written(self.values)?,
            offsets: self.text.map(written).transpose()?,
            dictionary: selection.leaf.values.dictionary.clone(),
            validity: self.validity.map(written).transpose()?,
            nulls: null_values,
            rows: of(deepest),
        };
        Ok(Leaf {
            values,
            offsets,
            slots,
            valid,
        })
    }
}
