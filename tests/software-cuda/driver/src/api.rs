//! The functions of the driver, as C declares them in `cuda.h`.
//!
//! Each begins with one of four words, which say what it needs and counts: `free` (nothing), `call` (an initialised driver),
//! `take` (takes memory), `end` (gives something back: done even where an error is injected).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use software_cuda_ptx::Grid;

use crate::codes::{Code, Outcome};
use crate::device::{CURRENT, Counted, Device, context_of, device, device_of};
use crate::memory::{DEFAULT_POOL, Kind};
use crate::profile::DRIVER_VERSION;
use crate::stream::{self, DEFAULT, Guard, HostFunction, Work};

fn code(outcome: Outcome) -> c_int {
    outcome.err().unwrap_or(Code::SUCCESS).0
}

fn begin(counted: Counted) -> Result<Guard, Code> {
    let mut guard = device();
    if !guard.initialised {
        return Err(Code::NOT_INITIALIZED);
    }
    guard.check()?;
    guard.count(counted)?;
    Ok(guard)
}

fn call(body: impl FnOnce(Guard) -> Outcome) -> c_int {
    code(begin(Counted::Calls).and_then(body))
}

fn take(body: impl FnOnce(Guard) -> Outcome) -> c_int {
    code(begin(Counted::Allocations).and_then(body))
}

/// What gives something back is done in any case: an error of it, or else the one that lasts or is injected.
fn end(body: impl FnOnce(Guard) -> Outcome) -> c_int {
    let mut guard = device();
    if !guard.initialised {
        return Code::NOT_INITIALIZED.0;
    }
    let other = guard.check().and(guard.count(Counted::Calls));
    code(body(guard).and(other))
}

/// Writes a result.
unsafe fn give<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of the API gives a place for the result.
    unsafe { place.write(value) };
    Ok(())
}

unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of the API gives a text with a zero byte at its end.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| Code::INVALID_VALUE)
}

fn ordinal(guard: &Device, ordinal: c_int) -> Outcome<i32> {
    if (0..guard.options.devices).contains(&ordinal) {
        Ok(ordinal)
    } else {
        Err(Code::INVALID_DEVICE)
    }
}

/// The device of this thread's context.
fn current() -> Outcome<i32> {
    device_of(CURRENT.get()).ok_or(Code::INVALID_CONTEXT)
}

fn pools(guard: &Device) -> Outcome {
    if guard.options.pools {
        Ok(())
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// Whether it is a pool: one that a program made, or a device's default one.
fn is_pool(guard: &Device, pool: usize) -> Outcome {
    let number = pool
        .checked_sub(DEFAULT_POOL)
        .and_then(|number| c_int::try_from(number).ok());
    let is_default = number.is_some_and(|number| ordinal(guard, number).is_ok());
    (is_default || guard.memory.has_pool(pool))
        .then_some(())
        .ok_or(Code::INVALID_VALUE)
}

macro_rules! api {
    ($(fn $name:ident($($argument:ident: $ty:ty),*) $body:block)*) => {
        // SAFETY (all of them): these are the names and arguments of the driver; only who asks for the driver calls them.
        $(#[unsafe(no_mangle)] pub unsafe extern "C" fn $name($($argument: $ty),*) -> c_int $body)*
    };
}

/// Functions that have no meaning here.
macro_rules! absent {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)] pub unsafe extern "C" fn $name() -> c_int { Code::NOT_SUPPORTED.0 })*
    };
}

absent! {
    cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuImportExternalMemory cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer
    cuGraphDestroy cuGraphExecDestroy cuGraphInstantiateWithFlags cuGraphLaunch cuGraphUpload cuStreamEndCapture
    cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialClusterSize cuOccupancyMaxPotentialBlockSize
    cuOccupancyMaxPotentialBlockSizeWithFlags cuDeviceSetMemPool
}

// SAFETY: results are written to places that the caller gives (`give` leaves out null).
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod devices {
    use super::*;

    api! {
        fn cuInit(flags: c_uint) {
            let mut guard = device();
            let outcome = guard.count(Counted::Calls).and(if flags != 0 { Err(Code::INVALID_VALUE) } else if guard.options.devices == 0 { Err(Code::NO_DEVICE) } else { Ok(()) });
            guard.initialised |= outcome.is_ok();
            code(outcome)
        }
        fn cuDriverGetVersion(version: *mut c_int) { code(unsafe { give(version, DRIVER_VERSION) }) }
        fn cuDeviceGetCount(count: *mut c_int) { call(|guard| unsafe { give(count, guard.options.devices) }) }
        fn cuDeviceGet(found: *mut c_int, number: c_int) { call(|guard| unsafe { give(found, ordinal(&guard, number)?) }) }
        fn cuDeviceGetName(name: *mut c_char, len: c_int, number: c_int) {
            call(|guard| {
                ordinal(&guard, number)?;
                let wanted = format!("software CUDA device (sm_{})", guard.options.profile.sm);
                let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1)).ok_or(Code::INVALID_VALUE)?;
                let kept = wanted.len().min(room);
                unsafe {
                    std::ptr::copy_nonoverlapping(wanted.as_ptr().cast(), name, kept);
                    name.add(kept).write(0);
                }
                Ok(())
            })
        }
        fn cuDeviceGetUuid(uuid: *mut [u8; 16], number: c_int) {
            call(|guard| {
                let mut bytes = *b"software-cuda-00";
                bytes[15] += ordinal(&guard, number)? as u8;
                unsafe { give(uuid, bytes) }
            })
        }
        fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], number: c_int) { unsafe { cuDeviceGetUuid(uuid, number) } }
        fn cuDeviceTotalMem_v2(bytes: *mut usize, number: c_int) {
            call(|guard| {
                ordinal(&guard, number)?;
                unsafe { give(bytes, guard.options.memory) }
            })
        }
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, number: c_int) {
            call(|guard| {
                ordinal(&guard, number)?;
                unsafe { give(value, guard.options.profile.attribute(attribute, guard.options.pools)) }
            })
        }
        fn cuDeviceGetPCIBusId(name: *mut c_char, len: c_int, number: c_int) {
            call(|guard| {
                let id = format!("0000:{:02x}:00.0\0", ordinal(&guard, number)? + 1);
                if (len as usize) < id.len() {
                    return Err(Code::INVALID_VALUE);
                }
                unsafe { std::ptr::copy_nonoverlapping(id.as_ptr().cast(), name, id.len()) };
                Ok(())
            })
        }
        fn cuDevicePrimaryCtxRetain(context: *mut usize, number: c_int) {
            take(|mut guard| {
                let number = ordinal(&guard, number)?;
                unsafe { give(context, context_of(number)) }?;
                *guard.retained.entry(number).or_insert(0) += 1;
                Ok(())
            })
        }
        fn cuDevicePrimaryCtxRelease_v2(number: c_int) {
            end(|mut guard| match guard.retained.get_mut(&number) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    Ok(())
                }
                _ => {
                    guard.counts.wrong_releases += 1;
                    Err(Code::INVALID_CONTEXT)
                }
            })
        }
        fn cuDevicePrimaryCtxGetState(number: c_int, flags: *mut c_uint, active: *mut c_int) {
            call(|guard| {
                let number = ordinal(&guard, number)?;
                unsafe { give(flags, 0)?; give(active, guard.retained.get(&number).is_some_and(|count| *count > 0).into()) }
            })
        }
        fn cuCtxGetCurrent(context: *mut usize) { call(|_| unsafe { give(context, CURRENT.get()) }) }
        fn cuCtxSetCurrent(context: usize) {
            call(|guard| {
                let alive = context == 0 || device_of(context).is_some_and(|number| guard.retained.get(&number).is_some_and(|count| *count > 0));
                if !alive {
                    return Err(Code::INVALID_CONTEXT);
                }
                CURRENT.set(context);
                Ok(())
            })
        }
        fn cuCtxGetDevice(number: *mut c_int) { call(|_| unsafe { give(number, current()?) }) }
        fn cuCtxSynchronize() {
            call(|mut guard| {
                current()?;
                guard.counts.waits += 1;
                stream::finish_all(guard).check()
            })
        }
        fn cuCtxSetFlags(_flags: c_uint) { call(|_| current().map(drop)) }
        fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
            call(|_| {
                current()?;
                // Both may be left out.
                unsafe {
                    let _ = give(least, 0);
                    let _ = give(greatest, -5);
                }
                Ok(())
            })
        }
        fn cuCtxGetLimit(value: *mut usize, _limit: c_int) { call(|_| unsafe { give(value, 1024) }) }
        fn cuCtxSetLimit(_limit: c_int, _value: usize) { call(|_| current().map(drop)) }
        fn cuCtxGetCacheConfig(value: *mut c_int) { call(|_| unsafe { give(value, 0) }) }
        fn cuCtxSetCacheConfig(_value: c_int) { call(|_| current().map(drop)) }
        fn cuProfilerStart() { 0 }
        fn cuProfilerStop() { 0 }
        fn cuGetErrorName(number: c_int, name: *mut *const c_char) {
            code(match Code(number).name() {
                Some(known) => unsafe { give(name, known.as_ptr().cast()) },
                None => Err(Code::INVALID_VALUE),
            })
        }
        fn cuGetErrorString(number: c_int, name: *mut *const c_char) {
            code(match Code(number).text() {
                Some(known) => unsafe { give(name, known.as_ptr().cast()) },
                None => Err(Code::INVALID_VALUE),
            })
        }
        fn cuGetProcAddress_v2(name: *const c_char, function: *mut *mut c_void, _version: c_int, _flags: u64, status: *mut c_int) {
            // Only functions of the driver: the process has others.
            let ours = unsafe { text(name) }.is_ok_and(|name| name.starts_with("cu"));
            // Whoever loaded this library may have kept its names to himself.
            let found = if ours {
                unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD), name) }
            } else {
                std::ptr::null_mut()
            };
            unsafe {
                let _ = give(status, i32::from(found.is_null()));
                let written = give(function, found);
                if found.is_null() { Code::NOT_FOUND.0 } else { code(written) }
            }
        }
    }
}

// SAFETY: results are written to places that the caller gives; memory of the host is valid as the caller of the API promises, and
// memory of the device is looked up before it is touched.
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod memory {
    use super::*;

    unsafe fn allocate(mut guard: Guard, place: *mut u64, len: usize, kind: Kind) -> Outcome {
        let number = current()?;
        if place.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let address = guard.allocate(len, kind, number)?;
        unsafe { give(place, address as u64) }
    }

    /// A copy that is done when the call returns.
    unsafe fn copy_now(
        guard: Guard,
        to: u64,
        from: u64,
        len: usize,
        to_device: bool,
        from_device: bool,
    ) -> Outcome {
        current()?;
        let looked_up = |guard: &Guard| {
            if to_device {
                guard.reaches(to, len)?;
            }
            if from_device {
                guard.reaches(from, len)
            } else {
                Ok(())
            }
        };
        looked_up(&guard)?;
        let mut guard = stream::finish_blocking(guard);
        guard.check()?;
        looked_up(&guard)?;
        unsafe { guard.copy(to as usize, from as usize, len) };
        Ok(())
    }

    api! {
        fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
            call(|guard| unsafe { give(free, guard.free_memory())?; give(total, guard.options.memory) })
        }
        fn cuMemAlloc_v2(place: *mut u64, len: usize) { take(|guard| unsafe { allocate(guard, place, len, Kind::Device) }) }
        fn cuMemAllocManaged(place: *mut u64, len: usize, flags: c_uint) {
            take(|guard| if flags == 1 || flags == 2 { unsafe { allocate(guard, place, len, Kind::Managed) } } else { Err(Code::INVALID_VALUE) })
        }
        fn cuMemAllocAsync(place: *mut u64, len: usize, stream: usize) { unsafe { cuMemAllocFromPoolAsync(place, len, DEFAULT_POOL, stream) } }
        fn cuMemAllocFromPoolAsync(place: *mut u64, len: usize, pool: usize, stream: usize) {
            take(|mut guard| {
                pools(&guard)?;
                is_pool(&guard, pool)?;
                guard.stream(stream)?;
                let number = current()?;
                if place.is_null() {
                    return Err(Code::INVALID_VALUE);
                }
                let address = guard.allocate_from(pool, len, Kind::Device, number)?;
                unsafe { give(place, address as u64) }
            })
        }
        fn cuMemFree_v2(address: u64) {
            end(|guard| {
                if address == 0 {
                    return Ok(());
                }
                // As the driver does: what is queued may use it.
                let mut guard = stream::finish_all(guard);
                guard.free(address as usize, &[Kind::Device, Kind::Managed])
            })
        }
        fn cuMemFreeAsync(address: u64, stream: usize) {
            end(|mut guard| {
                pools(&guard)?;
                if guard.reaches(address, 1).is_err() {
                    return guard.freed_wrong(address as usize, Code::INVALID_VALUE);
                }
                queue(guard, stream, Work::Free(address as usize))
            })
        }
        fn cuMemHostAlloc(place: *mut u64, len: usize, _flags: c_uint) { take(|guard| unsafe { allocate(guard, place, len, Kind::Pinned) }) }
        fn cuMemAllocHost_v2(place: *mut u64, len: usize) { take(|guard| unsafe { allocate(guard, place, len, Kind::Pinned) }) }
        fn cuMemFreeHost(address: usize) {
            end(|guard| {
                let mut guard = stream::finish_all(guard);
                guard.free(address, &[Kind::Pinned])
            })
        }
        fn cuMemHostRegister_v2(address: usize, len: usize, _flags: c_uint) {
            take(|mut guard| {
                current()?;
                guard.register(address, len)
            })
        }
        fn cuMemHostUnregister(address: usize) {
            end(|guard| {
                let mut guard = stream::finish_all(guard);
                guard.free(address, &[Kind::Registered]).map_err(|_| Code::HOST_MEMORY_NOT_REGISTERED)
            })
        }
        fn cuMemHostGetDevicePointer_v2(place: *mut u64, address: usize, _flags: c_uint) {
            call(|guard| if guard.memory.is_pinned(address, 1) { unsafe { give(place, address as u64) } } else { Err(Code::INVALID_VALUE) })
        }
        fn cuMemHostGetFlags(flags: *mut c_uint, address: usize) {
            call(|guard| if guard.memory.is_pinned(address, 1) { unsafe { give(flags, 0) } } else { Err(Code::INVALID_VALUE) })
        }
        fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) {
            call(|guard| {
                let (start, allocation) = guard.memory.find(address as usize, 1).ok_or(Code::NOT_FOUND)?;
                unsafe {
                    let _ = give(base, start as u64);
                    let _ = give(len, allocation.len);
                }
                Ok(())
            })
        }
        fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64) {
            call(|guard| {
                let (start, allocation) = guard.memory.find(address as usize, 1).ok_or(Code::INVALID_VALUE)?;
                unsafe {
                    match attribute {
                        1 => give(value.cast(), context_of(allocation.device)),
                        2 => give(value.cast(), if matches!(allocation.kind, Kind::Device | Kind::Managed) { 2u32 } else { 1 }),
                        3 | 4 => give(value.cast(), address),
                        8 => give(value.cast(), u32::from(allocation.kind == Kind::Managed)),
                        9 => give(value.cast(), allocation.device),
                        11 => give(value.cast(), start as u64),
                        12 => give(value.cast(), allocation.len),
                        _ => Err(Code::INVALID_VALUE),
                    }
                }
            })
        }
        fn cuMemAdvise(address: u64, len: usize, _advice: c_int, _number: c_int) { call(|guard| guard.reaches(address, len)) }
        fn cuMemAdvise_v2(address: u64, len: usize, _advice: c_int, _location: u64) { call(|guard| guard.reaches(address, len)) }
        fn cuMemPrefetchAsync(address: u64, len: usize, _number: c_int, stream: usize) {
            call(|mut guard| {
                guard.stream(stream)?;
                guard.reaches(address, len)
            })
        }
        fn cuMemPrefetchAsync_v2(address: u64, len: usize, _location: u64, _flags: c_uint, stream: usize) { unsafe { cuMemPrefetchAsync(address, len, 0, stream) } }
        fn cuMemcpyHtoD_v2(to: u64, from: u64, len: usize) { call(|guard| unsafe { copy_now(guard, to, from, len, true, false) }) }
        fn cuMemcpyDtoH_v2(to: u64, from: u64, len: usize) { call(|guard| unsafe { copy_now(guard, to, from, len, false, true) }) }
        fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) { call(|guard| unsafe { copy_now(guard, to, from, len, true, true) }) }
        fn cuMemcpy(to: u64, from: u64, len: usize) { call(|guard| unsafe { copy_now(guard, to, from, len, false, false) }) }
        fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
            call(|mut guard| {
                guard.reaches(to, len)?;
                guard.counts.uploads += 1;
                let work = if guard.memory.is_pinned(from as usize, len) {
                    Work::Copy { to: to as usize, from: from as usize, len }
                } else {
                    // From pageable memory the bytes are taken at once, as the driver does.
                    Work::CopyIn { to: to as usize, bytes: unsafe { std::slice::from_raw_parts(from as *const u8, len) }.to_vec() }
                };
                queue(guard, stream, work)
            })
        }
        fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
            call(|mut guard| {
                guard.reaches(from, len)?;
                if guard.memory.is_pinned(to as usize, len) {
                    return queue(guard, stream, Work::Copy { to: to as usize, from: from as usize, len });
                }
                // To pageable memory it is done when the call returns.
                guard.counts.waits += 1;
                let stream = guard.stream(stream)?;
                let mut guard = stream::finish(guard, stream);
                guard.check()?;
                guard.reaches(from, len)?;
                unsafe { guard.copy(to as usize, from as usize, len) };
                Ok(())
            })
        }
        fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) {
            call(|guard| {
                guard.reaches(to, len).and(guard.reaches(from, len))?;
                queue(guard, stream, Work::Copy { to: to as usize, from: from as usize, len })
            })
        }
        fn cuMemcpyPeerAsync(to: u64, _to_context: usize, from: u64, _from_context: usize, len: usize, stream: usize) { unsafe { cuMemcpyDtoDAsync_v2(to, from, len, stream) } }
        fn cuMemsetD8_v2(to: u64, value: u8, count: usize) { call(|guard| fill(guard, DEFAULT, to, vec![value], count, true)) }
        fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) { call(|guard| fill(guard, stream, to, vec![value], count, false)) }
        fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) { call(|guard| fill(guard, stream, to, value.to_le_bytes().to_vec(), count, false)) }
        fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) { call(|guard| fill(guard, stream, to, value.to_le_bytes().to_vec(), count, false)) }
        fn cuDeviceGetDefaultMemPool(pool: *mut usize, number: c_int) {
            call(|guard| {
                pools(&guard)?;
                unsafe { give(pool, DEFAULT_POOL + ordinal(&guard, number)? as usize) }
            })
        }
        fn cuDeviceGetMemPool(pool: *mut usize, number: c_int) { unsafe { cuDeviceGetDefaultMemPool(pool, number) } }
        fn cuMemPoolCreate(pool: *mut usize, _properties: *const c_void) {
            take(|mut guard| {
                pools(&guard)?;
                let handle = guard.handle();
                guard.memory.add_pool(handle);
                unsafe { give(pool, handle) }
            })
        }
        fn cuMemPoolDestroy(pool: usize) {
            end(|mut guard| {
                pools(&guard)?;
                guard.memory.remove_pool(pool).then_some(()).ok_or(Code::INVALID_VALUE)
            })
        }
        fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, value: *mut c_void) {
            call(|mut guard| {
                pools(&guard)?;
                is_pool(&guard, pool)?;
                // The release threshold.
                if attribute == 4 && !value.is_null() {
                    guard.memory.set_threshold(pool, unsafe { value.cast::<u64>().read() });
                }
                Ok(())
            })
        }
        fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut u64) {
            call(|guard| {
                pools(&guard)?;
                is_pool(&guard, pool)?;
                let (reserved, used) = guard.memory.of_pool(pool);
                match attribute {
                    5 => unsafe { give(value, reserved as u64) },
                    7 => unsafe { give(value, used as u64) },
                    _ => Err(Code::NOT_SUPPORTED),
                }
            })
        }
        fn cuMemPoolTrimTo(pool: usize, keep: usize) {
            call(|mut guard| {
                pools(&guard)?;
                is_pool(&guard, pool)?;
                guard.memory.trim_pool(pool, keep);
                Ok(())
            })
        }
        fn cuStreamAttachMemAsync(stream: usize, address: u64, _len: usize, _flags: c_uint) {
            call(|mut guard| {
                guard.stream(stream)?;
                guard.reaches(address, 1)
            })
        }
    }

    fn fill(
        guard: Guard,
        stream: usize,
        to: u64,
        pattern: Vec<u8>,
        count: usize,
        now: bool,
    ) -> Outcome {
        let len = pattern
            .len()
            .checked_mul(count)
            .ok_or(Code::INVALID_VALUE)?;
        guard.reaches(to, len)?;
        if !to.is_multiple_of(pattern.len() as u64) {
            return Err(Code::INVALID_VALUE);
        }
        let guard = if now {
            stream::finish_blocking(guard)
        } else {
            guard
        };
        queue(
            guard,
            stream,
            Work::Fill {
                to: to as usize,
                pattern,
                count,
            },
        )?;
        if now {
            stream::finish(device(), DEFAULT).check()
        } else {
            Ok(())
        }
    }
}

/// Queues work, and does it if streams are eager.
fn queue(mut guard: Guard, stream: usize, work: Work) -> Outcome {
    current()?;
    let is_kernel = matches!(work, Work::Launch(_));
    let stream = guard.queue(stream, work)?;
    if is_kernel {
        guard.note_kernels(stream);
    }
    if !guard.options.lazy {
        drop(stream::finish(guard, stream));
    }
    // An error of the work itself shows at a later call, as on a GPU.
    Ok(())
}

// SAFETY: results are written to places that the caller gives.
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod streams {
    use super::*;

    api! {
        fn cuStreamCreate(place: *mut usize, flags: c_uint) {
            take(|mut guard| {
                current()?;
                if flags > 1 {
                    return Err(Code::INVALID_VALUE);
                }
                let handle = guard.new_stream(flags == 1);
                unsafe { give(place, handle) }
            })
        }
        fn cuStreamCreateWithPriority(place: *mut usize, flags: c_uint, _priority: c_int) { unsafe { cuStreamCreate(place, flags) } }
        fn cuStreamDestroy_v2(stream: usize) {
            end(|guard| {
                let (guard, outcome) = stream::destroy(guard, stream);
                drop(guard);
                outcome
            })
        }
        fn cuStreamSynchronize(stream: usize) {
            call(|mut guard| {
                let stream = guard.stream(stream)?;
                guard.counts.waits += 1;
                stream::finish(guard, stream).check()
            })
        }
        fn cuStreamQuery(stream: usize) {
            call(|mut guard| {
                let stream = guard.stream(stream)?;
                let (guard, busy) = stream::nudge(guard, stream);
                guard.check()?;
                if busy { Err(Code::NOT_READY) } else { Ok(()) }
            })
        }
        fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
            call(|mut guard| {
                guard.stream(stream)?;
                match guard.wait(event)? {
                    Some(work) => queue(guard, stream, work),
                    None => Ok(()),
                }
            })
        }
        fn cuStreamBeginCapture_v2(_stream: usize, _mode: c_int) { Code::NOT_SUPPORTED.0 }
        fn cuStreamIsCapturing(_stream: usize, status: *mut c_int) { call(|_| unsafe { give(status, 0) }) }
        fn cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) {
            call(|guard| queue(guard, stream, Work::Call(function.ok_or(Code::INVALID_VALUE)?, data as usize)))
        }
        fn cuEventCreate(place: *mut usize, _flags: c_uint) {
            take(|mut guard| {
                current()?;
                let handle = guard.new_event();
                unsafe { give(place, handle) }
            })
        }
        fn cuEventDestroy_v2(event: usize) { end(|mut guard| guard.destroy_event(event)) }
        fn cuEventRecord(event: usize, stream: usize) {
            call(|mut guard| {
                current()?;
                let work = guard.record(event, stream)?;
                queue(guard, stream, work)
            })
        }
        fn cuEventSynchronize(event: usize) {
            call(|mut guard| {
                guard.pending_event(event)?;
                guard.counts.waits += 1;
                stream::finish_event(guard, event).check()
            })
        }
        fn cuEventQuery(event: usize) {
            call(|guard| match guard.pending_event(event)? {
                None => guard.check(),
                Some(stream) => {
                    let (guard, _) = stream::nudge(guard, stream);
                    guard.check()?;
                    if guard.pending_event(event)?.is_some() { Err(Code::NOT_READY) } else { Ok(()) }
                }
            })
        }
        fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) { call(|guard| unsafe { give(milliseconds, guard.elapsed(from, to)?) }) }
        fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: usize, to: usize) { unsafe { cuEventElapsedTime(milliseconds, from, to) } }
    }
}

// SAFETY: images, names and parameters are as the caller of the API promises; results are written to places that the caller gives.
#[allow(clippy::undocumented_unsafe_blocks)]
pub mod modules {
    use super::*;

    /// Options of the JIT: where its logs go.
    const INFO_LOG: c_int = 3;
    const INFO_LOG_LEN: c_int = 4;
    const ERROR_LOG: c_int = 5;
    const ERROR_LOG_LEN: c_int = 6;

    unsafe fn load(
        mut guard: Guard,
        place: *mut usize,
        image: *const c_char,
    ) -> Result<(), (Code, String)> {
        let plain = |code| (code, String::new());
        let number = current().map_err(plain)?;
        if image.is_null() || place.is_null() {
            return Err(plain(Code::INVALID_VALUE));
        }
        let bytes = unsafe { CStr::from_ptr(image) }.to_bytes();
        let handle = guard.load_module(bytes, number)?;
        unsafe { give(place, handle) }.map_err(plain)
    }

    /// Writes a log where the options say, and its length.
    unsafe fn log(text: &str, which: (c_int, c_int), keys: &[c_int], values: *mut usize) {
        let value = |key| {
            keys.iter()
                .position(|found| *found == key)
                .map(|index| unsafe { values.add(index) })
        };
        let (Some(buffer), Some(len)) = (value(which.0), value(which.1)) else {
            return;
        };
        unsafe {
            let room = (*len).saturating_sub(1).min(text.len());
            let buffer = *buffer as *mut u8;
            if *len > 0 && !buffer.is_null() {
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, room);
                buffer.add(room).write(0);
            }
            *len = room;
        }
    }

    /// Bytes of the parameters, gathered from where the caller has them.
    unsafe fn gather(
        guard: &Device,
        function: usize,
        parameters: *mut *mut c_void,
    ) -> Outcome<Vec<u8>> {
        let (slots, len) = guard.parameters(function)?;
        let mut bytes = vec![0; len];
        if parameters.is_null() && !slots.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        for (index, (offset, len)) in slots.into_iter().enumerate() {
            unsafe {
                let from = *parameters.add(index);
                if from.is_null() {
                    return Err(Code::INVALID_VALUE);
                }
                std::ptr::copy_nonoverlapping(
                    from.cast(),
                    bytes[offset..offset + len].as_mut_ptr(),
                    len,
                );
            }
        }
        Ok(bytes)
    }

    /// The parameters as one buffer: `extra` has its address and its length, each behind a number that says which. A GPU's driver takes longer
    /// ones as well; here they have to be as long as those of the kernel, so that a structure that is another than the kernel's is found out.
    unsafe fn buffer(guard: &Device, function: usize, extra: *mut *mut c_void) -> Outcome<Vec<u8>> {
        const POINTER: usize = 1;
        const SIZE: usize = 2;
        let (_, wanted) = guard.parameters(function)?;
        let (mut from, mut len) = (std::ptr::null::<u8>(), None);
        let mut at = extra;
        loop {
            // A key that is not known is refused, so this ends.
            let (key, value) = unsafe {
                match *at as usize {
                    0 => break,
                    key => (key, *at.add(1)),
                }
            };
            match key {
                POINTER => from = value.cast(),
                SIZE if !value.is_null() => len = Some(unsafe { *value.cast::<usize>() }),
                _ => return Err(Code::INVALID_VALUE),
            }
            at = unsafe { at.add(2) };
        }
        match len {
            Some(len) if len == wanted && !from.is_null() => {
                Ok(unsafe { std::slice::from_raw_parts(from, len) }.to_vec())
            }
            Some(len) => {
                eprintln!(
                    "software CUDA device: {len} bytes of parameters, the kernel has {wanted}"
                );
                Err(Code::INVALID_VALUE)
            }
            None => Err(Code::INVALID_VALUE),
        }
    }

    api! {
        fn cuModuleLoadData(place: *mut usize, image: *const c_char) { take(|guard| unsafe { load(guard, place, image) }.map_err(|(code, _)| code)) }
        fn cuModuleLoadDataEx(place: *mut usize, image: *const c_char, count: c_uint, keys: *const c_int, values: *mut usize) {
            take(|guard| unsafe {
                let keys = if count == 0 || keys.is_null() || values.is_null() { &[] } else { std::slice::from_raw_parts(keys, count as usize) };
                let outcome = load(guard, place, image);
                let (outcome, message) = match outcome {
                    Ok(()) => (Ok(()), String::new()),
                    Err((code, message)) => (Err(code), message),
                };
                log("interpreted: no code was made", (INFO_LOG, INFO_LOG_LEN), keys, values);
                log(&message, (ERROR_LOG, ERROR_LOG_LEN), keys, values);
                outcome
            })
        }
        fn cuModuleLoad(place: *mut usize, path: *const c_char) {
            take(|guard| unsafe {
                let mut bytes = std::fs::read(text(path)?).map_err(|_| Code::FILE_NOT_FOUND)?;
                bytes.push(0);
                load(guard, place, bytes.as_ptr().cast()).map_err(|(code, _)| code)
            })
        }
        fn cuModuleUnload(module: usize) {
            end(|guard| {
                let mut guard = stream::finish_all(guard);
                guard.unload_module(module)
            })
        }
        fn cuModuleGetFunction(place: *mut usize, module: usize, name: *const c_char) {
            call(|mut guard| unsafe {
                let handle = guard.function(module, text(name)?)?;
                give(place, handle)
            })
        }
        fn cuModuleGetGlobal_v2(address: *mut u64, len: *mut usize, module: usize, name: *const c_char) {
            call(|guard| unsafe {
                let (found, bytes) = guard.global(module, text(name)?)?;
                let _ = give(address, found);
                let _ = give(len, bytes);
                Ok(())
            })
        }
        fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) { call(|guard| unsafe { give(value, guard.function_attribute(function, attribute)?) }) }
        fn cuFuncSetAttribute(function: usize, attribute: c_int, value: c_int) { call(|mut guard| guard.set_function_attribute(function, attribute, value)) }
        fn cuFuncSetCacheConfig(_function: usize, _config: c_int) { call(|_| Ok(())) }
        fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: usize, threads: c_int, dynamic: usize) {
            call(|guard| unsafe { give(blocks, guard.blocks_per_multiprocessor(function, threads, dynamic)?) })
        }
        fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int, function: usize, threads: c_int, dynamic: usize, _flags: c_uint) {
            unsafe { cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, dynamic) }
        }
        fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: usize, _blocks: c_int, _threads: c_int) {
            call(|guard| unsafe { give(bytes, guard.function_attribute(function, 8)? as usize) })
        }
        fn cuLaunchKernel(function: usize, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, dynamic: c_uint, stream: usize, parameters: *mut *mut c_void, extra: *mut *mut c_void) {
            call(|guard| {
                let bytes = match (parameters.is_null(), extra.is_null()) {
                    (_, true) => unsafe { gather(&guard, function, parameters)? },
                    (true, false) => unsafe { buffer(&guard, function, extra)? },
                    (false, false) => return Err(Code::INVALID_VALUE),
                };
                let grid = Grid { blocks: [gx, gy, gz], threads: [bx, by, bz], dynamic_shared: dynamic as usize };
                let queued = guard.prepare(function, grid, bytes)?;
                queue(guard, stream, Work::Launch(Box::new(queued)))
            })
        }
        fn cuLaunchCooperativeKernel(_function: usize, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint, _dynamic: c_uint, _stream: usize, _parameters: *mut *mut c_void) {
            // Blocks run one after another here, so they cannot wait for each other.
            Code::NOT_SUPPORTED.0
        }
    }
}
