//! Where metadata comes from: the local file system, or anything else that lists and stats.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::attributes::Attributes;
use crate::error::{Error, ErrorKind, Result};
use crate::files::EntryKind;

/// A source of metadata. The cache asks it for what it does not know.
///
/// A contract between strangers: the local file system is one implementation ([`LocalFiles`](super::LocalFiles)), a store of objects whose
/// listings have entity tags is another; wrappers count, delay or fail.
///
/// - **Paths** are absolute or relative as the user of the cache gave them, without doubled slashes.
/// - **Links.** `stat` and the attributes of a listing follow symbolic links; the kind in a listing may be
///   [`EntryKind::Symlink`] where only names were asked for.
/// - **Errors.** A path that is not there is [`ErrorKind::Io`] with [`std::io::ErrorKind::NotFound`]. One bad entry of a
///   directory does not fail its listing: it comes without attributes.
/// - **Threads.** Called from many at once. Each call may block. A call must not ask the cache that makes it for the same path
///   (a listing not for the same listing): it would wait for itself, as [one load](super::MetadataCache) at a time is made.
/// - **Panics** are the caller's: nothing of the cache stays locked.
///
/// A store of objects, whose paths are keys and whose listings tell the entity tag of each object, so that a pass costs one
/// request for each page and `stat_many` none for each object:
///
/// ```
/// use std::collections::BTreeMap;
/// use std::ops::ControlFlow;
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use feedwater::cache::{Attributes, CacheOptions, Detail, ListEntry, MetadataBackend};
/// use feedwater::{EntryKind, Error, Result, Version};
///
/// #[derive(Debug)]
/// struct Bucket(BTreeMap<String, (String, u64)>); // key: (entity tag, size)
///
/// impl Bucket {
///     fn object(&self, key: &str) -> Option<Attributes> {
///         let (etag, size) = self.0.get(key)?;
///         let version = Version::Etag { etag: etag.as_str().into(), size: *size };
///         Some(Attributes::new(EntryKind::File, version))
///     }
/// }
///
/// impl MetadataBackend for Bucket {
///     fn stat(&self, path: &Path) -> Result<Attributes> {
///         let found = path.to_str().and_then(|key| self.object(key));
///         found.ok_or_else(|| Error::io("HEAD", std::io::ErrorKind::NotFound.into()))
///     }
///
///     fn list(
///         &self,
///         dir: &Path,
///         _: Detail, // a page of a listing has the attributes anyway
///         each: &mut dyn FnMut(ListEntry<'_>) -> ControlFlow<()>,
///     ) -> Result<()> {
///         let prefix = format!("{}/", dir.display());
///         let below = self.0.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
///         for (key, _) in below {
///             let name = &key[prefix.len()..];
///             if each(ListEntry::new(name.as_bytes(), EntryKind::File, self.object(key))).is_break() {
///                 break;
///             }
///         }
///         Ok(())
///     }
/// }
///
/// let object = ("images/cat.jpg".to_owned(), ("\"9b2cf5\"".to_owned(), 4096));
/// let cache = CacheOptions::new().backend(Arc::new(Bucket([object].into()))).build()?;
/// assert_eq!(cache.stat("images/cat.jpg")?.size(), 4096);
/// assert_eq!(cache.list("images")?.len(), 1);
/// # Ok::<(), feedwater::Error>(())
/// ```
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

    /// The attributes of several paths, in their order, one answer for each. Default: one [`stat`](Self::stat) after the other.
    /// Where answers lack at the end, those paths are asked for one by one.
    fn stat_many(&self, paths: &[PathBuf]) -> Vec<Result<Attributes>> {
        paths.iter().map(|path| self.stat(path)).collect()
    }

    /// Brings up to `limit` bytes of the content to where reading is fast, and says how many, of which no more than `limit` are
    /// counted. Default: not supported.
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
