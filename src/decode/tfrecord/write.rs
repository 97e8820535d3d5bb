//! Writing TFRecord files that appear whole or not at all.

use std::fmt;
use std::io::Write;
use std::path::Path;

use flate2::write::{GzEncoder, ZlibEncoder};

use super::options::Compression;
use crate::error::{Error, Result};
use crate::format::tfrecord::frame::{footer, header};
use crate::version::FileVersion;
use crate::write::{FileSink, SinkOptions};

/// How a [`Writer`] writes.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until `create`"]
pub struct WriterOptions {
    compression: Compression,
    level: u32,
    sink: SinkOptions,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            compression: Compression::None,
            level: 6,
            sink: SinkOptions::default(),
        }
    }
}

impl WriterOptions {
    /// Not compressed, with the default options of a sink.
    pub fn new() -> Self {
        WriterOptions::default()
    }

    /// How the file is compressed as a whole. Default: not at all, which is what random access needs.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// From 0 (none) to 9 (smallest); larger ones are taken as 9. Default 6.
    pub fn level(mut self, level: u32) -> Self {
        self.level = level.min(9);
        self
    }

    /// How the file comes to be: whether it replaces another, what is synced.
    pub fn sink(mut self, sink: SinkOptions) -> Self {
        self.sink = sink;
        self
    }

    /// Begins a file, which appears at [`Writer::commit`].
    ///
    /// # Errors
    /// Those of [`SinkOptions::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Writer> {
        let sink = self.sink.create(path)?;
        let level = flate2::Compression::new(self.level);
        let out = match self.compression {
            Compression::None => Out::Plain(Box::new(sink)),
            Compression::Gzip => Out::Gzip(Box::new(GzEncoder::new(sink, level))),
            Compression::Zlib => Out::Zlib(Box::new(ZlibEncoder::new(sink, level))),
        };
        Ok(Writer {
            out,
            records: 0,
            failed: None,
        })
    }
}

/// Writes records to a [`FileSink`]: the file appears whole at [`commit`](Self::commit), or not at all.
///
/// ```
/// use feedwater::tfrecord::{Compression, WriterOptions};
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("data.tfrecord.gz");
/// let mut writer = WriterOptions::new().compression(Compression::Gzip).create(&path)?;
/// writer.write(b"a record")?;
/// writer.commit()?;
/// let records: Vec<_> = feedwater::tfrecord::records(feedwater::open(&path)?).collect::<Result<_, _>>()?;
/// assert_eq!(records[0].data, "a record");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing appears without `commit`"]
pub struct Writer {
    out: Out,
    records: u64,
    /// The first failure: part of a record may be written.
    failed: Option<Error>,
}

enum Out {
    Plain(Box<FileSink>),
    Gzip(Box<GzEncoder<FileSink>>),
    Zlib(Box<ZlibEncoder<FileSink>>),
}

impl Writer {
    /// A writer to `path` with the default [options](WriterOptions).
    ///
    /// # Errors
    /// Those of [`SinkOptions::create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        WriterOptions::new().create(path)
    }

    /// Writes one record with this data. Two checksums, one copy into the block of the sink.
    ///
    /// # Errors
    /// Those of [`FileSink::write_at`]. After one of them, every call answers with it.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let outcome = self
            .put(&header(data.len() as u64))
            .and_then(|()| self.put(data))
            .and_then(|()| self.put(&footer(data)));
        match &outcome {
            Ok(()) => self.records += 1,
            Err(error) => self.failed = Some(error.clone()),
        }
        outcome
    }

    /// Records written so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Puts the file in place, and says which version it is.
    ///
    /// # Errors
    /// Those of [`FileSink::commit`], and the first one of [`write`](Self::write).
    pub fn commit(self) -> Result<FileVersion> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let sink = match self.out {
            Out::Plain(sink) => *sink,
            Out::Gzip(encoder) => encoder.finish().map_err(ours)?,
            Out::Zlib(encoder) => encoder.finish().map_err(ours)?,
        };
        sink.commit()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.out {
            Out::Plain(sink) => sink.append(bytes),
            Out::Gzip(encoder) => encoder.write_all(bytes).map_err(ours),
            Out::Zlib(encoder) => encoder.write_all(bytes).map_err(ours),
        }
    }
}

/// The error of the sink, which an encoder passes on inside of an [`std::io::Error`].
fn ours(error: std::io::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::io("compression", error),
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("records", &self.records)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
