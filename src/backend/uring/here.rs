//! The ring of the calling thread, in which nothing is left when a call returns.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use super::flight::{Flight, Tally, Until};
use super::ring::{Ring, refusal};
use super::sending::{AHEAD, Load, Sending};
use crate::backend::device::{Device, Share};
use crate::backend::requests::Batched;
use crate::error::{Error, Refusal};

/// Requests in flight of one thread.
const ENTRIES: u32 = 128;

thread_local! {
    /// Made by the first call that needs it, gone with the thread.
    static RING: RefCell<Option<Flight>> = const { RefCell::new(None) };
}

/// Reads all of what `more` gives on this thread, and returns when it is done. What failed, the work tells.
///
/// # Errors
/// Why there is no ring for this thread; nothing was asked of `more` then.
pub(super) fn read(
    more: &mut dyn FnMut() -> Option<Arc<Batched>>,
    device: &Arc<Device>,
    kernel_threads: usize,
) -> Result<(), Refusal> {
    let busy = || Refusal::NotForThisFile {
        what: "the thread is ending, or in the middle of another read".into(),
    };
    RING.try_with(|ring| {
        let Ok(mut slot) = ring.try_borrow_mut() else {
            return Err(busy());
        };
        let flight = match &mut *slot {
            Some(flight) if flight.ring().is_current() => flight,
            // None yet, or that of the parent of this process.
            empty => {
                let ring = Ring::new(ENTRIES)?;
                ring.begin(kernel_threads)
                    .map_err(|error| refusal("io_uring_register", Some(error)))?;
                empty.insert(Flight::new(ring))
            }
        };
        let outcome = {
            let landing = Landing(flight);
            serve(landing.0, more, device)
        };
        if let Err(error) = outcome {
            // Nothing is in flight, but it cannot be relied on.
            *slot = None;
            let error = Error::io("io_uring_enter", error);
            while let Some(work) = more() {
                work.give_up(&error);
            }
        }
        Ok(())
    })
    .unwrap_or_else(|_| Err(busy()))
}

fn serve(
    flight: &mut Flight,
    more: &mut dyn FnMut() -> Option<Arc<Batched>>,
    device: &Arc<Device>,
) -> io::Result<()> {
    let Some(first) = more() else {
        return Ok(());
    };
    let tally = Tally::new(device.clone(), None);
    let mut sending = Sending::new(Load::Pieces(first), tally);
    let served = send_all(flight, &mut sending, more, device);
    if let Err(error) = &served {
        // What was not sent has not been read: its error must be there to be found.
        let error = io::Error::new(error.kind(), error.to_string());
        sending.give_up(&Error::io("io_uring_enter", error));
    }
    served
}

fn send_all(
    flight: &mut Flight,
    sending: &mut Sending,
    more: &mut dyn FnMut() -> Option<Arc<Batched>>,
    device: &Arc<Device>,
) -> io::Result<()> {
    loop {
        while flight.len() < flight.capacity() && ready(sending, 1, more) {
            let Some(operation) = sending.next() else {
                break;
            };
            if !device.enter(operation.bytes(), flight.len() == 0, Share::Whole) {
                sending.put_back(operation);
                break;
            }
            flight.launch(operation, sending.tally())?;
        }
        // The device goes on while more is made, and while those who wait are told.
        flight.submit()?;
        ready(sending, AHEAD, more);
        flight.deliver();
        let until = match ready(sending, 1, more) {
            true => Until::Several,
            false if flight.len() == 0 => return Ok(()),
            false => Until::One,
        };
        flight.turn(until)?;
    }
}

/// Has up to `most` operations ready. `false`: there are none left.
fn ready(
    sending: &mut Sending,
    most: usize,
    more: &mut dyn FnMut() -> Option<Arc<Batched>>,
) -> bool {
    while !sending.prepare(most) {
        let Some(work) = more() else {
            return false;
        };
        sending.push(Load::Pieces(work));
    }
    true
}

/// Does not go away while anything is in flight: the memory is borrowed from the caller.
struct Landing<'a>(&'a mut Flight);

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        while self.0.len() > 0 {
            if self.0.turn(Until::One).is_err() {
                // The kernel may write to the caller's memory after the borrow has ended, and nothing can stop it.
                std::process::abort();
            }
        }
        self.0.deliver();
    }
}
