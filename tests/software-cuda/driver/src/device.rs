//! What all functions of the driver share: the state of the device, errors that stay, errors that tests ask for, and counts.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use software_cuda_ptx::Finding;

use crate::codes::{Code, Outcome};
use crate::kernels::{Loaded, LoadedFunction};
use crate::memory::DeviceMemory;
use crate::options::Options;
use crate::stream::Streams;

/// The handle of the first device's context; those of the others follow.
pub const FIRST_CONTEXT: usize = 0x5c00_0000;
const CONTEXT_STEP: usize = 0x100;

thread_local! {
    /// The context of this thread, as the driver keeps it.
    pub static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// What the launches of a kernel did. The layout is shared with the preload crate.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// How many there were.
    pub launches: u64,
    /// Instructions of warps.
    pub steps: u64,
    /// Bytes of global memory loaded, if they are counted: see `Report::by_blocks`.
    pub loaded: u64,
    /// Bytes of global memory stored.
    pub stored: u64,
    /// The same as of `Report::by_launch`.
    pub distinct_loaded: u64,
    /// And stored.
    pub distinct_stored: u64,
}

/// Which calls an injected error counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// All that can fail.
    Calls,
    /// Those that take memory.
    Allocations,
}

/// An error that comes at a call.
#[derive(Clone, Copy, Debug)]
struct Injected {
    counted: Counted,
    /// Calls that still go well.
    after: u64,
    /// Calls after those that fail.
    times: u64,
    code: Code,
}

/// Things that programs did wrong without being told by an error alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Calls that can fail.
    pub calls: u64,
    /// Calls that take memory.
    pub allocations: u64,
    /// Memory, streams, events or modules freed twice.
    pub double_frees: u64,
    /// Free of something that never was.
    pub wrong_frees: u64,
    /// Kernels that ran.
    pub launches: u64,
    /// Calls that wait for what is queued: of streams, events, contexts, and copies to memory that is not page-locked.
    pub waits: u64,
    /// Copies from the host that were queued.
    pub uploads: u64,
    /// The most streams that had kernels queued at one time.
    pub streams_at_once: u64,
    /// Times that a primary context was released more often than retained.
    pub wrong_releases: u64,
}

/// The device.
pub struct Device {
    /// How it behaves.
    pub options: Options,
    /// Whether `cuInit` was called.
    pub initialised: bool,
    /// An error that all calls give from now on.
    pub broken: Option<Code>,
    injected: Option<Injected>,
    /// What was counted.
    pub counts: Counts,
    /// How often each device's primary context is retained.
    pub retained: HashMap<i32, u64>,
    /// Memory of all kinds.
    pub memory: DeviceMemory,
    /// Streams, events and what is queued.
    pub streams: Streams,
    /// Modules by handle.
    pub modules: HashMap<usize, Loaded>,
    /// Functions by handle.
    pub functions: HashMap<usize, LoadedFunction>,
    /// Registers of kernels, where a test says how many they have.
    pub registers: HashMap<String, u32>,
    /// Streams in which kernels were queued.
    pub kernel_streams: HashSet<usize>,
    /// What each kernel did, by its name.
    pub works: HashMap<String, Work>,
    /// What was wrong with kernels.
    pub findings: Vec<Finding>,
    next_handle: usize,
    /// Handles that are gone, to tell a second free from a wrong one.
    gone: HashSet<usize>,
}

impl Device {
    fn new(options: Options) -> Self {
        Self {
            options,
            initialised: false,
            broken: None,
            injected: None,
            counts: Counts::default(),
            retained: HashMap::new(),
            memory: DeviceMemory::default(),
            streams: Streams::default(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            registers: HashMap::new(),
            kernel_streams: HashSet::new(),
            works: HashMap::new(),
            findings: Vec::new(),
            next_handle: 0x1000,
            gone: HashSet::new(),
        }
    }

    /// Begins again, with what is alive now left alone but not counted wrong: options of the environment, not
    /// initialised, no injected or lasting error, no findings, counts at zero.
    pub fn reset(&mut self) {
        self.options = Options::from_environment();
        self.initialised = false;
        self.broken = None;
        self.injected = None;
        self.counts = Counts::default();
        self.findings.clear();
        self.registers.clear();
        self.kernel_streams.clear();
        self.works.clear();
    }

    /// `times` calls give this error, from the `after`-th from now (0 is the next one) on.
    pub fn inject(&mut self, counted: Counted, after: u64, times: u64, code: Code) {
        self.injected = (code != Code::SUCCESS && times > 0).then_some(Injected {
            counted,
            after,
            times,
            code,
        });
    }

    /// Counts a call, and fails if it should.
    pub fn count(&mut self, counted: Counted) -> Outcome {
        self.counts.calls += 1;
        self.counts.allocations += u64::from(counted == Counted::Allocations);
        let Some(injected) = &mut self.injected else {
            return Ok(());
        };
        if injected.counted == Counted::Allocations && counted != Counted::Allocations {
            return Ok(());
        }
        if injected.after > 0 {
            injected.after -= 1;
            return Ok(());
        }
        let code = injected.code;
        injected.times -= 1;
        if injected.times == 0 {
            self.injected = None;
        }
        Err(code)
    }

    /// A number that no other thing has.
    pub fn handle(&mut self) -> usize {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// Says that a handle or address is gone.
    pub fn forget(&mut self, handle: usize) {
        self.gone.insert(handle);
    }

    /// Says that a handle or address is in use (again).
    pub fn remember(&mut self, handle: usize) {
        self.gone.remove(&handle);
    }

    /// Counts the free of something that is not there, and gives the error for it.
    pub fn freed_wrong<T>(&mut self, handle: usize, code: Code) -> Outcome<T> {
        if self.gone.contains(&handle) {
            self.counts.double_frees += 1;
        } else {
            self.counts.wrong_frees += 1;
        }
        Err(code)
    }

    /// The error that stays, if there is one.
    pub fn check(&self) -> Outcome {
        self.broken.map_or(Ok(()), Err)
    }
}

/// The one device, for as long as the guard lives.
pub fn device() -> MutexGuard<'static, Device> {
    static DEVICE: OnceLock<Mutex<Device>> = OnceLock::new();
    // A panic elsewhere is a fault of the device itself; tests should still see what there is.
    DEVICE
        .get_or_init(|| Mutex::new(Device::new(Options::from_environment())))
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The context of a device.
pub fn context_of(ordinal: i32) -> usize {
    FIRST_CONTEXT + ordinal as usize * CONTEXT_STEP
}

/// The device of a context.
pub fn device_of(context: usize) -> Option<i32> {
    let offset = context.checked_sub(FIRST_CONTEXT)?;
    (offset % CONTEXT_STEP == 0 && offset / CONTEXT_STEP < 16)
        .then_some((offset / CONTEXT_STEP) as i32)
}
