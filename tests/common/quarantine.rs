//! Memory that is not given back when it is released, so that a late write to it shows.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedwater::{BlockMut, Memory, Place};

/// Page-aligned blocks whose bytes are poisoned when they are released, and that stay where they are.
pub(crate) struct Quarantine(Arc<Ward>);

#[derive(Default)]
struct Ward {
    blocks: Mutex<Vec<Kept>>,
    released: Condvar,
}

struct Kept {
    address: usize,
    layout: Layout,
    releases: usize,
}

impl Quarantine {
    pub(crate) fn new() -> Self {
        Quarantine(Arc::default())
    }

    /// An unfilled block, the next in line.
    pub(crate) fn block(&self, len: usize) -> BlockMut {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: the layout has a size.
        let address = unsafe { alloc_zeroed(layout) }.expose_provenance();
        assert_ne!(address, 0);
        let mut blocks = self.0.lock();
        blocks.push(Kept {
            address,
            layout,
            releases: 0,
        });
        BlockMut::new(Poisoned {
            ward: self.0.clone(),
            number: blocks.len() - 1,
            address,
            len,
        })
    }

    /// Blocks that were released so far.
    pub(crate) fn released(&self) -> usize {
        self.0
            .lock()
            .iter()
            .filter(|kept| kept.releases > 0)
            .count()
    }

    /// Waits until so many blocks have been released.
    pub(crate) fn wait_for(&self, count: usize, patience: Duration) {
        let blocks = self.0.lock();
        let few =
            |blocks: &mut Vec<Kept>| blocks.iter().filter(|kept| kept.releases > 0).count() < count;
        let (blocks, timeout) = self
            .0
            .released
            .wait_timeout_while(blocks, patience, few)
            .unwrap_or_else(PoisonError::into_inner);
        let released = blocks.iter().filter(|kept| kept.releases > 0).count();
        assert!(!timeout.timed_out(), "{released} of {count} are released");
    }

    /// Waits until all blocks have been released.
    pub(crate) fn wait_for_all(&self, patience: Duration) {
        let count = self.0.lock().len();
        self.wait_for(count, patience);
    }

    /// Checks that each block was released once, and that nobody has written to it since.
    pub(crate) fn check(&self) {
        for (number, kept) in self.0.lock().iter().enumerate() {
            assert_eq!(kept.releases, 1, "releases of block {number}");
            let poison = poison(number);
            assert!(
                kept.bytes().iter().all(|byte| *byte == poison),
                "block {number} was written to after its release"
            );
        }
    }

    /// What is in a block that has not been released, and that nobody writes to.
    pub(crate) fn content(&self, number: usize) -> Vec<u8> {
        let blocks = self.0.lock();
        assert_eq!(blocks[number].releases, 0);
        blocks[number].bytes()
    }
}

impl Ward {
    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// A copy, read in the way of memory that others may write to.
    fn bytes(&self) -> Vec<u8> {
        let at = |i| std::ptr::with_exposed_provenance::<u8>(self.address + i);
        // SAFETY: within the allocation, which lives as long as the ward.
        let read = |i| unsafe { at(i).read_volatile() };
        (0..self.layout.size()).map(read).collect()
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        for kept in self.lock().drain(..) {
            // What was not released is still in use by somebody, or leaked with what held it.
            if kept.releases > 0 {
                let at = std::ptr::with_exposed_provenance_mut(kept.address);
                // SAFETY: allocated with this layout, and released by its only user.
                unsafe { dealloc(at, kept.layout) };
            }
        }
    }
}

fn poison(number: usize) -> u8 {
    0xa5 ^ number as u8
}

struct Poisoned {
    ward: Arc<Ward>,
    number: usize,
    address: usize,
    len: usize,
}

// SAFETY: an allocation of its own, which outlives it, and is touched through it alone until it is released.
unsafe impl Memory for Poisoned {
    fn place(&self) -> Place {
        Place::Host
    }
    fn ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Poisoned {
    fn drop(&mut self) {
        // SAFETY: its own memory, to the end of this statement.
        unsafe { std::ptr::write_bytes(self.ptr(), poison(self.number), self.len) };
        self.ward.lock()[self.number].releases += 1;
        self.ward.released.notify_all();
    }
}
