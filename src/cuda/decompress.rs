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
use super::launch::{Ride, Words, Work};
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
            queue(
                &mut work,
                (from, stored.len() as u64),
                (to, len as u64),
                bodies,
            )?
        };
        // The zeros as well, if no page was queued.
        work.wait()?;
        let checks = checks.found(&mut work)?;
        drop(work);
        // SAFETY: they were filled, and the work is done.
        Ok((unsafe { output.written()? }, checks))
    }
}

/// What is said of pages, once somebody waited for it.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// Of all pages; those that were queued are looked at later.
    checks: Vec<u32>,
    /// Which ones were queued.
    queued: Vec<usize>,
    /// Those with a checksum, and which it has to be.
    summed: Vec<(usize, u32)>,
    /// A word for each of those that were queued, and then of those with a checksum.
    ride: Option<Ride>,
}

/// Whether ranges have their checksums, once somebody waited for it.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    wanted: Vec<u32>,
    ride: Option<Ride>,
}

/// Queues what decompresses pages from memory to memory, each an address and its bytes. As [`Device::decompress`], but for what is no page's
/// place.
///
/// # Safety
/// So many bytes are there, on the device of `work`, with a content in those of the source; and they stay until the work is done.
pub(super) unsafe fn queue(
    work: &mut Work<'_>,
    (from, stored): (u64, u64),
    (to, len): (u64, u64),
    bodies: &[Body],
) -> Result<Checks> {
    let checks = vec![check::SHAPE; bodies.len()];
    let numbered = bodies.iter().enumerate();
    let right: Vec<_> = numbered
        .filter(|(_, body)| body.is_right((from, stored), len))
        .collect();
    if right.is_empty() {
        return Ok(Checks {
            checks,
            ..Checks::default()
        });
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
        checksum::queue_segments(work, Checksum::Crc32, from, ranges, results)?;
    }
    let table = work.upload(words)?;
    let mut job = Words::default();
    job.u64(table).u64(right.len() as u64).u64(found);
    // SAFETY: the job is a `DecompressJob` of so many bodies, which are inside of both memories, with a word for each.
    let ride = unsafe {
        let threads = right.len() as u64 * WARP;
        work.launch(DECOMPRESS, "decompress", BLOCK, threads, job)?;
        work.ride(found, (right.len() + summed.len()) * 4)
    };
    Ok(Checks {
        checks,
        queued: right.into_iter().map(|(at, _)| at).collect(),
        summed: summed.into_iter().map(|(at, _, crc)| (at, crc)).collect(),
        ride: Some(ride),
    })
}

impl Checks {
    /// Whether all pages were queued: the ranges of each fit together.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) fn have_all(&self) -> bool {
        self.queued.len() == self.checks.len()
    }

    /// What was wrong with each page, of [`check`], or 0. Waits, if nobody did since it was queued.
    pub(crate) fn found(self, work: &mut Work<'_>) -> Result<Vec<u32>> {
        let mut checks = self.checks;
        let Some(ride) = self.ride else {
            return Ok(checks);
        };
        let words = work.ridden_as::<4>(ride)?;
        let mut words = words.into_iter().map(u32::from_ne_bytes);
        for at in self.queued {
            if let (Some(check), Some(found)) = (checks.get_mut(at), words.next()) {
                *check = found;
            }
        }
        for ((at, wanted), found) in self.summed.into_iter().zip(words) {
            if let Some(check) = checks.get_mut(at).filter(|_| found != wanted) {
                *check = check::CRC;
            }
        }
        Ok(checks)
    }
}

/// Queues the checksums of ranges of memory from `base` on, of `len` bytes, each with the CRC-32 that it has to have.
///
/// # Errors
/// Those of the device; [`ErrorKind::OutOfBounds`] for a range that is not inside.
///
/// # Safety
/// So many bytes are there, on the device of `work`, with a content; and they stay until the work is done.
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(super) unsafe fn queue_sums(
    work: &mut Work<'_>,
    (base, len): (u64, u64),
    ranges: &[(Range<u64>, u32)],
) -> Result<Sums> {
    for (range, _) in ranges {
        if range.start > range.end || range.end > len {
            let outside = Error::new(ErrorKind::OutOfBounds { len }).by("cuda");
            return Err(outside.at(range.clone()));
        }
    }
    let results = work.filled(ranges.len() * 4, 0)?;
    // SAFETY: the ranges are inside; there is a word for each.
    let ride = unsafe {
        let segments = ranges.iter().map(|(range, _)| range.clone());
        checksum::queue_segments(work, Checksum::Crc32, base, segments, results)?;
        work.ride(results, ranges.len() * 4)
    };
    Ok(Sums {
        wanted: ranges.iter().map(|(_, wanted)| *wanted).collect(),
        ride: Some(ride),
    })
}

impl Sums {
    /// Whether each range has its checksum. Waits, if nobody did since it was queued.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(crate) fn found(self, work: &mut Work<'_>) -> Result<Vec<bool>> {
        let Some(ride) = self.ride else {
            return Ok(Vec::new());
        };
        let words = work.ridden_as::<4>(ride)?.into_iter();
        let found = words.map(u32::from_ne_bytes).zip(self.wanted);
        Ok(found.map(|(found, wanted)| found == wanted).collect())
    }
}
