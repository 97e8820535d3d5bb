//! Copies of many pieces of host memory into one buffer of a device, by several threads, and pages that are decompressed into it there.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::columns::{Column, Marked, Marks, Nested};
use super::decompress::{self, Body, Checks, Sums};
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
    /// Pieces that were sent, and how many of them kernels were queued behind.
    sends: usize,
    seen: usize,
    /// That all that was queued in the stream is over.
    is_over: bool,
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
        state.sends += 1;
        state.is_over = false;
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

    /// Work behind what was copied.
    pub(crate) fn work(&self) -> Work<'_> {
        Work::behind(&self.gpu, &self.stream)
    }

    /// Queues what decompresses pages of what was sent to the second buffer into places of the first, which were not sent. Of each it says
    /// later what was wrong with it, of [`check`](decompress::check), or 0; of what is wrong the place is zeros, or what it decompresses to
    /// with another checksum.
    ///
    /// # Errors
    /// [`ErrorKind::Abandoned`] if some of the second buffer was never sent, or if places overlap or are not in their order; else those of
    /// the device.
    pub(crate) fn decompress(&self, work: &mut Work<'_>, bodies: &[Body]) -> Result<Checks> {
        if bodies.is_empty() {
            return Ok(Checks::default());
        }
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
        let checks = unsafe { decompress::queue(work, source, target, bodies)? };
        // Nothing is written of what does not fit together; who made it up is told by `columns`.
        if checks.have_all() {
            self.lock().sent += usize::try_from(made).unwrap_or(usize::MAX);
        }
        Ok(checks)
    }

    /// Queues the checksums of ranges of the buffer, which were sent, each with the CRC-32 that it is to have.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] for ranges that are not inside; those of the device.
    pub(crate) fn checksums(
        &self,
        work: &mut Work<'_>,
        pages: &[(Range<u64>, u32)],
    ) -> Result<Sums> {
        if pages.is_empty() {
            return Ok(Sums::default());
        }
        let memory = memory_of(&self.buffer);
        // SAFETY: the buffer has so many bytes, and stays until the work is done, as it is given back in its order. What was not sent has some
        // content all the same.
        unsafe { decompress::queue_sums(work, memory, pages) }
    }

    /// As [`Device::marked`], of pages in the buffer: those that were sent or decompressed, whose checks nobody has to have waited for.
    ///
    /// # Errors
    /// As there; [`ErrorKind::Abandoned`] if some of its bytes were never sent.
    pub(crate) fn columns(
        &self,
        work: &mut Work<'_>,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
        known: Option<&[Option<Arc<Marks>>]>,
    ) -> Result<Marked> {
        let (begin, len) = memory_of(&self.buffer);
        {
            let mut state = self.lock();
            if state.sent as u64 != len {
                return Err(abandoned());
            }
            state.seen = state.sends;
        }
        work.again();
        // SAFETY: the buffer has so many bytes, all of which have a content, and stays until the work is done, as it is given back in its
        // order.
        unsafe {
            self.gpu
                .marked_in(work, (begin, len), flat, nested, most, known)
        }
    }

    /// Ends work of [`columns`](Self::columns), and with it the copies before it: dropping this waits for nothing more.
    ///
    /// # Errors
    /// Those of a wait, if nobody waited for it.
    pub(crate) fn end(&self, work: Work<'_>) -> Result<()> {
        work.end()?;
        let mut state = self.lock();
        if state.seen == state.sends && !state.unmarked {
            state.copies.clear();
            state.is_over = true;
        }
        Ok(())
    }

    /// The buffer with all pieces in it, once they are there. For tests of it alone.
    ///
    /// # Errors
    /// Those of the copies; [`ErrorKind::Abandoned`] if some of its bytes were never sent.
    #[cfg_attr(not(feature = "testing"), allow(dead_code))]
    pub(crate) fn finish(mut self) -> Result<DeviceBytes> {
        self.stream.synchronize()?;
        let sent = {
            let mut state = self.lock();
            state.copies.clear();
            state.sent
        };
        let buffer = self.buffer.take();
        let buffer = buffer.filter(|buffer| buffer.len() == sent);
        let mut buffer = buffer.ok_or_else(abandoned)?;
        // All that was queued for it was in the stream.
        buffer.settle();
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
        if state.is_over {
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
