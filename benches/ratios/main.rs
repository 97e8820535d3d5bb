//! The plain ways beside ours, in one process, in turns: `cargo bench --bench ratios [-- WORK…]`.
//!
//! Environment: `FEEDWATER_BENCH_DIR` (default: a temporary directory), `FEEDWATER_BENCH_MIB` (size of the large
//! file, default 2048: far above the caches of any processor and the noise of a call), `FEEDWATER_BENCH_TURNS`
//! (default 11). Cold means that the file's pages were dropped; below a virtual machine the host may hold them.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::undocumented_unsafe_blocks
)]

mod files;
mod table;
mod turns;
mod works;

use std::path::PathBuf;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let temporary = tempfile::tempdir().expect("temporary directory");
    let dir = std::env::var_os("FEEDWATER_BENCH_DIR")
        .map_or_else(|| temporary.path().to_path_buf(), PathBuf::from);
    let bench = works::Bench {
        len: number("FEEDWATER_BENCH_MIB", 2048) << 20,
        turns: number("FEEDWATER_BENCH_TURNS", 11) as usize,
        path: PathBuf::new(),
    };
    let path = files::make(&dir, "large", bench.len);
    let bench = works::Bench { path, ..bench };
    for (name, work) in works::ALL {
        if wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str())) {
            work(&bench, name);
        }
    }
    let _ = std::fs::remove_file(&bench.path);
}
