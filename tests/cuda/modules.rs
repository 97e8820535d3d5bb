//! Every family of kernels that ships is taken by the driver.

use feedwater::ErrorKind;
use feedwater::cuda::{Checksum, Dense, Device, FAMILIES};

use crate::support::*;

/// All kernels of all families.
const KERNELS: &[(&str, &[&str])] = &[
    ("crc", &["crc"]),
    ("decompress", &["decompress"]),
    (
        "delta",
        &[
            "delta_walk",
            "delta_sums",
            "delta_scan",
            "delta_emit",
            "delta_emit_tensor",
            "delta_rows",
            "delta_rows_tensor",
        ],
    ),
    (
        "delta_strings",
        &["delta_text_scan", "delta_text_ends", "delta_text_bytes"],
    ),
    ("dense", &["dense"]),
    (
        "example",
        &[
            "example_index",
            "example_counts",
            "example_emit",
            "example_copy",
            "example_tensor",
        ],
    ),
    ("fixed", &["fixed", "booleans"]),
    (
        "frames",
        &[
            "frames_count",
            "frames_find",
            "frames_link",
            "frames_jump",
            "frames_pick",
            "frames_piece_counts",
            "frames_pieces",
            "frames_check",
        ],
    ),
    (
        "nesting",
        &[
            "nesting_walk",
            "nesting_levels",
            "nesting_totals",
            "nesting_slots",
            "nesting_even",
        ],
    ),
    ("rle", &["rle", "ranks"]),
    ("scan", &["scan_reduce", "scan_sums", "scan_emit"]),
    ("select", &["select_within", "select_totals", "select"]),
    (
        "strings",
        &[
            "strings_walk",
            "strings_count",
            "strings_place",
            "strings_copy",
            "strings_decimals",
        ],
    ),
    ("walk", &["walk"]),
];

#[test]
fn each_is_loaded_once_and_has_its_kernels() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        assert_eq!(FAMILIES.len(), KERNELS.len());
        for &family in FAMILIES {
            let module = gpu.module(family).unwrap();
            println!(
                "{}: {:?} {}",
                module.name(),
                module.load_time(),
                module.log()
            );
            let named = KERNELS.iter().find(|(name, _)| *name == family.name());
            for kernel in named.unwrap().1 {
                assert!(!module.function(kernel).unwrap().is_null(), "{kernel}");
            }
            let again = gpu.module(family).unwrap();
            assert!(std::sync::Arc::ptr_eq(&module, &again));
            let missing = module.function("no such kernel").unwrap_err();
            assert!(
                matches!(missing.kind(), ErrorKind::NotFound { .. }),
                "{missing}"
            );
        }
    }
    nothing_left(&session);
}

/// What `ptxas` says that each kernel needs on each architecture, as `tests/gpu/kernels.py` wrote it.
const RESOURCES: &str = include_str!("../../src/cuda/kernels/resources.tsv");

/// Blocks of each kernel fit the registers and the shared memory that a multiprocessor of each profile has.
#[test]
fn each_is_launched_within_the_limits_of_each_kind_of_device() {
    if !is_software(&session("eager")) {
        return;
    }
    for profile in ["sm_75", "sm_80", "sm_90"] {
        let mut session = session("eager");
        session.set("PROFILE", profile);
        let mut kernels = 0;
        for line in RESOURCES.lines().skip(1) {
            let fields: Vec<_> = line.split('\t').collect();
            let [kernel, _, architecture, registers, _, _, spills] = fields[..] else {
                panic!("{line}")
            };
            assert_eq!(spills, "0", "{line}");
            if architecture == profile {
                // Of both compilers, the later one: they differ by little, and the newer one is what drivers have.
                session.registers(kernel, registers.parse().unwrap());
                kernels += 1;
            }
        }
        assert!(kernels >= FAMILIES.len());
        {
            let gpu = Device::open(0).unwrap();
            let block = read(&gpu, &reader(&gpu, &data(1000)), 0..1000).unwrap();
            let bytes = block.into_device().unwrap();
            gpu.checksums(Checksum::Crc32, &bytes, &[0..1000]).unwrap();
            gpu.dense(&Dense::copy(&[1000], 1), &bytes).unwrap();
        }
        nothing_left(&session);
    }
}
