//! One row group: pages decompressed by threads into the device's memory, decoded there, and what the kernels leave out by the host.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use bytes::Bytes;

use super::inflate::inflate;
use super::page_plan::{Arena, ChunkPlan};
use super::report::Tally;
use super::shape::LeafShape;
use crate::cuda::columns::{Column, Decoded as Made, Outcome};
use crate::cuda::{Device, Filling, Stream};
use crate::decode::device::{DeviceArray, DeviceBatch, Processor};
use crate::decode::parquet::buffers::Buffers;
use crate::decode::parquet::failure;
use crate::decode::parquet::job::Task;
use crate::decode::parquet::unit::{Held, Unit, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{GroupPlan, Pieces};

/// Bytes that are copied to the device at once, more or less: a block of the pinned ring.
const PIECE: u64 = 4 << 20;

/// A column chunk of fewer bytes is not worth its share of the launches: copying it costs less than they do. Not measured.
const LEAST: u64 = 64 << 10;

/// A top-level column of a scan.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) name: Arc<str>,
    /// Its leaves, ascending.
    pub(super) leaves: Vec<usize>,
    /// What the kernels make of it, or why they do not.
    pub(super) shape: std::result::Result<LeafShape, Arc<str>>,
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
    pub(super) tally: Mutex<Tally>,
    pub(super) stopped: AtomicBool,
}

/// What became of a row group.
pub(super) enum Decoded {
    Batch(DeviceBatch),
    /// It has to be decoded in smaller batches, by the host: why, and how many bytes it takes at least.
    Divide(Arc<str>, u64),
    /// Nobody wants it any more.
    Stopped,
}

/// A column of a row group while it is decoded.
struct Chunk<'a> {
    root: &'a Root,
    /// What the kernels are to do.
    plan: Option<Planned>,
    /// Why they do not.
    reason: OnceLock<Arc<str>>,
    /// What the host made.
    host: Mutex<Option<Result<ArrayRef>>>,
}

struct Planned {
    chunk: ChunkPlan,
    bytes: Bytes,
    shape: LeafShape,
    /// Bytes of strings, about.
    text: u64,
}

impl Chunk<'_> {
    /// Whether the kernels still are to decode it.
    fn is_planned(&self) -> bool {
        self.plan.is_some() && self.reason.get().is_none()
    }
}

/// Bytes that are copied together: a range of the arena, and the pages in it.
struct Piece {
    place: Range<u64>,
    /// Positions among the chunks, and among the bodies of each.
    bodies: Vec<(usize, usize)>,
}

impl Groups {
    /// Decodes all rows of a row group.
    ///
    /// # Errors
    /// Those of the host's decoder, and those of the device.
    pub(super) fn decode(
        &self,
        stream: &Stream,
        group: &GroupPlan,
        pieces: &Arc<Pieces>,
    ) -> Result<Decoded> {
        let mut arena = Arena::default();
        let roots = self.roots.iter();
        let chunks: Vec<_> = roots
            .map(|root| self.planned(root, group, pieces, &mut arena))
            .collect();
        let (mut needed, mut text) = (0u64, 0u64);
        for chunk in &chunks {
            needed = needed.saturating_add(match &chunk.plan {
                Some(Planned {
                    chunk,
                    shape,
                    text: own,
                    ..
                }) => {
                    text = text.saturating_add(*own);
                    let output = shape.bytes(group.count, *own);
                    output.saturating_add(chunk.column.scratch())
                }
                None => self.estimate(chunk.root, group),
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
        // What is not known before the lengths were read has the rest.
        let most = self.memory - (needed - text);
        let mut arrays: Vec<Option<DeviceArray>> = chunks.iter().map(|_| None).collect();
        let filling = match is_planned {
            true => Some(Filling::new(&self.gpu, stream, arena_len(&arena)?)?),
            false => None,
        };
        // The heaviest work first: what the host decodes is one column each.
        let cut = match &filling {
            Some(_) => pieces_of(&chunks, &arena),
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
            let pages = filling.finish()?;
            let (ats, columns): (Vec<usize>, Vec<Column>) = chunks
                .iter()
                .enumerate()
                .filter(|(_, chunk)| chunk.is_planned())
                .filter_map(|(at, chunk)| Some((at, chunk.plan.as_ref()?.chunk.column.clone())))
                .unzip();
            let outcomes = match columns.is_empty() {
                true => Vec::new(),
                false => self.gpu.columns_within(&pages, &columns, most)?,
            };
            drop(pages);
            let large = outcomes.iter().find_map(|outcome| match outcome {
                Outcome::Large { bytes } => Some(*bytes),
                _ => None,
            });
            if let Some(bytes) = large {
                let why = format!("{bytes} bytes of strings in a column");
                let bytes = (needed - text).saturating_add(bytes);
                return Ok(Decoded::Divide(why.into(), bytes));
            }
            for (at, outcome) in ats.into_iter().zip(outcomes) {
                let (Some(chunk), Some(array)) = (chunks.get(at), arrays.get_mut(at)) else {
                    continue;
                };
                match (outcome, &chunk.plan) {
                    (Outcome::Done(done), Some(planned)) => {
                        let data_type = &planned.shape.data_type;
                        *array = Some(array_of(&self.gpu, data_type, done));
                    }
                    (Outcome::Fault { page, check }, _) => {
                        let why = format!("page {page} did not pass check {check} of the kernels");
                        let _ = chunk.reason.set(why.into());
                    }
                    (Outcome::Done(_), None) => {}
                    (Outcome::Large { .. }, _) => {}
                }
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
        self.assemble(group, &chunks, arrays)
    }

    /// What is to become of a column of a row group.
    fn planned<'a>(
        &self,
        root: &'a Root,
        group: &GroupPlan,
        pieces: &Pieces,
        arena: &mut Arena,
    ) -> Chunk<'a> {
        let planned = self.plan_of(root, group, pieces, arena);
        let reason = OnceLock::new();
        let plan = match planned {
            Ok(planned) => Some(planned),
            Err(why) => {
                let _ = reason.set(why);
                None
            }
        };
        Chunk {
            root,
            plan,
            reason,
            host: Mutex::new(None),
        }
    }

    fn plan_of(
        &self,
        root: &Root,
        group: &GroupPlan,
        pieces: &Pieces,
        arena: &mut Arena,
    ) -> std::result::Result<Planned, Arc<str>> {
        let shape = root.shape.as_ref().map_err(Arc::clone)?;
        let metadata = self.task.metadata.row_group(group.index);
        let leaf = root.leaves.first().copied().unwrap_or_default();
        let text = shape.text(metadata.column(leaf));
        if self.processor == Processor::Auto && shape.bytes(group.count, text) < LEAST {
            return Err(format!("less than {LEAST} bytes").into());
        }
        let column = group
            .columns
            .iter()
            .find(|column| root.leaves == [column.leaf]);
        let column = column.ok_or("it was not planned")?;
        let bytes = pieces.range(column.chunk.clone());
        let bytes = bytes.ok_or("its chunk was not read as a whole")?;
        let chunk = metadata.column(column.leaf);
        // Room is given out only to a chunk that uses it.
        let mut with = arena.clone();
        let chunk = ChunkPlan::of(shape, chunk, &bytes, group.count, &mut with)?;
        *arena = with;
        let is_told = metadata
            .column(leaf)
            .unencoded_byte_array_data_bytes()
            .is_some();
        Ok(Planned {
            text: if is_told { text } else { chunk.text() },
            chunk,
            bytes,
            shape: shape.clone(),
        })
    }

    /// Bytes that a column which the host decodes may take, as far as the footer tells.
    fn estimate(&self, root: &Root, group: &GroupPlan) -> u64 {
        let metadata = self.task.metadata.row_group(group.index);
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

    /// Decompresses the pages of a piece, and sends it off. A page that cannot be is a matter of its chunk.
    fn fill(
        &self,
        filling: &Filling,
        piece: &Piece,
        group: &GroupPlan,
        chunks: &[Chunk<'_>],
    ) -> Result<()> {
        let start = piece.place.start;
        let len = usize::try_from(piece.place.end - start).unwrap_or(usize::MAX);
        let mut stage = filling.stage(len)?;
        let bytes = stage.bytes();
        let mut written = 0;
        for (at, number) in &piece.bodies {
            let Some(chunk) = chunks.get(*at) else {
                continue;
            };
            let Some((planned, body)) = chunk
                .plan
                .as_ref()
                .and_then(|planned| Some((planned, planned.chunk.bodies.get(*number)?)))
            else {
                continue;
            };
            let from = usize::try_from(body.place.start - start).unwrap_or(usize::MAX);
            let to = usize::try_from(body.place.end - start).unwrap_or(usize::MAX);
            if let Some(gap) = bytes.get_mut(written..from) {
                gap.fill(0);
            }
            let Some(page) = bytes.get_mut(from..to) else {
                continue;
            };
            written = to;
            if chunk.reason.get().is_some() {
                page.fill(0);
                continue;
            }
            let leaf = chunk.root.leaves.first().copied().unwrap_or_default();
            let of = self.task.metadata.row_group(group.index).column(leaf);
            let inflated = failure::contain(None, || inflate(of, &planned.bytes, body, page));
            if let Err(error) = inflated {
                let _ = chunk.reason.set(error.to_string().into());
                page.fill(0);
            }
        }
        if let Some(rest) = bytes.get_mut(written..) {
            rest.fill(0);
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        filling.send(start, stage)
    }

    /// Decodes a column by the crate.
    fn decode_by_host(&self, chunk: &Chunk<'_>, group: &GroupPlan, pieces: &Arc<Pieces>) {
        let decode = || {
            let mut unit = Unit::new(Work {
                metadata: &self.task.metadata,
                fields: &self.task.fields,
                leaves: &chunk.root.leaves,
                group,
                rows: group.decoded.clone(),
                held: Held::Here(pieces.clone()),
                batch_rows: group.count,
                name: &self.task.name,
                buffers: &self.buffers,
            })?;
            let mut arrays = Vec::new();
            while let Some(batch) = unit.next()? {
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
        group: &GroupPlan,
        chunks: &[Chunk<'_>],
        arrays: Vec<Option<DeviceArray>>,
    ) -> Result<Decoded> {
        let mut columns = Vec::with_capacity(chunks.len());
        for (chunk, array) in chunks.iter().zip(arrays) {
            let array = match (array, lock(&chunk.host).take()) {
                (Some(array), _) => array,
                (None, Some(host)) => DeviceArray::upload(&self.gpu, &host?)?,
                (None, None) => {
                    let why = "a column has too many bytes for one array";
                    return Ok(Decoded::Divide(why.into(), 0));
                }
            };
            columns.push(array);
        }
        let mut tally = self.tally();
        for chunk in chunks {
            match chunk.reason.get() {
                None => tally.by_gpu(&chunk.root.name),
                Some(why) => tally.by_host(&chunk.root.name, why),
            }
        }
        drop(tally);
        let rows = usize::try_from(group.count).unwrap_or(usize::MAX);
        let batch = DeviceBatch::new(self.task.schema.clone(), rows, columns);
        Ok(Decoded::Batch(batch))
    }

    /// Does pieces of work by number, on this thread and others. The first error stops all of them.
    fn in_parallel(&self, count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        let run = || {
            while !self.is_stopped() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                if let Err(error) = work(number) {
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
        let bytes = roots.map(|root| match &root.shape {
            Ok(shape) => {
                let metadata = self.task.metadata.row_group(group.index);
                let leaf = root.leaves.first().copied().unwrap_or_default();
                shape.bytes(group.count, shape.text(metadata.column(leaf)))
            }
            Err(_) => self.estimate(root, group),
        });
        bytes.fold(0, u64::saturating_add)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// The array of what the kernels made.
fn array_of(gpu: &Arc<Device>, data_type: &DataType, made: Made) -> DeviceArray {
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

fn arena_len(arena: &Arena) -> Result<usize> {
    usize::try_from(arena.len()).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory {
            wanted: arena.len(),
            cap: u64::MAX,
        })
    })
}

/// The arena cut into pieces between pages, so that nothing of it is left out.
fn pieces_of(chunks: &[Chunk<'_>], arena: &Arena) -> Vec<Piece> {
    let mut places = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        for (number, body) in chunk
            .plan
            .iter()
            .flat_map(|plan| plan.chunk.bodies.iter().enumerate())
        {
            // A page of no bytes may have the place of the next one.
            places.push((body.place.start, body.place.end, at, number));
        }
    }
    places.sort_unstable();
    let mut pieces: Vec<Piece> = Vec::new();
    for (start, end, at, number) in places {
        match pieces.last_mut() {
            Some(piece) if end - piece.place.start <= PIECE => {
                piece.place.end = end;
                piece.bodies.push((at, number));
            }
            last => {
                // The gap belongs to the piece before.
                let start = match last {
                    Some(piece) => {
                        piece.place.end = start;
                        start
                    }
                    None => 0,
                };
                pieces.push(Piece {
                    place: start..end,
                    bodies: vec![(at, number)],
                });
            }
        }
    }
    match pieces.last_mut() {
        Some(piece) => piece.place.end = arena.len(),
        None => pieces.push(Piece {
            place: 0..arena.len(),
            bodies: Vec::new(),
        }),
    }
    pieces
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
