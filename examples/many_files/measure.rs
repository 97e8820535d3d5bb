//! Time, and what is made cold.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// What reading many files came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    /// `None`: nothing was read.
    pub(crate) engine: Option<String>,
    /// Of wall time.
    pub(crate) seconds: f64,
    /// Of all threads of this process, user and system.
    pub(crate) cpu_seconds: f64,
}

impl Done {
    /// One more file, of so many bytes, if it could be read.
    pub(crate) fn add(&mut self, bytes: Option<usize>) {
        self.files += 1;
        match bytes {
            Some(bytes) => self.bytes += bytes as u64,
            None => self.errors += 1,
        }
    }
}

/// Does `work` and says how long it took.
pub(crate) fn measured(work: impl FnOnce() -> Done) -> Done {
    let (start, cpu) = (Instant::now(), cpu_time());
    let done = work();
    Done {
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: cpu_time().saturating_sub(cpu).as_secs_f64(),
        ..done
    }
}

fn cpu_time() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes one `rusage`, for which there is room; zeroes are a valid one too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Drops the pages of a file, as far as the system lets us; what cannot be opened has none that we read.
#[cfg(target_os = "linux")]
pub(crate) fn make_cold(path: &Path) {
    if let Ok(file) = File::open(path) {
        // Pages that differ from the disk are not dropped.
        let _ = file.sync_data();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// Not offered everywhere.
#[cfg(not(target_os = "linux"))]
pub(crate) fn make_cold(path: &Path) {
    let _ = File::open(path);
}
