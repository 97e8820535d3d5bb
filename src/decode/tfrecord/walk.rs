//! From chunks to records: the engine of all iterators and streams here. One file after the other.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};

use super::inflate::{Inflate, Inflated, recognise};
use super::options::{Compression, OnCorrupt, RecordOptions, Skipped, SkippedRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::format::lfs;
use crate::format::tfrecord::frame::HEADER;
use crate::format::tfrecord::frames::Frames;
use crate::format::tfrecord::parser::{Bad, Parser, Rules, Step};
use crate::open::{OpenOptions, Opened, Opening};
use crate::reader::{Chunks, Reader, ReaderExt};

/// A task to wake, or none: then the thread waits.
pub(super) type Waiter<'a, 'b> = Option<&'a mut Context<'b>>;

/// A file that was opened, and its number; none behind the last one.
type Next<R> = Poll<Option<Result<(usize, Arc<R>)>>>;

/// The files that are read, one after the other.
pub(super) trait Shards<R: ?Sized>: Send {
    /// The next one.
    fn next(&mut self, waiter: Waiter<'_, '_>) -> Next<R>;

    /// The current one is nearly through: the first `window` bytes of the next will be wanted soon.
    fn prepare(&mut self, window: u64);
}

pub(super) struct Walk<R: Reader + ?Sized> {
    shards: Box<dyn Shards<R>>,
    options: RecordOptions,
    file: Option<FileWalk<R>>,
    skipped: Skipped,
    delivered: u64,
    /// A file was compressed.
    compressed: bool,
    started: bool,
    done: bool,
}

/// One file being read.
struct FileWalk<R: Reader + ?Sized> {
    shard: usize,
    name: Arc<str>,
    chunks: Chunks<R>,
    /// Bytes of the file that were not delivered yet.
    left: u64,
    form: Form,
    parser: Parser,
}

enum Form {
    /// Not known before there are enough bytes.
    Unknown(BytesMut),
    Plain,
    Compressed(Box<Inflate>),
}

impl<R: Reader + ?Sized> Walk<R> {
    pub(super) fn one(reader: Arc<R>, options: RecordOptions) -> Self {
        Walk::of(Box::new(One(Some(reader))), options)
    }

    pub(super) fn of(shards: Box<dyn Shards<R>>, options: RecordOptions) -> Self {
        Walk {
            shards,
            options,
            file: None,
            skipped: Skipped::default(),
            delivered: 0,
            compressed: false,
            started: false,
            done: false,
        }
    }

    pub(super) fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Whether a file that was read so far is compressed.
    pub(super) fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// The next records. `None` behind the last ones, and after an error.
    pub(super) fn next(&mut self, mut waiter: Waiter<'_, '_>) -> Poll<Option<Result<Frames>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let next = self.advance(&mut waiter);
        if let Poll::Ready(None | Some(Err(_))) = &next {
            self.done = true;
            self.file = None;
        }
        next
    }

    fn advance(&mut self, waiter: &mut Waiter<'_, '_>) -> Poll<Option<Result<Frames>>> {
        if !self.started {
            self.options.check()?;
            self.started = true;
        }
        loop {
            let Some(file) = &mut self.file else {
                match ready!(self.shards.next(waiter.as_deref_mut())).transpose()? {
                    Some((shard, reader)) => {
                        self.file = Some(FileWalk::new(shard, reader, &self.options));
                        continue;
                    }
                    None => return Poll::Ready(self.finish().map(Err)),
                }
            };
            match file
                .parser
                .next()
                .map_err(|error| error.named(&file.name))?
            {
                Step::Frames(mut frames) => {
                    frames.shard = file.shard;
                    self.delivered += frames.len() as u64;
                    return Poll::Ready(Some(Ok(frames)));
                }
                Step::Skipped(bad) => {
                    let error = file.error(bad);
                    self.skipped.add(file.skipped(bad));
                    if self.too_many(false) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                Step::Corrupt(bad) => return Poll::Ready(Some(Err(file.error(bad)))),
                Step::Pointer => return Poll::Ready(Some(Err(file.pointer()))),
                Step::End => self.file = None,
                Step::Want(bytes) => {
                    let window = self.options.chunks.window as u64;
                    // What is left is in flight, or of the record at hand.
                    if file.left <= window.max(bytes) {
                        self.shards.prepare(window);
                    }
                    ready!(file.more(waiter, &self.options))?;
                    self.compressed |= matches!(file.form, Form::Compressed(_));
                }
            }
        }
    }

    fn too_many(&self, at_the_end: bool) -> bool {
        let corrupt = self.skipped.records();
        match self.options.on_corrupt {
            OnCorrupt::Fail => false,
            OnCorrupt::Skip { at_most } => {
                at_most.is_exceeded(corrupt, corrupt + self.delivered, at_the_end)
            }
        }
    }

    /// What is to be said at the end: that too large a share was corrupt.
    fn finish(&mut self) -> Option<Error> {
        if !self.too_many(true) {
            return None;
        }
        let last = self.skipped.list().last()?;
        let (record, check) = (last.record, last.check);
        let error = Error::new(ErrorKind::CorruptRecord { record, check });
        let end = last.offset.saturating_add(last.length);
        Some(error.named(&last.name).at(last.offset..end))
    }
}

impl<R: Reader + ?Sized> FileWalk<R> {
    fn new(shard: usize, reader: Arc<R>, options: &RecordOptions) -> Self {
        let len = reader.source().len();
        let name = reader.source().name().clone();
        let form = match options.compression.map(Inflate::new) {
            None => Form::Unknown(BytesMut::new()),
            Some(None) => Form::Plain,
            Some(Some(inflate)) => Form::Compressed(Box::new(inflate)),
        };
        let compression = options.compression.unwrap_or_default();
        FileWalk {
            shard,
            name,
            chunks: reader.chunks(0..len, options.chunks.clone()),
            left: len,
            form,
            parser: parser(options, compression, len),
        }
    }

    /// Brings more bytes to the parser.
    fn more(&mut self, waiter: &mut Waiter<'_, '_>, options: &RecordOptions) -> Poll<Result<()>> {
        loop {
            if let Form::Compressed(inflate) = &mut self.form {
                match inflate.next().map_err(|error| error.named(&self.name))? {
                    Inflated::Piece(piece) => {
                        self.parser.push(piece);
                        return Poll::Ready(Ok(()));
                    }
                    Inflated::End => {
                        self.parser.finish();
                        return Poll::Ready(Ok(()));
                    }
                    Inflated::Want => {}
                }
            }
            let chunk = ready!(next_chunk(&mut self.chunks, waiter.as_deref_mut())).transpose()?;
            self.left = self
                .left
                .saturating_sub(chunk.as_ref().map_or(0, Bytes::len) as u64);
            match (&mut self.form, chunk) {
                (Form::Plain, Some(chunk)) => {
                    self.parser.push(chunk);
                    return Poll::Ready(Ok(()));
                }
                (Form::Plain, None) => {
                    self.parser.finish();
                    return Poll::Ready(Ok(()));
                }
                (Form::Compressed(inflate), Some(chunk)) => inflate.push(chunk),
                (Form::Compressed(inflate), None) => inflate.finish(),
                (Form::Unknown(start), chunk) => {
                    let ended = chunk.is_none();
                    let chunk = chunk.unwrap_or_default();
                    let start = if start.is_empty() {
                        chunk
                    } else {
                        start.extend_from_slice(&chunk);
                        std::mem::take(start).freeze()
                    };
                    if start.len() < HEADER && !ended {
                        self.form = Form::Unknown(BytesMut::from(&start[..]));
                        continue;
                    }
                    let compression = recognise(&start);
                    let Some(mut inflate) = Inflate::new(compression) else {
                        self.form = Form::Plain;
                        self.parser.push(start);
                        return Poll::Ready(Ok(()));
                    };
                    inflate.push(start);
                    self.form = Form::Compressed(Box::new(inflate));
                    self.parser = parser(options, compression, 0);
                }
            }
        }
    }

    fn error(&self, bad: Bad) -> Error {
        let (record, check) = (bad.record, bad.check);
        Error::new(ErrorKind::CorruptRecord { record, check })
            .named(&self.name)
            .at(bad.start..bad.end)
    }

    fn skipped(&self, bad: Bad) -> SkippedRecord {
        SkippedRecord {
            shard: self.shard,
            name: self.name.clone(),
            record: bad.record,
            offset: bad.start,
            length: bad.end.saturating_sub(bad.start),
            check: bad.check,
        }
    }

    fn pointer(&self) -> Error {
        Error::new(ErrorKind::Malformed {
            format: "TFRecord",
            part: None,
            what: lfs::POINTER.into(),
        })
        .named(&self.name)
    }
}

fn parser(options: &RecordOptions, compression: Compression, len: u64) -> Parser {
    Parser::new(Rules {
        verify_data: options.verify_data,
        most: options.most(compression),
        total: (compression == Compression::None).then_some(len),
        skip: options.on_corrupt != OnCorrupt::Fail,
    })
}

/// The next chunk: waited for, or asked for by a task.
fn next_chunk<R: Reader + ?Sized>(
    chunks: &mut Chunks<R>,
    waiter: Waiter<'_, '_>,
) -> Poll<Option<Result<Bytes>>> {
    match waiter {
        None => Poll::Ready(chunks.next()),
        Some(context) => chunks.poll_next(context),
    }
}

/// A reader by itself.
struct One<R: ?Sized>(Option<Arc<R>>);

impl<R: Reader + ?Sized> Shards<R> for One<R> {
    fn next(&mut self, _: Waiter<'_, '_>) -> Next<R> {
        Poll::Ready(self.0.take().map(|reader| Ok((0, reader))))
    }

    fn prepare(&mut self, _: u64) {}
}

/// Files that are opened one after the other, the next one while the current one is read.
pub(super) struct Paths {
    paths: Arc<[PathBuf]>,
    options: OpenOptions,
    next: usize,
    opening: Option<Opening>,
    opened: Option<Result<Arc<Opened>>>,
}

impl Paths {
    pub(super) fn new(paths: Arc<[PathBuf]>, options: OpenOptions) -> Self {
        Paths {
            paths,
            options,
            next: 0,
            opening: None,
            opened: None,
        }
    }

    fn begin(&mut self) {
        if self.opening.is_none() && self.opened.is_none() {
            let path = self.paths.get(self.next);
            self.opening = path.map(|path| self.options.open_async(path));
        }
    }
}

impl Shards<Opened> for Paths {
    fn next(&mut self, waiter: Waiter<'_, '_>) -> Next<Opened> {
        let opened = match (self.opened.take(), waiter) {
            (Some(opened), _) => opened,
            (None, Some(context)) => {
                self.begin();
                let Some(opening) = &mut self.opening else {
                    return Poll::Ready(None);
                };
                let opened = ready!(Pin::new(opening).poll(context));
                self.opening = None;
                opened
            }
            (None, None) => match (self.opening.take(), self.paths.get(self.next)) {
                (Some(opening), _) => opening.wait(),
                (None, Some(path)) => self.options.open(path),
                (None, None) => return Poll::Ready(None),
            },
        };
        let shard = self.next;
        self.next += 1;
        self.begin();
        Poll::Ready(Some(opened.map(|reader| (shard, reader))))
    }

    fn prepare(&mut self, window: u64) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        // Nobody waits for it yet: it is looked at again with the next chunk.
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(opened) = Pin::new(opening).poll(&mut context) {
            if let Ok(reader) = &opened {
                reader.prefetch(&[0..window.min(reader.len())]);
            }
            self.opening = None;
            self.opened = Some(opened);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_next_file_is_opened_while_the_current_one_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = ["a", "b"].map(|name| dir.path().join(name)).into();
        for path in &paths {
            std::fs::write(path, "some bytes").unwrap();
        }
        let mut files = Paths::new(paths.clone().into(), OpenOptions::new());
        assert!(
            files.opening.is_none(),
            "nothing happens before it is asked"
        );
        let Poll::Ready(Some(Ok((0, first)))) = files.next(None) else {
            panic!("the first file opens");
        };
        assert_eq!(**first.source().name(), *paths[0].to_str().unwrap());
        assert!(files.opening.is_some());
        let end = Instant::now() + Duration::from_secs(20);
        while files.opened.is_none() && Instant::now() < end {
            files.prepare(4);
            std::thread::yield_now();
        }
        assert!(files.opening.is_none());
        let Some(Ok(second)) = &files.opened else {
            panic!("the second file was opened meanwhile");
        };
        let second = second.clone();
        let Poll::Ready(Some(Ok((1, same)))) = files.next(None) else {
            panic!("it is the next");
        };
        assert!(Arc::ptr_eq(&second, &same));
        assert!(matches!(files.next(None), Poll::Ready(None)));
        files.prepare(4);
    }
}
