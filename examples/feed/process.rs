//! What the system tells of this process, and what it is told.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Time that something took.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    /// On the wall.
    pub(crate) seconds: f64,
    /// Of all threads of this process, user and system.
    pub(crate) cpu_seconds: f64,
}

/// Does `work` and measures it.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, Spent) {
    let (start, cpu) = (Instant::now(), cpu_time());
    let result = work();
    let spent = Spent {
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu_time().saturating_sub(cpu).as_secs_f64(),
    };
    (result, spent)
}

fn cpu_time() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes one `rusage`, for which there is room; zeroes are a valid one too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Blocks from this size on are fresh memory of the kernel after [`fresh_blocks`].
pub(crate) const FRESH_FROM: u64 = 128 << 10;

/// Keeps the allocator from handing out large blocks a second time: `std::fs::read` would get warm memory for files
/// of some sizes, cold memory for others.
#[cfg(target_env = "gnu")]
pub(crate) fn fresh_blocks() {
    // SAFETY: sets a number. It fixes the threshold at its first value, which otherwise grows with use.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, FRESH_FROM as libc::c_int) };
}

/// Other allocators have no such knob; most ask the kernel for every large block.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn fresh_blocks() {}
