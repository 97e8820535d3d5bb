//! Whether lists all have as many items.
#![allow(unsafe_code)]

use super::decode::BLOCK;
use super::nesting::NESTING;
use crate::buffer::DeviceBytes;
use crate::cuda::device::Device;
use crate::cuda::launch::{Words, Work};
use crate::error::{Error, ErrorKind, Result};

/// A list that is not as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uneven {
    /// Its number.
    pub list: u64,
    /// How many items it has.
    pub items: u64,
}

impl Device {
    /// The first of `lists` lists that does not have `size` items, and begin where the one before ends, by their offsets of `width` bytes,
    /// 4 or 8, which begin at a multiple of that. Waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for other offsets than these; those of the device.
    pub(crate) fn uneven(
        &self,
        offsets: &DeviceBytes,
        width: usize,
        lists: u64,
        size: u64,
    ) -> Result<Option<Uneven>> {
        let mut work = Work::new(self);
        let address = work.reads(offsets)?;
        if !matches!(width, 4 | 8) || !address.is_multiple_of(width as u64) {
            let what = format!("offsets of {width} bytes at {address:#x}").into();
            return Err(Error::new(ErrorKind::InvalidOption { what }).by("cuda"));
        }
        let there = (offsets.len() / width) as u64;
        let count = lists.saturating_add(1).min(there);
        let error = work.filled(8, 0xff)?;
        let mut job = Words::default();
        job.u64(address).u64(count).u64(size).u64(error);
        job.u32(width as u32).u32(0);
        // SAFETY: the job is an `EvenJob` with as many offsets as are there, each at a multiple of its bytes.
        unsafe { work.launch(NESTING, "nesting_even", BLOCK, count, job)? };
        // SAFETY: the word that was filled.
        let found = unsafe { work.look::<8>(error, 1)? };
        let at = found
            .first()
            .map_or(u64::MAX, |word| u64::from_ne_bytes(*word));
        if at >= count {
            return Ok(None);
        }
        let first = at.saturating_sub(1);
        let from = address + first * width as u64;
        let wanted = (at - first + 1) as usize;
        let number = |bytes: &[u8]| {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(bytes) {
                *to = *from;
            }
            u64::from_le_bytes(word)
        };
        // SAFETY: the offset that is another, and the one before it.
        let pair: Vec<u64> = unsafe {
            match width {
                8 => work
                    .look::<8>(from, wanted)?
                    .iter()
                    .map(|bytes| number(bytes))
                    .collect(),
                _ => work
                    .look::<4>(from, wanted)?
                    .iter()
                    .map(|bytes| number(bytes))
                    .collect(),
            }
        };
        let items = match pair[..] {
            [begin, end] => end.wrapping_sub(begin),
            _ => pair.first().copied().unwrap_or(0),
        };
        Ok(Some(Uneven { list: first, items }))
    }
}
