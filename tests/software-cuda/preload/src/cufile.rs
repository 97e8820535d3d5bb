//! Turns the stand-in for cuFile on, and is how a test has its calls go wrong and reads its counts.
//!
//! ```no_run
//! use software_cuda_preload::{Session, cufile::Cufile};
//!
//! let session = Session::begin();
//! let cufile = Cufile::begin(&session);
//! cufile.fail("cuFileRead", 2, 5); // the third one, with EIO
//! // … the code to be tested …
//! assert_eq!(cufile.counts().leaks(), None);
//! ```
//!
//! Without it a process has no cuFile, unless the machine has. On a real GPU nothing is loaded or changed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::{Device, Session, built, c_string, open};

/// What cuFile has counted. Fields as in its `control::Totals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub opened: u64,
    pub handles: u64,
    pub buffers: u64,
    pub batches: u64,
    pub streams: u64,
    pub reads: u64,
    pub entries: u64,
    pub submits: u64,
    pub unaligned: u64,
    pub registered: u64,
    pub registrations: u64,
    pub settings: u64,
    pub cancels: u64,
    pub closed: u64,
    pub compatibility: u64,
    pub waiting: u64,
    pub wrong: u64,
}

impl Counts {
    /// What is still registered (the driver may stay open), or was given back wrongly; nothing if all is well.
    pub fn leaks(&self) -> Option<Self> {
        let left = [
            self.handles,
            self.buffers,
            self.batches,
            self.streams,
            self.waiting,
            self.wrong,
        ];
        left.iter().any(|count| *count > 0).then_some(*self)
    }
}

/// `CUfileError_t`
#[repr(C)]
struct Status(c_int, c_int);

struct Library {
    reset: extern "C" fn(),
    set: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
    fail: unsafe extern "C" fn(*const c_char, u64, c_int),
    shorten: extern "C" fn(u64, usize),
    delay: extern "C" fn(u64),
    hold: extern "C" fn(bool),
    counts: unsafe extern "C" fn(*mut Counts),
    driver_open: extern "C" fn() -> Status,
}

/// cuFile, for one test at a time.
#[derive(Clone, Copy)]
pub struct Cufile<'a> {
    library: Option<&'static Library>,
    _turn: PhantomData<&'a Session>,
}

impl<'a> Cufile<'a> {
    /// Turns cuFile on, and sets all modes back.
    ///
    /// # Panics
    /// If the library cannot be built or loaded.
    pub fn begin(session: &'a Session) -> Self {
        let library = (session.device() == Device::Software).then(library);
        if let Some(library) = library {
            (library.reset)();
        }
        Self {
            library,
            _turn: PhantomData,
        }
    }

    /// Sets a mode by the name of its variable without `SOFTWARE_CUFILE_`.
    ///
    /// # Panics
    /// If the name or the value is not known.
    pub fn set(&self, name: &str, value: &str) {
        let Some(library) = self.library else { return };
        let (c_name, c_value) = (c_string(name), c_string(value));
        // SAFETY: both are texts with a zero byte at their end.
        let outcome = unsafe { (library.set)(c_name.as_ptr(), c_value.as_ptr()) };
        assert_eq!(outcome, 0, "SOFTWARE_CUFILE_{name}={value} is not known");
    }

    /// The call of that name after `after` more (0: the next one) fails with `code`, one of cuFile or an errno; 0 takes it back. Reads in
    /// batches are called `entry`.
    pub fn fail(&self, call: &str, after: u64, code: i32) {
        if let Some(library) = self.library {
            let call = c_string(call);
            // SAFETY: a text with a zero byte at its end.
            unsafe { (library.fail)(call.as_ptr(), after, code) };
        }
    }

    /// The read after `after` more gives at most `len` bytes.
    pub fn shorten(&self, after: u64, len: usize) {
        if let Some(library) = self.library {
            (library.shorten)(after, len);
        }
    }

    /// So many calls for the events of a batch find none.
    pub fn delay(&self, calls: u64) {
        if let Some(library) = self.library {
            (library.delay)(calls);
        }
    }

    /// Whether reads wait, until they no longer have to.
    pub fn hold(&self, held: bool) {
        if let Some(library) = self.library {
            (library.hold)(held);
        }
    }

    /// Opens cuFile's driver once more, as another part of the program might.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn open_driver(&self) {
        if let Some(library) = self.library {
            assert_eq!((library.driver_open)().0, 0);
        }
    }

    /// Whether cuFile may read through the host's memory.
    pub fn allows_compatibility(&self) -> bool {
        self.counts().compatibility > 0
    }

    /// What is counted; zeros on a real device.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        if let Some(library) = self.library {
            // SAFETY: a place for the counts, whose layout the library shares.
            unsafe { (library.counts)(&mut counts) };
        }
        counts
    }
}

/// The library, loaded once.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = built(
            "software-cuda-cufile",
            "SOFTWARE_CUFILE_LIBRARY",
            "libsoftware_cufile.so",
        );
        let handle = open(&path, libc::RTLD_NOW | libc::RTLD_GLOBAL);
        let symbol = |name: &CStr| {
            // SAFETY: the handle is one of `dlopen`, the name a text with a zero byte at its end.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!address.is_null(), "{} has no {name:?}", path.display());
            address
        };
        type Set = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
        type Fail = unsafe extern "C" fn(*const c_char, u64, c_int);
        // SAFETY: the library declares its functions with these types; both are of one workspace.
        unsafe {
            Library {
                reset: std::mem::transmute::<*mut c_void, extern "C" fn()>(symbol(
                    c"software_cufile_reset",
                )),
                set: std::mem::transmute::<*mut c_void, Set>(symbol(c"software_cufile_set")),
                fail: std::mem::transmute::<*mut c_void, Fail>(symbol(c"software_cufile_fail")),
                shorten: std::mem::transmute::<*mut c_void, extern "C" fn(u64, usize)>(symbol(
                    c"software_cufile_shorten",
                )),
                delay: std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(symbol(
                    c"software_cufile_delay",
                )),
                hold: std::mem::transmute::<*mut c_void, extern "C" fn(bool)>(symbol(
                    c"software_cufile_hold",
                )),
                driver_open: std::mem::transmute::<*mut c_void, extern "C" fn() -> Status>(symbol(
                    c"cuFileDriverOpen",
                )),
                counts: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Counts)>(
                    symbol(c"software_cufile_counts"),
                ),
            }
        }
    })
}
