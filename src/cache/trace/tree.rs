//! Names that are computed, not stored: a million files take no more than their directory.

use std::collections::HashMap;
use std::fmt::Write;

use super::random::mix;
use crate::cache::attributes::Attributes;
use crate::files::EntryKind;
use crate::version::{FileVersion, Timestamp, Version};

/// Number of a directory of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirId(pub(super) u32);

/// Number of a file of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    pub(super) dir: DirId,
    pub(super) index: u32,
}

/// Directories and files below [`Tree::ROOT`], with attributes that their names determine.
#[derive(Clone, Debug)]
pub struct Tree {
    dirs: Vec<Dir>,
    by_path: HashMap<String, u32>,
    files: u64,
}

#[derive(Clone, Debug)]
struct Dir {
    path: String,
    files: u32,
    /// What the names of the files begin and end with; a number of seven digits stands between.
    stem: &'static str,
    ending: &'static str,
    dirs: Vec<u32>,
    /// Mean size of its files in bytes.
    size: u64,
}

impl Tree {
    /// The directory that all paths lie below; depths are counted from it.
    pub const ROOT: &'static str = "/data";

    pub(super) fn new() -> Self {
        let mut tree = Tree {
            dirs: Vec::new(),
            by_path: HashMap::new(),
            files: 0,
        };
        tree.push(Self::ROOT.to_owned());
        tree
    }

    /// The directory of this path below the root, made with its parents if it is not there.
    pub(super) fn dir(&mut self, below: &str) -> DirId {
        let mut at = 0;
        let mut path = Self::ROOT.to_owned();
        for part in below.split('/') {
            path.push('/');
            path.push_str(part);
            at = match self.by_path.get(&path) {
                Some(known) => *known,
                None => {
                    let new = self.push(path.clone());
                    if let Some(parent) = self.dirs.get_mut(at as usize) {
                        parent.dirs.push(new);
                    }
                    new
                }
            };
        }
        DirId(at)
    }

    /// Gives a directory its files.
    pub(super) fn fill(
        &mut self,
        dir: DirId,
        files: u64,
        (stem, ending): (&'static str, &'static str),
        size: u64,
    ) {
        let files = u32::try_from(files).unwrap_or(u32::MAX);
        if let Some(dir) = self.dirs.get_mut(dir.0 as usize) {
            self.files = self.files - u64::from(dir.files) + u64::from(files);
            (dir.files, dir.stem, dir.ending, dir.size) = (files, stem, ending, size);
        }
    }

    fn push(&mut self, path: String) -> u32 {
        let new = u32::try_from(self.dirs.len()).unwrap_or(u32::MAX);
        self.by_path.insert(path.clone(), new);
        self.dirs.push(Dir {
            path,
            files: 0,
            stem: "",
            ending: "",
            dirs: Vec::new(),
            size: 0,
        });
        new
    }

    /// Files and directories.
    pub fn entries(&self) -> u64 {
        self.files + self.dirs.len() as u64
    }

    /// Files.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// All directories, the root first.
    pub fn dirs(&self) -> impl Iterator<Item = DirId> + use<> {
        (0..self.dirs.len() as u32).map(DirId)
    }

    /// The files of a directory.
    pub fn files_of(&self, dir: DirId) -> impl Iterator<Item = FileId> + use<> {
        let files = self.dirs.get(dir.0 as usize).map_or(0, |dir| dir.files);
        (0..files).map(move |index| FileId { dir, index })
    }

    pub(super) fn count_of(&self, dir: DirId) -> u64 {
        (self.dirs.get(dir.0 as usize)).map_or(0, |dir| u64::from(dir.files))
    }

    /// The path of a directory; empty if it is of another tree.
    pub fn dir_path(&self, dir: DirId) -> &str {
        self.dirs.get(dir.0 as usize).map_or("", |dir| &dir.path)
    }

    /// Writes the path of a file to `path`, replacing what was there.
    pub fn file_path(&self, file: FileId, path: &mut String) {
        path.clear();
        if let Some(dir) = self.dirs.get(file.dir.0 as usize) {
            path.push_str(&dir.path);
            path.push('/');
            dir.name(file.index, path);
        }
    }

    /// The attributes of a path, `None` if there is no such file or directory.
    pub fn attributes(&self, path: &str) -> Option<Attributes> {
        if let Some(dir) = self.by_path.get(path) {
            return Some(self.of_dir(*dir));
        }
        let (parent, name) = path.rsplit_once('/')?;
        let dir = *self.by_path.get(parent)?;
        let index = self.dirs.get(dir as usize)?.index(name)?;
        self.of_file(dir, index)
    }

    /// Hands each entry of a directory to `each`, directories first, until that says no. False if there is no such directory.
    pub fn list(&self, path: &str, mut each: impl FnMut(&str, Attributes) -> bool) -> bool {
        let Some((id, dir)) = self
            .by_path
            .get(path)
            .and_then(|id| Some((*id, self.dirs.get(*id as usize)?)))
        else {
            return false;
        };
        for child in &dir.dirs {
            let path = self.dir_path(DirId(*child));
            let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
            if !each(name, self.of_dir(*child)) {
                return true;
            }
        }
        let mut name = String::new();
        for index in 0..dir.files {
            name.clear();
            dir.name(index, &mut name);
            let Some(attributes) = self.of_file(id, index) else {
                break;
            };
            if !each(&name, attributes) {
                break;
            }
        }
        true
    }

    fn of_dir(&self, dir: u32) -> Attributes {
        let mut attributes = Attributes::new(EntryKind::Directory, version(u64::from(dir), 4096));
        attributes.permissions = 0o755;
        attributes
    }

    fn of_file(&self, dir: u32, index: u32) -> Option<Attributes> {
        let mean = self.dirs.get(dir as usize)?.size;
        let inode = u64::from(dir) << 32 | u64::from(index) | 1 << 63;
        // From half the mean to one and a half.
        let size = mean / 2 + ((u128::from(mix(inode)) * u128::from(mean)) >> 64) as u64;
        let mut attributes = Attributes::new(EntryKind::File, version(inode, size));
        attributes.permissions = 0o644;
        Some(attributes)
    }
}

impl Dir {
    fn name(&self, index: u32, out: &mut String) {
        // Writing to a string does not fail.
        let _ = write!(out, "{}{index:07}{}", self.stem, self.ending);
    }

    fn index(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(self.stem)?.strip_suffix(self.ending)?;
        let index: u32 = digits.parse().ok()?;
        (digits.len() >= 7 && index < self.files && digits.bytes().all(|b| b.is_ascii_digit()))
            .then_some(index)
    }
}

fn version(inode: u64, size: u64) -> Version {
    let time = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    Version::File(FileVersion {
        dev: 1,
        inode,
        size,
        mtime: time,
        ctime: time,
    })
}
