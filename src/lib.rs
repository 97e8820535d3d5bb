//! Brings the bytes of files to where they are needed, in host memory or on a device, as fast
//! as the machine allows, and says which way it chose; and decodes the columns, records, tensors and arrays in them.
//!
//! ```
//! use feedwater::{ChunkOptions, ReaderExt};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.bin");
//! # std::fs::write(&path, vec![7; 100_000])?;
//! let reader = feedwater::open(&path)?;
//! let header = reader.read(0..1024).wait()?; // `Bytes`; or `.await`, on any executor
//! let parts = reader.read_many(&[0..10, 90..100]).wait()?;
//! for chunk in reader.chunks(0..reader.len(), ChunkOptions::default()) {
//!     let chunk = chunk?;
//! }
//! println!("{}", reader.report());
//! # assert_eq!((header.len(), parts.len()), (1024, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what you want | where to begin |
//! |---|---|
//! | to read files | [`open`], [`OpenOptions`], and the methods of [`ReaderExt`] |
//! | many files, whole | [`read_files`], [`stat_files`], [`walk`] |
//! | many ranges into slices of your own, on this thread | [`Reader::read_now`], [`ReadInto`] |
//! | many ranges into blocks, not waiting | [`Batch`], [`BlockMut`], [`Pool`] |
//! | to write files that appear whole or not at all | [`FileSink`], [`copy`](fn@copy) |
//! | bytes in the memory of an NVIDIA GPU | `cuda::Device`, [`OpenOptions::device`] (feature `cuda`); past the host, `gds::Gds` (feature `gds`) |
//! | columns and tensors decoded in the memory of a GPU | `parquet::Scan::on_device`, `tfrecord::ExampleScan::on_device`, `safetensors::Load::on_device` (feature `cuda`) |
//! | bytes on another device | [`Staged`], [`Transfer`] |
//! | an engine of your own | [`Reader`], [`Batch::start`], and `conformance` (feature `testing`) |
//! | attributes, listings and footers known already | `cache::MetadataCache` (feature `cache`) |
//! | threads, rings and memory with bounds of your own | [`Engine`] |
//! | columns of Parquet files | `parquet::scan` (feature `parquet`) |
//! | records of TFRecord files, and columns of the examples in them | `tfrecord::records`, `tfrecord::examples` (feature `tfrecord`) |
//! | tensors of safetensors files | `safetensors::open` (feature `safetensors`) |
//! | arrays of .npy and .npz files | `npy::open`, `npy::open_npz` (feature `npy`) |
//! | to know which of these a file is | [`Format::of`] |
//! | to know by which rules ranges are read, and what was done | [`Opened`], [`Report`] |
//!
//! # What holds everywhere
//! The contract is that of [`Reader`]: complete or a typed error, bounds, versions, places, forks. Memory that the
//! system writes to belongs to the engine until it is done, so anything may be dropped or forgotten at any time.
//!
//! # In tasks
//! [`PendingRead`] and [`Pending`] are futures on any executor; [`Pending::stream`] and [`Chunks::stream`] are
//! `futures_core::Stream`s (version 0.3, part of this crate's interface): `futures::StreamExt` gives them `next`. What is
//! not a future ([`Reader::read_now`], [`ReaderExt::read_at`], [`FileSink`], [`copy`](fn@copy), iterating over
//! [`Chunks`]) blocks its thread.
//!
//! Of the formats, `stream` and what ends in `_async` are for tasks; what has the same name without it parks its thread, and
//! so do the iterators. Writers and `save`, `tfrecord::Index::with_sidecar` and `npy::Archive::verify` block and have no other
//! form: call them where the executor lets threads block (`spawn_blocking` of tokio). So do calls that wait for a GPU:
//! `cuda::Device::checksums` and `dense`, `to_host`, `DeviceArray::tensor_of_lists`, and dropping memory that was handed out.
//!
//! # Features
//! `io-uring` (default) brings reads by the kernel's rings (Linux), `mmap` (default) views of mappings, `parquet`, `tfrecord`,
//! `safetensors` and `npy` the decoding of these formats, `cache` what is known of files already, `cuda` the memory of NVIDIA GPUs as a
//! destination, and Parquet and TFRecord decoded there, `gds` reads from the drive into that memory by cuFile (both are looked for when
//! the program runs: they build everywhere, and need nothing installed), `testing` the conformance suite and fault injection; `full` all.
//! A feature only adds.
//!
//! Types of other crates that are part of this crate's interface: `bytes` 1; with `parquet` and `tfrecord` those of
//! `arrow-array` and `arrow-schema` 60, with `parquet` also of `parquet` 60, with `safetensors` the `Dtype` of
//! `safetensors` 0.8.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "feedwater needs a 64-bit target: offsets and lengths of files are used as memory sizes"
);
#[cfg(not(unix))]
compile_error!("feedwater needs a Unix: it reads by position from file descriptors");

mod backend;
mod buffer;
#[cfg(feature = "cache")]
pub mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
mod decode;
mod error;
mod files;
mod format;
mod open;
mod reader;
mod sys;
mod version;
mod write;

#[cfg(all(feature = "cuda", any(feature = "parquet", feature = "tfrecord")))]
pub use decode::device::{DeviceArray, DeviceBatch, Processor};
#[cfg(feature = "npy")]
pub use decode::npy;
#[cfg(feature = "parquet")]
pub use decode::parquet;
#[cfg(feature = "safetensors")]
pub use decode::safetensors;
#[cfg(feature = "tfrecord")]
pub use decode::tfrecord;

#[cfg(feature = "gds")]
pub use backend::gds;
pub use backend::memory::MemoryReader;
pub use buffer::{
    Block, BlockMut, DeviceBytes, HostMemory, Memory, Place, Pool, PoolOptions, PoolStats,
};
pub use error::{Error, ErrorKind, FileKind, RecordCheck, Refusal, Result};
pub use files::{
    Answer, Entries, EntryKind, FileAttributes, FileContent, FileResult, FileStream, Files,
    FilesReport, FilesWay, ManyFiles, Walk, WalkEntry, WalkStream, read_files, stat_files, walk,
};
pub use format::detect::{Format, UnknownFormat};
pub use open::{
    Candidate, DeviceProfile, Engine, EngineOptions, OpenOptions, Opened, Opening, Report,
    Shutdown, Verdict, open, open_async,
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

/// The code of the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
