//! What identifies the content of a source, so that a change under a reader is noticed.

use std::fmt;
use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A point in time as a file system records it: seconds and nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds since the epoch; negative before it.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanoseconds)
    }
}

/// Identity and state of one file, as `fstat` tells it.
///
/// Two values are equal when device, inode, size and modification time are. The change time
/// ([`ctime`](Self::ctime)) is left out of equality: a `chmod` or a new hard link moves it without touching a
/// byte. Caches that want to be stricter compare it as well.
///
/// # Limits
/// A file system writes `mtime` with a granularity of its own (a scheduler tick on Linux before 6.13, finer
/// after), and does not write it at all for stores through a shared writable mapping until those pages are
/// written back. A change that keeps the size and falls into that window cannot be seen by anybody. Nor can a
/// writer that sets the old `mtime` again, or one that was in the middle of a `write` at the open, since the
/// time is written before the pages are.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FileVersion {
    /// Device number of the file system.
    pub dev: u64,
    /// Inode number within it.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last modification of the content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes. Not part of equality.
    pub ctime: Timestamp,
}

impl From<&Metadata> for FileVersion {
    fn from(metadata: &Metadata) -> Self {
        let time = |seconds: i64, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: nanoseconds as u32, // less than a milliard
        };
        FileVersion {
            dev: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl FileVersion {
    /// From what `stat` tells. The fields of `stat` have other types on other systems and architectures.
    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        clippy::cast_lossless
    )]
    pub(crate) fn from_stat(stat: &rustix::fs::Stat) -> Self {
        FileVersion {
            dev: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as u64,
            mtime: Timestamp {
                seconds: stat.st_mtime as i64,
                nanoseconds: stat.st_mtime_nsec as u32,
            },
            ctime: Timestamp {
                seconds: stat.st_ctime as i64,
                nanoseconds: stat.st_ctime_nsec as u32,
            },
        }
    }
}

impl PartialEq for FileVersion {
    fn eq(&self, other: &Self) -> bool {
        (self.dev, self.inode, self.size, self.mtime)
            == (other.dev, other.inode, other.size, other.mtime)
    }
}

impl Eq for FileVersion {}

impl std::hash::Hash for FileVersion {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.dev, self.inode, self.size, self.mtime).hash(state);
    }
}

impl fmt::Display for FileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device {:#x} inode {} size {} mtime {}",
            self.dev, self.inode, self.size, self.mtime
        )
    }
}

/// What identifies the content of a source; equal versions mean equal bytes, within the limits that
/// [`FileVersion`] names.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// A file of the local system.
    File(FileVersion),
    /// An entity tag, as object stores and HTTP servers give it, with the length of the object.
    Etag {
        /// The tag, without interpretation.
        etag: Arc<str>,
        /// Length in bytes.
        size: u64,
    },
    /// Bytes that cannot change: memory that a reader owns. Equal only to itself and its copies, since nothing else
    /// tells what the bytes are; made by [`Version::immutable`].
    Immutable {
        /// Another number for each.
        id: u64,
        /// Length in bytes.
        size: u64,
    },
    /// A range of other content.
    Part {
        /// What it is a range of.
        whole: Arc<Version>,
        /// Where in it, in bytes.
        range: Range<u64>,
    },
}

impl Version {
    /// The version of `size` bytes of memory that cannot change; unlike every other.
    pub fn immutable(size: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Version::Immutable { id, size }
    }

    /// Length in bytes of the content that this version names.
    pub fn size(&self) -> u64 {
        match self {
            Version::File(file) => file.size,
            Version::Etag { size, .. } | Version::Immutable { size, .. } => *size,
            Version::Part { range, .. } => range.end.saturating_sub(range.start),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::File(file) => file.fmt(f),
            Version::Etag { etag, size } => write!(f, "etag {etag:?} size {size}"),
            Version::Immutable { id, size } => write!(f, "memory number {id} size {size}"),
            Version::Part { whole, range } => {
                write!(f, "bytes {}..{} of {whole}", range.start, range.end)
            }
        }
    }
}
