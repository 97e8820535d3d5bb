//! One ring: submission and completion queue shared with the kernel, and what can go wrong with entering it.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, squeue, types};

use crate::error::Refusal;
use crate::sys::Generation;

/// How the ring is set up, from the best on; the next one is tried where the kernel does not know a flag.
const LADDER: &[Setup] = &[
    // Linux 6.1: completions are handled when the owner asks for them, without interrupting it.
    Setup {
        single_issuer: true,
        submit_all: true,
    },
    // Linux 5.18.
    Setup {
        single_issuer: false,
        submit_all: true,
    },
    Setup {
        single_issuer: false,
        submit_all: false,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setup {
    /// `SINGLE_ISSUER | DEFER_TASKRUN`, begun by whoever owns it ([`Ring::begin`]).
    single_issuer: bool,
    submit_all: bool,
}

/// Always asks for events, which is what runs deferred work.
const GETEVENTS: u32 = 1;

/// How long [`Ring::gather`] waits for more, in microseconds: a fraction of what a read takes with so many others ahead
/// of it. Requests that are handed over together cost the device one notice rather than one each.
const GATHERING: u32 = 50;

const A_DAY: u64 = 86_400;

/// What one entry of the kernel came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// As asked.
    Done,
    /// A signal came, or the kernel has no room now: what was pushed stays pushed.
    Again,
}

/// A ring, used by one thread at a time; gone from a forked child.
pub(super) struct Ring {
    ring: ManuallyDrop<IoUring>,
    setup: Setup,
    generation: Generation,
}

impl Ring {
    /// A ring for `entries` requests in flight, as good as this kernel has; fewer where memory is refused.
    ///
    /// It belongs to the thread that calls [`begin`](Self::begin) first.
    pub(super) fn new(entries: u32) -> Result<Self, Refusal> {
        // Before Linux 5.12, and again in kernels that were tried (6.18), rings count against RLIMIT_MEMLOCK.
        let sizes = [entries, entries / 4, entries / 16].map(|n| n.max(4));
        let mut refused = None;
        for entries in sizes {
            for setup in LADDER {
                match Ring::build(*setup, entries) {
                    Ok(ring) => return Ok(ring),
                    Err(error) => {
                        let next_size = error.raw_os_error() == Some(libc::ENOMEM);
                        let give_up = !next_size && error.raw_os_error() != Some(libc::EINVAL);
                        refused = Some(error);
                        match (give_up, next_size) {
                            (true, _) => return Err(refusal("io_uring_setup", refused)),
                            (_, true) => break,
                            _ => {}
                        }
                    }
                }
            }
        }
        Err(refusal("io_uring_setup", refused))
    }

    fn build(setup: Setup, entries: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp();
        if setup.submit_all {
            builder.setup_submit_all();
        }
        if setup.single_issuer {
            // Disabled until its owner, which may be another thread, enables it.
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_r_disabled();
        }
        Ok(Ring {
            ring: ManuallyDrop::new(builder.build(entries)?),
            setup,
            generation: Generation::current(),
        })
    }

    /// Makes the calling thread its owner, and bounds the kernel's own threads that wait for files whose file system
    /// cannot read without waiting.
    pub(super) fn begin(&self, kernel_threads: usize) -> io::Result<()> {
        if self.setup.single_issuer {
            self.ring.submitter().register_enable_rings()?;
        }
        // Linux 5.15; without it the kernel has a bound of its own. Both kinds, since a read that is to be done by such a
        // thread from the start counts among those of no regular file: its file has not been looked at by then.
        let most = i32::try_from(kernel_threads).unwrap_or(i32::MAX).max(1);
        let mut most = [most as u32; 2];
        let _ = self.ring.submitter().register_iowq_max_workers(&mut most);
        Ok(())
    }

    /// Requests that may be in flight at once. The completion queue is twice as long, so it never overflows.
    pub(super) fn capacity(&self) -> usize {
        self.ring.params().sq_entries() as usize
    }

    pub(super) fn is_current(&self) -> bool {
        self.generation.is_current()
    }

    /// What it was set up with, for people.
    pub(super) fn describe(&self) -> &'static str {
        match (self.setup.single_issuer, self.setup.submit_all) {
            (true, _) => "single issuer, deferred task work",
            (_, true) => "without deferred task work (Linux before 6.1)",
            _ => "plain (Linux before 5.18)",
        }
    }

    /// Whether the kernel knows all of these operations.
    pub(super) fn knows(&self, operations: &[u8]) -> io::Result<bool> {
        let mut probe = io_uring::Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        Ok(operations.iter().all(|code| probe.is_supported(*code)))
    }

    /// Adds an entry, to be submitted by the next [`enter`](Self::enter). `false`: there is no room before that.
    ///
    /// # Safety
    /// Everything that the entry points to stays valid until its completion has been seen.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller vouches for what the entry points to.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }

    /// Submits what was pushed and waits until at least `wanted` completions can be taken.
    ///
    /// An error other than those of [`Entered::Again`] means that this ring cannot go on.
    pub(super) fn enter(&mut self, wanted: usize) -> io::Result<Entered> {
        let pushed = self.ring.submission().len();
        // SAFETY: no argument is passed, and the counts are of this ring.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(
                pushed as u32,
                wanted as u32,
                GETEVENTS,
                None,
            )
        };
        Ring::entered(entered, pushed)
    }

    /// Submits what was pushed and waits for `wanted` completions, but no longer than [`GATHERING`] once there is one.
    ///
    /// Where the kernel cannot do that (Linux before 6.12), the first is all it waits for.
    pub(super) fn gather(&mut self, wanted: usize) -> io::Result<Entered> {
        if wanted < 2 || !self.ring.params().is_feature_min_timeout() {
            return self.enter(wanted.min(1));
        }
        let pushed = self.ring.submission().len();
        // Without a time for the first one, the kernel waits for none at all.
        let most = types::Timespec::new().sec(A_DAY);
        let arguments = types::SubmitArgs::new()
            .min_wait_usec(GATHERING)
            .timespec(&most);
        let entered = self.ring.submitter().submit_with_args(wanted, &arguments);
        match entered {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(Entered::Done),
            entered => Ring::entered(entered, pushed),
        }
    }

    fn entered(entered: io::Result<usize>, pushed: usize) -> io::Result<Entered> {
        match entered {
            // The kernel does not wait if it took less than all.
            Ok(taken) if taken < pushed => Ok(Entered::Again),
            Ok(_) => Ok(Entered::Done),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(Entered::Again),
                _ => Err(error),
            },
        }
    }

    /// Entries that were pushed and that the kernel has not taken.
    pub(super) fn unsubmitted(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Takes all completions that are there: each entry's word, and its result.
    pub(super) fn completions(&mut self, into: &mut Vec<(u64, i32)>) {
        let completed = self.ring.completion();
        into.extend(completed.map(|entry| (entry.user_data(), entry.result())));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.generation.is_current() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        } else {
            // The child has none of its mappings (MADV_DONTFORK): something else may lie there. Only the descriptor
            // is the child's to close.
            // SAFETY: the descriptor is this value's, which is not used again.
            unsafe { libc::close(self.ring.as_raw_fd()) };
        }
    }
}

/// The reason behind a refused system call, as far as the system shows it.
pub(super) fn refusal(op: &'static str, error: Option<io::Error>) -> Refusal {
    let Some(error) = error else {
        return Refusal::NotOnThisSystem {
            what: "io_uring".into(),
        };
    };
    let missing = |what: String| Refusal::NotOnThisSystem { what: what.into() };
    match error.raw_os_error() {
        Some(libc::ENOSYS) => missing("io_uring (Linux 5.6)".into()),
        Some(libc::EPERM) => {
            let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            match setting.as_deref().map(str::trim) {
                Ok(value @ ("1" | "2")) => missing(format!(
                    "io_uring, which kernel.io_uring_disabled = {value} forbids"
                )),
                _ => missing(
                    "io_uring, which a filter of system calls or a security policy forbids \
                     (as in many containers)"
                        .into(),
                ),
            }
        }
        Some(libc::ENOMEM) => {
            let limit = crate::sys::locked_memory_limit();
            let limit = limit.map_or("unlimited".into(), |bytes| format!("{bytes} bytes"));
            Refusal::Os {
                op: "io_uring_setup (memory for the ring, which counts as locked memory before Linux 5.12 and in new kernels)",
                source: Arc::new(io::Error::new(
                    error.kind(),
                    format!("{error}; RLIMIT_MEMLOCK is {limit}"),
                )),
            }
        }
        _ => Refusal::Os {
            op,
            source: Arc::new(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::skipped;
    use super::*;
    use io_uring::opcode;

    fn ring(setup: Setup) -> Ring {
        let ring = Ring::build(setup, 8).unwrap();
        ring.begin(1).unwrap();
        ring
    }

    #[test]
    fn every_rung_of_the_ladder_works() {
        if let Err(why) = super::super::probe::facts() {
            return skipped("uring", why);
        }
        for setup in LADDER {
            let mut ring = ring(*setup);
            for word in 0..3 {
                // SAFETY: a request for nothing points to nothing.
                assert!(unsafe { ring.push(&opcode::Nop::new().build().user_data(word)) });
            }
            assert_eq!(ring.unsubmitted(), 3);
            assert_eq!(ring.enter(3).unwrap(), Entered::Done);
            let mut seen = Vec::new();
            ring.completions(&mut seen);
            seen.sort_unstable();
            assert_eq!(seen, [(0, 0), (1, 0), (2, 0)]);
        }
    }

    #[test]
    fn what_does_not_fit_stays_with_the_caller() {
        if let Err(why) = super::super::probe::facts() {
            return skipped("uring", why);
        }
        let mut ring = ring(LADDER[0]);
        let nop = opcode::Nop::new().build();
        // SAFETY: as above.
        let fitted = (0..100).take_while(|_| unsafe { ring.push(&nop) }).count();
        assert_eq!(fitted, ring.capacity());
        assert_eq!(ring.enter(fitted).unwrap(), Entered::Done);
        // SAFETY: as above.
        assert!(unsafe { ring.push(&nop) });
    }

    #[test]
    fn refusals_say_what_stands_in_the_way() {
        let said = |code| refusal("io_uring_setup", Some(io::Error::from_raw_os_error(code)));
        assert!(said(libc::ENOSYS).to_string().contains("Linux 5.6"));
        assert!(said(libc::EPERM).to_string().contains("forbids"));
        assert!(said(libc::ENOMEM).to_string().contains("RLIMIT_MEMLOCK"));
        assert!(
            said(libc::EMFILE)
                .to_string()
                .contains("io_uring_setup failed")
        );
    }

    #[test]
    fn what_may_pass_is_not_taken_for_good() {
        for (code, passes) in [
            (libc::EMFILE, true),
            (libc::ENOMEM, true),
            (libc::EACCES, false),
        ] {
            let error = io::Error::from_raw_os_error(code);
            match refusal("io_uring_setup", Some(error)) {
                Refusal::Os { source, .. } => {
                    assert_eq!(crate::sys::is_passing(&source), passes, "{code}");
                }
                refusal => panic!("{refusal}"),
            }
        }
    }
}
