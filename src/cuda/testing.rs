//! Kernels by themselves, and what they have to give, one value after the other: for tests.
#![allow(unsafe_code)]

use std::sync::Arc;
#[cfg(feature = "parquet")]
use std::sync::Barrier;

use super::columns::{Column, Leaf, Marks, Nested, NestedOutcome, Outcome, Selection, Uneven};
use super::decompress::Body;
use super::device::Device;
#[cfg(feature = "parquet")]
use super::filling::{Filling, To};
use super::frames::{Frame, bytes_of};
use super::launch::{Words, Work};
use super::scan;
use crate::buffer::DeviceBytes;
use crate::error::Result;

/// What the crate does with columns on a device, whose types no user of it can name.
pub trait Kernels {
    /// As `Device::columns`.
    ///
    /// # Errors
    /// As there.
    fn columns(&self, arena: &DeviceBytes, columns: &[Column]) -> Result<Vec<Outcome>>;

    /// As `Device::nested`.
    ///
    /// # Errors
    /// As there.
    fn nested(
        &self,
        arena: &DeviceBytes,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
    ) -> Result<(Vec<Outcome>, Vec<NestedOutcome>)>;

    /// As `Device::marked`.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::type_complexity)]
    fn marked(
        &self,
        arena: &DeviceBytes,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
        known: Option<&[Option<Arc<Marks>>]>,
    ) -> Result<(Vec<Outcome>, Vec<NestedOutcome>, Vec<Option<Marks>>)>;

    /// As `Device::select`.
    ///
    /// # Errors
    /// As there.
    fn select(&self, selections: &[Selection]) -> Result<Vec<Leaf>>;

    /// As `Device::uneven`.
    ///
    /// # Errors
    /// As there.
    fn uneven(
        &self,
        offsets: &DeviceBytes,
        width: usize,
        lists: u64,
        size: u64,
    ) -> Result<Option<Uneven>>;

    /// As `Device::decompress`.
    ///
    /// # Errors
    /// As there.
    fn decompress(
        &self,
        stored: &DeviceBytes,
        bodies: &[Body],
        len: usize,
    ) -> Result<(DeviceBytes, Vec<u32>)>;
}

// Methods of the type come before those of a trait, so that none calls itself.
impl Kernels for Device {
    fn columns(&self, arena: &DeviceBytes, columns: &[Column]) -> Result<Vec<Outcome>> {
        Device::columns(self, arena, columns)
    }

    fn nested(
        &self,
        arena: &DeviceBytes,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
    ) -> Result<(Vec<Outcome>, Vec<NestedOutcome>)> {
        Device::nested(self, arena, flat, nested, most)
    }

    fn marked(
        &self,
        arena: &DeviceBytes,
        flat: &[Column],
        nested: &[Nested],
        most: u64,
        known: Option<&[Option<Arc<Marks>>]>,
    ) -> Result<(Vec<Outcome>, Vec<NestedOutcome>, Vec<Option<Marks>>)> {
        Device::marked(self, arena, flat, nested, most, known)
    }

    fn select(&self, selections: &[Selection]) -> Result<Vec<Leaf>> {
        Device::select(self, self.own(), selections)
    }

    fn uneven(
        &self,
        offsets: &DeviceBytes,
        width: usize,
        lists: u64,
        size: u64,
    ) -> Result<Option<Uneven>> {
        Device::uneven(self, offsets, width, lists, size)
    }

    fn decompress(
        &self,
        stored: &DeviceBytes,
        bodies: &[Body],
        len: usize,
    ) -> Result<(DeviceBytes, Vec<u32>)> {
        Device::decompress(self, stored, bodies, len)
    }
}

/// Where the data of each record is, and how long: what the kernels of `frames` find in a window.
///
/// # Errors
/// As there.
pub fn frames(gpu: &Device, window: &DeviceBytes, left: u64, most: u64) -> Result<Vec<(u64, u64)>> {
    let frames = gpu.frames(gpu.own(), window, left, most)?;
    Ok(frames
        .iter()
        .map(|Frame { data, len }| (*data, *len))
        .collect())
}

/// The exclusive sums of rows of equal length, each with its total behind it, by the kernels of `scan`.
///
/// # Errors
/// Those of the device.
pub fn sums(gpu: &Device, rows: &[Vec<u64>]) -> Result<Vec<Vec<u64>>> {
    let length = rows.first().map_or(0, Vec::len);
    let mut work = Work::new(gpu);
    let mut words = Words::with_capacity(bytes_of((rows.len() * length) as u64, 8)?)?;
    for row in rows {
        row.iter().for_each(|number| {
            words.u64(*number);
        });
    }
    let input = work.upload(words)?;
    // SAFETY: so many numbers were uploaded.
    let output = unsafe { scan::rows(&mut work, input, rows.len() as u64, length as u64)? };
    // SAFETY: a number more in each row.
    let sums = unsafe { work.finish::<8>(output, rows.len() * (length + 1))? };
    let sums: Vec<u64> = sums.into_iter().map(u64::from_ne_bytes).collect();
    Ok(sums.chunks(length + 1).map(<[u64]>::to_vec).collect())
}

/// Memory of `len` bytes that pages are decompressed into, out of memory that is filled from the host: as row groups are.
///
/// # Errors
/// Those of the device.
#[cfg(feature = "parquet")]
pub fn filled(
    gpu: &Arc<Device>,
    stored: &[u8],
    bodies: &[Body],
    len: usize,
) -> Result<DeviceBytes> {
    let stream = gpu.stream()?;
    let filling = Filling::new(gpu, &stream, len, stored.len())?;
    let mut stage = filling.stage(stored.len())?;
    for (to, from) in stage.bytes().iter_mut().zip(stored) {
        *to = *from;
    }
    filling.send(To::Stored, 0, stage)?;
    let mut work = filling.work();
    filling.decompress(&mut work, bodies)?.found(&mut work)?;
    drop(work);
    filling.finish()
}

/// As many buffers that are filled at once, each by as many threads in rounds: every thread has a piece of `len` bytes in hand before any of them
/// is sent. All bytes of a piece have the number of it.
///
/// # Errors
/// Those of the device.
#[cfg(feature = "parquet")]
pub fn filled_at_once(
    gpu: &Arc<Device>,
    (buffers, threads, rounds): (usize, usize, usize),
    len: usize,
) -> Result<Vec<DeviceBytes>> {
    let new = |_| Filling::new(gpu, &gpu.stream()?, threads * rounds * len, 0);
    let fillings: Vec<_> = (0..buffers).map(new).collect::<Result<_>>()?;
    let all = Barrier::new(buffers * threads);
    let fill = |filling: &Filling, thread: usize| {
        for round in 0..rounds {
            let staged = filling.stage(len);
            // Whoever failed is waited for as well.
            all.wait();
            let (number, mut stage) = (round * threads + thread, staged?);
            stage.bytes().fill(number as u8);
            filling.send(To::Buffer, number * len, stage)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = fillings.iter().flat_map(|filling| {
            let fill = &fill;
            (0..threads).map(move |thread| scope.spawn(move || fill(filling, thread)))
        });
        let running: Vec<_> = threads.collect();
        let done = running.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.collect::<Result<()>>()
    })?;
    fillings.into_iter().map(Filling::finish).collect()
}

/// The places at which a length that can be and its checksum stand: of each the first byte of data, and the length.
pub fn candidates(window: &[u8], left: u64, most: u64) -> Vec<(u64, u64)> {
    let places = (0u64..).zip(window.windows(12));
    let candidate = |(at, header): (u64, &[u8])| {
        let (length, sum) = header.split_first_chunk::<8>()?;
        let found = u32::from_le_bytes(*sum.first_chunk()?);
        let room = left.checked_sub(at)?.checked_sub(16)?;
        let value = u64::from_le_bytes(*length);
        (value <= room.min(most) && masked_crc(length) == found).then_some((at + 12, value))
    };
    places.filter_map(candidate).collect()
}

/// Those of them that follow each other from the first byte on.
pub fn chain(candidates: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut chain, mut wanted) = (Vec::new(), 12);
    for (data, len) in candidates {
        if *data == wanted {
            chain.push((*data, *len));
            wanted = data.saturating_add(*len).saturating_add(16);
        }
    }
    chain
}

/// CRC-32C, bit by bit, masked as TFRecord does.
fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}
