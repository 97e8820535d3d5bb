//! TFRecord files decoded on a GPU, on the software CUDA device: the same values and the same errors as on the host. With
//! `FEEDWATER_REAL_GPU=1` on the card of the machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "tfrecord_gpu/ahead.rs"]
mod ahead;
#[path = "tfrecord_gpu/beside.rs"]
mod beside;
#[path = "tfrecord_gpu/boundaries.rs"]
mod boundaries;
#[path = "tfrecord_gpu/corpus.rs"]
mod corpus;
#[path = "tfrecord_gpu/counts.rs"]
mod counts;
#[path = "tfrecord_gpu/damage.rs"]
mod damage;
#[path = "tfrecord_gpu/examples.rs"]
mod examples;
#[path = "tfrecord_gpu/failures.rs"]
mod failures;
#[path = "tfrecord_gpu/few_blocks.rs"]
mod few_blocks;
#[path = "tfrecord_gpu/kernels.rs"]
mod kernels;
#[path = "tfrecord_gpu/memory.rs"]
mod memory;
#[allow(dead_code)]
#[path = "tfrecord_example/messages.rs"]
mod messages;
#[path = "tfrecord_gpu/odd.rs"]
mod odd;
#[path = "cuda/programs.rs"]
mod programs;
#[path = "tfrecord_gpu/streams.rs"]
mod streams;
#[allow(dead_code)]
#[path = "cuda/support.rs"]
mod support;
#[path = "tfrecord_gpu/tensors.rs"]
mod tensors;
#[path = "tfrecord_gpu/values.rs"]
mod values;
#[path = "tfrecord_gpu/waits.rs"]
mod waits;
#[allow(dead_code)]
#[path = "tfrecord_example/wire.rs"]
mod wire;
