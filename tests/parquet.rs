//! Scans of Parquet files: values beside those of the `parquet` crate's own reader, and what exactly is read for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "parquet/direct.rs"]
mod direct;
#[path = "parquet/files.rs"]
mod files;
#[path = "parquet/predicates.rs"]
mod predicates;
#[path = "parquet/readers.rs"]
mod readers;
#[path = "parquet/refusals.rs"]
mod refusals;
#[path = "parquet/requests.rs"]
mod requests;
#[path = "parquet/running.rs"]
mod running;
#[path = "parquet/values.rs"]
mod values;
