//! Copies of many pieces of host memory into one buffer of a device, by several threads, and pages that are decompressed into it there.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::decompress::{self, Body};
use super::device::Device;
use super::launch::Work;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use super::underway::UnderWay;
use crate::buffer::{BlockMut, DeviceBytes};
use crate::error::{Error, ErrorKind, Result};

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
    copies: UnderWay,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of the buffer that have a content, and of the second one.
    sent: usize,
    stored: usize,
    /// Work of the device's own stream that is under way, or failed, so that nobody knows whether it is over.
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
    /// A buffer of `len` bytes, and a second one of `stored`, to be copied to in `stream`.
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
            // For the own stream, in which they are decompressed: where that cannot be waited for, they go back after it.
            buffer: Some(gpu.arena().allocate_for(gpu.own(), len)?),
            stored: Some(gpu.arena().allocate_for(gpu.own(), stored)?),
            gpu: gpu.clone(),
            stream: stream.clone(),
            copies: UnderWay::default(),
            state: Mutex::default(),
        })
    }

    /// Memory for a piece of `len` bytes. Waits for a copy if many are under way, or if the pinned ring has no other block.
    ///
    /// # Errors
    /// As [`Device::pinned`]; those of a copy that failed.
    pub(crate) fn stage(&self, len: usize) -> Result<Stage> {
        let block = self.copies.block(&self.gpu, len)?;
        Ok(Stage { block, len })
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
        if len == 0 {
            return Ok(());
        }
        let (mut block, target) = (stage.block, buffer.address() + at as u64);
        // SAFETY: as many bytes have a value, as `Stage::bytes` says. The buffer has them from there on, and is dropped after a wait.
        unsafe {
            block.advance(len);
            self.copies.copy(&self.stream, block, target)?;
        }
        let mut state = self.lock();
        match to {
            To::Buffer => state.sent += len,
            To::Again => {}
            To::Stored => state.stored += len,
        }
        Ok(())
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

    /// Work of the device's own stream that begins after what was copied; `None` for nothing.
    fn work(&self, nothing: bool) -> Result<Option<Work<'_>>> {
        if nothing {
            return Ok(None);
        }
        let copied = self.stream.record()?;
        self.gpu.own().wait_for(&copied)?;
        Ok(Some(Work::new(&self.gpu)))
    }

    /// The buffer with all pieces in it, once they are there.
    ///
    /// # Errors
    /// Those of the copies; [`ErrorKind::Abandoned`] if some of its bytes were never sent.
    pub(crate) fn finish(mut self) -> Result<DeviceBytes> {
        self.stream.synchronize()?;
        self.copies.are_over();
        let (sent, settled) = {
            let state = self.lock();
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
        if self.copies.is_empty() {
            return;
        }
        // What a lost device has queued it does not do any more.
        if self.stream.is_over() {
            self.copies.are_over();
        } else {
            std::mem::forget((self.buffer.take(), self.stored.take()));
        }
    }
}
