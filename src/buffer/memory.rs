//! Memory of any place behind one door.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::sys::Region;

/// Where memory is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Ordinary memory of this process.
    Host,
    /// Host memory that is page-locked for a device's copy engine; readable like [`Place::Host`].
    Pinned,
    /// Memory whose pages move between the host and the accelerator with this ordinal; readable like [`Place::Host`].
    Managed(u32),
    /// Memory of the accelerator with this ordinal; its addresses mean nothing to the host.
    Device(u32),
}

impl Place {
    /// Whether the host can read and write it through its address.
    pub fn is_host_accessible(self) -> bool {
        matches!(self, Place::Host | Place::Pinned | Place::Managed(_))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Host => f.write_str("host memory"),
            Place::Pinned => f.write_str("pinned host memory"),
            Place::Managed(ordinal) => write!(f, "managed memory of device {ordinal}"),
            Place::Device(ordinal) => write!(f, "memory of device {ordinal}"),
        }
    }
}

/// A span of memory that reads may be directed into: from the pool, pinned, a `Vec`, a tensor, an arena of a
/// GPU.
///
/// [`BlockMut::new`](super::BlockMut::new) takes it and from then on hands out disjoint pieces of it. Memory is
/// dropped when the last piece is. There is no implementation for `Arc<M>`: two blocks made from two clones
/// would be exclusive pieces of the same bytes.
///
/// # Safety
/// While the value lives, at whatever address the value itself is moved to:
/// - [`ptr`](Self::ptr), [`len`](Self::len) and [`place`](Self::place) return the same each time;
/// - the `len()` bytes from `ptr()` are valid for reads and writes at `place()`, and do not move;
/// - nobody reads or writes them except through the blocks made from this value;
/// - if `place()` [is host accessible](Place::is_host_accessible), `len()` is at most `isize::MAX`.
///
/// A part of the memory may be handed out while other parts live on in other blocks: the words about bytes are
/// then about that part.
pub unsafe trait Memory: Send + Sync + 'static {
    /// Where the bytes are.
    fn place(&self) -> Place;

    /// Address of the first byte. For a device it is opaque to the host.
    fn ptr(&self) -> *mut u8;

    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value itself, so that an engine can find what it knows of its own memory (a stream, a
    /// registration) by downcasting. No such type appears here.
    fn as_any(&self) -> &dyn Any;
}

/// Page-aligned host memory of its own; from 128 KiB on straight from the kernel, from 2 MiB on with huge pages if the
/// system has them at hand.
///
/// Its content is undefined. Not resident until touched: see [`populate`](Self::populate).
#[derive(Debug)]
pub struct HostMemory {
    region: Region,
    len: usize,
}

impl HostMemory {
    /// Allocates `len` bytes. Costs one or two system calls; no page is touched.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the kernel has no room for it.
    pub fn new(len: usize) -> Result<Self> {
        let region = Region::new(len).map_err(|_| {
            Error::new(ErrorKind::OutOfMemory {
                wanted: len as u64,
                cap: isize::MAX as u64,
            })
        })?;
        Ok(HostMemory { region, len })
    }

    /// Makes the pages resident now rather than on first touch. Best effort; costs the page faults.
    pub fn populate(&self) {
        self.region.populate();
    }

    /// Bytes that it really takes: the length rounded up to pages.
    pub(crate) fn capacity(&self) -> usize {
        self.region.len()
    }

    /// The same memory with another length, which the capacity must cover.
    pub(super) fn resized(mut self, len: usize) -> Self {
        debug_assert!(len <= self.capacity());
        self.len = len.min(self.capacity());
        self
    }
}

// SAFETY: the region is mapped until drop, never moves, is ours alone, and `len` is within it.
unsafe impl Memory for HostMemory {
    fn place(&self) -> Place {
        Place::Host
    }
    fn ptr(&self) -> *mut u8 {
        self.region.ptr()
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The spare capacity and content of a `Vec`, as memory to read into.
pub(super) struct VecMemory {
    ptr: *mut u8,
    capacity: usize,
}

// SAFETY: the raw parts of a `Vec<u8>`, which is Send and Sync; this value is their only owner.
unsafe impl Send for VecMemory {}
// SAFETY: as above.
unsafe impl Sync for VecMemory {}

impl VecMemory {
    pub(super) fn new(vec: Vec<u8>) -> Self {
        let mut vec = std::mem::ManuallyDrop::new(vec);
        VecMemory {
            ptr: vec.as_mut_ptr(),
            capacity: vec.capacity(),
        }
    }
}

// SAFETY: a heap allocation that does not move until drop, owned by this value alone.
unsafe impl Memory for VecMemory {
    fn place(&self) -> Place {
        Place::Host
    }
    fn ptr(&self) -> *mut u8 {
        self.ptr
    }
    fn len(&self) -> usize {
        self.capacity
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for VecMemory {
    fn drop(&mut self) {
        // SAFETY: the parts of a `Vec` that was not dropped; a length of 0 claims no initialised byte.
        drop(unsafe { Vec::from_raw_parts(self.ptr, 0, self.capacity) });
    }
}
