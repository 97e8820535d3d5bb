//! What the integration tests share. Each uses a part of it.
#![allow(dead_code)]

pub(crate) mod skip;
pub(crate) mod subjects;
