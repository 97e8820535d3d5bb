//! The driver's library: opened at run time, once, and its functions by name.
//!
//! Written by hand, as `cuda.h` of CUDA 12.2 has them, because the bindings that there are do not fit a library: those of cudarc can be
//! compiled for one version of CUDA in a program, so that a crate that names one keeps all others out; they panic where the driver lacks a
//! function, and take every result for a known value of an enum, which a newer driver's is not. Here a function that is missing is named,
//! and a result is a number.
#![allow(unsafe_code, non_snake_case, non_camel_case_types)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

macro_rules! opaque {
    ($($handle:ident $behind:ident;)*) => {
        $(
            /// What a handle of the driver points at.
            #[repr(C)]
            pub(crate) struct $behind {
                _private: [u8; 0],
            }
            /// A handle of the driver.
            pub(crate) type $handle = *mut $behind;
        )*
    };
}

opaque! {
    CUcontext CUctx_st;
    CUstream CUstream_st;
    CUevent CUevent_st;
    CUmodule CUmod_st;
    CUfunction CUfunc_st;
    CUmemoryPool CUmemPoolHandle_st;
}

/// A device.
pub(crate) type CUdevice = c_int;
/// An address on a device.
pub(crate) type CUdeviceptr = u64;

/// What a pool of memory is to be.
#[repr(C)]
pub(crate) struct CUmemPoolProps {
    /// 1: memory that stays where it is.
    pub(crate) alloc_type: c_uint,
    /// 0: not for other processes.
    pub(crate) handle_types: c_uint,
    /// 1: on a device.
    pub(crate) location_type: c_uint,
    /// Which device.
    pub(crate) location: c_int,
    pub(crate) win32_security_attributes: *mut c_void,
    /// 0: as much as there is.
    pub(crate) max_size: usize,
    pub(crate) reserved: [u8; 56],
}

/// What the system calls the driver's library.
pub(super) const NAME: &str = "libcuda.so.1";

/// A call of the driver that did not go well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The function.
    pub(crate) call: &'static str,
    /// Its `CUresult`.
    pub(crate) code: u32,
}

/// Values of `CUresult` that something depends on (`cuda.h`).
pub(crate) mod code {
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const STUB_LIBRARY: u32 = 34;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const NOT_READY: u32 = 600;

    /// Whether every later call for the device fails too (`cuda.h`: "the process must be terminated and relaunched", and what takes
    /// the context away).
    pub(crate) fn is_lasting(code: u32) -> bool {
        const DEINITIALIZED: u32 = 4;
        const ECC_UNCORRECTABLE: u32 = 214;
        const NVLINK_UNCORRECTABLE: u32 = 220;
        const CONTAINED: u32 = 226;
        const MPS_CLIENT_TERMINATED: u32 = 810;
        const EXTERNAL_DEVICE: u32 = 911;
        matches!(
            code,
            DEINITIALIZED | ECC_UNCORRECTABLE | NVLINK_UNCORRECTABLE | CONTAINED | MPS_CLIENT_TERMINATED | EXTERNAL_DEVICE
            // Illegal address, launch timeout; context destroyed, assert; hardware stack, illegal instruction, misaligned address,
            // invalid address space, invalid pc, launch failed; tensor memory leak.
            | 700 | 702 | 709 | 710 | 714..=719 | 721
        )
    }
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $ty:ty),*);)*) => {
        /// The functions of the driver that are used here.
        pub(crate) struct Driver {
            $($name: unsafe extern "C" fn($($ty),*) -> c_uint,)*
        }

        impl Driver {
            /// Looks all of them up; the name of the first that is missing.
            ///
            /// # Safety
            /// `library` is a handle of `dlopen`, of a library that has these functions as `cuda.h` declares them.
            unsafe fn find(library: *mut c_void) -> Result<Self, &'static str> {
                Ok(Driver {
                    // SAFETY: as the caller promises.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> c_uint>(
                            symbol(library, stringify!($name))?,
                        )
                    },)*
                })
            }

            $(
                /// # Safety
                /// As the driver's documentation has it.
                #[allow(clippy::too_many_arguments)] // as the driver has them
                pub(crate) unsafe fn $name(&self, $($argument: $ty),*) -> Result<(), Failure> {
                    // SAFETY: as the caller promises.
                    match unsafe { (self.$name)($($argument),*) } {
                        0 => Ok(()),
                        code => Err(Failure { call: stringify!($name), code }),
                    }
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuGetErrorName(code: c_uint, name: *mut *const c_char);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxSynchronize();
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventSynchronize(event: CUevent);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemAlloc_v2(address: *mut CUdeviceptr, len: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc(address: *mut *mut c_void, len: usize, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemAllocManaged(address: *mut CUdeviceptr, len: usize, flags: c_uint);
    cuMemAdvise(address: CUdeviceptr, len: usize, advice: c_uint, device: CUdevice);
    cuMemPrefetchAsync(address: CUdeviceptr, len: usize, device: CUdevice, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream);
    cuMemsetD8Async(to: CUdeviceptr, value: u8, len: usize, stream: CUstream);
    cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
    cuMemPoolDestroy(pool: CUmemoryPool);
    cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void);
    cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void);
    cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, len: usize, pool: CUmemoryPool, stream: CUstream);
    cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void);
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
}

impl Driver {
    /// What the driver calls a result.
    pub(crate) fn name_of(&self, code: u32) -> Option<String> {
        let mut name = std::ptr::null();
        // SAFETY: a place for the pointer; the text is the driver's and stays.
        unsafe {
            self.cuGetErrorName(code, &mut name).ok()?;
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }
}

/// Why there are no functions to call.
#[derive(Clone, Debug)]
pub(super) enum Missing {
    /// The library.
    Library(String),
    /// A function of it.
    Function(&'static str),
    /// Not even its version is to be had: a library that stands in for the driver when programs are linked, for one.
    Failed(Failure),
    /// It is older than the kernels, or than functions that are needed.
    Old(c_int),
}

/// The driver; looked for once in a process.
pub(super) fn driver() -> Result<&'static Driver, Missing> {
    static DRIVER: OnceLock<Result<Driver, Missing>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// The version of the driver, as `cuda.h` writes it: 12020 is 12.2.
pub(super) fn version() -> Option<c_int> {
    let library = open().ok()?;
    // SAFETY: a handle of `dlopen`, and the type that `cuda.h` gives the function; it needs nothing.
    unsafe { version_of(library).ok() }
}

fn load() -> Result<Driver, Missing> {
    let library = open().map_err(Missing::Library)?;
    // SAFETY: a handle of `dlopen`; whoever installed a library of this name has these functions in it.
    unsafe {
        // First, as one that is too old lacks functions as well, and its age says more.
        let version = version_of(library)?;
        if version < super::probe::OLDEST_DRIVER {
            return Err(Missing::Old(version));
        }
        Driver::find(library).map_err(Missing::Function)
    }
}

/// # Safety
/// `library` is a handle of `dlopen`, of a driver.
unsafe fn version_of(library: *mut c_void) -> Result<c_int, Missing> {
    const NAME: &str = "cuDriverGetVersion";
    let mut version = 0;
    // SAFETY: as the caller promises; a place for the number.
    unsafe {
        let symbol = symbol(library, NAME).map_err(Missing::Function)?;
        let function: unsafe extern "C" fn(*mut c_int) -> c_uint = std::mem::transmute(symbol);
        match function(&mut version) {
            0 => Ok(version),
            code => Err(Missing::Failed(Failure { call: NAME, code })),
        }
    }
}

/// Opens the library, which stays: there is no good time to close a driver.
fn open() -> Result<*mut c_void, String> {
    static HANDLE: OnceLock<Result<usize, String>> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let name = CString::new(NAME).map_err(|error| error.to_string())?;
        // SAFETY: a text with a zero byte at its end. The library is the system's driver, which is made to be loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(handle.expose_provenance());
        }
        // SAFETY: after a failed `dlopen` this is a text, or null.
        let why = unsafe { libc::dlerror() };
        Err(match why.is_null() {
            true => format!("{NAME} cannot be opened"),
            // SAFETY: not null, so a text with a zero byte at its end.
            false => unsafe { CStr::from_ptr(why) }
                .to_string_lossy()
                .into_owned(),
        })
    });
    match handle {
        Ok(handle) => Ok(std::ptr::with_exposed_provenance_mut(*handle)),
        Err(why) => Err(why.clone()),
    }
}

/// # Safety
/// `library` is a handle of `dlopen`.
unsafe fn symbol(library: *mut c_void, name: &'static str) -> Result<*mut c_void, &'static str> {
    let text = CString::new(name).map_err(|_| name)?;
    // SAFETY: as the caller promises; a text with a zero byte at its end.
    let symbol = unsafe { libc::dlsym(library, text.as_ptr()) };
    if symbol.is_null() {
        Err(name)
    } else {
        Ok(symbol)
    }
}
