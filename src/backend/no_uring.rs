//! In place of `uring` where the feature is off or the system has no rings: the engine that cannot be made.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::device::Device;
use super::file::OpenFile;
use super::requests::{DirectFile, Look};
use super::whole::Want;
use super::workers::Workers;
use crate::buffer::Pool;
use crate::error::{Refusal, Result};
use crate::reader::{Batch, Pending, ReadInto, ReadOptions, Reader, Source, Started, VersionCheck};

/// Why not.
pub(crate) fn facts() -> Result<Facts, Refusal> {
    if cfg!(feature = "io-uring") {
        return Err(Refusal::NotOnThisSystem {
            what: "io_uring (Linux 5.6)".into(),
        });
    }
    Err(Refusal::NotCompiledIn {
        feature: "io-uring",
    })
}

/// Never found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// How rings are set up here.
    pub(crate) setup: &'static str,
    never: Infallible,
}

/// None.
#[derive(Debug)]
pub(crate) struct Rings;

impl Rings {
    pub(crate) fn new(_: usize) -> Self {
        Rings
    }

    pub(crate) fn read_files(
        &self,
        _: Vec<Arc<Path>>,
        _: Arc<dyn Want>,
        _: VersionCheck,
        _: &Arc<Device>,
        _: &ReadOptions,
    ) -> Result<(), Refusal> {
        facts().map(|facts| match facts.never {})
    }

    pub(crate) fn shut_down(&self, _: Instant) -> usize {
        0
    }
}

/// Never made.
#[derive(Debug)]
pub(crate) struct UringReader(Infallible);

impl UringReader {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        _: Arc<OpenFile>,
        _: Option<(Arc<DirectFile>, bool)>,
        _: &Source,
        _: &Rings,
        _: &Arc<Device>,
        _: Arc<Workers>,
        _: Pool,
        _: VersionCheck,
    ) -> Result<Self, Refusal> {
        facts().map(|facts| match facts.never {})
    }

    pub(crate) fn was_refused(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn ready(&self) -> Result<(), Refusal> {
        match self.0 {}
    }

    pub(crate) fn start(&self, _: Vec<Started>, _: &ReadOptions, _: Look) {
        match self.0 {}
    }

    pub(crate) fn try_now(&self, _: &mut [ReadInto<'_>]) -> Result<Result<()>, Refusal> {
        match self.0 {}
    }
}

impl Reader for UringReader {
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
