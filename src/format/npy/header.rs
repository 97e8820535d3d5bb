//! The header: a magic string, a version, and a dict of three entries.

use super::literal::{Literal, dict};
use super::{Dtype, malformed, unsupported};
use crate::error::{Error, Result};
use crate::format::lfs;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Bytes that are read first: most headers have 128, and a small array is there with it.
pub(crate) const FIRST_READ: u64 = 16 << 10;

/// Longest header. Only arrays of hundreds of named fields, which are not read anyway, have longer ones.
const HEADER_MOST: u64 = 65_535;

/// Most dimensions, as NumPy 2 has it.
const DIMENSIONS_MOST: usize = 64;

/// Which dimension is the one whose neighbours are neighbours in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last one, as in C.
    #[default]
    C,
    /// The first one, as in Fortran.
    Fortran,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) dtype: Dtype,
    pub(crate) order: Order,
    pub(crate) shape: Vec<usize>,
    /// Bytes of all elements.
    pub(crate) bytes: u64,
}

fn wrong(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    malformed("npy", what)
}

/// Where the header ends and the elements begin, in a file of `len` bytes of which `head` are the first.
///
/// # Errors
/// `Malformed` if it is no .npy file or ends within its header, `UnsupportedFeature` for another version or a long header.
pub(crate) fn header_end(head: &[u8], len: u64) -> Result<u64> {
    let not = || {
        wrong(match head.starts_with(b"PK") {
            true => "it begins as a zip archive: `npy::open_npz` is for .npz files",
            false => "it does not begin as one (b\"\\x93NUMPY\" and a version)",
        })
        .at(0..head.len().min(10) as u64)
    };
    if lfs::is_pointer(head) {
        return Err(wrong(lfs::POINTER).at(0..len));
    }
    let rest = head.strip_prefix(MAGIC).ok_or_else(not)?;
    let (header, from) = match rest {
        [1, 0, a, b, ..] => (u64::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, 0, a, b, c, d, ..] => (u64::from(u32::from_le_bytes([*a, *b, *c, *d])), 12),
        [major, minor, ..] if !matches!((major, minor), (1..=3, 0)) => {
            let what = format!("version {major}.{minor} of the format");
            return Err(unsupported("npy", None, what).at(6..8));
        }
        _ => return Err(not()),
    };
    if header > len.saturating_sub(from) {
        let what = format!(
            "its header has {header} bytes, and the file {}",
            len.saturating_sub(from)
        );
        return Err(wrong(what).at(8..from));
    }
    if header > HEADER_MOST {
        let what = format!("a header of {header} bytes, more than {HEADER_MOST}");
        return Err(unsupported("npy", None, what).at(8..from));
    }
    Ok(from + header)
}

impl Header {
    /// Parses a `head` that [ends](header_end) with the header, of a file of `len` bytes.
    ///
    /// # Errors
    /// `Malformed` or `UnsupportedFeature`.
    pub(crate) fn parse(head: &[u8], len: u64) -> Result<Header> {
        let end = head.len() as u64;
        Header::parse_at(head, len).map_err(|error| error.at(0..end))
    }

    fn parse_at(head: &[u8], len: u64) -> Result<Header> {
        let from = if head.get(6) == Some(&1) { 10 } else { 12 };
        let text = head.get(from..).unwrap_or_default();
        let entries = dict(text).map_err(|fault| {
            let at = from + fault.at;
            wrong(format!("its header has no {} at offset {at}", fault.what))
        })?;
        let (mut dtype, mut order, mut shape) = (None, None, None);
        for (key, value) in entries {
            match (key, value) {
                (b"descr", Literal::Str(descr)) => dtype = Some(Dtype::parse(descr)?),
                (b"descr", Literal::List(_)) => {
                    return Err(unsupported(
                        "npy",
                        None,
                        "structured arrays (elements of named fields)",
                    ));
                }
                (b"descr", Literal::Tuple(_)) => {
                    return Err(unsupported("npy", None, "elements that are arrays"));
                }
                (b"fortran_order", Literal::Bool(true)) => order = Some(Order::Fortran),
                (b"fortran_order", Literal::Bool(false)) => order = Some(Order::C),
                (b"shape", Literal::Tuple(values)) => shape = Some(lengths(&values)?),
                (key, _) => {
                    let key = String::from_utf8_lossy(key).into_owned();
                    return Err(wrong(format!(
                        "its header's {key:?} is not what it is to be"
                    )));
                }
            }
        }
        let (Some(dtype), Some(order), Some(shape)) = (dtype, order, shape) else {
            return Err(wrong(
                "its header lacks one of descr, fortran_order and shape",
            ));
        };
        let bytes = bytes_of(&shape, dtype).ok_or_else(|| {
            wrong(format!(
                "an array of {shape:?} has no length that can be counted"
            ))
        })?;
        let there = len.saturating_sub(head.len() as u64);
        if bytes > there {
            let what = format!("its elements have {bytes} bytes, and {there} follow the header");
            return Err(wrong(what));
        }
        Ok(Header {
            dtype,
            order,
            shape,
            bytes,
        })
    }
}

fn lengths(values: &[Literal<'_>]) -> Result<Vec<usize>> {
    if values.len() > DIMENSIONS_MOST {
        let what = format!("{} dimensions, more than {DIMENSIONS_MOST}", values.len());
        return Err(unsupported("npy", None, what));
    }
    let length = |value: &Literal<'_>| match value {
        // As large as a signed number can be, since strides are signed elsewhere.
        Literal::Int(length) if i64::try_from(*length).is_ok() => Ok(*length as usize),
        _ => Err(wrong("its shape is not one of numbers below 2^63")),
    };
    values.iter().map(length).collect()
}

/// Bytes of all elements, if they can be counted.
pub(super) fn bytes_of(shape: &[usize], dtype: Dtype) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0); // whatever the others are
    }
    let elements = shape
        .iter()
        .try_fold(1u64, |product, &length| product.checked_mul(length as u64))?;
    elements.checked_mul(dtype.size() as u64)
}

/// The header of a new file, as NumPy writes it: padded so that the elements begin at a multiple of 64. `None` if so many
/// dimensions do not fit, or have no length.
pub(crate) fn new_header(dtype: Dtype, order: Order, shape: &[usize]) -> Option<(Vec<u8>, u64)> {
    /// NumPy leaves room for a longer length of the dimension that can grow, in digits.
    const GROWTH: usize = 21;
    let bytes = bytes_of(shape, dtype)?;
    let lengths: Vec<_> = shape.iter().map(usize::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let (fortran, grows) = match order {
        Order::C => ("False", lengths.first()),
        Order::Fortran => ("True", lengths.last()),
    };
    let mut text = format!(
        "{{'descr': '{dtype}', 'fortran_order': {fortran}, 'shape': ({}{comma}), }}",
        lengths.join(", ")
    );
    let growth = grows.map_or(0, |length| GROWTH.saturating_sub(length.len()));
    text.push_str(&" ".repeat(growth));
    let pad = 64 - (10 + text.len() + 1) % 64;
    text.push_str(&" ".repeat(pad));
    text.push('\n');
    if shape.len() > DIMENSIONS_MOST {
        return None;
    }
    let len = u16::try_from(text.len()).ok()?;
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&[1, 0]);
    head.extend_from_slice(&len.to_le_bytes());
    head.extend_from_slice(text.as_bytes());
    Some((head, bytes))
}
