//! How many files are read or looked at.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::path::Path;

use super::answer::{FileAttributes, FileContent};
use super::iter::{FileStream, Files};
use super::kind::Answer;
use super::paths::Paths;
use super::report::FilesWay;
use crate::open::Engine;
use crate::reader::{Priority, VersionCheck};

const WINDOW_BYTES: u64 = 32 << 20;

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) engine: Engine,
    pub(super) in_order: bool,
    pub(super) window_files: usize,
    pub(super) window_bytes: u64,
    pub(super) max_file: u64,
    pub(super) priority: Priority,
    pub(super) check: VersionCheck,
    pub(super) only: Option<FilesWay>,
    pub(super) apart: bool,
    pub(super) follow: bool,
    /// How many takers share the processors and descriptors.
    pub(super) parts: usize,
}

impl Options {
    fn new(window_files: usize) -> Self {
        let engine = Engine::default();
        Options {
            max_file: engine.pool().max_block() as u64,
            engine,
            in_order: false,
            window_files,
            window_bytes: WINDOW_BYTES,
            priority: Priority::default(),
            check: VersionCheck::default(),
            only: None,
            apart: false,
            follow: true,
            parts: 1,
        }
    }
}

/// Reads many files whole, each to the end. The way is chosen by what is in memory, and by count.
///
/// Gives a [builder](ManyFiles): iterate over it (`into_iter` first, for `filter` and its kin), on a plain thread, or make a
/// [stream](ManyFiles::stream) of it for a task. Paths are taken as they are needed, so there may be millions of them. What became of a
/// file is told beside its path; one bad file stops no other.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let paths: Vec<_> = (0..3).map(|i| dir.path().join(format!("{i}"))).collect();
/// # for path in &paths { std::fs::write(path, "some bytes")?; }
/// let mut bytes = 0;
/// for file in feedwater::read_files(&paths) {
///     match file.result {
///         Ok(content) => bytes += content.bytes.len(),
///         Err(error) => eprintln!("{error}"),
///     }
/// }
/// # assert_eq!(bytes, 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What holds of each file
/// The contract is that of [`Reader`](crate::Reader): all bytes of one version, or a typed error. A file that grows,
/// shrinks or is written while it is read is [`Changed`](crate::ErrorKind::Changed). What is no regular file is
/// [`NotAFile`](crate::ErrorKind::NotAFile); no open waits for a FIFO's writer, and no device is read. Files that do not
/// tell their length (procfs) are read to the end, up to 64 MiB. Nobody needs a path in UTF-8.
///
/// # The way
/// A file that is in memory is read on the spot, by the thread that takes the results, with as many calls as
/// `std::fs::read` makes; the kernel tells (`RESOLVE_CACHED`, `RWF_NOWAIT`) if it would have to wait. If there are many,
/// and several processors, threads of the engine take part. Those that are not in memory are read by many requests at
/// once: by a ring where there is one, by threads where io_uring is refused, and for all files on network and FUSE file
/// systems. [`Files::report`] says which way they went.
///
/// # Bounds
/// [Files](ManyFiles::window_files) and [bytes](ManyFiles::window_bytes) that have been begun and not been taken, and
/// descriptors: at most a quarter of what the process may have (`RLIMIT_NOFILE`), and fewer if there are none left.
/// Dropped midway, it ends: what has not been begun is not, what was opened is closed.
pub fn read_files<I>(paths: I) -> ManyFiles<I, FileContent>
where
    I: IntoIterator,
    I::Item: AsRef<Path>,
{
    ManyFiles::new(paths)
}

/// Looks at many paths, as `stat` does. The way is chosen by what is in memory, and by count.
///
/// Everything else is as with [`read_files`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let paths: Vec<_> = (0..3).map(|i| dir.path().join(format!("{i}"))).collect();
/// # for path in &paths { std::fs::write(path, "some bytes")?; }
/// let known = feedwater::stat_files(&paths).into_iter();
/// let bytes: u64 = known.flat_map(|file| file.result).map(|found| found.version.size).sum();
/// # assert_eq!(bytes, 30);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn stat_files<I>(paths: I) -> ManyFiles<I, FileAttributes>
where
    I: IntoIterator,
    I::Item: AsRef<Path>,
{
    ManyFiles::new(paths)
}

/// Many files to be read or looked at: options, then [`into_iter`](IntoIterator::into_iter) or
/// [`stream`](Self::stream). Made by [`read_files`] and [`stat_files`].
#[must_use = "nothing is done before it is iterated over"]
pub struct ManyFiles<I, T> {
    paths: I,
    options: Options,
    answer: PhantomData<fn() -> T>,
}

impl<I, T: Answer> ManyFiles<I, T> {
    fn new(paths: I) -> Self {
        ManyFiles {
            paths,
            options: Options::new(T::WINDOW),
            answer: PhantomData,
        }
    }
}

impl<I, T> ManyFiles<I, T> {
    /// Gives results in the order of the paths. Default: as they come.
    pub fn in_order(mut self) -> Self {
        self.options.in_order = true;
        self
    }

    /// Reads with the threads, rings and memory of `engine`. Default: [`Engine::default`].
    pub fn engine(mut self, engine: Engine) -> Self {
        let most = self.options.engine.pool().max_block() as u64;
        if self.options.max_file == most {
            self.options.max_file = engine.pool().max_block() as u64;
        }
        self.options.engine = engine;
        self
    }

    /// Most files that have been begun and not been taken. Default 512 where they are read, 4096 where they are looked at.
    pub fn window_files(mut self, files: NonZeroUsize) -> Self {
        self.options.window_files = files.get();
        self
    }

    /// Whose files go first. Default: [`Priority::Foreground`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.options.priority = priority;
        self
    }

    /// Goes this way and no other. Every file fails with [`Unavailable`](crate::ErrorKind::Unavailable) where it cannot be
    /// used. [`FilesWay::Spot`] makes a stream wait in its task.
    pub fn only(mut self, way: FilesWay) -> Self {
        self.options.only = Some(way);
        self
    }
}

impl<I> ManyFiles<I, FileContent> {
    /// Most bytes of contents that are being read, or were and have not been taken. Default 32 MiB. One file is always
    /// allowed, and so is the next one in [order](Self::in_order).
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        self.options.window_bytes = bytes;
        self
    }

    /// Most bytes of one file; a larger one fails with [`OutOfMemory`](crate::ErrorKind::OutOfMemory), and is not read.
    /// Default: the largest block of the engine's pool ([`PoolOptions::max_block`](crate::PoolOptions::max_block)).
    pub fn max_file(mut self, bytes: u64) -> Self {
        self.options.max_file = bytes;
        self
    }

    /// When the version is checked. Default: [`VersionCheck::Always`].
    pub fn version_check(mut self, check: VersionCheck) -> Self {
        self.options.check = check;
        self
    }

    /// Gives each file memory of its own. By default files of up to 64 KiB share blocks of 256 KiB with others that were
    /// read at about the same time, and a block is free when the last of them is dropped: best where files are dropped in
    /// about the order in which they came, and where all are kept. Whoever keeps a few small ones of many wants them apart.
    pub fn apart(mut self) -> Self {
        self.options.apart = true;
        self
    }
}

impl<I> ManyFiles<I, FileAttributes> {
    /// Tells what a path leads to, if it is a symbolic link (default), or of the link itself.
    pub fn follow_links(mut self, follow: bool) -> Self {
        self.options.follow = follow;
        self
    }
}

impl<I, T> ManyFiles<I, T>
where
    I: IntoIterator,
    I::Item: AsRef<Path>,
    T: Answer,
{
    /// The same for tasks, on any executor. Nothing is done before it is polled; what is in memory is read by the poll,
    /// nothing that waits is. The paths have to come without waiting.
    pub fn stream(self) -> FileStream<I::IntoIter, T> {
        FileStream::new(self.into_iter())
    }

    /// The same for several threads: `parts` iterators that share the paths, each of which takes the next ones when it needs them.
    ///
    /// For work that goes on with each file, such as decoding: what is in memory is read by the thread that goes on with it, so its
    /// bytes are in the caches of that processor, and where there are as many parts as processors no other threads take part.
    ///
    /// Each part has its share of the windows and descriptors, at least one file, one byte and one descriptor; each may hold one file that
    /// is larger than its window. [Order](Self::in_order) and [`report`](Files::report) are those of each part alone;
    /// [`FileResult::index`](super::FileResult::index) tells which of all paths it was (in a forked child, maybe none). Take each part to its end: dropped before,
    /// it loses the paths that it has taken and not answered, up to its share of [`window_files`](Self::window_files). One that begins late may
    /// find none left. Parts are for threads; there is no form for tasks.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # let dir = tempfile::tempdir()?;
    /// # let paths: Vec<_> = (0..300).map(|i| dir.path().join(format!("{i}"))).collect();
    /// # for path in &paths { std::fs::write(path, "some bytes")?; }
    /// let parts = feedwater::read_files(&paths).split(NonZeroUsize::new(2).unwrap());
    /// let lengths = std::thread::scope(|scope| {
    ///     let threads: Vec<_> = parts
    ///         .into_iter()
    ///         .map(|files| scope.spawn(|| files.flat_map(|file| file.result).map(|file| file.bytes.len()).sum::<usize>()))
    ///         .collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    /// });
    /// # assert_eq!(lengths, 3000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(mut self, parts: NonZeroUsize) -> Vec<Files<I::IntoIter, T>> {
        let parts = parts.get();
        let options = &mut self.options;
        options.parts = parts;
        options.window_files = (options.window_files / parts).max(1);
        options.window_bytes = (options.window_bytes / parts as u64).max(1);
        Paths::shared(self.paths.into_iter(), parts)
            .into_iter()
            .map(|paths| Files::new(paths, self.options.clone()))
            .collect()
    }
}

impl<I, T> IntoIterator for ManyFiles<I, T>
where
    I: IntoIterator,
    I::Item: AsRef<Path>,
    T: Answer,
{
    type Item = super::FileResult<T>;
    type IntoIter = Files<I::IntoIter, T>;

    fn into_iter(self) -> Self::IntoIter {
        Files::new(Paths::own(self.paths.into_iter()), self.options)
    }
}

impl<I, T> fmt::Debug for ManyFiles<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManyFiles")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
