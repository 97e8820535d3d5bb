//! The batches of a scan: an iterator and a stream.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread::Thread;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures_core::Stream;

use super::explain::{Plan, ScanReport};
use super::job::{Job, Next, Task};
use crate::decode::threads;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// The batches of a scan: an iterator that parks its thread; [`stream`](Self::stream) for tasks.
///
/// Threads decode ahead within the window, whether it is asked or not. After an error there are no more batches; a panic of the reader on
/// one of these threads is one, [`Panicked`](crate::ErrorKind::Panicked). Dropping it ends their work, as soon as each has decoded the batch
/// it is at; for 10 seconds they wait for that of another scan.
#[must_use = "iterators do nothing unless used"]
pub struct Batches {
    job: Arc<Job>,
    plan: Plan,
    threads: Vec<Thread>,
    generation: Generation,
    /// That it was forked.
    told: bool,
    rows: u64,
    batches: u64,
}

impl Batches {
    pub(super) fn start(task: Task, plan: Plan, count: usize) -> Result<Self> {
        let work = task.plan.groups.len().saturating_mul(task.parts.len());
        let count = count.min(work);
        let job = Arc::new(Job::new(task, count));
        let mut started = Batches {
            job: job.clone(),
            plan,
            threads: Vec::with_capacity(count),
            generation: Generation::current(),
            told: false,
            rows: 0,
            batches: 0,
        };
        for number in 0..count {
            let job = job.clone();
            let thread = threads::spawn(move || job.work(number))?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.job.task().schema
    }

    /// What was planned.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What has been done so far.
    pub fn report(&self) -> ScanReport {
        let done = &self.job.done;
        ScanReport {
            rows: self.rows,
            batches: self.batches,
            requests: done.requests.load(Ordering::Relaxed),
            bytes: done.bytes.load(Ordering::Relaxed),
            bytes_with_footer: done.with_footer.load(Ordering::Relaxed),
            threads: self.threads.len(),
            parts: self.job.task().parts.len(),
        }
    }

    /// The same as a `Stream`.
    pub fn stream(self) -> BatchStream {
        BatchStream {
            state: Streaming::Running(self),
        }
    }

    fn taken(&mut self, next: Next) -> Option<Result<RecordBatch>> {
        match next {
            Next::Batch(batch) => {
                self.rows += batch.num_rows() as u64;
                self.batches += 1;
                Some(Ok(batch))
            }
            Next::Failed(error) => Some(Err(error)),
            Next::End | Next::Wait => None,
        }
    }

    /// The threads stayed with the parent.
    fn forked(&mut self) -> Option<Next> {
        if self.generation.is_current() {
            return None;
        }
        if std::mem::replace(&mut self.told, true) {
            return Some(Next::End);
        }
        let error = Error::new(ErrorKind::Forked).named(&self.job.task().name);
        Some(Next::Failed(error))
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.forked() {
            Some(next) => next,
            None => self.job.wait_next(),
        };
        self.taken(next)
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            // Its locks may be held for ever here, its memory be in use there.
            std::mem::forget(self.job.clone());
            return;
        }
        self.job.stop();
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("plan", &self.plan)
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

type Starting = Pin<Box<dyn Future<Output = Result<Batches>> + Send>>;

/// The batches of a scan as a stream on any executor. See [`Scan::stream`](super::Scan::stream).
#[must_use = "streams do nothing unless polled"]
pub struct BatchStream {
    state: Streaming,
}

enum Streaming {
    Starting(Starting),
    Running(Batches),
    Ended,
}

impl BatchStream {
    pub(super) fn starting(start: Starting) -> Self {
        BatchStream {
            state: Streaming::Starting(start),
        }
    }

    /// The batches, once the scan has begun.
    pub fn batches(&self) -> Option<&Batches> {
        match &self.state {
            Streaming::Running(batches) => Some(batches),
            Streaming::Starting(_) | Streaming::Ended => None,
        }
    }
}

impl Stream for BatchStream {
    type Item = Result<RecordBatch>;

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
                Streaming::Running(batches) => {
                    let next = match batches.forked() {
                        Some(next) => next,
                        None => batches.job.poll_next(cx.waker()),
                    };
                    return match next {
                        Next::Wait => Poll::Pending,
                        next => Poll::Ready(batches.taken(next)),
                    };
                }
            }
        }
    }
}

impl fmt::Debug for BatchStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchStream")
            .field("batches", &self.batches())
            .finish_non_exhaustive()
    }
}
