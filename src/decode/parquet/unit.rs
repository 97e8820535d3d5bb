//! One part of a row group, decoded by the `parquet` crate from bytes in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::{Fields, SchemaRef};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::buffers::Buffers;
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
    levels: FieldLevels,
    group: GroupPlan,
    held: Held,
    name: Arc<str>,
    buffers: Arc<Buffers>,
    /// Rows of the group that are decoded and not yet delivered.
    left: Rows,
    batch_rows: u64,
    reader: Option<ParquetRecordBatchReader>,
    /// Offset and leaf of the last read: where an error was met.
    last: Arc<AtomicU64>,
    /// What the reader failed with.
    failure: Failure,
    part: Option<Arc<str>>,
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
            levels,
            group: group.clone(),
            held,
            name: name.clone(),
            buffers: buffers.clone(),
            left: rows,
            batch_rows: batch_rows.max(1),
            reader: None,
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
                    self.reader = None;
                    self.batch_rows = rows / 2;
                }
            }
        }
        Ok(None)
    }

    fn attempt(&mut self) -> Result<RecordBatch> {
        let part = self.part.clone();
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.reader().map_err(|error| self.place(error))?,
        };
        let batch = failure::contain_arrow(part, || reader.next().transpose());
        let batch = batch.map_err(|error| self.place(error))?;
        match batch {
            Some(batch) if batch.num_rows() > 0 => {
                self.reader = Some(reader);
                Ok(batch)
            }
            _ => {
                let what = format!("row group {} ends before its rows do", self.group.index);
                let error = malformed(self.part.clone(), what);
                Err(self.place(error))
            }
        }
    }

    fn reader(&self) -> Result<ParquetRecordBatchReader> {
        let selection =
            (self.left.len() < self.group.count).then(|| self.left.selection(self.group.count));
        let rows = Source { unit: self };
        failure::contain(self.part.clone(), || {
            ParquetRecordBatchReader::try_new_with_row_groups(
                &self.levels,
                &rows,
                usize::try_from(self.batch_rows.min(self.left.len())).unwrap_or(usize::MAX),
                selection,
            )
        })
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
        let unit = self.unit;
        let column = unit.group.columns.iter().find(|column| column.leaf == leaf);
        let column = column
            .ok_or_else(|| ParquetError::General(format!("column {leaf} was not planned")))?;
        let (range, last) = (column.chunk.clone(), unit.last.clone());
        let chunk = match &unit.held {
            Held::Here(pieces) => Column::Here(Chunk::new(pieces.clone(), range, last)),
            Held::Resident(resident) => Column::Resident {
                resident: resident.clone(),
                range,
                last,
                failure: unit.failure.clone(),
            },
        };
        let reader = pages(
            chunk,
            unit.metadata.row_group(unit.group.index).column(leaf),
            self.num_rows(),
            column.pages.as_ref().map(|pages| pages.locations.clone()),
            &unit.buffers,
        )?;
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
