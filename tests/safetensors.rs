//! Tensors against the `safetensors` crate: the same values, the same files, the same refusals; and what is asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use feedwater::safetensors::{
    self, Dtype, NewTensor, Tensor, TensorFile, Tensors, open, open_async, open_sharded, save,
    save_with,
};
use feedwater::{
    Batch, Dest, ErrorKind, MemoryReader, OpenOptions, Pending, ReadInto, ReadOptions, Reader,
    Result, Route, SinkOptions, Source, SyncMode,
};
use futures::{StreamExt, TryStreamExt};
use proptest::prelude::*;

mod common;

use common::skip::require;

/// One tensor as a test makes it.
#[derive(Clone, Debug)]
struct Made {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn made(name: &str, dtype: Dtype, shape: &[usize]) -> Made {
    let bits = shape.iter().product::<usize>() * dtype.bitsize();
    assert_eq!(bits % 8, 0);
    let seed = name
        .bytes()
        .fold(7u32, |a, b| a.wrapping_mul(31).wrapping_add(b.into()));
    let bytes = (0..bits / 8).map(|i| (seed.wrapping_add(i as u32 * 167) >> 3) as u8);
    Made {
        name: name.into(),
        dtype,
        shape: shape.into(),
        bytes: bytes.collect(),
    }
}

/// The file that the `safetensors` crate makes of them.
fn theirs(tensors: &[Made], metadata: Option<HashMap<String, String>>) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let Made {
            name,
            dtype,
            shape,
            bytes,
        } = tensor;
        let view = ::safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
        (name.clone(), view.unwrap())
    });
    ::safetensors::serialize(views, metadata).unwrap()
}

fn check(tensor: &Tensor, expected: &Made) {
    assert_eq!(tensor.name(), expected.name);
    assert_eq!(tensor.dtype(), expected.dtype);
    assert_eq!(tensor.shape(), expected.shape);
    assert_eq!(tensor.bytes(), &expected.bytes, "{}", expected.name);
}

fn check_all(tensors: &Tensors, expected: &[Made]) {
    assert_eq!(tensors.len(), expected.len());
    for made in expected {
        check(tensors.tensor(&made.name).unwrap(), made);
    }
}

fn memory(bytes: impl Into<Bytes>) -> TensorFile<MemoryReader> {
    open(Arc::new(MemoryReader::new(bytes))).unwrap()
}

/// Some of every alignment, in a file of a few hundred KiB.
fn several() -> Vec<Made> {
    vec![
        made("f64", Dtype::F64, &[3, 5]),
        made("large", Dtype::F32, &[100, 700]),
        made("i32", Dtype::I32, &[7]),
        made("half", Dtype::BF16, &[5, 5]),
        made("scalar", Dtype::I16, &[]),
        made("empty", Dtype::F32, &[4, 0, 2]),
        made("eight", Dtype::F8_E4M3, &[33]),
        made("four", Dtype::F4, &[2, 7]),
        made("flags", Dtype::BOOL, &[9]),
        made("u64", Dtype::U64, &[1]),
    ]
}

#[test]
fn values_are_those_of_the_crate() {
    let all = several();
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let bytes = theirs(&all, Some(metadata));
    let oracle = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let file = memory(bytes.clone());
    assert_eq!(file.metadata()["format"], "pt");
    assert_eq!(file.tensors().len(), oracle.len());
    let tensors = file.load().wait().unwrap();
    for (name, view) in oracle.iter() {
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!(tensor.bytes(), view.data());
        assert_eq!(
            (tensor.shape(), tensor.dtype()),
            (view.shape(), view.dtype())
        );
        let range = tensor.info().range();
        assert_eq!(
            &bytes[range.start as usize..range.end as usize],
            view.data()
        );
    }
    check_all(&tensors, &all);
    assert!(tensors.get("nothing").is_none());
    let error = tensors.tensor("nothing").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}

#[test]
fn elements_come_as_their_type_and_no_other() {
    let values: Vec<u8> = [1.5f32, -2.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let tensor = Made {
        name: "x".into(),
        dtype: Dtype::F32,
        shape: vec![2],
        bytes: values,
    };
    let half = made("half", Dtype::F16, &[4]);
    let tensors = memory(theirs(
        &[tensor, half, made("none", Dtype::F32, &[0])],
        None,
    ))
    .load()
    .wait()
    .unwrap();
    let x = tensors.tensor("x").unwrap();
    assert_eq!(x.as_slice::<f32>().unwrap(), [1.5, -2.0]);
    assert!(
        tensors
            .tensor("none")
            .unwrap()
            .as_slice::<f32>()
            .unwrap()
            .is_empty()
    );
    for error in [
        x.as_slice::<i32>().unwrap_err(),
        x.as_slice::<f64>().unwrap_err(),
        tensors
            .tensor("half")
            .unwrap()
            .as_slice::<u16>()
            .unwrap_err(),
    ] {
        assert!(
            matches!(error.kind(), ErrorKind::Unsupported { .. }),
            "{error}"
        );
    }
}

/// A file whose data begin at an odd offset, as the format allows.
fn odd() -> Vec<u8> {
    let mut header = r#"{"x":{"dtype":"I32","shape":[40],"data_offsets":[0,160]}}"#.to_string();
    while header.len() % 8 != 3 {
        header.push(' ');
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..40i32).flat_map(i32::to_le_bytes));
    bytes
}

#[test]
fn what_the_file_has_at_odd_offsets_needs_to_be_aligned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd");
    std::fs::write(&path, odd()).unwrap();
    let file = open(feedwater::open(&path).unwrap()).unwrap();
    let tensors = file.load().wait().unwrap();
    let error = tensors.tensor("x").unwrap().as_slice::<i32>().unwrap_err();
    assert!(error.to_string().contains("aligned"), "{error}");
    let tensors = file.load().align(4).wait().unwrap();
    let x = tensors.tensor("x").unwrap();
    assert_eq!(x.as_slice::<i32>().unwrap()[39], 39);
}

#[test]
fn tensors_are_aligned_for_their_type_wherever_the_bytes_come_from() {
    let all = several();
    let bytes = theirs(&all, None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, &bytes).unwrap();
    let opened = open(feedwater::open(&path).unwrap()).unwrap();
    let mut odd = vec![0; 1];
    odd.extend_from_slice(&bytes);
    let shifted = memory(Bytes::from(odd).slice(1..));
    for name in ["f64", "i32", "large", "u64", "scalar"] {
        for tensors in [
            opened.load().names([name]).wait().unwrap(),
            shifted.load().names([name]).wait().unwrap(),
        ] {
            let tensor = tensors.tensor(name).unwrap();
            let size = tensor.dtype().bitsize() / 8;
            assert_eq!(tensor.bytes().as_ptr() as usize % size, 0, "{name}");
            check(tensor, all.iter().find(|made| made.name == name).unwrap());
        }
    }
}

#[test]
fn views_of_memory_and_of_mappings_are_not_copied() {
    let bytes = Bytes::from(theirs(&several(), None));
    let tensors = memory(bytes.clone()).load().wait().unwrap();
    for tensor in &tensors {
        let range = tensor.info().range();
        if !range.is_empty() && aligned(&bytes, 8) {
            assert_eq!(
                tensor.bytes().as_ptr(),
                bytes[range.start as usize..].as_ptr()
            );
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, &bytes).unwrap();
    // SAFETY: the file is this test's own, and nobody changes it.
    #[allow(unsafe_code)]
    let options = unsafe { OpenOptions::new().assume_immutable() };
    let file = open(options.open(&path).unwrap()).unwrap();
    let (one, two) = (file.load().wait().unwrap(), file.load().wait().unwrap());
    check_all(&one, &several());
    let address = |tensors: &Tensors| tensors.tensor("large").unwrap().bytes().as_ptr();
    assert_eq!(address(&one), address(&two), "the same pages");
}

#[test]
fn past_the_page_cache_whole_files_land_where_they_stay() {
    let all: Vec<_> = (0..5)
        .map(|i| made(&format!("t{i}"), Dtype::F32, &[1001, 333]))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, theirs(&all, None)).unwrap();
    for route in [Route::PreadDirect, Route::UringDirect] {
        let name = if route == Route::PreadDirect {
            "odirect"
        } else {
            "uring"
        };
        let opened = OpenOptions::new().only(route).open(&path);
        let Some(reader) = require(name, opened) else {
            continue;
        };
        let file = open(reader.clone()).unwrap();
        let before = reader.source().counters().snapshot();
        check_all(&file.load().wait().unwrap(), &all);
        let after = reader.source().counters().snapshot();
        assert_eq!(after.bounced, before.bounced, "nothing is copied");
        assert!(after.route(route) > before.route(route));
        let in_order: Result<Vec<_>> = file.load().window(2 << 20).in_order().collect();
        for (tensor, made) in in_order.unwrap().iter().zip(&all) {
            check(tensor, made);
        }
        check_all(&file.load().align(64).wait().unwrap(), &all);
        let some = file.load().names(["t3", "t1"]).wait().unwrap();
        check_all(&some, &[all[1].clone(), all[3].clone()]);
    }
}

/// Remembers what was asked for.
#[derive(Debug)]
struct Recording {
    inner: MemoryReader,
    source: Source,
    asked: Mutex<Vec<(Range<u64>, &'static str)>>,
}

impl Recording {
    fn new(bytes: Vec<u8>, gap: u64) -> Arc<Self> {
        let inner = MemoryReader::new(bytes);
        let limits = inner.source().limits().gap(gap);
        Arc::new(Recording {
            source: inner.source().through("recording", limits),
            inner,
            asked: Mutex::default(),
        })
    }

    fn take(&self) -> Vec<(Range<u64>, &'static str)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Reader for Recording {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        self.asked
            .lock()
            .unwrap()
            .extend(batch.reads.iter().map(|read| {
                let how = match read.dest {
                    Dest::Into(_) => "into",
                    _ => "any",
                };
                (read.range.clone(), how)
            }));
        self.inner.submit(batch)
    }

    fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
        unreachable!("nothing here reads on the spot")
    }
}

#[test]
fn requests_of_a_load_a_filter_and_an_aligned_load() {
    let all = several();
    let bytes = theirs(&all, None);
    let len = bytes.len() as u64;
    let reader = Recording::new(bytes, 100);
    let file = open(reader.clone()).unwrap();
    assert_eq!(
        reader.take(),
        [(0..131_072, "any")],
        "the header, in one request"
    );
    let range = |name: &str| file.info(name).unwrap().range();
    let down = |offset: u64| offset - offset % 64;
    let data = file.tensors()[0].range().start;

    check_all(&file.load().wait().unwrap(), &all);
    assert_eq!(
        reader.take(),
        [(down(data)..len, "any")],
        "everything, in one request"
    );

    // Order of the file: u64, f64, large, empty, i32, half, scalar, eight, four, flags.
    let load = file.load().names(["u64", "i32", "four"]);
    let ranges = load.ranges();
    assert_eq!(load.wait().unwrap().len(), 3);
    let expected = [
        (down(range("u64").start)..range("u64").end, "any"),
        // 85 bytes lie between them, less than the gap.
        (down(range("i32").start)..range("four").end, "any"),
    ];
    let asked = reader.take();
    assert_eq!(asked, expected);
    assert_eq!(ranges, expected.map(|(range, _)| range));
    assert_eq!(range("four").start - range("i32").end, 50 + 2 + 33);

    let load = file.load().names(["u64", "i32", "four"]);
    load.read(ReadOptions::default().gap(0)).wait().unwrap();
    assert_eq!(reader.take().len(), 3, "a gap of the caller's");

    let tensors = file.load().align(64).wait().unwrap();
    check_all(&tensors, &all);
    for tensor in &tensors {
        assert!(tensor.bytes().is_empty() || aligned(tensor.bytes(), 64));
    }
    let asked = reader.take();
    assert!(asked.iter().all(|(_, how)| *how == "into"));
    // `empty` begins where `large` ends, 64-aligned or not.
    let bytes: u64 = asked.iter().map(|(range, _)| range.end - range.start).sum();
    assert_eq!(bytes, len - data, "not a byte more than there are");

    assert!(file.load().matching(|_| false).wait().unwrap().is_empty());
    assert_eq!(reader.take(), []);
}

#[test]
fn neighbours_that_are_aligned_together_are_read_together() {
    let all: Vec<_> = (0..5)
        .map(|i| made(&format!("t{i}"), Dtype::F32, &[16, 10]))
        .collect();
    let reader = Recording::new(theirs(&all, None), 0);
    let file = open(reader.clone()).unwrap();
    reader.take();
    let start = file.tensors()[0].range().start;
    check_all(&file.load().align(64).wait().unwrap(), &all);
    assert_eq!(reader.take(), [(start..start + 5 * 640, "into")]);
    check_all(&file.load().align(256).wait().unwrap(), &all);
    assert_eq!(reader.take().len(), 5, "640 is no multiple of 256");
}

#[test]
fn a_long_header_takes_a_second_request() {
    let all: Vec<_> = (0..2500)
        .map(|i| {
            made(
                &format!("a.rather.long.name.of.a.tensor.{i:05}"),
                Dtype::U8,
                &[3],
            )
        })
        .collect();
    let bytes = theirs(&all, None);
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(header > 131_072);
    let reader = Recording::new(bytes, 0);
    let file = open(reader.clone()).unwrap();
    assert_eq!(reader.take(), [(0..131_072, "any"), (8..header, "any")]);
    check_all(&file.load().wait().unwrap(), &all);
}

#[test]
fn in_order_asks_ahead_as_far_as_the_window_goes() {
    let mib = 1 << 20;
    let all: Vec<_> = (0..8)
        .map(|i| made(&format!("t{i}"), Dtype::U8, &[mib]))
        .collect();
    let reader = Recording::new(theirs(&all, None), 0);
    let file = open(reader.clone()).unwrap();
    reader.take();
    let mut tensors = file.load().window(4 * mib).in_order();
    assert_eq!(reader.take(), [], "nothing before the first is asked for");
    let mut most = 0;
    let mut delivered = 0u64;
    let mut asked = 0;
    for made in &all {
        check(&tensors.next().unwrap().unwrap(), made);
        delivered += mib as u64;
        asked += reader
            .take()
            .iter()
            .map(|(range, _)| range.end - range.start)
            .sum::<u64>();
        most = most.max(asked - delivered);
    }
    assert!(tensors.next().is_none() && tensors.next().is_none());
    // What was asked for and not delivered, with the piece that the last tensor came in.
    assert!(most <= 4 * mib as u64 + 2 * mib as u64 + 64, "{most}");
    assert!(
        most >= 2 * mib as u64,
        "something is in flight while a tensor is used: {most}"
    );
    // A window too small for anything lets one through at a time.
    let tensors: Result<Vec<_>> = file.load().window(1).in_order().collect();
    assert_eq!(tensors.unwrap().len(), 8);
    assert_eq!(reader.take().len(), 8);
}

#[test]
fn streams_and_tasks_get_the_same() {
    let all = several();
    let bytes = theirs(&all, None);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, &bytes).unwrap();
        let reader = feedwater::open(&path).unwrap();
        let file = open_async(reader).await.unwrap();
        check_all(&file.load().await.unwrap(), &all);
        let mut loading = file.load().submit();
        check_all(&(&mut loading).await.unwrap(), &all);
        let error = (&mut loading).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
        for align in [1, 512] {
            let stream = file.load().align(align).window(1000).in_order().stream();
            let tensors: Vec<Tensor> = stream.try_collect().await.unwrap();
            let names: Vec<_> = tensors.iter().map(Tensor::name).collect();
            assert_eq!(names, file.names().collect::<Vec<_>>());
            for tensor in &tensors {
                check(
                    tensor,
                    all.iter().find(|made| made.name == tensor.name()).unwrap(),
                );
                assert!(tensor.bytes().is_empty() || aligned(tensor.bytes(), align));
            }
        }
        let mut none = file.load().matching(|_| false).in_order().stream();
        assert!(none.next().await.is_none());
    });
}

#[test]
fn errors_of_a_load_are_typed_and_named() {
    let file = memory(theirs(&several(), None));
    let error = file.load().names(["f64", "nope"]).wait().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
    assert_eq!(error.name(), Some("memory"));
    let known: Vec<_> = file.names().map(|name| format!("{name:?}")).collect();
    let told = error.to_string();
    assert!(told.contains("\"nope\""), "{error}");
    assert!(
        known.iter().filter(|name| told.contains(*name)).count() == known.len().min(8),
        "{error}"
    );
    for align in [0, 3, 8192] {
        let error = file.load().align(align).wait().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        let mut tensors = file.load().align(align).in_order();
        assert!(tensors.next().unwrap().is_err());
        assert!(tensors.next().is_none());
    }
    let error = file.info("nope").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
}

#[test]
fn a_read_that_fails_ends_the_delivery_after_what_came_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let all: Vec<_> = (0..4)
        .map(|i| made(&format!("t{i}"), Dtype::U8, &[100_000]))
        .collect();
    let bytes = theirs(&all, None);
    std::fs::write(&path, &bytes).unwrap();
    let file = open(feedwater::open(&path).unwrap()).unwrap();
    let mut tensors = file.load().window(1).in_order();
    check(&tensors.next().unwrap().unwrap(), &all[0]);
    let shorter = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    shorter.set_len(bytes.len() as u64 - 150_000).unwrap();
    let error = tensors.next().unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed { .. }), "{error}");
    assert!(tensors.next().is_none());
    let error = file.load().wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed { .. }), "{error}");
}

fn aligned(bytes: &[u8], align: usize) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(align)
}

/// What `save` writes.
fn ours(tensors: &[Made], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let new: Vec<_> = tensors.iter().map(new).collect();
    let options = SinkOptions::new().sync(SyncMode::None);
    let version = save_with(&options, &path, &new, metadata).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(version.size, bytes.len() as u64);
    bytes
}

fn new(made: &Made) -> NewTensor<&[u8]> {
    NewTensor::new(&made.name, made.dtype, made.shape.clone(), &made.bytes[..])
}

#[test]
fn what_is_saved_is_what_the_crate_would_save() {
    let all = several();
    assert_eq!(ours(&all, &BTreeMap::new()), theirs(&all, None));
    let one = BTreeMap::from([("a \"quoted\" key\n".to_string(), "ü".to_string())]);
    let theirs_one = theirs(&all, Some(one.clone().into_iter().collect()));
    assert_eq!(ours(&all, &one), theirs_one);
    assert_eq!(ours(&[], &BTreeMap::new()), theirs(&[], None));
    let odd = [made("\u{1}\"\\ü", Dtype::U8, &[1])];
    assert_eq!(ours(&odd, &BTreeMap::new()), theirs(&odd, None));

    let two: BTreeMap<String, String> = [("b", "2"), ("a", "1")]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .into();
    let file = memory(ours(&all, &two));
    assert_eq!(file.metadata(), &two);
}

#[test]
fn what_cannot_be_a_file_is_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "old").unwrap();
    let a = made("a", Dtype::U8, &[3]);
    let mut longer = a.clone();
    longer.bytes.push(0);
    let mut huge = a.clone();
    huge.shape = vec![usize::MAX, 2];
    let mut metadata = a.clone();
    metadata.name = "__metadata__".into();
    for tensors in [
        vec![a.clone(), a.clone()],
        vec![longer],
        vec![huge],
        vec![metadata],
    ] {
        let new: Vec<_> = tensors.iter().map(new).collect();
        let error = save(&path, &new, &BTreeMap::new()).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        assert_eq!(error.name(), path.to_str());
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A model in two files, and a tensor that the index does not name.
fn sharded(dir: &Path, index: &str) -> std::path::PathBuf {
    let none = BTreeMap::new();
    let first = [
        made("a", Dtype::F32, &[3]),
        made("unnamed", Dtype::F32, &[2]),
        made("c", Dtype::U8, &[5]),
    ];
    save(
        dir.join("1.st"),
        &first.iter().map(new).collect::<Vec<_>>(),
        &none,
    )
    .unwrap();
    let second = [made("b", Dtype::F64, &[4])];
    save(
        dir.join("2.st"),
        &second.iter().map(new).collect::<Vec<_>>(),
        &none,
    )
    .unwrap();
    let path = dir.join("model.safetensors.index.json");
    std::fs::write(&path, index).unwrap();
    path
}

#[test]
fn shards_are_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let index = r#"{"metadata":{"total_size":49},"weight_map":{"c":"1.st","b":"2.st","a":"1.st"}}"#;
    let model = open_sharded(sharded(dir.path(), index), &OpenOptions::new()).unwrap();
    assert_eq!((model.len(), model.shards().len()), (3, 2));
    assert_eq!(model.metadata(), r#"{"total_size":49}"#);
    let names: Vec<_> = model.tensors().map(|info| info.name()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let all = [
        made("a", Dtype::F32, &[3]),
        made("c", Dtype::U8, &[5]),
        made("b", Dtype::F64, &[4]),
    ];
    check_all(&model.load().wait().unwrap(), &all);
    check_all(&model.load().align(64).wait().unwrap(), &all);
    let order: Vec<_> = model
        .load()
        .in_order()
        .map(|t| t.unwrap().name().to_owned())
        .collect();
    assert_eq!(order, ["a", "c", "b"]);
    check_all(&model.load().names(["b"]).wait().unwrap(), &all[2..]);
    let index = dir.path().join("model.safetensors.index.json");
    let some = model.load().names(["a", "b"]).wait().unwrap();
    for (error, there) in [
        (
            model.load().names(["unnamed"]).wait().unwrap_err(),
            r#""a", "c", "b""#,
        ),
        (model.info("unnamed").unwrap_err(), r#""a", "b", "c""#),
        (some.tensor("unnamed").unwrap_err(), r#""a", "b""#),
    ] {
        assert!(
            matches!(error.kind(), ErrorKind::NotFound { .. }),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            format!(
                "{}: there is no tensor \"unnamed\": there are {there}",
                index.display()
            )
        );
    }
}

#[test]
fn of_many_names_those_that_begin_alike_are_told() {
    let all: Vec<_> = (0..40)
        .map(|i| made(&format!("layer.{i}.weight"), Dtype::U8, &[1]))
        .collect();
    let error = memory(theirs(&all, None))
        .info("layer.12.bias")
        .unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("there are 40, among them \"layer.12.weight\", "),
        "{told}"
    );
    assert_eq!(told.matches(".weight").count(), 8, "{told}");
}

#[test]
fn an_index_that_lies_or_leads_out_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::copy(
        sharded(dir.path(), "").with_file_name("1.st"),
        dir.path().join("out.st"),
    )
    .unwrap();
    for (index, part, says) in [
        (r#"{"weight_map":{"b":"1.st"}}"#, "b", "not"),
        (
            r#"{"weight_map":{"a":"../out.st"}}"#,
            "a",
            "no file of its folder",
        ),
        (
            r#"{"weight_map":{"a":"/etc/passwd"}}"#,
            "a",
            "no file of its folder",
        ),
    ] {
        let error = open_sharded(sharded(&inner, index), &OpenOptions::new()).unwrap_err();
        let ErrorKind::Malformed {
            part: Some(found),
            what,
            ..
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!(&**found, part);
        assert!(what.contains(says), "{what}");
        assert!(
            error
                .name()
                .is_some_and(|name| name.ends_with("index.json"))
        );
    }
    let index = r#"{"weight_map":{"a":"3.st"}}"#;
    let error = open_sharded(sharded(&inner, index), &OpenOptions::new()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
}

#[test]
fn a_file_that_is_something_else_says_so() {
    for bytes in [
        &b""[..],
        b"1234567",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 10\n",
        b"\xff\xff\xff\xff\xff\xff\xff\xff{}",
        b"\x80\x00\x00\x00\x00\x00\x00\x00{}",
        b"\x02\x00\x00\x00\x00\x00\x00\x00{}x",
    ] {
        let error = open(Arc::new(MemoryReader::named("file", bytes))).unwrap_err();
        let ErrorKind::Malformed { format, .. } = error.kind() else {
            panic!("{bytes:?}: {error}");
        };
        assert_eq!((*format, error.name()), ("safetensors", Some("file")));
    }
    assert!(
        memory(&b"\x02\x00\x00\x00\x00\x00\x00\x00{}"[..])
            .tensors()
            .is_empty()
    );
}

const DTYPES: [Dtype; 14] = [
    Dtype::BOOL,
    Dtype::F4,
    Dtype::F6_E2M3,
    Dtype::U8,
    Dtype::F8_E5M2,
    Dtype::I16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
];

fn tensors() -> impl Strategy<Value = Vec<Made>> {
    let shape = proptest::collection::vec(0usize..6, 0..4);
    let tensor = (0..DTYPES.len(), shape, any::<u64>());
    proptest::collection::vec(tensor, 0..12).prop_map(|tensors| {
        let made = |(i, (dtype, mut shape, name)): (usize, (usize, Vec<usize>, u64))| {
            // Whole bytes, also of elements of four and six bits.
            shape.push(4);
            made(&format!("{name:x}.{i}"), DTYPES[dtype], &shape)
        };
        tensors.into_iter().enumerate().map(made).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tensors_are_read_and_saved_as_the_crate_does(
        all in tensors(), keep in any::<u16>(), align in 0u32..8, gap in 0u64..200, window in 0usize..300,
    ) {
        let bytes = theirs(&all, None);
        prop_assert_eq!(&ours(&all, &BTreeMap::new()), &bytes);
        let file = memory(bytes);
        check_all(&file.load().wait().unwrap(), &all);
        let some: Vec<_> = all.iter().enumerate().filter(|(i, _)| keep >> i & 1 == 1).map(|(_, made)| made.clone()).collect();
        let load = || {
            let names = some.iter().map(|made| &made.name);
            file.load().names(names).read(ReadOptions::default().gap(gap)).window(window)
        };
        check_all(&load().wait().unwrap(), &some);
        let in_order: Result<Vec<_>> = load().align(1 << align).in_order().collect();
        let in_order = in_order.unwrap();
        prop_assert_eq!(in_order.len(), some.len());
        for tensor in &in_order {
            check(tensor, some.iter().find(|made| made.name == tensor.name()).unwrap());
            prop_assert!(tensor.bytes().is_empty() || aligned(tensor.bytes(), 1 << align));
        }
    }

    #[test]
    fn mutated_headers_are_taken_exactly_when_the_crate_takes_them(
        all in tensors(), edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..4),
    ) {
        let mut bytes = theirs(&all, None);
        for (at, byte, how) in edits {
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let end = (header as usize).min(bytes.len());
            match how {
                0 => { let at = at.index(end); bytes[at] = byte; }
                // Digits and letters that the header has keep it nearly valid.
                1 => { let (from, to) = (at.index(end), usize::from(byte) % end); bytes[to] = bytes[from]; }
                _ => { let at = at.index(bytes.len()); bytes.truncate(at.max(8)); }
            }
        }
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes);
        match open(Arc::new(MemoryReader::new(bytes.clone()))) {
            Ok(file) => {
                let theirs = theirs.expect("what we take, the crate takes");
                let tensors = file.load().wait().unwrap();
                prop_assert_eq!(tensors.len(), theirs.len());
                for tensor in &tensors {
                    prop_assert_eq!(&tensor.bytes()[..], theirs.tensor(tensor.name()).unwrap().data());
                }
            }
            Err(error) => {
                let twice = error.to_string().contains("comes twice");
                prop_assert!(theirs.is_err() || twice, "the crate takes it: {}", error);
                let malformed = matches!(error.kind(), ErrorKind::Malformed { .. });
                prop_assert!(malformed, "{}", error);
            }
        }
    }
}

#[test]
fn debug_shows_no_bytes() {
    let tensors = memory(theirs(&several(), None)).load().wait().unwrap();
    let text = format!("{:?}", tensors.tensor("large").unwrap());
    assert!(text.contains("280000") && text.len() < 200, "{text}");
    let _: safetensors::Tensors = tensors;
}
