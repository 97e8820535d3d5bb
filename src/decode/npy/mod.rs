//! Arrays of NumPy's .npy files, and of the .npz archives that hold several.
//!
//! ```
//! use feedwater::npy::{self, Dtype, Order};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("x.npy");
//! let values: Vec<u8> = (0..6i32).flat_map(|x| x.to_ne_bytes()).collect();
//! npy::save(&path, Dtype::of::<i32>(), Order::C, &[3, 2], &values)?;
//!
//! let file = npy::open(feedwater::open(&path)?)?; // reads the header
//! assert_eq!((file.shape(), file.dtype()), (&[3, 2][..], Dtype::of::<i32>()));
//! let array = file.read_all().wait()?;                // or `.await`, on any executor
//! assert_eq!(array.as_slice::<i32>()?, [0, 1, 2, 3, 4, 5]);
//! let rows = file.rows(1..3).wait()?;             // reads only those
//! assert_eq!((rows.shape(), rows.to_vec::<i32>()?), (&[2, 2][..], vec![2, 3, 4, 5]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is read
//! Headers of the versions 1.0, 2.0 and 3.0, by a parser that takes a dict of three entries and nothing else that Python
//! would. Elements: booleans, integers, floats, complex numbers, byte and Unicode strings, and void, in both byte
//! orders ([`Dtype`]), in C and Fortran order ([`Array::strides`]).
//!
//! [`UnsupportedFeature`](crate::ErrorKind::UnsupportedFeature): arrays of Python objects (they are pickled code), structured
//! ones, dates and times, long doubles, headers of over 64 KiB. Of archives: encrypted members, and those that are compressed in
//! another way than by deflate (NumPy writes no others); several volumes.
//!
//! # Memory
//! An array is one piece of memory. Under the promise of [`assume_immutable`](crate::OpenOptions::assume_immutable) it is a view of
//! the file's own pages, and nothing is copied. Elements begin where the file has them, modulo 64: NumPy has them at a
//! multiple of 64 (before 1.14, of 16).
//!
//! Source: [`numpy.lib.format`](https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

mod archive;
mod array;
mod file;
mod save;

pub use super::element::Element;
pub use crate::format::npy::{Dtype, Endian, Kind, Order};
pub use archive::{Archive, open_npz, open_npz_async};
pub use array::Array;
pub use file::{ArrayFile, PendingArray, open, open_async};
pub use save::{save, save_with};
