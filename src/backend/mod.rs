//! The engines, each on its own; which one serves what is decided above, in `open`.

pub(crate) mod file;
pub(crate) mod memory;
#[cfg(feature = "mmap")]
pub(crate) mod mmap;
#[cfg(not(feature = "mmap"))]
#[path = "no_mmap.rs"]
pub(crate) mod mmap;
pub(crate) mod pread;
pub(crate) mod workers;
