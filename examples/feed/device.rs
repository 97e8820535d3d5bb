//! The device that files are read to, if there is one.

use std::collections::VecDeque;
use std::sync::Arc;

use feedwater::cuda::Device;
use feedwater::{Batch, Block, Opened, Pending, Reader};
use indicatif::ProgressBar;

use crate::{Failure, progress};

/// What `--device` asked for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    #[default]
    Cpu,
    Gpu,
    Auto,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) gpu: Option<Arc<Device>>,
    /// Why there is none, if one would have been taken.
    pub(crate) why_not: Option<String>,
}

/// Opens the first GPU, if one is wanted.
pub(crate) fn find(wanted: Wanted) -> Result<Found, Failure> {
    if wanted == Wanted::Cpu {
        return Ok(Found::default());
    }
    match Device::open(0) {
        Ok(gpu) => Ok(Found {
            gpu: Some(gpu),
            why_not: None,
        }),
        Err(error) if wanted == Wanted::Auto => Ok(Found {
            gpu: None,
            why_not: Some(error.to_string()),
        }),
        Err(error) => {
            let advice = "`--device auto` reads to the memory of this process if there is no GPU, `--device cpu` always";
            Err(format!("--device gpu: {error}; {advice}").into())
        }
    }
}

/// Each is large enough to be read past the page cache, and several are in flight.
const CHUNK: u64 = 16 << 20;
const WINDOW: usize = 4;

/// Reads everything to the device: into one block of `whole_most` bytes at most and half of what is free there, else a
/// window at a time.
pub(crate) fn read(
    gpu: &Device,
    reader: &Opened,
    whole_most: u64,
    bar: &ProgressBar,
) -> feedwater::Result<Option<Block>> {
    let len = reader.source().len();
    bar.set_length(len);
    let (free, _) = gpu.memory()?;
    if len <= whole_most.min(free / 2) {
        let pending = reader.submit(Batch::new().any_at(0..len, gpu.place()));
        let blocks = progress::wait(pending, bar, Pending::wait, Pending::progress)?;
        return Ok(blocks.into_iter().next());
    }
    let mut window: VecDeque<(u64, Pending)> = VecDeque::new();
    let mut start = 0;
    loop {
        while start < len && window.len() < WINDOW {
            let end = len.min(start + CHUNK);
            let batch = Batch::new().any_at(start..end, gpu.place());
            window.push_back((end - start, reader.submit(batch)));
            start = end;
        }
        let Some((bytes, pending)) = window.pop_front() else {
            return Ok(None);
        };
        pending.wait()?;
        bar.inc(bytes);
    }
}
