//! What the `parquet` crate refuses in words alone is told apart by these words. Each of them is provoked here, so that a version
//! of the crate that says it otherwise is noticed.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use feedwater::parquet::scan;
use feedwater::{Error, ErrorKind, MemoryReader};
use parquet::arrow::ArrowWriter;
use parquet::basic::Encoding;
use parquet::file::properties::WriterProperties;

/// One page of plain values in one column, which is not compressed.
fn plain(column: ArrayRef) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::PLAIN)
        .build();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

fn strings(count: usize) -> ArrayRef {
    let strings = (0..count).map(|at| format!("word {at}"));
    Arc::new(StringArray::from_iter_values(strings))
}

/// The file with another encoding of values than PLAIN in the header of its page, whose levels are in RLE.
fn with_encoding(mut file: Vec<u8>, encoding: u8) -> Bytes {
    let plain = [0x15, 0, 0x15, 6, 0x15, 6];
    let found = file.windows(plain.len()).position(|found| found == plain);
    file[found.unwrap() + 1] = encoding;
    file.into()
}

/// `PageType::INDEX_PAGE`, `Encoding::BYTE_STREAM_SPLIT` and `RLE` (parquet.thrift), doubled by the compact protocol.
const PAGE_INDEX: u8 = 2;
const BYTE_STREAM_SPLIT: u8 = 18;
const RLE: u8 = 6;

fn error_of(file: Bytes, schema: Option<DataType>) -> Error {
    let mut scan = scan(Arc::new(MemoryReader::new(file)));
    if let Some(data_type) = schema {
        scan = scan.schema(Arc::new(Schema::new(vec![Field::new(
            "x", data_type, false,
        )])));
    }
    scan.batches().unwrap().find_map(Result::err).unwrap()
}

fn assert_unsupported(error: &Error, says: &str) {
    let ErrorKind::UnsupportedFeature {
        part: Some(part),
        feature,
        ..
    } = error.kind()
    else {
        panic!("{error}");
    };
    assert_eq!(&**part, "x");
    assert!(feature.contains(says), "{feature}");
}

#[test]
fn encodings_that_are_not_for_the_type() {
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()),
    ] {
        let file = with_encoding(plain(strings(9)), BYTE_STREAM_SPLIT);
        assert_unsupported(&error_of(file, Some(data_type)), "BYTE_STREAM_SPLIT");
    }
    let fixed = FixedSizeBinaryArray::try_from_iter((0..9u8).map(|at| [at; 5])).unwrap();
    let file = with_encoding(plain(Arc::new(fixed)), RLE);
    assert_unsupported(&error_of(file, None), "RLE");
}

#[test]
fn pages_of_an_index_among_the_data() {
    let fixed = FixedSizeBinaryArray::try_from_iter((0..9u8).map(|at| [at; 5])).unwrap();
    for column in [
        strings(9),
        Arc::new(Int64Array::from_iter_values(0..9)),
        Arc::new(fixed),
    ] {
        let mut file = plain(column);
        // The type of the page comes first in its header, which is the first thing behind the magic number.
        assert_eq!(file[4..6], [0x15, 0]);
        file[5] = PAGE_INDEX;
        // Where pages are found by the page index, none of another kind is skipped.
        let scan = scan(Arc::new(MemoryReader::new(file))).rows(2..5);
        let error = scan.batches().unwrap().find_map(Result::err).unwrap();
        assert_unsupported(&error, "INDEX_PAGE");
    }
}

/// A batch whose dictionary would have more entries than its keys can count comes in smaller ones.
#[test]
fn more_entries_than_a_dictionary_has_keys_for() {
    let file = plain(strings(300));
    let keys_of_a_byte = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
    let schema = Schema::new(vec![Field::new("x", keys_of_a_byte, false)]);
    let scan = scan(Arc::new(MemoryReader::new(file))).schema(Arc::new(schema));
    let mut words = Vec::new();
    for batch in scan.batches().unwrap() {
        let batch = batch.unwrap();
        assert!(batch.num_rows() <= 128);
        let plain = arrow::compute::cast(batch.column(0), &DataType::Utf8).unwrap();
        let plain = plain.as_any().downcast_ref::<StringArray>().unwrap();
        words.extend(plain.iter().map(|word| word.unwrap().to_owned()));
    }
    let expected: Vec<_> = (0..300).map(|at| format!("word {at}")).collect();
    assert_eq!(words, expected);
}
