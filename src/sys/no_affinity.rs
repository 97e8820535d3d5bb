//! On which processors a thread runs: not chosen here.

/// Not offered.
pub(crate) fn prefer_cpus(_: &[u32]) {}
