//! What several examples need.

mod arrays;
pub(crate) mod tables;
