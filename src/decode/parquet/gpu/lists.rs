//! The pages of column chunks, and where tiles of large ones begin: walked for, or known from before.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::file::metadata::ColumnChunkMetaData;

use crate::cuda::columns::Marks;
use crate::format::parquet::{OnePage, PageFault, PageList, least_bits};

/// Where the page lists of a scan come from, and how many did.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// What keeps them, if something does.
    kept: Option<Box<dyn Keep>>,
    walked: AtomicU64,
    asked: AtomicU64,
    marked: AtomicU64,
}

/// A place that keeps page lists and marks of one version of a file.
pub(super) trait Keep: Send + Sync + fmt::Debug {
    /// The list of a leaf of a row group; `walk` makes it if it is not there.
    ///
    /// # Errors
    /// That of `walk`, which is not kept.
    fn list(
        &self,
        group: usize,
        leaf: usize,
        walk: &dyn Fn() -> Result<PageList, PageFault>,
    ) -> Result<Arc<PageList>, PageFault>;

    /// Where the tiles of a leaf of a row group begin, if it has that.
    fn marks(&self, group: usize, leaf: usize) -> Option<Arc<Marks>>;

    /// Keeps that, if there is room.
    fn keep_marks(&self, group: usize, leaf: usize, marks: Marks);
}

impl Lists {
    /// Those that `keep` has.
    #[cfg_attr(not(feature = "cache"), allow(dead_code))]
    pub(super) fn kept(keep: impl Keep + 'static) -> Self {
        Lists {
            kept: Some(Box::new(keep)),
            ..Lists::default()
        }
    }

    /// The pages of `chunk`, whose bytes are `bytes`.
    ///
    /// # Errors
    /// What is wrong with its headers, in words.
    pub(super) fn of(
        &self,
        (group, leaf): (usize, usize),
        chunk: &ColumnChunkMetaData,
        bytes: &[u8],
    ) -> Result<Arc<PageList>, String> {
        let walk = || {
            self.walked.fetch_add(1, Ordering::Relaxed);
            let bits = least_bits(chunk.column_type(), chunk.column_descr().type_length());
            PageList::of(bytes, chunk.compression(), bits)
        };
        self.asked.fetch_add(1, Ordering::Relaxed);
        let list = match &self.kept {
            Some(keep) => keep.list(group, leaf, &walk),
            None => walk().map(Arc::new),
        };
        let list = list.map_err(said)?;
        // Of the same version, it cannot be of other bytes; and if it were, nothing outside of them would be looked at.
        match list.ends_within(bytes.len()) {
            true => Ok(list),
            false => Err("its pages are known to be elsewhere".into()),
        }
    }

    /// Pages of `chunk` where an index says that they are: `parts` are their bytes, and how far these are behind its start. That is not kept.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(super) fn of_parts<'a>(
        &self,
        chunk: &ColumnChunkMetaData,
        parts: impl Iterator<Item = (usize, &'a [u8])>,
    ) -> Result<PageList, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.walked.fetch_add(1, Ordering::Relaxed);
        let bits = least_bits(chunk.column_type(), chunk.column_descr().type_length());
        let mut list = PageList::default();
        for (at, part) in parts {
            let page = PageList::of_page(part, at, chunk.compression(), bits).map_err(said)?;
            match page {
                OnePage::Data(page) => list.push(page),
                OnePage::Dictionary(page) if list == PageList::default() => {
                    list.dictionary = Some(page);
                }
                OnePage::Dictionary(_) => {
                    return Err("a dictionary that does not come first".into());
                }
            }
        }
        Ok(list)
    }

    /// Where the tiles of these leaves of a row group begin, as far as it is known; nothing is of leaves that are `None`. `None` if nothing
    /// keeps that, or of none of them.
    pub(super) fn marks(
        &self,
        group: usize,
        leaves: &[Option<usize>],
    ) -> Option<Vec<Option<Arc<Marks>>>> {
        let kept = self.kept.as_ref()?;
        leaves.iter().flatten().next()?;
        let marks = leaves.iter().map(|leaf| kept.marks(group, (*leaf)?));
        Some(marks.collect())
    }

    /// Counts the pages whose marks were `known` and right, and keeps those that were found for another time. `are_done` says which leaves
    /// were decoded: marks that were wrong are forgotten, so that the next time is like the first.
    pub(super) fn note(
        &self,
        group: usize,
        leaves: &[Option<usize>],
        known: Option<Vec<Option<Arc<Marks>>>>,
        mut found: Vec<Option<Marks>>,
        are_done: impl Iterator<Item = bool>,
    ) {
        let known = known.into_iter().flatten();
        for ((known, found), is_done) in known.zip(&mut found).zip(are_done) {
            match (known, is_done) {
                (Some(marks), true) => {
                    self.marked.fetch_add(marks.count(), Ordering::Relaxed);
                }
                (Some(_), false) => *found = Some(Marks::default()),
                (None, _) => {}
            }
        }
        for (leaf, marks) in leaves.iter().zip(found) {
            if let (Some(kept), Some(leaf), Some(marks)) = (&self.kept, leaf, marks) {
                kept.keep_marks(group, *leaf, marks);
            }
        }
    }

    /// Pages that were decoded from their marks.
    pub(super) fn marked(&self) -> u64 {
        self.marked.load(Ordering::Relaxed)
    }

    /// How many were walked for, and how many were known.
    pub(super) fn counts(&self) -> (u64, u64) {
        let walked = self.walked.load(Ordering::Relaxed);
        let asked = self.asked.load(Ordering::Relaxed);
        (walked, asked.saturating_sub(walked))
    }
}

fn said(fault: PageFault) -> String {
    match fault {
        PageFault::Malformed(what) | PageFault::Unsupported(what) => what,
    }
}
