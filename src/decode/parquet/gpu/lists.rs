//! The pages of column chunks: walked for, or known from before.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::file::metadata::ColumnChunkMetaData;

use crate::format::parquet::{OnePage, PageFault, PageList, least_bits};

/// Where the page lists of a scan come from, and how many did.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// What keeps them, if something does.
    kept: Option<Box<dyn Keep>>,
    walked: AtomicU64,
    asked: AtomicU64,
}

/// A place that keeps page lists of one version of a file.
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
