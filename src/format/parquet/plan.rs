//! From what is asked for to row groups, leaves, rows and byte ranges.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;

use super::bounds::{Bounds, may_hold};
use super::index::{self, Pages, chunk_range};
use super::invalid;
use super::predicate::{Bound, Node, Operator, Target};
use super::rows::Rows;
use crate::error::{Error, ErrorKind, Result};

/// Gaps of fewer rows between rows that are wanted are decoded and dropped again.
///
/// Below about this many, stopping and starting costs more than decoding (the crate's own threshold is 32).
pub(crate) const DECODED_GAP: u64 = 64;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Leaves to deliver, ascending.
    pub(crate) leaves: Vec<usize>,
    /// Row groups in the order of their delivery. `None`: all.
    pub(crate) groups: Option<Vec<usize>>,
    /// Rows of the file. `None`: all.
    pub(crate) rows: Option<Rows>,
    pub(crate) predicate: Option<Bound>,
    /// Whether indexes and filters may be read where the footer alone decides less.
    pub(crate) indexes: bool,
    /// Ranges at most this many bytes apart are read in one request.
    pub(crate) gap: u64,
}

/// Which bytes are read, and what is decoded of them. Every executor works by it.
#[derive(Clone, Debug)]
pub(crate) struct ReadPlan {
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) skips: Vec<SkippedRows>,
    /// Rows of the row groups that were asked for.
    pub(crate) rows_asked: u64,
    /// Bytes of indexes and filters that were read for the plan.
    pub(crate) index_bytes: u64,
}

/// One row group of a plan.
#[derive(Clone, Debug)]
pub(crate) struct GroupPlan {
    pub(crate) index: usize,
    /// Its rows.
    pub(crate) count: u64,
    /// Rows of the group that are wanted, as far as statistics can tell.
    pub(crate) rows: Rows,
    /// Rows of the group that are decoded: the same and short gaps between them.
    pub(crate) decoded: Rows,
    /// Leaves to deliver and leaves that the predicate needs, ascending.
    pub(crate) columns: Vec<ColumnPlan>,
    /// Requests: the ranges of all columns joined.
    pub(crate) requests: Vec<Range<u64>>,
}

impl GroupPlan {
    /// Bytes that are asked of the source.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.requests
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Bytes of the pages and chunks that are decoded.
    pub(crate) fn bytes_needed(&self) -> u64 {
        let ranges = self.columns.iter().flat_map(|column| &column.ranges);
        ranges.map(|range| range.end - range.start).sum()
    }
}

/// One column chunk of a plan.
#[derive(Clone, Debug)]
pub(crate) struct ColumnPlan {
    pub(crate) leaf: usize,
    /// All its pages, if only some of them are read.
    pub(crate) pages: Option<Arc<Pages>>,
    /// Pages that are read of those.
    pub(crate) pages_read: usize,
    /// Its bytes: the whole chunk, or its dictionary and pages.
    pub(crate) ranges: Vec<Range<u64>>,
    /// The whole chunk.
    pub(crate) chunk: Range<u64>,
}

/// Rows that are not read, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedRows {
    /// The row group.
    pub row_group: usize,
    /// How many of its rows.
    pub rows: u64,
    /// What ruled them out.
    pub reason: SkipReason,
}

/// What ruled rows out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SkipReason {
    /// They are not among the rows that were asked for.
    NotAsked,
    /// The statistics of their row group.
    Statistics,
    /// The statistics of their pages, in the page index.
    PageIndex,
    /// Bloom filters of their row group.
    BloomFilter,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkipReason::NotAsked => "not asked for",
            SkipReason::Statistics => "ruled out by statistics",
            SkipReason::PageIndex => "ruled out by the page index",
            SkipReason::BloomFilter => "ruled out by Bloom filters",
        })
    }
}

/// Makes a [`ReadPlan`]: while it [wants](Self::wants) bytes, give it them.
pub(crate) struct Planner {
    metadata: Arc<ParquetMetaData>,
    request: Request,
    /// Where the footer begins, or the file ends: no data lies behind.
    end: u64,
    groups: Vec<Candidate>,
    skips: Vec<SkippedRows>,
    rows_asked: u64,
    index_bytes: u64,
    stage: Stage,
    wanted: Vec<Wanted>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pages,
    Filters,
    Done,
}

/// One index or filter to be read.
struct Wanted {
    range: Range<u64>,
    /// Position among the candidates.
    at: usize,
    leaf: usize,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Offsets,
    Columns,
    Filter,
}

/// A row group that may have rows to be read.
struct Candidate {
    index: usize,
    count: u64,
    rows: Rows,
    pages: BTreeMap<usize, Arc<Pages>>,
    columns: BTreeMap<usize, ColumnIndexMetaData>,
    filters: BTreeMap<usize, Arc<Sbbf>>,
}

impl Planner {
    /// Plans `request` on a file of `len` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for row groups and rows that are not there, [`ErrorKind::InvalidOption`] for a row group
    /// that is named twice.
    pub(crate) fn new(metadata: Arc<ParquetMetaData>, len: u64, request: Request) -> Result<Self> {
        let mut first_rows = Vec::with_capacity(metadata.num_row_groups());
        let mut rows = 0u64;
        for group in metadata.row_groups() {
            first_rows.push(rows);
            rows += count_of(group);
        }
        let asked = request.rows.as_ref().filter(|asked| asked.end() > rows);
        if let Some(asked) = asked.and_then(|asked| asked.ranges().last()) {
            let of = match asked.end - asked.start {
                1 => String::new(),
                _ => format!(" of rows {}..{}", asked.start, asked.end),
            };
            let missing = rows.max(asked.start);
            return Err(Error::new(ErrorKind::NotFound {
                what: format!("row {missing}{of}; the file has {rows} rows").into(),
            }));
        }
        let groups = match &request.groups {
            None => (0..metadata.num_row_groups()).collect(),
            Some(groups) => checked_groups(groups, metadata.num_row_groups())?,
        };
        let mut planner = Planner {
            end: len,
            groups: Vec::with_capacity(groups.len()),
            skips: Vec::new(),
            rows_asked: 0,
            index_bytes: 0,
            stage: Stage::Pages,
            wanted: Vec::new(),
            request,
            metadata,
        };
        for index in groups {
            planner.add_group(index, first_rows.get(index).copied().unwrap_or(0));
        }
        planner.want_pages();
        planner.advance_if_idle();
        Ok(planner)
    }

    /// What it needs to go on; nothing: it is [done](Self::finish).
    pub(crate) fn wants(&self) -> Vec<Range<u64>> {
        self.wanted
            .iter()
            .map(|wanted| wanted.range.clone())
            .collect()
    }

    /// Gives it what it [wants](Self::wants), in that order. What cannot be read or contradicts the footer is left aside:
    /// more is read then, and the rows are the same.
    pub(crate) fn supply(&mut self, bytes: Vec<Bytes>) {
        for (wanted, bytes) in std::mem::take(&mut self.wanted).into_iter().zip(bytes) {
            self.index_bytes += bytes.len() as u64;
            let Some(candidate) = self.groups.get_mut(wanted.at) else {
                continue;
            };
            let group = self.metadata.row_group(candidate.index);
            let chunk = group.column(wanted.leaf);
            match wanted.what {
                What::Offsets => {
                    let pages = Pages::of(&bytes, chunk_range(chunk), candidate.count);
                    if let Some(pages) = pages {
                        candidate.pages.insert(wanted.leaf, Arc::new(pages));
                    }
                }
                What::Columns => {
                    if let Some(columns) = index::column_index(&bytes, chunk) {
                        candidate.columns.insert(wanted.leaf, columns);
                    }
                }
                What::Filter => {
                    let filter = index::bloom_filter(chunk, wanted.range.start, bytes, self.end);
                    if let Some(filter) = filter {
                        candidate.filters.insert(wanted.leaf, filter);
                    }
                }
            }
        }
        self.advance();
        self.advance_if_idle();
    }

    /// The plan. Only what was supplied has been used.
    pub(crate) fn finish(self) -> ReadPlan {
        let mut leaves = self.request.leaves.clone();
        if let Some(predicate) = &self.request.predicate {
            leaves.extend(predicate.leaves());
            leaves.sort_unstable();
            leaves.dedup();
        }
        let gap = self.request.gap;
        let groups = self.groups.into_iter().map(|candidate| {
            let group = self.metadata.row_group(candidate.index);
            candidate.plan(group, &leaves, gap)
        });
        ReadPlan {
            groups: groups.collect(),
            skips: self.skips,
            rows_asked: self.rows_asked,
            index_bytes: self.index_bytes,
        }
    }

    fn add_group(&mut self, index: usize, first_row: u64) {
        let group = self.metadata.row_group(index);
        let count = count_of(group);
        let rows = match &self.request.rows {
            None => Rows::all(count),
            Some(rows) => rows.within(first_row..first_row + count),
        };
        self.rows_asked += rows.len();
        let mut skip = |rows: u64, reason: SkipReason| {
            if rows > 0 {
                self.skips.push(SkippedRows {
                    row_group: index,
                    rows,
                    reason,
                });
            }
        };
        skip(count - rows.len(), SkipReason::NotAsked);
        if rows.is_empty() {
            return;
        }
        if let Some(predicate) = &self.request.predicate {
            let may = verdict(predicate, &mut |node, target| {
                bounds_of(&self.metadata, group, target).verdict(node)
            });
            if !may {
                return skip(rows.len(), SkipReason::Statistics);
            }
        }
        self.groups.push(Candidate {
            index,
            count,
            rows,
            pages: BTreeMap::new(),
            columns: BTreeMap::new(),
            filters: BTreeMap::new(),
        });
    }

    /// Asks for page indexes where they can spare reading.
    fn want_pages(&mut self) {
        if !self.request.indexes {
            return;
        }
        let tested = self
            .request
            .predicate
            .as_ref()
            .map(Bound::leaves)
            .unwrap_or_default();
        let mut leaves = self.request.leaves.clone();
        leaves.extend(&tested);
        leaves.sort_unstable();
        leaves.dedup();
        for (at, candidate) in self.groups.iter().enumerate() {
            let group = self.metadata.row_group(candidate.index);
            let partial = candidate.rows.len() < candidate.count;
            let mut wanted = Vec::new();
            for leaf in &tested {
                let chunk = group.column(*leaf);
                let columns = index::column_index_range(chunk, self.end);
                let offsets = index::offset_index_range(chunk, self.end);
                if let (Some(range), Some(_)) = (columns, offsets) {
                    wanted.push((range, *leaf, What::Columns));
                }
            }
            if !partial && wanted.is_empty() {
                continue;
            }
            for leaf in &leaves {
                if let Some(range) = index::offset_index_range(group.column(*leaf), self.end) {
                    wanted.push((range, *leaf, What::Offsets));
                }
            }
            // An index as large as the data spares nothing.
            let cost: u64 = wanted
                .iter()
                .map(|(range, ..)| range.end - range.start)
                .sum();
            let data: u64 = leaves
                .iter()
                .map(|leaf| chunk_range(group.column(*leaf)))
                .map(|range| range.end - range.start)
                .sum();
            if cost < data {
                let wanted = wanted.into_iter().map(|(range, leaf, what)| Wanted {
                    range,
                    at,
                    leaf,
                    what,
                });
                self.wanted.extend(wanted);
            }
        }
    }

    fn advance_if_idle(&mut self) {
        while self.wanted.is_empty() && self.stage != Stage::Done {
            self.advance();
        }
    }

    fn advance(&mut self) {
        match self.stage {
            Stage::Pages => {
                self.prune_pages();
                self.want_filters();
                self.stage = Stage::Filters;
            }
            Stage::Filters => {
                self.prune_by_filters();
                self.stage = Stage::Done;
            }
            Stage::Done => {}
        }
    }

    fn prune_pages(&mut self) {
        let Some(predicate) = &self.request.predicate else {
            return;
        };
        let (metadata, skips) = (&self.metadata, &mut self.skips);
        self.groups.retain_mut(|candidate| {
            if candidate.columns.is_empty() {
                return true;
            }
            let may = candidate.rows_that_may(metadata, predicate);
            let left = candidate.rows.intersect(&may);
            let skipped = candidate.rows.len() - left.len();
            if skipped > 0 {
                skips.push(SkippedRows {
                    row_group: candidate.index,
                    rows: skipped,
                    reason: SkipReason::PageIndex,
                });
            }
            candidate.rows = left;
            !candidate.rows.is_empty()
        });
    }

    fn want_filters(&mut self) {
        let Some(predicate) = &self.request.predicate else {
            return;
        };
        if !self.request.indexes {
            return;
        }
        let mut leaves = Vec::new();
        equality_targets(&predicate.node, predicate, &mut leaves);
        for (at, candidate) in self.groups.iter().enumerate() {
            let group = self.metadata.row_group(candidate.index);
            let data: u64 = group
                .columns()
                .iter()
                .enumerate()
                .filter(|(leaf, _)| {
                    self.request.leaves.binary_search(leaf).is_ok() || leaves.contains(leaf)
                })
                .map(|(_, chunk)| chunk_range(chunk).end - chunk_range(chunk).start)
                .sum();
            for leaf in &leaves {
                let range = index::bloom_range(&self.metadata, group.column(*leaf), self.end);
                if let Some(range) = range.filter(|range| range.end - range.start < data) {
                    self.wanted.push(Wanted {
                        range,
                        at,
                        leaf: *leaf,
                        what: What::Filter,
                    });
                }
            }
        }
    }

    fn prune_by_filters(&mut self) {
        let Some(predicate) = &self.request.predicate else {
            return;
        };
        let (metadata, skips) = (&self.metadata, &mut self.skips);
        self.groups.retain(|candidate| {
            if candidate.filters.is_empty() {
                return true;
            }
            let group = metadata.row_group(candidate.index);
            let may = verdict(predicate, &mut |node, target| {
                let (yes, no) = bounds_of(metadata, group, target).verdict(node);
                let physical = group.column(target.leaf).column_type();
                let filter = candidate.filters.get(&target.leaf);
                let possible = filter.is_none_or(|filter| may_hold(filter, node, target, physical));
                (yes && possible, no)
            });
            if !may {
                skips.push(SkippedRows {
                    row_group: candidate.index,
                    rows: candidate.rows.len(),
                    reason: SkipReason::BloomFilter,
                });
            }
            may
        });
    }
}

impl Candidate {
    /// Rows for which the statistics of their pages leave it possible that the predicate is true.
    fn rows_that_may(&self, metadata: &ParquetMetaData, predicate: &Bound) -> Rows {
        let group = metadata.row_group(self.index);
        let file = metadata.file_metadata();
        let mut leaf = |node: &Node| {
            let all = || Ok::<_, ()>((Rows::all(self.count), Rows::all(self.count)));
            let Some(target) = target_of(node, predicate) else {
                return all();
            };
            let (Some(pages), Some(index)) =
                (self.pages.get(&target.leaf), self.columns.get(&target.leaf))
            else {
                return all();
            };
            if index.num_pages() != pages.locations.len() as u64 {
                return all();
            }
            let descriptor = group.column(target.leaf).column_descr();
            let order = file.column_order(target.leaf);
            let (mut yes, mut no) = (Vec::new(), Vec::new());
            for page in 0..pages.locations.len() {
                let rows = pages.rows(page);
                let bounds = Bounds::of_page(
                    target,
                    descriptor,
                    order,
                    index,
                    page,
                    rows.end - rows.start,
                );
                let (may, may_not) = bounds.verdict(node);
                if may {
                    yes.push(rows.clone());
                }
                if may_not {
                    no.push(rows);
                }
            }
            Ok((Rows::of(yes), Rows::of(no)))
        };
        match predicate
            .node
            .fold(&mut leaf, &Rows::intersect, &Rows::union)
        {
            Ok(Some((yes, _))) => yes,
            Ok(None) | Err(()) => Rows::all(self.count),
        }
    }

    fn plan(self, group: &RowGroupMetaData, leaves: &[usize], gap: u64) -> GroupPlan {
        let decoded = self.rows.closing(DECODED_GAP);
        let whole = decoded.len() == self.count;
        let columns: Vec<_> = leaves
            .iter()
            .map(|leaf| {
                let chunk = chunk_range(group.column(*leaf));
                let pages = self.pages.get(leaf).filter(|_| !whole);
                let (ranges, pages_read) = match pages {
                    Some(pages) => pages.bytes(&decoded),
                    None => (vec![chunk.clone()], 0),
                };
                ColumnPlan {
                    leaf: *leaf,
                    pages: pages.cloned(),
                    pages_read,
                    ranges,
                    chunk,
                }
            })
            .collect();
        GroupPlan {
            index: self.index,
            count: self.count,
            requests: joined(columns.iter().flat_map(|column| column.ranges.clone()), gap),
            rows: self.rows,
            decoded,
            columns,
        }
    }
}

/// Rows of a group. The footer was checked, so there are not fewer than none.
fn count_of(group: &RowGroupMetaData) -> u64 {
    u64::try_from(group.num_rows()).unwrap_or(0)
}

fn checked_groups(groups: &[usize], count: usize) -> Result<Vec<usize>> {
    let mut seen = vec![false; count];
    for group in groups {
        match seen.get_mut(*group) {
            None => {
                return Err(Error::new(ErrorKind::NotFound {
                    what: format!("row group {group}; the file has {count}").into(),
                }));
            }
            Some(seen) if *seen => {
                return Err(invalid(format!("row group {group} is named twice")));
            }
            Some(seen) => *seen = true,
        }
    }
    Ok(groups.to_vec())
}

fn bounds_of(metadata: &ParquetMetaData, group: &RowGroupMetaData, target: &Target) -> Bounds {
    let order = metadata.file_metadata().column_order(target.leaf);
    Bounds::of_chunk(target, group.column(target.leaf), order)
}

fn target_of<'a>(node: &Node, predicate: &'a Bound) -> Option<&'a Target> {
    match node {
        Node::Compare(at, ..) | Node::In(at, _) | Node::IsNull(at) => predicate.targets.get(*at),
        Node::And(_) | Node::Or(_) | Node::Not(_) => None,
    }
}

/// Whether the predicate may be true for a row, by what `leaf` says of its comparisons.
fn verdict(predicate: &Bound, leaf: &mut dyn FnMut(&Node, &Target) -> (bool, bool)) -> bool {
    let mut leaf = |node: &Node| {
        Ok::<_, ()>(match target_of(node, predicate) {
            Some(target) => leaf(node, target),
            None => (true, true),
        })
    };
    let folded = predicate
        .node
        .fold(&mut leaf, &|a, b| *a && *b, &|a, b| *a || *b);
    !matches!(folded, Ok(Some((false, _))))
}

/// Leaves that are compared for equality.
fn equality_targets(node: &Node, predicate: &Bound, leaves: &mut Vec<usize>) {
    match node {
        Node::And(nodes) | Node::Or(nodes) => {
            for node in nodes {
                equality_targets(node, predicate, leaves);
            }
        }
        // A filter says what is not there, so it says nothing of a negation.
        Node::Not(_) | Node::IsNull(_) => {}
        Node::Compare(_, operator, _) if *operator != Operator::Eq => {}
        Node::Compare(..) | Node::In(..) => {
            if let Some(target) = target_of(node, predicate)
                && !leaves.contains(&target.leaf)
            {
                leaves.push(target.leaf);
            }
        }
    }
}

/// `ranges` sorted, and those at most `gap` apart made one.
pub(crate) fn joined(ranges: impl IntoIterator<Item = Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> = ranges
        .into_iter()
        .filter(|range| range.start < range.end)
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    joined
}
