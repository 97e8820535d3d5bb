//! Which leaf columns the kernels decode, and as what.

use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    validate_decimal_precision_and_scale,
};
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use parquet::basic::{ConvertedType, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::ColumnDescriptor;

use super::nesting::LeafLevels;
use crate::cuda::columns::{Convert, MOST_WIDTH, Offsets, Values};

/// A leaf column that the kernels decode.
#[derive(Clone, Debug)]
pub(super) struct LeafShape {
    pub(super) data_type: DataType,
    pub(super) values: Values,
    pub(super) convert: Convert,
    /// Whether it has definition levels; of nested ones: whether a slot can be without a value.
    pub(super) nullable: bool,
    /// Entries that its dictionary may have at most.
    pub(super) entries: u64,
    /// What it is in; `None`: it is flat.
    pub(super) levels: Option<LeafLevels>,
    /// The highest definition level.
    pub(super) max_def: u32,
    /// Bits of a value in the Arrow array; of an offset, if values have lengths of their own.
    bits: u64,
}

/// Bytes of the device for each string while it is decoded: where it ends on its page, and where its bytes come from.
const WHILE_DECODED: u64 = 8;

impl LeafShape {
    /// The shape of a leaf whose top-level column is to become `field`.
    ///
    /// # Errors
    /// Why the kernels do not decode it, in words.
    pub(super) fn of(leaf: &ColumnDescriptor, field: &Field) -> Result<Self, String> {
        if leaf.max_rep_level() > 0 || leaf.max_def_level() > 1 || leaf.path().parts().len() > 1 {
            return Err("it is nested".into());
        }
        LeafShape::value(leaf, field.data_type())
    }

    /// The shape of a leaf in lists or structs.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(super) fn nested(
        leaf: &ColumnDescriptor,
        data_type: &DataType,
        levels: LeafLevels,
    ) -> Result<Self, String> {
        let shape = LeafShape::value(leaf, data_type)?;
        let full = levels.lists.last().map_or(0, |list| list.full);
        let nullable = shape.max_def > full || pad(&levels) > 0;
        Ok(LeafShape {
            nullable,
            // Without any it is decoded as a flat one.
            levels: (shape.max_def > 0).then_some(levels),
            ..shape
        })
    }

    /// What its values are.
    fn value(leaf: &ColumnDescriptor, data_type: &DataType) -> Result<Self, String> {
        is_decimal(data_type)?;
        let kind = leaf.physical_type();
        let length = leaf.type_length();
        let width = match kind {
            Type::BOOLEAN => 0,
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => match u32::try_from(length) {
                Ok(width) if width > MOST_WIDTH => {
                    return Err(format!(
                        "its values have {width} bytes each; kernels take up to {MOST_WIDTH}"
                    ));
                }
                Ok(width @ 1..) => width,
                _ => return Err("its values have no bytes".into()),
            },
            Type::BYTE_ARRAY => return Self::of_bytes(leaf, data_type),
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
            nullable: leaf.max_def_level() > 0,
            entries: u64::MAX,
            levels: None,
            max_def: u32::try_from(leaf.max_def_level()).unwrap_or(0),
            bits,
        })
    }

    /// The same of BYTE_ARRAY.
    fn of_bytes(leaf: &ColumnDescriptor, data_type: &DataType) -> Result<Self, String> {
        let utf8 = leaf.converted_type() == ConvertedType::UTF8;
        let none = || format!("no kernel makes {data_type} of BYTE_ARRAY");
        let large = |value: &DataType| match value {
            DataType::Utf8 if utf8 => Ok(false),
            DataType::LargeUtf8 if utf8 => Ok(true),
            DataType::Binary if !utf8 => Ok(false),
            DataType::LargeBinary if !utf8 => Ok(true),
            _ => Err(none()),
        };
        let shape = |large, convert, entries, bits| LeafShape {
            data_type: data_type.clone(),
            values: Values::Bytes { large, utf8 },
            convert,
            nullable: leaf.max_def_level() > 0,
            entries,
            levels: None,
            max_def: u32::try_from(leaf.max_def_level()).unwrap_or(0),
            bits,
        };
        Ok(match data_type {
            DataType::Decimal128(..) | DataType::Decimal256(..) if !utf8 => {
                let wide = matches!(data_type, DataType::Decimal256(..));
                let to = if wide { 32 } else { 16 };
                let convert = Convert::WidenBigEndian { to };
                shape(false, convert, u64::MAX, u64::from(to) * 8)
            }
            DataType::Dictionary(keys, value) => {
                let (to, most) = keys_of(keys).ok_or_else(none)?;
                let convert = Convert::Indices { to };
                shape(large(value)?, convert, most, u64::from(to) * 8)
            }
            _ => {
                let large = large(data_type)?;
                let bits = if large { 64 } else { 32 };
                shape(large, Convert::Same, u64::MAX, bits)
            }
        })
    }

    /// Bytes that the array of so many rows takes on the device, with as many levels, `text` of which are those of strings, and what
    /// decoding it takes besides.
    pub(super) fn bytes(&self, rows: u64, levels: u64, text: u64) -> u64 {
        let slots = self.slots(rows, levels);
        let values = slots.saturating_mul(self.bits).div_ceil(8);
        let validity = if self.nullable { slots.div_ceil(8) } else { 0 };
        let (text, more) = match self.values {
            Values::Bytes { .. } => (text, slots.saturating_mul(WHILE_DECODED)),
            _ => (0, 0),
        };
        let own = values.saturating_add(validity).saturating_add(more);
        let own = own.saturating_add(text);
        let Some(nested) = &self.levels else {
            return own;
        };
        // A byte for each level, and what is noted of 1,024 of them; offsets and bitmaps.
        let mut each = 2;
        for list in &nested.lists {
            each += match list.offsets {
                Offsets::Small => 4,
                Offsets::Large => 8,
                Offsets::None | Offsets::Fixed { .. } => 0,
            };
        }
        let bitmaps = nested.valid.len() as u64;
        let bits = slots.saturating_mul(bitmaps).div_ceil(8);
        let levels = levels.saturating_mul(each);
        own.saturating_add(bits).saturating_add(levels)
    }

    /// Slots that so many rows have at most, with as many levels.
    pub(super) fn slots(&self, rows: u64, levels: u64) -> u64 {
        let Some(nested) = &self.levels else {
            return rows;
        };
        let pad = pad(nested);
        let lists = match nested.lists.len() {
            1 => rows,
            _ => levels,
        };
        levels.max(lists.saturating_mul(pad))
    }

    /// Bytes of the strings of a chunk, as far as the footer tells: a dictionary may make more of them.
    pub(super) fn text(&self, chunk: &ColumnChunkMetaData) -> u64 {
        let stored = chunk.uncompressed_size();
        let bytes = match (self.values, self.convert) {
            (Values::Bytes { .. }, Convert::Same) => {
                chunk.unencoded_byte_array_data_bytes().unwrap_or(stored)
            }
            (Values::Bytes { .. }, Convert::Indices { .. }) => stored,
            _ => 0,
        };
        u64::try_from(bytes).unwrap_or(0)
    }
}

/// Items that a fixed-size list has which is null.
fn pad(levels: &LeafLevels) -> u64 {
    let mut outer = levels.lists.iter().rev();
    let (last, outer) = (outer.next(), outer.next().map_or(0, |list| list.full));
    match last.map(|list| (list.offsets, list.full)) {
        Some((Offsets::Fixed { size }, full)) if full > outer + 1 => size.into(),
        _ => 0,
    }
}

/// Whether a decimal type is one that Arrow has arrays of, which the host looks at when it makes one.
///
/// # Errors
/// What is wrong with it, in words.
fn is_decimal(data_type: &DataType) -> Result<(), String> {
    let checked = match *data_type {
        DataType::Decimal32(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal32Type>(precision, scale)
        }
        DataType::Decimal64(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal64Type>(precision, scale)
        }
        DataType::Decimal128(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal128Type>(precision, scale)
        }
        DataType::Decimal256(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal256Type>(precision, scale)
        }
        _ => return Ok(()),
    };
    checked.map_err(|error| format!("{data_type} is no type of Arrow's: {error}"))
}

/// Bytes of the keys of an Arrow dictionary, and how many entries the crate lets it have.
fn keys_of(data_type: &DataType) -> Option<(u32, u64)> {
    Some(match data_type {
        DataType::Int8 => (1, i8::MAX as u64),
        DataType::UInt8 => (1, u64::from(u8::MAX)),
        DataType::Int16 => (2, i16::MAX as u64),
        DataType::UInt16 => (2, u64::from(u16::MAX)),
        DataType::Int32 => (4, i32::MAX as u64),
        DataType::UInt32 => (4, u64::from(u32::MAX)),
        DataType::Int64 | DataType::UInt64 => (8, i64::MAX as u64),
        _ => return None,
    })
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
        Convert::Indices { to } => to,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    fn shape(kind: &str, data_type: DataType) -> Result<LeafShape, String> {
        let message = parse_message_type(&format!("message m {{ optional {kind}; }}")).unwrap();
        let leaf = SchemaDescriptor::new(Arc::new(message)).column(0);
        LeafShape::of(&leaf, &Field::new("c", data_type, true))
    }

    #[test]
    fn strings_are_what_the_crate_makes_of_them() {
        use DataType as Arrow;
        let dictionary = |keys, value| Arrow::Dictionary(Box::new(keys), Box::new(value));
        let (text, bytes) = ("binary c (UTF8)", "binary c");
        let decimal = "binary c (DECIMAL(20, 2))";
        for (kind, data_type, large, convert) in [
            (text, Arrow::Utf8, false, Convert::Same),
            (text, Arrow::LargeUtf8, true, Convert::Same),
            (bytes, Arrow::Binary, false, Convert::Same),
            (bytes, Arrow::LargeBinary, true, Convert::Same),
            (
                decimal,
                Arrow::Decimal128(20, 2),
                false,
                Convert::WidenBigEndian { to: 16 },
            ),
            (
                decimal,
                Arrow::Decimal256(20, 2),
                false,
                Convert::WidenBigEndian { to: 32 },
            ),
            (
                text,
                dictionary(Arrow::Int8, Arrow::Utf8),
                false,
                Convert::Indices { to: 1 },
            ),
            (
                bytes,
                dictionary(Arrow::UInt64, Arrow::LargeBinary),
                true,
                Convert::Indices { to: 8 },
            ),
        ] {
            let shape = shape(kind, data_type.clone()).unwrap();
            let utf8 = kind == text;
            assert_eq!(shape.values, Values::Bytes { large, utf8 }, "{data_type}");
            assert_eq!((shape.convert, shape.nullable), (convert, true));
        }
        for (kind, data_type) in [
            (text, Arrow::Binary),
            (bytes, Arrow::Utf8),
            (text, Arrow::Utf8View),
            (bytes, Arrow::BinaryView),
            (decimal, Arrow::Decimal64(9, 2)),
            (text, dictionary(Arrow::Int32, Arrow::Utf8View)),
            (text, dictionary(Arrow::Float32, Arrow::Utf8)),
        ] {
            let why = shape(kind, data_type.clone()).unwrap_err();
            assert_eq!(why, format!("no kernel makes {data_type} of BYTE_ARRAY"));
        }
    }

    #[test]
    fn values_too_wide_and_decimals_that_arrow_does_not_have_are_the_hosts() {
        let fixed = |width: u32| {
            let kind = format!("fixed_len_byte_array({width}) c");
            shape(&kind, DataType::FixedSizeBinary(width as i32))
        };
        let width = MOST_WIDTH;
        assert_eq!(fixed(width).unwrap().values, Values::Fixed { width });
        for width in [MOST_WIDTH + 1, 4_194_305, 16_843_009, i32::MAX as u32] {
            let why = fixed(width).unwrap_err();
            let wanted = format!("its values have {width} bytes each; kernels take up to 1048576");
            assert_eq!(why, wanted);
        }
        for (kind, data_type) in [
            ("binary c (DECIMAL(100, 2))", DataType::Decimal256(100, 2)),
            ("int32 c (DECIMAL(9, 2))", DataType::Decimal32(12, 2)),
            ("int64 c (DECIMAL(18, 2))", DataType::Decimal64(18, 19)),
            ("int64 c (DECIMAL(18, 2))", DataType::Decimal128(39, 2)),
        ] {
            let why = shape(kind, data_type.clone()).unwrap_err();
            let begin = format!("{data_type} is no type of Arrow's: ");
            assert!(why.starts_with(&begin), "{why}");
        }
    }

    #[test]
    fn memory_of_strings_is_that_of_offsets_bytes_and_while_they_are_decoded() {
        let bytes = |kind, data_type| shape(kind, data_type).unwrap().bytes(800, 800, 5_000);
        let text = "binary c (UTF8)";
        assert_eq!(bytes(text, DataType::Utf8), 800 * 4 + 100 + 800 * 8 + 5_000);
        let large = bytes(text, DataType::LargeUtf8);
        assert_eq!(large, 800 * 8 + 100 + 800 * 8 + 5_000);
        // There are no strings in others.
        assert_eq!(bytes("int64 c", DataType::Int64), 800 * 8 + 100);
    }
}
