//! What many files at once need of an engine.

use std::path::Path;
use std::sync::Arc;

use super::engine::Engine;
use crate::backend::uring;
pub(crate) use crate::backend::whole::{Want, WholeFile};
pub(crate) use crate::backend::workers::Work;
use crate::error::{Refusal, Result};
use crate::reader::{Priority, ReadOptions, VersionCheck};

impl Engine {
    /// Lets up to `threads` threads take part in `work`. Never waits.
    ///
    /// # Errors
    /// If there is no thread and none can be started; the work was then not taken.
    pub(crate) fn run(
        &self,
        work: &Arc<dyn Work>,
        threads: usize,
        priority: Priority,
    ) -> Result<()> {
        self.workers().run(work, threads, priority)
    }

    /// Most threads that wait for devices.
    pub(crate) fn threads(&self) -> usize {
        self.workers().most()
    }

    /// Reads whole files of one file system by a ring. Of each, `want` is told what became of it.
    ///
    /// # Errors
    /// Why there are no rings; nothing has been told then.
    pub(crate) fn read_by_ring(
        &self,
        dev: u64,
        paths: Vec<Arc<Path>>,
        want: Arc<dyn Want>,
        check: VersionCheck,
        priority: Priority,
    ) -> Result<(), Refusal> {
        let options = ReadOptions::default().priority(priority);
        let device = self.device(dev);
        self.rings()
            .read_files(paths, want, check, &device, &options)
    }

    /// Most requests in flight on one device by rings.
    pub(crate) fn depth(&self) -> usize {
        self.device_depth()
    }
}

/// Why there are no rings.
pub(crate) fn no_rings() -> Option<Refusal> {
    uring::facts().err()
}
