//! `tf.train.Example` and `tf.train.SequenceExample` as Arrow columns, and back.

mod column;
mod decoder;
mod encoder;
#[cfg(feature = "cuda")]
mod gpu;
mod infer;
mod keys;
mod pool;
mod pull;
mod scan;
mod schema;
mod views;

pub use decoder::ExampleDecoder;
pub use encoder::ExampleEncoder;
#[cfg(feature = "cuda")]
pub use gpu::{
    Boundaries, DeviceBatchStream, DeviceBatches, DeviceExamples, DeviceReport, DeviceScan,
    FeatureTensor, Share,
};
pub use scan::{ExampleBatches, ExampleScan, ExampleStream, examples};
pub use schema::{DefaultValues, ExampleSchema, Feature, ValueType};
