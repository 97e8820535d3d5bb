//! Bytes that their position determines.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::reader::seeded::mix;

/// A description of bytes: each is a hash of the seed and its offset, so that any range can be checked without
/// the whole being kept. The sparse form has such bytes in islands, and zeroes between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    seed: u64,
    len: u64,
    islands: Option<Arc<[Range<u64>]>>,
}

/// Bytes written at once.
const PIECE: u64 = 1 << 20;

impl Content {
    /// `len` bytes without zeroes on purpose.
    pub fn dense(seed: u64, len: u64) -> Self {
        Content {
            seed,
            len,
            islands: None,
        }
    }

    /// `len` bytes that are zero except in `islands`; what of these lies past `len` is cut.
    pub fn sparse(seed: u64, len: u64, islands: impl IntoIterator<Item = Range<u64>>) -> Self {
        let islands = islands.into_iter();
        Content {
            seed,
            len,
            islands: Some(
                islands
                    .map(|island| island.start.min(len)..island.end.min(len))
                    .collect(),
            ),
        }
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether most of it is zeroes that need not be stored.
    pub fn is_sparse(&self) -> bool {
        self.islands.is_some()
    }

    /// The ranges outside of which all is zero; one range if it is dense.
    pub fn islands(&self) -> Vec<Range<u64>> {
        match &self.islands {
            None => vec![Range {
                start: 0,
                end: self.len,
            }],
            Some(islands) => islands.to_vec(),
        }
    }

    /// Writes the bytes from `offset` on into `buf`, as far as there are any, and says how many.
    pub fn fill(&self, offset: u64, buf: &mut [u8]) -> usize {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let n = left.min(buf.len());
        let buf = &mut buf[..n];
        match &self.islands {
            None => self.hash(offset, buf),
            Some(islands) => {
                buf.fill(0);
                for island in islands.iter() {
                    let start = island.start.max(offset);
                    let end = island.end.min(offset + n as u64);
                    if start < end {
                        let within = (start - offset) as usize..(end - offset) as usize;
                        self.hash(start, &mut buf[within]);
                    }
                }
            }
        }
        n
    }

    /// The bytes of a range, as far as there are any.
    pub fn range(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.len);
        let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
        self.fill(range.start, &mut bytes);
        bytes
    }

    /// All of it. Zeroes between islands take address space but no memory where the system maps fresh memory
    /// lazily.
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = vec![0; self.len as usize];
        for island in self.islands() {
            self.hash(
                island.start,
                &mut bytes[island.start as usize..island.end as usize],
            );
        }
        bytes.into()
    }

    /// Makes the file at `path`, with holes between islands where the file system has such.
    ///
    /// # Errors
    /// As the system says.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.len)?;
        for island in self.islands() {
            for piece in crate::reader::plan::split(island, PIECE) {
                file.write_all_at(&self.range(piece.clone()), piece.start)?;
            }
        }
        Ok(())
    }

    fn hash(&self, offset: u64, buf: &mut [u8]) {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let word = mix(self.seed ^ mix(at / 8 + 1)).to_le_bytes();
            let from = (at % 8) as usize;
            let n = rest.len().min(8 - from);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&word[from..from + n]);
            at += n as u64;
            rest = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_that_of_the_whole() {
        let dense = Content::dense(3, 1000);
        let sparse = Content::sparse(3, 1000, [0..10, 300..333, 990..2000]);
        for content in [dense, sparse] {
            let whole = content.to_bytes();
            assert_eq!(whole.len(), 1000);
            for (start, end) in [
                (0, 1000),
                (1, 2),
                (7, 9),
                (299, 301),
                (330, 995),
                (990, 5000),
            ] {
                let expected = &whole[start as usize..end.min(1000) as usize];
                assert_eq!(content.range(start..end), expected);
            }
            assert!(content.range(1000..1001).is_empty());
        }
    }

    #[test]
    fn islands_lie_in_zeroes_and_differ_by_seed_and_place() {
        let bytes = Content::sparse(3, 100, [20..60]).to_bytes();
        assert!(bytes[..20].iter().chain(&bytes[60..]).all(|b| *b == 0));
        assert_ne!(bytes[20..40], bytes[40..60]);
        assert_ne!(
            Content::dense(4, 8).to_bytes(),
            Content::dense(3, 8).to_bytes()
        );
    }

    #[test]
    fn files_hold_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("content");
        for content in [
            Content::dense(5, PIECE + 77),
            Content::sparse(5, 3 * PIECE, [9..PIECE + 50]),
            Content::dense(5, 0),
        ] {
            content.write_to(&path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content.to_bytes());
        }
    }
}
