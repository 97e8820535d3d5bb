//! TFRecord files: their records, and the columns of the `tf.train.Example`s in them.
//!
//! A TFRecord file is a row of records, each with its length and a masked CRC-32C of length and data; it may be
//! compressed as a whole by GZIP or ZLIB. A large set is spread over shards, `train-00000-of-00010` and so on.
//!
//! | what you want | where to begin |
//! |---|---|
//! | the records of a file | [`records`], [`RecordOptions`] |
//! | many records at a time, none copied or counted by itself | [`RecordOptions::frames`] |
//! | those of many files | [`ShardSet`] |
//! | records by their numbers | [`Index`] |
//! | what to do about damage | [`RecordOptions::on_corrupt`] |
//! | to write a file | [`Writer`] |
//! | the columns of the examples in them | [`examples`], [`ExampleScan`], [`ExampleSchema`] |
//! | rows as `tf.train.Example`s or `SequenceExample`s, to be written as records | [`ExampleEncoder`] |
//! | the columns of the examples in the memory of a GPU | [`ExampleScan::on_device`] (feature `cuda`) |
//! | the columns of examples from elsewhere | [`ExampleDecoder`] |
//!
//! Source of the formats: "TFRecord and tf.train.Example" in TensorFlow's guide, and its `example.proto` and
//! `feature.proto`.

mod example;
mod index;
mod inflate;
mod options;
mod records;
mod shard_set;
mod walk;
mod write;

pub use crate::format::tfrecord::frames::Frames;
#[cfg(feature = "cuda")]
pub use example::{
    Boundaries, DeviceBatchStream, DeviceBatches, DeviceExamples, DeviceReport, DeviceScan,
    FeatureTensor, Share,
};
pub use example::{
    DefaultValues, ExampleBatches, ExampleDecoder, ExampleEncoder, ExampleScan, ExampleSchema,
    ExampleStream, Feature, ValueType, examples,
};
pub use index::{Index, PendingRecord, PendingRecords, Sidecar};
pub use options::{AtMost, Compression, OnCorrupt, RecordOptions, Skipped, SkippedRecord};
pub use records::{FrameBatches, FrameStream, Record, RecordStream, Records, records};
pub use shard_set::ShardSet;
pub use write::{Writer, WriterOptions};
