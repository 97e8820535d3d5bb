//! Columns that are decoded without the `parquet` crate: their values are those of the crate, and what it refuses is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Float32Array, Float32Builder, Float64Array,
    Int32Array, Int64Array, Int64Builder, ListArray, ListBuilder, RecordBatch, StringArray,
};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use feedwater::MemoryReader;
use feedwater::parquet::scan;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::schema::types::ColumnPath;

use crate::files::{joined, oracle, write};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

/// Which rows have a value.
#[derive(Clone, Copy)]
enum There {
    All,
    Most,
    Runs,
    None,
}

impl There {
    fn is(self, row: usize, random: &mut Random) -> bool {
        match self {
            There::All => true,
            There::Most => random.below(10) > 0,
            There::Runs => row % 400 < 250,
            There::None => false,
        }
    }
}

fn some<T>(
    rows: usize,
    there: There,
    random: &mut Random,
    value: impl Fn(u64) -> T,
) -> Vec<Option<T>> {
    let one = |row| {
        let number = random.below(1 << 40);
        there.is(row, random).then(|| value(number))
    };
    (0..rows).map(one).collect()
}

fn text(number: u64) -> String {
    match number % 5 {
        0 => String::new(),
        1 => "é".repeat(number as usize % 50),
        2 => format!("{}{}", "long ".repeat(20), number % 900),
        _ => format!("https://example.org/{}", number % 3000),
    }
}

/// Every type that is decoded here, with and without nulls.
fn table(rows: usize) -> RecordBatch {
    let random = &mut Random(7);
    let mut columns: Vec<(Field, ArrayRef)> = Vec::new();
    let mut add = |name: String, array: ArrayRef, nullable: bool| {
        columns.push((Field::new(name, array.data_type().clone(), nullable), array));
    };
    for (name, there) in [
        ("all", There::All),
        ("most", There::Most),
        ("runs", There::Runs),
        ("none", There::None),
    ] {
        let flags: BooleanArray = some(rows, there, random, |n| n % 3 == 0).into();
        let few: Int32Array = some(rows, there, random, |n| n as i32 % 17 - 8).into();
        let many: Int64Array = some(rows, there, random, |n| n as i64 - (1 << 39)).into();
        let floats: Float32Array = some(rows, there, random, |n| n as f32 / 3.0).into();
        let doubles: Float64Array = some(rows, there, random, |n| n as f64 / 7.0).into();
        let texts: StringArray = some(rows, there, random, text).into_iter().collect();
        let bytes = some(rows, there, random, |n| {
            n.to_le_bytes()[..n as usize % 8].to_vec()
        });
        let bytes: BinaryArray = bytes.into_iter().collect();
        let arrays: [ArrayRef; 7] = [
            Arc::new(flags),
            Arc::new(few.clone()),
            Arc::new(many.clone()),
            Arc::new(floats),
            Arc::new(doubles),
            Arc::new(texts),
            Arc::new(bytes),
        ];
        for array in arrays {
            add(format!("{name}-{}", array.data_type()), array, true);
        }
        for (array, to) in [
            (&few as &dyn Array, DataType::UInt32),
            (&few, DataType::Date32),
            (&few, DataType::Time32(TimeUnit::Millisecond)),
            (&many, DataType::UInt64),
            (&many, DataType::Time64(TimeUnit::Nanosecond)),
            (&many, DataType::Timestamp(TimeUnit::Microsecond, None)),
            (
                &many,
                DataType::Timestamp(TimeUnit::Millisecond, Some("Europe/Berlin".into())),
            ),
            (&many, DataType::Duration(TimeUnit::Second)),
        ] {
            add(format!("{name}-as-{to}"), cast(array, &to).unwrap(), true);
        }
    }
    for required in [
        Arc::new(BooleanArray::from_iter((0..rows).map(|n| Some(n % 7 < 3)))) as ArrayRef,
        Arc::new(Int32Array::from_iter_values(0..rows as i32)),
        Arc::new(Int64Array::from_iter_values(
            (0..rows as i64).map(|n| n / 100),
        )),
        Arc::new(StringArray::from_iter_values(
            (0..rows as u64).map(|n| text(n * 31)),
        )),
    ] {
        add(
            format!("required-{}", required.data_type()),
            required,
            false,
        );
    }
    for nullable in [true, false] {
        for of_nullable in [true, false] {
            let name = format!("lists-{nullable}-{of_nullable}");
            let floats = lists(rows, nullable, of_nullable, random);
            add(format!("{name}-floats"), Arc::new(floats), nullable);
        }
    }
    let mut lists = ListBuilder::new(Int64Builder::new());
    for row in 0..rows {
        let long = if row % 500 == 3 { 700 } else { random.below(4) };
        (0..long).for_each(|n| lists.values().append_value((n * 100) as i64));
        lists.append(true);
    }
    add("lists-of-numbers".into(), Arc::new(lists.finish()), true);
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn lists(rows: usize, nullable: bool, of_nullable: bool, random: &mut Random) -> ListArray {
    let item = Arc::new(Field::new_list_field(DataType::Float32, of_nullable));
    let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item);
    for row in 0..rows {
        let there = !nullable || random.below(8) > 0;
        let long = if row % 90 == 0 { 300 } else { 6 };
        for _ in 0..if there { random.below(long) } else { 0 } {
            let value = (!of_nullable || random.below(9) > 0).then(|| random.below(50) as f32);
            lists.values().append_option(value);
        }
        lists.append(there);
    }
    lists.finish()
}

/// Numbers and strings in encodings of their own: differences and lengths; or bytes apart and prefixes.
fn encoded(set: WriterPropertiesBuilder, deltas: bool) -> WriterPropertiesBuilder {
    let set = set.set_dictionary_enabled(false);
    let schema = table(1).schema();
    schema.fields().iter().fold(set, |set, field| {
        let (path, of) = match field.data_type() {
            DataType::List(item) => (
                vec![field.name().as_str(), "list", "item"],
                item.data_type(),
            ),
            other => (vec![field.name().as_str()], other),
        };
        let encoding = match of {
            DataType::Boolean => return set,
            DataType::Float32 | DataType::Float64 => Encoding::BYTE_STREAM_SPLIT,
            DataType::Utf8 | DataType::Binary if deltas => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            DataType::Utf8 | DataType::Binary => Encoding::DELTA_BYTE_ARRAY,
            _ if deltas => Encoding::DELTA_BINARY_PACKED,
            _ => Encoding::BYTE_STREAM_SPLIT,
        };
        let path = path.into_iter().map(String::from).collect::<Vec<_>>();
        set.set_column_encoding(ColumnPath::new(path), encoding)
    })
}

fn files(rows: usize) -> Vec<(String, Bytes)> {
    let table = table(rows);
    let base = || WriterProperties::builder().set_max_row_group_row_count(Some(rows * 2 / 3));
    type Set = fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder;
    let encodings: [(&str, Set); 5] = [
        ("dictionaries", |set| set),
        ("plain", |set| set.set_dictionary_enabled(false)),
        ("both", |set| set.set_dictionary_page_size_limit(300)),
        ("deltas", |set| encoded(set, true)),
        ("split", |set| encoded(set, false)),
    ];
    let pages: [(&str, Set); 3] = [
        ("large pages", |set| set),
        ("pages of 70", |set| {
            set.set_data_page_row_count_limit(70)
                .set_write_batch_size(35)
        }),
        ("small pages, compressed", |set| {
            set.set_data_page_row_count_limit(9)
                .set_write_batch_size(3)
                .set_compression(Compression::SNAPPY)
        }),
    ];
    let mut files = Vec::new();
    for (encoding, encode) in encodings {
        for (page, paginate) in pages {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                let set = paginate(encode(base())).set_writer_version(version);
                let name = format!("{encoding}, {page}, {version:?}");
                files.push((name, write(&table, set)));
            }
        }
    }
    files
}

#[test]
fn values_are_those_of_the_crate() {
    for (name, file) in files(1300) {
        let expected = oracle(&file);
        for batch_rows in [1, 61, 64, 500, 8192] {
            if batch_rows == 1 && !name.starts_with("both") {
                continue;
            }
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let batches = scan(reader).threads(2).batch_rows(batch_rows).batches();
            let read = joined(batches.unwrap());
            for (column, field) in read.schema().fields().iter().enumerate() {
                let what = format!("{name}, batches of {batch_rows}, {}", field.name());
                assert_eq!(read.column(column), expected.column(column), "{what}");
            }
            assert_eq!(read.schema(), expected.schema());
        }
    }
}

/// What the crate makes of the 90 rows of the file; `None`: it does not like it.
fn theirs(file: &Bytes) -> Option<RecordBatch> {
    let read = || {
        let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).ok()?;
        // Pages may have more rows than the footer says.
        let reader = reader.with_batch_size(30).with_limit(90);
        let reader = reader.build().ok()?;
        let schema = arrow::array::RecordBatchReader::schema(&reader);
        let batches: Vec<_> = reader.collect::<Result<_, _>>().ok()?;
        concat_batches(&schema, &batches).ok()
    };
    catch_unwind(AssertUnwindSafe(read)).ok().flatten()
}

/// Bytes of pages are changed one at a time: nothing is read that the crate does not read, and nothing else.
#[test]
fn what_the_crate_refuses_is_refused() {
    let table = table(90);
    let mut random = Random(3);
    let (mut same, mut refused) = (0, 0);
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        type Set = fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder;
        let encodings: [Set; 4] = [
            |set| set,
            |set| set.set_dictionary_enabled(false),
            |set| encoded(set, true),
            |set| encoded(set, false),
        ];
        for encode in encodings {
            let set = encode(WriterProperties::builder())
                .set_writer_version(version)
                .set_data_page_row_count_limit(40)
                .set_write_batch_size(20)
                .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None);
            for column in 0..table.num_columns() {
                let file = write(&table.project(&[column]).unwrap(), set.clone());
                let footer =
                    u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap())
                        as usize;
                let pages = file.len() - 8 - footer;
                for _ in 0..16 {
                    let mut bytes = file.to_vec();
                    let at = 4 + random.below(pages as u64 - 4) as usize;
                    bytes[at] = match random.below(3) {
                        0 => bytes[at] ^ 1 << random.below(8),
                        1 => random.below(256) as u8,
                        _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                    };
                    let bytes = Bytes::from(bytes);
                    let reader = Arc::new(MemoryReader::new(bytes.clone()));
                    let Ok(batches) = scan(reader).threads(1).batch_rows(30).batches() else {
                        refused += 1;
                        continue;
                    };
                    let schema = batches.schema().clone();
                    let Ok(batches) = batches.collect::<Result<Vec<_>, _>>() else {
                        refused += 1;
                        continue;
                    };
                    let ours = concat_batches(&schema, &batches).unwrap();
                    let name = table.schema().field(column).name().clone();
                    let theirs = theirs(&bytes);
                    let was = &file[..pages];
                    let what = format!("{name} {version:?} byte {at} of {was:x?} is {}", bytes[at]);
                    assert_eq!(Some(ours), theirs, "{what}");
                    same += 1;
                }
            }
        }
    }
    assert!(same > 500 && refused > 500, "{same} {refused}");
}
