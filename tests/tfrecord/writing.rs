//! The writer: whole files or none, and what others make of them.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use feedwater::ErrorKind;
use feedwater::SinkOptions;
use feedwater::tfrecord::{Compression, Writer, WriterOptions, records};

use crate::common::skip::require;
use crate::support::{OVERHEAD, file_of, varied, write};

#[test]
fn frames_are_what_the_format_says() {
    // From the documentation of the format; the sums by an implementation of RFC 3720's CRC.
    let bytes = file_of(&["", "123456789"], Compression::None);
    let mut expected = Vec::new();
    for (data, length_sum, data_sum) in [
        (
            &b""[..],
            masked_of_crc(crc(&0_u64.to_le_bytes())),
            0xa282_ead8,
        ),
        (
            b"123456789",
            masked_of_crc(crc(&9_u64.to_le_bytes())),
            masked_of_crc(0xe306_9283),
        ),
    ] {
        expected.extend((data.len() as u64).to_le_bytes());
        expected.extend(u32::to_le_bytes(length_sum));
        expected.extend(data);
        expected.extend(u32::to_le_bytes(data_sum));
    }
    assert_eq!(bytes, expected);
}

#[test]
fn compressed_files_are_those_of_the_plain_bytes() {
    let records = varied(100);
    let plain = file_of(&records, Compression::None);
    let gzip = file_of(&records, Compression::Gzip);
    assert_eq!(gzip[..3], [0x1f, 0x8b, 8]);
    if let Some(inflated) = inflated(&gzip) {
        assert!(inflated == plain);
    }
    let smallest = |level| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let options = WriterOptions::new()
            .compression(Compression::Zlib)
            .level(level);
        let mut writer = options.create(&path).unwrap();
        records
            .iter()
            .for_each(|record| writer.write(record).unwrap());
        writer.commit().unwrap().size
    };
    assert!(smallest(0) > plain.len() as u64);
    assert!(smallest(9) < smallest(1));
    assert_eq!(smallest(9), smallest(u32::MAX));
}

#[test]
fn nothing_appears_without_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
        let mut writer = WriterOptions::new()
            .compression(compression)
            .create(&path)
            .unwrap();
        writer.write(b"lost").unwrap();
        assert_eq!(writer.records(), 1);
        drop(writer);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    write(&path, &["old"], Compression::None);
    let mut writer = Writer::create(&path).unwrap();
    writer.write(b"newer").unwrap();
    let first = |path| {
        records(feedwater::open(path).unwrap())
            .next()
            .unwrap()
            .unwrap()
    };
    assert_eq!(first(&path).data, "old");
    let version = writer.commit().unwrap();
    assert_eq!(version.size, 5 + OVERHEAD as u64);
    assert_eq!(first(&path).data, "newer");
}

#[test]
fn errors_of_the_sink_are_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records");
    write(&path, &["old"], Compression::None);
    let options = WriterOptions::new().sink(SinkOptions::new().overwrite(false));
    let error = options.create(&path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
    let path = dir.path().join("raced");
    for compression in [Compression::None, Compression::Gzip] {
        let mut writer = options
            .clone()
            .compression(compression)
            .create(&path)
            .unwrap();
        writer.write(b"late").unwrap();
        std::fs::write(&path, "somebody else's").unwrap();
        let error = writer.commit().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody else's");
        std::fs::remove_file(&path).unwrap();
    }
}

/// What the system's `gzip` makes of it, which shares no code with the crate.
fn inflated(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut program = Command::new("gzip");
    program
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = require("gzip", program.spawn())?;
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feeder = std::thread::spawn(move || input.write_all(&bytes));
    let mut out = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut out).unwrap();
    feeder.join().unwrap().unwrap();
    assert!(child.wait().unwrap().success());
    Some(out)
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

fn masked_of_crc(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}
