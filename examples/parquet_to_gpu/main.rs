//! Decodes a Parquet file in the memory of a GPU, and shows what others can take from there.
//!
//! ```sh
//! cargo run --release --example parquet_to_gpu -- data.parquet
//! # On a machine without a GPU:
//! tests/software-cuda/run cargo run --release --example parquet_to_gpu -- data.parquet
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use arrow_schema::DataType::{
    Binary, Dictionary, LargeBinary, LargeList, LargeUtf8, List, Map, Utf8,
};
use feedwater::cuda::Device;
use feedwater::{DeviceArray, Opened, Processor, parquet};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("Usage: parquet_to_gpu FILE");
        return ExitCode::from(2);
    };
    match run(path.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("parquet_to_gpu: {error}");
            ExitCode::FAILURE
        }
    }
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
        println!("batch {number}: {} rows", batch.num_rows());
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
        "  {name}: {} of {}, {} nulls, {} bytes on the device",
        column.len(),
        column.data_type(),
        column.null_count(),
        column.bytes()
    );
    if let Some(bitmap) = column.validity() {
        println!("    validity: {} bytes at {:p}", bitmap.len(), bitmap.ptr());
    }
    let names: &[&str] = match column.data_type() {
        Utf8 | LargeUtf8 | Binary | LargeBinary => &["offsets", "bytes"],
        List(_) | LargeList(_) | Map(..) => &["offsets"],
        Dictionary(..) => &["indices"],
        _ => &["values"],
    };
    for (buffer, name) in column.buffers().iter().zip(names) {
        println!("    {name}: {} bytes at {:p}", buffer.len(), buffer.ptr());
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
