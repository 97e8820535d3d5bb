//! Batches taken by a task.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use feedwater::cuda::Device;
use feedwater::parquet::{Metadata, scan};
use feedwater::{ErrorKind, MemoryReader, Processor, Result};
use futures::{Stream, StreamExt};
use parquet::file::properties::WriterProperties;

use crate::common::answered::polled;
use crate::cuda::{STREAMS, nothing_left, session};
use crate::faults::file;
use crate::support::{by_host, joined, on_device, whole};
use crate::tables::written;

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

#[test]
fn an_error_ends_a_stream_where_it_is() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let numbers: ArrayRef = Arc::new((0..400i64).collect::<Int64Array>());
        let batch = RecordBatch::try_from_iter([("numbers", numbers)]).unwrap();
        let set = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(Some(100));
        let mut file = written(&batch, set.build()).to_vec();
        let metadata = Metadata::read(&MemoryReader::new(file.clone())).unwrap();
        let (start, _) = metadata.parquet().row_group(2).column(0).byte_range();
        file[start as usize..][..8].fill(0xff);
        for processor in [Processor::Gpu, Processor::Cpu] {
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let of = scan(reader).on_device(&gpu).processor(processor);
            let mut stream = of.stream();
            let told: Vec<_> = futures::executor::block_on(stream.by_ref().collect());
            let rows: Vec<_> = told.iter().map_while(|one| one.as_ref().ok()).collect();
            let rows: Vec<_> = rows.iter().map(|batch| batch.num_rows()).collect();
            assert_eq!(rows, [100, 100], "{processor:?}");
            assert_eq!(told.len(), 3, "{processor:?}");
            let error = told[2].as_ref().unwrap_err();
            let kind = error.kind();
            assert!(matches!(kind, ErrorKind::Malformed { .. }), "{error}");
            assert!(error.name().is_some(), "{error}");
            let report = stream.report().unwrap();
            assert_eq!((report.rows, report.batches), (200, 2));
            assert!(futures::executor::block_on(stream.next()).is_none());
        }
    }
    nothing_left(&session);
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
