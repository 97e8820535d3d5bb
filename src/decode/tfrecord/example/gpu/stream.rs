//! Batches of examples in the memory of a GPU for a task.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::ahead::Ahead;
use super::decode::Done;
use super::output::DeviceExamples;
use super::report::DeviceReport;
use super::scan::{DeviceScan, Made, Maker};
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
            done: Done::default(),
        }
    }

    /// What ran where so far, and why: of the batches that were taken, and those that came of the same records. `None` before the first.
    pub fn report(&self) -> Option<&DeviceReport> {
        self.report.as_ref()
    }

    /// Starts the thread, which begins the scan.
    fn start(scan: DeviceScan) -> Result<Ahead<Made>> {
        let ahead = scan.made_ahead().max(1);
        let (mut scan, mut maker) = (Some(scan), None::<Maker>);
        Ahead::start(ahead, move |wanted| {
            if let Some(scan) = scan.take() {
                match scan.begin() {
                    Ok(begun) => maker = Some(begun.maker),
                    Err(error) => return Some(error.into()),
                }
            }
            maker.as_mut()?.make(wanted)
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
