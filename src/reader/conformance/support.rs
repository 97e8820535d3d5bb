//! What the cases share: opening, comparing, awaiting, and memory that says when it goes.
#![allow(unsafe_code)]

use std::any::Any;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;

use bytes::Bytes;
use futures_core::Stream;

use super::{Capabilities, Content, Opened, Subject};
use crate::buffer::{Block, BlockMut, HostMemory, Memory, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::seeded::SplitMix;
use crate::reader::{Batch, Failed, Pending, Reader};

/// The subject, for all cases.
pub(super) struct Context {
    pub(super) subject: Arc<dyn Subject>,
    pub(super) can: Capabilities,
}

impl Context {
    pub(super) fn new(subject: Arc<dyn Subject>) -> Self {
        Context {
            can: subject.capabilities(),
            subject,
        }
    }

    /// A reader of dense content.
    pub(super) fn open(&self, len: u64) -> Fixture {
        let content = Content::dense(self.subject.seed() ^ len, len);
        let bytes = content.to_bytes();
        Fixture {
            opened: self.open_content(&content),
            bytes,
        }
    }

    pub(super) fn open_content(&self, content: &Content) -> Opened {
        let opened = self.subject.open(content).unwrap_or_else(|error| {
            panic!("opening content of {} bytes failed: {error}", content.len())
        });
        let len = opened.reader().source().len();
        assert_eq!(len, content.len(), "the length that the source tells");
        opened
    }

    pub(super) fn rng(&self, part: u64) -> Rng {
        Rng(SplitMix::new(self.subject.seed() ^ part))
    }
}

/// A reader and the bytes it has to deliver.
pub(super) struct Fixture {
    pub(super) opened: Opened,
    pub(super) bytes: Bytes,
}

impl Fixture {
    pub(super) fn reader(&self) -> &Arc<dyn Reader> {
        self.opened.reader()
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes that a range has.
    pub(super) fn at(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    /// Checks the blocks of ranges, in their order.
    pub(super) fn check_all(&self, ranges: &[Range<u64>], blocks: &[Block]) {
        assert_eq!(blocks.len(), ranges.len(), "blocks for the ranges");
        for (range, block) in ranges.iter().zip(blocks) {
            same(range, host(block), self.at(range));
        }
    }

    /// Reads ranges together and checks them.
    pub(super) fn read(&self, ranges: &[Range<u64>]) {
        let pending = self.reader().submit(Batch::of(ranges.iter().cloned()));
        let blocks = pending
            .wait()
            .unwrap_or_else(|error| panic!("reading {} ranges: {error}", ranges.len()));
        self.check_all(ranges, &blocks);
    }
}

pub(super) struct Rng(SplitMix);

impl Rng {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A range within `len` of at most `most` bytes; sometimes empty.
    pub(super) fn range(&mut self, len: u64, most: u64) -> Range<u64> {
        let start = self.below(len + 1);
        let size = self.below(most + 1).min(len - start);
        start..start + size
    }
}

/// Checks the bytes of a range; the message names the first that is wrong.
#[track_caller]
pub(super) fn same(range: &Range<u64>, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "length of {range:?}");
    if let Some(at) = (found != expected)
        .then(|| found.iter().zip(expected).position(|(f, e)| f != e))
        .flatten()
    {
        panic!(
            "wrong bytes of {range:?}: the first at offset {}, {:#04x} in place of {:#04x}",
            range.start + at as u64,
            found[at],
            expected[at]
        );
    }
}

#[track_caller]
pub(super) fn host(block: &Block) -> &Bytes {
    block.as_host().expect("a block in host memory")
}

/// The outcomes in the order of the batch; each has to come exactly once.
#[track_caller]
pub(super) fn in_order(
    outcomes: impl IntoIterator<Item = (usize, Result<Block, Failed>)>,
    count: usize,
) -> Vec<Result<Block, Failed>> {
    let mut slots: Vec<_> = (0..count).map(|_| None).collect();
    for (index, outcome) in outcomes {
        assert!(index < count, "outcome {index} of a batch of {count}");
        let before = slots[index].replace(outcome);
        assert!(before.is_none(), "a second outcome for read {index}");
    }
    slots
        .into_iter()
        .enumerate()
        .map(|(index, slot)| slot.unwrap_or_else(|| panic!("no outcome for read {index}")))
        .collect()
}

/// Checks that `error` is the one that a range outside of the source has.
#[track_caller]
pub(super) fn is_out_of_bounds(error: &Error, reader: &dyn Reader, range: &Range<u64>) {
    let source = reader.source();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfBounds { len } if *len == source.len()),
        "OutOfBounds expected for {range:?} of {}, got: {error}",
        source.len()
    );
    let length = range.end.saturating_sub(range.start);
    let place = (error.offset(), error.length());
    assert_eq!(place, (Some(range.start), Some(length)), "of {error}");
    assert_eq!(error.name(), Some(&**source.name()), "name in {error}");
}

/// An arena of `len` bytes to cut destinations from.
pub(super) fn arena(len: usize) -> BlockMut {
    BlockMut::new(HostMemory::new(len).expect("memory for an arena"))
}

/// Runs a future on this thread.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = TaskContext::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The items of a stream, taken on this thread.
pub(super) fn collect<S: Stream>(stream: S) -> Vec<S::Item> {
    let mut stream = pin!(stream);
    let mut items = Vec::new();
    while let Some(item) = block_on(std::future::poll_fn(|cx| stream.as_mut().poll_next(cx))) {
        items.push(item);
    }
    items
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls once with a waker that nobody hears.
pub(super) fn poll_once(pending: &mut Pending) -> Poll<Option<(usize, Result<Block, Failed>)>> {
    pending.poll_next(&mut TaskContext::from_waker(Waker::noop()))
}

/// What a panic said.
pub(super) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}

/// Host memory that announces its end, and may claim to be a device's.
struct Special {
    memory: HostMemory,
    place: Place,
    gone: Option<mpsc::Sender<()>>,
}

// SAFETY: forwards to `HostMemory`, which keeps the contract. A claimed device place only makes the host stay
// away from addresses that are valid all the same.
unsafe impl Memory for Special {
    fn place(&self) -> Place {
        self.place
    }
    fn ptr(&self) -> *mut u8 {
        self.memory.ptr()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Special {
    fn drop(&mut self) {
        if let Some(gone) = &self.gone {
            let _ = gone.send(());
        }
    }
}

fn special(len: usize, place: Place, gone: Option<mpsc::Sender<()>>) -> BlockMut {
    BlockMut::new(Special {
        memory: HostMemory::new(len).expect("memory"),
        place,
        gone,
    })
}

/// Host memory and what hears of its end.
pub(super) fn watched(len: usize) -> (BlockMut, mpsc::Receiver<()>) {
    let (sender, receiver) = mpsc::channel();
    (special(len, Place::Host, Some(sender)), receiver)
}

/// Memory that says that it is a device's.
pub(super) fn device(len: usize, ordinal: u32) -> BlockMut {
    special(len, Place::Device(ordinal), None)
}
