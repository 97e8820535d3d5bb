//! Many files as one sequence of records.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::options::RecordOptions;
use super::records::{FrameBatches, Records};
use super::walk::{Paths, Walk};
use crate::error::{Error, ErrorKind, Result};
use crate::format::tfrecord::shards::{self, ShardName};
use crate::open::{OpenOptions, Opened};

/// Most missing shards that an error names.
const MOST_NAMED: usize = 10;

/// Files that are read one after the other, in order. The next one is opened while the current one is read.
///
/// ```
/// use feedwater::tfrecord::{RecordOptions, ShardSet, Writer};
///
/// # let dir = tempfile::tempdir()?;
/// for shard in 0..3 {
///     let name = format!("train-{shard:05}-of-00003");
///     let mut writer = Writer::create(dir.path().join(name))?;
///     writer.write(&[shard])?;
///     writer.commit()?;
/// }
/// let set = ShardSet::find(dir.path().join("train@3"))?; // or "train-*", or the name of any of them
/// for record in set.records(&RecordOptions::new()) {
///     let record = record?;
///     assert_eq!((record.number, record.data[0] as usize), (0, record.shard));
/// }
/// # assert_eq!(set.records(&RecordOptions::new()).count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShardSet {
    paths: Arc<[PathBuf]>,
    open: OpenOptions,
}

impl ShardSet {
    /// These files, in this order. Whether they are there shows when they are opened.
    pub fn of<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        ShardSet {
            paths: paths.into_iter().map(Into::into).collect(),
            open: OpenOptions::default(),
        }
    }

    /// The files that a name stands for, sorted:
    ///
    /// - `train-00003-of-00010.gz`: the whole set that the shard is of (for that shard alone, there is
    ///   [`of`](Self::of));
    /// - `train@10.gz`: the set `train-00000-of-00010.gz` and so on; up to a million;
    /// - a glob (`*`, `?`, `[a-z]`, `**`): the files that match. Of sets among them no shard that would match may be
    ///   missing;
    /// - any other name, and a name that exists as it stands and is no shard's: that file.
    ///
    /// Costs one `stat` for each shard, or reading the directories, on this thread: from a task, call it where your executor lets
    /// threads block (`spawn_blocking` of tokio).
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), naming shards that are missing, or if nothing matches;
    /// [`InvalidOption`](ErrorKind::InvalidOption) for a malformed glob, for `@0` and for more than a million shards;
    /// [`Io`](ErrorKind::Io) if a directory cannot be read.
    pub fn find(name: impl AsRef<Path>) -> Result<Self> {
        let path = name.as_ref();
        let place = |error: Error| error.named(&path.to_string_lossy().into());
        let paths = find(path).map_err(place)?;
        Ok(ShardSet::of(paths))
    }

    /// Opens the files with these options. Default: as [`open`](crate::open()).
    #[must_use]
    pub fn open_with(mut self, options: OpenOptions) -> Self {
        self.open = options;
        self
    }

    /// The files, in order. [`Record::shard`](super::Record::shard) is a position here.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The records of all files.
    pub fn records(&self, options: &RecordOptions) -> Records<Opened> {
        Records::new(self.walk(options))
    }

    /// The records of all files, many at a time; those of one [`Frames`](super::Frames) are of one file.
    pub fn frames(&self, options: &RecordOptions) -> FrameBatches<Opened> {
        FrameBatches::new(self.walk(options))
    }

    fn walk(&self, options: &RecordOptions) -> Walk<Opened> {
        let paths = Paths::new(self.paths.clone(), self.open.clone());
        Walk::of(Box::new(paths), options.clone())
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardSet")
            .field("paths", &self.paths)
            .finish()
    }
}

fn find(path: &Path) -> Result<Vec<PathBuf>> {
    // Only names that are text can have a meaning beyond themselves.
    let Some(name) = path.to_str() else {
        return Ok(vec![path.into()]);
    };
    if let Some(shard) = ShardName::parse(name) {
        return whole(&shard);
    }
    if exists(path)? {
        return Ok(vec![path.into()]);
    }
    match shards::expand_at(name) {
        Some(Ok(shard)) => return whole(&shard),
        Some(Err(count)) => {
            let most = shards::MOST;
            let what = format!("a set of {count} shards; it may have 1 to {most}");
            return Err(Error::new(ErrorKind::InvalidOption { what: what.into() }));
        }
        None => {}
    }
    if name.contains(['*', '?', '[']) {
        return matching(name);
    }
    Ok(vec![path.into()])
}

/// All shards of a set, which have to be there.
fn whole(shard: &ShardName<'_>) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut missing = Vec::new();
    for index in 0..shard.count {
        let name = shard.sibling(index);
        if exists(Path::new(&name))? {
            paths.push(name.into());
        } else if missing.len() <= MOST_NAMED {
            missing.push(name);
        } else {
            break;
        }
    }
    none_missing(missing)?;
    Ok(paths)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>> {
    let malformed = |error: glob::PatternError| {
        let what = format!("the pattern {pattern:?}: {error}").into();
        Error::new(ErrorKind::InvalidOption { what })
    };
    let mut paths = Vec::new();
    for path in glob::glob(pattern).map_err(malformed)? {
        let path = path.map_err(|error| {
            let name = error.path().to_string_lossy().into();
            Error::io("read of a directory", error.into()).named(&name)
        })?;
        if !path.is_dir() {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        let what = "file that matches".into();
        return Err(Error::new(ErrorKind::NotFound { what }));
    }
    paths.sort_unstable();
    let names: Vec<_> = paths.iter().filter_map(|path| path.to_str()).collect();
    // By their file names, as siblings are in the directory of one that was found: its path need not be spelled as in the
    // pattern, which may have `./` or `//`.
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let matcher = glob::Pattern::new(&file_name(pattern)).map_err(malformed)?;
    let wanted = |name: &str| matcher.matches(&file_name(name));
    let missing = shards::missing(&names, MOST_NAMED + 1, wanted);
    none_missing(missing)?;
    Ok(paths)
}

fn none_missing(mut missing: Vec<String>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let more = if missing.len() > MOST_NAMED {
        missing.truncate(MOST_NAMED);
        ", and more"
    } else {
        ""
    };
    let names = missing.join(", ");
    let what = format!("shard {names}{more}, which the set should have").into();
    Err(Error::new(ErrorKind::NotFound { what }))
}

fn exists(path: &Path) -> Result<bool> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::InvalidFilename
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(Error::io("stat", error).named(&path.to_string_lossy().into())),
    }
}
