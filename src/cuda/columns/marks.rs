//! Where the tiles of large pages begin, for another time.
//!
//! What is in a page is known only from what is before it: of runs, and of strings behind their lengths. So the first time a page is the work
//! of one warp. It notes where each tile begins; with that, the next time is the work of a warp for each tile. Nothing of it is taken on
//! trust: a tile has to end where the next one is said to begin, so that all that is checked the first time is checked again, and
//! values are those that are in the page.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::decode::TILE;
use super::{Column, Encoding, Page};
use crate::cuda::launch::Work;
use crate::error::Result;

/// Rows or levels of a page that is large.
pub const LEAST_ROWS: u64 = 4 * TILE + 1;
/// And bytes of it: fewer are walked over in no time.
pub const LEAST_BYTES: u64 = 4096;

/// Where the tiles of a column's large pages begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Each page; of one that is not large all is empty.
    pub pages: Vec<PageMarks>,
}

/// Where the tiles of a page begin: a mark for each of them, or none at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageMarks {
    /// In its definition levels.
    pub levels: Vec<Mark>,
    /// In its repetition levels.
    pub repeats: Vec<Mark>,
    /// In its values, if they are runs, or strings in PLAIN. Tiles of leaves in lists are those of slots.
    pub values: Vec<Mark>,
    /// In its streams of deltas, in their order.
    pub deltas: Vec<DeltaMarks>,
}

/// Where the tiles of a stream of deltas begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaMarks {
    /// What follows the stream in the page's body; of numbers 0.
    pub end: u32,
    /// Each tile.
    pub tiles: Vec<DeltaMark>,
}

/// Where a delta is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaMark {
    /// The least of its block.
    pub least: u64,
    /// The widths of that block's miniblocks, in the page's body.
    pub widths: u32,
    /// Its miniblock, in the block.
    pub mini: u32,
    /// Where that begins in the body.
    pub data: u32,
    /// Deltas of the miniblock before it.
    pub skip: u32,
}

/// Where something is in a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The run, or the string, in the page's body.
    pub byte: u32,
    /// Values of the run before it.
    pub skip: u32,
}

impl Marks {
    /// Those of these pages, if there are any.
    pub(super) fn of(pages: Vec<PageMarks>) -> Option<Self> {
        let any = pages.iter().any(|page| !page.is_empty());
        any.then_some(Marks { pages })
    }

    /// Bytes of memory that they take, about.
    pub fn memory(&self) -> u64 {
        let each = self.pages.iter().map(|page| {
            let marks = page.levels.len() + page.repeats.len() + page.values.len();
            let deltas = page.deltas.iter().map(|stream| {
                size_of::<DeltaMarks>() + stream.tiles.len() * size_of::<DeltaMark>()
            });
            size_of::<PageMarks>() + marks * size_of::<Mark>() + deltas.sum::<usize>()
        });
        (size_of::<Marks>() + each.sum::<usize>()) as u64
    }

    /// How many pages there are marks of.
    pub fn count(&self) -> u64 {
        let marked = self.pages.iter().filter(|page| !page.is_empty());
        marked.count() as u64
    }
}

impl PageMarks {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        let values = self.values.is_empty() && self.deltas.is_empty();
        values && self.levels.is_empty() && self.repeats.is_empty()
    }
}

/// Bytes of the entry of a tile, as in `kernels/columns.cuh`.
pub(super) const MARK: usize = 8;

/// What is known of a column, and whether more is wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// From another time.
    pub(super) marks: Option<Arc<Marks>>,
    /// To be kept for another time.
    pub(super) keep: bool,
}

/// As in `kernels/columns.cuh`.
pub(super) const KNOWN_LEVELS: u32 = 2;
pub(super) const KNOWN_VALUES: u32 = 4;
pub(super) const BEGINS: u32 = 8;

/// Entries of a table that are known before any kernel is: where they begin, in their order, and their bytes.
#[derive(Default)]
pub(super) struct Prefilled(Vec<(u64, Vec<u8>)>);

/// Bytes between entries that are copied with them, at most: as zeros, which costs less than a copy more.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Which streams of a page may have marks.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    pub(super) levels: bool,
    pub(super) values: bool,
    /// How many streams of deltas.
    pub(super) deltas: usize,
}

impl Streams {
    /// Those of a page of a flat column, or of a leaf's slots.
    pub(super) fn of(column: &Column, page: &Page, slots: bool) -> Self {
        let is_large = is_large(page);
        Streams {
            levels: is_large && column.nullable && !slots,
            values: is_large
                && match page.encoding {
                    Encoding::Dictionary | Encoding::Rle => true,
                    Encoding::Plain => column.is_text(),
                    _ => false,
                },
            deltas: match page.encoding {
                Encoding::DeltaBinaryPacked | Encoding::DeltaLengthByteArray if is_large => 1,
                Encoding::DeltaByteArray if is_large => 2,
                _ => 0,
            },
        }
    }

    /// Whether there is one.
    pub(super) fn any(self) -> bool {
        self.levels || self.values || self.deltas > 0
    }
}

/// Whether marks of the page are worth their memory.
pub(super) fn is_large(page: &Page) -> bool {
    let bytes = page.body.end.saturating_sub(page.body.start);
    page.entries >= LEAST_ROWS && bytes >= LEAST_BYTES
}

impl Known {
    /// The marks of a page, as far as there is one for each tile; and the flags of the page for them.
    pub(super) fn of_page(&self, number: usize, streams: Streams, tiles: u64) -> (PageMarks, u32) {
        let marks = self.marks.as_ref();
        let marks = marks.and_then(|marks| marks.pages.get(number));
        let whole = |wanted: bool, of: fn(&PageMarks) -> &Vec<Mark>| {
            let of = marks.map(of).filter(|_| wanted);
            let of = of.filter(|of| of.len() as u64 == tiles);
            of.cloned().unwrap_or_default()
        };
        let found = PageMarks {
            levels: whole(streams.levels, |page| &page.levels),
            repeats: whole(streams.levels, |page| &page.repeats),
            values: whole(streams.values, |page| &page.values),
            deltas: marks
                .map(|page| &page.deltas)
                .filter(|deltas| {
                    let whole = |stream: &DeltaMarks| stream.tiles.len() as u64 == tiles;
                    deltas.len() == streams.deltas && deltas.iter().all(whole)
                })
                .cloned()
                .unwrap_or_default(),
        };
        let mut flags = 0;
        if !found.levels.is_empty() {
            flags |= KNOWN_LEVELS;
        }
        if !found.values.is_empty() || !found.deltas.is_empty() {
            flags |= KNOWN_VALUES;
        }
        (found, flags)
    }

    /// Whether nothing is known, and something is to be.
    pub(super) fn is_wanted(&self) -> bool {
        self.keep && self.marks.is_none()
    }
}

impl Prefilled {
    /// Adds the tiles of a page, of which the first is `first`.
    pub(super) fn add(&mut self, first: u64, marks: &[Mark]) {
        let mut bytes = Vec::with_capacity(marks.len() * MARK);
        for mark in marks {
            bytes.extend(mark.byte.to_ne_bytes());
            bytes.extend(mark.skip.to_ne_bytes());
        }
        self.put(first * MARK as u64, bytes);
    }

    /// Adds what begins at this byte of the table, behind what was added before.
    pub(super) fn put(&mut self, begin: u64, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.0.push((begin, bytes));
        }
    }

    /// Queues their copy to the table at `table`: one of all, unless there is much between them. What is between them is of any content then.
    ///
    /// # Safety
    /// So many bytes are there, on the device of `work`, which nobody else uses before that is done.
    pub(super) unsafe fn stage(&self, work: &mut Work<'_>, table: u64) -> Result<()> {
        let (mut parts, mut begin, mut end): (Vec<&[u8]>, _, _) = (Vec::new(), 0, 0);
        for (at, bytes) in &self.0 {
            let between = at
                .checked_sub(end)
                .and_then(|len| ZEROS.get(..len as usize));
            match between.filter(|_| !parts.is_empty()) {
                Some(zeros) => parts.push(zeros),
                None => {
                    // SAFETY: as the caller promises.
                    unsafe { work.stage(&parts, table + begin)? };
                    parts.clear();
                    begin = *at;
                }
            }
            parts.push(bytes);
            end = at + bytes.len() as u64;
        }
        // SAFETY: as the caller promises.
        unsafe { work.stage(&parts, table + begin) }
    }
}

/// What entries of tiles say.
pub(super) fn marks_of(tiles: &[[u8; MARK]]) -> Vec<Mark> {
    let each = tiles.iter().map(|[a, b, c, d, rest @ ..]| Mark {
        byte: u32::from_ne_bytes([*a, *b, *c, *d]),
        skip: u32::from_ne_bytes(*rest),
    });
    each.collect()
}
