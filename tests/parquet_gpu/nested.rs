//! Nested columns of every kind, by chance and the same each time; and files whose pages no writer makes.

use std::sync::Arc;

use arrow_array::types::{Decimal128Type, Int32Type, Int64Type};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array,
    Int16Array, LargeBinaryArray, LargeListArray, LargeStringArray, ListArray, MapArray,
    PrimitiveArray, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use bytes::Bytes;
use parquet::basic::Compression;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;

use crate::mutations::Random;

pub(crate) fn field(name: &str, data_type: DataType, nullable: bool) -> Field {
    Field::new(name, data_type, nullable)
}

pub(crate) fn list(item: DataType, nullable: bool) -> DataType {
    DataType::List(Arc::new(field("element", item, nullable)))
}

pub(crate) fn fixed(item: DataType, nullable: bool, size: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(field("element", item, nullable)), size)
}

pub(crate) fn structure(fields: &[(&str, DataType, bool)]) -> DataType {
    let fields = fields.iter();
    DataType::Struct(
        fields
            .map(|(name, data_type, nullable)| field(name, data_type.clone(), *nullable))
            .collect(),
    )
}

pub(crate) fn map(key: DataType, value: DataType, nullable: bool) -> DataType {
    let entries = structure(&[("key", key, false), ("value", value, nullable)]);
    DataType::Map(Arc::new(field("entries", entries, false)), false)
}

/// Fields whose leaves are all of fixed width.
pub(crate) fn fields() -> Vec<Field> {
    use DataType::*;
    let pair = structure(&[("a", Int32, true), ("b", Boolean, false)]);
    let deep = structure(&[
        ("x", list(Int16, true), true),
        (
            "y",
            structure(&[("z", Int64, true), ("w", Float32, false)]),
            true,
        ),
        ("v", Int32, false),
    ]);
    let large = LargeList(Arc::new(field("element", Int64, true)));
    vec![
        field("required", list(Int32, false), false),
        field("optional", list(Int32, true), true),
        field("large", large, true),
        field("flags", list(Boolean, true), false),
        field("bytes", list(FixedSizeBinary(3), true), true),
        field(
            "times",
            list(Timestamp(TimeUnit::Microsecond, None), false),
            true,
        ),
        field("decimals", list(Decimal128(20, 2), true), true),
        field("two", list(list(Int32, true), true), true),
        field(
            "three",
            list(list(list(Float32, false), false), true),
            false,
        ),
        field(
            "four",
            list(list(list(list(Int16, true), true), true), true),
            true,
        ),
        field("structure", pair.clone(), true),
        field(
            "plain",
            structure(&[("a", Int64, false), ("b", Int32, false)]),
            false,
        ),
        field("deep", deep.clone(), true),
        field("of_pairs", list(pair.clone(), true), true),
        field("of_deep", list(deep, true), true),
        field("map", map(Int32, Float32, true), true),
        field("map_of", map(Int64, list(pair, false), true), false),
        field("fixed", fixed(Float32, false, 4), false),
        field("fixed_nulls", fixed(Int32, true, 3), true),
        field("of_fixed", list(fixed(Int16, true, 2), true), true),
        field("fixed_of", fixed(list(Int32, true), true, 2), false),
        field(
            "fixed_pairs",
            fixed(structure(&[("a", Int32, true)]), true, 2),
            true,
        ),
        field(
            "in_structure",
            structure(&[("f", fixed(Int64, true, 2), false)]),
            true,
        ),
    ]
}

/// Fields with leaves of strings and binaries; those of dictionaries are the last two.
pub(crate) fn texts() -> Vec<Field> {
    use DataType::*;
    let person = structure(&[
        ("name", Utf8, true),
        ("tags", list(Utf8, true), true),
        ("id", Int64, false),
    ]);
    let large = LargeList(Arc::new(field("element", LargeUtf8, true)));
    vec![
        field("words", list(Utf8, true), true),
        field("names", list(Utf8, false), false),
        field("large_words", large, true),
        field("blobs", list(Binary, true), false),
        field("in_two", list(list(Utf8, true), true), true),
        field("person", person.clone(), true),
        field("people", list(person, true), true),
        field("map_text", map(Utf8, Int32, true), true),
        field("text_map", map(Int64, LargeBinary, true), false),
        field("fixed_text", fixed(Utf8, true, 3), true),
        field("kinds", list(dictionary(Int32), true), true),
        field("kind", structure(&[("of", dictionary(Int8), true)]), true),
    ]
}

fn dictionary(keys: DataType) -> DataType {
    DataType::Dictionary(Box::new(keys), Box::new(DataType::Utf8))
}

/// So many rows of these fields.
pub(crate) fn batch(fields: Vec<Field>, rows: usize, seed: u64) -> RecordBatch {
    let mut random = Random::new(seed);
    let arrays = fields.iter().map(|field| array(field, rows, &mut random));
    let arrays = arrays.collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn array(field: &Field, len: usize, random: &mut Random) -> ArrayRef {
    let valid: Vec<bool> = (0..len)
        .map(|_| !field.is_nullable() || random.below(5) > 0)
        .collect();
    let nulls = field.is_nullable().then(|| NullBuffer::from(valid.clone()));
    // Numbers that come again.
    let mut number =
        |at: usize| valid[at].then(|| [random.below(9) as i64, random.next() as i64][at % 2]);
    macro_rules! numbers {
        ($array:ty, $of:expr) => {
            Arc::new((0..len).map(|at| number(at).map($of)).collect::<$array>())
        };
    }
    macro_rules! texts {
        ($array:ty, $of:expr) => {
            Arc::new(
                (0..len)
                    .map(|at| number(at).map(text).map($of))
                    .collect::<$array>(),
            )
        };
    }
    match field.data_type() {
        DataType::Utf8 => texts!(StringArray, |text| text),
        DataType::LargeUtf8 => texts!(LargeStringArray, |text| text),
        DataType::Binary => texts!(BinaryArray, |text| text.into_bytes()),
        DataType::LargeBinary => texts!(LargeBinaryArray, |text| text.into_bytes()),
        DataType::Dictionary(keys, _) => {
            // Few enough for any keys.
            let some = |at: usize| number(at).map(|number| text(number & 15));
            let values: StringArray = (0..len).map(some).collect();
            let dictionary = DataType::Dictionary(keys.clone(), Box::new(DataType::Utf8));
            arrow::compute::cast(&values, &dictionary).unwrap()
        }
        DataType::Boolean => numbers!(BooleanArray, |value| value % 3 == 0),
        DataType::Int16 => numbers!(Int16Array, |value| value as i16),
        DataType::Int32 => numbers!(PrimitiveArray<Int32Type>, |value| value as i32),
        DataType::Int64 => numbers!(PrimitiveArray<Int64Type>, |value| value),
        DataType::Float32 => numbers!(Float32Array, |value| f32::from_bits(value as u32)),
        DataType::Timestamp(..) => numbers!(TimestampMicrosecondArray, |value| value),
        DataType::Decimal128(precision, scale) => {
            let values = (0..len).map(|at| number(at).map(i128::from));
            let values: PrimitiveArray<Decimal128Type> = values.collect();
            Arc::new(values.with_precision_and_scale(*precision, *scale).unwrap())
        }
        DataType::FixedSizeBinary(size) => {
            let of = |value: i64| value.to_le_bytes()[..*size as usize].to_vec();
            let values = (0..len).map(|at| number(at).map(of));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *size).unwrap())
        }
        DataType::List(item) => {
            let lens = lengths(&valid, random);
            let child = array(item, lens.iter().sum(), random);
            let offsets = OffsetBuffer::from_lengths(lens);
            Arc::new(ListArray::new(item.clone(), offsets, child, nulls))
        }
        DataType::LargeList(item) => {
            let lens = lengths(&valid, random);
            let child = array(item, lens.iter().sum(), random);
            let offsets = OffsetBuffer::from_lengths(lens);
            Arc::new(LargeListArray::new(item.clone(), offsets, child, nulls))
        }
        DataType::FixedSizeList(item, size) => {
            let child = array(item, len * *size as usize, random);
            Arc::new(FixedSizeListArray::new(item.clone(), *size, child, nulls))
        }
        DataType::Struct(fields) => {
            let children = structured(fields, len, random);
            Arc::new(StructArray::new(fields.clone(), children, nulls))
        }
        DataType::Map(entries, sorted) => {
            let lens = lengths(&valid, random);
            let entry = array(entries, lens.iter().sum(), random);
            let entry = arrow_array::cast::AsArray::as_struct(&entry).clone();
            let offsets = OffsetBuffer::from_lengths(lens);
            Arc::new(MapArray::new(
                entries.clone(),
                offsets,
                entry,
                nulls,
                *sorted,
            ))
        }
        other => panic!("{other}"),
    }
}

/// Short ones that come again, and others; some are empty, some not ASCII.
fn text(number: i64) -> String {
    match number {
        0 => String::new(),
        1 => "é".into(),
        2 => "日本語 ".repeat(7),
        3..100 => format!("number {number}"),
        _ => format!("{number:x}"),
    }
}

fn structured(fields: &Fields, len: usize, random: &mut Random) -> Vec<ArrayRef> {
    let of = |field: &FieldRef| array(field, len, random);
    fields.iter().map(of).collect()
}

/// Short ones, empty ones, and long ones once in a while.
fn lengths(valid: &[bool], random: &mut Random) -> Vec<usize> {
    let mut len = || match random.below(30) {
        0 => 20 + random.below(20),
        other => other % 4,
    };
    valid
        .iter()
        .map(|valid| if *valid { len() } else { 0 })
        .collect()
}

/// A data page of INT32 in PLAIN.
pub(crate) struct Page<'a> {
    pub(crate) v2: bool,
    pub(crate) reps: &'a [u8],
    pub(crate) defs: &'a [u8],
    pub(crate) values: &'a [i32],
}

/// A file with one row group of leaves of INT32, each of these pages.
pub(crate) fn by_hand(schema: &str, rows: i64, leaves: &[Vec<Page<'_>>]) -> Bytes {
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(
        parse_message_type(schema).unwrap(),
    )));
    let mut file = b"PAR1".to_vec();
    let mut chunks = Vec::new();
    for (leaf, pages) in leaves.iter().enumerate() {
        let column = schema.column(leaf);
        let (start, mut values) = (file.len(), 0);
        for page in pages {
            values += page.defs.len() as i64;
            let levels = [
                (page.reps, column.max_rep_level()),
                (page.defs, column.max_def_level()),
            ];
            append(&mut file, page, levels);
        }
        let len = (file.len() - start) as i64;
        let chunk = ColumnChunkMetaData::builder(column)
            .set_compression(Compression::UNCOMPRESSED)
            .set_num_values(values)
            .set_total_compressed_size(len)
            .set_total_uncompressed_size(len)
            .set_data_page_offset(start as i64);
        chunks.push(chunk.build().unwrap());
    }
    let group = RowGroupMetaData::builder(schema.clone())
        .set_num_rows(rows)
        .set_total_byte_size(file.len() as i64)
        .set_column_metadata(chunks)
        .build()
        .unwrap();
    let of_file = FileMetaData::new(1, rows, None, None, schema, None);
    let metadata = ParquetMetaData::new(of_file, vec![group]);
    ParquetMetaDataWriter::new(&mut file, &metadata)
        .finish()
        .unwrap();
    file.into()
}

/// Appends a page with its header (parquet.thrift, in the compact protocol).
fn append(file: &mut Vec<u8>, page: &Page<'_>, levels: [(&[u8], i16); 2]) {
    let mut body = Vec::new();
    let mut lens = [0; 2];
    for ((levels, most), len) in levels.into_iter().zip(&mut lens) {
        if most == 0 {
            continue;
        }
        let runs = runs(levels);
        *len = runs.len() as i32;
        if !page.v2 {
            body.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        }
        body.extend(runs);
    }
    body.extend(page.values.iter().flat_map(|value| value.to_le_bytes()));
    let entries = page.defs.len() as i32;
    let size = body.len() as i32;
    let [reps, defs] = lens;
    let rows = page.reps.iter().filter(|rep| **rep == 0).count() as i32;
    let kind = if page.v2 { 3 } else { 0 };
    let numbers = |file: &mut Vec<u8>, numbers: &[i32]| {
        for number in numbers {
            file.push(0x15);
            varint(file, (number << 1 ^ number >> 31) as u32);
        }
    };
    numbers(file, &[kind, size, size]);
    if page.v2 {
        file.push(0x5c);
        let nulls = entries - page.values.len() as i32;
        numbers(file, &[entries, nulls, rows, 0, defs, reps]);
        // It is not compressed.
        file.push(0x12);
    } else {
        file.push(0x2c);
        numbers(file, &[entries, 0, 3, 3]);
    }
    file.extend([0, 0]);
    file.extend(body);
}

fn varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Repeated runs.
fn runs(levels: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in levels.chunk_by(|a, b| a == b) {
        varint(&mut out, (run.len() as u32) << 1);
        out.push(run[0]);
    }
    out
}
