//! Every family of kernels that ships is taken by the driver.

use feedwater::ErrorKind;
use feedwater::cuda::{Device, FAMILIES};

use crate::support::*;

/// All kernels of all families.
const KERNELS: [(&str, &[&str]); 8] = [
    ("crc", &["crc"]),
    ("dense", &["dense"]),
    ("example", &["example_copy", "example_tensor"]),
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
    ("rle", &["rle", "ranks"]),
    ("scan", &["scan_reduce", "scan_sums", "scan_emit"]),
    ("walk", &["walk"]),
];

#[test]
fn each_is_loaded_once_and_has_its_kernels() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        assert_eq!(FAMILIES.len(), KERNELS.len());
        for family in FAMILIES {
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
