//! Decodes a Parquet file in the memory of a GPU, and shows what others can take from there.
//!
//! ```sh
//! cargo run --release --example parquet_to_gpu -- data.parquet
//! # On a machine without a GPU:
//! tests/software-cuda/run cargo run --release --example parquet_to_gpu -- data.parquet
//! ```

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use arrow_schema::DataType::{
    Binary, Dictionary, LargeBinary, LargeList, LargeUtf8, List, Map, Utf8,
};
use feedwater::cuda::Device;
use feedwater::{DeviceArray, Opened, Processor, parquet};
use lexopt::{Arg, Parser};

const HELP: &str = "\
parquet_to_gpu: decodes a Parquet file in the memory of the first GPU

Usage: parquet_to_gpu [--] FILE

Prints what is read and who is to decode it; of each batch its columns, where their
buffers are in the memory of the GPU, and what others can take: DLPack tensors and
Arrow device arrays; and at the end who decoded what, and why. On a machine without
a GPU: tests/software-cuda/run cargo run --release --example parquet_to_gpu -- FILE

Options:
  -h, --help  Print this and exit.
";

fn main() -> ExitCode {
    let path = match parse() {
        Ok(Some(path)) => path,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("parquet_to_gpu: {error}\nUsage: parquet_to_gpu [--] FILE");
            return ExitCode::from(2);
        }
    };
    match run(path.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("parquet_to_gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The file, or `None` if help is wanted.
fn parse() -> Result<Option<OsString>, lexopt::Error> {
    let mut paths = Vec::new();
    let mut parser = Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(None),
            Arg::Value(path) => paths.push(path),
            _ => return Err(arg.unexpected()),
        }
    }
    let [path] = <[OsString; 1]>::try_from(paths)
        .map_err(|paths| format!("one FILE is needed, {} given", paths.len()))?;
    Ok(Some(path))
}

fn run(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let gpu = Device::open(0)?;
    println!("{}", gpu.info());
    let scan = |reader: Arc<Opened>| {
        parquet::scan(reader)
            .on_device(&gpu)
            .processor(Processor::Gpu)
    };
    let reader = feedwater::open(path)?;
    println!("{}\n", scan(reader.clone()).explain()?);
    let mut batches = scan(reader).batches()?;
    for (number, batch) in batches.by_ref().enumerate() {
        let batch = batch?;
        println!("batch {number}: {}", count(batch.num_rows(), "row"));
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            show(field.name(), column);
        }
        // An ArrowDeviceArray: who takes it calls its `release`; dropped here, it is given back.
        if batch.num_rows() > 0 && !batch.schema().fields().is_empty() {
            let array = batch.export()?;
            println!("  as an {array:?}");
        }
    }
    println!("\n{}", batches.report());
    Ok(())
}

fn show(name: &str, column: &DeviceArray) {
    println!(
        "  {name}: {} of {}, {}, {} on the device",
        column.len(),
        column.data_type(),
        count(column.null_count(), "null"),
        count(column.bytes() as usize, "byte")
    );
    if let Some(bitmap) = column.validity() {
        let bytes = count(bitmap.len(), "byte");
        println!("    validity: {bytes} at {:p}", bitmap.ptr());
    }
    let names: &[&str] = match column.data_type() {
        Utf8 | LargeUtf8 | Binary | LargeBinary => &["offsets", "bytes"],
        List(_) | LargeList(_) | Map(..) => &["offsets"],
        Dictionary(..) => &["indices"],
        _ => &["values"],
    };
    for (buffer, name) in column.buffers().iter().zip(names) {
        let bytes = count(buffer.len(), "byte");
        println!("    {name}: {bytes} at {:p}", buffer.ptr());
    }
    if let (Dictionary(..), [entries]) = (column.data_type(), column.children()) {
        show(&format!("{name}, its entries"), entries);
        return;
    }
    // A `DLManagedTensor`, for `torch.from_dlpack` and its kin, sharing the memory.
    match column.tensor() {
        Ok(tensor) => println!("    as a tensor: {tensor:?}"),
        Err(why) => println!("    no tensor: {why}"),
    }
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
