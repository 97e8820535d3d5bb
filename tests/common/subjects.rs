//! Subjects for the conformance suite, and an engine from outside the crate to try it with.
// Each test crate uses a part of it.
#![allow(dead_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use feedwater::conformance::{Capabilities, Content, Opened, Subject};
use feedwater::{
    Batch, Block, BlockMut, Dest, Error, ErrorKind, Failed, FileVersion, HostMemory, Limits,
    MemoryReader, Pending, Read, ReadInto, Reader, Result, Route, Source, Version,
};

/// A subject whose readers read memory: made by a closure from a [`MemoryReader`] of the content.
pub(crate) struct MemorySubject<F> {
    name: &'static str,
    open: F,
    pub(crate) capabilities: Capabilities,
}

impl<F> MemorySubject<F>
where
    F: Fn(&Content) -> Result<Arc<dyn Reader>> + Send + Sync + 'static,
{
    pub(crate) fn new(name: &'static str, open: F) -> Self {
        let capabilities = Capabilities::default();
        MemorySubject {
            name,
            open,
            capabilities,
        }
    }

    pub(crate) fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }
}

impl<F> Subject for MemorySubject<F>
where
    F: Fn(&Content) -> Result<Arc<dyn Reader>> + Send + Sync + 'static,
{
    fn name(&self) -> String {
        self.name.into()
    }
    fn open(&self, content: &Content) -> Result<Opened> {
        Ok(Opened::shared((self.open)(content)?))
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

/// A subject whose readers read files: made by a closure from the path of a file with the content.
pub(crate) struct FileSubject<F> {
    name: &'static str,
    open: F,
    capabilities: Capabilities,
    dir: Option<PathBuf>,
}

impl<F> FileSubject<F>
where
    F: Fn(&Path) -> Result<Arc<dyn Reader>> + Send + Sync + 'static,
{
    pub(crate) fn new(name: &'static str, open: F) -> Self {
        FileSubject {
            name,
            open,
            capabilities: Capabilities::default(),
            dir: None,
        }
    }

    pub(crate) fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Makes the files in new directories under `dir`, in place of the system's temporary one: for engines that
    /// need another file system.
    pub(crate) fn under(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }
}

impl<F> Subject for FileSubject<F>
where
    F: Fn(&Path) -> Result<Arc<dyn Reader>> + Send + Sync + 'static,
{
    fn name(&self) -> String {
        self.name.into()
    }
    fn open(&self, content: &Content) -> Result<Opened> {
        let dir = match &self.dir {
            Some(dir) => tempfile::tempdir_in(dir),
            None => tempfile::tempdir(),
        };
        let dir = dir.map_err(|error| Error::io("making a directory", error))?;
        let path = dir.path().join("content");
        content
            .write_to(&path)
            .map_err(|error| Error::io("writing the content", error))?;
        let reader = (self.open)(&path)?;
        Ok(Opened::shared(reader).file(path).keep(dir))
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

pub(crate) fn memory(content: &Content) -> Arc<MemoryReader> {
    Arc::new(MemoryReader::new(content.to_bytes()))
}

/// As simple as an engine of files can be, by what std and the public interface offer: each read on the spot.
#[derive(Debug)]
pub(crate) struct PlainFile {
    path: PathBuf,
    file: File,
    source: Source,
    process: u32,
    /// How it is broken, to see that the suite notices.
    pub(crate) flaw: Option<Flaw>,
}

/// Mistakes that engines of files make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Never compares versions.
    TrustsTheFile,
    /// Opens the path again for each read.
    ReopensThePath,
    /// Delivers what was in the buffer where a read came back short.
    PadsShortReads,
    /// Compares versions before reading only.
    NamesTheWrongVersion,
}

pub(crate) fn version_of(file: &File) -> io::Result<FileVersion> {
    Ok(FileVersion::from(&file.metadata()?))
}

impl PlainFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io("open", error))?;
        let version = version_of(&file).map_err(|error| Error::io("fstat", error))?;
        let name = path.display().to_string();
        let limits = Limits::default();
        Ok(PlainFile {
            path: path.into(),
            file,
            source: Source::new(name, "plain", Version::File(version), limits),
            process: std::process::id(),
            flaw: None,
        })
    }

    fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = offset..offset + buf.len() as u64;
        if self.process != std::process::id() {
            return Err(self.source.error(ErrorKind::Forked, range));
        }
        let reopened;
        let file = if self.flaw == Some(Flaw::ReopensThePath) {
            reopened = File::open(&self.path)
                .map_err(|e| self.source.place(Error::io("open", e), range.clone()))?;
            &reopened
        } else {
            &self.file
        };
        let counters = self.source.counters();
        let mut done = 0;
        while done < buf.len() {
            counters.add_requests(1);
            match file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) if self.flaw == Some(Flaw::PadsShortReads) => break,
                Ok(0) => return Err(self.changed(range)),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.source.place(Error::io("pread", error), range)),
            }
        }
        counters.add_read(buf.len() as u64);
        let found = version_of(file)
            .map_err(|e| self.source.place(Error::io("fstat", e), range.clone()))?;
        let trusting = matches!(
            self.flaw,
            Some(Flaw::TrustsTheFile | Flaw::PadsShortReads | Flaw::ReopensThePath)
        );
        if !trusting && Version::File(found) != *self.source.version() {
            return Err(self.changed(range));
        }
        counters.add_route(Route::Other, buf.len() as u64);
        Ok(())
    }

    fn changed(&self, range: std::ops::Range<u64>) -> Error {
        let found = match version_of(&self.file) {
            Ok(found) => Version::File(found),
            Err(error) => return self.source.place(Error::io("fstat", error), range),
        };
        let opened = match self.flaw {
            Some(Flaw::NamesTheWrongVersion) => found.clone(),
            _ => self.source.version().clone(),
        };
        self.source
            .error(ErrorKind::Changed { opened, found }, range)
    }

    fn deliver(&self, read: Read) -> Result<Block, Failed> {
        let Read { range, dest } = read;
        let len = (range.end - range.start) as usize;
        let (place, block) = match dest {
            Dest::Prefetch => return Ok(Block::Host(Default::default())),
            Dest::Into(block) => (block.place(), Some(block)),
            Dest::Any(place) => (place, None),
            _ => unimplemented_destination(),
        };
        let given = block.is_some();
        let mut block = match block {
            Some(block) => block,
            None => BlockMut::new(HostMemory::new(len).map_err(Failed::from)?),
        };
        let mut bytes = vec![0; len];
        let result = if place.is_host_accessible() {
            self.read_exact(range.start, &mut bytes)
                .and_then(|()| block.put(&bytes))
        } else {
            let what = format!("a destination in {place}").into();
            Err(Error::new(ErrorKind::Unsupported { what }))
        };
        match result {
            Ok(()) => Ok(block.freeze()),
            Err(error) => Err(Failed {
                error: self.source.place(error, range),
                dest: given.then_some(block),
            }),
        }
    }
}

fn unimplemented_destination() -> ! {
    panic!("a kind of destination that this test engine does not know")
}

impl Reader for PlainFile {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(&self.source);
        for (read, ticket) in started {
            ticket.finish(self.deliver(read));
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let counters = self.source.counters();
        for read in reads {
            self.source.check(&read.range())?;
            counters.add_reads(1);
            counters.add_requested(read.buf.len() as u64);
            self.read_exact(read.offset, read.buf)?;
        }
        Ok(())
    }
}
