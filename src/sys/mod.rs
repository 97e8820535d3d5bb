//! The operating system's side, one thin function a call; nothing here knows what a reader is.
//!
//! `linux` has the real thing. `portable` has the same functions by what std offers on every Unix, and says
//! "not offered" for the rest; `--cfg feedwater_portable` selects it on Linux too, so that it is tested.

#[cfg(all(feature = "gds", target_os = "linux", not(feedwater_portable)))]
mod affinity;
#[cfg(all(
    feature = "gds",
    not(all(target_os = "linux", not(feedwater_portable)))
))]
#[path = "no_affinity.rs"]
mod affinity;
mod facts;
mod fork;
#[cfg(all(target_os = "linux", not(feedwater_portable)))]
mod linux;
mod map;
#[cfg(not(all(target_os = "linux", not(feedwater_portable))))]
mod portable;
mod process;
#[cfg(all(feature = "io-uring", target_os = "linux", not(feedwater_portable)))]
mod rings;

#[cfg(feature = "gds")]
pub(crate) use affinity::prefer_cpus;
pub(crate) use facts::{BlockDevice, CachedOpen, is_out_of_descriptors, is_passing};
pub(crate) use fork::Generation;
#[cfg(all(target_os = "linux", not(feedwater_portable)))]
pub(crate) use linux::*;
#[cfg_attr(not(feature = "tfrecord"), allow(unused_imports))]
pub(crate) use map::prefer_huge_pages;
pub(crate) use map::{Region, page_size};
#[cfg(not(all(target_os = "linux", not(feedwater_portable))))]
pub(crate) use portable::*;
pub(crate) use process::PerProcess;
#[cfg(all(feature = "io-uring", target_os = "linux", not(feedwater_portable)))]
pub(crate) use rings::*;
