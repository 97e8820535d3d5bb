//! Page lists in the metadata cache: walked for in the first epoch, and known in the next ones.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::lists::{Keep, Lists};
use super::scan::DeviceScan;
use crate::cache::MetadataCache;
use crate::error::{Error, ErrorKind};
use crate::format::parquet::{PageFault, PageList};
use crate::reader::Reader;
use crate::version::Version;

impl<R: Reader + ?Sized + 'static> DeviceScan<R> {
    /// Keeps in `cache` where the pages of each column chunk are, and takes it from there the next time: the walk over their headers is what
    /// planning costs most for.
    ///
    /// Each list is kept for the version of the file that it was made of, under the name of the source, and takes about 100 bytes for a page
    /// of the cache's capacity; those of chunks that are not decoded by kernels are not made, nor are those kept of which only some pages are
    /// read. [`DeviceScanReport`](super::DeviceScanReport)
    /// counts both.
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
        walk: &dyn Fn() -> Result<PageList, PageFault>,
    ) -> Result<Arc<PageList>, PageFault> {
        // No path has a zero byte, so that these are not the names of other files.
        let key = format!("{}\0pages {group} {leaf}", self.name);
        let path = Path::new(OsStr::from_bytes(key.as_bytes()));
        let mut fault = None;
        let list = self.cache.parsed(path, &self.version, || match walk() {
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
}
