//! Writing .npy files.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::format::npy::{Dtype, Order, new_header};
use crate::version::FileVersion;
use crate::write::SinkOptions;

/// Writes a .npy file of version 1.0 that appears whole or not at all, through a [`FileSink`](crate::FileSink), and says which version of
/// the file it is. The header is the one that NumPy 2 writes.
///
/// ```
/// use feedwater::npy::{self, Dtype, Order};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("x.npy");
/// npy::save(&path, Dtype::of::<u8>(), Order::C, &[2, 3], b"abcdef")?;
/// assert!(std::fs::read(&path)?.ends_with(b"\nabcdef"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`InvalidOption`](ErrorKind::InvalidOption) if `bytes` has another length than type and shape say, or there are more than 64
/// dimensions; and those of the sink.
pub fn save(
    path: impl AsRef<Path>,
    dtype: Dtype,
    order: Order,
    shape: &[usize],
    bytes: &[u8],
) -> Result<FileVersion> {
    save_with(&SinkOptions::new(), path, dtype, order, shape, bytes)
}

/// [`save`] with options of the sink: whether it waits for the device, goes past the page cache, may replace a file.
///
/// # Errors
/// As [`save`].
pub fn save_with(
    options: &SinkOptions,
    path: impl AsRef<Path>,
    dtype: Dtype,
    order: Order,
    shape: &[usize],
    bytes: &[u8],
) -> Result<FileVersion> {
    let path = path.as_ref();
    let found = bytes.len() as u64;
    let head = match new_header(dtype, order, shape) {
        Some((head, wanted)) if wanted == found => head,
        _ => {
            let what = format!("{found} bytes for an array of {dtype} of shape {shape:?}");
            let error = Error::new(ErrorKind::InvalidOption { what: what.into() });
            return Err(error.named(&path.to_string_lossy().into()));
        }
    };
    let mut sink = options
        .clone()
        .size_hint(head.len() as u64 + found)
        .create(path)?;
    sink.append(&head)?;
    sink.append(bytes)?;
    sink.commit()
}
