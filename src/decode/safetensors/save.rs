//! Writing safetensors files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::error::Result;
use crate::format::safetensors::{Dtype, Entry, layout};
use crate::version::FileVersion;
use crate::write::SinkOptions;

/// A tensor to be [saved](save): name, type, shape, and whatever holds its bytes.
#[derive(Clone)]
pub struct NewTensor<B> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: B,
}

impl<B: AsRef<[u8]>> NewTensor<B> {
    /// A tensor of elements one behind the other, little endian, the last dimension fastest (C order).
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        bytes: B,
    ) -> Self {
        NewTensor {
            name: name.into(),
            dtype,
            shape: shape.into(),
            bytes,
        }
    }
}

impl<B: AsRef<[u8]>> fmt::Debug for NewTensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewTensor")
            .field("name", &self.name)
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("bytes", &self.bytes.as_ref().len())
            .finish()
    }
}

/// Writes a safetensors file that appears whole or not at all, through a [`FileSink`](crate::FileSink), and says which version it is.
///
/// The file is what the `safetensors` crate's `serialize` gives, byte for byte, up to the order of more than one entry of
/// `metadata`, which is sorted here: tensors by falling alignment of their types and then by name, behind a header that is
/// padded to eight bytes, so that each is aligned for its type. Without `metadata` there is no `__metadata__`. Large tensors
/// go to the system without a copy.
///
/// ```
/// use feedwater::safetensors::{self, Dtype, NewTensor};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("one.safetensors");
/// let one = NewTensor::new("one", Dtype::F64, [], 1f64.to_le_bytes());
/// let metadata = [("format".to_string(), "pt".to_string())].into();
/// let version = safetensors::save(&path, &[one], &metadata)?;
/// assert_eq!(version.size, std::fs::metadata(&path)?.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`InvalidOption`](crate::ErrorKind::InvalidOption) if a tensor's length is not what type and shape say, a name is there
/// twice or is `__metadata__`, or the header would have more than 100 MB; and those of the sink. What was there before is then
/// untouched.
pub fn save<B: AsRef<[u8]>>(
    path: impl AsRef<Path>,
    tensors: &[NewTensor<B>],
    metadata: &BTreeMap<String, String>,
) -> Result<FileVersion> {
    save_with(&SinkOptions::new(), path, tensors, metadata)
}

/// [`save`] with options of the sink: whether it waits for the device, goes past the page cache, may replace a file.
///
/// # Errors
/// As [`save`].
pub fn save_with<B: AsRef<[u8]>>(
    options: &SinkOptions,
    path: impl AsRef<Path>,
    tensors: &[NewTensor<B>],
    metadata: &BTreeMap<String, String>,
) -> Result<FileVersion> {
    // Asked once: a caller's type may give another answer the next time.
    let bytes: Vec<&[u8]> = tensors.iter().map(|tensor| tensor.bytes.as_ref()).collect();
    let entries: Vec<_> = tensors
        .iter()
        .zip(&bytes)
        .map(|(tensor, bytes)| Entry {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            len: bytes.len(),
        })
        .collect();
    let path = path.as_ref();
    let (head, order) =
        layout(&entries, metadata).map_err(|error| error.named(&path.to_string_lossy().into()))?;
    let len = head.len() as u64 + bytes.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
    let mut sink = options.clone().size_hint(len).create(path)?;
    sink.append(&head)?;
    for bytes in order.iter().filter_map(|&at| bytes.get(at)) {
        sink.append(bytes)?;
    }
    sink.commit()
}
