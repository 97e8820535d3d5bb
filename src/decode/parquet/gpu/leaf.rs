//! A leaf of a row group: what the kernels are told of it, and the array of what they made.

use std::sync::Arc;

use arrow_schema::DataType;

use super::page_plan::ChunkPlan;
use super::shape::LeafShape;
use super::wanted::Stored;
use crate::cuda::Device;
use crate::cuda::columns::{Decoded, Leaf, Levels, List, Nested, Offsets, RANGE, Selection, Slots};
use crate::decode::device::DeviceArray;
use crate::format::parquet::Rows;

/// A leaf that the kernels decode.
pub(super) struct Planned {
    pub(super) leaf: usize,
    pub(super) chunk: ChunkPlan,
    pub(super) bytes: Stored,
    pub(super) shape: LeafShape,
    /// Bytes of strings, about.
    pub(super) text: u64,
    /// Rows that its pages have.
    pub(super) rows: u64,
    /// How many each, where an index tells and entries do not.
    pub(super) page_rows: Option<Vec<u64>>,
    /// Which of its rows are wanted; `None`: all.
    pub(super) wanted: Option<Rows>,
    /// Whether it has all pages of its chunk.
    pub(super) is_whole: bool,
}

impl Planned {
    /// Bytes that it takes on the device, as far as its pages tell.
    pub(super) fn needed(&self) -> u64 {
        let column = &self.chunk.column;
        let output = self.shape.bytes(self.rows, column.rows(), self.text);
        let both = match &self.wanted {
            None => output,
            Some(wanted) => {
                // Of lists and strings, the rows that are wanted may have most.
                let is_even = self.shape.levels.is_none() && self.text == 0;
                let chosen = match is_even {
                    true => self.shape.bytes(wanted.len(), wanted.len(), 0),
                    false => output,
                };
                let kinds = self.lists().len() as u64 + 2;
                let ranges = wanted.ranges().len() as u64;
                let ranges = ranges.saturating_mul(RANGE * kinds);
                // Offsets that it has only for this, before and after.
                let lists = self.shape.levels.iter().flat_map(|levels| &levels.lists);
                let own = lists.filter(|list| list.offsets == Offsets::None).count() as u64;
                let offsets = column.rows().saturating_add(1).saturating_mul(own * 2 * 4);
                let both = output.saturating_add(chosen).saturating_add(offsets);
                both.saturating_add(ranges)
            }
        };
        both.saturating_add(column.scratch())
    }

    /// The lists that it is in. Where rows are chosen, each leaf has its own offsets: those of another one may be of other rows.
    fn lists(&self) -> Vec<List> {
        let lists = self.shape.levels.iter().flat_map(|levels| &levels.lists);
        let own = |list: &List| match (list.offsets, &self.wanted) {
            (Offsets::None, Some(_)) => List {
                offsets: Offsets::Small,
                ..*list
            },
            _ => *list,
        };
        lists.map(own).collect()
    }

    /// The rows that are wanted of what it was decoded to be; `None`: all.
    pub(super) fn selection(&self, leaf: &Leaf) -> Option<Selection> {
        let wanted = self.wanted.as_ref()?;
        let levels = self.shape.levels.as_ref();
        Some(Selection {
            leaf: leaf.clone(),
            slots: Slots::of(&self.chunk.column),
            lists: self.lists(),
            valid: levels.map_or_else(Vec::new, |levels| levels.valid.clone()),
            rows: wanted.ranges().to_vec(),
        })
    }

    /// What the kernels are told of a leaf of a nested column.
    pub(super) fn nested(&self) -> Option<Nested> {
        let levels = self.shape.levels.as_ref()?;
        let leaf = self.chunk.column.clone();
        Some(Nested {
            levels: Levels {
                max_def: self.shape.max_def,
                lists: self.lists(),
                valid: levels.valid.clone(),
                repetition: self.chunk.repetition.clone(),
                page_rows: self.page_rows.clone(),
                rows: self.rows,
                most: self.shape.slots(self.rows, leaf.rows()),
            },
            leaf,
        })
    }
}

/// The array of a leaf.
pub(super) fn leaf_array(gpu: &Arc<Device>, shape: &LeafShape, made: Decoded) -> DeviceArray {
    array_of(gpu, &shape.data_type, made)
}

fn array_of(gpu: &Arc<Device>, data_type: &DataType, made: Decoded) -> DeviceArray {
    let rows = usize::try_from(made.rows).unwrap_or(usize::MAX);
    let nulls = usize::try_from(made.nulls).unwrap_or(usize::MAX);
    let buffers = made.offsets.into_iter().chain([made.values]).collect();
    let children = match (data_type, made.dictionary) {
        (DataType::Dictionary(_, entry), Some(entries)) => vec![array_of(gpu, entry, *entries)],
        _ => Vec::new(),
    };
    let array = DeviceArray::new(gpu, data_type.clone(), rows, buffers, children);
    array.nulls(made.validity, nulls)
}
