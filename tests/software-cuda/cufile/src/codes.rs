//! Codes of cuFile (`CUfileOpError`), as far as they occur here.
#![allow(missing_docs)]

use std::ffi::c_int;

pub const SUCCESS: c_int = 0;
pub const DRIVER_NOT_INITIALIZED: c_int = 5001;
pub const PLATFORM_NOT_SUPPORTED: c_int = 5007;
pub const IO_NOT_SUPPORTED: c_int = 5008;
pub const CUDA_DRIVER_ERROR: c_int = 5011;
pub const CUDA_POINTER_INVALID: c_int = 5012;
pub const CUDA_CONTEXT_MISMATCH: c_int = 5015;
pub const INVALID_FILE_TYPE: c_int = 5018;
pub const INVALID_VALUE: c_int = 5022;
pub const MEMORY_ALREADY_REGISTERED: c_int = 5023;
pub const MEMORY_NOT_REGISTERED: c_int = 5024;
pub const DRIVER_ALREADY_OPEN: c_int = 5026;
pub const HANDLE_NOT_REGISTERED: c_int = 5027;

/// What is below is an errno.
pub const FIRST: c_int = 5000;
