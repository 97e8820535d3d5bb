//! The route for each range: the rules, and the facts of a file that they rest on.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::backend::device::{Device, Rates, Trial, Way};
use crate::backend::file::OpenFile;
use crate::sys::{self, ReadMode};

/// What is asked for, as far as the choice depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The caller waits for it on its own thread.
    pub(super) now: bool,
    /// The memory is ours to choose.
    pub(super) ours: bool,
    /// Ranges asked for together.
    pub(super) together: usize,
}

/// Where the bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residency {
    /// In the page cache, or enough of them that reading through it is best.
    Cached,
    /// Not in the page cache.
    Cold,
    /// The system does not tell.
    Unknown,
}

/// From this size on it pays to find out about residency by touching the range here and there.
const SAMPLED_FROM: u64 = 1 << 20;

/// Reads of a stream smaller than this are served by the kernel reading ahead, whatever the device.
const SMALL: u64 = 128 << 10;

/// So much in a row makes a stream a long one.
const LONG: u64 = 4 << 20;

/// Requests above it keep a device busy by themselves, and a [`Trial`] would need more of them than most streams have: without
/// rates they are read past the page cache, which takes less of the processor's time.
const LARGE: u64 = 8 << 20;

/// Streams through one file that are followed at once.
const STREAMS: usize = 4;

/// Where ranges of a file have been, to tell streams from scattered reads.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Where the last ranges ended, and how many bytes came in a row before.
    ends: [AtomicU64; STREAMS],
    lengths: [AtomicU64; STREAMS],
    oldest: AtomicUsize,
}

impl Streams {
    /// Bytes in a row that end with this range. Racing callers may lose count, which only delays a decision.
    pub(super) fn follow(&self, range: &Range<u64>) -> u64 {
        let len = range.end - range.start;
        let continued = (0..STREAMS).find(|&i| {
            let end = self.ends[i].load(Ordering::Relaxed);
            end == range.start && self.lengths[i].load(Ordering::Relaxed) > 0
        });
        let at = match continued {
            Some(at) => at,
            None => {
                let at = self.oldest.fetch_add(1, Ordering::Relaxed) % STREAMS;
                self.lengths[at].store(0, Ordering::Relaxed);
                at
            }
        };
        self.ends[at].store(range.end, Ordering::Relaxed);
        self.lengths[at].fetch_add(len, Ordering::Relaxed) + len
    }
}

/// Where the bytes of `range` are, by asking the system: `cachestat`, else what a mapping would find; else, of a large
/// range, a few bytes here and there are asked for without waiting.
pub(super) fn residency(file: &OpenFile, range: &Range<u64>) -> Residency {
    let len = range.end - range.start;
    let known = file.resident_bytes(range.start, len).or_else(|| {
        let large = len >= SAMPLED_FROM;
        large
            .then(|| sys::resident_bytes_mapped(file.fd(), range.start, len))
            .flatten()
    });
    match known {
        Some(resident) if resident > len / 4 => Residency::Cached,
        Some(_) => Residency::Cold,
        None if len >= SAMPLED_FROM => sampled(file, range),
        None => Residency::Unknown,
    }
}

#[allow(unsafe_code)]
fn sampled(file: &OpenFile, range: &Range<u64>) -> Residency {
    const SAMPLES: u64 = 4;
    let mode = ReadMode {
        no_wait: true,
        dont_cache: false,
    };
    let len = range.end - range.start;
    let mut resident = 0;
    for i in 0..SAMPLES {
        let offset = range.start + len / SAMPLES * i;
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        match unsafe { sys::pread(file.fd(), &raw mut byte, 1, offset, mode) } {
            Ok(_) => resident += 1,
            // What is there and is read from a device all the same costs more than what is not and is read through
            // the cache.
            Err(error) if sys::is_mode_unsupported(&error) => return Residency::Unknown,
            Err(_) => {}
        }
    }
    if resident > SAMPLES / 4 {
        Residency::Cached
    } else {
        Residency::Cold
    }
}

/// How a cold range is best read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cold {
    Buffered(Why),
    /// Past the page cache.
    Direct,
}

/// Why a range was read through the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Cached,
    NotTold,
    OneByOne,
    InARow,
    Kept,
    Streams,
    Policy,
}

impl Why {
    pub(super) const ALL: [Why; 7] = [
        Why::Cached,
        Why::NotTold,
        Why::OneByOne,
        Why::InARow,
        Why::Kept,
        Why::Streams,
        Why::Policy,
    ];

    pub(super) fn text(self) -> &'static str {
        match self {
            Why::Cached => "in the page cache",
            Why::NotTold => {
                "small, and the system does not tell whether they are in the page cache"
            }
            Why::OneByOne => "small, read on the spot one at a time",
            Why::InARow => "small ones in a row, which the kernel reads ahead of",
            Why::Kept => "read often enough to be worth keeping in the page cache",
            Why::Streams => "of streams, which are faster through the page cache on this device",
            Why::Policy => "to be kept, by the cache policy",
        }
    }
}

/// What is known of a file's reads that were cold.
#[derive(Debug, Default)]
pub(super) struct History {
    streams: Streams,
    /// Bytes that were read past the page cache.
    bypassed: AtomicU64,
    trial: Mutex<Option<Trial>>,
}

impl History {
    /// Notes that `range` is asked for: bytes in a row that end with it.
    pub(super) fn follow(&self, range: &Range<u64>) -> u64 {
        self.streams.follow(range)
    }

    /// Whether a range that is in the page cache is there only because the kernel reads ahead of a stream, `run` bytes
    /// long with this range, that would be read past it otherwise: what lies beyond is not there.
    ///
    /// Read from the cache, it would have the kernel go on reading ahead, and the stream would stay there for ever.
    pub(super) fn is_read_ahead(
        &self,
        range: &Range<u64>,
        run: u64,
        file: &OpenFile,
        device: &Device,
    ) -> bool {
        let bytes = range.end - range.start;
        if bytes < SMALL || run < LONG || run == bytes {
            return false;
        }
        if device
            .rates()
            .is_some_and(|rates| rates.better() == Way::Buffered)
        {
            return false;
        }
        // As far as reading ahead may have come, of requests that are under way as well.
        let ahead = 2 * device.read_ahead() + (16 << 20);
        let beyond = range.end.saturating_add(ahead);
        let len = SAMPLED_FROM.min(file.len().saturating_sub(beyond));
        len > 0 && residency(file, &(beyond..beyond + len)) == Residency::Cold
    }

    /// How to read `range`, which is not in the page cache and ends a run of `run` bytes, of a file with `len` bytes on
    /// `device`.
    pub(super) fn cold(&self, range: &Range<u64>, run: u64, len: u64, device: &Device) -> Cold {
        let bytes = range.end - range.start;
        let follows = run > bytes;
        if bytes < SMALL && follows {
            return Cold::Buffered(Why::InARow);
        }
        // Read as often as that, it is worth its place in memory.
        if self.bypassed.load(Ordering::Relaxed) >= len.max(1) && len <= sys::total_memory() / 4 {
            return Cold::Buffered(Why::Kept);
        }
        let way = match device.rates() {
            // What is scattered is no stream.
            Some(rates) if bytes >= SMALL && (follows || bytes >= LONG) => rates.better(),
            None if follows && run >= LONG && bytes <= LARGE => self.on_trial(bytes, device),
            _ => Way::Direct,
        };
        match way {
            Way::Buffered => Cold::Buffered(Why::Streams),
            Way::Direct => {
                self.bypassed.fetch_add(bytes, Ordering::Relaxed);
                Cold::Direct
            }
        }
    }

    /// The way for the next request of a long stream on a device of which nothing is known yet.
    fn on_trial(&self, bytes: u64, device: &Device) -> Way {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        if trial.is_none() && device.begin_trial() {
            *trial = Some(Trial::new());
        }
        let Some(running) = &mut *trial else {
            return Way::Direct; // another stream is at it
        };
        let way = running.next(bytes, Instant::now());
        if let Some(rates) = running.found() {
            device.set_rates(rates);
            device.end_trial();
            *trial = None;
            return rates.better();
        }
        way
    }

    /// The reader goes away; another stream may find out.
    pub(super) fn leave(&self, device: &Device) {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        if trial.take().is_some() {
            device.end_trial();
        }
    }
}

/// Rates in words.
pub(super) fn describe(rates: Rates) -> String {
    format!(
        "{:.0} MB/s through the page cache, {:.0} MB/s past it",
        rates.buffered / 1e6,
        rates.direct / 1e6
    )
}
