//! Which format a source has.

use crate::error::Result;
use crate::format::detect::Format;
use crate::reader::{Reader, ReaderExt};

impl Format {
    /// The format of what `reader` reads, by its first [`HEAD`](Self::HEAD) bytes: one request. `None`: none of these.
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
        let len = reader.len();
        let head = reader.read(0..len.min(Format::HEAD as u64)).wait()?;
        Ok(Format::detect(&head, len))
    }
}
