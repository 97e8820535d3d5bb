//! What is told of a file: its content, or its attributes.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, Stat};

use crate::error::{FileKind, Result};
use crate::version::FileVersion;

/// What became of one of many files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileResult<T> {
    /// Which path it was, counted from 0 as they were given; of a walk, in the order in which they were found. [`u64::MAX`], with no path,
    /// for a part in a forked child that has no path whose result was not given, while another one was at the paths.
    pub index: u64,
    /// The path, as it was given.
    pub path: Arc<Path>,
    /// What was asked for, or why not: one bad file stops no other.
    pub result: Result<T>,
}

/// All bytes of a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FileContent {
    /// The bytes. Those of small files share blocks: see [`ManyFiles::apart`](super::ManyFiles::apart).
    pub bytes: Bytes,
    /// What was read. The size is 0 for a file that does not tell it (procfs).
    pub version: FileVersion,
}

impl From<FileContent> for Bytes {
    fn from(content: FileContent) -> Bytes {
        content.bytes
    }
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, where links are not followed.
    Symlink,
    /// Something else.
    Other(FileKind),
}

impl EntryKind {
    pub(super) fn of(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            FileType::Fifo => EntryKind::Other(FileKind::Fifo),
            FileType::Socket => EntryKind::Other(FileKind::Socket),
            FileType::CharacterDevice => EntryKind::Other(FileKind::CharacterDevice),
            FileType::BlockDevice => EntryKind::Other(FileKind::BlockDevice),
            _ => EntryKind::Other(FileKind::Unknown),
        }
    }
}

/// What `stat` tells of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileAttributes {
    /// What it is.
    pub kind: EntryKind,
    /// Identity, size in bytes, and times.
    pub version: FileVersion,
    /// Permissions: the low twelve bits of the mode.
    pub permissions: u32,
    /// Hard links.
    pub links: u64,
    /// The owner's id.
    pub user: u32,
    /// The group's id.
    pub group: u32,
}

impl FileAttributes {
    // The fields of `stat` have other types on other systems and architectures.
    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        clippy::cast_lossless
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        FileAttributes {
            kind: EntryKind::of(FileType::from_raw_mode(stat.st_mode)),
            version: FileVersion::from_stat(stat),
            permissions: (stat.st_mode as u32) & 0o7777,
            links: stat.st_nlink as u64,
            user: stat.st_uid as u32,
            group: stat.st_gid as u32,
        }
    }
}
