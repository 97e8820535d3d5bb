//! The crates and calls that are measured beside this crate, each as its documentation would have it used.
//!
//! Runtimes, files and buffers are made before the clock starts; a runtime's tasks read into one buffer each, which they
//! use again.

pub(crate) mod compio;
pub(crate) mod fio;
pub(crate) mod glommio;
pub(crate) mod monoio;
pub(crate) mod store;
pub(crate) mod system;
pub(crate) mod tokio_fs;
pub(crate) mod tokio_uring;
