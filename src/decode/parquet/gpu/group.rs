//! One row group: pages decompressed by threads or on the device into its memory, decoded there, and what the kernels leave out by the
//! host.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use bytes::Bytes;

use super::codecs::{Undone, assign};
use super::inflate::inflate;
use super::lists::Lists;
use super::page_plan::{Arena, Body, By, ChunkPlan};
use super::report::Tally;
use super::shape::LeafShape;
use crate::cuda::columns::{Column, Decoded as Made, Outcome};
use crate::cuda::decompress::Body as Compressed;
use crate::cuda::{Device, Filling, Stream, To};
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
    /// Where the pages of its chunks are.
    pub(super) lists: Lists,
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
    /// Pages that were decompressed, and by whom.
    undone: Undone,
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

/// Bytes that are copied together: a range of an arena, and the pages in it.
struct Piece {
    to: To,
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
        let mut chunks: Vec<_> = roots
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
        let bodies = chunks.iter_mut().filter_map(|chunk| chunk.plan.as_mut());
        let bodies = bodies.flat_map(|planned| &mut planned.chunk.bodies);
        let room = self.memory - needed;
        let stored = assign(bodies, arena.len(), self.processor, self.threads, room);
        // What is not known before the lengths were read has the rest.
        let most = (self.memory - (needed - text)).saturating_sub(stored);
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
            Some(_) => pieces_of(&chunks, &arena, stored),
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
            self.undo(&filling, group, &mut chunks)?;
            if self.is_stopped() {
                return Ok(Decoded::Stopped);
            }
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
            undone: Undone::default(),
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
        let list = self.lists.of((group.index, column.leaf), chunk, &bytes)?;
        // Room is given out only to a chunk that uses it.
        let mut with = arena.clone();
        let chunk = ChunkPlan::of(shape, chunk, &list, group.count, &mut with)?;
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

    /// Writes the pages of a piece, and sends it off. A page that cannot be decompressed is a matter of its chunk.
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
            let place = match (&body.by, piece.to) {
                (By::Device { source, .. }, To::Stored) => source,
                _ => &body.place,
            };
            let from = usize::try_from(place.start - start).unwrap_or(usize::MAX);
            let to = usize::try_from(place.end - start).unwrap_or(usize::MAX);
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
            match (piece.to, planned.bytes.get(body.stored.clone())) {
                (To::Stored, Some(stored)) if stored.len() == page.len() => {
                    page.copy_from_slice(stored);
                }
                _ => self.inflate(group, chunk, planned, body, piece.to, page),
            }
        }
        if let Some(rest) = bytes.get_mut(written..) {
            rest.fill(0);
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        filling.send(piece.to, start, stage)
    }

    /// Brings a page to where it is copied from.
    fn inflate(
        &self,
        group: &GroupPlan,
        chunk: &Chunk<'_>,
        planned: &Planned,
        body: &Body,
        to: To,
        page: &mut [u8],
    ) {
        let leaf = chunk.root.leaves.first().copied().unwrap_or_default();
        let of = self.task.metadata.row_group(group.index).column(leaf);
        // The device looks at the checksum of what is only copied.
        let with_crc = body.compressed || to == To::Again;
        let inflated = failure::contain(None, || inflate(of, &planned.bytes, body, with_crc, page));
        if let Err(error) = inflated {
            let _ = chunk.reason.set(error.to_string().into());
            page.fill(0);
        }
    }

    /// Lets the device decompress the pages that it is to, and look at checksums. The host does what it refuses, whose answer or error counts.
    fn undo(&self, filling: &Filling, group: &GroupPlan, chunks: &mut [Chunk<'_>]) -> Result<()> {
        let (mut bodies, mut numbers) = (Vec::new(), Vec::new());
        let (mut plain, mut plain_numbers) = (Vec::new(), Vec::new());
        for (at, number, body) in bodies_of(chunks) {
            match (&body.by, body.crc) {
                (By::Device { codec, source }, crc) => {
                    bodies.push(Compressed {
                        source: source.clone(),
                        plain: body.plain as u64,
                        codec: *codec,
                        target: body.place.clone(),
                        gap: body.gap,
                        crc,
                    });
                    numbers.push((at, number));
                }
                (By::Host(_), Some(crc)) if !body.compressed => {
                    plain.push((body.place.clone(), crc));
                    plain_numbers.push((at, number));
                }
                _ => {}
            }
        }
        let mut refused: BTreeMap<(usize, usize), Arc<str>> = BTreeMap::new();
        for (check, at) in filling.decompress(&bodies)?.into_iter().zip(numbers) {
            if check != 0 {
                refused.insert(at, format!("the GPU refused it, check {check}").into());
            }
        }
        let right = filling.have_checksums(&plain)?;
        for (_, at) in right
            .into_iter()
            .zip(plain_numbers)
            .filter(|(right, _)| !right)
        {
            refused.insert(at, "another checksum".into());
        }
        let numbers: Vec<_> = refused.keys().copied().collect();
        let again = &*chunks;
        self.in_parallel(numbers.len(), |at| {
            let body = numbers.get(at).and_then(|(at, number)| {
                let body = &again.get(*at)?.plan.as_ref()?.chunk.bodies.get(*number)?;
                Some((body.place.clone(), (*at, *number)))
            });
            match body {
                Some((place, body)) => {
                    let (to, bodies) = (To::Again, vec![body]);
                    self.fill(filling, &Piece { to, place, bodies }, group, again)
                }
                None => Ok(()),
            }
        })?;
        for (at, chunk) in chunks.iter_mut().enumerate() {
            let why = |number| refused.get(&(at, number)).cloned();
            if let Some(planned) = &chunk.plan {
                chunk.undone = Undone::of(&planned.chunk.bodies, why);
            }
        }
        Ok(())
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
                None => tally.by_gpu(&chunk.root.name, &chunk.undone),
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

fn len_of(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| {
        Error::new(ErrorKind::OutOfMemory {
            wanted: bytes,
            cap: u64::MAX,
        })
    })
}

/// The pages of all chunks in the order of the arena, each with the positions of its chunk and in it.
fn bodies_of<'a>(chunks: &'a [Chunk<'_>]) -> impl Iterator<Item = (usize, usize, &'a Body)> {
    let planned = chunks.iter().enumerate();
    let planned = planned.filter_map(|(at, chunk)| Some((at, chunk.plan.as_ref()?)));
    planned.flat_map(|(at, planned)| {
        let bodies = planned.chunk.bodies.iter().enumerate();
        bodies.map(move |(number, body)| (at, number, body))
    })
}

/// Both arenas cut into pieces between pages, so that nothing of what the host brings there is left out: its pages with the gaps behind them,
/// and pages as they are stored.
fn pieces_of(chunks: &[Chunk<'_>], arena: &Arena, stored: u64) -> Vec<Piece> {
    let (mut pieces, mut compressed): (Vec<Piece>, Vec<Piece>) = (Vec::new(), Vec::new());
    let add = |pieces: &mut Vec<Piece>, to, place: Range<u64>, body| match pieces.last_mut() {
        Some(piece) if piece.place.end == place.start && place.end - piece.place.start <= PIECE => {
            piece.place.end = place.end;
            piece.bodies.push(body);
        }
        _ => pieces.push(Piece {
            to,
            place,
            bodies: vec![body],
        }),
    };
    let mut next = None;
    for (at, number, body) in bodies_of(chunks) {
        match &body.by {
            By::Host(_) => {
                let place = body.place.start..body.place.end + body.gap;
                add(&mut pieces, To::Buffer, place, (at, number));
            }
            By::Device { source, .. } => {
                // Each up to the next one.
                let start = next.unwrap_or(source.start);
                let end = source.end.next_multiple_of(64).min(stored);
                add(&mut compressed, To::Stored, start..end, (at, number));
                next = Some(end);
            }
        }
    }
    if pieces.is_empty() && compressed.is_empty() {
        pieces.push(Piece {
            to: To::Buffer,
            place: 0..arena.len(),
            bodies: Vec::new(),
        });
    }
    // What is decompressed here first, since it takes longest.
    pieces.append(&mut compressed);
    pieces
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
