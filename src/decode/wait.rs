//! Futures on plain threads.

use std::convert::Infallible;
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
    match drive(future, || None::<Infallible>) {
        Ok(output) => output,
        Err(never) => match never {},
    }
}

/// Polls `future` until it is done, or there is a reason to stop; parks this thread in between. Whoever brings the reason
/// unparks it.
pub(super) fn drive<F: Future, S>(future: F, stop: impl Fn() -> Option<S>) -> Result<F::Output, S> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        if let Some(reason) = stop() {
            return Err(reason);
        }
        thread::park();
    }
}
