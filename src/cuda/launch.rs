//! Launches: parameters to the device, kernels queued, results back, and nothing given back before the device is done with it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use super::device::Device;
use super::memory::DeviceBuffer;
use super::modules::Family;
use super::underway::UnderWay;
use crate::buffer::{BlockMut, DeviceBytes};
use crate::error::{Error, ErrorKind, Result};

/// A parameter of a kernel: words in the order and with the alignment of the structure in its source.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<u8>);

impl Words {
    pub(super) fn with_capacity(bytes: usize) -> Result<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(bytes).map_err(|_| {
            let wanted = bytes as u64;
            let cap = isize::MAX as u64;
            Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda")
        })?;
        Ok(Words(words))
    }

    pub(super) fn u32(&mut self, word: u32) -> &mut Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    pub(super) fn u64(&mut self, word: u64) -> &mut Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    pub(super) fn f32(&mut self, word: f32) -> &mut Self {
        self.u32(word.to_bits())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Memory for what kernels make, until it is [written](Self::written). Dropped, it is given back in the order of the device's own stream, so
/// not before the work that writes it is done.
pub(super) struct Output(DeviceBuffer);

impl Output {
    pub(super) fn address(&self) -> u64 {
        self.0.address()
    }

    /// All of it, as bytes.
    ///
    /// # Safety
    /// Each byte was written, and the work that did it is done.
    pub(super) unsafe fn written(self) -> Result<DeviceBytes> {
        let Output(mut buffer) = self;
        // So that who drops the bytes waits for no later work of others.
        buffer.settle();
        let mut block = BlockMut::new(buffer);
        let len = block.remaining();
        // SAFETY: as the caller promises.
        unsafe { block.advance(len) };
        block.freeze().into_device()
    }
}

impl Device {
    /// Memory for the output of kernels.
    pub(super) fn output(&self, len: usize) -> Result<Output> {
        self.arena().allocate_for(self.own(), len).map(Output)
    }
}

/// Work of one call, in the device's own stream. Dropping it waits for what was queued. Where that cannot be waited for, its memory is
/// not used again before it is over all the same.
pub(super) struct Work<'a> {
    device: &'a Device,
    /// What the device copies from.
    words: Vec<Words>,
    copies: UnderWay,
    buffers: Vec<DeviceBuffer>,
    /// What it reads. The caller holds it until the call returns; the work may go on after that, where it could not be waited for.
    read: Vec<DeviceBytes>,
    done: bool,
}

impl<'a> Work<'a> {
    pub(super) fn new(device: &'a Device) -> Self {
        Work {
            device,
            words: Vec::new(),
            copies: UnderWay::default(),
            buffers: Vec::new(),
            read: Vec::new(),
            done: true,
        }
    }

    /// The address of bytes that it reads, after what others do with them.
    pub(super) fn reads(&mut self, bytes: &DeviceBytes) -> Result<u64> {
        self.device.must_be_here(bytes.place())?;
        if let Some(buffer) = bytes.memory().as_any().downcast_ref::<DeviceBuffer>() {
            buffer.ready_in(self.device.own())?;
        }
        self.read.push(bytes.clone());
        Ok(bytes.ptr().addr() as u64)
    }

    /// Memory of the device that is filled with a byte, for as long as the work goes on.
    pub(super) fn filled(&mut self, len: usize, byte: u8) -> Result<u64> {
        let address = self.take(len)?;
        // SAFETY: the memory has `len` bytes, and stays until the stream is done.
        unsafe { self.fill(address, byte, len)? };
        Ok(address)
    }

    /// Fills memory of the device with a byte.
    ///
    /// # Safety
    /// `len` bytes are there, and stay until the work is done.
    pub(super) unsafe fn fill(&mut self, address: u64, byte: u8, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let stream = self.device.own();
        self.done = false;
        // SAFETY: as the caller promises.
        self.device
            .context()
            .call(|driver| unsafe { driver.cuMemsetD8Async(address, byte, len, stream.handle()) })
    }

    /// A copy of these words on the device, for as long as the work goes on.
    pub(super) fn upload(&mut self, words: Words) -> Result<u64> {
        let (from, len) = (words.0.as_ptr().cast::<c_void>(), words.0.len());
        let address = self.take(len)?;
        self.words.push(words);
        if len == 0 {
            return Ok(address);
        }
        let stream = self.device.own();
        self.done = false;
        // SAFETY: both have `len` bytes, and stay until the stream is done.
        self.device.context().call(|driver| unsafe {
            driver.cuMemcpyHtoDAsync_v2(address, from, len, stream.handle())
        })?;
        Ok(address)
    }

    /// Copies bytes of the host, one part behind the other, to the memory from `address` on. They are taken over before this returns, by
    /// blocks of the pinned ring, each of which is used again once it is copied: where there are more bytes than a few blocks have, the
    /// caller waits for the first of them.
    ///
    /// # Safety
    /// As many bytes are there, on this device, which nobody else uses before the work is done.
    pub(super) unsafe fn stage(&mut self, parts: &[&[u8]], address: u64) -> Result<()> {
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        let (mut at, mut block): (_, Option<BlockMut>) = (address, None);
        let most = self.device.piece();
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                let mut room = match block.take() {
                    Some(block) => block,
                    None => self.copies.block(self.device, left.min(most))?,
                };
                let (now, later) = part.split_at(part.len().min(room.remaining()));
                room.put(now)?;
                left -= now.len();
                part = later;
                if room.remaining() > 0 && left > 0 {
                    block = Some(room);
                    continue;
                }
                let len = room.filled_len();
                self.done = false;
                // SAFETY: so many bytes are there, as the caller promises, until the stream is done.
                unsafe { self.copies.copy(self.device.own(), room, at)? };
                at += len as u64;
            }
        }
        Ok(())
    }

    /// Memory of the device with any content, for as long as the work goes on.
    pub(super) fn scratch(&mut self, len: usize) -> Result<u64> {
        self.take(len)
    }

    /// Memory of the device with any content.
    pub(super) fn take(&mut self, len: usize) -> Result<u64> {
        let arena = self.device.arena();
        let buffer = arena.allocate_for(self.device.own(), len)?;
        let address = buffer.address();
        self.buffers.push(buffer);
        Ok(address)
    }

    /// Queues a kernel whose one parameter is a pointer to its job, with a thread for each of `threads` and blocks of `block`.
    ///
    /// # Safety
    /// The job, and all that its addresses lead to, is what the kernel takes it for: on the device, of that length, and not freed
    /// before the work is done.
    pub(super) unsafe fn launch(
        &mut self,
        family: Family,
        kernel: &str,
        block: u32,
        threads: u64,
        job: Words,
    ) -> Result<()> {
        let module = self.device.module(family)?;
        let function = module.function(kernel)?;
        let mut job = self.upload(job)?;
        let mut parameters = [ptr::from_mut(&mut job).cast::<c_void>()];
        let blocks = threads
            .div_ceil(u64::from(block))
            .clamp(1, u64::from(self.device.blocks())) as u32;
        let stream = self.device.own();
        self.done = false;
        // SAFETY: a function of a module that the device keeps, with the one parameter that all kernels have; its size is known
        // to the driver, which copies it now. The rest is the caller's promise.
        self.device.context().call(|driver| unsafe {
            driver.cuLaunchKernel(
                function.cast(),
                blocks,
                1,
                1,
                block,
                1,
                1,
                0,
                stream.handle(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    /// Waits for all of it, and copies `N` bytes from each of `count` places from `address` on.
    ///
    /// # Safety
    /// So many bytes are there, of memory of the device that was written.
    pub(super) unsafe fn finish<const N: usize>(
        mut self,
        address: u64,
        count: usize,
    ) -> Result<Vec<[u8; N]>> {
        // SAFETY: as the caller promises.
        unsafe { self.look(address, count) }
    }

    /// Waits for all of it so far, and copies `N` bytes from each of `count` places from `address` on. More can be queued then.
    ///
    /// # Safety
    /// As for [`finish`](Self::finish).
    pub(super) unsafe fn look<const N: usize>(
        &mut self,
        address: u64,
        count: usize,
    ) -> Result<Vec<[u8; N]>> {
        let len = count * N;
        let mut copy: Vec<[u8; N]> = Vec::new();
        copy.try_reserve_exact(count)
            .map_err(|_| self.device.context().out_of_memory(len, isize::MAX as u64))?;
        let (to, stream) = (copy.as_mut_ptr().cast(), self.device.own());
        if len > 0 {
            self.done = false;
            // SAFETY: both have `len` bytes, as the caller promises, and stay until the stream is done.
            let queued = self.device.context().call(|driver| unsafe {
                driver.cuMemcpyDtoHAsync_v2(to, address, len, stream.handle())
            });
            if let Err(error) = queued {
                // It may have been queued all the same, and the list is dropped now.
                let _ = self.wait();
                return Err(error);
            }
        }
        self.wait()?;
        // SAFETY: all of them were written.
        unsafe { copy.set_len(count) };
        Ok(copy)
    }

    /// Waits for all of it so far.
    pub(super) fn wait(&mut self) -> Result<()> {
        self.device.own().synchronize()?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if !self.done {
            // Who could be told has the first error; and a lost device copies nothing any more.
            let _ = self.wait();
        }
        if self.done {
            self.copies.are_over();
            self.buffers.iter_mut().for_each(DeviceBuffer::settle);
            return;
        }
        // What was taken for the stream goes back in its order anyway.
        for bytes in self.read.drain(..) {
            match bytes.memory().as_any().downcast_ref::<DeviceBuffer>() {
                Some(buffer) => buffer.used_so_far(self.device.own()),
                None if self.device.context().is_lost() => {}
                // Memory of others: that it is not dropped is all that can be done.
                None => std::mem::forget(bytes),
            }
        }
    }
}
