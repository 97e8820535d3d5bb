//! Planning alone, for benches: what the host does for each row group before its bytes go anywhere.

use bytes::Bytes;

use super::codecs::assign;
use super::lists::Lists;
use super::page_plan::{Arena, ChunkPlan};
use super::shape::LeafShape;
use crate::decode::device::Processor;
use crate::decode::parquet::metadata::Metadata;

/// Walks over the headers of all column chunks of `file`, whose columns are flat, plans those that kernels decode, and decides who
/// decompresses what. Gives the pages that it planned, and the bytes of the chunks that they are in.
pub fn planned(metadata: &Metadata, file: &Bytes) -> (u64, u64) {
    let lists = Lists::default();
    let (mut pages, mut all) = (0, 0);
    for (number, group) in metadata.parquet().row_groups().iter().enumerate() {
        let mut arena = Arena::default();
        let mut plans = Vec::new();
        let fields = metadata.schema().fields().iter();
        for ((leaf, chunk), field) in group.columns().iter().enumerate().zip(fields) {
            let (start, len) = chunk.byte_range();
            let range = start as usize..start.saturating_add(len) as usize;
            let Some(bytes) = file.get(range) else {
                continue;
            };
            let rows = u64::try_from(group.num_rows()).unwrap_or(0);
            let plan = LeafShape::of(chunk.column_descr(), field).and_then(|shape| {
                let list = lists.of((number, leaf), chunk, bytes)?;
                ChunkPlan::of(&shape, chunk, &list, rows, &mut arena)
            });
            if let Ok(plan) = plan {
                pages += plan.bodies.len() as u64;
                all += len;
                plans.push(plan);
            }
        }
        let bodies = plans.iter_mut().flat_map(|plan| &mut plan.bodies);
        assign(bodies, arena.len(), Processor::Auto, 1, u64::MAX);
    }
    (pages, all)
}
