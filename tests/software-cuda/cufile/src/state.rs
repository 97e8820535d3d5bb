//! What is open and registered, what tests ask to go wrong, and counts.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::batch::Batch;
use crate::codes;
use crate::options::Options;

/// Everything.
pub struct State {
    /// How it behaves.
    pub options: Options,
    /// The setting `allow_compat_mode`.
    pub allow_compatibility: bool,
    /// How often the driver is open.
    pub opened: u64,
    /// Descriptors by handle.
    pub handles: HashMap<usize, c_int>,
    /// Registered buffers: address and length.
    pub buffers: HashMap<u64, usize>,
    /// Batches by handle.
    pub batches: HashMap<usize, Batch>,
    /// Registered streams.
    pub streams: HashSet<usize>,
    /// By the name of a call: how often it still goes well, and the code that it then gives once.
    failures: HashMap<String, (u64, c_int)>,
    /// A read that is short: how many come before it, and its bytes.
    pub short: Option<(u64, usize)>,
    /// Calls for events that find none.
    pub delay: u64,
    /// Reads wait while this is set.
    pub held: bool,
    /// What was done.
    pub counts: Counts,
    next: usize,
}

/// What was done, and done wrongly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Reads by `cuFileRead` and in streams.
    pub reads: u64,
    /// Reads in batches.
    pub entries: u64,
    /// Batches that were submitted.
    pub submits: u64,
    /// Reads whose offset, length or address is no multiple of 4096: they are slow.
    pub unaligned: u64,
    /// Reads into registered buffers.
    pub registered: u64,
    /// Buffers that were registered.
    pub registrations: u64,
    /// Times that somebody tried to change a setting.
    pub settings: u64,
    /// Batches that were given up.
    pub cancels: u64,
    /// Times that the driver was closed.
    pub closed: u64,
    /// Reads that wait at this moment.
    pub waiting: u64,
    /// Things given back that were not there; handles whose file was closed before them; buffers whose memory was freed before them; offsets
    /// from what is no registered buffer.
    pub wrong: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        options: Options::from_environment(),
        allow_compatibility: true,
        opened: 0,
        handles: HashMap::new(),
        buffers: HashMap::new(),
        batches: HashMap::new(),
        streams: HashSet::new(),
        failures: HashMap::new(),
        short: None,
        delay: 0,
        held: false,
        counts: Counts::default(),
        next: 0,
    })
});
static CHANGED: Condvar = Condvar::new();

/// The one state.
pub fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits as long as `waits` holds.
pub fn wait_while(
    state: MutexGuard<'static, State>,
    waits: impl Fn(&State) -> bool,
) -> MutexGuard<'static, State> {
    CHANGED
        .wait_while(state, |state| waits(state))
        .unwrap_or_else(PoisonError::into_inner)
}

/// Lets those look again who wait.
pub fn changed() {
    CHANGED.notify_all();
}

impl State {
    /// Begins again: options as in the environment, nothing goes wrong, counts of what was done at zero. What is open stays.
    pub fn reset(&mut self) {
        self.options = Options::from_environment();
        self.allow_compatibility = true;
        self.failures.clear();
        self.short = None;
        self.delay = 0;
        self.held = false;
        let waiting = self.counts.waiting;
        self.counts = Counts {
            waiting,
            ..Counts::default()
        };
    }

    /// A number that nothing else has.
    pub fn handle(&mut self) -> usize {
        self.next += 0x10;
        0xf11e_0000 + self.next
    }

    /// Has a call fail after `after` that go well; a code of 0 takes it back.
    pub fn fail(&mut self, call: &str, after: u64, code: c_int) {
        if code == codes::SUCCESS {
            self.failures.remove(call);
        } else {
            self.failures.insert(call.into(), (after, code));
        }
    }

    /// The code that a call has to fail with, if it has to.
    pub fn failure(&mut self, call: &str) -> Option<c_int> {
        let (after, code) = self.failures.get_mut(call)?;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let code = *code;
        self.failures.remove(call);
        Some(code)
    }
}
