//! Readers that watch what is asked of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

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

/// [`Copying`], that panics at one of its calls.
#[derive(Debug)]
pub(crate) struct Panicking {
    inner: Arc<Copying>,
    calls: AtomicU64,
    /// Calls before that.
    most: u64,
    /// Only of calls for something from there on; `None`: of all.
    from: Option<u64>,
}

impl Panicking {
    pub(crate) fn after(inner: &Arc<Copying>, most: u64) -> Arc<Self> {
        Arc::new(Panicking {
            inner: inner.clone(),
            calls: AtomicU64::new(0),
            most,
            from: None,
        })
    }

    /// Whenever it is asked for something at or behind a place.
    pub(crate) fn from(inner: &Arc<Copying>, from: u64) -> Arc<Self> {
        Arc::new(Panicking {
            inner: inner.clone(),
            calls: AtomicU64::new(0),
            most: 0,
            from: Some(from),
        })
    }

    fn call(&self, mut offsets: impl Iterator<Item = u64>) {
        if let Some(from) = self.from
            && !offsets.any(|offset| offset >= from)
        {
            return;
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) >= self.most {
            // Without the hook's line in the output of tests.
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
}

impl Reader for Panicking {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        self.call(batch.reads.iter().map(|read| read.range.start));
        self.inner.submit(batch)
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        self.call(reads.iter().map(|read| read.offset));
        self.inner.read_now(reads)
    }
}

/// Memory whose larger ranges come later, after a while in which more could be asked for.
#[derive(Debug)]
pub(crate) struct Later {
    inner: MemoryReader,
    asked: Arc<(Mutex<Asked>, Condvar)>,
}

/// Ranges that were asked for and have not come: now, and at most.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    now: usize,
    pub(crate) most: usize,
}

impl Later {
    pub(crate) fn new(file: &Bytes) -> Arc<Self> {
        Arc::new(Later {
            inner: MemoryReader::new(file.clone()),
            asked: Arc::default(),
        })
    }

    /// Ranges that were asked for and had not come, at most.
    pub(crate) fn most(&self) -> usize {
        self.asked.0.lock().unwrap().most
    }
}

impl Reader for Later {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.inner.source());
        for (read, ticket) in started {
            let bytes = self.inner.read(read.range.clone()).wait().unwrap();
            if bytes.len() <= 1 << 20 {
                ticket.finish(Ok(Block::Host(bytes)));
                continue;
            }
            let asked = self.asked.clone();
            let others = {
                let mut count = asked.0.lock().unwrap();
                count.now += 1;
                count.most = count.most.max(count.now);
                asked.1.notify_all();
                count.now
            };
            std::thread::spawn(move || {
                let count = asked.0.lock().unwrap();
                // Only as long as it takes those who would ask to do so.
                let wait = Duration::from_millis(50);
                let more = |count: &mut Asked| count.now <= others;
                let (mut count, _) = asked.1.wait_timeout_while(count, wait, more).unwrap();
                count.now -= 1;
                drop(count);
                ticket.finish(Ok(Block::Host(bytes)));
            });
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        read_now_by_submit(self, reads)
    }
}
