//! Formats: bytes in, wanted ranges out. Nothing here reads.

#[cfg(feature = "tfrecord")]
mod compressed;
#[cfg(not(feature = "tfrecord"))]
#[path = "no_compressed.rs"]
mod compressed;
pub(crate) mod detect;
#[cfg(any(
    feature = "npy",
    feature = "parquet",
    feature = "safetensors",
    feature = "tfrecord"
))]
pub(crate) mod lfs;
#[cfg(feature = "npy")]
pub(crate) mod npy;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
#[cfg(feature = "safetensors")]
pub(crate) mod safetensors;
#[cfg(feature = "tfrecord")]
pub(crate) mod tfrecord;
