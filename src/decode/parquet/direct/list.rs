//! Lists of numbers, one level deep.

use std::sync::Arc;

use arrow_array::{ArrayRef, ListArray};
use arrow_buffer::{ArrowNativeType, BooleanBufferBuilder, Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::FieldRef;

use super::column::{AHEAD, Column, Dictionary, Little, Page, nulls};
use super::runs::Run;
use super::text::{Valid, words};

/// Most bytes of values that memory is taken for before they are there, by what the footer says of the column chunk.
const VALUES_AHEAD: usize = 16 << 20;

/// What the levels of a column of lists mean.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Of the items.
    pub(super) item: FieldRef,
    /// The definition level of a list that has no items; below it there is no list.
    pub(super) empty: u32,
    /// That of an item that has a value; between the two, an item is null.
    pub(super) full: u32,
}

/// Lists to be.
struct Lists<T> {
    shape: Shape,
    /// Where each begins.
    offsets: Vec<i32>,
    /// Whether it is there.
    there: BooleanBufferBuilder,
    /// How many items they have.
    items: usize,
    /// Which of them have a value, if not all do.
    valid: BooleanBufferBuilder,
    values: Vec<T>,
}

/// Memory that is used for each page again.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) indices: Vec<u32>,
    pub(super) levels: Vec<u32>,
    /// Levels of a run at which a list begins.
    pub(super) starts: Vec<usize>,
    /// Levels that a row has, about.
    pub(super) levels_of_row: f64,
}

impl Column {
    /// The next `rows` lists.
    pub(super) fn lists<T: ArrowNativeType + From<Little<W>>, const W: usize>(
        &mut self,
        shape: &Shape,
        rows: usize,
    ) -> Option<ArrayRef> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let ahead = rows as f64 * scratch.levels_of_row * 1.02;
        let ahead = (ahead as usize).min(VALUES_AHEAD / W);
        let mut lists = Lists::<T> {
            shape: shape.clone(),
            offsets: Vec::with_capacity(rows.saturating_add(1).min(AHEAD)),
            there: BooleanBufferBuilder::new(0),
            items: 0,
            valid: BooleanBufferBuilder::new(0),
            values: Vec::with_capacity(ahead),
        };
        // The last list ends where the next one begins, or with the column chunk.
        while self.page_if_any()? {
            let page = self.page.as_mut()?;
            if !lists.of_page(rows, page, self.dictionary.as_ref(), &mut scratch)? {
                break;
            }
        }
        if lists.offsets.len() != rows {
            return None;
        }
        self.scratch = scratch;
        lists.offsets.push(i32::try_from(lists.items).ok()?);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(lists.offsets));
        let valid = nulls(lists.valid);
        let values = self.array(lists.items, Buffer::from_vec(lists.values), valid)?;
        let lists = ListArray::try_new(shape.item.clone(), offsets, values, nulls(lists.there));
        Some(Arc::new(lists.ok()?))
    }
}

impl<T: Copy + Default> Lists<T> {
    /// Appends what `page` has of the first `rows` lists. `false`: they are all there, whatever comes.
    fn of_page<const W: usize>(
        &mut self,
        rows: usize,
        page: &mut Page,
        dictionary: Option<&Dictionary>,
        scratch: &mut Scratch,
    ) -> Option<bool>
    where
        T: From<Little<W>>,
    {
        let mut starts = std::mem::take(&mut scratch.starts);
        while page.levels_left > 0 {
            let repeats = page.repeats.as_mut()?;
            let run = repeats.some(page.levels_left)?;
            let levels = starts_of(repeats.run(), run, rows - self.offsets.len(), &mut starts)?;
            // A batch begins with a list, and so does a page of the second version.
            let is_first = self.offsets.is_empty() || page.must_begin;
            if levels > 0 && is_first && starts.first() != Some(&0) {
                return None;
            }
            page.must_begin = false;
            repeats.skip(levels);
            page.levels_left -= levels;
            self.of_run(levels, &starts, page, dictionary, scratch)?;
            if levels < run {
                scratch.starts = starts;
                return Some(false);
            }
        }
        page.close()?;
        scratch.starts = starts;
        Some(true)
    }

    /// Appends what the next `levels` levels mean, with a list that begins at each of `starts`.
    fn of_run<const W: usize>(
        &mut self,
        levels: usize,
        starts: &[usize],
        page: &mut Page,
        dictionary: Option<&Dictionary>,
        scratch: &mut Scratch,
    ) -> Option<()>
    where
        T: From<Little<W>>,
    {
        let Shape { empty, full, .. } = self.shape;
        let mut starts = starts.iter().copied().peekable();
        let mut at = 0;
        while at < levels {
            let definitions = page.definitions.as_mut()?;
            let run = definitions.some(levels - at)?;
            let first = self.valid.len();
            let items = self.items;
            match definitions.run() {
                Run::Same(level) if level > empty && level <= full => {
                    while let Some(start) = starts.next_if(|start| *start < at + run) {
                        self.begin(items + (start - at), true)?;
                    }
                    self.items += run;
                    if full > empty + 1 {
                        self.valid.append_n(run, level == full);
                    }
                    definitions.skip(run);
                }
                _ => {
                    let mut levels = std::mem::take(&mut scratch.levels);
                    definitions.read(run, &mut levels)?;
                    for (number, level) in (at..).zip(&levels) {
                        let begins = starts.next_if_eq(&number).is_some();
                        if begins {
                            self.begin(self.items, *level >= empty)?;
                        }
                        if *level > full || (*level <= empty && !begins) {
                            return None;
                        }
                        if *level > empty {
                            self.items += 1;
                            if full > empty + 1 {
                                self.valid.append(*level == full);
                            }
                        }
                    }
                    scratch.levels = levels;
                }
            }
            at += run;
            let came = self.items - items;
            let valid = match full > empty + 1 {
                true => Valid::of(self.valid.as_slice(), first, came),
                false => Valid::all(came),
            };
            page.use_up(valid.count)?;
            page.numbers(&valid, dictionary, &mut scratch.indices, &mut self.values)?;
        }
        Some(())
    }

    /// A list begins with the item of this number, if it is there.
    fn begin(&mut self, item: usize, is_there: bool) -> Option<()> {
        self.offsets.push(i32::try_from(item).ok()?);
        self.there.append(is_there);
        Some(())
    }
}

/// How many levels of the next `count` belong to `most` lists, and to the one that has begun before. `starts` gets the positions
/// of those with which a list begins.
fn starts_of(run: Run<'_>, count: usize, most: usize, starts: &mut Vec<usize>) -> Option<usize> {
    starts.clear();
    match run {
        Run::Same(0) => {
            let levels = count.min(most);
            starts.extend(0..levels);
            Some(levels)
        }
        Run::Same(1) => Some(count),
        Run::Same(_) => None,
        Run::Packed(bytes, bit) => {
            let mut before = 0;
            for (word, len) in words(bytes, bit, count) {
                let mut zeros = !word;
                if len < 64 {
                    zeros &= (1 << len) - 1;
                }
                while zeros != 0 {
                    let at = before + zeros.trailing_zeros() as usize;
                    if starts.len() == most {
                        return Some(at);
                    }
                    starts.push(at);
                    zeros &= zeros - 1;
                }
                before += len;
            }
            Some(count)
        }
    }
}
