//! Numbers of the driver API that are used here (`CUresult`, `cuda.h` of 12.2).

/// What a call comes to; [`Code::name`] is what `cuGetErrorName` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// What a function of the device gives.
pub type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($constant:ident $name:literal $number:literal $text:literal)*) => {
        impl Code {
            $(#[doc = $text] pub const $constant: Self = Self($number);)*

            /// Name with a zero byte at its end.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Self::$constant => Some(concat!($name, "\0")),)* _ => None }
            }

            /// What it means, with a zero byte at its end.
            pub fn text(self) -> Option<&'static str> {
                match self { $(Self::$constant => Some(concat!($text, "\0")),)* _ => None }
            }
        }
    };
}

codes! {
    SUCCESS "CUDA_SUCCESS" 0 "no error"
    INVALID_VALUE "CUDA_ERROR_INVALID_VALUE" 1 "invalid argument"
    OUT_OF_MEMORY "CUDA_ERROR_OUT_OF_MEMORY" 2 "out of memory"
    NOT_INITIALIZED "CUDA_ERROR_NOT_INITIALIZED" 3 "initialization error"
    NO_DEVICE "CUDA_ERROR_NO_DEVICE" 100 "no CUDA-capable device is detected"
    INVALID_DEVICE "CUDA_ERROR_INVALID_DEVICE" 101 "invalid device ordinal"
    INVALID_CONTEXT "CUDA_ERROR_INVALID_CONTEXT" 201 "invalid device context"
    NO_BINARY_FOR_GPU "CUDA_ERROR_NO_BINARY_FOR_GPU" 209 "no kernel image is available for execution on the device"
    INVALID_PTX "CUDA_ERROR_INVALID_PTX" 218 "a PTX JIT compilation failed"
    UNSUPPORTED_PTX_VERSION "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" 222 "the provided PTX was compiled with an unsupported toolchain"
    INVALID_IMAGE "CUDA_ERROR_INVALID_IMAGE" 200 "device kernel image is invalid"
    FILE_NOT_FOUND "CUDA_ERROR_FILE_NOT_FOUND" 301 "file not found"
    INVALID_HANDLE "CUDA_ERROR_INVALID_HANDLE" 400 "invalid resource handle"
    NOT_FOUND "CUDA_ERROR_NOT_FOUND" 500 "named symbol not found"
    NOT_READY "CUDA_ERROR_NOT_READY" 600 "device not ready"
    ILLEGAL_ADDRESS "CUDA_ERROR_ILLEGAL_ADDRESS" 700 "an illegal memory access was encountered"
    LAUNCH_OUT_OF_RESOURCES "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" 701 "too many resources requested for launch"
    LAUNCH_TIMEOUT "CUDA_ERROR_LAUNCH_TIMEOUT" 702 "the launch timed out and was terminated"
    HOST_MEMORY_ALREADY_REGISTERED "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" 712 "part or all of the requested memory range is already mapped"
    HOST_MEMORY_NOT_REGISTERED "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" 713 "pointer does not correspond to a registered memory region"
    MISALIGNED_ADDRESS "CUDA_ERROR_MISALIGNED_ADDRESS" 716 "misaligned address"
    LAUNCH_FAILED "CUDA_ERROR_LAUNCH_FAILED" 719 "unspecified launch failure"
    NOT_SUPPORTED "CUDA_ERROR_NOT_SUPPORTED" 801 "operation not supported"
    STREAM_CAPTURE_UNSUPPORTED "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" 900 "operation not permitted when stream is capturing"
    UNKNOWN "CUDA_ERROR_UNKNOWN" 999 "unknown error"
}
