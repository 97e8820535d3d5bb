//! cuFile's library: opened at run time, its functions by name, its results as numbers.
//!
//! Layouts and values are those of `cufile.h` from 1.2 (CUDA 11.7) on. Codes stay numbers: a newer library has more of them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::io;

use crate::error::{Error, ErrorKind};

/// What runtime installs call it, then what the development package does.
pub(super) const NAMES: [&CStr; 2] = [c"libcufile.so.0", c"libcufile.so"];

/// A registered file, as cuFile knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(usize);

/// A batch that was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchId(usize);

/// A call that did not go well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// By a code of cuFile (`CUfileOpError`).
    Code { call: &'static str, code: c_int },
    /// By an errno.
    Os { call: &'static str, errno: c_int },
}

/// `CUfileError_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    code: c_int,
    _cuda: c_int,
}

/// `CUfileDescr_t`, of which only descriptors are used.
#[repr(C)]
struct Description {
    kind: c_int,
    descriptor: Descriptor,
    operations: *const c_void,
}

#[repr(C)]
union Descriptor {
    descriptor: c_int,
    _handle: *mut c_void,
}

/// `CUfileDrvProps_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Properties {
    pub(super) major: c_uint,
    pub(super) minor: c_uint,
    poll_threshold: usize,
    max_direct: usize,
    pub(super) status: c_uint,
    pub(super) control: c_uint,
    pub(super) features: c_uint,
    max_cache: c_uint,
    buffer_cache: c_uint,
    max_pinned: c_uint,
    pub(super) max_batch: c_uint,
    max_timeout: c_uint,
}

/// `CUfileIOParams_t`: one read of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    mode: c_int,
    base: u64,
    file_offset: i64,
    device_offset: i64,
    len: usize,
    handle: Handle,
    operation: c_int,
    cookie: usize,
}

/// `CUfileIOEvents_t`: how one read of a batch ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event {
    pub(super) cookie: usize,
    status: c_int,
    result: isize,
}

/// Where bytes go: an address, as an offset from the start of a registered buffer if it is in one. For others, cuFile's reference wants no
/// offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct To {
    base: u64,
    offset: u64,
    registered: bool,
}

impl To {
    /// An address in memory that is not registered.
    pub(super) fn address(address: u64) -> Self {
        To {
            base: address,
            offset: 0,
            registered: false,
        }
    }

    /// So many bytes behind the start of a registered buffer.
    pub(super) fn in_buffer(base: u64, offset: u64) -> Self {
        To {
            base,
            offset,
            registered: true,
        }
    }

    /// So many bytes further.
    pub(super) fn behind(self, bytes: u64) -> Self {
        match self.registered {
            true => To::in_buffer(self.base, self.offset + bytes),
            false => To::address(self.base + bytes),
        }
    }
}

type Open = unsafe extern "C" fn() -> Status;
type UseCount = unsafe extern "C" fn() -> c_long;
type SetBool = unsafe extern "C" fn(c_uint, bool) -> Status;
type GetBool = unsafe extern "C" fn(c_uint, *mut bool) -> Status;
type GetProperties = unsafe extern "C" fn(*mut Properties) -> Status;
type HandleRegister = unsafe extern "C" fn(*mut usize, *mut Description) -> Status;
type HandleDeregister = unsafe extern "C" fn(usize);
type BufferRegister = unsafe extern "C" fn(u64, usize, c_int) -> Status;
type BufferDeregister = unsafe extern "C" fn(u64) -> Status;
type ReadFile = unsafe extern "C" fn(usize, u64, usize, i64, i64) -> isize;
type SetUp = unsafe extern "C" fn(*mut usize, c_uint) -> Status;
type Submit = unsafe extern "C" fn(usize, c_uint, *mut Entry, c_uint) -> Status;
type GetStatus =
    unsafe extern "C" fn(usize, c_uint, *mut c_uint, *mut Event, *mut libc::timespec) -> Status;
type Cancel = unsafe extern "C" fn(usize) -> Status;
type Destroy = unsafe extern "C" fn(usize);

/// The functions that are used here. The library stays open: there is no good time to close it.
pub(super) struct Library {
    open: Open,
    close: Open,
    properties: GetProperties,
    handle_register: HandleRegister,
    handle_deregister: HandleDeregister,
    buffer_register: BufferRegister,
    buffer_deregister: BufferDeregister,
    read: ReadFile,
    use_count: Option<UseCount>,
    parameters: Option<(GetBool, SetBool)>,
    batch: Option<BatchFunctions>,
}

struct BatchFunctions {
    set_up: SetUp,
    submit: Submit,
    status: GetStatus,
    cancel: Cancel,
    destroy: Destroy,
}

/// The setting `allow_compat_mode`, as cuFile numbers it.
const ALLOW_COMPATIBILITY: c_uint = 1;

impl Library {
    /// Opens the first of these libraries that there is.
    ///
    /// # Errors
    /// What the loader said of the first, or the function that is missing.
    pub(super) fn open(names: &[&CStr]) -> Result<Self, String> {
        let mut refused = None;
        for name in names {
            // SAFETY: a text with a zero byte at its end. Whoever installed a library of this name wants it loaded.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                let missing = |function| format!("{} lacks {function}", name.to_string_lossy());
                // SAFETY: a handle of `dlopen`, of a library that has these functions as `cufile.h` declares them.
                return unsafe { Library::find(handle) }.map_err(missing);
            }
            refused = refused.or_else(loader_error);
        }
        Err(refused.unwrap_or_else(|| "there is no such library".into()))
    }

    /// # Safety
    /// `library` is a handle of `dlopen`; where it has functions of these names, they have the types of `cufile.h`.
    unsafe fn find(library: *mut c_void) -> Result<Self, &'static str> {
        macro_rules! function {
            ($name:literal as $ty:ty) => {{
                // SAFETY: as the caller promises.
                let address = unsafe { libc::dlsym(library, concat!($name, "\0").as_ptr().cast()) };
                let none = address.is_null();
                // SAFETY: as the caller promises; not null.
                (!none).then(|| unsafe { std::mem::transmute::<*mut c_void, $ty>(address) })
            }};
        }
        macro_rules! needed {
            ($name:literal as $ty:ty) => {
                function!($name as $ty).ok_or($name)?
            };
        }
        let close = function!("cuFileDriverClose_v2" as Open);
        let (get, set) = (
            function!("cuFileGetParameterBool" as GetBool),
            function!("cuFileSetParameterBool" as SetBool),
        );
        let batch = || {
            Some(BatchFunctions {
                set_up: function!("cuFileBatchIOSetUp" as SetUp)?,
                submit: function!("cuFileBatchIOSubmit" as Submit)?,
                status: function!("cuFileBatchIOGetStatus" as GetStatus)?,
                cancel: function!("cuFileBatchIOCancel" as Cancel)?,
                destroy: function!("cuFileBatchIODestroy" as Destroy)?,
            })
        };
        Ok(Library {
            open: needed!("cuFileDriverOpen" as Open),
            close: match close {
                Some(close) => close,
                None => needed!("cuFileDriverClose" as Open),
            },
            properties: needed!("cuFileDriverGetProperties" as GetProperties),
            handle_register: needed!("cuFileHandleRegister" as HandleRegister),
            handle_deregister: needed!("cuFileHandleDeregister" as HandleDeregister),
            buffer_register: needed!("cuFileBufRegister" as BufferRegister),
            buffer_deregister: needed!("cuFileBufDeregister" as BufferDeregister),
            read: needed!("cuFileRead" as ReadFile),
            use_count: function!("cuFileUseCount" as UseCount),
            parameters: get.zip(set),
            batch: batch(),
        })
    }

    /// How often the driver is open in this process. `None`: the library does not tell.
    pub(super) fn use_count(&self) -> Option<i64> {
        // SAFETY: it needs nothing.
        self.use_count.map(|function| unsafe { function() })
    }

    /// Whether cuFile may read through the host's memory. `None`: the library does not tell.
    pub(super) fn allows_compatibility(&self) -> Option<bool> {
        let (get, _) = self.parameters?;
        let mut allowed = true;
        // SAFETY: a place for the answer.
        let status = unsafe { get(ALLOW_COMPATIBILITY, &mut allowed) };
        (status.code == 0).then_some(allowed)
    }

    /// Sets that; true if it is set. Only before the driver is open.
    pub(super) fn allow_compatibility(&self, allowed: bool) -> bool {
        // SAFETY: it needs nothing.
        self.parameters
            .is_some_and(|(_, set)| unsafe { set(ALLOW_COMPATIBILITY, allowed) }.code == 0)
    }

    pub(super) fn driver_open(&self) -> Result<(), Failure> {
        // SAFETY: it needs nothing.
        check("cuFileDriverOpen", unsafe { (self.open)() })
    }

    pub(super) fn driver_close(&self) -> Result<(), Failure> {
        // SAFETY: it needs nothing; what is registered is so no longer.
        check("cuFileDriverClose", unsafe { (self.close)() })
    }

    pub(super) fn driver_properties(&self) -> Result<Properties, Failure> {
        // A library of another release may write more than is declared here.
        #[repr(C)]
        struct Room(Properties, [u64; 32]);
        let mut room = Room(Properties::default(), [0; 32]);
        // SAFETY: a place for the properties.
        let status = unsafe { (self.properties)(&raw mut room.0) };
        check("cuFileDriverGetProperties", status)?;
        Ok(room.0)
    }

    /// Registers an open file, which has to stay open until it is deregistered.
    pub(super) fn register(&self, descriptor: c_int) -> Result<Handle, Failure> {
        const DESCRIPTOR: c_int = 1;
        let mut description = Description {
            kind: DESCRIPTOR,
            descriptor: Descriptor { descriptor },
            operations: std::ptr::null(),
        };
        let mut handle = 0;
        // SAFETY: a description, of which cuFile makes a copy, and a place for the handle.
        let status = unsafe { (self.handle_register)(&mut handle, &mut description) };
        check("cuFileHandleRegister", status)?;
        Ok(Handle(handle))
    }

    /// # Safety
    /// The handle is registered, and no read of it is under way.
    pub(super) unsafe fn deregister(&self, handle: Handle) {
        // SAFETY: as the caller promises.
        unsafe { (self.handle_deregister)(handle.0) };
    }

    /// # Safety
    /// The bytes are memory of the device whose context is current, which stays until they are deregistered.
    pub(super) unsafe fn register_buffer(&self, address: u64, len: usize) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        let status = unsafe { (self.buffer_register)(address, len, 0) };
        check("cuFileBufRegister", status)
    }

    /// # Safety
    /// The buffer is registered, and no read into it is under way.
    pub(super) unsafe fn deregister_buffer(&self, address: u64) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        let status = unsafe { (self.buffer_deregister)(address) };
        check("cuFileBufDeregister", status)
    }

    /// Reads up to `len` bytes from `offset` of the file. May be short; 0 at its end.
    ///
    /// # Safety
    /// The handle is registered. `len` bytes from `to` on are memory of the device whose context is current on this thread, and nobody
    /// else uses them until the call returns.
    pub(super) unsafe fn read(
        &self,
        handle: Handle,
        to: To,
        len: usize,
        offset: i64,
    ) -> Result<usize, Failure> {
        const CALL: &str = "cuFileRead";
        let device_offset = to.offset.cast_signed();
        // SAFETY: as the caller promises.
        let got = unsafe { (self.read)(handle.0, to.base, len, offset, device_offset) };
        if got == -1 {
            let errno = io::Error::last_os_error().raw_os_error();
            return Err(Failure::Os {
                call: CALL,
                errno: errno.unwrap_or(libc::EIO),
            });
        }
        result(CALL, got, len)
    }

    /// Whether there are batches.
    pub(super) fn has_batches(&self) -> bool {
        self.batch.is_some()
    }

    /// Prepares batches of up to `most` reads.
    pub(super) fn batch_set_up(&self, most: usize) -> Result<BatchId, Failure> {
        const CALL: &str = "cuFileBatchIOSetUp";
        let most = c_uint::try_from(most).unwrap_or(c_uint::MAX);
        let mut id = 0;
        // SAFETY: a place for the batch.
        let status = unsafe { (self.batch(CALL)?.set_up)(&mut id, most) };
        check(CALL, status)?;
        Ok(BatchId(id))
    }

    /// # Safety
    /// The batch is set up for as many reads and has none under way. For each entry holds what [`read`](Self::read) asks for, until
    /// an event has told of it.
    pub(super) unsafe fn batch_submit(
        &self,
        batch: BatchId,
        entries: &mut [Entry],
    ) -> Result<(), Failure> {
        const CALL: &str = "cuFileBatchIOSubmit";
        let count = c_uint::try_from(entries.len()).unwrap_or(0);
        // SAFETY: as the caller promises; as many entries as it says.
        let status = unsafe { (self.batch(CALL)?.submit)(batch.0, count, entries.as_mut_ptr(), 0) };
        check(CALL, status)
    }

    /// How many reads have ended and are now told of in `events`: at least one, unless it takes longer than `patience`.
    pub(super) fn batch_events(
        &self,
        batch: BatchId,
        events: &mut [Event],
        patience: std::time::Duration,
    ) -> Result<usize, Failure> {
        const CALL: &str = "cuFileBatchIOGetStatus";
        let mut count = c_uint::try_from(events.len()).unwrap_or(c_uint::MAX);
        let mut patience = libc::timespec {
            tv_sec: patience.as_secs().cast_signed(),
            tv_nsec: patience.subsec_nanos().into(),
        };
        // SAFETY: as much room for events as it says.
        let status = unsafe {
            (self.batch(CALL)?.status)(batch.0, 1, &mut count, events.as_mut_ptr(), &mut patience)
        };
        check(CALL, status)?;
        Ok((count as usize).min(events.len()))
    }

    /// Gives up what has not begun; there is an event for it all the same.
    pub(super) fn batch_cancel(&self, batch: BatchId) -> Result<(), Failure> {
        const CALL: &str = "cuFileBatchIOCancel";
        // SAFETY: the batch is set up.
        check(CALL, unsafe { (self.batch(CALL)?.cancel)(batch.0) })
    }

    /// # Safety
    /// The batch is set up, and not used any more.
    pub(super) unsafe fn batch_destroy(&self, batch: BatchId) {
        if let Some(functions) = &self.batch {
            // SAFETY: as the caller promises.
            unsafe { (functions.destroy)(batch.0) };
        }
    }

    fn batch(&self, call: &'static str) -> Result<&BatchFunctions, Failure> {
        let code = codes::PLATFORM_NOT_SUPPORTED;
        self.batch.as_ref().ok_or(Failure::Code { call, code })
    }
}

impl Entry {
    /// A read of `len` bytes from `offset` on; `cookie` names it in its event.
    pub(super) fn new(handle: Handle, to: To, len: usize, offset: i64, cookie: usize) -> Self {
        const BATCH: c_int = 1;
        const READ: c_int = 0;
        Entry {
            mode: BATCH,
            base: to.base,
            file_offset: offset,
            device_offset: to.offset.cast_signed(),
            len,
            handle,
            operation: READ,
            cookie,
        }
    }

    /// Bytes asked for.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Event {
    /// How many bytes of `len` came.
    pub(super) fn outcome(&self, len: usize) -> Result<usize, Failure> {
        const COMPLETE: c_int = 16;
        const CALL: &str = "cuFileBatchIOGetStatus";
        if self.status == COMPLETE {
            return result(CALL, self.result, len);
        }
        // What failed says why by a negative number; what was given up says nothing.
        match result(CALL, self.result, len) {
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::Code {
                call: CALL,
                code: codes::BATCH_ENTRY + self.status,
            }),
        }
    }
}

/// A number of bytes; or a negated errno or code.
fn result(call: &'static str, got: isize, len: usize) -> Result<usize, Failure> {
    match usize::try_from(got) {
        Ok(got) if got <= len => Ok(got),
        // More than was asked for: nothing that it says can be trusted.
        Ok(_) => Err(Failure::Code {
            call,
            code: codes::INTERNAL_ERROR,
        }),
        Err(_) => {
            let number = c_int::try_from(got.unsigned_abs()).unwrap_or(codes::INTERNAL_ERROR);
            Err(match number {
                errno if errno < codes::FIRST => Failure::Os { call, errno },
                code => Failure::Code { call, code },
            })
        }
    }
}

fn check(call: &'static str, status: Status) -> Result<(), Failure> {
    match status.code {
        0 => Ok(()),
        code => Err(Failure::Code { call, code }),
    }
}

/// Values of `CUfileOpError`.
pub(super) mod codes {
    use std::ffi::c_int;

    pub(crate) const FIRST: c_int = 5000;
    pub(crate) const PLATFORM_NOT_SUPPORTED: c_int = 5007;
    pub(crate) const DRIVER_ALREADY_OPEN: c_int = 5026;
    pub(crate) const INTERNAL_ERROR: c_int = 5030;
    /// Not one of cuFile's: what is above it is the status of a read in a batch (`CUfileStatus_t`).
    pub(super) const BATCH_ENTRY: c_int = 1 << 16;
}

/// What cuFile calls a code.
fn name_of(code: c_int) -> &'static str {
    const NAMES: &[(c_int, &str)] = &[
        (5001, "driver not initialized"),
        (5002, "invalid driver properties"),
        (5003, "unsupported limit"),
        (5004, "driver version mismatch"),
        (5005, "driver version cannot be read"),
        (5006, "driver closing"),
        (5007, "not supported on this platform"),
        (5008, "not supported for this file"),
        (5009, "device not supported"),
        (5010, "nvidia-fs driver error"),
        (5011, "CUDA driver error"),
        (5012, "invalid device pointer"),
        (5013, "invalid memory type"),
        (5014, "pointer past its allocation"),
        (5015, "context mismatch"),
        (5016, "access beyond the largest pinned size"),
        (5017, "access beyond the mapped size"),
        (5018, "unsupported file type"),
        (5019, "unsupported open flags"),
        (5020, "O_DIRECT not set"),
        (5022, "invalid value"),
        (5023, "memory already registered"),
        (5024, "memory not registered"),
        (5025, "permission denied"),
        (5026, "driver already open"),
        (5027, "handle not registered"),
        (5028, "handle already registered"),
        (5029, "device not found"),
        (5030, "internal error"),
        (5031, "no new descriptor"),
        (5033, "driver cannot be set up"),
        (5034, "disabled by configuration"),
        (5035, "batch cannot be submitted"),
        (5036, "memory cannot be pinned"),
        (5037, "batch is full"),
        (5038, "asynchronous reads not supported"),
    ];
    let found = NAMES.iter().find(|(known, _)| *known == code);
    match found {
        Some((_, name)) => name,
        None if code > codes::BATCH_ENTRY => "a read of the batch was not done",
        None => "an error that is not known here",
    }
}

impl Failure {
    /// Whether the system failed the read, so that another way to the same bytes would fail as well.
    pub(super) fn is_of_the_system(self) -> bool {
        matches!(self, Failure::Os { errno, .. } if errno != libc::EAGAIN)
    }

    /// Whether a signal came between.
    pub(super) fn is_interrupted(self) -> bool {
        matches!(self, Failure::Os { errno, .. } if errno == libc::EINTR)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Os { call, errno } => Error::io(call, io::Error::from_raw_os_error(errno)),
            Failure::Code { call, code } => Error::new(ErrorKind::Cuda {
                call,
                code: code.unsigned_abs(),
                name: name_of(code).into(),
                log: None,
            }),
        };
        error.by(super::ENGINE)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Code { call, code } => write!(f, "{call} failed: {} ({code})", name_of(*code)),
            Failure::Os { call, errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(f, "{call} failed: {error}")
            }
        }
    }
}

/// What the loader said last.
fn loader_error() -> Option<String> {
    // SAFETY: it gives a text of this thread's, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a text with a zero byte at its end.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_or_is_another_one_says_so() {
        let missing = Library::open(&[c"libfeedwater-of-no-such-name.so", c"libneither.so"]);
        let why = missing.err().unwrap();
        assert!(why.contains("libfeedwater-of-no-such-name.so"), "{why}");
        // The second one is there, and is not it.
        let another = Library::open(&[c"libfeedwater-of-no-such-name.so", c"libc.so.6"]);
        assert_eq!(another.err().unwrap(), "libc.so.6 lacks cuFileDriverOpen");
        assert_eq!(
            Library::open(&[]).err().unwrap(),
            "there is no such library"
        );
    }

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<Properties>(), 56);
        assert_eq!(std::mem::offset_of!(Properties, max_batch), 48);
        assert_eq!(
            (size_of::<Entry>(), std::mem::offset_of!(Entry, handle)),
            (64, 40)
        );
        assert_eq!(
            (size_of::<Event>(), std::mem::offset_of!(Event, result)),
            (24, 16)
        );
        assert_eq!((size_of::<Description>(), size_of::<Status>()), (24, 8));
    }

    #[test]
    fn results_and_events() {
        assert_eq!(result("x", 7, 8), Ok(7));
        let code = |code| Err(Failure::Code { call: "x", code });
        assert_eq!(result("x", 9, 8), code(5030));
        assert_eq!(result("x", -5011, 8), code(5011));
        assert_eq!(
            result("x", -5, 8),
            Err(Failure::Os {
                call: "x",
                errno: 5
            })
        );
        assert_eq!(result("x", isize::MIN, 8), code(5030));
        let event = |status, result| Event {
            cookie: 0,
            status,
            result,
        };
        assert_eq!(event(16, 3).outcome(8), Ok(3));
        let text = |event: Event| event.outcome(8).unwrap_err().to_string();
        assert_eq!(
            text(event(64, -5011)),
            "cuFileBatchIOGetStatus failed: CUDA driver error (5011)"
        );
        assert!(text(event(64, -5)).contains("os error 5"));
        // Given up, timed out, and a status that a newer release has.
        for status in [8, 32, 128, 0] {
            assert!(
                matches!(event(status, 0).outcome(8), Err(Failure::Code { .. })),
                "{status}"
            );
        }
        let error = Error::from(Failure::Code {
            call: "x",
            code: 5999,
        });
        assert!(
            error.to_string().contains("not known here (5999)"),
            "{error}"
        );
    }
}
