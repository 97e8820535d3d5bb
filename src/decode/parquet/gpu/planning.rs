//! Planning alone, for benches: what the host does for each row group before its bytes go anywhere.

use super::codecs::assign;
use super::lists::Lists;
use super::page_plan::{Arena, ChunkPlan};
use super::shape::LeafShape;
use crate::decode::device::Processor;
use crate::decode::parquet::metadata::Metadata;

/// Walks over the headers of the column chunks of a row group, plans those that kernels decode, and decides who decompresses what. `chunks` are
/// all bytes of each of them, in the order of the columns, which are flat. Gives the pages that it planned, and the bytes of the chunks that they
/// are in.
pub fn planned(metadata: &Metadata, group: usize, chunks: &[impl AsRef<[u8]>]) -> (u64, u64) {
    let lists = Lists::default();
    let (mut pages, mut all) = (0, 0);
    let of = metadata.parquet().row_group(group);
    let mut arena = Arena::default();
    let mut plans = Vec::new();
    let fields = metadata.schema().fields().iter();
    let columns = of.columns().iter().zip(fields).zip(chunks).enumerate();
    for (leaf, ((chunk, field), bytes)) in columns {
        let bytes = bytes.as_ref();
        let rows = u64::try_from(of.num_rows()).unwrap_or(0);
        // Room is given out only to a column that uses it.
        let mut with = arena.clone();
        let plan = LeafShape::of(chunk.column_descr(), field).and_then(|shape| {
            let list = lists.of((group, leaf), chunk, bytes)?;
            ChunkPlan::of(&shape, chunk, &list, rows, &mut with)
        });
        if let Ok(plan) = plan {
            arena = with;
            pages += plan.bodies.len() as u64;
            all += bytes.len() as u64;
            plans.push(plan);
        }
    }
    let bodies = plans.iter_mut().map(|plan| &mut plan.bodies[..]);
    assign(bodies, arena.len(), Processor::Auto, 1, u64::MAX);
    (pages, all)
}
