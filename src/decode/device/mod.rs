//! What formats that decode on a GPU share: which processor does it, and arrays in the GPU's memory.

mod array;
mod batch;

pub use array::DeviceArray;
pub use batch::DeviceBatch;

/// Which processor decodes, where both could.
///
/// Whatever is said here, the values are the same: where a kernel meets bytes that it does not take, the processor of the host decodes
/// them again, and its values or its error are the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Processor {
    /// The GPU where its kernels do what is asked for and it pays; else the processor of the host. The report says which, and why.
    #[default]
    Auto,
    /// The processor of the host. What belongs on the GPU is copied there afterwards.
    Cpu,
    /// The GPU for all that its kernels do, however small; the processor of the host for the rest, and the report says why.
    Gpu,
}
