//! What tests set and read, by functions that cuFile lacks.

use std::ffi::{CStr, c_char, c_int};

use crate::state::{changed, state};

/// Everything that is counted, for [`software_cufile_counts`]. The layout is shared with the preload crate.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// How often the driver is open.
    pub opened: u64,
    /// Files that are registered.
    pub handles: u64,
    /// Buffers that are registered.
    pub buffers: u64,
    /// Batches that are set up.
    pub batches: u64,
    /// Streams that are registered.
    pub streams: u64,
    /// Reads one by one.
    pub reads: u64,
    /// Reads in batches.
    pub entries: u64,
    /// Batches that were submitted.
    pub submits: u64,
    /// Reads whose offset, length or address is no multiple of 4096.
    pub unaligned: u64,
    /// Reads into registered buffers.
    pub registered: u64,
    /// Buffers that were registered.
    pub registrations: u64,
    /// Times that somebody tried to change a setting.
    pub settings: u64,
    /// Batches that were given up.
    pub cancels: u64,
    /// Times that the driver was closed.
    pub closed: u64,
    /// Whether the compatibility mode is allowed.
    pub compatibility: u64,
    /// Reads that wait at this moment.
    pub waiting: u64,
    /// Things given back wrongly.
    pub wrong: u64,
}

/// Begins again: options as in the environment, nothing goes wrong, counts of what was done at zero. What is open stays.
#[unsafe(no_mangle)]
pub extern "C" fn software_cufile_reset() {
    state().reset();
    changed();
}

/// Sets an option by the name of its variable without `SOFTWARE_CUFILE_`; 0 if name and value are known.
///
/// # Safety
/// Both are texts with a zero byte at their end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cufile_set(name: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    let (name, value) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(value)) };
    let both = name.to_str().ok().zip(value.to_str().ok());
    let known = both.is_some_and(|(name, value)| state().options.set(name, value));
    changed();
    c_int::from(!known)
}

/// The call of that name after `after` more (0 is the next one) fails with `code`, one of cuFile or an errno; 0 takes it back. Reads
/// in a batch are called `entry`.
///
/// # Safety
/// The name is a text with a zero byte at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cufile_fail(call: *const c_char, after: u64, code: c_int) {
    // SAFETY: as the caller promises.
    let call = unsafe { CStr::from_ptr(call) }.to_string_lossy();
    state().fail(&call, after, code);
}

/// The read after `after` more, alone or in a batch, gives at most `len` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn software_cufile_shorten(after: u64, len: usize) {
    state().short = Some((after, len));
}

/// So many calls for the events of a batch find none.
#[unsafe(no_mangle)]
pub extern "C" fn software_cufile_delay(calls: u64) {
    state().delay = calls;
}

/// Whether reads wait, until they no longer have to.
#[unsafe(no_mangle)]
pub extern "C" fn software_cufile_hold(held: bool) {
    state().held = held;
    changed();
}

/// Gives everything that is counted.
///
/// # Safety
/// `totals` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn software_cufile_counts(totals: *mut Totals) {
    let state = state();
    let counts = state.counts;
    let value = Totals {
        opened: state.opened,
        handles: state.handles.len() as u64,
        buffers: state.buffers.len() as u64,
        batches: state.batches.len() as u64,
        streams: state.streams.len() as u64,
        reads: counts.reads,
        entries: counts.entries,
        submits: counts.submits,
        unaligned: counts.unaligned,
        registered: counts.registered,
        registrations: counts.registrations,
        settings: counts.settings,
        cancels: counts.cancels,
        closed: counts.closed,
        compatibility: u64::from(state.allow_compatibility),
        waiting: counts.waiting,
        wrong: counts.wrong,
    };
    // SAFETY: as the caller promises.
    unsafe { totals.write(value) };
}
