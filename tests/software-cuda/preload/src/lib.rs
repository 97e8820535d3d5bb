//! Turns the software CUDA device on for a test binary, and is how a test sets its modes and reads its counts.
//!
//! ```no_run
//! use software_cuda_preload::{Device, Session};
//!
//! // Before the first CUDA call of the process. Tests of one binary take turns.
//! let mut session = Session::begin();
//! session.set("STREAMS", "lazy");
//! session.fail_allocation(3);
//! // … the code to be tested …
//! if session.device() == Device::Software {
//!     assert_eq!(session.counts().leaks(), None);
//! }
//! ```
//!
//! With `FEEDWATER_REAL_GPU=1` nothing is loaded: the same tests run on the driver of the machine, modes and injected errors are left
//! out, and [`Session::device`] says so.
//!
//! [`cufile`] turns cuFile on as well, for tests of it.
//!
//! The library is that of `SOFTWARE_CUDA_LIBRARY`, or else the one that cargo builds from `../driver` (once per process; cargo
//! sees whether it is up to date). Once loaded, it is what the process gets for `libcuda.so.1`.

pub mod cufile;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What runs the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The software device.
    Software,
    /// Whatever the machine has.
    Real,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i32 = 2;

/// What the device has counted. Fields as in the driver's `control::Totals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub device_bytes: u64,
    pub device_allocations: u64,
    pub managed_allocations: u64,
    pub pinned_allocations: u64,
    pub registrations: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    pub contexts: u64,
    pub calls: u64,
    pub allocations: u64,
    pub launches: u64,
    pub waits: u64,
    pub uploads: u64,
    pub kernel_streams: u64,
    pub streams_at_once: u64,
    pub double_frees: u64,
    pub wrong_frees: u64,
    pub wrong_releases: u64,
    pub findings: u64,
}

impl Counts {
    /// What is still in use, or was given back wrongly; nothing if all is well.
    pub fn leaks(&self) -> Option<Self> {
        let Self {
            calls,
            allocations,
            launches,
            waits,
            uploads,
            kernel_streams,
            streams_at_once,
            ..
        } = *self;
        let fine = Self {
            calls,
            allocations,
            launches,
            waits,
            uploads,
            kernel_streams,
            streams_at_once,
            findings: self.findings,
            ..Self::default()
        };
        (*self != fine).then_some(*self)
    }
}

/// What the launches of a kernel did. Fields as in the driver's `device::Work`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How many there were.
    pub launches: u64,
    /// Instructions of warps.
    pub steps: u64,
    /// Bytes of global memory loaded, with `TRAFFIC` `on`: sectors of 32 bytes, each once for a block.
    pub loaded: u64,
    /// The same of stores and atomics.
    pub stored: u64,
    /// Bytes loaded when each sector counts once for a launch.
    pub distinct_loaded: u64,
    /// The same of stores and atomics.
    pub distinct_stored: u64,
}

struct Library {
    reset: extern "C" fn(),
    set: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
    inject: extern "C" fn(c_int, u64, u64, c_int),
    registers: unsafe extern "C" fn(*const c_char, u32),
    counts: unsafe extern "C" fn(*mut Counts),
    finding: unsafe extern "C" fn(u64, *mut u8, usize) -> usize,
    work: unsafe extern "C" fn(*const c_char, *mut Work),
}

/// The device for one test at a time: modes, injected errors and counts are those of the process.
pub struct Session {
    library: Option<&'static Library>,
    _turn: MutexGuard<'static, ()>,
}

/// Turns the device on, without a session.
///
/// # Panics
/// If the library cannot be built or loaded, or if another driver is in its place: tests would run on something else than they say.
pub fn enable() -> Device {
    if library().is_some() {
        Device::Software
    } else {
        Device::Real
    }
}

impl Session {
    /// Waits for its turn, turns the device on, and sets all modes back.
    ///
    /// # Panics
    /// As [`enable`].
    pub fn begin() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        // A test that failed has no say in the next one.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let session = Self {
            library: library(),
            _turn: turn,
        };
        if let Some(library) = session.library {
            (library.reset)();
        }
        session
    }

    /// What runs the tests.
    pub fn device(&self) -> Device {
        if self.library.is_some() {
            Device::Software
        } else {
            Device::Real
        }
    }

    /// Sets a mode by the name of its variable without `SOFTWARE_CUDA_`.
    ///
    /// # Panics
    /// If the name or the value is not known.
    pub fn set(&mut self, name: &str, value: &str) {
        let Some(library) = self.library else { return };
        let (c_name, c_value) = (c_string(name), c_string(value));
        // SAFETY: both are texts with a zero byte at their end.
        let outcome = unsafe { (library.set)(c_name.as_ptr(), c_value.as_ptr()) };
        assert_eq!(outcome, 0, "SOFTWARE_CUDA_{name}={value} is not known");
    }

    /// Says how many registers a kernel has, as `ptxas` counts them: too many for a block then fail its launch.
    pub fn registers(&mut self, kernel: &str, registers: u32) {
        if let Some(library) = self.library {
            let name = c_string(kernel);
            // SAFETY: a text with a zero byte at its end.
            unsafe { (library.registers)(name.as_ptr(), registers) };
        }
    }

    /// The call after `after` more (0: the next one) gives the error `code`.
    pub fn fail_call(&mut self, after: u64, code: i32) {
        self.fail_calls(after, 1, code);
    }

    /// `times` calls after `after` more (0: from the next one on) give the error `code`.
    pub fn fail_calls(&mut self, after: u64, times: u64, code: i32) {
        if let Some(library) = self.library {
            (library.inject)(0, after, times, code);
        }
    }

    /// The call that takes memory after `after` more (0: the next one) finds none.
    pub fn fail_allocation(&mut self, after: u64) {
        if let Some(library) = self.library {
            (library.inject)(1, after, 1, OUT_OF_MEMORY);
        }
    }

    /// Takes an injected error back that has not come.
    pub fn fail_nothing(&mut self) {
        self.fail_call(0, 0);
    }

    /// What is counted; zeros on a real device.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        if let Some(library) = self.library {
            // SAFETY: a place for the counts, whose layout the driver shares.
            unsafe { (library.counts)(&mut counts) };
        }
        counts
    }

    /// What the launches of a kernel did in this session; zeros on a real device.
    pub fn work(&self, kernel: &str) -> Work {
        let mut work = Work::default();
        if let Some(library) = self.library {
            let name = c_string(kernel);
            // SAFETY: a text with a zero byte at its end, and a place whose layout the driver shares.
            unsafe { (library.work)(name.as_ptr(), &mut work) };
        }
        work
    }

    /// What was wrong with kernels, as text.
    pub fn findings(&self) -> Vec<String> {
        let Some(library) = self.library else {
            return Vec::new();
        };
        let finding = |index| {
            let mut buffer = vec![0; 2048];
            // SAFETY: the buffer is as long as it says.
            let len = unsafe { (library.finding)(index, buffer.as_mut_ptr(), buffer.len()) };
            (len > 0)
                .then(|| String::from_utf8_lossy(&buffer[..len.min(buffer.len())]).into_owned())
        };
        (0..).map_while(finding).collect()
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The library, loaded once; nothing on a real device.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            if std::env::var("FEEDWATER_REAL_GPU").is_ok_and(|value| value == "1") {
                return None;
            }
            Some(load(&built(
                "software-cuda-driver",
                "SOFTWARE_CUDA_LIBRARY",
                "libsoftware_cuda.so",
            )))
        })
        .as_ref()
}

/// Where a library of this workspace is: where the variable says, or built from its package.
fn built(package: &str, variable: &str, file: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    let library = root.join("target/debug").join(file);
    if !library.exists() {
        eprintln!("building {package}, once: about half a minute");
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", package, "--manifest-path"])
        .arg(root.join("Cargo.toml"));
    command.arg("--target-dir").arg(root.join("target"));
    // Flags for the code under test are not for the device.
    command
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let built = command.status();
    assert!(
        built.as_ref().is_ok_and(|status| status.success()),
        "{package} cannot be built: {built:?}"
    );
    library
}

fn load(path: &Path) -> Library {
    let handle = open(path, libc::RTLD_NOW | libc::RTLD_GLOBAL);
    // Programs ask for `libcuda.so` first, then for `libcuda.so.1`, which is ours now. Where the machine has the first one too, it has
    // a driver, and only the search path of `run` comes before that.
    for name in [c"libcuda.so", c"libcuda.so.1"] {
        // SAFETY: it only looks whether such a library is there; a driver runs no code of ours when it is loaded.
        let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) };
        if !found.is_null() {
            // SAFETY: the handle is one of `dlopen`, the name a text with a zero byte at its end.
            let marker = unsafe { libc::dlsym(found, c"software_cuda_counts".as_ptr()) };
            assert!(
                !marker.is_null(),
                "{name:?} is another driver: run the tests with tests/software-cuda/run, or with FEEDWATER_REAL_GPU=1"
            );
        }
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle is one of `dlopen`, the name a text with a zero byte at its end.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!address.is_null(), "{} has no {name:?}", path.display());
        address
    };
    // SAFETY: the driver declares its functions with these types; both are of one workspace.
    unsafe {
        Library {
            reset: std::mem::transmute::<*mut c_void, extern "C" fn()>(symbol(
                c"software_cuda_reset",
            )),
            set: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
            >(symbol(c"software_cuda_set")),
            inject: std::mem::transmute::<*mut c_void, extern "C" fn(c_int, u64, u64, c_int)>(
                symbol(c"software_cuda_inject"),
            ),
            registers: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, u32)>(
                symbol(c"software_cuda_registers"),
            ),
            counts: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Counts)>(symbol(
                c"software_cuda_counts",
            )),
            finding: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(u64, *mut u8, usize) -> usize,
            >(symbol(c"software_cuda_finding")),
            work: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut Work)>(
                symbol(c"software_cuda_work"),
            ),
        }
    }
}

fn open(path: &Path, flags: c_int) -> *mut c_void {
    let name = c_string(&path.to_string_lossy());
    // SAFETY: the library is ours; loading it runs nothing.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        // SAFETY: after a failed `dlopen` there is a text that says why.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) }
            .to_string_lossy()
            .into_owned();
        panic!("{}: {why}", path.display());
    }
    handle
}
