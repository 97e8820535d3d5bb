//! The header of safetensors files, the index of their shards, and which ranges tensors need.
//!
//! The format: <https://huggingface.co/docs/safetensors/index#format>. What is a valid header is decided by the
//! `safetensors` crate, but that no key may come twice, which the format asks for and the crate does not check.

mod header;
mod index;
mod layout;
mod plan;
mod unique;

use std::borrow::Cow;
use std::sync::Arc;

pub use header::{Dtype, TensorInfo};
pub(crate) use header::{FIRST_READ, Header, json_range};
pub(crate) use index::{INDEX_MOST, ShardIndex};
pub(crate) use layout::{Entry, layout};
pub(crate) use plan::{CONGRUENT, Group, Shape, group, groups};

use crate::error::{Error, ErrorKind};

/// Name of the format in errors.
const FORMAT: &str = "safetensors";

fn malformed(part: Option<&str>, what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Malformed {
        format: FORMAT,
        part: part.map(Arc::from),
        what: what.into(),
    })
}
