//! Memory stays within the window, whatever the size of the source: measured on the process, so alone in its own.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::sync::Arc;

use common::skip::require;
use feedwater::{ChunkOptions, Reader, ReaderExt};

const MIB: u64 = 1 << 20;

/// A line of `/proc/self/status` in bytes.
fn status(name: &str) -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/self/status").map_err(|e| e.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.ok_or_else(|| format!("{name} is not there"))? * 1024)
}

#[test]
fn chunks_stay_within_the_window_and_16_mib() {
    let reset = std::fs::write("/proc/self/clear_refs", "5").map_err(|e| e.to_string());
    let now = reset.and_then(|()| status("VmRSS:"));
    let Some(before) = require("clear-refs", now) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    File::create(&path).unwrap().set_len(3 << 30).unwrap();
    let reader = feedwater::open(&path).unwrap();
    // The default, chunks that are copied by other threads, and chunks past the page cache.
    for (chunk, window) in [(MIB, 8 * MIB), (3 * MIB, 32 * MIB), (8 * MIB, 64 * MIB)] {
        let options = ChunkOptions::default()
            .size(chunk as usize)
            .window(window as usize);
        let mut read = 0;
        for bytes in Arc::clone(&reader).chunks(0..1 << 30, options) {
            read += bytes.unwrap().len() as u64;
        }
        assert_eq!(read, 1 << 30);
        let most = status("VmHWM:").unwrap();
        assert!(
            most <= before + window + 16 * MIB,
            "window of {window}: {before} bytes before, {most} at most; {:?}",
            reader.source().counters().snapshot()
        );
    }
}

/// All of these once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{NO_IO_URING, OLD_KERNEL, UNPRIVILEGED, again};

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, &[], 1);
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, &[], 1);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, &[], 1);
    }
}
