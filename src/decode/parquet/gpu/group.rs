//! One row group: pages decompressed by threads or on the device into its memory, decoded there, and what the kernels leave out by the
//! host.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow_array::ArrayRef;

use super::codecs::{Undone, assign};
use super::leaf::Planned;
use super::lists::Lists;
use super::nesting::RootShape;
use super::page_plan::{Arena, ChunkPlan};
use super::pieces::pieces_of;
use super::report::Tally;
use super::wanted::{Found, Stored};
use crate::cuda::columns::{Column, Leaf, Nested, NestedOutcome, Outcome};
use crate::cuda::{Device, Filling, Stream, Work as Kernels};
use crate::decode::device::{DeviceArray, DeviceBatch, Processor};
use crate::decode::panics::{OURS, contained};
use crate::decode::parquet::buffers::Buffers;
use crate::decode::parquet::filter;
use crate::decode::parquet::job::Task;
use crate::decode::parquet::unit::{Held, Unit, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{Bound, DECODED_GAP, GroupPlan, Pieces, Rows};

/// A column chunk of fewer bytes is not worth its share of the launches: copying it costs less than they do. Not measured.
const LEAST: u64 = 64 << 10;

/// A top-level column of a scan.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) name: Arc<str>,
    /// Its leaves, ascending.
    pub(super) leaves: Vec<usize>,
    /// What the kernels make of it, or why they do not.
    pub(super) shape: std::result::Result<RootShape, Arc<str>>,
}

/// What decoding row groups takes, the same for all of them.
pub(super) struct Groups {
    pub(super) task: Task,
    pub(super) gpu: Arc<Device>,
    pub(super) processor: Processor,
    pub(super) roots: Vec<Root>,
    pub(super) buffers: Arc<Buffers>,
    /// Threads that decompress.
    pub(super) threads: usize,
    /// Most bytes of the device for one row group.
    pub(super) memory: u64,
    /// Where the pages of its chunks are.
    pub(super) lists: Lists,
    pub(super) tally: Mutex<Tally>,
    pub(super) stopped: AtomicBool,
}

/// What became of a row group.
pub(super) enum Decoded {
    Batch(DeviceBatch),
    /// The predicate is true for none of its rows.
    Nothing,
    /// It has to be decoded in smaller batches, by the host: why, and how many bytes it takes at least.
    Divide(Arc<str>, u64),
    /// Nobody wants it any more.
    Stopped,
}

/// A column of a row group while it is decoded.
pub(super) struct Chunk<'a> {
    pub(super) root: &'a Root,
    /// What the kernels are to do with each of its leaves; none if they do nothing.
    pub(super) plans: Vec<Planned>,
    /// Why they do not.
    pub(super) reason: OnceLock<Arc<str>>,
    /// What the host made.
    host: Mutex<Option<Result<ArrayRef>>>,
    /// Pages that were decompressed, and by whom.
    pub(super) undone: Undone,
}

impl Chunk<'_> {
    /// Whether the kernels still are to decode it.
    fn is_planned(&self) -> bool {
        !self.plans.is_empty() && self.reason.get().is_none()
    }

    /// The host decodes it, because of this.
    pub(super) fn leave(&self, why: String) {
        let _ = self.reason.set(why.into());
    }
}

/// What the kernels are asked for: flat columns, leaves of nested ones, and which leaves of the file these are.
struct Asked {
    flat: Vec<Column>,
    nested: Vec<Nested>,
    /// `None`: of some pages nothing is kept, since the next time it may be others.
    leaves: Vec<Option<usize>>,
}

impl Asked {
    /// All that is planned.
    fn of(chunks: &[Chunk<'_>]) -> Self {
        let (mut flat, mut nested) = (Vec::new(), Vec::new());
        let (mut leaves, mut nested_leaves) = (Vec::new(), Vec::new());
        for chunk in chunks.iter().filter(|chunk| chunk.is_planned()) {
            for planned in &chunk.plans {
                let leaf = planned.is_whole.then_some(planned.leaf);
                match planned.nested() {
                    Some(levels) => {
                        nested.push(levels);
                        nested_leaves.push(leaf);
                    }
                    None => {
                        flat.push(planned.chunk.column.clone());
                        leaves.push(leaf);
                    }
                }
            }
        }
        leaves.append(&mut nested_leaves);
        Asked {
            flat,
            nested,
            leaves,
        }
    }
}

impl Groups {
    /// Decodes the rows of a row group that are wanted, and that the predicate is true for.
    ///
    /// # Errors
    /// Those of the host's decoder, and those of the device.
    pub(super) fn decode(
        &self,
        stream: &Stream,
        group: &GroupPlan,
        pieces: &Arc<Pieces>,
    ) -> Result<Decoded> {
        let Some(predicate) = &self.task.predicate else {
            return self.decode_rows(stream, group, pieces);
        };
        let rows = self.matched(predicate, group, pieces)?;
        if self.is_stopped() {
            return Ok(Decoded::Stopped);
        }
        if rows.is_empty() {
            return Ok(Decoded::Nothing);
        }
        let group = GroupPlan {
            decoded: rows.closing(DECODED_GAP),
            rows,
            ..group.clone()
        };
        self.decode_rows(stream, &group, pieces)
    }

    /// The rows that are wanted and that the predicate is true for, by the host.
    fn matched(&self, predicate: &Bound, group: &GroupPlan, pieces: &Arc<Pieces>) -> Result<Rows> {
        let leaves = predicate.leaves();
        let (rows, batch_rows) = (group.decoded.clone(), self.task.batch_rows);
        let mut unit = self.unit(&leaves, group, rows, pieces, batch_rows)?;
        filter::matched(predicate, &mut unit, group, || self.is_stopped())
    }

    fn unit(
        &self,
        leaves: &[usize],
        group: &GroupPlan,
        rows: Rows,
        pieces: &Arc<Pieces>,
        batch_rows: u64,
    ) -> Result<Unit> {
        Unit::new(Work {
            metadata: &self.task.metadata,
            fields: &self.task.fields,
            leaves,
            group,
            rows,
            held: Held::Here(pieces.clone()),
            batch_rows,
            name: &self.task.name,
            buffers: &self.buffers,
        })
    }

    fn decode_rows(
        &self,
        stream: &Stream,
        group: &GroupPlan,
        pieces: &Arc<Pieces>,
    ) -> Result<Decoded> {
        let mut arena = Arena::default();
        let roots = self.roots.iter();
        let mut chunks: Vec<_> = roots
            .map(|root| self.planned(root, group, pieces, &mut arena))
            .collect();
        let (mut needed, mut text, mut is_twice) = (0u64, 0u64, false);
        for chunk in &chunks {
            for leaf in &chunk.plans {
                // Strings of rows that are chosen are there twice for a while.
                let chosen = if leaf.wanted.is_some() { leaf.text } else { 0 };
                is_twice |= leaf.wanted.is_some();
                text = text.saturating_add(leaf.text).saturating_add(chosen);
            }
            let leaves = chunk.plans.iter().map(Planned::needed);
            needed = needed.saturating_add(match chunk.plans.is_empty() {
                false => leaves.fold(0, u64::saturating_add),
                true => share(
                    estimate(&self.task, chunk.root, group),
                    group.decoded.len(),
                    group.count,
                ),
            });
        }
        let is_planned = chunks.iter().any(Chunk::is_planned);
        if is_planned {
            needed = needed.saturating_add(arena.len());
        }
        if needed > self.memory {
            let why = format!(
                "{needed} bytes, more than the {} for a row group",
                self.memory
            );
            return Ok(Decoded::Divide(why.into(), needed));
        }
        let plans = chunks.iter_mut().flat_map(|chunk| &mut chunk.plans);
        let bodies = plans.map(|planned| &mut planned.chunk.bodies[..]);
        let room = self.memory - needed;
        let stored = assign(bodies, arena.len(), self.processor, self.threads, room);
        // What is not known before the lengths were read has the rest.
        let most = self.memory.saturating_sub(needed.saturating_sub(text));
        let most = most.saturating_sub(stored) / if is_twice { 2 } else { 1 };
        let mut arrays: Vec<Option<DeviceArray>> = chunks.iter().map(|_| None).collect();
        let filling = match is_planned {
            true => {
                let (len, stored) = (len_of(arena.len())?, len_of(stored)?);
                Some(Filling::new(&self.gpu, stream, len, stored)?)
            }
            false => None,
        };
        // The heaviest work first: what the host decodes is one column each.
        let cut = match &filling {
            Some(_) => pieces_of(&chunks, &arena, stored, self.gpu.piece() as u64),
            None => Vec::new(),
        };
        let by_host: Vec<_> = (0..chunks.len())
            .filter(|at| chunks.get(*at).is_some_and(|chunk| !chunk.is_planned()))
            .collect();
        let host_first = by_host.len();
        self.in_parallel(host_first + cut.len(), |number| {
            if let Some(chunk) = by_host.get(number).and_then(|at| chunks.get(*at)) {
                self.decode_by_host(chunk, group, pieces);
                return Ok(());
            }
            let piece = number.checked_sub(host_first).and_then(|at| cut.get(at));
            match (piece, &filling) {
                (Some(piece), Some(filling)) => self.fill(filling, piece, group, &chunks),
                _ => Ok(()),
            }
        })?;
        if self.is_stopped() {
            return Ok(Decoded::Stopped);
        }
        if let Some(filling) = filling {
            let large = self.by_kernels(stream, &filling, group, &mut chunks, &mut arrays, most)?;
            if let Some(bytes) = large {
                let why = format!("{bytes} bytes of strings in a column");
                let bytes = bytes.saturating_mul(if is_twice { 2 } else { 1 });
                let bytes = needed.saturating_sub(text).saturating_add(bytes);
                return Ok(Decoded::Divide(why.into(), bytes));
            }
        }
        let missing: Vec<_> = chunks
            .iter()
            .zip(&arrays)
            .filter(|(chunk, array)| array.is_none() && lock(&chunk.host).is_none())
            .map(|(chunk, _)| chunk)
            .collect();
        self.in_parallel(missing.len(), |number| {
            if let Some(chunk) = missing.get(number) {
                self.decode_by_host(chunk, group, pieces);
            }
            Ok(())
        })?;
        if self.is_stopped() {
            return Ok(Decoded::Stopped);
        }
        self.assemble(stream, group, &chunks, arrays)
    }

    /// Decodes what is planned; of what the kernels refuse, the chunk gets the reason. If strings of a column have more bytes than they may,
    /// gives how many, and there are no arrays.
    fn by_kernels(
        &self,
        stream: &Stream,
        filling: &Filling,
        group: &GroupPlan,
        chunks: &mut [Chunk<'_>],
        arrays: &mut [Option<DeviceArray>],
        most: u64,
    ) -> Result<Option<u64>> {
        let decoded = |work: &mut Kernels<'_>, asked: &Asked| {
            let known = self.lists.marks(group.index, &asked.leaves);
            let marks = known.as_deref();
            let found = filling.columns(work, &asked.flat, &asked.nested, most, marks);
            found.map(|found| (found, known))
        };
        let mut work = filling.work();
        let undoing = self.undo(filling, &mut work, chunks)?;
        // Nobody waits for what is decompressed: pages are almost never refused, and kernels do not mind what is in them.
        let mut asked = Asked::of(chunks);
        let mut found = decoded(&mut work, &asked);
        let refused = self.refused(&mut work, undoing, chunks)?;
        if !refused.is_empty() {
            // Before the next one takes as much memory.
            drop((found, work));
            self.fill_again(filling, &refused, group, chunks)?;
            if self.is_stopped() {
                return Ok(None);
            }
            work = filling.work();
            asked = Asked::of(chunks);
            found = decoded(&mut work, &asked);
        }
        let ((flat, nested, marks), known) = found?;
        filling.end(work)?;
        let chunks = &*chunks;
        let leaves = asked.leaves;
        if leaves.is_empty() {
            return Ok(None);
        }
        let are_done = flat
            .iter()
            .map(|outcome| !matches!(outcome, Outcome::Fault { .. }));
        let nested_done = nested.iter();
        let nested_done =
            nested_done.map(|outcome| !matches!(outcome, NestedOutcome::Fault { .. }));
        let are_done = are_done.chain(nested_done);
        self.lists
            .note(group.index, &leaves, known, marks, are_done);
        let mut large = flat.iter().filter_map(|outcome| match outcome {
            Outcome::Large { bytes } => Some(*bytes),
            _ => None,
        });
        let mut in_lists = nested.iter().filter_map(|outcome| match outcome {
            NestedOutcome::Large { bytes } => Some(*bytes),
            _ => None,
        });
        if let Some(bytes) = large.next().or_else(|| in_lists.next()) {
            return Ok(Some(bytes));
        }
        let flat = flat.into_iter().map(NestedOutcome::from);
        let (mut flat, mut nested) = (flat, nested.into_iter());
        let mut made = Vec::with_capacity(chunks.len());
        for (at, chunk) in chunks.iter().enumerate() {
            let Some(shape) = chunk
                .root
                .shape
                .as_ref()
                .ok()
                .filter(|_| chunk.is_planned())
            else {
                continue;
            };
            let mut leaves = Vec::with_capacity(chunk.plans.len());
            for planned in &chunk.plans {
                let outcome = match planned.shape.levels {
                    Some(_) => nested.next(),
                    None => flat.next(),
                };
                match outcome {
                    Some(NestedOutcome::Done(leaf)) => leaves.push(leaf),
                    Some(NestedOutcome::Fault { page, check }) => {
                        let why = format!("page {page} did not pass check {check} of the kernels");
                        let of = self.task.metadata.row_group(group.index);
                        let path = of.column(planned.leaf).column_path().string();
                        chunk.leave(match shape.tree {
                            Some(_) => format!("of {path}: {why}"),
                            None => why,
                        });
                    }
                    Some(NestedOutcome::Large { .. }) | None => {}
                }
            }
            if chunk.is_planned() && leaves.len() == chunk.plans.len() {
                made.push((at, shape, leaves));
            }
        }
        let found = made
            .iter_mut()
            .filter_map(|(at, _, leaves)| Some((chunks.get(*at)?, leaves)));
        self.select(stream, found)?;
        for (at, shape, leaves) in made {
            let (Some(chunk), Some(array)) = (chunks.get(at), arrays.get_mut(at)) else {
                continue;
            };
            match shape.array(&self.gpu, &leaves) {
                Ok(made) => *array = Some(made),
                Err(why) => chunk.leave(why),
            }
        }
        Ok(None)
    }

    /// Leaves, of chunks, the rows that are wanted of each.
    fn select<'a, 'c: 'a>(
        &self,
        stream: &Stream,
        chunks: impl Iterator<Item = (&'a Chunk<'c>, &'a mut Vec<Leaf>)>,
    ) -> Result<()> {
        let (mut places, mut selections) = (Vec::new(), Vec::new());
        for (chunk, leaves) in chunks {
            for (planned, leaf) in chunk.plans.iter().zip(leaves) {
                if let Some(selection) = planned.selection(leaf) {
                    places.push(leaf);
                    selections.push(selection);
                }
            }
        }
        if selections.is_empty() {
            return Ok(());
        }
        let made = self.gpu.select(stream, &selections)?;
        for (place, leaf) in places.into_iter().zip(made) {
            *place = leaf;
        }
        Ok(())
    }

    /// What is to become of a column of a row group.
    fn planned<'a>(
        &self,
        root: &'a Root,
        group: &GroupPlan,
        pieces: &Arc<Pieces>,
        arena: &mut Arena,
    ) -> Chunk<'a> {
        let reason = OnceLock::new();
        let plans = self.plans_of(root, group, pieces, arena);
        let plans = plans.unwrap_or_else(|why| {
            let _ = reason.set(why);
            Vec::new()
        });
        Chunk {
            root,
            plans,
            reason,
            host: Mutex::new(None),
            undone: Undone::default(),
        }
    }

    fn plans_of(
        &self,
        root: &Root,
        group: &GroupPlan,
        pieces: &Arc<Pieces>,
        arena: &mut Arena,
    ) -> std::result::Result<Vec<Planned>, Arc<str>> {
        let shape = root.shape.as_ref().map_err(Arc::clone)?;
        if let Some(why) = too_small(&self.task, self.processor, root, group) {
            return Err(why);
        }
        let metadata = self.task.metadata.row_group(group.index);
        // Room is given out only to a column that uses it.
        let mut with = arena.clone();
        let mut plans = Vec::with_capacity(root.leaves.len());
        for (leaf, shape) in root.leaves.iter().zip(&shape.leaves) {
            let column = group.columns.iter().find(|column| column.leaf == *leaf);
            let column = column.ok_or("it was not planned")?;
            let bytes = Stored::new(pieces, &column.chunk);
            let of = metadata.column(*leaf);
            let found = Found::of(&self.lists, of, group, column, &bytes);
            let plan = found.and_then(|found| {
                let (list, entries) = (&found.list, found.entries);
                let chunk = ChunkPlan::of(shape, of, list, entries, &mut with)?;
                Ok((found, chunk))
            });
            let (found, chunk) = plan.map_err(|why| match shape.levels {
                None => why,
                Some(_) => format!("of {}: {why}", of.column_path().string()),
            })?;
            let text = match of.unencoded_byte_array_data_bytes() {
                Some(_) if found.rows == group.count => shape.text(of),
                _ => chunk.text(),
            };
            plans.push(Planned {
                leaf: *leaf,
                chunk,
                bytes,
                shape: shape.clone(),
                text,
                rows: found.rows,
                page_rows: found.page_rows,
                wanted: found.wanted,
                is_whole: found.is_whole,
            });
        }
        *arena = with;
        Ok(plans)
    }

    /// Decodes a column by the crate.
    fn decode_by_host(&self, chunk: &Chunk<'_>, group: &GroupPlan, pieces: &Arc<Pieces>) {
        let decode = || {
            let (leaves, rows) = (&chunk.root.leaves, group.decoded.clone());
            let mut unit = self.unit(leaves, group, rows, pieces, group.count)?;
            let positions = group.rows.positions_in(&group.decoded);
            let (mut arrays, mut at) = (Vec::new(), 0);
            while let Some(batch) = unit.next()? {
                let rows = batch.num_rows() as u64;
                let batch = filter::kept_of(batch, &positions.within(at..at + rows))?;
                at += rows;
                arrays.extend(batch.columns().first().cloned());
            }
            Ok(arrays)
        };
        let decoded = decode().map(|arrays| match arrays.as_slice() {
            [array] => Some(array.clone()),
            _ => None,
        });
        // Several arrays: it has too many bytes for one.
        *lock(&chunk.host) = decoded.transpose();
    }

    /// The batch of all columns; the first error of the host's decoder is the answer.
    fn assemble(
        &self,
        stream: &Stream,
        group: &GroupPlan,
        chunks: &[Chunk<'_>],
        arrays: Vec<Option<DeviceArray>>,
    ) -> Result<Decoded> {
        let mut by_host = Vec::new();
        for (chunk, array) in chunks.iter().zip(&arrays) {
            match (array, lock(&chunk.host).take()) {
                (Some(_), _) => {}
                (None, Some(host)) => by_host.push(host?),
                (None, None) => {
                    let why = "a column has too many bytes for one array";
                    return Ok(Decoded::Divide(why.into(), 0));
                }
            }
        }
        let mut uploaded = Vec::new();
        if !by_host.is_empty() {
            uploaded = DeviceArray::upload_all(&self.gpu, stream, &by_host)?;
        }
        let mut uploaded = uploaded.into_iter();
        let columns = arrays.into_iter();
        let columns = columns.filter_map(|array| array.or_else(|| uploaded.next()));
        let columns: Vec<_> = columns.collect();
        let mut tally = self.tally();
        for chunk in chunks {
            match chunk.reason.get() {
                None => tally.by_gpu(&chunk.root.name, &chunk.undone),
                Some(why) => tally.by_host(&chunk.root.name, why),
            }
        }
        drop(tally);
        let rows = usize::try_from(group.rows.len()).unwrap_or(usize::MAX);
        let batch = DeviceBatch::new(self.task.schema.clone(), rows, columns);
        Ok(Decoded::Batch(batch))
    }

    /// Does pieces of work by number, on this thread and others. The first error stops all of them.
    pub(super) fn in_parallel(
        &self,
        count: usize,
        work: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let run = || {
            while !self.is_stopped() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                // The panic of another thread would be told without its message.
                if let Err(error) = contained(OURS, || work(number)).and_then(|done| done) {
                    next.store(count, Ordering::Relaxed);
                    lock(&failed).get_or_insert(error);
                    break;
                }
            }
        };
        let helpers = self.threads.min(count).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                let thread = std::thread::Builder::new().name("feedwater-dec".into());
                // Fewer threads do it as well.
                if thread.spawn_scoped(scope, run).is_err() {
                    break;
                }
            }
            run();
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    /// Bytes that a row group takes on the device, about.
    pub(super) fn bytes_of(&self, group: &GroupPlan) -> u64 {
        let roots = self.roots.iter();
        let bytes = roots.map(|root| bytes_of_root(&self.task, root, group));
        bytes.fold(0, u64::saturating_add)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// Bytes that a column of a row group takes on the device, about.
fn bytes_of_root(task: &Task, root: &Root, group: &GroupPlan) -> u64 {
    let Ok(shape) = &root.shape else {
        return estimate(task, root, group);
    };
    let of = task.metadata.row_group(group.index);
    let leaves = root.leaves.iter().zip(&shape.leaves);
    let bytes = leaves.map(|(leaf, shape)| {
        let levels = u64::try_from(of.column(*leaf).num_values()).unwrap_or(0);
        shape.bytes(group.count, levels, shape.text(of.column(*leaf)))
    });
    bytes.fold(0, u64::saturating_add)
}

/// Bytes that a column which the host decodes may take, as far as the footer tells.
fn estimate(task: &Task, root: &Root, group: &GroupPlan) -> u64 {
    let metadata = task.metadata.row_group(group.index);
    let sizes = root.leaves.iter().map(|leaf| {
        let chunk = metadata.column(*leaf);
        let values = u64::try_from(chunk.num_values()).unwrap_or(0);
        // A dictionary may make much of little; what lists and strings need beside their values is about 8 bytes each.
        u64::try_from(chunk.uncompressed_size())
            .unwrap_or(0)
            .saturating_add(values.saturating_mul(8))
    });
    sizes.fold(0, u64::saturating_add)
}

/// Why the host decodes a column of a row group although there are kernels for it, as far as the footer tells.
pub(super) fn too_small(
    task: &Task,
    processor: Processor,
    root: &Root,
    group: &GroupPlan,
) -> Option<Arc<str>> {
    let bytes = bytes_of_root(task, root, group);
    let bytes = share(bytes, group.rows.len(), group.count);
    (processor == Processor::Auto && bytes < LEAST)
        .then(|| format!("less than {LEAST} bytes").into())
}

/// So much of it as `part` of `all` rows have, if all have as much.
fn share(bytes: u64, part: u64, all: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(all.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

fn len_of(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory {
            wanted: bytes,
            cap: u64::MAX,
        })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
