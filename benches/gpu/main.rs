//! What a GPU and its link do with this crate, beside plain copies of the driver: `cargo bench --bench gpu`.
//!
//! Environment: `FEEDWATER_BENCH_DIR` (default: that of temporary files), `FEEDWATER_BENCH_MIB` (of the file and of the device's memory
//! that is worked on, default 1024), `FEEDWATER_BENCH_TURNS` (default 11), `FEEDWATER_BENCH_ROWS` (of a page of columns, default
//! 131,072); `FEEDWATER_BENCH_JSON`: a file that gets one JSON object a row. Without a GPU it says why, after it has measured what the
//! host does alone (`FEEDWATER_BENCH_PLAN_ROWS`, default 4 Mi), and ends well. On the software CUDA device it shows that it runs; its
//! times mean nothing: `FEEDWATER_BENCH_MIB=1 FEEDWATER_BENCH_TURNS=1 FEEDWATER_BENCH_ROWS=5000 FEEDWATER_BENCH_PLAN_ROWS=10000
//! tests/software-cuda/run cargo bench --bench gpu`.
//!
//! | rows | what they measure |
//! |---|---|
//! | `planning` | the host's walk over page headers and its tables, by bytes of the file, and its share of the time that one thread decodes them in; needs no GPU |
//! | `decompression on the host` | what one thread does of the pages below; needs no GPU |
//! | `host to device` | a file to the device through pinned memory, by blocks of several sizes |
//! | `checksums` | kernel `crc`: many segments, and one that is put together |
//! | `dense`, `images` | kernel `dense`: a copy, a cast, and normalised images |
//! | `columns` | pages in the device's memory to arrays, a row for each encoding: kernels `walk`, `rle`, `fixed`, `delta`, `strings`, `delta_strings`, `scan`. With sums by tensor cores; and with what another time found of where tiles begin |
//! | `decompress` | kernel `decompress`: Snappy and LZ4, few pages and many |
//! | `nested` | kernel `nesting` and those of columns: lists, structs, strings in lists |
//! | `select` | kernel `select`: half of the rows, ranges of 100, and every eighth, beside a copy of what comes out |
//! | `examples …` | end to end: a TFRecord file to columns and tensors, kernels `frames`, `crc`, `example` |
//! | `Parquet …` | end to end: a Parquet file to arrays, by each processor, and with what a cache keeps of pages |
//!
//! What is end to end is beside a copy of as many bytes as the file has from pinned memory. The host decodes it as well, with as many threads as
//! there are, and with 16: how often the time of another way goes into these is the quotient of their ratios. On the software device, which
//! counts launches, it fails if no row has reached a kernel.
//!
//! Each way runs once in every turn. The ratio is the time of the plain copy over the time of the way in the same turn, the
//! median over the turns with the least and the most: above 1 is faster. The page cache has the file.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks
)]

mod columns;
mod decompress;
#[path = "../../tests/cuda/levels.rs"]
#[allow(dead_code)]
mod levels;
#[path = "../../tests/cuda/pages.rs"]
#[allow(dead_code)]
mod pages;
mod planning;
mod scans;
mod tfrecord;
#[path = "../../tests/cuda/words.rs"]
#[allow(dead_code)]
mod words;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{result, sys};
use feedwater::cuda::{Checksum, Dense, Device, ElementType, available};
use feedwater::{Batch, DeviceBytes, OpenOptions, Reader, StagingOptions};
use software_cuda_preload::Session;

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok());
    value.unwrap_or(default)
}

/// One way of a work, and the seconds of its turns.
struct Way<'a> {
    name: String,
    run: Box<dyn FnMut() + 'a>,
    seconds: Vec<f64>,
}

impl<'a> Way<'a> {
    fn new(name: impl Into<String>, run: impl FnMut() + 'a) -> Self {
        Way {
            name: name.into(),
            run: Box::new(run),
            seconds: Vec::new(),
        }
    }
}

fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Lets the ways take turns, and prints a row for each: the first one is what the others are compared with.
fn work(name: &str, bytes: u64, turns: u64, mut ways: Vec<Way<'_>>, json: &mut String) {
    for turn in 0..=turns {
        let count = ways.len();
        for at in 0..count {
            let way = &mut ways[(at + turn as usize) % count];
            let begun = Instant::now();
            (way.run)();
            // The first turn warms up.
            if turn > 0 {
                way.seconds.push(begun.elapsed().as_secs_f64());
            }
        }
    }
    let base = ways[0].seconds.clone();
    for way in &ways {
        let ratios: Vec<f64> = base.iter().zip(&way.seconds).map(|(b, s)| b / s).collect();
        let (least, most) = ratios
            .iter()
            .fold((f64::MAX, 0f64), |(a, b), r| (a.min(*r), b.max(*r)));
        let seconds = median(&way.seconds);
        let rate = bytes as f64 / seconds / 1e9;
        let ratio = median(&ratios);
        println!(
            "| {name} | {} | {:.3} | {rate:.2} | {ratio:.2} ({least:.2}–{most:.2}) |",
            way.name,
            seconds * 1e3
        );
        let _ = writeln!(
            json,
            r#"{{"work":"{name}","way":"{}","seconds":{seconds:.6},"bytes":{bytes},"ratio":{ratio:.3}}}"#,
            way.name
        );
    }
}

/// The device's memory, of this many bytes that differ.
fn filled(gpu: &Arc<Device>, len: u64) -> DeviceBytes {
    on_the_device(
        gpu,
        (0..len).map(|i| (i ^ (i >> 9) ^ (i >> 17)) as u8).collect(),
    )
}

fn on_the_device(gpu: &Arc<Device>, bytes: Vec<u8>) -> DeviceBytes {
    let len = bytes.len() as u64;
    let options = OpenOptions::new().device(gpu.clone());
    let reader = options
        .open_bytes(bytes::Bytes::from(bytes), "numbers")
        .unwrap();
    read(gpu, &*reader, len)
}

fn read(gpu: &Device, reader: &impl Reader, len: u64) -> DeviceBytes {
    let batch = Batch::new().any_at(0..len, gpu.place());
    let mut blocks = reader.submit(batch).wait().unwrap();
    blocks.remove(0).into_device().unwrap()
}

fn main() {
    let mut json = String::new();
    // `cargo test` only starts it.
    let measures = std::env::args().any(|argument| argument == "--bench");
    let software = std::env::var_os("SOFTWARE_CUDA_LIBRARY").filter(|_| measures);
    let software = software.map(|_| Session::begin());
    if measures {
        planning::planning(&mut json);
        decompress::by_host(&mut json);
    }
    // What `cargo test --benches` asks for is only that it starts.
    match available() {
        Ok(_) => on_a_gpu(&mut json),
        Err(reason) => println!("no GPU to measure: {reason}"),
    }
    if let Some(path) = std::env::var_os("FEEDWATER_BENCH_JSON") {
        std::fs::write(path, json).unwrap();
    }
    if let Some(session) = software {
        every_kernel(&session);
    }
}

/// That a row has reached each kernel.
fn every_kernel(session: &Session) {
    let resources = include_str!("../../src/cuda/kernels/resources.tsv");
    let kernels = resources.lines().skip(1).map(|line| {
        let (name, _) = line.split_once('\t').unwrap();
        name
    });
    let kernels: BTreeSet<_> = kernels.collect();
    let missed: Vec<_> = kernels
        .iter()
        .filter(|kernel| session.work(kernel).launches == 0)
        .collect();
    assert!(missed.is_empty(), "no row reaches {missed:?}");
    println!("\nall {} kernels were reached", kernels.len());
}

fn on_a_gpu(json: &mut String) {
    let gpu = Device::open(0).unwrap();
    let len = number("FEEDWATER_BENCH_MIB", 1024) << 20;
    let turns = number("FEEDWATER_BENCH_TURNS", 11);
    println!("{:?}, {} MiB, {turns} turns\n", gpu.info(), len >> 20);
    println!("| work | way | ms | GB/s | ratio (range) |\n|---|---|---:|---:|---|");
    to_the_device(&gpu, len, turns, json);
    kernels(&gpu, len, turns, json);
    tfrecord::files(&gpu, len, turns, json);
    scans::files(&gpu, len, turns, json);
}

/// Copies of so many bytes from pinned memory to the device, by the driver.
struct Pinned {
    context: sys::CUcontext,
    len: usize,
    pinned: *mut std::ffi::c_void,
    target: sys::CUdeviceptr,
}

impl Pinned {
    fn new(gpu: &Device, len: u64) -> Self {
        let context = gpu.raw_context() as sys::CUcontext;
        let len = len as usize;
        // SAFETY: the context is the device's, which outlives all of this; sizes are those of the allocations.
        let (pinned, target) = unsafe {
            result::ctx::set_current(context).unwrap();
            let pinned = result::malloc_host(len, 0).unwrap();
            pinned.cast::<u8>().write_bytes(7, len);
            (pinned, result::malloc_sync(len).unwrap())
        };
        Pinned {
            context,
            len,
            pinned,
            target,
        }
    }

    fn way(self) -> Way<'static> {
        Way::new("pinned copy of the driver, as many bytes", move || {
            self.copy();
        })
    }

    fn copy(&self) {
        // SAFETY: the context is there; both have that many bytes.
        unsafe {
            result::ctx::set_current(self.context).unwrap();
            let source = std::slice::from_raw_parts(self.pinned.cast::<u8>(), self.len);
            result::memcpy_htod_sync(self.target, source).unwrap();
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: nothing uses them any more.
        unsafe {
            result::ctx::set_current(self.context).unwrap();
            result::free_sync(self.target).unwrap();
            result::free_host(self.pinned).unwrap();
        }
    }
}

/// From a file in the page cache to the device, by blocks of several sizes, beside a copy from pinned memory.
fn to_the_device(gpu: &Arc<Device>, len: u64, turns: u64, json: &mut String) {
    let dir =
        std::env::var_os("FEEDWATER_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(dir).unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7u8; len as usize]).unwrap();
    let mut ways = vec![Pinned::new(gpu, len).way()];
    for mib in [1usize, 4, 16] {
        let staging = StagingOptions::default().block(mib << 20);
        let options = OpenOptions::new().device(gpu.clone()).staging(staging);
        let reader = options.open(&path).unwrap();
        ways.push(Way::new(format!("file, blocks of {mib} MiB"), move || {
            read(gpu, &*reader, len);
        }));
    }
    work("host to device", len, turns, ways, json);
}

/// Kernels, beside a copy in the device's memory.
fn kernels(gpu: &Arc<Device>, len: u64, turns: u64, json: &mut String) {
    let bytes = filled(gpu, len);
    let context = gpu.raw_context() as sys::CUcontext;
    // SAFETY: as in `Pinned`.
    let copy = unsafe {
        result::ctx::set_current(context).unwrap();
        result::malloc_sync(len as usize).unwrap()
    };
    let plain = |len: u64| {
        let from = bytes.ptr().addr() as u64;
        Way::new("copy of the driver", move || {
            // SAFETY: both have that many bytes; the null stream is waited for.
            unsafe {
                result::memcpy_dtod_sync(copy, from, len as usize).unwrap();
                result::ctx::synchronize().unwrap();
            }
        })
    };
    let part = 64 << 10;
    let many: Vec<_> = (0..len / part).map(|i| i * part..(i + 1) * part).collect();
    let one = [0..len];
    let ways = vec![
        plain(len),
        Way::new("CRC-32C, segments of 64 KiB", || {
            gpu.checksums(Checksum::Crc32c, &bytes, &many).unwrap();
        }),
        Way::new("CRC-32C, one segment", || {
            gpu.checksums(Checksum::Crc32c, &bytes, &one).unwrap();
        }),
    ];
    work("checksums", len, turns, ways, json);
    // Tensors whose input has the bytes; the outputs of casts from bytes are four times as long.
    let words = len / 4;
    let images = (len / 4 / (224 * 224 * 3)).max(1);
    let pixels = images * 224 * 224 * 3;
    let dense = Dense::copy(&[words], 4);
    let half = Dense::cast(&[words], ElementType::F32, ElementType::BF16);
    let image = Dense::cast(&[images, 3, 224, 224], ElementType::U8, ElementType::F32)
        .strides(&[224 * 224 * 3, 1, 224 * 3, 3])
        .affine(1, &[1.0 / 255.0; 3], &[-0.5; 3]);
    let ways = vec![
        plain(len),
        Way::new("dense copy of words", || {
            gpu.dense(&dense, &bytes).unwrap();
        }),
        Way::new("f32 to bf16", || {
            gpu.dense(&half, &bytes).unwrap();
        }),
    ];
    work("dense", len, turns, ways, json);
    if pixels <= len {
        let ways = vec![
            plain(pixels),
            Way::new("images, u8 to normalised f32, channels first", || {
                gpu.dense(&image, &bytes).unwrap();
            }),
        ];
        work("images (a quarter of the bytes)", pixels, turns, ways, json);
    }
    columns::columns(gpu, len, turns, &plain, json);
    decompress::decompress(gpu, len, turns, &plain, json);
    columns::nested(gpu, len, turns, &plain, json);
    columns::select(gpu, len, turns, &plain, json);
    // SAFETY: nothing uses it any more.
    unsafe { result::free_sync(copy).unwrap() };
}
