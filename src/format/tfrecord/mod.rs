//! TFRecord framing and the wire format of `tf.train.Example`.

pub(crate) mod example;
pub(crate) mod frame;
pub(crate) mod frames;
pub(crate) mod index;
pub(crate) mod parser;
mod resync;
pub(crate) mod shards;
#[cfg(test)]
mod tests;
