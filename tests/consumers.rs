//! The contract as strangers use it: a file format's crate, a device, and a slow engine from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod device;
#[path = "consumers/parquet.rs"]
mod parquet_files;
#[path = "consumers/remote.rs"]
mod remote;
#[path = "consumers/slow.rs"]
mod slow;
#[path = "consumers/tensors.rs"]
mod tensors;
