//! Exclusive blocks to read into, and the shared blocks they become.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;

use super::memory::{Memory, Place, VecMemory};
use crate::error::{Error, ErrorKind, Result};

/// An exclusive piece of some [`Memory`], filled from its start; not `Clone`.
///
/// It need not be initialised: only what has been filled can be seen. One arena splits into many disjoint
/// blocks ([`split_to`](Self::split_to)), each the destination of its own read.
///
/// ```
/// use feedwater::{Batch, BlockMut, MemoryReader, Reader};
///
/// let reader = MemoryReader::new("one arena, two reads");
/// let mut arena = BlockMut::with_capacity(12);
/// let head = arena.split_to(3);
/// let blocks = reader
///     .submit(Batch::new().read_into(0..3, head).read_into(15..20, arena))
///     .wait()?;
/// assert_eq!(blocks[1].as_host().unwrap(), &b"reads"[..]);
/// # Ok::<(), feedwater::Error>(())
/// ```
pub struct BlockMut {
    // Holds offsets and no raw pointer, so it is Send and Sync as its owner is.
    owner: Arc<dyn Memory>,
    range: Range<usize>,
    filled: usize,
}

impl BlockMut {
    /// The whole of `memory` as one unfilled block. One allocation.
    pub fn new(memory: impl Memory) -> Self {
        let len = memory.len();
        BlockMut {
            owner: Arc::new(memory),
            range: 0..len,
            filled: 0,
        }
    }

    /// An unfilled block of `len` bytes from the allocator, without alignment. For small ones; a
    /// [`Pool`](super::Pool) has aligned ones that are used again.
    pub fn with_capacity(len: usize) -> Self {
        let mut block = BlockMut::new(VecMemory::new(Vec::with_capacity(len)));
        block.range.end = len; // the allocator may have given more
        block
    }

    /// Length in bytes, filled or not.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Bytes filled so far, counted from the start.
    pub fn filled_len(&self) -> usize {
        self.filled
    }

    /// Bytes that can still be filled.
    pub fn remaining(&self) -> usize {
        self.range.len() - self.filled
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.owner.place()
    }

    /// The memory it is a piece of, for engines that recognise their own.
    pub fn memory(&self) -> &dyn Memory {
        &*self.owner
    }

    /// Where the block begins within its memory, in bytes.
    pub fn offset_in_memory(&self) -> usize {
        self.range.start
    }

    /// Address of the first unfilled byte: where an engine writes next. Opaque for a device.
    ///
    /// Writing [`remaining`](Self::remaining) bytes from there is sound as long as the block is not touched
    /// otherwise meanwhile; announce them with [`advance`](Self::advance).
    pub fn unfilled_ptr(&self) -> *mut u8 {
        // Wrapping, since a device address is not an object of this program.
        self.owner
            .ptr()
            .wrapping_add(self.range.start + self.filled)
    }

    /// The filled bytes; empty for a device.
    pub fn filled(&self) -> &[u8] {
        if self.filled == 0 || !self.place().is_host_accessible() {
            return &[]; // of memory without bytes, the address may be null
        }
        // SAFETY: `filled` bytes from the block's start were written (kept true by `put` and by the callers of
        // `advance`), they lie within the memory, and the block is their only user.
        unsafe { std::slice::from_raw_parts(self.owner.ptr().add(self.range.start), self.filled) }
    }

    /// The unfilled bytes; empty for a device.
    pub fn unfilled(&mut self) -> &mut [MaybeUninit<u8>] {
        let len = self.remaining();
        if len == 0 || !self.place().is_host_accessible() {
            return &mut []; // of memory without bytes, the address may be null
        }
        // SAFETY: within the memory, exclusively this block's, and `MaybeUninit` claims no value.
        unsafe { std::slice::from_raw_parts_mut(self.unfilled_ptr().cast(), len) }
    }

    /// Appends a copy of `src`: the safe way for an engine to fill a block.
    ///
    /// # Errors
    /// [`ErrorKind::DestinationTooSmall`] if it does not fit, [`ErrorKind::Unsupported`] if the block is not in
    /// host memory. The block is then unchanged.
    pub fn put(&mut self, src: &[u8]) -> Result<()> {
        if !self.place().is_host_accessible() {
            return Err(Error::new(ErrorKind::Unsupported {
                what: format!("copying host bytes into {}", self.place()).into(),
            }));
        }
        if src.len() > self.remaining() {
            return Err(Error::new(ErrorKind::DestinationTooSmall {
                room: self.remaining() as u64,
                wanted: src.len() as u64,
            }));
        }
        if src.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes fit, and the block's memory is exclusive, so it cannot overlap `src`.
        unsafe {
            std::ptr::copy_nonoverlapping(src.as_ptr(), self.unfilled_ptr(), src.len());
            self.advance(src.len());
        }
        Ok(())
    }

    /// Announces `n` more bytes as filled, without zeroing anything.
    ///
    /// # Safety
    /// The next `n` unfilled bytes have been written, and `n <= remaining()`.
    pub unsafe fn advance(&mut self, n: usize) {
        debug_assert!(n <= self.remaining());
        self.filled += n;
    }

    /// Splits off the first `at` bytes; `self` keeps the rest. No copy.
    ///
    /// # Panics
    /// If `at > len()`.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> BlockMut {
        assert!(
            at <= self.len(),
            "split at {at} of a block of {} bytes",
            self.len()
        );
        let middle = self.range.start + at;
        let head = BlockMut {
            owner: self.owner.clone(),
            range: self.range.start..middle,
            filled: self.filled.min(at),
        };
        self.range.start = middle;
        self.filled -= head.filled;
        head
    }

    /// Splits off everything from `at` on; `self` keeps the first `at` bytes. No copy.
    ///
    /// # Panics
    /// If `at > len()`.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> BlockMut {
        let head = self.split_to(at);
        std::mem::replace(self, head)
    }

    /// Joins `next` behind `self` if it is the adjacent piece of the same memory, and the filled bytes stay one run.
    ///
    /// # Errors
    /// Gives `next` back if it is not.
    pub fn unsplit(&mut self, next: BlockMut) -> Result<(), BlockMut> {
        let adjacent = Arc::ptr_eq(&self.owner, &next.owner) && self.range.end == next.range.start;
        if !adjacent || (self.remaining() > 0 && next.filled > 0) {
            return Err(next);
        }
        self.range.end = next.range.end;
        self.filled += next.filled;
        Ok(())
    }

    /// Takes back all of the memory that it is a piece of, if every other piece is gone. `false`: some are not.
    pub(crate) fn reclaim(&mut self) -> bool {
        let Some(memory) = Arc::get_mut(&mut self.owner) else {
            return false;
        };
        self.range = 0..memory.len();
        self.filled = 0;
        true
    }

    /// Forgets what was filled, to use the block again.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// The same block, which keeps `guard` until the last of it, or of what it is frozen to, is dropped.
    pub(crate) fn holding(self, guard: impl Send + Sync + 'static) -> BlockMut {
        let (range, filled) = (self.range, self.filled);
        let owner = Arc::new(Held {
            owner: self.owner,
            _guard: guard,
        });
        BlockMut {
            owner,
            range,
            filled,
        }
    }

    /// Shares the filled prefix; the rest is no longer reachable. One allocation, no copy.
    pub fn freeze(self) -> Block {
        let range = self.range.start..self.range.start + self.filled;
        if self.place().is_host_accessible() {
            if range.is_empty() {
                return Block::Host(Bytes::new());
            }
            Block::Host(Bytes::from_owner(Frozen {
                owner: self.owner,
                range,
            }))
        } else {
            Block::Device(DeviceBytes {
                owner: self.owner,
                range,
            })
        }
    }
}

impl fmt::Debug for BlockMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockMut")
            .field("place", &self.place())
            .field("len", &self.len())
            .field("filled", &self.filled)
            .finish()
    }
}

/// Memory of a block, with something that lives as long. Fields drop in order: the memory is gone first.
struct Held<G> {
    owner: Arc<dyn Memory>,
    _guard: G,
}

// SAFETY: forwards to memory that keeps the contract and lives as long as this value, which is only ever the
// owner of a piece that was exclusive before.
unsafe impl<G: Send + Sync + 'static> Memory for Held<G> {
    fn place(&self) -> Place {
        self.owner.place()
    }
    fn ptr(&self) -> *mut u8 {
        self.owner.ptr()
    }
    fn len(&self) -> usize {
        self.owner.len()
    }
    fn as_any(&self) -> &dyn Any {
        self.owner.as_any()
    }
}

/// The filled prefix of a block, as `Bytes` hold it.
struct Frozen {
    owner: Arc<dyn Memory>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: made by `freeze` from a host-accessible block: the range was filled, and as the block is gone
        // and other blocks of the memory are disjoint, nobody writes it any more.
        unsafe {
            std::slice::from_raw_parts(self.owner.ptr().add(self.range.start), self.range.len())
        }
    }
}

/// Bytes that a read delivered; cheap to clone and slice.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Block {
    /// Host-readable bytes (host or pinned memory), zero-copy into whatever takes `Bytes`.
    Host(Bytes),
    /// Bytes in a device's memory.
    Device(DeviceBytes),
}

impl Block {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Block::Host(bytes) => bytes.len(),
            Block::Device(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if the host can read them.
    pub fn as_host(&self) -> Option<&Bytes> {
        match self {
            Block::Host(bytes) => Some(bytes),
            Block::Device(_) => None,
        }
    }

    /// The bytes, if the host can read them.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for bytes of a device.
    pub fn into_host(self) -> Result<Bytes> {
        match self {
            Block::Host(bytes) => Ok(bytes),
            Block::Device(bytes) => Err(Error::new(ErrorKind::Unsupported {
                what: format!("reading {} from the host", bytes.place()).into(),
            })),
        }
    }

    /// The bytes, if they are in a device's memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for bytes of the host.
    pub fn into_device(self) -> Result<DeviceBytes> {
        match self {
            Block::Device(bytes) => Ok(bytes),
            Block::Host(_) => Err(Error::new(ErrorKind::Unsupported {
                what: "taking bytes of the host for a device's".into(),
            })),
        }
    }

    /// A part of it, sharing the memory.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Block {
        match self {
            Block::Host(bytes) => Block::Host(bytes.slice(range)),
            Block::Device(bytes) => Block::Device(bytes.slice(range)),
        }
    }
}

impl From<Bytes> for Block {
    fn from(bytes: Bytes) -> Self {
        Block::Host(bytes)
    }
}

/// Filled bytes in a device's memory; cheap to clone and slice. The memory is dropped with the last of them.
///
/// It can be used for something else at once then. **Work of a device that you queued on the bytes** has to be over before that, or to be told
/// of: with the feature `cuda`, `Device::used_in` after the work was queued keeps the memory until it is done.
#[derive(Clone)]
pub struct DeviceBytes {
    owner: Arc<dyn Memory>,
    range: Range<usize>,
}

impl DeviceBytes {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Where the bytes are.
    pub fn place(&self) -> Place {
        self.owner.place()
    }

    /// Device address of the first byte; means nothing to the host.
    pub fn ptr(&self) -> *mut u8 {
        self.owner.ptr().wrapping_add(self.range.start)
    }

    /// The memory it is a part of.
    pub fn memory(&self) -> &dyn Memory {
        &*self.owner
    }

    /// Where the bytes begin within their memory.
    pub fn offset_in_memory(&self) -> usize {
        self.range.start
    }

    /// A part of it, sharing the memory.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> DeviceBytes {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len(),
        };
        assert!(
            start <= end && end <= self.len(),
            "slice {start}..{end} of {} device bytes",
            self.len()
        );
        DeviceBytes {
            owner: self.owner.clone(),
            range: self.range.start + start..self.range.start + end,
        }
    }
}

impl fmt::Debug for DeviceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBytes")
            .field("place", &self.place())
            .field("len", &self.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(capacity: usize) -> BlockMut {
        BlockMut::with_capacity(capacity)
    }

    #[test]
    fn only_the_filled_prefix_is_shared() {
        let mut b = block(8);
        b.put(b"abc").unwrap();
        assert_eq!((b.filled(), b.remaining()), (&b"abc"[..], 5));
        assert_eq!(b.freeze().into_host().unwrap(), "abc");
        assert!(block(8).freeze().is_empty());
    }

    #[test]
    fn put_refuses_what_does_not_fit_and_changes_nothing() {
        let mut b = block(4);
        b.put(b"xyz").unwrap();
        let error = b.put(b"12").unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::DestinationTooSmall { room: 1, wanted: 2 }
        ));
        assert_eq!(b.filled(), b"xyz");
    }

    #[test]
    fn pieces_are_disjoint_and_join_again() {
        let mut b = block(10);
        b.put(b"abcd").unwrap();
        let mut head = b.split_to(2);
        assert_eq!((head.filled(), b.filled()), (&b"ab"[..], &b"cd"[..]));
        let tail = b.split_off(5);
        assert_eq!((b.len(), tail.len()), (5, 3));
        b.put(b"efg").unwrap();
        let tail = head.unsplit(tail).unwrap_err();
        head.unsplit(b).unwrap();
        head.unsplit(tail).unwrap();
        assert_eq!((head.filled(), head.len()), (&b"abcdefg"[..], 10));
    }

    #[test]
    fn unsplit_never_leaves_a_hole_before_filled_bytes() {
        let mut a = block(4);
        let mut b = a.split_off(2);
        b.put(b"z").unwrap();
        assert!(a.unsplit(b).is_err());
    }

    #[test]
    fn a_guard_lives_as_long_as_the_last_piece() {
        let guard = Arc::new(());
        let mut b = block(6);
        b.put(b"ab").unwrap();
        let start = b.unfilled_ptr();
        let mut b = b.split_off(1).holding(guard.clone());
        assert_eq!(
            (b.filled(), b.unfilled_ptr(), b.len()),
            (&b"b"[..], start, 5)
        );
        let mut tail = b.split_off(3);
        tail.put(b"z").unwrap();
        drop(b);
        let bytes = tail.freeze().into_host().unwrap();
        assert_eq!(Arc::strong_count(&guard), 2);
        drop(bytes);
        assert_eq!(Arc::strong_count(&guard), 1);
    }

    #[test]
    fn memory_without_bytes_may_have_no_address() {
        struct Null;
        // SAFETY: there are no bytes.
        unsafe impl Memory for Null {
            fn place(&self) -> Place {
                Place::Host
            }
            fn ptr(&self) -> *mut u8 {
                std::ptr::null_mut()
            }
            fn len(&self) -> usize {
                0
            }
            fn as_any(&self) -> &dyn std::any::Any {
                self
            }
        }
        let mut b = BlockMut::new(Null);
        b.put(b"").unwrap();
        assert!(b.filled().is_empty() && b.unfilled().is_empty());
        assert!(b.freeze().is_empty());
    }

    #[test]
    fn unfilled_can_be_written_by_hand() {
        let mut b = block(3);
        b.unfilled()[0].write(9);
        // SAFETY: one byte was written above.
        unsafe { b.advance(1) };
        assert_eq!(b.freeze().into_host().unwrap(), vec![9]);
    }
}
