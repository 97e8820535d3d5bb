//! What every engine and every wrapper has to do, as one suite with one entry: [`run`].
//!
//! For authors of engines, within this crate and outside. Needs the cargo feature `testing`. A [`Subject`] opens
//! readers of content that the suite describes; the suite reads it in every way there is and compares each byte
//! with the description, and each error with the contract of [`Reader`]. One run takes a few seconds without
//! optimisation, and some tens of MiB of memory.
//!
//! ```
//! use feedwater::conformance::{self, Content, Opened, Subject};
//! use feedwater::{MemoryReader, Result};
//!
//! struct Memory;
//!
//! impl Subject for Memory {
//!     fn name(&self) -> String {
//!         "memory".into()
//!     }
//!     fn open(&self, content: &Content) -> Result<Opened> {
//!         Ok(Opened::new(MemoryReader::new(content.to_bytes())))
//!     }
//! }
//!
//! # let _ = || {
//! let report = conformance::run(Memory);
//! assert!(report.passed().any(|case| case == "lengths"));
//! # };
//! ```
// Failing is what this module is for; its users are tests. Lists of ranges may well have one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::single_range_in_vec_init)]

mod batches;
mod bounds;
mod changes;
mod content;
mod destinations;
mod large;
mod lifecycle;
mod support;
mod waiting;
mod ways;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub use content::Content;

use super::Reader;
use crate::error::{Result, counted};
use support::Context;

/// An engine or a wrapper, as the suite opens it.
pub trait Subject: Send + Sync + 'static {
    /// What the report and failures call it.
    fn name(&self) -> String;

    /// Opens a reader of exactly this content. Called many times, with content of its own each time.
    ///
    /// # Errors
    /// Any error fails the case.
    fn open(&self, content: &Content) -> Result<Opened>;

    /// What it can do beyond the contract, or is excused from.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Seed of everything random. Default: the environment variable `FEEDWATER_SEED`, or a fixed one.
    fn seed(&self) -> u64 {
        let given = std::env::var("FEEDWATER_SEED").ok();
        given.and_then(|seed| seed.parse().ok()).unwrap_or(20_240)
    }

    /// How long a case may take before it counts as hanging. Default: two minutes.
    fn patience(&self) -> Duration {
        Duration::from_secs(120)
    }
}

/// A reader that a [`Subject`] opened, and what has to stay while it is used.
pub struct Opened {
    reader: Arc<dyn Reader>,
    path: Option<PathBuf>,
    keep: Option<Box<dyn Any + Send + Sync>>,
}

impl Opened {
    /// A reader of something that the suite cannot change.
    pub fn new(reader: impl Reader) -> Self {
        Opened::shared(Arc::new(reader))
    }

    /// As [`new`](Self::new), of a reader that is shared already.
    pub fn shared(reader: Arc<dyn Reader>) -> Self {
        Opened {
            reader,
            path: None,
            keep: None,
        }
    }

    /// The reader reads the file at `path`, which holds the content and which the suite may change, replace and
    /// unlink.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Drops `guard` (a temporary directory, a server) after the last use.
    #[must_use]
    pub fn keep(mut self, guard: impl Any + Send + Sync) -> Self {
        self.keep = Some(Box::new(guard));
        self
    }

    /// The reader.
    pub fn reader(&self) -> &Arc<dyn Reader> {
        &self.reader
    }

    /// The file behind it, if the suite may change that.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("reader", &self.reader)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What a subject can do beyond the contract, or is excused from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// How it notices that a file changed. Default: always.
    pub changes: Changes,
    /// Sparse content of a little more than 4 GiB can be opened. Default: yes.
    pub past_4gib: bool,
    /// One read of more than 2 GiB costs next to nothing, as where it is a view. Default: no.
    pub large_read: bool,
    /// Destinations on devices are served, so that refusing them is not asked for. Default: no.
    pub device: bool,
}

/// How a reader notices that the file under it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Changes {
    /// By comparing versions after each request.
    Noticed,
    /// Only when a read comes back short.
    NoticedWhenShort,
    /// Not at all: the caller promised that there are none.
    Promised,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            changes: Changes::Noticed,
            past_4gib: true,
            large_read: false,
            device: false,
        }
    }
}

impl Capabilities {
    /// Sets [`changes`](Self::changes).
    #[must_use]
    pub fn changes(mut self, changes: Changes) -> Self {
        self.changes = changes;
        self
    }

    /// Sets [`past_4gib`](Self::past_4gib).
    #[must_use]
    pub fn past_4gib(mut self, yes: bool) -> Self {
        self.past_4gib = yes;
        self
    }

    /// Sets [`large_read`](Self::large_read).
    #[must_use]
    pub fn large_read(mut self, yes: bool) -> Self {
        self.large_read = yes;
        self
    }

    /// Sets [`device`](Self::device).
    #[must_use]
    pub fn device(mut self, yes: bool) -> Self {
        self.device = yes;
        self
    }
}

/// What [`run`] did. `Display` has a line for each skipped case.
#[derive(Clone, Debug)]
pub struct Report {
    subject: String,
    seed: u64,
    passed: Vec<&'static str>,
    skipped: Vec<(&'static str, Cow<'static, str>)>,
}

impl Report {
    /// Names of the cases that passed.
    pub fn passed(&self) -> impl Iterator<Item = &'static str> {
        self.passed.iter().copied()
    }

    /// Names of the cases that were skipped, and why.
    pub fn skipped(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.skipped.iter().map(|(case, why)| (*case, &**why))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "conformance of {} (seed {}): {} passed, {} skipped",
            self.subject,
            self.seed,
            counted(self.passed.len() as u64, "case"),
            self.skipped.len()
        )?;
        for (case, why) in &self.skipped {
            write!(f, "\n  skipped {case}: {why}")?;
        }
        Ok(())
    }
}

/// `Err` is why it does not apply to the subject.
type Verdict = Result<(), Cow<'static, str>>;

struct Case {
    name: &'static str,
    run: fn(&Context) -> Verdict,
}

/// A table of cases, each named as its function is.
macro_rules! cases {
    ($($module:ident :: $case:ident),* $(,)?) => {
        &[$(Case { name: stringify!($case), run: $module::$case }),*]
    };
}

const CASES: &[Case] = cases![
    bounds::lengths,
    bounds::borders,
    bounds::out_of_bounds,
    bounds::end_of_offsets,
    batches::any_order,
    batches::coalesced,
    batches::thousand_tiny_ranges,
    batches::bad_among_good,
    batches::hints,
    batches::depth_and_priority,
    destinations::arena,
    destinations::misaligned,
    destinations::larger_than_the_range,
    destinations::filled_before,
    destinations::too_small,
    destinations::released,
    destinations::device_refused,
    ways::read_now,
    ways::read_at,
    ways::tail,
    ways::chunks,
    ways::chunk_stream,
    ways::cursor,
    ways::slice,
    waiting::completion_order,
    waiting::awaited,
    waiting::another_waker,
    waiting::progress,
    waiting::deadlines,
    waiting::counters,
    lifecycle::threads,
    lifecycle::dropped_pending,
    lifecycle::forgotten_pending,
    lifecycle::reader_dropped_first,
    lifecycle::bytes_outlive_the_reader,
    changes::truncated,
    changes::rewritten,
    changes::appended,
    changes::replaced,
    changes::unlinked,
    large::past_4gib,
    large::large_read,
];

/// Runs all cases and prints what was skipped.
///
/// # Panics
/// If a case fails, after all have run: the message has the subject, the seed, and each failed case by name. A
/// case that hangs ends the run; its thread is left behind.
pub fn run(subject: impl Subject) -> Report {
    let context = Arc::new(Context::new(Arc::new(subject)));
    let mut report = Report {
        subject: context.subject.name(),
        seed: context.subject.seed(),
        passed: Vec::new(),
        skipped: Vec::new(),
    };
    let mut failed = Vec::new();
    for case in CASES {
        match attempt(case, &context) {
            Ended::Passed => report.passed.push(case.name),
            Ended::Skipped(why) => report.skipped.push((case.name, why)),
            Ended::Failed(message) => failed.push(format!("{}: {message}", case.name)),
            Ended::Hung(after) => {
                failed.push(format!("{}: hangs (not done in {after:?})", case.name));
                break;
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed {} of the conformance cases (seed {}):\n  {}",
        report.subject,
        failed.len(),
        report.seed,
        failed.join("\n  ")
    );
    println!("{report}");
    report
}

enum Ended {
    Passed,
    Skipped(Cow<'static, str>),
    Failed(String),
    Hung(Duration),
}

/// Runs one case on a thread of its own, so that one that hangs can be named.
fn attempt(case: &'static Case, context: &Arc<Context>) -> Ended {
    let patience = context.subject.patience();
    let (sender, receiver) = mpsc::channel();
    let context = context.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("conformance {}", case.name))
        .spawn(move || {
            let verdict = catch_unwind(AssertUnwindSafe(|| (case.run)(&context)));
            // Before the verdict: what follows may end the process.
            drop(context);
            let _ = sender.send(verdict);
        });
    if let Err(error) = spawned {
        return Ended::Failed(format!("no thread for it: {error}"));
    }
    match receiver.recv_timeout(patience) {
        Ok(Ok(Ok(()))) => Ended::Passed,
        Ok(Ok(Err(why))) => Ended::Skipped(why),
        Ok(Err(panic)) => Ended::Failed(support::message(&*panic)),
        Err(_) => Ended::Hung(patience),
    }
}
