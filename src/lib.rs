//! Feeds accelerators: brings file bytes into host or GPU memory as fast as the machine allows.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "feedwater needs a 64-bit target: offsets and lengths of files are used as memory sizes"
);
#[cfg(not(unix))]
compile_error!("feedwater needs a Unix: it reads by position from file descriptors");

mod backend;
mod buffer;
mod error;
mod open;
mod reader;
mod sys;
mod version;
mod write;

pub use backend::memory::MemoryReader;
pub use buffer::{
    Block, BlockMut, DeviceBytes, HostMemory, Memory, Place, Pool, PoolOptions, PoolStats,
};
pub use error::{Error, ErrorKind, FileKind, Refusal, Result};
pub use open::{
    Candidate, Engine, EngineOptions, OpenOptions, Opened, Opening, Report, Verdict, open,
    open_async,
};
pub use reader::{
    Batch, CachePolicy, ChunkOptions, ChunkStream, Chunks, Completions, CounterSnapshot, Counters,
    Cursor, Dest, Failed, Limits, LocalFile, Outcomes, Pending, PendingRead, Priority, Progress,
    Read, ReadInto, ReadOptions, Reader, ReaderExt, Route, Slice, Source, Staged, StagingOptions,
    Started, Ticket, Transfer, TransferDone, VersionCheck, plan, read_now_by_submit,
};
#[cfg(feature = "testing")]
pub use reader::{conformance, fault};
pub use version::{FileVersion, Timestamp, Version};
pub use write::{CopyOptions, CopyReport, CopyRoute, FileSink, SinkOptions, SyncMode, copy};
