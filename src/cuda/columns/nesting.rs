//! Leaves in lists and structs: levels become slots, offsets and bitmaps, and then their values are decoded as those of flat columns are.
//!
//! One wait more than flat columns take: only the levels tell how many slots there are.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::sync::Arc;

use super::decode::{
    At, BLOCK, Decoding, FOUND, PAGE, TILE, Tiles, WARP, add_entries, bitmap_len, decode, describe,
};
use super::levels::{Leaf, Levels, MOST_LEVELS, MOST_LISTS, Nested, NestedOutcome, Offsets};
use super::marks::{
    KNOWN_LEVELS, Known, MARK, Marks, PageMarks, Prefilled, Streams, is_large, marks_of,
};
use super::{Column, MOST, Outcome, Page, check};
use crate::buffer::DeviceBytes;
use crate::cuda::device::Device;
use crate::cuda::launch::{Output, Ride, Words, Work};
use crate::cuda::modules::Family;
use crate::cuda::scan;
use crate::error::{Error, ErrorKind, Result};

/// Levels become slots.
pub(in crate::cuda) const NESTING: Family =
    Family::new("nesting", include_str!("../kernels/nesting.ptx"));

/// As in `kernels/nesting.cu`.
const DEPTHS: usize = MOST_LISTS + 1;
const COUNTS: usize = DEPTHS + 1;
const NEST: usize = 152;

impl Device {
    /// Decodes flat columns and leaves of nested ones, all of whose pages are in `arena`, and waits for them. They have at most `most` bytes
    /// of strings, which are known only when their lengths were read: columns that have more, those before them included, are
    /// [`Outcome::Large`].
    ///
    /// Takes, besides what [`columns`](Self::columns) does, a byte of the device's memory for each level, 116 bytes for each 1,024 levels of
    /// a page (20, and 48 each of counts and their sums), and about 150 for each page.
    ///
    /// # Errors
    /// As [`columns`](Self::columns).
    pub(crate) fn nested(
        &self,
        arena: &DeviceBytes,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
    ) -> Result<(Vec<Outcome>, Vec<NestedOutcome>)> {
        let (flat, nested, _) = self.marked(arena, flat, nested, most, None)?;
        Ok((flat, nested))
    }

    /// The same with what is known from another time of where tiles of large pages begin: of each column of `flat`, and then of each
    /// leaf of `nested`. Gives that for those of which it is not known and which were decoded; `known` is `None` if nobody wants it.
    ///
    /// What is known is looked at, so that it may be of anything: the column is a fault then, or it makes no difference.
    ///
    /// # Errors
    /// As [`columns`](Self::columns).
    pub(crate) fn marked(
        &self,
        arena: &DeviceBytes,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
        known: Option<&[Option<Arc<Marks>>]>,
    ) -> Result<Marked> {
        let mut work = Work::new(self);
        let arena = (work.reads(arena)?, arena.len() as u64);
        // SAFETY: the caller holds the bytes until this returns, and the work does as well.
        unsafe { self.marked_in(&mut work, arena, flat, nested, most, known) }
    }

    /// The same as part of work that goes on, with the address of the arena and how many bytes it has. It is waited for.
    ///
    /// # Errors
    /// As [`columns`](Self::columns).
    ///
    /// # Safety
    /// So many bytes are there, on this device, with a content that what is queued by now has written; and they stay until the work is done.
    pub(in crate::cuda) unsafe fn marked_in(
        &self,
        work: &mut Work<'_>,
        arena: (u64, u64),
        flat: &[Column],
        nested: &[Nested],
        most: u64,
        known: Option<&[Option<Arc<Marks>>]>,
    ) -> Result<Marked> {
        let known_of = |number: usize| Known {
            marks: known.and_then(|known| known.get(number)?.clone()),
            keep: known.is_some(),
        };
        let (_, len) = arena;
        let flat_shapes: Vec<_> = flat.iter().map(|column| column.shape(len)).collect();
        let shapes: Vec<_> = nested.iter().map(|leaf| leaf.shape(len)).collect();
        let fit: Vec<&Nested> = nested
            .iter()
            .zip(&shapes)
            .filter_map(|(leaf, shape)| shape.is_ok().then_some(leaf))
            .collect();
        let fit_known = shapes.iter().enumerate();
        let fit_known = fit_known.filter(|(_, shape)| shape.is_ok());
        let fit_known: Vec<Known> = fit_known
            .map(|(number, _)| known_of(flat.len() + number))
            .collect();
        let (table, plans, level_marks) = Table::of(work, arena, &fit, &fit_known)?;
        let mut outputs = Vec::with_capacity(flat.len() + fit.len());
        for (number, (column, shape)) in flat.iter().zip(&flat_shapes).enumerate() {
            if shape.is_ok() {
                let mut output = Decoding::new(self, work, Cow::Borrowed(column), false)?;
                output.known = known_of(number);
                outputs.push(output);
            }
        }
        let flat_count = outputs.len();
        let mut slots = Vec::new();
        for ((nested, plan), known) in fit.iter().zip(&plans).zip(&fit_known) {
            if let Ok(plan) = plan {
                let mut output = Decoding::new(self, work, Cow::Borrowed(&plan.column), true)?;
                output.known = known.clone();
                if let Some(bits) = &output.validity {
                    let len = bitmap_len(plan.column.rows()) as usize;
                    // SAFETY: it was made for as many rows, and is dropped in the order of the work.
                    unsafe { work.fill(bits.address(), 0, len)? };
                }
                outputs.push(output);
                slots.push(Slots::new(work, nested, plan)?);
            }
        }
        let live = slots.len();
        let more = slots.iter().map(|slots| 1 + slots.valid.len()).sum();
        let bitmaps = outputs.get(flat_count..).unwrap_or_default();
        let bitmaps = bitmaps.iter().map(|output| output.validity.as_ref());
        let bitmaps: Vec<_> = bitmaps.map(|bits| bits.map(Output::address)).collect();
        let count = outputs.len();
        add_entries(self, work, &mut outputs)?;
        let before =
            |work: &mut Work<'_>, said| table.fill(work, &fit, &plans, &slots, &bitmaps, said);
        let (found, more) = decode(self, work, arena, &mut outputs, most, more, before)?;
        let mut entries = outputs.split_off(count.min(outputs.len())).into_iter();
        let marks = outputs.iter_mut().map(|output| {
            let wanted = output.known.is_wanted();
            wanted.then(|| std::mem::take(&mut output.marks))
        });
        let mut marks = marks.collect::<Vec<_>>().into_iter();
        let mut done = outputs.into_iter().zip(found).map(|(output, found)| {
            let entries = output.entries.and_then(|_| entries.next());
            // SAFETY: `decode` waited for the kernels, and this is what they said.
            unsafe { output.outcome(found, entries) }
        });
        let flat_fits: Vec<bool> = flat_shapes.iter().map(|shape| shape.is_ok()).collect();
        let flat_outcomes = flat_shapes.into_iter().map(|shape| match shape {
            Err((page, check)) => Some(Ok(Outcome::Fault { page, check })),
            Ok(()) => done.next(),
        });
        let flat_outcomes = flat_outcomes.flatten().collect::<Result<Vec<_>>>()?;
        let mut kept = Vec::with_capacity(flat.len() + nested.len());
        for (outcome, fits) in flat_outcomes.iter().zip(flat_fits) {
            let found = if fits { marks.next().flatten() } else { None };
            let found = found.filter(|_| matches!(outcome, Outcome::Done(_)));
            kept.push(found.and_then(Marks::of));
        }
        let values = done.collect::<Result<Vec<_>>>()?;
        let (mut plans, mut slots) = (plans.into_iter(), slots.into_iter());
        let mut values = values.into_iter();
        let (errors, set) = more.split_at(live.min(more.len()));
        let (mut errors, mut set) = (errors.iter().copied(), set.iter().copied());
        let mut outcomes = Vec::with_capacity(nested.len());
        let mut level_marks = level_marks.into_iter();
        for shape in shapes {
            let mut found = Vec::new();
            let plan = match shape {
                Err(fault) => Err(fault),
                Ok(()) => {
                    found = level_marks.next().unwrap_or_default();
                    plans.next().unwrap_or(Err((0, check::SHAPE)))
                }
            };
            let outcome = match plan {
                Err((page, check)) => NestedOutcome::Fault { page, check },
                Ok(plan) => {
                    let own = marks.next().flatten().unwrap_or_default();
                    for (page, own) in found.iter_mut().zip(own) {
                        page.values = own.values;
                        page.deltas = own.deltas;
                    }
                    match (slots.next(), values.next(), errors.next()) {
                        (Some(slots), Some(values), Some(error)) => {
                            // SAFETY: as above.
                            unsafe { slots.outcome(plan, values, error, &mut set)? }
                        }
                        _ => NestedOutcome::Fault {
                            page: 0,
                            check: check::SHAPE,
                        },
                    }
                }
            };
            found = match &outcome {
                NestedOutcome::Done(_) => found,
                _ => Vec::new(),
            };
            kept.push(Marks::of(found));
            outcomes.push(outcome);
        }
        Ok((flat_outcomes, outcomes, kept))
    }
}

/// What came of flat columns, and of leaves of nested ones, and where tiles of both begin.
pub(crate) type Marked = (Vec<Outcome>, Vec<NestedOutcome>, Vec<Option<Marks>>);

/// What the levels of a leaf turned out to be.
struct Plan {
    /// Slots of each depth.
    slots: Vec<u64>,
    /// The leaf, with pages of slots.
    column: Column,
}

/// Tables of levels, on the device. Without pages there are none.
#[derive(Default)]
struct Table {
    pages: u64,
    found: u64,
    tiles: Tiles,
    repeats: u64,
    levels: u64,
    sums: u64,
    kinds: u64,
    page_count: usize,
    tile_count: u64,
    arena: (u64, u64),
}

impl Table {
    /// Decodes the levels, and waits for what they say.
    #[allow(clippy::type_complexity)]
    fn of(
        work: &mut Work<'_>,
        (base, len): (u64, u64),
        nested: &[&Nested],
        known: &[Known],
    ) -> Result<(
        Table,
        Vec<std::result::Result<Plan, (u32, u32)>>,
        Vec<Vec<PageMarks>>,
    )> {
        let page_count: usize = nested.iter().map(|nested| nested.leaf.pages.len()).sum();
        if page_count == 0 {
            let none = nested.iter().map(|nested| nested.plan(u64::MAX, &[]));
            return Ok((Table::default(), none.collect(), Vec::new()));
        }
        let said = work.take((nested.len() + page_count * (COUNTS + 1)) * 8)?;
        // SAFETY: the first of the words that were just taken.
        unsafe { work.fill(said, 0xff, nested.len() * 8)? };
        let mut kinds = Words::with_capacity(nested.len() * 256)?;
        let mut pages = Words::with_capacity(page_count * PAGE)?;
        let mut nests = Words::with_capacity(nested.len() * NEST)?;
        let (mut tile_count, mut flags) = (0, 0);
        let (mut levels_known, mut repeats_known) = (Prefilled::default(), Prefilled::default());
        for ((number, one), known) in nested.iter().enumerate().zip(known) {
            let all: Vec<u8> = (0..256u32)
                .map(|level| one.levels.kind(level & 7, level >> 3))
                .collect();
            kinds.bytes(&all);
            for (of, page) in one.leaf.pages.iter().enumerate() {
                let (marks, flag) = one.known(known, of, page);
                levels_known.add(tile_count, &marks.levels);
                repeats_known.add(tile_count, &marks.repeats);
                flags |= flag;
                let at = At {
                    arena: base,
                    first: 0,
                    tiles: tile_count,
                    of: (number as u32, of as u32),
                    slots: false,
                    known: flag,
                    begins: one.levels.page_rows.is_some(),
                    repetition: one.levels.repetition.get(of).copied().unwrap_or(0),
                };
                describe(&mut pages, page, at);
                tile_count += page.entries.div_ceil(TILE);
            }
        }
        if tile_count > u64::from(u32::MAX) / 2 || page_count > (u32::MAX / 2) as usize {
            let (wanted, cap) = (tile_count.saturating_mul(TILE), MOST_LEVELS);
            return Err(Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda"));
        }
        let kinds = work.upload(kinds)?;
        for (number, one) in nested.iter().enumerate() {
            let at = number as u64;
            one.levels.describe(
                &mut nests,
                said + at * 8,
                kinds + at * 256,
                Filled::default(),
            );
        }
        let tile_bytes = |each: u64| tile_count.saturating_mul(each) as usize;
        let counts = work.take(tile_bytes(COUNTS as u64 * 8))?;
        let keep = known.iter().any(Known::is_wanted);
        let marks = |work: &mut Work<'_>| match keep {
            true => work.filled(tile_bytes(MARK as u64), 0),
            false => work.take(tile_bytes(MARK as u64)),
        };
        let mut table = Table {
            pages: work.upload(pages)?,
            found: work.take(page_count * FOUND)?,
            tiles: Tiles::of_levels(marks(work)?, work.take(tile_bytes(4))?),
            repeats: marks(work)?,
            levels: work.take(tile_bytes(TILE))?,
            sums: 0,
            kinds,
            page_count,
            tile_count,
            arena: (base, base + len),
        };
        let levels = table.tiles.levels;
        for (table, known) in [(levels, levels_known), (table.repeats, repeats_known)] {
            // SAFETY: entries of a table that was just taken, which only this work uses.
            unsafe { known.stage(work, table)? };
        }
        let nests = work.upload(nests)?;
        let totals = said + nested.len() as u64 * 8;
        let page_warps = page_count as u64 * WARP;
        let job = |table: &Table| table.job(nests, counts, totals, 0);
        // SAFETY: the job is a `NestJob` with tables of these lengths. Pages are inside of the arena, which the caller holds, as
        // `Nested::shape` saw to; all else stays until the work is done.
        unsafe {
            work.launch(NESTING, "nesting_walk", BLOCK, page_warps, job(&table))?;
            let warps = tile_count * WARP;
            if flags & KNOWN_LEVELS != 0 {
                work.launch(NESTING, "nesting_known", BLOCK, warps, job(&table))?;
            }
            work.launch(NESTING, "nesting_levels", BLOCK, warps, job(&table))?;
            table.sums = scan::rows(work, counts, COUNTS as u64, tile_count)?;
            let numbers = (page_count * (COUNTS + 1)) as u64;
            work.launch(NESTING, "nesting_totals", BLOCK, numbers, job(&table))?;
        }
        let count = nested.len() + page_count * (COUNTS + 1);
        let noted = table.noted(work, nested, known);
        // SAFETY: an error for each leaf, and numbers for each page.
        let words = unsafe { work.look::<8>(said, count)? };
        let words: Vec<u64> = words.into_iter().map(u64::from_ne_bytes).collect();
        let (errors, totals) = words.split_at(nested.len().min(words.len()));
        let mut totals = totals.chunks_exact(COUNTS + 1);
        let plans = nested.iter().zip(errors).map(|(nested, error)| {
            let totals: Vec<_> = totals.by_ref().take(nested.leaf.pages.len()).collect();
            nested.plan(*error, &totals)
        });
        let plans = plans.collect();
        let marks = table.marks(work, nested, known, noted)?;
        Ok((table, plans, marks))
    }

    /// Has the entries of tiles copied, of levels and of repetition levels, if there is a leaf with large pages of which they are wanted and
    /// not known.
    fn noted(&self, work: &mut Work<'_>, nested: &[&Nested], known: &[Known]) -> Option<[Ride; 2]> {
        let wanted = |(nested, known): (&&Nested, &Known)| {
            known.is_wanted() && nested.leaf.pages.iter().any(is_large)
        };
        let len = self.tile_count as usize * MARK;
        let any = nested.iter().zip(known).any(wanted);
        // SAFETY: so many entries each. What kernels did not write there was zero.
        any.then(|| unsafe { [self.tiles.levels, self.repeats].map(|table| work.ride(table, len)) })
    }

    /// Where the tiles of the levels of large pages begin, of leaves of which that is wanted and not known.
    fn marks(
        &self,
        work: &mut Work<'_>,
        nested: &[&Nested],
        known: &[Known],
        noted: Option<[Ride; 2]>,
    ) -> Result<Vec<Vec<PageMarks>>> {
        let mut marks: Vec<Vec<PageMarks>> = nested
            .iter()
            .map(|nested| vec![PageMarks::default(); nested.leaf.pages.len()])
            .collect();
        let Some([levels, repeats]) = noted else {
            return Ok(marks);
        };
        let levels = work.ridden_as::<MARK>(levels)?;
        let repeats = work.ridden_as::<MARK>(repeats)?;
        let (mut levels, mut repeats) = (levels.as_slice(), repeats.as_slice());
        for ((nested, known), marks) in nested.iter().zip(known).zip(&mut marks) {
            for (page, marks) in nested.leaf.pages.iter().zip(marks) {
                let count = page.entries.div_ceil(TILE) as usize;
                let (own, others) = levels.split_at(count.min(levels.len()));
                let (own_repeats, other_repeats) = repeats.split_at(count.min(repeats.len()));
                (levels, repeats) = (others, other_repeats);
                if known.is_wanted() && is_large(page) {
                    marks.levels = marks_of(own);
                    if !nested.levels.lists.is_empty() {
                        marks.repeats = marks_of(own_repeats);
                    }
                }
            }
        }
        Ok(marks)
    }

    /// Queues what fills the slots. `said` is the address of words: an error for each leaf of `slots`, and then a number for each of
    /// their bitmaps.
    fn fill(
        &self,
        work: &mut Work<'_>,
        nested: &[&Nested],
        plans: &[std::result::Result<Plan, (u32, u32)>],
        slots: &[Slots],
        bitmaps: &[Option<u64>],
        said: u64,
    ) -> Result<()> {
        if self.page_count == 0 || slots.is_empty() {
            return Ok(());
        }
        // SAFETY: there is a word for each.
        unsafe { work.fill(said, 0xff, slots.len() * 8)? };
        let mut count = said + slots.len() as u64 * 8;
        // Where numbers go that nobody wants: `ranks` counts the nulls of values.
        let unwanted = work.filled(8, 0)?;
        let mut nests = Words::with_capacity(nested.len() * NEST)?;
        let mut table = Words::default();
        let (mut bitmap_count, mut tile, mut live) = (0, 0, slots.iter().zip(bitmaps).enumerate());
        for (number, (one, plan)) in nested.iter().zip(plans).enumerate() {
            let pages = one.leaf.pages.iter();
            let tiles: u64 = pages.map(|page| page.entries.div_ceil(TILE)).sum();
            let mut filled = Filled {
                skip: true,
                first_tile: tile as u32,
                tiles: tiles as u32,
                ..Filled::default()
            };
            tile += tiles;
            let mut error = 0;
            if plan.is_ok()
                && let Some((at, (slots, leaf))) = live.next()
            {
                error = said + at as u64 * 8;
                filled.skip = false;
                filled.first_bitmap = bitmap_count;
                for (to, from) in filled.offsets.iter_mut().skip(1).zip(&slots.offsets) {
                    *to = from.as_ref().map_or(0, Output::address);
                }
                for (valid, bits) in one.levels.valid.iter().zip(&slots.valid) {
                    table.u64(bits.address()).u64(count);
                    table.u32(valid.depth).u32(valid.def);
                    count += 8;
                    filled.bitmaps += 1;
                }
                if let Some(leaf) = leaf {
                    table.u64(*leaf).u64(unwanted);
                    table.u32(one.levels.lists.len() as u32);
                    table.u32(one.levels.max_def);
                    filled.bitmaps += 1;
                }
                bitmap_count += filled.bitmaps;
            }
            let kinds = self.kinds + number as u64 * 256;
            one.levels.describe(&mut nests, error, kinds, filled);
        }
        let nests = work.upload(nests)?;
        let table = work.upload(table)?;
        let job = self.job(nests, 0, 0, table);
        // SAFETY: as in `of`; offsets and bitmaps have a place for each slot that the levels have, which were counted.
        unsafe {
            let threads = self.tile_count * u64::from(BLOCK);
            work.launch(NESTING, "nesting_slots", BLOCK, threads, job)
        }
    }

    fn job(&self, nests: u64, counts: u64, totals: u64, bitmaps: u64) -> Words {
        let mut job = Words::default();
        let (begin, end) = self.arena;
        job.u64(self.pages).u64(0).u64(self.found);
        self.tiles.describe(&mut job);
        job.u64(self.page_count as u64).u64(self.tile_count);
        job.u64(begin).u64(end);
        job.u64(begin.next_multiple_of(4)).u64(end & !3);
        job.u32(0).u32(0);
        job.u64(nests).u64(self.repeats).u64(self.levels);
        job.u64(counts).u64(self.sums).u64(totals).u64(bitmaps);
        job
    }
}

impl Nested {
    /// What is known of where the tiles of a page's levels begin, and the flag for it; of both kinds or of none.
    fn known(&self, known: &Known, number: usize, page: &Page) -> (PageMarks, u32) {
        let is_large = is_large(page);
        let streams = Streams {
            levels: is_large,
            values: false,
            deltas: 0,
        };
        let (marks, flags) = known.of_page(number, streams, page.entries.div_ceil(TILE));
        match self.levels.lists.is_empty() || marks.repeats.len() == marks.levels.len() {
            true => (marks, flags),
            false => (PageMarks::default(), 0),
        }
    }

    /// What its levels turned out to be, by what kernels say of it, and of each page: slots of each depth, values, and where
    /// those begin.
    fn plan(&self, error: u64, totals: &[&[u64]]) -> std::result::Result<Plan, (u32, u32)> {
        let depths = self.levels.lists.len() + 1;
        let mut first = (error != u64::MAX).then_some(((error >> 32) as u32, error as u32));
        let mut slots = vec![0u64; depths];
        let mut pages = Vec::with_capacity(totals.len());
        for (number, (page, total)) in self.leaf.pages.iter().zip(totals).enumerate() {
            let word = |at: usize| total.get(at).copied().unwrap_or(0);
            for (depth, sum) in slots.iter_mut().enumerate() {
                *sum = sum.saturating_add(word(depth));
            }
            let number = number as u32;
            let before = first.is_some_and(|(page, _)| page <= number);
            let nulls = page.entries.saturating_sub(word(DEPTHS));
            if !before && page.nulls.is_some_and(|told| told != nulls) {
                first = Some((number, check::NULLS));
            }
            let rows = self.levels.page_rows.as_ref();
            let rows = rows.and_then(|rows| rows.get(number as usize));
            let before = first.is_some_and(|(page, _)| page <= number);
            if !before && rows.is_some_and(|told| *told != word(0)) {
                first = Some((number, check::ROWS));
            }
            pages.push(Page {
                body: page.body.clone(),
                v1: false,
                def_len: word(COUNTS) as u32,
                entries: word(depths - 1),
                nulls: None,
                encoding: page.encoding,
            });
        }
        if let Some(first) = first {
            return Err(first);
        }
        if slots.first() != Some(&self.levels.rows) {
            return Err((0, check::ROWS));
        }
        let deepest = slots.last().copied().unwrap_or(0);
        let mut many = deepest > self.levels.most;
        many |= pages.iter().any(|page| page.entries > MOST);
        for (list, slots) in self.levels.lists.iter().zip(slots.iter().skip(1)) {
            many |= list.offsets == Offsets::Small && *slots > MOST;
        }
        if many {
            return Err((0, check::SLOTS));
        }
        let column = Column {
            values: self.leaf.values,
            nullable: self.leaf.nullable,
            dictionary: self.leaf.dictionary.clone(),
            pages,
            convert: self.leaf.convert,
        };
        Ok(Plan { slots, column })
    }
}

/// Where the slots of a leaf go.
#[derive(Clone, Copy, Default)]
struct Filled {
    offsets: [u64; DEPTHS],
    first_bitmap: u32,
    bitmaps: u32,
    skip: bool,
    first_tile: u32,
    tiles: u32,
}

impl Levels {
    /// The entry of a leaf.
    fn describe(&self, words: &mut Words, error: u64, kinds: u64, filled: Filled) {
        words.u64(error).u64(kinds);
        for offsets in filled.offsets {
            words.u64(offsets);
        }
        let list = |depth: usize| depth.checked_sub(1).and_then(|at| self.lists.get(at));
        for depth in 0..DEPTHS {
            words.u32(match list(depth).map(|list| list.offsets) {
                None | Some(Offsets::None) => 0,
                Some(Offsets::Small) => 1,
                Some(Offsets::Large) => 2,
                Some(Offsets::Fixed { .. }) => 3,
            });
        }
        for depth in 0..DEPTHS {
            words.u32(match list(depth).map(|list| list.offsets) {
                Some(Offsets::Fixed { size }) => size,
                _ => 0,
            });
        }
        for depth in 0..DEPTHS {
            words.u32(list(depth).map_or(0, |list| list.full));
        }
        let bits = |most: u32| u32::BITS - most.leading_zeros();
        let lists = self.lists.len() as u32;
        words.u32(lists).u32(bits(lists)).u32(bits(self.max_def));
        words
            .u32(self.pad())
            .u32(filled.first_bitmap)
            .u32(filled.bitmaps);
        words
            .u32(filled.skip.into())
            .u32(filled.first_tile)
            .u32(filled.tiles);
    }
}

/// Memory for offsets and bitmaps.
struct Slots {
    offsets: Vec<Option<Output>>,
    valid: Vec<Output>,
    /// Of those.
    depths: Vec<usize>,
}

impl Slots {
    fn new(work: &mut Work<'_>, nested: &Nested, plan: &Plan) -> Result<Self> {
        let slots = |depth: usize| plan.slots.get(depth).copied().unwrap_or(0);
        let levels = &nested.levels;
        let is_empty = nested.leaf.rows() == 0;
        let mut offsets = Vec::with_capacity(levels.lists.len());
        for (depth, list) in levels.lists.iter().enumerate() {
            let width = match list.offsets {
                Offsets::None | Offsets::Fixed { .. } => {
                    offsets.push(None);
                    continue;
                }
                Offsets::Small => 4,
                Offsets::Large => 8,
            };
            let len = (slots(depth) + 1) * width;
            let output = work.output(len as usize)?;
            if is_empty {
                // Nobody else writes the one offset of no lists.
                // SAFETY: as many bytes were just taken, and are dropped in the order of the work.
                unsafe { work.fill(output.address(), 0, len as usize)? };
            }
            offsets.push(Some(output));
        }
        let mut bitmap = |depth: usize| {
            let len = bitmap_len(slots(depth)) as usize;
            let output = work.output(len)?;
            // SAFETY: as many bytes were just taken, and are dropped in the order of the work.
            unsafe { work.fill(output.address(), 0, len)? };
            Ok(output)
        };
        let valid = levels
            .valid
            .iter()
            .map(|valid| bitmap(valid.depth as usize));
        let valid = valid.collect::<Result<_>>()?;
        let depths = levels.valid.iter().map(|valid| valid.depth as usize);
        Ok(Slots {
            offsets,
            valid,
            depths: depths.collect(),
        })
    }

    /// What came of the leaf, by what kernels say: its first error, and how many bits of each bitmap are set.
    ///
    /// # Safety
    /// The kernels are done, and this is what they said.
    unsafe fn outcome(
        self,
        plan: Plan,
        values: Outcome,
        error: u64,
        set: &mut impl Iterator<Item = u64>,
    ) -> Result<NestedOutcome> {
        let own: Vec<_> = set.by_ref().take(self.valid.len()).collect();
        // Without pages nobody said anything.
        if error != u64::MAX && !plan.column.pages.is_empty() {
            return Ok(NestedOutcome::Fault {
                page: (error >> 32) as u32,
                check: error as u32,
            });
        }
        let values = match values {
            Outcome::Done(values) => values,
            Outcome::Fault { page, check } => return Ok(NestedOutcome::Fault { page, check }),
            Outcome::Large { bytes } => return Ok(NestedOutcome::Large { bytes }),
        };
        let written = |output: Output| {
            // SAFETY: without an error, kernels wrote each offset; bitmaps were filled before.
            unsafe { output.written() }
        };
        let offsets = self.offsets.into_iter();
        let offsets = offsets.map(|offsets| offsets.map(written).transpose());
        let mut valid = Vec::with_capacity(self.valid.len());
        for ((bits, depth), set) in self.valid.into_iter().zip(self.depths).zip(own) {
            let slots = plan.slots.get(depth).copied().unwrap_or(0);
            valid.push((written(bits)?, slots.saturating_sub(set)));
        }
        Ok(NestedOutcome::Done(Leaf {
            values,
            offsets: offsets.collect::<Result<_>>()?,
            slots: plan.slots,
            valid,
        }))
    }
}
