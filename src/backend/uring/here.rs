//! The ring of the calling thread, in which nothing is left when a call returns.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use super::flight::{Flight, Operation, Tally};
use super::ring::{Ring, refusal};
use crate::backend::device::{Device, Share};
use crate::backend::requests::{Batched, Piece};
use crate::error::{Error, Refusal};

/// Requests in flight of one thread.
const ENTRIES: u32 = 128;

thread_local! {
    /// Made by the first call that needs it, gone with the thread.
    static RING: RefCell<Option<Flight>> = const { RefCell::new(None) };
}

/// Reads all of `work` on this thread, and returns when it is done. What failed, the work tells.
///
/// # Errors
/// Why there is no ring for this thread; nothing has been read then.
pub(super) fn read(
    work: &Arc<Batched>,
    device: &Arc<Device>,
    kernel_threads: usize,
) -> Result<(), Refusal> {
    let busy = |_| Refusal::NotForThisFile {
        what: "the thread is ending, or in the middle of another read".into(),
    };
    RING.try_with(|ring| {
        let Ok(mut slot) = ring.try_borrow_mut() else {
            return Err(busy(()));
        };
        let flight = match &mut *slot {
            Some(flight) if flight.ring().is_current() => flight,
            // None yet, or that of the parent of this process.
            empty => {
                let ring = Ring::new(ENTRIES)?;
                ring.begin(kernel_threads as u32)
                    .map_err(|error| refusal("io_uring_register", Some(error)))?;
                empty.insert(Flight::new(ring))
            }
        };
        let outcome = {
            let landing = Landing(flight);
            serve(landing.0, work, device)
        };
        if let Err(error) = outcome {
            // Nothing is in flight, but it cannot be relied on.
            *slot = None;
            work.give_up(&Error::io("io_uring_enter", error));
        }
        Ok(())
    })
    .unwrap_or_else(|_| Err(busy(())))
}

fn serve(flight: &mut Flight, work: &Arc<Batched>, device: &Arc<Device>) -> io::Result<()> {
    let tally = Tally::new(device.clone(), None);
    loop {
        while flight.len() < flight.capacity() {
            let Some(bytes) = work.next_bytes() else {
                break;
            };
            if !device.enter(bytes, flight.len() == 0, Share::Whole) {
                break;
            }
            let piece = work.claim().and_then(Piece::if_wanted);
            match piece.and_then(Operation::read) {
                Some(operation) => flight.launch(operation, &tally)?,
                None => device.leave(bytes),
            }
        }
        // The device goes on while those who wait are told.
        flight.submit()?;
        flight.deliver();
        if flight.len() == 0 {
            return Ok(());
        }
        flight.turn(1)?;
    }
}

/// Does not go away while anything is in flight: the memory is borrowed from the caller.
struct Landing<'a>(&'a mut Flight);

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        while self.0.len() > 0 {
            if self.0.turn(1).is_err() {
                // The kernel may write to the caller's memory after the borrow has ended, and nothing can stop it.
                std::process::abort();
            }
        }
        self.0.deliver();
    }
}
