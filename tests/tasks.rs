//! What has a form for tasks never blocks the thread that polls it: a reader answers only between polls, and each form comes to
//! its end all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::parquet::arrow::ArrowWriter;
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use feedwater::safetensors::{Dtype, NewTensor};
use feedwater::tfrecord::{ExampleEncoder, Index, RecordOptions};
use feedwater::{
    Batch, Block, ChunkOptions, Format, MemoryReader, Pending, ReadInto, Reader, ReaderExt, Result,
    Source, Ticket, npy, parquet, safetensors, tfrecord,
};
use futures::StreamExt;
use zip::write::SimpleFileOptions;

/// Long enough for any machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers when it is told to.
#[derive(Debug)]
struct Held {
    inner: MemoryReader,
    asked: Mutex<Vec<(Range<u64>, Ticket)>>,
}

impl Held {
    /// Answers what was asked so far: how many reads that were.
    fn answer(&self) -> usize {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let count = asked.len();
        for (range, ticket) in asked {
            let bytes = self.inner.read(range).wait().unwrap();
            ticket.finish(Ok(Block::Host(bytes)));
        }
        count
    }
}

impl Reader for Held {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.inner.source());
        let mut asked = self.asked.lock().unwrap();
        asked.extend(
            started
                .into_iter()
                .map(|(read, ticket)| (read.range, ticket)),
        );
        pending
    }

    fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
        panic!("a task does not read on its thread");
    }
}

/// Polls what `make` makes, with answers in between: what it came to, and how many reads were answered.
fn polled<F>(
    file: Vec<u8>,
    make: impl FnOnce(Arc<Held>) -> F + Send + 'static,
) -> (F::Output, usize)
where
    F: Future<Output: Send + 'static>,
{
    let (sender, receiver) = mpsc::channel();
    // On a thread of its own, so that one that blocks fails.
    std::thread::spawn(move || {
        let reader = Arc::new(Held {
            inner: MemoryReader::new(file),
            asked: Mutex::default(),
        });
        let mut future = pin!(make(reader.clone()));
        let (mut answered, end) = (0, Instant::now() + PATIENCE);
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                let _ = sender.send((output, answered));
                return;
            }
            assert!(Instant::now() < end, "nothing comes");
            // Threads of a scan may be at work, too.
            answered += reader.answer();
            std::thread::yield_now();
        }
    });
    receiver.recv_timeout(PATIENCE).expect("the task blocks")
}

fn ids(count: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count));
    RecordBatch::try_from_iter([("id", ids)]).unwrap()
}

fn table() -> Vec<u8> {
    let (batch, mut file) = (ids(1000), Vec::new());
    let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    file
}

/// 500 examples.
fn records() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let mut writer = tfrecord::Writer::create(&path).unwrap();
    let batch = ids(500);
    let mut encoder = ExampleEncoder::new(&batch).unwrap();
    for row in 0..encoder.rows() {
        let mut record = Vec::new();
        encoder.encode(row, &mut record).unwrap();
        writer.write(&record).unwrap();
    }
    writer.commit().unwrap();
    std::fs::read(path).unwrap()
}

/// Chunks of a few records.
fn small_chunks() -> RecordOptions {
    RecordOptions::new().chunks(ChunkOptions::default().size(512))
}

fn array(values: &[i32]) -> Vec<u8> {
    let header = format!(
        "{{'descr': '<i4', 'fortran_order': False, 'shape': ({},), }}",
        values.len()
    );
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    let header = format!("{header:<117}\n");
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}

fn archive() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, method) in [
        ("stored.npy", zip::CompressionMethod::Stored),
        ("deflated.npy", zip::CompressionMethod::Deflated),
    ] {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(name, options).unwrap();
        std::io::Write::write_all(&mut zip, &array(&[1, -2, 3])).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn formats_are_recognised() {
    let (format, answered) = polled(table(), |reader| async move {
        Format::of_async(&*reader).await.unwrap()
    });
    assert_eq!((format, answered), (Some(Format::Parquet), 1));
}

#[test]
fn rows_of_a_table_are_taken_and_plans_explained() {
    let (batch, answered) = polled(table(), |reader| async move {
        parquet::scan(reader)
            .take_async(&[700, 3, 700])
            .await
            .unwrap()
    });
    assert_eq!(
        batch.column(0).as_primitive::<Int64Type>().values(),
        &[700, 3, 700]
    );
    assert!(answered > 0);
    let (plan, answered) = polled(table(), |reader| async move {
        parquet::scan(reader).explain_async().await.unwrap()
    });
    assert_eq!((plan.file_rows, plan.file_row_groups), (1000, 1));
    assert_eq!(answered as u64, plan.metadata_requests);
}

#[test]
fn schemas_of_examples_are_inferred() {
    let (rows, answered) = polled(records(), |reader| async move {
        let scan = tfrecord::ExampleScan::new(reader, &small_chunks());
        let batches = scan
            .threads(2)
            .batch_rows(64)
            .batches_async()
            .await
            .unwrap();
        assert_eq!(batches.schema().field(0).name(), "id");
        let rows = batches.stream().map(|batch| {
            let batch = batch.unwrap();
            batch
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec()
        });
        let rows: Vec<Vec<i64>> = rows.collect().await;
        rows.concat()
    });
    assert_eq!(rows, (0..500).collect::<Vec<i64>>());
    assert!(answered > 10, "{answered}");
}

#[test]
fn indexes_of_records_are_built() {
    let (index, answered) = polled(records(), |reader| async move {
        small_chunks().index_async(reader).await.unwrap()
    });
    assert_eq!(index.len(), 500);
    assert!(answered > 10, "{answered}");
    let (index, _) = polled(records(), |reader| async move {
        Index::build_async(reader).await.unwrap()
    });
    assert_eq!(index.len(), 500);
}

#[test]
fn arrays_of_archives_are_opened() {
    let (arrays, answered) = polled(archive(), |reader| async move {
        let archive = npy::open_npz_async(reader).await.unwrap();
        let mut arrays = Vec::new();
        for name in ["stored", "deflated"] {
            let array = archive.array_async(name).await.unwrap();
            arrays.push(array.read_all().await.unwrap().to_vec::<i32>().unwrap());
        }
        arrays
    });
    assert_eq!(arrays, [[1, -2, 3], [1, -2, 3]]);
    assert!(answered >= 4, "{answered}");
    let (array, _) = polled(array(&[5]), |reader| async move {
        npy::open_async(reader)
            .await
            .unwrap()
            .read_all()
            .await
            .unwrap()
    });
    assert_eq!(array.to_vec::<i32>().unwrap(), [5]);
}

#[test]
fn tensors_are_opened_alone_and_by_their_index() {
    let dir = tempfile::tempdir().unwrap();
    for (file, name) in [("1.safetensors", "a"), ("2.safetensors", "b")] {
        let tensor = NewTensor::new(name, Dtype::U8, [4], *b"data");
        safetensors::save(dir.path().join(file), &[tensor], &Default::default()).unwrap();
    }
    let file = std::fs::read(dir.path().join("1.safetensors")).unwrap();
    let (tensors, answered) = polled(file, |reader| async move {
        safetensors::open_async(reader)
            .await
            .unwrap()
            .load()
            .await
            .unwrap()
    });
    assert_eq!(tensors.tensor("a").unwrap().bytes(), &b"data"[..]);
    assert_eq!(answered, 2);

    let index = dir.path().join("model.safetensors.index.json");
    let map = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    std::fs::write(&index, map).unwrap();
    let tensors = futures::executor::block_on(async {
        let model = safetensors::open_sharded_async(&index, &Default::default()).await?;
        model.load().await
    });
    assert_eq!(tensors.unwrap().len(), 2);
}
