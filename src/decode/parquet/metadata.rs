//! The metadata of a file, read once for any number of scans.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{DataType, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::file::metadata::ParquetMetaData;

use super::failure;
use crate::decode::wait::block_on;
use crate::error::{Error, ErrorKind, Result};
use crate::format::parquet::{Footer, FooterStep, malformed};
use crate::reader::{Reader, ReaderExt, Source};
use crate::version::Version;

/// What the footer of a file says: schema, row groups, statistics. Cheap to clone.
///
/// Reading it costs one request of 64 KiB for most files, and a second one for footers that are larger. The tail is
/// kept, since page indexes often lie in it.
///
/// ```
/// # use std::sync::Arc;
/// # use feedwater::parquet::Metadata;
/// # fn read(reader: Arc<feedwater::Opened>) -> feedwater::Result<()> {
/// let metadata = Metadata::read(&*reader)?;
/// println!("{} rows, {}", metadata.num_rows(), metadata.schema());
/// for row_group in metadata.parquet().row_groups() {
///     println!("{} bytes", row_group.compressed_size());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Metadata(Arc<Inner>);

struct Inner {
    parquet: Arc<ParquetMetaData>,
    arrow: ArrowReaderMetadata,
    name: Arc<str>,
    version: Version,
    /// Where the tail begins, and its bytes.
    tail: (u64, Bytes),
    requests: u64,
}

impl Metadata {
    /// Reads it; parks this thread until it is there.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if the source is no Parquet file or its footer contradicts itself,
    /// [`ErrorKind::UnsupportedFeature`] if it is encrypted or has its data in other files; errors of the reader as they
    /// are.
    pub fn read<R: Reader + ?Sized>(reader: &R) -> Result<Self> {
        block_on(Self::read_async(reader))
    }

    /// The same in a task: [`read`](Self::read) on any executor, without blocking it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_async<R: Reader + ?Sized>(reader: &R) -> Result<Self> {
        let source = reader.source();
        let footer = Footer::new(source.len());
        let mut range = footer.first();
        let mut requests = 0;
        // The second read has all that the footer says it has.
        for _ in 0..2 {
            let tail = reader.read(range.clone()).await?;
            requests += 1;
            let step = footer.step(&tail, |decode| failure::contain(None, decode));
            match step.map_err(|error| error.named(source.name()).at(range.clone()))? {
                FooterStep::Need(more) => range = more,
                FooterStep::Done(parquet) => {
                    return Self::of(source, parquet, (range.start, tail), requests);
                }
            }
        }
        Err(malformed(None, "the footer does not end").named(source.name()))
    }

    fn of(
        source: &Source,
        parquet: Arc<ParquetMetaData>,
        tail: (u64, Bytes),
        requests: u64,
    ) -> Result<Self> {
        let options = ArrowReaderOptions::new();
        let arrow = failure::contain(None, || {
            ArrowReaderMetadata::try_new(parquet.clone(), options)
        })
        .map_err(|error| error.named(source.name()))?;
        Ok(Metadata(Arc::new(Inner {
            parquet,
            arrow,
            name: source.name().clone(),
            version: source.version().clone(),
            tail,
            requests,
        })))
    }

    /// Rows of the file: the sum of those of its row groups, whatever the footer says.
    pub fn num_rows(&self) -> u64 {
        u64::try_from(self.0.parquet.file_metadata().num_rows()).unwrap_or(0)
    }

    /// Row groups of the file.
    pub fn num_row_groups(&self) -> usize {
        self.0.parquet.num_row_groups()
    }

    /// The Arrow schema: that of the `parquet` crate, with the writer's Arrow types where it stored them.
    pub fn schema(&self) -> &SchemaRef {
        self.0.arrow.schema()
    }

    /// Key-value pairs that the writer added, in their order. A key may come more than once.
    pub fn key_values(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let pairs = self.0.parquet.file_metadata().key_value_metadata();
        pairs
            .into_iter()
            .flatten()
            .map(|pair| (pair.key.as_str(), pair.value.as_deref()))
    }

    /// Everything, in the terms of the `parquet` crate. Numbers that are used to read were checked against the file; row
    /// counts and dictionary offsets that writers are known to get wrong are put right.
    pub fn parquet(&self) -> &Arc<ParquetMetaData> {
        &self.0.parquet
    }

    /// Requests it took to read it.
    pub fn requests(&self) -> u64 {
        self.0.requests
    }

    /// Name of the source.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(super) fn len(&self) -> u64 {
        self.0.version.size()
    }

    pub(super) fn source_name(&self) -> &Arc<str> {
        &self.0.name
    }

    pub(super) fn arrow(&self) -> &ArrowReaderMetadata {
        &self.0.arrow
    }

    /// Checks that `source` has the content that this was read from.
    pub(super) fn check_source(&self, source: &Source) -> Result<()> {
        if *source.version() == self.0.version {
            return Ok(());
        }
        let kind = ErrorKind::Changed {
            opened: self.0.version.clone(),
            found: source.version().clone(),
        };
        Err(Error::new(kind).named(source.name()))
    }

    /// The bytes of `range`, if the tail has them.
    pub(super) fn tail(&self, range: &Range<u64>) -> Option<Bytes> {
        let (start, tail) = &self.0.tail;
        let from = usize::try_from(range.start.checked_sub(*start)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(*start)?).ok()?;
        (from <= to && to <= tail.len()).then(|| tail.slice(from..to))
    }
}

/// The Arrow type of a leaf; of its values where that is a dictionary.
pub(super) fn type_of_leaf(arrow: &ArrowReaderMetadata, leaf: usize) -> Result<DataType> {
    let schema = arrow.parquet_schema();
    let part = Some(column_name(arrow.metadata(), leaf));
    let mask = ProjectionMask::leaves(schema, [leaf]);
    let levels = failure::contain(part.clone(), || {
        parquet_to_arrow_field_levels(schema, mask, Some(arrow.schema().fields()))
    })?;
    let schema = super::unit::schema_of(&levels, arrow.metadata(), part)?;
    let mut data_type = match schema.fields().first() {
        Some(field) => field.data_type().clone(),
        None => return Err(malformed(None, format!("leaf {leaf} has no type"))),
    };
    loop {
        data_type = match data_type {
            DataType::Struct(fields) => match fields.first() {
                Some(field) => field.data_type().clone(),
                None => return Err(malformed(None, format!("leaf {leaf} has no type"))),
            },
            DataType::Dictionary(_, values) => *values,
            other => return Ok(other),
        };
    }
}

/// The dotted path of a leaf.
pub(super) fn column_name(parquet: &ParquetMetaData, leaf: usize) -> Arc<str> {
    let schema = parquet.file_metadata().schema_descr();
    match schema.columns().get(leaf) {
        Some(column) => column.path().string().into(),
        None => "?".into(),
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("name", &self.0.name)
            .field("rows", &self.num_rows())
            .field("row_groups", &self.num_row_groups())
            .finish_non_exhaustive()
    }
}
