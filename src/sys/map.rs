//! Page-aligned memory: from the kernel with huge pages where large, from the allocator where small.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Size and alignment of a huge page on x86-64 and (with 4 KiB pages) on arm64.
const HUGE: usize = 2 << 20;

/// Bytes in a page of memory.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: asks for a number.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).unwrap_or(4096)
    })
}

/// Smaller regions come from the allocator: a process has only so many mappings (65530 by default on Linux), and
/// each small one would be one.
const MAP_FROM: usize = 128 << 10;

/// Asks for huge pages, if they are at hand, for the memory that `values` has room in. Less than one huge page: does nothing.
///
/// Faults of small pages take more time than copying what is written to them. The advice stays with the memory: `values` grows
/// without a copy only if all of it has the same. In a virtual machine that reports free memory to its host, huge pages that nobody has
/// used for some seconds cost more than small ones the first time.
#[cfg_attr(not(feature = "tfrecord"), allow(dead_code))]
pub(crate) fn prefer_huge_pages<T>(values: &mut Vec<T>) {
    let len = values.capacity().saturating_mul(size_of::<T>());
    if len < HUGE || !super::huge_pages_are_free(len) {
        return;
    }
    let page = page_size();
    let start = values.as_mut_ptr().cast::<u8>();
    let before = start.addr() % page;
    let Some(len) = (before + len).checked_next_multiple_of(page) else {
        return;
    };
    // SAFETY: the allocation is mapped, and so are the pages of its first and its last byte, whoever else has a part of them;
    // the advice changes the content of none.
    unsafe { super::advise_huge(start.wrapping_sub(before), len) };
}

/// Page-aligned memory of its own. Its content is undefined.
#[derive(Debug)]
pub(crate) struct Region {
    ptr: NonNull<u8>,
    len: usize,
}

fn layout(len: usize) -> io::Result<Layout> {
    Layout::from_size_align(len, page_size())
        .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
}

// SAFETY: a region is plain memory that belongs to whoever holds the value; no thread is special to it.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` gives out only the address and the length.
unsafe impl Sync for Region {}

impl Region {
    /// Takes `len` bytes (rounded up to pages; at least one), aligned to 2 MiB if it has that much, and advised to use
    /// huge pages if they are at hand.
    pub(crate) fn new(len: usize) -> io::Result<Region> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let page = page_size();
        let len = len
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(too_large)?;
        if len < MAP_FROM {
            // SAFETY: the layout has a size, as `len` is at least a page.
            let ptr = unsafe { std::alloc::alloc(layout(len)?) };
            let ptr = NonNull::new(ptr).ok_or_else(too_large)?;
            return Ok(Region { ptr, len });
        }
        let huge = len >= HUGE;
        let slack = if huge { HUGE - page } else { 0 };
        let mapped = len.checked_add(slack).ok_or_else(too_large)?;
        // SAFETY: a fresh private mapping, placed by the kernel, which cannot overlap what exists.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?
        .cast::<u8>();
        let before = if huge { base.align_offset(HUGE) } else { 0 };
        // SAFETY: `before <= slack`, so the kept part lies inside the mapping, and what is unmapped here are
        // the page-aligned rests before and after it, to which nothing refers.
        let start = unsafe {
            let start = base.add(before);
            if before > 0 {
                let _ = munmap(base.cast(), before);
            }
            let after = mapped - before - len;
            if after > 0 {
                let _ = munmap(start.add(len).cast(), after);
            }
            start
        };
        let region = Region {
            ptr: NonNull::new(start).ok_or_else(too_large)?,
            len,
        };
        if huge && super::huge_pages_are_free(len) {
            // SAFETY: advice about our own mapping; it does not change its content.
            unsafe { super::advise_huge(start, len) };
        }
        Ok(region)
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Makes all pages resident now, so that later writes do not fault. Best effort.
    pub(crate) fn populate(&self) {
        // SAFETY: advice about our own memory; it changes no content.
        unsafe { super::populate(self.ptr(), self.len) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.len >= MAP_FROM {
            // SAFETY: the mapping is ours, whole, and the only owner is going away.
            let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
        } else if let Ok(layout) = layout(self.len) {
            // SAFETY: it was allocated with this layout, and the only owner is going away.
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_huge_pages_are_asked_for_is_the_same_and_grows() {
        let mut small: Vec<u64> = Vec::with_capacity(100);
        prefer_huge_pages(&mut small);
        prefer_huge_pages(&mut Vec::<u64>::new());
        let mut values: Vec<u64> = Vec::with_capacity(HUGE);
        values.extend(0..1000);
        prefer_huge_pages(&mut values);
        values.extend(1000..3 * HUGE as u64);
        assert!((0..3 * HUGE as u64).eq(values));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn huge_pages_are_asked_for_all_of_the_memory() {
        let mut values: Vec<u64> = Vec::with_capacity(HUGE);
        prefer_huge_pages(&mut values);
        let (start, end) = (values.as_ptr().addr(), values.as_ptr().addr() + 8 * HUGE);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut at = 0..0;
        for line in maps.lines() {
            let first = line.split(' ').next().unwrap();
            if let Some((from, to)) = first.split_once('-')
                && let (Ok(from), Ok(to)) = (
                    usize::from_str_radix(from, 16),
                    usize::from_str_radix(to, 16),
                )
            {
                at = from..to;
            }
            if first == "VmFlags:" && at.start <= start && start < at.end {
                let is_whole = at.end >= end && line.split(' ').any(|flag| flag == "hg");
                // A kernel without them refuses.
                let refused = !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
                assert!(
                    is_whole || refused || !crate::sys::huge_pages_are_free(8 * HUGE),
                    "{line}"
                );
                return;
            }
        }
        panic!("{start:x} is mapped nowhere");
    }

    #[test]
    fn sizes_and_alignment() {
        for len in [
            0,
            1,
            4096,
            4097,
            MAP_FROM - 1,
            MAP_FROM,
            HUGE - 1,
            HUGE,
            HUGE + 1,
            5 * HUGE + 4096,
        ] {
            let region = Region::new(len).unwrap();
            assert!(region.len() >= len.max(1) && region.len() < len + 2 * page_size());
            assert_eq!(region.ptr().align_offset(page_size()), 0);
            if len >= HUGE {
                assert_eq!(region.ptr().align_offset(HUGE), 0);
            }
            region.populate();
            // SAFETY: first and last byte of memory that nobody else uses.
            unsafe {
                let last = region.ptr().add(region.len() - 1);
                (*region.ptr(), *last) = (6, 7);
                assert_eq!(*last, 7);
            }
        }
        assert!(Region::new(usize::MAX).is_err());
    }
}
