//! Copies of many pieces of host memory into one buffer of a device, by several threads, and pages that are decompressed into it there.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::decompress::{self, Body};
use super::device::Device;
use super::launch::Work;
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
///
/// What is compressed can be sent to a second buffer, of which the device [decompresses](Self::decompress) it into the first.
pub(crate) struct Filling {
    gpu: Arc<Device>,
    stream: Stream,
    /// `None` once it is given away.
    buffer: Option<DeviceBuffer>,
    /// What is compressed; `None` only when it is dropped.
    stored: Option<DeviceBuffer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    copies: VecDeque<(Stage, Event)>,
    /// Bytes of the buffer that have a content, and of the second one.
    sent: usize,
    stored: usize,
    /// That a copy may be under way of which there is no mark.
    unmarked: bool,
    /// Work of kernels that is under way, or failed, so that nobody knows whether it is over.
    unsettled: usize,
}

/// Where a piece goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// To the buffer.
    Buffer,
    /// To bytes of the buffer that have a content already.
    Again,
    /// To the second buffer, of what is compressed.
    Stored,
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
    /// A buffer of `len` bytes, and a second one of `stored`, to be copied to in `stream`, in which they are decompressed as well.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    pub(crate) fn new(
        gpu: &Arc<Device>,
        stream: &Stream,
        len: usize,
        stored: usize,
    ) -> Result<Self> {
        Ok(Filling {
            // In that order they go back, where what is done with them cannot be waited for.
            buffer: Some(gpu.arena().allocate_for(stream, len)?),
            stored: Some(gpu.arena().allocate_for(stream, stored)?),
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
    pub(crate) fn send(&self, to: To, at: usize, mut stage: Stage) -> Result<()> {
        let len = stage.bytes().len();
        let buffer = match to {
            To::Buffer | To::Again => self.buffer.as_ref(),
            To::Stored => self.stored.as_ref(),
        };
        let room = buffer.map_or(0, DeviceBuffer::len) as u64;
        let buffer = buffer.filter(|buffer| {
            at.checked_add(len).is_some_and(|end| end <= buffer.len()) && stage.len == len
        });
        let Some(buffer) = buffer else {
            let wanted = (at as u64).saturating_add(stage.len as u64);
            return Err(Error::new(ErrorKind::DestinationTooSmall { room, wanted }).by("cuda"));
        };
        let mut state = self.lock();
        if len == 0 {
            return Ok(());
        }
        let (target, from) = (buffer.address() + at as u64, stage.bytes().as_ptr().cast());
        let stream = self.stream.handle();
        // SAFETY: both sides have `len` bytes, and stay until the copy is done: the piece in `state`, the buffers as they are dropped
        // after a wait.
        let queued = self
            .gpu
            .context()
            .call(|driver| unsafe { driver.cuMemcpyHtoDAsync_v2(target, from, len, stream) });
        match queued.and_then(|()| self.stream.record()) {
            Ok(event) => {
                state.copies.push_back((stage, event));
                match to {
                    To::Buffer => state.sent += len,
                    To::Again => {}
                    To::Stored => state.stored += len,
                }
                Ok(())
            }
            Err(error) => {
                // It may have been queued all the same.
                drop(state);
                if !self.stream.is_over() {
                    std::mem::forget(stage);
                    self.lock().unmarked = true;
                }
                Err(error)
            }
        }
    }

    /// Decompresses pages of what was sent to the second buffer into places of the first, which were not sent, and waits for it. Says of
    /// each what was wrong with it, of [`check`](decompress::check), or 0; of what is wrong the place is zeros, or what it decompresses
    /// to with another checksum.
    ///
    /// # Errors
    /// [`ErrorKind::Abandoned`] if some of the second buffer was never sent, or if places overlap or are not in their order; else those of
    /// the device.
    pub(crate) fn decompress(&self, bodies: &[Body]) -> Result<Vec<u32>> {
        let Some(work) = self.work(bodies.is_empty())? else {
            return Ok(Vec::new());
        };
        let (target, source) = (memory_of(&self.buffer), memory_of(&self.stored));
        let (mut end, mut made) = (0, 0);
        for body in bodies {
            let after = body.target.end.checked_add(body.gap);
            let after = after.filter(|_| end <= body.target.start);
            end = after.ok_or_else(abandoned)?;
            made += end.saturating_sub(body.target.start);
        }
        if self.lock().stored as u64 != source.1 {
            return Err(abandoned());
        }
        // SAFETY: both buffers have so many bytes, stay until the work is done, as they are given back in its order, and the second one was
        // sent whole.
        let checks =
            self.settled(|| unsafe { decompress::decompress(work, source, target, bodies) })?;
        // Nothing is written of what does not fit together; who made it up is told at the end.
        if checks
            .iter()
            .all(|found| *found != decompress::check::SHAPE)
        {
            self.lock().sent += usize::try_from(made).unwrap_or(usize::MAX);
        }
        Ok(checks)
    }

    /// Whether these ranges of the buffer, which were sent, have these CRC-32. Waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] for ranges that are not inside; those of the device.
    pub(crate) fn have_checksums(&self, pages: &[(Range<u64>, u32)]) -> Result<Vec<bool>> {
        let Some(work) = self.work(pages.is_empty())? else {
            return Ok(Vec::new());
        };
        let memory = memory_of(&self.buffer);
        // SAFETY: the buffer has so many bytes, and stays until the work is done, as it is given back in its order. What was not sent has some
        // content all the same.
        self.settled(|| unsafe { decompress::are_right(work, memory, pages) })
    }

    /// Work that waits for itself; where that fails, the buffers go back in the order of its stream.
    fn settled<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.lock().unsettled += 1;
        let done = work()?;
        self.lock().unsettled -= 1;
        Ok(done)
    }

    /// Work behind what was copied; `None` for nothing.
    fn work(&self, nothing: bool) -> Result<Option<Work<'_>>> {
        if nothing {
            return Ok(None);
        }
        Ok(Some(Work::in_stream(&self.gpu, &self.stream)))
    }

    /// The buffer with all pieces in it, once they are there.
    ///
    /// # Errors
    /// Those of the copies; [`ErrorKind::Abandoned`] if some of its bytes were never sent.
    pub(crate) fn finish(mut self) -> Result<DeviceBytes> {
        self.stream.synchronize()?;
        let (sent, settled) = {
            let mut state = self.lock();
            state.copies.clear();
            (state.sent, state.unsettled == 0)
        };
        let buffer = self.buffer.take();
        let buffer = buffer.filter(|buffer| buffer.len() == sent);
        let mut buffer = buffer.ok_or_else(abandoned)?;
        if settled {
            buffer.settle();
        }
        let mut block = BlockMut::new(buffer);
        // SAFETY: as many bytes as it has were copied or made, and pieces do not overlap.
        unsafe { block.advance(sent) };
        block.freeze().into_device()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address of a buffer, and its bytes.
fn memory_of(buffer: &Option<DeviceBuffer>) -> (u64, u64) {
    let buffer = buffer.as_ref();
    buffer.map_or((0, 0), |buffer| (buffer.address(), buffer.len() as u64))
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Abandoned).by("cuda")
}

impl Drop for Filling {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        if state.unsettled == 0 {
            let buffers = self.buffer.iter_mut().chain(&mut self.stored);
            buffers.for_each(DeviceBuffer::settle);
        }
        if state.copies.is_empty() && !state.unmarked {
            return;
        }
        // What a lost device has queued it does not do any more.
        if !self.stream.is_over() {
            std::mem::forget((state.copies, self.buffer.take(), self.stored.take()));
        }
    }
}
