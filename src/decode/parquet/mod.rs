//! Parquet files as Arrow record batches.
//!
//! [`scan`] reads what is asked for (columns, row groups, rows, rows that a [predicate](Predicate) is true for) and decodes it
//! on threads of its own, as an iterator or a stream; [`Scan::take`] brings rows in any order. [`Metadata`] are read once for
//! any number of scans, and [`Scan::explain`] says what a scan would read, and why not more.
//!
//! [`Source`] is a reader as the `parquet` crate's own readers want a file, for code that uses them already. [`Writer`] writes
//! record batches to a file that appears whole or not at all.
//!
//! # What is read
//! The footer, in one request for most files. Page indexes and Bloom filters, where they can spare more than they cost. Of
//! the column chunks, those that are asked for; with a page index and fewer rows than all, only pages with rows that are
//! wanted, and the dictionaries of their columns. Ranges close together are one request, and the next row groups are asked
//! for while one is decoded, within a [window](Scan::window). Row groups that the page cache has already are read page by
//! page right before each page is decoded, which keeps them in the processor's cache.
//!
//! # What is decoded by whom
//! Columns of numbers, flags, strings and bytes, and lists of numbers, whose pages are PLAIN or have a dictionary, are decoded
//! here, where all rows of a row group are wanted; so are Snappy and Zstandard undone. All else is decoded by the `parquet`
//! crate. Values and types are those that it gives: what is not as it should be is given to it, to decode or to refuse.
//! Planning, reading and threads are ours. A row group is cut into sets of
//! top-level columns of about the same weight, so that even a file of one row group is decoded by several threads; but a
//! column of a row group is decoded by one.
//!
//! # What is not read
//! These are [`UnsupportedFeature`](crate::ErrorKind::UnsupportedFeature), with the column and the offset of the page where it
//! is about one: encryption; the codec LZO; pages of Hadoop's LZ4 codec in several frames, of which a later one is not larger
//! than the one before; levels in the deprecated BIT_PACKED encoding; encodings that the `parquet` crate does not have for
//! the type; column chunks in other files; single fields of the entries of a map. A panic of the `parquet` crate is
//! contained and is [`Panicked`](crate::ErrorKind::Panicked), but the panic hook of the process runs before, and
//! the default one prints.

mod batches;
mod buffers;
mod checked;
mod direct;
mod explain;
mod failure;
mod filter;
mod job;
mod metadata;
mod pages;
mod prefetch;
mod resident;
mod scan;
mod source;
mod take;
mod unit;
mod write;

pub use batches::{BatchStream, Batches};
pub use explain::{ColumnChunkPlan, Plan, RowGroupPlan, ScanReport};
pub use metadata::Metadata;
pub use scan::{Scan, scan};
pub use source::{Source, SourceStream};
pub use write::{Writer, WriterOptions};

pub use crate::format::parquet::{Column, Predicate, SkipReason, SkippedRows, Value, column};
