//! The header of .npy files, and the directory of .npz files.
//!
//! The formats: NumPy's `numpy.lib.format` (NEP 1), and PKWARE's APPNOTE.TXT (6.3) for the archive.

mod dtype;
mod header;
mod literal;
mod zip;

use std::borrow::Cow;

pub use dtype::{Dtype, Endian, Kind};
pub use header::Order;
pub(crate) use header::{FIRST_READ, Header, header_end, new_header};
pub(crate) use zip::{Member, Method, TAIL, data_range, directory, members};

use crate::error::{Error, ErrorKind};

fn malformed(format: &'static str, what: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Malformed {
        format,
        part: None,
        what: what.into(),
    })
}

fn unsupported(
    format: &'static str,
    part: Option<&str>,
    feature: impl Into<Cow<'static, str>>,
) -> Error {
    Error::new(ErrorKind::UnsupportedFeature {
        format,
        part: part.map(Into::into),
        feature: feature.into(),
    })
}
