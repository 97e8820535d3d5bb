//! Tensors of safetensors files: all of them, some, or one after the other while the next ones are read.
//!
//! ```
//! use std::sync::Arc;
//! use feedwater::safetensors::{self, Dtype, NewTensor};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.safetensors");
//! let weights: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let bias = 7i64.to_le_bytes();
//! let tensors = [
//!     NewTensor::new("layer.weight", Dtype::F32, [2, 2], &weights[..]),
//!     NewTensor::new("layer.bias", Dtype::I64, [], &bias[..]),
//! ];
//! safetensors::save(&path, &tensors, &Default::default())?;
//!
//! let file = safetensors::open(feedwater::open(&path)?)?; // reads the header
//! let tensors = file.load().wait()?;                      // or `.await`, on any executor
//! let weight = tensors.tensor("layer.weight")?;
//! assert_eq!((weight.shape(), weight.as_slice::<f32>()?[3]), (&[2, 2][..], 4.0));
//!
//! for tensor in file.load().matching(|name| name.ends_with("bias")).in_order() {
//!     println!("{:?}", tensor?); // while the next ones are read
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is read
//! [`open`] reads the header: one request of 128 KiB, and a second one only for a header that is longer. [`TensorFile::load`]
//! asks for what is needed and nothing else: neighbours, up to the gap that suits the source
//! ([`Limits::gap`](crate::Limits::gap)), in one large range, which the engine cuts into as many requests as keep its threads
//! or its device busy. A whole file is one range, read as [`read_all`](crate::ReaderExt::read_all) reads.
//!
//! # Memory
//! The bytes of each range are one piece of memory (page-aligned, of huge pages where it is large), and tensors are views
//! of it without a copy: it is released when the last of its tensors is. Under the promise of
//! [`assume_immutable`](crate::OpenOptions::assume_immutable) they are views of the file's own pages, and nothing is
//! copied. A view begins where the file has it: its address is congruent to its offset modulo 64, so that tensors of
//! files by the usual writers are aligned for their type. [`Load::align`] gives more.
//!
//! # Valid files
//! Those that the `safetensors` crate (0.8) takes: a header of at most 100 MB, tensors one behind the other without
//! holes, in lengths that follow from type and shape, to the end of the file; but for headers in which a key comes twice, of
//! which the crate takes the last. Everything else is [`Malformed`](crate::ErrorKind::Malformed). While it is parsed, a header can
//! need some thirty times its length in memory.
//!
//! # Types
//! [`Dtype`] is the type of the `safetensors` crate itself and part of this crate's interface: what one of them reads, the other
//! takes without a conversion, and there is one list of types to keep. So a breaking release of that crate is one of this.
//!
//! Source: the [format](https://huggingface.co/docs/safetensors/index#format).

mod file;
mod in_order;
mod load;
mod save;
mod sharded;
mod tensor;

pub use super::element::Element;
pub use crate::format::safetensors::{Dtype, TensorInfo};
pub use file::{TensorFile, open, open_async};
pub use in_order::{InOrder, InOrderStream};
pub use load::{Load, PendingTensors};
pub use save::{NewTensor, save, save_with};
pub use sharded::{ShardedTensors, open_sharded, open_sharded_async};
pub use tensor::{Tensor, Tensors};
