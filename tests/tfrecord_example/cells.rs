//! What the oracle's messages and the columns both become, to be compared.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use super::messages::{Feature, Kind};

/// The values of one feature of one example. Floats by their bits, so that a NaN equals itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Null,
    Floats(Vec<u32>),
    Ints(Vec<i64>),
    Bytes(Vec<Vec<u8>>),
    Steps(Vec<Cell>),
}

impl From<&Kind> for Cell {
    fn from(kind: &Kind) -> Self {
        match kind {
            Kind::Float(list) => Cell::Floats(list.value.iter().map(|v| v.to_bits()).collect()),
            Kind::Int64(list) => Cell::Ints(list.value.clone()),
            Kind::Bytes(list) => Cell::Bytes(list.value.clone()),
        }
    }
}

impl From<Option<&Feature>> for Cell {
    fn from(feature: Option<&Feature>) -> Self {
        let kind = feature.and_then(|feature| feature.kind.as_ref());
        kind.map_or(Cell::Null, Cell::from)
    }
}

/// What `array` has at `row`.
pub(crate) fn cell(array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return Cell::Null;
    }
    let inner = match array.data_type() {
        DataType::FixedSizeList(..) => array.as_fixed_size_list().value(row),
        DataType::List(_) => array.as_list::<i32>().value(row),
        DataType::LargeList(_) => array.as_list::<i64>().value(row),
        _ => return values(&array.slice(row, 1)),
    };
    let nested = matches!(
        inner.data_type(),
        DataType::FixedSizeList(..) | DataType::List(_) | DataType::LargeList(_)
    );
    if nested {
        return Cell::Steps((0..inner.len()).map(|step| cell(&inner, step)).collect());
    }
    values(&inner)
}

/// The elements of a column of feature lists whose steps are scalars.
pub(crate) fn scalar_steps(array: &ArrayRef, row: usize) -> Cell {
    if array.is_null(row) {
        return Cell::Null;
    }
    let inner = array.as_list::<i32>().value(row);
    Cell::Steps((0..inner.len()).map(|step| cell(&inner, step)).collect())
}

fn values(array: &ArrayRef) -> Cell {
    assert_eq!(array.null_count(), 0);
    match array.data_type() {
        DataType::Float32 => {
            let array = array.as_primitive::<Float32Type>();
            Cell::Floats(array.values().iter().map(|v| v.to_bits()).collect())
        }
        DataType::Int64 => Cell::Ints(array.as_primitive::<Int64Type>().values().to_vec()),
        DataType::Int32 => {
            let array = array.as_primitive::<Int32Type>();
            Cell::Ints(array.values().iter().map(|v| i64::from(*v)).collect())
        }
        DataType::UInt8 => {
            let array = array.as_primitive::<UInt8Type>();
            Cell::Ints(array.values().iter().map(|v| i64::from(*v)).collect())
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            Cell::Bytes(array.iter().map(|v| v.unwrap().to_vec()).collect())
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            Cell::Bytes(array.iter().map(|v| v.unwrap().to_vec()).collect())
        }
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            Cell::Bytes(array.iter().map(|v| v.unwrap().into()).collect())
        }
        other => panic!("a column of {other}"),
    }
}
