//! Batches of examples in the memory of a GPU for a task.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow_schema::SchemaRef;
use futures_core::Stream;

use super::ahead::Ahead;
use super::decode::Done;
use super::output::DeviceExamples;
use super::report::DeviceReport;
use super::scan::{DeviceScan, Made, Maker, Schemas};
use crate::decode::tfrecord::ExampleSchema;
use crate::error::Result;

/// Batches of examples in the memory of a GPU, in order, as a stream on any executor. See [`DeviceScan::stream`].
///
/// # Errors
/// Those of [`DeviceScan::batches`], then those of [`DeviceBatches`](super::DeviceBatches). After one there is nothing more.
#[must_use = "streams do nothing unless polled"]
pub struct DeviceBatchStream {
    state: State,
    name: Arc<str>,
    report: Option<DeviceReport>,
    schemas: Option<Schemas>,
    done: Done,
}

enum State {
    Waiting(Box<DeviceScan>),
    Running(Ahead<Made>),
    Ended,
}

impl DeviceBatchStream {
    pub(super) fn new(scan: DeviceScan) -> Self {
        DeviceBatchStream {
            name: scan.name(),
            state: State::Waiting(Box::new(scan)),
            report: None,
            schemas: None,
            done: Done::default(),
        }
    }

    /// What ran where so far, and why: of the batches that were taken, and those that came of the same records. `None` before the first.
    pub fn report(&self) -> Option<&DeviceReport> {
        self.report.as_ref()
    }

    /// The schema of the columns of all batches. `None` before the first.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.schemas.as_deref().map(|(arrow, _)| arrow)
    }

    /// The features that become columns and tensors: what was given, or what was inferred. `None` before the first batch.
    pub fn example_schema(&self) -> Option<&ExampleSchema> {
        self.schemas.as_deref().map(|(_, examples)| examples)
    }

    /// Starts the thread, which begins the scan.
    fn start(scan: DeviceScan) -> Result<Ahead<Made>> {
        let ahead = scan.made_ahead().max(1);
        let (mut scan, mut maker, mut schemas) = (Some(scan), None::<Maker>, None);
        Ahead::start(ahead, move |wanted| {
            if let Some(scan) = scan.take() {
                match scan.begin() {
                    Ok(begun) => {
                        let arrow = begun.maker.schema().clone();
                        schemas = Some(Box::new((arrow, begun.schema)));
                        maker = Some(begun.maker);
                    }
                    Err(error) => return Some(error.into()),
                }
            }
            let mut made = maker.as_mut()?.make(wanted)?;
            made.schemas = schemas.take();
            Some(made)
        })
    }

    /// What is to be given next; `Ok(None)` behind the last.
    fn poll_made(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Made>>> {
        if let State::Waiting(_) = &self.state
            && let State::Waiting(scan) = std::mem::replace(&mut self.state, State::Ended)
        {
            self.state = State::Running(Self::start(*scan)?);
        }
        match &mut self.state {
            State::Running(ahead) => ahead.take(Some(cx.waker())),
            State::Waiting(_) | State::Ended => Poll::Ready(Ok(None)),
        }
    }
}

impl Stream for DeviceBatchStream {
    type Item = Result<DeviceExamples>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(batch) = self.done.batches.pop_front() {
                return Poll::Ready(Some(Ok(batch)));
            }
            if let Some(error) = self.done.error.take() {
                self.state = State::Ended;
                return Poll::Ready(Some(Err(error)));
            }
            match ready!(self.poll_made(cx)) {
                Ok(None) => {
                    self.state = State::Ended;
                    return Poll::Ready(None);
                }
                Ok(Some(made)) => {
                    self.done = made.done;
                    self.report = made.report.or(self.report.take());
                    self.schemas = self.schemas.take().or(made.schemas);
                }
                Err(error) => self.done.error = Some(error.named(&self.name)),
            }
        }
    }
}

impl fmt::Debug for DeviceBatchStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatchStream")
            .field("name", &self.name)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}
