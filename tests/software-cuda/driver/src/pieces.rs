//! The pieces of memory by their addresses, as kernels look for them: the same few again and again.

use std::cell::Cell;

use crate::memory::Allocation;

/// Places that are remembered.
const KNOWN: usize = 32;
/// Addresses that share one of them.
const NEAR: u32 = 9;

/// Pieces in the order of their addresses; none lies across another.
#[derive(Debug, Default)]
pub struct Pieces {
    sorted: Vec<(usize, Allocation)>,
    /// Where the last search for an address like it ended. It may be anything: whoever uses it looks whether it is right.
    known: [Cell<usize>; KNOWN],
}

impl Pieces {
    /// The piece that has all these bytes.
    pub fn find(&self, address: usize, len: usize) -> Option<(usize, &Allocation)> {
        let index = self.index(address, len)?;
        self.sorted.get(index).map(|(base, piece)| (*base, piece))
    }

    /// The same, to change it.
    pub fn find_mut(&mut self, address: usize, len: usize) -> Option<(usize, &mut Allocation)> {
        let index = self.index(address, len)?;
        self.sorted
            .get_mut(index)
            .map(|(base, piece)| (*base, piece))
    }

    fn index(&self, address: usize, len: usize) -> Option<usize> {
        let has = |index: usize| {
            self.sorted.get(index).is_some_and(|(base, piece)| {
                address >= *base
                    && address - base <= piece.len
                    && len <= piece.len - (address - base)
            })
        };
        let known = &self.known[(address >> NEAR) % KNOWN];
        // Where one ends and the next begins, nothing is known.
        if len > 0 && has(known.get()) {
            return Some(known.get());
        }
        let index = self.up_to(address).checked_sub(1)?;
        known.set(index);
        has(index).then_some(index)
    }

    /// How many begin at or before an address.
    fn up_to(&self, address: usize) -> usize {
        self.sorted.partition_point(|(base, _)| *base <= address)
    }

    /// The last one that begins before an address.
    pub fn before(&self, address: usize) -> Option<(usize, &Allocation)> {
        let index = self.sorted.partition_point(|(base, _)| *base < address);
        let (base, piece) = self.sorted.get(index.checked_sub(1)?)?;
        Some((*base, piece))
    }

    /// The piece that begins there.
    pub fn get(&self, address: usize) -> Option<&Allocation> {
        let (base, piece) = self.sorted.get(self.up_to(address).checked_sub(1)?)?;
        (*base == address).then_some(piece)
    }

    /// Adds a piece.
    pub fn insert(&mut self, address: usize, piece: Allocation) {
        let index = self.up_to(address);
        self.sorted.insert(index, (address, piece));
    }

    /// Takes the piece that begins there away.
    pub fn remove(&mut self, address: usize) -> Option<Allocation> {
        self.get(address)?;
        let index = self.up_to(address) - 1;
        Some(self.sorted.remove(index).1)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.sorted.iter().map(|(_, piece)| piece)
    }
}
