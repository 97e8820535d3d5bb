//! Kernels by themselves, beside scalar references.

use std::sync::Arc;

use feedwater::DeviceBytes;
use feedwater::cuda::{Device, DeviceOptions, Guard, testing};

use crate::beside::{framed, header, masked_crc};
use crate::support::*;

fn put(gpu: &Arc<Device>, bytes: &[u8]) -> DeviceBytes {
    let reader = reader(gpu, &bytes.to_vec().into());
    let block = read(gpu, &reader, 0..bytes.len() as u64).unwrap();
    block.into_device().unwrap()
}

/// Numbers that look like any.
fn draws(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// Records, and between their bytes headers that lead anywhere: to each other, into records, past the end.
fn window(seed: u64, len: usize) -> Vec<u8> {
    let mut draw = draws(seed);
    let mut bytes = Vec::new();
    while bytes.len() < len {
        match draw(5) {
            0 => bytes.extend(header(draw(2 * len as u64 + 30))),
            1 => bytes.extend(header(u64::MAX - draw(40))),
            2 => {
                let inner = framed(&vec![1; draw(30) as usize]);
                bytes.extend(framed(&inner));
            }
            _ => bytes.extend(framed(&vec![0; draw(60) as usize])),
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn records_are_those_of_the_reference_in_windows_of_all_sizes() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let mut chained = 0;
        let sizes = [
            0, 1, 11, 12, 13, 15, 16, 17, 31, 33, 700, 3000, 4095, 4096, 4097, 4107, 4108, 9000,
        ];
        for (turn, len) in (0..).zip(sizes.into_iter().chain(300..312)) {
            // Those that begin with a record are long chains.
            let mut bytes = window(turn, len);
            if turn % 2 == 0 {
                bytes.splice(0..0, framed(b"first"));
                bytes.truncate(len.max(1));
            }
            let there = put(&gpu, &bytes);
            let len = bytes.len() as u64;
            for left in [len, len + 1, len + 1000, u64::MAX] {
                for most in [u64::MAX, 25] {
                    let candidates = testing::candidates(&bytes, left, most);
                    let wanted = testing::chain(&candidates);
                    let found = testing::frames(&gpu, &there, left, most).unwrap();
                    assert_eq!(found, wanted, "turn {turn}, left {left}, most {most}");
                    chained += usize::from(wanted.len() < candidates.len() && wanted.len() > 1);
                }
            }
        }
        assert!(chained > 10, "{chained}");
    }
    nothing_left(&session);
}

#[test]
fn windows_filled_with_zeros_are_not_much_more_work_than_others() {
    // Each place looks like a record of no bytes, until its checksum is looked at.
    let session = session("eager");
    let len = 64 << 10;
    let steps = |bytes: &[u8]| {
        let before = session.work("frames_count").steps;
        let gpu = Device::open(0).unwrap();
        let there = put(&gpu, bytes);
        let found = testing::frames(&gpu, &there, len, u64::MAX).unwrap();
        assert!(found.is_empty());
        (session.work("frames_count").steps - before) as f64 / len as f64
    };
    let (others, zeros) = (
        steps(&vec![0xa5; len as usize]),
        steps(&vec![0; len as usize]),
    );
    assert!(zeros < 3.0, "{zeros}, and {others}");
    nothing_left(&session);
}

#[test]
fn records_are_found_without_a_race_or_an_access_outside() {
    for order in ["in-order", "reversed", "shuffled:5", "apart"] {
        let mut session = session("lazy");
        session.set("CHECKS", "all");
        session.set("SCHEDULE", order);
        {
            let gpu = DeviceOptions::default()
                .guard(Guard::Separate)
                .open(0)
                .unwrap();
            for len in [13, 512, 4080] {
                let bytes = [framed(b"first"), window(7, len)].concat();
                let there = put(&gpu, &bytes);
                let left = bytes.len() as u64;
                let candidates = testing::candidates(&bytes, left, u64::MAX);
                let found = testing::frames(&gpu, &there, left, u64::MAX).unwrap();
                assert_eq!(found, testing::chain(&candidates), "{order} {len}");
            }
        }
        nothing_left(&session);
    }
}

/// As many candidates as there can be, none of which is a record but the first.
#[test]
fn headers_beside_each_other_make_many_candidates_and_one_record() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let inner: Vec<u8> = (0..300).flat_map(|at| header(at % 7)).collect();
        let bytes = framed(&inner);
        let left = bytes.len() as u64;
        // The record itself, and all that are in it but the last, behind which there is no room.
        assert_eq!(testing::candidates(&bytes, left, u64::MAX).len(), 300);
        let found = testing::frames(&gpu, &put(&gpu, &bytes), left, u64::MAX).unwrap();
        assert_eq!(found, [(12, inner.len() as u64)]);
    }
    nothing_left(&session);
}

/// Words of which each is the checksum of the two before it: with any length a candidate begins at each of them.
fn nothing_but_headers(seed: u32, words: usize) -> Vec<u8> {
    let mut bytes = [seed.to_le_bytes(), 0u32.to_le_bytes()].concat();
    while bytes.len() < 4 * words {
        let sum = masked_crc(&bytes[bytes.len() - 8..]);
        bytes.extend(sum.to_le_bytes());
    }
    bytes
}

/// The places of 128 candidates are kept for each 4 KiB; where there are more, they are looked for again.
#[test]
fn tiles_with_more_candidates_than_places_are_looked_at_again() {
    const TILE: usize = 4096;
    for order in ["in-order", "shuffled:5", "apart"] {
        let mut session = session("lazy");
        session.set("CHECKS", "all");
        session.set("SCHEDULE", order);
        {
            let gpu = DeviceOptions::default().guard(Guard::Separate);
            let gpu = gpu.open(0).unwrap();
            let found = |bytes: &[u8], left: u64| {
                let found = testing::frames(&gpu, &put(&gpu, bytes), left, u64::MAX).unwrap();
                let candidates = testing::candidates(bytes, left, u64::MAX);
                assert_eq!(found, testing::chain(&candidates), "{order}");
                (found.len(), candidates.len())
            };
            // A tile of as many records, one of one, and some of the last.
            for count in [127, 128, 129, 256] {
                let mut bytes = framed(b"").repeat(count - 1);
                bytes.extend(framed(&vec![7; TILE - bytes.len() - 16]));
                bytes.extend(framed(&[7; TILE - 16]));
                bytes.extend(framed(b"").repeat(count % 100));
                let all = count + 1 + count % 100;
                assert_eq!(found(&bytes, bytes.len() as u64), (all, all));
            }
            // As many as no file has, and records between them.
            let inside = nothing_but_headers(3, 1500);
            let bytes = [framed(&inside), framed(&inside), framed(b"last")].concat();
            let (records, candidates) = found(&bytes, u64::MAX);
            assert_eq!(records, 3);
            assert!(candidates > 2 * 1490, "{candidates}");
        }
        nothing_left(&session);
        assert_eq!(session.counts().findings, 0, "{order}");
    }
}

/// Each doubling of the way uses the memory of the one before the last.
#[test]
fn long_chains_take_as_much_memory_as_short_ones() {
    const COUNT: u64 = 6000;
    let session = session("lazy");
    {
        let inner: Vec<u8> = (0..COUNT).flat_map(|at| header(at % 7)).collect();
        let bytes = framed(&inner);
        let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
        let (there, left) = (put(&gpu, &bytes), bytes.len() as u64);
        let found = testing::frames(&gpu, &there, left, u64::MAX).unwrap();
        assert_eq!(found, [(12, inner.len() as u64)]);
        // Candidates, what follows each two times, marks two times, and their sums: there are 13 doublings. What was taken is kept.
        let held = gpu.stats().held;
        assert!(held < COUNT * 8 * 15, "{held}");
    }
    nothing_left(&session);
}

#[test]
fn sums_of_rows_of_all_lengths() {
    for order in ["in-order", "reversed", "shuffled:5", "apart"] {
        let mut session = session("lazy");
        session.set("CHECKS", "all");
        session.set("SCHEDULE", order);
        {
            let gpu = DeviceOptions::default()
                .guard(Guard::Separate)
                .open(0)
                .unwrap();
            let lengths: &[usize] = match order {
                "in-order" => &[1, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2049],
                _ => &[1, 33, 1025],
            };
            for &length in lengths {
                let mut draw = draws(length as u64);
                // Sums past 32 bits.
                let mut row = || (0..length).map(|_| draw(1 << 34)).collect::<Vec<u64>>();
                let rows = [row(), row(), row()];
                let sums = |row: &Vec<u64>| {
                    let mut sums = vec![0];
                    for number in row {
                        sums.push(sums[sums.len() - 1] + number);
                    }
                    sums
                };
                let wanted: Vec<_> = rows.iter().map(sums).collect();
                let found = testing::sums(&gpu, &rows).unwrap();
                assert!(found == wanted, "{order} {length}");
            }
        }
        nothing_left(&session);
    }
}
