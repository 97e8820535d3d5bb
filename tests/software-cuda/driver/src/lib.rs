//! The CUDA driver API on host memory: `libcuda.so.1` for machines without a GPU.
//!
//! It has the functions that cudarc 0.19 calls with `cuda-12020`; those of them that make no sense here (graphs, external
//! memory) answer `CUDA_ERROR_NOT_SUPPORTED`, and `cuGetProcAddress` answers `CUDA_ERROR_NOT_FOUND` for all others.
//! Device memory is host memory at the same address, so that pinned and managed memory need no translation; who touches
//! device memory from the host gets away with it, which a GPU would not allow.
//!
//! Kernels are interpreted from their PTX by `software-cuda-ptx`. Streams are *eager* (work is done when it is queued) or
//! *lazy* (only when somebody waits for it, which is when a missing wait shows). [`control`] is how tests set this and read
//! what came of it; the environment variables of [`options`] do so for a whole program.
//!
//! | file | what |
//! |---|---|
//! | [`api`] | the functions of the driver |
//! | [`device`] | what they all share: handles, errors, injected errors, counts |
//! | [`memory`] | allocations, pinned and managed memory, copies |
//! | [`pieces`] | which allocation an address is in |
//! | [`stream`] | queues, events, the order between them |
//! | [`kernels`] | modules, functions, launches and their limits |
//! | [`profile`] | attributes of an sm_75, sm_80 and sm_90 |

#[allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments
)]
pub mod api;
pub mod codes;
pub mod control;
pub mod device;
pub mod kernels;
pub mod memory;
pub mod options;
pub mod pieces;
pub mod profile;
pub mod stream;
