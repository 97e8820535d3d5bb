//! What the elements of an array are.

use std::fmt;

use super::{malformed, unsupported};
use crate::error::Result;

/// Longest element in bytes, as NumPy has it.
const SIZE_MOST: usize = i32::MAX as usize;

/// What elements are, whatever their size.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Booleans, a byte each.
    Bool,
    /// Integers with a sign, of 1, 2, 4 or 8 bytes.
    Int,
    /// Integers without a sign, of 1, 2, 4 or 8 bytes.
    UInt,
    /// IEEE 754 numbers of 2, 4 or 8 bytes.
    Float,
    /// Two floats, the real part first: 8 or 16 bytes together.
    Complex,
    /// Byte strings, padded with zeros to their size.
    Bytes,
    /// Unicode strings, four bytes a code point, padded with zeros to their size.
    Unicode,
    /// Bytes that mean something to others. The `bfloat16` of some libraries is saved as two of them.
    Void,
}

/// Byte order: in which order the bytes of a number stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
    /// There is no order: single bytes, and strings of them.
    None,
}

impl Endian {
    /// The order of this machine.
    pub const NATIVE: Endian = if cfg!(target_endian = "big") {
        Endian::Big
    } else {
        Endian::Little
    };

    /// Whether numbers of this order are read on this machine as they are.
    pub fn is_native(self) -> bool {
        self == Endian::None || self == Endian::NATIVE
    }
}

/// What the elements of an array are: kind, size, and byte order.
///
/// `Display` shows it as NumPy's `dtype.str`: `<f4`, `|S10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dtype {
    kind: Kind,
    size: usize,
    endian: Endian,
}

impl Dtype {
    /// An element of `size` bytes, or `None` if there is none of this kind and size. `endian` is left out where there is no
    /// order.
    pub fn new(kind: Kind, size: usize, endian: Endian) -> Option<Dtype> {
        let known = match kind {
            Kind::Bool => size == 1,
            Kind::Int | Kind::UInt => matches!(size, 1 | 2 | 4 | 8),
            Kind::Float => matches!(size, 2 | 4 | 8),
            Kind::Complex => matches!(size, 8 | 16),
            Kind::Bytes | Kind::Void => size <= SIZE_MOST,
            Kind::Unicode => size <= SIZE_MOST && size.is_multiple_of(4),
        };
        let dtype = Dtype { kind, size, endian };
        let ordered = dtype.unit() > 1;
        if !known || (ordered && endian == Endian::None) {
            return None;
        }
        Some(dtype.ordered())
    }

    /// What it is.
    pub fn kind(self) -> Kind {
        self.kind
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.size
    }

    /// The order of its bytes.
    pub fn endian(self) -> Endian {
        self.endian
    }

    /// A kind and a size that there are, in the order of this machine.
    pub(crate) fn native(kind: Kind, size: usize) -> Dtype {
        Dtype {
            kind,
            size,
            endian: Endian::NATIVE,
        }
        .ordered()
    }

    /// The same without an order where there is none.
    fn ordered(self) -> Dtype {
        match self.unit() {
            0 | 1 => Dtype {
                endian: Endian::None,
                ..self
            },
            _ => self,
        }
    }

    /// The same with the bytes in the order of this machine.
    #[must_use]
    pub fn to_native(self) -> Dtype {
        let endian = match self.endian {
            Endian::None => Endian::None,
            _ => Endian::NATIVE,
        };
        Dtype { endian, ..self }
    }

    /// Bytes of the numbers that have an order: those of an element, of half a complex one, of a code point.
    pub(crate) fn unit(self) -> usize {
        match self.kind {
            Kind::Bool | Kind::Bytes | Kind::Void => 1,
            Kind::Int | Kind::UInt | Kind::Float => self.size,
            Kind::Complex => self.size / 2,
            Kind::Unicode => 4,
        }
    }

    /// What a `descr` of a header means.
    pub(super) fn parse(descr: &[u8]) -> Result<Dtype> {
        let shown = || String::from_utf8_lossy(descr).into_owned();
        let wrong = || malformed("npy", format!("its type {:?} is none", shown()));
        let (order, rest) = match descr {
            [order @ (b'<' | b'>' | b'=' | b'|'), rest @ ..] => (*order, rest),
            rest => (b'=', rest),
        };
        let [code, digits @ ..] = rest else {
            return Err(wrong());
        };
        let kind = match code {
            b'b' => Kind::Bool,
            b'i' => Kind::Int,
            b'u' => Kind::UInt,
            b'f' => Kind::Float,
            b'c' => Kind::Complex,
            b'S' | b'a' => Kind::Bytes,
            b'U' => Kind::Unicode,
            b'V' => Kind::Void,
            b'O' => {
                return Err(unsupported(
                    "npy",
                    None,
                    "arrays of Python objects, which are pickled code",
                ));
            }
            b'M' | b'm' => {
                return Err(unsupported(
                    "npy",
                    None,
                    format!("dates and times ({})", shown()),
                ));
            }
            _ => return Err(wrong()),
        };
        let size = std::str::from_utf8(digits).ok().filter(|digits| {
            !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
        });
        let size: usize = size
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(wrong)?;
        let size = match kind {
            Kind::Unicode => size.checked_mul(4).ok_or_else(wrong)?,
            _ => size,
        };
        let endian = match order {
            b'<' => Endian::Little,
            b'>' => Endian::Big,
            b'=' => Endian::NATIVE,
            _ => Endian::None,
        };
        match Dtype::new(kind, size, endian) {
            Some(dtype) => Ok(dtype),
            // A number of several bytes without an order of them.
            None if Dtype::new(kind, size, Endian::NATIVE).is_some() => Err(wrong()),
            None => Err(unsupported(
                "npy",
                None,
                format!("elements of type {}", shown()),
            )),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.endian {
            Endian::Little => '<',
            Endian::Big => '>',
            Endian::None => '|',
        };
        let (code, size) = match self.kind {
            Kind::Bool => ('b', self.size),
            Kind::Int => ('i', self.size),
            Kind::UInt => ('u', self.size),
            Kind::Float => ('f', self.size),
            Kind::Complex => ('c', self.size),
            Kind::Bytes => ('S', self.size),
            Kind::Unicode => ('U', self.size / 4),
            Kind::Void => ('V', self.size),
        };
        write!(f, "{order}{code}{size}")
    }
}
