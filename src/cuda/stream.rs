//! Queues of work on a device, and the marks in them that others wait for.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::context::{Context, Handle};
use super::library::{CUevent, CUstream, code};
use crate::error::{ErrorKind, Result};

/// A queue of work on a device; cloning shares it. Dropped with the last clone, after its work.
///
/// Made by [`Device::stream`](super::Device::stream). It never waits for the legacy default stream.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    context: Arc<Context>,
    handle: Handle<CUstream>,
    /// Not ours to destroy.
    foreign: bool,
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let mut handle = ptr::null_mut();
        // SAFETY: a place for the stream.
        context.call(|driver| unsafe { driver.cuStreamCreate(&mut handle, NON_BLOCKING) })?;
        Ok(Stream::of(context, handle, false))
    }

    /// # Safety
    /// `handle` is a stream of the context's device that lives as long as the value and its clones.
    pub(super) unsafe fn foreign(context: &Arc<Context>, handle: *mut c_void) -> Self {
        Stream::of(context, handle.cast(), true)
    }

    fn of(context: &Arc<Context>, handle: CUstream, foreign: bool) -> Self {
        Stream(Arc::new(Inner {
            context: context.clone(),
            handle: Handle(handle),
            foreign,
        }))
    }

    /// Waits until everything that was queued so far is done.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceLost`](crate::ErrorKind::DeviceLost) if work of any stream broke the device;
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        self.context()
            .call(|driver| unsafe { driver.cuStreamSynchronize(self.handle()) })
    }

    /// Marks the end of what was queued so far. One call of the driver, no waiting.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(self.context())?;
        // SAFETY: event and stream live, and are of one context.
        let recorded = self
            .context()
            .call(|driver| unsafe { driver.cuEventRecord(event.handle.0, self.handle()) });
        recorded?;
        Ok(event)
    }

    /// What is queued from now on waits for `event`. The caller does not.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: event and stream live.
        self.context()
            .call(|driver| unsafe { driver.cuStreamWaitEvent(self.handle(), event.handle.0, 0) })
    }

    /// Waits until nothing of what was queued so far is under way: it is done, or the device does nothing any more. False: nobody knows.
    pub(super) fn is_over(&self) -> bool {
        // A second time, so that one failed call is no leak.
        (0..2).any(|_| self.synchronize().is_ok()) || self.context().is_lost()
    }

    /// The driver's `CUstream`, for calls of your own: `as sys::CUstream`, with cudarc.
    pub fn raw(&self) -> *mut c_void {
        self.handle().cast()
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.0.handle.0
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.foreign {
            let handle = self.handle.0;
            // SAFETY: made by `Stream::new`, destroyed once. The driver finishes what is queued.
            self.context
                .release(|driver| unsafe { driver.cuStreamDestroy_v2(handle) });
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.context().info().ordinal)
            .field("raw", &self.raw())
            .finish()
    }
}

/// A mark in a stream; made by [`Stream::record`].
pub struct Event {
    context: Arc<Context>,
    handle: Handle<CUevent>,
}

impl Event {
    fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Event {
            handle: Handle(context.take_event()?),
            context: context.clone(),
        })
    }

    /// Whether the stream has come to it.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        let outcome = self
            .context
            .call(|driver| unsafe { driver.cuEventQuery(self.handle.0) });
        match outcome {
            Ok(()) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::Cuda { code, .. } if *code == code::NOT_READY => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Sleeps until the stream has come to it.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        self.context
            .call(|driver| unsafe { driver.cuEventSynchronize(self.handle.0) })
    }

    /// Waits until nothing before it is under way: it is done, or the device does nothing any more. False: nobody knows.
    pub(super) fn is_over(&self) -> bool {
        // A second time, so that one failed call is no leak.
        (0..2).any(|_| self.synchronize().is_ok()) || self.context.is_lost()
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.give_back_event(self.handle.0);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").finish_non_exhaustive()
    }
}
