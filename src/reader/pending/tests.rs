//! Both halves, without an engine.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::buffer::BlockMut;
use crate::reader::{Batch, Limits, ReadOptions};
use crate::version::Version;
use bytes::Bytes;
use std::sync::mpsc;
use std::task::Waker;

fn source() -> Source {
    let version = Version::immutable(100);
    Source::new("test", "test", version, Limits::default())
}

fn start(batch: Batch) -> (Vec<Ticket>, Pending) {
    let (started, _, pending) = batch.start(&source());
    (started.into_iter().map(|(_, t)| t).collect(), pending)
}

fn block(text: &'static str) -> Block {
    Bytes::from_static(text.as_bytes()).into()
}

#[test]
fn blocks_come_in_batch_order_whatever_finished_first() {
    let (mut tickets, pending) = start(Batch::of([0..1, 1..2, 2..3]));
    for text in ["c", "b", "a"] {
        tickets.pop().unwrap().finish(Ok(block(text)));
    }
    let blocks = pending.wait().unwrap();
    let texts: Vec<_> = blocks.iter().map(|b| b.as_host().unwrap()).collect();
    assert_eq!(texts, ["a", "b", "c"]);
}

#[test]
fn completion_order_and_progress() {
    let (mut tickets, mut pending) = start(Batch::of([0..10, 10..30]));
    let (second, first) = (tickets.pop().unwrap(), tickets.pop().unwrap());
    assert!(pending.try_next().is_none());
    second.add_progress(15);
    assert_eq!(pending.progress().bytes_done, 15);
    second.finish(Ok(block("12345678901234567890")));
    assert_eq!(pending.progress().bytes_done, 20);
    assert_eq!(pending.wait_next().unwrap().0, 1);
    first.finish(Ok(block("1234567890")));
    assert_eq!(pending.try_next().unwrap().0, 0);
    assert!(pending.wait_next().is_none());
    let all = Progress {
        reads_done: 2,
        reads: 2,
        bytes_done: 30,
        bytes: 30,
    };
    assert_eq!(pending.progress(), all);
}

#[test]
fn a_wait_with_an_end_comes_back_and_the_read_goes_on() {
    let (mut tickets, mut pending) = start(Batch::of([0..1]));
    let short = Duration::from_millis(1);
    assert!(pending.wait_next_timeout(short).is_pending());
    assert!(tickets[0].wanted());
    tickets.pop().unwrap().finish(Ok(block("x")));
    let Poll::Ready(Some((0, Ok(_)))) = pending.wait_next_timeout(Duration::MAX) else {
        panic!("{pending:?}");
    };
    assert!(matches!(
        pending.wait_next_timeout(short),
        Poll::Ready(None)
    ));
}

#[test]
fn another_number_of_bytes_is_a_bug_of_the_engine() {
    let dest = BlockMut::with_capacity(9);
    let (tickets, mut pending) = start(Batch::of([0..2]).read_into(4..5, dest));
    for ticket in tickets {
        ticket.finish(Ok(block("xyz")));
    }
    while let Some((_, outcome)) = pending.wait_next() {
        let error = outcome.unwrap_err().error;
        let ErrorKind::WrongLength { wanted, got: 3 } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(error.length(), Some(*wanted));
    }
}

#[test]
fn an_incomplete_batch_never_passes_for_a_whole_one() {
    let (tickets, mut pending) = start(Batch::of([0..1, 1..2]));
    for ticket in tickets {
        ticket.finish(Ok(block("x")));
    }
    assert!(pending.try_next().is_some());
    let error = pending.wait().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidOption { .. }),
        "{error}"
    );
    let (mut tickets, mut pending) = start(Batch::of([0..1, 1..2]));
    drop(tickets.pop());
    tickets.pop().unwrap().finish(Ok(block("x")));
    for _ in 0..2 {
        let error = futures::executor::block_on(&mut pending).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
    }
}

#[test]
fn taking_outcomes_after_a_deadline_costs_the_same_for_each() {
    let count = 50_000;
    let options = ReadOptions::default().deadline(Instant::now());
    let ranges = std::iter::repeat_n(0..1, count);
    let (tickets, mut pending) = start(Batch::of(ranges).options(options));
    // Quadratic work would take minutes here.
    let taken = std::iter::from_fn(|| pending.try_next()).count();
    assert_eq!((taken, tickets.len()), (count, count));
}

#[test]
fn a_dropped_ticket_is_an_error_that_names_the_range() {
    let (tickets, pending) = start(Batch::of([3..7]));
    std::thread::spawn(move || drop(tickets));
    let error = pending.wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned));
    assert_eq!((error.offset(), error.length()), (Some(3), Some(4)));
}

#[test]
fn a_panicking_engine_thread_does_not_hang_the_waiter() {
    let (tickets, pending) = start(Batch::of([3..7]));
    let thread = std::thread::spawn(move || {
        let _held = tickets;
        std::panic::resume_unwind(Box::new("engine bug"));
    });
    assert!(matches!(
        pending.wait().unwrap_err().kind(),
        ErrorKind::Abandoned
    ));
    assert!(thread.join().is_err());
}

#[test]
fn dropping_the_callers_half_is_seen_and_late_results_are_released() {
    let (mut tickets, pending) = start(Batch::of([0..1, 1..2]));
    let late = tickets.pop().unwrap();
    tickets.pop().unwrap().finish(Ok(block("x")));
    assert!(late.wanted());
    drop(pending);
    assert!(!late.wanted());
    let shared = Bytes::from(vec![1u8; 1]);
    late.finish(Ok(shared.clone().into()));
    assert!(shared.is_unique());
}

#[test]
fn a_deadline_holds_against_an_engine_that_hangs() {
    let soon = Instant::now() + Duration::from_millis(10);
    let options = ReadOptions::default().deadline(soon);
    let (tickets, pending) = start(Batch::of([0..1, 5..8]).options(options));
    let error = pending.wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
    assert!(!tickets[0].wanted());
}

#[test]
fn work_skipped_past_the_deadline_timed_out_and_was_not_abandoned() {
    let options = ReadOptions::default().deadline(Instant::now());
    let (tickets, pending) = start(Batch::of([0..1]).options(options));
    assert!(!tickets[0].wanted());
    drop(tickets);
    let error = pending.wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
}

#[test]
fn reads_that_timed_out_have_an_outcome_and_are_done() {
    let options = ReadOptions::default().deadline(Instant::now());
    let (tickets, mut pending) = start(Batch::of([0..1, 1..2]).options(options));
    assert!(pending.try_next().is_some());
    assert_eq!(pending.progress().reads_done, 2);
    for ticket in tickets {
        ticket.finish(Ok(block("x")));
    }
    let progress = pending.progress();
    assert_eq!((progress.reads_done, progress.bytes_done), (2, 0));
}

#[test]
fn a_deadline_wakes_a_task_that_nobody_else_would() {
    let soon = Instant::now() + Duration::from_millis(10);
    let options = ReadOptions::default().deadline(soon);
    let (_tickets, pending) = start(Batch::of([0..1]).options(options));
    let error = futures::executor::block_on(pending).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut), "{error}");
}

#[test]
fn wakes_the_last_waker_given() {
    let (tickets, mut pending) = start(Batch::of([0..1]));
    let (tx, rx) = mpsc::channel();
    let waker = |name: &'static str| {
        struct Send(mpsc::Sender<&'static str>, &'static str);
        impl std::task::Wake for Send {
            fn wake(self: Arc<Self>) {
                let _ = self.0.send(self.1);
            }
        }
        Waker::from(Arc::new(Send(tx.clone(), name)))
    };
    for name in ["old", "new"] {
        let waker = waker(name);
        assert!(
            pending
                .poll_next(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    for ticket in tickets {
        ticket.finish(Ok(block("x")));
    }
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), ["new"]);
}

#[test]
fn refused_reads_give_their_block_back() {
    let dest = BlockMut::with_capacity(64);
    let batch = Batch::new().read_into(90..101, dest).any(4..5);
    let (tickets, mut pending) = start(batch);
    assert_eq!(tickets.len(), 1);
    let (index, outcome) = pending.wait_next().unwrap();
    let failed = outcome.unwrap_err();
    assert_eq!(index, 0);
    assert!(matches!(
        failed.error.kind(),
        ErrorKind::OutOfBounds { len: 100 }
    ));
    assert!(failed.dest.unwrap().len() >= 64);
}
