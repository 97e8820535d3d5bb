//! The example `many_files`, run as a user runs it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

const KEYS: [&str; 6] = [
    "files",
    "bytes",
    "seconds",
    "cpu_seconds",
    "errors",
    "engine",
];

/// The example beside this test, built if `cargo test --test many_files` did not.
fn program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--example", "many_files"]);
        build.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().unwrap().success());
        profile.join("examples/many_files")
    });
    program.clone()
}

/// Exit status, stdout, stderr.
fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> (i32, String, String) {
    let output = Command::new(program())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    (output.status.code().unwrap(), out, err)
}

/// The files are 0, 100, 200… bytes long.
fn tree(count: usize) -> (TempDir, u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = 0;
    for i in 0..count {
        let below = dir.path().join(format!("{}/below", i % 5));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(format!("{i}")), vec![7; i * 100]).unwrap();
        bytes += i as u64 * 100;
    }
    (dir, bytes)
}

fn check(line: &str, files: usize, bytes: u64, errors: u64) -> Value {
    let object: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let mut keys: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
    keys.sort_by_key(|key| line.find(&format!("\"{key}\":")));
    assert_eq!(keys, KEYS);
    assert_eq!(object["files"], files, "{line}");
    assert_eq!(object["bytes"], bytes, "{line}");
    assert_eq!(object["errors"], errors, "{line}");
    for time in ["seconds", "cpu_seconds"] {
        assert!(object[time].as_f64().unwrap() >= 0.0, "{line}");
    }
    object["engine"].clone()
}

#[test]
fn every_file_is_read_and_counted() {
    let (dir, bytes) = tree(300);
    let dir = dir.path().as_os_str();
    for args in [&[][..], &["--in-order"], &["--cold"]] {
        let args = args.iter().map(OsStr::new).chain([dir]);
        let (code, out, err) = run(args.clone());
        assert_eq!((code, &*err), (0, ""), "{out}");
        let counts = format!("300 files, {bytes} bytes, 0 errors in ");
        assert!(out.starts_with(&counts), "{out}");
        let (code, out, err) = run(args.chain([OsStr::new("--json")]));
        assert_eq!((code, &*err), (0, ""), "{out}");
        let engine = check(out.trim(), 300, bytes, 0);
        assert!(["spot", "threads", "rings"].contains(&engine.as_str().unwrap()));
    }
    for engine in ["spot", "threads"] {
        let args = ["--json", "--engine", engine].map(OsStr::new);
        let (code, out, _) = run(args.into_iter().chain([dir]));
        assert_eq!(code, 0);
        assert_eq!(check(out.trim(), 300, bytes, 0), engine);
    }
}

#[test]
fn bad_files_are_one_line_each_and_the_others_are_read() {
    let (dir, bytes) = tree(20);
    let no_dir = dir.path().join("nothing");
    let (code, out, err) = run([&no_dir]);
    assert_eq!((code, err.lines().count()), (1, 1), "{out}{err}");
    assert!(err.contains("nothing: open failed"), "{err}");
    assert!(out.starts_with("0 files, 0 bytes, 1 error in "), "{out}");
    // A directory in place of a file is not read; what is larger than the engine takes neither.
    let (code, out, _) = run(["--json".as_ref(), no_dir.as_os_str()]);
    assert_eq!(code, 1);
    assert_eq!(check(out.trim(), 0, 0, 1), Value::Null);
    let (code, out, _) = run(["--json".as_ref(), dir.path().as_os_str()]);
    assert_eq!(code, 0);
    check(out.trim(), 20, bytes, 0);
}

#[test]
fn compared_all_ways_read_the_same() {
    let (dir, bytes) = tree(50);
    let compare = |more: &[&str]| {
        let args = ["--compare", "--turns", "2"].iter().chain(more);
        run(args.map(OsStr::new).chain([dir.path().as_os_str()]))
    };
    let (code, out, err) = compare(&["--json"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    let engines: Vec<_> = out.lines().map(|line| check(line, 50, bytes, 0)).collect();
    assert_eq!(engines[..3], ["plain loop", "32 threads", "tokio::fs"]);
    assert_eq!(engines.len(), 4);
    let (code, out, _) = compare(&[]);
    assert_eq!((code, out.lines().count()), (0, 5), "{out}");
    assert!(out.contains("plain loop again"), "{out}");
}

#[test]
fn wrong_arguments_are_status_2() {
    for args in [
        &[][..],
        &["--engine", "fast", "."],
        &["--turns", "0", "."],
        &["a", "b"],
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, &*out), (2, ""), "{err}");
        assert!(err.contains("Usage: many_files"), "{err}");
    }
    let (code, out, _) = run([Path::new("--help")]);
    assert_eq!(code, 0);
    assert!(KEYS.iter().all(|key| out.contains(key)), "{out}");
}
