//! Arrays of hand-written files: every type, both orders of bytes, both orders of dimensions; archives made by the `zip`
//! crate; and what is asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Cursor, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use feedwater::npy::{
    Archive, Array, ArrayFile, Dtype, Endian, Kind, Order, open, open_async, open_npz, save,
};
use feedwater::{
    Batch, Error, ErrorKind, MemoryReader, OpenOptions, Pending, ReadInto, Reader, Result, Source,
};
use proptest::prelude::*;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// A file of version 1.0 with this header and these elements.
fn file(header: &str, elements: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(elements);
    bytes
}

fn header(descr: &str, fortran: &str, shape: &str) -> String {
    let dict = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}");
    // So that elements begin at a multiple of 64, with the ten bytes in front and the end of the line.
    let padded = (dict.len() + 11).next_multiple_of(64) - 11;
    format!("{dict:padded$}\n")
}

fn memory(bytes: impl Into<Bytes>) -> Result<ArrayFile<MemoryReader>> {
    open(Arc::new(MemoryReader::named("array", bytes)))
}

fn load(bytes: impl Into<Bytes>) -> Array {
    memory(bytes).unwrap().read_all().wait().unwrap()
}

fn refusal(bytes: impl Into<Bytes>) -> Error {
    let error = memory(bytes).unwrap_err();
    assert_eq!(error.name(), Some("array"));
    error
}

/// `np.save(f, np.array([[1, 2], [3, 4]], dtype='<i4'))`, as NumPy 1.14 to 2 write it, without the padding's length.
#[test]
fn a_file_of_numpy_reads_as_it_was() {
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend_from_slice(b"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }");
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    for value in [1i32, 2, 3, 4] {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    let array = load(bytes.clone());
    assert_eq!((array.shape(), array.strides()), (&[2, 2][..], vec![8, 4]));
    assert_eq!(
        array.dtype(),
        Dtype::new(Kind::Int, 4, Endian::Little).unwrap()
    );
    assert_eq!(array.to_vec::<i32>().unwrap(), [1, 2, 3, 4]);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    let elements = &bytes[128..];
    save(&path, array.dtype(), Order::C, &[2, 2], elements).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "the same is written");
}

#[test]
fn every_type_in_both_orders_of_bytes() {
    macro_rules! check {
        ($($code:literal $type:ty: $values:expr;)*) => {$({
            let values: [$type; 3] = $values;
            let little: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let big: Vec<u8> = values.iter().flat_map(|v| v.to_be_bytes()).collect();
            let size = size_of::<$type>();
            for (order, elements) in [("<", &little), (">", &big)] {
                let order = if size == 1 { "|" } else { order };
                let descr = format!("'{order}{}{size}'", $code);
                let array = load(file(&header(&descr, "False", "(3,)"), elements));
                assert_eq!(array.to_vec::<$type>().unwrap(), values, "{descr}");
                assert_eq!(format!("'{}'", array.dtype()), descr);
                let native = array.to_native();
                assert_eq!(native.to_vec::<$type>().unwrap(), values);
                assert_eq!(array.as_slice::<$type>().is_ok(), array.dtype().endian().is_native());
                assert_eq!(native.dtype(), Dtype::of::<$type>());
                let other = if $code == "u" { array.to_vec::<i8>().is_ok() } else { array.to_vec::<u8>().is_ok() };
                assert!(!other, "another type");
            }
        })*};
    }
    check! {
        "i" i8: [-1, 0, 127];
        "i" i16: [-2, 0, 0x1234];
        "i" i32: [i32::MIN, 1, 0x1234_5678];
        "i" i64: [i64::MIN, 1, 0x0102_0304_0506_0708];
        "u" u8: [0, 1, 255];
        "u" u16: [0, 1, 0xff01];
        "u" u32: [0, 1, 0xff01_0203];
        "u" u64: [0, 1, u64::MAX - 5];
        "f" f32: [-0.0, 1.5, f32::MAX];
        "f" f64: [-0.0, 1.5, f64::MIN_POSITIVE];
    }
    for (descr, kind, size, endian) in [
        ("|b1", Kind::Bool, 1, Endian::None),
        ("<f2", Kind::Float, 2, Endian::Little),
        (">f2", Kind::Float, 2, Endian::Big),
        ("<c8", Kind::Complex, 8, Endian::Little),
        (">c16", Kind::Complex, 16, Endian::Big),
        ("|S5", Kind::Bytes, 5, Endian::None),
        ("S5", Kind::Bytes, 5, Endian::None),
        ("<U3", Kind::Unicode, 12, Endian::Little),
        ("|V7", Kind::Void, 7, Endian::None),
        ("|S0", Kind::Bytes, 0, Endian::None),
        ("=f4", Kind::Float, 4, Endian::NATIVE),
        ("f4", Kind::Float, 4, Endian::NATIVE),
        ("<i1", Kind::Int, 1, Endian::None),
    ] {
        let elements: Vec<u8> = (0..2 * size as u8).collect();
        let array = load(file(
            &header(&format!("'{descr}'"), "False", "(2,)"),
            &elements,
        ));
        let dtype = array.dtype();
        assert_eq!(
            (dtype.kind(), dtype.size(), dtype.endian()),
            (kind, size, endian),
            "{descr}"
        );
        assert_eq!(array.bytes(), &elements[..]);
    }
}

#[test]
fn what_is_not_read_is_named() {
    for (descr, says) in [
        ("'|O'", "Python objects"),
        ("'|O8'", "Python objects"),
        ("'<M8[ns]'", "dates"),
        ("'<m8'", "dates"),
        ("'<f16'", "<f16"),
        ("'<c32'", "<c32"),
        (
            "[('a', '<f4'), ('b', [('c', '<i2', (2, 3))])]",
            "structured",
        ),
        ("('<f4', (2,))", "elements that are arrays"),
    ] {
        let error = refusal(file(&header(descr, "False", "(1,)"), &[0; 64]));
        let ErrorKind::UnsupportedFeature {
            format: "npy",
            feature,
            ..
        } = error.kind()
        else {
            panic!("{descr}: {error}");
        };
        assert!(feature.contains(says), "{feature}");
    }
    let dimensions = format!("({})", "1, ".repeat(65));
    let error = refusal(file(&header("'<f4'", "False", &dimensions), &[0; 4]));
    assert!(
        matches!(error.kind(), ErrorKind::UnsupportedFeature { .. }),
        "{error}"
    );
    for version in [[1, 1], [4, 0], [0, 0]] {
        let mut bytes = file(&header("'<f4'", "False", "()"), &[0; 4]);
        bytes[6..8].copy_from_slice(&version);
        let error = refusal(bytes);
        assert!(
            matches!(error.kind(), ErrorKind::UnsupportedFeature { .. }),
            "{error}"
        );
        assert_eq!((error.offset(), error.length()), (Some(6), Some(2)));
    }
}

#[test]
fn what_is_wrong_is_refused() {
    let good = || file(&header("'<f4'", "False", "(2,)"), &[0; 8]);
    for bytes in [
        b"".to_vec(),
        b"\x93NUMPY".to_vec(),
        b"\x93NUMPY\x01\x00\xff".to_vec(),
        b"\x93NUMPX\x01\x00\x00\x00".to_vec(),
        good()[..40].to_vec(),
        good()[..good().len() - 1].to_vec(),
        file("{'descr': '<f4', 'fortran_order': False}\n", &[0; 8]),
        file(
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}\n",
            &[0; 8],
        ),
        file(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}\n",
            &[0; 8],
        ),
        file(
            "{'descr': '<f4', 'fortran_order': False, 'shape': ()}; import os\n",
            &[0; 8],
        ),
        file(&header("'<f4'", "0", "(2,)"), &[0; 8]),
        file(&header("'<f4'", "False", "(2)"), &[0; 8]),
        file(&header("'<f4'", "False", "[2]"), &[0; 8]),
        file(&header("'<f4'", "False", "(-2,)"), &[0; 8]),
        file(&header("'<f4'", "False", "(9223372036854775808,)"), &[0; 8]),
        file(
            &header("'<f4'", "False", "(4611686018427387904, 4)"),
            &[0; 8],
        ),
        file(&header("'<f4'", "False", "(4611686018427387904,)"), &[0; 8]),
        file(&header("'|f4'", "False", "(2,)"), &[0; 8]),
        file(&header("'<x4'", "False", "(2,)"), &[0; 8]),
        file(&header("'<f'", "False", "(2,)"), &[0; 8]),
        file(&header("'<f-4'", "False", "(2,)"), &[0; 8]),
        file(
            &header("'<f99999999999999999999'", "False", "(2,)"),
            &[0; 8],
        ),
        file(&header("''", "False", "(2,)"), &[0; 8]),
        file(&header("4", "False", "(2,)"), &[0; 8]),
    ] {
        let error = refusal(bytes.clone());
        let malformed = matches!(error.kind(), ErrorKind::Malformed { format: "npy", .. });
        assert!(malformed, "{}: {error}", String::from_utf8_lossy(&bytes));
        assert!(error.offset().is_some());
    }
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    let error = refusal(pointer.to_vec());
    assert!(error.to_string().contains("`git lfs pull`"), "{error}");
}

#[test]
fn later_versions_have_longer_headers() {
    for version in [2, 3] {
        let header = header("'<u2'", "False", "(2,)");
        let mut bytes = vec![0x93];
        bytes.extend_from_slice(b"NUMPY");
        bytes.extend_from_slice(&[version, 0]);
        bytes.extend_from_slice(&u32::try_from(header.len() + 20_000).unwrap().to_le_bytes());
        bytes.extend_from_slice(header.trim_end().as_bytes());
        bytes.resize(12 + header.len() + 20_000 - 1, b' ');
        bytes.extend_from_slice(b"\n\x01\x00\x02\x00");
        assert_eq!(load(bytes.clone()).to_vec::<u16>().unwrap(), [1, 2]);
        for (len, wrong) in [(0x7fff_ffffu32, true), (66_000, false)] {
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            let mut longer = bytes.clone();
            longer.resize(70_000, b' ');
            let error = refusal(longer);
            let malformed = matches!(error.kind(), ErrorKind::Malformed { .. });
            assert_eq!(malformed, wrong, "{error}");
        }
    }
}

#[test]
fn shapes_of_nothing_and_of_one() {
    for (shape, lengths) in [
        ("()", &[][..]),
        ("(1,)", &[1]),
        ("(1, 1, 1,)", &[1, 1, 1]),
        ("(1L, 1L)", &[1, 1]),
    ] {
        let array = load(file(&header("'<i2'", "False", shape), &[7, 0]));
        assert_eq!((array.shape(), array.len()), (lengths, 1));
        assert_eq!(array.to_vec::<i16>().unwrap(), [7]);
    }
    for shape in [
        "(0,)",
        "(3, 0)",
        "(0, 9223372036854775807, 9223372036854775807)",
    ] {
        for fortran in ["True", "False"] {
            let array = load(file(&header("'<i2'", fortran, shape), &[]));
            assert!(array.is_empty() && array.bytes().is_empty());
            assert_eq!(array.as_slice::<i16>().unwrap(), [0i16; 0]);
            assert!(array.to_c_order().is_empty());
        }
    }
    let strings = load(file(
        &header("'|S0'", "True", "(4611686018427387904, 2)"),
        &[],
    ));
    assert_eq!(
        (strings.len(), strings.bytes().len()),
        (usize::MAX / 2 + 1, 0)
    );
    assert!(strings.to_c_order().bytes().is_empty());
}

#[test]
fn fortran_order_has_its_strides() {
    let elements: Vec<u8> = [0i16, 3, 1, 4, 2, 5]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let array = load(file(&header("'<i2'", "True", "(2, 3)"), &elements));
    assert_eq!(
        (array.order(), array.strides()),
        (Order::Fortran, vec![2, 4])
    );
    assert_eq!(array.to_vec::<i16>().unwrap(), [0, 3, 1, 4, 2, 5]);
    let c = array.to_c_order();
    assert_eq!((c.order(), c.strides()), (Order::C, vec![6, 2]));
    assert_eq!(c.to_vec::<i16>().unwrap(), [0, 1, 2, 3, 4, 5]);
}

/// Remembers what was asked for.
#[derive(Debug)]
struct Recording {
    inner: MemoryReader,
    asked: Mutex<Vec<Range<u64>>>,
}

impl Recording {
    fn new(bytes: impl Into<Bytes>) -> Arc<Self> {
        Arc::new(Recording {
            inner: MemoryReader::new(bytes),
            asked: Mutex::default(),
        })
    }

    fn take(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Reader for Recording {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let ranges = batch.reads.iter().map(|read| read.range.clone());
        self.asked.lock().unwrap().extend(ranges);
        self.inner.submit(batch)
    }

    fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
        unreachable!("nothing here reads on the spot")
    }
}

/// 5000 rows of 3 numbers, whose elements begin at 128.
fn rows() -> (Vec<u8>, Vec<u32>) {
    let values: Vec<u32> = (0..15_000).collect();
    let mut head = header("'<u4'", "False", "(5000, 3)").trim_end().to_string();
    while head.len() < 117 {
        head.push(' ');
    }
    head.push('\n');
    let elements: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (file(&head, &elements), values)
}

#[test]
fn rows_read_their_bytes_and_no_others() {
    let (bytes, values) = rows();
    let len = bytes.len() as u64;
    let reader = Recording::new(bytes);
    let array = open(reader.clone()).unwrap();
    assert_eq!(reader.take(), [0..16_384]);
    assert_eq!(array.range(), 128..len);
    assert_eq!(
        array.read_all().wait().unwrap().as_slice::<u32>().unwrap(),
        values
    );
    assert_eq!(reader.take(), [128..len]);

    let some = array.rows(1000..1002).wait().unwrap();
    assert_eq!(
        (some.shape(), some.as_slice::<u32>().unwrap()),
        (&[2, 3][..], &values[3000..3006])
    );
    // Down to a multiple of 64, so that memory is as aligned as the file.
    assert_eq!(reader.take(), [12_096..12_152]);
    for none in [0..0, 5000..5000] {
        let some = array.rows(none).wait().unwrap();
        assert_eq!((some.shape(), some.bytes().len()), (&[0, 3][..], 0));
    }
    assert_eq!(reader.take(), []);
    #[allow(clippy::reversed_empty_ranges)]
    for wrong in [0..5001, 3..2, 6000..6001] {
        let error = array.rows(wrong).wait().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotFound { .. }),
            "{error}"
        );
    }
    for (fortran, shape) in [("True", "(1, 1)"), ("False", "()")] {
        let other = memory(file(&header("'<u4'", fortran, shape), &[0; 4])).unwrap();
        let error = other.rows(0..1).wait().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unsupported { .. }),
            "{error}"
        );
    }
    let column = memory(file(&header("'<u2'", "True", "(2,)"), &[1, 0, 2, 0])).unwrap();
    assert_eq!(
        column.rows(1..2).wait().unwrap().to_vec::<u16>().unwrap(),
        [2]
    );
    let none = memory(file(&header("'<u2'", "False", "(0, 4)"), &[])).unwrap();
    assert_eq!(none.rows(0..0).wait().unwrap().shape(), [0, 4]);
}

#[test]
fn a_small_array_comes_with_its_header() {
    let reader = Recording::new(file(&header("'<u2'", "False", "(3,)"), &[1, 0, 2, 0, 3, 0]));
    let array = open(reader.clone()).unwrap();
    assert_eq!(
        array.read_all().wait().unwrap().as_slice::<u16>().unwrap(),
        [1, 2, 3]
    );
    assert_eq!(
        array.rows(2..3).wait().unwrap().to_vec::<u16>().unwrap(),
        [3]
    );
    assert_eq!(reader.take().len(), 1);
}

#[test]
fn files_are_read_by_threads_tasks_and_views() {
    let (bytes, values) = rows();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    std::fs::write(&path, &bytes).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let array = open_async(feedwater::open(&path).unwrap()).await.unwrap();
        let all = array.read_all().await.unwrap();
        assert_eq!(all.as_slice::<u32>().unwrap(), values);
        assert_eq!(
            array.rows(7..8).await.unwrap().to_vec::<u32>().unwrap(),
            [21, 22, 23]
        );
        assert!(array.rows(7..9000).await.is_err());
    });
    // SAFETY: the file is this test's own, and nobody changes it.
    #[allow(unsafe_code)]
    let options = unsafe { OpenOptions::new().assume_immutable() };
    let array = open(options.open(&path).unwrap()).unwrap();
    let (one, two) = (
        array.read_all().wait().unwrap(),
        array.read_all().wait().unwrap(),
    );
    assert_eq!(one.bytes().as_ptr(), two.bytes().as_ptr(), "the same pages");
    assert_eq!(one.as_slice::<u32>().unwrap(), values);
}

#[test]
fn what_is_saved_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    for (order, shape) in [
        (Order::C, &[][..]),
        (Order::C, &[6]),
        (Order::Fortran, &[2, 3]),
        (Order::C, &[1, 1, 6, 1]),
        (Order::C, &[0, 9]),
    ] {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..8 * count as u8).collect();
        let dtype = Dtype::new(Kind::Complex, 8, Endian::Big).unwrap();
        let version = save(&path, dtype, order, shape, &bytes).unwrap();
        let array = open(feedwater::open(&path).unwrap()).unwrap();
        assert_eq!(
            (array.dtype(), array.order(), array.shape()),
            (dtype, order, shape)
        );
        assert_eq!(array.range(), version.size - 8 * count as u64..version.size);
        assert_eq!(array.range().start % 64, 0);
        assert_eq!(array.read_all().wait().unwrap().bytes(), &bytes[..]);
    }
    let dtype = Dtype::of::<u16>();
    for (shape, bytes) in [
        (&[2][..], &[0; 5][..]),
        (&[usize::MAX, 2], &[]),
        (&[1; 65], &[0; 2]),
    ] {
        let error = save(&path, dtype, Order::C, shape, bytes).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
    }
}

/// An archive of members with these names, methods and contents.
fn archive(members: &[(&str, CompressionMethod, &[u8])], large: bool) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, method, content) in members {
        let options = SimpleFileOptions::default()
            .compression_method(*method)
            .large_file(large);
        writer.start_file(*name, options).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn zipped(bytes: impl Into<Bytes>) -> Result<Archive<MemoryReader>> {
    open_npz(Arc::new(MemoryReader::named("archive", bytes)))
}

const STORED: CompressionMethod = CompressionMethod::Stored;
const DEFLATED: CompressionMethod = CompressionMethod::Deflated;

fn two() -> (Vec<u8>, Vec<u8>) {
    let x = file(
        &header("'<i4'", "False", "(3,)"),
        &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0],
    );
    let y = file(&header("'|u1'", "False", "(100000,)"), &[9; 100_000]);
    (x, y)
}

#[test]
fn arrays_of_an_archive() {
    let (x, y) = two();
    for large in [false, true] {
        let bytes = archive(
            &[
                ("x.npy", STORED, &x),
                ("sub/y.npy", DEFLATED, &y),
                ("note", STORED, b"hello"),
            ],
            large,
        );
        let archive = zipped(bytes).unwrap();
        assert_eq!(archive.names().collect::<Vec<_>>(), ["note", "sub/y", "x"]);
        let found = archive.array("x").unwrap().read_all().wait().unwrap();
        assert_eq!(found.to_vec::<i32>().unwrap(), [1, 2, 3]);
        let found = archive.array("sub/y").unwrap().read_all().wait().unwrap();
        assert_eq!(found.bytes(), &[9; 100_000][..]);
        for name in ["x", "sub/y", "note"] {
            archive.verify(name).unwrap();
        }
        let error = archive.array("note").unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Malformed { format: "npy", part: Some(part), .. } if &**part == "note"),
            "{error}"
        );
        assert!(archive.is_npy("x") && archive.is_npy("sub/y"));
        assert!(!archive.is_npy("note") && !archive.is_npy("x.npy") && !archive.is_npy("z"));
        let error = archive.array("z").unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotFound { .. }),
            "{error}"
        );
        let error = archive
            .clone()
            .max_inflated(99_999)
            .array("sub/y")
            .unwrap_err();
        let refused = matches!(error.kind(), ErrorKind::OutOfMemory { wanted, cap: 99_999 } if *wanted == y.len() as u64);
        assert!(refused, "{error}");
    }
    assert_eq!(zipped(archive(&[], false)).unwrap().names().len(), 0);
}

/// Memory that cannot be had is an error; elsewhere, what is wrong with the member comes out.
#[test]
fn a_member_that_promises_more_than_there_is_memory_is_refused() {
    const PROMISED: u32 = u32::MAX - 1;
    let content: Vec<u8> = (0..6u32 << 20).map(|i| (i >> 7) as u8).collect();
    let mut bytes = archive(&[("x.npy", STORED, &content)], false);
    let entry = find(&bytes, b"PK\x01\x02", 0);
    for (at, with) in [(8, 8u32), (entry + 10, 8)] {
        bytes[at..at + 2].copy_from_slice(&with.to_le_bytes()[..2]); // deflated
    }
    bytes[entry + 24..entry + 28].copy_from_slice(&PROMISED.to_le_bytes());
    let archive = zipped(bytes).unwrap().max_inflated(u64::MAX);
    let error = archive.array("x").unwrap_err();
    match error.kind() {
        ErrorKind::OutOfMemory { wanted, .. } => assert_eq!(*wanted, u64::from(PROMISED)),
        ErrorKind::Malformed { .. } => assert_eq!(common::confinement(), None, "{error}"),
        _ => panic!("{error}"),
    }
}

#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{Confinement, FREE, again};

    #[test]
    fn with_little_memory() {
        let how = Confinement {
            name: "little-memory",
            needs: "rlimits",
            // Address space in bytes.
            limit: Some((libc::RLIMIT_AS as i32, 2 << 30)),
            threads: Some(1),
            ..FREE
        };
        again(&how, &["a_member_that_promises"], 1);
    }
}

#[test]
fn a_stored_member_is_read_in_place() {
    let (_, y) = two();
    let bytes = archive(&[("y.npy", STORED, &y)], false);
    let len = bytes.len() as u64;
    let start = bytes.windows(6).position(|at| at == b"\x93NUMPY").unwrap() as u64;
    let reader = Recording::new(bytes);
    let archive = open_npz(reader.clone()).unwrap();
    assert_eq!(
        reader.take(),
        [len - (65_536 + 98)..len],
        "the directory, in one request"
    );
    let array = archive.array("y").unwrap();
    assert_eq!(reader.take(), [0..30, start..start + 16_384], "its headers");
    let data = start + array.range().start;
    let rows = array.rows(50_000..50_003).wait().unwrap();
    assert_eq!(rows.bytes(), &[9; 3][..]);
    let asked = reader.take();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].end, data + 50_003);
    assert!(asked[0].end - asked[0].start < 3 + 64);
}

/// Where a signature begins, the `nth` time.
fn find(bytes: &[u8], signature: &[u8; 4], nth: usize) -> usize {
    let mut found = bytes
        .windows(4)
        .enumerate()
        .filter(|(_, at)| at == signature);
    found.nth(nth).unwrap().0
}

#[test]
fn archives_that_lie_are_refused() {
    let (x, y) = two();
    let good = || archive(&[("x.npy", STORED, &x), ("y.npy", DEFLATED, &y)], false);
    let entry = |nth| find(&good(), b"PK\x01\x02", nth);
    let end = find(&good(), b"PK\x05\x06", 0);
    let edit = |at: usize, with: &[u8]| {
        let mut bytes = good();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let opening = |bytes: Vec<u8>| zipped(bytes).map(drop);
    let reading = |name: &'static str| move |bytes: Vec<u8>| zipped(bytes)?.array(name).map(drop);
    let verifying = |bytes: Vec<u8>| zipped(bytes)?.verify("x");
    type Try<'a> = &'a dyn Fn(Vec<u8>) -> Result<()>;
    let (x_, y_) = (reading("x"), reading("y"));
    let malformed: [(Vec<u8>, Try<'_>, &str); 19] = [
        (b"".to_vec(), &opening, "does not end as"),
        (
            good()[..good().len() - 1].to_vec(),
            &opening,
            "does not end as",
        ),
        ([good(), vec![0]].concat(), &opening, "does not end as"),
        ([vec![0], good()].concat(), &opening, "does not end at"),
        (edit(end + 10, &[3]), &opening, "cannot have 3"),
        (edit(end + 10, &[1]), &opening, "more than its 1"),
        (edit(end + 10, &[0xff, 0xff]), &opening, "cannot have 65535"),
        (
            edit(end + 12, &[0xff, 0xff, 0xff, 0x7f]),
            &opening,
            "does not end at",
        ),
        (
            edit(end + 16, &[0xff, 0xff, 0xff, 0xff]),
            &opening,
            "does not end at",
        ),
        (edit(entry(0), b"XX"), &opening, "no whole entry"),
        (
            edit(entry(1) + 28, &[0xff, 0xff]),
            &opening,
            "no whole entry",
        ),
        (edit(entry(1) + 46, b"x"), &opening, "two members"),
        (
            edit(entry(0) + 20, &[0xff, 0xff, 0xff, 0x7f]),
            &opening,
            "before the directory",
        ),
        (
            edit(entry(0) + 20, &[0xff, 0xff, 0xff, 0xff]),
            &opening,
            "no whole entry",
        ),
        (edit(entry(0) + 24, &[1]), &opening, "is stored, in"),
        (edit(entry(0) + 42, &[1]), &x_, "no header"),
        (edit(entry(0) + 10, &[8]), &x_, "another way"),
        (edit(26, &[0xff, 0xff]), &x_, "into the directory"),
        (edit(entry(0) + 16, &[0; 4]), &verifying, "checksum is"),
    ];
    for (number, (bytes, how, says)) in malformed.into_iter().enumerate() {
        let error = how(bytes).unwrap_err();
        let ErrorKind::Malformed {
            format: "npz",
            what,
            ..
        } = error.kind()
        else {
            panic!("{number}: {error}");
        };
        assert!(what.contains(says), "{number}: {what}");
        assert_eq!(
            (error.name(), error.offset().is_some()),
            (Some("archive"), true)
        );
    }
    let data = find(&good(), b"PK\x03\x04", 1) + 35;
    let deflated: [(Vec<u8>, &str); 5] = [
        (
            edit(entry(1) + 24, &[0xff, 0xff, 0xff, 0x7f]),
            "cannot inflate to 2147483647",
        ),
        (edit(entry(1) + 24, &[0]), "inflates to more"),
        (
            edit(entry(1) + 24, &(y.len() as u32 + 1).to_le_bytes()),
            "inflates to fewer",
        ),
        (edit(entry(1) + 16, &[0; 4]), "checksum is"),
        (edit(data, &[0xff; 8]), "does not inflate"),
    ];
    for (bytes, says) in deflated {
        let error = y_(bytes).unwrap_err();
        let ErrorKind::Malformed {
            format: "npz",
            part: Some(part),
            what,
        } = error.kind()
        else {
            panic!("{says}: {error}");
        };
        assert_eq!(&**part, "y.npy");
        assert!(what.contains(says), "{what}");
    }
    for (bytes, says) in [
        (edit(entry(0) + 8, &[1]), "encryption"),
        (edit(entry(0) + 10, &[93]), "method 93"),
    ] {
        let error = x_(bytes).unwrap_err();
        let ErrorKind::UnsupportedFeature { feature, .. } = error.kind() else {
            panic!("{error}");
        };
        assert!(feature.contains(says), "{feature}");
    }
    let error = opening(edit(end + 4, &[1])).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::UnsupportedFeature { .. }),
        "{error}"
    );
}

/// The end records of zip64 around a directory.
fn with_zip64(bytes: &[u8], record: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let end = find(bytes, b"PK\x05\x06", 0);
    let field = |at: usize| {
        u64::from(u32::from_le_bytes(
            bytes[end + at..end + at + 4].try_into().unwrap(),
        ))
    };
    let mut record64 = b"PK\x06\x06".to_vec();
    record64.extend_from_slice(&44u64.to_le_bytes());
    record64.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let entries = u64::from(u16::from_le_bytes(
        bytes[end + 10..end + 12].try_into().unwrap(),
    ));
    for number in [entries, entries, field(12), field(16)] {
        record64.extend_from_slice(&number.to_le_bytes());
    }
    record(&mut record64);
    let mut large = bytes[..end].to_vec();
    large.extend_from_slice(&record64);
    large.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    large.extend_from_slice(&(end as u64).to_le_bytes());
    large.extend_from_slice(&[1, 0, 0, 0]);
    large.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    large.extend_from_slice(&[0xff; 12]);
    large.extend_from_slice(&[5, 0]);
    large.extend_from_slice(b"notes");
    large
}

#[test]
fn large_archives_have_large_numbers() {
    let (x, y) = two();
    let small = archive(&[("x.npy", STORED, &x), ("y.npy", DEFLATED, &y)], true);
    let large = zipped(with_zip64(&small, |_| {})).unwrap();
    assert_eq!(
        large
            .array("x")
            .unwrap()
            .read_all()
            .wait()
            .unwrap()
            .to_vec::<i32>()
            .unwrap(),
        [1, 2, 3]
    );
    large.verify("y").unwrap();
    // Near the end of the numbers: of entries, of the directory's length, of its place.
    for at in [32, 40, 48] {
        let bytes = with_zip64(&small, |record| {
            record[at..at + 8].copy_from_slice(&(u64::MAX - 3).to_le_bytes())
        });
        let error = zipped(bytes).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Malformed { .. }),
            "{error}"
        );
    }
    let error = zipped(with_zip64(&small, |record| record[4] = 45)).unwrap_err();
    assert!(
        error.to_string().contains("in front of its locator"),
        "{error}"
    );
}

#[test]
fn the_fields_of_a_large_member_are_found_behind_others() {
    let (x, _) = two();
    let bytes = archive(&[("x.npy", STORED, &x)], false);
    let entry = find(&bytes, b"PK\x01\x02", 0);
    let end = find(&bytes, b"PK\x05\x06", 0);
    let mut extra = vec![0x55, 0x54, 1, 0, 9, 1, 0, 24, 0];
    for number in [x.len() as u64, x.len() as u64, 0] {
        extra.extend_from_slice(&number.to_le_bytes());
    }
    let mut large = bytes[..end].to_vec();
    large.extend_from_slice(&extra);
    large[entry + 20..entry + 28].fill(0xff);
    large[entry + 42..entry + 46].fill(0xff);
    large[entry + 30] = extra.len() as u8;
    let size = (large.len() - entry) as u32;
    large.extend_from_slice(&bytes[end..]);
    let end = end + extra.len();
    large[end + 12..end + 16].copy_from_slice(&size.to_le_bytes());
    let array = zipped(large).unwrap().array("x").unwrap();
    assert_eq!(
        array.read_all().wait().unwrap().to_vec::<i32>().unwrap(),
        [1, 2, 3]
    );
}

#[test]
fn a_directory_that_is_long_takes_a_second_request() {
    let (x, _) = two();
    let names: Vec<_> = (0..1000)
        .map(|i| format!("{}{i}.npy", "n".repeat(60)))
        .collect();
    let members: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), STORED, &x[..]))
        .collect();
    let reader = Recording::new(archive(&members, false));
    let archive = open_npz(reader.clone()).unwrap();
    assert_eq!(reader.take().len(), 2);
    let last = archive.names().last().unwrap();
    assert_eq!(
        archive
            .array(last)
            .unwrap()
            .read_all()
            .wait()
            .unwrap()
            .len(),
        3
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn mutated_headers_are_read_or_refused(
        edits in proptest::collection::vec((0usize..90, any::<u8>()), 1..5), len in 0usize..300,
    ) {
        let mut bytes = file(&header("'<i2'", "False", "(2, 3)"), &[0; 12]);
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(len.max(100));
        match memory(bytes) {
            Ok(array) => {
                let loaded = array.read_all().wait().unwrap();
                prop_assert_eq!(loaded.len() * loaded.dtype().size(), loaded.bytes().len());
                let _ = loaded.to_c_order();
                let _ = loaded.to_native();
            }
            Err(error) => {
                let known = matches!(error.kind(), ErrorKind::Malformed { .. } | ErrorKind::UnsupportedFeature { .. });
                prop_assert!(known, "{}", error);
            }
        }
    }

    #[test]
    fn mutated_archives_are_read_or_refused(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..5), large in any::<bool>(),
    ) {
        let (x, _) = two();
        let mut bytes = archive(&[("x.npy", STORED, &x), ("y.npy", DEFLATED, &x), ("z.npy", DEFLATED, b"")], large);
        if large {
            bytes = with_zip64(&bytes, |_| {});
        }
        let directory = find(&bytes, b"PK\x01\x02", 0);
        for (at, byte, anywhere) in edits {
            let from = if anywhere { 0 } else { directory };
            let at = from + at.index(bytes.len() - from);
            bytes[at] = byte;
        }
        let known = |error: &Error| matches!(
            error.kind(),
            ErrorKind::Malformed { .. } | ErrorKind::UnsupportedFeature { .. } | ErrorKind::OutOfMemory { .. }
        );
        match zipped(bytes) {
            Ok(archive) => for name in archive.names() {
                let found = archive.verify(name).and_then(|()| archive.array(name)?.read_all().wait());
                if let Err(error) = found {
                    prop_assert!(known(&error), "{}", error);
                }
            },
            Err(error) => prop_assert!(known(&error), "{}", error),
        }
    }
}
