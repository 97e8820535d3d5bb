//! In place of `mmap` when the feature is off: the engine that cannot be made.
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::sync::Arc;

use super::file::OpenFile;
use super::workers::Workers;
use crate::error::{Refusal, Result};
use crate::reader::{Batch, Pending, ReadInto, ReadOptions, Reader, Source, Started, VersionCheck};

/// Never made.
#[derive(Debug)]
pub(crate) struct MmapReader(Infallible);

impl MmapReader {
    /// Whether the feature is on.
    pub(crate) const COMPILED: bool = false;

    /// # Safety
    /// None needed: it always refuses.
    pub(crate) unsafe fn new(
        _: Arc<OpenFile>,
        _: &Source,
        _: Arc<Workers>,
        _: VersionCheck,
    ) -> Result<Self, Refusal> {
        Err(Refusal::NotCompiledIn { feature: "mmap" })
    }

    pub(crate) fn start(&self, _: Vec<Started>, _: &ReadOptions) {
        match self.0 {}
    }
}

impl Reader for MmapReader {
    fn source(&self) -> &Source {
        match self.0 {}
    }
    fn submit(&self, _: Batch) -> Pending {
        match self.0 {}
    }
    fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
        match self.0 {}
    }
}
