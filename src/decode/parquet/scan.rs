//! Scans: what is asked for, how it is planned, and how it begins.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};

use super::batches::{BatchStream, Batches};
use super::explain::Plan;
use super::failure;
use super::job::{Part, Task};
use super::metadata::{Metadata, type_of_leaf};
use crate::decode::wait::block_on;
use crate::error::Result;
use crate::format::parquet::{
    Bound, Planner, Predicate, ReadPlan, Request, Rows, invalid, joined, leaves_of, malformed,
    roots_of,
};
use crate::reader::{Batch, Reader};

/// Rows of a batch, unless [`Scan::batch_rows`] says otherwise.
pub(super) const BATCH_ROWS: usize = 8192;

/// Bytes of a window, unless [`Scan::window`] says otherwise.
pub(super) const WINDOW: u64 = 256 << 20;

/// Begins a scan of the Parquet file that `reader` reads.
///
/// ```
/// use std::sync::Arc;
/// # use arrow_array::{Int64Array, RecordBatch};
/// # use arrow_schema::{DataType, Field, Schema};
/// use feedwater::MemoryReader;
/// use feedwater::parquet::{column, scan};
///
/// # let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
/// # let ids = Arc::new(Int64Array::from_iter_values(0..1000));
/// # let mut file = Vec::new();
/// # let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, schema.clone(), None)?;
/// # writer.write(&RecordBatch::try_new(schema, vec![ids])?)?;
/// # writer.close()?;
/// let reader = Arc::new(MemoryReader::new(file)); // or feedwater::open(path)?
/// let mut rows = 0;
/// for batch in scan(reader).columns(["id"]).filter(column("id").lt(10)).batches()? {
///     rows += batch?.num_rows();
/// }
/// assert_eq!(rows, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn scan<R: Reader + ?Sized + 'static>(reader: Arc<R>) -> Scan<R> {
    Scan {
        reader,
        metadata: None,
        asked: Asked::default(),
    }
}

/// A scan to be: what of the file, and how. It gives [batches](Self::batches), or a [stream](Self::stream) of them,
/// [takes](Self::take) single rows, or is [explained](Self::explain).
///
/// Without more said it delivers every row of every column, in the order of the file, in batches of 8,192 rows, decoded by
/// as many threads as the machine runs at once.
///
/// Values are those of the `parquet` crate's own reader, and so are the Arrow types. What it does not read is
/// [`UnsupportedFeature`](crate::ErrorKind::UnsupportedFeature); bytes that are wrong are [`Malformed`](crate::ErrorKind::Malformed) with
/// the column and the offset of the page. A batch whose strings outgrow 32-bit offsets comes in several smaller ones.
#[must_use = "a scan does nothing before `batches`, `stream`, `explain` or `take`"]
pub struct Scan<R: Reader + ?Sized> {
    pub(super) reader: Arc<R>,
    metadata: Option<Metadata>,
    asked: Asked,
}

#[derive(Clone, Debug)]
struct Asked {
    columns: Option<Vec<String>>,
    groups: Option<Vec<usize>>,
    rows: Option<Vec<Range<u64>>>,
    predicate: Option<Predicate>,
    schema: Option<SchemaRef>,
    batch_rows: usize,
    threads: Option<usize>,
    window: u64,
    gap: Option<u64>,
    indexes: bool,
    in_order: bool,
}

impl Default for Asked {
    fn default() -> Self {
        Asked {
            columns: None,
            groups: None,
            rows: None,
            predicate: None,
            schema: None,
            batch_rows: BATCH_ROWS,
            threads: None,
            window: WINDOW,
            gap: None,
            indexes: true,
            in_order: true,
        }
    }
}

impl<R: Reader + ?Sized + 'static> Scan<R> {
    /// Uses metadata that were read before, and reads no footer. They must be of the same content.
    pub fn metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Only these columns: names, or dotted paths into structs, lists and maps, which then have fewer fields. Columns come
    /// in the order of the file. None at all: batches without columns, which have row counts.
    pub fn columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.asked.columns = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Only these row groups, in this order.
    pub fn row_groups(mut self, groups: impl IntoIterator<Item = usize>) -> Self {
        self.asked.groups = Some(groups.into_iter().collect());
        self
    }

    /// Only these rows, counted over the whole file. With a page index, only their pages are read.
    ///
    /// Called more than once, all of the ranges. They come in the order of the file, each row once.
    pub fn rows(mut self, rows: Range<u64>) -> Self {
        self.asked.rows.get_or_insert_default().push(rows);
        self
    }

    /// Only rows that `predicate` is true for, exactly.
    ///
    /// Row groups and pages that cannot have any are not read, as far as their statistics (in the footer, and in the page
    /// index) and Bloom filters tell. The columns of the predicate are decoded first; of the others, only what is left.
    /// Called more than once, all must be true.
    pub fn filter(mut self, predicate: Predicate) -> Self {
        self.asked.predicate = Some(match self.asked.predicate.take() {
            None => predicate,
            Some(before) => before.and(predicate),
        });
        self
    }

    /// Other Arrow types for the columns, as far as the `parquet` crate makes them: `Utf8View` or `LargeUtf8` for
    /// strings, dictionaries. The schema has all columns of the file.
    pub fn schema(mut self, schema: SchemaRef) -> Self {
        self.asked.schema = Some(schema);
        self
    }

    /// Most rows of a batch. Default 8,192. The last batch of a row group may have fewer; and so may others, where a
    /// predicate leaves rows out.
    ///
    /// Smaller batches stay in caches; larger ones cost their consumer fewer calls.
    pub fn batch_rows(mut self, rows: usize) -> Self {
        self.asked.batch_rows = rows;
        self
    }

    /// Threads of this scan. Default: as many as the machine runs at once. When it is over or dropped, they
    /// wait 10 seconds for another scan, then end.
    pub fn threads(mut self, threads: usize) -> Self {
        self.asked.threads = Some(threads);
        self
    }

    /// Most bytes asked of the reader and not decoded yet, and most bytes decoded and not taken yet. Default 256 MiB.
    ///
    /// One row group may always be read, and one batch of each of its parts may always wait.
    pub fn window(mut self, bytes: usize) -> Self {
        self.asked.window = bytes as u64;
        self
    }

    /// Bytes between two ranges up to which they are read in one request. Default: the
    /// [`gap`](crate::Limits::gap) of the reader.
    pub fn gap(mut self, bytes: u64) -> Self {
        self.asked.gap = Some(bytes);
        self
    }

    /// Whether page indexes and Bloom filters may be read, where they can spare reading data. Default: yes.
    pub fn indexes(mut self, read: bool) -> Self {
        self.asked.indexes = read;
        self
    }

    /// Batches as soon as they are decoded, in whatever order. Default: in order. Rows within a row group keep their
    /// order.
    pub fn as_ready(mut self) -> Self {
        self.asked.in_order = false;
        self
    }

    /// Starts the scan; an iterator that parks its thread for each batch, and this call while the footer and indexes are
    /// read. Tasks have [`stream`](Self::stream).
    ///
    /// # Errors
    /// Those of [`Metadata::read`]; [`NotFound`](crate::ErrorKind::NotFound) for columns, row groups or rows that are not there;
    /// [`InvalidOption`](crate::ErrorKind::InvalidOption) for a predicate without a meaning, zero threads or zero rows of a batch.
    pub fn batches(self) -> Result<Batches> {
        block_on(self.start())
    }

    /// The same as a stream on any executor. Nothing begins before it is polled; errors of the start come first.
    pub fn stream(self) -> BatchStream {
        BatchStream::starting(Box::pin(self.start()))
    }

    /// What [`batches`](Self::batches) would read, and why not more. Reads the footer, and indexes where the scan would.
    ///
    /// # Errors
    /// As [`batches`](Self::batches).
    pub fn explain(self) -> Result<Plan> {
        block_on(self.explain_async())
    }

    /// The same in a task: [`explain`](Self::explain) on any executor, without blocking it.
    ///
    /// # Errors
    /// As [`batches`](Self::batches).
    pub async fn explain_async(self) -> Result<Plan> {
        let prepared = self.prepare().await?;
        Ok(prepared.explanation())
    }

    /// Whether it is about some of the rows only.
    pub(super) fn is_narrowed(&self) -> bool {
        self.asked.groups.is_some() || self.asked.rows.is_some() || self.asked.predicate.is_some()
    }

    pub(super) fn source_name(&self) -> &Arc<str> {
        self.reader.source().name()
    }

    /// No rows, until some are asked for.
    pub(super) fn no_rows(mut self) -> Self {
        self.asked.rows = Some(Vec::new());
        self
    }

    pub(super) fn in_order(mut self) -> Self {
        self.asked.in_order = true;
        self
    }

    pub(super) async fn start(self) -> Result<Batches> {
        let (task, explanation, threads) = self.tasked().await?;
        Batches::start(task, explanation, threads)
    }

    /// What is to be done, what it is for people, and by how many threads.
    pub(super) async fn tasked(self) -> Result<(Task, Plan, usize)> {
        let reader = self.reader.clone();
        let prepared = self.prepare().await?;
        let explanation = prepared.explanation();
        let task = Task {
            bring: Arc::new(reader),
            known: prepared.metadata.clone(),
            file_len: prepared.len,
            name: prepared.metadata.source_name().clone(),
            metadata: prepared.metadata.parquet().clone(),
            fields: prepared.arrow.schema().fields().clone(),
            schema: prepared.schema,
            leaves: prepared.leaves,
            predicate: prepared.predicate,
            plan: prepared.plan,
            parts: prepared.parts,
            batch_rows: prepared.batch_rows,
            window: prepared.window,
            in_order: prepared.in_order,
        };
        Ok((task, explanation, prepared.threads))
    }

    pub(super) async fn prepare(self) -> Result<Prepared> {
        let name = self.reader.source().name().clone();
        let prepared = self.prepare_unnamed().await;
        prepared.map_err(|error| error.named(&name))
    }

    async fn prepare_unnamed(self) -> Result<Prepared> {
        let Scan {
            reader,
            metadata,
            asked,
        } = self;
        let threads = threads_of(asked.threads)?;
        if asked.batch_rows == 0 {
            return Err(invalid(
                "batches of no rows: `batch_rows` has to be at least 1",
            ));
        }
        let metadata = match metadata {
            Some(metadata) => metadata,
            None => Metadata::read_async(&*reader).await?,
        };
        metadata.check_source(reader.source())?;
        let arrow = match asked.schema {
            None => metadata.arrow().clone(),
            Some(schema) => {
                let options = ArrowReaderOptions::new().with_schema(schema);
                let arrow = ArrowReaderMetadata::try_new(metadata.parquet().clone(), options);
                arrow.map_err(|error| invalid(format!("the schema: {error}")))?
            }
        };
        let descriptor = metadata.parquet().file_metadata().schema_descr_ptr();
        let leaves = match &asked.columns {
            None => (0..descriptor.num_columns()).collect(),
            Some(names) => leaves_of(&descriptor, names)?,
        };
        let predicate = match &asked.predicate {
            None => None,
            Some(predicate) => Some(Bound::new(predicate, &descriptor, &|leaf| {
                type_of_leaf(&arrow, leaf)
            })?),
        };
        let limits = reader.source().limits();
        let request = Request {
            leaves: leaves.clone(),
            groups: asked.groups,
            rows: asked.rows.map(Rows::of),
            predicate: predicate.clone(),
            indexes: asked.indexes,
            gap: asked.gap.unwrap_or(limits.gap),
        };
        let len = reader.source().len();
        let mut planner = Planner::new(metadata.parquet().clone(), len, request)?;
        let mut index_requests = 0;
        loop {
            let wants = planner.wants();
            if wants.is_empty() {
                break;
            }
            let (bytes, requests) = fetch(&*reader, &metadata, &wants, limits.gap).await?;
            index_requests += requests;
            planner = failure::contain(None, move || {
                planner.supply(bytes);
                Ok(planner)
            })?;
        }
        let plan = planner.finish();
        let parts = parts_of(&metadata, &leaves, &plan, threads);
        let (schema, parts) = laid_out(&arrow, &leaves, parts)?;
        Ok(Prepared {
            len,
            arrow,
            schema,
            leaves,
            predicate,
            plan: Arc::new(plan),
            parts,
            threads,
            batch_rows: asked.batch_rows as u64,
            window: asked.window,
            in_order: asked.in_order,
            index_requests,
            metadata,
        })
    }
}

impl<R: Reader + ?Sized> fmt::Debug for Scan<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("source", self.reader.source())
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

/// A scan that is planned.
pub(super) struct Prepared {
    pub(super) metadata: Metadata,
    pub(super) len: u64,
    arrow: ArrowReaderMetadata,
    schema: SchemaRef,
    pub(super) leaves: Vec<usize>,
    predicate: Option<Bound>,
    pub(super) plan: Arc<ReadPlan>,
    parts: Vec<Part>,
    threads: usize,
    batch_rows: u64,
    window: u64,
    in_order: bool,
    pub(super) index_requests: u64,
}

impl Prepared {
    fn explanation(&self) -> Plan {
        Plan::new(
            &self.metadata,
            &self.plan,
            &self.leaves,
            self.index_requests,
        )
    }
}

/// Reads `wants`, joined where they are close, except what the tail of the footer has; and how many requests it took.
async fn fetch<R: Reader + ?Sized>(
    reader: &R,
    metadata: &Metadata,
    wants: &[Range<u64>],
    gap: u64,
) -> Result<(Vec<Bytes>, u64)> {
    let missing = wants.iter().filter(|range| metadata.tail(range).is_none());
    let requests = joined(missing.cloned(), gap);
    let blocks = match requests.as_slice() {
        [] => Vec::new(),
        requests => reader.submit(Batch::of(requests.iter().cloned())).await?,
    };
    let mut pieces = Vec::with_capacity(blocks.len());
    for (range, block) in requests.iter().zip(blocks) {
        pieces.push((range.start, block.into_host()?));
    }
    let pieces = crate::format::parquet::Pieces::new(reader.source().len(), pieces);
    let bytes = wants.iter().map(|range| {
        let found = metadata.tail(range).or_else(|| pieces.range(range.clone()));
        found.ok_or_else(|| malformed(None, "an index is not where it was"))
    });
    Ok((bytes.collect::<Result<_>>()?, requests.len() as u64))
}

/// The top-level columns of `leaves` in at most `threads` parts of about the same weight.
fn parts_of(
    metadata: &Metadata,
    leaves: &[usize],
    plan: &ReadPlan,
    threads: usize,
) -> Vec<Vec<usize>> {
    let schema = metadata.parquet().file_metadata().schema_descr();
    let weight = |root: usize| -> u64 {
        let of_root = |leaf: usize| schema.get_column_root_idx(leaf) == root;
        let groups = plan.groups.iter().flat_map(|group| {
            let group = metadata.parquet().row_group(group.index);
            group.columns().iter().enumerate()
        });
        groups
            .filter(|(leaf, _)| of_root(*leaf) && leaves.binary_search(leaf).is_ok())
            .map(|(_, chunk)| {
                // Values cost time as well as bytes do.
                let sizes = chunk
                    .uncompressed_size()
                    .saturating_add(chunk.compressed_size());
                u64::try_from(sizes.saturating_add(chunk.num_values())).unwrap_or(0)
            })
            .fold(1, u64::saturating_add)
    };
    let mut roots: Vec<_> = roots_of(schema, leaves)
        .into_iter()
        .map(|root| (weight(root), root))
        .collect();
    roots.sort_unstable_by(|a, b| b.cmp(a));
    let mut parts = vec![(0u64, Vec::new()); threads.min(roots.len()).max(1)];
    for (weight, root) in roots {
        if let Some(lightest) = parts.iter_mut().min_by_key(|(weight, _)| *weight) {
            lightest.0 = lightest.0.saturating_add(weight);
            lightest.1.push(root);
        }
    }
    // The heaviest first: it is begun first.
    parts.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    parts.into_iter().map(|(_, roots)| roots).collect()
}

/// The schema of the batches, and where the columns of each part go.
fn laid_out(
    arrow: &ArrowReaderMetadata,
    leaves: &[usize],
    parts: Vec<Vec<usize>>,
) -> Result<(SchemaRef, Vec<Part>)> {
    let descriptor = arrow.parquet_schema();
    let roots = roots_of(descriptor, leaves);
    let mut fields: Vec<Option<Arc<Field>>> = vec![None; roots.len()];
    let mut laid_out = Vec::with_capacity(parts.len());
    for mut part in parts {
        part.sort_unstable();
        let leaves: Vec<_> = leaves
            .iter()
            .copied()
            .filter(|leaf| {
                part.binary_search(&descriptor.get_column_root_idx(*leaf))
                    .is_ok()
            })
            .collect();
        let positions: Vec<_> = part
            .iter()
            .filter_map(|root| roots.binary_search(root).ok())
            .collect();
        let mask = ProjectionMask::leaves(descriptor, leaves.iter().copied());
        let levels = failure::contain(None, || {
            parquet_to_arrow_field_levels(descriptor, mask, Some(arrow.schema().fields()))
        })?;
        let schema = super::unit::schema_of(&levels, arrow.metadata(), None)?;
        for (position, field) in positions.iter().zip(schema.fields()) {
            if let Some(slot) = fields.get_mut(*position) {
                *slot = Some(field.clone());
            }
        }
        laid_out.push(Part { leaves, positions });
    }
    let fields: Option<Fields> = fields.into_iter().collect();
    let fields = fields.ok_or_else(|| malformed(None, "a column has no Arrow type"))?;
    Ok((Arc::new(Schema::new(fields)), laid_out))
}

fn threads_of(asked: Option<usize>) -> Result<usize> {
    /// More threads than any machine runs; a slip of the caller.
    const MOST: usize = 4096;
    match asked {
        Some(0) => Err(invalid(
            "a scan by no threads: `threads` has to be at least 1",
        )),
        Some(threads) => Ok(threads.min(MOST)),
        None => Ok(std::thread::available_parallelism().map_or(1, usize::from)),
    }
}
