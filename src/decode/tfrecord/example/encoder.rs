//! Rows of a record batch as `tf.train.Example`s and `SequenceExample`s.

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
use super::schema::ExampleSchema;
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::example::{
    Kind, LEN_1, LEN_2, Place, entry_len, field_len, packed_len, put_bytes_list, put_entry,
    put_field, put_float_list, put_int64_list, varint_len,
};

/// Encodes the rows of a record batch as `tf.train.Example`s or `SequenceExample`s: what
/// [`ExampleDecoder`](super::ExampleDecoder) decodes.
///
/// | column | feature |
/// |---|---|
/// | `Float32` | `float_list`, packed |
/// | integers but `UInt64`, `Boolean` | `int64_list`, packed |
/// | `Binary`, `Utf8`, and their large and view types | `bytes_list` |
/// | `List`, `LargeList`, `FixedSizeList` of these | the same, with as many values |
/// | `List`, `LargeList`, `FixedSizeList` of such lists | in `feature_lists`: one `Feature` for each element |
///
/// So a batch with nested lists becomes `SequenceExample`s, whose context are the other columns. Lists that are no nested ones and
/// are meant as feature lists, of one value a step, are told by a [schema](Self::with_schema).
///
/// A feature has the name of its column; where the column is null, the example does not have it. A step that is null is a
/// `Feature` without a list. Features are in the order of the columns, so equal rows become equal bytes. Each value is copied
/// once.
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
    /// Those of the context first.
    columns: Vec<Column<'a>>,
    rows: usize,
    /// Of the row at hand: what each column has.
    entries: Vec<Option<Entry>>,
    /// Of the row at hand: the features, and of lists the steps, one column after the other.
    plans: Vec<Option<Plan>>,
}

struct Column<'a> {
    /// Of the feature.
    name: &'a str,
    place: Place,
    /// For a feature list: the column and which steps a row has.
    steps: Option<(&'a dyn Array, Shape<'a>)>,
    leaf: Leaf<'a>,
}

/// What each row, or each step, has.
struct Leaf<'a> {
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

/// What a column has for a row.
#[derive(Clone, Debug)]
struct Entry {
    /// Which of the plans are its own.
    plans: Range<usize>,
    /// Bytes of the `Feature`, or of the `FeatureList`.
    bytes: usize,
}

/// The values of a `Feature`, and the lengths that stand before them.
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
        let columns = columns.map(|(field, array)| {
            let place = match is_nested(array.data_type()) {
                true => Place::Lists,
                false => Place::Context,
            };
            Column::new(field.name(), place, array)
        });
        Ok(Self::of(columns.collect::<Result<_>>()?, batch.num_rows()))
    }

    /// An encoder of the columns of `batch` that `schema` names, as the features and feature lists that they are the columns of:
    /// the way back from what an [`ExampleDecoder`](super::ExampleDecoder) with the same schema has made.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use arrow_array::{ArrayRef, ListArray, RecordBatch, types::Int64Type};
    /// use feedwater::tfrecord::{ExampleDecoder, ExampleEncoder, ExampleSchema, Feature, ValueType};
    ///
    /// let clicks = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(3), Some(5)])]);
    /// let batch = RecordBatch::try_from_iter([("clicks", Arc::new(clicks) as ArrayRef)]).unwrap();
    /// // A list of features of one value each, and not one feature of two values.
    /// let schema = ExampleSchema::new().with_list(Feature::scalar("clicks", ValueType::Int64));
    /// let mut encoder = ExampleEncoder::with_schema(&batch, &schema)?;
    /// let mut record = Vec::new();
    /// encoder.encode(0, &mut record)?;
    ///
    /// let mut decoder = ExampleDecoder::new(&schema)?;
    /// decoder.push(&record)?;
    /// assert_eq!(decoder.finish()?.column(0).len(), 1);
    /// # Ok::<(), feedwater::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the batch has no such column; [`ErrorKind::UnsupportedFeature`] for a column of another type than a
    /// feature of the schema can be made of: floats, integers or bytes, nested no deeper.
    pub fn with_schema(batch: &'a RecordBatch, schema: &'a ExampleSchema) -> Result<Self> {
        let context = schema.context.iter().map(|of| (Place::Context, of));
        let lists = schema.lists.iter().map(|of| (Place::Lists, of));
        let columns = context.chain(lists).map(|(place, feature)| {
            let array = batch.column_by_name(&feature.column).ok_or_else(|| {
                let what = format!("column {:?} of feature {:?}", feature.column, feature.name);
                Error::new(ErrorKind::NotFound { what: what.into() })
            })?;
            let column = Column::new(&feature.name, place, array)?;
            if column.leaf.values.kind() != feature.values.kind() {
                let what = format!("a column of {} as {:?}", array.data_type(), feature.values);
                return Err(unsupported(place, &feature.name, what));
            }
            Ok(column)
        });
        Ok(Self::of(columns.collect::<Result<_>>()?, batch.num_rows()))
    }

    fn of(mut columns: Vec<Column<'a>>, rows: usize) -> Self {
        columns.sort_by_key(|column| column.place == Place::Lists);
        ExampleEncoder {
            columns,
            rows,
            entries: Vec::new(),
            plans: Vec::new(),
        }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends the example of `row` to `out`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such row, [`ErrorKind::UnsupportedFeature`] if the values of a feature have a null
    /// among them, which examples have no way to say. `out` is then unchanged.
    pub fn encode(&mut self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if row >= self.rows {
            return Err(Error::new(ErrorKind::NotFound {
                what: format!("row {row}: the batch has {} rows", self.rows).into(),
            }));
        }
        self.entries.clear();
        self.plans.clear();
        let (mut context, mut lists) = (0, 0);
        for column in &self.columns {
            let entry = column.plan(row, &mut self.plans)?;
            if let Some(entry) = &entry {
                let bytes = field_len(entry_len(column.name.len(), entry.bytes));
                match column.place {
                    Place::Context => context += bytes,
                    Place::Lists => lists += bytes,
                }
            }
            self.entries.push(entry);
        }
        let entries = || self.columns.iter().zip(&self.entries);
        for (place, key, bytes) in [
            (Place::Context, LEN_1, context),
            (Place::Lists, LEN_2, lists),
        ] {
            // Nothing of it in this row.
            if bytes == 0 {
                continue;
            }
            out.reserve(field_len(bytes));
            put_field(out, key, bytes);
            for (column, entry) in entries().filter(|(column, _)| column.place == place) {
                if let Some(entry) = entry {
                    put_entry(out, column.name.as_bytes(), entry.bytes);
                    column.put(self.plans.get(entry.plans.clone()).unwrap_or_default(), out);
                }
            }
        }
        Ok(())
    }
}

impl<'a> Column<'a> {
    fn new(name: &'a str, place: Place, array: &'a ArrayRef) -> Result<Self> {
        let not_so = || unsupported(place, name, format!("a column of {}", array.data_type()));
        let (steps, elements) = match (place, Shape::of(array)) {
            (Place::Context, _) => (None, array),
            // Each step is an element.
            (Place::Lists, (Shape::Scalar, _)) => return Err(not_so()),
            (Place::Lists, (shape, elements)) => (Some((&**array, shape)), elements),
        };
        let (shape, inner) = Shape::of(elements);
        Ok(Column {
            name,
            place,
            steps,
            leaf: Leaf {
                array: elements,
                shape,
                inner,
                values: Values::new(inner).ok_or_else(not_so)?,
            },
        })
    }

    /// What the column has for `row`, one of the array's, which is appended to `plans`. `None`: it is null.
    fn plan(&self, row: usize, plans: &mut Vec<Option<Plan>>) -> Result<Option<Entry>> {
        let null_in = || {
            let what = format!("a null inside the list of row {row}");
            unsupported(self.place, self.name, what)
        };
        let from = plans.len();
        let bytes = match &self.steps {
            None => {
                let Some(plan) = self.leaf.plan(row).ok_or_else(null_in)? else {
                    return Ok(None);
                };
                let bytes = plan.feature;
                plans.push(Some(plan));
                bytes
            }
            Some((array, _)) if array.is_null(row) => return Ok(None),
            Some((_, shape)) => {
                let mut bytes = 0;
                for step in shape.range(row) {
                    let plan = self.leaf.plan(step).ok_or_else(null_in)?;
                    bytes += field_len(plan.as_ref().map_or(0, |plan| plan.feature));
                    plans.push(plan);
                }
                bytes
            }
        };
        let plans = from..plans.len();
        Ok(Some(Entry { plans, bytes }))
    }

    /// Appends the `Feature`, or the `FeatureList`, of an [`Entry`] with these plans.
    fn put(&self, plans: &[Option<Plan>], out: &mut Vec<u8>) {
        for plan in plans {
            if self.steps.is_some() {
                put_field(out, LEN_1, plan.as_ref().map_or(0, |plan| plan.feature));
            }
            if let Some(plan) = plan {
                self.leaf.values.put(plan, out);
            }
        }
    }
}

impl Leaf<'_> {
    /// The feature that `at` has, `Some(None)` if it is null. `None`: there is a null among its values.
    fn plan(&self, at: usize) -> Option<Option<Plan>> {
        if self.array.is_null(at) {
            return Some(None);
        }
        let values = self.shape.range(at);
        if self.inner.null_count() > 0 && values.clone().any(|at| self.inner.is_null(at)) {
            return None;
        }
        let bytes = self.values.bytes(values.clone());
        let list = match self.values {
            Values::Bytes(_) => bytes,
            _ => packed_len(bytes),
        };
        Some(Some(Plan {
            values,
            bytes,
            feature: field_len(list),
        }))
    }
}

impl<'a> Shape<'a> {
    /// The shape of an array, and the array that has the values: its elements, where it is one of lists.
    fn of(array: &'a ArrayRef) -> (Self, &'a ArrayRef) {
        match array.data_type() {
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
        }
    }

    /// Which values `row`, one of the array's, has.
    fn range(&self, row: usize) -> Range<usize> {
        match self {
            Shape::Scalar => row..row + 1,
            Shape::Fixed(size) => row * size..(row + 1) * size,
            // Offsets are not negative, and there is one more than rows.
            Shape::List(ends) => ends[row] as usize..ends[row + 1] as usize,
            Shape::LargeList(ends) => ends[row] as usize..ends[row + 1] as usize,
        }
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

    fn kind(&self) -> Kind {
        match self {
            Values::Floats(_) => Kind::Float,
            Values::Integers(_) | Values::Narrow(_) => Kind::Int64,
            Values::Bytes(_) => Kind::Bytes,
        }
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

/// Whether it is a list of lists.
fn is_nested(data_type: &DataType) -> bool {
    element(data_type).and_then(element).is_some()
}

/// The type of the elements of a list.
fn element(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::FixedSizeList(item, _) | DataType::List(item) | DataType::LargeList(item) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

fn unsupported(place: Place, name: &str, feature: String) -> Error {
    Error::new(ErrorKind::UnsupportedFeature {
        format: format_name(place == Place::Lists),
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
