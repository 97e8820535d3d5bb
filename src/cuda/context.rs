//! A device's primary context: bound around each call, its errors typed, and noticed when it is lost or another process's.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::library::{CUcontext, CUdevice, CUevent, Driver, Failure, code};
use super::probe::{self, DeviceInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// Events that nobody uses and that are kept for the next.
const MOST_KEPT_EVENTS: usize = 64;

/// The primary context of a device, retained as long as this lives. What is on the device holds on to it.
pub(crate) struct Context {
    driver: &'static Driver,
    device: CUdevice,
    handle: CUcontext,
    info: DeviceInfo,
    generation: Generation,
    lost: OnceLock<Failure>,
    /// Releases that the driver failed: nobody is there to be told when something is dropped.
    failed_releases: AtomicU64,
    events: Mutex<Vec<Handle<CUevent>>>,
}

/// A handle of the driver's, which may be used from any thread.
pub(super) struct Handle<T>(pub(super) T);

// SAFETY: the driver's handles may be used from any thread (CUDA Driver API, "Difference between the driver and runtime APIs": the
// API is thread-safe); nothing behind them is touched from here.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

// SAFETY: as for `Handle`; everything else in it is Send.
unsafe impl Send for Context {}
// SAFETY: as for `Handle`; everything else in it is Sync.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub(super) fn retain(ordinal: u32) -> Result<Arc<Self>> {
        let (driver, device, info) = probe::device(ordinal)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a device of the driver's, and a place for the context.
        let retained = unsafe { driver.cuDevicePrimaryCtxRetain(&mut handle, device) };
        retained.map_err(|failure| typed(driver, ordinal, failure))?;
        Ok(Arc::new(Context {
            driver,
            device,
            handle,
            info,
            generation: Generation::current(),
            lost: OnceLock::new(),
            failed_releases: AtomicU64::new(0),
            events: Mutex::default(),
        }))
    }

    /// The device, as it was found.
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The driver's number of the device.
    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// The context itself.
    pub(crate) fn raw(&self) -> CUcontext {
        self.handle
    }

    /// An attribute of the device, by its number in `cuda.h`.
    pub(crate) fn attribute(&self, number: u32) -> Result<i32> {
        self.call(|driver| probe::attribute(driver, self.device, number))
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.generation.is_current()
    }

    /// Fails in another process, before a lock is touched that may be held there for ever, and on a lost device.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_of_this_process() {
            return Err(Error::new(ErrorKind::Forked).by("cuda"));
        }
        match self.lost.get() {
            Some(lost) => Err(typed(self.driver, self.info.ordinal, *lost)),
            None => Ok(()),
        }
    }

    /// Whether the device broke down.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Calls the driver with the context current on this thread, and leaves the thread's own context as it was.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in another process, [`ErrorKind::DeviceLost`] if the device is lost, [`ErrorKind::Cuda`]
    /// for everything else that the driver says.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&Driver) -> Result<T, Failure>) -> Result<T> {
        self.check()?;
        let outcome = Bound::bind(self).and_then(|_bound| call(self.driver));
        outcome.map_err(|failure| self.failed(failure))
    }

    /// As [`call`](Self::call), for one that takes memory: where there is none, the error says how much was asked for.
    pub(crate) fn allocate<T>(
        &self,
        bytes: usize,
        call: impl FnOnce(&Driver) -> Result<T, Failure>,
    ) -> Result<T> {
        self.call(call).map_err(|error| match error.kind() {
            ErrorKind::Cuda { code, .. } if *code == code::OUT_OF_MEMORY => {
                self.out_of_memory(bytes, self.info.memory)
            }
            _ => error,
        })
    }

    /// The error for memory that there is not.
    pub(crate) fn out_of_memory(&self, wanted: usize, cap: u64) -> Error {
        let wanted = wanted as u64;
        Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda")
    }

    /// Waits for all that the device does in this context, in whichever stream and whoever queued it. False: nobody knows whether it is done.
    pub(super) fn is_over(&self) -> bool {
        // SAFETY: the context is current.
        let wait = || self.call(|driver| unsafe { driver.cuCtxSynchronize() });
        // A second time, so that one failed call is no leak.
        (0..2).any(|_| wait().is_ok()) || self.is_lost()
    }

    /// Gives something back: done in any state of the device, not at all in another process, and with nobody to tell.
    pub(crate) fn release(&self, call: impl FnOnce(&Driver) -> Result<(), Failure>) {
        if !self.is_of_this_process() {
            return;
        }
        // A second time, so that one failed call is no leak.
        let bound = Bound::bind(self).or_else(|_| Bound::bind(self));
        let outcome = call(self.driver);
        drop(bound);
        if let Err(failure) = outcome {
            let error = self.failed(failure);
            self.failed_releases.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, device = self.info.ordinal, "a release on the device failed");
        }
    }

    /// Releases that failed so far.
    pub(crate) fn failed_releases(&self) -> u64 {
        self.failed_releases.load(Ordering::Relaxed)
    }

    /// Makes the context current on this thread for as long as the thread lives: for threads of our own.
    pub(crate) fn bind_thread(&self) {
        // If it fails, each call binds it for itself; so it does where the context of a device that is gone is still the current one.
        // SAFETY: the context is retained as long as `self` lives, and a call with none that lives gives an error.
        let _ = unsafe { self.driver.cuCtxSetCurrent(self.handle) };
    }

    /// The same until what this gives is dropped, which has the context before current again: for threads that do something else after that.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(crate) fn bound(&self) -> Option<Bound<'_>> {
        // If it fails, each call binds it for itself.
        Bound::bind(self).ok()
    }

    /// The error for a failed call; remembers when it means that the device is lost.
    pub(crate) fn failed(&self, failure: Failure) -> Error {
        if code::is_lasting(failure.code) {
            let _ = self.lost.set(failure);
        }
        typed(self.driver, self.info.ordinal, failure)
    }

    /// An event that nobody uses.
    pub(super) fn take_event(&self) -> Result<CUevent> {
        const BLOCKING_SYNC: u32 = 1;
        const DISABLE_TIMING: u32 = 2;
        self.check()?;
        let kept = self
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        if let Some(event) = kept {
            return Ok(event.0);
        }
        self.call(|driver| {
            let mut event = ptr::null_mut();
            // Who waits sleeps; times are not asked for.
            // SAFETY: a place for the event.
            unsafe { driver.cuEventCreate(&mut event, BLOCKING_SYNC | DISABLE_TIMING) }?;
            Ok(event)
        })
    }

    /// Takes an event back that nobody uses any more.
    pub(super) fn give_back_event(&self, event: CUevent) {
        // In a child, another thread of the parent may hold the lock for ever.
        if !self.is_of_this_process() {
            return;
        }
        {
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            if events.len() < MOST_KEPT_EVENTS && !self.is_lost() {
                events.push(Handle(event));
                return;
            }
        }
        self.destroy_event(event);
    }

    fn destroy_event(&self, event: CUevent) {
        // SAFETY: an event of this context that nobody else has.
        self.release(|driver| unsafe { driver.cuEventDestroy_v2(event) });
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            return;
        }
        let events = self
            .events
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for event in std::mem::take(events) {
            self.destroy_event(event.0);
        }
        let device = self.device;
        // SAFETY: retained once, released once.
        self.release(|driver| unsafe { driver.cuDevicePrimaryCtxRelease_v2(device) });
    }
}

/// The context is current on this thread; the one before is again when this is dropped.
pub(crate) struct Bound<'a> {
    context: &'a Context,
    before: Option<CUcontext>,
}

impl<'a> Bound<'a> {
    fn bind(context: &'a Context) -> Result<Self, Failure> {
        let mut before = ptr::null_mut();
        // SAFETY: a place for the context.
        unsafe { context.driver.cuCtxGetCurrent(&mut before) }?;
        if before == context.handle {
            return Ok(Bound {
                context,
                before: None,
            });
        }
        // SAFETY: the context is retained as long as `context` lives.
        unsafe { context.driver.cuCtxSetCurrent(context.handle) }?;
        Ok(Bound {
            context,
            before: Some(before),
        })
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Again, so that a call that fails leaves the thread with no context of ours. Only one that is gone by now fails each time, and
            // then none is as good.
            // SAFETY: it was current on this thread before, or is null.
            let back = || unsafe { self.context.driver.cuCtxSetCurrent(before) };
            let _ = (0..3).any(|_| back().is_ok());
        }
    }
}

/// The error for a failed call.
fn typed(driver: &Driver, device: u32, failure: Failure) -> Error {
    let Failure { call, code } = failure;
    let name = probe::name_of(driver, code).into();
    let kind = if code::is_lasting(code) {
        ErrorKind::DeviceLost {
            device,
            call,
            code,
            name,
        }
    } else {
        ErrorKind::Cuda {
            call,
            code,
            name,
            log: None,
        }
    };
    Error::new(kind).by("cuda")
}
