//! The engines, each on its own; which one serves what is decided above, in `open`.

// Some of what engines share is for rings alone.
#[cfg_attr(
    any(
        not(feature = "io-uring"),
        not(target_os = "linux"),
        feedwater_portable
    ),
    allow(dead_code)
)]
pub(crate) mod device;
#[cfg_attr(
    any(
        not(feature = "io-uring"),
        not(target_os = "linux"),
        feedwater_portable
    ),
    allow(dead_code)
)]
pub(crate) mod file;
#[cfg(feature = "gds")]
pub mod gds;
pub(crate) mod memory;
#[cfg(feature = "mmap")]
pub(crate) mod mmap;
#[cfg(not(feature = "mmap"))]
#[path = "no_mmap.rs"]
pub(crate) mod mmap;
pub(crate) mod pread;
#[cfg_attr(
    any(
        not(feature = "io-uring"),
        not(target_os = "linux"),
        feedwater_portable
    ),
    allow(dead_code)
)]
pub(crate) mod requests;
#[cfg(all(feature = "io-uring", target_os = "linux", not(feedwater_portable)))]
pub(crate) mod uring;
#[cfg(not(all(feature = "io-uring", target_os = "linux", not(feedwater_portable))))]
#[path = "no_uring.rs"]
pub(crate) mod uring;
#[cfg_attr(
    any(
        not(feature = "io-uring"),
        not(target_os = "linux"),
        feedwater_portable
    ),
    allow(dead_code)
)]
pub(crate) mod whole;
pub(crate) mod workers;
