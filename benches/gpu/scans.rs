//! Columns of a Parquet file in the page cache, as arrays in the device's memory.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, ListArray, RecordBatch, StringArray};
use feedwater::cache::MetadataCache;
use feedwater::cuda::Device;
use feedwater::parquet::scan;
use feedwater::{Opened, Processor};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::pages::Random;
use super::{Pinned, Way, work};

/// Rows of a row group.
const ROWS: usize = 1 << 19;

/// Numbers, numbers of a dictionary that can be null, strings of 16 bytes, and short lists.
fn rows(count: usize, random: &mut Random) -> RecordBatch {
    let ids = (0..count as i64).map(|row| row * 100 + row % 37);
    let days: Int32Array = (0..count)
        .map(|row| (row % 9 != 0).then(|| random.below(300) as i32))
        .collect();
    let texts = (0..count).map(|_| format!("{:016x}", random.next()));
    let texts = StringArray::from_iter_values(texts.collect::<Vec<_>>());
    let lists = (0..count).map(|row| Some((0..row as i64 % 4).map(Some)));
    let lists = ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>(lists);
    let columns: [(&str, ArrayRef); 4] = [
        ("ids", Arc::new(Int64Array::from_iter_values(ids))),
        ("days", Arc::new(days)),
        ("texts", Arc::new(texts)),
        ("lists", Arc::new(lists)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// A file of about `len` bytes.
fn write(path: &Path, len: u64, codec: Compression) -> u64 {
    let batch = rows(ROWS.min(len as usize / 44 + 1), &mut Random::new(1));
    let set = WriterProperties::builder()
        .set_compression(codec)
        .set_column_dictionary_enabled("texts".into(), false)
        .set_column_dictionary_enabled("ids".into(), false);
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(set.build())).unwrap();
    while writer.bytes_written() < len as usize {
        writer.write(&batch).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    std::fs::metadata(path).unwrap().len()
}

/// All rows to the device, in the way that `processor` says; with what `cache` keeps from one turn to the next.
fn read(
    gpu: &Arc<Device>,
    reader: &Arc<Opened>,
    processor: Processor,
    cache: Option<&MetadataCache>,
) {
    let scan = scan(reader.clone()).on_device(gpu).processor(processor);
    let scan = match cache {
        Some(cache) => scan.page_lists(cache),
        None => scan,
    };
    for batch in scan.batches().unwrap() {
        batch.unwrap();
    }
}

pub(crate) fn files(gpu: &Arc<Device>, len: u64, turns: u64, json: &mut String) {
    let dir = tempfile::tempdir().unwrap();
    for (name, codec) in [
        ("Parquet, not compressed", Compression::UNCOMPRESSED),
        ("Parquet, Snappy", Compression::SNAPPY),
        (
            "Parquet, Zstandard",
            Compression::ZSTD(ZstdLevel::default()),
        ),
    ] {
        let path = dir.path().join(name);
        let written = write(&path, len, codec);
        let reader = feedwater::open(&path).unwrap();
        let cache = MetadataCache::new();
        let (reader, cache) = (&reader, &cache);
        let ways = vec![
            Pinned::new(gpu, written).way(),
            Way::new("arrays in the host's memory, all threads", move || {
                for batch in scan(reader.clone()).batches().unwrap() {
                    batch.unwrap();
                }
            }),
            Way::new("arrays in the host's memory, 16 threads", move || {
                for batch in scan(reader.clone()).threads(16).batches().unwrap() {
                    batch.unwrap();
                }
            }),
            Way::new("on the device, decoded by the host", move || {
                read(gpu, reader, Processor::Cpu, None);
            }),
            Way::new("on the device, by the GPU", move || {
                read(gpu, reader, Processor::Gpu, None);
            }),
            Way::new("on the device, as `Auto` chooses", move || {
                read(gpu, reader, Processor::Auto, None);
            }),
            Way::new(
                "on the device, by the GPU, pages known from before",
                move || {
                    read(gpu, reader, Processor::Gpu, Some(cache));
                },
            ),
        ];
        work(name, written, turns, ways, json);
        std::fs::remove_file(&path).unwrap();
    }
}
