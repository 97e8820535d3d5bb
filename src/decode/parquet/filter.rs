//! Predicates on decoded columns: which rows they are true for, exactly.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, NullBuffer};
use arrow_schema::{DataType, TimeUnit};

use super::unit::Unit;
use crate::error::Result;
use crate::format::parquet::{Bound, GroupPlan, Key, Node, Operator, Rows, invalid};

/// Rows of `group` that are wanted and that `predicate` is true for; `unit` decodes its leaves, of all rows that the group decodes. None, if it
/// was stopped.
pub(super) fn matched(
    predicate: &Bound,
    unit: &mut Unit,
    group: &GroupPlan,
    stopped: impl Fn() -> bool,
) -> Result<Rows> {
    let mut at = 0;
    let mut positions = Vec::new();
    while let Some(batch) = unit.next()? {
        if stopped() {
            return Ok(Rows::none());
        }
        let bits = matches(predicate, &batch)?;
        let runs = bits.set_slices();
        positions.extend(runs.map(|(start, end)| at + start as u64..at + end as u64));
        at += batch.num_rows() as u64;
    }
    let rows = Rows::of(positions).placed_in(&group.decoded);
    Ok(rows.intersect(&group.rows))
}

/// Rows of `batch` that `predicate` is true for. The batch has the leaves of the predicate and no others.
fn matches(predicate: &Bound, batch: &RecordBatch) -> Result<BooleanBuffer> {
    let mut leaves = Vec::new();
    for column in batch.columns() {
        collect(column, None, &mut leaves);
    }
    let rows = batch.num_rows();
    let numbers = predicate.leaves();
    let column = |at: usize| -> Result<&(ArrayRef, Option<NullBuffer>)> {
        let leaf = predicate.targets.get(at).map(|target| target.leaf);
        let position = leaf.and_then(|leaf| numbers.binary_search(&leaf).ok());
        position
            .and_then(|position| leaves.get(position))
            .ok_or_else(|| invalid("a predicate on a column that was not decoded"))
    };
    let mut leaf = |node: &Node| {
        let (array, nulls) = match node {
            Node::Compare(at, ..) | Node::In(at, _) | Node::IsNull(at) => column(*at)?,
            Node::And(_) | Node::Or(_) | Node::Not(_) => {
                return Err(invalid("a predicate that compares nothing"));
            }
        };
        let valid = match nulls {
            Some(nulls) => nulls.inner().clone(),
            None => BooleanBuffer::new_set(rows),
        };
        if matches!(node, Node::IsNull(_)) {
            return Ok((!&valid, valid));
        }
        let holds = test(array, node)?;
        Ok((&holds & &valid, &!&holds & &valid))
    };
    let folded = predicate
        .node
        .fold(&mut leaf, &|a, b| a & b, &|a, b| a | b)?;
    Ok(match folded {
        Some((yes, _)) => yes,
        None => BooleanBuffer::new_set(rows),
    })
}

/// The leaves below `array` in order, each with the nulls of everything above it.
fn collect(
    array: &ArrayRef,
    above: Option<&NullBuffer>,
    leaves: &mut Vec<(ArrayRef, Option<NullBuffer>)>,
) {
    let nulls = NullBuffer::union(above, array.logical_nulls().as_ref());
    match array.as_struct_opt() {
        Some(parent) => {
            for child in parent.columns() {
                collect(child, nulls.as_ref(), leaves);
            }
        }
        None => leaves.push((array.clone(), nulls)),
    }
}

/// Where the comparison holds; anything where the value is null.
fn test(array: &ArrayRef, node: &Node) -> Result<BooleanBuffer> {
    if let DataType::Dictionary(..) = array.data_type() {
        let dictionary = array.as_any_dictionary();
        if dictionary.values().is_empty() {
            return Ok(BooleanBuffer::new_unset(array.len()));
        }
        let of_values = test(dictionary.values(), node)?;
        let keys = dictionary.normalized_keys();
        return Ok(BooleanBuffer::collect_bool(array.len(), |row| {
            keys.get(row)
                .is_some_and(|key| *key < of_values.len() && of_values.value(*key))
        }));
    }
    macro_rules! ints {
        ($($pattern:pat => $type:ty,)*) => {
            match array.data_type() {
                $($pattern => Some(test_ints::<$type>(array, node)),)*
                _ => None,
            }
        };
    }
    let ints = ints! {
        DataType::Int8 => Int8Type,
        DataType::Int16 => Int16Type,
        DataType::Int32 => Int32Type,
        DataType::Int64 => Int64Type,
        DataType::UInt8 => UInt8Type,
        DataType::UInt16 => UInt16Type,
        DataType::UInt32 => UInt32Type,
        DataType::UInt64 => UInt64Type,
        DataType::Date32 => Date32Type,
        DataType::Date64 => Date64Type,
        DataType::Time32(TimeUnit::Second) => Time32SecondType,
        DataType::Time32(TimeUnit::Millisecond) => Time32MillisecondType,
        DataType::Time64(TimeUnit::Microsecond) => Time64MicrosecondType,
        DataType::Time64(TimeUnit::Nanosecond) => Time64NanosecondType,
        DataType::Timestamp(TimeUnit::Second, _) => TimestampSecondType,
        DataType::Timestamp(TimeUnit::Millisecond, _) => TimestampMillisecondType,
        DataType::Timestamp(TimeUnit::Microsecond, _) => TimestampMicrosecondType,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => TimestampNanosecondType,
        DataType::Duration(TimeUnit::Second) => DurationSecondType,
        DataType::Duration(TimeUnit::Millisecond) => DurationMillisecondType,
        DataType::Duration(TimeUnit::Microsecond) => DurationMicrosecondType,
        DataType::Duration(TimeUnit::Nanosecond) => DurationNanosecondType,
        DataType::Decimal32(..) => Decimal32Type,
        DataType::Decimal64(..) => Decimal64Type,
        DataType::Decimal128(..) => Decimal128Type,
    };
    if let Some(holds) = ints {
        return holds;
    }
    match array.data_type() {
        DataType::Boolean => {
            let values = array.as_boolean().values();
            test_each(array.len(), node, |row| {
                Key::Int(i128::from(values.value(row)))
            })
        }
        DataType::Float16 => {
            let values = array.as_primitive::<Float16Type>().values();
            test_floats(values.len(), node, |row| values[row].to_f64())
        }
        DataType::Float32 => {
            let values = array.as_primitive::<Float32Type>().values();
            test_floats(values.len(), node, |row| f64::from(values[row]))
        }
        DataType::Float64 => {
            let values = array.as_primitive::<Float64Type>().values();
            test_floats(values.len(), node, |row| values[row])
        }
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            test_bytes(array.len(), node, |row| array.value(row).as_bytes())
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>();
            test_bytes(array.len(), node, |row| array.value(row).as_bytes())
        }
        DataType::Utf8View => {
            let array = array.as_string_view();
            test_bytes(array.len(), node, |row| array.value(row).as_bytes())
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            test_bytes(array.len(), node, |row| array.value(row))
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            test_bytes(array.len(), node, |row| array.value(row))
        }
        DataType::BinaryView => {
            let array = array.as_binary_view();
            test_bytes(array.len(), node, |row| array.value(row))
        }
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            test_bytes(array.len(), node, |row| array.value(row))
        }
        _ => Err(invalid(format!(
            "a predicate on type {}",
            array.data_type()
        ))),
    }
}

fn test_ints<T: ArrowPrimitiveType>(array: &ArrayRef, node: &Node) -> Result<BooleanBuffer>
where
    T::Native: Ord + Copy + TryFrom<i128> + Into<i128> + std::hash::Hash,
{
    let values = array.as_primitive::<T>().values();
    match node {
        Node::Compare(_, operator, Key::Int(key)) => Ok(match T::Native::try_from(*key) {
            Ok(key) => BooleanBuffer::collect_bool(values.len(), |row| {
                operator.holds(Some(values[row].cmp(&key)))
            }),
            // Outside the type: on one side of every value.
            Err(_) => {
                let order = if *key < 0 {
                    Ordering::Greater
                } else {
                    Ordering::Less
                };
                constant(operator.holds(Some(order)), values.len())
            }
        }),
        Node::In(_, keys) => {
            let keys: HashSet<T::Native> = keys
                .iter()
                .filter_map(|key| match key {
                    Key::Int(key) => T::Native::try_from(*key).ok(),
                    _ => None,
                })
                .collect();
            Ok(BooleanBuffer::collect_bool(values.len(), |row| {
                keys.contains(&values[row])
            }))
        }
        _ => Err(mismatch()),
    }
}

fn test_floats(len: usize, node: &Node, value: impl Fn(usize) -> f64) -> Result<BooleanBuffer> {
    match node {
        Node::Compare(_, operator, Key::Float(key)) => {
            Ok(BooleanBuffer::collect_bool(len, |row| {
                operator.holds(value(row).partial_cmp(key))
            }))
        }
        Node::In(_, _) => test_each(len, node, |row| Key::Float(value(row))),
        _ => Err(mismatch()),
    }
}

fn test_bytes<'a>(
    len: usize,
    node: &Node,
    value: impl Fn(usize) -> &'a [u8],
) -> Result<BooleanBuffer> {
    match node {
        Node::Compare(_, operator, Key::Bytes(key)) => {
            Ok(BooleanBuffer::collect_bool(len, |row| {
                operator.holds(Some(value(row).cmp(key)))
            }))
        }
        Node::In(_, keys) => {
            let keys: HashSet<&[u8]> = keys
                .iter()
                .filter_map(|key| match key {
                    Key::Bytes(key) => Some(&**key),
                    _ => None,
                })
                .collect();
            Ok(BooleanBuffer::collect_bool(len, |row| {
                keys.contains(value(row))
            }))
        }
        _ => Err(mismatch()),
    }
}

fn test_each(len: usize, node: &Node, value: impl Fn(usize) -> Key) -> Result<BooleanBuffer> {
    match node {
        Node::Compare(_, operator, key) => Ok(BooleanBuffer::collect_bool(len, |row| {
            operator.holds(value(row).order(key))
        })),
        Node::In(_, keys) => Ok(BooleanBuffer::collect_bool(len, |row| {
            let value = value(row);
            keys.iter().any(|key| Operator::Eq.holds(value.order(key)))
        })),
        _ => Err(mismatch()),
    }
}

fn constant(value: bool, len: usize) -> BooleanBuffer {
    if value {
        BooleanBuffer::new_set(len)
    } else {
        BooleanBuffer::new_unset(len)
    }
}

fn mismatch() -> crate::error::Error {
    invalid("a predicate that compares different types")
}

/// The rows of `batch` at the positions `kept`.
pub(super) fn kept_of(batch: RecordBatch, kept: &Rows) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    match kept.ranges() {
        [] => Ok(batch.slice(0, 0)),
        [range] => {
            let len = (range.end - range.start) as usize;
            Ok(batch.slice(range.start as usize, len))
        }
        ranges => {
            let mut bits = BooleanBufferBuilder::new(rows);
            let mut at = 0;
            for range in ranges {
                bits.append_n((range.start - at) as usize, false);
                bits.append_n((range.end - range.start) as usize, true);
                at = range.end;
            }
            bits.append_n(rows - at as usize, false);
            keep(batch, bits.finish(), None)
        }
    }
}

/// Rows of `batch` for which `bits` is set.
fn keep(batch: RecordBatch, bits: BooleanBuffer, part: Option<Arc<str>>) -> Result<RecordBatch> {
    if bits.count_set_bits() == batch.num_rows() {
        return Ok(batch);
    }
    super::failure::contain_arrow(part, || {
        arrow_select::filter::filter_record_batch(&batch, &BooleanArray::new(bits, None))
    })
}
