//! Page lists and marks of large pages in the metadata cache: walked for in the first epoch, and known in the next ones.

use std::path::PathBuf;
use std::sync::Arc;

use super::lists::{Keep, Lists};
use super::scan::DeviceScan;
use crate::cache::{MetadataCache, part_of};
use crate::cuda::columns::Marks;
use crate::error::{Error, ErrorKind};
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
        let name = self.name_of("pages", group, leaf);
        let list = self.cache.parsed(&name, &self.version, || match walk() {
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
        self.cache
            .kept(&self.name_of("marks", group, leaf), &self.version)
    }

    fn keep_marks(&self, group: usize, leaf: usize, marks: Marks) {
        let (name, bytes) = (self.name_of("marks", group, leaf), marks.memory());
        self.cache.keep(&name, &self.version, marks, bytes);
    }
}

impl InCache {
    /// The name of what the cache has of a leaf of a row group.
    fn name_of(&self, what: &str, group: usize, leaf: usize) -> PathBuf {
        part_of(&self.name, format_args!("{what} {group} {leaf}"))
    }
}
