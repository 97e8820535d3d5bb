//! The example `convert`, run as a user runs it: what it writes has the values that went in.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::{self, File};
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, FixedSizeListArray, Float32Array, Int64Array,
    ListArray, RecordBatch, StringArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type, UInt64Type};
use arrow::ipc::reader::FileReader;
use feedwater::npy::{self, Dtype, Order};
use feedwater::safetensors::{self, NewTensor};
use feedwater::tfrecord::{Compression, ExampleEncoder, Writer, WriterOptions};
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;

/// Exit status and what it says.
fn convert(args: &[&Path]) -> (i32, String) {
    let output = Command::new(common::example::example("convert"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{err}");
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code().unwrap(), err)
}

/// What becomes of `input`, in one batch.
fn converted(dir: &TempDir, input: &Path) -> RecordBatch {
    let output = dir.path().join("out.arrow");
    let (code, err) = convert(&[input, &output]);
    assert_eq!((code, &*err), (0, ""), "{}", input.display());
    let reader = FileReader::try_new(File::open(&output).unwrap(), None).unwrap();
    let schema = reader.schema();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn table() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter(
        (0..5000).map(|i| (i % 7 != 0).then_some(i)),
    ));
    let floats: ArrayRef = Arc::new(Float32Array::from_iter_values(
        (0..5000).map(|i| i as f32 / 3.0),
    ));
    let words = (0..5000).map(|i| format!("word {}", i % 100));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values(words));
    let lists = (0..5000i64).map(|i| Some((0..i % 4).map(Some).collect::<Vec<_>>()));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    RecordBatch::try_from_iter_with_nullable([
        ("id", ids, true),
        ("score", floats, true),
        ("word", words, true),
        ("list", lists, true),
    ])
    .unwrap()
}

#[test]
fn parquet_keeps_rows_and_columns() {
    let dir = dir();
    let path = dir.path().join("table"); // its content says what it is
    let batch = table();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.flush().unwrap();
    writer.write(&batch.slice(10, 20)).unwrap();
    writer.close().unwrap();
    let wanted = concat_batches(&batch.schema(), [&batch, &batch.slice(10, 20)]).unwrap();
    assert_eq!(converted(&dir, &path), wanted);
}

#[test]
fn dictionaries_become_plain_values() {
    let dir = dir();
    let path = dir.path().join("table.parquet");
    let mut writer = None;
    for words in [["a", "b", "a"], ["c", "c", "b"]] {
        let words: DictionaryArray<Int32Type> = words.into_iter().collect();
        let batch = RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)]).unwrap();
        let writer = writer.get_or_insert_with(|| {
            ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap()
        });
        writer.write(&batch).unwrap();
        writer.flush().unwrap(); // a row group, and a dictionary, each
    }
    writer.unwrap().close().unwrap();
    let batch = converted(&dir, &path);
    let words: Vec<_> = batch
        .column(0)
        .as_string::<i32>()
        .iter()
        .flatten()
        .collect();
    assert_eq!(words, ["a", "b", "a", "c", "c", "b"]);
}

fn write_examples(path: &Path, batch: &RecordBatch, compression: Compression) {
    let mut encoder = ExampleEncoder::new(batch).unwrap();
    let mut writer = WriterOptions::new()
        .compression(compression)
        .create(path)
        .unwrap();
    for row in 0..encoder.rows() {
        let mut record = Vec::new();
        encoder.encode(row, &mut record).unwrap();
        writer.write(&record).unwrap();
    }
    writer.commit().unwrap();
}

#[test]
fn examples_become_columns_by_all_of_them() {
    let dir = dir();
    let batch = table();
    for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
        let path = dir.path().join("examples");
        write_examples(&path, &batch, compression);
        let found = converted(&dir, &path);
        let names: Vec<_> = found
            .schema()
            .fields()
            .iter()
            .map(|f| f.name().clone())
            .collect();
        assert_eq!(names, ["id", "list", "score", "word"]);
        let column = |name: &str| found.column_by_name(name).unwrap().clone();
        assert_eq!(&column("id"), batch.column(0));
        assert_eq!(&column("score"), batch.column(1));
        let words = arrow::compute::cast(&column("word"), &DataType::Utf8).unwrap();
        assert_eq!(&words, batch.column(2));
        // Of one to three values, and sometimes none: a list, whatever the first record has.
        let lists = column("list");
        let lists = lists.as_list::<i32>();
        let wanted = batch.column(3).as_list::<i32>();
        assert_eq!(lists.len(), wanted.len());
        for row in 0..lists.len() {
            assert_eq!(
                lists.value(row).as_primitive::<Int64Type>(),
                wanted.value(row).as_primitive::<Int64Type>()
            );
        }
    }
}

#[test]
fn other_records_are_a_column() {
    let dir = dir();
    let path = dir.path().join("records");
    let mut writer = Writer::create(&path).unwrap();
    let records = [&b"no example"[..], b"", &[0xff; 1000]];
    records
        .iter()
        .for_each(|record| writer.write(record).unwrap());
    writer.commit().unwrap();
    let batch = converted(&dir, &path);
    assert_eq!(batch.schema().field(0).name(), "record");
    let found: Vec<_> = batch
        .column(0)
        .as_binary::<i32>()
        .iter()
        .flatten()
        .collect();
    assert_eq!(found, records);
}

#[test]
fn tensors_are_a_row_each() {
    let dir = dir();
    let path = dir.path().join("tensors");
    let wide: Vec<u8> = (0..60).collect();
    let tensors = [
        NewTensor::new("wide", safetensors::Dtype::F32, [3, 5], wide.clone()),
        NewTensor::new("one", safetensors::Dtype::BF16, [], vec![1, 2]),
        NewTensor::new("none", safetensors::Dtype::I64, [0, 4], vec![]),
    ];
    safetensors::save(&path, &tensors, &Default::default()).unwrap();
    let batch = converted(&dir, &path);
    let text = |name: &str| {
        batch
            .column_by_name(name)
            .unwrap()
            .as_string::<i32>()
            .clone()
    };
    let row = (0..3)
        .find(|&row| text("name").value(row) == "wide")
        .unwrap();
    assert_eq!(text("dtype").value(row), "F32");
    let shape = batch
        .column_by_name("shape")
        .unwrap()
        .as_list::<i32>()
        .value(row);
    assert_eq!(shape.as_primitive::<UInt64Type>().values(), &[3, 5]);
    let data = batch.column_by_name("data").unwrap().as_binary::<i64>();
    assert_eq!(data.value(row), wide);
    assert_eq!(
        data.iter().map(|data| data.unwrap().len()).sum::<usize>(),
        62
    );
}

#[test]
fn arrays_are_nested_lists_of_fixed_size() {
    let dir = dir();
    let path = dir.path().join("array");
    let values: Vec<f64> = (0..24).map(f64::from).collect();
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    let dtype = Dtype::of::<f64>();
    npy::save(&path, dtype, Order::C, &[2, 3, 4], &bytes).unwrap();
    let batch = converted(&dir, &path);
    assert_eq!(batch.num_rows(), 2);
    let rows: &FixedSizeListArray = batch.column(0).as_fixed_size_list();
    assert_eq!(rows.value_length(), 3);
    let inner = rows.values().as_fixed_size_list();
    assert_eq!(inner.value_length(), 4);
    assert_eq!(
        inner.values().as_primitive::<Float64Type>().values(),
        &values[..]
    );

    // The same array, column by column.
    let of = |i: usize, j: usize, k: usize| values[(i * 3 + j) * 4 + k];
    let mut columns = Vec::new();
    for k in 0..4 {
        for j in 0..3 {
            (0..2).for_each(|i| columns.extend(of(i, j, k).to_ne_bytes()));
        }
    }
    npy::save(&path, dtype, Order::Fortran, &[2, 3, 4], &columns).unwrap();
    assert_eq!(converted(&dir, &path), batch);

    for (shape, rows) in [(&[][..], 1), (&[24], 24), (&[0, 5], 0), (&[4, 0], 4)] {
        let bytes = match shape.iter().product::<usize>() {
            1 => &bytes[..8],
            24 => &bytes[..],
            _ => &[],
        };
        npy::save(&path, dtype, Order::C, shape, bytes).unwrap();
        assert_eq!(converted(&dir, &path).num_rows(), rows, "{shape:?}");
    }
}

#[test]
fn big_endian_numbers_and_archives_are_brought_into_the_order_of_this_machine() {
    let dir = dir();
    let mut big = b"\x93NUMPY\x01\x00".to_vec();
    let header = "{'descr': '>i8', 'fortran_order': False, 'shape': (3,), }";
    let header = format!("{header:<117}\n");
    big.extend((header.len() as u16).to_le_bytes());
    big.extend(header.as_bytes());
    [1i64, -2, 3]
        .iter()
        .for_each(|n| big.extend(n.to_be_bytes()));
    let path = dir.path().join("big");
    fs::write(&path, &big).unwrap();
    let batch = converted(&dir, &path);
    assert_eq!(
        batch.column(0).as_primitive::<Int64Type>().values(),
        &[1, -2, 3]
    );

    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("x.npy", zip::write::SimpleFileOptions::default())
        .unwrap();
    zip.write_all(&big).unwrap();
    let path = dir.path().join("archive");
    fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
    let batch = converted(&dir, &path);
    assert_eq!(batch.column(0).as_string::<i32>().value(0), "x");
    let native: Vec<u8> = [1i64, -2, 3].iter().flat_map(|n| n.to_ne_bytes()).collect();
    assert_eq!(batch.column(3).as_binary::<i64>().value(0), native);
}

#[test]
fn what_is_no_array_in_an_archive_is_left_out_aloud() {
    let dir = dir();
    let header = format!(
        "{:<117}\n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }"
    );
    let array = [
        b"\x93NUMPY\x01\x00",
        &(header.len() as u16).to_le_bytes()[..],
        header.as_bytes(),
        &[7, 8],
    ]
    .concat();
    let members: [(&str, &[u8]); 5] = [
        ("README.txt", b"What these are."),
        ("a.npy", &array),
        ("b", &array), // NumPy takes it for one
        ("empty", b""),
        ("z.npy", &array),
    ];
    let zipped = |members: &[(&str, &[u8])], method| {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        for (name, content) in members {
            zip.start_file(*name, options).unwrap();
            zip.write_all(content).unwrap();
        }
        let path = dir.path().join("some.npz");
        fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
        path
    };
    for method in [
        zip::CompressionMethod::Stored,
        zip::CompressionMethod::Deflated,
    ] {
        let path = zipped(&members, method);
        let output = dir.path().join("out.arrow");
        let (code, err) = convert(&[&path, &output]);
        assert_eq!(code, 0, "{err}");
        let lines: Vec<_> = err.lines().collect();
        assert_eq!(lines.len(), 2, "{err}");
        for (line, name) in lines.iter().zip(["README.txt", "empty"]) {
            assert!(line.contains("no array") && line.contains(name), "{line}");
        }
        let reader = FileReader::try_new(File::open(&output).unwrap(), None).unwrap();
        let names: Vec<_> = reader
            .map(|batch| {
                batch
                    .unwrap()
                    .column(0)
                    .as_string::<i32>()
                    .value(0)
                    .to_owned()
            })
            .collect();
        assert_eq!(names, ["a", "b", "z"]);
        fs::remove_file(&output).unwrap();
        // What is called an array has to be one.
        let path = zipped(&[("a.npy", &array), ("bad.npy", b"text")], method);
        refused(&dir, &[&path], "(bad.npy)");
    }
}

#[test]
fn records_of_which_the_first_is_empty_are_a_column() {
    let dir = dir();
    let path = dir.path().join("records");
    for records in [&[&b""[..], b"", b"some words", b""][..], &[b"", b""]] {
        let mut writer = Writer::create(&path).unwrap();
        for record in records {
            writer.write(record).unwrap();
        }
        writer.commit().unwrap();
        let batch = converted(&dir, &path);
        assert_eq!(batch.schema().field(0).name(), "record");
        let found: Vec<_> = batch
            .column(0)
            .as_binary::<i32>()
            .iter()
            .flatten()
            .collect();
        assert_eq!(found, records);
    }
    // An example without features has no bytes either.
    let rows = RecordBatch::try_from_iter_with_nullable([(
        "x",
        Arc::new(Int64Array::from(vec![None, Some(1), None])) as ArrayRef,
        true,
    )]);
    write_examples(&path, &rows.unwrap(), Compression::None);
    let batch = converted(&dir, &path);
    assert_eq!(batch.schema().field(0).name(), "x");
    assert_eq!((batch.num_rows(), batch.column(0).null_count()), (3, 2));
}

fn refused(dir: &TempDir, args: &[&Path], because: &str) {
    let output = dir.path().join("refused.arrow");
    let mut all = args.to_vec();
    all.push(&output);
    let (code, err) = convert(&all);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.starts_with("convert: ") && err.contains(because),
        "{err}"
    );
    assert_eq!(err.matches('\n').count(), 1, "one line: {err}");
    let left: Vec<PathBuf> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert!(left.iter().all(|path| args.contains(&&**path)), "{left:?}");
}

#[test]
fn a_failure_is_one_line_and_leaves_nothing() {
    let at = |name: &str, content: &[u8]| {
        let dir = dir();
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        (dir, path)
    };
    let (dir, path) = at("text", b"a few words\nand more\n");
    refused(&dir, &[&path], "by its content");
    refused(&dir, &[Path::new("--format=parquet"), &path], "text: ");
    refused(&dir, &[Path::new("--format=tfrecord"), &path], "text: ");
    refused(&dir, &[Path::new("--format=safetensors"), &path], "text: ");
    refused(&dir, &[Path::new("--format=npy"), &path], "text: ");
    refused(&dir, &[Path::new("--format=npz"), &path], "text: ");
    let (dir, path) = at("empty", b"");
    refused(&dir, &[&path], "by its content");
    let (dir, path) = at("half.parquet", b"PAR1 and nothing after that");
    refused(&dir, &[&path], "half.parquet: ");
    // No bytes of elements, and more lists than there are numbers for.
    let header =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8, 0), }\n";
    let npy = [b"\x93NUMPY\x01\x00\x51\x00", header.as_bytes()].concat();
    assert_eq!(header.len(), 0x51);
    let (dir, path) = at("many.npy", &npy);
    refused(&dir, &[&path], "more lists than can be counted");

    // The second record is damaged, when the first has been written.
    let dir = dir_with_damage();
    let path = dir.path().join("damaged");
    refused(&dir, &[&path], "record 1 ");
    let missing = dir.path().join("missing");
    let (code, err) = convert(&[&missing, &dir.path().join("out")]);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("missing: ") && err.matches('\n').count() == 1,
        "{err}"
    );
}

fn dir_with_damage() -> TempDir {
    let dir = dir();
    let path = dir.path().join("damaged");
    write_examples(&path, &table().slice(0, 3), Compression::None);
    let mut content = fs::read(&path).unwrap();
    let first = u64::from_le_bytes(content[..8].try_into().unwrap()) as usize + 16;
    content[first + 20] ^= 1;
    fs::write(&path, content).unwrap();
    dir
}

#[test]
fn what_is_forced_is_done() {
    let dir = dir();
    // No records at all: nothing that could be recognised.
    let path = dir.path().join("empty");
    fs::write(&path, b"").unwrap();
    let output = dir.path().join("out.arrow");
    let (code, err) = convert(&[Path::new("--format"), Path::new("tfrecord"), &path, &output]);
    assert_eq!((code, &*err), (0, ""));
    let reader = FileReader::try_new(File::open(&output).unwrap(), None).unwrap();
    assert_eq!(reader.schema().field(0).name(), "record");
    assert_eq!(reader.count(), 0);
}

#[test]
fn wrong_options_show_the_usage() {
    for args in [
        &["one"][..],
        &["a", "b", "c"],
        &["--format", "csv", "a", "b"],
        &["--threads", "0", "a", "b"],
        &["-x"],
    ] {
        let args: Vec<_> = args.iter().map(Path::new).collect();
        let (code, err) = convert(&args);
        assert_eq!(code, 2, "{err}");
        assert!(
            err.starts_with("convert: ") && err.contains("\nUsage: convert "),
            "{err}"
        );
    }
}
