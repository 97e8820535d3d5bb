//! Copies of many pieces of host memory into one buffer of a device, by several threads.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::device::Device;
use super::memory::DeviceBuffer;
use super::stream::{Event, Stream};
use crate::buffer::{BlockMut, DeviceBytes};
use crate::error::{Error, ErrorKind, Result};

/// Pieces that are copied at once, at most: so many blocks of the pinned ring it holds. Who wants another one waits for the first.
const UNDER_WAY: usize = 6;

/// A buffer of a device that is filled from host memory, piece by piece.
///
/// Threads [stage](Self::stage) pieces, write them, and [send](Self::send) them; what one writes is copied while it writes the next.
/// Dropped, it waits for what it copies.
pub(crate) struct Filling {
    gpu: Arc<Device>,
    stream: Stream,
    /// `None` once it is given away.
    buffer: Option<DeviceBuffer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    copies: VecDeque<(Stage, Event)>,
    /// Bytes that were sent.
    sent: usize,
    /// That a copy may be under way of which there is no mark.
    unmarked: bool,
}

/// Host memory for a piece, pinned as far as the ring has some.
pub(crate) struct Stage {
    block: BlockMut,
    len: usize,
}

impl Stage {
    /// Its bytes; at first they are whatever was there.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let unfilled = self.block.unfilled();
        let len = self.len.min(unfilled.len());
        let start = unfilled.as_mut_ptr().cast::<u8>();
        // SAFETY: `len` bytes that this value alone has. They come from the driver or the kernel, which give memory with a content,
        // so that there is no byte without a value.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Filling {
    /// A buffer of `len` bytes, to be copied to in `stream`.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub(crate) fn new(gpu: &Arc<Device>, stream: &Stream, len: usize) -> Result<Self> {
        Ok(Filling {
            buffer: Some(gpu.buffer(len)?),
            gpu: gpu.clone(),
            stream: stream.clone(),
            state: Mutex::default(),
        })
    }

    /// Memory for a piece of `len` bytes. Waits for a copy if many are under way.
    ///
    /// # Errors
    /// As [`Device::pinned`]; those of a copy that failed.
    pub(crate) fn stage(&self, len: usize) -> Result<Stage> {
        let done = {
            let mut state = self.lock();
            match state.copies.len() >= UNDER_WAY {
                true => state.copies.pop_front(),
                false => None,
            }
        };
        if let Some((stage, event)) = done
            && let Err(error) = event.synchronize()
        {
            // The device may still read it.
            let mut state = self.lock();
            state.unmarked = true;
            state.copies.push_front((stage, event));
            return Err(error);
        }
        Ok(Stage {
            block: self.gpu.pinned(len)?,
            len,
        })
    }

    /// Copies a piece to the bytes from `at` on. Does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::DestinationTooSmall`] for a piece that is not within the buffer; [`ErrorKind::Cuda`],
    /// [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub(crate) fn send(&self, at: usize, mut stage: Stage) -> Result<()> {
        let len = stage.bytes().len();
        let buffer = self.buffer.as_ref().filter(|buffer| {
            at.checked_add(len).is_some_and(|end| end <= buffer.len()) && stage.len == len
        });
        let Some(buffer) = buffer else {
            let room = self.buffer.as_ref().map_or(0, DeviceBuffer::len) as u64;
            let wanted = (at as u64).saturating_add(stage.len as u64);
            return Err(Error::new(ErrorKind::DestinationTooSmall { room, wanted }).by("cuda"));
        };
        let mut state = self.lock();
        if len == 0 {
            return Ok(());
        }
        let (to, from) = (buffer.address() + at as u64, stage.bytes().as_ptr().cast());
        let stream = self.stream.handle();
        // SAFETY: both sides have `len` bytes, and stay until the copy is done: the piece in `state`, the buffer as it is dropped after
        // a wait.
        let queued = self
            .gpu
            .context()
            .call(|driver| unsafe { driver.cuMemcpyHtoDAsync_v2(to, from, len, stream) });
        match queued.and_then(|()| self.stream.record()) {
            Ok(event) => {
                state.copies.push_back((stage, event));
                state.sent += len;
                Ok(())
            }
            Err(error) => {
                // It may have been queued all the same.
                drop(state);
                if self.stream.synchronize().is_err() && !self.gpu.context().is_lost() {
                    std::mem::forget(stage);
                    self.lock().unmarked = true;
                }
                Err(error)
            }
        }
    }

    /// The buffer with all pieces in it, once they are there.
    ///
    /// # Errors
    /// Those of the copies; [`ErrorKind::Abandoned`] if some of its bytes were never sent.
    pub(crate) fn finish(mut self) -> Result<DeviceBytes> {
        self.stream.synchronize()?;
        let sent = {
            let mut state = self.lock();
            state.copies.clear();
            state.sent
        };
        let buffer = self.buffer.take();
        let buffer = buffer.filter(|buffer| buffer.len() == sent);
        let buffer = buffer.ok_or_else(|| Error::new(ErrorKind::Abandoned).by("cuda"))?;
        let mut block = BlockMut::new(buffer);
        // SAFETY: as many bytes as it has were copied, and pieces do not overlap.
        unsafe { block.advance(sent) };
        block.freeze().into_device()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        if state.copies.is_empty() && !state.unmarked {
            return;
        }
        // What a lost device has queued it does not do any more.
        let idle = self.stream.synchronize().is_ok() || self.gpu.context().is_lost();
        if !idle {
            std::mem::forget((state.copies, self.buffer.take()));
        }
    }
}
