//! GPUs, on the software CUDA device; with `FEEDWATER_REAL_GPU=1` on the card of the machine, where tests of injected errors and made-up
//! limits pass without doing anything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "cuda/columns.rs"]
mod columns;
#[path = "cuda/conformance.rs"]
mod conformance;
#[path = "cuda/counts.rs"]
mod counts;
#[path = "cuda/decompress.rs"]
mod decompress;
#[path = "cuda/decompress_counts.rs"]
mod decompress_counts;
#[path = "cuda/delta.rs"]
mod delta;
#[path = "cuda/delta_rows.rs"]
mod delta_rows;
#[path = "cuda/delta_strings.rs"]
mod delta_strings;
#[path = "cuda/faults.rs"]
mod faults;
#[path = "cuda/feed.rs"]
mod feed;
#[path = "cuda/few_blocks.rs"]
mod few_blocks;
#[path = "cuda/fork.rs"]
mod fork;
#[path = "cuda/hostile.rs"]
mod hostile;
#[path = "cuda/kept.rs"]
mod kept;
#[path = "cuda/kernels.rs"]
mod kernels;
#[path = "cuda/levels.rs"]
mod levels;
#[path = "cuda/marks.rs"]
mod marks;
#[path = "cuda/memory.rs"]
mod memory;
#[path = "cuda/modules.rs"]
mod modules;
#[path = "cuda/nesting.rs"]
mod nesting;
#[path = "cuda/others.rs"]
mod others;
#[path = "cuda/pages.rs"]
mod pages;
#[path = "cuda/probe.rs"]
mod probe;
#[path = "cuda/reads.rs"]
mod reads;
#[path = "cuda/select.rs"]
mod select;
#[path = "cuda/select_counts.rs"]
mod select_counts;
#[path = "cuda/staged.rs"]
mod staged;
#[path = "cuda/support.rs"]
mod support;
#[path = "cuda/weights.rs"]
mod weights;
#[path = "cuda/words.rs"]
mod words;
