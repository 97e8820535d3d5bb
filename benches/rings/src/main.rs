//! This crate beside the io_uring crates that a user would pick today, in one process, in alternating turns.
//!
//! ```sh
//! cd benches/rings
//! cargo run --release                      # all rows
//! cargo run --release -- rand4k stream     # the rows whose names contain one of these
//! cargo run --release -- --json > rings.jsonl
//! ```
//!
//! | row | what | peers |
//! |---|---|---|
//! | `rand4k-qd32-cold`, `rand4k-qd128-cold` | random 4 KiB reads, so many at once | tokio-uring, compio, monoio, glommio, threads with `pread`; fio |
//! | `rand4k-qd1-cold` | random 4 KiB reads, one after another | `pread`; fio |
//! | `stream-cold`, `stream-warm` | the file from start to end | `read`, the same four |
//! | `scattered-64k-cold` | 1,000 ranges of 64 KiB in one batch | object_store, `pread`, the same four |
//! | `async-4k-warm` | one hot page after another, awaited | tokio::fs, the same four; `pread` |
//!
//! Environment: `FEEDWATER_BENCH_DIR` (default: that of temporary files; it must be on the disk to be measured),
//! `FEEDWATER_BENCH_MIB` (size of the file, default 2048), `FEEDWATER_BENCH_TURNS` (default 11), `FEEDWATER_BENCH_READS` (default 20000;
//! the fifth part at depth 1). The machine needs as much free memory as the file has bytes twice. A turn of all rows takes
//! about 3 minutes on 2 processors, and there is one more to warm up. Compare only what was measured in one run, on a
//! machine that does nothing else.
//!
//! How to read it:
//! - Each way runs once in every turn, in another order each time. *Ratio* is the time of the fastest peer over the time
//!   of the way in the same turn, the median over the turns, with the least and the most: above 1 is faster.
//! - *Control* is the peer that was fastest in the first turn, against itself. What differs less is no finding.
//! - *CPU* is that of the whole process while the clock runs, kernel threads of its rings included.
//! - Files are open and runtimes, threads and reused buffers exist before the clock starts; memory that a way
//!   allocates for what it delivers is part of it.
//! - In the first turn, which is not counted, all bytes of every way are compared with what `pread` gave before; in
//!   the others a byte of each page. A way that reads wrong bytes ends the program with status 1.
//! - A way that does not work here (a runtime that gets no ring, fio not installed) is printed as left out, with its
//!   error. So is a route of this crate that this build does not have.
//! - *Cold*: the file's pages were dropped. What stays is dropped with the whole system's page cache if that is allowed
//!   (`FEEDWATER_BENCH_DROP_CACHES=1`: always). Below a virtual machine, the host may hold them.
//! - fio is for information: it hands no bytes over, and draws offsets of its own.
//! - For the rows with a depth, this crate's engine has that depth, and may have as many threads (its default is 32).
//!   `depth` is what was reached. `read_now` by pread has none.

mod job;
mod ours;
mod peers;
mod rows;
mod table;

#[path = "../../ratios/files.rs"]
mod files;
#[path = "../../ratios/turns.rs"]
mod turns;

use std::path::PathBuf;
use std::process::ExitCode;

use job::Fault;

const USAGE: &str = "usage: rings [--json] [ROW…]; rows whose names contain a ROW:";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rings: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Fault> {
    let (flags, wanted): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|arg| arg.starts_with('-'));
    let names: Vec<&str> = rows::ALL.iter().map(|(name, _)| *name).collect();
    if flags.iter().any(|flag| flag == "--help") {
        println!("{USAGE} {}", names.join(" "));
        return Ok(());
    }
    let json = flags.iter().any(|flag| flag == "--json");
    let matches = |row: &str, part: &String| row.contains(part.as_str());
    let unknown = wanted
        .iter()
        .find(|part| !names.iter().any(|row| matches(row, part)));
    if let Some(what) = flags.iter().find(|flag| *flag != "--json").or(unknown) {
        return Err(format!("{what}? {USAGE} {}", names.join(" ")).into());
    }

    let dir =
        std::env::var_os("FEEDWATER_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    // A folder of its own, which goes away with all that is in it.
    let dir = tempfile::tempdir_in(dir)?;
    let len = number("FEEDWATER_BENCH_MIB", 2048)? << 20;
    let path = files::make(dir.path(), "large", len);
    let bench = rows::Bench {
        len,
        turns: number("FEEDWATER_BENCH_TURNS", 11)? as usize,
        reads: number("FEEDWATER_BENCH_READS", 20_000)? as usize,
        openers: ours::Openers::find(&path),
        path,
        json,
    };
    for (route, why) in &bench.openers.left_out {
        table::print_left_out(route, why, json);
    }
    let mut result = Ok(());
    for (name, row) in rows::ALL {
        if wanted.is_empty() || wanted.iter().any(|part| matches(name, part)) {
            // The other rows are measured all the same.
            result = result.and(row(&bench, name));
        }
    }
    result
}

/// A number from the environment, above 0.
fn number(name: &str, default: u64) -> Result<u64, Fault> {
    let Ok(value) = std::env::var(name) else {
        return Ok(default);
    };
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{name}: {value:?} is no number above 0").into()),
    }
}
