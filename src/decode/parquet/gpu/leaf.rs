//! A leaf of a row group: what the kernels are told of it, and the array of what they made.

use std::sync::Arc;

use arrow_schema::DataType;
use bytes::Bytes;

use super::page_plan::ChunkPlan;
use super::shape::LeafShape;
use crate::cuda::Device;
use crate::cuda::columns::{Decoded, Levels, Nested};
use crate::decode::device::DeviceArray;

/// A leaf that the kernels decode.
pub(super) struct Planned {
    pub(super) leaf: usize,
    pub(super) chunk: ChunkPlan,
    pub(super) bytes: Bytes,
    pub(super) shape: LeafShape,
    /// Bytes of strings, about.
    pub(super) text: u64,
}

impl Planned {
    /// Bytes that it takes on the device, as far as its pages tell.
    pub(super) fn needed(&self, rows: u64) -> u64 {
        let column = &self.chunk.column;
        let output = self.shape.bytes(rows, column.rows(), self.text);
        output.saturating_add(column.scratch())
    }

    /// What the kernels are told of a leaf of a nested column.
    pub(super) fn nested(&self, rows: u64) -> Option<Nested> {
        let levels = self.shape.levels.as_ref()?;
        let leaf = self.chunk.column.clone();
        Some(Nested {
            levels: Levels {
                max_def: self.shape.max_def,
                lists: levels.lists.clone(),
                valid: levels.valid.clone(),
                repetition: self.chunk.repetition.clone(),
                rows,
                most: self.shape.slots(rows, leaf.rows()),
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
