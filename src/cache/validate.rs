//! What is kept of a file, compared with the file that was opened.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::attributes::same_content;
use super::key::{Kind, spelled, split};
use super::metadata::MetadataCache;
use super::node::Value;
use crate::error::Result;
use crate::open::{OpenOptions, Opened};
use crate::reader::Reader;
use crate::version::Version;

/// What [`MetadataCache::validate`] found.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Nothing was known of the path.
    Unknown,
    /// What is kept is of this version.
    Same,
    /// Only the change time differs: attributes were dropped, to be asked again, and so is what was parsed.
    Revalidate,
    /// The file is another one, or has another content: all that was kept of it was dropped.
    Changed,
}

impl MetadataCache {
    /// Opens a file to read, and compares its version with what is kept of it: see [`validate`](Self::validate).
    ///
    /// # Errors
    /// As [`open`](crate::open). [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child process.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Arc<Opened>> {
        self.open_with(&OpenOptions::new(), path)
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child process.
    pub fn open_with(&self, options: &OpenOptions, path: impl AsRef<Path>) -> Result<Arc<Opened>> {
        self.0.check()?;
        let reader = options.open(path.as_ref())?;
        self.validate(path, reader.source().version());
        Ok(reader)
    }

    /// Compares the version of an open file (device, inode, size, modification time; then change time) with what is kept of
    /// the path, and drops what is not true any more. Costs no system call: `version` is what the reader of a file that was opened in
    /// another way tells ([`Source::version`](crate::Source::version)), or of an object its entity tag.
    pub fn validate(&self, path: impl AsRef<Path>, version: &Version) -> Validation {
        let inner = &self.0;
        if inner.check().is_err() {
            return Validation::Unknown;
        }
        let path = spelled(path.as_ref().as_os_str().as_bytes());
        let alone = inner.store.peek(Kind::ATTRIBUTES, &path);
        let among = split(&path).and_then(|(dir, name)| {
            let children = inner.store.peek(Kind::CHILDREN, dir)?;
            match &children.value {
                Value::Children(children) => children.peek(name).cloned(),
                _ => None,
            }
        });
        let kept = match alone.as_deref().map(|node| &node.value) {
            Some(Value::Attributes(attributes)) => Some(attributes.clone()),
            // It is there now.
            Some(Value::Absent(_)) => {
                inner.invalidate(&path);
                return Validation::Changed;
            }
            _ => among.clone(),
        };
        let versions = [kept, among];
        let mut versions = versions.iter().flatten().map(|kept| &kept.version);
        let Some(first) = versions.clone().next() else {
            return Validation::Unknown;
        };
        if versions.all(|kept| same_content(kept, version)) {
            return Validation::Same;
        }
        let found = if first == version {
            Validation::Revalidate
        } else {
            Validation::Changed
        };
        inner.metrics.stale.add(1);
        inner.invalidate_content(&path);
        found
    }
}
