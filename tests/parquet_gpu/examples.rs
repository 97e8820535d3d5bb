//! The examples `convert --device` and `parquet_to_gpu`, run as a user runs them.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use arrow::ipc::reader::FileReader;
use arrow_array::RecordBatch;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use software_cuda_preload::{Device as On, enable};
use tempfile::TempDir;

use crate::common::example::example;
use crate::strings::strings;
use crate::tables::{Nulls, flat, other, written};

/// What it writes to the standard output and the standard error, if it is content with itself.
fn run(name: &str, args: &[&Path]) -> (String, String) {
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
    let output = command.args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{name}: {err}");
    (out, err)
}

fn converted(dir: &TempDir, device: &str, input: &Path) -> (RecordBatch, String) {
    let output = dir.path().join(format!("{device}.arrow"));
    let device = Path::new(device);
    let (_, err) = run("convert", &["--device".as_ref(), device, input, &output]);
    let reader = FileReader::try_new(File::open(&output).unwrap(), None).unwrap();
    let schema = reader.schema();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    (
        arrow::compute::concat_batches(&schema, &batches).unwrap(),
        err,
    )
}

#[test]
fn a_file_is_converted_to_the_same_by_either() {
    let dir = tempfile::tempdir().unwrap();
    for (name, batch) in [
        ("flat", flat(300, &[Nulls::Required, Nulls::Some])),
        ("other", other(500)),
        ("strings", strings(300, &[Nulls::Required, Nulls::Some])),
    ] {
        let set = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(200));
        let input = dir.path().join(name);
        std::fs::write(&input, written(&batch, set.build())).unwrap();
        let (host, said) = converted(&dir, "cpu", &input);
        assert_eq!(said, "");
        let (gpu, said) = converted(&dir, "gpu", &input);
        assert!(host == gpu, "{name}");
        assert_eq!(host.num_rows(), batch.num_rows());
        let columns = match name {
            "flat" => &["i64_Some: 2"][..],
            "strings" => &["utf8_Some: 2", "large_binary_Required: 2"],
            _ => &["ids: 3", "texts: 3", "words: 3"],
        };
        for column in columns {
            let by_gpu = format!("{column} row groups by the GPU, 0 by the host");
            assert!(said.contains(&by_gpu), "{said}");
        }
    }
}

#[test]
fn what_others_can_take_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("table.parquet");
    let set = WriterProperties::builder().build();
    std::fs::write(&input, written(&other(100), set)).unwrap();
    let (out, _) = run("parquet_to_gpu", &[&input]);
    for said in [
        "ids: by the GPU\n",
        "lists: by the host, because it is nested\n",
        "batch 0: 100 rows\n",
        "ids: 100 of Int64, 0 nulls, 800 bytes on the device\n",
        "as a tensor: DlTensor(0x",
        "texts: 100 of Utf8, 17 nulls, ",
        "    offsets: 404 bytes at 0x",
        "words: 100 of Dictionary(Int32, Utf8), 0 nulls, 419 bytes on the device\n",
        "  words, its entries: 3 of Utf8, 0 nulls, 19 bytes on the device\n",
        "as an ArrowDeviceArray",
        "ids: 1 row groups by the GPU, 0 by the host",
    ] {
        assert!(out.contains(said), "{said:?} is not in {out}");
    }
}
