//! The one contract that all engines share: [`Reader`], and what everybody gets from it: [`ReaderExt`].

mod batch;
mod chunks;
mod complete;
#[cfg(feature = "testing")]
pub mod conformance;
mod counters;
mod cursor;
mod ext;
#[cfg(feature = "testing")]
pub mod fault;
mod options;
mod pending;
pub mod plan;
#[cfg(feature = "testing")]
mod seeded;
mod slice;
mod source;
mod staging;
mod timer;

use std::fmt;
use std::sync::Arc;

pub(crate) use batch::refuse_place;
pub use batch::{Batch, Dest, Read, ReadInto, Started};
pub use chunks::{ChunkOptions, ChunkStream, Chunks};
pub(crate) use complete::{Step, fill};
pub use counters::{CounterSnapshot, Counters, Route};
pub use cursor::Cursor;
pub use ext::{ReaderExt, read_now_by_submit};
pub use options::{CachePolicy, Priority, ReadOptions, VersionCheck};
pub use pending::{Completions, Failed, Outcomes, Pending, PendingRead, Progress, Ticket};
pub use slice::Slice;
pub use source::{Limits, LocalFile, Source};
pub use staging::{Staged, StagingOptions, Transfer, TransferDone};

use crate::error::Result;

/// One immutable source of bytes, fixed when it was opened: length, version, name and limits.
///
/// A contract between strangers: engines implement it, formats and loaders use it, wrappers do both.
///
/// - **Complete or an error.** A range is delivered with every byte, or fails with a typed error that carries
///   name, offset, length and engine. Short reads, `EINTR` and `EAGAIN` are finished inside.
/// - **Bounds.** `start <= end <= len`, also for empty ranges; the same
///   [`OutOfBounds`](crate::ErrorKind::OutOfBounds) everywhere.
/// - **Version.** Content that changed since the open is [`Changed`](crate::ErrorKind::Changed), naming both
///   versions; a path that now leads to another file is no error, the opened one is read on.
/// - **Places.** A plain engine refuses destinations on a device; [`Staged`] adds them.
/// - **After an error** the reader can be used on.
/// - **Threads.** All methods may be called from many threads at once. Engine threads run code of others only to wake
///   tasks and to release memory; neither may wait for a read of the same engine.
/// - **Fork.** In a child process every call answers [`Forked`](crate::ErrorKind::Forked).
///
/// A wrapper forwards the three required methods; comfort lives in [`ReaderExt`], which nobody forwards.
pub trait Reader: fmt::Debug + Send + Sync + 'static {
    /// What is read: length, version, name, limits, counters. Free.
    fn source(&self) -> &Source;

    /// Starts all reads of `batch` and returns at once; work goes on whether the [`Pending`] is polled or not.
    ///
    /// Never waits for a device, though bytes that are in memory already may be copied on the spot.
    /// All errors come through the [`Pending`]. Dropping or forgetting that is sound at any moment.
    fn submit(&self, batch: Batch) -> Pending;

    /// Reads into memory of the caller, on the caller's thread, and returns when all of it is done.
    ///
    /// # Errors
    /// The first error met. The content of all buffers is then unspecified, though initialised.
    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()>;

    /// The local file that holds the same bytes, where there is one: for what the kernel can do with a
    /// descriptor by itself, as [`copy`](crate::copy) does.
    ///
    /// Default: `None`, which is always right. A wrapper that changes what a read does must not forward it.
    fn local_file(&self) -> Option<LocalFile<'_>> {
        None
    }
}

/// A shared reader is a reader.
#[deny(clippy::missing_trait_methods)]
impl<R: Reader + ?Sized> Reader for Arc<R> {
    fn source(&self) -> &Source {
        (**self).source()
    }
    fn submit(&self, batch: Batch) -> Pending {
        (**self).submit(batch)
    }
    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        (**self).read_now(reads)
    }
    fn local_file(&self) -> Option<LocalFile<'_>> {
        (**self).local_file()
    }
}
