//! One part of a row group, decoded from bytes in memory: here, what is simple, and by the `parquet` crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Fields, SchemaRef};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::buffers::Buffers;
use super::direct;
use super::failure;
use super::metadata::column_name;
use super::pages::pages;
use super::resident::{Column, Failure, Resident};
use crate::decode::part::in_part;
use crate::error::{Error, Result};
use crate::format::parquet::{Chunk, GroupPlan, Pieces, Rows, malformed};

/// Decodes some leaves of one row group.
pub(super) struct Unit {
    metadata: Arc<ParquetMetaData>,
    /// The Arrow types to make, of the whole file.
    fields: Fields,
    leaves: Vec<usize>,
    /// Of all its leaves.
    levels: FieldLevels,
    schema: SchemaRef,
    group: GroupPlan,
    held: Held,
    name: Arc<str>,
    buffers: Arc<Buffers>,
    /// Rows of the group that are decoded and not yet delivered.
    left: Rows,
    batch_rows: u64,
    decoders: Option<Decoders>,
    /// Leaves that are left to the crate after all.
    refused: Vec<usize>,
    /// Offset and leaf of the last read: where an error was met.
    last: Arc<AtomicU64>,
    /// What the reader failed with.
    failure: Failure,
    part: Option<Arc<str>>,
}

/// What decodes the leaves from the rows on that are left.
struct Decoders {
    /// Columns that are decoded here, and their positions in the schema.
    direct: Vec<(usize, usize, direct::Column)>,
    /// The others; `None`: there are none.
    reader: Option<ParquetRecordBatchReader>,
}

/// Where the bytes of a row group are.
#[derive(Clone)]
pub(super) enum Held {
    /// In memory of ours.
    Here(Arc<Pieces>),
    /// At hand: each page is read when it is decoded.
    Resident(Arc<Resident>),
}

/// What a [`Unit`] is made of.
pub(super) struct Work<'a> {
    pub(super) metadata: &'a Arc<ParquetMetaData>,
    /// The Arrow types to make, of the whole file.
    pub(super) fields: &'a Fields,
    pub(super) leaves: &'a [usize],
    pub(super) group: &'a GroupPlan,
    /// Rows to decode.
    pub(super) rows: Rows,
    pub(super) held: Held,
    /// Most rows of a batch.
    pub(super) batch_rows: u64,
    /// Of the source.
    pub(super) name: &'a Arc<str>,
    /// For pages.
    pub(super) buffers: &'a Arc<Buffers>,
}

impl Unit {
    /// Prepares the work; nothing is decoded yet.
    pub(super) fn new(work: Work<'_>) -> Result<Self> {
        let Work {
            metadata,
            fields,
            leaves,
            group,
            rows,
            held,
            batch_rows,
            name,
            buffers,
        } = work;
        let schema = metadata.file_metadata().schema_descr();
        let part = match leaves {
            [leaf] => Some(column_name(metadata, *leaf)),
            _ => None,
        };
        let mask = ProjectionMask::leaves(schema, leaves.iter().copied());
        let levels = failure::contain(part.clone(), || {
            parquet_to_arrow_field_levels(schema, mask, Some(fields))
        })?;
        Ok(Unit {
            metadata: metadata.clone(),
            fields: fields.clone(),
            leaves: leaves.to_vec(),
            schema: schema_of(&levels, metadata, part.clone())?,
            levels,
            group: group.clone(),
            held,
            name: name.clone(),
            buffers: buffers.clone(),
            left: rows,
            batch_rows: batch_rows.max(1),
            decoders: None,
            refused: Vec::new(),
            last: Arc::new(AtomicU64::new(u64::MAX)),
            failure: Failure::default(),
            part,
        })
    }

    /// The next rows. A batch that outgrows 32-bit offsets is decoded again in halves.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        while !self.left.is_empty() {
            match self.attempt() {
                Ok(batch) => {
                    let rows = batch.num_rows() as u64;
                    self.take(rows);
                    return Ok(Some(batch));
                }
                Err(error) => {
                    let rows = self.batch_rows.min(self.left.len());
                    if !failure::is_too_large_a_batch(&error) || rows <= 1 {
                        return Err(error);
                    }
                    self.decoders = None;
                    self.batch_rows = rows / 2;
                }
            }
        }
        Ok(None)
    }

    fn attempt(&mut self) -> Result<RecordBatch> {
        let part = self.part.clone();
        loop {
            let mut decoders = match self.decoders.take() {
                Some(decoders) => decoders,
                None => self.decoders()?,
            };
            let rows = usize::try_from(self.rows()).unwrap_or(usize::MAX);
            let mut columns: Vec<Option<ArrayRef>> = vec![None; self.schema.fields().len()];
            let mut refused = None;
            for (position, leaf, column) in &mut decoders.direct {
                let array = failure::contain(None, || Ok(column.next(rows)));
                match (array, columns.get_mut(*position)) {
                    (Ok(Some(array)), Some(slot)) => *slot = Some(array),
                    _ => refused = Some(*leaf),
                }
            }
            if let Some(leaf) = refused {
                // What the source could not bring is not asked for again.
                if let Some(failure) = self.failure.take() {
                    return Err(failure);
                }
                self.refused.push(leaf);
                continue;
            }
            let batch = match &mut decoders.reader {
                None => None,
                Some(reader) => {
                    let batch = failure::contain_arrow(part.clone(), || reader.next().transpose());
                    match batch.map_err(|error| self.place(error))? {
                        Some(batch) if batch.num_rows() > 0 => Some(batch),
                        _ => {
                            let what =
                                format!("row group {} ends before its rows do", self.group.index);
                            let error = malformed(self.part.clone(), what);
                            return Err(self.place(error));
                        }
                    }
                }
            };
            let batch = match batch {
                Some(batch) if decoders.direct.is_empty() => batch,
                Some(batch) if batch.num_rows() != rows => {
                    self.refused = self.leaves.clone();
                    continue;
                }
                batch => self.together(rows, columns, batch)?,
            };
            self.decoders = Some(decoders);
            return Ok(batch);
        }
    }

    /// Rows of the next batch.
    fn rows(&self) -> u64 {
        self.batch_rows.min(self.left.len())
    }

    /// One batch of the columns that were decoded here, and those of `others` where there are none.
    fn together(
        &self,
        rows: usize,
        mut columns: Vec<Option<ArrayRef>>,
        others: Option<RecordBatch>,
    ) -> Result<RecordBatch> {
        let others = others.as_ref().map_or(&[][..], RecordBatch::columns);
        let free = columns.iter_mut().filter(|column| column.is_none());
        for (slot, column) in free.zip(others) {
            *slot = Some(column.clone());
        }
        let columns: Option<Vec<_>> = columns.into_iter().collect();
        let columns =
            columns.ok_or_else(|| malformed(self.part.clone(), "a column was not decoded"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        failure::contain_arrow(self.part.clone(), || {
            RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
        })
    }

    fn decoders(&self) -> Result<Decoders> {
        let direct = self.direct();
        let levels = match direct.is_empty() {
            true => Some(&self.levels),
            false => None,
        };
        let others = |leaf: &&usize| !direct.iter().any(|(_, other, _)| *other == **leaf);
        let others: Vec<usize> = self.leaves.iter().filter(others).copied().collect();
        let reader = match levels {
            Some(levels) => Some(self.reader(levels)),
            None if others.is_empty() => None,
            None => {
                let schema = self.metadata.file_metadata().schema_descr();
                let mask = ProjectionMask::leaves(schema, others);
                let levels = failure::contain(self.part.clone(), || {
                    parquet_to_arrow_field_levels(schema, mask, Some(&self.fields))
                })?;
                Some(self.reader(&levels))
            }
        };
        let reader = reader.transpose().map_err(|error| self.place(error))?;
        Ok(Decoders { direct, reader })
    }

    /// The columns that are decoded here, with their positions and leaves: none but from the first row to the last.
    fn direct(&self) -> Vec<(usize, usize, direct::Column)> {
        let group = self.metadata.row_group(self.group.index);
        if self.left.len() != self.group.count {
            return Vec::new();
        }
        let schema = self.metadata.file_metadata().schema_descr();
        let mut direct = Vec::new();
        let mut before = None;
        let mut position = 0;
        for leaf in &self.leaves {
            let root = schema.get_column_root_idx(*leaf);
            if before.is_some_and(|before| before != root) {
                position += 1;
            }
            before = Some(root);
            let (Some(field), false) = (
                self.schema.fields().get(position),
                self.refused.contains(leaf),
            ) else {
                continue;
            };
            let chunk = group.column(*leaf);
            let Some(target) = direct::Target::of(chunk, field) else {
                continue;
            };
            // Where it read last is said by the crate, if it comes to that.
            let last = Arc::new(AtomicU64::new(u64::MAX));
            let pages = failure::contain(None, || self.pages(*leaf, last));
            if let Ok(pages) = pages {
                direct.push((
                    position,
                    *leaf,
                    direct::Column::new(pages, chunk, target, self.group.count),
                ));
            }
        }
        direct
    }

    fn reader(&self, levels: &FieldLevels) -> Result<ParquetRecordBatchReader> {
        let selection =
            (self.left.len() < self.group.count).then(|| self.left.selection(self.group.count));
        let rows = Source { unit: self };
        failure::contain(self.part.clone(), || {
            ParquetRecordBatchReader::try_new_with_row_groups(
                levels,
                &rows,
                usize::try_from(self.rows()).unwrap_or(usize::MAX),
                selection,
            )
        })
    }

    /// The pages of a leaf; `last` gets the offset of each read.
    fn pages(&self, leaf: usize, last: Arc<AtomicU64>) -> ParquetResult<Box<dyn PageReader>> {
        let column = self.group.columns.iter().find(|column| column.leaf == leaf);
        let column = column
            .ok_or_else(|| ParquetError::General(format!("column {leaf} was not planned")))?;
        let range = column.chunk.clone();
        let chunk = match &self.held {
            Held::Here(pieces) => Column::Here(Chunk::new(pieces.clone(), range, last)),
            Held::Resident(resident) => Column::Resident {
                resident: resident.clone(),
                range,
                last,
                failure: self.failure.clone(),
            },
        };
        pages(
            chunk,
            self.metadata.row_group(self.group.index).column(leaf),
            usize::try_from(self.group.count).unwrap_or(usize::MAX),
            column.pages.as_ref().map(|pages| pages.locations.clone()),
            &self.buffers,
        )
    }

    /// Removes the first `count` rows of those that are left.
    fn take(&mut self, count: u64) {
        let mut count = count;
        let ranges = self.left.ranges().iter().filter_map(|range| {
            let taken = count.min(range.end - range.start);
            count -= taken;
            let rest = range.start + taken..range.end;
            (!rest.is_empty()).then_some(rest)
        });
        self.left = Rows::of(ranges.collect::<Vec<_>>());
    }

    /// Says where in the file an error was met: the page that was read last, and its column.
    /// One of the reader is itself.
    fn place(&self, error: Error) -> Error {
        if let Some(failure) = self.failure.take() {
            return failure;
        }
        let error = error.named(&self.name);
        let offset = self.last.load(Ordering::Relaxed);
        let Some(column) = self
            .group
            .columns
            .iter()
            .find(|column| column.chunk.contains(&offset))
        else {
            return error;
        };
        let part = column_name(&self.metadata, column.leaf);
        in_part(error, &part).at(offset..column.chunk.end)
    }
}

/// The Arrow schema of `levels`, which does not show it itself.
pub(super) fn schema_of(
    levels: &FieldLevels,
    metadata: &ParquetMetaData,
    part: Option<Arc<str>>,
) -> Result<SchemaRef> {
    use arrow_array::RecordBatchReader;
    let reader = failure::contain(part, || {
        ParquetRecordBatchReader::try_new_with_row_groups(levels, &Nothing(metadata), 1, None)
    })?;
    Ok(reader.schema())
}

/// The row group of a unit, as the crate asks for it.
struct Source<'a> {
    unit: &'a Unit,
}

impl RowGroups for Source<'_> {
    fn num_rows(&self) -> usize {
        usize::try_from(self.unit.group.count).unwrap_or(usize::MAX)
    }

    fn column_chunks(&self, leaf: usize) -> ParquetResult<Box<dyn PageIterator>> {
        let reader = self.unit.pages(leaf, self.unit.last.clone())?;
        Ok(Box::new(OneChunk(Some(reader))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(
            self.unit.metadata.row_group(self.unit.group.index),
        ))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.unit.metadata
    }
}

/// No row groups: enough to learn a schema.
struct Nothing<'a>(&'a ParquetMetaData);

impl RowGroups for Nothing<'_> {
    fn num_rows(&self) -> usize {
        0
    }

    fn column_chunks(&self, _: usize) -> ParquetResult<Box<dyn PageIterator>> {
        Ok(Box::new(OneChunk(None)))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::empty())
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.0
    }
}

/// The pages of at most one column chunk.
struct OneChunk(Option<Box<dyn PageReader>>);

impl Iterator for OneChunk {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for OneChunk {}
