//! Parquet files decoded in the memory of a GPU, on the software CUDA device; with `FEEDWATER_REAL_GPU=1` on the card of the machine,
//! where tests of injected errors pass without doing anything. What is held everywhere: if the GPU decodes a file, then so does the
//! host, and the arrays are equal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "parquet_gpu/codecs.rs"]
mod codecs;
#[path = "parquet_gpu/corpus.rs"]
mod corpus;
#[path = "cuda/support.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "parquet_gpu/delta.rs"]
mod delta;
#[path = "parquet_gpu/examples.rs"]
mod examples;
#[path = "parquet_gpu/faults.rs"]
mod faults;
#[path = "parquet_gpu/generated.rs"]
mod generated;
#[path = "parquet_gpu/lanes.rs"]
mod lanes;
#[path = "parquet_gpu/marks.rs"]
mod marks;
#[path = "parquet_gpu/mutations.rs"]
mod mutations;
#[path = "parquet_gpu/nested.rs"]
mod nested;
#[path = "parquet_gpu/nested_texts.rs"]
mod nested_texts;
#[path = "parquet_gpu/nesting.rs"]
mod nesting;
#[path = "parquet_gpu/page_lists.rs"]
mod page_lists;
#[path = "parquet_gpu/panics.rs"]
mod panics;
#[path = "cuda/programs.rs"]
mod programs;
#[path = "parquet_gpu/refused.rs"]
mod refused;
#[path = "parquet_gpu/room.rs"]
mod room;
#[path = "parquet_gpu/same_files.rs"]
mod same_files;
#[path = "parquet_gpu/scans.rs"]
mod scans;
#[path = "parquet_gpu/selected.rs"]
mod selected;
#[path = "parquet_gpu/staged.rs"]
mod staged;
#[path = "parquet_gpu/streams.rs"]
mod streams;
#[path = "parquet_gpu/strings.rs"]
mod strings;
#[path = "parquet_gpu/support.rs"]
mod support;
#[path = "parquet_corpus/table.rs"]
#[allow(dead_code)]
mod table;
#[path = "parquet_gpu/tables.rs"]
mod tables;
#[path = "parquet_gpu/waits.rs"]
mod waits;
