//! Hints to be passed to the system.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::access::Access;
use crate::backend::workers::Work;
use crate::error::Error;
use crate::reader::Ticket;

/// Ranges that will be read soon. Even a hint can wait for a device (for metadata), so threads give them.
#[derive(Debug)]
pub(super) struct Hints {
    access: Arc<Access>,
    hints: Mutex<Vec<(Range<u64>, Ticket)>>,
}

impl Hints {
    pub(super) fn new(access: Arc<Access>, mut hints: Vec<(Range<u64>, Ticket)>) -> Self {
        hints.reverse(); // taken from the back
        Hints {
            access,
            hints: Mutex::new(hints),
        }
    }
}

impl Work for Hints {
    fn step(self: Arc<Self>) -> bool {
        let next = {
            let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
            hints.pop()
        };
        let Some((range, ticket)) = next else {
            return false;
        };
        self.access.hint(&range);
        ticket.finish(Ok(Bytes::new().into()));
        true
    }

    fn abandon(self: Arc<Self>, _: &Error) -> usize {
        // The tickets tell, as they are dropped; nothing is lost with a hint.
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut *hints);
        drop(hints);
        drop(dropped);
        0
    }
}
