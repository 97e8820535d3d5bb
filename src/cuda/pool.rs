//! A pool of the driver's, from which memory is taken in the order of streams.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use super::context::{Context, Handle};
use super::library::{CUmemPoolProps, CUmemoryPool};
use crate::error::Result;

/// A pool of the driver's from which memory is taken and to which it is given back in the order of streams. Not the default pool: its
/// settings are the process's, not ours.
pub(super) struct StreamPool {
    context: Arc<Context>,
    pub(super) handle: Handle<CUmemoryPool>,
}

impl StreamPool {
    /// A pool that keeps `keep` bytes when streams are waited for; `None` where the device has no pools.
    pub(super) fn new(context: &Arc<Context>, keep: u64) -> Result<Option<Arc<Self>>> {
        const MEMORY_POOLS_SUPPORTED: u32 = 115;
        const RELEASE_THRESHOLD: u32 = 4;
        if context.attribute(MEMORY_POOLS_SUPPORTED)? == 0 {
            return Ok(None);
        }
        let properties = CUmemPoolProps {
            alloc_type: 1,
            handle_types: 0,
            location_type: 1,
            location: context.device(),
            win32_security_attributes: ptr::null_mut(),
            max_size: 0,
            reserved: [0; 56],
        };
        let mut handle = ptr::null_mut();
        // SAFETY: a place for the pool, and properties as `cuda.h` declares them.
        context.call(|driver| unsafe { driver.cuMemPoolCreate(&mut handle, &properties) })?;
        let pool = StreamPool {
            context: context.clone(),
            handle: Handle(handle),
        };
        let mut keep = keep;
        // SAFETY: the attribute is a 64-bit number, of which the driver makes a copy.
        context.call(|driver| unsafe {
            driver.cuMemPoolSetAttribute(handle, RELEASE_THRESHOLD, (&raw mut keep).cast())
        })?;
        Ok(Some(Arc::new(pool)))
    }

    /// Gives back what it keeps. Waits for all that the device does: until then, what was given back counts as in use.
    pub(super) fn trim(&self) {
        let handle = self.handle.0;
        let trimmed = self.context.call(|driver| {
            // SAFETY: the context is current.
            unsafe { driver.cuCtxSynchronize() }?;
            // SAFETY: the pool lives.
            unsafe { driver.cuMemPoolTrimTo(handle, 0) }
        });
        if let Err(error) = trimmed {
            tracing::debug!(%error, "a pool cannot be trimmed");
        }
    }
}

impl Drop for StreamPool {
    fn drop(&mut self) {
        let handle = self.handle.0;
        // SAFETY: made by `new`, destroyed once, after all buffers from it: each holds on to it.
        self.context
            .release(|driver| unsafe { driver.cuMemPoolDestroy(handle) });
    }
}
