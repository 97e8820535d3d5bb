//! An array of NumPy as a column.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, FixedSizeListArray, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, FieldRef};
use feedwater::npy::{self, Dtype, Kind};

use super::tables::Failure;

/// The type of a column whose rows are the elements of the first dimension of such an array.
pub(crate) fn data_type(dtype: Dtype, shape: &[usize]) -> Result<DataType, Failure> {
    let inner = shape.get(1..).unwrap_or_default();
    inner.iter().rev().try_fold(element(dtype)?, |of, &length| {
        let length = i32::try_from(length).map_err(|_| "a dimension of over 2^31 elements")?;
        Ok(DataType::FixedSizeList(item(of), length))
    })
}

/// The column. The array is in C order and in that of this machine.
pub(crate) fn column(array: &npy::Array) -> Result<ArrayRef, Failure> {
    let wanted = data_type(array.dtype(), array.shape())?;
    let values = values(array)?;
    let rows = array.shape().first().copied().unwrap_or(1);
    nested(&wanted, values, rows)
}

/// Lists of fixed size around `values`, as many as `rows`.
fn nested(wanted: &DataType, values: ArrayRef, rows: usize) -> Result<ArrayRef, Failure> {
    match wanted {
        DataType::FixedSizeList(of, length) if values.data_type() != wanted => {
            // Of an array without elements the other lengths can be anything.
            let inner = rows.checked_mul(*length as usize);
            let inner = inner.ok_or("more lists than can be counted")?;
            let inner = nested(of.data_type(), values, inner)?;
            let list =
                FixedSizeListArray::try_new_with_length(of.clone(), *length, inner, None, rows);
            Ok(Arc::new(list?))
        }
        _ => Ok(values),
    }
}

/// The elements one after the other.
fn values(array: &npy::Array) -> Result<ArrayRef, Failure> {
    let of = element(array.dtype())?;
    let (bytes, len) = (array.bytes(), array.len());
    let of = match of {
        DataType::Boolean => {
            let values = bytes.iter().map(|byte| Some(*byte != 0));
            return Ok(Arc::new(BooleanArray::from_iter(values)));
        }
        DataType::FixedSizeList(part, 2) => {
            let parts = primitive(part.data_type(), bytes, 2 * len)?;
            return Ok(Arc::new(FixedSizeListArray::try_new(part, 2, parts, None)?));
        }
        of => of,
    };
    primitive(&of, bytes, len)
}

/// A view of the bytes, or a copy where they are not aligned.
fn primitive(of: &DataType, bytes: &bytes::Bytes, len: usize) -> Result<ArrayRef, Failure> {
    let data = ArrayData::builder(of.clone())
        .len(len)
        .add_buffer(Buffer::from(bytes.clone()))
        .align_buffers(true)
        .build()?;
    Ok(make_array(data))
}

fn element(dtype: Dtype) -> Result<DataType, Failure> {
    Ok(match (dtype.kind(), dtype.size()) {
        (Kind::Bool, _) => DataType::Boolean,
        (Kind::Int, 1) => DataType::Int8,
        (Kind::Int, 2) => DataType::Int16,
        (Kind::Int, 4) => DataType::Int32,
        (Kind::Int, 8) => DataType::Int64,
        (Kind::UInt, 1) => DataType::UInt8,
        (Kind::UInt, 2) => DataType::UInt16,
        (Kind::UInt, 4) => DataType::UInt32,
        (Kind::UInt, 8) => DataType::UInt64,
        (Kind::Float, 2) => DataType::Float16,
        (Kind::Float, 4) => DataType::Float32,
        (Kind::Float, 8) => DataType::Float64,
        (Kind::Complex, 8) => DataType::FixedSizeList(item(DataType::Float32), 2),
        (Kind::Complex, 16) => DataType::FixedSizeList(item(DataType::Float64), 2),
        _ => return Err(format!("elements of type {dtype} have no column type here").into()),
    })
}

fn item(of: DataType) -> FieldRef {
    Arc::new(Field::new("item", of, false))
}
