//! The page index and Bloom filters: where they are, and whether they can be believed.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::index_reader::{decode_column_index, decode_offset_index};
use parquet::file::page_index::offset_index::PageLocation;

use super::pieces::Pieces;
use super::rows::Rows;

/// The pages of a column chunk, by its offset index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pages {
    pub(crate) locations: Vec<PageLocation>,
    /// Rows of the group.
    count: u64,
    chunk: Range<u64>,
}

impl Pages {
    /// What `index` says of `chunk`, a chunk of `count` rows at `range`. `None` if it contradicts the chunk: then all of it
    /// is read.
    pub(super) fn of(index: &[u8], range: Range<u64>, count: u64) -> Option<Pages> {
        let index = decode_offset_index(index).ok()?;
        let locations = index.page_locations().clone();
        let mut at = range.start;
        let mut row = None;
        for location in &locations {
            let start = u64::try_from(location.offset).ok()?;
            let len = u64::try_from(location.compressed_page_size).ok()?;
            let first = u64::try_from(location.first_row_index).ok()?;
            let follows = match row {
                None => first == 0,
                Some(before) => first > before,
            };
            if start < at || len == 0 || !follows || first >= count {
                return None;
            }
            at = start.checked_add(len)?;
            row = Some(first);
        }
        // What lies before the first page is the dictionary, whose length must fit the reader's 32 bits.
        let first = locations.first()?.offset as u64;
        let fits = at <= range.end && i32::try_from(first - range.start).is_ok();
        fits.then_some(Pages {
            locations,
            count,
            chunk: range,
        })
    }

    /// The rows of page `page`.
    pub(crate) fn rows(&self, page: usize) -> Range<u64> {
        let first = |page: usize| {
            let location = self.locations.get(page)?;
            Some(location.first_row_index as u64)
        };
        first(page).unwrap_or(self.count)..first(page + 1).unwrap_or(self.count)
    }

    /// The bytes that hold `rows`, and how many pages they are: the dictionary, where there is one, and each page with
    /// any of the rows.
    pub(super) fn bytes(&self, rows: &Rows) -> (Vec<Range<u64>>, usize) {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut pages = 0;
        for (page, location) in self.locations.iter().enumerate() {
            if !rows.meets(self.rows(page)) {
                continue;
            }
            if pages == 0 {
                let first = self
                    .locations
                    .first()
                    .map_or(0, |first| first.offset as u64);
                if first > self.chunk.start {
                    ranges.push(self.chunk.start..first);
                }
            }
            pages += 1;
            let start = location.offset as u64;
            let end = start + location.compressed_page_size as u64;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        (ranges, pages)
    }
}

/// Bytes of a column chunk. The footer was checked, so they are inside the file.
pub(super) fn chunk_range(chunk: &ColumnChunkMetaData) -> Range<u64> {
    let (start, len) = chunk.byte_range();
    start..start.saturating_add(len)
}

/// Where the offset index of a chunk is.
pub(super) fn offset_index_range(chunk: &ColumnChunkMetaData, end: u64) -> Option<Range<u64>> {
    inside(
        chunk.offset_index_offset()?,
        chunk.offset_index_length()?,
        end,
    )
}

/// Where the column index of a chunk is.
pub(super) fn column_index_range(chunk: &ColumnChunkMetaData, end: u64) -> Option<Range<u64>> {
    inside(
        chunk.column_index_offset()?,
        chunk.column_index_length()?,
        end,
    )
}

fn inside(offset: i64, length: i32, end: u64) -> Option<Range<u64>> {
    let start = u64::try_from(offset).ok()?;
    let stop = start.checked_add(u64::try_from(length).ok()?)?;
    (start < stop && stop <= end).then_some(start..stop)
}

/// The column index of a chunk; `None` if it cannot be read.
pub(super) fn column_index(
    bytes: &[u8],
    chunk: &ColumnChunkMetaData,
) -> Option<ColumnIndexMetaData> {
    decode_column_index(bytes, chunk.column_type()).ok()
}

/// The longest Bloom filter that is worth a request of its own where its length is not written down.
const LONGEST_UNKNOWN: u64 = 1 << 20;

/// Where the Bloom filter of a chunk is. Old writers do not say how long it is: then to where something else begins.
pub(super) fn bloom_range(
    metadata: &ParquetMetaData,
    chunk: &ColumnChunkMetaData,
    end: u64,
) -> Option<Range<u64>> {
    let offset = chunk.bloom_filter_offset()?;
    if let Some(length) = chunk.bloom_filter_length() {
        return inside(offset, length, end);
    }
    let start = u64::try_from(offset).ok()?;
    let most = start.checked_add(LONGEST_UNKNOWN)?.min(end);
    let next = metadata
        .row_groups()
        .iter()
        .flat_map(|group| group.columns())
        .flat_map(|chunk| {
            [
                chunk.bloom_filter_offset(),
                chunk.column_index_offset(),
                chunk.offset_index_offset(),
                chunk.dictionary_page_offset(),
                Some(chunk.data_page_offset()),
            ]
        })
        .flatten()
        .filter_map(|offset| u64::try_from(offset).ok())
        .filter(|offset| *offset > start)
        .fold(most, u64::min);
    (start < next).then_some(start..next)
}

/// The Bloom filter of a chunk; `None` if it cannot be read.
pub(super) fn bloom_filter(
    chunk: &ColumnChunkMetaData,
    at: u64,
    bytes: Bytes,
    len: u64,
) -> Option<Arc<Sbbf>> {
    let pieces = Pieces::new(len, vec![(at, bytes)]);
    // The crate reads as much as its longest header may take, which a short filter at the end does not have.
    let filter = Sbbf::read_from_column_chunk(chunk, &pieces).ok()??;
    (filter.num_blocks() > 0).then(|| Arc::new(filter))
}
