//! Files of strings and binaries: encodings, types, ways of being null, versions of pages, codecs, and what is not right in them.

use std::sync::Arc;

use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::types::{Int8Type, Int32Type, UInt16Type};
use arrow_array::{
    ArrayRef, BinaryArray, Int64Array, LargeBinaryArray, LargeStringArray, ListArray, RecordBatch,
    StringArray, StringViewArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use feedwater::cuda::{Device, DeviceOptions, Guard};
use feedwater::{ErrorKind, MemoryReader, Processor};
use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::cuda::{STREAMS, nothing_left, session};
use crate::generated::{GROUPS, ROWS, all_by_gpu, base, codecs, encoded, versions};
use crate::support::{Agreed, agree, by_host, on_device, whole};
use crate::tables::{NULLS, Nulls, written};

/// Some come again and again, some are empty, some are long, and most are not ASCII alone.
fn text(row: usize) -> String {
    match row % 5 {
        0 => ["", "a", "€uro", "naïve 𐍈"][row / 5 % 4].into(),
        1 => format!("row {row}"),
        2 if row % 50 == 2 => "日本語 ".repeat(row % 70),
        2 => "z".repeat(row % 23),
        3 => format!("é{}", row % 11),
        _ => "the same each time".into(),
    }
}

fn bytes(row: usize) -> Vec<u8> {
    let mut bytes = text(row).into_bytes();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x9a);
    bytes
}

/// Columns of all types of strings in each way of being nullable.
pub(crate) fn strings(rows: usize, ways: &[Nulls]) -> RecordBatch {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for nulls in ways {
        let mut add = |name: &str, array: ArrayRef| {
            let nullable = *nulls != Nulls::Required;
            let kind = array.data_type().clone();
            fields.push(Field::new(format!("{name}_{nulls:?}"), kind, nullable));
            arrays.push(array);
        };
        let text = |row: usize| nulls.has(row).then(|| text(row));
        let bytes = |row: usize| nulls.has(row).then(|| bytes(row));
        let texts = || (0..rows).map(text);
        let all = || (0..rows).map(bytes);
        add("utf8", Arc::new(texts().collect::<StringArray>()));
        add(
            "large_utf8",
            Arc::new(texts().collect::<LargeStringArray>()),
        );
        add("binary", Arc::new(all().collect::<BinaryArray>()));
        add(
            "large_binary",
            Arc::new(all().collect::<LargeBinaryArray>()),
        );
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// Columns of dictionaries, with keys of several widths.
fn dictionaries(rows: usize, ways: &[Nulls]) -> RecordBatch {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for nulls in ways {
        let mut add = |name: &str, array: ArrayRef| {
            let nullable = *nulls != Nulls::Required;
            let kind = array.data_type().clone();
            fields.push(Field::new(format!("{name}_{nulls:?}"), kind, nullable));
            arrays.push(array);
        };
        macro_rules! column {
            ($name:literal, $key:ty) => {
                let mut builder = StringDictionaryBuilder::<$key>::new();
                for row in 0..rows {
                    // Not more of them than the keys have.
                    builder.append_option(nulls.has(row).then(|| text(row % 37)));
                }
                add($name, Arc::new(builder.finish()));
            };
        }
        column!("i8", Int8Type);
        column!("u16", UInt16Type);
        column!("i32", Int32Type);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// A file of decimals in BYTE_ARRAY of different lengths, one of no bytes among them.
fn decimals(precision: u32, longest: usize, set: WriterProperties) -> Bytes {
    let message = format!("message m {{ optional binary d (DECIMAL({precision}, 2)); }}");
    let schema = Arc::new(parse_message_type(&message).unwrap());
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::new(set)).unwrap();
    for _ in 0..GROUPS {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let levels: Vec<i16> = (0..ROWS).map(|row| i16::from(row % 5 != 3)).collect();
        let number = |row: usize| {
            let byte = |at: usize| (row * 7 + at * 31) as u8;
            ByteArray::from((0..row % (longest + 1)).map(byte).collect::<Vec<_>>())
        };
        let values: Vec<_> = (0..ROWS).filter(|row| row % 5 != 3).map(number).collect();
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, Some(&levels), None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    file.into()
}

fn ways(
    base: impl Fn(bool) -> WriterPropertiesBuilder,
    batch: &RecordBatch,
) -> [(&'static str, WriterPropertiesBuilder); 3] {
    // Full after few values: PLAIN pages follow pages of indices.
    let small = base(true).set_dictionary_page_size_limit(150);
    [
        ("dictionaries", base(true)),
        ("mixed", encoded(small, batch, Encoding::PLAIN)),
        ("plain", encoded(base(false), batch, Encoding::PLAIN)),
    ]
}

#[test]
fn every_type_in_every_encoding_and_version() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = strings(ROWS, &NULLS);
        for version in versions() {
            let set = |dictionary| {
                base()
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
            };
            for (way, set) in ways(set, &batch) {
                let file = written(&batch, set.build());
                all_by_gpu(&gpu, &format!("{way}, {version:?}"), &file);
            }
        }
    }
    nothing_left(&session);
}

#[test]
fn every_codec() {
    let batch = strings(ROWS, &[Nulls::Some]);
    for (number, codec) in codecs().into_iter().enumerate() {
        let session = session(STREAMS[number % 2]);
        {
            let gpu = Device::open(0).unwrap();
            for version in versions() {
                let set = base().set_writer_version(version).set_compression(codec);
                let set = set.set_dictionary_page_size_limit(150);
                let file = written(&batch, encoded(set, &batch, Encoding::PLAIN).build());
                all_by_gpu(&gpu, &format!("{codec}, {version:?}"), &file);
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn buffers_kept_apart_and_few_rows() {
    for guard in [Guard::Gaps, Guard::Separate] {
        let session = session("lazy");
        {
            let gpu = DeviceOptions::default().guard(guard).open(0).unwrap();
            for rows in [0, 1, 31, 32, 33, 65] {
                let batch = strings(rows, &NULLS);
                let set = base().set_max_row_group_row_count(Some(rows.div_ceil(2).max(1)));
                let file = written(&batch, encoded(set, &batch, Encoding::PLAIN).build());
                let agreed = agree(&gpu, &format!("{rows} rows"), &file, &whole);
                let (by_gpu, by_host) = agreed.counts();
                assert!((by_gpu > 0) == (rows > 0) && by_host == 0, "{rows}");
            }
            assert_eq!(gpu.stats().overruns, 0);
        }
        nothing_left(&session);
    }
}

#[test]
fn decimals_of_any_length() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for dictionary in [false, true] {
            let set = || {
                base()
                    .set_encoding(Encoding::PLAIN)
                    .set_dictionary_enabled(dictionary)
                    .build()
            };
            for (precision, longest) in [(38, 16), (76, 32)] {
                let file = decimals(precision, longest, set());
                all_by_gpu(&gpu, &format!("DECIMAL({precision})"), &file);
            }
            // Longer than the type has: the crate takes it for impossible.
            let file = decimals(38, 17, set());
            assert!(matches!(
                agree(&gpu, "too long", &file, &whole),
                Agreed::Failed
            ));
        }
    }
    nothing_left(&session);
}

#[test]
fn dictionaries_stay_indices() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let batch = dictionaries(ROWS, &NULLS);
        for version in versions() {
            let set = base()
                .set_writer_version(version)
                .set_dictionary_enabled(true);
            let file = written(&batch, set.build());
            all_by_gpu(&gpu, &format!("dictionaries, {version:?}"), &file);
        }
        // Asked for, where the file has strings.
        let batch = strings(ROWS, &[Nulls::Some]);
        let file = written(&batch, base().set_dictionary_enabled(true).build());
        let keys = |value: &DataType| {
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(value.clone()))
        };
        let fields = batch.schema();
        let fields = fields.fields().iter();
        let fields: Vec<_> = fields
            .map(|field| Field::new(field.name(), keys(field.data_type()), true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let asked = |scan: feedwater::parquet::Scan<MemoryReader>| scan.schema(schema.clone());
        let Agreed::Rows(rows, report) = agree(&gpu, "asked for", &file, &asked) else {
            panic!();
        };
        assert_eq!(rows.schema(), schema);
        for column in &report.columns {
            assert_eq!((column.by_gpu, column.by_host), (GROUPS, 0), "{column:?}");
        }
        // Indices and entries are on the device, and nothing else.
        let reader = Arc::new(MemoryReader::new(file));
        let scan = feedwater::parquet::scan(reader).schema(schema);
        let scan = scan.on_device(&gpu).processor(Processor::Gpu);
        for batch in scan.batches().unwrap() {
            let batch = batch.unwrap();
            let column = &batch.columns()[0];
            assert_eq!(column.buffers()[0].len(), batch.num_rows() * 4);
            let [entries] = column.children() else {
                panic!("{}", column.children().len());
            };
            assert_eq!(entries.buffers()[0].len(), (entries.len() + 1) * 4);
            drop(batch.export().unwrap());
        }
    }
    nothing_left(&session);
}

/// The host makes what kernels do not, and says why.
#[test]
fn what_the_host_does() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let told = |what: &str, batch: &RecordBatch, set: WriterProperties, why: &str| {
            let agreed = agree(&gpu, what, &written(batch, set), &whole);
            let Agreed::Rows(_, report) = agreed else {
                panic!("{what}");
            };
            let column = &report.columns[0];
            assert_eq!((column.by_gpu, column.by_host), (0, GROUPS), "{column:?}");
            assert!(column.host_because[0].0.contains(why), "{column:?}");
        };
        let small = || base().set_dictionary_page_size_limit(20);
        let batch = dictionaries(ROWS, &[Nulls::Some]).project(&[2]).unwrap();
        let mixed = encoded(small(), &batch, Encoding::PLAIN).build();
        told("mixed", &batch, mixed, "pages without indices");
        let plain = base().set_dictionary_enabled(false);
        let plain = encoded(plain, &batch, Encoding::PLAIN).build();
        told("plain", &batch, plain, "pages without indices");
        let views = (0..ROWS)
            .map(|row| Some(text(row)))
            .collect::<StringViewArray>();
        let ids = Int64Array::from_iter_values(0..ROWS as i64);
        let columns: [(&str, ArrayRef); 2] = [("views", Arc::new(views)), ("ids", Arc::new(ids))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        told("views", &batch, base().build(), "no kernel makes Utf8View");
    }
    nothing_left(&session);
}

/// A file of this one text, in each encoding; and where it is in the file.
fn one_text(dictionary: bool, text: &str) -> (Vec<u8>, usize) {
    let texts: StringArray = (0..40)
        .map(|row| Some(if row == 33 { text } else { "same" }))
        .collect();
    let columns: [(&str, ArrayRef); 1] = [("texts", Arc::new(texts))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let set = WriterProperties::builder()
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .set_dictionary_enabled(dictionary);
    let file = written(&batch, encoded(set, &batch, Encoding::PLAIN).build()).to_vec();
    let at = file
        .windows(text.len())
        .position(|part| part == text.as_bytes());
    (file, at.unwrap())
}

#[test]
fn what_is_no_text_is_an_error_of_the_host() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        for dictionary in [false, true] {
            let (file, at) = one_text(dictionary, "a€b𐍈c");
            all_right(&gpu, &file);
            for offset in 0..10 {
                let mut file = file.clone();
                file[at + offset] = 0xff;
                let file = Bytes::from(file);
                assert!(matches!(
                    agree(&gpu, "no text", &file, &whole),
                    Agreed::Failed
                ));
                let error = on_device(&gpu, &file, Processor::Gpu, &whole).unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::Malformed { .. }),
                    "{error}"
                );
            }
            // What two values are only together is no text either.
            for (offset, byte) in [(0, 0xc3), (1, 0xe2), (9, 0xa9)] {
                let mut file = file.clone();
                file[at + offset] = byte;
                agree(&gpu, "other text", &file.into(), &whole);
            }
        }
    }
    nothing_left(&session);
}

fn all_right(gpu: &Arc<Device>, file: &[u8]) {
    let file = Bytes::copy_from_slice(file);
    assert_eq!(agree(gpu, "right", &file, &whole).counts(), (1, 0));
}

/// Strings that a dictionary makes many of: what they take may be known only when the indices were read.
#[test]
fn what_does_not_fit_is_divided() {
    let session = session("eager");
    {
        let long = "abcdefgh".repeat(100);
        let text = |row: usize| match row % 4 {
            0 => format!("only once {row}"),
            _ => long.clone(),
        };
        let texts: StringArray = (0..2000).map(|row| Some(text(row))).collect();
        let texts: ArrayRef = Arc::new(texts);
        let item = Arc::new(Field::new("element", DataType::Utf8, true));
        let lens = OffsetBuffer::from_lengths([4; 500]);
        let lists: ArrayRef = Arc::new(ListArray::new(item, lens, texts.clone(), None));
        let gpu = DeviceOptions::default().chunk(1 << 16).open(0).unwrap();
        for column in [texts, lists] {
            let batch = RecordBatch::try_from_iter([("texts", column)]).unwrap();
            let told = written(&batch, WriterProperties::builder().build());
            divided(&gpu, &told);
        }
    }
    nothing_left(&session);
}

/// Scans a file of 1.2 MB of strings, with and without what its footer tells of them.
fn divided(gpu: &Arc<Device>, told: &Bytes) {
    for (file, memory, why) in [
        (
            told,
            1u64 << 20,
            Some("more than the 524288 for a row group"),
        ),
        (told, 8 << 20, None),
        (&untold(told), 1 << 20, Some("bytes of strings in a column")),
        (&untold(told), 8 << 20, None),
    ] {
        let right = by_host(file, &whole).unwrap();
        let reader = MemoryReader::new(file.clone());
        let scan = feedwater::parquet::scan(Arc::new(reader)).on_device(gpu);
        let mut batches = scan
            .processor(Processor::Gpu)
            .memory(memory)
            .batches()
            .unwrap();
        let schema = batches.schema().clone();
        let parts: Vec<_> = batches
            .by_ref()
            .map(|batch| batch.unwrap().to_host().unwrap())
            .collect();
        let all = arrow::compute::concat_batches(&schema, &parts).unwrap();
        assert!(all == right);
        let texts = &batches.report().columns[0];
        assert_eq!(texts.by_gpu, u64::from(why.is_none()), "{texts:?}");
        if let Some(why) = why {
            assert!(parts.len() > 1, "{}", parts.len());
            assert!(texts.host_because[0].0.contains(why), "{texts:?}");
        }
    }
}

/// The same file, whose footer does not tell how many bytes the strings have.
fn untold(file: &Bytes) -> Bytes {
    let old = ParquetMetaDataReader::new().parse_and_finish(file).unwrap();
    let column = old.row_group(0).column(0).clone().into_builder();
    let column = column.set_unencoded_byte_array_data_bytes(None);
    let group = old.row_group(0).clone().into_builder();
    let group = group.set_column_metadata(vec![column.build().unwrap()]);
    let new = old.into_builder();
    let new = new.set_row_groups(vec![group.build().unwrap()]).build();
    let end = file.len() - 8;
    let footer = u32::from_le_bytes(file[end..end + 4].try_into().unwrap());
    let mut bytes = file[..end - footer as usize].to_vec();
    ParquetMetaDataWriter::new(&mut bytes, &new)
        .finish()
        .unwrap();
    bytes.into()
}
