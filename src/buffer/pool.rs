//! Page-aligned blocks that are used again, last in first out, so that a warm loop stays in the same memory.
#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::block::BlockMut;
use super::huge::{HUGE_PAGE, HugePages, Part};
use super::memory::{HostMemory, Memory, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::Generation;

/// Bounds of a [`Pool`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Most bytes kept for later while nobody uses them. Default 64 MiB.
    pub keep: usize,
    /// Most bytes kept beside a new block, when none of those kept had its size: the oldest go. Without it a program
    /// that changes from one size to another would hold both. Default 8 MiB.
    pub spare: usize,
    /// Most bytes of one block. Default: the memory of the machine.
    pub max_block: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            keep: 64 << 20,
            spare: 8 << 20,
            max_block: usize::try_from(crate::sys::total_memory()).unwrap_or(usize::MAX),
        }
    }
}

impl PoolOptions {
    /// Sets [`keep`](Self::keep).
    #[must_use]
    pub fn keep(mut self, bytes: usize) -> Self {
        self.keep = bytes;
        self
    }

    /// Sets [`spare`](Self::spare).
    #[must_use]
    pub fn spare(mut self, bytes: usize) -> Self {
        self.spare = bytes;
        self
    }

    /// Sets [`max_block`](Self::max_block).
    #[must_use]
    pub fn max_block(mut self, bytes: usize) -> Self {
        self.max_block = bytes;
        self
    }
}

/// What a pool has done; see [`Pool::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Blocks taken from the kernel.
    pub allocated: u64,
    /// Blocks served from those kept.
    pub reused: u64,
    /// Bytes kept now.
    pub kept: usize,
}

/// A source of page-aligned host blocks; cloning shares it.
///
/// Taking a block never waits: there is no limit on what is handed out, only on what is kept. Back-pressure is
/// the business of windows. Blocks of 2 MiB and more are aligned to and advised as huge pages. Blocks of 16 to 512 KiB are, once
/// there are many of a size, parts of huge pages: devices read faster into those. A huge page goes back to the kernel when
/// none of its parts is in use, so a share of a block that is kept for long may keep 2 MiB; copy what is to stay. A block
/// returns when its last share is dropped.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: PoolOptions,
    generation: Generation,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Oldest first; taken from the back, evicted from the front.
    blocks: VecDeque<HostMemory>,
    pages: HugePages,
    stats: PoolStats,
}

/// What is no longer kept, to be unmapped outside the lock.
#[derive(Default)]
struct Evicted {
    blocks: Vec<HostMemory>,
    pages: Vec<Arc<HostMemory>>,
}

/// More blocks than this are not worth searching.
const MAX_KEPT_BLOCKS: usize = 256;

impl Kept {
    /// Moves the oldest blocks to `evicted`, and then huge pages that nobody has a part of, until at most `keep` bytes are kept, and a
    /// block fits the list.
    fn evict(&mut self, keep: usize, evicted: &mut Evicted) {
        while self.stats.kept > keep || self.blocks.len() >= MAX_KEPT_BLOCKS {
            let Some(oldest) = self.blocks.pop_front() else {
                break;
            };
            self.stats.kept -= oldest.capacity();
            evicted.blocks.push(oldest);
        }
        if self.stats.kept > keep {
            let enough = self.stats.kept - keep;
            self.stats.kept -= self.pages.release(enough, &mut evicted.pages);
        }
    }
}

/// Rounds up so that blocks of about the same size serve each other, wasting at most an eighth (small blocks:
/// up to a page).
fn size_class(len: usize) -> Option<usize> {
    let page = crate::sys::page_size();
    let step = (len.checked_next_power_of_two()? / 16).max(page);
    len.max(1).checked_next_multiple_of(step)
}

impl Pool {
    /// An empty pool.
    pub fn new(options: PoolOptions) -> Self {
        Pool(Arc::new(Inner {
            options,
            generation: Generation::current(),
            kept: Mutex::default(),
        }))
    }

    /// An unfilled block of exactly `len` bytes, beginning on a page boundary. Its content is undefined.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] past [`PoolOptions::max_block`] or when the kernel refuses;
    /// [`ErrorKind::Forked`] in a process forked from the pool's.
    pub fn take(&self, len: usize) -> Result<BlockMut> {
        let inner = &self.0;
        let refused = || {
            Error::new(ErrorKind::OutOfMemory {
                wanted: len as u64,
                cap: inner.options.max_block as u64,
            })
        };
        if len > inner.options.max_block {
            return Err(refused());
        }
        self.take_over_cap(len)
    }

    /// Most bytes of one block.
    pub(crate) fn max_block(&self) -> usize {
        self.0.options.max_block
    }

    /// [`take`](Self::take) without the cap, for what alignment adds to a range that was checked, and for the
    /// bounded blocks that bytes only pass through.
    pub(crate) fn take_over_cap(&self, len: usize) -> Result<BlockMut> {
        let inner = &self.0;
        let refused = || {
            Error::new(ErrorKind::OutOfMemory {
                wanted: len as u64,
                cap: inner.options.max_block as u64,
            })
        };
        if !inner.generation.is_current() {
            return Err(Error::new(ErrorKind::Forked));
        }
        let class = size_class(len).ok_or_else(refused)?;
        let in_pages = inner.use_huge_pages(class);
        let mut evicted = Evicted::default();
        let mut more = false;
        let kept = {
            let mut kept = inner.lock();
            let part = match in_pages {
                true => kept.pages.take(class),
                false => None,
            };
            let found = match part {
                Some(part) => Some(Home::Part(part)),
                None => {
                    let found = kept.blocks.iter().rposition(|b| b.capacity() == class);
                    found.and_then(|at| kept.blocks.remove(at)).map(Home::Own)
                }
            };
            match found {
                Some(_) => {
                    kept.stats.reused += 1;
                    kept.stats.kept -= class;
                }
                None => {
                    kept.stats.allocated += 1;
                    kept.evict(inner.options.spare.saturating_sub(class), &mut evicted);
                    more = in_pages && kept.pages.want_more(class);
                }
            }
            found
        };
        drop(evicted); // unmapped outside the lock
        let kept = match kept {
            None if more => inner.part_of_new_page(class).map(Home::Part),
            kept => kept,
        };
        let home = match kept {
            Some(home) => home,
            None => match HostMemory::new(class) {
                Ok(memory) => Home::Own(memory),
                Err(_) => {
                    if in_pages {
                        inner.lock().pages.returned(class);
                    }
                    return Err(refused());
                }
            },
        };
        Ok(BlockMut::new(Pooled {
            home: ManuallyDrop::new(match home {
                Home::Own(memory) => Home::Own(memory.resized(len)),
                part => part,
            }),
            len,
            pool: inner.clone(),
        }))
    }

    /// What it has done so far, and what it keeps.
    pub fn stats(&self) -> PoolStats {
        if !self.0.generation.is_current() {
            return PoolStats::default();
        }
        self.0.lock().stats
    }

    /// Gives all kept blocks back to the kernel, except parts of huge pages of which others are in use.
    pub fn trim(&self) {
        if self.0.generation.is_current() {
            let mut evicted = Evicted::default();
            self.0.lock().evict(0, &mut evicted);
            drop(evicted);
        }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool::new(PoolOptions::default())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held, and the lists are valid between any two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether blocks of a class may be parts of huge pages.
    fn use_huge_pages(&self, class: usize) -> bool {
        // A pool that keeps little could not keep a page.
        HugePages::serve(class) && self.options.keep >= 4 * HUGE_PAGE
    }

    /// A part of a huge page that is taken for it; `None` if there is no memory for one.
    fn part_of_new_page(&self, class: usize) -> Option<Part> {
        let memory = HostMemory::new(HUGE_PAGE).ok()?;
        let mut kept = self.lock();
        let part = kept.pages.add(class, memory);
        kept.stats.kept += (HUGE_PAGE / class).saturating_sub(1) * class;
        part
    }

    fn give_back(&self, home: Home) {
        // After a fork another thread's hold on the lock may never end here.
        if !self.generation.is_current() {
            return;
        }
        let mut evicted = Evicted::default();
        {
            let mut kept = self.lock();
            match home {
                Home::Part(part) => {
                    kept.stats.kept += part.size();
                    kept.pages.give_back(part);
                    kept.evict(self.options.keep, &mut evicted);
                }
                Home::Own(memory) => {
                    let class = memory.capacity();
                    if self.use_huge_pages(class) {
                        kept.pages.returned(class);
                    }
                    if class <= self.options.keep {
                        kept.evict(self.options.keep - class, &mut evicted);
                        kept.stats.kept += class;
                        kept.blocks.push_back(memory);
                    } else {
                        evicted.blocks.push(memory);
                    }
                }
            }
        }
        drop(evicted);
    }
}

/// Where the memory of a block is.
enum Home {
    Own(HostMemory),
    Part(Part),
}

/// Memory that returns to its pool.
struct Pooled {
    home: ManuallyDrop<Home>,
    /// At most what the home has.
    len: usize,
    pool: Arc<Inner>,
}

// SAFETY: the memory is that of a `HostMemory`, which keeps the contract and lives until this value's drop: its own, or a part
// of a page that no other value has (`HugePages` hands out each part once until it is given back) and that has at least `len` bytes.
unsafe impl Memory for Pooled {
    fn place(&self) -> Place {
        Place::Host
    }
    fn ptr(&self) -> *mut u8 {
        match &*self.home {
            Home::Own(memory) => memory.ptr(),
            Home::Part(part) => part.memory.ptr().wrapping_add(part.offset()),
        }
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        match &*self.home {
            Home::Own(memory) => memory,
            Home::Part(_) => self,
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // SAFETY: taken once, here; the field is not used again.
        let home = unsafe { ManuallyDrop::take(&mut self.home) };
        self.pool.give_back(home);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &Pool, len: usize) -> BlockMut {
        pool.take(len).unwrap()
    }

    #[test]
    fn blocks_are_aligned_exact_and_reused_last_in_first_out() {
        let pool = Pool::default();
        let (a, b) = (take(&pool, 5000), take(&pool, 5000));
        assert_eq!((a.len(), a.unfilled_ptr().align_offset(4096)), (5000, 0));
        let (pa, pb) = (a.unfilled_ptr(), b.unfilled_ptr());
        drop(a);
        drop(b);
        assert_eq!(take(&pool, 6000).unfilled_ptr(), pb);
        let both = (take(&pool, 5000), take(&pool, 4097));
        assert_eq!((both.0.unfilled_ptr(), both.1.unfilled_ptr()), (pb, pa));
        assert_eq!(pool.stats().allocated, 2);
    }

    #[test]
    fn keeps_no_more_than_its_cap_and_the_newest() {
        let pool = Pool::new(PoolOptions::default().keep(3 * 4096));
        let blocks: Vec<_> = (0..5).map(|_| take(&pool, 4096)).collect();
        let last = blocks[4].unfilled_ptr();
        drop(blocks);
        assert_eq!(pool.stats().kept, 3 * 4096);
        assert_eq!(take(&pool, 1).unfilled_ptr(), last);
        drop(take(&pool, 1 << 20));
        assert_eq!(pool.stats().kept, 3 * 4096);
        pool.trim();
        assert_eq!(pool.stats().kept, 0);
    }

    #[test]
    fn another_size_takes_the_place_of_those_not_asked_for() {
        let pool = Pool::default();
        drop((
            take(&pool, 4096),
            take(&pool, 8 << 20),
            take(&pool, 8 << 20),
        ));
        assert_eq!(pool.stats().kept, 4096 + (16 << 20));
        drop(take(&pool, 1 << 20));
        assert!(pool.stats().kept <= 8 << 20, "{:?}", pool.stats());
        drop(take(&pool, 20 << 20));
        assert_eq!(pool.stats().kept, 20 << 20);
    }

    #[test]
    fn a_shared_slice_keeps_the_block_out_of_the_pool() {
        let pool = Pool::default();
        let mut block = take(&pool, 100);
        block.put(b"hello").unwrap();
        let bytes = block.freeze().into_host().unwrap();
        let slice = bytes.slice(1..2);
        drop(bytes);
        assert_eq!(pool.stats().kept, 0);
        drop(slice);
        assert_eq!(pool.stats().kept, 4096);
    }

    #[test]
    fn the_cap_on_a_block_is_an_error_that_names_it() {
        let pool = Pool::new(PoolOptions::default().max_block(1000));
        for wanted in [1001, usize::MAX] {
            let error = pool.take(wanted).unwrap_err();
            assert!(matches!(
                error.kind(),
                ErrorKind::OutOfMemory { cap: 1000, .. }
            ));
        }
        assert_eq!(take(&pool, 0).len(), 0);
    }

    #[test]
    fn size_classes_waste_little() {
        for len in [
            1,
            4096,
            4097,
            100_000,
            (1 << 20) + 1,
            (5 << 20) + 3,
            (1 << 31) + 1,
        ] {
            let class = size_class(len).unwrap();
            assert!(
                class >= len && class - len <= (len / 8).max(4096),
                "{len} {class}"
            );
            assert_eq!(size_class(class), Some(class));
        }
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    fn many_blocks_of_medium_size_are_parts_of_slabs() {
        let pool = Pool::default();
        let blocks: Vec<_> = (0..100).map(|_| take(&pool, 64 << 10)).collect();
        // The 15 before the first MiB is full one by one, the other 85 in three pages of 32.
        assert_eq!(pool.stats().allocated, 15 + 3);
        assert_eq!(pool.stats().kept, (3 * 32 - 85) * (64 << 10));
        let mut starts: Vec<_> = blocks
            .iter()
            .map(|block| block.unfilled_ptr() as usize)
            .collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|two| two[1] - two[0] >= 64 << 10));
        drop(blocks);
        assert_eq!(pool.stats().kept, (15 + 3 * 32) * (64 << 10));
        let again = take(&pool, 64 << 10).unfilled_ptr() as usize;
        assert!(starts.contains(&again));
        // Another size takes the place of all that nobody uses.
        drop(take(&pool, 20 << 20));
        assert_eq!(pool.stats().kept, 20 << 20);
    }

    #[test]
    fn a_slab_goes_when_none_of_its_parts_is_in_use() {
        let pool = Pool::default();
        let mut blocks: Vec<_> = (0..15 + 32 + 1).map(|_| take(&pool, 64 << 10)).collect();
        let survivor = blocks.pop();
        drop(blocks);
        pool.trim();
        // The page of the survivor stays, and its other parts serve the next.
        assert_eq!(pool.stats().kept, 31 * (64 << 10));
        let next = take(&pool, 64 << 10);
        drop(survivor);
        pool.trim();
        assert_eq!(pool.stats().kept, 31 * (64 << 10));
        drop(next);
        pool.trim();
        assert_eq!(pool.stats().kept, 0);
    }

    proptest::proptest! {
        /// Whatever is taken and dropped in whatever order: no two blocks in use overlap, and nothing is lost.
        #[test]
        fn blocks_in_use_never_overlap(
            steps in proptest::collection::vec((0usize..4, 0usize..64, proptest::prelude::any::<bool>()), 1..300),
        ) {
            const SIZES: [usize; 4] = [16 << 10, 100_000, 512 << 10, 5000];
            let pool = Pool::new(PoolOptions::default().keep(16 << 20));
            let mut blocks: Vec<BlockMut> = Vec::new();
            for (size, at, drops) in steps {
                if drops && !blocks.is_empty() {
                    drop(blocks.swap_remove(at % blocks.len()));
                } else {
                    // Several at once, so that there are pages.
                    blocks.extend((0..4).map(|_| take(&pool, SIZES[size])));
                }
                let mut taken: Vec<_> = blocks
                    .iter()
                    .map(|block| (block.unfilled_ptr() as usize, block.len()))
                    .collect();
                taken.sort_unstable();
                for two in taken.windows(2) {
                    proptest::prop_assert!(two[0].0 + two[0].1 <= two[1].0);
                }
            }
            drop(blocks);
            pool.trim();
            proptest::prop_assert_eq!(pool.stats().kept, 0);
        }
    }
}
