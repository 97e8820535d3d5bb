//! Rows of a record batch as `tf.train.Example`s.

use std::fmt;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, RecordBatch};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType;

use super::decoder::format_name;
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::example::{
    LEN_1, entry_len, field_len, packed_len, put_bytes_list, put_entry, put_field, put_float_list,
    put_int64_list, varint_len,
};

/// Encodes the rows of a record batch as `tf.train.Example`s: what [`ExampleDecoder`](super::ExampleDecoder) decodes.
///
/// | column | list |
/// |---|---|
/// | `Float32` | `float_list`, packed |
/// | integers but `UInt64`, `Boolean` | `int64_list`, packed |
/// | `Binary`, `Utf8`, and their large and view types | `bytes_list` |
/// | `List`, `LargeList`, `FixedSizeList` of these | the same, with as many values |
///
/// A feature has the name of its column; where the column is null, the example does not have it. Features are in the
/// order of the columns, so equal rows become equal bytes. Each value is copied once.
///
/// ```
/// use std::sync::Arc;
/// use arrow_array::{ArrayRef, Int64Array, RecordBatch};
/// use feedwater::tfrecord::ExampleEncoder;
///
/// let label: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None]));
/// let batch = RecordBatch::try_from_iter([("label", label)]).unwrap();
/// let mut encoder = ExampleEncoder::new(&batch)?;
/// let mut record = Vec::new();
/// encoder.encode(0, &mut record)?;
/// assert_eq!(record, b"\x0a\x10\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x07");
/// # Ok::<(), feedwater::Error>(())
/// ```
pub struct ExampleEncoder<'a> {
    columns: Vec<Column<'a>>,
    rows: usize,
    /// Of the row at hand: for each column the values, and the bytes of them.
    plans: Vec<Option<Plan>>,
}

struct Column<'a> {
    name: &'a str,
    array: &'a dyn Array,
    shape: Shape<'a>,
    /// The array that has the values, for its nulls.
    inner: &'a dyn Array,
    values: Values<'a>,
}

/// Which values a row has.
enum Shape<'a> {
    Scalar,
    Fixed(usize),
    List(&'a OffsetBuffer<i32>),
    LargeList(&'a OffsetBuffer<i64>),
}

/// Values by their number.
enum Values<'a> {
    Floats(&'a [f32]),
    Integers(&'a [i64]),
    Narrow(Box<dyn Fn(usize) -> i64 + Send + 'a>),
    Bytes(Box<dyn Fn(usize) -> &'a [u8] + Send + 'a>),
}

/// What a column has for a row, and the lengths that stand before it.
#[derive(Clone, Debug)]
struct Plan {
    values: Range<usize>,
    /// Bytes of the packed values, or of the list of bytes.
    bytes: usize,
    /// Bytes of the `Feature`.
    feature: usize,
}

impl<'a> ExampleEncoder<'a> {
    /// An encoder of the rows of `batch`.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedFeature`] for a column of a type that is not in the table; the error names it.
    pub fn new(batch: &'a RecordBatch) -> Result<Self> {
        let schema = batch.schema_ref();
        let columns = schema.fields().iter().zip(batch.columns());
        let columns = columns
            .map(|(field, array)| Column::new(field.name(), array))
            .collect::<Result<_>>()?;
        Ok(ExampleEncoder {
            columns,
            rows: batch.num_rows(),
            plans: Vec::new(),
        })
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends the example of `row` to `out`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such row, [`ErrorKind::UnsupportedFeature`] if a list has a null inside, which
    /// examples have no way to say. `out` is then unchanged.
    pub fn encode(&mut self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if row >= self.rows {
            return Err(Error::new(ErrorKind::NotFound {
                what: format!("row {row}: the batch has {} rows", self.rows).into(),
            }));
        }
        self.plans.clear();
        let mut features = 0;
        for column in &self.columns {
            let plan = column.plan(row)?;
            if let Some(plan) = &plan {
                features += field_len(entry_len(column.name.len(), plan.feature));
            }
            self.plans.push(plan);
        }
        if features == 0 {
            return Ok(());
        }
        out.reserve(field_len(features));
        put_field(out, LEN_1, features);
        for (column, plan) in self.columns.iter().zip(&self.plans) {
            if let Some(plan) = plan {
                put_entry(out, column.name.as_bytes(), plan.feature);
                column.values.put(plan, out);
            }
        }
        Ok(())
    }
}

impl<'a> Column<'a> {
    fn new(name: &'a str, array: &'a ArrayRef) -> Result<Self> {
        let (shape, inner) = match array.data_type() {
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or_default();
                (Shape::Fixed(size), array.as_fixed_size_list().values())
            }
            DataType::List(_) => {
                let list = array.as_list();
                (Shape::List(list.offsets()), list.values())
            }
            DataType::LargeList(_) => {
                let list = array.as_list();
                (Shape::LargeList(list.offsets()), list.values())
            }
            _ => (Shape::Scalar, array),
        };
        let values = Values::new(inner)
            .ok_or_else(|| unsupported(name, format!("a column of {}", array.data_type())))?;
        Ok(Column {
            name,
            array,
            shape,
            inner,
            values,
        })
    }

    /// `row` is one of the array's. `None`: it is null.
    fn plan(&self, row: usize) -> Result<Option<Plan>> {
        if self.array.is_null(row) {
            return Ok(None);
        }
        let values = match &self.shape {
            Shape::Scalar => row..row + 1,
            Shape::Fixed(size) => row * size..(row + 1) * size,
            // Offsets are not negative, and there is one more than rows.
            Shape::List(ends) => ends[row] as usize..ends[row + 1] as usize,
            Shape::LargeList(ends) => ends[row] as usize..ends[row + 1] as usize,
        };
        if self.inner.null_count() > 0 && values.clone().any(|at| self.inner.is_null(at)) {
            let what = format!("a null inside the list of row {row}");
            return Err(unsupported(self.name, what));
        }
        let bytes = self.values.bytes(values.clone());
        let list = match self.values {
            Values::Bytes(_) => bytes,
            _ => packed_len(bytes),
        };
        Ok(Some(Plan {
            values,
            bytes,
            feature: field_len(list),
        }))
    }
}

impl<'a> Values<'a> {
    /// `None`: examples have no such values.
    fn new(array: &'a ArrayRef) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Float32 => Values::Floats(array.as_primitive::<Float32Type>().values()),
            DataType::Int64 => Values::Integers(array.as_primitive::<Int64Type>().values()),
            DataType::Int32 => narrow::<Int32Type>(array),
            DataType::Int16 => narrow::<Int16Type>(array),
            DataType::Int8 => narrow::<Int8Type>(array),
            DataType::UInt32 => narrow::<UInt32Type>(array),
            DataType::UInt16 => narrow::<UInt16Type>(array),
            DataType::UInt8 => narrow::<UInt8Type>(array),
            DataType::Boolean => {
                let array = array.as_boolean();
                Values::Narrow(Box::new(|at| i64::from(array.value(at))))
            }
            DataType::Binary => {
                let array = array.as_binary::<i32>();
                Values::Bytes(Box::new(|at| array.value(at)))
            }
            DataType::LargeBinary => {
                let array = array.as_binary::<i64>();
                Values::Bytes(Box::new(|at| array.value(at)))
            }
            DataType::BinaryView => {
                let array = array.as_binary_view();
                Values::Bytes(Box::new(|at| array.value(at)))
            }
            DataType::Utf8 => {
                let array = array.as_string::<i32>();
                Values::Bytes(Box::new(|at| array.value(at).as_bytes()))
            }
            DataType::LargeUtf8 => {
                let array = array.as_string::<i64>();
                Values::Bytes(Box::new(|at| array.value(at).as_bytes()))
            }
            DataType::Utf8View => {
                let array = array.as_string_view();
                Values::Bytes(Box::new(|at| array.value(at).as_bytes()))
            }
            _ => return None,
        })
    }

    /// Bytes of packed values, or of a list of bytes.
    fn bytes(&self, mut values: Range<usize>) -> usize {
        let varint = |value: i64| varint_len(value.cast_unsigned());
        match self {
            Values::Floats(_) => size_of::<f32>() * values.len(),
            Values::Integers(all) => all[values].iter().map(|value| varint(*value)).sum(),
            Values::Narrow(value) => values.by_ref().map(|at| varint(value(at))).sum(),
            Values::Bytes(value) => values.by_ref().map(|at| field_len(value(at).len())).sum(),
        }
    }

    /// Appends the `Feature`.
    fn put(&self, plan: &Plan, out: &mut Vec<u8>) {
        let values = plan.values.clone();
        match self {
            Values::Floats(all) => put_float_list(out, &all[values]),
            Values::Integers(all) => put_int64_list(out, plan.bytes, all[values].iter().copied()),
            Values::Narrow(value) => put_int64_list(out, plan.bytes, values.map(value)),
            Values::Bytes(value) => put_bytes_list(out, plan.bytes, values.map(value)),
        }
    }
}

fn narrow<'a, T: ArrowPrimitiveType<Native: Into<i64>>>(array: &'a ArrayRef) -> Values<'a> {
    let values = array.as_primitive::<T>().values();
    Values::Narrow(Box::new(|at| values[at].into()))
}

fn unsupported(name: &str, feature: String) -> Error {
    Error::new(ErrorKind::UnsupportedFeature {
        format: format_name(false),
        part: Some(name.into()),
        feature: feature.into(),
    })
}

impl fmt::Debug for ExampleEncoder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.columns.iter().map(|column| column.name);
        f.debug_struct("ExampleEncoder")
            .field("columns", &names.collect::<Vec<_>>())
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}
