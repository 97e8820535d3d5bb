//! Record batches into a Parquet file that appears whole or not at all.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;

use super::failure::contain;
use crate::error::{Error, ErrorKind, Result};
use crate::version::FileVersion;
use crate::write::{FileSink, SinkOptions};

/// How a [`Writer`] writes.
///
/// ```
/// use std::sync::Arc;
///
/// use arrow_array::{ArrayRef, Int64Array, RecordBatch};
/// use feedwater::SinkOptions;
/// use feedwater::parquet::WriterOptions;
/// use parquet::basic::{Compression, ZstdLevel};
/// use parquet::file::properties::WriterProperties;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.parquet");
/// let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
/// let batch = RecordBatch::try_from_iter([("n", column)])?;
/// let properties = WriterProperties::builder()
///     .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
///     .build();
/// let mut writer = WriterOptions::new()
///     .properties(properties)
///     .sink(SinkOptions::new().overwrite(false))
///     .create(&path, batch.schema())?;
/// writer.write(&batch)?;
/// assert!(!path.exists());
/// let (version, footer) = writer.commit()?;
/// assert_eq!(footer.file_metadata().num_rows(), 1000);
/// assert_eq!(version.size, std::fs::metadata(&path)?.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until `create`"]
pub struct WriterOptions {
    properties: Option<WriterProperties>,
    sink: SinkOptions,
}

impl WriterOptions {
    /// The defaults of the `parquet` crate (no compression, dictionaries, statistics per page, row groups of 1,048,576
    /// rows) and of [`SinkOptions`].
    pub fn new() -> Self {
        WriterOptions::default()
    }

    /// What is decided inside the file: compression, encodings, sizes of row groups and pages, statistics, bloom filters.
    pub fn properties(mut self, properties: WriterProperties) -> Self {
        self.properties = Some(properties);
        self
    }

    /// What is decided about the file: replacing, permissions, syncs, writes past the page cache.
    pub fn sink(mut self, sink: SinkOptions) -> Self {
        self.sink = sink;
        self
    }

    /// Creates the temporary file for `path`, with columns by `schema`.
    ///
    /// # Errors
    /// Those of [`SinkOptions::create`]; [`InvalidOption`](ErrorKind::InvalidOption) for a schema or properties that the
    /// format cannot have, [`UnsupportedFeature`](ErrorKind::UnsupportedFeature) for a type that the `parquet` crate does not
    /// write.
    pub fn create(&self, path: impl AsRef<Path>, schema: SchemaRef) -> Result<Writer> {
        let path = path.as_ref();
        let name: Arc<str> = path.to_string_lossy().into();
        let sink = self.sink.create(path)?;
        let properties = self.properties.clone();
        let inner = contain(None, || {
            ArrowWriter::try_new(Held(Some(sink)), schema, properties)
        })
        .map_err(|error| told(error, &name))?;
        Ok(Writer {
            inner: Some(inner),
            name,
        })
    }
}

/// Writes record batches to a Parquet file that appears whole at [`commit`](Self::commit), or not at all.
///
/// Encoding and compression are the `parquet` crate's ([`ArrowWriter`]), on the calling thread. The rows of the row group that
/// is being filled are in memory, encoded and compressed; the others are with the [`FileSink`], whose rules hold: until
/// the commit, and after any error before it, an old file at the path is there, untouched. Dropping the writer removes what
/// was written.
///
/// ```
/// use std::sync::Arc;
///
/// use arrow_array::{ArrayRef, Int64Array, RecordBatch};
/// use feedwater::parquet::Writer;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.parquet");
/// let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
/// let batch = RecordBatch::try_from_iter([("n", column)])?;
/// let mut writer = Writer::create(&path, batch.schema())?;
/// writer.write(&batch)?;
/// writer.commit()?;
/// # assert!(path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing appears without a commit"]
pub struct Writer {
    /// `None` after a failure: the `parquet` crate says nothing about a writer that failed.
    inner: Option<ArrowWriter<Held>>,
    name: Arc<str>,
}

/// The sink, which can be taken out of a writer that has finished: the crate's own way to it finishes once more.
struct Held(Option<FileSink>);

impl Writer {
    /// A writer with the default [options](WriterOptions).
    ///
    /// # Errors
    /// Those of [`WriterOptions::create`].
    pub fn create(path: impl AsRef<Path>, schema: SchemaRef) -> Result<Self> {
        WriterOptions::new().create(path, schema)
    }

    /// Appends rows. A row group that is full goes to the sink.
    ///
    /// # Errors
    /// Those of [`FileSink::write_at`]; [`InvalidOption`](ErrorKind::InvalidOption) if the columns of `batch` are not those of
    /// the schema; [`Panicked`](ErrorKind::Panicked). After an error nothing can be written or committed any more:
    /// [`Abandoned`](ErrorKind::Abandoned).
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.with(|inner| inner.write(batch))
    }

    /// Ends the row group that is being filled. Does nothing if it has no rows.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn end_row_group(&mut self) -> Result<()> {
        self.with(ArrowWriter::flush)
    }

    /// Bytes of memory that the row group in progress takes, as far as the `parquet` crate estimates it.
    pub fn memory_size(&self) -> usize {
        self.inner.as_ref().map_or(0, ArrowWriter::memory_size)
    }

    /// Writes the footer and puts the file in place: its version, and what the footer says.
    ///
    /// # Errors
    /// Those of [`write`](Self::write) and of [`FileSink::commit`].
    pub fn commit(mut self) -> Result<(FileVersion, ParquetMetaData)> {
        let footer = self.with(ArrowWriter::finish)?;
        let sink = self
            .inner
            .as_mut()
            .and_then(|inner| inner.inner_mut().0.take());
        let sink = sink.ok_or_else(|| self.abandoned())?;
        Ok((sink.commit()?, footer))
    }

    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut ArrowWriter<Held>) -> parquet::errors::Result<T>,
    ) -> Result<T> {
        let mut inner = self.inner.take().ok_or_else(|| self.abandoned())?;
        let outcome = contain(None, || f(&mut inner));
        // What failed is dropped, and its temporary file with it.
        let value = outcome.map_err(|error| told(error, &self.name))?;
        self.inner = Some(inner);
        Ok(value)
    }

    fn abandoned(&self) -> Error {
        Error::new(ErrorKind::Abandoned).named(&self.name)
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("name", &self.name)
            .field("failed", &self.inner.is_none())
            .finish_non_exhaustive()
    }
}

impl io::Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink()?.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(self.sink()?)
    }
}

impl Held {
    fn sink(&mut self) -> io::Result<&mut FileSink> {
        let taken = || io::Error::from(Error::new(ErrorKind::Abandoned));
        self.0.as_mut().ok_or_else(taken)
    }
}

/// Where bytes are written, what is not right is what the caller gave.
fn told(error: Error, name: &Arc<str>) -> Error {
    let error = match error.kind() {
        ErrorKind::Malformed { what, .. } => {
            Error::new(ErrorKind::InvalidOption { what: what.clone() })
        }
        _ => error,
    };
    error.named(name)
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn batch(name: &str) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        RecordBatch::try_from_iter([(name, column)]).unwrap()
    }

    fn files(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn nothing_is_left_of_what_was_not_committed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, "old").unwrap();
        let batch = batch("n");
        let mut writer = Writer::create(&path, batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.end_row_group().unwrap();
        assert_eq!(files(dir.path()).len(), 2);
        drop(writer);
        assert_eq!(files(dir.path()), ["t"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn other_columns_are_refused_and_end_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let mut writer = Writer::create(&path, batch("n").schema()).unwrap();
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
        let other = RecordBatch::try_from_iter([("n", text)]).unwrap();
        let error = writer.write(&other).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { .. }),
            "{error}"
        );
        assert_eq!(error.name(), path.to_str());
        assert_eq!(files(dir.path()), [""; 0]);
        let error = writer.write(&batch("n")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
        let error = writer.commit().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn a_failure_of_the_sink_is_its_own_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, "old").unwrap();
        let options = WriterOptions::new().sink(SinkOptions::new().overwrite(false));
        let error = options.create(&path, batch("n").schema()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
        std::fs::remove_file(&path).unwrap();
        let mut writer = options.create(&path, batch("n").schema()).unwrap();
        writer.write(&batch("n")).unwrap();
        std::fs::write(&path, "taken").unwrap();
        let error = writer.commit().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::AlreadyExists), "{error}");
        assert_eq!(files(dir.path()), ["t"]);
    }
}
