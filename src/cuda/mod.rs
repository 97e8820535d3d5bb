//! NVIDIA GPUs: whether there is one that can be used, its memory as a destination of reads, and what others need to use that memory.
//!
//! Needs the cargo feature `cuda`, and nothing else to be built: the driver's library (`libcuda.so.1`) is opened when the program runs, and
//! where it is not, [`available`] says so. The driver has to be for CUDA 12.0 or newer, the device of compute capability 7.5 (Turing) or
//! newer. [`Device`] has an example.
//!
//! # What runs on what
//! A read goes into a block of pinned host memory (the ring), from there by the device's copy engine, and is delivered when it has
//! arrived. Reading and copying overlap; a few blocks are under way at a time ([`StagingOptions`](crate::StagingOptions)). With the feature
//! `gds`, files go from the drive to the device where cuFile does that. [`Opened::report`](crate::Opened::report) says which way bytes took.
//!
//! Kernels ([`Device::checksums`], [`Device::dense`]) wait for their result: the calling thread is blocked as long. They share one stream of the
//! device with the decoding of TFRecords, and queue behind each other; a scan of Parquet has two streams of its own.
//!
//! # Other users of CUDA
//! Everything is in the primary context, as with the CUDA runtime and with cudarc: addresses and streams of the one hold for the
//! other. [`DeviceBytes::ptr`](crate::DeviceBytes::ptr) is a `CUdeviceptr`, [`Stream::raw`] a `CUstream`; [`Device::borrow_stream`] and
//! [`lend`] take theirs. `DLPack` ([`DlTensor`]) and Arrow's C device interface ([`ArrowDevice`]) hand memory out with its owner.
//!
//! Memory that is dropped is used again. Kernels and copies that *you* queue on it are nothing that this crate can see: tell of them by
//! [`Device::used_in`], or wait for them, before you drop the last [`DeviceBytes`](crate::DeviceBytes) or what was made of them. What was handed
//! out with its owner waits for the device when it is let go: [`DlTensor::into_raw`].
#![deny(unsafe_op_in_unsafe_fn)]

mod arena;
mod checksum;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod columns;
#[cfg(not(feature = "testing"))]
pub(crate) mod columns;
mod context;
#[cfg(any(feature = "parquet", feature = "tfrecord"))]
mod copies;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod decompress;
#[cfg(not(feature = "testing"))]
pub(crate) mod decompress;
mod dense;
mod device;
#[cfg_attr(not(feature = "tfrecord"), allow(dead_code))]
pub(crate) mod example;
mod export;
#[cfg(feature = "parquet")]
mod filling;
#[cfg_attr(not(feature = "tfrecord"), allow(dead_code))]
pub(crate) mod frames;
mod launch;
mod library;
mod managed;
mod memory;
mod modules;
mod pinned;
mod pool;
mod probe;
#[cfg_attr(not(feature = "tfrecord"), allow(dead_code))]
mod scan;
mod spans;
mod staging;
mod stream;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod topology;
mod underway;

pub use checksum::Checksum;
pub use dense::{Dense, ElementType};
pub use device::{Device, DeviceOptions, DeviceStats};
pub use export::{ArrowArray, ArrowDevice, ArrowDeviceArray, DlTensor, DlType, lend};
#[cfg(feature = "parquet")]
pub(crate) use filling::{Filling, To};
#[cfg(feature = "parquet")]
pub(crate) use launch::Work;
pub use managed::{Advice, Side};
pub use memory::{DeviceBuffer, GAP, Guard};
pub use modules::{FAMILIES, Family, Module};
pub use probe::{Available, DeviceInfo, NoCuda, available};
pub use stream::{Event, Stream};
pub use topology::{Distance, Drive, Gpu, Location, PciAddress, Topology, topology};
