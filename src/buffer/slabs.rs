//! Memory for many small things: pieces of shared blocks, handed out one after the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::block::BlockMut;
use super::pool::Pool;
use crate::error::Result;

/// Bytes of one shared block.
pub(crate) const SLAB: usize = 256 << 10;

/// What is larger has memory of its own: the rest of a slab that it does not fit in is lost.
pub(crate) const SHARED_MOST: usize = 64 << 10;

/// Where pieces begin: no two are in one line of a cache.
const ALIGN: usize = 64;

/// Blocks that are cut at once.
const RESTS: usize = 4;

/// Another number for each thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// Hands out small blocks that share memory with their neighbours, and large ones from the pool.
///
/// A shared block goes back to its pool when the last of its pieces is dropped.
#[derive(Debug)]
pub(crate) struct Slabs {
    pool: Pool,
    /// What is left of the blocks that pieces are cut from: of several, so that threads rarely meet, and each stays in
    /// memory that its processor has at hand. `None`: there is none yet.
    rests: [Mutex<Option<BlockMut>>; RESTS],
    shares: bool,
}

impl Slabs {
    /// Cuts from blocks of `pool`. Unless it `shares`, each piece has memory of its own.
    pub(crate) fn new(pool: Pool, shares: bool) -> Self {
        Slabs {
            pool,
            rests: Default::default(),
            shares,
        }
    }

    /// An unfilled block of exactly `len` bytes.
    ///
    /// # Errors
    /// As [`Pool::take`].
    pub(crate) fn take(&self, len: usize) -> Result<BlockMut> {
        if len > SHARED_MOST {
            return self.pool.take(len);
        }
        if !self.shares || len > self.pool.max_block() {
            let fits = len <= self.pool.max_block();
            return match fits {
                true => Ok(BlockMut::with_capacity(len)),
                false => self.pool.take(len), // says no
            };
        }
        let wanted = len.next_multiple_of(ALIGN);
        let rest = self.rests.get(thread_number() % RESTS);
        let Some(rest) = rest else {
            return Ok(BlockMut::with_capacity(len)); // not reached
        };
        let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slab) = &mut *rest {
            // What was handed out may be back: then from the start, in memory that was just used.
            slab.reclaim();
            if slab.len() >= wanted {
                return Ok(slab.split_to(wanted).split_to(len));
            }
        }
        let mut slab = self.pool.take_over_cap(SLAB)?;
        let piece = slab.split_to(wanted).split_to(len);
        let old = rest.replace(slab);
        drop(rest);
        drop(old); // it may go back to its pool
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::PoolOptions;
    use super::*;

    #[test]
    fn small_ones_share_a_block_and_large_ones_have_their_own() {
        let pool = Pool::default();
        let slabs = Slabs::new(pool.clone(), true);
        let small: Vec<_> = (0..100).map(|i| slabs.take(i).unwrap()).collect();
        assert_eq!(pool.stats().allocated, 1);
        for (len, block) in small.iter().enumerate() {
            assert_eq!(block.len(), len);
            assert_eq!(block.unfilled_ptr().align_offset(ALIGN), 0);
        }
        let own = slabs.take(SHARED_MOST + 1).unwrap();
        assert_eq!((own.len(), own.offset_in_memory()), (SHARED_MOST + 1, 0));
        assert_eq!(pool.stats().allocated, 2);
    }

    #[test]
    fn a_block_goes_back_when_its_last_piece_does() {
        let pool = Pool::default();
        let slabs = Slabs::new(pool.clone(), true);
        let mut pieces: Vec<_> = (0..4).map(|_| slabs.take(SHARED_MOST).unwrap()).collect();
        // Full: the next one comes from another block.
        pieces.push(slabs.take(1).unwrap());
        assert_eq!(pool.stats().allocated, 2);
        pieces.truncate(1);
        assert_eq!(pool.stats().kept, 0, "one piece holds it");
        pieces.clear();
        assert_eq!(pool.stats().kept, SLAB);
    }

    #[test]
    fn when_all_pieces_are_back_it_begins_again() {
        let pool = Pool::default();
        let slabs = Slabs::new(pool.clone(), true);
        let first = slabs.take(5000).unwrap().unfilled_ptr();
        let held = slabs.take(5000).unwrap();
        assert_eq!(held.unfilled_ptr(), first);
        assert_ne!(
            slabs.take(5000).unwrap().unfilled_ptr(),
            first,
            "one is held"
        );
        drop(held);
        for _ in 0..1000 {
            assert_eq!(slabs.take(SHARED_MOST).unwrap().unfilled_ptr(), first);
        }
        assert_eq!(pool.stats().allocated, 1);
    }

    #[test]
    fn not_shared_each_has_memory_of_its_own() {
        let pool = Pool::new(PoolOptions::default().max_block(1000));
        let slabs = Slabs::new(pool.clone(), false);
        let block = slabs.take(1000).unwrap();
        assert_eq!((block.len(), block.offset_in_memory()), (1000, 0));
        assert_eq!(pool.stats().allocated, 0);
        assert!(slabs.take(1001).is_err());
        assert!(Slabs::new(pool, true).take(1001).is_err());
    }
}
