//! The conformance suite can fail: each mistake is found, by the cases that are about it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use common::subjects::{FileSubject, Flaw, PlainFile, memory};
use feedwater::conformance::{self, Capabilities, Content, Opened, Subject};
use feedwater::{
    Batch, Block, BlockMut, Dest, ErrorKind, Failed, MemoryReader, Pending, ReadInto, Reader,
    Result, Route, Source,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Reads one byte further on.
    OffByOne,
    /// Leaves the last byte out.
    LastByteMissing,
    /// Truncates offsets to 32 bits.
    Offsets32,
    /// Answers ranges outside with nothing.
    EmptyForOutOfBounds,
    /// `read_now` does not look at the bounds of empty buffers.
    EmptyAnywhere,
    /// Finishes the reads of a batch with each other's bytes.
    Swapped,
    /// One failing read fails its batch.
    AllForOne,
    /// Drops each ticket.
    Abandons,
    /// Never finishes.
    Hangs,
    /// Delivers memory of its own in place of the caller's.
    OwnMemory,
    /// Overwrites what the caller had filled.
    ClearsDestinations,
    /// Gives other memory back with an error.
    ExchangesMemory,
    /// Holds on to what it delivered.
    KeepsMemory,
    /// Serves devices with host memory.
    DeviceInHost,
    /// Delivers bytes for hints.
    DataForHints,
    /// Counts bytes twice.
    CountsTwice,
    /// Takes any deadline as passed.
    NoTime,
    /// `read_now` says that it is done and did nothing.
    NothingNow,
    /// `read_now` fills the first buffer only.
    FirstBufferOnly,
    /// Works on the thread that used it first and no other.
    OneThread,
}

#[derive(Debug)]
struct Broken {
    inner: Arc<MemoryReader>,
    /// With counters of its own: the inner reader is asked in other ways than this one.
    source: Source,
    bug: Bug,
    kept: Mutex<Vec<Block>>,
    user: OnceLock<ThreadId>,
}

impl Broken {
    fn before(&self, batch: &mut Batch) {
        let len = self.source.len();
        for read in &mut batch.reads {
            let range = &mut read.range;
            let bad = range.start > range.end || range.end > len;
            match (self.bug, &mut read.dest) {
                (Bug::OffByOne, _) if range.end < len && range.start < range.end => {
                    *range = range.start + 1..range.end + 1;
                }
                (Bug::Offsets32, _) if !bad => {
                    let size = range.end - range.start;
                    range.start &= u64::from(u32::MAX);
                    range.end = range.start + size;
                }
                (Bug::EmptyForOutOfBounds, _) if bad => *range = 0..0,
                (Bug::ClearsDestinations, Dest::Into(block)) => block.clear(),
                (Bug::ExchangesMemory, Dest::Into(block))
                    if (block.remaining() as u64) < range.end - range.start.min(range.end) =>
                {
                    *block = BlockMut::with_capacity(block.remaining());
                }
                _ => {}
            }
        }
    }

    fn deliver(&self, mut read: feedwater::Read) -> Result<Block, Failed> {
        match (self.bug, &read.dest) {
            (Bug::OwnMemory, Dest::Into(_)) if read.range.start.is_multiple_of(2) => {
                read.dest = Dest::Any(feedwater::Place::Host);
            }
            (Bug::DeviceInHost, Dest::Any(_)) | (Bug::DataForHints, Dest::Prefetch) => {
                read.dest = Dest::Any(feedwater::Place::Host);
            }
            _ => {}
        }
        let mut batch = Batch::new();
        batch.reads.push(read);
        let (_, outcome) = self.inner.submit(batch).wait_next().unwrap();
        let block = outcome?;
        let (counters, len) = (self.source.counters(), block.len() as u64);
        counters.add_read(len);
        counters.add_route(Route::Other, len);
        if self.bug == Bug::CountsTwice {
            counters.add_requested(len);
        }
        if self.bug == Bug::KeepsMemory {
            self.kept.lock().unwrap().push(block.clone());
        }
        Ok(match self.bug {
            Bug::LastByteMissing if !block.is_empty() => block.slice(..block.len() - 1),
            _ => block,
        })
    }
}

impl Reader for Broken {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, mut batch: Batch) -> Pending {
        let this = std::thread::current().id();
        if self.bug == Bug::OneThread && *self.user.get_or_init(|| this) != this {
            let error = self.source.error(ErrorKind::Abandoned, 0..0);
            (0..batch.reads.len()).for_each(|index| batch.refuse(index, error.clone()));
        }
        self.before(&mut batch);
        let (started, options, pending) = batch.start(&self.source);
        let (reads, mut tickets): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        match self.bug {
            Bug::Abandons => return pending,
            Bug::Hangs => {
                std::mem::forget(tickets);
                return pending;
            }
            Bug::Swapped => tickets.reverse(),
            _ => {}
        }
        let mut outcomes: Vec<_> = reads.into_iter().map(|read| self.deliver(read)).collect();
        if self.bug == Bug::AllForOne && outcomes.iter().any(Result::is_err) {
            let what = "one of them".into();
            let error = self.source.error(ErrorKind::Unsupported { what }, 0..100);
            outcomes = outcomes.iter().map(|_| Err(error.clone().into())).collect();
        }
        for (ticket, outcome) in tickets.into_iter().zip(outcomes) {
            if self.bug == Bug::NoTime && options.deadline.is_some() {
                let error = self.source.error(ErrorKind::TimedOut, 0..0);
                ticket.finish(Err(error.into()));
            } else {
                ticket.finish(outcome);
            }
        }
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let counters = self.source.counters();
        let bytes = reads.iter().map(|read| read.buf.len() as u64).sum();
        counters.add_reads(reads.len() as u64);
        counters.add_requested(bytes);
        counters.add_route(Route::Other, bytes);
        match self.bug {
            Bug::NothingNow => Ok(()),
            Bug::FirstBufferOnly if !reads.is_empty() => self.inner.read_now(&mut reads[..1]),
            Bug::EmptyAnywhere if reads.iter().all(|read| read.buf.is_empty()) => Ok(()),
            _ => self.inner.read_now(reads),
        }
    }
}

struct BrokenSubject(Bug);

impl Subject for BrokenSubject {
    fn name(&self) -> String {
        format!("{:?}", self.0)
    }
    fn open(&self, content: &Content) -> Result<Opened> {
        let inner = memory(content);
        let like = inner.source();
        let source = Source::new(
            like.name().clone(),
            "broken",
            like.version().clone(),
            like.limits(),
        );
        Ok(Opened::new(Broken {
            inner,
            source,
            bug: self.0,
            kept: Mutex::default(),
            user: OnceLock::new(),
        }))
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().past_4gib(matches!(self.0, Bug::Offsets32))
    }
    fn patience(&self) -> Duration {
        match self.0 {
            Bug::Hangs => Duration::from_secs(3),
            Bug::KeepsMemory => Duration::from_secs(6),
            _ => Duration::from_secs(120),
        }
    }
}

/// Runs the suite, which has to panic; what it said.
fn failure(subject: impl Subject) -> String {
    let name = subject.name();
    let panic = catch_unwind(AssertUnwindSafe(|| conformance::run(subject)))
        .expect_err("the suite found nothing");
    let message = panic.downcast_ref::<String>().expect("a message").clone();
    assert!(message.starts_with(&format!("{name} failed ")), "{message}");
    assert!(message.contains("(seed "), "{message}");
    message
}

fn named(message: &str, cases: &[&str]) {
    for case in cases {
        assert!(
            message.contains(&format!("\n  {case}: ")),
            "{case} is not in: {message}"
        );
    }
}

/// These cases find it, and maybe others.
fn found_by(bug: Bug, cases: &[&str]) {
    named(&failure(BrokenSubject(bug)), cases);
}

/// Just these cases find it.
fn found_only_by(subject: impl Subject, cases: &[&str]) {
    let message = failure(subject);
    named(&message, cases);
    let count = format!("failed {} of", cases.len());
    assert!(
        message.contains(&count),
        "more than {cases:?} in: {message}"
    );
}

#[test]
fn without_a_bug_the_broken_reader_passes() {
    // Otherwise the tests below could find its scaffolding in place of the bugs.
    let report = catch_unwind(|| conformance::run(BrokenSubject(Bug::None)));
    let report = report.unwrap_or_else(|_| panic!("the scaffolding fails"));
    assert!(report.passed().count() > 30);
}

#[test]
fn wrong_bytes() {
    found_by(
        Bug::OffByOne,
        &[
            "lengths",
            "borders",
            "any_order",
            "arena",
            "chunks",
            "slice",
            "threads",
        ],
    );
    found_by(
        Bug::LastByteMissing,
        &["lengths", "borders", "any_order", "tail", "chunk_stream"],
    );
    found_by(
        Bug::Swapped,
        &["any_order", "coalesced", "completion_order", "awaited"],
    );
}

#[test]
fn offsets_of_32_bits() {
    found_only_by(BrokenSubject(Bug::Offsets32), &["past_4gib"]);
}

#[test]
fn bounds() {
    found_by(
        Bug::EmptyForOutOfBounds,
        &[
            "lengths",
            "out_of_bounds",
            "end_of_offsets",
            "bad_among_good",
        ],
    );
    found_only_by(BrokenSubject(Bug::EmptyAnywhere), &["out_of_bounds"]);
}

#[test]
fn reads_that_fail_or_never_end() {
    found_only_by(BrokenSubject(Bug::AllForOne), &["device_refused"]);
    found_by(
        Bug::Abandons,
        &["lengths", "any_order", "arena", "deadlines"],
    );
    let message = failure(BrokenSubject(Bug::Hangs));
    assert!(
        message.contains("\n  lengths: hangs (not done in 3s)"),
        "{message}"
    );
    found_only_by(BrokenSubject(Bug::NoTime), &["deadlines"]);
}

#[test]
fn destinations() {
    found_by(Bug::OwnMemory, &["arena", "misaligned"]);
    found_only_by(
        BrokenSubject(Bug::ClearsDestinations),
        &["filled_before", "too_small"],
    );
    found_only_by(BrokenSubject(Bug::ExchangesMemory), &["too_small"]);
    found_only_by(BrokenSubject(Bug::KeepsMemory), &["released"]);
    found_only_by(BrokenSubject(Bug::DeviceInHost), &["device_refused"]);
    found_only_by(BrokenSubject(Bug::DataForHints), &["hints"]);
}

#[test]
fn reading_on_the_spot() {
    found_by(
        Bug::NothingNow,
        &["lengths", "borders", "read_now", "read_at", "cursor"],
    );
    found_only_by(BrokenSubject(Bug::FirstBufferOnly), &["read_now"]);
}

#[test]
fn counters_and_threads() {
    found_only_by(BrokenSubject(Bug::CountsTwice), &["counters"]);
    found_only_by(BrokenSubject(Bug::OneThread), &["threads"]);
}

/// An engine of files with a flaw.
fn flawed(name: &'static str, flaw: Flaw) -> impl Subject {
    let open = move |path: &Path| {
        let mut file = PlainFile::open(path)?;
        file.flaw = Some(flaw);
        Ok(Arc::new(file) as _)
    };
    FileSubject::new(name, open).capabilities(Capabilities::default().past_4gib(false))
}

#[test]
fn files_that_change() {
    found_only_by(
        flawed("trusting", Flaw::TrustsTheFile),
        &["rewritten", "appended"],
    );
    let cases = ["truncated", "rewritten", "appended"];
    found_only_by(flawed("padding", Flaw::PadsShortReads), &cases);
    found_only_by(flawed("wrong version", Flaw::NamesTheWrongVersion), &cases);
    let message = failure(flawed("reopening", Flaw::ReopensThePath));
    named(&message, &["replaced", "unlinked"]);
}
