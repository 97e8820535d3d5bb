//! Consecutive records that lie in one block.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

/// Most records in one [`Frames`]: few enough that the list and, for small records, the bytes stay in a cache.
pub(crate) const MOST: usize = 2048;

/// Consecutive records of one file, whole and checked, in one shared block of its bytes.
///
/// No record is copied or allocated by itself: the block is memory as the reader brought it (or as it was inflated),
/// and a list says where in it the data of each record is. A record that lies across two chunks is in a block of its
/// own. At most 2,048 records.
#[derive(Clone, Default)]
pub struct Frames {
    pub(crate) block: Bytes,
    pub(crate) places: Vec<Place>,
    /// Number of the first record.
    pub(crate) first: u64,
    /// Offset of the block in the file, before compression.
    pub(crate) base: u64,
    /// Which file of a set.
    pub(crate) shard: usize,
}

/// Where the data of a record is in its block. The parser makes none that is outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Frames {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The data of the record at `index` of these, or `None` past the last one. Free.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let place = self.places.get(index)?;
        self.block.get(place.start..place.start + place.len)
    }

    /// The data of the record at `index` as bytes that share the block; one count of references. They keep the whole
    /// block.
    pub fn bytes(&self, index: usize) -> Option<Bytes> {
        let place = self.places.get(index)?;
        Some(self.block.slice(place.start..place.start + place.len))
    }

    /// The data of all records, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.places.iter().map(|place| {
            self.block
                .get(place.start..place.start + place.len)
                .unwrap_or_default()
        })
    }

    /// The block that they lie in, with what is between them.
    pub fn block(&self) -> &Bytes {
        &self.block
    }

    /// Where in the [block](Self::block) the data of each record is.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        let range = |place: &Place| place.start..place.start + place.len;
        self.places.iter().map(range)
    }

    /// Number, in its file, of the first record, from 0. The others follow one by one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Offset in its file at which the frame of the record at `index` begins (its data is 12 bytes further). In a
    /// compressed file: of what is compressed.
    pub fn offset(&self, index: usize) -> Option<u64> {
        let place = self.places.get(index)?;
        Some(self.base + place.start as u64 - super::frame::HEADER as u64)
    }

    /// Which file of a set they are of, from 0; 0 for a reader by itself.
    pub fn shard(&self) -> usize {
        self.shard
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("len", &self.len())
            .field("first", &self.first)
            .field("shard", &self.shard)
            .field("block", &self.block.len())
            .finish_non_exhaustive()
    }
}
