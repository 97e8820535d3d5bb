//! Formats: bytes in, wanted ranges out. Nothing here reads.

#[cfg(feature = "npy")]
pub(crate) mod npy;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(feature = "safetensors")]
pub(crate) mod safetensors;
#[cfg(feature = "tfrecord")]
pub(crate) mod tfrecord;
