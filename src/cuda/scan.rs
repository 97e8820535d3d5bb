//! Exclusive sums on a device.
#![allow(unsafe_code)]

use super::frames::bytes_of;
use super::launch::{Words, Work};
use super::modules::Family;
use crate::error::Result;

/// The kernels.
pub(super) const SCAN: Family = Family::new("scan", include_str!("kernels/scan.ptx"));

/// As in `kernels/scan.cu`.
const BLOCK: u32 = 256;
const TILE: u64 = 1024;

/// Queues the exclusive sums of `rows` rows of `length` numbers, and where they will be: rows of one more, which is the sum of all.
/// They wrap around at 2^64.
///
/// # Safety
/// So many numbers are at `input`, which what was queued before has written.
pub(super) unsafe fn rows(work: &mut Work<'_>, input: u64, rows: u64, length: u64) -> Result<u64> {
    // SAFETY: as the caller promises.
    unsafe { rows_and_totals(work, input, rows, length, 0) }
}

/// The same, with the sum of each row at `totals` as well, beside each other.
///
/// # Safety
/// As for [`rows`], and `rows` numbers have room at `totals`; or it is 0.
pub(super) unsafe fn rows_and_totals(
    work: &mut Work<'_>,
    input: u64,
    rows: u64,
    length: u64,
    totals: u64,
) -> Result<u64> {
    let tiles = length.div_ceil(TILE);
    let output = work.scratch(bytes_of(rows.saturating_mul(length + 1), 8)?)?;
    let sums = work.scratch(bytes_of(rows.saturating_mul(tiles), 8)?)?;
    let block = u64::from(BLOCK);
    for (kernel, blocks) in [
        ("scan_reduce", rows * tiles),
        ("scan_sums", rows),
        ("scan_emit", rows * tiles),
    ] {
        let mut job = Words::default();
        job.u64(input).u64(output).u64(sums);
        job.u64(rows).u64(length).u64(tiles).u64(totals);
        // SAFETY: the job is a `ScanJob` of so many numbers, with room for as many sums, and one for each tile.
        unsafe { work.launch(SCAN, kernel, BLOCK, blocks * block, job)? };
    }
    Ok(output)
}
