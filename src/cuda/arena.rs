//! Where memory of a device comes from, and when it goes back: chunks with parts, allocations, a stream-ordered pool.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Context;
use super::library::CUdeviceptr;
use super::memory::{DeviceBuffer, GAP, Guard, Home};
use super::pool::StreamPool;
use super::spans::Spans;
use super::stream::{Event, Stream};
use crate::error::{Error, ErrorKind, Result};

const PATTERN: u8 = 0xfb;

/// Parts begin at multiples of this; large ones at those of a page, which direct reads into them like.
const ALIGN: u64 = 256;
const PAGE: u64 = 4096;

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
    /// `None`: not asked for yet; `Some(None)`: the device has none.
    pool: Mutex<Option<Option<Arc<StreamPool>>>>,
}

/// What an arena may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most bytes at once.
    pub(super) memory: u64,
    /// Bytes of a chunk.
    pub(super) chunk: u64,
    /// Bytes that the pool keeps.
    pub(super) pool_keep: u64,
    /// Bytes of chunks and allocations that are kept while nobody has them.
    pub(super) keep: u64,
    pub(super) guard: Guard,
}

#[derive(Default)]
struct State {
    chunks: Vec<Chunk>,
    /// Given back and still in use by the device.
    late: Vec<Late>,
    /// Allocations that nobody has, for the next large buffers; the one that was given back first is in front.
    kept: VecDeque<Kept>,
}

struct Chunk {
    address: CUdeviceptr,
    len: u64,
    spans: Spans,
}

impl Chunk {
    /// Whether nobody has a part of it.
    fn is_free(&self) -> bool {
        self.spans.is_free()
    }
}

struct Late {
    address: CUdeviceptr,
    len: u64,
    uses: Vec<Event>,
}

/// An allocation that the device may still use.
struct Kept {
    base: CUdeviceptr,
    whole: u64,
    uses: Vec<Event>,
}

/// As far as the driver tells, all of them are done.
fn are_done(uses: &[Event]) -> bool {
    uses.iter().all(|event| matches!(event.is_done(), Ok(true)))
}

/// Waits for each; whether all of them are over.
fn wait_for(uses: &[Event]) -> bool {
    uses.iter().all(Event::is_over)
}

/// What `len` bytes are aligned to.
fn align_of(len: u64) -> u64 {
    if len >= PAGE { PAGE } else { ALIGN }
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
            pool: Mutex::new(None),
        }))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
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

    /// Bytes that buffers could still have where the driver has so many free.
    ///
    /// # Errors
    /// Those of the driver that is asked what its pool keeps.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn available(&self, free: u64) -> Result<u64> {
        let (in_use, held, _) = self.figures();
        // Whoever has others takes and gives back at the same time.
        let kept = held.saturating_sub(in_use);
        let left = self.bounds.memory.saturating_sub(in_use);
        // Nobody holds that, and the driver does not count it as free.
        let pooled = self.made_pool().map_or(Ok(0), |pool| pool.kept())?;
        Ok(free.saturating_add(kept).saturating_add(pooled).min(left))
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
        let separate = self.bounds.guard == Guard::Separate;
        let (home, address) = if separate || taken > self.bounds.chunk / 4 {
            let align = if separate { ALIGN } else { align_of(taken) };
            let (base, whole) = self.own(taken, align)?;
            (Home::Own { base, whole }, base.next_multiple_of(align))
        } else {
            (Home::Part, self.part(taken)?)
        };
        let mut buffer = self.buffer(home, address, len, taken);
        match self.mark_gap(&buffer) {
            Ok(marked) => buffer.marked = marked,
            Err(error) => {
                // It may be queued all the same.
                buffer.stream = self.checker.clone();
                return Err(error);
            }
        }
        Ok(buffer)
    }

    /// The same for what is queued in `stream`: it is given back only after that, whoever drops it when.
    pub(super) fn allocate_for(
        self: &Arc<Self>,
        stream: &Stream,
        len: usize,
    ) -> Result<DeviceBuffer> {
        let mut buffer = self.allocate(len)?;
        buffer.stream = Some(stream.clone());
        Ok(buffer)
    }

    /// Memory that may be used by what is queued in `stream` from now on, and elsewhere after that; given back in the order of the
    /// stream. From a pool of the driver's, where the device has them.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub(super) fn allocate_in(
        self: &Arc<Self>,
        stream: &Stream,
        len: usize,
    ) -> Result<DeviceBuffer> {
        self.context.check()?;
        let taken = self.padded(len)?;
        let pooled = len > 0 && self.bounds.guard == Guard::None;
        let Some(pool) = pooled.then(|| self.stream_pool()).transpose()?.flatten() else {
            return self.allocate_for(stream, len);
        };
        let take = || self.take_in(stream, &pool, taken);
        let address = take().or_else(|error| self.once_trimmed(error, take))?;
        let mut buffer = self.buffer(Home::Pool { _pool: pool }, address, len, taken);
        buffer.stream = Some(stream.clone());
        // Other streams, such as that of reads, wait until it is there.
        buffer.used_by(stream.record()?);
        Ok(buffer)
    }

    fn take_in(&self, stream: &Stream, pool: &StreamPool, taken: u64) -> Result<CUdeviceptr> {
        self.reserve(taken)?;
        let mut address = 0;
        let (pool, handle) = (pool.handle.0, stream.handle());
        let allocated = self.context.allocate(taken as usize, |driver| {
            // SAFETY: a place for the address; pool and stream live.
            unsafe { driver.cuMemAllocFromPoolAsync(&mut address, taken as usize, pool, handle) }
        });
        match allocated {
            Ok(()) => Ok(address),
            Err(error) => {
                self.held.fetch_sub(taken, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// The pool for streams, made if there is none; `None` where the device has no pools.
    fn stream_pool(&self) -> Result<Option<Arc<StreamPool>>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        match &*pool {
            Some(pool) => Ok(pool.clone()),
            None => {
                let made = StreamPool::new(&self.context, self.bounds.pool_keep)?;
                Ok(pool.insert(made).clone())
            }
        }
    }

    fn buffer(self: &Arc<Self>, home: Home, address: u64, len: usize, taken: u64) -> DeviceBuffer {
        self.in_use.fetch_add(len as u64, Ordering::Relaxed);
        DeviceBuffer {
            arena: self.clone(),
            home,
            address,
            len,
            taken,
            stream: None,
            marked: false,
            uses: Mutex::default(),
            unmarked: AtomicBool::new(false),
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

    /// Most bytes that the driver may have given.
    fn most(&self) -> u64 {
        self.bounds.memory.next_multiple_of(PAGE)
    }

    /// Counts bytes that the driver is going to be asked for.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let most = self.most();
        let more = |held: u64| held.checked_add(bytes).filter(|held| *held <= most);
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map(drop)
            .map_err(|_| self.too_much(bytes))
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

    /// An allocation that has `len` bytes from a multiple of `align` on, and its length.
    fn take_aligned(&self, len: u64, align: u64) -> Result<(CUdeviceptr, u64)> {
        let address = self.take(len)?;
        if address.is_multiple_of(align) {
            return Ok((address, len));
        }
        // The driver promises multiples of 256 alone, and small ones are at no more.
        self.free(address, len);
        let whole = len + align;
        Ok((self.take(whole)?, whole))
    }

    /// An allocation that nobody else has, and that the device does not use: one that was kept, or a new one. The driver waits for all that
    /// the device does when it gives or takes one, so that the first is much better.
    fn own(&self, len: u64, align: u64) -> Result<(CUdeviceptr, u64)> {
        // What is given back in turn is about as long; more than that would be wasted.
        let near = |kept: &Kept| kept.whole - len <= len / 4 + align;
        let done = |kept: &Kept| near(kept) && are_done(&kept.uses);
        let kept = self.lock().again(len, align, done);
        if let Some(kept) = kept {
            return Ok((kept.base, kept.whole));
        }
        let take = || self.take_aligned(len, align);
        take().or_else(|error| {
            if !self.is_full(&error) {
                return Err(error);
            }
            // What the device is about to be done with serves.
            let late = self.lock().again(len, align, |_| true);
            if let Some(kept) = late {
                if wait_for(&kept.uses) {
                    return Ok((kept.base, kept.whole));
                }
                // `cuMemFree` waits.
                self.free(kept.base, kept.whole);
            }
            self.once_trimmed(error, take)
        })
    }

    /// Takes memory when the driver was given of what nobody uses as much as that needs. Nobody else gives something back between the two.
    fn once_trimmed<T>(&self, error: Error, take: impl Fn() -> Result<T>) -> Result<T> {
        let taken = self.once_freed(&mut self.lock(), error, &take);
        taken.or_else(|error| {
            if !self.is_full(&error) {
                return Err(error);
            }
            // Last, as it waits for all that the device does.
            self.trim_pool();
            let mut state = self.lock();
            take().or_else(|error| self.once_freed(&mut state, error, &take))
        })
    }

    /// Whether what is kept may help against an error: it says that there is no room, and does not come of a device that is lost.
    fn is_full(&self, error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::OutOfMemory { .. }) && !self.context.is_lost()
    }

    /// Takes memory that there was no room for: gives to the driver what nobody has, one after the other, until there is.
    fn once_freed<T>(
        &self,
        state: &mut State,
        error: Error,
        take: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let mut last = error;
        loop {
            if !self.is_full(&last) || !self.free_one(state) {
                return Err(last);
            }
            match take() {
                Ok(taken) => return Ok(taken),
                Err(error) => last = error,
            }
        }
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
            Err(error) if !self.is_full(&error) => return Err(error),
            Err(error) => {
                // What the device is about to be done with serves, or what nobody uses any more goes.
                self.await_late(&mut state);
                if let Some(address) = state.take(len) {
                    return Ok(address);
                }
                let whole = match self.could_hold(&state, chunk) {
                    true => self.once_freed(&mut state, error, || self.take(chunk)),
                    false => Err(error),
                };
                match whole {
                    Ok(address) => state.add(address, chunk),
                    Err(error) if !self.is_full(&error) => return Err(error),
                    Err(_) => {
                        let take = || self.take_aligned(len, align_of(len));
                        let mut taken =
                            take().or_else(|error| self.once_freed(&mut state, error, take));
                        if taken.as_ref().is_err_and(|error| self.is_full(error)) {
                            drop(state);
                            self.trim_pool();
                            state = self.lock();
                            // Others had the lock meanwhile, and may have brought a chunk.
                            if let Some(address) = state.take(len) {
                                return Ok(address);
                            }
                            taken =
                                take().or_else(|error| self.once_freed(&mut state, error, take));
                        }
                        let (base, whole) = taken?;
                        state.add(base, whole);
                    }
                }
            }
        }
        state.take(len).ok_or_else(|| self.too_much(len))
    }

    /// Whether the bound has room for `len` bytes more once all that nobody has is given back.
    fn could_hold(&self, state: &State, len: u64) -> bool {
        let free = state.free_chunks().map(|chunk| chunk.len);
        let free: u64 = free.chain(state.kept.iter().map(|kept| kept.whole)).sum();
        let (_, held, _) = self.figures();
        let left = held.saturating_sub(free).checked_add(len);
        left.is_some_and(|all| all <= self.most())
    }

    fn too_much(&self, len: u64) -> Error {
        self.context.out_of_memory(len as usize, self.bounds.memory)
    }

    /// Gives back what nobody uses; waits for what the device still uses.
    pub(super) fn trim(&self) {
        self.empty(&mut self.lock());
        self.trim_pool();
    }

    /// Gives back what the pool keeps. It waits for all that the device does, so nobody calls it with the lock.
    fn trim_pool(&self) {
        if let Some(pool) = self.made_pool() {
            pool.trim();
        }
    }

    /// The pool for streams, if there is one by now.
    fn made_pool(&self) -> Option<Arc<StreamPool>> {
        let made = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        made.clone().flatten()
    }

    /// Gives to the driver what nobody has, after its last use.
    fn empty(&self, state: &mut State) {
        while self.free_one(state) {}
    }

    /// Gives to the driver an allocation that nobody has, after its last use: the one that was given back first, or else an empty chunk;
    /// whether there was one.
    fn free_one(&self, state: &mut State) -> bool {
        if let Some(kept) = state.kept.pop_front() {
            // If a wait fails, `cuMemFree` waits.
            let _ = wait_for(&kept.uses);
            self.free(kept.base, kept.whole);
            return true;
        }
        // `cuMemFree` would wait for the same.
        self.await_late(state);
        let Some(at) = state.chunks.iter().rposition(Chunk::is_free) else {
            return false;
        };
        let chunk = state.chunks.swap_remove(at);
        self.free(chunk.address, chunk.len);
        true
    }

    /// Takes back what the device still uses, after its last use.
    fn await_late(&self, state: &mut State) {
        for late in std::mem::take(&mut state.late) {
            if wait_for(&late.uses) {
                state.give(late.address, late.len);
            } else {
                state.late.push(late);
            }
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

    /// Takes a buffer back, once.
    pub(super) fn take_back(&self, buffer: &DeviceBuffer, uses: Vec<Event>) {
        if !self.context.is_of_this_process() {
            return;
        }
        self.in_use.fetch_sub(buffer.len as u64, Ordering::Relaxed);
        let unmarked = buffer.unmarked.load(Ordering::Relaxed) && !self.context.is_lost();
        match &buffer.home {
            Home::Nowhere => {}
            Home::Part | Home::Pool { .. } if unmarked => {
                self.keep(buffer, &"nobody could wait for its uses, or mark them");
            }
            Home::Pool { .. } => self.give_back_in_order(buffer, &uses),
            Home::Part | Home::Own { .. } => self.give_back_after(buffer, uses),
        }
    }

    /// Gives a part, or an allocation, back after its uses and what is queued in its stream.
    fn give_back_after(&self, buffer: &DeviceBuffer, mut uses: Vec<Event>) {
        if let Some(stream) = &buffer.stream {
            match stream.record() {
                Ok(event) => uses.push(event),
                // No mark: wait for all of it.
                Err(_) if stream.is_over() => {}
                Err(error) => return self.keep(buffer, &error),
            }
        }
        if let Home::Own { base, whole } = buffer.home {
            let marked = !buffer.unmarked.load(Ordering::Relaxed) && !self.context.is_lost();
            if marked && self.bounds.guard != Guard::Separate && whole <= self.bounds.keep {
                self.check_gap(buffer, &uses);
                let mut state = self.lock();
                state.kept.push_back(Kept { base, whole, uses });
                return self.shrink(state);
            }
            // If a wait fails, `cuMemFree` waits.
            let _ = wait_for(&uses);
            self.check_gap(buffer, &[]);
            self.free(base, whole);
        } else {
            self.check_gap(buffer, &uses);
            self.give_back(buffer.address, buffer.taken, uses);
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
        self.shrink(state);
    }

    /// Gives to the driver what is more than may be kept, and one empty chunk.
    fn shrink(&self, mut state: MutexGuard<'_, State>) {
        let more: Vec<_> = std::iter::from_fn(|| state.excess(self.bounds.keep)).collect();
        drop(state);
        for kept in more {
            // If a wait fails, `cuMemFree` waits.
            let _ = wait_for(&kept.uses);
            self.free(kept.base, kept.whole);
        }
    }

    /// Gives memory of a pool back in the order of its stream, after its uses in others.
    fn give_back_in_order(&self, buffer: &DeviceBuffer, uses: &[Event]) {
        let Some(stream) = &buffer.stream else { return };
        for event in uses {
            if let Err(error) = stream.wait_for(event)
                && !event.is_over()
            {
                return self.keep(buffer, &error);
            }
        }
        let address = buffer.address;
        // SAFETY: taken from the pool in this stream, and given back once.
        self.context
            .release(|driver| unsafe { driver.cuMemFreeAsync(address, stream.handle()) });
        self.held.fetch_sub(buffer.taken, Ordering::Relaxed);
    }

    /// Leaves memory to nobody, since the device may still use it.
    fn keep(&self, buffer: &DeviceBuffer, why: &dyn Display) {
        tracing::warn!(?buffer, %why, "memory is not used again: nobody knows whether its last use is over");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and the lists are valid between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the pattern behind a new buffer, where there is a gap; whether there is one.
    fn mark_gap(&self, buffer: &DeviceBuffer) -> Result<bool> {
        let Some(stream) = &self.checker else {
            return Ok(false);
        };
        let gap = buffer.address + buffer.len as u64;
        // SAFETY: the gap belongs to the buffer, and the stream lives.
        let queued = self
            .context
            .call(|driver| unsafe { driver.cuMemsetD8Async(gap, PATTERN, GAP, stream.handle()) });
        queued.and_then(|()| stream.synchronize()).map(|()| true)
    }

    /// Counts a buffer whose gap was written to. Waits for its uses.
    fn check_gap(&self, buffer: &DeviceBuffer, uses: &[Event]) {
        let Some(stream) = self.checker.as_ref().filter(|_| buffer.marked) else {
            return;
        };
        if !wait_for(uses) {
            return;
        }
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
            // If a wait fails, `cuMemFree` waits.
            let _ = wait_for(&late.uses);
        }
        for kept in state.kept {
            let _ = wait_for(&kept.uses);
            self.free(kept.base, kept.whole);
        }
        for chunk in state.chunks {
            self.free(chunk.address, chunk.len);
        }
    }
}

impl State {
    fn take(&mut self, len: u64) -> Option<CUdeviceptr> {
        let mut chunks = self.chunks.iter_mut();
        chunks.find_map(|chunk| chunk.spans.take(len, align_of(len)))
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

    /// Chunks of which nobody has a part.
    fn free_chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(|chunk| chunk.is_free())
    }

    /// The shortest of the allocations that were kept which has `len` bytes from a multiple of `align` on, and is `good`.
    fn again(&mut self, len: u64, align: u64, good: impl Fn(&Kept) -> bool) -> Option<Kept> {
        let fits = |kept: &Kept| {
            let begin = kept.base.next_multiple_of(align);
            begin - kept.base + len <= kept.whole && good(kept)
        };
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
        let (at, _) = fitting.min_by_key(|(_, kept)| kept.whole)?;
        self.kept.remove(at)
    }

    /// Takes out what nobody has, while that is more than `keep` bytes, but for one chunk.
    fn excess(&mut self, keep: u64) -> Option<Kept> {
        let (count, bytes) = self.free_chunks().fold((0, 0), |(count, bytes), chunk| {
            (count + 1, bytes + chunk.len)
        });
        let kept: u64 = self.kept.iter().map(|kept| kept.whole).sum();
        if bytes + kept <= keep {
            return None;
        }
        if let Some(kept) = self.kept.pop_front() {
            return Some(kept);
        }
        let at = self.chunks.iter().rposition(Chunk::is_free);
        let at = at.filter(|_| count > 1)?;
        let Chunk { address, len, .. } = self.chunks.swap_remove(at);
        Some(Kept {
            base: address,
            whole: len,
            uses: Vec::new(),
        })
    }
}
