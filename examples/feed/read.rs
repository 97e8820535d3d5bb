//! Reading one file with the crate.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use feedwater::{
    ChunkOptions, Engine, OpenOptions, Opened, PoolOptions, Reader, ReaderExt, Report, Route,
};
use indicatif::ProgressBar;

use crate::Failure;
use crate::args::{Args, Choice};
use crate::process::{Spent, measured};
use crate::progress;

/// Files up to this size are read into one block: the fastest way where memory allows.
const WHOLE: u64 = 1 << 30;

/// Larger files come in chunks. Each is large enough that reading past the page cache can pay, and several are in
/// flight.
const CHUNK: usize = 16 << 20;
const WINDOW: usize = 4 * CHUNK;

/// A file that has been read.
pub(crate) struct Done {
    pub(crate) report: Report,
    pub(crate) spent: Spent,
    /// Whether the page cache held all or nothing of it before.
    pub(crate) cache: Option<Cache>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    Cold,
    Warm,
}

impl Cache {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cache::Cold => "cold",
            Cache::Warm => "warm",
        }
    }

    /// The state now, as far as the system tells.
    pub(crate) fn of(path: &Path) -> Result<Option<Cache>, feedwater::Error> {
        let report = feedwater::open(path)?.report();
        Ok(match report.resident {
            _ if report.len == 0 => None,
            Some(0) => Some(Cache::Cold),
            Some(n) if n == report.len => Some(Cache::Warm),
            _ => None,
        })
    }
}

pub(crate) fn read(
    path: &Path,
    args: &Args,
    engine: &Engine,
    bar: &ProgressBar,
) -> Result<Done, Failure> {
    let options = options(args, engine, args.engine.unwrap_or(Choice::Auto));
    let cache = Cache::of(path)?;
    let (read, spent) = measured(|| {
        let reader = options.open(path)?;
        let block = if reader.source().len() <= whole_most() {
            Some(whole(&reader, bar)?)
        } else {
            streamed(&reader, bar)?;
            None
        };
        Ok::<_, feedwater::Error>((reader, block))
    });
    bar.finish_and_clear();
    let (reader, _block) = read?;
    Ok(Done {
        report: reader.report(),
        spent,
        cache,
    })
}

/// How files are opened for an engine.
#[allow(unsafe_code)]
pub(crate) fn options(args: &Args, engine: &Engine, choice: Choice) -> OpenOptions {
    let mut options = OpenOptions::new().engine(engine.clone());
    if let Choice::Only(route) = choice {
        options = options.only(route);
    }
    if args.assume_immutable {
        // SAFETY: whoever gave `--assume-immutable` promised it; the manual says what it means.
        options = unsafe { options.assume_immutable() };
    }
    options
}

/// Everything in one block.
pub(crate) fn whole(reader: &Arc<Opened>, bar: &ProgressBar) -> feedwater::Result<Bytes> {
    bar.set_length(reader.source().len());
    let bytes = progress::wait(reader.read_all(), bar)?;
    touch(reader, &bytes);
    Ok(bytes)
}

/// Everything, a window at a time.
fn streamed(reader: &Arc<Opened>, bar: &ProgressBar) -> feedwater::Result<()> {
    let len = reader.source().len();
    bar.set_length(len);
    let options = ChunkOptions::default().size(CHUNK).window(WINDOW);
    for chunk in reader.clone().chunks(0..len, options) {
        let chunk = chunk?;
        touch(reader, &chunk);
        bar.inc(chunk.len() as u64);
    }
    Ok(())
}

fn whole_most() -> u64 {
    // The default limit of a block is the memory of the machine.
    WHOLE.min(PoolOptions::default().max_block as u64 / 4)
}

/// A view of a mapping has read nothing yet: the kernel brings each page when a byte of it is touched, so for that
/// route reading means to touch them all. Other routes have put the bytes into memory already.
fn touch(reader: &Opened, bytes: &[u8]) {
    // No system has smaller pages.
    const PAGE: usize = 4096;
    if reader.source().counters().snapshot().route(Route::Mmap) > 0 {
        let sum = bytes
            .iter()
            .step_by(PAGE)
            .fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        // A sum that nobody uses would be optimised away, and the touching with it.
        std::hint::black_box(sum);
    }
}
