//! What is asked of the device's driver, which has to be loaded already.

use std::ffi::{CStr, c_int, c_void};

/// Whether the device has all these bytes in one allocation.
pub fn reaches(address: u64, len: usize) -> bool {
    let (mut base, mut whole) = (0u64, 0usize);
    let arguments = [
        &raw mut base as usize,
        &raw mut whole as usize,
        address as usize,
    ];
    if call(c"cuMemGetAddressRange_v2", arguments) != 0 {
        return false;
    }
    let from = address.wrapping_sub(base) as usize;
    from <= whole && len <= whole - from
}

/// Whether the calling thread has a context.
pub fn has_context() -> bool {
    let mut context = 0usize;
    call(c"cuCtxGetCurrent", [&raw mut context as usize, 0, 0]) == 0 && context != 0
}

/// Writes into the device's memory, now: in no order with what streams have queued.
pub fn write(address: u64, bytes: &[u8]) -> bool {
    call(
        c"software_cuda_write",
        [address as usize, bytes.as_ptr() as usize, bytes.len()],
    ) == 0
}

/// Waits for the work of a stream.
pub fn finish(stream: usize) -> bool {
    call(c"cuStreamSynchronize", [stream, 0, 0]) == 0
}

/// Calls a function that takes up to three whole numbers or addresses. 64-bit machines pass each in a register of its own, and the
/// function leaves alone those that it does not take.
fn call(name: &CStr, [first, second, third]: [usize; 3]) -> c_int {
    const NOT_INITIALIZED: c_int = 3;
    const NOT_FOUND: c_int = 500;
    // SAFETY: the name stands for a function of the driver that takes these numbers; addresses are of places of the caller's that are
    // large enough. A library that is loaded stays so as long as the program has it.
    unsafe {
        let library: *mut c_void = libc::dlopen(
            c"libcuda.so.1".as_ptr(),
            libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        );
        if library.is_null() {
            return NOT_INITIALIZED;
        }
        let address = libc::dlsym(library, name.as_ptr());
        libc::dlclose(library);
        if address.is_null() {
            return NOT_FOUND;
        }
        type Function = unsafe extern "C" fn(usize, usize, usize) -> c_int;
        std::mem::transmute::<*mut c_void, Function>(address)(first, second, third)
    }
}
