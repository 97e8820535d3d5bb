//! Writes any file that the crate decodes as an Arrow IPC file.
//!
//! ```sh
//! cargo run --release --example convert -- data.parquet data.arrow
//! ```

#[path = "../common/mod.rs"]
mod common;
mod plain;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use arrow::ipc::writer::FileWriter;
use common::tables::{self, Failure, Wanted};
use feedwater::cuda::Device;
use feedwater::{FileSink, Format, Processor};
use lexopt::{Arg, Parser, ValueExt};

const HELP: &str = "\
convert: writes any file that feedwater decodes as an Arrow IPC file

Usage: convert [--format FORMAT] [--threads N] [--device DEVICE] [--] IN OUT

IN is a Parquet, TFRecord, safetensors, .npy or .npz file, recognised by its
content. OUT appears when all of it is written, or not at all; a file that has
the name is replaced.

Parquet           its rows and columns; dictionaries become plain values
TFRecord          of tf.train.Example or SequenceExample: a row each and a column
                  for each feature, sorted by name, typed by all of them; of
                  other records: a row each, in the column `record`
safetensors, npz  a row for each tensor: name, dtype, shape, and data, its
                  bytes in little endian and row-major order; members of an
                  archive that are no arrays are left out, each with a line
npy               a row for each element of the first dimension, in the column
                  `data`: a number, or nested lists of fixed size; complex
                  numbers are lists of two

Options:
  --format FORMAT  Read IN as parquet, tfrecord, safetensors, npy or npz.
  --threads N      Threads that decode.
  --device DEVICE  Decode on the cpu (the default), or on the first GPU: gpu for
                   all that its kernels decode, auto for what is worth it. They
                   decode Parquet and examples of TFRecord files. OUT is the
                   same, byte for byte, as long as the memory of the GPU is
                   enough for two row groups; what was decoded by whom, and why,
                   is written to the standard error.
  -h, --help       Print this and exit.

Exit status: 0 if OUT was written, 1 if not, 2 for a wrong option.
";

struct Args {
    input: PathBuf,
    output: PathBuf,
    format: Option<Format>,
    threads: Option<usize>,
    gpu: Option<Processor>,
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(Some(args)) => args,
        Ok(None) => {
            let _ = io::stdout().write_all(HELP.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            complain(&format!(
                "{error}\nUsage: convert [--format FORMAT] [--threads N] [--device DEVICE] [--] IN OUT\n`convert --help` explains them."
            ));
            return ExitCode::from(2);
        }
    };
    match convert(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure.to_string().replace(['\n', '\r'], " "));
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Option<Args>, lexopt::Error> {
    let (mut paths, mut format, mut threads) = (Vec::<OsString>::new(), None, None);
    let mut gpu = None;
    let mut parser = Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("format") => format = Some(parser.value()?.parse()?),
            Arg::Long("threads") => threads = Some(parser.value()?.parse()?),
            Arg::Long("device") => {
                gpu = match parser.value()?.string()?.as_str() {
                    "cpu" => None,
                    "gpu" => Some(Processor::Gpu),
                    "auto" => Some(Processor::Auto),
                    other => {
                        return Err(format!("--device {other}: cpu, gpu or auto").into());
                    }
                };
            }
            Arg::Short('h') | Arg::Long("help") => return Ok(None),
            Arg::Value(path) => paths.push(path),
            _ => return Err(arg.unexpected()),
        }
    }
    let [input, output] = <[OsString; 2]>::try_from(paths)
        .map_err(|paths| format!("two paths are needed, IN and OUT; {} given", paths.len()))?;
    if threads == Some(0) {
        return Err("--threads 0: nobody would decode".into());
    }
    Ok(Some(Args {
        input: input.into(),
        output: output.into(),
        format,
        threads,
        gpu,
    }))
}

fn convert(args: &Args) -> Result<(), Failure> {
    let reader = feedwater::open(&args.input)?;
    let format = tables::format_of(&reader, args.format)?;
    let gpu = match args.gpu {
        None => None,
        Some(processor) => match Device::open(0) {
            Ok(device) => Some((device, processor)),
            Err(why) if processor == Processor::Auto => {
                complain(&format!("by the host: {why}"));
                None
            }
            Err(error) => return Err(error.into()),
        },
    };
    let wanted = Wanted {
        threads: args.threads,
        gpu,
        ..Wanted::default()
    };
    let table = tables::open(&reader, format, &wanted)?;
    let schema = Arc::new(plain::schema(&table.schema));
    let sink = FileSink::create(&args.output)?;
    let mut writer = FileWriter::try_new(sink, &schema).map_err(|error| at(&args.output, error))?;
    for batch in table.batches {
        let batch = plain::batch(&batch?, &schema)?;
        for part in plain::cut(&batch) {
            let written = part.and_then(|part| writer.write(&part));
            written.map_err(|error| at(&args.output, error))?;
        }
    }
    writer.finish().map_err(|error| at(&args.output, error))?;
    writer
        .into_inner()
        .map_err(|error| at(&args.output, error))?
        .commit()?;
    if let Some(report) = table.report.take() {
        complain(&report);
    }
    Ok(())
}

/// Arrow's errors do not say of which file.
fn at(path: &Path, error: arrow::error::ArrowError) -> Failure {
    format!("{}: {error}", path.display()).into()
}

fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "convert: {text}");
}
