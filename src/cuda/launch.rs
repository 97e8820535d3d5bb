//! Launches: parameters to the device, kernels queued, results back, and nothing given back before the device is done with it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use super::device::Device;
use super::memory::DeviceBuffer;
use super::modules::Family;
use super::stream::Stream;
use super::underway::UnderWay;
use crate::buffer::{BlockMut, DeviceBytes, HostMemory};
use crate::error::{Error, ErrorKind, Result};

/// `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`: parameters come as one buffer, of which the length is told.
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

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

/// Memory for what kernels make, until it is [written](Self::written). Dropped, it is given back in the order of the stream that it was taken
/// for, so not before the work that writes it is done.
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
    /// Memory for the output of kernels in the device's own stream.
    pub(super) fn output(&self, len: usize) -> Result<Output> {
        self.arena().allocate_for(self.own(), len).map(Output)
    }
}

/// Work of one call, in one stream: the device's own, or that of a lane, whose work then is not waited for by others. Dropping it waits
/// for what was queued. Where that cannot be waited for, its memory is not used again before it is over all the same.
pub(crate) struct Work<'a> {
    device: &'a Device,
    stream: &'a Stream,
    /// What the device copies from.
    words: Vec<Words>,
    copies: UnderWay,
    buffers: Vec<DeviceBuffer>,
    /// What it reads. The caller holds it until the call returns; the work may go on after that, where it could not be waited for.
    read: Vec<DeviceBytes>,
    /// What is copied from the device at the next wait, and what was.
    rides: Vec<Asked>,
    /// Where to.
    block: Option<BlockMut>,
    /// The same of waits that failed: the device may still write there.
    unsure: Vec<BlockMut>,
    done: bool,
}

/// Bytes of the device that are wanted.
struct Asked {
    address: u64,
    len: usize,
    /// Once they were copied, until somebody takes them.
    found: Option<Vec<u8>>,
}

/// The number of something that is copied at the next wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ride(usize);

impl<'a> Work<'a> {
    /// In the device's own stream.
    pub(super) fn new(device: &'a Device) -> Self {
        Work::in_stream(device, device.own())
    }

    /// In a stream of the device.
    pub(super) fn in_stream(device: &'a Device, stream: &'a Stream) -> Self {
        Work {
            device,
            stream,
            words: Vec::new(),
            copies: UnderWay::default(),
            buffers: Vec::new(),
            read: Vec::new(),
            rides: Vec::new(),
            block: None,
            unsure: Vec::new(),
            done: true,
        }
    }

    /// In a stream of the device in which others have queued something that it begins with, and waits for.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn behind(device: &'a Device, stream: &'a Stream) -> Self {
        let mut work = Work::in_stream(device, stream);
        work.again();
        work
    }

    /// Says that others have queued something in its stream.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn again(&mut self) {
        self.done = false;
    }

    /// The address of bytes that it reads, after what others do with them.
    pub(super) fn reads(&mut self, bytes: &DeviceBytes) -> Result<u64> {
        self.device.must_be_here(bytes.place())?;
        if let Some(buffer) = bytes.memory().as_any().downcast_ref::<DeviceBuffer>() {
            buffer.ready_in(self.stream)?;
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
        let stream = self.stream;
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
        let stream = self.stream;
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
                unsafe { self.copies.copy(self.stream, room, at)? };
                at += len as u64;
            }
        }
        Ok(())
    }

    /// Memory of the device with any content, for as long as the work goes on.
    pub(super) fn scratch(&mut self, len: usize) -> Result<u64> {
        self.take(len)
    }

    /// Memory for what its kernels make.
    pub(super) fn output(&self, len: usize) -> Result<Output> {
        self.device
            .arena()
            .allocate_for(self.stream, len)
            .map(Output)
    }

    /// Memory of the device with any content.
    pub(super) fn take(&mut self, len: usize) -> Result<u64> {
        let arena = self.device.arena();
        let buffer = arena.allocate_for(self.stream, len)?;
        let address = buffer.address();
        self.buffers.push(buffer);
        Ok(address)
    }

    /// Queues a kernel whose one parameter is its job, with a thread for each of `threads` and blocks of `block`. The driver takes the job
    /// over at once. A GPU's driver takes longer ones too; the software device refuses any other length than the kernel's, so that tests
    /// find a wrong structure.
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
        mut job: Words,
    ) -> Result<()> {
        let module = self.device.module(family)?;
        let function = module.function(kernel)?;
        // The structure has numbers of 8 bytes.
        job.0.resize(job.0.len().next_multiple_of(8), 0);
        let mut len = job.0.len();
        let mut parameters = [
            ptr::without_provenance_mut(BUFFER_POINTER),
            job.0.as_mut_ptr().cast::<c_void>(),
            ptr::without_provenance_mut(BUFFER_SIZE),
            ptr::from_mut(&mut len).cast(),
            ptr::null_mut(),
        ];
        let blocks = threads
            .div_ceil(u64::from(block))
            .clamp(1, u64::from(self.device.blocks())) as u32;
        let stream = self.stream;
        self.done = false;
        // SAFETY: a function of a module that the device keeps, with the one parameter that all kernels have; the buffer has as many bytes
        // as it says, and the driver copies it now. The rest is the caller's promise.
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
                ptr::null_mut(),
                parameters.as_mut_ptr(),
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

    /// Waits for all of it, if nobody did since the last of it was queued.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn end(mut self) -> Result<()> {
        self.ended()
    }

    /// The same; more can be queued then.
    pub(super) fn ended(&mut self) -> Result<()> {
        match self.done {
            true => Ok(()),
            false => self.wait(),
        }
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
        // SAFETY: as the caller promises.
        let ride = unsafe { self.ride(address, count * N) };
        self.ridden_as(ride)
    }

    /// Has `len` bytes from `address` on copied at the next wait, whoever it is for: they take none of their own.
    ///
    /// # Safety
    /// So many bytes are there, of memory of the device that was written by what is queued, and they stay until the work is dropped.
    pub(super) unsafe fn ride(&mut self, address: u64, len: usize) -> Ride {
        self.rides.push(Asked {
            address,
            len,
            found: None,
        });
        Ride(self.rides.len() - 1)
    }

    /// What was copied; waits for it if nobody waited since it was asked for.
    pub(super) fn ridden(&mut self, ride: Ride) -> Result<Vec<u8>> {
        let is_there = |rides: &[Asked]| rides.get(ride.0).is_some_and(|one| one.found.is_some());
        if !is_there(&self.rides) {
            self.wait()?;
        }
        let asked = self.rides.get_mut(ride.0);
        let found = asked.and_then(|asked| asked.found.take());
        found.ok_or_else(|| Error::new(ErrorKind::Abandoned).by("cuda"))
    }

    /// The same, `N` bytes each.
    pub(super) fn ridden_as<const N: usize>(&mut self, ride: Ride) -> Result<Vec<[u8; N]>> {
        Ok(self.ridden(ride)?.as_chunks::<N>().0.to_vec())
    }

    /// Waits for all of it so far, and copies what was asked for.
    pub(super) fn wait(&mut self) -> Result<()> {
        let asked = |ride: &&mut Asked| ride.found.is_none();
        let lens = self.rides.iter_mut().filter(asked).map(|ride| ride.len);
        let len: usize = lens.sum();
        if len == 0 {
            self.rides.iter_mut().filter(asked).for_each(|ride| {
                ride.found = Some(Vec::new());
            });
            return self.over();
        }
        let block = self.results(len)?;
        let mut to = block.unfilled_ptr();
        self.block = Some(block);
        let mut queued = Ok(());
        for ride in self.rides.iter_mut().filter(asked) {
            if queued.is_ok() && ride.len > 0 {
                let (at, address, len) = (to.cast::<c_void>(), ride.address, ride.len);
                let stream = self.stream;
                self.done = false;
                // SAFETY: both have `len` bytes, as who asked for it promised, and stay until the stream is done: the block is kept
                // where that is not known.
                queued = self.device.context().call(|driver| unsafe {
                    driver.cuMemcpyDtoHAsync_v2(at, address, len, stream.handle())
                });
            }
            to = to.wrapping_add(ride.len);
        }
        // After an error as well: it may have been queued all the same.
        if let Err(error) = self.over() {
            self.unsure.extend(self.block.take());
            return Err(error);
        }
        queued?;
        let mut from = self
            .block
            .as_ref()
            .map_or(ptr::null_mut(), BlockMut::unfilled_ptr);
        for ride in self.rides.iter_mut().filter(asked) {
            let mut found = Vec::new();
            found.try_reserve_exact(ride.len).map_err(|_| {
                self.device
                    .context()
                    .out_of_memory(ride.len, isize::MAX as u64)
            })?;
            if ride.len > 0 {
                // SAFETY: the copy wrote so many bytes of the block, and is done.
                found.extend_from_slice(unsafe { std::slice::from_raw_parts(from, ride.len) });
            }
            from = from.wrapping_add(ride.len);
            ride.found = Some(found);
        }
        Ok(())
    }

    /// Host memory for what is copied: page-locked, so that several copies are one wait; of many bytes that is not worth it.
    fn results(&mut self, len: usize) -> Result<BlockMut> {
        match self.block.take() {
            Some(block) if block.remaining() >= len => Ok(block),
            _ if len <= self.device.piece() => self.device.pinned(len),
            _ => Ok(BlockMut::new(HostMemory::new(len)?)),
        }
    }

    fn over(&mut self) -> Result<()> {
        self.stream.synchronize()?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if !self.done {
            // Who could be told has the first error; and a lost device copies nothing any more.
            let _ = self.over();
        }
        if self.done {
            self.copies.are_over();
            self.buffers.iter_mut().for_each(DeviceBuffer::settle);
            return;
        }
        for block in self.unsure.drain(..).chain(self.block.take()) {
            self.device.keep(block);
        }
        // What was taken for the stream goes back in its order anyway.
        for bytes in self.read.drain(..) {
            match bytes.memory().as_any().downcast_ref::<DeviceBuffer>() {
                Some(buffer) => buffer.used_so_far(self.stream),
                None if self.device.context().is_lost() => {}
                // Memory of others: that it is not dropped is all that can be done.
                None => std::mem::forget(bytes),
            }
        }
    }
}
