//! What kernels leave to the host by the schema: values that are too wide for them, and decimals that Arrow does not have.

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use feedwater::cuda::Device;
use feedwater::cuda::columns::MOST_WIDTH;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema};
use parquet::data_type::{
    ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type,
};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::cuda::{nothing_left, session};
use crate::support::{Agreed, agree, whole};
use crate::tables::written;

#[test]
fn values_of_more_bytes_than_kernels_count() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for (width, counts) in [(MOST_WIDTH, (1, 0)), (MOST_WIDTH + 1, (0, 1))] {
            let value: Vec<u8> = (0..width).map(|at| (at * 3 + at / 256) as u8).collect();
            let values = std::iter::repeat_n(value, 2);
            let array: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter(values).unwrap());
            let batch = RecordBatch::try_from_iter([("wide", array)]).unwrap();
            let set = WriterProperties::builder().set_dictionary_page_size_limit(1 << 24);
            let agreed = agree(&gpu, "wide", &written(&batch, set.build()), &whole);
            assert_eq!(agreed.counts(), counts, "{width}");
        }
    }
    nothing_left(&session);
}

/// A file of one column of two values, which is said to be of an Arrow type.
fn file(
    kind: &str,
    arrow: Option<DataType>,
    write: impl FnOnce(&mut SerializedColumnWriter<'_>),
) -> Bytes {
    let message = format!("message m {{ required {kind}; }}");
    let schema = Arc::new(parse_message_type(&message).unwrap());
    let arrow = arrow.map(|data_type| {
        let schema = Schema::new(vec![Field::new("d", data_type, false)]);
        let value = encode_arrow_schema(&schema);
        vec![KeyValue::new(ARROW_SCHEMA_META_KEY.to_string(), value)]
    });
    let set = WriterProperties::builder().set_key_value_metadata(arrow);
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::new(set.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    write(&mut column);
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    file.into()
}

/// They are errors, as they are on the host; those beside them, that Arrow has, are decoded.
#[test]
fn decimals_that_arrow_does_not_have() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        macro_rules! values {
            ($kind:ty, $value:expr) => {
                |column: &mut SerializedColumnWriter<'_>| {
                    let values = [$value, $value];
                    let column = column.typed::<$kind>();
                    column.write_batch(&values, None, None).unwrap();
                }
            };
        }
        let bytes = |precision| {
            let kind = format!("binary d (DECIMAL({precision}, 2))");
            let value = ByteArray::from(vec![1, 2, 3]);
            file(&kind, None, values!(ByteArrayType, value.clone()))
        };
        let fixed = |arrow| {
            let value = || FixedLenByteArray::from(vec![0, 0, 1, 2]);
            let kind = "fixed_len_byte_array(4) d (DECIMAL(9, 2))";
            file(kind, Some(arrow), values!(FixedLenByteArrayType, value()))
        };
        let int32 = |arrow| {
            let kind = "int32 d (DECIMAL(9, 2))";
            file(kind, Some(arrow), values!(Int32Type, 1234))
        };
        let int64 = |arrow| {
            let kind = "int64 d (DECIMAL(18, 2))";
            file(kind, Some(arrow), values!(Int64Type, 1234))
        };
        for (what, right, wrong) in [
            ("BYTE_ARRAY", bytes(76), bytes(100)),
            (
                "INT32",
                int32(DataType::Decimal32(9, 2)),
                int32(DataType::Decimal32(12, 2)),
            ),
            (
                "INT32 of a scale above the precision",
                int32(DataType::Decimal64(9, 2)),
                int32(DataType::Decimal64(9, 10)),
            ),
            (
                "INT64",
                int64(DataType::Decimal64(18, 2)),
                int64(DataType::Decimal64(19, 2)),
            ),
            (
                "INT64 as 256 bits",
                int64(DataType::Decimal256(76, 2)),
                int64(DataType::Decimal256(77, 2)),
            ),
            (
                "FIXED_LEN_BYTE_ARRAY",
                fixed(DataType::Decimal32(9, 2)),
                fixed(DataType::Decimal32(10, 2)),
            ),
        ] {
            let right = agree(&gpu, what, &right, &whole);
            assert_eq!(right.counts(), (1, 0), "{what}");
            let wrong = agree(&gpu, what, &wrong, &whole);
            assert!(matches!(wrong, Agreed::Failed), "{what}");
        }
    }
    nothing_left(&session);
}
