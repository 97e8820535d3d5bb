//! Reads by cuFile, on the stand-ins for CUDA and cuFile.
//!
//! With `FEEDWATER_REAL_GPU=1` the tests that need nothing injected run on the card of the machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(target_os = "linux")]

mod common;
#[path = "gds/support.rs"]
mod support;

#[path = "gds/batches.rs"]
mod batches;
#[path = "gds/conforms.rs"]
mod conforms;
#[path = "gds/lifetimes.rs"]
mod lifetimes;
#[path = "gds/opening.rs"]
mod opening;
#[path = "gds/reads.rs"]
mod reads;
