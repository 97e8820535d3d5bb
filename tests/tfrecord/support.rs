//! What these tests share.

use std::path::Path;
use std::sync::Arc;

use feedwater::tfrecord::{Compression, RecordOptions, WriterOptions};
use feedwater::{ChunkOptions, MemoryReader, Reader, Result, SinkOptions, SyncMode};
use futures::StreamExt;
use futures::executor::block_on;

/// Bytes of a frame that are not data.
pub(crate) const OVERHEAD: usize = 16;

/// Number, offset, data.
pub(crate) type Found = (u64, u64, Vec<u8>);

/// Writes a file by the crate's writer.
pub(crate) fn write<T: AsRef<[u8]>>(path: &Path, records: &[T], compression: Compression) {
    let mut writer = WriterOptions::new()
        .compression(compression)
        .sink(SinkOptions::new().sync(SyncMode::None))
        .create(path)
        .unwrap();
    for record in records {
        writer.write(record.as_ref()).unwrap();
    }
    assert_eq!(writer.records(), records.len() as u64);
    writer.commit().unwrap();
}

/// The bytes of such a file.
pub(crate) fn file_of<T: AsRef<[u8]>>(records: &[T], compression: Compression) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    write(&path, records, compression);
    std::fs::read(path).unwrap()
}

pub(crate) fn memory(bytes: impl Into<bytes::Bytes>) -> Arc<MemoryReader> {
    Arc::new(MemoryReader::named("records", bytes))
}

/// Records of many sizes, among them empty ones.
pub(crate) fn varied(count: usize) -> Vec<Vec<u8>> {
    let data = |i: usize| (0..i * i % 1999).map(|j| (i * 31 + j * 7) as u8).collect();
    (0..count).map(data).collect()
}

pub(crate) fn small_chunks(size: usize) -> RecordOptions {
    RecordOptions::new().chunks(ChunkOptions::default().size(size).window(4 * size))
}

/// What came before the end, and the error that was the end.
pub(crate) type Outcome = (Vec<Found>, Option<feedwater::Error>);

/// Everything, by each of the four ways; they have to agree.
pub(crate) fn every_way<R: Reader>(options: &RecordOptions, reader: &Arc<R>) -> Outcome {
    let mut blocking = options.records(reader.clone());
    let one_by_one = gather(
        blocking
            .by_ref()
            .map(|r| r.map(|r| (r.number, r.offset, r.data.to_vec()))),
    );
    assert!(blocking.next().is_none(), "nothing comes after the end");
    let tasks = block_on(
        options
            .records(reader.clone())
            .stream()
            .map(|r| r.map(|r| (r.number, r.offset, r.data.to_vec())))
            .collect::<Vec<_>>(),
    );
    agree(&one_by_one, &gather(tasks.into_iter()));
    let frames = options.frames(reader.clone()).flat_map(all);
    agree(&one_by_one, &gather(frames));
    let frames = block_on(options.frames(reader.clone()).stream().collect::<Vec<_>>());
    agree(&one_by_one, &gather(frames.into_iter().flat_map(all)));
    one_by_one
}

/// The records of one delivery of frames.
fn all(frames: Result<feedwater::tfrecord::Frames>) -> Vec<Result<Found>> {
    let frames = match frames {
        Ok(frames) => frames,
        Err(error) => return vec![Err(error)],
    };
    assert!(!frames.is_empty());
    let ranges: Vec<_> = frames.ranges().collect();
    let each = frames.iter().enumerate().map(|(i, data)| {
        assert_eq!(frames.block()[ranges[i].clone()], *data);
        Ok((
            frames.first() + i as u64,
            frames.offset(i).unwrap(),
            data.to_vec(),
        ))
    });
    each.collect()
}

fn gather(items: impl Iterator<Item = Result<Found>>) -> Outcome {
    let mut found = Vec::new();
    for item in items {
        match item {
            Ok(record) => found.push(record),
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

fn agree(one: &Outcome, other: &Outcome) {
    assert_eq!(one.0, other.0);
    let text = |outcome: &Outcome| outcome.1.as_ref().map(ToString::to_string);
    assert_eq!(text(one), text(other));
}

pub(crate) fn data_of(found: &[Found]) -> Vec<&[u8]> {
    found.iter().map(|(_, _, data)| &data[..]).collect()
}
