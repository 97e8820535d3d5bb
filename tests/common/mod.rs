//! What the integration tests share. Each uses a part of it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod alone;
pub(crate) mod answered;
#[cfg(target_os = "linux")]
pub(crate) mod confined;
pub(crate) mod corpus;
pub(crate) mod example;
#[cfg(target_os = "linux")]
pub(crate) mod file_systems;
#[cfg(target_os = "linux")]
pub(crate) mod hanging;
pub(crate) mod quarantine;
pub(crate) mod skip;
pub(crate) mod subjects;

/// The environment variable that names the confinement a test process runs under.
pub(crate) const CONFINED: &str = "FEEDWATER_CONFINED";

/// A file in the lower layer, on a file system of two.
pub(crate) const LOWER_FILE: &str = "of-the-lower-layer";

/// The confinement that this process runs under, by `confined` or `file_systems`; `None` in an ordinary run.
pub(crate) fn confinement() -> Option<String> {
    std::env::var(CONFINED).ok()
}
