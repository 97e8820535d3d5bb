//! Memory of the device, of the host, and of both.

use std::collections::HashMap;
use std::ops::Range;

use software_cuda_ptx::{Fetched, Memory};

use crate::codes::{Code, Outcome};
use crate::device::Device;
use crate::pieces::Pieces;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The device alone may touch it.
    Device,
    /// Both may.
    Managed,
    /// Of the host, page-locked and mapped.
    Pinned,
    /// The host's own, registered.
    Registered,
}

/// A piece of memory.
#[derive(Debug)]
pub struct Allocation {
    /// Length in bytes.
    pub len: usize,
    /// What it is for.
    pub kind: Kind,
    /// Which device it belongs to.
    pub device: i32,
    /// The pool that it goes back to, or 0.
    pub pool: usize,
    /// Where its mapping begins.
    mapped: usize,
    /// A bit for each byte that has been written; nothing where that is not followed.
    written: Option<Vec<u64>>,
}

/// Above this, writes are not followed: kernels that are checked work on less.
const MOST_FOLLOWED: usize = 16 << 20;
/// Above this, new memory is left as the system gives it (zeros), so that large and sparse buffers take nothing.
const MOST_FILLED: usize = 1 << 20;
const PAGE: usize = 4096;
/// Small allocations of the driver's begin at multiples of this, and not of a page.
const SMALL_ALIGN: usize = 512;
/// From here on, they begin at those of much more.
const LARGE: usize = 1 << 20;

/// The handle of the default pool of the first device; those of the others follow it, below those that programs are given.
pub const DEFAULT_POOL: usize = 0x800;

/// All memory that the driver knows.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    allocations: Pieces,
    used: usize,
    pools: HashMap<usize, Pool>,
}

/// A pool of memory in the order of streams, that a program made.
#[derive(Debug, Default)]
struct Pool {
    /// Most bytes that it keeps while nobody uses them.
    threshold: usize,
    kept: usize,
    used: usize,
}

impl DeviceMemory {
    /// Bytes of device memory in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes of device memory that pools keep.
    pub fn kept(&self) -> usize {
        self.pools.values().map(|pool| pool.kept).sum()
    }

    /// Whether it is a pool that a program made, and did not destroy.
    pub fn has_pool(&self, handle: usize) -> bool {
        self.pools.contains_key(&handle)
    }

    /// Bytes that a pool has from the device, and those of them that somebody uses. Of a default pool, which keeps nothing, both are what is
    /// in use.
    pub fn of_pool(&self, handle: usize) -> (usize, usize) {
        match self.pools.get(&handle) {
            Some(pool) => (pool.kept.saturating_add(pool.used), pool.used),
            None => (self.used, self.used),
        }
    }

    /// Makes a pool that keeps nothing yet.
    pub fn add_pool(&mut self, handle: usize) {
        self.pools.insert(handle, Pool::default());
    }

    /// Takes a pool away; whether there was one.
    pub fn remove_pool(&mut self, handle: usize) -> bool {
        self.pools.remove(&handle).is_some()
    }

    /// How much a pool keeps from now on.
    pub fn set_threshold(&mut self, handle: usize, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.threshold = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
    }

    /// Gives back what a pool keeps above so many bytes.
    pub fn trim_pool(&mut self, handle: usize, keep: usize) {
        if let Some(pool) = self.pools.get_mut(&handle) {
            pool.kept = pool.kept.min(keep);
        }
    }

    /// How many pieces of a kind there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.allocations
            .iter()
            .filter(|allocation| allocation.kind == kind)
            .count()
    }

    /// The piece that has all these bytes, with its address.
    pub fn find(&self, address: usize, len: usize) -> Option<(usize, &Allocation)> {
        self.allocations.find(address, len)
    }

    /// Whether the host's memory there is page-locked.
    pub fn is_pinned(&self, address: usize, len: usize) -> bool {
        self.find(address, len)
            .is_some_and(|(_, allocation)| allocation.kind != Kind::Device)
    }

    /// Notes that bytes are written.
    pub fn mark(&mut self, address: usize, len: usize) {
        if let Some((base, allocation)) = self.allocations.find_mut(address, len) {
            allocation.mark(address - base, len);
        }
    }

    fn is_written(&self, address: usize, len: usize) -> bool {
        self.find(address, len)
            .is_some_and(|(base, allocation)| allocation.is_written(address - base, len))
    }

    /// Copies what is known of the bytes along with them.
    fn mark_copied(&mut self, to: usize, from: usize, len: usize) {
        let followed = |memory: &Self, address| {
            memory
                .find(address, len)
                .is_some_and(|(_, allocation)| allocation.written.is_some())
        };
        if !followed(self, from) || !followed(self, to) {
            return self.mark(to, len);
        }
        for offset in 0..len {
            if self.is_written(from + offset, 1) {
                self.mark(to + offset, 1);
            }
        }
    }
}

/// Word and bits in it of a few bits, if they are all in one word: what kernels access.
fn bits_of_few(start: usize, len: usize) -> Option<(usize, u64)> {
    (len <= 8 && start % 64 + len <= 64)
        .then(|| (start / 64, ((1u64 << len) - 1) << (start % 64)))
        .filter(|_| len > 0)
}

/// Words and bits in them of a range of bits.
fn bits_of(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = range;
    // Nothing is none, not a part of a word.
    let end = if start == end { 0 } else { end };
    (start / 64..end.div_ceil(64)).map(move |index| {
        let low = start.saturating_sub(index * 64).min(64);
        let high = (end - index * 64).min(64);
        (index, (u64::MAX >> (64 - (high - low))) << low)
    })
}

impl Memory for DeviceMemory {
    fn fetch(&mut self, address: u64, len: usize) -> Option<Fetched> {
        let address = usize::try_from(address).ok()?;
        let (base, allocation) = self.allocations.find(address, len)?;
        let mut bytes = [0; 8];
        // SAFETY: all `len` bytes lie in a piece of memory that is mapped until it is taken out of the map; kernels run
        // while the device is locked, and the host has promised not to write what a kernel reads.
        unsafe {
            std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), len.min(8))
        };
        Some(Fetched {
            value: u64::from_le_bytes(bytes),
            written: allocation.is_written(address - base, len),
        })
    }

    fn put(&mut self, address: u64, len: usize, value: u64) -> bool {
        let Some((address, (base, allocation))) = usize::try_from(address)
            .ok()
            .and_then(|address| Some((address, self.allocations.find_mut(address, len)?)))
        else {
            return false;
        };
        // SAFETY: as above; the memory is writable.
        unsafe {
            std::ptr::copy_nonoverlapping(
                value.to_le_bytes().as_ptr(),
                address as *mut u8,
                len.min(8),
            )
        };
        allocation.mark(address - base, len);
        true
    }
}

impl Allocation {
    /// Notes that bytes are written.
    fn mark(&mut self, start: usize, len: usize) {
        if let Some(bits) = &mut self.written {
            if let Some((index, mask)) = bits_of_few(start, len) {
                bits[index] |= mask;
                return;
            }
            for (index, mask) in bits_of(start..start + len) {
                bits[index] |= mask;
            }
        }
    }

    /// Whether all these bytes have been written, as far as that is followed.
    fn is_written(&self, start: usize, len: usize) -> bool {
        self.written.as_ref().is_none_or(|bits| {
            if let Some((index, mask)) = bits_of_few(start, len) {
                return bits[index] & mask == mask;
            }
            bits_of(start..start + len).all(|(index, mask)| bits[index] & mask == mask)
        })
    }
}

impl Device {
    /// Takes memory.
    pub fn allocate(&mut self, len: usize, kind: Kind, ordinal: i32) -> Outcome<usize> {
        self.allocate_from(0, len, kind, ordinal)
    }

    /// Bytes of device memory that nobody uses and no pool keeps.
    pub fn free_memory(&self) -> usize {
        let taken = self.memory.used.saturating_add(self.memory.kept());
        self.options.memory.saturating_sub(taken)
    }

    /// Takes memory from a pool that a program made, where `pool` is one.
    pub fn allocate_from(
        &mut self,
        pool: usize,
        len: usize,
        kind: Kind,
        ordinal: i32,
    ) -> Outcome<usize> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let on_device = matches!(kind, Kind::Device | Kind::Managed);
        let kept = self.memory.pools.get(&pool).map_or(0, |pool| pool.kept);
        if on_device && len > self.free_memory().saturating_add(kept) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let shift = match kind {
            Kind::Device if len < LARGE => SMALL_ALIGN,
            _ => 0,
        };
        let whole = len
            .checked_add(shift)
            .and_then(|len| len.checked_next_multiple_of(PAGE))
            .and_then(|len| len.checked_add(PAGE))
            .ok_or(Code::OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place that the system chooses touches nothing that exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Code::OUT_OF_MEMORY);
        }
        // A page after it that nobody may touch: what the host writes too far ends there.
        // SAFETY: the last page of the mapping just made.
        unsafe { libc::mprotect(address.byte_add(whole - PAGE), PAGE, libc::PROT_NONE) };
        if len <= MOST_FILLED {
            // SAFETY: `len` bytes of the mapping just made, which has room for them.
            unsafe { std::ptr::write_bytes(address.byte_add(shift).cast::<u8>(), 0xa5, len) };
        }
        let follow = self.options.checks.unwritten && kind == Kind::Device && len <= MOST_FOLLOWED;
        let written = follow.then(|| vec![0; len.div_ceil(64)]);
        let (mapped, address) = (address as usize, address as usize + shift);
        self.memory.allocations.insert(
            address,
            Allocation {
                len,
                kind,
                device: ordinal,
                pool,
                mapped,
                written,
            },
        );
        self.memory.used += if on_device { len } else { 0 };
        if let Some(pool) = self.memory.pools.get_mut(&pool) {
            pool.kept = pool.kept.saturating_sub(len);
            pool.used = pool.used.saturating_add(len);
        }
        self.remember(address);
        Ok(address)
    }

    /// Gives memory back.
    pub fn free(&mut self, address: usize, kinds: &[Kind]) -> Outcome {
        if !self
            .memory
            .allocations
            .get(address)
            .is_some_and(|allocation| kinds.contains(&allocation.kind))
        {
            return self.freed_wrong(address, Code::INVALID_VALUE);
        }
        let Some(allocation) = self.memory.allocations.remove(address) else {
            return Err(Code::INVALID_VALUE);
        };
        if matches!(allocation.kind, Kind::Device | Kind::Managed) {
            self.memory.used -= allocation.len;
        }
        self.forget(address);
        if allocation.kind != Kind::Registered {
            let mapped = allocation.mapped;
            let len = (address - mapped + allocation.len).next_multiple_of(PAGE) + PAGE;
            // SAFETY: the mapping made in `allocate`, which is in the map no longer.
            unsafe { libc::munmap(mapped as *mut libc::c_void, len) };
        }
        Ok(())
    }

    /// Gives memory back in the order of a stream: to its pool, if it is from one.
    pub fn free_to_pool(&mut self, address: usize) -> Outcome {
        let of = |allocation: &Allocation| (allocation.pool, allocation.len);
        let home = self.memory.allocations.get(address).map(of);
        self.free(address, &[Kind::Device, Kind::Managed])?;
        if let Some((pool, len)) = home
            && let Some(pool) = self.memory.pools.get_mut(&pool)
        {
            pool.used = pool.used.saturating_sub(len);
            pool.kept = pool.kept.saturating_add(len).min(pool.threshold);
        }
        Ok(())
    }

    /// Takes the host's own memory in.
    pub fn register(&mut self, address: usize, len: usize) -> Outcome {
        if address == 0 || len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let before = self.memory.allocations.before(address.saturating_add(len));
        if before.is_some_and(|(base, other)| base + other.len > address) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.memory.allocations.insert(
            address,
            Allocation {
                len,
                kind: Kind::Registered,
                device: 0,
                pool: 0,
                mapped: address,
                written: None,
            },
        );
        self.remember(address);
        Ok(())
    }

    /// Whether the device's memory has these bytes.
    pub fn reaches(&self, address: u64, len: usize) -> Outcome {
        match usize::try_from(address)
            .ok()
            .and_then(|address| self.memory.find(address, len))
        {
            Some(_) => Ok(()),
            None => Err(Code::INVALID_VALUE),
        }
    }

    /// Copies between any two places.
    ///
    /// # Safety
    /// What is not the driver's has to be valid for `len` bytes.
    pub unsafe fn copy(&mut self, to: usize, from: usize, len: usize) {
        // SAFETY: the driver's own memory was looked up by the caller; for the rest the caller of the API answers.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
        self.memory.mark_copied(to, from, len);
    }
}
