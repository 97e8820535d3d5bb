//! One read as a future of its bytes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use super::ticket::Outcome;
use super::{Pending, Progress};
use crate::error::{ErrorKind, Result};

/// One read as a future of its bytes; [`wait`](Self::wait) for it on any thread.
#[derive(Debug)]
#[must_use = "dropping it cancels the read if it has not begun"]
pub struct PendingRead(Pending);

impl PendingRead {
    /// `pending` must be of a batch of one read into host memory.
    pub(in crate::reader) fn new(pending: Pending) -> Self {
        PendingRead(pending)
    }

    /// Parks this thread until the bytes are there.
    ///
    /// # Errors
    /// As the [contract](crate::Reader) says.
    pub fn wait(mut self) -> Result<Bytes> {
        let next = self.0.wait_next();
        self.bytes(next)
    }

    /// Parks this thread for `timeout` at most; `None` if the bytes are not there by then. The read goes on.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Bytes>> {
        match self.0.wait_next_timeout(timeout) {
            Poll::Ready(next) => Some(self.bytes(next)),
            Poll::Pending => None,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.0.progress()
    }

    fn bytes(&self, next: Option<(usize, Outcome)>) -> Result<Bytes> {
        match next {
            Some((_, outcome)) => outcome?.into_host(),
            // Asked again after it was ready, or an engine that started no read.
            None => Err(self.0.error(ErrorKind::Abandoned)),
        }
    }
}

impl Future for PendingRead {
    type Output = Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let next = std::task::ready!(self.0.poll_next(cx));
        Poll::Ready(self.bytes(next))
    }
}
