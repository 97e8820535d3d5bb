//! A device: its context, its memory, its pinned ring, its streams.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::{Arena, Bounds};
use super::context::Context;
use super::memory::{DeviceBuffer, Guard};
use super::modules::Modules;
use super::pinned::Ring;
use super::probe::DeviceInfo;
use super::staging::Copier;
use super::stream::Stream;
use crate::buffer::{BlockMut, DeviceBytes, Place};
use crate::error::{Error, ErrorKind, Result};

/// Blocks of a launch at most. Kernels go on where more are needed, so this bounds what a launch costs, and nothing else.
const BLOCKS: u32 = 1 << 16;

/// Bytes of a piece that is copied from the host, however small the blocks of the ring are.
const LEAST_PIECE: usize = 4096;

/// How a [`Device`] uses memory; the default is right for most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Most bytes of the device's memory at once. What would go past it is refused before the driver is asked. What the
    /// [stream-ordered pool](Self::pool_keep) keeps is not counted. Default: all that the device has.
    pub memory: Option<u64>,
    /// Bytes that are taken from the driver at a time. Buffers up to a quarter of it are parts of such a chunk; larger ones are
    /// allocations of their own. Default 64 MiB.
    pub chunk: u64,
    /// Most bytes of chunks and allocations that are kept for the next buffers while nobody uses them: the driver waits for all that the
    /// device does when it gives or takes one. They go back when there is no memory for something else of this device's, and by
    /// [`Device::trim`]; one empty chunk is kept in any case. Default: an eighth of what the device has.
    pub keep: Option<u64>,
    /// Least bytes of a block of the pinned ring. Default 4 MiB: a [staging block](crate::StagingOptions::block).
    pub pinned_block: usize,
    /// Most bytes of the pinned ring; blocks are pinned when first needed, and stay. Default 192 MiB: two row groups at a time that 16
    /// threads each decompress have a block for each thread, and some that are copied. When all are in use, or the system refuses to
    /// pin, blocks of ordinary memory serve.
    pub pinned: usize,
    /// Bytes that the stream-ordered pool keeps while nobody uses them, until there is no memory for something else, or
    /// [`Device::trim`]. Default 256 MiB.
    pub pool_keep: u64,
    /// How buffers are kept apart. Default: not at all.
    pub guard: Guard,
    /// Whether the sums in pages of deltas are made by tensor cores, as far as they can. The values are the same. Default: no, as nobody has
    /// measured on a card what it gains.
    pub tensor_sums: bool,
    /// Most blocks of a launch; kernels go on where there is more to do. For tests: with few of them, small inputs are enough for that.
    #[doc(hidden)]
    pub blocks: u32,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            memory: None,
            chunk: 64 << 20,
            keep: None,
            pinned_block: 4 << 20,
            pinned: 192 << 20,
            pool_keep: 256 << 20,
            guard: Guard::None,
            tensor_sums: false,
            blocks: BLOCKS,
        }
    }
}

impl DeviceOptions {
    /// Sets [`memory`](Self::memory), in bytes.
    #[must_use]
    pub fn memory(mut self, most: u64) -> Self {
        self.memory = Some(most);
        self
    }

    /// Sets [`chunk`](Self::chunk), in bytes.
    #[must_use]
    pub fn chunk(mut self, bytes: u64) -> Self {
        self.chunk = bytes;
        self
    }

    /// Sets [`keep`](Self::keep), in bytes.
    #[must_use]
    pub fn keep(mut self, most: u64) -> Self {
        self.keep = Some(most);
        self
    }

    /// Sets [`pinned_block`](Self::pinned_block), in bytes.
    #[must_use]
    pub fn pinned_block(mut self, bytes: usize) -> Self {
        self.pinned_block = bytes;
        self
    }

    /// Sets [`pinned`](Self::pinned), in bytes.
    #[must_use]
    pub fn pinned(mut self, most: usize) -> Self {
        self.pinned = most;
        self
    }

    /// Sets [`pool_keep`](Self::pool_keep), in bytes.
    #[must_use]
    pub fn pool_keep(mut self, bytes: u64) -> Self {
        self.pool_keep = bytes;
        self
    }

    /// Sets [`guard`](Self::guard).
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self
    }

    /// Sets [`tensor_sums`](Self::tensor_sums).
    #[must_use]
    pub fn tensor_sums(mut self, on: bool) -> Self {
        self.tensor_sums = on;
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub fn blocks(mut self, most: u32) -> Self {
        self.blocks = most;
        self
    }

    /// Opens a device: retains its primary context, which is that of the CUDA runtime and of cudarc, too. The first one of a process
    /// takes the driver some tenths of a second, and some hundred MiB of the device.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the reason that [`available`](super::available) gives; [`ErrorKind::Forked`] in
    /// a process forked from one that had used CUDA; [`ErrorKind::Cuda`] if the driver fails a call.
    pub fn open(&self, ordinal: u32) -> Result<Arc<Device>> {
        let context = Context::retain(ordinal)?;
        let most = context.info().memory;
        let bounds = Bounds {
            memory: self.memory.map_or(most, |memory| memory.min(most)),
            // A chunk of whole pages, so that its parts can begin at pages.
            chunk: self.chunk.clamp(1 << 16, 1 << 40).next_multiple_of(1 << 16),
            pool_keep: self.pool_keep,
            keep: self.keep.unwrap_or(most / 8),
            guard: self.guard,
        };
        Ok(Arc::new(Device {
            copier: Copier::new(&context)?,
            own: Stream::new(&context)?,
            arena: Arena::new(context.clone(), bounds)?,
            ring: Ring::new(context.clone(), self.pinned_block.max(1), self.pinned),
            modules: Modules::default(),
            unsettled: Mutex::default(),
            tensor_sums: self.tensor_sums,
            blocks: self.blocks.clamp(1, BLOCKS),
            context,
        }))
    }
}

/// A GPU, and what is held of it: its primary context, memory, a ring of pinned host memory, streams.
///
/// [`OpenOptions::device`](crate::OpenOptions::device) makes readers that deliver into its memory:
///
/// ```
/// use feedwater::{Batch, Block, OpenOptions, ReaderExt, cuda};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("weights.bin");
/// # std::fs::write(&path, "some bytes")?;
/// match cuda::Device::open(0) {
///     Err(why) => println!("{why}"), // such as: there is no CUDA driver
///     Ok(gpu) => {
///         let reader = OpenOptions::new().device(gpu.clone()).open(&path)?;
///         let batch = Batch::new().any_at(0..reader.len(), gpu.place());
///         let blocks = reader.submit(batch).wait()?; // or .await
///         # use feedwater::Reader;
///         if let Block::Device(bytes) = &blocks[0] {
///             println!("{} bytes at {:p} of {}", bytes.len(), bytes.ptr(), gpu.info());
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - **Threads.** All methods may be called from any; the caller's current context is as before afterwards. A thread,
///   `feedwater-cuda`, waits for copies, and ends with the device and its last copy.
/// - **Lifetimes.** Blocks, streams and modules hold on to the context: drop the device and them in any order.
/// - **Errors** are typed: [`Cuda`](ErrorKind::Cuda) for a call that failed, [`OutOfMemory`](ErrorKind::OutOfMemory),
///   [`DeviceLost`](ErrorKind::DeviceLost) when the device broke down, after which every call says so and memory is still given
///   back as far as the driver takes it.
/// - **Fork.** In a child every call is [`Forked`](ErrorKind::Forked), and dropping leaks: CUDA does not work there.
pub struct Device {
    copier: Copier,
    /// For what has no stream of its own: copies, and kernels of callers that wait.
    own: Stream,
    arena: Arc<Arena>,
    ring: Arc<Ring>,
    modules: Modules,
    /// Blocks that a copy may still write to, of which nobody knows whether it is over.
    unsettled: Mutex<Vec<BlockMut>>,
    tensor_sums: bool,
    blocks: u32,
    context: Arc<Context>,
}

impl Device {
    /// Opens a device with default options.
    ///
    /// # Errors
    /// As [`DeviceOptions::open`].
    pub fn open(ordinal: u32) -> Result<Arc<Device>> {
        DeviceOptions::default().open(ordinal)
    }

    /// What the driver says of it, as it was opened.
    pub fn info(&self) -> &DeviceInfo {
        self.context.info()
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> u32 {
        self.info().ordinal
    }

    /// Where its memory is, as [`Batch::any_at`](crate::Batch::any_at) takes it.
    pub fn place(&self) -> Place {
        Place::Device(self.ordinal())
    }

    /// Bytes of its memory that are free now, whoever has the others, and all of them.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the numbers.
        let told = self
            .context
            .call(|driver| unsafe { driver.cuMemGetInfo_v2(&mut free, &mut total) });
        told?;
        Ok((free as u64, total as u64))
    }

    /// Bytes that buffers could have now: what the driver has free, what is kept for them and what the pool keeps, within
    /// [`DeviceOptions::memory`].
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(crate) fn available(&self) -> Result<u64> {
        let (free, _) = self.memory()?;
        self.arena.available(free)
    }

    /// An unfilled block of exactly `len` bytes of its memory, of a [`DeviceBuffer`], to read into. Its content is undefined.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] past [`DeviceOptions::memory`] or when the driver has none.
    pub fn allocate(&self, len: usize) -> Result<BlockMut> {
        self.arena.allocate(len).map(BlockMut::new)
    }

    /// [`DeviceOptions::tensor_sums`].
    pub(super) fn tensor_sums(&self) -> bool {
        self.tensor_sums
    }

    /// [`DeviceOptions::blocks`].
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The same before it is a block.
    #[cfg_attr(not(feature = "gds"), allow(dead_code))]
    pub(crate) fn buffer(&self, len: usize) -> Result<DeviceBuffer> {
        self.arena.allocate(len)
    }

    /// The same for work of one stream: to be used by what is queued in `stream` from now on, and given back in its order, without
    /// waiting for either. From a pool of the driver's where the device has them.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_in(&self, stream: &Stream, len: usize) -> Result<BlockMut> {
        self.arena.allocate_in(stream, len).map(BlockMut::new)
    }

    /// A block of the pinned ring with at least `len` bytes: host memory that the device copies from at full speed. Of ordinary memory
    /// if the ring has none, or smaller ones; [`BlockMut::place`] tells.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the host has none; [`ErrorKind::Forked`] in a child.
    pub fn pinned(&self, len: usize) -> Result<BlockMut> {
        self.context.check()?;
        self.ring.take(len)
    }

    /// The same, if the ring has one.
    pub(super) fn pinned_now(&self, len: usize) -> Result<Option<BlockMut>> {
        self.context.check()?;
        Ok(self.ring.take_pinned(len))
    }

    /// Bytes that are copied from the host at once, at most: a block of the ring.
    pub(crate) fn piece(&self) -> usize {
        self.ring.block().max(LEAST_PIECE)
    }

    /// A new stream.
    ///
    /// # Errors
    /// [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(&self.context)
    }

    /// A stream that somebody else made (a `CUstream`; null is the legacy default one), to queue into and to wait for.
    ///
    /// # Safety
    /// It is a stream of this device, and stays until the value, its clones, and memory that was [allocated in
    /// it](Self::allocate_in) are dropped.
    pub unsafe fn borrow_stream(&self, stream: *mut c_void) -> Stream {
        // SAFETY: as the caller promises.
        unsafe { Stream::foreign(&self.context, stream) }
    }

    /// Says that what was queued in `stream` so far uses `bytes`: their memory is not given back before that is done.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if they are not of a [`DeviceBuffer`]; else as [`stream`](Self::stream).
    pub fn used_in(&self, stream: &Stream, bytes: &DeviceBytes) -> Result<()> {
        let Some(buffer) = bytes.memory().as_any().downcast_ref::<DeviceBuffer>() else {
            let what = "to keep memory that is not this crate's until its last use".into();
            return Err(Error::new(ErrorKind::Unsupported { what }).by("cuda"));
        };
        buffer.used_by(stream.record()?);
        Ok(())
    }

    /// A copy of `bytes` in host memory, after all uses that were [told](Self::used_in). For tests and small results: the memory is not
    /// pinned, so it is slow.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for bytes of another device, [`ErrorKind::OutOfMemory`] if the host has no room,
    /// [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn to_host(&self, bytes: &DeviceBytes) -> Result<Vec<u8>> {
        self.to_host_in(&self.own, bytes)
    }

    /// The same in another stream.
    pub(crate) fn to_host_in(&self, stream: &Stream, bytes: &DeviceBytes) -> Result<Vec<u8>> {
        self.must_be_here(bytes.place())?;
        let len = bytes.len();
        let mut copy: Vec<u8> = Vec::new();
        copy.try_reserve_exact(len)
            .map_err(|_| self.context.out_of_memory(len, isize::MAX as u64))?;
        if len == 0 {
            return Ok(copy);
        }
        if let Some(buffer) = bytes.memory().as_any().downcast_ref::<DeviceBuffer>() {
            buffer.ready_in(stream)?;
        }
        let (to, from) = (copy.as_mut_ptr().cast(), bytes.ptr().addr() as u64);
        // SAFETY: both have `len` bytes. A copy to memory that is not page-locked is done when the call returns.
        let queued = self
            .context
            .call(|driver| unsafe { driver.cuMemcpyDtoHAsync_v2(to, from, len, stream.handle()) });
        queued.and_then(|()| stream.synchronize())?;
        // SAFETY: all of them were written.
        unsafe { copy.set_len(len) };
        Ok(copy)
    }

    /// Gives memory that nobody uses back to the driver. Waits for what the device still does with memory that was given back; where
    /// there is a stream-ordered pool, for all that the device does.
    pub fn trim(&self) {
        if self.context.is_of_this_process() {
            self.arena.trim();
        }
    }

    /// What is in use now, and what went wrong where nobody could be told.
    pub fn stats(&self) -> DeviceStats {
        if !self.context.is_of_this_process() {
            return DeviceStats::default();
        }
        let (in_use, held, overruns) = self.arena.figures();
        let (pinned, unpinned) = self.ring.figures();
        DeviceStats {
            in_use,
            held,
            pinned,
            unpinned,
            overruns,
            failed_releases: self.context.failed_releases(),
        }
    }

    /// The driver's `CUcontext`, for calls of your own; retained as long as the device is open.
    pub fn raw_context(&self) -> *mut c_void {
        self.context.raw().cast()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// # Errors
    /// [`ErrorKind::Unsupported`] for another place than this device.
    pub(super) fn must_be_here(&self, place: Place) -> Result<()> {
        if place == self.place() {
            return Ok(());
        }
        let what = format!("reading {place} through device {}", self.ordinal());
        Err(Error::new(ErrorKind::Unsupported { what: what.into() }).by("cuda"))
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The stream for what is waited for, where there is no other.
    pub(crate) fn own(&self) -> &Stream {
        &self.own
    }

    /// Keeps a block from everybody as long as the device is open.
    pub(super) fn keep(&self, block: BlockMut) {
        let unsettled = self.unsettled.lock();
        unsettled
            .unwrap_or_else(PoisonError::into_inner)
            .push(block);
    }

    pub(super) fn copier(&self) -> &Copier {
        &self.copier
    }

    pub(super) fn modules(&self) -> &Modules {
        &self.modules
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("info", self.info())
            .finish_non_exhaustive()
    }
}

/// What a [`Device`] holds; see [`Device::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Bytes of buffers that are in use.
    pub in_use: u64,
    /// Bytes of device memory that the driver gave for them: more, by what is kept for the next.
    pub held: u64,
    /// Bytes of pinned host memory.
    pub pinned: u64,
    /// Blocks that were of ordinary memory because the ring had none, or the system refused to pin.
    pub unpinned: u64,
    /// Buffers whose [gap](Guard::Gaps) was written to.
    pub overruns: u64,
    /// Times that the driver failed to take something back.
    pub failed_releases: u64,
}
