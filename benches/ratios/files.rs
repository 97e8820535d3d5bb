//! The files that are measured, and the state of the page cache before a run.
//!
//! Shared by `benches/ratios` and `benches/rings`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use rustix::fs::{Advice, fadvise};

/// A file of `len` bytes that no file system can compress, in `dir`.
pub(crate) fn make(dir: &Path, name: &str, len: u64) -> PathBuf {
    let path = dir.join(name);
    let mut file = File::create(&path).expect("create");
    let mut block = vec![0u8; 1 << 20];
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut left = len;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
        let n = left.min(block.len() as u64) as usize;
        file.write_all(&block[..n]).expect("write");
        left -= n as u64;
    }
    file.sync_all().expect("sync");
    path
}

/// Drops the pages of a file from the page cache.
///
/// What stays all the same (another process may map the file) is dropped with everything else that the system caches, if
/// this process may do that; `FEEDWATER_BENCH_DROP_CACHES=1` does so always. It slows down whatever else runs.
pub(crate) fn make_cold(path: &Path) {
    let file = File::open(path).expect("open");
    file.sync_all().expect("sync");
    fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
    let always = std::env::var_os("FEEDWATER_BENCH_DROP_CACHES").is_some_and(|value| value == "1");
    if always || resident(path) > 0 {
        let dropped = std::fs::write("/proc/sys/vm/drop_caches", "1");
        let left = resident(path);
        if left > 0 || (always && dropped.is_err()) {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                eprintln!(
                    "not cold: {left} bytes stay in the page cache (drop_caches: {dropped:?})"
                );
            });
        }
    }
}

/// Bytes of a file in the page cache; 0 where the system does not tell.
fn resident(path: &Path) -> u64 {
    let reader = feedwater::open(path).expect("open");
    reader.report().resident.unwrap_or(0)
}

/// Reads a file once, if it is not in the page cache.
pub(crate) fn make_warm(path: &Path) {
    let file = File::open(path).expect("open");
    if resident(path) >= file.metadata().expect("metadata").len() {
        return;
    }
    let mut block = vec![0u8; 1 << 20];
    let mut at = 0;
    loop {
        let n = file.read_at(&mut block, at).expect("read");
        if n == 0 {
            break;
        }
        at += n as u64;
    }
}

/// Touches and frees memory, so that what is measured does not depend on whether a hypervisor has taken free
/// memory away meanwhile.
pub(crate) fn touch_memory(bytes: usize) {
    let memory = feedwater::HostMemory::new(bytes).expect("memory");
    memory.populate();
}
