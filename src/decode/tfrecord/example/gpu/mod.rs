//! Examples decoded where they will be used: in the memory of a GPU.
//!
//! | | on the GPU | by the host |
//! |---|---|---|
//! | where records begin | a scan of windows of the file ([`Boundaries::Device`]), an index | while bytes pass; always for compressed files, sets of shards, and where corrupt records are left out |
//! | checksums of lengths and data | both, of every record | where corrupt records are left out |
//! | features of `Example` | all value types, shapes, defaults and nulls | |
//! | examples in a form that no writer makes (unpacked or merged lists, unknown fields, a name twice) | after the host has written them anew | |
//! | `SequenceExample`, and schemas with [views](crate::tfrecord::ValueType::BinaryView) | | all of it; columns are copied to the device |
//! | a batch with a record that is corrupt, or not what the schema asks for | | all of it: its rows, and its error, are the answer |
//! | GZIP and ZLIB | what they hold | inflating |

mod ahead;
mod decode;
mod feed;
mod origin;
mod output;
mod plan;
mod report;
mod rewrite;
mod scan;
mod stream;
mod window;

pub use output::{DeviceExamples, FeatureTensor};
pub use report::{DeviceReport, Share};
pub use scan::{Boundaries, DeviceBatches, DeviceScan};
pub use stream::DeviceBatchStream;
