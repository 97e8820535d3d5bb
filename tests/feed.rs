//! The example `feed`, run as a user runs it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use tempfile::TempDir;

const KEYS: [&str; 16] = [
    "path",
    "bytes",
    "seconds",
    "cpu_seconds",
    "engine",
    "cache",
    "requests",
    "refused",
    "device",
    "device_refused",
    "format",
    "rows",
    "columns",
    "decode_seconds",
    "decoded_bytes",
    "explain",
];

fn program() -> PathBuf {
    common::example::example("feed")
}

fn feed<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(program())
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Exit status, stdout, stderr.
fn outcome(output: &Output) -> (i32, String, String) {
    let code = output.status.code();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!err.contains("panicked"), "{err}");
    (
        code.unwrap_or_else(|| panic!("{}: {err}", output.status)),
        out,
        err,
    )
}

fn objects(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// The keys as they are printed, in order.
fn keys(line: &str) -> Vec<String> {
    let object: Value = serde_json::from_str(line).unwrap();
    let mut keys: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
    keys.sort_by_key(|key| line.find(&format!("\"{key}\":")));
    keys
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn file(dir: &TempDir, name: impl AsRef<Path>, content: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

fn table(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("table.parquet");
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4321));
    let batch = RecordBatch::try_from_iter([("number", column)]).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

#[test]
fn without_paths_it_makes_a_data_set_and_removes_it() {
    let temp = dir();
    let output = Command::new(program())
        .env("TMPDIR", temp.path())
        .output()
        .unwrap();
    let (code, out, err) = outcome(&output);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.contains("raw.bin: 64.0 MiB in "), "{out}");
    assert!(
        out.contains("  parquet: 600000 rows of 3 columns, "),
        "{out}"
    );
    assert!(out.contains("    score: Float64\n"), "{out}");
    assert!(
        out.contains("  tfrecord: 20000 rows of 3 columns, "),
        "{out}"
    );
    assert!(
        out.contains("  safetensors: 4 rows of 4 columns, "),
        "{out}"
    );
    assert!(out.contains("  npy: 1000 rows of 1 column, "), "{out}");
    assert!(out.contains("empty: 0 bytes\n"), "{out}");
    assert!(out.contains("  not mmap: needs the promise"), "{out}");
    assert!(!out.contains('\x1b'), "no terminal, no escapes: {out:?}");
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
}

#[test]
fn bad_paths_are_one_line_each_and_the_others_are_read() {
    let dir = dir();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let good = file(&dir, "good", &[7; 5000]);
    let empty = file(&dir, "empty", b"");
    let secret = file(&dir, "secret", b"secret");
    fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    let missing = dir.path().join("missing\nhere");
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let last = file(&dir, "last", b"12345");
    let paths = [
        missing.as_path(),
        &good,
        dir.path(),
        &secret,
        &fifo,
        &empty,
        &last,
    ];
    for arguments in [&[][..], &["--json"], &["--compare", "--turns", "1"]] {
        let Some(output) = unprivileged(&dir, &secret, arguments, &paths) else {
            return println!("skipped: may neither be refused a file nor become another user");
        };
        let (code, out, err) = outcome(&output);
        assert_eq!(code, 1, "{out}{err}");
        let prefix = dir.path().to_str().unwrap();
        let expect = [
            format!("{prefix}/missing\\nhere: open failed: No such file or directory (os error 2)"),
            format!(
                "{prefix}: not a regular file but a directory, which can be neither read nor replaced"
            ),
            format!("{prefix}/secret: open failed: Permission denied (os error 13)"),
            format!(
                "{prefix}/fifo: not a regular file but a FIFO, which can be neither read nor replaced"
            ),
        ];
        if arguments == ["--json"] {
            let objects = objects(&out);
            let errors: Vec<_> = objects
                .iter()
                .filter_map(|o| o["error"].as_str())
                .map(|error| error.replace('\n', "\\n"))
                .collect();
            assert_eq!(errors, expect);
            assert_eq!(err, "");
            let done: Vec<_> = objects
                .iter()
                .filter(|o| o["error"].is_null())
                .map(|o| o["bytes"].as_u64().unwrap())
                .collect();
            assert_eq!(done, [5000, 0, 5]);
            assert_eq!(keys(out.lines().next().unwrap()), ["path", "error"]);
        } else {
            let lines: Vec<_> = err
                .lines()
                .filter(|line| !line.contains("not compared cold"))
                .map(|line| line.strip_prefix("feed: ").unwrap())
                .collect();
            assert_eq!(lines, expect);
            for read in ["good: 4.9 KiB", "empty: 0 bytes", "last: 5 bytes"] {
                assert!(out.contains(read), "{out}");
            }
        }
    }
}

/// Runs it as somebody who may not read `secret`: us, or nobody if we may read everything.
fn unprivileged(
    dir: &TempDir,
    secret: &Path,
    arguments: &[&str],
    paths: &[&Path],
) -> Option<Output> {
    const NOBODY: u32 = 65534;
    let mut command;
    if File::open(secret).is_ok() {
        // Nobody may not be able to reach the folder that we were built in.
        let program_here = dir.path().join("feed");
        if !program_here.exists() {
            fs::copy(program(), &program_here).unwrap();
        }
        command = Command::new(program_here);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    } else {
        command = Command::new(program());
    }
    command
        .args(arguments)
        .args(paths)
        .stdin(Stdio::null())
        .output()
        .ok()
}

#[test]
fn json_has_its_keys_and_nothing_else() {
    let dir = dir();
    let (some, none) = (file(&dir, "some", &[1; 70_000]), file(&dir, "none", b""));
    let table = table(&dir);
    let (code, out, err) = outcome(&feed([
        OsStr::new("--json"),
        some.as_os_str(),
        none.as_os_str(),
        table.as_os_str(),
    ]));
    assert_eq!((code, &*err), (0, ""));
    for line in out.lines() {
        assert_eq!(keys(line), KEYS, "{line}");
    }
    let objects = objects(&out);
    assert_eq!(objects.len(), 3);
    let some_object = &objects[0];
    assert_eq!(some_object["path"], some.to_str().unwrap());
    assert_eq!(some_object["bytes"], 70_000);
    assert_eq!(some_object["engine"], "pread");
    assert_eq!(some_object["requests"], 1);
    assert!(some_object["seconds"].as_f64().unwrap() > 0.0);
    assert!(some_object["cpu_seconds"].as_f64().unwrap() >= 0.0);
    // Just written; unless the system does not tell.
    let cache = &some_object["cache"];
    assert!(cache.is_null() || cache == "warm", "{cache}");
    let refused = some_object["refused"].as_array().unwrap();
    let engines: BTreeSet<_> = refused
        .iter()
        .map(|r| r["engine"].as_str().unwrap())
        .collect();
    let others = ["memory", "mmap", "pread-direct", "uring", "uring-direct"];
    assert_eq!(engines, BTreeSet::from(others));
    assert!(
        refused
            .iter()
            .all(|r| !r["why"].as_str().unwrap().is_empty())
    );
    assert_eq!(
        (&objects[1]["bytes"], &objects[1]["engine"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(objects[1]["cache"], Value::Null);
    assert_eq!(some_object["format"], Value::Null);
    let decoded = &objects[2];
    assert_eq!(decoded["format"], "parquet");
    assert_eq!(
        (&decoded["rows"], &decoded["columns"]),
        (&4321.into(), &1.into())
    );
    assert!(decoded["decode_seconds"].as_f64().unwrap() > 0.0);
    assert!(decoded["decoded_bytes"].as_u64().unwrap() >= 8 * 4321);
}

#[test]
fn json_comparison_has_each_way_in_each_state() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 300_000]);
    let mut expect = BTreeSet::from(["auto", "pread", "mmap", "std::fs::read", "tokio::fs"]);
    for engine in ["pread-direct", "uring", "uring-direct"] {
        let output = feed(["--engine", engine, path.to_str().unwrap()]);
        if output.status.success() {
            expect.insert(engine);
        }
    }
    let output = feed([
        "--json",
        "--compare",
        "--turns=2",
        "--assume-immutable",
        path.to_str().unwrap(),
    ]);
    let (code, out, err) = outcome(&output);
    assert_eq!(code, 0, "{err}");
    let objects = objects(&out);
    let ways = |cache: &str| -> Vec<_> {
        objects
            .iter()
            .filter(|o| o["cache"] == cache)
            .map(|o| o["engine"].as_str().unwrap())
            .collect()
    };
    let (warm, cold) = (ways("warm"), ways("cold"));
    assert_eq!(objects.len(), warm.len() + cold.len());
    assert_eq!(
        (warm.len(), BTreeSet::from_iter(warm)),
        (expect.len(), expect.clone())
    );
    if cold.is_empty() {
        assert!(err.contains("not compared cold: "), "{err}");
    } else {
        assert_eq!(
            (cold.len(), BTreeSet::from_iter(cold)),
            (expect.len(), expect)
        );
        assert_eq!(err, "");
    }
    for (line, object) in out.lines().zip(&objects) {
        assert_eq!(keys(line), KEYS[..8]);
        assert_eq!(object["bytes"], 300_000);
        let plain = object["engine"].as_str().unwrap().contains("::");
        assert_eq!(object["requests"].is_null(), plain, "{line}");
    }
}

#[test]
fn the_table_has_a_control_row_and_the_engines_left_out() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 300_000]);
    let (code, out, _) = outcome(&feed(["--compare", "--turns", "1", path.to_str().unwrap()]));
    assert_eq!(code, 0);
    assert!(out.contains("293.0 KiB, medians of 1 turn\n"), "{out}");
    let rows: Vec<_> = out.lines().filter(|l| l.contains(" warm ")).collect();
    assert!(
        rows.iter().any(|r| r.contains("std::fs::read again")),
        "{out}"
    );
    let base = rows.iter().find(|r| r.contains("std::fs::read  ")).unwrap();
    assert!(base.ends_with(" 1.00x"), "{base}");
    assert!(out.contains("  not mmap: needs the promise"), "{out}");
    assert!(!out.contains("\n  mmap"), "{out}");
    // One engine alone beside the plain ways.
    let only = [
        "--compare",
        "--turns=1",
        "--engine=pread",
        path.to_str().unwrap(),
    ];
    let (code, out, _) = outcome(&feed(only));
    assert_eq!(code, 0);
    assert!(out.contains("\n  pread ") && !out.contains("auto"), "{out}");
}

#[test]
fn a_named_engine_is_used_or_fails() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 10_000]);
    let path = path.to_str().unwrap();
    for compare in [false, true] {
        let compare = compare.then_some("--compare");
        let (code, out, err) =
            outcome(&feed(["--engine", "mmap", path].into_iter().chain(compare)));
        assert_eq!((code, &*out), (1, ""));
        let expect = format!("feed: {path}: engine mmap cannot be used: needs the promise ");
        assert!(
            err.starts_with(&expect) && err.lines().count() == 1,
            "{err}"
        );
    }
    let (code, _, err) = outcome(&feed(["--engine=memory", path]));
    assert_eq!(code, 1);
    assert!(err.contains("engine memory cannot be used: "), "{err}");
    for (engine, promise) in [("auto", "pread"), ("pread", "pread"), ("mmap", "mmap")] {
        let mut args = vec!["--json", "--engine", engine, path];
        args.extend((engine == "mmap").then_some("--assume-immutable"));
        let (code, out, err) = outcome(&feed(args));
        assert_eq!(code, 0, "{err}");
        assert_eq!(objects(&out)[0]["engine"], promise);
    }
}

/// Drops the file's pages; false if that cannot be done or seen here.
#[cfg(target_os = "linux")]
fn make_cold(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    // Pages that another processor is just putting on its lists stay the first time.
    (0..4).any(|_| {
        file.sync_data().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        feedwater::open(path).unwrap().report().resident == Some(0)
    })
}

#[test]
#[cfg(target_os = "linux")]
fn the_cache_state_is_that_before_the_read() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 1_000_000]);
    let args = ["--json", "--engine", "pread", path.to_str().unwrap()];
    if !make_cold(&path) {
        return println!("skipped: the file cannot be made cold here");
    }
    for state in ["cold", "warm"] {
        let (_, out, _) = outcome(&feed(args));
        assert_eq!(objects(&out)[0]["cache"], state);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn reading_by_mmap_brings_every_page() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 20_000_000]);
    if !make_cold(&path) {
        return println!("skipped: the file cannot be made cold here");
    }
    let args = [
        "--engine=mmap",
        "--assume-immutable",
        path.to_str().unwrap(),
    ];
    let (code, _, err) = outcome(&feed(args));
    assert_eq!(code, 0, "{err}");
    // A mapping that nobody looked at would have brought nothing.
    let report = feedwater::open(&path).unwrap().report();
    assert_eq!(report.resident, Some(20_000_000));
}

#[test]
fn what_is_damaged_is_read_and_fails_to_decode() {
    let dir = dir();
    let whole = table(&dir);
    let (code, out, _) = outcome(&feed([&whole]));
    assert_eq!(code, 0);
    assert!(out.contains("  parquet: 4321 rows of 1 column, "), "{out}");
    assert!(out.contains("    number: Int64\n"), "{out}");
    let content = fs::read(&whole).unwrap();
    let footer_len = content.len() - 8;
    let mut huge_footer = content.clone();
    huge_footer[footer_len..footer_len + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut zeroed_footer = content.clone();
    zeroed_footer[footer_len - 100..footer_len].fill(0xff);
    for (name, damaged) in [
        ("magic alone", b"PAR1".to_vec()),
        ("half", content[..content.len() / 2].to_vec()),
        ("without the end", content[..content.len() - 1].to_vec()),
        ("huge footer", huge_footer),
        ("damaged footer", zeroed_footer),
    ] {
        let path = file(&dir, name, &damaged);
        let (code, out, err) = outcome(&feed([&path]));
        assert_eq!(code, 1, "{name}: {out}");
        let path = path.to_str().unwrap();
        assert!(out.starts_with(path), "{name}: {out}");
        assert!(err.starts_with(&format!("feed: {path}")), "{name}: {err}");
        assert_eq!(err.matches('\n').count(), 1, "{name}: {err}");
    }
}

#[test]
fn only_what_is_asked_for_is_decoded_and_explained() {
    let dir = dir();
    let path = dir.path().join("wide.parquet");
    let column = |seed: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(
            (0..200_000).map(|i| (i * i) ^ seed),
        ))
    };
    let batch = RecordBatch::try_from_iter([("a", column(1)), ("b", column(2)), ("c", column(3))]);
    let batch = batch.unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let name = path.to_str().unwrap();
    let args = [
        "--columns=c,a",
        "--rows=100..200",
        "--threads=1",
        "--explain",
        name,
    ];
    let (code, out, err) = outcome(&feed(args));
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(
        out.starts_with(&format!("{name}:\n  parquet: 100 rows of 2 columns, ")),
        "{out}"
    );
    assert!(out.contains("  read for it: "), "{out}");
    let indexes = out
        .split_once("metadata in 1 request, with ")
        .expect(&out)
        .1;
    let (_, after) = indexes.split_once(" bytes of indexes").expect(&out);
    assert!(after.starts_with('\n'), "{out}");
    let (code, json, err) = outcome(&feed(["--json"].into_iter().chain(args)));
    assert_eq!((code, &*err), (0, ""), "{json}");
    let lines = objects(&json)[0]["explain"].as_array().unwrap().clone();
    assert!(lines.len() > 3, "{json}");
    for line in lines {
        assert!(out.contains(line.as_str().unwrap()), "{line} {out}");
    }
    let (code, out, err) = outcome(&feed(["--json", "--rows=100..200", name]));
    assert_eq!((code, &*err), (0, ""), "{out}");
    let object = &objects(&out)[0];
    assert_eq!(
        (&object["rows"], &object["columns"]),
        (&100.into(), &3.into())
    );
    assert_eq!(object["explain"], Value::Null);
    for (args, says) in [
        (
            ["--columns=a, b", name],
            r#"no column " b"; the columns of the file: "a", "b", "c""#,
        ),
        (["--columns=a,z", name], r#"no column "z""#),
        (
            ["--rows=5..200001", name],
            "no row 200000 of rows 5..200001",
        ),
        (
            ["--rows=300000..300001", name],
            "no row 300000; the file has 200000",
        ),
        (["--format=npy", name], "npy"),
    ] {
        let (code, out, err) = outcome(&feed(args));
        assert_eq!((code, &*out), (1, ""), "{args:?}");
        assert!(err.contains(says), "{err}");
        assert!(
            err.starts_with("feed: ") && err.matches('\n').count() == 1,
            "{err}"
        );
    }
    // Neither is anything that can be decoded.
    let (text, empty) = (file(&dir, "text", b"words"), file(&dir, "empty", b""));
    for path in [text, empty] {
        let (code, _, err) = outcome(&feed([OsStr::new("--explain"), path.as_os_str()]));
        assert_eq!(code, 1, "{err}");
    }
}

#[test]
fn any_name_is_a_path() {
    let dir = dir();
    let odd = OsStr::from_bytes(b"caf\xe9");
    if let Err(error) = File::create(dir.path().join(odd)) {
        return println!("skipped: names that are not UTF-8: {error}");
    }
    file(&dir, odd, b"abc");
    file(&dir, "--json", b"abcd");
    let output = Command::new(program())
        .current_dir(dir.path())
        .args([
            OsStr::new("--json"),
            OsStr::new("--"),
            odd,
            OsStr::new("--json"),
        ])
        .output()
        .unwrap();
    let (code, out, err) = outcome(&output);
    assert_eq!((code, &*err), (0, ""));
    let found: Vec<_> = objects(&out)
        .iter()
        .map(|o| {
            (
                o["path"].as_str().unwrap().to_owned(),
                o["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [("caf\u{fffd}".to_owned(), 3), ("--json".to_owned(), 4)]
    );
}

#[test]
fn wrong_options_show_the_usage() {
    for args in [
        &["--frobnicate"][..],
        &["-x"],
        &["--engine"],
        &["--engine", "warp"],
        &["--engine", "other"],
        &["--turns", "0", "--compare"],
        &["--turns", "3"],
        &["--json=yes"],
        &["--format", "csv"],
        &["--rows", "5"],
        &["--rows", "5..4"],
        &["--threads", "0"],
        &["--compare", "--explain"],
    ] {
        let (code, out, err) = outcome(&feed(args));
        assert_eq!((code, &*out), (2, ""), "{args:?}");
        assert!(
            err.starts_with("feed: ") && err.contains("\nUsage: feed "),
            "{args:?}: {err}"
        );
    }
    let (code, help, err) = outcome(&feed(["--help"]));
    assert_eq!((code, &*err), (0, ""));
    for word in [
        "auto, memory, pread, pread-direct,",
        "mmap, uring, uring-direct.",
        "--assume-immutable",
        "Exit status",
    ] {
        assert!(help.contains(word), "{word}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80));
    // Every key is explained.
    for key in KEYS {
        assert!(help.contains(&format!("\n  {key} ")), "{key}");
    }
}

#[test]
fn profiles_are_taken_and_kept() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 300_000]);
    let kept = dir.path().join("profiles");
    let run = || {
        let arguments = [OsStr::new("--profiles"), kept.as_os_str(), path.as_os_str()];
        outcome(&feed(arguments))
    };
    // A file of this size is no long stream, so nothing is found out.
    let (code, out, err) = run();
    assert_eq!((code, &*err), (0, ""));
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "");
    let device = out
        .split("device ")
        .nth(1)
        .and_then(|rest| rest.split(';').next());
    if let Some(device) = device {
        let line = format!("{} buffered=123000000 direct=456000000\n", device.trim());
        std::fs::write(&kept, &line).unwrap();
        let (code, out, err) = run();
        assert_eq!((code, &*err), (0, ""));
        assert!(
            out.contains("streams 123 MB/s through the page cache, 456 MB/s past it"),
            "{out}"
        );
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), line);
    }
    std::fs::write(&kept, "nonsense\n").unwrap();
    let (code, _, err) = run();
    assert_eq!(code, 1);
    assert!(err.contains("nonsense"), "{err}");
}

#[test]
fn a_closed_output_ends_it_quietly() {
    let dir = dir();
    let path = file(&dir, "file", &[3; 10_000]);
    let paths = vec![path.as_os_str(); 50];
    for options in [
        &[][..],
        &["--json"],
        &["--compare", "--turns=1"],
        &["--help"],
    ] {
        // Closed before the first byte: nothing depends on who is faster.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(program())
            .args(options)
            .args(&paths)
            .stdout(writer)
            .output()
            .unwrap();
        let (code, _, err) = outcome(&output);
        assert_eq!(code, 0, "{err}");
        assert!(
            err.lines().all(|line| line.contains("not compared cold")),
            "{err}"
        );
    }
    // Closed after the first line.
    let mut child = Command::new(program())
        .args(&paths)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut first).unwrap();
    assert!(first.contains("9.8 KiB"), "{first}");
    drop(stdout);
    let (code, _, err) = outcome(&child.wait_with_output().unwrap());
    assert_eq!((code, &*err), (0, ""));
    // Errors that nobody can see do not stop it either.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(program())
        .arg(dir.path().join("missing"))
        .arg(&path)
        .stderr(writer)
        .output()
        .unwrap();
    let (code, out, _) = outcome(&output);
    assert_eq!(code, 1);
    assert!(out.contains("9.8 KiB"), "{out}");
}

#[test]
fn a_full_disk_is_an_error() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        return println!("skipped: no /dev/full");
    };
    let output = Command::new(program())
        .arg("--help")
        .stdout(full)
        .output()
        .unwrap();
    let (code, _, err) = outcome(&output);
    assert_eq!(code, 1);
    assert!(err.contains("No space left on device"), "{err}");
}

#[test]
fn a_file_larger_than_the_memory_allowed_is_streamed() {
    let dir = dir();
    let path = dir.path().join("sparse");
    let len = (1u64 << 30) + 12_345;
    File::create(&path).unwrap().set_len(len).unwrap();
    // Less address space than the file has bytes. The allocator reserves some for every thread, unless told.
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 900000 && exec \"$0\" --json \"$1\""])
        .arg(program())
        .arg(&path)
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let (code, out, err) = outcome(&output);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(objects(&out)[0]["bytes"], len);
}
