//! What the integration tests share. Each uses a part of it.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod alone;
#[cfg(target_os = "linux")]
pub(crate) mod hanging;
pub(crate) mod quarantine;
pub(crate) mod skip;
pub(crate) mod subjects;
