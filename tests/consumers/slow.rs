//! A slow, failing, reordering engine as a third party would write it: with what the crate exports, no more.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use feedwater::{
    Batch, Dest, Error, ErrorKind, Failed, Limits, Pending, Priority, Read, ReadInto, Reader,
    Result, Route, Source, Ticket, Version,
};

#[derive(Clone, Debug)]
pub(crate) struct RemoteOptions {
    /// Most time a request takes; each takes a share of it that the seed decides.
    pub(crate) latency: Duration,
    /// Requests at once.
    pub(crate) lanes: usize,
    /// Of requests, how many in 16 fail, decided by offset and seed.
    pub(crate) failures: u64,
    pub(crate) seed: u64,
    /// Requests wait until there are this many of them, or until `open`.
    pub(crate) opens_at: usize,
    /// The thread panics instead of doing this request, counted from 0.
    pub(crate) panics_at: Option<u64>,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions {
            latency: Duration::from_millis(1),
            lanes: 8,
            failures: 0,
            seed: 1,
            opens_at: 0,
            panics_at: None,
        }
    }
}

impl RemoteOptions {
    fn random(&self, offset: u64) -> u64 {
        let mut x = (offset + 1).wrapping_mul(self.seed | 1) ^ 0x9E37_79B9_7F4A_7C15;
        for _ in 0..3 {
            x ^= x >> 29;
            x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        }
        x >> 8
    }

    pub(crate) fn fails(&self, offset: u64) -> bool {
        self.random(offset) % 16 < self.failures
    }
}

enum Message {
    Submit(Vec<(Read, Ticket)>, Priority),
    Open,
    /// Report this many bytes more of every request that waits, and answer.
    Progress(u64, Sender<()>),
}

/// What the engine saw.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Offsets in the order served.
    pub(crate) served: Mutex<Vec<u64>>,
    /// Requests that nobody wanted any more.
    pub(crate) skipped: AtomicU64,
    /// Bytes asked for so far.
    pub(crate) submitted: AtomicU64,
    in_flight: AtomicU64,
    pub(crate) peak: AtomicU64,
}

pub(crate) struct Remote {
    source: Source,
    messages: Sender<Message>,
    pub(crate) log: Arc<Log>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Remote {
    pub(crate) fn new(data: impl Into<Bytes>, options: RemoteOptions) -> Self {
        let data = data.into();
        let version = Version::Etag {
            etag: "\"1\"".into(),
            size: data.len() as u64,
        };
        let limits = Limits::default().preferred(1000).depth(options.lanes);
        let source = Source::new("remote://bucket/key", "slow-remote", version, limits);
        let (messages, inbox) = channel();
        let log = Arc::new(Log::default());
        let thread = Thread {
            open: false,
            source: source.clone(),
            data,
            options,
            log: log.clone(),
            queue: VecDeque::new(),
            lanes: Vec::new(),
            begun: 0,
        };
        std::thread::spawn(move || thread.run(&inbox));
        Remote {
            source,
            messages,
            log,
        }
    }

    pub(crate) fn open(&self) {
        self.messages.send(Message::Open).unwrap();
    }

    pub(crate) fn progress(&self, bytes: u64) {
        let (done, wait) = channel();
        self.messages.send(Message::Progress(bytes, done)).unwrap();
        wait.recv().unwrap();
    }
}

impl Reader for Remote {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, options, pending) = batch.start(&self.source);
        let bytes = started.iter().map(|(read, _)| read.len()).sum();
        self.log.submitted.fetch_add(bytes, Ordering::SeqCst);
        let now = self.log.in_flight.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.log.peak.fetch_max(now, Ordering::SeqCst);
        // A dead thread refuses the message; the tickets in it say so when they are dropped.
        let _ = self
            .messages
            .send(Message::Submit(started, options.priority));
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let blocks = self
            .submit(Batch::of(reads.iter().map(ReadInto::range)))
            .wait()?;
        for (read, block) in reads.iter_mut().zip(blocks) {
            read.buf.copy_from_slice(&block.into_host()?);
        }
        Ok(())
    }
}

struct Thread {
    options: RemoteOptions,
    source: Source,
    data: Bytes,
    log: Arc<Log>,
    open: bool,
    queue: VecDeque<(Read, Ticket, Priority)>,
    /// Requests under way and when they are done.
    lanes: Vec<(Instant, Read, Ticket)>,
    begun: u64,
}

impl Thread {
    fn run(mut self, inbox: &Receiver<Message>) {
        loop {
            self.begin();
            let due = self.lanes.iter().map(|(due, ..)| *due).min();
            let message = match due {
                None => inbox.recv().map_err(RecvTimeoutError::from),
                Some(due) => inbox.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(Message::Submit(reads, priority)) => {
                    let reads = reads
                        .into_iter()
                        .map(|(read, ticket)| (read, ticket, priority));
                    self.queue.extend(reads);
                }
                Ok(Message::Open) => self.open = true,
                Ok(Message::Progress(bytes, done)) => {
                    for (_, ticket, _) in &self.queue {
                        ticket.add_progress(bytes);
                    }
                    done.send(()).unwrap();
                }
                Err(RecvTimeoutError::Timeout) => self.complete(),
                // The reader is gone, and what it had to do with it.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn begin(&mut self) {
        let now = Instant::now();
        self.open |= self.queue.len() >= self.options.opens_at;
        while self.open && self.lanes.len() < self.options.lanes {
            let first = self.queue.iter().position(|q| q.2 == Priority::Foreground);
            let Some((read, ticket, _)) = self.queue.remove(first.unwrap_or(0)) else {
                return;
            };
            if !ticket.wanted() {
                self.log.skipped.fetch_add(1, Ordering::SeqCst);
                self.log.in_flight.fetch_sub(read.len(), Ordering::SeqCst);
                continue;
            }
            if self.options.panics_at == Some(self.begun) {
                std::panic::resume_unwind(Box::new("a bug of the engine"));
            }
            self.begun += 1;
            let share = self.options.random(read.range.start) % 1000;
            let due = now + self.options.latency * share as u32 / 1000;
            self.lanes.push((due, read, ticket));
        }
    }

    /// Completes the request that is due first.
    fn complete(&mut self) {
        let first = (0..self.lanes.len())
            .min_by_key(|&i| self.lanes[i].0)
            .unwrap();
        let (_, read, ticket) = self.lanes.remove(first);
        let Read { range, dest } = read;
        let len = range.end - range.start;
        self.log.served.lock().unwrap().push(range.start);
        self.log.in_flight.fetch_sub(len, Ordering::SeqCst);
        let counters = self.source.counters();
        counters.add_requests(1);
        if self.options.fails(range.start) {
            let reset = std::io::ErrorKind::ConnectionReset.into();
            let error = self.source.place(Error::io("GET", reset), range);
            return ticket.finish(Err(Failed::new(error, dest)));
        }
        let bytes = self.data.slice(range.start as usize..range.end as usize);
        counters.add_read(len);
        counters.add_route(Route::Other, len);
        ticket.finish(match dest {
            Dest::Any(place) if place.is_host_accessible() => Ok(bytes.into()),
            Dest::Into(mut block) => match block.put(&bytes) {
                Ok(()) => Ok(block.freeze()),
                Err(error) => {
                    let error = self.source.place(error, range);
                    Err(Failed::new(error, Dest::Into(block)))
                }
            },
            Dest::Any(place) => {
                let what = format!("a destination in {place}").into();
                Err(self
                    .source
                    .error(ErrorKind::Unsupported { what }, range)
                    .into())
            }
            _ => Ok(Bytes::new().into()),
        });
    }
}
