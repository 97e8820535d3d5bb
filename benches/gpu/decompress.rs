//! Pages decompressed on the device, beside a copy of as many bytes as they become. How many pages are in flight stands in the row: each is
//! the work of one warp.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use feedwater::cuda::Device;
use feedwater::cuda::decompress::{Body, Codec};
use feedwater::cuda::testing::Kernels as _;

use super::pages::Random;
use super::{Way, median, number, on_the_device, work};

/// Bytes of a page, as writers make them: 1 MiB. Fewer are enough to see that all of it runs.
fn page() -> u64 {
    number("FEEDWATER_BENCH_ROWS", 1 << 17) * 8
}

/// Sorted numbers of 8 bytes with some noise, and text of few words.
fn contents() -> [(&'static str, Vec<u8>); 2] {
    let mut random = Random::new(1);
    let numbers = (0..page() / 8).flat_map(|at| (at * 100 + random.below(64)).to_le_bytes());
    let numbers = numbers.collect();
    let words = ["feed", "water", " ", "is ", "pumped", "into a ", "boiler"];
    let mut text = String::new();
    while text.len() < page() as usize {
        text.push_str(words[random.below(7) as usize]);
    }
    let text = text.as_bytes()[..page() as usize].to_vec();
    [("numbers", numbers), ("text", text)]
}

fn stored(codec: Codec, bytes: &[u8]) -> Vec<u8> {
    match codec {
        Codec::Snappy => snap::raw::Encoder::new().compress_vec(bytes).unwrap(),
        Codec::Lz4 => lz4_flex::block::compress(bytes),
    }
}

/// What a thread of the host makes of the same pages, by the decoders that it has for them. Needs no GPU.
pub(crate) fn by_host(json: &mut String) {
    let turns = number("FEEDWATER_BENCH_TURNS", 11);
    println!("| decompression on the host, 1 thread | GB/s that come out |\n|---|---:|");
    for (content, bytes) in contents() {
        for codec in [Codec::Snappy, Codec::Lz4] {
            let stored = stored(codec, &bytes);
            let mut page = vec![0; bytes.len()];
            let mut once = || match codec {
                Codec::Snappy => snap::raw::Decoder::new()
                    .decompress(&stored, &mut page)
                    .unwrap(),
                Codec::Lz4 => lz4_flex::block::decompress_into(&stored, &mut page).unwrap(),
            };
            let seconds: Vec<f64> = (0..turns)
                .map(|_| {
                    let begun = Instant::now();
                    for _ in 0..16 {
                        assert_eq!(once(), bytes.len());
                    }
                    begun.elapsed().as_secs_f64()
                })
                .collect();
            let (all, seconds) = (16 * bytes.len(), median(&seconds));
            let rate = all as f64 / seconds / 1e9;
            println!("| {codec:?}, {content} | {rate:.2} |");
            let _ = writeln!(
                json,
                r#"{{"work":"decompression on the host","way":"{codec:?}, {content}, 1 thread","seconds":{seconds:.6},"bytes":{all}}}"#
            );
        }
    }
    println!();
}

/// Each codec and content, with outputs of up to `len` bytes, and with few pages.
pub(crate) fn decompress(
    gpu: &Arc<Device>,
    len: u64,
    turns: u64,
    plain: &dyn Fn(u64) -> Way<'static>,
    json: &mut String,
) {
    for (content, bytes) in contents() {
        for codec in [Codec::Snappy, Codec::Lz4] {
            let stored = stored(codec, &bytes);
            for most in [16, u64::MAX] {
                let pages = (len / page()).clamp(1, most);
                let (mut all, mut bodies) = (Vec::new(), Vec::new());
                for number in 0..pages {
                    let begin = all.len() as u64;
                    all.extend_from_slice(&stored);
                    bodies.push(Body {
                        source: begin..all.len() as u64,
                        plain: 0,
                        codec,
                        target: number * page()..(number + 1) * page(),
                        gap: 0,
                        crc: None,
                    });
                    all.resize(all.len().next_multiple_of(64), 0);
                }
                let read = all.len() as u64;
                let there = on_the_device(gpu, all);
                let output = pages * page();
                let decompress = Way::new(
                    format!(
                        "{codec:?}, {content}, {pages} pages, {} MiB of them",
                        read >> 20
                    ),
                    || {
                        let (_, checks) = gpu.decompress(&there, &bodies, output as usize).unwrap();
                        assert!(checks.iter().all(|check| *check == 0));
                    },
                );
                let output = output.min(len);
                work(
                    "decompress",
                    output,
                    turns,
                    vec![plain(output), decompress],
                    json,
                );
            }
        }
    }
}
