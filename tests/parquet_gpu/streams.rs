//! Batches taken by a task.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use feedwater::cuda::Device;
use feedwater::parquet::{DeviceBatchStream, scan};
use feedwater::{
    Batch, Block, DeviceBatch, ErrorKind, MemoryReader, Pending, Processor, ReadInto, Reader,
    ReaderExt, Result, Source, Ticket,
};
use futures::{Stream, StreamExt};

use crate::cuda::{STREAMS, nothing_left, session};
use crate::faults::file;
use crate::support::{by_host, joined, on_device, whole};

/// Long enough for any machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

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
            let report = stream.batches().unwrap().report();
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
        let desk = Arc::new(Desk::default());
        let inner = MemoryReader::new(file.clone());
        let reader = Arc::new(Held {
            inner: inner.clone(),
            desk: desk.clone(),
        });
        let scan = scan(reader).on_device(&gpu);
        let mut stream = scan.processor(Processor::Gpu).stream();
        let waker = Waker::from(desk.clone());
        let (mut rows, mut pending) = (0, 0);
        loop {
            match poll(&mut stream, &waker) {
                Poll::Ready(Some(batch)) => rows += batch.unwrap().num_rows(),
                Poll::Ready(None) => break,
                Poll::Pending => {
                    pending += 1;
                    desk.answer_until(pending, &inner);
                }
            }
        }
        assert_eq!(rows, by_host(&file, &whole).unwrap().num_rows());
        // At least once for the footer and once for the rows.
        assert!(pending >= 2, "{pending}");
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
                let _ = poll(&mut stream, Waker::noop());
            }
            drop(stream);
            let reader = Arc::new(MemoryReader::new(file.clone()));
            let mut stream = scan(reader).on_device(&gpu).stream();
            assert!(futures::executor::block_on(stream.next()).is_some());
        }
    }
    nothing_left(&session);
}

fn poll(stream: &mut DeviceBatchStream, waker: &Waker) -> Poll<Option<Result<DeviceBatch>>> {
    std::pin::Pin::new(stream).poll_next(&mut Context::from_waker(waker))
}

/// What a test waits for: that its task is woken, or that somebody asks for bytes.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wakes: usize,
    asked: Vec<(Range<u64>, Ticket)>,
}

impl Desk {
    /// Answers what is asked for, until the task was woken so often.
    fn answer_until(&self, wakes: usize, bytes: &MemoryReader) {
        let mut state = self.state.lock().unwrap();
        while state.wakes < wakes {
            let asked = std::mem::take(&mut state.asked);
            if asked.is_empty() {
                let (later, waited) = self.news.wait_timeout(state, PATIENCE).unwrap();
                assert!(!waited.timed_out(), "nobody wakes the task");
                state = later;
                continue;
            }
            drop(state);
            for (range, ticket) in asked {
                let bytes = bytes.read(range).wait().unwrap();
                ticket.finish(Ok(Block::Host(bytes)));
            }
            state = self.state.lock().unwrap();
        }
    }
}

impl Wake for Desk {
    fn wake(self: Arc<Self>) {
        self.state.lock().unwrap().wakes += 1;
        self.news.notify_all();
    }
}

/// A reader whose reads are answered by the test.
#[derive(Debug)]
struct Held {
    inner: MemoryReader,
    desk: Arc<Desk>,
}

impl Reader for Held {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.inner.source());
        let reads = started
            .into_iter()
            .map(|(read, ticket)| (read.range, ticket));
        self.desk.state.lock().unwrap().asked.extend(reads);
        self.desk.news.notify_all();
        pending
    }

    fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
        panic!("a task does not read on its thread");
    }
}
