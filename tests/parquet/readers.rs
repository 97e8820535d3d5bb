//! Readers that watch what is asked of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use feedwater::{
    Batch, Block, ErrorKind, MemoryReader, Pending, ReadInto, Reader, ReaderExt, Result, Source,
    read_now_by_submit,
};

/// Memory, and a list of all ranges that were asked of it.
#[derive(Debug)]
pub(crate) struct Recording {
    inner: MemoryReader,
    asked: Mutex<Vec<Range<u64>>>,
    /// Told when this is dropped.
    dropped: Mutex<Option<Sender<()>>>,
}

impl Recording {
    pub(crate) fn new(file: &Bytes) -> Arc<Self> {
        Arc::new(Recording {
            inner: MemoryReader::new(file.clone()),
            asked: Mutex::default(),
            dropped: Mutex::default(),
        })
    }

    pub(crate) fn tell_when_dropped(&self, sender: Sender<()>) {
        *self.dropped.lock().unwrap() = Some(sender);
    }

    /// What was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Reader for Recording {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let ranges = batch.reads.iter().map(|read| read.range.clone());
        self.asked.lock().unwrap().extend(ranges);
        self.inner.submit(batch)
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.asked
            .lock()
            .unwrap()
            .extend(reads.iter().map(ReadInto::range));
        self.inner.read_now(reads)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(sender) = self.dropped.lock().unwrap().take() {
            sender.send(()).ok();
        }
    }
}

/// Memory whose bytes are counted as long as anybody has them.
#[derive(Debug)]
pub(crate) struct Counting {
    inner: MemoryReader,
    live: Arc<AtomicU64>,
    pub(crate) most: AtomicU64,
    /// Reads that begin here or behind are not counted.
    end: u64,
}

struct Counted(Bytes, Arc<AtomicU64>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len() as u64, Ordering::SeqCst);
    }
}

impl Counting {
    pub(crate) fn new(file: &Bytes, end: u64) -> Arc<Self> {
        Arc::new(Counting {
            inner: MemoryReader::new(file.clone()),
            live: Arc::default(),
            most: AtomicU64::new(0),
            end,
        })
    }
}

impl Reader for Counting {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.inner.source());
        for (read, ticket) in started {
            let bytes = self.inner.read(read.range.clone()).wait().unwrap();
            if read.range.start >= self.end {
                ticket.finish(Ok(Block::Host(bytes)));
                continue;
            }
            let live =
                self.live.fetch_add(bytes.len() as u64, Ordering::SeqCst) + bytes.len() as u64;
            self.most.fetch_max(live, Ordering::SeqCst);
            let counted = Bytes::from_owner(Counted(bytes, self.live.clone()));
            ticket.finish(Ok(Block::Host(counted)));
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        read_now_by_submit(self, reads)
    }
}

/// Memory that is copied at once, as the page cache is. It can stop being at hand.
#[derive(Debug)]
pub(crate) struct Copying {
    inner: MemoryReader,
    /// Ranges that were read on the caller's thread.
    pub(crate) now: Mutex<Vec<Range<u64>>>,
    /// Further ones fail.
    most: usize,
}

impl Copying {
    pub(crate) fn new(file: &Bytes) -> Arc<Self> {
        Copying::failing_after(file, usize::MAX)
    }

    /// Only so many reads on the caller's thread succeed.
    pub(crate) fn failing_after(file: &Bytes, most: usize) -> Arc<Self> {
        Arc::new(Copying {
            inner: MemoryReader::new(file.clone()),
            now: Mutex::default(),
            most,
        })
    }
}

impl Reader for Copying {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.inner.source());
        for (read, ticket) in started {
            let bytes = self.inner.read(read.range.clone()).wait().unwrap();
            ticket.finish(Ok(Block::Host(Bytes::copy_from_slice(&bytes))));
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let mut now = self.now.lock().unwrap();
        now.extend(reads.iter().map(ReadInto::range));
        if now.len() > self.most {
            let source = Arc::new(std::io::Error::from_raw_os_error(libc::EIO));
            let kind = ErrorKind::Io {
                op: "pread",
                source,
            };
            return Err(self.source().error(kind, reads[0].range()));
        }
        self.inner.read_now(reads)
    }
}
