//! The file system of this machine as a source of metadata.

use std::fs::{FileType, Metadata};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::attributes::Attributes;
use super::backend::{Detail, ListEntry, MetadataBackend};
use crate::error::{Error, FileKind, Result};
use crate::files::{EntryKind, stat_files};
use crate::open::OpenOptions;
use crate::reader::{CachePolicy, Reader, ReaderExt};
use crate::version::{FileVersion, Version};

/// The file system of this machine: one path or directory by plain calls on the calling thread, many paths by
/// [`stat_files`](crate::stat_files), which asks for those that are not in memory from several threads.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LocalFiles;

impl LocalFiles {
    /// Needs nothing.
    pub fn new() -> Self {
        LocalFiles
    }
}

impl MetadataBackend for LocalFiles {
    fn stat(&self, path: &Path) -> Result<Attributes> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Attributes::from(&metadata)),
            Err(error) => Err(failed("stat", path, error)),
        }
    }

    fn list(
        &self,
        dir: &Path,
        detail: Detail,
        each: &mut dyn FnMut(ListEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let entries = std::fs::read_dir(dir).map_err(|error| failed("opendir", dir, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| failed("readdir", dir, error))?;
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                // Vanished since it was listed: a directory without it is as true.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("stat", &entry.path(), error)),
            };
            let attributes = match detail {
                Detail::Names => None,
                Detail::Attributes if kind.is_symlink() => std::fs::metadata(entry.path()).ok(),
                // By the directory's descriptor: the path is not walked again.
                Detail::Attributes => entry.metadata().ok(),
            };
            let name = entry.file_name();
            let attributes = attributes.as_ref().map(Attributes::from);
            if each(ListEntry::new(name.as_bytes(), kind_of(kind), attributes)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn stat_many(&self, paths: &[PathBuf]) -> Vec<Result<Attributes>> {
        let found = stat_files(paths).in_order().into_iter();
        found
            .map(|file| file.result.map(Attributes::from))
            .collect()
    }

    fn fetch(&self, path: &Path, limit: u64) -> Result<u64> {
        // Through the page cache, and to stay there.
        let reader = OpenOptions::new().cache(CachePolicy::Keep).open(path)?;
        let end = reader.source().len().min(limit);
        let mut buffer = vec![0; end.min(256 << 10) as usize];
        let mut done = 0;
        while done < end {
            let part = (end - done).min(buffer.len() as u64) as usize;
            let Some(room) = buffer.get_mut(..part) else {
                break;
            };
            reader.read_at(done, room)?;
            done += part as u64;
        }
        Ok(done)
    }
}

impl From<&Metadata> for Attributes {
    fn from(metadata: &Metadata) -> Self {
        Attributes {
            kind: kind_of(metadata.file_type()),
            version: Version::File(FileVersion::from(metadata)),
            permissions: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
        }
    }
}

fn kind_of(kind: FileType) -> EntryKind {
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

fn failed(op: &'static str, path: &Path, error: std::io::Error) -> Error {
    Error::io(op, error).named(&path.to_string_lossy().into())
}
