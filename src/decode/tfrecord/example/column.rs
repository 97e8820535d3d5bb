//! The values of one feature, written where they stay.

use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, FixedSizeListArray, GenericBinaryArray, GenericListArray,
    GenericStringArray, OffsetSizeTrait, PrimitiveArray,
};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef};
use bytes::Bytes;

use super::schema::{DefaultValues, Feature, Missing, Shape, ValueType};
use super::views::Views;
use crate::format::tfrecord::example::{
    Kind, Pieces, Place, WireError, bytes_values, feature, push_floats, push_int64s, steps,
};
use crate::sys::prefer_huge_pages;

/// Why a feature of an example does not become a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("it is missing")]
    Missing,
    #[error("it has {}, and not {}", kind_name(*found), kind_name(*wanted))]
    Kind { found: Kind, wanted: Kind },
    #[error("it has {found} values, and not {wanted}")]
    Count { found: usize, wanted: usize },
    #[error("the value {value} does not fit its type")]
    Range { value: i64 },
    #[error("a value is not UTF-8")]
    Utf8,
    /// Offsets of 32 bits do not reach as far.
    #[error("its values pass 2 GiB, or 2^31 elements; offsets of 64 bits are needed")]
    Full,
}

pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bytes => "bytes",
        Kind::Float => "floats",
        Kind::Int64 => "integers",
    }
}

/// The rows of one column so far.
#[derive(Debug)]
pub(super) struct Column {
    leaf: Leaf,
    /// For feature lists: where the steps of each row end.
    steps: Option<(Offsets, NullBufferBuilder)>,
    field: FieldRef,
}

impl Column {
    /// `field`: that of the column in the record batches.
    pub(super) fn new(feature: &Feature, place: Place, field: FieldRef, large: bool) -> Self {
        Column {
            leaf: Leaf::new(feature, place, large),
            steps: (place == Place::Lists)
                .then(|| (Offsets::new(large), NullBufferBuilder::new(0))),
            field,
        }
    }

    /// Appends a row: what the example has, or `None`. After an error, `truncate`.
    #[inline]
    pub(super) fn push(&mut self, value: Option<Pieces<'_>>) -> Result<(), Fault> {
        match &mut self.steps {
            None => self.leaf.push(value),
            Some((offsets, nulls)) => {
                let found = value.is_some();
                if let Some(list) = value {
                    for step in steps(&list) {
                        self.leaf.push(Some(step?))?;
                    }
                } else if self.leaf.missing == Missing::Error {
                    return Err(Fault::Missing);
                }
                offsets.push(self.leaf.rows)?;
                nulls.append(found || self.leaf.missing != Missing::Null);
                Ok(())
            }
        }
    }

    /// The values of the next rows lie in `block`, as far as is known.
    pub(super) fn read_from(&mut self, block: &Bytes) {
        if let Values::BinaryView(views) | Values::Utf8View(views) = &mut self.leaf.values {
            views.read_from(block);
        }
    }

    /// Takes back the rows from `rows` on, and what there is of an unfinished one.
    pub(super) fn truncate(&mut self, rows: usize) {
        match &mut self.steps {
            None => self.leaf.truncate(rows),
            Some((offsets, nulls)) => {
                offsets.truncate(rows);
                nulls.truncate(rows);
                self.leaf.truncate(offsets.last());
            }
        }
    }

    /// Most bytes that a row without the feature takes.
    pub(super) fn missing_bytes(&self) -> usize {
        match self.steps {
            None => self.leaf.missing_bytes(),
            Some(_) => size_of::<i64>(),
        }
    }

    /// The array of all rows; none are left.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let values = self
            .leaf
            .finish(item_of(&self.field, self.steps.is_some()))?;
        match &mut self.steps {
            None => Ok(values),
            Some((offsets, nulls)) => list_array(&self.field, offsets, values, nulls.finish()),
        }
    }
}

/// The field of the elements, if those are lists that are elements themselves.
fn item_of(field: &FieldRef, nested: bool) -> &FieldRef {
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) if nested => item,
        _ => field,
    }
}

/// Values of a feature, in their shape.
#[derive(Debug)]
struct Leaf {
    place: Place,
    kind: Kind,
    missing: Missing,
    rows: usize,
    values: Values,
    /// Where the values of each row end, if their number varies.
    offsets: Option<Offsets>,
    /// Values of each row, if their number does not vary.
    count: usize,
    nulls: NullBufferBuilder,
}

impl Leaf {
    fn new(feature: &Feature, place: Place, large: bool) -> Self {
        let count = feature.count();
        Leaf {
            place,
            kind: feature.values.kind(),
            missing: feature.missing.clone(),
            rows: 0,
            values: Values::new(feature.values, large),
            offsets: (feature.shape == Shape::Variable).then(|| Offsets::new(large)),
            count: count.unwrap_or(0),
            nulls: NullBufferBuilder::new(0),
        }
    }

    #[inline]
    fn push(&mut self, value: Option<Pieces<'_>>) -> Result<(), Fault> {
        let list = match value {
            Some(value) => feature(self.place, &value)?,
            None => None,
        };
        let Some((found, lists)) = list else {
            return self.push_missing();
        };
        if found != self.kind {
            let wanted = self.kind;
            return Err(Fault::Kind { found, wanted });
        }
        let before = self.values.len();
        self.values.push(self.place, &lists)?;
        let end = self.values.len();
        match &mut self.offsets {
            Some(offsets) => offsets.push(end)?,
            None if end - before == self.count => {}
            None => {
                let (found, wanted) = (end - before, self.count);
                return Err(Fault::Count { found, wanted });
            }
        }
        self.nulls.append_non_null();
        self.rows += 1;
        Ok(())
    }

    fn push_missing(&mut self) -> Result<(), Fault> {
        match &self.missing {
            Missing::Error => return Err(Fault::Missing),
            Missing::Null => {
                if self.offsets.is_none() {
                    // Rows of a fixed shape have their place, null or not.
                    self.values.push_blank(self.count)?;
                }
                self.nulls.append_null();
            }
            Missing::Default(values) => {
                let times = match (&self.offsets, values.len()) {
                    (None, 1) => self.count,
                    _ => 1,
                };
                for _ in 0..times {
                    self.values.push_default(values)?;
                }
                self.nulls.append_non_null();
            }
        }
        if let Some(offsets) = &mut self.offsets {
            offsets.push(self.values.len())?;
        }
        self.rows += 1;
        Ok(())
    }

    fn truncate(&mut self, rows: usize) {
        if self.nulls.len() > rows {
            self.nulls.truncate(rows);
        }
        let values = match &mut self.offsets {
            Some(offsets) => {
                offsets.truncate(rows);
                offsets.last()
            }
            None => rows * self.count,
        };
        self.values.truncate(values);
        self.rows = rows.min(self.rows);
    }

    fn missing_bytes(&self) -> usize {
        let bytes = match &self.missing {
            Missing::Error => 0,
            Missing::Null => self.count * self.values.width(),
            Missing::Default(values) if values.len() == 1 => {
                self.count.max(1) * (values.bytes() + self.values.width())
            }
            Missing::Default(values) => values.bytes() + values.len() * self.values.width(),
        };
        bytes + size_of::<i64>()
    }

    /// `field`: that of this array.
    fn finish(&mut self, field: &FieldRef) -> Result<ArrayRef, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        let nulls = self.nulls.finish();
        match (field.data_type(), &mut self.offsets) {
            (DataType::FixedSizeList(item, size), None) => {
                let values = self.values.finish(None)?;
                let list = FixedSizeListArray::try_new_with_length(
                    item.clone(),
                    *size,
                    values,
                    nulls,
                    rows,
                )?;
                Ok(Arc::new(list))
            }
            (_, Some(offsets)) => {
                let values = self.values.finish(None)?;
                list_array(field, offsets, values, nulls)
            }
            (_, None) => self.values.finish(nulls),
        }
    }
}

fn list_array(
    field: &Field,
    offsets: &mut Offsets,
    values: ArrayRef,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let (DataType::List(item) | DataType::LargeList(item)) = field.data_type() else {
        return Err(ArrowError::SchemaError(format!("{field} is no list")));
    };
    Ok(match offsets {
        Offsets::Small { ends, .. } => {
            let offsets = take_offsets(ends);
            Arc::new(GenericListArray::try_new(
                item.clone(),
                offsets,
                values,
                nulls,
            )?)
        }
        Offsets::Large(ends) => {
            let offsets = take_offsets(ends);
            Arc::new(GenericListArray::try_new(
                item.clone(),
                offsets,
                values,
                nulls,
            )?)
        }
    })
}

/// Values beside each other.
#[derive(Debug)]
enum Values {
    Float32(Vec<f32>),
    Int64(Vec<i64>),
    Int32(Vec<i32>, Vec<i64>),
    UInt8(Vec<u8>, Vec<i64>),
    Binary(Binary),
    Utf8(Binary),
    BinaryView(Views),
    Utf8View(Views),
}

#[derive(Debug)]
struct Binary {
    ends: Offsets,
    bytes: Vec<u8>,
}

impl Values {
    fn new(values: ValueType, large: bool) -> Self {
        let binary = || Binary {
            ends: Offsets::new(large),
            bytes: Vec::new(),
        };
        match values {
            ValueType::Float32 => Values::Float32(Vec::new()),
            ValueType::Int64 => Values::Int64(Vec::new()),
            ValueType::Int32 => Values::Int32(Vec::new(), Vec::new()),
            ValueType::UInt8 => Values::UInt8(Vec::new(), Vec::new()),
            ValueType::Binary => Values::Binary(binary()),
            ValueType::Utf8 => Values::Utf8(binary()),
            ValueType::BinaryView => Values::BinaryView(Views::default()),
            ValueType::Utf8View => Values::Utf8View(Views::default()),
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match self {
            Values::Float32(values) => values.len(),
            Values::Int64(values) => values.len(),
            Values::Int32(values, _) => values.len(),
            Values::UInt8(values, _) => values.len(),
            Values::Binary(binary) | Values::Utf8(binary) => binary.ends.len(),
            Values::BinaryView(views) | Values::Utf8View(views) => views.len(),
        }
    }

    /// Bytes that each value takes beside those of `bytes` themselves.
    fn width(&self) -> usize {
        match self {
            Values::UInt8(..) => 1,
            Values::Float32(_) | Values::Int32(..) => 4,
            Values::Int64(_) => 8,
            Values::Binary(binary) | Values::Utf8(binary) => match binary.ends {
                Offsets::Small { .. } => 4,
                Offsets::Large(_) => 8,
            },
            Values::BinaryView(_) | Values::Utf8View(_) => 16,
        }
    }

    /// Appends all values of the lists, which are of the right kind.
    #[inline]
    fn push(&mut self, place: Place, lists: &Pieces<'_>) -> Result<(), Fault> {
        match self {
            Values::Float32(values) => grow(values, |values| push_floats(place, lists, values))?,
            Values::Int64(values) => grow(values, |values| push_int64s(place, lists, values))?,
            Values::Int32(values, wide) => {
                wide.clear();
                push_int64s(place, lists, wide)?;
                narrow(wide, values)?;
            }
            Values::UInt8(values, wide) => {
                wide.clear();
                push_int64s(place, lists, wide)?;
                narrow(wide, values)?;
            }
            Values::Binary(binary) => {
                for value in bytes_values(place, lists) {
                    binary.push(value?)?;
                }
            }
            Values::Utf8(binary) => {
                for value in bytes_values(place, lists) {
                    let value = value?;
                    std::str::from_utf8(value).map_err(|_| Fault::Utf8)?;
                    binary.push(value)?;
                }
            }
            Values::BinaryView(views) => {
                for value in bytes_values(place, lists) {
                    views.push(value?)?;
                }
            }
            Values::Utf8View(views) => {
                for value in bytes_values(place, lists) {
                    let value = value?;
                    std::str::from_utf8(value).map_err(|_| Fault::Utf8)?;
                    views.push(value)?;
                }
            }
        }
        Ok(())
    }

    /// Appends what fills the place of nulls.
    fn push_blank(&mut self, count: usize) -> Result<(), Fault> {
        match self {
            Values::Float32(values) => values.resize(values.len() + count, 0.0),
            Values::Int64(values) => values.resize(values.len() + count, 0),
            Values::Int32(values, _) => values.resize(values.len() + count, 0),
            Values::UInt8(values, _) => values.resize(values.len() + count, 0),
            Values::Binary(binary) | Values::Utf8(binary) => {
                for _ in 0..count {
                    binary.push(&[])?;
                }
            }
            Values::BinaryView(views) | Values::Utf8View(views) => {
                for _ in 0..count {
                    views.push(&[])?;
                }
            }
        }
        Ok(())
    }

    /// Appends values that the schema was found to be right about.
    fn push_default(&mut self, default: &DefaultValues) -> Result<(), Fault> {
        match (self, default) {
            (Values::Float32(values), DefaultValues::Float(default)) => values.extend(default),
            (Values::Int64(values), DefaultValues::Int64(default)) => values.extend(default),
            (Values::Int32(values, _), DefaultValues::Int64(default)) => narrow(default, values)?,
            (Values::UInt8(values, _), DefaultValues::Int64(default)) => narrow(default, values)?,
            (Values::Binary(binary) | Values::Utf8(binary), DefaultValues::Bytes(default)) => {
                for value in default {
                    binary.push(value)?;
                }
            }
            (
                Values::BinaryView(views) | Values::Utf8View(views),
                DefaultValues::Bytes(default),
            ) => {
                for value in default {
                    views.push(value)?;
                }
            }
            // Of another type: the schema refuses it.
            _ => return Err(Fault::Missing),
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Values::Float32(values) => values.truncate(len),
            Values::Int64(values) => values.truncate(len),
            Values::Int32(values, _) => values.truncate(len),
            Values::UInt8(values, _) => values.truncate(len),
            Values::Binary(binary) | Values::Utf8(binary) => {
                binary.ends.truncate(len);
                binary.bytes.truncate(binary.ends.last());
            }
            Values::BinaryView(views) | Values::Utf8View(views) => views.truncate(len),
        }
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
        match self {
            Values::Float32(values) => primitive::<Float32Type>(values, nulls),
            Values::Int64(values) => primitive::<Int64Type>(values, nulls),
            Values::Int32(values, _) => primitive::<Int32Type>(values, nulls),
            Values::UInt8(values, _) => primitive::<UInt8Type>(values, nulls),
            Values::BinaryView(views) => views.finish(false, nulls),
            Values::Utf8View(views) => views.finish(true, nulls),
            Values::Binary(binary) => {
                let bytes = Buffer::from_vec(take_values(&mut binary.bytes));
                Ok(match &mut binary.ends {
                    Offsets::Small { ends, .. } => Arc::new(GenericBinaryArray::try_new(
                        take_offsets(ends),
                        bytes,
                        nulls,
                    )?),
                    Offsets::Large(ends) => Arc::new(GenericBinaryArray::try_new(
                        take_offsets(ends),
                        bytes,
                        nulls,
                    )?),
                })
            }
            Values::Utf8(binary) => {
                let bytes = Buffer::from_vec(take_values(&mut binary.bytes));
                Ok(match &mut binary.ends {
                    Offsets::Small { ends, .. } => Arc::new(GenericStringArray::try_new(
                        take_offsets(ends),
                        bytes,
                        nulls,
                    )?),
                    Offsets::Large(ends) => Arc::new(GenericStringArray::try_new(
                        take_offsets(ends),
                        bytes,
                        nulls,
                    )?),
                })
            }
        }
    }
}

impl Binary {
    #[inline]
    fn push(&mut self, value: &[u8]) -> Result<(), Fault> {
        grow(&mut self.bytes, |bytes| bytes.extend_from_slice(value));
        self.ends.push(self.bytes.len())
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    let values = ScalarBuffer::from(take_values(values));
    Ok(Arc::new(PrimitiveArray::<T>::try_new(values, nulls)?))
}

/// Appends by `push`. Most of the time of copying large values goes to faults of fresh pages, unless these are huge.
#[inline]
fn grow<T, R>(values: &mut Vec<T>, push: impl FnOnce(&mut Vec<T>) -> R) -> R {
    let before = values.capacity();
    let pushed = push(values);
    if values.capacity() != before {
        prefer_huge_pages(values);
    }
    pushed
}

/// The values, with room for as many in the next batch: growing step by step would copy them again and again. What is
/// not used of that room is never touched.
fn take_values<T>(values: &mut Vec<T>) -> Vec<T> {
    let mut room = Vec::new();
    // Refused, it grows step by step.
    let _ = room.try_reserve_exact(values.len() + values.len() / 16);
    prefer_huge_pages(&mut room);
    std::mem::replace(values, room)
}

fn take_offsets<O: OffsetSizeTrait>(ends: &mut Vec<O>) -> OffsetBuffer<O> {
    let mut next = Vec::with_capacity(ends.len());
    next.push(O::default());
    OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(ends, next)))
}

fn narrow<T: TryFrom<i64>>(wide: &[i64], out: &mut Vec<T>) -> Result<(), Fault> {
    out.reserve(wide.len());
    for value in wide {
        out.push(T::try_from(*value).map_err(|_| Fault::Range { value: *value })?);
    }
    Ok(())
}

/// Where values end, with a 0 before them.
#[derive(Debug)]
enum Offsets {
    Small {
        ends: Vec<i32>,
        /// As far as they reach: less in tests.
        most: i32,
    },
    Large(Vec<i64>),
}

impl Offsets {
    fn new(large: bool) -> Self {
        match large {
            false => Offsets::Small {
                ends: vec![0],
                most: i32::MAX,
            },
            true => Offsets::Large(vec![0]),
        }
    }

    /// How many ends there are.
    #[inline]
    fn len(&self) -> usize {
        match self {
            Offsets::Small { ends, .. } => ends.len() - 1,
            Offsets::Large(ends) => ends.len() - 1,
        }
    }

    #[inline]
    fn push(&mut self, end: usize) -> Result<(), Fault> {
        match self {
            Offsets::Small { ends, most } => match i32::try_from(end) {
                Ok(end) if end <= *most => ends.push(end),
                _ => return Err(Fault::Full),
            },
            Offsets::Large(ends) => ends.push(i64::try_from(end).map_err(|_| Fault::Full)?),
        }
        Ok(())
    }

    fn last(&self) -> usize {
        // None is negative: all come from `push`.
        match self {
            Offsets::Small { ends, .. } => ends.last().map_or(0, |end| *end as usize),
            Offsets::Large(ends) => ends.last().map_or(0, |end| *end as usize),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Offsets::Small { ends, .. } => ends.truncate(len + 1),
            Offsets::Large(ends) => ends.truncate(len + 1),
        }
    }
}

#[cfg(test)]
impl Column {
    /// Lets offsets of 32 bits reach no further than `to`.
    pub(super) fn limit(&mut self, to: i32) {
        let values = match &mut self.leaf.values {
            Values::Binary(binary) | Values::Utf8(binary) => Some(&mut binary.ends),
            _ => None,
        };
        let steps = self.steps.as_mut().map(|(offsets, _)| offsets);
        let all = values
            .into_iter()
            .chain(&mut self.leaf.offsets)
            .chain(steps);
        for offsets in all {
            if let Offsets::Small { most, .. } = offsets {
                *most = to;
            }
        }
    }
}
