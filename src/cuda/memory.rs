//! Memory of a device: parts of large allocations, an allocation of their own, or from a stream-ordered pool.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Context;
use super::library::CUdeviceptr;
use super::pool::StreamPool;
use super::spans::Spans;
use super::stream::{Event, Stream};
use crate::buffer::{Memory, Place};
use crate::error::Result;

/// How buffers of a device are kept apart, for tests: kernels that write past a buffer hit nothing else, or are found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guard {
    /// Not at all.
    #[default]
    None,
    /// By [`GAP`] bytes with a pattern behind each, which is checked when the buffer is given back:
    /// [`DeviceStats::overruns`](super::DeviceStats::overruns) counts those that were written to.
    Gaps,
    /// Each is an allocation of its own, so that tools that know allocations see an access past it.
    Separate,
}

/// Bytes between buffers under [`Guard::Gaps`].
pub const GAP: usize = 64;

const PATTERN: u8 = 0xfb;

/// Parts begin at multiples of this; large ones at those of a page, which direct reads into them like.
const ALIGN: u64 = 256;
const PAGE: u64 = 4096;

/// Memory of a device that is freed after its last use.
///
/// It is what blocks of [`Device::allocate`](super::Device::allocate) and delivered [`DeviceBytes`](crate::DeviceBytes) are made of:
/// `bytes.memory().as_any().downcast_ref::<DeviceBuffer>()` finds it.
///
/// Dropped, it is given back once the [uses](Self::used_by) that were told are done. A part of an arena goes back without waiting; an
/// allocation of its own waits for them on the thread that drops it, as `cuMemFree` does anyhow; one from a pool is freed in the order of
/// its stream.
pub struct DeviceBuffer {
    arena: Arc<Arena>,
    home: Home,
    address: CUdeviceptr,
    /// What was asked for.
    len: usize,
    /// What was taken for it, with the gap.
    taken: u64,
    uses: Mutex<Vec<Event>>,
}

enum Home {
    /// Of no bytes.
    Nowhere,
    /// A part of a chunk; with the stream in whose order it is given back, where it was taken for one.
    Part(Option<Stream>),
    Own,
    Pool {
        stream: Stream,
        /// Stays as long as memory that is from it.
        _pool: Arc<StreamPool>,
    },
}

impl DeviceBuffer {
    /// Address on the device. Not zero, and a multiple of 256; of 4096 from that many bytes on, unless it is
    /// [stream-ordered](Self::is_stream_ordered).
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is from a pool of the driver's, in the order of a stream. Such memory cannot be registered with cuFile.
    pub fn is_stream_ordered(&self) -> bool {
        matches!(self.home, Home::Pool { .. })
    }

    /// Keeps the memory until `event` is done, whoever drops it.
    pub fn used_by(&self, event: Event) {
        if !self.arena.context.is_of_this_process() {
            return;
        }
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        // What is done already is no news, so that a buffer that is used again and again has few.
        uses.retain(|event| !matches!(event.is_done(), Ok(true)));
        uses.push(event);
    }

    /// Waits on this thread for the uses that were told.
    #[cfg_attr(not(feature = "gds"), allow(dead_code))]
    pub(crate) fn wait_for_uses(&self) -> Result<()> {
        self.arena.context.check()?;
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.iter().try_for_each(Event::synchronize)?;
        uses.clear();
        Ok(())
    }

    /// What is queued in `stream` from now on waits for the uses that were told.
    pub(crate) fn ready_in(&self, stream: &Stream) -> Result<()> {
        self.arena.context.check()?;
        let uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.iter().try_for_each(|event| stream.wait_for(event))
    }
}

// SAFETY: the range was given by the driver, or is a part of one that no other buffer has until this one is dropped; it
// stays where it is.
unsafe impl Memory for DeviceBuffer {
    fn place(&self) -> Place {
        Place::Device(self.arena.context.info().ordinal)
    }
    fn ptr(&self) -> *mut u8 {
        ptr::without_provenance_mut(self.address as usize)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let arena = &self.arena;
        if !arena.context.is_of_this_process() {
            return;
        }
        arena.in_use.fetch_sub(self.len as u64, Ordering::Relaxed);
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut uses = std::mem::take(uses);
        match &self.home {
            Home::Nowhere => {}
            Home::Part(stream) => {
                match stream.as_ref().map(Stream::record) {
                    None => {}
                    Some(Ok(event)) => uses.push(event),
                    // No mark: wait for all of it, or as long as a broken device lets us.
                    Some(Err(_)) => drop(stream.as_ref().map(Stream::synchronize)),
                }
                arena.check_gap(self, &uses);
                arena.give_back(self.address, self.taken, uses);
            }
            Home::Own => {
                wait_for(&uses);
                arena.check_gap(self, &[]);
                arena.free(self.address, self.taken);
            }
            Home::Pool { stream, .. } => {
                for event in &uses {
                    if stream.wait_for(event).is_err() {
                        let _ = event.synchronize();
                    }
                }
                let address = self.address;
                // SAFETY: taken from the pool in this stream, and given back once.
                arena
                    .context
                    .release(|driver| unsafe { driver.cuMemFreeAsync(address, stream.handle()) });
                arena.held.fetch_sub(self.taken, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("place", &self.place())
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish()
    }
}

/// All memory of a device that comes from here.
pub(crate) struct Arena {
    context: Arc<Context>,
    bounds: Bounds,
    state: Mutex<State>,
    /// Bytes that the driver gave.
    held: AtomicU64,
    /// Bytes of buffers.
    in_use: AtomicU64,
    overruns: AtomicU64,
    /// For the pattern of gaps, where there are any.
    checker: Option<Stream>,
}

/// What an arena may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most bytes at once.
    pub(super) memory: u64,
    /// Bytes of a chunk.
    pub(super) chunk: u64,
    pub(super) guard: Guard,
}

#[derive(Default)]
struct State {
    chunks: Vec<Chunk>,
    /// Given back and still in use by the device.
    late: Vec<Late>,
}

struct Chunk {
    address: CUdeviceptr,
    len: u64,
    spans: Spans,
}

struct Late {
    address: CUdeviceptr,
    len: u64,
    uses: Vec<Event>,
}

/// As far as the driver tells, all of them are done.
fn are_done(uses: &[Event]) -> bool {
    uses.iter().all(|event| matches!(event.is_done(), Ok(true)))
}

/// Waits for each. One that fails is of a device that does nothing any more, or is waited for again by `cuMemFree`.
fn wait_for(uses: &[Event]) {
    for event in uses {
        let _ = event.synchronize();
    }
}

impl Arena {
    pub(super) fn new(context: Arc<Context>, bounds: Bounds) -> Result<Arc<Self>> {
        let checker = match bounds.guard {
            Guard::Gaps => Some(Stream::new(&context)?),
            _ => None,
        };
        Ok(Arc::new(Arena {
            context,
            bounds,
            state: Mutex::default(),
            held: AtomicU64::new(0),
            in_use: AtomicU64::new(0),
            overruns: AtomicU64::new(0),
            checker,
        }))
    }

    /// Bytes of buffers, bytes that the driver gave for them, and gaps that were written to.
    pub(super) fn figures(&self) -> (u64, u64, u64) {
        let figure = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (
            figure(&self.in_use),
            figure(&self.held),
            figure(&self.overruns),
        )
    }

    /// Memory that may be used at once, in any stream.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory): past the bound without asking the driver, or when the driver has none.
    pub(crate) fn allocate(self: &Arc<Self>, len: usize) -> Result<DeviceBuffer> {
        self.context.check()?;
        let taken = self.padded(len)?;
        if len == 0 {
            return Ok(self.buffer(Home::Nowhere, PAGE, 0, 0));
        }
        let own = self.bounds.guard == Guard::Separate || taken > self.bounds.chunk / 4;
        let (home, address) = match own {
            true => (Home::Own, self.own(taken)?),
            false => (Home::Part(None), self.part(taken)?),
        };
        let buffer = self.buffer(home, address, len, taken);
        self.mark_gap(&buffer)?;
        Ok(buffer)
    }

    /// Memory that may be used by what is queued in `stream` from now on, and elsewhere after that; given back in the order of the
    /// stream. From `pool`, where there is one.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub(super) fn allocate_in(
        self: &Arc<Self>,
        stream: &Stream,
        pool: Option<&Arc<StreamPool>>,
        len: usize,
    ) -> Result<DeviceBuffer> {
        let taken = self.padded(len)?;
        let Some(pool) = pool.filter(|_| len > 0 && self.bounds.guard == Guard::None) else {
            let mut buffer = self.allocate(len)?;
            match buffer.home {
                Home::Part(_) => buffer.home = Home::Part(Some(stream.clone())),
                // Given back after a wait; for the stream, it waits for this.
                Home::Own | Home::Nowhere | Home::Pool { .. } => buffer.used_by(stream.record()?),
            }
            return Ok(buffer);
        };
        self.reserve(taken)?;
        let mut address = 0;
        let allocated = self.context.allocate(len, |driver| {
            // SAFETY: a place for the address; pool and stream live.
            unsafe {
                driver.cuMemAllocFromPoolAsync(
                    &mut address,
                    taken as usize,
                    pool.handle.0,
                    stream.handle(),
                )
            }
        });
        if let Err(error) = allocated {
            self.held.fetch_sub(taken, Ordering::Relaxed);
            return Err(error);
        }
        let home = Home::Pool {
            stream: stream.clone(),
            _pool: pool.clone(),
        };
        let buffer = self.buffer(home, address, len, taken);
        // Other streams, such as that of reads, wait until it is there.
        buffer.used_by(stream.record()?);
        Ok(buffer)
    }

    fn buffer(self: &Arc<Self>, home: Home, address: u64, len: usize, taken: u64) -> DeviceBuffer {
        self.in_use.fetch_add(len as u64, Ordering::Relaxed);
        DeviceBuffer {
            arena: self.clone(),
            home,
            address,
            len,
            taken,
            uses: Mutex::default(),
        }
    }

    /// What is taken for `len` bytes.
    fn padded(&self, len: usize) -> Result<u64> {
        let gap = match self.bounds.guard {
            Guard::Gaps => GAP,
            _ => 0,
        };
        let padded = len.checked_add(gap).map(|len| len as u64);
        padded
            .and_then(|len| len.checked_next_multiple_of(ALIGN))
            .filter(|_| len as u64 <= self.bounds.memory)
            .ok_or_else(|| self.context.out_of_memory(len, self.bounds.memory))
    }

    /// Counts bytes that the driver is going to be asked for.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let most = self.bounds.memory.next_multiple_of(PAGE);
        let more = |held: u64| held.checked_add(bytes).filter(|held| *held <= most);
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map(drop)
            .map_err(|_| {
                self.context
                    .out_of_memory(bytes as usize, self.bounds.memory)
            })
    }

    /// Asks the driver.
    fn take(&self, len: u64) -> Result<CUdeviceptr> {
        self.reserve(len)?;
        let mut address = 0;
        // SAFETY: a place for the address.
        let allocated = self.context.allocate(len as usize, |driver| unsafe {
            driver.cuMemAlloc_v2(&mut address, len as usize)
        });
        match allocated {
            Ok(()) => Ok(address),
            Err(error) => {
                self.held.fetch_sub(len, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Gives to the driver what [`take`](Self::take) gave.
    fn free(&self, address: CUdeviceptr, len: u64) {
        // SAFETY: given by `cuMemAlloc`, and given back once.
        self.context
            .release(|driver| unsafe { driver.cuMemFree_v2(address) });
        self.held.fetch_sub(len, Ordering::Relaxed);
    }

    fn own(&self, len: u64) -> Result<CUdeviceptr> {
        self.take(len).or_else(|error| {
            if self.context.is_lost() {
                return Err(error);
            }
            self.trim();
            self.take(len)
        })
    }

    fn part(&self, len: u64) -> Result<CUdeviceptr> {
        let mut state = self.lock();
        self.settle(&mut state);
        if let Some(address) = state.take(len) {
            return Ok(address);
        }
        let chunk = self.bounds.chunk;
        match self.take(chunk) {
            Ok(address) => state.add(address, chunk),
            Err(error) if self.context.is_lost() => return Err(error),
            Err(_) => {
                // What nobody uses any more goes, or what the device is about to be done with serves.
                self.empty(&mut state);
                match state.take(len) {
                    Some(address) => return Ok(address),
                    None => state.add(self.take(len)?, len),
                }
            }
        }
        state
            .take(len)
            .ok_or_else(|| self.context.out_of_memory(len as usize, self.bounds.memory))
    }

    /// Gives back what nobody uses; waits for what the device still uses.
    pub(super) fn trim(&self) {
        self.empty(&mut self.lock());
    }

    fn empty(&self, state: &mut State) {
        for late in std::mem::take(&mut state.late) {
            wait_for(&late.uses);
            state.give(late.address, late.len);
        }
        let (free, used) = std::mem::take(&mut state.chunks)
            .into_iter()
            .partition::<Vec<_>, _>(|chunk| chunk.spans.is_free());
        state.chunks = used;
        for chunk in free {
            self.free(chunk.address, chunk.len);
        }
    }

    /// Takes back what the device is done with by now.
    fn settle(&self, state: &mut State) {
        let lost = self.context.is_lost();
        for late in std::mem::take(&mut state.late) {
            if lost || are_done(&late.uses) {
                state.give(late.address, late.len);
            } else {
                state.late.push(late);
            }
        }
    }

    fn give_back(&self, address: CUdeviceptr, len: u64, uses: Vec<Event>) {
        let done = are_done(&uses);
        let mut state = self.lock();
        if done {
            state.give(address, len);
        } else {
            state.late.push(Late { address, len, uses });
        }
        // One empty chunk is kept for the next buffer; more are not worth their memory.
        let empty = |chunk: &Chunk| chunk.spans.is_free();
        if state.chunks.iter().filter(|chunk| empty(chunk)).count() > 1
            && let Some(at) = state.chunks.iter().rposition(empty)
        {
            let chunk = state.chunks.swap_remove(at);
            drop(state);
            self.free(chunk.address, chunk.len);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and the lists are valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the pattern behind a new buffer, where there is a gap.
    fn mark_gap(&self, buffer: &DeviceBuffer) -> Result<()> {
        let Some(stream) = &self.checker else {
            return Ok(());
        };
        let gap = buffer.address + buffer.len as u64;
        // SAFETY: the gap belongs to the buffer, and the stream lives.
        let queued = self
            .context
            .call(|driver| unsafe { driver.cuMemsetD8Async(gap, PATTERN, GAP, stream.handle()) });
        queued.and_then(|()| stream.synchronize())
    }

    /// Counts a buffer whose gap was written to. Waits for its uses.
    fn check_gap(&self, buffer: &DeviceBuffer, uses: &[Event]) {
        let Some(stream) = &self.checker else { return };
        wait_for(uses);
        let mut found = [PATTERN; GAP];
        let gap = buffer.address + buffer.len as u64;
        // SAFETY: the gap belongs to the buffer. The array lives until the copy is done: the stream is waited for, and a copy to memory
        // that is not page-locked is done when the call returns.
        let copied = self.context.call(|driver| unsafe {
            driver.cuMemcpyDtoHAsync_v2(found.as_mut_ptr().cast(), gap, GAP, stream.handle())
        });
        if copied.and_then(|()| stream.synchronize()).is_ok() && found != [PATTERN; GAP] {
            self.overruns.fetch_add(1, Ordering::Relaxed);
            tracing::error!(?buffer, "something wrote past the end of a buffer");
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let state = std::mem::take(state);
        if !self.context.is_of_this_process() {
            return;
        }
        for late in &state.late {
            wait_for(&late.uses);
        }
        for chunk in state.chunks {
            self.free(chunk.address, chunk.len);
        }
    }
}

impl State {
    fn take(&mut self, len: u64) -> Option<CUdeviceptr> {
        let align = if len >= PAGE { PAGE } else { ALIGN };
        self.chunks
            .iter_mut()
            .find_map(|chunk| chunk.spans.take(len, align))
    }

    fn give(&mut self, address: CUdeviceptr, len: u64) {
        let mut chunks = self.chunks.iter_mut();
        if let Some(chunk) = chunks.find(|chunk| chunk.spans.has(address)) {
            chunk.spans.give(address, len);
        }
    }

    fn add(&mut self, address: CUdeviceptr, len: u64) {
        self.chunks.push(Chunk {
            address,
            len,
            spans: Spans::new(address, len),
        });
    }
}
