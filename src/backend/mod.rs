//! The engines, each on its own; which one serves what is decided above, in `open`.

pub(crate) mod memory;
