//! Which leaf columns the kernels decode, and as what.

use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use parquet::basic::Type;
use parquet::schema::types::ColumnDescriptor;

use crate::cuda::columns::{Convert, Values};

/// A leaf column that the kernels decode.
#[derive(Clone, Debug)]
pub(super) struct LeafShape {
    pub(super) data_type: DataType,
    pub(super) values: Values,
    pub(super) convert: Convert,
    /// Whether it has definition levels.
    pub(super) nullable: bool,
    /// Bits of a value in the Arrow array.
    bits: u64,
}

impl LeafShape {
    /// The shape of a leaf whose top-level column is to become `field`.
    ///
    /// # Errors
    /// Why the kernels do not decode it, in words.
    pub(super) fn of(leaf: &ColumnDescriptor, field: &Field) -> Result<Self, String> {
        if leaf.max_rep_level() > 0 || leaf.max_def_level() > 1 || leaf.path().parts().len() > 1 {
            return Err("it is nested".into());
        }
        let (kind, data_type) = (leaf.physical_type(), field.data_type());
        let length = leaf.type_length();
        let width = match kind {
            Type::BOOLEAN => 0,
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => match u32::try_from(length) {
                Ok(width @ 1..) => width,
                _ => return Err("its values have no bytes".into()),
            },
            Type::BYTE_ARRAY => return Err("its values have lengths of their own".into()),
        };
        let convert = convert_of(kind, width, data_type);
        let convert = convert.ok_or_else(|| format!("no kernel makes {data_type} of {kind}"))?;
        let (values, bits) = match kind {
            Type::BOOLEAN => (Values::Boolean, 1),
            _ => (Values::Fixed { width }, u64::from(made(convert, width)) * 8),
        };
        Ok(LeafShape {
            data_type: data_type.clone(),
            values,
            convert,
            nullable: leaf.max_def_level() == 1,
            bits,
        })
    }

    /// Bytes that the array of so many rows takes on the device.
    pub(super) fn bytes(&self, rows: u64) -> u64 {
        let values = rows.saturating_mul(self.bits).div_ceil(8);
        let validity = if self.nullable { rows.div_ceil(8) } else { 0 };
        values.saturating_add(validity)
    }
}

/// What becomes of a value of `width` bytes, as the crate's array readers do it; `None` for what no kernel does.
fn convert_of(kind: Type, width: u32, data_type: &DataType) -> Option<Convert> {
    use DataType as Arrow;
    let part = |offset, len| Some(Convert::Part { offset, len });
    let widen = |to| Some(Convert::Widen { to });
    match (kind, data_type) {
        (Type::BOOLEAN, Arrow::Boolean)
        | (
            Type::INT32,
            Arrow::Int32 | Arrow::UInt32 | Arrow::Date32 | Arrow::Time32(_) | Arrow::Decimal32(..),
        )
        | (
            Type::INT64,
            Arrow::Int64
            | Arrow::UInt64
            | Arrow::Date64
            | Arrow::Time64(_)
            | Arrow::Timestamp(..)
            | Arrow::Duration(_)
            | Arrow::Decimal64(..),
        )
        | (Type::FLOAT, Arrow::Float32)
        | (Type::DOUBLE, Arrow::Float64) => Some(Convert::Same),
        (Type::INT32, Arrow::Int8 | Arrow::UInt8) => part(0, 1),
        (Type::INT32, Arrow::Int16 | Arrow::UInt16) => part(0, 2),
        (Type::INT32, Arrow::Timestamp(..) | Arrow::Decimal64(..)) => widen(8),
        (Type::INT32, Arrow::Date64) => Some(Convert::DaysToMilliseconds),
        (Type::INT32 | Type::INT64, Arrow::Decimal128(..)) => widen(16),
        (Type::INT32 | Type::INT64, Arrow::Decimal256(..)) => widen(32),
        (Type::INT96, Arrow::Timestamp(unit, _)) => Some(Convert::Int96 {
            per_second: match unit {
                TimeUnit::Second => 1,
                TimeUnit::Millisecond => 1_000,
                TimeUnit::Microsecond => 1_000_000,
                TimeUnit::Nanosecond => 1_000_000_000,
            },
        }),
        (Type::FIXED_LEN_BYTE_ARRAY, data_type) => {
            let big_endian = |to| (width <= to).then_some(Convert::WidenBigEndian { to });
            match data_type {
                Arrow::FixedSizeBinary(size) => {
                    (u32::try_from(*size) == Ok(width)).then_some(Convert::Same)
                }
                Arrow::Float16 => (width == 2).then_some(Convert::Same),
                Arrow::Decimal32(..) => big_endian(4),
                Arrow::Decimal64(..) => big_endian(8),
                Arrow::Decimal128(..) => big_endian(16),
                Arrow::Decimal256(..) => big_endian(32),
                // Months, days, milliseconds, of 4 bytes each.
                Arrow::Interval(IntervalUnit::YearMonth) if width == 12 => part(0, 4),
                Arrow::Interval(IntervalUnit::DayTime) if width == 12 => part(4, 8),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Bytes of a value in the output.
fn made(convert: Convert, width: u32) -> u32 {
    match convert {
        Convert::Same => width,
        Convert::Part { len, .. } => len,
        Convert::Widen { to } | Convert::WidenBigEndian { to } => to,
        Convert::DaysToMilliseconds | Convert::Int96 { .. } => 8,
    }
}
