//! Page-locked host memory, which the device copies from by itself: blocks that are pinned once and used again.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::{Context, Handle};
use crate::buffer::{BlockMut, HostMemory, Memory, Place};
use crate::error::Result;

/// Allocations are of whole pages.
const PAGE: usize = 4096;

/// Pinned blocks, each used again and again. What does not fit the bound is not page-locked: copies from there are right all the same,
/// and slower.
pub(crate) struct Ring {
    context: Arc<Context>,
    /// Least bytes of a block.
    block: usize,
    /// Most bytes of all.
    most: usize,
    state: Mutex<State>,
    /// Blocks that were not page-locked.
    unpinned: AtomicU64,
}

#[derive(Default)]
struct State {
    free: Vec<Span>,
    /// Bytes that are pinned, free or not.
    made: usize,
}

struct Span {
    address: Handle<*mut u8>,
    len: usize,
}

impl Ring {
    pub(super) fn new(context: Arc<Context>, block: usize, most: usize) -> Arc<Self> {
        Arc::new(Ring {
            context,
            block,
            most,
            state: Mutex::default(),
            unpinned: AtomicU64::new(0),
        })
    }

    /// At least `len` bytes, page-aligned; they come back to the ring when the last part of the block is dropped. Never waits.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no memory, pinned or not.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Result<BlockMut> {
        match self.take_pinned(len) {
            Some(block) => Ok(block),
            None => {
                self.unpinned.fetch_add(1, Ordering::Relaxed);
                Ok(BlockMut::new(HostMemory::new(len)?))
            }
        }
    }

    /// The same, if it can be page-locked.
    pub(super) fn take_pinned(self: &Arc<Self>, len: usize) -> Option<BlockMut> {
        let span = self.pinned(len)?;
        Some(BlockMut::new(Pinned {
            span,
            ring: self.clone(),
        }))
    }

    /// Least bytes of a block.
    pub(super) fn block(&self) -> usize {
        self.block
    }

    /// Bytes that are page-locked, and blocks that were not to be had so.
    pub(super) fn figures(&self) -> (u64, u64) {
        let made = self.lock().made as u64;
        (made, self.unpinned.load(Ordering::Relaxed))
    }

    fn pinned(&self, len: usize) -> Option<Span> {
        if !self.context.is_of_this_process() {
            return None;
        }
        let wanted = len.max(self.block).checked_next_multiple_of(PAGE)?;
        let mut smaller = Vec::new();
        let found = {
            let mut state = self.lock();
            let fitting = state.free.iter().enumerate().rev();
            let fitting = fitting.filter(|(_, span)| span.len >= len);
            match fitting.min_by_key(|(_, span)| span.len).map(|(at, _)| at) {
                Some(at) => Some(state.free.swap_remove(at)),
                None => {
                    let kept: usize = state.free.iter().map(|span| span.len).sum();
                    if (state.made - kept).saturating_add(wanted) > self.most {
                        return None;
                    }
                    // Those that nobody uses are all too small: they make room.
                    while state.made + wanted > self.most
                        && let Some(span) = state.free.pop()
                    {
                        state.made -= span.len;
                        smaller.push(span);
                    }
                    state.made += wanted;
                    None
                }
            }
        };
        smaller.into_iter().for_each(|span| self.free(span));
        let made = found.or_else(|| self.make(wanted));
        if made.is_none() {
            self.lock().made -= wanted;
        }
        made
    }

    fn make(&self, len: usize) -> Option<Span> {
        // For all contexts. Not write-combined: the host reads these bytes too, when it checks or decodes them.
        const PORTABLE: u32 = 1;
        let mut address = ptr::null_mut();
        // SAFETY: a place for the address.
        let made = self
            .context
            .call(|driver| unsafe { driver.cuMemHostAlloc(&mut address, len, PORTABLE) });
        match made {
            Ok(()) => Some(Span {
                address: Handle(address.cast()),
                len,
            }),
            Err(error) => {
                tracing::debug!(%error, bytes = len, "host memory cannot be pinned");
                None
            }
        }
    }

    fn free(&self, span: Span) {
        // SAFETY: given by `cuMemHostAlloc`, given back once, and used by nobody: blocks that are out are not in the list.
        self.context
            .release(|driver| unsafe { driver.cuMemFreeHost(span.address.0.cast()) });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and the list is valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.context.is_of_this_process() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for span in std::mem::take(&mut state.free) {
            self.free(span);
        }
    }
}

/// A block of a ring.
struct Pinned {
    span: Span,
    ring: Arc<Ring>,
}

// SAFETY: as many bytes as the span has, given by the driver, which no other value has until this one is dropped; readable
// and writable by the host, and they stay where they are until the ring is dropped.
unsafe impl Memory for Pinned {
    fn place(&self) -> Place {
        Place::Pinned
    }
    fn ptr(&self) -> *mut u8 {
        self.span.address.0
    }
    fn len(&self) -> usize {
        self.span.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // In a child, another thread of the parent may hold the lock for ever.
        if self.ring.context.is_of_this_process() {
            let Span { address, len } = &self.span;
            self.ring.lock().free.push(Span {
                address: Handle(address.0),
                len: *len,
            });
        }
    }
}
