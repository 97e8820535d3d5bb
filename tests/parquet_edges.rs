//! Files that no writer at hand makes: their pages and footers are written here byte by byte. What the corpus has is tested
//! with it (`parquet_corpus`): two members in a GZIP page, unknown logical types, maps with optional keys, lists of two levels, NaN
//! in statistics, more pages than 16 bits count, and more than 2 GiB in one batch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, Int32Array, RecordBatch};
use bytes::Bytes;
use feedwater::MemoryReader;
use feedwater::parquet::scan;
use parquet::basic::Compression;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaDataBuilder, ParquetMetaDataWriter,
    RowGroupMetaData,
};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of type i32 whose number is one more than that before it.
fn number(out: &mut Vec<u8>, value: usize) {
    out.push(0x15);
    varint(out, (value as u64) << 1);
}

/// Levels of up to 8 bits, each run of equal ones as one.
fn levels(levels: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in levels.chunk_by(|a, b| a == b) {
        varint(&mut out, (run.len() as u64) << 1);
        out.push(run[0]);
    }
    out
}

fn plain(values: &[i32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// A data page v1, not compressed. Levels that a column does not have are empty.
fn page(values: usize, repetition: &[u8], definition: &[u8], body: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    for some in [repetition, definition]
        .into_iter()
        .filter(|l| !l.is_empty())
    {
        let encoded = levels(some);
        content.extend((encoded.len() as u32).to_le_bytes());
        content.extend(encoded);
    }
    content.extend(body);
    let mut out = Vec::new();
    number(&mut out, 0);
    number(&mut out, content.len());
    number(&mut out, content.len());
    out.push(0x2c);
    // PLAIN, and RLE for levels.
    for field in [values, 0, 3, 3] {
        number(&mut out, field);
    }
    out.extend([0, 0]);
    [out, content].concat()
}

/// A data page v2 of an optional column: `stored` is how its values are in the file, `len` how many bytes they are.
fn page_v2(definition: &[u8], len: usize, stored: &[u8]) -> Vec<u8> {
    let encoded = levels(definition);
    let nulls = definition.iter().filter(|level| **level == 0).count();
    let mut out = Vec::new();
    number(&mut out, 3);
    number(&mut out, encoded.len() + len);
    number(&mut out, encoded.len() + stored.len());
    out.push(0x5c);
    for field in [
        definition.len(),
        nulls,
        definition.len(),
        0,
        encoded.len(),
        0,
    ] {
        number(&mut out, field);
    }
    out.extend([0, 0]);
    [&out[..], &encoded, stored].concat()
}

/// What the footer says.
struct Footer {
    schema: &'static str,
    codec: Compression,
    values: usize,
    rows_of_group: i64,
    rows_of_file: i64,
    dictionary_offset: Option<i64>,
}

const OPTIONAL: &str = "message m { optional int32 n; }";
const LISTS: &str =
    "message m { required group l (LIST) { repeated group list { required int32 element; } } }";

impl Footer {
    fn new(schema: &'static str, values: usize, rows: i64) -> Self {
        Footer {
            schema,
            codec: Compression::UNCOMPRESSED,
            values,
            rows_of_group: rows,
            rows_of_file: rows,
            dictionary_offset: None,
        }
    }

    /// A file with one column chunk of these pages.
    fn file(&self, pages: &[Vec<u8>]) -> Bytes {
        let pages = pages.concat();
        let schema = Arc::new(parse_message_type(self.schema).unwrap());
        let descr = Arc::new(SchemaDescriptor::new(schema));
        let chunk = ColumnChunkMetaData::builder(descr.column(0))
            .set_compression(self.codec)
            .set_num_values(self.values as i64)
            .set_total_compressed_size(pages.len() as i64)
            .set_total_uncompressed_size(pages.len() as i64)
            .set_data_page_offset(4)
            .set_dictionary_page_offset(self.dictionary_offset)
            .build()
            .unwrap();
        let group = RowGroupMetaData::builder(descr.clone())
            .set_num_rows(self.rows_of_group)
            .set_total_byte_size(pages.len() as i64)
            .add_column_metadata(chunk)
            .build()
            .unwrap();
        let file = FileMetaData::new(1, self.rows_of_file, None, None, descr, None);
        let footer = ParquetMetaDataBuilder::new(file)
            .add_row_group(group)
            .build();
        let mut bytes = [&b"PAR1"[..], &pages].concat();
        ParquetMetaDataWriter::new(&mut bytes, &footer)
            .finish()
            .unwrap();
        bytes.into()
    }
}

/// All rows, in batches of several sizes, which must all give the same.
fn read(file: &Bytes) -> RecordBatch {
    let read = |rows| {
        let reader = Arc::new(MemoryReader::new(file.clone()));
        let batches = scan(reader).batch_rows(rows).batches().unwrap();
        let schema = batches.schema().clone();
        let batches: Vec<_> = batches.map(Result::unwrap).collect();
        arrow::compute::concat_batches(&schema, &batches).unwrap()
    };
    let all = read(1000);
    for rows in [1, 2, 3] {
        assert_eq!(read(rows), all, "batches of {rows}");
    }
    all
}

fn numbers(file: &Bytes) -> Vec<Option<i32>> {
    let batch = read(file);
    let numbers: &Int32Array = batch.column(0).as_primitive();
    numbers.iter().collect()
}

fn lists(file: &Bytes) -> Vec<Vec<i32>> {
    let batch = read(file);
    let lists = batch.column(0).as_list::<i32>();
    assert_eq!(lists.null_count(), 0);
    let values = |list: Arc<dyn Array>| list.as_primitive::<Int32Type>().values().to_vec();
    lists.iter().map(|list| values(list.unwrap())).collect()
}

/// A frame of Zstandard with no bytes in it: its size is in one byte, and one empty block is the last (RFC 8878).
const EMPTY_ZSTD: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];

#[test]
fn a_page_of_nulls_alone_has_no_bytes_of_values() {
    for (codec, stored) in [
        (Compression::UNCOMPRESSED, &[][..]),
        (Compression::SNAPPY, &[]),
        // Snappy's empty text is one byte, its length.
        (Compression::SNAPPY, &[0]),
        (Compression::LZ4_RAW, &[]),
        (Compression::GZIP(Default::default()), &[]),
        (Compression::BROTLI(Default::default()), &[]),
        (Compression::ZSTD(Default::default()), &[]),
        (Compression::ZSTD(Default::default()), &EMPTY_ZSTD),
    ] {
        let footer = Footer {
            codec,
            ..Footer::new(OPTIONAL, 5, 5)
        };
        let file = footer.file(&[page_v2(&[0; 3], 0, stored), page_v2(&[0; 2], 0, stored)]);
        assert_eq!(numbers(&file), [None; 5], "{codec}, {stored:?}");
    }
}

#[test]
fn a_row_of_a_list_may_go_on_in_the_next_page() {
    let pages = [
        page(4, &[0, 1, 0, 1], &[1; 4], &plain(&[1, 2, 3, 4])),
        page(3, &[1, 1, 0], &[1; 3], &plain(&[5, 6, 7])),
    ];
    let file = Footer::new(LISTS, 7, 3).file(&pages);
    assert_eq!(lists(&file), [vec![1, 2], vec![3, 4, 5, 6], vec![7]]);
    // And so may the last one.
    let pages = [
        page(2, &[0, 0], &[1; 2], &plain(&[1, 2])),
        page(1, &[1], &[1], &plain(&[3])),
    ];
    let file = Footer::new(LISTS, 3, 2).file(&pages);
    assert_eq!(lists(&file), [vec![1], vec![2, 3]]);
}

#[test]
fn pages_inside_one_long_row_begin_no_row() {
    let mut pages = vec![page(2, &[0, 0], &[1; 2], &plain(&[-2, -1]))];
    for n in 0..20 {
        pages.push(page(2, &[1, 1], &[1; 2], &plain(&[2 * n, 2 * n + 1])));
    }
    pages.push(page(2, &[1, 0], &[1, 0], &plain(&[40])));
    let file = Footer::new(LISTS, 44, 3).file(&pages);
    let long: Vec<_> = (-1..41).collect();
    assert_eq!(lists(&file), [vec![-2], long, vec![]]);
}

#[test]
fn a_dictionary_at_offset_0_is_none() {
    let footer = Footer {
        dictionary_offset: Some(0),
        ..Footer::new(OPTIONAL, 3, 3)
    };
    let file = footer.file(&[page(3, &[], &[1, 0, 1], &plain(&[7, 8]))]);
    assert_eq!(numbers(&file), [Some(7), None, Some(8)]);
}

#[test]
fn row_groups_count_and_not_the_footer() {
    let footer = Footer {
        rows_of_file: 0,
        ..Footer::new(OPTIONAL, 3, 3)
    };
    let file = footer.file(&[page(3, &[], &[1, 0, 1], &plain(&[7, 8]))]);
    assert_eq!(numbers(&file), [Some(7), None, Some(8)]);
}
