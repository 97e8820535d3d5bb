//! Batches taken by a task.

use std::pin::Pin;
use std::task::{Context, Waker};

use arrow::compute::concat_batches;
use feedwater::cuda::Device;
use feedwater::tfrecord::examples;
use feedwater::{ErrorKind, MemoryReader, Processor};
use futures::{Stream, StreamExt};

use crate::beside::*;
use crate::common::answered::polled;
use crate::support::*;
use crate::values::records;

/// A task that polls waits for nothing, neither for the file nor for the device; rows and errors are those of the iterator.
#[test]
fn a_poll_waits_for_nothing_and_all_comes() {
    let good = file(&records(64));
    let mut bad = good.clone();
    let at = file(&records(37)).len();
    bad[at + 20] ^= 4;
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            for ahead in [0, 2] {
                for file in [&good, &bad] {
                    let scan = || {
                        let scan = examples(open(&gpu, file))
                            .schema(all_kinds())
                            .batch_rows(10);
                        let scan = scan.on_device(&gpu).processor(Processor::Gpu);
                        scan.ahead(ahead)
                    };
                    let (right, report) = by_device(scan());
                    let reader = MemoryReader::named("data.tfrecord", file.clone());
                    let (stream, batches, waits) = polled(reader, |reader| {
                        let scan = examples(reader).schema(all_kinds()).batch_rows(10);
                        let scan = scan.on_device(&gpu).processor(Processor::Gpu);
                        let stream = scan.ahead(ahead).stream();
                        assert!(stream.report().is_none(), "nothing begins before a poll");
                        assert!(stream.schema().is_none() && stream.example_schema().is_none());
                        stream
                    });
                    assert!(waits > 0);
                    let (mut rows, mut error) = (Vec::new(), None);
                    for batch in batches {
                        assert!(error.is_none());
                        match batch {
                            Ok(batch) => rows.push(batch.columns().to_host().unwrap()),
                            Err(told) => error = Some(told),
                        }
                    }
                    let schema = right.rows.schema();
                    assert_eq!(concat_batches(&schema, &rows).unwrap(), right.rows);
                    let told =
                        |error: &Option<feedwater::Error>| error.as_ref().map(|e| e.to_string());
                    assert_eq!(told(&error), told(&right.error));
                    let counts = |report: &feedwater::tfrecord::DeviceReport| report.to_string();
                    assert_eq!(counts(stream.report().unwrap()), counts(&report));
                    assert_eq!(stream.schema(), Some(&schema));
                    assert_eq!(stream.example_schema(), Some(&all_kinds()));
                }
            }
        }
        nothing_left(&session);
    }
}

#[test]
fn what_is_wrong_from_the_start_comes_first_and_alone() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let file = file(&records(3));
        let scan = || examples(open(&gpu, &file)).schema(all_kinds());
        for (scan, option) in [
            (scan().on_device(&gpu).window_bytes(0), "`window_bytes`"),
            (scan().batch_rows(0).on_device(&gpu), "`batch_rows`"),
        ] {
            let told: Vec<_> = futures::executor::block_on(scan.stream().collect());
            assert_eq!(told.len(), 1);
            let error = told[0].as_ref().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidOption { .. }),
                "{error}"
            );
            let says = format!("{option} has to be at least 1");
            assert!(error.to_string().contains(&says), "{error}");
        }
        // A schema that is inferred, by the thread.
        let mut inferred = examples(open(&gpu, &file)).on_device(&gpu).stream();
        let rows = inferred.by_ref().map(|batch| batch.unwrap().num_rows());
        let rows: Vec<_> = futures::executor::block_on(rows.collect());
        assert_eq!(rows.iter().sum::<usize>(), 3);
        assert!(inferred.schema().is_some() && inferred.example_schema().is_some());
    }
    nothing_left(&session);
}

#[test]
fn a_stream_that_is_dropped_ends_the_work() {
    let file = file(&records(70));
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        for polls in 0..3 {
            let scan = examples(open(&gpu, &file))
                .schema(all_kinds())
                .batch_rows(10);
            let mut stream = scan.on_device(&gpu).stream();
            for _ in 0..polls {
                let mut cx = Context::from_waker(Waker::noop());
                let _ = Pin::new(&mut stream).poll_next(&mut cx);
            }
            drop(stream);
        }
    }
    nothing_left(&session);
}
