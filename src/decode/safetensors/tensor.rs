//! Tensors that were read.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::file::not_found;
use crate::decode::element::{Element, Number, cast};
use crate::error::{Error, ErrorKind, Result};
use crate::format::safetensors::{Dtype, TensorInfo};

/// A tensor: what it is, and its bytes. Cheap to clone; the memory is shared with the tensors that were read with it.
#[derive(Clone)]
pub struct Tensor {
    info: TensorInfo,
    bytes: Bytes,
}

impl Tensor {
    pub(super) fn new(info: TensorInfo, bytes: Bytes) -> Self {
        Tensor { info, bytes }
    }

    /// What the header says of it.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// What its elements are.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype()
    }

    /// Its dimensions, the slowest first (C order); empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.info.shape()
    }

    /// Its bytes: elements one behind the other, little endian.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Its elements. No copy.
    ///
    /// For the types that Rust has: `F32`, `F64` and the integers from `U8` to `U64` and `I8` to `I64`. The bits of `F16`,
    /// `BF16`, the smaller floats, `BOOL` and `C64` are in [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the elements are of another type than `T`, or the memory is not aligned
    /// for it, since the file has the tensor at an odd offset: [`Load::align`](super::Load::align) helps. On a machine that is not
    /// little endian, for everything but single bytes.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let refused = |what: String| {
            let what = format!("tensor {:?} {what}", self.name()).into();
            Error::new(ErrorKind::Unsupported { what })
        };
        if !holds(self.dtype(), T::NUMBER) {
            return Err(refused(format!(
                "of {} as {}; values are not converted",
                self.dtype(),
                T::NAME
            )));
        }
        if cfg!(target_endian = "big") && size_of::<T>() > 1 {
            return Err(refused("without swapping bytes, on this machine".into()));
        }
        let unaligned = || {
            refused(format!(
                "at an address that is not aligned for {}; `Load::align` aligns it",
                T::NAME
            ))
        };
        cast(&self.bytes).ok_or_else(unaligned)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("name", &self.name())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// What elements of a type are as numbers of Rust.
fn holds(dtype: Dtype, number: Number) -> bool {
    let of = match dtype {
        Dtype::U8 => Number::U8,
        Dtype::I8 => Number::I8,
        Dtype::U16 => Number::U16,
        Dtype::I16 => Number::I16,
        Dtype::U32 => Number::U32,
        Dtype::I32 => Number::I32,
        Dtype::U64 => Number::U64,
        Dtype::I64 => Number::I64,
        Dtype::F32 => Number::F32,
        Dtype::F64 => Number::F64,
        _ => return false,
    };
    of == number
}

/// Tensors that were read together, in the order of their files.
#[derive(Clone)]
pub struct Tensors<T = Tensor> {
    tensors: Vec<T>,
    by_name: HashMap<String, usize>,
    /// Of the file, or of the index of the files.
    source: Option<Arc<str>>,
}

impl<T> Tensors<T> {
    pub(super) fn new(
        tensors: Vec<T>,
        name: impl Fn(&T) -> &str,
        source: Option<Arc<str>>,
    ) -> Self {
        let names = tensors.iter().map(|tensor| name(tensor).to_owned());
        Tensors {
            by_name: names.zip(0..).collect(),
            tensors,
            source,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The tensor of this name, if it was read.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.tensors.get(*self.by_name.get(name)?)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) if none of this name was read.
    pub fn tensor(&self, name: &str) -> Result<&T> {
        self.get(name).ok_or_else(|| self.not_found(name))
    }

    #[cold]
    fn not_found(&self, name: &str) -> Error {
        let mut names: Vec<(&String, &usize)> = self.by_name.iter().collect();
        names.sort_by_key(|(_, at)| **at);
        let error = not_found(name, names.iter().map(|(name, _)| name.as_str()));
        match &self.source {
            Some(source) => error.named(source),
            None => error,
        }
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.tensors.iter()
    }
}

impl<T> Default for Tensors<T> {
    fn default() -> Self {
        Tensors {
            tensors: Vec::new(),
            by_name: HashMap::new(),
            source: None,
        }
    }
}

impl<T> IntoIterator for Tensors<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Tensors<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for Tensors<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.tensors).finish()
    }
}
