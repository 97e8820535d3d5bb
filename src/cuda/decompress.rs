//! Pages decompressed on a device, and their checksums.
//!
//! A kernel only detects what is wrong with a page: who called decompresses it another way, which gives the bytes or the typed error. What is
//! done here is never more than the decoders of the host accept: `snap`, and `lz4_flex` as the `parquet` crate uses it.
// Seen from outside for tests and benches of kernels alone, with the feature `testing`.
#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, dead_code))]
#![allow(unsafe_code)]

use std::ops::Range;

use super::checksum::{self, Checksum};
use super::device::Device;
use super::launch::{Words, Work};
use super::modules::Family;
use crate::buffer::DeviceBytes;
use crate::error::{Error, ErrorKind, Result};

#[cfg(any(test, feature = "testing"))]
pub mod reference;

/// The kernels.
pub(super) const DECOMPRESS: Family =
    Family::new("decompress", include_str!("kernels/decompress.ptx"));

/// Threads of a block, and of those that share the work on a page (`kernels/decompress.cu`).
const BLOCK: u32 = 64;
const WARP: u64 = 32;

/// Bytes of a page at most: their numbers are `i32` in its header.
const MOST: u64 = i32::MAX as u64;

/// How a page is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Raw Snappy: a length, then literals and copies.
    Snappy,
    /// An LZ4 block, without a frame.
    Lz4,
}

/// A page that is to be decompressed.
#[derive(Clone, Debug)]
pub struct Body {
    /// Its bytes in the stored ones.
    pub source: Range<u64>,
    /// Bytes at its start that are not compressed: the levels of version 2.
    pub plain: u64,
    /// Of the others.
    pub codec: Codec,
    /// Where it goes, as long as it has to be.
    pub target: Range<u64>,
    /// Zeros that are put behind it.
    pub gap: u64,
    /// CRC-32 of its stored bytes, if they are to have one.
    pub crc: Option<u32>,
}

/// Why a page was not decompressed. The numbers are those of `kernels/decompress.cu`.
pub mod check {
    /// The stored bytes have another checksum.
    pub const CRC: u32 = 1;
    /// The length in front of Snappy's elements does not end within five bytes.
    pub const HEADER: u32 = 2;
    /// It has not as many bytes as it should have.
    pub const SIZE: u32 = 3;
    /// It ends inside an element, or where there has to be one.
    pub const END: u32 = 4;
    /// An element is longer than what is left of the page.
    pub const ROOM: u32 = 5;
    /// A copy from in front of the page, or from nowhere.
    pub const OFFSET: u32 = 6;
    /// The ranges do not fit together.
    pub const SHAPE: u32 = 7;
}

impl Body {
    /// Whether its ranges are what the kernel can be given, for `stored` bytes at an address and `len` of the target.
    fn is_right(&self, (from, stored): (u64, u64), len: u64) -> bool {
        let Range { start, end } = self.source;
        // Whole words are loaded. No address is near the end of 64 bits.
        let inside = start <= end && end - start <= MOST && end <= stored;
        let inside = inside && (from + end).next_multiple_of(4) <= from + stored;
        let Range { start: to, end: up } = self.target;
        let fits = to <= up && up - to <= MOST && self.gap <= MOST;
        let fits = fits && up.checked_add(self.gap).is_some_and(|end| end <= len);
        inside && fits && self.plain <= (end - start).min(up - to)
    }
}

impl Device {
    /// Decompresses pages out of `stored` into memory of `len` bytes, and says of each what was wrong with it, of [`check`], or 0. What no
    /// page is written to is zero, and so is a page that was not decompressed, unless it is for its checksum.
    ///
    /// Takes, besides the output, 48 bytes of the device's memory for each page, and 32 for each 64 KiB that have a checksum. A warp does a page.
    ///
    /// # Errors
    /// Those of the device; nothing that the bytes say is one. [`ErrorKind::Unsupported`] for bytes of another device,
    /// [`ErrorKind::OutOfMemory`], [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub(crate) fn decompress(
        &self,
        stored: &DeviceBytes,
        bodies: &[Body],
        len: usize,
    ) -> Result<(DeviceBytes, Vec<u32>)> {
        let output = self.output(len)?;
        let mut work = Work::new(self);
        let from = work.reads(stored)?;
        let to = output.address();
        // SAFETY: the output has so many bytes, and both stay until the work is done.
        let checks = unsafe {
            work.fill(to, 0, len)?;
            decompress(work, (from, stored.len() as u64), (to, len as u64), bodies)?
        };
        // SAFETY: they were filled, and the work is done.
        Ok((unsafe { output.written()? }, checks))
    }
}

/// Decompresses pages from memory to memory, each an address and its bytes, and waits for it. As [`Device::decompress`], but for
/// what is no page's place.
///
/// # Safety
/// So many bytes are there, on the device of `work`, with a content in those of the source; and they stay until the work is done.
pub(super) unsafe fn decompress(
    mut work: Work<'_>,
    (from, stored): (u64, u64),
    (to, len): (u64, u64),
    bodies: &[Body],
) -> Result<Vec<u32>> {
    let mut checks = vec![check::SHAPE; bodies.len()];
    let numbered = bodies.iter().enumerate();
    let right: Vec<_> = numbered
        .filter(|(_, body)| body.is_right((from, stored), len))
        .collect();
    if right.is_empty() {
        work.wait()?;
        return Ok(checks);
    }
    let mut words = Words::with_capacity(right.len() * 40)?;
    for (_, body) in &right {
        let source = body.source.end - body.source.start;
        let target = body.target.end - body.target.start;
        words
            .u64(from + body.source.start)
            .u64(to + body.target.start);
        words.u32(source as u32).u32(body.plain as u32);
        words.u32(target as u32).u32(body.gap as u32);
        words.u32(match body.codec {
            Codec::Snappy => 0,
            Codec::Lz4 => 1,
        });
        words.u32(0);
    }
    let summed: Vec<_> = right
        .iter()
        .filter_map(|(at, body)| Some((*at, body.source.clone(), body.crc?)))
        .collect();
    let found = work.filled((right.len() + summed.len()) * 4, 0)?;
    // SAFETY: the ranges are inside of the source; a word for each is behind those of the pages.
    unsafe {
        let results = found + right.len() as u64 * 4;
        let ranges = summed.iter().map(|(_, range, _)| range.clone());
        checksum::queue_segments(&mut work, Checksum::Crc32, from, ranges, results)?;
    }
    let table = work.upload(words)?;
    let mut job = Words::default();
    job.u64(table).u64(right.len() as u64).u64(found);
    // SAFETY: the job is a `DecompressJob` of so many bodies, which are inside of both memories, with a word for each.
    let words = unsafe {
        let threads = right.len() as u64 * WARP;
        work.launch(DECOMPRESS, "decompress", BLOCK, threads, job)?;
        work.finish::<4>(found, right.len() + summed.len())?
    };
    let mut words = words.into_iter().map(u32::from_ne_bytes);
    for (at, _) in right {
        if let (Some(check), Some(found)) = (checks.get_mut(at), words.next()) {
            *check = found;
        }
    }
    for ((at, _, wanted), found) in summed.into_iter().zip(words) {
        if let Some(check) = checks.get_mut(at).filter(|_| found != wanted) {
            *check = check::CRC;
        }
    }
    Ok(checks)
}

/// Whether each of these ranges of memory from `base` on, of `len` bytes, has its CRC-32. Waits for it.
///
/// # Errors
/// Those of the device; [`ErrorKind::OutOfBounds`] for a range that is not inside.
///
/// # Safety
/// So many bytes are there, on the device of `work`, with a content; and they stay until the work is done.
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(super) unsafe fn are_right(
    mut work: Work<'_>,
    (base, len): (u64, u64),
    ranges: &[(Range<u64>, u32)],
) -> Result<Vec<bool>> {
    for (range, _) in ranges {
        if range.start > range.end || range.end > len {
            let outside = Error::new(ErrorKind::OutOfBounds { len }).by("cuda");
            return Err(outside.at(range.clone()));
        }
    }
    let results = work.filled(ranges.len() * 4, 0)?;
    // SAFETY: the ranges are inside; there is a word for each.
    let words = unsafe {
        let segments = ranges.iter().map(|(range, _)| range.clone());
        checksum::queue_segments(&mut work, Checksum::Crc32, base, segments, results)?;
        work.finish::<4>(results, ranges.len())?
    };
    let found = words.into_iter().map(u32::from_ne_bytes).zip(ranges);
    Ok(found.map(|(found, (_, wanted))| found == *wanted).collect())
}
