//! Kernels of all that ours are made of, as NVRTC writes them: the numbers are those that Rust works out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use software_cuda_bugs::{LANGUAGE, Numbers, Parameters, as_longs, as_words, globals, words};
use software_cuda_ptx::{Checks, Grid, HostMemory, Module, Options, Schedule, launch};

const SCHEDULES: [Schedule; 4] = [
    Schedule::InOrder,
    Schedule::Reversed,
    Schedule::Shuffled(3),
    Schedule::Apart,
];
const TABLE: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

/// Runs a kernel in all schedules with all checks, and gives what is in `out` after it, which has to be the same each time.
fn run(kernel: &str, grid: Grid, input: &[u8], out: &[u8], more: Option<u32>) -> Vec<u8> {
    let module = Module::parse(LANGUAGE).unwrap();
    let results = SCHEDULES.map(|schedule| {
        let mut memory = HostMemory::new();
        let (input, out) = (memory.allocate(input), memory.allocate(out));
        let addresses = globals(&module, &mut memory);
        let mut parameters = Parameters::default().u64(input).u64(out);
        if let Some(more) = more {
            parameters = parameters.u32(more);
        }
        let options = Options {
            schedule,
            checks: Checks::ALL,
            ..Options::default()
        };
        let report = launch(
            &module,
            kernel,
            grid,
            &parameters.bytes,
            &addresses,
            &mut memory,
            &options,
        )
        .unwrap();
        assert!(
            report.findings.is_empty(),
            "{kernel} {schedule:?}: {}",
            report.findings[0]
        );
        memory.bytes(out).to_vec()
    });
    for (result, schedule) in results.iter().zip(SCHEDULES) {
        assert!(*result == results[0], "{kernel} {schedule:?}");
    }
    results[0].clone()
}

/// Numbers of all sizes, with those at the edges among them.
fn mixed(count: usize, seed: u64) -> Vec<u32> {
    let mut numbers = Numbers(seed);
    let edges = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xff, 0x8000];
    (0..count)
        .map(|index| {
            let number = numbers.next_u32();
            edges
                .get(index % 11)
                .copied()
                .unwrap_or(number >> (number & 31))
        })
        .collect()
}

#[test]
fn bits() {
    let input = mixed(2 * 192, 1);
    let out = as_longs(&run(
        "bits",
        Grid::line(3, 64),
        &words(&input),
        &[0; 192 * 128],
        None,
    ));
    for t in 0..192usize {
        let (a, b) = (input[2 * t], input[2 * t + 1]);
        let w = u64::from(a) << 32 | u64::from(b);
        let o = &out[16 * t..16 * t + 16];
        let shift = t as u32 & 31;
        let bytes = [b, a]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<_>>();
        // The selectors of __byte_perm count from the bytes of its first operand.
        let byte = |index: usize| bytes[index ^ 4];
        let ffs = if a == 0 { 0 } else { a.trailing_zeros() + 1 };
        let wanted = [
            (a.count_ones() + 100 * b.leading_zeros() + 10_000 * ffs).into(),
            a.reverse_bits().into(),
            ((u64::from(b) << 32 | u64::from(a)) << shift) >> 32,
            u64::from(((u64::from(b) << 32 | u64::from(a)) >> shift) as u32),
            u32::from_le_bytes([byte(5), byte(0), byte(6), byte(3)]).into(),
            (u64::from(a) * u64::from(b)) >> 32,
            ((u128::from(w) * u128::from(!w)) >> 64) as u64,
            w / u64::from(b | 1),
            (w as i64 % i64::from(a | 1)) as u64,
            u64::from(a) * u64::from(b) + 7,
            ((a & b) ^ (a | !b) ^ (a >> (b & 31))).into(),
            (w as i64 >> (t & 63)) as u64,
            u64::from(w.count_ones()) + u64::from((w >> 9).leading_zeros()) * 256,
            (i64::from(a as i8) as u64).wrapping_add(i64::from(b as i16) as u64),
            ((u128::from(w) * u128::from(a) + u128::from(w)) >> 64) as u64,
            TABLE[a as usize & 7]
                .wrapping_add((a as i32).min(b as i32) as u32)
                .wrapping_add(a.max(b))
                .into(),
        ];
        for (index, (have, want)) in o.iter().zip(wanted).enumerate() {
            assert_eq!(
                *have, want,
                "thread {t}, number {index}, of {a:#x} and {b:#x}"
            );
        }
    }
}

#[test]
fn floats() {
    let mut numbers = Numbers(5);
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MIN_POSITIVE / 4.0,
        f32::MAX,
        3e9,
        -3e9,
        254.5,
        65504.0,
        0.1,
        2.5,
    ];
    let input: Vec<f32> = (0..2 * 320)
        .map(|index| {
            let number = numbers.next_u32();
            if index % 3 == 0 {
                edges[number as usize % edges.len()]
            } else {
                (number as i32 as f32) / (1u32 << (number % 31)) as f32
            }
        })
        .collect();
    let bytes: Vec<u8> = input
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect();
    let out = as_words(&run(
        "floats",
        Grid::line(5, 64),
        &bytes,
        &[0; 320 * 64],
        None,
    ));
    // Results of arithmetic that are no number have one form.
    let canonical = |number: f32| {
        if number.is_nan() {
            0x7fff_ffff
        } else {
            number.to_bits()
        }
    };
    for t in 0..320usize {
        let (a, b) = (input[2 * t], input[2 * t + 1]);
        let o = &out[16 * t..16 * t + 16];
        let to_u32 = |number: f32| if number.is_nan() { 0 } else { number as u32 };
        let to_i32 = |number: f32| if number.is_nan() { 0 } else { number as i32 };
        let compared = u32::from(a < b)
            + 2 * u32::from(a <= b)
            + 4 * u32::from(a == b)
            + 8 * u32::from(a != b)
            + 16 * u32::from(a.partial_cmp(&b) != Some(std::cmp::Ordering::Greater));
        let checks = [
            (0, canonical(a + b)),
            (1, canonical(a * b + 1.0)),
            (2, canonical(a / b)),
            (3, canonical(a.mul_add(b, -1.5))),
            (4, to_i32(a) as u32),
            (5, to_u32(a)),
            (6, to_u32(b.round_ties_even())),
            (7, compared),
            (8, canonical((f64::from(a) * 3.0 / 7.0) as f32)),
            (9, (a.to_bits() as i32 as f32).to_bits()),
            (11, canonical(a.abs().sqrt())),
            (14, to_i32(b).clamp(0, 255) as u32),
            (15, canonical(a / 255.0 - 0.5)),
        ];
        for (index, want) in checks {
            assert_eq!(
                o[index], want,
                "thread {t}, number {index}, of {a:e} and {b:e}"
            );
        }
        if !a.is_nan() && !b.is_nan() && a != b {
            assert_eq!(o[10], a.to_bits() ^ b.to_bits());
        }
        // The half is the nearest one, and comes back exactly.
        let half = f32::from_bits(o[13]);
        if a.is_nan() {
            assert_eq!(o[12], 0x7fff);
        } else if a.abs() >= 65520.0 {
            assert!(half.is_infinite(), "{a}");
        } else {
            assert!(
                (half - a).abs() <= (a.abs() / 2048.0).max(2f32.powi(-25)),
                "{a} {half}"
            );
        }
    }
}

#[test]
fn calls() {
    let input = mixed(64, 7);
    let out = as_longs(&run(
        "calls",
        Grid::line(2, 32),
        &words(&input),
        &[0; 64 * 16],
        None,
    ));
    for t in 0..64usize {
        let (mut a, mut b) = (input[t], 5u64);
        for k in 0..input[t] & 3 {
            a = a.wrapping_mul(3).wrapping_add(k);
            b += u64::from(a);
        }
        let n = t as u64 & 15;
        assert_eq!(
            out[2 * t..2 * t + 2],
            [b, if t & 1 == 1 { n * (n + 1) / 2 } else { 0 }],
            "{t}"
        );
    }
}

#[test]
fn choices() {
    let input = mixed(256, 9);
    let out = as_words(&run(
        "choices",
        Grid::line(4, 64),
        &words(&input),
        &[0; 1024],
        None,
    ));
    for t in 0..256usize {
        let (x, mut y) = (input[t], 0u32);
        for i in 0..8 {
            match x >> (3 * i) & 7 {
                0 => y = y.wrapping_add(x ^ 77),
                1 => y = y.wrapping_mul(3),
                2 => y ^= (t as u32) << 2,
                3 => y = y.wrapping_sub(9),
                4 => y = y.rotate_left(5),
                5 => y = y.wrapping_add(TABLE[y as usize & 7]),
                6 => continue,
                _ => y = !y,
            }
            if y == 0x12345 {
                break;
            }
            y = y.wrapping_add(1);
        }
        assert_eq!(out[t], y, "{t}");
    }
}

#[test]
fn local_memory() {
    let input = mixed(64, 11);
    let out = as_words(&run(
        "local_table",
        Grid::line(1, 64),
        &words(&input),
        &[0; 256],
        None,
    ));
    for t in 0..64usize {
        let mut order: Vec<u32> = (0..16).collect();
        for i in (1..16).rev() {
            order.swap(i, (input[t] >> i) as usize % (i + 1));
        }
        assert_eq!(
            out[t],
            order
                .iter()
                .fold(0u32, |y, item| y.wrapping_mul(17).wrapping_add(*item)),
            "{t}"
        );
    }
}

#[test]
fn votes_and_shuffles() {
    let input: Vec<u32> = mixed(64, 13);
    let module = Module::parse(LANGUAGE).unwrap();
    for schedule in SCHEDULES {
        let mut memory = HostMemory::new();
        let (from, out) = (memory.allocate(&words(&input)), memory.allocate(&[0; 2048]));
        let addresses = globals(&module, &mut memory);
        let parameters = Parameters::default().u64(from).u64(out);
        let options = Options {
            schedule,
            checks: Checks::ALL,
            ..Options::default()
        };
        let report = launch(
            &module,
            "warp_votes",
            Grid::line(1, 64),
            &parameters.bytes,
            &addresses,
            &mut memory,
            &options,
        )
        .unwrap();
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        let out = as_words(memory.bytes(out));
        let which = |warp: usize, holds: &dyn Fn(u32) -> bool| {
            (0..32).fold(0u32, |mask, lane| {
                mask | u32::from(holds(input[warp * 32 + lane])) << lane
            })
        };
        for t in 0..64usize {
            let (warp, lane) = (t / 32, t % 32);
            let v = input[t];
            let o = &out[8 * t..8 * t + 8];
            let zeros = which(warp, &|v| v == 0);
            let down = if lane % 8 + 3 < 8 { input[t + 3] } else { v };
            let count = input.iter().filter(|v| *v & 4 != 0).count() as u32;
            let all =
                u32::from(input.contains(&3)) + 2 * u32::from(input.iter().all(|v| *v < 1000));
            let wanted = [
                which(warp, &|v| v & 1 == 1),
                u32::from(zeros != 0) + 2 * u32::from(zeros == 0),
                which(warp, &|other| other & 3 == v & 3),
                input[t ^ 5],
                down,
            ];
            assert_eq!(o[..5], wanted, "{t} {schedule:?}");
            // Which lanes are active together is not said; that the lane itself is, is.
            assert!(v & 1 == 1 || o[5] == 0);
            assert!(v & 3 != 3 || o[5] == 1);
            assert_eq!(o[6..], [count, all], "{t} {schedule:?}");
        }
    }
}

#[test]
fn sums_by_atomics() {
    let input = mixed(4 * 3000, 17);
    let mut start = [0u8; 24];
    start[8..12].fill(0xff);
    // Only the order of the atomics differs, and no result depends on it.
    let module = Module::parse(LANGUAGE).unwrap();
    for schedule in SCHEDULES {
        let mut memory = HostMemory::new();
        let (from, out) = (memory.allocate(&words(&input)), memory.allocate(&start));
        let addresses = globals(&module, &mut memory);
        let parameters = Parameters::default().u64(from).u64(out).u32(3000);
        let options = Options {
            schedule,
            checks: Checks::ALL,
            ..Options::default()
        };
        let report = launch(
            &module,
            "block_sum",
            Grid::line(5, 128),
            &parameters.bytes,
            &addresses,
            &mut memory,
            &options,
        )
        .unwrap();
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        let counter = module
            .globals
            .iter()
            .position(|variable| variable.name == "counter")
            .unwrap();
        assert_eq!(as_words(memory.bytes(addresses[counter])), [5]);
        let result = as_longs(memory.bytes(out));
        assert_eq!(
            result[0],
            input.iter().map(|value| u64::from(*value)).sum::<u64>()
        );
        assert_eq!(result[2], 1 + 2 + 3 + 4 + 5);
        let sums = (0..5u32).map(|block| {
            let mine = (0..3000u32).filter(|index| index / 128 % 5 == block);
            mine.flat_map(|index| &input[4 * index as usize..4 * index as usize + 4])
                .map(|value| u64::from(*value))
                .sum::<u64>() as u32
                & 0xffff
        });
        assert_eq!(
            result[1],
            u64::from(sums.clone().max().unwrap()) << 32 | u64::from(sums.min().unwrap())
        );
    }
}

#[test]
fn a_matrix_product() {
    let module = Module::parse(LANGUAGE).unwrap();
    let mut numbers = Numbers(19);
    // A by rows, B by columns: what the lanes hold is then four bytes in a row.
    let a: Vec<u8> = (0..128).map(|_| numbers.next_u32() as u8).collect();
    let b: Vec<u8> = (0..128).map(|_| numbers.next_u32() as u8).collect();
    for schedule in SCHEDULES {
        let mut memory = HostMemory::new();
        let (left, right, out) = (
            memory.allocate(&a),
            memory.allocate(&b),
            memory.allocate(&[0; 256]),
        );
        let addresses = globals(&module, &mut memory);
        let parameters = Parameters::default().u64(left).u64(right).u64(out);
        let options = Options {
            schedule,
            checks: Checks::ALL,
            ..Options::default()
        };
        let report = launch(
            &module,
            "matrix",
            Grid::line(1, 32),
            &parameters.bytes,
            &addresses,
            &mut memory,
            &options,
        )
        .unwrap();
        assert!(report.findings.is_empty(), "{}", report.findings[0]);
        let product = as_words(memory.bytes(out));
        for row in 0..8 {
            for column in 0..8 {
                let wanted: u32 = (0..16)
                    .map(|k| u32::from(a[row * 16 + k]) * u32::from(b[column * 16 + k]))
                    .sum();
                assert_eq!(product[row * 8 + column], wanted, "{row} {column}");
            }
        }
    }
}

#[test]
fn bytes_through_shared_memory() {
    let input: Vec<u8> = (0..1000u32).map(|index| (index * 7) as u8).collect();
    let grid = Grid {
        dynamic_shared: 1000,
        ..Grid::line(1, 96)
    };
    let out = run("bytes", grid, &input, &[0; 1000], Some(1000));
    assert!(out.iter().eq(input.iter().rev()));
}

/// Text that is damaged gives an error or another module, and never a panic or much memory.
#[test]
fn damaged_text() {
    let mut numbers = Numbers(23);
    let texts = [LANGUAGE, software_cuda_bugs::BUGS];
    let words: Vec<&str> = LANGUAGE.split_whitespace().collect();
    let mut refused = 0;
    for round in 0..3000 {
        let text = texts[round % 2];
        // A piece of the text keeps it quick; what stands before is needed by all.
        let start = text.find(".visible").unwrap();
        let kernels: Vec<usize> = text.match_indices(".visible").map(|(at, _)| at).collect();
        let from = kernels[numbers.next_u32() as usize % kernels.len()];
        let to = kernels
            .iter()
            .copied()
            .find(|at| *at > from)
            .unwrap_or(text.len());
        let mut damaged = format!("{}{}", &text[..start], &text[from..to]).into_bytes();
        for _ in 0..1 + numbers.next_u32() % 3 {
            let at = numbers.next_u32() as usize % damaged.len();
            match numbers.next_u32() % 4 {
                0 => damaged[at] = numbers.next_u32() as u8,
                1 => damaged.truncate(at.max(200)),
                2 => {
                    let end = (at + 1 + numbers.next_u32() as usize % 40).min(damaged.len());
                    damaged.drain(at..end);
                }
                _ => {
                    let word = words[numbers.next_u32() as usize % words.len()];
                    damaged.splice(at..at, word.bytes());
                }
            }
        }
        if let Err(error) = Module::parse(&String::from_utf8_lossy(&damaged)) {
            assert!(error.line >= 1 && !error.to_string().is_empty());
            refused += 1;
        }
    }
    assert!(refused > 1000, "{refused}");
}
