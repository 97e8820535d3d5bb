//! Linux.
#![allow(unsafe_code)]

/// Bytes of memory that the machine has.
pub(crate) fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)))
}
