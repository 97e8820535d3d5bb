//! Examples, run as a user runs them, on the device that the test is on.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output};

use arrow::ipc::reader::FileReader;
use arrow_array::RecordBatch;
use software_cuda_preload::{Device as On, enable};
use tempfile::TempDir;

use crate::common::example::example;

/// What came of a run of the example `name`.
pub(crate) fn run(name: &str, args: &[&Path]) -> Output {
    let program = example(name);
    let mut command = match enable() {
        On::Real => Command::new(program),
        On::Software => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let mut command = Command::new(root.join("tests/software-cuda/run"));
            command.arg(program);
            command
        }
    };
    command.args(args).output().unwrap()
}

/// What it writes to the standard output and the standard error, if it is content with itself.
pub(crate) fn shown(name: &str, args: &[&Path]) -> (String, String) {
    let output = run(name, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {err}");
    (out, err)
}

/// What `convert --device` makes of a file, and what it says about it.
pub(crate) fn converted(dir: &TempDir, device: &str, input: &Path) -> (RecordBatch, String) {
    let output = dir.path().join(format!("{device}.arrow"));
    let device = Path::new(device);
    let (_, err) = shown("convert", &["--device".as_ref(), device, input, &output]);
    let reader = FileReader::try_new(File::open(&output).unwrap(), None).unwrap();
    let schema = reader.schema();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    let all = arrow::compute::concat_batches(&schema, &batches).unwrap();
    (all, err)
}
