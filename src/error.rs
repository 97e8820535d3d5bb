//! The one error type: what went wrong, where in which source, and through which engine.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::version::Version;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation: a [kind](ErrorKind), and where it happened.
///
/// Cheap to clone (one reference count), so that one failure can be reported to every range it hit.
///
/// ```
/// use feedwater::{ErrorKind, MemoryReader, ReaderExt};
///
/// let reader = MemoryReader::new("abc");
/// let error = reader.read(1..9).wait().unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::OutOfBounds { len: 3 }));
/// assert_eq!((error.offset(), error.length()), (Some(1), Some(8)));
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    name: Option<Arc<str>>,
    range: Option<Range<u64>>,
    engine: Option<&'static str>,
}

/// What went wrong; the variants follow what a caller can do next.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum ErrorKind {
    /// The range does not satisfy `start <= end <= len`. Ask for less.
    #[error("the range is outside the source, which has {len} bytes")]
    OutOfBounds {
        /// Length of the source in bytes.
        len: u64,
    },
    /// The system refused or failed an operation: no such file ([`io::ErrorKind::NotFound`]), no permission, a device that
    /// fails…
    #[error("{op} failed: {source}")]
    Io {
        /// The system call or operation.
        op: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The content changed since it was opened: the bytes would be a mixture. Open it anew.
    #[error(
        "the content changed under the reader (opened as {opened}; now {found}); open it again to read the new content"
    )]
    Changed {
        /// What was opened.
        opened: Version,
        /// What is there now.
        found: Version,
    },
    /// The path does not lead to a regular file.
    #[error("not a regular file but a {what}, which can be neither read nor replaced")]
    NotAFile {
        /// What it is.
        what: FileKind,
    },
    /// Something has the name already, and replacing it was not allowed. Choose another, or allow it.
    #[error("the name is taken, and replacing what has it was not allowed")]
    AlreadyExists,
    /// The engine that was asked for cannot be used; the refusal says why.
    #[error("engine {engine} cannot be used: {why}")]
    Unavailable {
        /// The engine's name.
        engine: &'static str,
        /// Why not.
        why: Refusal,
    },
    /// The reader cannot do this at all, whatever the bytes: another engine or wrapper may.
    #[error("not supported: {what}")]
    Unsupported {
        /// What was asked for.
        what: Cow<'static, str>,
    },
    /// The destination has less room than the range has bytes. Its memory comes back with the error.
    #[error("the destination has room for {room} bytes, the range has {wanted}")]
    DestinationTooSmall {
        /// Bytes that fit.
        room: u64,
        /// Bytes asked for.
        wanted: u64,
    },
    /// Memory for the result could not be had, or more was asked for than the engine's cap allows.
    #[error(
        "{wanted} bytes of memory were refused (cap {cap} bytes); read in smaller ranges, or raise the cap"
    )]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Most bytes that one request may take.
        cap: u64,
    },
    /// A source without a length (a file of procfs, a pipe) gave more than the cap.
    #[error(
        "the source does not tell its length and gave more than {cap} bytes; read it as a stream instead"
    )]
    TooLarge {
        /// Most bytes taken from such a source.
        cap: u64,
    },
    /// There are more things than the cap. Raise it, or take them in parts.
    #[error("there are more than {cap}, the most that were allowed")]
    TooMany {
        /// The cap.
        cap: u64,
    },
    /// An option has a value that makes no sense.
    #[error("invalid option: {what}")]
    InvalidOption {
        /// Which, and why.
        what: Cow<'static, str>,
    },
    /// The deadline passed before the read was done.
    #[error("the deadline passed before the read was done")]
    TimedOut,
    /// The engine delivered another number of bytes than was asked for: it breaks the contract. Report it to its
    /// makers; no byte of it can be trusted.
    #[error(
        "the engine delivered {got} bytes where {wanted} were asked for; this is a bug of the engine"
    )]
    WrongLength {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes delivered.
        got: u64,
    },
    /// The engine gave up the read without finishing it: it was shut down or failed.
    #[error(
        "the engine dropped the read unfinished; it was shut down or one of its threads failed"
    )]
    Abandoned,
    /// The bytes are not what their format asks for: the file is damaged, or is something else.
    #[error("malformed {format}{}: {what}", of_part(part.as_deref()))]
    Malformed {
        /// The format: `parquet`, `TFRecord`, `tf.train.Example`, `safetensors`, `npy`…
        format: &'static str,
        /// The column, feature, tensor or page, where known.
        part: Option<Arc<str>>,
        /// What is wrong.
        what: Cow<'static, str>,
    },
    /// The file uses a part of its format that this crate does not read.
    #[error("{format}{}: not supported: {feature}", of_part(part.as_deref()))]
    UnsupportedFeature {
        /// The format.
        format: &'static str,
        /// The column, tensor or page, where known.
        part: Option<Arc<str>>,
        /// What is used there.
        feature: Cow<'static, str>,
    },
    /// A record of a TFRecord file fails a check. The offset of the error is where the record begins.
    #[error("record {record} is corrupt: {check}")]
    CorruptRecord {
        /// Number of the record in its file, from 0.
        record: u64,
        /// The check that failed.
        check: RecordCheck,
    },
    /// The file has no column, tensor or member of the name, or fewer rows or records than were asked for.
    ///
    /// A path that is not there is [`Io`](Self::Io) instead; [`Error::io_kind`] is [`io::ErrorKind::NotFound`] for both.
    #[error("there is no {what}")]
    NotFound {
        /// What was asked for, and what there is.
        what: Cow<'static, str>,
    },
    /// A library that decodes for this crate panicked on the bytes, or a reader that brought them. Report it to its makers;
    /// the file may be damaged.
    #[error("{library} panicked while it decoded{}: {message}", of_part(part.as_deref()))]
    Panicked {
        /// The library; `feedwater` is this crate itself.
        library: &'static str,
        /// The column or part that was being decoded, where known.
        part: Option<Arc<str>>,
        /// The message of the panic.
        message: Arc<str>,
    },
    /// A call of the CUDA driver, or of cuFile, failed. The device can be used on; the host's memory, or the way through it, may do
    /// instead.
    #[error("{call} failed: {name} ({code}){}", of_log(log.as_deref()))]
    Cuda {
        /// The function; those of cuFile begin with `cuFile`.
        call: &'static str,
        /// Its `CUresult`; of a function of cuFile, its `CUfileOpError` (from 5000 on).
        code: u32,
        /// The name of that, as the driver spells it; of a code of cuFile, what it means.
        name: Arc<str>,
        /// What the driver's compiler said, where it was asked to compile.
        log: Option<Arc<str>>,
    },
    /// A GPU broke down under this process: every later call for it fails. Go on with the host's memory, or in a new
    /// process.
    #[error("device {device} is lost to this process: {call} failed: {name} ({code})")]
    DeviceLost {
        /// Ordinal of the device.
        device: u32,
        /// The call that told it, maybe not the one that did it.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
        /// The name of that, as the driver spells it.
        name: Arc<str>,
    },
    /// This process was forked from the one that opened the source. Open it again here.
    #[error("made before this process was forked; make and open it again in this process")]
    Forked,
}

/// Which check of a TFRecord failed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RecordCheck {
    /// The masked CRC-32C of the length.
    #[error("the checksum of its length is wrong")]
    LengthChecksum,
    /// The masked CRC-32C of the data.
    #[error("the checksum of its data is wrong")]
    DataChecksum,
    /// The file ends inside the record.
    #[error("the file ends inside it")]
    Truncated,
    /// The length, although its checksum is right, is more than the file has left or than the cap.
    #[error("its length of {length} bytes is more than {most}, the most it can be")]
    Length {
        /// The length field.
        length: u64,
        /// What is left of the file, or the cap if that is less.
        most: u64,
    },
}

/// ` (part)`, where there is one.
fn of_part(part: Option<&str>) -> String {
    part.map_or_else(String::new, |part| format!(" ({part})"))
}

/// `: log`, where there is one.
fn of_log(log: Option<&str>) -> String {
    log.map_or_else(String::new, |log| format!(": {}", log.trim()))
}

/// What a path that is not a regular file leads to.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FileKind {
    /// A directory.
    #[error("directory")]
    Directory,
    /// A named or unnamed pipe.
    #[error("FIFO")]
    Fifo,
    /// A socket.
    #[error("socket")]
    Socket,
    /// A character device.
    #[error("character device")]
    CharacterDevice,
    /// A block device.
    #[error("block device")]
    BlockDevice,
    /// Something this crate does not know.
    #[error("file of an unknown kind")]
    Unknown,
}

/// Why an engine cannot be used: not compiled in, does not load here, or does not work for this file.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// The cargo feature that brings the engine is off.
    #[error("not compiled in; enable the cargo feature `{feature}`")]
    NotCompiledIn {
        /// The feature.
        feature: &'static str,
    },
    /// The operating system does not offer what the engine needs.
    #[error("this system does not offer it: {what}")]
    NotOnThisSystem {
        /// What is missing.
        what: Cow<'static, str>,
    },
    /// Mapping needs the caller's promise that nobody changes the file.
    #[error("needs the promise that the file does not change (`OpenOptions::assume_immutable`)")]
    NeedsPromise,
    /// The engine does not work for this file or file system.
    #[error("{what}")]
    NotForThisFile {
        /// Why not.
        what: Cow<'static, str>,
    },
    /// The system call that the engine needs was refused.
    #[error("{op} failed: {source}")]
    Os {
        /// The system call or operation.
        op: &'static str,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// An error without a place; see [`named`](Self::named), [`at`](Self::at) and [`by`](Self::by).
    pub fn new(kind: ErrorKind) -> Self {
        Error(Arc::new(Inner {
            kind,
            name: None,
            range: None,
            engine: None,
        }))
    }

    /// A failed system call or operation.
    pub fn io(op: &'static str, source: io::Error) -> Self {
        Error::new(ErrorKind::Io {
            op,
            source: Arc::new(source),
        })
    }

    /// Adds the path, URL or other name of the source, unless one is there already.
    #[must_use]
    pub fn named(mut self, name: &Arc<str>) -> Self {
        if self.0.name.is_none() {
            Arc::make_mut(&mut self.0).name = Some(name.clone());
        }
        self
    }

    /// Adds the byte range, unless one is there already.
    #[must_use]
    pub fn at(mut self, range: Range<u64>) -> Self {
        if self.0.range.is_none() {
            Arc::make_mut(&mut self.0).range = Some(range);
        }
        self
    }

    /// Adds the name of the engine, unless one is there already.
    #[must_use]
    pub fn by(mut self, engine: &'static str) -> Self {
        if self.0.engine.is_none() {
            Arc::make_mut(&mut self.0).engine = Some(engine);
        }
        self
    }

    /// The same failure reported for another range, as when one request to the kernel served several.
    #[must_use]
    pub fn moved_to(mut self, range: Range<u64>) -> Self {
        Arc::make_mut(&mut self.0).range = Some(range);
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Path, URL or other name of the source, where known.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Offset in bytes of the range that failed, where it was about a range.
    pub fn offset(&self) -> Option<u64> {
        self.0.range.as_ref().map(|range| range.start)
    }

    /// Length in bytes of the range that failed, where it was about a range. 0 if the range was reversed.
    pub fn length(&self) -> Option<u64> {
        self.0
            .range
            .as_ref()
            .map(|range| range.end.saturating_sub(range.start))
    }

    /// Name of the engine that failed, where known.
    pub fn engine(&self) -> Option<&'static str> {
        self.0.engine
    }

    /// The nearest [`io::ErrorKind`]: [`NotFound`](io::ErrorKind::NotFound) for a path that is not there, and
    /// so on.
    pub fn io_kind(&self) -> io::ErrorKind {
        match self.kind() {
            ErrorKind::Io { source, .. } => source.kind(),
            ErrorKind::OutOfBounds { .. } => io::ErrorKind::UnexpectedEof,
            ErrorKind::NotAFile {
                what: FileKind::Directory,
            } => io::ErrorKind::IsADirectory,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::NotAFile { .. }
            | ErrorKind::InvalidOption { .. }
            | ErrorKind::DestinationTooSmall { .. } => io::ErrorKind::InvalidInput,
            ErrorKind::Unavailable { .. }
            | ErrorKind::Unsupported { .. }
            | ErrorKind::UnsupportedFeature { .. } => io::ErrorKind::Unsupported,
            ErrorKind::OutOfMemory { .. } => io::ErrorKind::OutOfMemory,
            ErrorKind::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            ErrorKind::TooMany { .. } => io::ErrorKind::QuotaExceeded,
            ErrorKind::TimedOut => io::ErrorKind::TimedOut,
            ErrorKind::Changed { .. }
            | ErrorKind::Malformed { .. }
            | ErrorKind::CorruptRecord { .. } => io::ErrorKind::InvalidData,
            ErrorKind::NotFound { .. } => io::ErrorKind::NotFound,
            ErrorKind::Abandoned
            | ErrorKind::Forked
            | ErrorKind::Cuda { .. }
            | ErrorKind::DeviceLost { .. }
            | ErrorKind::WrongLength { .. }
            | ErrorKind::Panicked { .. } => io::ErrorKind::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(name) = &inner.name {
            write!(f, "{name}: ")?;
        }
        if let Some(range) = &inner.range {
            match range.end.checked_sub(range.start) {
                Some(len) => write!(f, "offset {}, length {len}: ", range.start)?,
                None => write!(f, "offset {}, reversed end {}: ", range.start, range.end)?,
            }
        }
        write!(f, "{}", inner.kind)?;
        match inner.engine {
            Some(engine) => write!(f, " (engine {engine})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("name", &self.0.name)
            .field("range", &self.0.range)
            .field("engine", &self.0.engine)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // `Display` prints the kind and the system's error that it holds: the chain goes on below both.
        std::error::Error::source(&self.0.kind)?.source()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error::new(kind)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(error.io_kind(), error)
    }
}

/// So many of something, in words: `1 page`, `2 pages`, `0 batches`.
pub(crate) fn counted(count: u64, noun: &'static str) -> impl fmt::Display {
    Counted { count, noun }
}

struct Counted {
    count: u64,
    noun: &'static str,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = match self.count {
            1 => "",
            _ if self.noun.ends_with("ch") || self.noun.ends_with('s') => "es",
            _ => "s",
        };
        write!(f, "{} {}{plural}", self.count, self.noun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let of = |count, noun| counted(count, noun).to_string();
        assert_eq!(of(1, "row group"), "1 row group");
        assert_eq!(of(0, "row group"), "0 row groups");
        assert_eq!(
            (of(1, "batch"), of(2, "batch")),
            ("1 batch".into(), "2 batches".into())
        );
    }

    #[test]
    fn display_names_place_engine_and_cause() {
        let name: Arc<str> = "/data/x".into();
        let error = Error::io("pread", io::Error::from_raw_os_error(5))
            .named(&name)
            .at(10..30)
            .by("pread");
        let text = error.to_string();
        assert!(
            text.starts_with("/data/x: offset 10, length 20: pread failed: "),
            "{text}"
        );
        assert!(text.ends_with("(engine pread)"), "{text}");
    }

    #[test]
    fn the_first_place_stays() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let error = Error::new(ErrorKind::TimedOut).named(&a).at(1..2).by("x");
        let error = error.named(&b).at(3..4).by("y");
        assert_eq!(error.name(), Some("a"));
        assert_eq!((error.offset(), error.engine()), (Some(1), Some("x")));
        assert_eq!(error.moved_to(5..7).offset(), Some(5));
    }

    #[test]
    fn reversed_range_has_no_length_and_says_so() {
        #[allow(clippy::reversed_empty_ranges)]
        let error = Error::new(ErrorKind::OutOfBounds { len: 3 }).at(9..4);
        assert_eq!(error.length(), Some(0));
        assert!(error.to_string().contains("reversed end 4"));
    }

    #[test]
    fn converts_to_the_nearest_io_error() {
        let error: io::Error = Error::io("open", io::ErrorKind::PermissionDenied.into()).into();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let inner = error.get_ref().and_then(|e| e.downcast_ref::<Error>());
        assert!(matches!(
            inner.map(Error::kind),
            Some(ErrorKind::Io { op: "open", .. })
        ));
    }
}
