//! The thread that owns a ring, and what is handed to it from others.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use io_uring::{opcode, types};

use super::flight::{Flight, Tally, Until, WAKE};
use super::ring::Ring;
use super::sending::{AHEAD, Load, Sending, WeakLoad, insist};
use crate::backend::device::{Device, Share};
use crate::error::{Error, ErrorKind, Refusal};
use crate::reader::Priority;
use crate::sys::{self, Generation};

/// How long a driver with nothing to do stays.
const LINGER: Duration = Duration::from_secs(10);

/// Serves all asynchronous reads of one device by one thread, which is started when needed and gone when idle.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    generation: Generation,
}

/// What the driver's thread is doing, for those who may have to wake it.
#[derive(Debug)]
#[repr(u8)]
enum Doing {
    /// It will look at the queue before it waits.
    Working,
    /// It waits for completions: the eventfd wakes it.
    InRing,
    /// It waits for work: the condition variable wakes it.
    Parked,
}

#[derive(Debug)]
struct Shared {
    device: Arc<Device>,
    /// Bound of the kernel's own threads.
    kernel_threads: usize,
    queue: Mutex<Queue>,
    work: Condvar,
    /// A [`Doing`].
    doing: AtomicU8,
    /// There is something new in the queue, to be looked at without the lock.
    news: AtomicBool,
    /// Operations that the kernel has.
    flying: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    loads: Vec<(Load, Tally, Priority)>,
    /// All that was handed in and may not be done.
    open: Vec<WeakLoad>,
    /// How many of these to look through next time for those that are done.
    sweep_at: usize,
    /// How to wake it out of its ring, while the thread runs.
    event: Option<Arc<OwnedFd>>,
    /// No more work is taken.
    closed: bool,
    /// Everything that was handed in is given up.
    abandoned: bool,
}

impl Driver {
    pub(crate) fn new(device: Arc<Device>, kernel_threads: usize) -> Self {
        Driver {
            shared: Arc::new(Shared {
                device,
                kernel_threads,
                queue: Mutex::default(),
                work: Condvar::new(),
                doing: AtomicU8::new(Doing::Working as u8),
                news: AtomicBool::new(false),
                flying: AtomicUsize::new(0),
            }),
            generation: Generation::current(),
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.shared.device
    }

    /// Starts the thread if it does not run. Waits for no device.
    pub(crate) fn ready(&self) -> Result<(), Refusal> {
        if !self.generation.is_current() {
            return Err(Refusal::NotForThisFile {
                what: "its engine was made before this process was forked".into(),
            });
        }
        self.shared.ensure_thread(&mut self.shared.lock())
    }

    /// Takes work. What becomes of it, its tickets tell.
    pub(super) fn submit(&self, load: Load, tally: Tally, priority: Priority) {
        if !self.generation.is_current() {
            return load.give_up(&Error::new(ErrorKind::Forked));
        }
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            return load.give_up(&Error::new(ErrorKind::Abandoned));
        }
        if let Err(refusal) = self.shared.ensure_thread(&mut queue) {
            drop(queue);
            return load.give_up(&Error::new(ErrorKind::Unavailable {
                engine: load.engine(),
                why: refusal,
            }));
        }
        queue.remember(&load);
        queue.loads.push((load, tally, priority));
        self.shared.wake(queue);
    }

    /// Takes no more work.
    pub(crate) fn close(&self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        self.shared.wake(queue);
    }

    /// Waits until the thread has ended, which it does when it is closed and all is done. `false`: not by then.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut queue = self.shared.lock();
        while queue.event.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let (guard, _) = self
                .shared
                .work
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner);
            queue = guard;
        }
        true
    }

    /// Gives up everything: those who wait are told, and what the kernel may still write to is kept until it has.
    /// The number of requests that are with the kernel.
    ///
    /// Done here, as the thread may wait for others: a system call for metadata, memory that is slow to go, a waker.
    pub(crate) fn abandon(&self) -> usize {
        let mut queue = self.shared.lock();
        if queue.event.is_none() {
            return 0;
        }
        queue.closed = true;
        queue.abandoned = true;
        let open = std::mem::take(&mut queue.open);
        self.shared.wake(queue);
        let left = self.shared.flying.load(Ordering::SeqCst);
        let error = Error::new(ErrorKind::Abandoned);
        for load in open.iter().filter_map(WeakLoad::upgrade) {
            insist(|| load.abandon(&error));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(load)));
        }
        left
    }
}

impl Drop for Driver {
    /// What was handed in is done; then the thread ends.
    fn drop(&mut self) {
        if self.generation.is_current() {
            self.close();
        }
    }
}

impl Queue {
    /// Keeps what was handed in within reach until it is done.
    fn remember(&mut self, load: &Load) {
        if self.open.len() >= self.sweep_at {
            self.open.retain(WeakLoad::is_open);
            self.sweep_at = (2 * self.open.len()).max(64);
        }
        self.open.push(load.downgrade());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics under the lock, and the queue is valid between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ensure_thread(self: &Arc<Self>, queue: &mut Queue) -> Result<(), Refusal> {
        if queue.event.is_some() {
            return Ok(());
        }
        if queue.closed {
            return Err(Refusal::NotForThisFile {
                what: "its engine was shut down".into(),
            });
        }
        let os = |op: &'static str| {
            move |error: io::Error| Refusal::Os {
                op,
                source: Arc::new(error),
            }
        };
        let entries = self.device.bounds().depth.clamp(1, 4096) + 1;
        let ring = Ring::new(entries.next_power_of_two() as u32)?;
        let event = Arc::new(sys::event().map_err(os("eventfd"))?);
        let (shared, its_event) = (self.clone(), event.clone());
        self.doing.store(Doing::Working as u8, Ordering::SeqCst);
        std::thread::Builder::new()
            .name("feedwater-ring".into())
            .spawn(move || Thread::new(shared, its_event).run(ring))
            .map_err(os("start a thread"))?;
        queue.event = Some(event);
        Ok(())
    }

    /// Makes the thread look at the queue.
    fn wake(&self, queue: MutexGuard<'_, Queue>) {
        // Before the look at what it is doing: it says so before it looks for news, so one of both sees the other.
        self.news.store(true, Ordering::SeqCst);
        let event = queue.event.clone();
        drop(queue);
        let working = Doing::Working as u8;
        match self.doing.swap(working, Ordering::SeqCst) {
            doing if doing == Doing::InRing as u8 => {
                if let Some(event) = event {
                    // A full counter wakes as well, so there is nothing to do about an error.
                    let _ = rustix::io::write(&*event, &1u64.to_ne_bytes());
                }
            }
            doing if doing == Doing::Parked as u8 => self.work.notify_all(),
            _ => {}
        }
    }
}

/// What only the thread touches.
struct Thread {
    shared: Arc<Shared>,
    flight: Option<Flight>,
    event: Arc<OwnedFd>,
    /// A request to be told of the event is in the ring.
    armed: bool,
    foreground: VecDeque<Sending>,
    prefetch: VecDeque<Sending>,
}

impl Thread {
    fn new(shared: Arc<Shared>, event: Arc<OwnedFd>) -> Self {
        Thread {
            shared,
            flight: None,
            event,
            armed: false,
            foreground: VecDeque::new(),
            prefetch: VecDeque::new(),
        }
    }

    fn run(&mut self, ring: Ring) {
        let begun = ring.begin(self.shared.kernel_threads);
        self.flight = Some(Flight::new(ring));
        let served = begun.and_then(|()| self.serve());
        self.end(&match served {
            Ok(()) => Error::new(ErrorKind::Abandoned),
            Err(error) => Error::io("io_uring_enter", error),
        });
    }

    /// Whatever ended it: what is in flight is left to the kernel, with its memory; what is not goes back.
    fn end(&mut self, error: &Error) {
        if let Some(flight) = self.flight.take() {
            self.shared.flying.store(flight.len(), Ordering::SeqCst);
        }
        for sending in self.foreground.drain(..).chain(self.prefetch.drain(..)) {
            sending.give_up(error);
        }
    }

    /// Until it is closed and has nothing left to do, or has had nothing for a while.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.take_news();
            self.send()?;
            let Some(flight) = &mut self.flight else {
                return Ok(());
            };
            // Whoever gives up counts what the kernel may have, and what is being told.
            let open = flight.len() + flight.untold();
            self.shared.flying.store(open, Ordering::SeqCst);
            // The device goes on while those who wait are told.
            flight.submit()?;
            if let Some(next) = self.foreground.front_mut() {
                next.prepare(AHEAD);
            }
            flight.deliver();
            self.shared.flying.store(flight.len(), Ordering::SeqCst);
            if flight.len() == 0 {
                if self.idle() {
                    continue;
                }
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Takes over what was handed in.
    fn take_news(&mut self) {
        if !self.shared.news.swap(false, Ordering::SeqCst) {
            return;
        }
        let mut queue = self.shared.lock();
        let loads = std::mem::take(&mut queue.loads);
        let abandoned = std::mem::take(&mut queue.abandoned);
        drop(queue);
        for (load, tally, priority) in loads {
            let list = match priority {
                Priority::Prefetch => &mut self.prefetch,
                _ => &mut self.foreground,
            };
            match list.iter_mut().find(|sending| sending.tally().is(&tally)) {
                Some(sending) => sending.push(load),
                None => list.push_back(Sending::new(load, tally)),
            }
        }
        if abandoned {
            self.abandon();
        }
    }

    /// Lets go of what was given up.
    fn abandon(&mut self) {
        let error = Error::new(ErrorKind::Abandoned);
        for sending in self.foreground.drain(..).chain(self.prefetch.drain(..)) {
            sending.abandon(&error);
        }
    }

    /// Sends pieces as far as the device has room for them.
    fn send(&mut self) -> io::Result<()> {
        let device = self.shared.device.clone();
        for (list, share) in [
            (&mut self.foreground, Share::Whole),
            (&mut self.prefetch, Share::Half),
        ] {
            let mut passed = 0;
            while passed < list.len() {
                let Some(flight) = &mut self.flight else {
                    return Ok(());
                };
                // One place is for the event.
                if flight.len() + 1 >= flight.capacity() {
                    return Ok(());
                }
                let Some(sending) = list.front_mut() else {
                    break;
                };
                if sending.tally().is_full() {
                    passed += 1;
                    list.rotate_left(1);
                    continue;
                }
                if !sending.prepare(1) {
                    list.pop_front();
                    continue;
                }
                let Some(operation) = sending.next() else {
                    continue;
                };
                if !device.enter(operation.bytes(), flight.len() == 0, share) {
                    sending.put_back(operation);
                    return Ok(());
                }
                flight.launch(operation, sending.tally())?;
                // Others have their turn.
                list.rotate_left(1);
                passed = 0;
            }
        }
        Ok(())
    }

    /// Waits for completions, or for somebody to hand in more.
    fn wait(&mut self) -> io::Result<()> {
        let Some(flight) = &mut self.flight else {
            return Ok(());
        };
        if !self.armed {
            let poll = opcode::PollAdd::new(types::Fd(self.event.as_raw_fd()), libc::POLLIN as _);
            // SAFETY: points to nothing; this thread keeps the event open for longer than the ring (`end`).
            unsafe { flight.push(&poll.build().user_data(WAKE))? };
            self.armed = true;
        }
        self.shared
            .doing
            .store(Doing::InRing as u8, Ordering::SeqCst);
        // Handed in before that was seen?
        let until = match self.shared.news.load(Ordering::SeqCst) {
            true => Until::Now,
            false if self.foreground.is_empty() && self.prefetch.is_empty() => Until::One,
            false => Until::Several,
        };
        let woken = flight.turn(until);
        self.shared
            .doing
            .store(Doing::Working as u8, Ordering::SeqCst);
        if woken? {
            self.armed = false;
            let _ = rustix::io::read(&*self.event, &mut [0u8; 8]);
        }
        Ok(())
    }

    /// Waits for work. `false`: there was none for a while, or there will be none, and the thread is to end.
    fn idle(&mut self) -> bool {
        let end = Instant::now() + LINGER;
        let mut queue = self.shared.lock();
        loop {
            if !queue.loads.is_empty() || queue.abandoned {
                return true;
            }
            if !self.foreground.is_empty() || !self.prefetch.is_empty() {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if queue.closed || left.is_zero() {
                queue.event = None;
                drop(queue);
                self.shared.work.notify_all();
                return false;
            }
            self.shared
                .doing
                .store(Doing::Parked as u8, Ordering::SeqCst);
            let (guard, _) = self
                .shared
                .work
                .wait_timeout(queue, left)
                .unwrap_or_else(PoisonError::into_inner);
            queue = guard;
            self.shared
                .doing
                .store(Doing::Working as u8, Ordering::SeqCst);
        }
    }
}

impl Drop for Thread {
    /// Also when it panicked: those who wait are told, and another thread may take its place.
    fn drop(&mut self) {
        self.end(&Error::new(ErrorKind::Abandoned));
        let mut queue = self.shared.lock();
        if queue
            .event
            .as_ref()
            .is_some_and(|event| Arc::ptr_eq(event, &self.event))
        {
            queue.event = None;
        }
        let stranded = if queue.event.is_none() {
            std::mem::take(&mut queue.loads)
        } else {
            Vec::new()
        };
        drop(queue);
        self.shared.work.notify_all();
        for (load, ..) in stranded {
            insist(|| load.give_up(&Error::new(ErrorKind::Abandoned)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;

    use super::super::files::Files;
    use super::super::fixture::{Fixture, skipped};
    use super::*;
    use crate::backend::device::Bounds;
    use crate::backend::whole::{Want, WholeFile};
    use crate::buffer::BlockMut;
    use crate::error::Result;
    use crate::reader::{Batch, VersionCheck};
    use crate::version::FileVersion;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// `None` where there are no rings.
    fn driver() -> Option<Driver> {
        let bounds = Bounds {
            depth: 4,
            bytes: 1 << 20,
        };
        let driver = Driver::new(Arc::new(Device::new(None, bounds)), 2);
        match driver.ready() {
            Ok(()) => Some(driver),
            Err(why) => {
                skipped("uring", why);
                None
            }
        }
    }

    /// So many reads, and who waits for them.
    fn reads(fixture: &Fixture, count: u64) -> (Load, crate::reader::Pending) {
        let context = fixture.buffered();
        let batch = Batch::of((0..count).map(|i| i * 6000..i * 6000 + 100));
        let (work, pending) = Fixture::batched(&context, batch, 1000);
        (Load::Pieces(work), pending)
    }

    fn submit(driver: &Driver, load: Load) {
        let tally = Tally::new(driver.device().clone(), None);
        driver.submit(load, tally, Priority::Foreground);
    }

    fn abandoned(mut pending: crate::reader::Pending, count: usize) {
        for _ in 0..count {
            let (_, outcome) = pending.try_next().expect("told at once");
            let failed = outcome.unwrap_err();
            assert!(matches!(failed.error.kind(), ErrorKind::Abandoned));
        }
        assert!(pending.try_next().is_none());
    }

    #[test]
    fn what_was_handed_in_before_it_is_closed_is_done_and_nothing_after() {
        let Some(driver) = driver() else { return };
        let fixture = Fixture::new(200_000);
        let handed_in: Vec<_> = (0..10)
            .map(|_| {
                let (load, pending) = reads(&fixture, 30);
                submit(&driver, load);
                pending
            })
            .collect();
        driver.close();
        let (late, refused) = reads(&fixture, 3);
        submit(&driver, late);
        abandoned(refused, 3);
        assert!(driver.wait_until(Instant::now() + PATIENCE));
        for mut pending in handed_in {
            for _ in 0..30 {
                let (at, outcome) = pending.try_next().expect("done when the thread ends");
                let at = at as u64 * 6000;
                let right = fixture.bytes(&(at..at + 100));
                assert_eq!(outcome.unwrap().as_host().unwrap()[..], *right);
            }
        }
        assert!(driver.ready().is_err(), "it does not begin again");
        assert_eq!(driver.abandon(), 0);
        assert_eq!(driver.device().most_requests(), 4);
    }

    #[test]
    fn dropped_it_does_what_was_handed_in() {
        let Some(driver) = driver() else { return };
        let fixture = Fixture::new(200_000);
        let (load, pending) = reads(&fixture, 30);
        submit(&driver, load);
        drop(driver);
        assert_eq!(pending.wait().unwrap().len(), 30);
    }

    #[test]
    fn panics_of_those_who_are_told_end_nothing() {
        let Some(driver) = driver() else { return };
        let fixture = Fixture::new(200_000);
        let told = Arc::new(AtomicUsize::new(0));
        let (arrived, at_gate) = mpsc::channel();
        let (open, gate) = mpsc::channel::<()>();
        let (arrived, gate) = (Mutex::new(arrived), Mutex::new(gate));
        let counted = told.clone();
        struct Panics<F>(F);
        impl<F: Fn(usize) + Send + Sync> Want for Panics<F> {
            fn room(&self, _: usize, _: &FileVersion) -> Result<Option<BlockMut>> {
                Ok(None)
            }
            fn tell(&self, index: usize, _: Result<Option<WholeFile>>) {
                (self.0)(index);
            }
        }
        let want = Arc::new(Panics(move |index: usize| {
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                // The others are waiting, or are in flight, when they are given up.
                arrived.lock().unwrap().send(()).unwrap();
                gate.lock().unwrap().recv().unwrap();
            }
            std::panic::resume_unwind(Box::new(index));
        }));
        let paths = vec![Path::new("/dev/null").into(); 50];
        let files = Files::new(paths, VersionCheck::Always, want);
        submit(&driver, Load::Files(files));
        at_gate.recv_timeout(PATIENCE).unwrap();
        let (load, pending) = reads(&fixture, 3);
        submit(&driver, load);
        let giving_up = std::thread::scope(|threads| {
            let giving_up = threads.spawn(|| driver.abandon());
            let left = giving_up.join().unwrap();
            // The thread is still in the middle of telling the first one.
            open.send(()).unwrap();
            left
        });
        assert!(giving_up <= 4, "{giving_up}");
        assert!(driver.wait_until(Instant::now() + PATIENCE));
        assert_eq!(told.load(Ordering::SeqCst), 50, "each is told once");
        abandoned(pending, 3);
    }
}
