//! Linux.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, StatxFlags};

use super::facts::CachedOpen;

pub(crate) use super::facts::{DirectAlign, FileSystem};

/// Drops pages that the read brought in once they have been copied (Linux 6.14; not in `libc` yet).
const RWF_DONTCACHE: libc::c_int = 0x80;

/// Most bytes that one `read` moves (`MAX_RW_COUNT`: `INT_MAX` rounded down to pages).
const MAX_READ: usize = 0x7fff_f000;

/// How a read by position behaves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadMode {
    /// Fail with `WouldBlock` rather than wait for a device.
    pub(crate) no_wait: bool,
    /// Leave nothing in the page cache that was not there.
    pub(crate) dont_cache: bool,
}

/// One `pread` of up to `len` bytes to `ptr`. May be short.
///
/// # Safety
/// `ptr..ptr + len` is valid for writes and nobody else uses it until the call returns.
pub(crate) unsafe fn pread(
    fd: BorrowedFd<'_>,
    ptr: *mut u8,
    len: usize,
    offset: u64,
    mode: ReadMode,
) -> io::Result<usize> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let len = len.min(MAX_READ);
    let flags = if mode.no_wait { libc::RWF_NOWAIT } else { 0 }
        | if mode.dont_cache { RWF_DONTCACHE } else { 0 };
    let n = if flags == 0 {
        // SAFETY: the caller vouches for the memory; the descriptor is borrowed, so open.
        unsafe { libc::pread(fd.as_raw_fd(), ptr.cast(), len, offset) }
    } else {
        let iov = libc::iovec {
            iov_base: ptr.cast(),
            iov_len: len,
        };
        // The system call rather than libc's wrapper, which not every libc has. On 64 bits the first half of
        // the offset holds all of it.
        // SAFETY: as above; the kernel reads one iovec, which outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_preadv2,
                fd.as_raw_fd(),
                &raw const iov,
                1 as libc::c_ulong,
                offset as libc::c_ulong,
                0 as libc::c_ulong,
                flags,
            ) as isize
        }
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Whether an error of [`pread`] says that the kernel or file system does not know the mode.
pub(crate) fn is_mode_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
    )
}

/// Flags for opening any path to read without side effects: a FIFO does not wait for a writer, a terminal does
/// not become ours.
pub(crate) fn open_flags() -> i32 {
    libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC
}

/// Flags for an open of anything that is only looked at.
pub(crate) fn look_flags(follow: bool) -> i32 {
    libc::O_PATH | libc::O_CLOEXEC | if follow { 0 } else { libc::O_NOFOLLOW }
}

/// Opens a path, as long as all of it is in memory already: `openat2` with `RESOLVE_CACHED` (Linux 5.12).
pub(crate) fn open_cached(path: &Path, flags: i32) -> io::Result<CachedOpen> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    use rustix::io::Errno;
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if REFUSED.load(Ordering::Relaxed) {
        return Ok(CachedOpen::NotOffered);
    }
    let flags = OFlags::from_bits_retain(flags as u32);
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(fd) => Ok(CachedOpen::Opened(fd)),
        Err(Errno::AGAIN) => Ok(CachedOpen::WouldWait),
        Err(Errno::NOSYS) => {
            REFUSED.store(true, Ordering::Relaxed);
            Ok(CachedOpen::NotOffered)
        }
        // Said by a kernel that does not know the flag; but also of a path with a NUL in it, and by some file systems of some
        // files. A path that is always good tells which, so that one bad path does not make all others wait.
        Err(Errno::INVAL) => {
            let look = OFlags::PATH | OFlags::CLOEXEC;
            let good = openat2(CWD, c"/", look, Mode::empty(), ResolveFlags::CACHED);
            if matches!(good, Err(Errno::INVAL)) {
                REFUSED.store(true, Ordering::Relaxed);
            }
            Ok(CachedOpen::NotOffered)
        }
        // What filters say of calls that they do not know; said of the file, another open will say it again.
        Err(Errno::PERM) => Ok(CachedOpen::NotOffered),
        Err(error) => Err(error.into()),
    }
}

/// How many descriptors this process may have open.
pub(crate) fn descriptor_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Takes `O_NONBLOCK` off a file that was opened with [`open_flags`]: for a regular file it means nothing to
/// `read`, but `io_uring` would obey it.
pub(crate) fn set_blocking(file: BorrowedFd<'_>) -> io::Result<()> {
    // Of the flags that can be set, the opening had no other one.
    Ok(rustix::fs::fcntl_setfl(file, rustix::fs::OFlags::empty())?)
}

/// The alignment that `O_DIRECT` needs for this file, by `statx` (Linux 6.1). `Ok(None)`: the system does not say.
pub(crate) fn direct_align(fd: BorrowedFd<'_>) -> io::Result<Option<DirectAlign>> {
    let stat = match rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        // Before Linux 4.11 there is no statx; direct I/O there is.
        Err(rustix::io::Errno::NOSYS) => return Ok(None),
        told => told?,
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(None);
    }
    Ok(Some(DirectAlign {
        memory: stat.stx_dio_mem_align as usize,
        offset: u64::from(stat.stx_dio_offset_align),
    }))
}

/// Opens the file behind `fd` once more, for reading past the page cache.
///
/// Through `/proc`, so that it is the same inode whatever has become of its path. The caller compares identities.
pub(crate) fn reopen(fd: BorrowedFd<'_>, direct: bool) -> io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags | libc::O_CLOEXEC)
        .open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// The kind of file system, by its magic number.
pub(crate) fn file_system(fd: BorrowedFd<'_>) -> io::Result<FileSystem> {
    // Magic numbers: linux/magic.h; statfs(2) lists most.
    Ok(match rustix::fs::fstatfs(fd)?.f_type as u32 {
        0x9fa0 | 0x6265_6572 | 0x6462_6720 | 0x7472_6163 | 0x7363_6673 | 0x6265_6570
        | 0x0027_e0eb | 0x6367_7270 | 0xcafe_4a11 | 0xf97c_ff8c => FileSystem::Pseudo,
        0x6969 => FileSystem::Network("nfs"),
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => FileSystem::Network("smb"),
        0x00c3_6400 => FileSystem::Network("ceph"),
        0x0102_1997 => FileSystem::Network("9p"),
        0x5346_414f | 0x6b41_4653 => FileSystem::Network("afs"),
        0x0bd0_0bd0 => FileSystem::Network("lustre"),
        0x6573_5546 => FileSystem::Network("fuse"),
        0xef53 => FileSystem::Local("ext4"),
        0x5846_5342 => FileSystem::Local("xfs"),
        0x9123_683e => FileSystem::Local("btrfs"),
        0x2fc1_2fc1 => FileSystem::Local("zfs"),
        0xf2f5_2010 => FileSystem::Local("f2fs"),
        0xca45_1a4e => FileSystem::Local("bcachefs"),
        0x794c_7630 => FileSystem::Local("overlay"),
        0x0102_1994 => FileSystem::Memory("tmpfs"),
        0x8584_58f6 => FileSystem::Memory("ramfs"),
        0x9584_58f6 => FileSystem::Memory("hugetlbfs"),
        // Perhaps a network's: read like one.
        _ => FileSystem::Network("unknown file system"),
    })
}

/// Bytes of `offset..offset + len` in the page cache, by `cachestat` (Linux 6.5). `None`: not known, because the
/// system has no such call or does not tell this process.
pub(crate) fn resident_bytes(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    #[repr(C)]
    struct Range {
        off: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    // One number on every architecture (include/uapi/asm-generic/unistd.h).
    const SYS_CACHESTAT: libc::c_long = 451;
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if len == 0 || REFUSED.load(Ordering::Relaxed) {
        return (len == 0).then_some(0);
    }
    let range = Range { off: offset, len };
    let mut stat = Stat::default();
    // SAFETY: both structs have the kernel's layout and outlive the call; the descriptor is open.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0 as libc::c_uint,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOSYS) {
            REFUSED.store(true, Ordering::Relaxed);
        }
        return None;
    }
    Some(
        stat.cache
            .saturating_mul(super::page_size() as u64)
            .min(len),
    )
}

/// As [`resident_bytes`], by what a mapping would find (`mincore`): for files whose pages are those of another one, which
/// `cachestat` does not look at. `None` also for files of others, of which the system says that all is there.
pub(crate) fn resident_bytes_mapped(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    /// Mapped at once. The answer has a byte for each page.
    const WINDOW: u64 = 256 << 20;
    let owner = rustix::fs::fstat(fd).ok()?.st_uid;
    // SAFETY: asks for an id.
    let user = unsafe { libc::geteuid() };
    if user != owner && user != 0 {
        return None;
    }
    let page = super::page_size();
    let end = offset.checked_add(len)?;
    let mut at = offset - offset % page as u64;
    let mut resident = 0u64;
    let mut answer = Vec::new();
    while at < end {
        let bytes = (end - at).min(WINDOW) as usize;
        answer.resize(bytes.div_ceil(page), 0u8);
        let protection = ProtFlags::empty();
        // SAFETY: a new mapping, placed by the kernel, that nobody reads or writes; `answer` has a byte for each of its
        // pages; it is unmapped at once, when nothing refers to it.
        let told = unsafe {
            let start = std::ptr::null_mut();
            let map = mmap(start, bytes, protection, MapFlags::SHARED, fd, at).ok()?;
            let told = libc::mincore(map, bytes, answer.as_mut_ptr());
            let _ = munmap(map, bytes);
            told
        };
        if told != 0 {
            return None;
        }
        let pages = answer.iter().filter(|page| **page & 1 == 1).count();
        resident += (pages * page) as u64;
        at += bytes as u64;
    }
    Some(resident.min(len))
}

/// Tells the kernel that a range will be read soon, or is not needed in the page cache any more. Best effort.
pub(crate) fn advise(fd: BorrowedFd<'_>, offset: u64, len: u64, needed: bool) {
    use rustix::fs::Advice;
    let advice = if needed {
        Advice::WillNeed
    } else {
        Advice::DontNeed
    };
    let _ = rustix::fs::fadvise(fd, offset, std::num::NonZeroU64::new(len), advice);
}

/// Bytes of memory that the machine has.
pub(crate) fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)))
}

/// Whether the descriptor was opened for direct I/O, which fails for buffers that are not aligned.
pub(crate) fn is_direct(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_getfl(fd)?.contains(rustix::fs::OFlags::DIRECT))
}

/// Whether memory for `len` bytes lies free in blocks of 2 MiB and more, by `/proc/buddyinfo`. True if not known.
///
/// Where they are not, a fault in memory that is advised to use huge pages has the kernel compact memory first,
/// which made reading three times as slow as with small pages where memory was fragmented.
pub(crate) fn huge_pages_are_free(len: usize) -> bool {
    // Blocks of 2^order small pages: 2 MiB are the order from which a block serves.
    let Some(order) = (HUGE / super::page_size()).checked_ilog2() else {
        return true;
    };
    let Ok(zones) = std::fs::read_to_string("/proc/buddyinfo") else {
        return true;
    };
    let mut free = 0u64;
    for zone in zones.lines() {
        // "Node 0, zone   Normal   28   2   0 …": free blocks of order 0, 1, 2…
        let counts = zone.split_whitespace().skip(4);
        for (at, count) in counts.enumerate().skip(order as usize) {
            let blocks: u64 = count.parse().unwrap_or(0);
            let bytes = (super::page_size() as u64).checked_shl(at as u32);
            free = free.saturating_add(blocks.saturating_mul(bytes.unwrap_or(0)));
        }
    }
    free >= len as u64
}

/// Size of a huge page, which [`Region`](super::Region) aligns to.
const HUGE: usize = 2 << 20;

/// Asks for huge pages. A refusal (none in this kernel) only makes it slower.
///
/// # Safety
/// `ptr..ptr + len` is mapped memory of the caller.
pub(crate) unsafe fn advise_huge(ptr: *mut u8, len: usize) {
    // SAFETY: the caller's memory, whose content does not change.
    let _ = unsafe { rustix::mm::madvise(ptr.cast(), len, rustix::mm::Advice::LinuxHugepage) };
}

/// Makes pages resident, writable and without a later fault (Linux 5.14). Best effort.
///
/// # Safety
/// `ptr..ptr + len` is memory of the caller, in whole pages.
pub(crate) unsafe fn populate(ptr: *mut u8, len: usize) {
    let advice = rustix::mm::Advice::LinuxPopulateWrite;
    // SAFETY: the caller's memory, whose content does not change.
    let _ = unsafe { rustix::mm::madvise(ptr.cast(), len, advice) };
}

/// A word in a page of its own that a forked child finds zeroed (`MADV_WIPEONFORK`, Linux 4.14).
pub(crate) fn word_wiped_on_fork() -> Option<&'static std::sync::atomic::AtomicU64> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let len = super::page_size();
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping, placed by the kernel; nothing else refers to it.
    let page =
        unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: advice for the mapping made above. On failure nobody has seen it, so it can go.
    unsafe {
        if madvise(page, len, Advice::LinuxWipeOnFork).is_err() {
            let _ = munmap(page, len);
            return None;
        }
    }
    // SAFETY: the page is writable, aligned, zero (a valid u64), and is never unmapped after this point.
    Some(unsafe { &*page.cast() })
}

/// The block device behind a file's `st_dev`, a partition counted as its disk. `None`: not one that sysfs shows.
pub(crate) fn block_device(dev: u64) -> Option<super::BlockDevice> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let mut path = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if path.join("partition").exists() {
        path.pop();
    }
    let number = |name: &str| {
        let text = std::fs::read_to_string(path.join("queue").join(name));
        text.ok().and_then(|text| text.trim().parse::<u64>().ok())
    };
    Some(super::BlockDevice {
        name: path.file_name()?.to_string_lossy().into_owned(),
        queue: number("nr_requests").map(|n| n as usize),
        read_ahead: number("read_ahead_kb").map(|kib| kib << 10),
    })
}

/// Lowers the priority of the calling thread, so that others come first.
#[cfg_attr(not(feature = "cache"), allow(dead_code))]
pub(crate) fn yield_to_others() {
    // Of the thread alone, unlike POSIX (nice(2), "C library/kernel differences"). Refused, it does as well without.
    let _ = rustix::process::nice(10);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_makes_no_other_wait() {
        let offered = || {
            let tried = open_cached(Path::new("/"), look_flags(true));
            matches!(tried, Ok(CachedOpen::Opened(_)))
        };
        let before = offered();
        let bad = open_cached(Path::new("a\0b"), look_flags(true));
        assert!(matches!(bad, Ok(CachedOpen::NotOffered)), "{bad:?}");
        assert_eq!(offered(), before);
    }
}
