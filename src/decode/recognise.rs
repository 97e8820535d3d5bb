//! Which format a source has.

use crate::error::Result;
use crate::format::detect::Format;
use crate::reader::{PendingRead, Reader, ReaderExt};

impl Format {
    /// The format of what `reader` reads, by its first [`HEAD`](Self::HEAD) bytes: one request, for which this
    /// thread waits. `None`: none of these.
    ///
    /// # Errors
    /// Those of the read.
    ///
    /// ```
    /// use feedwater::{Format, MemoryReader};
    ///
    /// let reader = MemoryReader::new("PAR1 and so on");
    /// assert_eq!(Format::of(&reader)?, Some(Format::Parquet));
    /// # Ok::<(), feedwater::Error>(())
    /// ```
    pub fn of<R: Reader + ?Sized>(reader: &R) -> Result<Option<Format>> {
        let head = head(reader).wait()?;
        Ok(Format::detect(&head, reader.len()))
    }

    /// The same in a task: [`of`](Self::of) on any executor, without blocking it.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub async fn of_async<R: Reader + ?Sized>(reader: &R) -> Result<Option<Format>> {
        let head = head(reader).await?;
        Ok(Format::detect(&head, reader.len()))
    }
}

fn head<R: Reader + ?Sized>(reader: &R) -> PendingRead {
    reader.read(0..reader.len().min(Format::HEAD as u64))
}
