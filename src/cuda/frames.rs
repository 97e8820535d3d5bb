//! Records of TFRecord on a device: where they are in bytes that nobody has looked at, and whether their checksums are right.
#![allow(unsafe_code)]

use super::checksum::{self, Checksum};
use super::device::Device;
use super::launch::{Words, Work};
use super::modules::Family;
use super::scan;
use super::stream::Stream;
use crate::buffer::DeviceBytes;
use crate::error::{Error, ErrorKind, Result};

/// The kernels.
pub(super) const FRAMES: Family = Family::new("frames", include_str!("kernels/frames.ptx"));

/// As in `kernels/frames.cu`.
const BLOCK: u32 = 128;
const LANES: u64 = 32;
const TILE: u64 = 4096;
const ROOM: usize = 128;
const HEADER: u64 = 12;
const FOOTER: u64 = 4;
/// Bytes of a `Record` (`kernels/records.cuh`), and of a `Piece` (`kernels/pieces.cuh`).
const RECORD: usize = 16;
const PIECE: usize = 32;

/// Where the data of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Of its first byte, in the bytes that it is of. Its header is before it.
    pub(crate) data: u64,
    /// In bytes. Its footer is behind it, maybe not in these bytes any more.
    pub(crate) len: u64,
}

impl Frame {
    /// Where the next one begins.
    pub(crate) fn end(self) -> u64 {
        self.data.saturating_add(self.len).saturating_add(FOOTER)
    }
}

impl Device {
    /// The records that follow each other from the first byte of `window` on, each with the right checksum of its length; of the last
    /// one the end may be outside. Where there is no such record any more, they end.
    ///
    /// `left`: bytes of the file from there on; `most`: of a record's data. Both bound what a length can be. Waits for the result, which is
    /// found in `stream`.
    /// Takes 272 bytes of the device's memory for each 4 KiB of the window, and 24 for each place that looks like a record; where records
    /// hold what looks like records, 72.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for bytes of another device, or that do not begin at a multiple of 4; [`ErrorKind::OutOfMemory`],
    /// [`ErrorKind::Cuda`], [`ErrorKind::DeviceLost`], [`ErrorKind::Forked`].
    pub(crate) fn frames(
        &self,
        stream: &Stream,
        window: &DeviceBytes,
        left: u64,
        most: u64,
    ) -> Result<Vec<Frame>> {
        let len = window.len() as u64;
        let mut work = Work::in_stream(self, stream);
        let base = work.reads(window)?;
        if !base.is_multiple_of(4) {
            let what = "a window that does not begin at a multiple of 4 bytes";
            return Err(Error::new(ErrorKind::Unsupported { what: what.into() }).by("cuda"));
        }
        if len < HEADER {
            return Ok(Vec::new());
        }
        let tiles = len.div_ceil(TILE);
        let counts = work.scratch(tiles as usize * 8)?;
        let places = work.scratch(bytes_of(tiles, ROOM * 2)?)?;
        let job = |firsts: u64, candidates: u64, room: u64| {
            let mut job = Words::default();
            job.u64(base).u64(len).u64(left.max(len)).u64(most);
            job.u64(counts).u64(places);
            job.u64(firsts).u64(candidates).u64(room);
            job
        };
        let threads = tiles * u64::from(BLOCK);
        // SAFETY: the job is a `FindJob`: `len` bytes from `base`, a multiple of 4, on, which the caller holds until this returns,
        // and a count and `ROOM` places for each tile.
        unsafe { work.launch(FRAMES, "frames_count", BLOCK, threads, job(0, 0, 0))? };
        // SAFETY: as many counts as there are tiles.
        let firsts = unsafe { scan::rows(&mut work, counts, 1, tiles)? };
        // SAFETY: the last one of the sums.
        let found = unsafe { work.look::<8>(firsts + tiles * 8, 1)? };
        let count = number(&found);
        if count == 0 {
            return Ok(Vec::new());
        }
        let candidates = work.scratch(bytes_of(count, RECORD)?)?;
        let jump = work.scratch(bytes_of(count, 8)?)?;
        let odd = work.filled(8, 0)?;
        let find = job(firsts, candidates, count);
        // SAFETY: as above, with the places and the sums that the kernels before have written, and room for each candidate.
        unsafe { work.launch(FRAMES, "frames_find", BLOCK, tiles * LANES, find)? };
        let mut link = Words::default();
        link.u64(candidates).u64(count).u64(jump).u64(odd);
        // SAFETY: the job is a `LinkJob`: `count` candidates, which the kernel before has written, and a place for each.
        unsafe { work.launch(FRAMES, "frames_link", BLOCK, count, link)? };
        // SAFETY: a word that was filled.
        let odd = number(&unsafe { work.look::<8>(odd, 1)? });
        let (records, count) = match odd {
            0 => (candidates, count),
            // SAFETY: as many candidates, and what follows each.
            _ => unsafe { chain(&mut work, candidates, jump, count)? },
        };
        // SAFETY: as many records, all written.
        let records = unsafe { work.finish::<RECORD>(records, count as usize)? };
        let frames = records.iter().map(|record| {
            let (data, len) = pair(record);
            Frame {
                data: data.wrapping_sub(base),
                len,
            }
        });
        // The first has to be the one that the window begins with; all others follow from it.
        Ok(match frames.clone().next() {
            Some(first) if first.data == HEADER => frames.collect(),
            _ => Vec::new(),
        })
    }
}

/// Those of the candidates that a chain from the first leads to, and how many: by pointer doubling.
///
/// # Safety
/// `count` candidates are at `candidates`, and at `jump` as many numbers of those that follow them; not zero.
unsafe fn chain(work: &mut Work<'_>, candidates: u64, jump: u64, count: u64) -> Result<(u64, u64)> {
    let bytes = bytes_of(count, 8)?;
    let (mut marks, mut after) = (work.filled(bytes, 0)?, work.scratch(bytes)?);
    // SAFETY: its first byte; numbers are little-endian.
    unsafe { work.fill(marks, 1, 1)? };
    let (mut from, mut to) = (jump, work.scratch(bytes)?);
    let mut reach = 1;
    while reach < count {
        // SAFETY: so many bytes, which this work has; who read them was queued before.
        unsafe { work.fill(after, 0, bytes)? };
        let mut job = Words::default();
        job.u64(from).u64(marks).u64(to).u64(after).u64(count);
        // SAFETY: the job is a `JumpJob` of `count` numbers each; the ones that are read were written by launches before.
        unsafe { work.launch(FRAMES, "frames_jump", BLOCK, count, job)? };
        std::mem::swap(&mut from, &mut to);
        std::mem::swap(&mut marks, &mut after);
        reach *= 2;
    }
    // SAFETY: `count` marks, each 0 or 1.
    let firsts = unsafe { scan::rows(work, marks, 1, count)? };
    // SAFETY: the sum of all.
    let kept = number(&unsafe { work.look::<8>(firsts + count * 8, 1)? });
    let records = work.scratch(bytes_of(kept, RECORD)?)?;
    let mut job = Words::default();
    job.u64(candidates).u64(marks).u64(firsts);
    job.u64(count).u64(records);
    // SAFETY: the job is a `PickJob`, with a place for each that is marked.
    unsafe { work.launch(FRAMES, "frames_pick", BLOCK, count, job)? };
    Ok((records, kept))
}

/// Queues the check of records: that their headers have their lengths with the right checksum, and, with `verify_data`, that of
/// their data. The number of the first one that is wrong will be at `bad`, if it is less than what is there.
///
/// # Safety
/// `count` records are at `records`, `bytes` of data in all, each with its header before it and its footer behind it, in memory that
/// stays until the work is done; and a number is at `bad`.
pub(super) unsafe fn check(
    work: &mut Work<'_>,
    records: u64,
    count: u64,
    bytes: u64,
    verify_data: bool,
    bad: u64,
) -> Result<()> {
    let job = |counts: u64, firsts: u64, pieces: u64, room: u64, crcs: u64| {
        let mut job = Words::default();
        job.u64(records).u64(count).u64(counts).u64(firsts);
        job.u64(pieces).u64(room).u64(crcs).u64(bad);
        job
    };
    let mut crcs = 0;
    if verify_data {
        let counts = work.scratch(bytes_of(count, 8)?)?;
        // SAFETY: the job is a `CheckJob`: `count` records, and a count for each.
        unsafe {
            work.launch(
                FRAMES,
                "frames_piece_counts",
                BLOCK,
                count,
                job(counts, 0, 0, 0, 0),
            )?;
        };
        // SAFETY: as many counts as records.
        let firsts = unsafe { scan::rows(work, counts, 1, count)? };
        // As many as there can be, so that the host need not ask.
        let room = count + bytes / checksum::PIECE;
        let pieces = work.scratch(bytes_of(room, PIECE)?)?;
        let cut = job(counts, firsts, pieces, room, 0);
        // SAFETY: as above, with room for all pieces that there can be.
        unsafe { work.launch(FRAMES, "frames_pieces", BLOCK, room, cut)? };
        crcs = work.filled(bytes_of(count, 4)?, 0)?;
        // SAFETY: the pieces lie in the records, or are empty; a result for each record.
        unsafe { checksum::queue(work, Checksum::Crc32c, pieces, room, crcs)? };
    }
    let compared = job(0, 0, 0, 0, crcs);
    // SAFETY: as above, with a checksum for each record.
    unsafe { work.launch(FRAMES, "frames_check", BLOCK, count, compared) }
}

/// Records as the kernels take them: addresses and lengths.
pub(super) fn upload(
    work: &mut Work<'_>,
    records: impl ExactSizeIterator<Item = (u64, u64)>,
) -> Result<u64> {
    let mut words = Words::with_capacity(bytes_of(records.len() as u64, RECORD)?)?;
    records.for_each(|(data, len)| {
        words.u64(data).u64(len);
    });
    work.upload(words)
}

/// Bytes of so many elements.
pub(super) fn bytes_of(count: u64, each: usize) -> Result<usize> {
    let bytes = usize::try_from(count).ok();
    bytes
        .and_then(|count| count.checked_mul(each))
        .ok_or_else(|| {
            let (wanted, cap) = (u64::MAX, isize::MAX as u64);
            Error::new(ErrorKind::OutOfMemory { wanted, cap }).by("cuda")
        })
}

/// The first number of what was looked at.
pub(super) fn number(found: &[[u8; 8]]) -> u64 {
    found.first().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn pair(record: &[u8; RECORD]) -> (u64, u64) {
    let both = u128::from_le_bytes(*record);
    (both as u64, (both >> 64) as u64)
}
