//! Reads that go the other way: the outcomes of one reader for the tickets of another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::reader::{Batch, Dest, Pending, ReadOptions, Reader, Started, Ticket};

/// Hands reads to `reader`, and each outcome to its ticket as soon as it is there. Never waits; costs no thread.
pub(super) fn forward(reader: &dyn Reader, started: Vec<Started>, options: &ReadOptions) {
    let mut batch = Batch::new().options(options.clone());
    let mut tickets = Vec::with_capacity(started.len());
    for (read, ticket) in started {
        batch = match read.dest {
            Dest::Any(place) => batch.any_at(read.range, place),
            Dest::Into(block) => batch.read_into(read.range, block),
            Dest::Prefetch => batch.prefetch(read.range),
        };
        tickets.push(Some(ticket));
    }
    let pending = reader.submit(batch);
    let relay = Arc::new(Relay {
        calls: AtomicUsize::new(0),
        state: Mutex::new(Some((pending, tickets))),
    });
    relay.pump();
}

struct Relay {
    /// Calls of `pump` since one of them began to work.
    calls: AtomicUsize,
    /// Until the last outcome.
    state: Mutex<Option<(Pending, Vec<Option<Ticket>>)>>,
}

impl Relay {
    /// Takes what is done. Of calls at the same time (a poll may wake on the spot) one works, as often as there are calls.
    fn pump(self: &Arc<Self>) {
        if self.calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(self.clone());
        let mut seen = 1;
        loop {
            self.take(&mut Context::from_waker(&waker));
            match self
                .calls
                .compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    fn take(&self, context: &mut Context<'_>) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((pending, tickets)) = state.as_mut() else {
                return;
            };
            match pending.poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some((index, outcome))) => {
                    let ticket = tickets.get_mut(index).and_then(Option::take);
                    // It wakes others, so without the lock.
                    drop(state);
                    let finish = || ticket.map(|ticket| ticket.finish(outcome));
                    // A panic of whoever waits is not one of the others.
                    let _ = catch_unwind(AssertUnwindSafe(finish));
                }
                Poll::Ready(None) => {
                    let done = state.take();
                    drop(state);
                    drop(done);
                    return;
                }
            }
        }
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.pump();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::memory::MemoryReader;
    use crate::buffer::Place;
    use crate::reader::ReaderExt;

    /// Never says anything, or everything at once.
    #[test]
    fn outcomes_reach_their_tickets() {
        let below = MemoryReader::new("0123456789");
        let source = below.source();
        let batch = Batch::of([2..5, 0..1])
            .any_at(0..4, Place::Device(3))
            .prefetch(0..9);
        let (started, options, pending) = batch.start(source);
        forward(&below, started, &options);
        let mut outcomes: Vec<_> = pending.into_iter().collect();
        outcomes.sort_by_key(|(index, _)| *index);
        let text = |index: usize| {
            outcomes[index]
                .1
                .as_ref()
                .unwrap()
                .as_host()
                .unwrap()
                .clone()
        };
        assert_eq!(
            (&text(0)[..], &text(1)[..], text(3).len()),
            (&b"234"[..], &b"0"[..], 0)
        );
        assert!(outcomes[2].1.is_err());
        assert_eq!(below.len(), 10);
    }

    #[test]
    fn what_comes_later_is_taken_by_the_one_who_wakes() {
        let below = MemoryReader::new("0123456789");
        let (inner, options, later) = Batch::of([0..3, 4..6]).start(below.source());
        let (outer, _, pending) = Batch::of([0..3, 4..6]).start(below.source());
        let tickets = outer.into_iter().map(|(_, ticket)| Some(ticket)).collect();
        let relay = Arc::new(Relay {
            calls: AtomicUsize::new(0),
            state: Mutex::new(Some((later, tickets))),
        });
        relay.pump();
        let weak = Arc::downgrade(&relay);
        drop(relay);
        assert_eq!(pending.progress().reads_done, 0);
        let finishes = std::thread::spawn(move || forward(&below, inner, &options));
        let blocks = pending.wait().unwrap();
        assert_eq!(blocks[1].as_host().unwrap(), &b"45"[..]);
        finishes.join().unwrap();
        assert!(weak.upgrade().is_none());
    }
}
