//! The metadata cache: age, bound, one load at a time, invalidation, many paths, parsed values, passes,
//! warm-up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "metadata_cache/age.rs"]
mod age;
#[path = "metadata_cache/bound.rs"]
mod bound;
#[path = "metadata_cache/flights.rs"]
mod flights;
#[path = "metadata_cache/local.rs"]
mod local;
#[path = "metadata_cache/many.rs"]
mod many;
#[path = "metadata_cache/parsed.rs"]
mod parsed;
#[path = "metadata_cache/prefetch.rs"]
mod prefetch;
#[path = "metadata_cache/relative.rs"]
mod relative;
#[path = "metadata_cache/support.rs"]
mod support;
#[path = "metadata_cache/warmup.rs"]
mod warmup;
