//! Futures on plain threads.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks this thread until `future` is done.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    match block_on_unless(future, || false) {
        Some(output) => output,
        None => unreachable!("nothing stops it"),
    }
}

/// Parks this thread until `future` is done, or somebody unparks it after `stopped` has become true: then `None`.
pub(super) fn block_on_unless<F: Future>(
    future: F,
    stopped: impl Fn() -> bool,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        if stopped() {
            return None;
        }
        thread::park();
    }
}
