//! The batches of a scan to the memory of a GPU: an iterator and a stream.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread::Thread;

use arrow_schema::SchemaRef;

use super::lanes::Lanes;
use super::report::DeviceScanReport;
use crate::cuda::Stream;
use crate::decode::device::DeviceBatch;
use crate::decode::parquet::explain::Plan;
use crate::decode::threads;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// The batches of a scan to the memory of a GPU: an iterator that parks its thread; [`stream`](Self::stream) for tasks.
///
/// Threads decode two row groups ahead. After an error there are no more batches. Dropping it ends their work as soon as each has done
/// what it is at; batches that were taken stay.
///
/// # Errors
/// Of a batch: those of the [batches of a scan](crate::parquet::Batches); of the GPU [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], and
/// [`ErrorKind::OutOfMemory`] where it has no memory for a single row; [`ErrorKind::Forked`], once, in a process that was forked since;
/// [`ErrorKind::Panicked`] if the reader or this crate panicked on a thread of the scan.
///
/// [`ErrorKind::Cuda`]: crate::ErrorKind::Cuda
/// [`ErrorKind::DeviceLost`]: crate::ErrorKind::DeviceLost
/// [`ErrorKind::OutOfMemory`]: crate::ErrorKind::OutOfMemory
/// [`ErrorKind::Forked`]: crate::ErrorKind::Forked
/// [`ErrorKind::Panicked`]: crate::ErrorKind::Panicked
#[must_use = "iterators do nothing unless used"]
pub struct DeviceBatches {
    lanes: Arc<Lanes>,
    plan: Plan,
    threads: Vec<Thread>,
    generation: Generation,
    told: bool,
    rows: u64,
    batches: u64,
}

impl DeviceBatches {
    pub(super) fn start(lanes: Lanes, plan: Plan) -> Result<Self> {
        let lanes = Arc::new(lanes);
        let mut started = DeviceBatches {
            lanes: lanes.clone(),
            plan,
            threads: Vec::new(),
            generation: Generation::current(),
            told: false,
            rows: 0,
            batches: 0,
        };
        for _ in 0..lanes.count() {
            let lanes = lanes.clone();
            let stream = Stream::clone(&lanes.groups.gpu.stream()?);
            let thread = threads::spawn(move || lanes.work(&stream))?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.lanes.groups.task.schema
    }

    /// What was planned to be read.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What has been done so far, and by whom. Empty in a child process.
    pub fn report(&self) -> DeviceScanReport {
        if !self.generation.is_current() {
            // A thread of the parent may hold its lock for ever here.
            return DeviceScanReport::default();
        }
        let (done, groups) = (&self.lanes.done, &self.lanes.groups);
        let names = groups.roots.iter().map(|root| &root.name);
        let (page_lists_walked, page_lists_known) = groups.lists.counts();
        DeviceScanReport {
            rows: self.rows,
            batches: self.batches,
            requests: done.requests.load(Ordering::Relaxed),
            bytes: done.bytes.load(Ordering::Relaxed),
            bytes_with_footer: done.with_footer.load(Ordering::Relaxed),
            page_lists_walked,
            page_lists_known,
            pages_marked: groups.lists.marked(),
            columns: groups.tally().report(names),
        }
    }

    /// The same as a `Stream`.
    pub fn stream(self) -> DeviceBatchStream {
        DeviceBatchStream {
            state: Streaming::Running(self),
        }
    }

    /// The next one; without a task to be woken it is waited for.
    fn turn(&mut self, cx: Option<&mut Context<'_>>) -> Poll<Option<Result<DeviceBatch>>> {
        if !self.generation.is_current() {
            // The threads stayed with the parent, and their locks may be held for ever.
            let told = std::mem::replace(&mut self.told, true);
            let name = &self.lanes.groups.task.name;
            let forked = || Err(Error::new(ErrorKind::Forked).named(name));
            return Poll::Ready((!told).then(forked));
        }
        let next = self.lanes.next(cx.map(|cx| cx.waker()));
        if let Poll::Ready(Some(Ok(batch))) = &next {
            self.rows += batch.num_rows() as u64;
            self.batches += 1;
        }
        next
    }
}

impl Iterator for DeviceBatches {
    type Item = Result<DeviceBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.turn(None) {
            Poll::Ready(next) => next,
            Poll::Pending => None, // not without a task
        }
    }
}

impl Drop for DeviceBatches {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            std::mem::forget(self.lanes.clone());
            return;
        }
        self.lanes.stop();
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

impl fmt::Debug for DeviceBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatches")
            .field("plan", &self.plan)
            .field("rows", &self.rows)
            .field("batches", &self.batches)
            .finish_non_exhaustive()
    }
}

type Starting = Pin<Box<dyn Future<Output = Result<DeviceBatches>> + Send>>;

/// The batches of a scan to the memory of a GPU as a stream on any executor. See [`DeviceScan::stream`](super::DeviceScan::stream).
///
/// ```
/// use futures::StreamExt;
///
/// # async fn take(path: &std::path::Path) -> feedwater::Result<()> {
/// let gpu = feedwater::cuda::Device::open(0)?;
/// let mut batches = feedwater::parquet::scan(feedwater::open(path)?).on_device(&gpu).stream();
/// while let Some(batch) = batches.next().await {
///     println!("{} rows", batch?.num_rows());
/// }
/// println!("{:?}", batches.report());
/// # Ok(())
/// # }
/// ```
#[must_use = "streams do nothing unless polled"]
pub struct DeviceBatchStream {
    state: Streaming,
}

enum Streaming {
    Starting(Starting),
    Running(DeviceBatches),
    Ended,
}

impl DeviceBatchStream {
    pub(super) fn starting(start: Starting) -> Self {
        DeviceBatchStream {
            state: Streaming::Starting(start),
        }
    }

    /// What has been done so far, and by whom, once the scan has begun.
    pub fn report(&self) -> Option<DeviceScanReport> {
        self.batches().map(DeviceBatches::report)
    }

    /// The batches, once the scan has begun: their schema and plan.
    pub fn batches(&self) -> Option<&DeviceBatches> {
        match &self.state {
            Streaming::Running(batches) => Some(batches),
            Streaming::Starting(_) | Streaming::Ended => None,
        }
    }
}

impl futures_core::Stream for DeviceBatchStream {
    type Item = Result<DeviceBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match &mut self.state {
                Streaming::Ended => return Poll::Ready(None),
                Streaming::Starting(start) => match std::task::ready!(start.as_mut().poll(cx)) {
                    Ok(batches) => self.state = Streaming::Running(batches),
                    Err(error) => {
                        self.state = Streaming::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                Streaming::Running(batches) => return batches.turn(Some(cx)),
            }
        }
    }
}

impl fmt::Debug for DeviceBatchStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatchStream")
            .field("batches", &self.batches())
            .finish_non_exhaustive()
    }
}
