//! cuFile as a program calls it, with the types that cudarc has for it: reads, batches, and what goes wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks
)]

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::cufile::sys;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use software_cuda_preload::Session;
use software_cuda_preload::cufile::Cufile;

/// A status whose code need not be one that cudarc knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    code: c_int,
    cuda: c_int,
}

const OK: Status = Status { code: 0, cuda: 0 };

fn code(code: c_int) -> Status {
    Status { code, cuda: 0 }
}

/// An event whose status need not be one that cudarc knows either.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Event {
    cookie: usize,
    status: c_int,
    result: isize,
}

type Handle = sys::CUfileHandle_t;

macro_rules! api {
    ($($field:ident: $name:literal as $ty:ty,)*) => {
        struct Api {
            $($field: $ty,)*
        }

        impl Api {
            /// By the name that programs ask for, once it is loaded.
            fn load() -> Self {
                let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
                let library = unsafe { libc::dlopen(c"libcufile.so.0".as_ptr(), flags) };
                assert!(!library.is_null());
                let symbol = |name: &CStr| {
                    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                    assert!(!address.is_null(), "{name:?}");
                    address
                };
                Api {
                    $($field: unsafe { std::mem::transmute::<*mut c_void, $ty>(symbol($name)) },)*
                }
            }
        }
    };
}

type Batch = sys::CUfileBatchHandle_t;
type ReadAsync =
    extern "C" fn(Handle, u64, &mut usize, &mut i64, &mut i64, &mut isize, *mut c_void) -> Status;
type Events = extern "C" fn(Batch, c_uint, &mut c_uint, *mut Event, *mut c_void) -> Status;

api! {
    open: c"cuFileDriverOpen" as extern "C" fn() -> Status,
    close: c"cuFileDriverClose_v2" as extern "C" fn() -> Status,
    use_count: c"cuFileUseCount" as extern "C" fn() -> c_long,
    set_bool: c"cuFileSetParameterBool" as extern "C" fn(c_uint, bool) -> Status,
    get_bool: c"cuFileGetParameterBool" as extern "C" fn(c_uint, &mut bool) -> Status,
    properties: c"cuFileDriverGetProperties" as extern "C" fn(*mut sys::CUfileDrvProps_t) -> Status,
    register: c"cuFileHandleRegister" as extern "C" fn(*mut Handle, *mut sys::CUfileDescr_t) -> Status,
    deregister: c"cuFileHandleDeregister" as extern "C" fn(Handle),
    register_buffer: c"cuFileBufRegister" as extern "C" fn(u64, usize, c_int) -> Status,
    deregister_buffer: c"cuFileBufDeregister" as extern "C" fn(u64) -> Status,
    read: c"cuFileRead" as extern "C" fn(Handle, u64, usize, i64, i64) -> isize,
    read_async: c"cuFileReadAsync" as ReadAsync,
    set_up: c"cuFileBatchIOSetUp" as extern "C" fn(*mut Batch, c_uint) -> Status,
    submit: c"cuFileBatchIOSubmit" as extern "C" fn(Batch, c_uint, *mut sys::CUfileIOParams_t, c_uint) -> Status,
    events: c"cuFileBatchIOGetStatus" as Events,
    cancel: c"cuFileBatchIOCancel" as extern "C" fn(Batch) -> Status,
    destroy: c"cuFileBatchIODestroy" as extern "C" fn(Batch),
}

impl Api {
    fn properties(&self) -> sys::CUfileDrvProps_t {
        let mut properties = MaybeUninit::uninit();
        assert_eq!((self.properties)(properties.as_mut_ptr()), OK);
        unsafe { properties.assume_init() }
    }
}

/// A file of bytes that differ, registered.
struct Registered<'a> {
    api: &'a Api,
    handle: Handle,
    path: PathBuf,
    _file: File,
}

const LEN: usize = 100_000;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|i| (i ^ (i >> 8)) as u8).collect()
}

impl<'a> Registered<'a> {
    fn new(api: &'a Api, flags: c_int) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        // Not in the system's folder for such files: it may be in memory, where there are no direct reads.
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("cufile-{}-{number}", std::process::id()));
        File::create(&path).unwrap().write_all(&bytes()).unwrap();
        let file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .unwrap();
        let mut handle = null_mut();
        assert_eq!(
            (api.register)(&mut handle, &mut describe(file.as_raw_fd())),
            OK
        );
        Self {
            api,
            handle,
            path,
            _file: file,
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        (self.api.deregister)(self.handle);
        std::fs::remove_file(&self.path).unwrap();
    }
}

fn describe(fd: c_int) -> sys::CUfileDescr_t {
    sys::CUfileDescr_t {
        type_: sys::CUfileFileHandleType::CU_FILE_HANDLE_TYPE_OPAQUE_FD,
        handle: sys::CUfileDescr_t__bindgen_ty_1 { fd },
        fs_ops: std::ptr::null(),
    }
}

/// A context, a stream and memory; the driver of cuFile open.
struct Setting {
    api: Api,
    stream: Arc<CudaStream>,
    memory: CudaSlice<u8>,
    at: u64,
}

impl Setting {
    fn new() -> Self {
        let api = Api::load();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // From here on, the driver gives whole pages.
        let memory = stream.alloc_zeros::<u8>(1 << 20).unwrap();
        stream.synchronize().unwrap();
        let at = memory.device_ptr(&stream).0;
        assert_eq!((api.open)(), OK);
        Self {
            api,
            stream,
            memory,
            at,
        }
    }

    fn content(&self) -> Vec<u8> {
        let mut content = self.stream.clone_dtoh(&self.memory).unwrap();
        content.truncate(LEN + 4096);
        content
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        (self.api.close)();
    }
}

fn entry(
    handle: Handle,
    to: u64,
    offset: usize,
    len: usize,
    cookie: usize,
) -> sys::CUfileIOParams_t {
    sys::CUfileIOParams_t {
        mode: sys::cufileBatchMode::CUFILE_BATCH,
        u: sys::CUfileIOParams__bindgen_ty_1 {
            batch: sys::CUfileIOParams__bindgen_ty_1__bindgen_ty_1 {
                devPtr_base: to as *mut c_void,
                file_offset: offset as _,
                devPtr_offset: 0,
                size: len,
            },
        },
        fh: handle,
        opcode: sys::CUfileOpcode::CUFILE_READ,
        cookie: cookie as *mut c_void,
    }
}

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[test]
fn reads_of_any_offset_and_length() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let api = &setting.api;
    for flags in [0, libc::O_DIRECT] {
        let file = Registered::new(api, flags);
        for (offset, len, at) in [
            (0, 4096, 0),
            (0, LEN, 0),
            (1, 5000, 3),
            (4096, 8192, 4096),
            (4095, 2, 1),
            (LEN - 1, 1, 0),
        ] {
            assert_eq!(
                (api.read)(file.handle, setting.at + at as u64, len, offset as i64, 0),
                len as isize,
                "{offset} {len}"
            );
            assert!(
                setting.content()[at..at + len] == bytes()[offset..offset + len],
                "{offset} {len}"
            );
        }
        // Past the end there is nothing.
        assert_eq!(
            (api.read)(file.handle, setting.at, 4096, LEN as i64 - 100, 0),
            100
        );
        assert_eq!((api.read)(file.handle, setting.at, 4096, LEN as i64, 0), 0);
        assert_eq!((api.read)(file.handle, setting.at, 4096, 1 << 20, 0), 0);
    }
    let counts = cufile.counts();
    assert_eq!((counts.reads, counts.unaligned, counts.opened), (18, 12, 1));
    assert_eq!(counts.leaks(), None);
}

#[test]
fn what_is_wrong_is_refused() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let api = &setting.api;
    let file = Registered::new(api, 0);
    let read = |handle, at, len| (api.read)(handle, at, len, 0, 0);
    // More than there is memory; memory of the host; a handle that is none.
    assert_eq!(read(file.handle, setting.at, (1 << 20) + 1), -5012);
    let mut host = [0u8; 8];
    assert_eq!(read(file.handle, host.as_mut_ptr() as u64, 8), -5012);
    assert_eq!(read(null_mut(), setting.at, 8), -5027);
    // No context.
    let (handle, at, function) = (file.handle as usize, setting.at, api.read);
    let elsewhere = std::thread::spawn(move || function(handle as Handle, at, 8, 0, 0));
    assert_eq!(elsewhere.join().unwrap(), -5015);
    assert_eq!(
        (api.register)(&mut null_mut(), &mut describe(-1)),
        code(5018)
    );
    assert_eq!(cufile.counts().leaks().unwrap().handles, 1);
    (api.deregister)(0x77 as Handle);
    assert_eq!(cufile.counts().wrong, 1);
}

#[test]
fn nothing_before_the_driver_is_open() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let api = &setting.api;
    assert_eq!((api.use_count)(), 1);
    assert_eq!((api.close)(), OK);
    let stdin = std::io::stdin();
    assert_eq!(
        (api.register)(&mut null_mut(), &mut describe(stdin.as_raw_fd())),
        code(5001)
    );
    assert_eq!((api.register_buffer)(setting.at, 4096, 0), code(5001));
    assert_eq!((api.close)(), code(5001));
    cufile.set("OPEN", "refused");
    assert_eq!((api.open)(), code(5001));
    cufile.set("OPEN", "works");
    assert_eq!((api.open)(), OK);
    assert_eq!((api.open)(), OK);
    assert_eq!((api.use_count)(), 2);
    assert_eq!((api.close)(), OK);
}

#[test]
fn opening_can_hang() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let api = Api::load();
    cufile.set("OPEN", "hangs");
    let (function, (tx, rx)) = (api.open, std::sync::mpsc::channel());
    let opener = std::thread::spawn(move || {
        let status = function();
        tx.send(()).unwrap();
        status
    });
    // It cannot be seen to hang for ever; but it has not returned before it is let go.
    std::thread::yield_now();
    assert!(rx.try_recv().is_err());
    assert_eq!((api.use_count)(), 0);
    cufile.set("OPEN", "works");
    assert_eq!(opener.join().unwrap(), OK);
    assert_eq!((api.close)(), OK);
}

#[test]
fn the_mode_and_its_settings() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let api = Api::load();
    let mut allowed = false;
    assert_eq!((api.get_bool)(1, &mut allowed), OK);
    assert!(allowed);
    assert_eq!((api.set_bool)(1, false), OK);
    assert_eq!((api.get_bool)(1, &mut allowed), OK);
    assert!(!allowed);
    assert_eq!((api.open)(), OK);
    let properties = api.properties();
    assert_eq!(
        (properties.nvfs.major_version, properties.nvfs.dcontrolflags),
        (2, 0)
    );
    assert_eq!((properties.max_batch_io_size, properties.fflags), (128, 2));
    assert_eq!(
        (
            properties.nvfs.max_direct_io_size,
            properties.nvfs.dstatusflags
        ),
        (16 << 10, 1 << 4)
    );
    assert_eq!((api.set_bool)(1, true), code(5026));
    assert_eq!((api.close)(), OK);

    cufile.set("MODE", "compatibility");
    assert_eq!((api.open)(), code(5001));
    assert_eq!((api.set_bool)(1, true), OK);
    assert_eq!((api.open)(), OK);
    let properties = api.properties();
    assert_eq!(
        (properties.nvfs.major_version, properties.nvfs.dcontrolflags),
        (0, 2)
    );
    assert_eq!((api.close)(), OK);

    cufile.set("PARAMETERS", "off");
    assert_eq!((api.set_bool)(1, false), code(5007));
    cufile.set("BATCH", "0");
    assert_eq!((api.open)(), OK);
    assert_eq!(api.properties().fflags, 0);
    assert_eq!((api.set_up)(&mut null_mut(), 1), code(5022));
    assert_eq!((api.close)(), OK);
}

#[test]
fn buffers_are_registered_and_given_back() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let api = &setting.api;
    let file = Registered::new(api, 0);
    assert_eq!((api.register_buffer)(setting.at, 8192, 0), OK);
    assert_eq!((api.register_buffer)(setting.at, 8192, 0), code(5023));
    assert_eq!((api.register_buffer)(8, 8192, 0), code(5022));
    assert_eq!((api.read)(file.handle, setting.at, 4096, 0, 4096), 4096);
    assert_eq!((api.read)(file.handle, setting.at, 4096, 0, 4097), 4096);
    let counts = cufile.counts();
    assert_eq!(
        (counts.buffers, counts.registrations, counts.registered),
        (1, 1, 1)
    );
    assert_eq!((api.deregister_buffer)(setting.at), OK);
    assert_eq!((api.deregister_buffer)(setting.at), code(5024));
    assert_eq!(cufile.counts().wrong, 1);
    // An offset from what is not registered (any more).
    assert_eq!((api.read)(file.handle, setting.at, 4096, 0, 4096), 4096);
    assert_eq!(cufile.counts().wrong, 2);
}

#[test]
fn memory_that_is_freed_before_its_registration_is_noted() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let memory = setting.stream.alloc_zeros::<u8>(4096).unwrap();
    let at = memory.device_ptr(&setting.stream).0;
    assert_eq!((setting.api.register_buffer)(at, 4096, 0), OK);
    drop(memory);
    setting.stream.synchronize().unwrap();
    assert_eq!((setting.api.deregister_buffer)(at), code(5024));
    assert_eq!(cufile.counts().wrong, 1);
}

#[test]
fn injected_errors_short_reads_and_waiting() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let api = &setting.api;
    let file = Registered::new(api, 0);
    let read = || (api.read)(file.handle, setting.at, 5000, 0, 0);
    cufile.fail("cuFileRead", 1, libc::EIO);
    assert_eq!(read(), 5000);
    assert_eq!((read(), errno()), (-1, Some(libc::EIO)));
    cufile.fail("cuFileRead", 0, 5011);
    assert_eq!(read(), -5011);
    cufile.shorten(1, 700);
    assert_eq!([read(), read(), read()], [5000, 700, 5000]);
    cufile.fail("cuFileBufRegister", 0, 5025);
    assert_eq!((api.register_buffer)(setting.at, 4096, 0), code(5025));
    assert_eq!((api.register_buffer)(setting.at, 4096, 0), OK);
    assert_eq!((api.deregister_buffer)(setting.at), OK);
    cufile.fail("cuFileHandleRegister", 0, 5008);
    cufile.fail("cuFileHandleRegister", 0, 0);
    drop(Registered::new(api, 0));

    cufile.hold(true);
    let (handle, at, function) = (file.handle as usize, setting.at, api.read);
    let context = setting.stream.context().clone();
    let waits = std::thread::spawn(move || {
        context.bind_to_thread().unwrap();
        function(handle as Handle, at, 10, 0, 0)
    });
    while cufile.counts().waiting == 0 {
        std::thread::yield_now();
    }
    assert!(!waits.is_finished());
    cufile.hold(false);
    assert_eq!(waits.join().unwrap(), 10);
}

#[test]
fn batches_end_in_another_order_and_one_by_one() {
    let session = Session::begin();
    let cufile = Cufile::begin(&session);
    let setting = Setting::new();
    let api = &setting.api;
    let file = Registered::new(api, libc::O_DIRECT);
    let mut batch = null_mut();
    assert_eq!((api.set_up)(&mut batch, 129), code(5022));
    assert_eq!((api.set_up)(&mut batch, 5), OK);
    let mut entries: Vec<_> = (0..5)
        .map(|i| entry(file.handle, setting.at + 4096 * i as u64, 8192 * i, 4096, i))
        .collect();
    let most = entries.len() as c_uint;
    assert_eq!(
        (api.submit)(
            batch,
            most + 1,
            [entries.clone(), entries.clone()].concat().as_mut_ptr(),
            0
        ),
        code(5022)
    );
    cufile.delay(2);
    cufile.shorten(1, 100);
    cufile.fail("entry", 2, libc::EIO);
    assert_eq!((api.submit)(batch, most, entries.as_mut_ptr(), 0), OK);
    let (mut told, mut empty) = (Vec::new(), 0);
    while told.len() < 5 {
        let (mut count, mut events) = (5, [Event::default(); 5]);
        assert_eq!(
            (api.events)(batch, 1, &mut count, events.as_mut_ptr(), null_mut()),
            OK
        );
        assert!(count <= 1);
        empty += u32::from(count == 0);
        told.extend_from_slice(&events[..count as usize]);
    }
    assert_eq!(empty, 2);
    let results: Vec<_> = told
        .iter()
        .map(|event| (event.cookie, event.status, event.result))
        .collect();
    assert_eq!(
        results,
        [
            (4, 16, 4096),
            (3, 16, 100),
            (2, 64, -5),
            (1, 16, 4096),
            (0, 16, 4096)
        ]
    );
    let content = setting.content();
    for i in [0, 1, 4] {
        assert!(
            content[4096 * i..][..4096] == bytes()[8192 * i..][..4096],
            "{i}"
        );
    }

    // Given up: each is told of, and none is read.
    assert_eq!((api.submit)(batch, 2, entries.as_mut_ptr(), 0), OK);
    assert_eq!((api.cancel)(batch), OK);
    let (mut count, mut events) = (5, [Event::default(); 5]);
    assert_eq!(
        (api.events)(batch, 2, &mut count, events.as_mut_ptr(), null_mut()),
        OK
    );
    assert_eq!((count, events[0].status, events[1].status), (2, 8, 8));
    assert_eq!(cufile.counts().entries, 5);
    (api.destroy)(batch);
    drop(file);
    assert_eq!(cufile.counts().leaks(), None);
    assert_eq!(
        (api.events)(batch, 1, &mut count, events.as_mut_ptr(), null_mut()),
        code(5022)
    );
}

#[test]
fn reads_do_not_wait_for_streams_except_those_of_a_stream() {
    let mut session = Session::begin();
    session.set("STREAMS", "lazy");
    let cufile = Cufile::begin(&session);
    let mut setting = Setting::new();
    let file = Registered::new(&setting.api, 0);
    // Queued before the read, done after it.
    setting.stream.memset_zeros(&mut setting.memory).unwrap();
    assert_eq!(
        (setting.api.read)(file.handle, setting.at, 4096, 0, 0),
        4096
    );
    setting.stream.synchronize().unwrap();
    assert!(setting.content()[..4096] == [0; 4096]);
    setting.stream.memset_zeros(&mut setting.memory).unwrap();
    let (mut len, mut offset, mut at, mut done) = (4096, 0, 0, 0);
    let stream = setting.stream.cu_stream().cast();
    assert_eq!(
        (setting.api.read_async)(
            file.handle,
            setting.at,
            &mut len,
            &mut offset,
            &mut at,
            &mut done,
            stream
        ),
        OK
    );
    setting.stream.synchronize().unwrap();
    assert_eq!(done, 4096);
    assert!(setting.content()[..4096] == bytes()[..4096]);
    drop(file);
    assert_eq!(cufile.counts().leaks(), None);
}
