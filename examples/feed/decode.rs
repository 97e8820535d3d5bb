//! Decoding one file with the crate.

use std::ops::Range;
use std::path::Path;

use arrow::datatypes::SchemaRef;
use feedwater::{Engine, Format, Reader, parquet};

use crate::Failure;
use crate::args::{Args, Choice};
use crate::common::tables::{self, Wanted};
use crate::process::{Spent, measured};
use crate::read::{self, Done};

/// A file that has been decoded.
pub(crate) struct Decoded {
    pub(crate) format: Format,
    pub(crate) schema: SchemaRef,
    pub(crate) rows: u64,
    /// Of the columns in memory.
    pub(crate) bytes: u64,
    /// From the open to the last batch.
    pub(crate) spent: Spent,
    /// What was read for it.
    pub(crate) done: Done,
    pub(crate) plan: Option<parquet::Plan>,
    pub(crate) ranges: Vec<Range<u64>>,
}

/// Decodes what was asked for, batch after batch, each dropped before the next. `None`: it has no format that is known,
/// and none was asked for.
pub(crate) fn decode(
    path: &Path,
    args: &Args,
    engine: &Engine,
) -> Result<Option<Decoded>, Failure> {
    let options = read::options(args, engine, args.engine.unwrap_or(Choice::Auto));
    let wanted = Wanted {
        columns: args.columns.clone(),
        rows: args.rows.clone(),
        threads: args.threads,
        infer_from: Some(1000),
        gpu: None,
    };
    let cache = read::Cache::of(path)?;
    let (decoded, spent) = measured(|| {
        let reader = options.open(path)?;
        let format = match tables::format_of(&reader, args.format) {
            Ok(format) => format,
            Err(_) if !args.only_decode() => return Ok(None),
            Err(_) if reader.source().len() == 0 && args.format.is_none() => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let table = tables::open(&reader, format, &wanted)?;
        let (mut rows, mut bytes) = (0, 0);
        for batch in table.batches {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            bytes += batch.get_array_memory_size() as u64;
        }
        Ok(Some((
            reader,
            format,
            table.schema,
            table.plan,
            table.ranges,
            rows,
            bytes,
        )))
    });
    let Some((reader, format, schema, plan, ranges, rows, bytes)) = decoded? else {
        return Ok(None);
    };
    let done = Done {
        report: reader.report(),
        spent,
        cache,
        device: None,
        why_not_device: None,
    };
    Ok(Some(Decoded {
        format,
        schema,
        rows,
        bytes,
        spent,
        done,
        plan,
        ranges,
    }))
}
