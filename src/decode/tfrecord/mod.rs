//! TFRecord files: their records, and the columns of the `tf.train.Example`s in them.
