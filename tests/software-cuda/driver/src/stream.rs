//! Streams and events: what is queued, and in which order it is done.
//!
//! Every piece of work has a number, in the order in which the host queued it. The default stream (handle 0) and the blocking
//! streams wait for each other's earlier work; a stream with `CU_STREAM_NON_BLOCKING` waits only for events. In lazy mode nothing runs
//! until somebody waits for it, or asks: each query does one piece of work.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::sync::MutexGuard;
use std::time::Instant;

use crate::codes::{Code, Outcome};
use crate::device::{Device, device};
use crate::kernels::Queued;

/// A function of the host that a stream calls.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The device, locked.
pub type Guard = MutexGuard<'static, Device>;

/// Handle of the default stream.
pub const DEFAULT: usize = 0;

/// Work in a stream.
pub enum Work {
    /// Bytes that were taken from pageable memory when the copy was queued.
    CopyIn {
        /// Where they go.
        to: usize,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A copy between memory that stays where it is.
    Copy {
        /// Where it goes.
        to: usize,
        /// Where it comes from.
        from: usize,
        /// How many bytes.
        len: usize,
    },
    /// The same bytes again and again.
    Fill {
        /// Where.
        to: usize,
        /// One, two or four bytes.
        pattern: Vec<u8>,
        /// How often.
        count: usize,
    },
    /// A kernel.
    Launch(Box<Queued>),
    /// An event is recorded: the record of this number.
    Record(usize, u64),
    /// Waits for the record of this number, in a stream.
    Wait(u64, usize),
    /// A call of the host.
    Call(HostFunction, usize),
    /// Memory goes back.
    Free(usize),
}

struct Numbered {
    number: u64,
    work: Work,
}

#[derive(Default)]
struct Stream {
    blocking: bool,
    queue: VecDeque<Numbered>,
}

/// An event. Who waits for it waits for the record that was the last one then, whatever becomes of the event.
#[derive(Default)]
pub struct Event {
    /// Its last record.
    last: Option<u64>,
    /// Where that is.
    stream: usize,
    /// When it was reached.
    at: Option<Instant>,
}

/// All streams and events.
#[derive(Default)]
pub struct Streams {
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Event>,
    /// Records that are not reached.
    records: HashSet<u64>,
    next: u64,
}

impl Streams {
    /// How many streams and events were made and are not gone.
    pub fn live(&self) -> (usize, usize) {
        (
            self.streams.keys().filter(|handle| **handle > 2).count(),
            self.events.len(),
        )
    }

    fn known(&mut self, stream: usize) -> Outcome<usize> {
        // The two names of default streams: the one of all threads, and one that each thread has for itself (here, all have it).
        let stream = if stream == 1 { DEFAULT } else { stream };
        if stream == DEFAULT || stream == 2 {
            self.streams.entry(stream).or_insert(Stream {
                blocking: true,
                ..Stream::default()
            });
        }
        if self.streams.contains_key(&stream) {
            Ok(stream)
        } else {
            Err(Code::INVALID_HANDLE)
        }
    }

    /// The stream whose work has to be done before the next work of this one, if there is any.
    fn before(&self, stream: usize) -> Option<usize> {
        let this = self.streams.get(&stream)?;
        let next = this.queue.front()?;
        if let Work::Wait(record, stream) = next.work
            && self.records.contains(&record)
        {
            return Some(stream);
        }
        if !this.blocking {
            return None;
        }
        let earlier = |other: &Stream| {
            other
                .queue
                .front()
                .is_some_and(|front| front.number < next.number)
        };
        if stream != DEFAULT {
            return self
                .streams
                .get(&DEFAULT)
                .is_some_and(earlier)
                .then_some(DEFAULT);
        }
        self.streams
            .iter()
            .find(|(handle, other)| **handle != DEFAULT && other.blocking && earlier(other))
            .map(|(handle, _)| *handle)
    }
}

impl Device {
    /// Makes a stream.
    pub fn new_stream(&mut self, non_blocking: bool) -> usize {
        let handle = self.handle();
        self.streams.streams.insert(
            handle,
            Stream {
                blocking: !non_blocking,
                ..Stream::default()
            },
        );
        handle
    }

    /// Checks a stream's handle.
    pub fn stream(&mut self, handle: usize) -> Outcome<usize> {
        self.streams.known(handle)
    }

    /// Queues work, and does it at once if streams are eager.
    pub fn queue(&mut self, stream: usize, work: Work) -> Outcome<usize> {
        let stream = self.streams.known(stream)?;
        self.streams.next += 1;
        let number = self.streams.next;
        if let Some(stream) = self.streams.streams.get_mut(&stream) {
            stream.queue.push_back(Numbered { number, work });
        }
        Ok(stream)
    }

    /// Counts a stream that kernels were just queued in, and how many have some now.
    pub fn note_kernels(&mut self, stream: usize) {
        self.kernel_streams.insert(stream);
        let has_kernels = |stream: &&Stream| {
            let mut queue = stream.queue.iter();
            queue.any(|numbered| matches!(numbered.work, Work::Launch(_)))
        };
        let now = self.streams.streams.values().filter(has_kernels).count();
        self.counts.streams_at_once = self.counts.streams_at_once.max(now as u64);
    }

    /// Makes an event.
    pub fn new_event(&mut self) -> usize {
        let handle = self.handle();
        self.streams.events.insert(handle, Event::default());
        handle
    }

    /// Forgets an event; what waits for it goes on when it is reached.
    pub fn destroy_event(&mut self, handle: usize) -> Outcome {
        if self.streams.events.remove(&handle).is_none() {
            return self.freed_wrong(handle, Code::INVALID_HANDLE);
        }
        self.forget(handle);
        Ok(())
    }

    fn event(&self, handle: usize) -> Outcome<&Event> {
        let event = self.streams.events.get(&handle);
        event.ok_or(Code::INVALID_HANDLE)
    }

    /// Records an event: the work to queue.
    pub fn record(&mut self, handle: usize, stream: usize) -> Outcome<Work> {
        let stream = self.streams.known(stream)?;
        self.event(handle)?;
        self.streams.next += 1;
        let record = self.streams.next;
        self.streams.records.insert(record);
        let event = Event {
            last: Some(record),
            stream,
            at: None,
        };
        self.streams.events.insert(handle, event);
        Ok(Work::Record(handle, record))
    }

    /// The last record of an event and its stream, if it is not reached.
    fn ahead(&self, handle: usize) -> Outcome<Option<(u64, usize)>> {
        let event = self.event(handle)?;
        let ahead = event
            .last
            .filter(|record| self.streams.records.contains(record));
        Ok(ahead.map(|record| (record, event.stream)))
    }

    /// Waits for an event: the work to queue, or nothing if there is nothing to wait for.
    pub fn wait(&mut self, handle: usize) -> Outcome<Option<Work>> {
        let ahead = self.ahead(handle)?;
        Ok(ahead.map(|(record, stream)| Work::Wait(record, stream)))
    }

    /// The stream in which an event that is not reached yet was recorded.
    pub fn pending_event(&self, handle: usize) -> Outcome<Option<usize>> {
        Ok(self.ahead(handle)?.map(|(_, stream)| stream))
    }

    /// Milliseconds between two events.
    pub fn elapsed(&self, from: usize, to: usize) -> Outcome<f32> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        if from.last.is_none() || to.last.is_none() {
            return Err(Code::INVALID_HANDLE);
        }
        match (from.at, to.at) {
            (Some(first), Some(second)) => {
                Ok(second.saturating_duration_since(first).as_secs_f32() * 1e3)
            }
            _ => Err(Code::NOT_READY),
        }
    }

    fn carry_out(&mut self, work: Work) -> Outcome {
        match work {
            Work::CopyIn { to, bytes } => {
                self.reaches(to as u64, bytes.len())
                    .map_err(|_| Code::ILLEGAL_ADDRESS)?;
                // SAFETY: the target was looked up, the source is a vector.
                unsafe { self.copy(to, bytes.as_ptr() as usize, bytes.len()) };
            }
            Work::Copy { to, from, len } => {
                // Both were the driver's when the copy was queued; whoever freed one meanwhile should have waited.
                self.reaches(to as u64, len)
                    .and_then(|()| self.reaches(from as u64, len))
                    .map_err(|_| Code::ILLEGAL_ADDRESS)?;
                // SAFETY: both were looked up.
                unsafe { self.copy(to, from, len) };
            }
            Work::Fill { to, pattern, count } => {
                let len = pattern.len() * count;
                self.reaches(to as u64, len)
                    .map_err(|_| Code::ILLEGAL_ADDRESS)?;
                // SAFETY: the range was looked up.
                let target = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, len) };
                target
                    .chunks_exact_mut(pattern.len())
                    .for_each(|chunk| chunk.copy_from_slice(&pattern));
                self.memory.mark(to, len);
            }
            Work::Launch(launch) => self.run_kernel(*launch)?,
            Work::Record(event, record) => {
                self.streams.records.remove(&record);
                if let Some(event) = self.streams.events.get_mut(&event)
                    && event.last == Some(record)
                {
                    event.at = Some(Instant::now());
                }
            }
            Work::Free(address) => self
                .free_to_pool(address)
                .map_err(|_| Code::ILLEGAL_ADDRESS)?,
            Work::Wait(..) | Work::Call(..) => {}
        }
        Ok(())
    }

    /// Takes the next work that may be done in this stream, or in one that it waits for.
    fn take(&mut self, stream: usize) -> Option<Work> {
        let mut stream = stream;
        // Each step goes to work that was queued earlier, so this ends.
        while let Some(earlier) = self.streams.before(stream) {
            stream = earlier;
        }
        Some(
            self.streams
                .streams
                .get_mut(&stream)?
                .queue
                .pop_front()?
                .work,
        )
    }

    fn is_idle(&self, stream: usize) -> bool {
        self.streams
            .streams
            .get(&stream)
            .is_none_or(|stream| stream.queue.is_empty())
    }

    fn blocking_streams(&self) -> Vec<usize> {
        self.streams
            .streams
            .iter()
            .filter(|(_, stream)| stream.blocking)
            .map(|(handle, _)| *handle)
            .collect()
    }

    fn all_streams(&self) -> Vec<usize> {
        self.streams.streams.keys().copied().collect()
    }
}

/// Does one piece of work of a stream; false if there is none. Calls of the host happen with the device unlocked, as they may use it.
fn step(mut guard: Guard, stream: usize) -> (Guard, bool) {
    let Some(work) = guard.take(stream) else {
        return (guard, false);
    };
    if let Work::Call(function, data) = work {
        drop(guard);
        // SAFETY: who queued it says that it may be called with that pointer.
        unsafe { function(data as *mut c_void) };
        return (device(), true);
    }
    // A device that is broken does nothing any more, but what is queued goes.
    if guard.broken.is_none() {
        if let Err(code) = guard.carry_out(work) {
            guard.broken = Some(code);
        }
    } else if let Work::Record(..) = work {
        let _ = guard.carry_out(work);
    }
    (guard, true)
}

/// Does all work of a stream.
pub fn finish(mut guard: Guard, stream: usize) -> Guard {
    while !guard.is_idle(stream) {
        let (next, did) = step(guard, stream);
        guard = next;
        if !did {
            break;
        }
    }
    guard
}

/// Does one piece of work of a stream, as a query does; false if nothing is left then.
pub fn nudge(guard: Guard, stream: usize) -> (Guard, bool) {
    let (guard, _) = step(guard, stream);
    let busy = !guard.is_idle(stream);
    (guard, busy)
}

/// Does all work of all streams.
pub fn finish_all(mut guard: Guard) -> Guard {
    for stream in guard.all_streams() {
        guard = finish(guard, stream);
    }
    guard
}

/// Does all work of the default stream and the blocking ones, as a call without a stream does first.
pub fn finish_blocking(mut guard: Guard) -> Guard {
    for stream in guard.blocking_streams() {
        guard = finish(guard, stream);
    }
    guard
}

/// Does work until an event is reached.
pub fn finish_event(mut guard: Guard, event: usize) -> Guard {
    while let Ok(Some(stream)) = guard.pending_event(event) {
        let (next, did) = step(guard, stream);
        guard = next;
        if !did {
            break;
        }
    }
    guard
}

/// Takes a stream away, after its work.
pub fn destroy(guard: Guard, handle: usize) -> (Guard, Outcome) {
    let mut guard = finish(guard, handle);
    if handle <= 2 {
        return (guard, Err(Code::INVALID_HANDLE));
    }
    let outcome = if guard.streams.streams.remove(&handle).is_some() {
        guard.forget(handle);
        Ok(())
    } else {
        guard.freed_wrong(handle, Code::INVALID_HANDLE)
    };
    (guard, outcome)
}
