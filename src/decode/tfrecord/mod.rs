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
#![cfg_attr(
    feature = "cuda",
    doc = r#"
# On a GPU
[`ExampleScan::on_device`] gives the same rows and columns as Arrow arrays in the memory of an NVIDIA GPU, and features that are to be
dense tensors as tensors: the bytes of records are copied there, or read there, and kernels check and decode them. Whoever decodes, values
and errors are the same, with file, record and offset. [`DeviceBatches::report`] says who did what, and why.

| | on the GPU | by the host, because |
|---|---|---|
| where records begin | in windows of the file, if [`Boundaries::Device`] is asked for; nobody looks for them with an [index](DeviceScan::index) | else, while bytes pass: that costs little; always for compressed files and sets of shards, of which no range can be read by itself or as one, and where corrupt records are left out |
| checksums of lengths and data | both, of every record | where corrupt records are left out, as that has to be known before they are decoded |
| features of `Example` | all value types, shapes, defaults and nulls | |
| examples in a form that no writer makes (unpacked or merged lists, unknown fields, a name twice) | after the host has written them anew | the kernels take one form |
| `SequenceExample`, and schemas with [views](ValueType::BinaryView) | | there are no kernels for them; columns are copied to the device |
| a batch with a record that is corrupt, or not what the schema asks for | | its rows, and its error, are the answer |
| a batch with more bytes in a column than offsets of 32 bits tell | | it becomes several |
| a batch of less than 64 KiB that the host has, unless `Processor::Gpu` is asked for | | launches cost more; this figure was not measured |
| a batch that is too large for the device's memory | half by half, in batches of their own | a single record for which there is no memory beside its columns; these are copied. Without memory for them it is `OutOfMemory` |
| GZIP and ZLIB | what they hold | inflating: there are no kernels for it |

A batch takes the device's memory for its records, up to [`batch_bytes`](ExampleScan::batch_bytes) (32 MiB), and for its columns, about
as much; those that are made [ahead](DeviceScan::ahead) take it for their columns. Two windows of the file
([`window_bytes`](DeviceScan::window_bytes), 32 MiB) are there at a time. While records are looked for in one, it takes a fifteenth more, and
24 bytes for each place that looks like a record (72 where there are such places in records); where there is no memory for that, it is halved,
down to a single record, for which there has to be. A [tensor](DeviceScan::tensor) is made of a required scalar of bytes. Each scan works in a
stream of its own.
"#
)]

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
