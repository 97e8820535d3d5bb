//! What statistics say about the values they were made of.
//!
//! Everything here errs to one side: a set of rows is ruled out only where it is certain. Bounds that a writer truncated
//! are bounds all the same, so `lower <= value <= upper` is all that is taken for true.

use std::sync::Arc;

use arrow_schema::DataType;
use parquet::basic::{ColumnOrder, LogicalType, SortOrder, Type};
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescriptor;

use super::predicate::{Key, Node, Operator, Target};

/// Bounds of some values of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) lower: Option<Key>,
    pub(super) upper: Option<Key>,
    /// Nulls among them; `None`: there may be some.
    pub(super) nulls: Option<Nulls>,
    /// Whether NaN may be among them.
    pub(super) nan: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nulls {
    Never,
    Some,
    Always,
}

/// How the bounds of a column are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Signed,
    Unsigned,
    Float,
    Bytes,
    /// Big-endian two's complement.
    SignedBytes,
}

impl Bounds {
    /// Nothing is known.
    fn unknown(target: &Target) -> Self {
        Bounds {
            lower: None,
            upper: None,
            nulls: None,
            nan: is_float(&target.data_type),
        }
    }

    /// Those of a column chunk.
    pub(super) fn of_chunk(
        target: &Target,
        chunk: &ColumnChunkMetaData,
        order: ColumnOrder,
    ) -> Self {
        let mut bounds = Bounds::unknown(target);
        let Some(statistics) = chunk.statistics() else {
            return bounds;
        };
        let count = u64::try_from(chunk.num_values()).unwrap_or(0);
        bounds.nulls = statistics.null_count_opt().and_then(|nulls| match nulls {
            0 => Some(Nulls::Never),
            nulls if nulls == count => Some(Nulls::Always),
            // More than there are values: a number not to be trusted.
            nulls if nulls > count => None,
            _ => Some(Nulls::Some),
        });
        if statistics.nan_count_opt() == Some(0) {
            bounds.nan = false;
        }
        let Some(reading) = reading(target, chunk.column_descr(), order) else {
            return bounds;
        };
        // The old fields were compared as signed numbers, whatever the type.
        let old = statistics.is_min_max_deprecated();
        if old && !matches!(reading, Reading::Signed | Reading::Float) {
            return bounds;
        }
        // One that is there and cannot be read casts doubt on the other.
        let some = [statistics.min_bytes_opt(), statistics.max_bytes_opt()].map(|b| b.is_some());
        let (lower, upper) = match statistics {
            Statistics::Boolean(values) => ends(values.min_opt(), values.max_opt(), |v| {
                reading.int(i64::from(*v), target)
            }),
            Statistics::Int32(values) => ends(values.min_opt(), values.max_opt(), |v| {
                reading.int32(*v, target)
            }),
            Statistics::Int64(values) => ends(values.min_opt(), values.max_opt(), |v| {
                reading.int(*v, target)
            }),
            Statistics::Float(values) => ends(values.min_opt(), values.max_opt(), |v| {
                reading.float(f64::from(*v))
            }),
            Statistics::Double(values) => {
                ends(values.min_opt(), values.max_opt(), |v| reading.float(*v))
            }
            Statistics::ByteArray(values) => ends(values.min_opt(), values.max_opt(), |v| {
                reading.bytes(v.data(), target)
            }),
            Statistics::FixedLenByteArray(values) => {
                ends(values.min_opt(), values.max_opt(), |v| {
                    reading.bytes(v.data(), target)
                })
            }
            Statistics::Int96(_) => (None, None),
        };
        if some == [lower.is_some(), upper.is_some()] {
            bounds.set(lower, upper);
        }
        bounds
    }

    /// Those of page `page` of a chunk, which has that many rows.
    pub(super) fn of_page(
        target: &Target,
        descriptor: &ColumnDescriptor,
        order: ColumnOrder,
        index: &ColumnIndexMetaData,
        page: usize,
        rows: u64,
    ) -> Self {
        let mut bounds = Bounds::unknown(target);
        if page as u64 >= index.num_pages() {
            return bounds;
        }
        if index.is_null_page(page) {
            bounds.nulls = Some(Nulls::Always);
            return bounds;
        }
        let counts = index.null_counts().and_then(|counts| counts.get(page));
        bounds.nulls = counts.and_then(|nulls| match u64::try_from(*nulls).ok()? {
            0 => Some(Nulls::Never),
            nulls if nulls >= rows => None,
            _ => Some(Nulls::Some),
        });
        if index.nan_counts().and_then(|counts| counts.get(page)) == Some(&0) {
            bounds.nan = false;
        }
        let Some(reading) = reading(target, descriptor, order) else {
            return bounds;
        };
        let (lower, upper) = match index {
            ColumnIndexMetaData::BOOLEAN(index) => {
                ends(index.min_value(page), index.max_value(page), |v| {
                    reading.int(i64::from(*v), target)
                })
            }
            ColumnIndexMetaData::INT32(index) => {
                ends(index.min_value(page), index.max_value(page), |v| {
                    reading.int32(*v, target)
                })
            }
            ColumnIndexMetaData::INT64(index) => {
                ends(index.min_value(page), index.max_value(page), |v| {
                    reading.int(*v, target)
                })
            }
            ColumnIndexMetaData::FLOAT(index) => {
                ends(index.min_value(page), index.max_value(page), |v| {
                    reading.float(f64::from(*v))
                })
            }
            ColumnIndexMetaData::DOUBLE(index) => {
                ends(index.min_value(page), index.max_value(page), |v| {
                    reading.float(*v)
                })
            }
            ColumnIndexMetaData::BYTE_ARRAY(index)
            | ColumnIndexMetaData::FIXED_LEN_BYTE_ARRAY(index) => {
                ends(index.min_value(page), index.max_value(page), |v| {
                    reading.bytes(v, target)
                })
            }
            ColumnIndexMetaData::INT96(_) => (None, None),
        };
        // A page with values has both; one that cannot be read casts doubt on the other.
        if lower.is_some() == upper.is_some() {
            bounds.set(lower, upper);
        }
        bounds
    }

    /// Bounds the wrong way round are of a writer that cannot be trusted.
    fn set(&mut self, lower: Option<Key>, upper: Option<Key>) {
        if let (Some(lower), Some(upper)) = (&lower, &upper)
            && Operator::Gt.holds(lower.order(upper))
        {
            return;
        }
        self.lower = lower;
        self.upper = upper;
    }

    /// Whether a comparison may be true for one of the values, and whether it may be false.
    pub(super) fn verdict(&self, node: &Node) -> (bool, bool) {
        let nulls = self.nulls;
        match node {
            Node::IsNull(_) => (nulls != Some(Nulls::Never), nulls != Some(Nulls::Always)),
            _ if nulls == Some(Nulls::Always) => (false, false),
            Node::Compare(_, operator, key) => self.compare(*operator, key),
            Node::In(_, keys) => keys.iter().fold((false, true), |(yes, no), key| {
                let (may, may_not) = self.compare(Operator::Eq, key);
                (yes || may, no && may_not)
            }),
            Node::And(_) | Node::Or(_) | Node::Not(_) => (true, true),
        }
    }

    fn compare(&self, operator: Operator, key: &Key) -> (bool, bool) {
        if matches!(key, Key::Float(value) if value.is_nan()) {
            let holds = operator == Operator::Ne;
            return (holds, !holds);
        }
        // `None`: no bound, so anything may be.
        let lower = self.lower.as_ref().map(|lower| lower.order(key));
        let upper = self.upper.as_ref().map(|upper| upper.order(key));
        let may = |bound: Option<Option<std::cmp::Ordering>>, operator: Operator| {
            bound.is_none_or(|order| operator.holds(order))
        };
        match operator {
            Operator::Eq => {
                let within = may(lower, Operator::Le) && may(upper, Operator::Ge);
                let only = lower.is_some_and(|order| Operator::Eq.holds(order))
                    && upper.is_some_and(|order| Operator::Eq.holds(order));
                (within, !only || self.nan)
            }
            Operator::Ne => {
                let (equal, other) = self.compare(Operator::Eq, key);
                (other, equal)
            }
            Operator::Lt => (
                may(lower, Operator::Lt),
                may(upper, Operator::Ge) || self.nan,
            ),
            Operator::Le => (
                may(lower, Operator::Le),
                may(upper, Operator::Gt) || self.nan,
            ),
            Operator::Gt => (
                may(upper, Operator::Gt),
                may(lower, Operator::Le) || self.nan,
            ),
            Operator::Ge => (
                may(upper, Operator::Ge),
                may(lower, Operator::Lt) || self.nan,
            ),
        }
    }
}

/// What `key` makes of the least and the largest value, where they are there.
fn ends<T: ?Sized>(
    least: Option<&T>,
    largest: Option<&T>,
    key: impl Fn(&T) -> Option<Key>,
) -> (Option<Key>, Option<Key>) {
    (least.and_then(&key), largest.and_then(&key))
}

/// Whether a Bloom filter leaves it possible that the values of a chunk satisfy a comparison.
pub(super) fn may_hold(filter: &Sbbf, node: &Node, target: &Target, physical: Type) -> bool {
    let may = |key: &Key| match (physical, key) {
        (Type::INT32, Key::Int(value)) => match i32::try_from(*value) {
            Ok(value) => filter.check(&value),
            // Unsigned columns keep their bits.
            Err(_) => u32::try_from(*value).is_ok_and(|value| filter.check(&(value as i32))),
        },
        (Type::INT64, Key::Int(value)) => match i64::try_from(*value) {
            Ok(value) => filter.check(&value),
            Err(_) => u64::try_from(*value).is_ok_and(|value| filter.check(&(value as i64))),
        },
        // The two zeros are equal and have different bits.
        (_, Key::Float(value)) if *value == 0.0 => true,
        (Type::FLOAT, Key::Float(value)) => {
            let narrow = *value as f32;
            f64::from(narrow) == *value && filter.check(&narrow)
        }
        (Type::DOUBLE, Key::Float(value)) => !value.is_nan() && filter.check(value),
        (Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY, Key::Bytes(bytes)) => {
            filter.check(&bytes[..])
        }
        _ => true,
    };
    if !is_hashed_as_compared(&target.data_type, physical) {
        return true;
    }
    match node {
        Node::Compare(_, Operator::Eq, key) => may(key),
        Node::In(_, keys) => keys.iter().any(may),
        _ => true,
    }
}

/// Whether equal values of the Arrow type have equal bytes in the file.
fn is_hashed_as_compared(data_type: &DataType, physical: Type) -> bool {
    use DataType::*;
    match physical {
        Type::INT32 => matches!(
            data_type,
            Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32 | Date32 | Time32(_)
        ),
        Type::INT64 => matches!(
            data_type,
            Int64 | UInt64 | Time64(_) | Timestamp(..) | Duration(_)
        ),
        Type::FLOAT => *data_type == Float32,
        Type::DOUBLE => *data_type == Float64,
        Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => matches!(
            data_type,
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_)
        ),
        Type::BOOLEAN | Type::INT96 => false,
    }
}

fn is_float(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Float16 | DataType::Float32 | DataType::Float64
    )
}

/// How to read the bounds of a column; `None`: not at all.
fn reading(target: &Target, descriptor: &ColumnDescriptor, order: ColumnOrder) -> Option<Reading> {
    use DataType::*;
    let sort = match order {
        ColumnOrder::TYPE_DEFINED_ORDER(sort) => sort,
        ColumnOrder::IEEE_754_TOTAL_ORDER => SortOrder::SIGNED,
        // Before orders were written down everything was signed.
        ColumnOrder::UNDEFINED => SortOrder::SIGNED,
        ColumnOrder::INT96_TIMESTAMP_ORDER | ColumnOrder::UNKNOWN => return None,
    };
    let defined = order != ColumnOrder::UNDEFINED;
    let wanted = descriptor.sort_order();
    let physical = descriptor.physical_type();
    let reading = match (physical, &target.data_type) {
        (Type::BOOLEAN, Boolean) => Reading::Signed,
        (
            Type::INT32 | Type::INT64,
            Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Date32 | Time32(_)
            | Time64(_) | Timestamp(..) | Duration(_),
        ) => match wanted {
            SortOrder::SIGNED => Reading::Signed,
            SortOrder::UNSIGNED if defined => Reading::Unsigned,
            _ => return None,
        },
        (
            Type::INT32 | Type::INT64,
            Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale),
        ) if i32::from(*scale) == descriptor.type_scale() => Reading::Signed,
        (Type::FLOAT, Float32) | (Type::DOUBLE, Float64) => Reading::Float,
        (
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY,
            Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale),
        ) if defined
            && i32::from(*scale) == descriptor.type_scale()
            && wanted == SortOrder::SIGNED =>
        {
            Reading::SignedBytes
        }
        (
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY,
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_),
        ) if defined && wanted == SortOrder::UNSIGNED => {
            debug_assert!(!matches!(
                descriptor.logical_type_ref(),
                Some(LogicalType::Decimal(_))
            ));
            Reading::Bytes
        }
        _ => return None,
    };
    // An order that is written down must be that of the type.
    let agrees = match reading {
        Reading::Signed | Reading::Float | Reading::SignedBytes => {
            physical == Type::BOOLEAN || sort != SortOrder::UNSIGNED && sort != SortOrder::UNDEFINED
        }
        Reading::Unsigned | Reading::Bytes => sort == SortOrder::UNSIGNED,
    };
    agrees.then_some(reading)
}

impl Reading {
    fn int32(self, value: i32, target: &Target) -> Option<Key> {
        match self {
            Reading::Unsigned => in_range(i128::from(value as u32), target),
            _ => self.int(i64::from(value), target),
        }
    }

    fn int(self, value: i64, target: &Target) -> Option<Key> {
        match self {
            Reading::Signed => in_range(i128::from(value), target),
            Reading::Unsigned => in_range(i128::from(value as u64), target),
            _ => None,
        }
    }

    fn float(self, value: f64) -> Option<Key> {
        (self == Reading::Float && !value.is_nan()).then_some(Key::Float(value))
    }

    fn bytes(self, value: &[u8], target: &Target) -> Option<Key> {
        match self {
            Reading::Bytes => Some(Key::Bytes(Arc::from(value))),
            Reading::SignedBytes => {
                let (first, len) = (*value.first()?, value.len());
                let fill = if first & 0x80 == 0 { 0 } else { 0xff };
                let mut wide = [fill; 16];
                wide.get_mut(16usize.checked_sub(len)?..)?
                    .copy_from_slice(value);
                in_range(i128::from_be_bytes(wide), target)
            }
            _ => None,
        }
    }
}

/// A bound outside the Arrow type is of values that change when they are read.
fn in_range(value: i128, target: &Target) -> Option<Key> {
    use DataType::*;
    let range = match target.data_type {
        Boolean => 0..=1,
        Int8 => i128::from(i8::MIN)..=i128::from(i8::MAX),
        Int16 => i128::from(i16::MIN)..=i128::from(i16::MAX),
        Int32 | Date32 | Time32(_) | Decimal32(..) => i128::from(i32::MIN)..=i128::from(i32::MAX),
        UInt8 => 0..=i128::from(u8::MAX),
        UInt16 => 0..=i128::from(u16::MAX),
        UInt32 => 0..=i128::from(u32::MAX),
        UInt64 => 0..=i128::from(u64::MAX),
        Decimal128(..) => i128::MIN..=i128::MAX,
        _ => i128::from(i64::MIN)..=i128::from(i64::MAX),
    };
    range.contains(&value).then_some(Key::Int(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(lower: f64, upper: f64, nan: bool) -> Bounds {
        Bounds {
            lower: Some(Key::Float(lower)),
            upper: Some(Key::Float(upper)),
            nulls: Some(Nulls::Never),
            nan,
        }
    }

    fn verdict(bounds: &Bounds, operator: Operator, key: f64) -> (bool, bool) {
        bounds.verdict(&Node::Compare(0, operator, Key::Float(key)))
    }

    #[test]
    fn nan_is_never_ruled_out_where_it_decides() {
        let clean = bounds(1.0, 2.0, false);
        let dirty = bounds(1.0, 2.0, true);
        assert_eq!(verdict(&clean, Operator::Lt, 3.0), (true, false));
        // NaN is not smaller than 3: the comparison may be false, so its negation may be true.
        assert_eq!(verdict(&dirty, Operator::Lt, 3.0), (true, true));
        assert_eq!(verdict(&dirty, Operator::Gt, 3.0), (false, true));
        let one = bounds(1.0, 1.0, true);
        assert_eq!(verdict(&one, Operator::Ne, 1.0), (true, true));
        assert_eq!(
            verdict(&bounds(1.0, 1.0, false), Operator::Ne, 1.0),
            (false, true)
        );
        assert_eq!(verdict(&clean, Operator::Eq, f64::NAN), (false, true));
        assert_eq!(verdict(&clean, Operator::Ne, f64::NAN), (true, false));
    }

    #[test]
    fn zeros_are_equal() {
        let zero = bounds(0.0, 0.0, false);
        assert_eq!(verdict(&zero, Operator::Eq, -0.0), (true, false));
        assert_eq!(verdict(&zero, Operator::Lt, -0.0), (false, true));
    }

    #[test]
    fn verdicts_agree_with_every_value_between_the_bounds() {
        let operators = [
            Operator::Eq,
            Operator::Ne,
            Operator::Lt,
            Operator::Le,
            Operator::Gt,
            Operator::Ge,
        ];
        for lower in 0..5i128 {
            for upper in lower..5 {
                let bounds = Bounds {
                    lower: Some(Key::Int(lower)),
                    upper: Some(Key::Int(upper)),
                    nulls: Some(Nulls::Some),
                    nan: false,
                };
                for key in -1..6 {
                    for operator in operators {
                        let node = Node::Compare(0, operator, Key::Int(key));
                        let holds = |value: i128| operator.holds(Some(value.cmp(&key)));
                        let expected = (
                            (lower..=upper).any(holds),
                            (lower..=upper).any(|value| !holds(value)),
                        );
                        assert_eq!(
                            bounds.verdict(&node),
                            expected,
                            "{lower}..={upper} {operator} {key}"
                        );
                    }
                }
            }
        }
    }
}
