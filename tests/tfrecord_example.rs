//! `tf.train.Example` and `SequenceExample` to columns and back, beside the `prost` crate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "tfrecord_example/cells.rs"]
mod cells;
mod common;
#[path = "tfrecord_example/corpus.rs"]
mod corpus;
#[path = "tfrecord_example/encode.rs"]
mod encode;
#[path = "tfrecord_example/messages.rs"]
mod messages;
#[path = "tfrecord_example/oracle.rs"]
mod oracle;
#[path = "tfrecord_example/scan.rs"]
mod scan;
#[path = "tfrecord_example/schema.rs"]
mod schema;
#[path = "tfrecord_example/sequence.rs"]
mod sequence;
#[path = "tfrecord_example/views.rs"]
mod views;
#[path = "tfrecord_example/wire.rs"]
mod wire;
