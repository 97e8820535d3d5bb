//! TFRecord files: their records, and the columns of the `tf.train.Example`s in them.

mod example;

pub use example::{
    DefaultValues, ExampleDecoder, ExampleEncoder, ExampleSchema, Feature, ValueType,
};
