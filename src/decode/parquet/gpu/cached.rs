//! Page lists and marks of large pages in the metadata cache: walked for in the first epoch, and known in the next ones.

use std::any::Any;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::lists::{Keep, Lists};
use super::scan::DeviceScan;
use crate::cache::MetadataCache;
use crate::cuda::columns::Marks;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{PageFault, PageList};
use crate::reader::Reader;
use crate::version::Version;

impl<R: Reader + ?Sized + 'static> DeviceScan<R> {
    /// Keeps in `cache` where the pages of each column chunk are, and takes it from there the next time: the walk over their headers is what
    /// planning costs most for.
    ///
    /// Of data pages of more than 4,096 rows and at least 4 KiB it is kept as well where each 1,024 rows begin in their runs of levels
    /// and of indices, their strings in PLAIN, and their deltas. Kernels begin at all of these places at once then, instead of one after
    /// the other, and look whether each part ends where the next one is said to begin: what is kept is never trusted. It comes back from
    /// the device once for each row group.
    ///
    /// Both are kept for the version of the file that they were made of, under the name of the source, and take about 100 bytes for a page
    /// of the cache's capacity, and for 1,024 rows 8 for each kind of runs and 24 for deltas; those of chunks that are not decoded by kernels
    /// are not made, nor is anything kept of chunks of which only some pages are decoded. [`DeviceScanReport`](super::DeviceScanReport) counts
    /// them.
    pub fn page_lists(mut self, cache: &MetadataCache) -> Self {
        let source = self.scan.reader.source();
        self.lists = Lists::kept(InCache {
            cache: cache.clone(),
            name: source.name().clone(),
            version: source.version().clone(),
        });
        self
    }
}

/// The lists of one version of a file.
#[derive(Debug)]
struct InCache {
    cache: MetadataCache,
    name: Arc<str>,
    version: Version,
}

impl Keep for InCache {
    fn list(
        &self,
        group: usize,
        leaf: usize,
        walk: &dyn Fn() -> std::result::Result<PageList, PageFault>,
    ) -> std::result::Result<Arc<PageList>, PageFault> {
        let mut fault = None;
        let list = self.in_cache("pages", group, leaf, || match walk() {
            Ok(list) => {
                let bytes = list.memory();
                Ok((list, bytes))
            }
            Err(what) => {
                fault = Some(what);
                Err(Error::new(ErrorKind::Abandoned))
            }
        });
        match (list, fault) {
            (Ok(list), _) => Ok(list),
            (Err(_), Some(fault)) => Err(fault),
            // A cache that answers nothing is no reason to fail.
            (Err(_), None) => walk().map(Arc::new),
        }
    }

    fn marks(&self, group: usize, leaf: usize) -> Option<Arc<Marks>> {
        // A load that fails leaves nothing there.
        let nothing = || Err(Error::new(ErrorKind::Abandoned));
        let marks = self.in_cache("marks", group, leaf, nothing);
        marks.ok()
    }

    fn keep_marks(&self, group: usize, leaf: usize, marks: Marks) {
        let bytes = marks.memory();
        // Who has no room keeps nothing.
        let _ = self.in_cache("marks", group, leaf, || Ok((marks, bytes)));
    }
}

impl InCache {
    /// What the cache has of a leaf of a row group, or what `load` gives.
    fn in_cache<T: Any + Send + Sync>(
        &self,
        what: &str,
        group: usize,
        leaf: usize,
        load: impl FnOnce() -> Result<(T, u64)>,
    ) -> Result<Arc<T>> {
        // No path has a zero byte, so that these are not the names of other files.
        let key = format!("{}\0{what} {group} {leaf}", self.name);
        let path = Path::new(OsStr::from_bytes(key.as_bytes()));
        self.cache.parsed(path, &self.version, load)
    }
}
