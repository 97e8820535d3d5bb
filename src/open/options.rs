//! How a source is opened.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::engine::Engine;
use super::gds::Front;
use super::opened::Opened;
use super::opening::Opening;
use super::routes::Rules;
use crate::backend::file::OpenFile;
use crate::backend::memory::MemoryReader;
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::reader::{CachePolicy, Route, StagingOptions, Transfer, VersionCheck};
use crate::sys::FileSystem;
use crate::version::Version;

/// Most bytes taken from a file that does not tell its length.
const PSEUDO_MOST: u64 = 64 << 20;

/// Opens a file with default options; the way of reading it is chosen from what the system tells.
///
/// ```
/// use feedwater::ReaderExt;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, "some bytes")?;
/// let reader = feedwater::open(&path)?;
/// assert_eq!(reader.read(5..10).wait()?, "bytes");
/// println!("{}", reader.report());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Io`] if the path cannot be opened, [`ErrorKind::NotAFile`] if it leads to a directory, FIFO, socket
/// or device.
pub fn open(path: impl AsRef<Path>) -> Result<Arc<Opened>> {
    OpenOptions::new().open(path)
}

/// Opens a file like [`open`], on a thread of the engine, since opening can wait for a device or a network.
pub fn open_async(path: impl AsRef<Path>) -> Opening {
    OpenOptions::new().open_async(path)
}

/// How a source is opened and read; the default is right for most.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    engine: Option<Engine>,
    rules: Rules,
    devices: Vec<Arc<dyn Transfer>>,
    staging: StagingOptions,
    pub(super) front: Front,
}

impl OpenOptions {
    /// The default engine, any route, [`CachePolicy::Auto`], the version checked after each request.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    /// Reads with the threads and memory of `engine`.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Reads by this route and no other: opening fails with [`ErrorKind::Unavailable`] if it cannot be used, and says why.
    #[must_use]
    pub fn only(mut self, route: Route) -> Self {
        self.rules.only = Some(route);
        self
    }

    /// What reading may leave in the page cache. [`CachePolicy::Bypass`] fails to open where the file system has no
    /// direct I/O.
    #[must_use]
    pub fn cache(mut self, policy: CachePolicy) -> Self {
        self.rules.policy = policy;
        self
    }

    /// When the version is checked.
    #[must_use]
    pub fn version_check(mut self, check: VersionCheck) -> Self {
        self.rules.check = check;
        self
    }

    /// Delivers to memory of this device as well: `cuda::Device` (feature `cuda`) is one. May be given for several.
    ///
    /// A plain read is what it was. [`Batch::any_at`](crate::Batch::any_at) the device's place and
    /// [`read_into`](crate::Batch::read_into) a block of its memory are served through [`Staged`](crate::Staged), with a thread for the reader
    /// from its first such read on.
    #[must_use]
    pub fn device(mut self, device: Arc<dyn Transfer>) -> Self {
        self.devices.push(device);
        self
    }

    /// How much memory reads to devices use on the way.
    #[must_use]
    pub fn staging(mut self, options: StagingOptions) -> Self {
        self.staging = options;
        self
    }

    /// Promises that the file does not change, so that reads may be views of a mapping, without a copy.
    ///
    /// # Safety
    /// Nobody, in this or any other process, writes to or truncates the file while the reader or any bytes that it
    /// delivered exist. Otherwise those bytes change under a shared reference, which is undefined behaviour, and
    /// touching a page past a new end of the file kills the process with `SIGBUS`; so does a page that the device
    /// fails to read. No signal handler is installed.
    #[must_use]
    #[allow(unsafe_code)]
    pub unsafe fn assume_immutable(mut self) -> Self {
        self.rules.promised = true;
        self
    }

    /// Opens a path. Never waits for a FIFO's writer, and never reads from a device.
    ///
    /// Costs four system calls: open, fstat, fstatfs, fcntl. A file of a pseudo file system (procfs, sysfs), or one
    /// of length 0 that has bytes all the same, is read to its end at once, up to 64 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be opened, [`ErrorKind::NotAFile`] if it is no regular file,
    /// [`ErrorKind::Unavailable`] if the route or policy asked for cannot be used, [`ErrorKind::InvalidOption`] if the
    /// route cannot drop behind and is to, [`ErrorKind::TooLarge`] for an endless pseudo file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Arc<Opened>> {
        self.file(OpenFile::open(path.as_ref())?, true)
    }

    /// Opens a path on a thread of the engine: await it, or [`wait`](Opening::wait).
    pub fn open_async(&self, path: impl AsRef<Path>) -> Opening {
        let options = self.clone();
        let path = path.as_ref().to_path_buf();
        let engine = self.engine.clone().unwrap_or_default();
        Opening::start(engine.workers(), move || options.open(&path))
    }

    /// Takes a file that is open already, under the name that errors shall show. Its position is neither used nor
    /// moved.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(&self, file: impl Into<OwnedFd>, name: &str) -> Result<Arc<Opened>> {
        let file = OpenFile::from_file(File::from(file.into()), name.into())?;
        self.file(file, false)
    }

    /// Takes bytes that are in memory already.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if a route other than memory was asked for.
    pub fn open_bytes(&self, bytes: impl Into<Bytes>, name: &str) -> Result<Arc<Opened>> {
        let bytes = bytes.into();
        let version = Version::immutable(bytes.len() as u64);
        self.memory(bytes, name.into(), version, "it is bytes in memory")
    }

    fn file(&self, file: OpenFile, ours: bool) -> Result<Arc<Opened>> {
        let engine = self.engine.clone().unwrap_or_default();
        if file.len() == 0 || file.file_system() == FileSystem::Pseudo {
            let content = self.unsized_content(&file)?;
            if !content.is_empty() || file.len() > 0 {
                let version = Version::immutable(content.len() as u64);
                let why = "it does not tell its length, so it was read at the open";
                return self.memory(content, file.name().clone(), version, why);
            }
        }
        if ours {
            file.set_blocking()?;
        }
        self.finish(Opened::file(file, engine, self.rules.clone())?)
    }

    fn memory(
        &self,
        bytes: Bytes,
        name: Arc<str>,
        version: Version,
        why: &'static str,
    ) -> Result<Arc<Opened>> {
        if let Some(only) = self.rules.only
            && only != Route::Memory
        {
            let kind = ErrorKind::Unavailable {
                engine: only.name(),
                why: Refusal::NotForThisFile { what: why.into() },
            };
            return Err(Error::new(kind).named(&name));
        }
        let reader = MemoryReader::over(bytes, name, version);
        self.finish(Opened::memory(reader, why))
    }

    fn finish(&self, opened: Opened) -> Result<Arc<Opened>> {
        opened
            .with_devices(&self.devices, &self.staging, &self.front)
            .map(Arc::new)
    }

    /// All bytes of a file whose length is not to be believed.
    fn unsized_content(&self, file: &OpenFile) -> Result<Bytes> {
        use std::os::unix::fs::FileExt;
        struct At<'a>(&'a File, u64);
        impl Read for At<'_> {
            fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
                let n = self.0.read_at(buf, self.1)?;
                self.1 += n as u64;
                Ok(n)
            }
        }
        let mut content = Vec::new();
        At(file.file(), 0)
            .take(PSEUDO_MOST + 1)
            .read_to_end(&mut content)
            .map_err(|error| Error::io("pread", error).named(file.name()))?;
        if content.len() as u64 > PSEUDO_MOST {
            let kind = ErrorKind::TooLarge { cap: PSEUDO_MOST };
            return Err(Error::new(kind).named(file.name()));
        }
        Ok(content.into())
    }
}
