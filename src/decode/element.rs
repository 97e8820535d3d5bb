//! Elements of tensors and arrays as values of Rust.
#![allow(unsafe_code)]

use bytes::Bytes;

/// A number as tensors and arrays hold it: `f32`, `f64`, and the integers of 8 to 64 bits with and without sign.
///
/// Sealed: every pattern of bits is a value of these types.
pub trait Element: number::Is + Copy + Send + Sync + 'static {
    /// Name of the type, as Rust calls it.
    const NAME: &'static str;
}

pub(super) mod number {
    /// What this crate needs to know of an [`Element`](super::Element), and nobody else can say of a type.
    pub trait Is: Sized {
        /// Which type it is.
        const NUMBER: super::Number;
        /// The value that these bytes are, in the byte order of this machine; 0 if there are too few.
        fn of_native(bytes: &[u8]) -> Self;
        /// The value with its bytes in the other order.
        fn swapped(self) -> Self;
    }
}

/// The types that are [`Element`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

macro_rules! elements {
    ($($type:ident $number:ident $swapped:expr;)*) => {$(
        impl Element for $type {
            const NAME: &'static str = stringify!($type);
        }
        impl number::Is for $type {
            const NUMBER: Number = Number::$number;
            fn of_native(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or($type::default(), |bytes| $type::from_ne_bytes(*bytes))
            }
            fn swapped(self) -> Self {
                let swapped: fn($type) -> $type = $swapped;
                swapped(self)
            }
        }
    )*};
}

elements! {
    u8 U8 u8::swap_bytes;
    u16 U16 u16::swap_bytes;
    u32 U32 u32::swap_bytes;
    u64 U64 u64::swap_bytes;
    i8 I8 i8::swap_bytes;
    i16 I16 i16::swap_bytes;
    i32 I32 i32::swap_bytes;
    i64 I64 i64::swap_bytes;
    f32 F32 |value| f32::from_bits(value.to_bits().swap_bytes());
    f64 F64 |value| f64::from_bits(value.to_bits().swap_bytes());
}

/// The bytes as values, if they begin at an address and have a length that suit the type.
pub(super) fn cast<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: every pattern of bits is a `T`, which only the numbers of this module are.
    let (before, values, after) = unsafe { bytes.align_to::<T>() };
    (before.is_empty() && after.is_empty()).then_some(values)
}

/// The bytes at an address that is a multiple of `align`, a power of two: themselves, or a copy.
pub(super) fn aligned(bytes: Bytes, align: usize) -> Bytes {
    if bytes.as_ptr().addr().is_multiple_of(align) || bytes.is_empty() {
        return bytes;
    }
    let mut copy: Vec<u8> = Vec::with_capacity(bytes.len() + align);
    let skip = copy.as_ptr().addr().wrapping_neg() % align;
    copy.resize(skip, 0);
    copy.extend_from_slice(&bytes);
    // The vector had room, so it has not moved, and `Bytes` take it as it is.
    Bytes::from(copy).slice(skip..)
}

#[cfg(test)]
mod tests {
    use super::number::Is;
    use super::*;

    #[test]
    fn copies_begin_where_they_are_to_and_aligned_bytes_stay() {
        let bytes = Bytes::from((0..200u8).collect::<Vec<_>>());
        for align in [1, 2, 8, 64, 4096] {
            for from in 0..9 {
                let part = bytes.slice(from..from + 100);
                let moved = aligned(part.clone(), align);
                assert_eq!(moved, part);
                assert!(moved.as_ptr().addr().is_multiple_of(align));
                let again = aligned(moved.clone(), align);
                assert_eq!(again.as_ptr(), moved.as_ptr());
            }
        }
    }

    #[test]
    fn values_need_their_alignment_and_length() {
        let bytes = aligned(Bytes::from_static(&[1, 0, 0, 0, 2, 0, 0, 0, 3]), 8);
        assert_eq!(cast::<u32>(&bytes[..8]).unwrap().len(), 2);
        assert_eq!(cast::<u8>(&bytes).unwrap(), &bytes[..]);
        assert!(cast::<u32>(&bytes).is_none(), "nine bytes");
        assert!(cast::<u32>(&bytes[1..5]).is_none(), "an odd address");
        assert_eq!(cast::<f64>(&[]).map(<[f64]>::len), Some(0));
    }

    #[test]
    fn swapping_is_its_own_inverse_for_every_bit() {
        let nan = f32::from_bits(0x7fa0_1234);
        assert_eq!(nan.swapped().to_bits(), 0x3412_a07f);
        assert_eq!(
            i16::from_be_bytes([1, 2]),
            i16::from_le_bytes([1, 2]).swapped()
        );
        assert_eq!(f64::of_native(&1.5f64.to_ne_bytes()), 1.5);
        assert_eq!(u8::of_native(&[]), 0);
    }
}
