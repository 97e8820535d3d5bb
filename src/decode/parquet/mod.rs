//! Parquet files as Arrow record batches.

// Called by what reads columns.
#[allow(dead_code)]
mod failure;
#[allow(dead_code)]
mod pages;
mod prefetch;
mod source;
mod write;

pub use source::{Source, SourceStream};
pub use write::{WriteOptions, Writer};
