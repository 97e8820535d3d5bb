//! What was done for many files, and by which way.

use std::fmt;

use crate::error::{Refusal, counted};

/// The way by which a file was read or looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FilesWay {
    /// By plain calls of the thread that takes the results.
    Spot,
    /// By plain calls of the engine's threads.
    Threads,
    /// By a ring (`io_uring`).
    Rings,
}

impl FilesWay {
    /// All of them.
    pub const ALL: &'static [FilesWay] = &[FilesWay::Spot, FilesWay::Threads, FilesWay::Rings];

    /// The name, as reports and errors spell it.
    pub fn name(self) -> &'static str {
        match self {
            FilesWay::Spot => "spot",
            FilesWay::Threads => "threads",
            FilesWay::Rings => "rings",
        }
    }

    /// The name of the engine that errors have.
    pub(super) fn engine(self) -> &'static str {
        match self {
            FilesWay::Rings => "uring",
            _ => "pread",
        }
    }
}

impl fmt::Display for FilesWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was done so far, by [`Files::report`](super::Files::report).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FilesReport {
    ways: [u64; FilesWay::ALL.len()],
    /// Results so far, errors included.
    pub files: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// Results that are errors.
    pub errors: u64,
    /// Files of which the first try found that they are not in memory.
    pub cold: u64,
    /// Files that were put off because the window had no room for them, and opened once more later.
    pub put_off: u64,
    /// Most bytes of contents that were held at once: being read, or read and not yet taken.
    pub most_bytes: u64,
    /// Why no ring was used, if one was thought of.
    pub no_rings: Option<Refusal>,
}

impl FilesReport {
    /// Files that were read or looked at by `way`.
    pub fn by(&self, way: FilesWay) -> u64 {
        let at = FilesWay::ALL.iter().position(|w| *w == way);
        at.and_then(|at| self.ways.get(at)).copied().unwrap_or(0)
    }

    /// The way that most files went, if there were any.
    pub fn way(&self) -> Option<FilesWay> {
        let ways = FilesWay::ALL.iter().copied();
        ways.filter(|way| self.by(*way) > 0)
            .max_by_key(|way| self.by(*way))
    }
}

impl fmt::Display for FilesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, {};",
            counted(self.files, "file"),
            counted(self.bytes, "byte"),
            counted(self.errors, "error")
        )?;
        for way in FilesWay::ALL {
            write!(f, " {way} {}", self.by(*way))?;
        }
        write!(f, "; {} not in memory at the first try", self.cold)?;
        if let Some(why) = &self.no_rings {
            write!(f, "; no rings: {why}")?;
        }
        Ok(())
    }
}

/// What a report is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(FilesReport);

impl Counts {
    /// One more result; the bytes of its content, or `None` for an error.
    pub(super) fn add(&mut self, way: FilesWay, bytes: Option<u64>) {
        let at = FilesWay::ALL.iter().position(|w| *w == way);
        if let Some(count) = at.and_then(|at| self.0.ways.get_mut(at)) {
            *count += 1;
        }
        self.0.files += 1;
        match bytes {
            Some(bytes) => self.0.bytes += bytes,
            None => self.0.errors += 1,
        }
    }

    /// One more file that is not in memory.
    pub(super) fn add_cold(&mut self) {
        self.0.cold += 1;
    }

    /// One more file that there was no room for.
    pub(super) fn add_put_off(&mut self) {
        self.0.put_off += 1;
    }

    pub(super) fn report(&self) -> FilesReport {
        self.0.clone()
    }
}
