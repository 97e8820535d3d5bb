//! An array that was read.

use std::fmt;

use bytes::Bytes;

use crate::decode::element::{Element, Number, cast};
use crate::error::{Error, ErrorKind, Result};
use crate::format::npy::{Dtype, Kind, Order};

/// An array: what its elements are, its shape, and its bytes. Cheap to clone.
#[derive(Clone)]
pub struct Array {
    dtype: Dtype,
    order: Order,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Array {
    /// `bytes` has as many bytes as the elements need.
    pub(super) fn new(dtype: Dtype, order: Order, shape: Vec<usize>, bytes: Bytes) -> Self {
        Array {
            dtype,
            order,
            shape,
            bytes,
        }
    }

    /// What its elements are.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its dimensions; empty for a single element.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// In which order the elements stand.
    pub fn order(&self) -> Order {
        self.order
    }

    /// How many bytes it is from an element to the next one in each dimension.
    ///
    /// Those of an array without elements say nothing, and saturate.
    pub fn strides(&self) -> Vec<usize> {
        strides(&self.shape, self.order, self.dtype.size())
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        // Checked when the header was parsed, unless elements have no bytes.
        self.shape
            .iter()
            .fold(1, |product, &length| product.saturating_mul(length))
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Its bytes, in its own [order](Self::order) and that of its [type](Dtype::endian).
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its bytes.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Its elements in the order in which they stand in memory ([`order`](Self::order)). No copy.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if they are of another type than `T`, in another byte order than this
    /// machine's, or not aligned in the file: [`to_vec`](Self::to_vec) takes the last two. Booleans, half-precision floats and
    /// complex numbers are in [`bytes`](Self::bytes).
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_type::<T>()?;
        if !self.dtype.endian().is_native() {
            return Err(self.refused(
                "in the byte order that they have, as",
                T::NAME,
                "`to_vec` swaps them",
            ));
        }
        cast(&self.bytes).ok_or_else(|| {
            self.refused(
                "at an address that is not aligned, as",
                T::NAME,
                "`to_vec` copies them",
            )
        })
    }

    /// A copy of its elements in the order in which they stand in memory, swapped to the byte order of this machine where
    /// they have another.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if they are of another type than `T`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_type::<T>()?;
        let values = self.bytes.chunks_exact(size_of::<T>()).map(T::of_native);
        Ok(match self.dtype.endian().is_native() {
            true => values.collect(),
            false => values.map(T::swapped).collect(),
        })
    }

    /// The same array in the byte order of this machine: itself, or one copy.
    #[must_use]
    pub fn to_native(&self) -> Array {
        if self.dtype.endian().is_native() {
            return self.clone();
        }
        let mut bytes = self.bytes.to_vec();
        for number in bytes.chunks_exact_mut(self.dtype.unit()) {
            number.reverse();
        }
        Array {
            dtype: self.dtype.to_native(),
            order: self.order,
            shape: self.shape.clone(),
            bytes: bytes.into(),
        }
    }

    /// The same array in C order: itself, or one copy, which reads memory in long steps.
    #[must_use]
    pub fn to_c_order(&self) -> Array {
        let size = self.dtype.size();
        let bytes = match self.order {
            Order::C => self.bytes.clone(),
            // Of a single dimension that matters, both orders are the same.
            Order::Fortran if self.shape.iter().filter(|&&length| length != 1).count() < 2 => {
                self.bytes.clone()
            }
            Order::Fortran if self.bytes.is_empty() => self.bytes.clone(),
            Order::Fortran => transposed(&self.bytes, &self.shape, size).into(),
        };
        Array {
            dtype: self.dtype,
            order: Order::C,
            shape: self.shape.clone(),
            bytes,
        }
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        let wanted = Dtype::of::<T>();
        if (self.dtype.kind(), self.dtype.size()) == (wanted.kind(), wanted.size()) {
            return Ok(());
        }
        Err(self.refused("as", T::NAME, "values are not converted"))
    }

    fn refused(&self, how: &str, name: &str, instead: &str) -> Error {
        let what = format!("elements of type {} {how} {name}; {instead}", self.dtype).into();
        Error::new(ErrorKind::Unsupported { what })
    }
}

impl Dtype {
    /// The type of `T`, in the byte order of this machine.
    pub fn of<T: Element>() -> Dtype {
        let (kind, size) = match T::NUMBER {
            Number::U8 => (Kind::UInt, 1),
            Number::U16 => (Kind::UInt, 2),
            Number::U32 => (Kind::UInt, 4),
            Number::U64 => (Kind::UInt, 8),
            Number::I8 => (Kind::Int, 1),
            Number::I16 => (Kind::Int, 2),
            Number::I32 => (Kind::Int, 4),
            Number::I64 => (Kind::Int, 8),
            Number::F32 => (Kind::Float, 4),
            Number::F64 => (Kind::Float, 8),
        };
        Dtype::native(kind, size)
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array")
            .field("dtype", &format_args!("{}", self.dtype))
            .field("order", &self.order)
            .field("shape", &self.shape)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// Bytes from one element to the next in each dimension.
pub(super) fn strides(shape: &[usize], order: Order, size: usize) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut step = size;
    let mut next = |(stride, length): (&mut usize, &usize)| {
        *stride = step;
        step = step.saturating_mul(*length);
    };
    match order {
        Order::C => strides.iter_mut().zip(shape).rev().for_each(&mut next),
        Order::Fortran => strides.iter_mut().zip(shape).for_each(&mut next),
    }
    strides
}

/// Elements of `size` bytes in C order that stand in Fortran order in `bytes`. There is at least one byte and dimension.
fn transposed(bytes: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let strides = strides(shape, Order::Fortran, size);
    let mut to = Vec::with_capacity(bytes.len());
    let (Some((&row, outer)), Some((&step, steps))) = (shape.split_last(), strides.split_last())
    else {
        return bytes.to_vec();
    };
    let mut index = vec![0; outer.len()];
    loop {
        let mut from: usize = index.iter().zip(steps).map(|(at, step)| at * step).sum();
        for _ in 0..row {
            to.extend_from_slice(bytes.get(from..from + size).unwrap_or_default());
            from += step;
        }
        // The next index, the last dimension first.
        let mut moved = false;
        for (at, &length) in index.iter_mut().zip(outer).rev() {
            *at += 1;
            if *at < length {
                moved = true;
                break;
            }
            *at = 0;
        }
        if !moved {
            return to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::element::number::Is as _;
    use crate::format::npy::Endian;

    fn array(dtype: Dtype, order: Order, shape: &[usize], bytes: &[u8]) -> Array {
        Array::new(dtype, order, shape.to_vec(), Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn strides_are_those_of_the_order() {
        assert_eq!(strides(&[2, 3, 4], Order::C, 8), [96, 32, 8]);
        assert_eq!(strides(&[2, 3, 4], Order::Fortran, 8), [8, 16, 48]);
        assert_eq!(strides(&[], Order::C, 8), [0usize; 0]);
    }

    #[test]
    fn fortran_order_becomes_c_order() {
        let shape = [2, 3, 4];
        // Each element says where it is.
        let mut fortran = Vec::new();
        for k in 0..4u8 {
            for j in 0..3u8 {
                for i in 0..2u8 {
                    fortran.extend([i * 100 + j * 10 + k, 7]);
                }
            }
        }
        let dtype = Dtype::new(Kind::Void, 2, Endian::None).unwrap();
        let c = array(dtype, Order::Fortran, &shape, &fortran).to_c_order();
        let mut expected = Vec::new();
        for i in 0..2u8 {
            for j in 0..3u8 {
                for k in 0..4u8 {
                    expected.extend([i * 100 + j * 10 + k, 7]);
                }
            }
        }
        assert_eq!((c.order(), &c.bytes()[..]), (Order::C, &expected[..]));
        for shape in [&[24][..], &[1, 24, 1], &[]] {
            let bytes = &fortran[..2 * shape.iter().product::<usize>()];
            let same = array(dtype, Order::Fortran, shape, bytes);
            assert_eq!(
                same.to_c_order().bytes().as_ptr(),
                same.bytes().as_ptr(),
                "no copy"
            );
        }
        let none = array(dtype, Order::Fortran, &[3, 0, 2], &[]).to_c_order();
        assert!(none.is_empty() && none.bytes().is_empty());
    }

    #[test]
    fn the_other_order_of_bytes_is_swapped_by_number() {
        let other = match Endian::NATIVE {
            Endian::Big => Endian::Little,
            _ => Endian::Big,
        };
        let swapped = |kind, size| Dtype::new(kind, size, other).unwrap();
        let bytes: Vec<u8> = (0..16).collect();
        for (dtype, first) in [
            (swapped(Kind::Int, 8), [7, 6, 5, 4, 3, 2, 1, 0]),
            (swapped(Kind::Complex, 8), [3, 2, 1, 0, 7, 6, 5, 4]),
            (swapped(Kind::Unicode, 8), [3, 2, 1, 0, 7, 6, 5, 4]),
            (swapped(Kind::Float, 2), [1, 0, 3, 2, 5, 4, 7, 6]),
            (swapped(Kind::Bytes, 8), [0, 1, 2, 3, 4, 5, 6, 7]),
        ] {
            let native = array(dtype, Order::C, &[16 / dtype.size()], &bytes).to_native();
            assert_eq!(&native.bytes()[..8], &first, "{dtype}");
            assert!(native.dtype().endian().is_native());
        }
        let three = array(
            swapped(Kind::Float, 4),
            Order::C,
            &[],
            &3.5f32.swapped().to_ne_bytes(),
        );
        assert_eq!(three.to_vec::<f32>().unwrap(), [3.5]);
        assert!(three.as_slice::<f32>().is_err());
        assert_eq!(three.to_native().to_vec::<f32>().unwrap(), [3.5]);
    }
}
