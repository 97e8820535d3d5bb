//! Copies from the host that are under way: what the device copies from is used again as soon as that is done.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::device::Device;
use super::stream::{Event, Stream};
use crate::buffer::{BlockMut, Place};
use crate::error::Result;

/// From so many copies at once on, who wants another block of the pinned ring waits for the first of them. Threads that ask at the same time
/// may go past it.
const MOST: usize = 6;

/// How often a block is looked for. Others that share the copies may be quicker each time.
const TRIES: usize = 64;

/// Copies that one after the other queued, of one owner. Dropped, it keeps what the device may still read.
#[derive(Default)]
pub(super) struct UnderWay {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The first that was queued is in front.
    copies: VecDeque<Copy>,
    /// What may be read by work of a stream of which nobody knows whether it is over.
    unmarked: Vec<(Bytes, Stream)>,
}

struct Copy {
    from: Bytes,
    /// Whether that is of the pinned ring.
    is_pinned: bool,
    done: Event,
}

impl UnderWay {
    /// A block of at least `len` bytes to copy from. It is pinned, if the ring has one or gets one back from these copies: no others are
    /// waited for, since who made them may wait for the caller.
    ///
    /// # Errors
    /// As [`Device::pinned`]; those of a copy that failed.
    pub(super) fn block(&self, device: &Device, len: usize) -> Result<BlockMut> {
        if self.lock().copies.len() >= MOST {
            self.wait_for_first(|_| true)?;
        }
        for _ in 0..TRIES {
            if let Some(block) = device.pinned_now(len)? {
                return Ok(block);
            }
            if !self.wait_for_first(|copy| copy.is_pinned)? {
                break;
            }
        }
        device.pinned(len)
    }

    /// Waits for the first of the copies that is wanted; whether there was one.
    fn wait_for_first(&self, wanted: impl Fn(&Copy) -> bool) -> Result<bool> {
        let first = {
            let mut state = self.lock();
            let at = state.copies.iter().position(wanted);
            at.and_then(|at| state.copies.remove(at))
        };
        // Without the lock, so that others go on.
        let Some(copy) = first else {
            return Ok(false);
        };
        match copy.done.synchronize() {
            Ok(()) => Ok(true),
            Err(error) => {
                // The device may still read it.
                self.lock().copies.push_front(copy);
                Err(error)
            }
        }
    }

    /// Queues a copy of what is in a block. Does not wait, unless the block is of ordinary memory.
    ///
    /// # Safety
    /// As many bytes are at `to`, on the device of `stream`, and stay until the copy is done.
    pub(super) unsafe fn copy(&self, stream: &Stream, block: BlockMut, to: u64) -> Result<()> {
        let is_pinned = block.place() == Place::Pinned;
        let from = block.freeze().into_host()?;
        let (source, len, handle) = (from.as_ptr().cast(), from.len(), stream.handle());
        // SAFETY: both have `len` bytes, and stay until the copy is done: the source in `state`, the target as the caller promises.
        let queued = stream
            .context()
            .call(|driver| unsafe { driver.cuMemcpyHtoDAsync_v2(to, source, len, handle) });
        match queued.and_then(|()| stream.record()) {
            Ok(done) => {
                let copy = Copy {
                    from,
                    is_pinned,
                    done,
                };
                self.lock().copies.push_back(copy);
                Ok(())
            }
            Err(error) => {
                // It may have been queued all the same.
                if !stream.is_over() {
                    self.lock().unmarked.push((from, stream.clone()));
                }
                Err(error)
            }
        }
    }

    /// Says that all of them are over.
    pub(super) fn are_over(&self) {
        let over = std::mem::take(&mut *self.lock());
        drop(over);
    }

    /// Whether none can be under way.
    #[cfg(feature = "parquet")]
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.copies.is_empty() && state.unmarked.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and the lists are valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for copy in state.copies.drain(..) {
            if !copy.done.is_over() {
                std::mem::forget(copy.from);
            }
        }
        for (from, stream) in state.unmarked.drain(..) {
            if !stream.is_over() {
                std::mem::forget(from);
            }
        }
    }
}
