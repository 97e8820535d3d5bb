//! Copies from host memory to a device, and the thread that waits for them.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::context::Context;
use super::device::Device;
use super::memory::DeviceBuffer;
use super::stream::{Event, Stream};
use crate::buffer::{BlockMut, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::{Failed, Transfer, TransferDone};

/// A device is a transfer: what [`Staged`](crate::Staged) and [`OpenOptions::device`](crate::OpenOptions::device) take.
///
/// Bytes are read into the pinned ring and copied by a stream of their own, one copy behind the other, which is all that one copy
/// engine does at a time anyway; the next blocks are read meanwhile. A read is delivered when its copies are done.
#[deny(clippy::missing_trait_methods)]
impl Transfer for Device {
    fn reaches(&self, place: Place) -> bool {
        place == self.place()
    }

    fn name(&self) -> String {
        format!("{} (device {})", self.info().name, self.ordinal())
    }

    fn allocate(&self, _place: Place, len: usize) -> Result<BlockMut> {
        Device::allocate(self, len)
    }

    fn staging(&self, len: usize) -> Result<BlockMut> {
        self.pinned(len)
    }

    fn copy(&self, from: Bytes, to: BlockMut, done: TransferDone) {
        self.copier().copy(Copy { from, to, done });
    }
}

/// One copy, with everything that the device uses until it is over.
struct Copy {
    from: Bytes,
    to: BlockMut,
    done: TransferDone,
}

impl Copy {
    /// Delivers the destination, filled.
    fn finish(self) {
        let Copy { from, mut to, done } = self;
        // SAFETY: the device wrote as many bytes from the first unfilled one on; there was room for them.
        unsafe { to.advance(from.len()) };
        // When the next piece begins, this block is to be free.
        drop(from);
        done.finish(Ok(to));
    }

    /// Fails the read; the device does not touch its memory.
    fn fail(self, error: Error) {
        drop(self.from);
        self.done.finish(Err(Failed {
            error,
            dest: Some(self.to),
        }));
    }

    /// Fails the read of which nobody knows whether the device is done with its memory: that is kept for good.
    fn abandon(self, error: Error) {
        std::mem::forget((self.from, self.to));
        self.done.finish(Err(error.into()));
    }
}

/// A copy that is queued, and the mark behind it.
type Queued = (Copy, Option<Event>);

/// The stream of copies, and the way to the thread that waits for them. Dropped, it lets the thread end what is queued.
pub(super) struct Copier {
    context: Arc<Context>,
    stream: Stream,
    line: Mutex<Option<Sender<Queued>>>,
}

impl Copier {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        Ok(Copier {
            context: context.clone(),
            stream: Stream::new(context)?,
            line: Mutex::new(None),
        })
    }

    fn copy(&self, copy: Copy) {
        let len = copy.from.len();
        if len > copy.to.remaining() {
            let kind = ErrorKind::DestinationTooSmall {
                room: copy.to.remaining() as u64,
                wanted: len as u64,
            };
            return copy.fail(Error::new(kind));
        }
        if len == 0 {
            return copy.finish();
        }
        if let Err(error) = self.queue(&copy) {
            // It may have been queued all the same: a call can tell of the failure of an earlier one.
            return self.give_up(copy, error);
        }
        match self.stream.record() {
            Ok(event) => self.send((copy, Some(event))),
            Err(error) if self.context.is_lost() => self.give_up(copy, error),
            Err(_) => self.send((copy, None)),
        }
    }

    fn queue(&self, copy: &Copy) -> Result<()> {
        // Whoever had this memory before may still use it.
        if let Some(buffer) = copy.to.memory().as_any().downcast_ref::<DeviceBuffer>() {
            buffer.ready_in(&self.stream)?;
        }
        let to = copy.to.unfilled_ptr().addr() as u64;
        let from = copy.from.as_ptr();
        let len = copy.from.len();
        let stream = self.stream.handle();
        // SAFETY: both sides belong to `copy` until its event is done, and have `len` bytes; nobody else writes to `to`.
        self.context
            .call(|driver| unsafe { driver.cuMemcpyHtoDAsync_v2(to, from.cast(), len, stream) })
    }

    /// Fails a copy once the device has nothing to do with its memory.
    fn give_up(&self, copy: Copy, error: Error) {
        settle(&self.stream, copy, error);
    }

    fn send(&self, queued: Queued) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let queued = match &*line {
            None => queued,
            Some(running) => match running.send(queued) {
                Ok(()) => return,
                // It has ended, which it does not. A new one starts.
                Err(refused) => refused.0,
            },
        };
        match start(self.context.clone(), self.stream.clone()) {
            Ok(started) => {
                let sent = started.send(queued);
                *line = Some(started);
                drop(line);
                if let Err(refused) = sent {
                    wait(&self.context, &self.stream, refused.0);
                }
            }
            Err(_) => {
                drop(line);
                // Without a thread, here.
                wait(&self.context, &self.stream, queued);
            }
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // In a child there is no such thread, and another one may hold the channel's locks for ever.
        if !self.context.is_of_this_process() {
            let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(line.take());
        }
    }
}

fn start(context: Arc<Context>, stream: Stream) -> std::io::Result<Sender<Queued>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("feedwater-cuda".into())
        .spawn(move || run(&context, &stream, &receiver))?;
    Ok(sender)
}

/// Waits for one copy after the other, until nobody can send any more.
fn run(context: &Arc<Context>, stream: &Stream, copies: &Receiver<Queued>) {
    context.bind_thread();
    for queued in copies {
        // A destructor that panics must not drop the copies behind it, whose memory is in use.
        let _ = catch_unwind(AssertUnwindSafe(|| wait(context, stream, queued)));
    }
}

fn wait(context: &Context, stream: &Stream, (copy, event): Queued) {
    let waited = match &event {
        Some(event) => event.synchronize(),
        None => stream.synchronize(),
    };
    match waited {
        Ok(()) => copy.finish(),
        // A wait that failed says nothing of the copy; one that goes well says that it is done.
        Err(_) if !context.is_lost() && stream.synchronize().is_ok() => copy.finish(),
        Err(error) => settle(stream, copy, error),
    }
}

/// Fails a copy once the device has nothing to do with its memory.
fn settle(stream: &Stream, copy: Copy, error: Error) {
    if stream.is_over() {
        copy.fail(error);
    } else {
        copy.abandon(error);
    }
}
