//! Kernels to test the software device with: their PTX, and how they are run without a driver.
//!
//! `kernels/compile.py` makes the PTX from the `.cu` files beside it.
#![forbid(unsafe_code)]

use software_cuda_ptx::{HostMemory, Module};

/// PTX of kernels with one bug each.
pub const BUGS: &str = include_str!("../kernels/bugs.ptx");

/// PTX of kernels without bugs that use what our kernels use.
pub const LANGUAGE: &str = include_str!("../kernels/language.ptx");

/// Lays out parameters of a kernel: each at a multiple of its length.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// The bytes so far.
    pub bytes: Vec<u8>,
}

impl Parameters {
    /// Adds an address or another number of 64 bits.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a number of 32 bits.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }
}

/// Puts the variables of a module into memory, and gives their addresses.
pub fn globals(module: &Module, memory: &mut HostMemory) -> Vec<u64> {
    module
        .globals
        .iter()
        .map(|variable| memory.allocate(&variable.bytes))
        .collect()
}

/// Numbers of 32 bits as bytes.
pub fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Bytes as numbers of 32 bits.
pub fn as_words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|chunk| u32::from_le_bytes(*chunk))
        .collect()
}

/// Bytes as numbers of 64 bits.
pub fn as_longs(bytes: &[u8]) -> Vec<u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|chunk| u64::from_le_bytes(*chunk))
        .collect()
}

/// Numbers that look random.
#[derive(Clone, Debug)]
pub struct Numbers(pub u64);

impl Numbers {
    /// The next one.
    pub fn next_u32(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}
