//! The example `convert --device` with files that are not Parquet, run as a user runs it.

use std::path::Path;

use crate::beside::file;
use crate::programs::{converted, run};
use crate::values::records;

#[test]
fn examples_are_converted_to_the_same_by_either() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.tfrecord");
    std::fs::write(&input, file(&records(70))).unwrap();
    let (host, said) = converted(&dir, "cpu", &input);
    assert_eq!(said, "");
    let small = "decoded by the host: 70 rows in 1 batch\n  1 batch: less than 65536 bytes";
    for (device, by) in [("gpu", "decoded by the GPU: 70 rows"), ("auto", small)] {
        let (rows, said) = converted(&dir, device, &input);
        assert_eq!(rows, host, "{device}");
        assert!(said.contains(by), "{said}");
    }
}

#[test]
fn what_has_no_kernels_is_the_hosts_or_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let records = file(&[b"no example, but bytes".to_vec(), b"more of them".to_vec()]);
    let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}\n";
    let length = (header.len() as u16).to_le_bytes();
    let numbers = [
        b"\x93NUMPY\x01\x00",
        &length[..],
        header.as_bytes(),
        &[1; 8],
    ]
    .concat();
    let inputs: [(&str, &[u8], &str, usize); 2] = [
        ("in.tfrecord", &records, "the records are no examples", 2),
        ("in.npy", &numbers, "npy has nothing to decode", 2),
    ];
    for (name, bytes, why, rows) in inputs {
        let input = dir.path().join(name);
        std::fs::write(&input, bytes).unwrap();
        let (host, _) = converted(&dir, "cpu", &input);
        assert_eq!(host.num_rows(), rows);
        let (auto, said) = converted(&dir, "auto", &input);
        assert_eq!(auto, host, "{name}");
        assert_eq!(said, format!("convert: by the host: {why}\n"));
        let output = dir.path().join("not.arrow");
        let args = ["--device".as_ref(), Path::new("gpu"), &input, &output];
        let refused = run("convert", &args);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        let all = format!("convert: not on a GPU: {why}; --device auto takes the host\n");
        assert_eq!(said, all);
        assert!(!output.exists());
    }
}
