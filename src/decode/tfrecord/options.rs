//! How records are read, and what became of those that are corrupt.

use std::sync::Arc;

use super::records::{FrameBatches, Records};
use super::walk::Walk;
use crate::error::{Error, ErrorKind, RecordCheck, Result};
use crate::reader::{ChunkOptions, Reader};

/// Most bytes of a record in a compressed stream, unless the caller says otherwise: 256 MiB.
const MOST_INFLATED: u64 = 256 << 20;
/// Most corrupt records whose places are kept.
const MOST_LISTED: usize = 10_000;
/// A share of fewer records than this means little.
const SHARE_OF: u64 = 1000;

/// How the bytes of a file are compressed as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip (RFC 1952), of one member or several.
    Gzip,
    /// zlib (RFC 1950).
    Zlib,
}

/// What becomes of corrupt records.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum OnCorrupt {
    /// The first one is an error, and the end.
    #[default]
    Fail,
    /// They are left out and [reported](Skipped), as long as there are not too many.
    ///
    /// If only the checksum of the data is wrong, or the length is right and above the cap, just that record is left
    /// out. If the length cannot be trusted, the next place is searched at which the checksums of a length and of its
    /// data are both right; data that itself holds whole TFRecords can be taken for records there. If the file ends
    /// inside a record, that is the end.
    Skip {
        /// When it is too much: the corrupt record that goes past it is the error.
        at_most: AtMost,
    },
}

/// How many corrupt records are borne.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum AtMost {
    /// So many.
    Records(u64),
    /// This share, from 0 to 1, of all records met. While there are fewer than 1,000, it is of 1,000; at the end it
    /// is of all there were.
    Share(f64),
    /// Any number.
    Any,
}

/// How TFRecord files are read; the default is right for most.
///
/// ```
/// use std::sync::Arc;
/// use feedwater::tfrecord::{AtMost, OnCorrupt, RecordOptions, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data.tfrecord");
/// let mut writer = Writer::create(&path)?;
/// for text in ["one", "two", "three"] {
///     writer.write(text.as_bytes())?;
/// }
/// writer.commit()?;
/// # let mut bytes = std::fs::read(&path)?;
/// # bytes[16 + 3 + 12] ^= 1;
/// # std::fs::write(&path, bytes)?;
/// // … a bit of "two" falls over …
/// let options = RecordOptions::new().on_corrupt(OnCorrupt::Skip { at_most: AtMost::Records(1) });
/// let mut records = options.records(feedwater::open(&path)?);
/// let texts: Vec<_> = records.by_ref().map(|record| record.unwrap().data).collect();
/// assert_eq!(texts, ["one", "three"]);
/// assert_eq!(records.skipped().records(), 1);
/// assert_eq!(records.skipped().list()[0].record, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct RecordOptions {
    pub(super) verify_data: bool,
    pub(super) compression: Option<Compression>,
    pub(super) on_corrupt: OnCorrupt,
    pub(super) max_record: Option<u64>,
    pub(super) chunks: ChunkOptions,
}

impl Default for RecordOptions {
    fn default() -> Self {
        RecordOptions {
            verify_data: true,
            compression: None,
            on_corrupt: OnCorrupt::Fail,
            max_record: None,
            chunks: ChunkOptions::default(),
        }
    }
}

impl RecordOptions {
    /// Both checksums checked, compression recognised, corrupt records an error.
    pub fn new() -> Self {
        RecordOptions::default()
    }

    /// Whether the checksum of each record's data is checked. Default true. That of the length always is, as
    /// everything behind a wrong length is wrong.
    pub fn verify_data(mut self, verify: bool) -> Self {
        self.verify_data = verify;
        self
    }

    /// How the files are compressed. Default: recognised by their first bytes. If those are the length of a record with
    /// its right checksum, a file is not compressed, whatever else they look like.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// What becomes of corrupt records. Default [`OnCorrupt::Fail`].
    pub fn on_corrupt(mut self, on_corrupt: OnCorrupt) -> Self {
        self.on_corrupt = on_corrupt;
        self
    }

    /// Most bytes of a record's data: a longer one counts as corrupt. Default: what is left of the file, and 256 MiB in
    /// a compressed one, whose length is not known before its end.
    pub fn max_record(mut self, bytes: u64) -> Self {
        self.max_record = Some(bytes);
        self
    }

    /// In which chunks the file is read, how many bytes ahead, and with what priority. A chunk is what most records
    /// share as their block.
    pub fn chunks(mut self, chunks: ChunkOptions) -> Self {
        self.chunks = chunks;
        self
    }

    /// The records of `reader`, one by one.
    pub fn records<R: Reader + ?Sized>(&self, reader: Arc<R>) -> Records<R> {
        Records::new(Walk::one(reader, self.clone()))
    }

    /// The records of `reader`, many at a time: for code that goes through their bytes and keeps none of them.
    pub fn frames<R: Reader + ?Sized>(&self, reader: Arc<R>) -> FrameBatches<R> {
        FrameBatches::new(Walk::one(reader, self.clone()))
    }

    pub(super) fn most(&self, compression: Compression) -> u64 {
        self.max_record.unwrap_or(match compression {
            Compression::None => u64::MAX,
            Compression::Gzip | Compression::Zlib => MOST_INFLATED,
        })
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.on_corrupt {
            OnCorrupt::Skip {
                at_most: AtMost::Share(share),
            } if !(0.0..=1.0).contains(&share) => Err(Error::new(ErrorKind::InvalidOption {
                what: format!("a share of corrupt records of {share} is not from 0 to 1").into(),
            })),
            _ => Ok(()),
        }
    }
}

impl AtMost {
    /// Whether so many corrupt records of all that were met are too many.
    pub(super) fn is_exceeded(self, corrupt: u64, met: u64, at_the_end: bool) -> bool {
        match self {
            AtMost::Any => false,
            AtMost::Records(most) => corrupt > most,
            AtMost::Share(share) => {
                let of = if at_the_end { met } else { met.max(SHARE_OF) };
                corrupt as f64 > share * of as f64
            }
        }
    }
}

/// The corrupt records that were left out so far.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    records: u64,
    bytes: u64,
    list: Vec<SkippedRecord>,
}

/// Where a corrupt record was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedRecord {
    /// Which file of a set, from 0.
    pub shard: usize,
    /// Name of the file.
    pub name: Arc<str>,
    /// Number of the record in its file. Where a length could not be trusted, what was left out counts as one record.
    pub record: u64,
    /// Offset in the file (before compression) at which it begins.
    pub offset: u64,
    /// Bytes left out from there on; to the end of the file, if nothing sound was found behind.
    pub length: u64,
    /// The check that failed.
    pub check: RecordCheck,
}

impl Skipped {
    /// How many.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// How many bytes, with lengths and checksums.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where. The first 10,000 of them.
    pub fn list(&self) -> &[SkippedRecord] {
        &self.list
    }

    pub(super) fn add(&mut self, skipped: SkippedRecord) {
        self.records += 1;
        self.bytes += skipped.length;
        if self.list.len() < MOST_LISTED {
            self.list.push(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_judged_of_a_thousand_first_and_of_all_at_the_end() {
        let share = AtMost::Share(0.01);
        assert!(!share.is_exceeded(10, 20, false));
        assert!(share.is_exceeded(11, 20, false));
        assert!(share.is_exceeded(10, 20, true));
        assert!(!share.is_exceeded(30, 3000, true));
        assert!(share.is_exceeded(31, 3000, false));
        assert!(!AtMost::Records(2).is_exceeded(2, 2, true));
        assert!(AtMost::Records(2).is_exceeded(3, 999, true));
        assert!(!AtMost::Any.is_exceeded(u64::MAX, 1, true));
    }

    #[test]
    fn no_more_places_are_kept_than_said() {
        let mut skipped = Skipped::default();
        for record in 0..MOST_LISTED as u64 + 5 {
            skipped.add(SkippedRecord {
                shard: 0,
                name: "x".into(),
                record,
                offset: 0,
                length: 2,
                check: RecordCheck::DataChecksum,
            });
        }
        assert_eq!(skipped.list().len(), MOST_LISTED);
        assert_eq!((skipped.records(), skipped.bytes()), (10_005, 20_010));
    }
}
