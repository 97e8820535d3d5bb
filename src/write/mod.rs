//! Writing files safely: the whole new content appears at once, or the old file stays.

mod calls;
mod copy;
#[cfg(all(target_os = "linux", not(feedwater_portable)))]
#[path = "linux.rs"]
mod os;
#[cfg(not(all(target_os = "linux", not(feedwater_portable))))]
#[path = "portable.rs"]
mod os;
mod output;
mod sink;
mod target;
#[cfg(test)]
mod tests;

pub use copy::{CopyOptions, CopyReport, CopyRoute, copy};
pub use sink::{FileSink, SinkOptions, SyncMode};

/// Name of this module in errors.
const ENGINE: &str = "sink";
