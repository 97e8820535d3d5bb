//! The example `feed` with `--device`, run as a user runs it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use software_cuda_preload::{Device as On, enable};

use crate::common::example::example;
use crate::support::data;

/// Exit status, stdout, stderr.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn on_the_device(args: &[&str], file: &Path) -> Command {
    let program = example("feed");
    let mut command = match enable() {
        On::Real => Command::new(program),
        On::Software => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let mut command = Command::new(root.join("tests/software-cuda/run"));
            command.arg(program);
            command
        }
    };
    command.args(args).arg(file);
    command
}

/// With something in the place of the driver that is none.
fn without_a_driver(args: &[&str], file: &Path, dir: &Path) -> Command {
    std::fs::write(dir.join("libcuda.so.1"), "no library").unwrap();
    let mut command = Command::new(example("feed"));
    command.args(args).arg(file).env("LD_LIBRARY_PATH", dir);
    command
}

#[test]
fn files_are_read_to_the_gpu_where_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("some");
    std::fs::write(&file, data(5 << 20)).unwrap();
    for device in ["gpu", "auto"] {
        let (code, out, err) = run(&mut on_the_device(&["--device", device], &file));
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains("\n  into device 0: "), "{out}");
        let (_, out, _) = run(&mut on_the_device(&["--json", "--device", device], &file));
        let object: Value = serde_json::from_str(&out).unwrap();
        assert!(
            object["device"].as_str().unwrap().starts_with("device 0: "),
            "{out}"
        );
        assert!(object["device_refused"].is_null());
        assert_eq!(object["bytes"], 5 << 20);
    }
    let (_, out, _) = run(&mut on_the_device(&["--json", "--device", "cpu"], &file));
    let object: Value = serde_json::from_str(&out).unwrap();
    assert!(object["device"].is_null() && object["device_refused"].is_null());
}

#[test]
fn without_a_gpu_it_is_said_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("some");
    std::fs::write(&file, data(70_000)).unwrap();
    let (code, out, err) = run(&mut without_a_driver(
        &["--device", "auto"],
        &file,
        dir.path(),
    ));
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(
        out.contains("\n  not into a GPU: engine cuda cannot be used: "),
        "{out}"
    );
    assert!(out.contains("there is no CUDA driver: "), "{out}");

    let (code, out, err) = run(&mut without_a_driver(
        &["--device", "gpu"],
        &file,
        dir.path(),
    ));
    assert_eq!((code, &*out), (Some(1), ""));
    assert!(err.contains("there is no CUDA driver: "), "{err}");
    assert!(
        err.contains("`--device auto`") && err.contains("`--device cpu`"),
        "{err}"
    );

    let (code, out, _) = run(&mut without_a_driver(
        &["--json", "--device", "auto"],
        &file,
        dir.path(),
    ));
    assert_eq!(code, Some(0));
    let object: Value = serde_json::from_str(&out).unwrap();
    assert!(object["device"].is_null());
    let why = object["device_refused"].as_str().unwrap();
    assert!(why.contains("there is no CUDA driver: "), "{why}");
    // What makes no sense is said, and nothing is read.
    for (wrong, why) in [
        (&["--device", "tpu"][..], "auto, cpu, gpu"),
        (&["--device", "gpu", "--compare"], "reading alone"),
        (&["--device", "auto", "--explain"], "parquet_to_gpu"),
    ] {
        let (code, out, err) = run(&mut without_a_driver(wrong, &file, dir.path()));
        assert_eq!((code, &*out), (Some(2), ""), "{err}");
        assert!(err.contains(why), "{err}");
    }
}
