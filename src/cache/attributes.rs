//! What is known of a path: attributes, and the names in a directory.

use std::ffi::OsStr;
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;

use quick_cache::DefaultHashBuilder;

use crate::files::{EntryKind, FileAttributes};
use crate::version::Version;

/// What `stat` tells of a path: kind, version, owner. A store of objects gives what it has, and zero for the rest.
///
/// ```
/// use feedwater::cache::Attributes;
/// use feedwater::{EntryKind, Version};
///
/// let version = Version::Etag { etag: "\"9b2cf5\"".into(), size: 4096 };
/// let object = Attributes::new(EntryKind::File, version);
/// assert_eq!((object.size(), object.permissions), (4096, 0));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What the path leads to.
    pub kind: EntryKind,
    /// What identifies the content: device, inode, size and times of a file, or an entity tag and a size.
    pub version: Version,
    /// Permissions: the low twelve bits of the mode.
    pub permissions: u32,
    /// The owner's id.
    pub user: u32,
    /// The group's id.
    pub group: u32,
}

impl Attributes {
    /// Attributes of a kind and a version; permissions and owner are 0 until they are set.
    pub fn new(kind: EntryKind, version: Version) -> Self {
        Attributes {
            kind,
            version,
            permissions: 0,
            user: 0,
            group: 0,
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

impl From<FileAttributes> for Attributes {
    fn from(found: FileAttributes) -> Self {
        Attributes {
            kind: found.kind,
            version: Version::File(found.version),
            permissions: found.permissions,
            user: found.user,
            group: found.group,
        }
    }
}

/// Whether two versions of one path name the same content for a cache: `ctime` counts too, since a content that was
/// changed and given its old `mtime` again differs in nothing else.
pub(crate) fn same_content(a: &Version, b: &Version) -> bool {
    match (a, b) {
        (Version::File(a), Version::File(b)) => a == b && a.ctime == b.ctime,
        (
            Version::Part { whole: a, range },
            Version::Part {
                whole: b,
                range: other,
            },
        ) => range == other && same_content(a, b),
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
    use std::sync::Arc;

    use crate::version::{FileVersion, Timestamp};

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
        let (version, other) = (Version::File(version), Version::File(other));
        assert!(same_content(&version, &version) && !same_content(&version, &other));
        let part = |whole: &Version| Version::Part {
            whole: Arc::new(whole.clone()),
            range: 0..9,
        };
        assert_eq!(part(&version), part(&other));
        assert!(same_content(&part(&version), &part(&version)));
        assert!(!same_content(&part(&version), &part(&other)));
        let tag = |etag: &str| Version::Etag {
            etag: etag.into(),
            size: 3,
        };
        assert!(same_content(&tag("x"), &tag("x")));
        assert!(!same_content(&tag("x"), &tag("y")));
    }
}
