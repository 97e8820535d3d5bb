//! Batches taken by a task.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use feedwater::cuda::Device;
use feedwater::parquet::scan;
use feedwater::{ErrorKind, MemoryReader, Processor, Result};
use futures::{Stream, StreamExt};

use crate::common::answered::polled;
use crate::cuda::{STREAMS, nothing_left, session};
use crate::faults::file;
use crate::support::{by_host, joined, on_device, whole};

#[test]
fn a_stream_gives_what_the_iterator_gives() {
    let file = file();
    let right = by_host(&file, &whole).unwrap();
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let (_, told) = on_device(&gpu, &file, Processor::Gpu, &whole).unwrap();
            let of = || scan(Arc::new(MemoryReader::new(file.clone()))).on_device(&gpu);
            let mut stream = of().processor(Processor::Gpu).stream();
            assert!(stream.batches().is_none(), "nothing begins before a poll");
            let batches: Vec<_> = futures::executor::block_on(stream.by_ref().collect());
            let host = batches.into_iter().map(|batch| batch.unwrap().to_host());
            let host: Vec<_> = host.map(Result::unwrap).collect();
            assert!(joined(&right.schema(), &host) == right);
            let report = stream.report().unwrap();
            assert_eq!(
                (report.rows, report.batches, report.bytes),
                (told.rows, told.batches, told.bytes)
            );
            // One that was begun, and the plan of one.
            let mut begun = of().batches().unwrap();
            let first = begun.next().unwrap().unwrap().num_rows();
            let rest = begun.stream().map(|batch| batch.unwrap().num_rows());
            let rest: usize = futures::executor::block_on(rest.collect::<Vec<_>>())
                .iter()
                .sum();
            assert_eq!(first + rest, right.num_rows());
            let plan = futures::executor::block_on(of().explain_async()).unwrap();
            assert_eq!(plan.to_string(), of().explain().unwrap().to_string());
            // What is wrong from the start comes first, and alone.
            let wrong = scan(Arc::new(MemoryReader::new(file.clone()))).columns(["no"]);
            let wrong = wrong.on_device(&gpu).stream();
            let told: Vec<_> = futures::executor::block_on(wrong.collect());
            assert_eq!(told.len(), 1);
            let error = told[0].as_ref().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::NotFound { .. }),
                "{error}"
            );
        }
        nothing_left(&session);
    }
}

/// A task that polls waits for nothing: neither for the file nor for the device.
#[test]
fn a_poll_waits_for_nothing_and_is_woken() {
    let file = file();
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let reader = MemoryReader::new(file.clone());
        let (_, batches, waits) = polled(reader, |reader| {
            let scan = scan(reader).on_device(&gpu);
            scan.processor(Processor::Gpu).stream()
        });
        let rows = batches.into_iter().map(|batch| batch.unwrap().num_rows());
        let rows: usize = rows.sum();
        assert_eq!(rows, by_host(&file, &whole).unwrap().num_rows());
        // At least once for the footer and once for the rows.
        assert!(waits >= 2, "{waits}");
    }
    nothing_left(&session);
}

#[test]
fn a_stream_that_is_dropped_ends_the_work() {
    let file = file();
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        for polls in 0..3 {
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let mut stream = scan(reader).on_device(&gpu).stream();
            for _ in 0..polls {
                let mut cx = Context::from_waker(Waker::noop());
                let _ = Pin::new(&mut stream).poll_next(&mut cx);
            }
            drop(stream);
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let mut stream = scan(reader).on_device(&gpu).stream();
            assert!(futures::executor::block_on(stream.next()).is_some());
        }
    }
    nothing_left(&session);
}
