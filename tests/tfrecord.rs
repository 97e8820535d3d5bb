//! TFRecord files through readers: every way to go through them, damage, sets, the index, and the writer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "tfrecord/corpus.rs"]
mod corpus;
#[path = "tfrecord/damage.rs"]
mod damage;
#[path = "tfrecord/index.rs"]
mod index;
#[path = "tfrecord/sets.rs"]
mod sets;
#[path = "tfrecord/support.rs"]
mod support;
#[path = "tfrecord/ways.rs"]
mod ways;
#[path = "tfrecord/writing.rs"]
mod writing;
