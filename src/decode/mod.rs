//! Columns, records and tensors from the bytes that a reader brings.

#[cfg(any(feature = "npy", feature = "safetensors"))]
mod element;
mod recognise;
#[cfg(any(feature = "parquet", feature = "tfrecord"))]
mod threads;

#[cfg(feature = "npy")]
pub mod npy;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "safetensors")]
pub mod safetensors;
#[cfg(feature = "tfrecord")]
pub mod tfrecord;
