//! TFRecord files to records and columns.

use std::hint::black_box;
use std::path::Path;

use feedwater::tfrecord::{
    ExampleScan, ExampleSchema, Feature, RecordOptions, ShardSet, ValueType,
};
use tfrecord::protobuf::feature::Kind;
use tfrecord::{BytesIter, ExampleIter, RecordReaderConfig};

use crate::files::make_warm;
use crate::table::measure;
use crate::{Bench, Row, data, ratio, way};

pub(crate) fn all() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (file, aim) in [("images", 1.0 / 1.6), ("tiny", 1.0 / 2.0)] {
        rows.push((
            format!("tfrecord-{file}-records"),
            Box::new(move |bench, name| records(bench, name, file, aim)),
        ));
        rows.push((
            format!("tfrecord-{file}-columns"),
            Box::new(move |bench, name| columns(bench, name, file)),
        ));
    }
    rows
}

fn file(bench: &Bench, name: &str) -> std::path::PathBuf {
    bench.file(name, |path| match name {
        "images" => data::images(path, bench.mib),
        _ => data::tiny(path, bench.records),
    })
}

fn config(check_integrity: bool) -> RecordReaderConfig {
    RecordReaderConfig { check_integrity }
}

/// Records, and bytes of them.
type Count = (u64, u64);

fn sum(lens: impl Iterator<Item = usize>) -> Count {
    lens.fold((0, 0), |sum, len| (sum.0 + 1, sum.1 + len as u64))
}

fn said((records, bytes): Count) -> String {
    format!("{records} records, {} MiB", bytes >> 20)
}

fn peer(path: &Path, check: bool) -> Count {
    let records = BytesIter::open(path, config(check)).expect("open");
    sum(records.map(|record| record.expect("record").len()))
}

fn ours(path: &Path) -> Count {
    let reader = feedwater::open(path).expect("open");
    let records = RecordOptions::new().records(reader);
    sum(records.map(|record| record.expect("record").data.len()))
}

fn frames(path: &Path) -> Count {
    let reader = feedwater::open(path).expect("open");
    let (mut records, mut bytes) = (0, 0);
    for frames in RecordOptions::new().frames(reader) {
        let of_these = sum(frames.expect("frames").iter().map(<[u8]>::len));
        records += of_these.0;
        bytes += of_these.1;
    }
    (records, bytes)
}

fn records(bench: &Bench, name: &str, which: &str, aim: f64) {
    let path = file(bench, which);
    let path = path.as_path();
    let expected = peer(path, true);
    assert_eq!((ours(path), frames(path)), (expected, expected));
    let prepare = || make_warm(path);
    measure(
        name,
        expected.1,
        expected.0,
        bench.turns,
        &mut [
            way("tfrecord crate, no CRC", prepare, || {
                said(peer(path, false))
            }),
            way("tfrecord crate again", prepare, || said(peer(path, false))),
            way("tfrecord crate, CRC", prepare, || said(peer(path, true))),
            way("records, CRC", prepare, || said(ours(path))),
            way("frames, CRC", prepare, || said(frames(path))),
        ],
        &[
            ratio("tfrecord crate again", "tfrecord crate, no CRC", 1.0),
            ratio("records, CRC", "tfrecord crate, no CRC", aim),
            ratio("frames, CRC", "tfrecord crate, no CRC", aim),
            ratio("records, CRC", "tfrecord crate, CRC", 1.0),
        ],
    );
}

fn schema(which: &str) -> ExampleSchema {
    let label = Feature::scalar("label", ValueType::Int64);
    match which {
        "images" => ExampleSchema::new()
            .with(Feature::scalar("image", ValueType::Binary))
            .with(label)
            .with(Feature::fixed("embedding", ValueType::Float32, [128])),
        _ => ExampleSchema::new()
            .with(label)
            .with(Feature::fixed("x", ValueType::Float32, [4])),
    }
}

fn our_columns(path: &Path, which: &str, threads: usize) -> Count {
    let scan = ExampleScan::of_shards(&ShardSet::of([path]), &RecordOptions::new());
    let batches = scan
        .schema(schema(which))
        .threads(threads)
        .batches()
        .expect("scan");
    let (mut rows, mut bytes) = (0, 0);
    for batch in batches {
        let batch = batch.expect("batch");
        rows += batch.num_rows() as u64;
        bytes += batch.get_array_memory_size() as u64;
    }
    (rows, bytes)
}

fn peer_columns(path: &Path) -> Count {
    let (mut label, mut floats, mut image, mut ends) = (vec![], vec![], vec![], vec![]);
    let mut rows = 0;
    for example in ExampleIter::open(path, config(true)).expect("open") {
        rows += 1;
        for (name, feature) in example.expect("example").into_iter() {
            match (name.as_str(), feature.kind) {
                ("label", Some(Kind::Int64List(list))) => label.extend(list.value),
                ("x" | "embedding", Some(Kind::FloatList(list))) => floats.extend(list.value),
                ("image", Some(Kind::BytesList(list))) => {
                    image.extend_from_slice(&list.value[0]);
                    ends.push(image.len());
                }
                (name, _) => panic!("feature {name}"),
            }
        }
    }
    let bytes = label.len() * 8 + floats.len() * 4 + image.len();
    black_box((label, floats, image, ends));
    (rows, bytes as u64)
}

fn columns(bench: &Bench, name: &str, which: &str) {
    let path = file(bench, which);
    let path = path.as_path();
    let len = std::fs::metadata(path).expect("metadata").len();
    let rows = peer_columns(path).0;
    assert_eq!(our_columns(path, which, 2).0, rows);
    let prepare = || make_warm(path);
    measure(
        name,
        len,
        rows,
        bench.turns,
        &mut [
            way("tfrecord crate, CRC", prepare, || said(peer_columns(path))),
            way("tfrecord crate again", prepare, || said(peer_columns(path))),
            way("scan, 1 thread", prepare, || {
                said(our_columns(path, which, 1))
            }),
            way("scan, 2 threads", prepare, || {
                said(our_columns(path, which, 2))
            }),
        ],
        &[
            ratio("tfrecord crate again", "tfrecord crate, CRC", 1.0),
            ratio("scan, 1 thread", "tfrecord crate, CRC", 3.0),
            ratio("scan, 2 threads", "tfrecord crate, CRC", 3.0),
        ],
    );
}
