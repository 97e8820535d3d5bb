//! Checksums of bytes on a device.
#![allow(unsafe_code)]

use std::ops::Range;

use super::device::Device;
use super::launch::{Words, Work};
use super::modules::Family;
use crate::buffer::DeviceBytes;
use crate::error::{Error, ErrorKind, Result};

/// The kernels.
pub(super) const CRC: Family = Family::new("crc", include_str!("kernels/crc.ptx"));

/// Threads of a block, and of those that share the work on a piece (`kernels/crc.cu`).
const BLOCK: u32 = 256;
const WARP: u64 = 32;

/// Bytes that one warp does. Longer segments are cut, so that they are the work of many.
pub(super) const PIECE: u64 = 64 << 10;

/// A cyclic redundancy check of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Checksum {
    /// CRC-32 (ISO-HDLC), as gzip, zip, PNG and pages of Parquet have it.
    Crc32,
    /// CRC-32C (Castagnoli, iSCSI), as TFRecord and ext4 have it. Not masked as TFRecord does.
    Crc32c,
}

impl Checksum {
    /// The polynomial, bits reversed: that of x^0 is the highest.
    const fn polynomial(self) -> u32 {
        match self {
            Checksum::Crc32 => 0xedb8_8320,
            Checksum::Crc32c => 0x82f6_3b78,
        }
    }

    /// x^(8 · 2^k) modulo the polynomial, for each k.
    const fn powers(self) -> [u32; 64] {
        // x^8.
        let mut powers = [0x0080_0000; 64];
        let mut k = 1;
        while k < 64 {
            powers[k] = multiply(powers[k - 1], powers[k - 1], self.polynomial());
            k += 1;
        }
        powers
    }
}

/// `a · b` modulo the polynomial; as `multiply` in the kernel.
const fn multiply(mut a: u32, mut b: u32, polynomial: u32) -> u32 {
    let mut product = 0;
    let mut i = 0;
    while i < 32 {
        if a >> 31 == 1 {
            product ^= b;
        }
        a <<= 1;
        b = (b >> 1) ^ if b & 1 == 1 { polynomial } else { 0 };
        i += 1;
    }
    product
}

impl Device {
    /// The checksum of each of `segments`, which are ranges of `bytes`, in their order; they may overlap, and be empty.
    ///
    /// Waits for the result. A warp does 64 KiB at a time, so one long segment is done by many as well. Takes 32 bytes of the
    /// device's memory for each 64 KiB and for each segment.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] for a range that is not inside, [`ErrorKind::Unsupported`] for bytes of another device,
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub fn checksums(
        &self,
        kind: Checksum,
        bytes: &DeviceBytes,
        segments: &[Range<u64>],
    ) -> Result<Vec<u32>> {
        let len = bytes.len() as u64;
        for segment in segments {
            if segment.start > segment.end || segment.end > len {
                let outside = Error::new(ErrorKind::OutOfBounds { len }).by("cuda");
                return Err(outside.at(segment.clone()));
            }
        }
        if segments.is_empty() {
            return Ok(Vec::new());
        }
        let mut work = Work::new(self);
        let base = work.reads(bytes)?;
        let results = work.filled(segments.len() * 4, 0)?;
        // SAFETY: the segments lie in `bytes`, which the caller holds until this returns, and there is a result for each.
        unsafe { queue_segments(&mut work, kind, base, segments.iter().cloned(), results)? };
        // SAFETY: a word for each segment.
        let words = unsafe { work.finish::<4>(results, segments.len())? };
        Ok(words.into_iter().map(u32::from_ne_bytes).collect())
    }
}

/// Queues the checksums of ranges of the memory from `base` on, none of which ends before it begins.
///
/// # Safety
/// So many bytes are there, and stay until the work is done; at `results` is a word for each range, zero.
pub(super) unsafe fn queue_segments(
    work: &mut Work<'_>,
    kind: Checksum,
    base: u64,
    segments: impl Iterator<Item = Range<u64>> + Clone,
    results: u64,
) -> Result<()> {
    let pieces = |segment: Range<u64>| (segment.end - segment.start).div_ceil(PIECE).max(1);
    // Each is less than 2^48, and there are not as many segments as 2^60: no overflow.
    let count: u128 = segments
        .clone()
        .map(|segment| u128::from(pieces(segment)))
        .sum();
    if count == 0 {
        return Ok(());
    }
    // More than memory has room for is no number of pieces.
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let mut words = Words::with_capacity((count as usize).saturating_mul(32))?;
    for (number, segment) in segments.enumerate() {
        let mut at = segment.start;
        loop {
            let end = segment.end.min(at + PIECE);
            words
                .u64(base + at)
                .u64(segment.end - end)
                .u64(number as u64)
                .u32((end - at) as u32)
                .u32(u32::from(at == segment.start));
            at = end;
            if at == segment.end {
                break;
            }
        }
    }
    let pieces = work.upload(words)?;
    // SAFETY: `count` pieces of the memory that the caller has there, and a result for each number.
    unsafe { queue(work, kind, pieces, count, results) }
}

/// Queues the checksums of pieces (`kernels/pieces.cuh`).
///
/// # Safety
/// `count` pieces are at `pieces`, of memory that stays until the work is done; at `results` is a word for each segment, zero.
pub(super) unsafe fn queue(
    work: &mut Work<'_>,
    kind: Checksum,
    pieces: u64,
    count: u64,
    results: u64,
) -> Result<()> {
    let powers = kind.powers();
    let mut job = Words::default();
    job.u64(pieces).u64(count).u64(results);
    // x^1024 is x^(8 · 2^7).
    job.u32(kind.polynomial()).u32(powers[7]);
    powers.iter().for_each(|power| {
        job.u32(*power);
    });
    // SAFETY: the job is a `CrcJob`; the rest is the caller's promise.
    unsafe { work.launch(CRC, "crc", BLOCK, count.saturating_mul(WARP), job) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_those_of_the_field() {
        for kind in [Checksum::Crc32, Checksum::Crc32c] {
            let polynomial = kind.polynomial();
            // Shifting by one bit, 8 · 2^k times.
            let mut x = 0x8000_0000u32;
            let mut steps = 0u64;
            for (k, power) in kind.powers().iter().enumerate().take(14) {
                while steps < 8 << k {
                    x = (x >> 1) ^ if x & 1 == 1 { polynomial } else { 0 };
                    steps += 1;
                }
                assert_eq!(*power, x, "{kind:?} {k}");
            }
        }
    }
}
