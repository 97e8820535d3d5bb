//! Columns, records and tensors from the bytes that a reader brings.

mod recognise;

#[cfg(feature = "npy")]
pub mod npy;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "safetensors")]
pub mod safetensors;
#[cfg(feature = "tfrecord")]
pub mod tfrecord;
