//! From a reader into a sink: within the kernel where it can be, else reading and writing at the same time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use bytes::Bytes;

use super::sink::{FileSink, no_room};
use super::target::version_of;
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::reader::{ChunkOptions, Chunks, LocalFile, Reader, ReaderExt};
use crate::sys;
use crate::version::Version;

/// Bytes of one `copy_file_range`. Larger ones were not faster where it was measured (ext4, from the page cache);
/// smaller ones cost more calls.
const KERNEL_STEP: u64 = 1 << 20;

/// Chunk of a source that prefers no more than [`SMALL_SOURCE`]: the few that are in flight then stay in the
/// processor's cache between the read and the write.
const SMALL_CHUNK: usize = 256 << 10;
const SMALL_SOURCE: usize = 1 << 20;

/// Chunks that wait for the writing thread.
const QUEUE: usize = 2;

/// Below this a second thread costs more than it gains.
const THREAD_FROM: u64 = 2 << 20;

/// From here on room is reserved before the bytes come: a full disk fails at once, and where it was measured (ext4,
/// from the page cache) the writes were a tenth to a fifth faster. Not for copies within the kernel, which
/// may need no room because they share blocks.
const RESERVE_FROM: u64 = 2 << 20;

/// How [`copy`] copies.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyOptions {
    /// What to copy, in bytes of the source. Default: everything.
    pub range: Option<Range<u64>>,
    /// Bytes of one read. Default: the source's [`Limits::preferred`](crate::Limits::preferred), but 256 KiB if
    /// that is 1 MiB or less.
    pub chunk: Option<usize>,
    /// Most bytes asked for and not yet taken; one chunk is always allowed. Default 8 MiB. Up to three more chunks
    /// are on their way into the sink.
    pub window: usize,
    /// Whether the kernel is asked to copy without showing the bytes to this process (`copy_file_range`). Default:
    /// where that can spare the copying (file systems that share blocks, or copy on a server), and where a second
    /// thread cannot help. On ext4, reading and writing at the same time took two thirds of the kernel's time
    /// for the same bytes, on two processors.
    pub in_kernel: Option<bool>,
}

impl Default for CopyOptions {
    fn default() -> Self {
        CopyOptions {
            range: None,
            chunk: None,
            window: 8 << 20,
            in_kernel: None,
        }
    }
}

impl CopyOptions {
    /// Sets the [range](Self::range).
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Sets the [chunk](Self::chunk) in bytes; 0 is taken as 1.
    #[must_use]
    pub fn chunk(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Sets the [window](Self::window) in bytes.
    #[must_use]
    pub fn window(mut self, bytes: usize) -> Self {
        self.window = bytes;
        self
    }

    /// Sets [`in_kernel`](Self::in_kernel).
    #[must_use]
    pub fn in_kernel(mut self, allowed: bool) -> Self {
        self.in_kernel = Some(allowed);
        self
    }
}

/// The way that bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CopyRoute {
    /// `copy_file_range`: within the kernel, or shared extents, or on the server.
    InKernel,
    /// Read by the source's engine while another thread writes what came before.
    Overlapped,
}

/// What [`copy`] did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyReport {
    /// Bytes copied.
    pub bytes: u64,
    /// How many of them went [within the kernel](CopyRoute::InKernel).
    pub in_kernel: u64,
    /// Why not all of them did.
    pub refusal: Option<Refusal>,
}

impl CopyReport {
    /// The way that most bytes went.
    pub fn route(&self) -> CopyRoute {
        if self.in_kernel > self.bytes - self.in_kernel {
            CopyRoute::InKernel
        } else {
            CopyRoute::Overlapped
        }
    }
}

/// Appends bytes of `reader` to `sink`, and says how; the commit is left to the caller.
///
/// A window of reads is in flight while a second thread writes, into room that was reserved (both from 2 MiB on). If the reader's bytes are
/// those of a local file, the kernel may copy them ([`CopyOptions::in_kernel`]); what it refuses is copied the other way,
/// from where it stopped. The file's version is checked after.
///
/// # Errors
/// Those of the reader and those of [`FileSink::write_at`]. [`Changed`](ErrorKind::Changed) if the source changed
/// meanwhile. After any of them the sink cannot be committed, since it holds a part: the target stays what it was.
/// [`OutOfBounds`](ErrorKind::OutOfBounds) leaves the sink as it was.
///
/// ```
/// use std::sync::Arc;
/// use feedwater::{CopyOptions, FileSink, MemoryReader, copy};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("part.bin");
/// let reader = Arc::new(MemoryReader::new("head, body, tail"));
/// let mut sink = FileSink::create(&path)?;
/// let report = copy(&reader, &mut sink, &CopyOptions::default().range(6..10))?;
/// sink.commit()?;
/// assert_eq!(report.bytes, 4);
/// assert_eq!(std::fs::read(&path)?, b"body");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy<R: Reader + ?Sized>(
    reader: &Arc<R>,
    sink: &mut FileSink,
    options: &CopyOptions,
) -> Result<CopyReport> {
    copy_from(reader, reader.local_file(), sink, options)
}

/// [`copy`], told which file the bytes come from.
pub(super) fn copy_from<R: Reader + ?Sized>(
    reader: &Arc<R>,
    kernel: Option<LocalFile<'_>>,
    sink: &mut FileSink,
    options: &CopyOptions,
) -> Result<CopyReport> {
    let range = options.range.clone().unwrap_or(0..reader.source().len());
    reader.source().check(&range)?;
    sink.usable()?;
    // Until it is done the sink holds a part, also if the reader panics.
    sink.begin();
    let outcome = run(reader, kernel, range, sink, options);
    sink.end();
    sink.or_fail(outcome)
}

fn run<R: Reader + ?Sized>(
    reader: &Arc<R>,
    kernel: Option<LocalFile<'_>>,
    range: Range<u64>,
    sink: &mut FileSink,
    options: &CopyOptions,
) -> Result<CopyReport> {
    let not_here = |what: &'static str| Refusal::NotForThisFile { what: what.into() };
    let (in_kernel, refusal) = match kernel {
        _ if options.in_kernel == Some(false) => (0, Some(not_here("the options do not allow it"))),
        None => (0, Some(not_here("the reader names no local file"))),
        Some(_) if sink.is_direct() => (0, Some(not_here("the sink writes past the page cache"))),
        Some(kernel) if options.in_kernel.is_none() && !kernel_is_better(&kernel, &range) => (
            0,
            Some(not_here(
                "reading and writing at the same time is faster here",
            )),
        ),
        Some(kernel) => {
            let (done, refusal) = within_kernel(&kernel, range.clone(), sink)?;
            if done > 0 {
                unchanged(&kernel)
                    .map_err(|e| reader.source().place(e, range.start..range.start + done))?;
            }
            (done, refusal)
        }
    };
    let rest = range.start + in_kernel..range.end;
    if !rest.is_empty() {
        overlapped(reader, rest, sink, options)?;
    }
    Ok(CopyReport {
        bytes: range.end - range.start,
        in_kernel,
        refusal,
    })
}

/// Whether a copy within the kernel can be expected to take less time than one by two threads.
fn kernel_is_better(kernel: &LocalFile<'_>, range: &Range<u64>) -> bool {
    let short = range.end - range.start < THREAD_FROM;
    let alone = thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    short || alone || sys::file_system(kernel.fd).is_ok_and(sys::FileSystem::copies_by_itself)
}

/// Bytes copied before the kernel refused, if it did.
fn within_kernel(
    kernel: &LocalFile<'_>,
    range: Range<u64>,
    sink: &mut FileSink,
) -> Result<(u64, Option<Refusal>)> {
    sink.flush_stage()?;
    let len = range.end - range.start;
    let mut done = 0;
    while done < len {
        let from = kernel
            .start
            .saturating_add(range.start)
            .saturating_add(done);
        let to = sink.len();
        let step = (len - done).min(KERNEL_STEP) as usize;
        let out = &sink.out;
        match out.calls.copy_range(kernel.fd, from, &out.file, to, step) {
            // The file became shorter, or its file system offers nothing here: the reader knows which.
            Ok(0) => {
                let what = format!("copy_file_range gave nothing at offset {from}").into();
                return Ok((done, Some(Refusal::NotForThisFile { what })));
            }
            Ok(n) => {
                sink.grown_by(n as u64);
                done += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if no_room(&error) => {
                let rest = to..to + (len - done);
                return Err(out.failed("copy_file_range", error, rest));
            }
            // Another file system, a flag, an old kernel: the other way works. A device that fails will fail there
            // too, and then it is known on which side.
            Err(error) => {
                let why = Refusal::Os {
                    op: "copy_file_range",
                    source: Arc::new(error),
                };
                return Ok((done, Some(why)));
            }
        }
    }
    Ok((done, None))
}

/// Checks that the file is what was opened: the kernel copied it without the reader's checks.
fn unchanged(kernel: &LocalFile<'_>) -> Result<()> {
    let found = kernel
        .fd
        .try_clone_to_owned()
        .and_then(|fd| version_of(&File::from(fd)))
        .map_err(|e| Error::io("fstat", e))?;
    if found == kernel.version {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Changed {
        opened: Version::File(kernel.version),
        found: Version::File(found),
    }))
}

fn overlapped<R: Reader + ?Sized>(
    reader: &Arc<R>,
    range: Range<u64>,
    sink: &mut FileSink,
    options: &CopyOptions,
) -> Result<()> {
    let len = range.end - range.start;
    let chunk = options
        .chunk
        .unwrap_or(match reader.source().limits().preferred {
            0..=SMALL_SOURCE => SMALL_CHUNK,
            large => large,
        });
    let chunk_options = ChunkOptions::default().size(chunk).window(options.window);
    let mut chunks = reader.clone().chunks(range, chunk_options);
    if len >= RESERVE_FROM {
        sink.reserve(sink.len() + len)?;
    }
    if len >= THREAD_FROM
        && let Some(outcome) = with_writer(&mut chunks, sink)
    {
        return outcome;
    }
    for chunk in chunks {
        sink.append(&chunk?)?;
    }
    Ok(())
}

/// Takes the chunks here while another thread writes them. `None` if there is no such thread to be had.
fn with_writer<R: Reader + ?Sized>(
    chunks: &mut Chunks<R>,
    sink: &mut FileSink,
) -> Option<Result<()>> {
    thread::scope(|scope| {
        let (send, receive) = sync_channel::<Bytes>(QUEUE);
        let writer = thread::Builder::new()
            .name("feedwater-copy".into())
            .spawn_scoped(scope, move || {
                receive
                    .into_iter()
                    .try_for_each(|bytes| sink.append(&bytes))
            })
            .ok()?;
        let mut read = Ok(());
        for chunk in chunks {
            match chunk {
                Ok(bytes) => {
                    // The writer has ended only if it failed; its error is taken below.
                    if send.send(bytes).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    read = Err(error);
                    break;
                }
            }
        }
        drop(send);
        let written = match writer.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Some(read.and(written))
    })
}
