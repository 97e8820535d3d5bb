//! Ways to read a file, the `parquet` crate's own one first.

use std::fs::File;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use feedwater::parquet::{Source, scan};
use futures::TryStreamExt;
use futures::executor::block_on;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::errors::Result;
use parquet::file::metadata::{FileMetaData, ParquetMetaDataBuilder};
use parquet::file::reader::ChunkReader;

/// All rows of a file as one batch.
pub(crate) fn joined(schema: &SchemaRef, batches: &[RecordBatch]) -> RecordBatch {
    arrow::compute::concat_batches(schema, batches).unwrap()
}

fn blocking<R: ChunkReader + 'static>(file: R, rows: usize) -> Result<RecordBatch> {
    read(ParquetRecordBatchReaderBuilder::try_new(file)?, rows)
}

fn read<R: ChunkReader + 'static>(
    builder: ParquetRecordBatchReaderBuilder<R>,
    rows: usize,
) -> Result<RecordBatch> {
    let reader = builder.with_batch_size(rows).build()?;
    let schema = arrow_array::RecordBatchReader::schema(&reader);
    let batches: Vec<_> = reader.collect::<std::result::Result<_, _>>()?;
    Ok(joined(&schema, &batches))
}

/// The oracle: the `parquet` crate with a file of the standard library.
pub(crate) fn plain(path: &Path) -> Result<RecordBatch> {
    blocking(File::open(path)?, 1024)
}

/// The oracle for a file whose footer does not tell how many rows its row groups have.
pub(crate) fn plain_counted(path: &Path) -> Result<RecordBatch> {
    let file = File::open(path)?;
    let metadata = ArrowReaderMetadata::load(&file, Default::default())?;
    let metadata = metadata.metadata();
    let old = metadata.file_metadata();
    let groups = metadata.row_groups().to_vec();
    let counted = FileMetaData::new(
        old.version(),
        groups.iter().map(|group| group.num_rows()).sum(),
        old.created_by().map(str::to_owned),
        old.key_value_metadata().cloned(),
        old.schema_descr_ptr(),
        old.column_orders().cloned(),
    );
    let counted = ParquetMetaDataBuilder::new(counted)
        .set_row_groups(groups)
        .build();
    let metadata = ArrowReaderMetadata::try_new(counted.into(), Default::default())?;
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    read(builder, 1024)
}

type Way = fn(&Path) -> Result<RecordBatch>;

/// The `parquet` crate through `Source`.
pub(crate) const THROUGH_SOURCE: &[(&str, Way)] = &[
    ("blocking", |path| blocking(open(path), 1024)),
    ("blocking, batches of 3", |path| blocking(open(path), 3)),
    ("blocking, prefetching", |path| {
        let file = open(path);
        let metadata = ArrowReaderMetadata::load(&file, Default::default())?;
        let (footer, all) = (metadata.metadata().clone(), ProjectionMask::all());
        let file = file
            .window(0)
            .prefetching(&footer, 0..footer.num_row_groups(), &all);
        blocking(file.unwrap(), 1024)
    }),
    ("in a task", |path| in_task(open(path))),
    ("in a task, prefetching", |path| {
        let file = open(path);
        let metadata = ArrowReaderMetadata::load(&file, Default::default())?;
        let (footer, all) = (metadata.metadata().clone(), ProjectionMask::all());
        let file = file.prefetching(&footer, 0..footer.num_row_groups(), &all);
        in_task(file.unwrap())
    }),
];

fn open(path: &Path) -> Source {
    Source::new(feedwater::open(path).unwrap())
}

fn in_task(file: Source) -> Result<RecordBatch> {
    block_on(async {
        let builder = ParquetRecordBatchStreamBuilder::new(file).await?;
        let stream = builder.with_batch_size(1024).build()?;
        let schema = stream.schema().clone();
        let batches: Vec<_> = stream.try_collect().await?;
        Ok(joined(&schema, &batches))
    })
}

/// Batch sizes and threads of [`scanned`].
pub(crate) const SCANS: &[(usize, usize)] = &[(3, 1), (1000, 1), (1000, 3), (100_000, 2)];

pub(crate) fn scanned(path: &Path, rows: usize, threads: usize) -> feedwater::Result<RecordBatch> {
    let scan = scan(feedwater::open(path)?)
        .batch_rows(rows)
        .threads(threads);
    let batches = scan.batches()?;
    let schema = batches.schema().clone();
    let batches: Vec<_> = batches.collect::<feedwater::Result<_>>()?;
    for batch in &batches {
        assert!((1..=rows).contains(&batch.num_rows()));
    }
    Ok(joined(&schema, &batches))
}

pub(crate) fn streamed(path: &Path) -> feedwater::Result<RecordBatch> {
    let stream = scan(feedwater::open(path)?).threads(2).stream();
    let batches: Vec<_> = block_on(stream.try_collect())?;
    let schema = match batches.first() {
        Some(batch) => RecordBatch::schema(batch),
        None => scan(feedwater::open(path)?).batches()?.schema().clone(),
    };
    Ok(joined(&schema, &batches))
}
