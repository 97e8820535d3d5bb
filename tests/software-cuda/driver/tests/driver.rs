//! The driver as cudarc calls it: memory, streams, modules, launches, and what goes wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    clippy::mut_from_ref
)]

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, result, sys};
use software_cuda_bugs::{BUGS, LANGUAGE};
use software_cuda_preload::{Counts, Device, Session};
use sys::CUresult;

/// A session on the software device, with a context for this thread.
fn begin() -> (Session, Context) {
    let session = Session::begin();
    assert_eq!(
        session.device(),
        Device::Software,
        "these are tests of the software device itself"
    );
    (session, Context::new().unwrap())
}

/// A primary context that this thread has, until it is dropped.
struct Context(sys::CUdevice);

impl Context {
    fn new() -> Result<Self, CUresult> {
        unsafe {
            check(sys::cuInit(0))?;
            let (mut device, mut context) = (0, null_mut());
            check(sys::cuDeviceGet(&mut device, 0))?;
            check(sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
            let this = Self(device);
            check(sys::cuCtxSetCurrent(context))?;
            Ok(this)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe {
            let _ = sys::cuCtxSetCurrent(null_mut());
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.0);
        }
    }
}

fn check(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(code)
    }
}

struct Stream(sys::CUstream);

impl Stream {
    fn new(flags: u32) -> Result<Self, CUresult> {
        let mut stream = null_mut();
        unsafe { check(sys::cuStreamCreate(&mut stream, flags))? };
        Ok(Self(stream))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

struct Bytes(sys::CUdeviceptr);

impl Bytes {
    fn new(len: usize) -> Result<Self, CUresult> {
        let mut address = 0;
        unsafe { check(sys::cuMemAlloc_v2(&mut address, len))? };
        Ok(Self(address))
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        unsafe { sys::cuMemFree_v2(self.0) };
    }
}

struct Pinned(*mut c_void);

impl Pinned {
    fn new(len: usize) -> Result<Self, CUresult> {
        let mut address = null_mut();
        unsafe { check(sys::cuMemHostAlloc(&mut address, len, 0))? };
        Ok(Self(address))
    }

    fn bytes(&self, len: usize) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        unsafe { sys::cuMemFreeHost(self.0) };
    }
}

struct Loaded(sys::CUmodule);

impl Loaded {
    /// Loads PTX; with an error comes the log.
    fn new(ptx: &str) -> Result<Self, (CUresult, String)> {
        let (image, mut module) = (CString::new(ptx).unwrap(), null_mut());
        let mut log = vec![0u8; 1000];
        let mut keys = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                2,
                keys.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        log.truncate(values[1] as usize);
        check(code).map_err(|code| (code, String::from_utf8(log).unwrap()))?;
        Ok(Self(module))
    }

    fn function(&self, name: &str) -> Result<sys::CUfunction, CUresult> {
        let (name, mut function) = (CString::new(name).unwrap(), null_mut());
        unsafe {
            check(sys::cuModuleGetFunction(
                &mut function,
                self.0,
                name.as_ptr(),
            ))?
        };
        Ok(function)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        unsafe { sys::cuModuleUnload(self.0) };
    }
}

fn launch(
    function: sys::CUfunction,
    grid: [u32; 3],
    threads: [u32; 3],
    dynamic: u32,
    stream: sys::CUstream,
    parameters: &mut [*mut c_void],
) -> Result<(), CUresult> {
    let ([x, y, z], [tx, ty, tz]) = (grid, threads);
    unsafe {
        check(sys::cuLaunchKernel(
            function,
            x,
            y,
            z,
            tx,
            ty,
            tz,
            dynamic,
            stream,
            parameters.as_mut_ptr(),
            null_mut(),
        ))
    }
}

/// Launches a kernel of `bugs.cu`, and waits for it.
fn launch_bug(module: &Loaded, name: &str, input: &Bytes, out: &Bytes) -> Result<(), CUresult> {
    let (mut a, mut b, mut n) = (input.0, out.0, 64u32);
    let mut parameters = [
        (&raw mut a).cast(),
        (&raw mut b).cast(),
        (&raw mut n).cast(),
    ];
    launch(
        module.function(name)?,
        [1; 3],
        [64, 1, 1],
        0,
        null_mut(),
        &mut parameters,
    )?;
    unsafe { check(sys::cuCtxSynchronize()) }
}

fn attribute(number: sys::CUdevice_attribute) -> i32 {
    let mut value = 0;
    unsafe { check(sys::cuDeviceGetAttribute(&mut value, number, 0)).unwrap() };
    value
}

#[test]
fn cudarcs_safe_layer() {
    let mut session = Session::begin();
    for mode in ["eager", "lazy"] {
        session.set("STREAMS", mode);
        let context = CudaContext::new(0).unwrap();
        assert_eq!(context.compute_capability().unwrap(), (7, 5));
        let stream = context.new_stream().unwrap();
        let module = context.load_module(LANGUAGE.into()).unwrap();
        let kernel = module.load_function("block_sum").unwrap();
        let numbers: Vec<u32> = (0..4000).collect();
        let input = stream.clone_htod(&numbers).unwrap();
        let mut out = stream.alloc_zeros::<u64>(3).unwrap();
        let config = LaunchConfig {
            grid_dim: (3, 1, 1),
            block_dim: (64, 1, 1),
            shared_mem_bytes: 0,
        };
        unsafe {
            stream
                .launch_builder(&kernel)
                .arg(&input)
                .arg(&mut out)
                .arg(&1000u32)
                .launch(config)
        }
        .unwrap();
        assert_eq!(
            stream.clone_dtoh(&out).unwrap()[0],
            4000 * 3999 / 2,
            "{mode}"
        );
    }
    assert_eq!(session.counts().leaks(), None);
    assert_eq!(session.counts().launches, 2);
    // A stream each; the results were copied to memory that is not page-locked.
    let counts = session.counts();
    assert_eq!((counts.kernel_streams, counts.streams_at_once), (2, 1));
    assert!(counts.waits >= 2 && counts.uploads >= 2, "{counts:?}");
}

#[test]
fn lazy_streams_do_nothing_until_somebody_waits() {
    let (mut session, _context) = begin();
    for (mode, at_once) in [("lazy", 0), ("eager", 7)] {
        session.set("STREAMS", mode);
        let (stream, device, from, to) = (
            Stream::new(1).unwrap(),
            Bytes::new(64).unwrap(),
            Pinned::new(64).unwrap(),
            Pinned::new(64).unwrap(),
        );
        from.bytes(64).fill(7);
        to.bytes(64).fill(0);
        unsafe {
            check(sys::cuMemcpyHtoDAsync_v2(device.0, from.0, 64, stream.0)).unwrap();
            check(sys::cuMemcpyDtoHAsync_v2(to.0, device.0, 64, stream.0)).unwrap();
            assert_eq!(to.bytes(64)[5], at_once, "{mode}");
            // Changed too early: the copy takes what is there when it runs.
            from.bytes(64).fill(9);
            check(sys::cuStreamSynchronize(stream.0)).unwrap();
        }
        assert_eq!(to.bytes(64)[5], if mode == "lazy" { 9 } else { 7 });
    }
}

#[test]
fn a_query_makes_progress() {
    let (mut session, _context) = begin();
    session.set("STREAMS", "lazy");
    let (stream, device) = (Stream::new(1).unwrap(), Bytes::new(64).unwrap());
    unsafe {
        for _ in 0..3 {
            check(sys::cuMemsetD8Async(device.0, 1, 64, stream.0)).unwrap();
        }
        let answers: Vec<CUresult> = (0..3).map(|_| sys::cuStreamQuery(stream.0)).collect();
        assert_eq!(
            answers,
            [
                CUresult::CUDA_ERROR_NOT_READY,
                CUresult::CUDA_ERROR_NOT_READY,
                CUresult::CUDA_SUCCESS
            ]
        );
    }
}

#[test]
fn events_order_streams() {
    let (mut session, _context) = begin();
    session.set("STREAMS", "lazy");
    let (first, second) = (Stream::new(1).unwrap(), Stream::new(1).unwrap());
    let (device, host) = (Bytes::new(4).unwrap(), Pinned::new(4).unwrap());
    unsafe {
        let mut event = null_mut();
        check(sys::cuEventCreate(&mut event, 0)).unwrap();
        check(sys::cuMemsetD8Async(device.0, 5, 4, first.0)).unwrap();
        check(sys::cuEventRecord(event, first.0)).unwrap();
        check(sys::cuMemsetD8Async(device.0, 6, 4, first.0)).unwrap();
        check(sys::cuStreamWaitEvent(second.0, event, 0)).unwrap();
        check(sys::cuMemcpyDtoHAsync_v2(host.0, device.0, 4, second.0)).unwrap();
        check(sys::cuStreamSynchronize(second.0)).unwrap();
        // The first stream was done up to the event and no further.
        assert_eq!(host.bytes(4), [5; 4]);
        check(sys::cuEventDestroy_v2(event)).unwrap();
    }
}

#[test]
fn who_waits_for_an_event_waits_for_its_record_of_then() {
    for destroyed in [false, true] {
        let (mut session, _context) = begin();
        session.set("STREAMS", "lazy");
        let streams = [1; 3].map(|flags| Stream::new(flags).unwrap());
        let [first, second, third] = &streams;
        let (device, host) = (Bytes::new(4).unwrap(), Pinned::new(4).unwrap());
        unsafe {
            let mut event = null_mut();
            check(sys::cuEventCreate(&mut event, 0)).unwrap();
            check(sys::cuMemsetD8Async(device.0, 5, 4, first.0)).unwrap();
            check(sys::cuEventRecord(event, first.0)).unwrap();
            check(sys::cuStreamWaitEvent(second.0, event, 0)).unwrap();
            check(sys::cuMemcpyDtoHAsync_v2(host.0, device.0, 4, second.0)).unwrap();
            if destroyed {
                check(sys::cuEventDestroy_v2(event)).unwrap();
            } else {
                // Recorded elsewhere, and reached there at once.
                check(sys::cuEventRecord(event, third.0)).unwrap();
                check(sys::cuEventSynchronize(event)).unwrap();
                check(sys::cuEventDestroy_v2(event)).unwrap();
            }
            check(sys::cuStreamSynchronize(second.0)).unwrap();
            assert_eq!(host.bytes(4), [5; 4], "destroyed: {destroyed}");
        }
    }
}

#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    let (mut session, _context) = begin();
    session.set("STREAMS", "lazy");
    for (flags, seen) in [(0, 3), (1, 1)] {
        let (stream, device, host) = (
            Stream::new(flags).unwrap(),
            Bytes::new(4).unwrap(),
            Pinned::new(4).unwrap(),
        );
        unsafe {
            check(sys::cuMemsetD8_v2(device.0, 1, 4)).unwrap();
            check(sys::cuMemsetD8Async(device.0, 3, 4, stream.0)).unwrap();
            check(sys::cuMemcpyDtoHAsync_v2(host.0, device.0, 4, null_mut())).unwrap();
            check(sys::cuStreamSynchronize(null_mut())).unwrap();
        }
        assert_eq!(host.bytes(4), [seen; 4], "flags {flags}");
    }
}

#[test]
fn calls_of_the_host_come_in_order() {
    static CALLED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn called(data: *mut c_void) {
        // What the stream did before is there, and the device may be asked.
        let seen = unsafe { *data.cast::<u8>() };
        let mut count = 0;
        assert_eq!(
            unsafe { sys::cuDeviceGetCount(&mut count) },
            CUresult::CUDA_SUCCESS
        );
        CALLED.store(seen.into(), Ordering::SeqCst);
    }
    let (mut session, _context) = begin();
    session.set("STREAMS", "lazy");
    let (stream, device, host) = (
        Stream::new(1).unwrap(),
        Bytes::new(1).unwrap(),
        Pinned::new(1).unwrap(),
    );
    unsafe {
        check(sys::cuMemsetD8Async(device.0, 77, 1, stream.0)).unwrap();
        check(sys::cuMemcpyDtoHAsync_v2(host.0, device.0, 1, stream.0)).unwrap();
        check(sys::cuLaunchHostFunc(stream.0, Some(called), host.0)).unwrap();
        assert_eq!(CALLED.load(Ordering::SeqCst), 0);
        check(sys::cuStreamSynchronize(stream.0)).unwrap();
    }
    assert_eq!(CALLED.load(Ordering::SeqCst), 77);
}

/// Everything once, as a careful program does it.
fn scenario() -> Result<u64, CUresult> {
    let _context = Context::new()?;
    let (stream, host) = (Stream::new(1)?, Pinned::new(256)?);
    let (input, out) = (Bytes::new(256)?, Bytes::new(256)?);
    let module = Loaded::new(LANGUAGE).map_err(|(code, _)| code)?;
    let function = module.function("block_sum")?;
    host.bytes(256).fill(1);
    let (mut a, mut b, mut n) = (input.0, out.0, 16u32);
    unsafe {
        check(sys::cuMemcpyHtoDAsync_v2(input.0, host.0, 256, stream.0))?;
        check(sys::cuMemsetD8Async(out.0, 0, 256, stream.0))?;
        launch(
            function,
            [1; 3],
            [32, 1, 1],
            0,
            stream.0,
            &mut [
                (&raw mut a).cast(),
                (&raw mut b).cast(),
                (&raw mut n).cast(),
            ],
        )?;
        check(sys::cuMemcpyDtoHAsync_v2(host.0, out.0, 8, stream.0))?;
        check(sys::cuStreamSynchronize(stream.0))?;
    }
    Ok(u64::from_le_bytes(host.bytes(8).try_into().unwrap()))
}

#[test]
fn an_error_at_every_call() {
    let mut session = Session::begin();
    for (mode, code) in [
        ("eager", CUresult::CUDA_ERROR_UNKNOWN),
        ("lazy", CUresult::CUDA_ERROR_INVALID_VALUE),
    ] {
        session.set("STREAMS", mode);
        let mut failed = 0;
        for index in 0.. {
            assert!(index < 100, "the scenario does not have that many calls");
            session.fail_call(index, code as i32);
            let outcome = scenario();
            assert_eq!(
                session.counts().leaks(),
                None,
                "after an error at call {index}"
            );
            match outcome {
                Err(found) => {
                    assert_eq!(found, code);
                    failed += 1;
                }
                // Among the last calls are those that give back: nobody asks for their errors.
                Ok(sum) => {
                    assert_eq!(sum, 64 * 0x0101_0101);
                    if index > 30 {
                        break;
                    }
                }
            }
        }
        session.fail_nothing();
        assert!(failed >= 14, "{failed}");
    }
}

#[test]
fn no_memory_at_every_allocation() {
    let mut session = Session::begin();
    let before = session.counts().allocations;
    scenario().unwrap();
    let allocations = session.counts().allocations - before;
    // The context, the stream, the host's memory, two buffers, the module.
    assert_eq!(allocations, 6);
    for index in 0..allocations {
        session.fail_allocation(index);
        assert_eq!(
            scenario(),
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            "{index}"
        );
        assert_eq!(session.counts().leaks(), None, "{index}");
    }
}

#[test]
fn memory_has_an_end() {
    let (mut session, _context) = begin();
    session.set("MEMORY", "1000000");
    let half = Bytes::new(600_000).unwrap();
    assert_eq!(
        Bytes::new(600_000).map(drop),
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    );
    let (mut free, mut total) = (0, 0);
    unsafe { check(sys::cuMemGetInfo_v2(&mut free, &mut total)).unwrap() };
    assert_eq!((free, total), (400_000, 1_000_000));
    drop(half);
    Bytes::new(600_000).unwrap();
}

#[test]
fn frees_are_counted() {
    let (session, _context) = begin();
    let counts = |session: &Session| (session.counts().double_frees, session.counts().wrong_frees);
    let bytes = Bytes::new(64).unwrap();
    unsafe {
        check(sys::cuMemFree_v2(bytes.0)).unwrap();
        assert_eq!(
            sys::cuMemFree_v2(bytes.0),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        std::mem::forget(bytes);
        assert_eq!(counts(&session), (1, 0));
        assert_eq!(
            sys::cuMemFreeHost(0x1234 as *mut c_void),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(counts(&session), (1, 1));
    }
    assert!(
        session
            .counts()
            .leaks()
            .is_some_and(|leaks: Counts| leaks.contexts == 1 && leaks.double_frees == 1)
    );
}

#[test]
fn copies_stay_in_their_allocation() {
    let (_session, _context) = begin();
    let bytes = Bytes::new(100).unwrap();
    let mut host = [0u8; 101];
    unsafe {
        assert_eq!(
            sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), bytes.0, 101),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            sys::cuMemcpyHtoD_v2(bytes.0 + 1, host.as_ptr().cast(), 100),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            sys::cuMemsetD8Async(bytes.0 + 100, 0, 1, null_mut()),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            sys::cuMemcpyHtoD_v2(bytes.0, host.as_ptr().cast(), 100),
            CUresult::CUDA_SUCCESS
        );
    }
}

#[test]
fn buffers_past_four_gib() {
    let (_session, _context) = begin();
    let bytes = Bytes::new(5 << 30).unwrap();
    let far = bytes.0 + (4 << 30) + 8;
    let mut host = [0u8; 8];
    unsafe {
        check(sys::cuMemcpyHtoD_v2(far, [7u8; 8].as_ptr().cast(), 8)).unwrap();
        check(sys::cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), far, 8)).unwrap();
        assert_eq!(host, [7; 8]);
        check(sys::cuMemcpyDtoH_v2(
            host.as_mut_ptr().cast(),
            bytes.0 + 8,
            8,
        ))
        .unwrap();
        assert_eq!(host, [0; 8], "nothing wraps around");
    }
}

#[test]
fn registered_and_managed_memory() {
    let (session, _context) = begin();
    let mut own = vec![1u8; 64];
    let address = own.as_mut_ptr().cast();
    unsafe {
        check(sys::cuMemHostRegister_v2(address, 64, 0)).unwrap();
        assert_eq!(
            sys::cuMemHostRegister_v2(own.as_mut_ptr().add(8).cast(), 8, 0),
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        );
        assert_eq!(session.counts().registrations, 1);
        check(sys::cuMemHostUnregister(address)).unwrap();
        assert_eq!(
            sys::cuMemHostUnregister(address),
            CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        );
        let mut managed = 0;
        check(sys::cuMemAllocManaged(&mut managed, 64, 1)).unwrap();
        *(managed as *mut u8) = 3;
        check(sys::cuMemFree_v2(managed)).unwrap();
    }
}

#[test]
fn memory_pools_may_be_missing() {
    let (mut session, _context) = begin();
    let supported = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    let stream = Stream::new(1).unwrap();
    for (mode, code) in [
        ("on", CUresult::CUDA_SUCCESS),
        ("off", CUresult::CUDA_ERROR_NOT_SUPPORTED),
    ] {
        session.set("POOLS", mode);
        assert_eq!(attribute(supported), i32::from(mode == "on"));
        let mut address = 0;
        unsafe {
            assert_eq!(sys::cuMemAllocAsync(&mut address, 64, stream.0), code);
            if address != 0 {
                check(sys::cuMemFreeAsync(address, stream.0)).unwrap();
            }
        }
    }
}

#[test]
fn pools_keep_memory_up_to_their_threshold() {
    const LEN: usize = 3 << 20;
    let (mut session, _context) = begin();
    session.set("MEMORY", &(4 << 20).to_string());
    let stream = Stream::new(1).unwrap();
    let room = || {
        let (mut free, mut total) = (0, 0);
        unsafe { check(sys::cuMemGetInfo_v2(&mut free, &mut total)).unwrap() };
        free
    };
    for threshold in [0u64, 1 << 20, u64::MAX] {
        unsafe {
            let (mut pool, mut address) = (null_mut(), 0);
            let properties = std::mem::zeroed();
            check(sys::cuMemPoolCreate(&mut pool, &properties)).unwrap();
            let mut value = threshold;
            let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            check(sys::cuMemPoolSetAttribute(
                pool,
                which,
                (&raw mut value).cast(),
            ))
            .unwrap();
            let figures = || {
                let (mut reserved, mut used) = (0u64, 0u64);
                for (which, value) in [
                    (
                        sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                        &mut reserved,
                    ),
                    (
                        sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                        &mut used,
                    ),
                ] {
                    let told = sys::cuMemPoolGetAttribute(pool, which, (&raw mut *value).cast());
                    check(told).unwrap();
                }
                (reserved as usize, used as usize)
            };
            for _ in 0..2 {
                let taken = sys::cuMemAllocFromPoolAsync(&mut address, LEN, pool, stream.0);
                check(taken).unwrap();
                assert_eq!(figures(), (LEN, LEN));
                check(sys::cuMemFreeAsync(address, stream.0)).unwrap();
            }
            let kept = threshold.min(LEN as u64) as usize;
            assert_eq!(room(), (4 << 20) - kept);
            assert_eq!(figures(), (kept, 0));
            // Others do not get it.
            assert_eq!(Bytes::new(LEN).is_err(), kept == LEN);
            check(sys::cuMemPoolTrimTo(pool, 1 << 10)).unwrap();
            assert_eq!(room(), (4 << 20) - kept.min(1 << 10));
            check(sys::cuMemPoolDestroy(pool)).unwrap();
            assert_eq!(room(), 4 << 20);
        }
    }
}

#[test]
fn a_pool_that_is_none_is_refused() {
    let (_session, _context) = begin();
    let stream = Stream::new(1).unwrap();
    let used = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let (mut default, mut made) = (null_mut(), null_mut());
    // What is done with a pool, one after the other.
    let codes = |pool| {
        let (mut value, mut address) = (0u64, 0);
        let place = (&raw mut value).cast();
        // SAFETY: places for what is told; the driver refuses what is no pool.
        let codes = unsafe {
            [
                sys::cuMemPoolGetAttribute(pool, used, place),
                sys::cuMemPoolSetAttribute(pool, threshold, place),
                sys::cuMemPoolTrimTo(pool, 0),
                sys::cuMemAllocFromPoolAsync(&mut address, 64, pool, stream.0),
            ]
        };
        if address != 0 {
            // SAFETY: taken just now.
            unsafe { check(sys::cuMemFreeAsync(address, stream.0)).unwrap() };
        }
        codes.map(|code| code as u32)
    };
    // SAFETY: places for the handles, and properties that are not looked at.
    unsafe {
        check(sys::cuDeviceGetDefaultMemPool(&mut default, 0)).unwrap();
        let properties = std::mem::zeroed();
        check(sys::cuMemPoolCreate(&mut made, &properties)).unwrap();
    }
    assert_eq!(codes(default), [0; 4]);
    assert_eq!(codes(made), [0; 4]);
    // SAFETY: made above, and nobody has memory of it.
    unsafe { check(sys::cuMemPoolDestroy(made)).unwrap() };
    for none in [made, null_mut(), default.wrapping_byte_add(100)] {
        assert_eq!(codes(none), [1; 4], "{none:?}");
    }
}

#[test]
fn several_calls_fail_in_a_row() {
    let (mut session, _context) = begin();
    session.fail_calls(1, 2, 1);
    let stream = Stream::new(1).unwrap();
    for fails in [true, true, false] {
        assert_eq!(
            unsafe { sys::cuStreamSynchronize(stream.0) } as u32 == 1,
            fails
        );
    }
}

#[test]
fn profiles() {
    use sys::CUdevice_attribute::*;
    let (mut session, _context) = begin();
    for (name, sm, opt_in) in [
        ("sm_75", (7, 5), 64),
        ("sm_80", (8, 0), 163),
        ("sm_90", (9, 0), 227),
    ] {
        session.set("PROFILE", name);
        assert_eq!(
            (
                attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
            ),
            sm
        );
        assert_eq!(
            attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            48 << 10
        );
        assert_eq!(
            attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            opt_in << 10
        );
        let module = Loaded::new(LANGUAGE).unwrap();
        let function = module.function("bytes").unwrap();
        let key = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        unsafe {
            check(sys::cuFuncSetAttribute(function, key, opt_in << 10)).unwrap();
            assert_eq!(
                sys::cuFuncSetAttribute(function, key, (opt_in << 10) + 1),
                CUresult::CUDA_ERROR_INVALID_VALUE
            );
        }
    }
}

#[test]
fn limits_of_launches() {
    let (mut session, _context) = begin();
    let (bugs, language) = (Loaded::new(BUGS).unwrap(), Loaded::new(LANGUAGE).unwrap());
    let (input, out) = (Bytes::new(2048).unwrap(), Bytes::new(2048).unwrap());
    let (mut a, mut b, mut n) = (input.0, out.0, 0u32);
    let mut parameters = [
        (&raw mut a).cast(),
        (&raw mut b).cast(),
        (&raw mut n).cast(),
    ];
    let bounded = bugs.function("control_exchange").unwrap();
    let plain = language.function("bytes").unwrap();
    let mut go = |function, grid, threads, dynamic| {
        launch(
            function,
            grid,
            threads,
            dynamic,
            null_mut(),
            &mut parameters,
        )
    };
    let (invalid, resources) = (
        Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
    );
    assert_eq!(go(plain, [1, 1, 1], [1024, 1, 1], 16), Ok(()));
    assert_eq!(go(plain, [1, 1, 1], [1025, 1, 1], 16), invalid);
    assert_eq!(go(plain, [1, 1, 1], [1, 1, 65], 16), invalid);
    assert_eq!(go(plain, [0, 1, 1], [32, 1, 1], 16), invalid);
    assert_eq!(go(plain, [1, 65_536, 1], [32, 1, 1], 16), invalid);
    assert_eq!(go(plain, [1, 1, 1], [32, 1, 1], 48 << 10), Ok(()));
    assert_eq!(go(plain, [1, 1, 1], [32, 1, 1], (48 << 10) + 1), invalid);
    assert_eq!(
        go(bounded, [1, 1, 1], [65, 1, 1], 0),
        resources,
        "__launch_bounds__(64)"
    );
    session.registers("bytes", 128);
    assert_eq!(go(plain, [1, 1, 1], [512, 1, 1], 16), Ok(()));
    assert_eq!(go(plain, [1, 1, 1], [513, 1, 1], 16), resources);
    assert_eq!(
        go(null_mut(), [1, 1, 1], [32, 1, 1], 16),
        Err(CUresult::CUDA_ERROR_INVALID_HANDLE)
    );
}

#[test]
fn parameters_in_one_buffer() {
    let (_session, _context) = begin();
    let language = Loaded::new(LANGUAGE).unwrap();
    let kernel = language.function("bytes").unwrap();
    let (input, out) = (Bytes::new(2048).unwrap(), Bytes::new(2048).unwrap());
    let mut bytes = [0u8; 24];
    bytes[..8].copy_from_slice(&input.0.to_ne_bytes());
    bytes[8..16].copy_from_slice(&out.0.to_ne_bytes());
    let invalid = Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    let key = std::ptr::without_provenance_mut::<c_void>;
    // Two addresses and a number: 20 bytes, no more and no less.
    for (mut len, outcome) in [(20usize, Ok(())), (19, invalid), (24, invalid)] {
        let whole = [
            key(1),
            bytes.as_mut_ptr().cast(),
            key(2),
            (&raw mut len).cast(),
            key(0),
        ];
        for (from, outcome) in [(0, outcome), (2, invalid), (4, invalid)] {
            let mut extra = whole[from..].to_vec();
            let (mut own, parameters) = ([extra[0]; 3], null_mut());
            let launched = |parameters: *mut *mut c_void, extra: *mut *mut c_void| unsafe {
                check(sys::cuLaunchKernel(
                    kernel,
                    1,
                    1,
                    1,
                    32,
                    1,
                    1,
                    0,
                    null_mut(),
                    parameters,
                    extra,
                ))
            };
            assert_eq!(launched(parameters, extra.as_mut_ptr()), outcome, "{len}");
            // Not both ways.
            assert_eq!(launched(own.as_mut_ptr(), extra.as_mut_ptr()), invalid);
        }
    }
}

#[test]
fn modules_that_are_refused() {
    let (_session, _context) = begin();
    let refused = |ptx: &str| Loaded::new(ptx).map(drop).unwrap_err();
    let broken = LANGUAGE.replacen("mul.hi.u64", "mul.hu.u64", 1);
    let line = 1 + broken
        .lines()
        .position(|line| line.contains("mul.hu.u64"))
        .unwrap();
    let (code, log) = refused(&broken);
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(
        log.contains(&format!("line {line}:")) && log.contains("hu"),
        "{log}"
    );
    let newer = LANGUAGE.replacen(".version 8.0", ".version 8.5", 1);
    assert_eq!(
        refused(&newer).0,
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    );
    let other = LANGUAGE.replacen("sm_75", "sm_90", 1);
    assert_eq!(refused(&other).0, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(
        Loaded::new(LANGUAGE)
            .unwrap()
            .function("no_such")
            .unwrap_err(),
        CUresult::CUDA_ERROR_NOT_FOUND
    );
}

#[test]
fn what_kernels_do_wrong_breaks_the_device() {
    use CUresult::*;
    for (kernel, checks, code, kind) in [
        (
            "outside_global",
            "",
            CUDA_ERROR_ILLEGAL_ADDRESS,
            "OutOfBounds",
        ),
        (
            "misaligned",
            "",
            CUDA_ERROR_MISALIGNED_ADDRESS,
            "Misaligned",
        ),
        ("race_next", "races", CUDA_ERROR_LAUNCH_FAILED, "Race"),
        (
            "unwritten_global",
            "unwritten",
            CUDA_ERROR_LAUNCH_FAILED,
            "Unwritten",
        ),
        ("trap", "", CUDA_ERROR_LAUNCH_FAILED, "Trap"),
    ] {
        let (mut session, context) = begin();
        session.set("CHECKS", checks);
        let (input, out) = (Bytes::new(256).unwrap(), Bytes::new(256).unwrap());
        unsafe { check(sys::cuMemsetD8_v2(input.0, 1, 256)).unwrap() };
        let module = Loaded::new(BUGS).unwrap();
        assert_eq!(
            launch_bug(&module, kernel, &input, &out),
            Err(code),
            "{kernel}"
        );
        let findings = session.findings();
        assert!(
            findings.iter().any(|finding| finding
                .starts_with(&format!("{kind} in {kernel}, PTX line "))
                && finding.contains("bugs.cu:")),
            "{findings:?}"
        );
        // From now on every call says so, and what is given back is given back.
        assert_eq!(Bytes::new(1).map(drop), Err(code));
        drop((input, out, module, context));
        assert_eq!(session.counts().leaks(), None, "{kernel}");
    }
    let (mut session, _context) = begin();
    session.set("CHECKS", "all");
    let (input, out) = (Bytes::new(256).unwrap(), Bytes::new(256).unwrap());
    unsafe { check(sys::cuMemsetD8_v2(input.0, 1, 256)).unwrap() };
    launch_bug(
        &Loaded::new(BUGS).unwrap(),
        "control_exchange",
        &input,
        &out,
    )
    .unwrap();
    assert_eq!(session.findings(), [""; 0]);
}

#[test]
fn variables_of_modules() {
    let (session, _context) = begin();
    let module = Loaded::new(LANGUAGE).unwrap();
    let (mut address, mut len) = (0, 0);
    let mut values = [0u32; 8];
    unsafe {
        check(sys::cuModuleGetGlobal_v2(
            &mut address,
            &mut len,
            module.0,
            c"table".as_ptr(),
        ))
        .unwrap();
        check(sys::cuMemcpyDtoH_v2(
            values.as_mut_ptr().cast(),
            address,
            len,
        ))
        .unwrap();
        assert_eq!(
            sys::cuModuleGetGlobal_v2(&mut address, &mut len, module.0, c"tables".as_ptr()),
            CUresult::CUDA_ERROR_NOT_FOUND
        );
    }
    assert_eq!((len, values), (32, [3, 1, 4, 1, 5, 9, 2, 6]));
    drop(module);
    assert_eq!(session.counts().managed_allocations, 0);
}

#[test]
fn no_device() {
    let mut session = Session::begin();
    session.set("DEVICES", "0");
    assert_eq!(
        Context::new().map(drop),
        Err(CUresult::CUDA_ERROR_NO_DEVICE)
    );
    session.set("DEVICES", "1");
    drop(Context::new().unwrap());
}

#[test]
fn threads_need_a_context() {
    let (_session, _context) = begin();
    let elsewhere = std::thread::spawn(|| Bytes::new(64).map(drop))
        .join()
        .unwrap();
    assert_eq!(elsewhere, Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn functions_that_are_not_there() {
    let (_session, _context) = begin();
    let name = |code: CUresult| {
        result::DriverError(code)
            .error_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    assert_eq!(
        name(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap(),
        "CUDA_ERROR_ILLEGAL_ADDRESS"
    );
    let mut function = null_mut();
    let mut ask = |name: &std::ffi::CStr| unsafe {
        sys::cuGetProcAddress_v2(name.as_ptr(), &mut function, 12_020, 0, null_mut())
    };
    assert_eq!(
        ask(c"cuTensorMapEncodeTiled"),
        CUresult::CUDA_ERROR_NOT_FOUND
    );
    assert_eq!(ask(c"cuMemAlloc_v2"), CUresult::CUDA_SUCCESS);
    let mut graph = null_mut();
    assert_eq!(
        unsafe { sys::cuStreamEndCapture(null_mut(), &mut graph) },
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    );
}
