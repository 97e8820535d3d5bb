//! A reader that answers between the polls of a task, so that what waits inside of one hangs.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use feedwater::{
    Batch, Block, MemoryReader, Pending, ReadInto, Reader, ReaderExt, Result, Source, Ticket,
};
use futures::Stream;

/// Long enough for any machine; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

/// All items of a stream that reads `file`, and how often the task had to wait.
pub(crate) fn polled<S: Stream + Unpin>(
    file: MemoryReader,
    make: impl FnOnce(Arc<Held>) -> S,
) -> (S, Vec<S::Item>, usize) {
    let desk = Arc::new(Desk::default());
    let mut stream = make(Arc::new(Held {
        inner: file.clone(),
        desk: desk.clone(),
    }));
    let waker = Waker::from(desk.clone());
    let (mut items, mut waits) = (Vec::new(), 0);
    loop {
        let mut poll = |waker: &Waker| {
            std::pin::Pin::new(&mut stream).poll_next(&mut Context::from_waker(waker))
        };
        // First by a waker that is forgotten, as of a task that goes on elsewhere: the last one has to be woken.
        let polled = match poll(Waker::noop()) {
            Poll::Pending => poll(&waker),
            ready => ready,
        };
        match polled {
            Poll::Ready(Some(item)) => items.push(item),
            Poll::Ready(None) => return (stream, items, waits),
            Poll::Pending => {
                waits += 1;
                desk.answer_until(waits, &file);
            }
        }
    }
}

/// What a test waits for: that its task is woken, or that somebody asks for bytes.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wakes: usize,
    asked: Vec<(Range<u64>, Ticket)>,
}

impl Desk {
    /// Answers what is asked for, until the task was woken so often.
    fn answer_until(&self, wakes: usize, bytes: &MemoryReader) {
        let mut state = self.state.lock().unwrap();
        while state.wakes < wakes {
            let asked = std::mem::take(&mut state.asked);
            if asked.is_empty() {
                let (later, waited) = self.news.wait_timeout(state, PATIENCE).unwrap();
                assert!(!waited.timed_out(), "nobody wakes the task");
                state = later;
                continue;
            }
            drop(state);
            for (range, ticket) in asked {
                let bytes = bytes.read(range).wait().unwrap();
                ticket.finish(Ok(Block::Host(bytes)));
            }
            state = self.state.lock().unwrap();
        }
    }
}

impl Wake for Desk {
    fn wake(self: Arc<Self>) {
        self.state.lock().unwrap().wakes += 1;
        self.news.notify_all();
    }
}

/// A reader whose reads are answered by the test.
#[derive(Debug)]
pub(crate) struct Held {
    inner: MemoryReader,
    desk: Arc<Desk>,
}

impl Reader for Held {
    fn source(&self) -> &Source {
        self.inner.source()
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (started, _, pending) = batch.start(self.inner.source());
        let reads = started
            .into_iter()
            .map(|(read, ticket)| (read.range, ticket));
        self.desk.state.lock().unwrap().asked.extend(reads);
        self.desk.news.notify_all();
        pending
    }

    fn read_now(&self, _: &mut [ReadInto<'_>]) -> Result<()> {
        panic!("a task does not read on its thread");
    }
}
