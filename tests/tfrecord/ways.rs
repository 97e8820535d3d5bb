//! The whole, behind each way to read and whatever the chunks.

use std::sync::Arc;

use feedwater::fault::{Faults, Faulty};
use feedwater::tfrecord::{Compression, RecordOptions, records};
use feedwater::{ChunkOptions, ErrorKind, OpenOptions, Reader, Route};
use futures::StreamExt;
use futures::executor::block_on;
use proptest::prelude::*;

use crate::support::{OVERHEAD, data_of, every_way, file_of, memory, small_chunks, varied, write};

const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Zlib];

#[test]
fn all_records_come_whatever_the_compression_and_the_chunks() {
    let records = varied(30);
    for compression in COMPRESSIONS {
        let bytes = file_of(&records, compression);
        for size in [1, 13, 700, 4096, 1 << 20] {
            for options in [
                small_chunks(size),
                small_chunks(size).compression(compression),
            ] {
                let (found, error) = every_way(&options, &memory(bytes.clone()));
                assert!(error.is_none(), "{compression:?} {size}: {error:?}");
                assert_eq!(data_of(&found), records, "{compression:?} {size}");
                let mut at = 0;
                for (i, (number, offset, data)) in found.iter().enumerate() {
                    assert_eq!((*number, *offset), (i as u64, at));
                    at += (data.len() + OVERHEAD) as u64;
                }
            }
        }
    }
}

#[test]
fn a_file_without_records_has_none() {
    for compression in COMPRESSIONS {
        let bytes = file_of::<&[u8]>(&[], compression);
        assert_eq!(bytes.is_empty(), compression == Compression::None);
        let (found, error) = every_way(&RecordOptions::new(), &memory(bytes));
        assert!(found.is_empty() && error.is_none());
    }
}

#[test]
fn a_record_may_be_larger_than_the_window() {
    let large: Vec<u8> = (0..400_000_u32).map(|i| (i >> 3) as u8).collect();
    let records = [&b"before"[..], &large, b"", b"behind"];
    for compression in COMPRESSIONS {
        let reader = memory(file_of(&records, compression));
        let (found, error) = every_way(&small_chunks(4096), &reader);
        assert!(error.is_none());
        assert!(data_of(&found) == records, "{compression:?}");
    }
}

/// One pass asks for each byte once, in requests of a chunk.
#[test]
fn every_byte_is_read_once() {
    let bytes = file_of(&varied(300), Compression::None);
    let len = bytes.len() as u64;
    for size in [1000_u64, 65_536, 1 << 20] {
        let reader = memory(bytes.clone());
        let options = small_chunks(size as usize);
        assert_eq!(options.records(reader.clone()).count(), 300);
        let counters = reader.source().counters().snapshot();
        assert_eq!(counters.requested, len);
        assert_eq!(counters.read, len);
        assert_eq!(counters.requests, len.div_ceil(size));
    }
}

#[test]
fn each_engine_brings_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let records = varied(200);
    write(&path, &records, Compression::None);
    let len = std::fs::metadata(&path).unwrap().len();
    for route in [
        Route::Pread,
        Route::PreadDirect,
        Route::Uring,
        Route::UringDirect,
    ] {
        let reader = match OpenOptions::new().only(route).open(&path) {
            Ok(reader) => reader,
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable { .. }),
                    "{error}"
                );
                continue;
            }
        };
        let (found, error) = every_way(&small_chunks(8192), &reader);
        assert!(error.is_none());
        assert_eq!(data_of(&found), records, "{route}");
        if route == Route::Pread {
            // Four ways.
            assert_eq!(reader.source().counters().snapshot().read, 4 * len);
        }
    }
}

#[test]
fn a_reader_without_a_type_will_do() {
    let reader: Arc<dyn Reader> = memory(file_of(&["x"], Compression::None));
    let record = records(reader).next().unwrap().unwrap();
    assert_eq!(
        (&record.data[..], record.number, record.offset),
        (&b"x"[..], 0, 0)
    );
}

#[tokio::test]
async fn tasks_of_an_executor_share_readers() {
    let bytes = file_of(&varied(100), Compression::Gzip);
    let reader = memory(bytes);
    let tasks = (0..4).map(|_| {
        let mut stream = records(reader.clone()).stream();
        tokio::spawn(async move {
            let mut count = 0;
            while let Some(record) = stream.next().await {
                record.unwrap();
                count += 1;
            }
            count
        })
    });
    for count in futures::future::join_all(tasks).await {
        assert_eq!(count.unwrap(), 100);
    }
}

#[test]
fn an_error_of_the_reader_is_the_end() {
    let bytes = file_of(&varied(100), Compression::None);
    let failing = || {
        let error = std::io::Error::from_raw_os_error(5);
        let faults = Faults::seeded(7).fail_after(20_000, error);
        Arc::new(Faulty::new(memory(bytes.clone()), faults))
    };
    let mut blocking = small_chunks(1000).records(failing());
    let mut tasks = small_chunks(1000).records(failing()).stream();
    let mut before = 0;
    let error = loop {
        let next = blocking.next().expect("there is an error before the end");
        let same = block_on(tasks.next()).expect("here too");
        match (next, same) {
            (Ok(record), Ok(same)) => assert_eq!(record, same),
            (Err(error), Err(_)) => break error,
            other => panic!("{other:?}"),
        }
        before += 1;
    };
    assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
    assert_eq!((error.offset(), error.length()), (Some(20_000), Some(1000)));
    assert!(before > 10);
    assert!(blocking.next().is_none() && block_on(tasks.next()).is_none());
}

#[test]
fn requests_that_come_short_and_late_change_nothing() {
    let records = varied(60);
    let faults = Faults::seeded(11).short(0.5).interrupted(0.3).shuffle();
    let reader = Faulty::new(memory(file_of(&records, Compression::Gzip)), faults);
    let (found, error) = every_way(&small_chunks(500), &Arc::new(reader));
    assert!(error.is_none(), "{error:?}");
    assert_eq!(data_of(&found), records);
}

/// Records that are kept do not change when their chunk's memory would be used again.
#[test]
fn records_outlive_their_iterator() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    let expected = varied(500);
    write(&path, &expected, Compression::None);
    let kept: Vec<_> = small_chunks(4096)
        .records(feedwater::open(&path).unwrap())
        .map(|record| record.unwrap().data)
        .collect();
    assert_eq!(kept, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_written_is_read(
        lens in proptest::collection::vec(prop_oneof![0_usize..50, 500_usize..3000], 0..40),
        size in prop_oneof![1_usize..40, 40_usize..5000],
        compression in prop::sample::select(COMPRESSIONS.to_vec()),
        seed: u8,
    ) {
        let records: Vec<Vec<u8>> = lens
            .iter()
            .enumerate()
            .map(|(i, len)| (0..*len).map(|j| (i * 7 + j * 13) as u8 ^ seed).collect())
            .collect();
        let reader = memory(file_of(&records, compression));
        let options = RecordOptions::new().chunks(ChunkOptions::default().size(size));
        let (found, error) = every_way(&options, &reader);
        prop_assert!(error.is_none());
        prop_assert_eq!(data_of(&found), records);
    }
}
