//! Device memory, as kernels see it.

use std::collections::BTreeMap;

/// What a load found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The bytes, the first one lowest.
    pub value: u64,
    /// Whether all of them have been written before.
    pub written: bool,
}

/// Device memory: who runs kernels says what is in reach and what has been written.
pub trait Memory {
    /// Loads 1, 2, 4 or 8 bytes; nothing if they do not all lie in one allocation.
    fn fetch(&mut self, address: u64, len: usize) -> Option<Fetched>;

    /// Stores the low `len` bytes; false if they do not all lie in one allocation that may be written.
    fn put(&mut self, address: u64, len: usize, value: u64) -> bool;
}

/// Memory made of vectors, for tests of kernels without a driver.
#[derive(Debug, Default)]
pub struct HostMemory {
    allocations: BTreeMap<u64, Allocation>,
    next: u64,
}

#[derive(Debug)]
struct Allocation {
    bytes: Vec<u8>,
    written: Vec<bool>,
}

impl HostMemory {
    /// Memory with nothing in it.
    pub fn new() -> Self {
        // High enough that no small number is an address.
        Self {
            allocations: BTreeMap::new(),
            next: 0x7f00_0000_0000,
        }
    }

    /// Adds an allocation with these contents and gives its address, a multiple of 256.
    pub fn allocate(&mut self, bytes: &[u8]) -> u64 {
        self.insert(Allocation {
            bytes: bytes.to_vec(),
            written: vec![true; bytes.len()],
        })
    }

    /// Adds an allocation that nobody has written.
    pub fn allocate_unwritten(&mut self, len: usize) -> u64 {
        self.insert(Allocation {
            bytes: vec![0xa5; len],
            written: vec![false; len],
        })
    }

    /// The contents of the allocation at `address`.
    ///
    /// # Panics
    /// If there is none.
    pub fn bytes(&self, address: u64) -> &[u8] {
        &self.allocations[&address].bytes
    }

    fn insert(&mut self, allocation: Allocation) -> u64 {
        let address = self.next;
        // Further than any kernel's mistake by one goes.
        self.next += (allocation.bytes.len() as u64).next_multiple_of(256) + 4096;
        self.allocations.insert(address, allocation);
        address
    }

    fn find(&mut self, address: u64, len: usize) -> Option<(&mut Allocation, usize)> {
        let (base, allocation) = self.allocations.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - base).ok()?;
        (offset.checked_add(len)? <= allocation.bytes.len()).then_some((allocation, offset))
    }
}

impl Memory for HostMemory {
    fn fetch(&mut self, address: u64, len: usize) -> Option<Fetched> {
        let (allocation, offset) = self.find(address, len)?;
        let mut value = [0; 8];
        value
            .get_mut(..len)?
            .copy_from_slice(&allocation.bytes[offset..offset + len]);
        Some(Fetched {
            value: u64::from_le_bytes(value),
            written: allocation.written[offset..offset + len]
                .iter()
                .all(|written| *written),
        })
    }

    fn put(&mut self, address: u64, len: usize, value: u64) -> bool {
        let Some((allocation, offset)) = self.find(address, len) else {
            return false;
        };
        allocation.bytes[offset..offset + len].copy_from_slice(&value.to_le_bytes()[..len]);
        allocation.written[offset..offset + len].fill(true);
        true
    }
}
