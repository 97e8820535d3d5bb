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

    /// Bytes that it keeps for the next: what the driver reserved for it and nobody has. What is given back counts only once its stream is
    /// that far.
    ///
    /// # Errors
    /// Those of the driver.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn kept(&self) -> Result<u64> {
        const RESERVED_MEM_CURRENT: u32 = 5;
        const USED_MEM_CURRENT: u32 = 7;
        let figure = |attribute: u32| -> Result<u64> {
            let (handle, mut bytes) = (self.handle.0, 0u64);
            // SAFETY: the pool lives, and these attributes are 64-bit numbers, for which there is a place.
            self.context.call(|driver| unsafe {
                driver.cuMemPoolGetAttribute(handle, attribute, (&raw mut bytes).cast())
            })?;
            Ok(bytes)
        };
        // The two are asked for one after the other, and change meanwhile.
        Ok(figure(RESERVED_MEM_CURRENT)?.saturating_sub(figure(USED_MEM_CURRENT)?))
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
