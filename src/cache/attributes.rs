//! What is known of a path: attributes, and the names in a directory.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use quick_cache::DefaultHashBuilder;

use crate::error::FileKind;
use crate::version::{FileVersion, Version};

/// What a name leads to.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file, or an object of a store.
    File,
    /// A directory, or a common prefix of a store.
    Directory,
    /// A symbolic link: in listings, which do not follow it.
    Symlink,
    /// Something else: a FIFO, a socket, a device.
    Other(FileKind),
}

impl From<std::fs::FileType> for EntryKind {
    fn from(kind: std::fs::FileType) -> Self {
        if kind.is_file() {
            EntryKind::File
        } else if kind.is_dir() {
            EntryKind::Directory
        } else if kind.is_symlink() {
            EntryKind::Symlink
        } else if kind.is_fifo() {
            EntryKind::Other(FileKind::Fifo)
        } else if kind.is_socket() {
            EntryKind::Other(FileKind::Socket)
        } else if kind.is_char_device() {
            EntryKind::Other(FileKind::CharacterDevice)
        } else if kind.is_block_device() {
            EntryKind::Other(FileKind::BlockDevice)
        } else {
            EntryKind::Other(FileKind::Unknown)
        }
    }
}

/// What `stat` tells of a path: kind, version, owner. A store of objects gives what it has, and zero for the rest.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What the path leads to.
    pub kind: EntryKind,
    /// What identifies the content: device, inode, size and times of a file, or an entity tag and a size.
    pub version: Version,
    /// Type and permission bits, as `st_mode`.
    pub mode: u32,
    /// User that owns it.
    pub uid: u32,
    /// Group that owns it.
    pub gid: u32,
}

impl Attributes {
    /// Attributes of a kind and a version; mode and owner are 0 until they are set.
    pub fn new(kind: EntryKind, version: Version) -> Self {
        Attributes {
            kind,
            version,
            mode: 0,
            uid: 0,
            gid: 0,
        }
    }

    /// Length of the content in bytes.
    pub fn size(&self) -> u64 {
        self.version.size()
    }

    /// Bytes behind pointers.
    pub(crate) fn more_bytes(&self) -> usize {
        match &self.version {
            Version::Etag { etag, .. } => etag.len() + 16,
            _ => 0,
        }
    }
}

impl From<&Metadata> for Attributes {
    fn from(metadata: &Metadata) -> Self {
        Attributes {
            kind: metadata.file_type().into(),
            version: Version::File(FileVersion::from(metadata)),
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
        }
    }
}

/// Whether two versions of one path name the same content for a cache: `ctime` counts too, since a content that was
/// changed and given its old `mtime` again differs in nothing else.
pub(crate) fn same_content(a: &Version, b: &Version) -> bool {
    match (a, b) {
        (Version::File(a), Version::File(b)) => a == b && a.ctime == b.ctime,
        (a, b) => a == b,
    }
}

/// The names in one directory, sorted by their bytes, without `.` and `..`.
#[derive(Debug)]
pub struct Listing {
    pub(crate) table: NameTable<EntryKind>,
}

impl Listing {
    /// How many names there are.
    pub fn len(&self) -> usize {
        self.table.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.rows.is_empty()
    }

    /// The names with their kinds. The kind of a symbolic link is [`EntryKind::Symlink`].
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&OsStr, EntryKind)> + '_ {
        self.table
            .rows
            .iter()
            .map(|row| (OsStr::from_bytes(self.table.name(row)), row.value))
    }

    /// The kind of the entry of this name, if there is one. Costs a look-up.
    pub fn get(&self, name: impl AsRef<OsStr>) -> Option<EntryKind> {
        let index = self.table.find(name.as_ref().as_bytes())?;
        self.table.rows.get(index).map(|row| row.value)
    }
}

/// Names in one piece of memory, each with a value; sorted once it is complete.
#[derive(Debug)]
pub(crate) struct NameTable<T> {
    bytes: Vec<u8>,
    pub(crate) rows: Vec<Row<T>>,
    /// Numbers of rows by the hash of the name, from 1; 0 is a free place. A power of two, at most half full.
    index: Vec<u32>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
pub(crate) struct Row<T> {
    start: u32,
    len: u32,
    pub(crate) value: T,
}

impl<T> NameTable<T> {
    pub(crate) fn new() -> Self {
        NameTable {
            bytes: Vec::new(),
            rows: Vec::new(),
            index: Vec::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Bytes that one more name takes, as [`held`](Self::held) counts.
    pub(crate) fn bytes_of(name: &[u8]) -> usize {
        name.len() + size_of::<Row<T>>() + 4 * size_of::<u32>()
    }

    /// Bytes of all names and rows, and of the index that they have or will have.
    pub(crate) fn held(&self) -> usize {
        let index = (self.rows.len() * 2).next_power_of_two();
        self.bytes.len() + self.rows.len() * size_of::<Row<T>>() + index * size_of::<u32>()
    }

    /// Adds a name. False if the table has 4 GiB of names already.
    pub(crate) fn push(&mut self, name: &[u8], value: T) -> bool {
        let (Ok(start), Ok(len)) = (u32::try_from(self.bytes.len()), u32::try_from(name.len()))
        else {
            return false;
        };
        self.bytes.extend_from_slice(name);
        self.rows.push(Row { start, len, value });
        true
    }

    /// Sorts by name and gives spare memory back; of equal names the first stays.
    pub(crate) fn finish(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let name = |row: &Row<T>| {
            let start = row.start as usize;
            bytes.get(start..start + row.len as usize).unwrap_or(&[])
        };
        self.rows.sort_by(|a, b| name(a).cmp(name(b)));
        self.rows.dedup_by(|b, a| name(a) == name(b));
        self.bytes = bytes;
        self.bytes.shrink_to_fit();
        self.rows.shrink_to_fit();
        let mut index = vec![0u32; (self.rows.len() * 2).next_power_of_two()];
        for (number, row) in (1..).zip(&self.rows) {
            let free = self
                .places(self.name(row), index.len())
                .find(|place| index.get(*place) == Some(&0));
            if let Some(free) = free.and_then(|place| index.get_mut(place)) {
                *free = number;
            }
        }
        self.index = index;
    }

    /// Where a name may stand in an index of this length, in the order of looking.
    fn places(&self, name: &[u8], len: usize) -> impl Iterator<Item = usize> + use<T> {
        let first = self.hasher.hash_one(name) as usize;
        (0..len).map(move |step| first.wrapping_add(step) & (len - 1))
    }

    pub(crate) fn name(&self, row: &Row<T>) -> &[u8] {
        let start = row.start as usize;
        self.bytes
            .get(start..start + row.len as usize)
            .unwrap_or(&[])
    }

    /// Where the name is, in a finished table.
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        for place in self.places(name, self.index.len()) {
            let number = *self.index.get(place)? as usize;
            let row = self.rows.get(number.checked_sub(1)?)?;
            if self.name(row) == name {
                return Some(number - 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Timestamp;

    #[test]
    fn a_finished_table_finds_each_name_once() {
        let mut table = NameTable::new();
        for (index, name) in ["b", "", "a", "b", "aa"].iter().enumerate() {
            assert!(table.push(name.as_bytes(), index));
        }
        table.finish();
        let found = |name: &str| {
            table
                .find(name.as_bytes())
                .and_then(|i| table.rows.get(i))
                .map(|row| row.value)
        };
        assert_eq!(found("a"), Some(2));
        assert_eq!(found("b"), Some(0));
        assert_eq!(found(""), Some(1));
        assert_eq!(found("aa"), Some(4));
        assert_eq!(found("c"), None);
        assert_eq!(table.rows.len(), 4);
    }

    #[test]
    fn the_change_time_makes_other_content_and_etags_their_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let version = FileVersion::from(&file.as_file().metadata().unwrap());
        let mut other = version;
        other.ctime = Timestamp {
            seconds: 1,
            nanoseconds: 2,
        };
        assert_eq!(version, other);
        assert!(!same_content(
            &Version::File(version),
            &Version::File(other)
        ));
        let tag = |etag: &str| Version::Etag {
            etag: etag.into(),
            size: 3,
        };
        assert!(same_content(&tag("x"), &tag("x")));
        assert!(!same_content(&tag("x"), &tag("y")));
    }
}
