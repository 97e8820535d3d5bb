//! This crate as one program among others in a comparison of whole processes.
//!
//! `peer-feedwater WORK VARIANT --data DIR [--cache cold|warm|keep] [--prime MIB] [--threads N] [--verify]` prepares the
//! page cache, does the work once, and prints `{"s","bytes","items","cpu_s","peak_rss_mb","sum"}` as one line of JSON.
//!
//! | work | variants | files in DIR |
//! |---|---|---|
//! | `seq` | `read` (whole, fresh memory), `chunks`, `view` (promised, touched) | `big.bin` |
//! | `rand` | `read-at` (4 KiB, one at a time), `batch` (`--qd` at once) | `big.bin` |
//! | `small` | `read` (as ready), `in-order` | those that `small.list` names |
//! | `stat` | `known`, `walk` | the same; all in `small` |
//! | `pq` | `scan` (`--file`, `--batch`) | `parquet/FILE` |
//! | `tf` | `iterate`, `parse` (`--file images|tiny`, `--batch`) | `tfrecord/FILE*` |
//! | `st` | `load`, `align`, `in-order` | `model.safetensors` |
//! | `copy` | `copy` (`--fsync`: synced before the clock stops) | `copy_src.bin` → `copy_dst.bin` |

mod formats;
mod many;

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use feedwater::{
    ChunkOptions, CopyOptions, Engine, EngineOptions, HostMemory, OpenOptions, Reader, ReaderExt,
    SinkOptions, SyncMode, copy,
};

type Outcome = Result<(u64, u64, u64), Box<dyn std::error::Error>>;

struct Args {
    words: Vec<String>,
    options: Vec<(String, String)>,
}

impl Args {
    fn parse() -> Args {
        let (mut words, mut options) = (Vec::new(), Vec::new());
        let mut args = std::env::args().skip(1).peekable();
        while let Some(arg) = args.next() {
            let Some(key) = arg.strip_prefix("--") else {
                words.push(arg);
                continue;
            };
            let value = args.next_if(|next| !next.starts_with("--"));
            options.push((key.to_owned(), value.unwrap_or_default()));
        }
        Args { words, options }
    }

    fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.options.iter().find(|(name, _)| name == key)?;
        Some(value)
    }

    fn number(&self, key: &str, default: usize) -> usize {
        self.get(key)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(self.get("data").unwrap_or(".")).join(name)
    }

    fn engine(&self) -> Engine {
        match NonZeroUsize::new(self.number("threads", 0)) {
            None => Engine::default(),
            Some(threads) => Engine::new(EngineOptions::default().threads(threads)),
        }
    }

    fn options(&self) -> OpenOptions {
        OpenOptions::new().engine(self.engine())
    }

    fn prepare(&self, paths: &[PathBuf]) -> std::io::Result<()> {
        let mut block = vec![0; 1 << 20];
        for path in paths {
            self.prepare_file(path, &mut block)?;
        }
        if self.get("cache") == Some("cold") {
            std::fs::write("/proc/sys/vm/drop_caches", "3")?;
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        // Memory that a hypervisor took back costs a fault of its own, many times that of the guest.
        let prime = self.number("prime", 0);
        if prime > 0 {
            HostMemory::new(prime << 20)
                .map_err(std::io::Error::from)?
                .populate();
            let _ = std::fs::write("/proc/self/clear_refs", "5");
        }
        Ok(())
    }

    fn prepare_file(&self, path: &Path, block: &mut [u8]) -> std::io::Result<()> {
        match self.get("cache").unwrap_or("keep") {
            "cold" => {
                let file = File::open(path)?;
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            }
            "warm" => {
                let file = File::open(path)?;
                let mut at = 0;
                loop {
                    match file.read_at(block, at)? {
                        0 => break,
                        n => at += n as u64,
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The files of a work.
    fn files(&self, work: &str) -> std::io::Result<Vec<PathBuf>> {
        let name = self.get("file").unwrap_or_default();
        let path = match work {
            "seq" | "rand" => self.file("big.bin"),
            "copy" => self.file("copy_src.bin"),
            "st" => self.file("model.safetensors"),
            "pq" => self.file("parquet").join(name),
            "small" | "stat" => {
                let list = std::fs::read_to_string(self.file("small.list"))?;
                return Ok(list.lines().map(|line| self.file(line)).collect());
            }
            _ => {
                let of_name = |path: &PathBuf| {
                    let file = path.file_name().unwrap_or_default();
                    file.to_string_lossy().starts_with(name)
                };
                let all = std::fs::read_dir(self.file("tfrecord"))?;
                let all = all.map(|entry| Ok(entry?.path()));
                let mut paths: Vec<_> = all.collect::<std::io::Result<_>>()?;
                paths.retain(of_name);
                paths.sort();
                return Ok(paths);
            }
        };
        Ok(vec![path])
    }

    fn sum(&self, bytes: &[u8]) -> u64 {
        if self.get("verify").is_none() {
            return 0;
        }
        page_sum(bytes)
    }
}

/// Sum of the first 8 bytes of every page: what all programs of the comparison print.
fn page_sum(bytes: &[u8]) -> u64 {
    bytes.chunks(4096).fold(0, |sum: u64, page| {
        let mut word = [0; 8];
        let n = page.len().min(8);
        word[..n].copy_from_slice(&page[..n]);
        sum.wrapping_add(u64::from_le_bytes(word))
    })
}

fn seq(args: &Args, path: &[PathBuf]) -> Outcome {
    let path = &path[0];
    match args.words.get(1).map(String::as_str) {
        Some("read") => {
            let bytes = args.options().open(path)?.read_all().wait()?;
            Ok((bytes.len() as u64, 1, args.sum(&bytes)))
        }
        Some("chunks") => {
            let reader = args.options().open(path)?;
            let all = 0..reader.source().len();
            let options = ChunkOptions::default().size(args.number("block", 1 << 20));
            let (mut bytes, mut items, mut sum) = (0, 0, 0u64);
            for chunk in reader.chunks(all, options) {
                let chunk = chunk?;
                bytes += chunk.len() as u64;
                items += 1;
                sum = sum.wrapping_add(args.sum(&chunk));
            }
            Ok((bytes, items, sum))
        }
        Some("view") => {
            // SAFETY: the file is not changed while this program runs.
            let options = unsafe { args.options().assume_immutable() };
            let bytes = options.open(path)?.read_all().wait()?;
            Ok((bytes.len() as u64, 1, page_sum(&bytes)))
        }
        _ => Err("seq: read, chunks or view".into()),
    }
}

fn rand(args: &Args, path: &[PathBuf]) -> Outcome {
    let path = &path[0];
    let reader = args.options().open(path)?;
    let blocks = reader.source().len() / 4096;
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let offsets: Vec<u64> = (0..args.number("reads", 50_000))
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 11) % blocks * 4096
        })
        .collect();
    let mut sum = 0u64;
    match args.words.get(1).map(String::as_str) {
        Some("read-at") => {
            let mut block = [0; 4096];
            for &at in &offsets {
                reader.read_at(at, &mut block)?;
                sum = sum.wrapping_add(args.sum(&block));
            }
        }
        Some("batch") => {
            for part in offsets.chunks(args.number("qd", 32)) {
                let ranges: Vec<_> = part.iter().map(|&at| at..at + 4096).collect();
                for block in reader.read_many(&ranges).wait()? {
                    sum = sum.wrapping_add(args.sum(&block.into_host()?));
                }
            }
        }
        _ => return Err("rand: read-at or batch".into()),
    }
    Ok((offsets.len() as u64 * 4096, offsets.len() as u64, sum))
}

fn copying(args: &Args, path: &[PathBuf]) -> Outcome {
    let path = &path[0];
    let sync = match args.get("fsync") {
        Some(_) => SyncMode::Full,
        None => SyncMode::None,
    };
    let target = args.file("copy_dst.bin");
    let mut sink = SinkOptions::new().sync(sync).create(&target)?;
    let report = copy(
        &args.options().open(path)?,
        &mut sink,
        &CopyOptions::default(),
    )?;
    sink.commit()?;
    Ok((report.bytes, 1, 0))
}

fn cpu_seconds() -> f64 {
    // SAFETY: rusage is plain data and the pointer is valid for the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|line| {
            line.trim()
                .trim_end_matches(" kB")
                .trim()
                .parse::<f64>()
                .ok()
        })
        .map_or(0.0, |kib| kib / 1024.0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let name = args.words.first().map_or("", String::as_str);
    let work: fn(&Args, &[PathBuf]) -> Outcome = match name {
        "seq" => seq,
        "rand" => rand,
        "copy" => copying,
        "small" => many::small,
        "stat" => many::stat,
        "pq" => formats::pq,
        "tf" => formats::tf,
        "st" => formats::st,
        _ => return Err("usage: WORK VARIANT --data DIR [--cache cold|warm|keep]".into()),
    };
    let paths = args.files(name)?;
    if name == "copy" {
        let _ = std::fs::remove_file(args.file("copy_dst.bin"));
    }
    args.prepare(&paths)?;
    for _ in 0..args.number("warmup", 0) {
        work(&args, &paths)?;
    }
    let cpu = cpu_seconds();
    let start = Instant::now();
    let (bytes, items, sum) = work(&args, &paths)?;
    let s = start.elapsed().as_secs_f64();
    println!(
        "{{\"s\":{s:.6},\"bytes\":{bytes},\"items\":{items},\"cpu_s\":{:.6},\"peak_rss_mb\":{:.1},\"sum\":{sum}}}",
        cpu_seconds() - cpu,
        peak_rss_mb()
    );
    Ok(())
}
