//! A small data set, for those who just want to see something.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use feedwater::npy;
use feedwater::safetensors::{self, NewTensor};
use feedwater::tfrecord::{ExampleEncoder, Writer};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

use crate::Failure;
use crate::evict::evict;

const RAW: usize = 64 << 20;
const ROW_GROUPS: u64 = 5;
const ROWS: u64 = 120_000;

/// The files; they go with this value.
pub(crate) struct DataSet {
    dir: TempDir,
    paths: Vec<PathBuf>,
}

impl DataSet {
    /// Always the same bytes.
    pub(crate) fn make() -> Result<DataSet, Failure> {
        let dir = TempDir::with_prefix("feed-")?;
        let path = |name| dir.path().join(name);
        let paths = vec![
            path("raw.bin"),
            path("table.parquet"),
            path("examples.tfrecord"),
            path("weights.safetensors"),
            path("array.npy"),
            path("text.txt"),
            path("empty"),
        ];
        fs::write(&paths[0], raw())?;
        write_table(File::create(&paths[1])?)?;
        write_examples(&paths[2])?;
        write_tensors(&paths[3])?;
        write_array(&paths[4])?;
        fs::write(
            &paths[5],
            "A few words, so that there is a small file too.\n",
        )?;
        fs::write(&paths[6], "")?;
        // What was just written is in the page cache. One file is not, so that both cases are seen; where that is
        // impossible, none.
        let _ = evict(&paths[0]);
        Ok(DataSet { dir, paths })
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl fmt::Display for DataSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dir.path().display().fmt(f)
    }
}

/// Numbers without a pattern, the same ones each time (splitmix64).
struct Numbers(u64);

impl Iterator for Numbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    }
}

fn raw() -> Vec<u8> {
    let mut raw = Vec::with_capacity(RAW);
    raw.extend(Numbers(1).take(RAW / 8).flat_map(u64::to_le_bytes));
    raw
}

fn write_table(file: File) -> Result<(), Failure> {
    let mut writer = None;
    for group in 0..ROW_GROUPS {
        let batch = rows(group)?;
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(ArrowWriter::try_new(
                file.try_clone()?,
                batch.schema(),
                Some(properties()),
            )?),
        };
        writer.write(&batch)?;
        writer.flush()?; // ends the row group
    }
    match writer {
        Some(writer) => writer.close().map(drop).map_err(Failure::from),
        None => Err(io::Error::other("no rows").into()),
    }
}

fn rows(group: u64) -> Result<RecordBatch, ArrowError> {
    const LABELS: [&str; 4] = ["train", "test", "validation", "held out"];
    let ids = (0..ROWS).map(|row| (group * ROWS + row) as i64);
    let scores = Numbers(group).map(|n| n as f64 / u64::MAX as f64);
    let labels = Numbers(!group).map(|n| LABELS[n as usize % LABELS.len()]);
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids))),
        (
            "score",
            Arc::new(Float64Array::from_iter_values(scores.take(ROWS as usize))),
        ),
        (
            "label",
            Arc::new(StringArray::from_iter_values(labels.take(ROWS as usize))),
        ),
    ];
    RecordBatch::try_from_iter(columns)
}

/// `tf.train.Example`s with the same columns.
fn write_examples(path: &Path) -> Result<(), Failure> {
    let batch = rows(0)?;
    let scores = arrow::compute::cast(&batch.column(1), &DataType::Float32)?;
    let batch = RecordBatch::try_from_iter([
        ("id", batch.column(0).clone()),
        ("score", scores),
        ("label", batch.column(2).clone()),
    ])?
    .slice(0, 20_000);
    let mut encoder = ExampleEncoder::new(&batch)?;
    let mut writer = Writer::create(path)?;
    let mut record = Vec::new();
    for row in 0..encoder.rows() {
        record.clear();
        encoder.encode(row, &mut record)?;
        writer.write(&record)?;
    }
    writer.commit()?;
    Ok(())
}

fn write_tensors(path: &Path) -> Result<(), Failure> {
    let floats = |layer| Numbers(layer).map(|n| n as f32 / u64::MAX as f32);
    let tensors = (0..4).map(|layer| {
        let bytes: Vec<u8> = floats(layer)
            .take(256 * 512)
            .flat_map(f32::to_le_bytes)
            .collect();
        NewTensor::new(
            format!("layer.{layer}.weight"),
            safetensors::Dtype::F32,
            [256, 512],
            bytes,
        )
    });
    safetensors::save(path, &tensors.collect::<Vec<_>>(), &Default::default())?;
    Ok(())
}

fn write_array(path: &Path) -> Result<(), Failure> {
    let bytes: Vec<u8> = Numbers(7)
        .take(1000 * 64)
        .flat_map(u64::to_ne_bytes)
        .collect();
    npy::save(
        path,
        npy::Dtype::of::<u64>(),
        npy::Order::C,
        &[1000, 64],
        &bytes,
    )?;
    Ok(())
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build()
}
