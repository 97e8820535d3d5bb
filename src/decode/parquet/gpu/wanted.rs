//! The pages of a column chunk that have rows which are wanted, and which of their rows these are.
//!
//! They are those that the host would decode: with a page index those that were read by it, without one those of a flat column that have
//! any of the rows, and of a nested one all. Pages of different columns begin at different rows.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::metadata::ColumnChunkMetaData;

use super::lists::Lists;
use crate::format::parquet::{ColumnPlan, GroupPlan, PageLevels, PageList, Pieces, Rows};

/// The bytes of a column chunk, as far as they were read.
#[derive(Clone)]
pub(super) struct Stored {
    pieces: Arc<Pieces>,
    chunk: Range<u64>,
}

impl Stored {
    pub(super) fn new(pieces: &Arc<Pieces>, chunk: &Range<u64>) -> Self {
        Stored {
            pieces: pieces.clone(),
            chunk: chunk.clone(),
        }
    }

    /// Those of a range of the chunk; `None`: they were not read, or not together.
    pub(super) fn get(&self, range: Range<usize>) -> Option<Bytes> {
        let at = |offset: usize| self.chunk.start.checked_add(offset as u64);
        let range = at(range.start)?..at(range.end)?;
        (range.end <= self.chunk.end).then(|| self.pieces.range(range))?
    }

    fn all(&self) -> Option<Bytes> {
        self.pieces.range(self.chunk.clone())
    }
}

/// Pages with rows that are wanted.
pub(super) struct Found {
    pub(super) list: Arc<PageList>,
    /// Entries that these pages should have.
    pub(super) entries: u64,
    /// Rows that they have.
    pub(super) rows: u64,
    /// How many each, where an index tells and entries do not.
    pub(super) page_rows: Option<Vec<u64>>,
    /// Which of their rows are wanted; `None`: all.
    pub(super) wanted: Option<Rows>,
    /// Whether these are all pages of the chunk.
    pub(super) is_whole: bool,
}

impl Found {
    /// The pages of `column` that have rows of `group` which are decoded.
    ///
    /// # Errors
    /// Why the kernels do not decode them, in words.
    pub(super) fn of(
        lists: &Lists,
        chunk: &ColumnChunkMetaData,
        group: &GroupPlan,
        column: &ColumnPlan,
        stored: &Stored,
    ) -> Result<Self, String> {
        let is_flat = chunk.column_descr().max_rep_level() == 0;
        if column.pages.is_some() {
            return Found::by_index(lists, chunk, group, column, stored);
        }
        let bytes = stored.all().ok_or("its chunk was not read as a whole")?;
        let list = lists.of((group.index, column.leaf), chunk, &bytes)?;
        let entries = match is_flat {
            true => group.count,
            false => u64::try_from(chunk.num_values()).unwrap_or(0),
        };
        if is_flat && group.decoded.len() < group.count {
            return Found::by_entries(&list, group);
        }
        Ok(Found {
            list,
            entries,
            rows: group.count,
            page_rows: None,
            wanted: (group.rows.len() < group.count).then(|| group.rows.clone()),
            is_whole: true,
        })
    }

    /// Of a chunk that was read as a whole, and has an entry for each row.
    fn by_entries(list: &PageList, group: &GroupPlan) -> Result<Self, String> {
        if list.entries != group.count {
            return Err(format!("{} entries for {} rows", list.entries, group.count));
        }
        let mut some = PageList {
            dictionary: list.dictionary.clone(),
            ..PageList::default()
        };
        let mut rows = Vec::new();
        for page in &list.pages {
            let own = page.first_entry..page.first_entry + u64::from(page.entries);
            if own.is_empty() && own.end < list.entries {
                return Err("a page without entries before others".into());
            }
            if group.decoded.meets(own.clone()) {
                some.push(page.clone());
                rows.push(own);
            }
        }
        Ok(Found::new(some, rows, None, group))
    }

    /// Of a chunk of which those pages were read that an index leads to.
    fn by_index(
        lists: &Lists,
        chunk: &ColumnChunkMetaData,
        group: &GroupPlan,
        column: &ColumnPlan,
        stored: &Stored,
    ) -> Result<Self, String> {
        let pages = column.pages.as_ref().ok_or("it has no index")?;
        let place = |offset: i64, len: usize| {
            let start = u64::try_from(offset)
                .ok()?
                .checked_sub(column.chunk.start)?;
            let start = usize::try_from(start).ok()?;
            Some(start..start.checked_add(len)?)
        };
        let first = pages.locations.first().map_or(0, |first| first.offset);
        let first = place(first, 0).ok_or("a page outside of its chunk")?.start;
        let mut parts = Vec::new();
        if first > 0 {
            parts.push(0..first);
        }
        let mut rows = Vec::new();
        for (number, location) in pages.locations.iter().enumerate() {
            let own = pages.rows(number);
            if group.decoded.meets(own.clone()) {
                let len = usize::try_from(location.compressed_page_size).ok();
                let place = len.and_then(|len| place(location.offset, len));
                parts.push(place.ok_or("a page outside of its chunk")?);
                rows.push(own);
            }
        }
        let bytes: Option<Vec<_>> = parts
            .into_iter()
            .map(|part| Some((part.start, stored.get(part)?)))
            .collect();
        let bytes = bytes.ok_or("a page that was not read")?;
        let parts = bytes.iter().map(|(at, bytes)| (*at, &bytes[..]));
        let list = lists.of_parts(chunk, parts)?;
        if list.pages.len() != rows.len() || list.dictionary.is_some() != (first > 0) {
            return Err("an index that leads to other pages".into());
        }
        let is_flat = chunk.column_descr().max_rep_level() == 0;
        for (page, rows) in list.pages.iter().zip(&rows) {
            let wanted = rows.end - rows.start;
            let told = match page.levels {
                PageLevels::V2 { rows, .. } => Some(u64::from(rows)),
                PageLevels::V1 { .. } => None,
            };
            let right = match is_flat {
                true => u64::from(page.entries) == wanted,
                false => told.is_none_or(|told| told == wanted),
            };
            if !right {
                return Err("an index with other rows than its pages".into());
            }
        }
        let page_rows = rows.iter().map(|rows| rows.end - rows.start);
        let page_rows = (!is_flat).then(|| page_rows.collect());
        Ok(Found::new(list, rows, page_rows, group))
    }

    /// `rows` are those of the pages.
    fn new(
        list: PageList,
        rows: Vec<Range<u64>>,
        page_rows: Option<Vec<u64>>,
        group: &GroupPlan,
    ) -> Self {
        let rows = Rows::of(rows);
        let wanted = group.rows.positions_in(&rows);
        Found {
            entries: list.entries,
            list: Arc::new(list),
            rows: rows.len(),
            page_rows,
            wanted: (wanted.len() < rows.len()).then_some(wanted),
            is_whole: false,
        }
    }
}
