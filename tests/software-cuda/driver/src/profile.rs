//! What the device says that it is: limits of an sm_75, sm_80 and sm_90.
//!
//! Numbers: CUDA C++ Programming Guide, "Compute Capabilities"; attribute numbers: `CUdevice_attribute` of `cuda.h`.

/// Limits of a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Compute capability times ten.
    pub sm: u32,
    /// Bytes of shared memory of a block that asks for more than the usual.
    pub shared_opt_in: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_multiprocessor: usize,
    /// Threads of a multiprocessor.
    pub threads_per_multiprocessor: i32,
    /// Blocks of a multiprocessor.
    pub blocks_per_multiprocessor: i32,
    /// Multiprocessors; few, so that grids sized by it are small.
    pub multiprocessors: i32,
}

/// Bytes of shared memory that every block may have.
pub const SHARED_PER_BLOCK: usize = 48 << 10;
/// Registers of a block.
pub const REGISTERS_PER_BLOCK: u32 = 65_536;
/// Bytes of parameters of a kernel.
pub const PARAMETER_BYTES: usize = 4 << 10;
/// Newest PTX that the device takes: that of CUDA 12.2.
pub const PTX_VERSION: (u32, u32) = (8, 2);
/// What `cuDriverGetVersion` gives.
pub const DRIVER_VERSION: i32 = 12_020;

impl Profile {
    /// The profile of that name, such as `sm_75`.
    pub fn named(name: &str) -> Option<Self> {
        let profile = |sm, opt_in: usize, shared: usize, threads, blocks| Self {
            sm,
            shared_opt_in: opt_in << 10,
            shared_per_multiprocessor: shared << 10,
            threads_per_multiprocessor: threads,
            blocks_per_multiprocessor: blocks,
            multiprocessors: 4,
        };
        match name {
            "sm_75" => Some(profile(75, 64, 64, 1024, 16)),
            "sm_80" => Some(profile(80, 163, 164, 2048, 32)),
            "sm_90" => Some(profile(90, 227, 228, 2048, 32)),
            _ => None,
        }
    }

    /// The value of an attribute; zero for those that say nothing here.
    pub fn attribute(&self, number: i32, pools: bool) -> i32 {
        match number {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            8 => SHARED_PER_BLOCK as i32,
            9 => 65_536,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => REGISTERS_PER_BLOCK as i32,
            13 => 1_500_000,
            14 => 512,
            16 => self.multiprocessors,
            // Overlap, mapped and unified memory, kernels side by side, priorities, managed memory, preemption, registered memory, cooperative launches.
            15 | 19 | 31 | 41 | 77 | 83 | 89 | 90 | 91 | 95 | 99 => 1,
            33 => 1,
            36 => 5_000_000,
            37 => 256,
            38 => 4 << 20,
            39 => self.threads_per_multiprocessor,
            40 => 2,
            75 => (self.sm / 10) as i32,
            76 => (self.sm % 10) as i32,
            81 => self.shared_per_multiprocessor as i32,
            97 => self.shared_opt_in as i32,
            106 => self.blocks_per_multiprocessor,
            115 => pools.into(),
            _ => 0,
        }
    }
}
