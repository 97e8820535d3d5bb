//! The header: eight bytes of length, and JSON that says where each tensor is.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;

use super::malformed;
use super::unique::check_keys;
use crate::error::Result;
use crate::format::lfs;

/// Bytes of the length in front of the header.
const PREFIX: u64 = 8;

/// Bytes that are read first. A tensor takes 80 to 150 bytes of header, so that the headers of about a thousand tensors
/// (a shard of the largest models has some hundreds) come in one request, while reading too much costs no more than
/// 0.1 ms of any disk, and less than a round trip of any network.
pub(crate) const FIRST_READ: u64 = 128 << 10;

/// Longest header in bytes, as the `safetensors` crate has it.
const HEADER_MOST: u64 = 100_000_000;

/// What a header says of one tensor. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorInfo(Arc<Inner>);

#[derive(PartialEq, Eq)]
struct Inner {
    name: Box<str>,
    dtype: Dtype,
    shape: Box<[usize]>,
    range: Range<u64>,
}

impl TensorInfo {
    /// Its name, unique in the file.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What its elements are. Little endian, some smaller than a byte.
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// Its dimensions, the slowest first (C order); empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Where its bytes are in the file.
    pub fn range(&self) -> Range<u64> {
        self.0.range.clone()
    }

    /// Its bytes, as a length in memory.
    pub(crate) fn byte_len(&self) -> usize {
        // 64 bits only, and the range lies within a checked length.
        (self.0.range.end - self.0.range.start) as usize
    }
}

impl fmt::Debug for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorInfo")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("range", &self.0.range)
            .finish()
    }
}

/// Where the JSON of a file of `len` bytes is, of which `head` are the first.
///
/// # Errors
/// `Malformed`, before anything is allocated, if the length in front of it cannot be.
pub(crate) fn json_range(head: &[u8], len: u64) -> Result<Range<u64>> {
    let Some(prefix) = head.first_chunk::<8>() else {
        let what = format!("it has {len} bytes, and a header begins with {PREFIX}");
        return Err(malformed(None, what).at(0..len));
    };
    if lfs::is_pointer(head) {
        return Err(malformed(None, lfs::POINTER).at(0..len));
    }
    let json = u64::from_le_bytes(*prefix);
    let most = HEADER_MOST.min(len.saturating_sub(PREFIX));
    if json > most {
        let what = if most == HEADER_MOST {
            format!("its header has {json} bytes, more than {HEADER_MOST}, the most that are read")
        } else {
            format!("its header has {json} bytes, and the file {most} after the length")
        };
        return Err(malformed(None, what).at(0..PREFIX));
    }
    Ok(PREFIX..PREFIX + json)
}

/// A parsed header.
#[derive(Debug)]
pub(crate) struct Header {
    /// In the order of the file: each begins where the one before it ends.
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) metadata: BTreeMap<String, String>,
    by_name: HashMap<TensorName, usize>,
}

/// The name of a tensor, as a key.
#[derive(Debug, PartialEq, Eq)]
struct TensorName(TensorInfo);

impl std::hash::Hash for TensorName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
    }
}

impl std::borrow::Borrow<str> for TensorName {
    fn borrow(&self) -> &str {
        self.0.name()
    }
}

impl Header {
    /// Parses `json`, which ends at offset `data` of a file of `len` bytes.
    ///
    /// # Errors
    /// `Malformed` if it is not what the `safetensors` crate takes: tensors one behind the other, without holes, in
    /// lengths that follow from type and shape, up to the end of the file; or if a key comes twice, of which the crate takes the
    /// last.
    pub(crate) fn parse(json: &[u8], data: u64, len: u64) -> Result<Header> {
        let header = || 0..data;
        let wrong = |error| malformed(None, format!("its header: {error}")).at(header());
        check_keys(json).map_err(wrong)?;
        let parsed: Metadata = serde_json::from_slice(json).map_err(wrong)?;
        let end = data.checked_add(parsed.data_len() as u64);
        if end != Some(len) {
            let bytes = parsed.data_len();
            let found = len.saturating_sub(data);
            let what = format!("its tensors have {bytes} bytes, and {found} follow the header");
            return Err(malformed(None, what).at(header()));
        }
        let names = parsed.offset_keys();
        let mut tensors = Vec::with_capacity(names.len());
        let mut by_name = HashMap::with_capacity(names.len());
        for name in names {
            let Some(info) = parsed.info(&name) else {
                return Err(malformed(Some(&name), "its header lost it").at(header()));
            };
            let (start, end) = info.data_offsets;
            let info = TensorInfo(Arc::new(Inner {
                name: name.into(),
                dtype: info.dtype,
                shape: info.shape.clone().into(),
                range: data + start as u64..data + end as u64,
            }));
            by_name.insert(TensorName(info.clone()), tensors.len());
            tensors.push(info);
        }
        let metadata = parsed.metadata().clone().unwrap_or_default();
        Ok(Header {
            tensors,
            metadata: metadata.into_iter().collect(),
            by_name,
        })
    }

    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.by_name.get(name)?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    /// The header of tensors with these names and lengths in bytes.
    pub(in super::super) fn header(tensors: &[(&str, usize)]) -> Header {
        let mut at = 0;
        let entries: Vec<_> = tensors
            .iter()
            .map(|(name, len)| {
                let start = at;
                at += len;
                format!(
                    r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{start},{at}]}}"#
                )
            })
            .collect();
        let json = format!("{{{}}}", entries.join(","));
        let data = 8 + json.len() as u64;
        Header::parse(json.as_bytes(), data, data + at as u64).unwrap()
    }

    fn what(error: Error) -> String {
        match error.kind() {
            ErrorKind::Malformed {
                format: "safetensors",
                what,
                ..
            } => what.to_string(),
            kind => panic!("{kind:?}"),
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_anything_is_allocated() {
        for (prefix, len, says) in [
            (u64::MAX, 1 << 40, "more than 100000000"),
            (u64::MAX - 7, 100, "the file 92 after"),
            (93, 100, "the file 92 after"),
            (100_000_001, 1 << 40, "more than 100000000"),
        ] {
            let error = json_range(&prefix.to_le_bytes(), len).unwrap_err();
            assert_eq!((error.offset(), error.length()), (Some(0), Some(8)));
            let what = what(error);
            assert!(what.contains(says), "{what}");
        }
        assert_eq!(json_range(&92u64.to_le_bytes(), 100).unwrap(), 8..100);
        assert!(what(json_range(&[1; 7], 7).unwrap_err()).contains("has 7 bytes"));
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
        assert!(what(json_range(pointer, 63).unwrap_err()).contains("Git LFS"));
    }

    #[test]
    fn tensors_come_in_the_order_of_the_file_and_by_name() {
        let header = header(&[("z", 3), ("empty", 0), ("a", 5)]);
        let names: Vec<_> = header.tensors.iter().map(TensorInfo::name).collect();
        assert_eq!(names, ["z", "empty", "a"]);
        let z = header.info("z").unwrap().range();
        let a = header.info("a").unwrap();
        assert_eq!(a.range(), z.end..z.end + 5);
        assert_eq!((a.shape(), a.dtype()), (&[5][..], Dtype::U8));
        assert!(header.info("b").is_none());
    }

    #[test]
    fn what_the_crate_refuses_is_refused() {
        let entry = |dtype: &str, shape: &str, start: u64, end: u64| {
            format!(
                r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}}}"#
            )
        };
        for (json, len, says) in [
            (entry("U8", "[2]", 1, 3), 3, "invalid offset for tensor `a`"),
            (entry("U8", "[2]", 2, 0), 2, "invalid offset"),
            (entry("U8", "[2]", 0, 3), 3, "invalid shape"),
            (entry("F4", "[3]", 0, 1), 1, "subbytes"),
            (entry("F3", "[3]", 0, 1), 1, "unknown variant"),
            (entry("U8", "[-1]", 0, 1), 1, "invalid value"),
            (entry("F64", "[4294967296,4294967296]", 0, 8), 8, "overflow"),
            (entry("U8", "[2]", 0, 2), 3, "have 2 bytes, and 3 follow"),
            (entry("U8", "[2]", 0, 2), 1, "have 2 bytes, and 1 follow"),
            ("[]".into(), 0, "its header"),
            ("".into(), 0, "EOF"),
            ("\u{7f}{}".into(), 0, "expected value"),
            (r#"{"__metadata__":{"a":1}}"#.into(), 0, "expected a string"),
            // These the crate takes.
            (
                r#"{"__metadata__":{"a":"1","a":"2"}}"#.into(),
                0,
                "the key \"a\" comes twice",
            ),
            (
                r#"{"__metadata__":{},"__metadata__":{}}"#.into(),
                0,
                "twice",
            ),
            (
                r#"{"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#.into(),
                2,
                "the key \"t\" comes twice",
            ),
        ] {
            let data = 8 + json.len() as u64;
            let error = Header::parse(json.as_bytes(), data, data + len).unwrap_err();
            assert_eq!(error.offset(), Some(0));
            let what = what(error);
            assert!(what.contains(says), "{json}: {what}");
        }
    }

    #[test]
    fn deep_nesting_does_not_exhaust_the_stack() {
        for open in ["[", r#"{"a":"#] {
            let json = open.repeat(1 << 20);
            let data = 8 + json.len() as u64;
            what(Header::parse(json.as_bytes(), data, data).unwrap_err());
        }
    }
}
