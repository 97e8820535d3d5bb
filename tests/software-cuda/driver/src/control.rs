//! What tests set and read, by functions that the real driver lacks: that they are there tells the two apart.

use std::ffi::{CStr, c_char};

use crate::codes::Code;
use crate::device::{Counted, Work, device};
use crate::memory::Kind;

/// Everything that is counted, for [`software_cuda_counts`]. The layout is shared with the preload crate.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Bytes of device memory in use.
    pub device_bytes: u64,
    /// Pieces of device memory in use, without variables of modules.
    pub device_allocations: u64,
    /// Pieces of managed memory in use, with variables of modules.
    pub managed_allocations: u64,
    /// Pieces of page-locked memory in use.
    pub pinned_allocations: u64,
    /// Pieces of the host's memory that are registered.
    pub registrations: u64,
    /// Streams that were made and are not gone.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Modules.
    pub modules: u64,
    /// How often primary contexts are retained.
    pub contexts: u64,
    /// Calls that can fail.
    pub calls: u64,
    /// Calls that take memory.
    pub allocations: u64,
    /// Kernels that ran.
    pub launches: u64,
    /// Calls that wait for what is queued.
    pub waits: u64,
    /// Copies from the host that were queued.
    pub uploads: u64,
    /// Streams in which kernels were queued.
    pub kernel_streams: u64,
    /// The most of them that had some queued at one time.
    pub streams_at_once: u64,
    /// Things freed twice.
    pub double_frees: u64,
    /// Frees of what never was.
    pub wrong_frees: u64,
    /// Contexts released more often than retained.
    pub wrong_releases: u64,
    /// Findings in kernels.
    pub findings: u64,
}

/// Begins again: options as in the environment, no injected or lasting error, no findings, counts of what was done at zero.
#[unsafe(no_mangle)]
pub extern "C" fn software_cuda_reset() {
    device().reset();
}

/// Sets an option by the name of its variable without `SOFTWARE_CUDA_`; 0 if name and value are known.
///
/// # Safety
/// Both are texts with a zero byte at their end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cuda_set(name: *const c_char, value: *const c_char) -> i32 {
    // SAFETY: as the caller promises.
    let (name, value) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(value)) };
    let known = name
        .to_str()
        .ok()
        .zip(value.to_str().ok())
        .is_some_and(|(name, value)| device().options.set(name, value));
    i32::from(!known)
}

/// `times` calls give the error `code`, from the `after`-th from now on (0 is the next one); of those that take memory if `allocations` is
/// not 0. A code of 0 takes an injected error back.
#[unsafe(no_mangle)]
pub extern "C" fn software_cuda_inject(allocations: i32, after: u64, times: u64, code: i32) {
    let counted = if allocations == 0 {
        Counted::Calls
    } else {
        Counted::Allocations
    };
    device().inject(counted, after, times, Code(code));
}

/// Says how many registers a kernel has.
///
/// # Safety
/// The name is a text with a zero byte at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cuda_registers(kernel: *const c_char, registers: u32) {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(kernel) }
        .to_string_lossy()
        .into_owned();
    device().registers.insert(name, registers);
}

/// Gives everything that is counted.
///
/// # Safety
/// `totals` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cuda_counts(totals: *mut Totals) {
    let device = device();
    let (streams, events) = device.streams.live();
    let value = Totals {
        device_bytes: device.memory.used() as u64,
        device_allocations: device.memory.count(Kind::Device) as u64,
        managed_allocations: device.memory.count(Kind::Managed) as u64,
        pinned_allocations: device.memory.count(Kind::Pinned) as u64,
        registrations: device.memory.count(Kind::Registered) as u64,
        streams: streams as u64,
        events: events as u64,
        modules: device.modules.len() as u64,
        contexts: device.retained.values().sum(),
        calls: device.counts.calls,
        allocations: device.counts.allocations,
        launches: device.counts.launches,
        waits: device.counts.waits,
        uploads: device.counts.uploads,
        kernel_streams: device.kernel_streams.len() as u64,
        streams_at_once: device.counts.streams_at_once,
        double_frees: device.counts.double_frees,
        wrong_frees: device.counts.wrong_frees,
        wrong_releases: device.counts.wrong_releases,
        findings: device.findings.len() as u64,
    };
    // SAFETY: as the caller promises.
    unsafe { totals.write(value) };
}

/// Writes the `index`-th finding as text into `buffer` and gives its whole length; 0 if there is none.
///
/// # Safety
/// `buffer` is valid for writes of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cuda_finding(index: u64, buffer: *mut u8, len: usize) -> usize {
    let device = device();
    let Some(finding) = usize::try_from(index)
        .ok()
        .and_then(|index| device.findings.get(index))
    else {
        return 0;
    };
    let text = finding.to_string();
    // SAFETY: as the caller promises; no more than `len` bytes are written.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, text.len().min(len)) };
    text.len()
}

/// Gives what the launches of a kernel did since the last reset.
///
/// # Safety
/// The name is a text with a zero byte at its end, and `work` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cuda_work(kernel: *const c_char, work: *mut Work) {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(kernel) }.to_string_lossy();
    let value = device().works.get(&*name).copied().unwrap_or_default();
    // SAFETY: as the caller promises.
    unsafe { work.write(value) };
}

/// Writes into memory of the device at once, whatever streams have queued, as a DMA engine would that is no part of them; 0 if all
/// of it is in one allocation.
///
/// # Safety
/// `from` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cuda_write(to: u64, from: *const u8, len: usize) -> i32 {
    let mut device = device();
    if device.reaches(to, len).is_err() {
        return 1;
    }
    // SAFETY: the device has the bytes at `to`; those at `from` are the caller's.
    unsafe { device.copy(to as usize, from as usize, len) };
    0
}
