//! Examples of a TFRecord file in the memory of a GPU: columns as Arrow has them, images as a tensor.
//!
//! ```sh
//! cargo run --release --example tfrecord_to_gpu                 # makes a small file of its own
//! cargo run --release --example tfrecord_to_gpu -- FILE…        # columns as they are inferred
//! tests/software-cuda/run cargo run --release --example tfrecord_to_gpu   # without a GPU
//! ```

mod made;

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use feedwater::cuda::{Dense, Device, ElementType};
use feedwater::tfrecord::{self, DeviceExamples, DeviceScan, ExampleSchema};
use feedwater::{DeviceArray, OpenOptions, Processor};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tfrecord_to_gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

const HELP: &str = "\
tfrecord_to_gpu: decodes tf.train.Examples in the memory of the first GPU

Usage: tfrecord_to_gpu [FILE...]

Columns are those that the first examples have. Without a FILE, a small one with
images is made, whose pixels become a tensor of floats. On a machine without a
GPU: tests/software-cuda/run cargo run --release --example tfrecord_to_gpu
";

fn run() -> Result<(), Box<dyn Error>> {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    if paths.iter().any(|path| path == "--help" || path == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let option = |path: &&OsString| path.to_string_lossy().starts_with('-');
    if let Some(option) = paths.iter().find(option) {
        let option = option.display();
        return Err(
            format!("there is no option {option}; a file of that name is ./{option}").into(),
        );
    }
    let gpu = Device::open(0)?;
    println!("{}", gpu.info());
    for path in &paths {
        show(open(&gpu, Path::new(path), None)?)?;
    }
    if paths.is_empty() {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("images.tfrecord");
        made::write(&path)?;
        // [height, width, channel] of bytes becomes [channel, height, width] of floats from -1 to 1.
        let (height, width) = (made::HEIGHT as u64, made::WIDTH as u64);
        let image = Dense::cast(&[3, height, width], ElementType::U8, ElementType::F32)
            .strides(&[1, width * 3, 3])
            .affine(0, &[2.0 / 255.0; 3], &[-1.0; 3]);
        let scan = open(&gpu, &path, Some(made::schema()))?;
        show(scan.tensor("image", image))?;
    }
    Ok(())
}

/// What a program of yours would do. Without a schema, that of the first examples.
fn open(
    gpu: &Arc<Device>,
    path: &Path,
    schema: Option<ExampleSchema>,
) -> feedwater::Result<DeviceScan> {
    let reader = OpenOptions::new().device(gpu.clone()).open(path)?;
    let mut scan = tfrecord::examples(reader).batch_rows(256);
    if let Some(schema) = schema {
        scan = scan.schema(schema);
    }
    Ok(scan.on_device(gpu).processor(Processor::Gpu))
}

fn show(scan: DeviceScan) -> Result<(), Box<dyn Error>> {
    let mut batches = scan.batches()?;
    for batch in batches.by_ref() {
        print(&batch?)?;
    }
    print!("{}", batches.report());
    Ok(())
}

fn print(batch: &DeviceExamples) -> Result<(), Box<dyn Error>> {
    println!("{}", count(batch.num_rows(), "example"));
    let columns = batch.columns();
    for (field, column) in columns.schema().fields().iter().zip(columns.columns()) {
        println!("  {}: {}", field.name(), described(column));
    }
    // As a consumer of Arrow's C device interface takes all of them.
    if !columns.columns().is_empty() {
        let exported = columns.export()?;
        println!("  as an ArrowDeviceArray: {exported:?}");
    }
    for tensor in batch.tensors() {
        // `torch.from_dlpack` takes it, in a capsule.
        let dlpack = tensor.dlpack()?;
        println!(
            "  {}: a tensor of {:?} {:?}, as a DLManagedTensor: {:p}",
            tensor.feature(),
            tensor.element(),
            tensor.shape(),
            dlpack.as_ptr()
        );
    }
    Ok(())
}

/// Type, nulls, and where its buffers are.
fn described(array: &DeviceArray) -> String {
    let mut text = format!(
        "{}, {}",
        array.data_type(),
        count(array.null_count(), "null")
    );
    for buffer in array.buffers() {
        text += &format!(", {} at {:p}", count(buffer.len(), "byte"), buffer.ptr());
    }
    for child in array.children() {
        text += &format!(" [{}]", described(child));
    }
    text
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
