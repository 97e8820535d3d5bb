//! A range of a source as a source of its own.

use std::ops::Range;
use std::sync::Arc;

use super::Reader;
use super::batch::{Batch, ReadInto};
use super::pending::Pending;
use super::source::{LocalFile, Source};
use crate::error::Result;
use crate::version::Version;

/// A range of another reader: offset 0 is where the range begins. Made by
/// [`ReaderExt::slice`](super::ReaderExt::slice).
///
/// Bounds are those of the slice. Other errors come from the reader below and carry its offsets, since they
/// speak of the file. Counters are shared with it. The version is a [part](Version::Part) of
/// the file's.
#[derive(Debug)]
pub struct Slice<R: Reader + ?Sized> {
    inner: Arc<R>,
    start: u64,
    source: Source,
}

impl<R: Reader + ?Sized> Slice<R> {
    pub(super) fn new(inner: Arc<R>, range: Range<u64>) -> Result<Self> {
        let whole = inner.source();
        whole.check(&range)?;
        let name = format!("{}[{}..{}]", whole.name(), range.start, range.end);
        let version = Version::Part {
            whole: Arc::new(whole.version().clone()),
            range: range.clone(),
        };
        // Offsets of the slice are aligned as those of the file only if it begins so.
        let mut limits = whole.limits();
        if !range.start.is_multiple_of(limits.align as u64) {
            limits.align = 1;
        }
        let source = whole.derived(name.into(), version, limits);
        Ok(Slice {
            start: range.start,
            source,
            inner,
        })
    }

    /// The reader that this is a range of.
    pub fn inner(&self) -> &Arc<R> {
        &self.inner
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Reader + ?Sized> Reader for Slice<R> {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, mut batch: Batch) -> Pending {
        for index in 0..batch.reads.len() {
            let range = batch.reads[index].range.clone();
            match self.source.check(&range) {
                Ok(()) => {
                    batch.reads[index].range = self.start + range.start..self.start + range.end;
                }
                Err(error) => batch.refuse(index, error),
            }
        }
        self.inner.submit(batch)
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        for read in reads.iter() {
            self.source.check(&read.range())?;
        }
        let mut shifted: Vec<_> = reads
            .iter_mut()
            .map(|read| ReadInto::new(self.start + read.offset, &mut *read.buf))
            .collect();
        match shifted.as_mut_slice() {
            [] => Ok(()),
            reads => self.inner.read_now(reads),
        }
    }
    fn local_file(&self) -> Option<LocalFile<'_>> {
        let whole = self.inner.local_file()?;
        Some(LocalFile {
            start: whole.start + self.start,
            ..whole
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::MemoryReader;
    use crate::error::ErrorKind;
    use crate::reader::ReaderExt;

    #[test]
    fn bounds_are_its_own_and_bytes_are_shifted() {
        let reader = Arc::new(MemoryReader::new("0123456789"));
        let slice = Arc::new(reader.slice(2..7).unwrap());
        assert_eq!(slice.source().len(), 5);
        assert_eq!(slice.read(1..3).wait().unwrap(), "34");
        assert_eq!(slice.tail(100).wait().unwrap(), "23456");
        let error = slice.read(3..6).wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 5 }));
        assert_eq!(error.offset(), Some(3));
        let mut buf = [0; 3];
        let error = slice.read_at(3, &mut buf).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 5 }));
        let inner = slice.slice(4..5).unwrap();
        assert_eq!(inner.read_all().wait().unwrap(), "6");
    }

    #[test]
    fn versions_of_other_parts_and_other_memory_differ() {
        let reader = Arc::new(MemoryReader::new("0123456789"));
        let version = |range| reader.slice(range).unwrap().source().version().clone();
        assert_eq!(version(0..5), version(0..5));
        assert_ne!(version(0..5), version(5..10));
        assert_ne!(&version(0..10), reader.source().version());
        let other = MemoryReader::new("9876543210");
        assert_ne!(other.source().version(), reader.source().version());
        assert_eq!(version(2..7).size(), 5);
    }

    #[test]
    fn a_refused_read_leaves_the_others_alone() {
        let slice = Arc::new(MemoryReader::new("0123456789"))
            .slice(2..7)
            .unwrap();
        let mut pending = slice.submit(Batch::of([0..1, 4..6, 4..5]));
        let mut ok = Vec::new();
        while let Some((index, outcome)) = pending.wait_next() {
            if outcome.is_ok() {
                ok.push(index);
            }
        }
        ok.sort_unstable();
        assert_eq!(ok, [0, 2]);
    }
}
