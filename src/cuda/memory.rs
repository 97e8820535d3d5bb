//! Memory of a device, freed after its last use.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::Arena;
use super::library::CUdeviceptr;
use super::pool::StreamPool;
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

/// Memory of a device that is freed after its last use.
///
/// It is what blocks of [`Device::allocate`](super::Device::allocate) and delivered [`DeviceBytes`](crate::DeviceBytes) are made of:
/// `bytes.memory().as_any().downcast_ref::<DeviceBuffer>()` finds it.
///
/// Dropped, it is given back once the [uses](Self::used_by) that were told are done. Nobody waits for that: a part of an arena, or an
/// allocation of its own, is left to the next buffer after it, and one from a pool is freed in the order of its stream. Only an allocation that is
/// more than may be [kept](super::DeviceOptions::keep) waits for them on the thread that drops it, as `cuMemFree` does anyhow. Where the driver
/// cannot say whether the device is done with it, nobody else gets it.
///
/// **Work that you queue on it is nothing that this crate can see.** Before the last of its bytes is dropped, wait for that work, or tell of it
/// ([`used_by`](Self::used_by), [`Device::used_in`](super::Device::used_in)); else the next read or kernel writes where yours still reads.
pub struct DeviceBuffer {
    pub(super) arena: Arc<Arena>,
    pub(super) home: Home,
    pub(super) address: CUdeviceptr,
    /// What was asked for.
    pub(super) len: usize,
    /// What was taken for it, with the gap.
    pub(super) taken: u64,
    /// In whose order it is given back, where it was taken for one.
    pub(super) stream: Option<Stream>,
    /// Whether the gap behind it has the pattern.
    pub(super) marked: bool,
    pub(super) uses: Mutex<Vec<Event>>,
    /// Whether there may be uses of which there is no mark.
    pub(super) unmarked: AtomicBool,
}

/// Where it is from.
pub(super) enum Home {
    /// Of no bytes.
    Nowhere,
    /// A part of a chunk.
    Part,
    /// An allocation, which may begin before it and be longer.
    Own { base: CUdeviceptr, whole: u64 },
    /// From a pool, which stays as long as memory that is from it.
    Pool { _pool: Arc<StreamPool> },
}

impl DeviceBuffer {
    /// Address on the device. Not zero, and a multiple of 256; of 4096 from that many bytes on, unless it is
    /// [stream-ordered](Self::is_stream_ordered) or under [`Guard::Separate`].
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

    /// Says that what was queued in the stream that it was taken for is over.
    pub(super) fn settle(&mut self) {
        // Memory of a pool goes back by a stream in any case.
        if !self.is_stream_ordered() {
            self.stream = None;
        }
    }

    /// Keeps the memory until what was queued in `stream` so far is done; from everybody, where that cannot be marked.
    pub(super) fn used_so_far(&self, stream: &Stream) {
        match stream.record() {
            Ok(event) => self.used_by(event),
            Err(_) => self.unmarked(),
        }
    }

    /// Says that nobody knows when its uses are over.
    pub(super) fn unmarked(&self) {
        self.unmarked.store(true, Ordering::Relaxed);
    }

    /// Keeps the memory until `event` is done, whoever drops it.
    pub fn used_by(&self, event: Event) {
        if !self.arena.context().is_of_this_process() {
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
        self.arena.context().check()?;
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.iter().try_for_each(Event::synchronize)?;
        uses.clear();
        Ok(())
    }

    /// What is queued in `stream` from now on waits for the uses that were told.
    pub(crate) fn ready_in(&self, stream: &Stream) -> Result<()> {
        self.arena.context().check()?;
        let uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.iter().try_for_each(|event| stream.wait_for(event))
    }
}

// SAFETY: the range was given by the driver, or is a part of one that no other buffer has until this one is dropped; it
// stays where it is.
unsafe impl Memory for DeviceBuffer {
    fn place(&self) -> Place {
        Place::Device(self.arena.context().info().ordinal)
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
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let uses = std::mem::take(uses);
        self.arena.take_back(self, uses);
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
