//! What decompression does for each byte of a page, counted by the software device: instructions of warps, and bytes moved. The table is
//! `decompress.tsv`, held as `counts.tsv` is; `FEEDWATER_WRITE_COUNTS=1 cargo test --test cuda counts` writes it.
//!
//! The least that has to be moved: what is stored, what it becomes, and of that, what is copied from later, once. Bytes are of sectors of
//! 32: those of a launch together, as if all that is looked at again came from a cache.

use std::fmt::Write as _;

use feedwater::cuda::Device;
use feedwater::cuda::decompress::{Codec, reference};
use feedwater::cuda::testing::Kernels as _;

use crate::decompress::*;
use crate::kernels::put;
use crate::pages::Random;
use crate::support::*;

const LEN: usize = 16 << 10;

fn cases(codec: Codec) -> Vec<(&'static str, Stored)> {
    let mut random = Random::new(11);
    let numbers: Vec<u8> = (0..LEN as u64 / 8)
        .flat_map(|_| random.below(5000).to_le_bytes())
        .collect();
    let words = ["feed", "water", " ", "is ", "pumped", "into a ", "boiler"];
    let mut text = String::new();
    while text.len() < LEN {
        text.push_str(words[random.below(7) as usize]);
    }
    vec![
        ("noise", compressed(codec, &noise(LEN, &mut random))),
        ("zeros", compressed(codec, &vec![0; LEN])),
        ("numbers of 8 bytes", compressed(codec, &numbers)),
        ("text", compressed(codec, &text.as_bytes()[..LEN])),
    ]
}

/// Sectors that have one of these bytes.
fn sectors(copied: &[bool]) -> u64 {
    let sectors = copied.chunks(32).filter(|sector| sector.contains(&true));
    sectors.count() as u64 * 32
}

#[test]
fn instructions_and_bytes_of_each_byte_are_those_of_the_table() {
    if !is_software(&session("eager")) {
        return;
    }
    let per_byte = |count: u64| count as f64 / LEN as f64;
    let mut table = String::from("case\tcodec\tinstructions\tblock\tlaunch\tleast\n");
    for codec in CODECS {
        for (name, page) in cases(codec) {
            let mut session = session("eager");
            session.set("TRAFFIC", "on");
            {
                let gpu = Device::open(0).unwrap();
                let (stored, bodies, len) = arena(std::slice::from_ref(&page), 0);
                let there = put(&gpu, &stored, 0);
                let (made, checks) = gpu.decompress(&there, &bodies, len).unwrap();
                assert_eq!(checks, [0]);
                drop(made);
                let work = session.work("decompress");
                let launch = per_byte(work.distinct_loaded + work.distinct_stored);
                let reference = reference::decompress(codec, &page.bytes, 0, len).unwrap();
                let again = sectors(&reference.copied);
                let least = per_byte(page.bytes.len() as u64 + len as u64 + again);
                let _ = writeln!(
                    table,
                    "{name}\t{codec:?}\t{:.3}\t{:.3}\t{launch:.3}\t{least:.3}",
                    per_byte(work.steps),
                    per_byte(work.loaded + work.stored),
                );
                assert!(
                    launch <= least * 1.3 + 0.02,
                    "{name}, {codec:?}: {launch} bytes a byte, the least is {least}"
                );
            }
            nothing_left(&session);
        }
    }
    held("tests/cuda/decompress.tsv", &table);
}
