//! Flat columns, decoded here.
//!
//! Where a column is a number, a flag, a string, bytes, or a list of numbers, its pages are PLAIN or have indices into a
//! dictionary, and all rows of the row group are wanted, there is little to do beyond copying: the general machinery of
//! the `parquet` crate costs several times that. (Of DELTA encodings and BYTE_STREAM_SPLIT it is fast: code of ours in this
//! place took 12 % longer.) What is not as it should be is not judged here: [`Column::next`] gives up, and the crate
//! decodes the column from where it is, or says what is wrong. So whatever is accepted here must be accepted there, with
//! the same values.

mod column;
mod list;
mod runs;
mod text;

pub(super) use column::{Column, Target};
