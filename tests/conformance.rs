//! Every engine and every wrapper through the one suite.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::subjects::{FileSubject, Flaw, MemorySubject, PlainFile, memory};
use feedwater::conformance::{self, Capabilities, Changes};
use feedwater::fault::{Faults, Faulty};
use feedwater::{MemoryReader, ReaderExt};

/// Where bytes in memory are shared, a view of gigabytes costs nothing.
fn views() -> Capabilities {
    Capabilities::default().large_read(true)
}

#[test]
fn memory_reader() {
    let subject = MemorySubject::new("memory", |content| Ok(memory(content)));
    let report = conformance::run(subject.capabilities(views()));
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    let on_files = ["truncated", "rewritten", "appended", "replaced", "unlinked"];
    assert_eq!(skipped, on_files);
}

#[test]
fn shared_and_dynamic() {
    let subject = MemorySubject::new("arc of arc of dyn", |content| Ok(Arc::new(memory(content))));
    conformance::run(subject.capabilities(views()));
}

#[test]
fn slice_of_memory() {
    let subject = MemorySubject::new("slice", |content| {
        let (front, back) = (4_097, 333);
        let len = content.len() as usize;
        let mut all = vec![0; front + len + back];
        all[..front].fill(0xee);
        all[front + len..].fill(0xee);
        for island in content.islands() {
            let at = front + island.start as usize;
            let bytes = content.range(island);
            all[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let whole = Arc::new(MemoryReader::new(all));
        let within = front as u64..front as u64 + content.len();
        Ok(Arc::new(whole.slice(within)?))
    });
    conformance::run(subject.capabilities(views()));
}

#[test]
fn harmless_faults() {
    let subject = MemorySubject::new("faulty", |content| {
        let micros = Duration::from_micros;
        let faults = Faults::seeded(11)
            .short(0.2)
            .interrupted(0.2)
            .slow(micros(0)..micros(100))
            .shuffle();
        Ok(Arc::new(Faulty::new(memory(content), faults)))
    });
    conformance::run(subject);
}

#[test]
fn no_faults_over_a_file() {
    let open = |path: &std::path::Path| {
        let file = Arc::new(PlainFile::open(path)?);
        Ok(Arc::new(Faulty::new(file, Faults::seeded(0))) as _)
    };
    let report = conformance::run(FileSubject::new("faulty file", open));
    assert!(report.passed().any(|case| case == "rewritten"));
}

#[test]
fn engine_from_outside() {
    let open = |path: &std::path::Path| Ok(Arc::new(PlainFile::open(path)?) as _);
    let report = conformance::run(FileSubject::new("plain file", open));
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    assert_eq!(skipped, ["large_read"]);
}

#[test]
fn a_promise_excuses_from_noticing_changes_but_not_from_keeping_the_file() {
    let open = |path: &std::path::Path| {
        let mut file = PlainFile::open(path)?;
        file.flaw = Some(Flaw::TrustsTheFile);
        Ok(Arc::new(file) as _)
    };
    let promised = Capabilities::default()
        .changes(Changes::Promised)
        .past_4gib(false);
    let report = conformance::run(FileSubject::new("promised", open).capabilities(promised));
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    assert_eq!(
        skipped,
        [
            "truncated",
            "rewritten",
            "appended",
            "past_4gib",
            "large_read"
        ]
    );
}
