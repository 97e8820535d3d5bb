//! The `parquet` crate reading through a newtype around a reader.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use bytes::Bytes;
use feedwater::{Block, Cursor, Error, ErrorKind, MemoryReader, Reader, ReaderExt, Slice};
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt, TryStreamExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, Length};

use crate::slow::{Remote, RemoteOptions};

struct Source(Arc<dyn Reader>);

fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.0.source().len()
    }
}

impl ChunkReader for Source {
    type T = Cursor<Slice<dyn Reader>>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let rest = self.0.clone().slice(start..self.len()).map_err(external)?;
        Ok(Arc::new(rest).cursor())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let range = start..start.saturating_add(length as u64);
        self.0.read(range).wait().map_err(external)
    }
}

impl AsyncFileReader for Source {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        self.0.read(range).map_err(external).boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, parquet::errors::Result<Vec<Bytes>>> {
        let pending = self.0.read_many(&ranges);
        async move {
            let blocks = pending.await.map_err(external)?;
            let bytes = blocks.into_iter().map(Block::into_host);
            bytes.collect::<Result<_, _>>().map_err(external)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, parquet::errors::Result<Arc<ParquetMetaData>>> {
        let len = self.0.source().len();
        let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
        reader.load_and_finish(self, len).map_ok(Arc::new).boxed()
    }
}

/// Three columns of 50 000 rows in row groups of 10 000.
fn table() -> RecordBatch {
    let rows = 0..50_000i64;
    let ints = Int64Array::from_iter(rows.clone().map(|i| (i % 7 != 0).then_some(i * i)));
    let floats = Float64Array::from_iter_values(rows.clone().map(|i| i as f64 / 3.0));
    let texts = StringArray::from_iter_values(rows.map(|i| format!("row {}", i % 50)));
    let columns: [(&str, ArrayRef); 3] = [
        ("ints", Arc::new(ints)),
        ("floats", Arc::new(floats)),
        ("texts", Arc::new(texts)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn file(table: &RecordBatch) -> Bytes {
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(10_000))
        .build();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, table.schema(), Some(properties)).unwrap();
    writer.write(table).unwrap();
    writer.close().unwrap();
    out.into()
}

fn read(source: Source) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(source).unwrap();
    assert_eq!(builder.metadata().num_row_groups(), 5);
    let schema = builder.schema().clone();
    let batches: Result<Vec<_>, _> = builder.with_batch_size(7000).build().unwrap().collect();
    concat_batches(&schema, &batches.unwrap()).unwrap()
}

#[test]
fn batches_come_back_equal() {
    let table = table();
    let reader = MemoryReader::new(file(&table));
    assert_eq!(read(Source(Arc::new(reader))), table);
}

#[test]
fn from_a_slow_engine_too() {
    let table = table();
    let reader = Remote::new(file(&table), RemoteOptions::default());
    assert_eq!(read(Source(Arc::new(reader))), table);
}

#[test]
fn tasks_read_it_on_any_executor() {
    let table = table();
    let reader: Arc<dyn Reader> = Arc::new(Remote::new(file(&table), RemoteOptions::default()));
    let read = |reader: Arc<dyn Reader>| async move {
        let builder = ParquetRecordBatchStreamBuilder::new(Source(reader))
            .await
            .unwrap();
        let schema = builder.schema().clone();
        let stream = builder.with_batch_size(7000).build().unwrap();
        let batches: Vec<_> = stream.try_collect().await.unwrap();
        concat_batches(&schema, &batches).unwrap()
    };
    assert_eq!(futures::executor::block_on(read(reader.clone())), table);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let task = runtime.spawn(read(reader));
    assert_eq!(runtime.block_on(task).unwrap(), table);
}

#[test]
fn an_error_of_the_engine_reaches_the_task_with_its_type() {
    let options = RemoteOptions {
        failures: 16,
        ..RemoteOptions::default()
    };
    let reader = Arc::new(Remote::new(file(&table()), options));
    let opened = ParquetRecordBatchStreamBuilder::new(Source(reader));
    let Err(ParquetError::External(error)) = futures::executor::block_on(opened) else {
        panic!("opened, or another error")
    };
    let error = error.downcast_ref::<Error>().unwrap();
    assert!(
        matches!(error.kind(), ErrorKind::Io { op: "GET", .. }),
        "{error}"
    );
}

#[test]
fn columns_and_row_groups_that_are_not_wanted_are_not_read() {
    let table = table();
    let bytes = file(&table);
    let reader: Arc<dyn Reader> = Arc::new(Remote::new(bytes.clone(), RemoteOptions::default()));
    let builder = ParquetRecordBatchReaderBuilder::try_new(Source(reader.clone())).unwrap();
    let mask = parquet::arrow::ProjectionMask::columns(builder.parquet_schema(), ["ints"]);
    let before = reader.source().counters().snapshot().requested;
    let batches = builder
        .with_projection(mask)
        .with_row_groups(vec![3])
        .build();
    let batches: Vec<_> = batches.unwrap().map(Result::unwrap).collect();
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert_eq!((rows, batches[0].num_columns()), (10_000, 1));
    let ints = batches[0].column(0).as_any().downcast_ref::<Int64Array>();
    assert_eq!(ints.unwrap().value(1), 30_001 * 30_001);
    let read = reader.source().counters().snapshot().requested - before;
    assert!(
        read > 0 && read < bytes.len() as u64 / 4,
        "{read} of {}",
        bytes.len()
    );
}

#[test]
fn a_truncated_file_is_an_error_wherever_it_was_cut() {
    let bytes = file(&table());
    let step = bytes.len() / 97;
    for len in (0..bytes.len()).step_by(step).chain([bytes.len() - 1]) {
        let source = Source(Arc::new(MemoryReader::new(bytes.slice(..len))));
        match ParquetRecordBatchReaderBuilder::try_new(source) {
            Err(ParquetError::General(_) | ParquetError::EOF(_)) => {}
            Err(other) => panic!("cut at {len}: {other:?}"),
            Ok(_) => panic!("cut at {len}: opened"),
        }
    }
}

#[test]
fn a_footer_that_points_past_the_end_meets_the_bounds_of_the_reader() {
    let bytes = file(&table());
    // Data is missing in front of an intact footer, so its offsets lie past the end.
    let cut = bytes.len() / 2;
    let source = Source(Arc::new(MemoryReader::new(bytes.slice(cut..))));
    let error = source.get_bytes(cut as u64, bytes.len()).unwrap_err();
    let ParquetError::External(error) = error else {
        panic!("{error:?}")
    };
    let error = error.downcast_ref::<Error>().unwrap();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfBounds { len } if *len == (bytes.len() - cut) as u64)
    );
    let builder = ParquetRecordBatchReaderBuilder::try_new(source).unwrap();
    let read = builder.with_row_groups(vec![4]).build().unwrap().next();
    let error = read.unwrap().unwrap_err().to_string();
    assert!(error.contains("outside the source"), "{error}");
}
