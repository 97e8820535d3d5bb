//! The head of a file to be written, and the order of its tensors.

use std::collections::{BTreeMap, HashSet};

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};

use crate::error::{Error, ErrorKind, Result};

/// The key of the metadata, which no tensor can have.
const METADATA: &str = "__metadata__";

/// Heads are padded to a multiple of this, so that the data begin aligned.
const ALIGN: usize = 8;

/// Longest header, as readers have it.
const HEADER_MOST: usize = 100_000_000;

/// A tensor to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    /// Its bytes.
    pub(crate) len: usize,
}

/// The bytes in front of the data, and in which order the entries follow: by falling alignment of their types, so that
/// each is aligned, and by name, as the `safetensors` crate has it.
///
/// # Errors
/// `InvalidOption` if a name is there twice or is that of the metadata, or if a tensor has another length than type and
/// shape say.
pub(crate) fn layout(
    entries: &[Entry<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut names = HashSet::with_capacity(entries.len());
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| match (entries.get(a), entries.get(b)) {
        (Some(a), Some(b)) => b.dtype.cmp(&a.dtype).then(a.name.cmp(b.name)),
        _ => a.cmp(&b),
    });
    let mut header = String::from("{");
    if !metadata.is_empty() {
        let text = json(serde_json::to_string(metadata))?;
        header.push_str(&format!("\"{METADATA}\":{text}"));
    }
    let mut start: usize = 0;
    for entry in order.iter().filter_map(|&at| entries.get(at)) {
        let Entry {
            name,
            dtype,
            shape,
            len,
        } = *entry;
        if !names.insert(name) || name == METADATA {
            return Err(invalid(format!(
                "two tensors, or one and the metadata, are called {name:?}"
            )));
        }
        let Some(end) = start.checked_add(len) else {
            return Err(invalid("the tensors are too large together".into()));
        };
        let info = TensorInfo {
            dtype,
            shape: shape.to_vec(),
            data_offsets: (0, len),
        };
        let described = TensorInfo {
            data_offsets: (start, end),
            ..info.clone()
        };
        let described = json(serde_json::to_string(&described))?;
        // Whatever a reader would refuse is refused here.
        Metadata::new(None, vec![(name.into(), info)]).map_err(|error| {
            invalid(format!(
                "{name:?} of {dtype} {shape:?} with {len} bytes: {error}"
            ))
        })?;
        if header.len() > 1 {
            header.push(',');
        }
        header.push_str(&format!(
            "{}:{described}",
            json(serde_json::to_string(name))?
        ));
        start = end;
    }
    header.push('}');
    let padded = header.len().next_multiple_of(ALIGN);
    if padded > HEADER_MOST {
        return Err(invalid(format!(
            "the header would have {padded} bytes, more than {HEADER_MOST}"
        )));
    }
    let mut head = Vec::with_capacity(8 + padded);
    head.extend_from_slice(&(padded as u64).to_le_bytes());
    head.extend_from_slice(header.as_bytes());
    head.resize(8 + padded, b' ');
    Ok((head, order))
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidOption { what: what.into() })
}

fn json(text: serde_json::Result<String>) -> Result<String> {
    text.map_err(|error| invalid(format!("the header: {error}")))
}
