//! Where metadata comes from: the local file system, or anything else that lists and stats.

use std::fmt;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::attributes::{Attributes, EntryKind};
use crate::error::{Error, ErrorKind, Result};
use crate::open::OpenOptions;
use crate::reader::{CachePolicy, Reader, ReaderExt};

/// A source of metadata. The cache asks it for what it does not know.
///
/// A contract between strangers: the local file system is one implementation ([`LocalFiles`]), a store of objects whose
/// listings have entity tags is another; wrappers count, delay or fail.
///
/// - **Paths** are absolute or relative as the user of the cache gave them, without doubled slashes.
/// - **Links.** `stat` and the attributes of a listing follow symbolic links; the kind in a listing may be
///   [`EntryKind::Symlink`] where only names were asked for.
/// - **Errors.** A path that is not there is [`ErrorKind::Io`] with [`std::io::ErrorKind::NotFound`]. One bad entry of a
///   directory does not fail its listing: it comes without attributes.
/// - **Threads.** Called from many at once. Each call may block.
/// - **Panics** are the caller's: nothing of the cache stays locked.
pub trait MetadataBackend: fmt::Debug + Send + Sync + 'static {
    /// The attributes of one path.
    ///
    /// # Errors
    /// What the system or the store says.
    fn stat(&self, path: &Path) -> Result<Attributes>;

    /// Hands each entry of a directory to `each`, in any order, without `.` and `..`, until that breaks.
    ///
    /// [`Detail::Attributes`] asks for attributes in the same pass; entries may come without, where they are not to be had.
    ///
    /// # Errors
    /// What the system or the store says; entries that were handed over before are then no complete listing.
    fn list(
        &self,
        dir: &Path,
        detail: Detail,
        each: &mut dyn FnMut(ListEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// The attributes of several paths, in their order. Default: one [`stat`](Self::stat) after the other.
    fn stat_many(&self, paths: &[PathBuf]) -> Vec<Result<Attributes>> {
        paths.iter().map(|path| self.stat(path)).collect()
    }

    /// Brings up to `limit` bytes of the content to where reading is fast, and says how many. Default: not supported.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] by default; else what reading says.
    fn fetch(&self, path: &Path, limit: u64) -> Result<u64> {
        let _ = limit;
        let name = path.to_string_lossy().into();
        Err(Error::new(ErrorKind::Unsupported {
            what: "this source of metadata does not fetch contents".into(),
        })
        .named(&name))
    }
}

/// How much a listing should tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Names and kinds.
    Names,
    /// Attributes too.
    Attributes,
}

/// One entry of a directory.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct ListEntry<'a> {
    /// Name within the directory, as bytes; no slash in it.
    pub name: &'a [u8],
    /// What it is.
    pub kind: EntryKind,
    /// The attributes, where they were asked for and could be had.
    pub attributes: Option<Attributes>,
}

impl<'a> ListEntry<'a> {
    /// An entry of this name and kind.
    pub fn new(name: &'a [u8], kind: EntryKind, attributes: Option<Attributes>) -> Self {
        ListEntry {
            name,
            kind,
            attributes,
        }
    }
}

/// The file system of this machine, by plain calls on the calling thread.
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
            let found = ListEntry {
                name: name.as_bytes(),
                kind: kind.into(),
                attributes: attributes.as_ref().map(Attributes::from),
            };
            if each(found).is_break() {
                break;
            }
        }
        Ok(())
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

fn failed(op: &'static str, path: &Path, error: std::io::Error) -> Error {
    Error::io(op, error).named(&path.to_string_lossy().into())
}
