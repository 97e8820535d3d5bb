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
mod reader;
mod sys;
mod version;

pub use backend::memory::MemoryReader;
pub use buffer::{
    Block, BlockMut, DeviceBytes, HostMemory, Memory, Place, Pool, PoolOptions, PoolStats,
};
pub use error::{Error, ErrorKind, FileKind, Refusal, Result};
pub use reader::{
    Batch, CachePolicy, ChunkOptions, ChunkStream, Chunks, Completions, CounterSnapshot, Counters,
    Cursor, Dest, Failed, Limits, Outcomes, Pending, PendingRead, Priority, Progress, Read,
    ReadInto, ReadOptions, Reader, ReaderExt, Route, Slice, Source, Started, Ticket, VersionCheck,
    plan,
};
#[cfg(feature = "testing")]
pub use reader::{conformance, fault};
pub use version::{FileVersion, Timestamp, Version};
