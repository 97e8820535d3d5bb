//! GPUs, on the software CUDA device; with `FEEDWATER_REAL_GPU=1` on the card of the machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
#[path = "cuda/support.rs"]
mod support;

#[path = "cuda/kernels.rs"]
mod kernels;
#[path = "cuda/weights.rs"]
mod weights;
#[path = "cuda/reads.rs"]
mod reads;
