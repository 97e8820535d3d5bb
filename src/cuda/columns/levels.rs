//! Leaves in lists and structs, as kernels are told of them: what their levels mean, and what comes of them.
//!
//! Depth 0 are the rows; depth n are the items of the nth list on the way to the leaf. All that is on a depth has a slot for each item, be
//! it null or not.

use super::{Column, Decoded, Outcome, check};
use crate::buffer::DeviceBytes;

/// A leaf of a nested column.
#[derive(Clone, Debug)]
pub struct Nested {
    /// Its pages, whose `entries` are levels. `nullable`: whether a slot of it can be without a value, be the value null or a
    /// struct that it is in.
    pub leaf: Column,
    /// What its levels mean.
    pub levels: Levels,
}

/// What the levels of a leaf mean.
#[derive(Clone, Debug)]
pub struct Levels {
    /// The highest definition level: there is a value. At least 1, at most 31.
    pub max_def: u32,
    /// The lists that it is in, from the outermost; at most 4.
    pub lists: Vec<List>,
    /// Bitmaps that are wanted besides its own.
    pub valid: Vec<Valid>,
    /// Version 2: bytes of repetition levels at the beginning of each page; those of definition levels follow them. Of version
    /// 1, where both have their length in front, it is not looked at.
    pub repetition: Vec<u32>,
    /// Rows of each page, where that is known; each has to begin with one then. Pages may have been left out between them.
    pub page_rows: Option<Vec<u64>>,
    /// Rows that it has to have.
    pub rows: u64,
    /// Slots that it may have.
    pub most: u64,
}

/// A list on the way to a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// The definition level from which on it has an item.
    pub full: u32,
    /// What is wanted of it.
    pub offsets: Offsets,
}

/// What is wanted of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// Nothing: another leaf has it as well.
    None,
    /// Offsets of 4 bytes.
    Small,
    /// Offsets of 8 bytes.
    Large,
    /// It has to have so many items, 1 at least, and has no offsets. If it is null, it has as many that are null; but not where
    /// another list is in it.
    Fixed {
        /// Items.
        size: u32,
    },
}

/// A bitmap of lists or structs: a bit for each slot of a depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// How many lists they are in.
    pub depth: u32,
    /// The definition level from which on they are not null.
    pub def: u32,
}

/// What came of a leaf.
#[derive(Debug)]
pub enum NestedOutcome {
    /// All of it.
    Done(Leaf),
    /// As of flat columns.
    Fault {
        /// The first page that it is so for; 0 for what is not about one page.
        page: u32,
        /// What, of [`check`].
        check: u32,
    },
    /// As of flat columns.
    Large {
        /// Bytes of all slots.
        bytes: u64,
    },
}

/// A leaf on the device; cloning shares its memory.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its values, where rows are its slots.
    pub values: Decoded,
    /// How many slots each depth has, rows first.
    pub slots: Vec<u64>,
    /// Offsets of each list, one more than the depth before has slots.
    pub offsets: Vec<Option<DeviceBytes>>,
    /// The bitmaps that were wanted, in whole words of 4 bytes, and how many bits are zero.
    pub valid: Vec<(DeviceBytes, u64)>,
}

impl From<Outcome> for NestedOutcome {
    /// A leaf that is in no list, and in no struct that can be null.
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done(values) => NestedOutcome::Done(Leaf {
                slots: vec![values.rows],
                values,
                offsets: Vec::new(),
                valid: Vec::new(),
            }),
            Outcome::Fault { page, check } => NestedOutcome::Fault { page, check },
            Outcome::Large { bytes } => NestedOutcome::Large { bytes },
        }
    }
}

/// Lists on the way to a leaf at most.
pub(crate) const MOST_LISTS: usize = 4;
/// The highest definition level at most.
pub(crate) const MOST_DEF: u32 = 31;
/// Items of a fixed-size list at most.
const MOST_SIZE: u32 = 1 << 24;
/// Levels of all leaves at most.
pub(super) const MOST_LEVELS: u64 = 1 << 36;

/// Kinds of levels, as in `kernels/nesting.cu`.
const VALUE: u8 = 1 << 5;
const PAD: u8 = 1 << 6;
const WRONG: u8 = 1 << 7;

impl Levels {
    /// Slots that a list has which is null, on the deepest depth.
    pub(super) fn pad(&self) -> u32 {
        let mut outer = self.lists.iter().rev();
        match (outer.next(), outer.next().map_or(0, |list| list.full)) {
            (Some(list), outer) if list.full > outer + 1 => match list.offsets {
                Offsets::Fixed { size } => size,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// What an entry with these levels is: a bit for each depth that it is a slot of, and what else is said in the kernels.
    pub(super) fn kind(&self, rep: u32, def: u32) -> u8 {
        if rep as usize > self.lists.len() || def > self.max_def {
            return WRONG;
        }
        let full = |depth: usize| match depth.checked_sub(1) {
            Some(at) => self.lists.get(at).map_or(u32::MAX, |list| list.full),
            None => 0,
        };
        if def < full(rep as usize) {
            return WRONG;
        }
        let is_slot = |depth: usize| rep as usize <= depth && def >= full(depth);
        let mut kind = 0;
        for depth in 0..=self.lists.len() {
            kind |= u8::from(is_slot(depth)) << depth;
        }
        if def == self.max_def {
            kind |= VALUE;
        }
        for (depth, list) in self.lists.iter().enumerate() {
            if matches!(list.offsets, Offsets::Fixed { .. }) && is_slot(depth) && def < list.full {
                let is_null = def + 1 < list.full;
                kind |= match is_null && depth + 1 == self.lists.len() {
                    true => PAD,
                    false => WRONG,
                };
            }
        }
        kind
    }
}

impl Nested {
    /// What is wrong with the description, as [`Column::shape`] has it.
    pub(super) fn shape(&self, arena: u64) -> std::result::Result<(), (u32, u32)> {
        self.leaf.shape_with(arena, true)?;
        let levels = &self.levels;
        let mut right = (1..=MOST_DEF).contains(&levels.max_def)
            && levels.lists.len() <= MOST_LISTS
            && levels.repetition.len() == self.leaf.pages.len()
            && levels
                .page_rows
                .as_ref()
                .is_none_or(|rows| rows.len() == self.leaf.pages.len())
            && self.leaf.rows() <= MOST_LEVELS;
        let mut before = 0;
        for list in &levels.lists {
            right &= before < list.full && list.full <= levels.max_def;
            before = list.full;
            if let Offsets::Fixed { size } = list.offsets {
                right &= (1..=MOST_SIZE).contains(&size);
            }
        }
        for valid in &levels.valid {
            right &= valid.depth as usize <= levels.lists.len();
        }
        // All slots have a value, unless the deepest items can be without.
        right &= self.leaf.nullable || (before == levels.max_def && levels.pad() == 0);
        for (page, repetition) in self.leaf.pages.iter().zip(&levels.repetition) {
            let len = page.body.end - page.body.start;
            right &= page.v1 || u64::from(*repetition) + u64::from(page.def_len) <= len;
        }
        match right {
            true => Ok(()),
            false => Err((0, check::SHAPE)),
        }
    }
}
