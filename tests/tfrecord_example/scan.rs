//! Files of examples to batches: order, cuts, errors in their place, schemas that are inferred.

use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use feedwater::tfrecord::{
    AtMost, ExampleEncoder, ExampleScan, ExampleSchema, Feature, OnCorrupt, RecordOptions,
    ShardSet, ValueType, Writer, examples,
};
use feedwater::{ChunkOptions, ErrorKind, RecordCheck};
use futures::StreamExt;

use super::messages::{bytes, example, floats, ints};

/// Examples with an id, and text of different lengths.
fn record(id: i64) -> Vec<u8> {
    let text = "text ".repeat(id as usize % 37);
    example([("id", ints([id])), ("text", bytes([text.as_bytes()]))])
}

fn write(path: &Path, records: impl IntoIterator<Item = Vec<u8>>) {
    let mut writer = Writer::create(path).unwrap();
    for record in records {
        writer.write(&record).unwrap();
    }
    writer.commit().unwrap();
}

fn file(records: impl IntoIterator<Item = Vec<u8>>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.tfrecord");
    write(&path, records);
    (dir, path)
}

fn schema() -> ExampleSchema {
    ExampleSchema::new()
        .with(Feature::scalar("id", ValueType::Int64).required())
        .with(Feature::scalar("text", ValueType::Utf8))
}

/// Small chunks, so that batches consist of parts of many.
fn small_chunks() -> RecordOptions {
    RecordOptions::new().chunks(ChunkOptions::default().size(4096))
}

fn scan(path: &Path) -> ExampleScan {
    ExampleScan::new(feedwater::open(path).unwrap(), &small_chunks())
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    batch["id"].as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn batches_have_all_rows_in_order_whatever_the_threads_and_the_cuts() {
    let (_dir, path) = file((0..5000).map(record));
    for (threads, ahead, rows) in [
        (1, 1, 7),
        (2, 1, 64),
        (3, 6, 1000),
        (4, 2, 5000),
        (2, 3, 9999),
    ] {
        let scan = scan(&path).schema(schema()).threads(threads).ahead(ahead);
        let mut batches = scan.batch_rows(rows).batches().unwrap();
        let mut next = 0;
        for batch in batches.by_ref() {
            let batch = batch.unwrap();
            assert_eq!(batch.num_rows(), rows.min(5000 - next as usize));
            let expected: Vec<i64> = (next..).take(batch.num_rows()).collect();
            assert_eq!(ids(&batch), expected);
            let texts = batch["text"].as_string::<i32>();
            for (id, text) in expected.iter().zip(texts) {
                assert_eq!(text.unwrap().len(), 5 * (*id as usize % 37));
            }
            next += batch.num_rows() as i64;
        }
        assert_eq!(next, 5000);
        assert!(batches.next().is_none());
    }
}

#[test]
fn a_stream_has_the_same_batches() {
    let (_dir, path) = file((0..3000).map(record));
    let batches = || {
        scan(&path)
            .schema(schema())
            .batch_rows(100)
            .threads(2)
            .batches()
            .unwrap()
    };
    let streamed: Vec<_> = futures::executor::block_on(batches().stream().collect());
    let streamed: Vec<_> = streamed.into_iter().map(Result::unwrap).collect();
    assert_eq!(streamed.len(), 30);
    let iterated: Vec<_> = batches().map(Result::unwrap).collect();
    assert_eq!(streamed, iterated);
}

#[test]
fn a_batch_ends_with_the_record_with_which_it_has_so_many_bytes() {
    let (_dir, path) = file(
        (0..100).map(|id| example([("id", ints([id])), ("image", bytes([&vec![7; 10_000]]))])),
    );
    let schema = ExampleSchema::new()
        .with(Feature::scalar("id", ValueType::Int64))
        .with(Feature::scalar("image", ValueType::Binary));
    let batches = scan(&path)
        .schema(schema)
        .batch_bytes(50_000)
        .batches()
        .unwrap();
    let rows: Vec<_> = batches.map(|batch| batch.unwrap().num_rows()).collect();
    assert_eq!(rows, [5; 20]);
    // A row counts what it takes, even if its record has no bytes.
    let (_dir, path) = file((0..100).map(|_| Vec::new()));
    let schema = ExampleSchema::new().with(Feature::fixed("x", ValueType::Float32, [1 << 16]));
    let batches = scan(&path)
        .schema(schema)
        .batch_bytes(1 << 20)
        .batches()
        .unwrap();
    let rows: Vec<_> = batches.map(|batch| batch.unwrap().num_rows()).collect();
    assert_eq!((rows[0], rows.iter().sum::<usize>()), (4, 100));
}

#[test]
fn an_example_that_is_none_is_an_error_in_its_place() {
    let records = |bad: &'static [u8]| {
        (0..1000).map(move |id| match id {
            777 => bad.to_vec(),
            id => record(id),
        })
    };
    let offset: usize = (0..777).map(|id| record(id).len() + 16).sum();
    for (bad, part) in [(&b"\x0a\x05"[..], None), (b"", Some("id"))] {
        let (_dir, path) = file(records(bad));
        let scan = scan(&path).schema(schema()).batch_rows(100).threads(2);
        let mut batches = scan.batches().unwrap();
        let mut rows = 0;
        let error = loop {
            match batches.next().unwrap() {
                Ok(batch) => rows += batch.num_rows(),
                Err(error) => break error,
            }
        };
        assert_eq!(rows, 777, "all rows before it");
        let ErrorKind::Malformed {
            part: found, what, ..
        } = error.kind()
        else {
            panic!("{error}");
        };
        assert_eq!(found.as_deref(), part);
        assert!(what.starts_with("record 777: "), "{what}");
        assert_eq!(error.name(), path.to_str());
        assert_eq!(error.offset(), Some(offset as u64));
        assert_eq!(error.length(), Some(bad.len() as u64 + 16));
        assert!(batches.next().is_none());
        assert!(batches.next().is_none());
    }
}

/// A bit of the data of a record falls over.
fn damage(path: &Path, id: i64) {
    let offset: usize = (0..id).map(|id| record(id).len() + 16).sum();
    let mut file = std::fs::read(path).unwrap();
    file[offset + 12] ^= 1;
    std::fs::write(path, file).unwrap();
}

#[test]
fn a_corrupt_record_is_an_error_in_its_place_or_left_out() {
    let (_dir, path) = file((0..1000).map(record));
    damage(&path, 123);
    let mut batches = scan(&path)
        .schema(schema())
        .batch_rows(50)
        .batches()
        .unwrap();
    let rows: usize = batches
        .by_ref()
        .map_while(Result::ok)
        .map(|b| b.num_rows())
        .sum();
    assert_eq!(rows, 123);
    let mut batches = scan(&path)
        .schema(schema())
        .batch_rows(1000)
        .batches()
        .unwrap();
    assert_eq!(batches.next().unwrap().unwrap().num_rows(), 123);
    let error = batches.next().unwrap().unwrap_err();
    let check = RecordCheck::DataChecksum;
    assert!(
        matches!(error.kind(), ErrorKind::CorruptRecord { record: 123, check: is } if *is == check),
        "{error}"
    );
    let skip = small_chunks().on_corrupt(OnCorrupt::Skip {
        at_most: AtMost::Records(1),
    });
    let scan = ExampleScan::new(feedwater::open(&path).unwrap(), &skip);
    let mut batches = scan.schema(schema()).batch_rows(100).batches().unwrap();
    let all: Vec<_> = batches
        .by_ref()
        .flat_map(|batch| ids(&batch.unwrap()))
        .collect();
    assert_eq!(all, (0..1000).filter(|id| *id != 123).collect::<Vec<_>>());
    assert_eq!(batches.skipped().records(), 1);
    assert_eq!(batches.skipped().list()[0].record, 123);
}

#[test]
fn a_set_is_read_in_order_and_errors_name_the_shard() {
    let dir = tempfile::tempdir().unwrap();
    let shard = |at| dir.path().join(format!("train-{at:05}-of-00003"));
    for at in 0..3 {
        write(&shard(at), (0..100).map(|id| record(100 * at + id)));
    }
    let set = ShardSet::find(dir.path().join("train@3")).unwrap();
    let batches = || {
        let scan = ExampleScan::of_shards(&set, &small_chunks()).schema(schema());
        scan.batch_rows(64).batches().unwrap()
    };
    let all: Vec<_> = batches().flat_map(|batch| ids(&batch.unwrap())).collect();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
    write(&shard(1), [record(100), example([("id", floats([1.0]))])]);
    let mut batches = batches();
    assert_eq!(ids(&batches.next().unwrap().unwrap()).len(), 64);
    assert_eq!(
        ids(&batches.next().unwrap().unwrap()),
        (64..101).collect::<Vec<_>>()
    );
    let error = batches.next().unwrap().unwrap_err();
    assert_eq!(error.name(), shard(1).to_str());
    assert!(
        error
            .to_string()
            .ends_with("(id): record 1: it has floats, and not integers"),
        "{error}"
    );
}

#[test]
fn a_schema_is_inferred_from_the_first_and_none_is_lost() {
    let (_dir, path) = file((0..1000).map(record));
    let scan = scan(&path).infer_from(10).batch_rows(300).threads(2);
    let batches = scan.batches().unwrap();
    let features = batches.example_schema().features();
    let types: Vec<_> = features
        .iter()
        .map(|f| (f.name(), f.value_type(), f.shape()))
        .collect();
    let scalar = Some(&[][..]);
    assert_eq!(
        types,
        [
            ("id", ValueType::Int64, scalar),
            ("text", ValueType::Binary, scalar)
        ]
    );
    assert_eq!(batches.schema().field(1).name(), "text");
    let all: Vec<_> = batches.flat_map(|batch| ids(&batch.unwrap())).collect();
    assert_eq!(all, (0..1000).collect::<Vec<_>>());

    let odd = example([("id", ints([1, 2]))]);
    let (_dir, path) = file((0..100).map(record).chain([odd]));
    let reader = feedwater::open(&path).unwrap();
    let mut batches = examples(reader).batches().unwrap();
    assert_eq!(batches.next().unwrap().unwrap().num_rows(), 100);
    let error = batches.next().unwrap().unwrap_err().to_string();
    let expected = "malformed tf.train.Example (id): record 100: it has 2 values, and not 1 \
        (its type was inferred from the first 100 examples)";
    assert!(error.ends_with(expected), "{error}");

    let (_dir, path) = file([]);
    let error = examples(feedwater::open(&path).unwrap())
        .batches()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotFound { .. }),
        "{error}"
    );
    assert_eq!(error.name(), path.to_str());
    let empty = examples(feedwater::open(&path).unwrap()).schema(schema());
    assert_eq!(empty.batches().unwrap().count(), 0);
}

#[test]
fn options_without_a_meaning_are_refused() {
    let (_dir, path) = file([record(1)]);
    for scan in [
        scan(&path).batch_rows(0),
        scan(&path).threads(0),
        scan(&path).ahead(0),
        scan(&path).infer_from(0),
    ] {
        let error = scan.batches().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
    }
}

#[test]
fn rows_written_as_examples_are_read_again() {
    let (_dir, path) = file((0..500).map(record));
    let read = |path: &Path| -> Vec<RecordBatch> {
        let batches = scan(path)
            .schema(schema())
            .batch_rows(128)
            .batches()
            .unwrap();
        batches.map(Result::unwrap).collect()
    };
    let first = read(&path);
    let dir = tempfile::tempdir().unwrap();
    let again = dir.path().join("again.tfrecord");
    let mut writer = Writer::create(&again).unwrap();
    let mut bytes = Vec::new();
    for batch in &first {
        let mut encoder = ExampleEncoder::new(batch).unwrap();
        for row in 0..encoder.rows() {
            bytes.clear();
            encoder.encode(row, &mut bytes).unwrap();
            writer.write(&bytes).unwrap();
        }
    }
    writer.commit().unwrap();
    assert_eq!(read(&again), first);
}
