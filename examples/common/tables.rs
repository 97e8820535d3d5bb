//! Any file of a format that the crate decodes, as Arrow record batches.
//!
//! | format | rows and columns |
//! |---|---|
//! | Parquet | its own |
//! | TFRecord of `tf.train.Example` or `SequenceExample` | an example each; a feature each, types inferred from all of them |
//! | other TFRecord | a record each; `record` |
//! | safetensors, .npz | a tensor each; `name`, `dtype`, `shape`, `data`: its bytes, little endian, row-major; members of an archive that are no arrays are left out, with a line about each |
//! | .npy | a row for each element of the first dimension; `data`, a number or nested lists of fixed size |

use std::cell::RefCell;
use std::io::{self, Write};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, LargeBinaryArray, ListBuilder, RecordBatch, StringArray, UInt64Builder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use feedwater::cuda::Device;
use feedwater::tfrecord::{DeviceExamples, ExampleScan, ExampleSchema, RecordOptions};
use feedwater::{
    DeviceBatch, ErrorKind, Format, Opened, Processor, Reader, npy, parquet, safetensors,
};

use super::arrays;

/// Why a file cannot be had as a table: one line of text.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// What is wanted of a file.
#[derive(Clone, Default)]
pub(crate) struct Wanted {
    /// Columns or tensors by name; `None`: all.
    pub(crate) columns: Option<Vec<String>>,
    /// `None`: all.
    pub(crate) rows: Option<Range<u64>>,
    /// `None`: as many as the library takes.
    pub(crate) threads: Option<usize>,
    /// How many examples of a TFRecord file say what its columns are; `None`: all, in a pass of its own.
    pub(crate) infer_from: Option<usize>,
    /// A GPU to decode on, and what of it; the rows come back to the host.
    pub(crate) gpu: Option<(Arc<Device>, Processor)>,
}

/// A file as a table.
pub(crate) struct Table {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Box<dyn Iterator<Item = Result<RecordBatch, Failure>>>,
    /// What is read and why, where the format tells.
    pub(crate) plan: Option<parquet::Plan>,
    /// The ranges that are asked for, where they are known and there is no such plan.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Who decoded what, once all batches were taken and if a GPU was to.
    pub(crate) report: Rc<RefCell<Option<String>>>,
}

impl Table {
    fn of(
        schema: SchemaRef,
        batches: impl Iterator<Item = Result<RecordBatch, Failure>> + 'static,
    ) -> Table {
        Table {
            schema,
            batches: Box::new(batches),
            plan: None,
            ranges: Vec::new(),
            report: Rc::default(),
        }
    }

    /// Of batches in the memory of a GPU; when there are no more, they are asked for their report.
    fn by_gpu<B: Iterator + 'static>(
        schema: SchemaRef,
        mut batches: B,
        batch: impl Fn(B::Item) -> feedwater::Result<RecordBatch> + 'static,
        report: impl Fn(&B) -> String + 'static,
    ) -> Table {
        let told: Rc<RefCell<Option<String>>> = Rc::default();
        let tells = told.clone();
        let next = move || {
            let next = batches
                .next()
                .map(|next| batch(next).map_err(Failure::from));
            if next.is_none() {
                *tells.borrow_mut() = Some(report(&batches));
            }
            next
        };
        let mut table = Table::of(schema, std::iter::from_fn(next));
        table.report = told;
        table
    }

    /// Only these rows.
    fn rows(mut self, rows: Option<Range<u64>>) -> Table {
        if let Some(rows) = rows {
            self.batches = Box::new(Cut {
                batches: self.batches,
                at: 0,
                rows,
            });
        }
        self
    }
}

/// The format to decode a file by: the one that is forced, or what its content says.
///
/// # Errors
/// If it is none of them.
pub(crate) fn format_of(reader: &Opened, forced: Option<Format>) -> Result<Format, Failure> {
    if let Some(format) = forced {
        return Ok(format);
    }
    let name = reader.source().name();
    Format::of(reader)?.ok_or_else(|| {
        let what = "neither Parquet nor TFRecord, safetensors, .npy or .npz by its content";
        format!("{name}: {what}; --format says what it is to be read as").into()
    })
}

pub(crate) fn open(
    reader: &Arc<Opened>,
    format: Format,
    wanted: &Wanted,
) -> Result<Table, Failure> {
    match format {
        Format::Parquet => return table_of_parquet(reader, wanted),
        Format::TfRecord => return table_of_records(reader, wanted),
        _ => {}
    }
    let report = by_host(wanted, || format!("{format} has nothing to decode"))?;
    let mut table = match format {
        Format::Safetensors => table_of_tensors(reader, wanted),
        Format::Npy => table_of_array(reader, wanted),
        Format::Npz => table_of_archive(reader, wanted),
        format => Err(format!("{format} is not decoded here").into()),
    }?;
    table.report = Rc::new(RefCell::new(report));
    Ok(table)
}

/// Who decodes what no kernel does: the host, unless the GPU has to. Gives what the report is then.
fn by_host(wanted: &Wanted, why: impl FnOnce() -> String) -> Result<Option<String>, Failure> {
    match &wanted.gpu {
        None => Ok(None),
        Some((_, Processor::Gpu)) => {
            Err(format!("not on a GPU: {}; --device auto takes the host", why()).into())
        }
        Some(_) => Ok(Some(format!("by the host: {}", why()))),
    }
}

fn table_of_parquet(reader: &Arc<Opened>, wanted: &Wanted) -> Result<Table, Failure> {
    let mut scan = parquet::scan(reader.clone());
    if let Some(columns) = &wanted.columns {
        scan = scan.columns(columns);
    }
    if let Some(rows) = &wanted.rows {
        scan = scan.rows(rows.clone());
    }
    if let Some(threads) = wanted.threads {
        scan = scan.threads(threads);
    }
    if let Some((gpu, processor)) = &wanted.gpu {
        return table_by_gpu(scan.on_device(gpu).processor(*processor));
    }
    let batches = scan.batches()?;
    let plan = batches.plan().clone();
    let schema = batches.schema().clone();
    let mut table = Table::of(schema, batches.map(|batch| Ok(batch?)));
    table.plan = Some(plan);
    Ok(table)
}

/// The same by way of a GPU's memory.
fn table_by_gpu(scan: parquet::DeviceScan<Opened>) -> Result<Table, Failure> {
    let batches = scan.batches()?;
    let plan = batches.plan().clone();
    let schema = batches.schema().clone();
    let batch = |batch: feedwater::Result<DeviceBatch>| batch?.to_host();
    let mut table = Table::by_gpu(schema, batches, batch, |batches| {
        batches.report().to_string()
    });
    table.plan = Some(plan);
    Ok(table)
}

fn table_of_records(reader: &Arc<Opened>, wanted: &Wanted) -> Result<Table, Failure> {
    let Some(schema) = schema_of_examples(reader, wanted.infer_from)? else {
        let report = by_host(wanted, || "the records are no examples".into())?;
        let mut table = table_of_plain_records(reader, wanted)?;
        table.report = Rc::new(RefCell::new(report));
        return Ok(table);
    };
    let schema = match &wanted.columns {
        Some(names) => only(&schema, names)?,
        None => schema,
    };
    let mut scan = ExampleScan::new(reader.clone(), &RecordOptions::new()).schema(schema);
    if let Some(threads) = wanted.threads {
        scan = scan.threads(threads);
    }
    let table = match &wanted.gpu {
        Some((gpu, processor)) => {
            let batches = scan.on_device(gpu).processor(*processor).batches()?;
            let schema = batches.schema().clone();
            let batch = |batch: feedwater::Result<DeviceExamples>| batch?.columns().to_host();
            Table::by_gpu(schema, batches, batch, |batches| {
                batches.report().to_string()
            })
        }
        None => {
            let batches = scan.batches()?;
            Table::of(batches.schema().clone(), batches.map(|batch| Ok(batch?)))
        }
    };
    Ok(table.rows(wanted.rows.clone()))
}

/// What all examples agree with; `None` if the first record that has bytes is no example: no bytes are one without features,
/// and records of any other kind as well.
fn schema_of_examples(
    reader: &Arc<Opened>,
    most: Option<usize>,
) -> Result<Option<ExampleSchema>, Failure> {
    let mut failed = None;
    let mut records = 0u64;
    let frames = RecordOptions::new().frames(reader.clone());
    let frames = frames.map_while(|frames| frames.map_err(|error| failed = Some(error)).ok());
    let examples = frames.flat_map(|frames| {
        let of_frames: Vec<_> = (0..frames.len())
            .filter_map(|at| frames.bytes(at))
            .collect();
        of_frames
    });
    let schema = ExampleSchema::infer(
        examples
            .take(most.unwrap_or(usize::MAX))
            .inspect(|record| records += u64::from(!record.is_empty())),
    );
    if let Some(error) = failed {
        return Err(error.into());
    }
    match schema {
        Ok(schema) if schema.features().is_empty() && schema.list_features().is_empty() => Ok(None),
        Ok(schema) => Ok(Some(schema)),
        Err(error) if records <= 1 && matches!(error.kind(), ErrorKind::Malformed { .. }) => {
            Ok(None)
        }
        Err(error) => Err(error.named(reader.source().name()).into()),
    }
}

/// The features of these names.
fn only(schema: &ExampleSchema, names: &[String]) -> Result<ExampleSchema, Failure> {
    let mut found = ExampleSchema::new();
    for name in names {
        let of = |features: &[feedwater::tfrecord::Feature]| {
            features
                .iter()
                .find(|feature| feature.name() == name)
                .cloned()
        };
        found = match (of(schema.features()), of(schema.list_features())) {
            (Some(feature), _) => found.with(feature),
            (None, Some(feature)) => found.with_list(feature),
            (None, None) => return Err(format!("no example has a feature {name:?}").into()),
        };
    }
    Ok(found)
}

fn table_of_plain_records(reader: &Arc<Opened>, wanted: &Wanted) -> Result<Table, Failure> {
    if wanted.columns.is_some() {
        return Err("the records are no examples, so they have no columns to choose from".into());
    }
    let field = Field::new("record", DataType::Binary, false);
    let schema = Arc::new(Schema::new(vec![field]));
    let of = schema.clone();
    let batches = RecordOptions::new()
        .frames(reader.clone())
        .map(move |frames| {
            let frames = frames?;
            let bytes = frames.iter().map(<[u8]>::len).sum();
            if i32::try_from(bytes).is_err() {
                return Err("records of over 2 GiB have no column type here".into());
            }
            let mut records = BinaryBuilder::with_capacity(frames.len(), bytes);
            frames
                .iter()
                .for_each(|record| records.append_value(record));
            let column: ArrayRef = Arc::new(records.finish());
            Ok(RecordBatch::try_new(of.clone(), vec![column])?)
        });
    Ok(Table::of(schema, batches).rows(wanted.rows.clone()))
}

/// A tensor in a row of its own.
struct Row {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    data: bytes::Bytes,
}

fn schema_of_rows() -> SchemaRef {
    let item = Field::new("item", DataType::UInt64, true);
    Arc::new(Schema::new(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("dtype", DataType::Utf8, false),
        Field::new("shape", DataType::List(Arc::new(item)), false),
        Field::new("data", DataType::LargeBinary, false),
    ]))
}

fn table_of_rows(rows: impl Iterator<Item = Result<Row, Failure>> + 'static) -> Table {
    let schema = schema_of_rows();
    let of = schema.clone();
    let batches = rows.map(move |row| {
        let row = row?;
        let mut shape = ListBuilder::new(UInt64Builder::new());
        shape.append_value(row.shape.iter().map(|&length| Some(length as u64)));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![row.name])),
            Arc::new(StringArray::from(vec![row.dtype])),
            Arc::new(shape.finish()),
            Arc::new(LargeBinaryArray::from_vec(vec![&*row.data])),
        ];
        Ok(RecordBatch::try_new(of.clone(), columns)?)
    });
    Table::of(schema, batches)
}

fn table_of_tensors(reader: &Arc<Opened>, wanted: &Wanted) -> Result<Table, Failure> {
    let mut load = safetensors::open(reader.clone())?.load();
    if let Some(names) = &wanted.columns {
        load = load.names(names);
    }
    let ranges = load.ranges();
    let rows = load.in_order().map(|tensor| {
        let tensor = tensor?;
        Ok(Row {
            name: tensor.name().into(),
            dtype: tensor.dtype().to_string(),
            shape: tensor.shape().to_vec(),
            data: tensor.into_bytes(),
        })
    });
    let mut table = table_of_rows(rows).rows(wanted.rows.clone());
    table.ranges = ranges;
    Ok(table)
}

fn table_of_archive(reader: &Arc<Opened>, wanted: &Wanted) -> Result<Table, Failure> {
    let archive = npy::open_npz(reader.clone())?;
    let (names, chosen): (Vec<String>, _) = match &wanted.columns {
        Some(names) => (names.clone(), true),
        None => (archive.names().map(String::from).collect(), false),
    };
    let rows = names.into_iter().filter_map(move |name| {
        let array = archive.array(&name).and_then(|file| file.read_all().wait());
        let array = match array {
            Ok(array) => little(array.to_c_order()),
            // A text beside the arrays, say, which NumPy gives as bytes.
            Err(error)
                if !chosen
                    && !archive.is_npy(&name)
                    && matches!(error.kind(), ErrorKind::Malformed { .. }) =>
            {
                let _ = writeln!(io::stderr(), "left out, as it is no array: {error}");
                return None;
            }
            Err(error) => return Some(Err(error.into())),
        };
        Some(Ok(Row {
            name,
            dtype: array.dtype().to_string(),
            shape: array.shape().to_vec(),
            data: array.into_bytes(),
        }))
    });
    Ok(table_of_rows(rows).rows(wanted.rows.clone()))
}

/// All machines this runs on are little endian.
fn little(array: npy::Array) -> npy::Array {
    array.to_native()
}

fn table_of_array(reader: &Arc<Opened>, wanted: &Wanted) -> Result<Table, Failure> {
    if wanted.columns.is_some() {
        return Err("an array has no columns to choose from".into());
    }
    let file = npy::open(reader.clone())?;
    let all = file.shape().first().map_or(1, |&rows| rows as u64);
    let rows = wanted.rows.clone().unwrap_or(0..all);
    if rows.start > rows.end || rows.end > all {
        let Range { start, end } = rows;
        let missing = start.max(all);
        return Err(format!(
            "there is no row {missing} of rows {start}..{end}: the array has {all}"
        )
        .into());
    }
    let field = Field::new(
        "data",
        arrays::data_type(file.dtype(), file.shape())?,
        false,
    );
    let schema = Arc::new(Schema::new(vec![field]));
    let of = schema.clone();
    let batches = std::iter::once_with(move || {
        // Rows of an array in Fortran order lie all over it.
        let in_parts = rows != (0..all) && file.order() == npy::Order::C;
        let array = match in_parts {
            true => file.rows(rows.start as usize..rows.end as usize),
            false => file.read_all(),
        };
        let column = arrays::column(&little(array.wait()?.to_c_order()))?;
        let column = match in_parts {
            true => column,
            false => column.slice(rows.start as usize, (rows.end - rows.start) as usize),
        };
        Ok(RecordBatch::try_new(of.clone(), vec![column])?)
    });
    Ok(Table::of(schema, batches))
}

/// Some rows of what comes.
struct Cut {
    batches: Box<dyn Iterator<Item = Result<RecordBatch, Failure>>>,
    at: u64,
    rows: Range<u64>,
}

impl Iterator for Cut {
    type Item = Result<RecordBatch, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.rows.end {
            let batch = match self.batches.next() {
                Some(Ok(batch)) => batch,
                Some(Err(error)) => return Some(Err(error)),
                None if self.rows.start < self.rows.end => {
                    let (start, asked, at) = (self.rows.start, self.rows.end, self.at);
                    self.rows = self.at..self.at; // told once
                    let missing = start.max(at);
                    return Some(Err(format!(
                        "there is no row {missing} of rows {start}..{asked}: there are {at}"
                    )
                    .into()));
                }
                None => return None,
            };
            let came = self.at..self.at + batch.num_rows() as u64;
            self.at = came.end;
            let (start, end) = (self.rows.start.max(came.start), self.rows.end.min(came.end));
            if start < end {
                let (offset, length) = (start - came.start, end - start);
                return Some(Ok(batch.slice(offset as usize, length as usize)));
            }
        }
        None
    }
}
