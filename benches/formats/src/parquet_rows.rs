//! Parquet files to Arrow batches.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use arrow_array::RecordBatch;
use feedwater::ReaderExt;
use feedwater::parquet::{Metadata, scan};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};

use crate::files::{make_cold, make_warm, touch_memory};
use crate::table::measure;
use crate::{Bench, Row, data, ratio, way};

type Make = fn(&Path, &Bench);

const FILES: [(&str, f64, Make); 4] = [
    ("flat_snappy", 1.2, |path, bench| {
        data::flat_snappy(path, bench.rows);
    }),
    ("flat_zstd", 1.2, |path, bench| {
        data::flat_zstd(path, bench.rows)
    }),
    ("enc_delta", 1.0, |path, bench| {
        data::enc_delta(path, bench.rows)
    }),
    ("embeddings", 1.0, |path, bench| {
        data::embeddings(path, bench.mib)
    }),
];

pub(crate) fn all() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (file, aim, make) in FILES {
        for batch in [1024, 8192] {
            let row = move |bench: &Bench, name: &str| {
                let path = bench.file(file, |path| make(path, bench));
                warm(bench, name, &path, batch, aim);
            };
            rows.push((format!("parquet-{file}-{batch}-warm"), Box::new(row)));
        }
    }
    rows.push(("parquet-cold".into(), Box::new(cold)));
    rows.push(("parquet-take".into(), Box::new(take)));
    rows
}

/// Rows, and bytes of the batches.
type Count = (usize, usize);

fn count(batches: &[RecordBatch]) -> Count {
    let sizes = batches
        .iter()
        .map(|batch| (batch.num_rows(), batch.get_array_memory_size()));
    sizes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn said((rows, bytes): Count) -> String {
    format!("{rows} rows, {} MiB of arrays", bytes >> 20)
}

/// Threads that decode a part of the row groups each with the `parquet` crate. They stay.
struct Peer {
    threads: Vec<Sender<(PathBuf, usize)>>,
    counts: Receiver<Count>,
}

impl Peer {
    fn new(threads: usize) -> Self {
        let (sender, counts) = channel();
        let start = |number| {
            let (work, files) = channel::<(PathBuf, usize)>();
            let sender = sender.clone();
            std::thread::spawn(move || {
                for (path, batch) in files {
                    let decoded = decode(&path, batch, number, threads);
                    sender.send(decoded).expect("send");
                }
            });
            work
        };
        Peer {
            threads: (0..threads).map(start).collect(),
            counts,
        }
    }

    fn decode(&self, path: &Path, batch: usize) -> Count {
        for thread in &self.threads {
            thread.send((path.into(), batch)).expect("send");
        }
        let counts = self
            .threads
            .iter()
            .map(|_| self.counts.recv().expect("receive"));
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

fn decode(path: &Path, batch: usize, part: usize, parts: usize) -> Count {
    let file = File::open(path).expect("open");
    let metadata = ArrowReaderMetadata::load(&file, Default::default()).expect("metadata");
    let groups = metadata.metadata().num_row_groups();
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
        .with_row_groups((groups * part / parts..groups * (part + 1) / parts).collect())
        .with_batch_size(batch)
        .build()
        .expect("reader");
    count(
        &reader
            .map(|batch| batch.expect("batch"))
            .collect::<Vec<_>>(),
    )
}

fn ours(path: &Path, batch: usize, threads: usize) -> Count {
    let reader = Arc::new(feedwater::open(path).expect("open"));
    let batches = scan(reader)
        .threads(threads)
        .batch_rows(batch)
        .batches()
        .expect("scan");
    count(
        &batches
            .map(|batch| batch.expect("batch"))
            .collect::<Vec<_>>(),
    )
}

fn warm(bench: &Bench, name: &str, path: &Path, batch: usize, aim: f64) {
    let (two, one) = (Peer::new(2), Peer::new(1));
    let rows = two.decode(path, batch).0;
    assert_eq!(ours(path, batch, 2).0, rows);
    let prepare = || make_warm(path);
    let len = std::fs::metadata(path).expect("metadata").len();
    measure(
        name,
        len,
        rows as u64,
        bench.turns,
        &mut [
            way("parquet crate, 2 threads", prepare, || {
                said(two.decode(path, batch))
            }),
            way("parquet crate again", prepare, || {
                said(two.decode(path, batch))
            }),
            way("scan, 2 threads", prepare, || said(ours(path, batch, 2))),
            way("parquet crate, 1 thread", prepare, || {
                said(one.decode(path, batch))
            }),
            way("scan, 1 thread", prepare, || said(ours(path, batch, 1))),
        ],
        &[
            ratio("parquet crate again", "parquet crate, 2 threads", 1.0),
            ratio("scan, 2 threads", "parquet crate, 2 threads", aim),
            ratio("scan, 1 thread", "parquet crate, 1 thread", 1.0),
        ],
    );
}

fn cold(bench: &Bench, name: &str) {
    let path = bench.file("flat_snappy", |path| data::flat_snappy(path, bench.rows));
    let path = path.as_path();
    let len = std::fs::metadata(path).expect("metadata").len();
    let scan = || said(ours(path, 8192, 2));
    let warm = || make_warm(path);
    let cold = || {
        make_cold(path);
        touch_memory(len as usize);
    };
    let read = || {
        let reader = feedwater::open(path).expect("open");
        let bytes = reader.read_all().wait().expect("read");
        format!("{} bytes", bytes.len())
    };
    measure(
        name,
        len,
        bench.rows as u64,
        bench.turns,
        &mut [
            way("read alone", cold, read),
            way("decode alone (warm scan)", warm, scan),
            way("cold scan", cold, scan),
            way("cold scan again", cold, scan),
        ],
        // Of these two the smaller one counts.
        &[
            ratio("cold scan", "read alone", 0.91),
            ratio("cold scan", "decode alone (warm scan)", 0.91),
            ratio("cold scan again", "cold scan", 1.0),
        ],
    );
}

fn take(bench: &Bench, name: &str) {
    let path = bench.file("small_pages", |path| data::small_pages(path, bench.rows));
    let mut random = data::Random::new();
    let rows: Vec<u64> = (0..1000).map(|_| random.below(bench.rows as u64)).collect();
    let reader = Arc::new(feedwater::open(&path).expect("open"));
    let metadata = Metadata::read(&*reader).expect("metadata");
    let begin = || scan(reader.clone()).metadata(metadata.clone());
    let planned = rows
        .iter()
        .fold(begin(), |scan, row| scan.rows(*row..*row + 1));
    let plan = planned.explain().expect("plan");
    let percent = |bytes: u64| bytes as f64 * 100.0 / plan.file_bytes as f64;
    let how = format!(
        "pages {:.2} % of the file in {} requests, index {:.2} %",
        percent(plan.bytes_read()),
        plan.requests(),
        percent(plan.index_bytes),
    );
    let prepare = || make_warm(&path);
    measure(
        name,
        plan.file_bytes,
        rows.len() as u64,
        bench.turns,
        &mut [
            way("all rows", prepare, || {
                let batches = begin().batches().expect("scan");
                said(count(
                    &batches
                        .map(|batch| batch.expect("batch"))
                        .collect::<Vec<_>>(),
                ))
            }),
            way("take", prepare, || {
                let batch = begin().take(&rows).expect("take");
                assert_eq!(batch.num_rows(), rows.len());
                how.clone()
            }),
        ],
        &[ratio("take", "all rows", 1.0)],
    );
}
