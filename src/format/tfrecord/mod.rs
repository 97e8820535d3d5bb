//! TFRecord framing and the wire format of `tf.train.Example`.

pub(crate) mod example;
