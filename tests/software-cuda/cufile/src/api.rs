//! The functions of cuFile, as C declares them in `cufile.h`.

use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_uint, c_void};

use crate::codes;
use crate::driver;
use crate::options::Opening;
use crate::read::Asked;
use crate::state::{State, changed, state, wait_while};

/// `CUfileError_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Status {
    pub cufile: c_int,
    pub cuda: c_int,
}

/// `CUfileDescr_t`
#[repr(C)]
pub struct Description {
    kind: c_int,
    file: File,
    operations: *const c_void,
}

#[repr(C)]
union File {
    descriptor: c_int,
    _handle: *mut c_void,
}

/// `CUfileDrvProps_t`
#[repr(C)]
pub struct Properties {
    major: c_uint,
    minor: c_uint,
    poll_threshold: usize,
    max_direct: usize,
    status: c_uint,
    control: c_uint,
    features: c_uint,
    max_cache: c_uint,
    buffer_cache: c_uint,
    max_pinned: c_uint,
    max_batch: c_uint,
    max_timeout: c_uint,
}

/// A kind of file: a descriptor.
const DESCRIPTOR: c_int = 1;
/// The setting `allow_compat_mode`.
const ALLOW_COMPATIBILITY: c_int = 1;

/// Does what a call does, unless it is to fail.
pub(crate) fn call(name: &str, body: impl FnOnce(&mut State) -> c_int) -> Status {
    let mut state = state();
    let code = match state.failure(name) {
        Some(code) => code,
        None => body(&mut state),
    };
    Status {
        cufile: code,
        cuda: 0,
    }
}

/// The same of a call that needs the driver open.
pub(crate) fn opened(name: &str, body: impl FnOnce(&mut State) -> c_int) -> Status {
    call(name, |state| {
        if state.opened == 0 {
            codes::DRIVER_NOT_INITIALIZED
        } else {
            body(state)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverOpen() -> Status {
    drop(wait_while(state(), |state| {
        state.options.opening == Opening::Hangs
    }));
    call("cuFileDriverOpen", |state| {
        let refused = state.options.opening == Opening::Refused;
        if refused || (state.options.compatibility && !state.allow_compatibility) {
            return codes::DRIVER_NOT_INITIALIZED;
        }
        state.opened += 1;
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverClose() -> Status {
    let status = opened("cuFileDriverClose", |state| {
        state.opened -= 1;
        state.counts.closed += 1;
        codes::SUCCESS
    });
    changed();
    status
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverClose_v2() -> Status {
    cuFileDriverClose()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileUseCount() -> i64 {
    state().opened as i64
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    call("cuFileGetVersion", |_| {
        // SAFETY: the caller gives a place for the number.
        unsafe { version.write(1140) };
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetParameterBool(parameter: c_int, value: *mut bool) -> Status {
    call("cuFileGetParameterBool", |state| {
        if !state.options.parameters {
            return codes::PLATFORM_NOT_SUPPORTED;
        }
        if parameter != ALLOW_COMPATIBILITY {
            return codes::INVALID_VALUE;
        }
        // SAFETY: the caller gives a place for the value.
        unsafe { value.write(state.allow_compatibility) };
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileSetParameterBool(parameter: c_int, value: bool) -> Status {
    call("cuFileSetParameterBool", |state| {
        state.counts.settings += 1;
        if !state.options.parameters {
            codes::PLATFORM_NOT_SUPPORTED
        } else if state.opened > 0 {
            codes::DRIVER_ALREADY_OPEN
        } else if parameter == ALLOW_COMPATIBILITY {
            state.allow_compatibility = value;
            codes::SUCCESS
        } else {
            codes::INVALID_VALUE
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileDriverGetProperties(properties: *mut Properties) -> Status {
    opened("cuFileDriverGetProperties", |state| {
        let direct = !state.options.compatibility;
        let (major, minor) = if direct { (2, 17) } else { (0, 0) };
        let value = Properties {
            major,
            minor,
            poll_threshold: 4,
            max_direct: 16 << 10, // KiB
            status: u32::from(direct) << 4,
            control: u32::from(state.allow_compatibility) << 1,
            features: u32::from(state.options.batch > 0) << 1,
            max_cache: 131_072,
            buffer_cache: 1024,
            max_pinned: 33_554_432,
            max_batch: state.options.batch,
            max_timeout: 0,
        };
        // SAFETY: the caller gives a place for the properties.
        unsafe { properties.write(value) };
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleRegister(
    place: *mut usize,
    description: *mut Description,
) -> Status {
    opened("cuFileHandleRegister", |state| {
        // SAFETY: the caller gives a description; for this kind it has a descriptor.
        let (kind, descriptor) = unsafe { ((*description).kind, (*description).file.descriptor) };
        if kind != DESCRIPTOR || !is_open(descriptor) {
            return codes::INVALID_FILE_TYPE;
        }
        let handle = state.handle();
        state.handles.insert(handle, descriptor);
        // SAFETY: the caller gives a place for the handle.
        unsafe { place.write(handle) };
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileHandleDeregister(handle: usize) {
    let mut state = state();
    let known = state.handles.remove(&handle);
    state.counts.wrong += u64::from(!known.is_some_and(is_open));
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufRegister(address: u64, len: usize, _flags: c_int) -> Status {
    opened("cuFileBufRegister", |state| {
        if !driver::has_context() {
            codes::CUDA_CONTEXT_MISMATCH
        } else if len == 0 || !driver::reaches(address, len) {
            codes::INVALID_VALUE
        } else if let Entry::Vacant(place) = state.buffers.entry(address) {
            place.insert(len);
            state.counts.registrations += 1;
            codes::SUCCESS
        } else {
            codes::MEMORY_ALREADY_REGISTERED
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufDeregister(address: u64) -> Status {
    opened("cuFileBufDeregister", |state| {
        match state.buffers.remove(&address) {
            Some(len) if driver::reaches(address, len) => codes::SUCCESS,
            _ => {
                state.counts.wrong += 1;
                codes::MEMORY_NOT_REGISTERED
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileRead(
    handle: usize,
    base: u64,
    len: usize,
    offset: i64,
    device_offset: i64,
) -> isize {
    let asked = Asked {
        handle,
        base,
        behind: device_offset,
        len,
        offset,
    };
    result(asked.read("cuFileRead"))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileStreamRegister(stream: usize, _flags: c_uint) -> Status {
    opened("cuFileStreamRegister", |state| {
        state.streams.insert(stream);
        codes::SUCCESS
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFileStreamDeregister(stream: usize) -> Status {
    opened("cuFileStreamDeregister", |state| {
        if state.streams.remove(&stream) {
            codes::SUCCESS
        } else {
            codes::INVALID_VALUE
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileReadAsync(
    handle: usize,
    base: u64,
    len: *mut usize,
    offset: *mut i64,
    device_offset: *mut i64,
    done: *mut isize,
    stream: usize,
) -> Status {
    let ready = opened("cuFileReadAsync", |_| codes::SUCCESS);
    if ready.cufile != codes::SUCCESS {
        return ready;
    }
    if !driver::finish(stream) {
        return Status {
            cufile: codes::CUDA_DRIVER_ERROR,
            cuda: 0,
        };
    }
    // SAFETY: the caller keeps these until the stream is done, and so until now.
    unsafe {
        let asked = Asked {
            handle,
            base,
            behind: *device_offset,
            len: *len,
            offset: *offset,
        };
        done.write(result(asked.read("cuFileRead")));
    }
    Status {
        cufile: codes::SUCCESS,
        cuda: 0,
    }
}

/// What a read returns: bytes; -1 and an errno; or a code of cuFile, negated.
fn result(outcome: Result<usize, c_int>) -> isize {
    match outcome {
        Ok(bytes) => bytes as isize,
        Err(code) if code >= codes::FIRST => -(code as isize),
        Err(errno) => {
            // SAFETY: the place of this thread's errno.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

fn is_open(descriptor: c_int) -> bool {
    // SAFETY: it only asks for flags.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
}
