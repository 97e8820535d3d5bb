//! What a scan reads and why, for people.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::metadata::{Metadata, column_name};
use crate::error::counted;
use crate::format::parquet::{ReadPlan, SkippedRows};

/// What a scan reads, and what it leaves out. `Display` is a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// Row groups that are read, in the order of their delivery.
    pub row_groups: Vec<RowGroupPlan>,
    /// Rows that are not read, and what ruled them out.
    pub skipped: Vec<SkippedRows>,
    /// Row groups of the file.
    pub file_row_groups: usize,
    /// Rows of the file.
    pub file_rows: u64,
    /// Rows that were asked for, before the predicate.
    pub rows_asked: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Requests for the footer, and then for indexes. Those for the footer are counted as well where its
    /// [metadata](super::Scan::metadata) were read before and are not read again.
    pub metadata_requests: u64,
    /// Bytes of page indexes and Bloom filters.
    pub index_bytes: u64,
    /// Bytes of the row groups' requests that came with the footer, and are not asked for again: the end of the file, or all of a small one.
    pub bytes_with_footer: u64,
    name: Arc<str>,
}

/// A row group of a [`Plan`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RowGroupPlan {
    /// Its number in the file.
    pub index: usize,
    /// Its rows.
    pub rows: u64,
    /// Rows that may be delivered.
    pub rows_wanted: u64,
    /// Rows that are decoded: those and short gaps between them.
    pub rows_decoded: u64,
    /// Its columns that are read.
    pub columns: Vec<ColumnChunkPlan>,
    /// What is asked of the reader.
    pub requests: Vec<Range<u64>>,
    /// Bytes of the pages and chunks that are decoded.
    pub bytes_needed: u64,
    /// Bytes of the requests.
    pub bytes_read: u64,
}

/// A column chunk of a [`RowGroupPlan`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ColumnChunkPlan {
    /// Dotted path of the column.
    pub column: Arc<str>,
    /// Whether it is delivered, or only needed by the predicate.
    pub delivered: bool,
    /// Bytes of the chunk.
    pub bytes: u64,
    /// Bytes of it that are decoded.
    pub bytes_needed: u64,
    /// Pages that are read and pages that there are, where the page index tells.
    pub pages: Option<(usize, usize)>,
}

/// What a scan has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanReport {
    /// Rows delivered.
    pub rows: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Requests made of the reader for data: those of the plan, or each page header and page where pages are read one by
    /// one, as they are while they come from memory at once.
    pub requests: u64,
    /// Bytes of those requests.
    pub bytes: u64,
    /// Bytes of the plan's requests that had come with the footer, and were not asked for again: the end of the file, or all of a small
    /// one.
    pub bytes_with_footer: u64,
    /// Threads that were started.
    pub threads: usize,
    /// Parts that each row group is decoded in, side by side.
    pub parts: usize,
}

impl Plan {
    pub(super) fn new(
        metadata: &Metadata,
        plan: &ReadPlan,
        leaves: &[usize],
        index_requests: u64,
    ) -> Self {
        let row_groups = plan.groups.iter().map(|group| {
            let columns = group.columns.iter().map(|column| ColumnChunkPlan {
                column: column_name(metadata.parquet(), column.leaf),
                delivered: leaves.binary_search(&column.leaf).is_ok(),
                bytes: column.chunk.end - column.chunk.start,
                bytes_needed: column
                    .ranges
                    .iter()
                    .map(|range| range.end - range.start)
                    .sum(),
                pages: column
                    .pages
                    .as_ref()
                    .map(|pages| (column.pages_read, pages.locations.len())),
            });
            RowGroupPlan {
                index: group.index,
                rows: group.count,
                rows_wanted: group.rows.len(),
                rows_decoded: group.decoded.len(),
                columns: columns.collect(),
                requests: group.requests.clone(),
                bytes_needed: group.bytes_needed(),
                bytes_read: group.bytes_read(),
            }
        });
        Plan {
            row_groups: row_groups.collect(),
            skipped: plan.skips.clone(),
            file_row_groups: metadata.num_row_groups(),
            file_rows: metadata.num_rows(),
            rows_asked: plan.rows_asked,
            file_bytes: metadata.len(),
            metadata_requests: metadata.requests() + index_requests,
            index_bytes: plan.index_bytes,
            bytes_with_footer: plan
                .groups
                .iter()
                .flat_map(|group| &group.requests)
                .filter(|range| metadata.tail(range).is_some())
                .map(|range| range.end - range.start)
                .sum(),
            name: metadata.source_name().clone(),
        }
    }

    /// Bytes of the pages and chunks that are decoded.
    pub fn bytes_needed(&self) -> u64 {
        self.row_groups.iter().map(|group| group.bytes_needed).sum()
    }

    /// Bytes that are asked of the reader: those, and short gaps between them.
    pub fn bytes_read(&self) -> u64 {
        self.row_groups.iter().map(|group| group.bytes_read).sum()
    }

    /// Requests that are made for data.
    pub fn requests(&self) -> usize {
        self.row_groups
            .iter()
            .map(|group| group.requests.len())
            .sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} in {}, {}",
            self.name,
            counted(self.file_rows, "row"),
            counted(self.file_row_groups as u64, "row group"),
            counted(self.file_bytes, "byte")
        )?;
        let requests = counted(self.metadata_requests, "request");
        write!(f, "metadata in {requests}")?;
        match self.index_bytes {
            0 => writeln!(f)?,
            bytes => writeln!(f, ", with {} of indexes", counted(bytes, "byte"))?,
        }
        for group in &self.row_groups {
            writeln!(
                f,
                "row group {}: {} of {}, {} decoded; {} needed, {} read in {}",
                group.index,
                group.rows_wanted,
                counted(group.rows, "row"),
                group.rows_decoded,
                counted(group.bytes_needed, "byte"),
                group.bytes_read,
                counted(group.requests.len() as u64, "request")
            )?;
            for column in &group.columns {
                write!(
                    f,
                    "  {}: {} of {}",
                    column.column,
                    column.bytes_needed,
                    counted(column.bytes, "byte")
                )?;
                if let Some((read, all)) = column.pages {
                    write!(f, ", {read} of {}", counted(all as u64, "page"))?;
                }
                f.write_str(if column.delivered {
                    "\n"
                } else {
                    ", for the predicate\n"
                })?;
            }
        }
        for skip in &self.skipped {
            writeln!(
                f,
                "row group {}: {} {}",
                skip.row_group,
                counted(skip.rows, "row"),
                skip.reason
            )?;
        }
        write!(
            f,
            "in all {} needed, {} read in {}",
            counted(self.bytes_needed(), "byte"),
            self.bytes_read(),
            counted(self.requests() as u64, "request")
        )?;
        match self.bytes_with_footer {
            0 => Ok(()),
            bytes => write!(
                f,
                ", of which {} came with the footer",
                counted(bytes, "byte")
            ),
        }
    }
}
