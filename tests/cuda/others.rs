//! Others that use the same device: cudarc, DLPack, Arrow; and kernels of our own.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DevicePtrMut};
use feedwater::cuda::{
    self, ArrowDevice, Dense, Device, DeviceOptions, DlTensor, DlType, ElementType, Family,
};
use feedwater::{Batch, DeviceBytes, ErrorKind, Place, Reader};
use software_cuda_preload::Device as On;

use crate::hostile::{address, fill, filled};
use crate::support::*;

fn delivered(gpu: &Arc<Device>, len: usize) -> DeviceBytes {
    let block = read(gpu, &reader(gpu, &data(len)), 0..len as u64).unwrap();
    block.into_device().unwrap()
}

#[test]
fn memory_of_cudarc_is_a_destination_and_ours_is_read_by_its_streams() {
    for streams in STREAMS {
        let session = session(streams);
        {
            let gpu = Device::open(0).unwrap();
            let theirs = CudaContext::new(0).unwrap();
            assert_eq!(theirs.cu_ctx().cast::<c_void>(), gpu.raw_context());
            let stream = theirs.new_stream().unwrap();
            let bytes = data(100_000);
            let reader = reader(&gpu, &bytes);

            let mut slice = stream.alloc_zeros::<u8>(100_000).unwrap();
            let address = slice.device_ptr_mut(&stream).0;
            stream.synchronize().unwrap();
            let slice = Arc::new(slice);
            let to = std::ptr::without_provenance_mut(address as usize);
            // SAFETY: the slice lives as long as its clone in the block, and is left alone until then.
            let block = unsafe { cuda::lend(Place::Device(0), to, 100_000, slice.clone()) };
            let blocks = reader
                .submit(Batch::new().read_into(0..100_000, block))
                .wait()
                .unwrap();
            drop(blocks);
            let slice = Arc::into_inner(slice).unwrap();
            assert_eq!(stream.clone_dtoh(&slice).unwrap(), bytes);

            let ours = delivered(&gpu, 5000);
            // SAFETY: a stream of the device, which outlives the mark in it.
            let borrowed = unsafe { gpu.borrow_stream(stream.cu_stream().cast()) };
            // SAFETY: device memory of that many bytes, which is not given to the slice to free.
            let view = unsafe { stream.upgrade_device_ptr::<u8>(ours.ptr().addr() as u64, 5000) };
            assert_eq!(stream.clone_dtoh(&view).unwrap(), data(5000));
            let _ = view.leak();
            gpu.used_in(&borrowed, &ours).unwrap();
            drop(ours);
            borrowed.synchronize().unwrap();
        }
        nothing_left(&session);
    }
}

/// `DLManagedTensor`, as a consumer declares it.
#[repr(C)]
struct DlManagedTensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

#[test]
fn a_tensor_for_dlpack_holds_its_memory_until_it_is_deleted() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = delivered(&gpu, 4800).slice(480..);
        let at = bytes.ptr();
        let tensor = DlTensor::new(bytes.clone(), DlType::Float(32), &[10, 2, 54]).unwrap();
        drop(bytes);
        let raw = tensor.into_raw().cast::<DlManagedTensor>();
        // SAFETY: a `DLManagedTensor` that is ours to delete.
        unsafe {
            let tensor = &*raw;
            assert_eq!((tensor.data.cast(), tensor.device), (at, [2, 0]));
            assert_eq!((tensor.code, tensor.bits, tensor.lanes), (2, 32, 1));
            let shape = std::slice::from_raw_parts(tensor.shape, tensor.ndim as usize);
            assert_eq!(shape, [10, 2, 54]);
            let strides = std::slice::from_raw_parts(tensor.strides, tensor.ndim as usize);
            assert_eq!((strides, tensor.byte_offset), (&[108, 54, 1][..], 0));
            assert_eq!(gpu.stats().in_use, 4800);
            (tensor.deleter.unwrap())(raw);
        }
        assert_eq!(gpu.stats().in_use, 0);
        // Not handed out, it lets go by itself.
        let bytes = delivered(&gpu, 6);
        for (element, shape) in [
            (DlType::UInt(8), &[2, 3][..]),
            (DlType::BFloat16, &[3]),
            (DlType::Bool, &[6]),
            (DlType::Int(16), &[3, 1]),
        ] {
            let tensor = DlTensor::new(bytes.clone(), element, shape).unwrap();
            assert!(!tensor.as_ptr().is_null());
        }
        for (element, shape) in [
            (DlType::UInt(8), &[7][..]),
            (DlType::Int(64), &[1]),
            (DlType::Int(4), &[12]),
            (DlType::UInt(0), &[6]),
            (DlType::UInt(8), &[u64::MAX, 3]),
            (DlType::UInt(8), &[0]),
        ] {
            let error = DlTensor::new(bytes.clone(), element, shape).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidOption { .. }),
                "{error}"
            );
        }
        // One without elements has no address; a scalar has no dimensions.
        let (none, one) = (bytes.slice(..0), bytes.slice(..4));
        for (bytes, shape, strides) in [
            (&none, &[0, 1 << 62, 4][..], &[i64::MAX, 4, 1][..]),
            (&none, &[1 << 62, 8, 0], &[8, 1, 1]),
            (&one, &[], &[]),
        ] {
            let tensor = DlTensor::new(bytes.clone(), DlType::Float(32), shape).unwrap();
            // SAFETY: it lives until the end of the block; as many strides as dimensions.
            unsafe {
                let raw = &*tensor.as_ptr().cast::<DlManagedTensor>();
                assert_eq!(raw.data.is_null(), bytes.is_empty());
                assert_eq!(raw.ndim as usize, shape.len());
                let found = std::slice::from_raw_parts(raw.strides, shape.len());
                assert_eq!(found, strides);
            }
        }
        let error = DlTensor::new(none, DlType::UInt(8), &[0, 1 << 63]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }));
        drop((bytes, one));
        assert_eq!(gpu.stats().in_use, 0);
    }
    nothing_left(&session);
}

/// `ArrowArray` and `ArrowDeviceArray`, as a consumer declares them.
#[repr(C)]
struct ArrowArray {
    counts: [i64; 5],
    buffers: *const *const c_void,
    children: *const *mut ArrowArray,
    dictionary: *const c_void,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

#[repr(C)]
struct ArrowDeviceArray {
    array: ArrowArray,
    device_id: i64,
    device_type: i32,
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

#[test]
fn an_array_for_arrow_holds_its_buffers_until_it_is_released() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let values = delivered(&gpu, 80);
        let offsets = delivered(&gpu, 12);
        let (at, offsets_at) = (values.ptr(), offsets.ptr());
        let mut list = ArrowDevice::default();
        (list.length, list.null_count) = (2, None);
        list.buffers = vec![None, Some(offsets)];
        list.children = vec![ArrowDevice::values(10, values)];
        let exported = list.export().unwrap();
        let mut array = std::mem::MaybeUninit::<ArrowDeviceArray>::uninit();
        // SAFETY: there is room for one, and it is released below.
        let mut array = unsafe {
            exported.move_to(array.as_mut_ptr().cast());
            array.assume_init()
        };
        assert_eq!(
            (array.device_id, array.device_type, array.reserved),
            (0, 2, [0; 3])
        );
        assert!(array.sync_event.is_null() && array.array.dictionary.is_null());
        // Length, nulls, offset, buffers, children.
        assert_eq!(array.array.counts, [2, -1, 0, 2, 1]);
        // SAFETY: as many buffers and children as it says; released once.
        unsafe {
            assert!((*array.array.buffers).is_null());
            assert_eq!(*array.array.buffers.add(1), offsets_at.cast_const().cast());
            let child = &**array.array.children;
            assert_eq!(child.counts, [10, 0, 0, 2, 0]);
            assert_eq!(*child.buffers.add(1), at.cast_const().cast());
            assert_eq!(gpu.stats().in_use, 92);
            let release = array.array.release.unwrap();
            release(&mut array.array);
        }
        assert!(array.array.release.is_none());
        assert_eq!(gpu.stats().in_use, 0);
        // The values of a dictionary, which are as much its own.
        let mut words = ArrowDevice::values(20, delivered(&gpu, 80));
        words.dictionary = Some(Box::new(ArrowDevice::values(3, delivered(&gpu, 12))));
        let exported = words.export().unwrap();
        let mut array = std::mem::MaybeUninit::<ArrowDeviceArray>::uninit();
        // SAFETY: as above.
        unsafe {
            exported.move_to(array.as_mut_ptr().cast());
            let mut array = array.assume_init();
            let values = &*array.array.dictionary.cast::<ArrowArray>();
            assert_eq!((values.counts, array.array.counts[4]), ([3, 0, 0, 2, 0], 0));
            assert_eq!(gpu.stats().in_use, 92);
            array.array.release.unwrap()(&mut array.array);
        }
        assert_eq!(gpu.stats().in_use, 0);
        // One that nobody takes lets go by itself; one without a device is none.
        drop(ArrowDevice::values(5, delivered(&gpu, 5)).export().unwrap());
        assert_eq!(gpu.stats().in_use, 0);
        let error = ArrowDevice::default().export().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }));
        // Numbers that the interface has no room for, or that cannot be, on any level.
        for (length, nulls) in [(u64::MAX, 0), (3, 4), (1 << 63, 1 << 63)] {
            let mut child = ArrowDevice::values(length, delivered(&gpu, 5));
            child.null_count = Some(nulls);
            let mut list = ArrowDevice::values(1, delivered(&gpu, 8));
            list.children = vec![child];
            let error = list.export().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }));
        }
        assert_eq!(gpu.stats().in_use, 0);
    }
    nothing_left(&session);
}

/// How memory is handed out and let go of by others, who have work queued on it then.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Tensor,
    TensorFor,
    /// Memory that is not this crate's, with its owner.
    Lent,
    Array,
    /// A child that was moved out, after what it was in.
    Child,
}

/// Hands `bytes` out, and gives what lets go of them.
fn hand_out(way: Way, bytes: DeviceBytes, stream: &cuda::Stream) -> Box<dyn FnOnce()> {
    let len = bytes.len();
    let tensor = |bytes| DlTensor::new(bytes, DlType::UInt(8), &[len as u64]).unwrap();
    let moved = |array: cuda::ArrowDeviceArray| {
        let mut to = std::mem::MaybeUninit::<ArrowDeviceArray>::uninit();
        // SAFETY: there is room for one.
        unsafe {
            array.move_to(to.as_mut_ptr().cast());
            to.assume_init()
        }
    };
    let raw = match way {
        Way::Tensor => tensor(bytes).into_raw(),
        Way::TensorFor => tensor(bytes).into_raw_for(stream),
        Way::Lent => {
            // SAFETY: the owner is the memory.
            let mut block = unsafe { cuda::lend(bytes.place(), bytes.ptr(), len, bytes) };
            // SAFETY: the memory is there; no byte that nobody wrote is looked at.
            unsafe { block.advance(len) };
            tensor(block.freeze().into_device().unwrap()).into_raw()
        }
        Way::Array => {
            let array = ArrowDevice::values(len as u64, bytes).export().unwrap();
            let mut array = moved(array);
            // SAFETY: released once.
            return Box::new(move || unsafe { array.array.release.unwrap()(&mut array.array) });
        }
        Way::Child => {
            let mut list = ArrowDevice::default();
            (list.length, list.buffers) = (1, vec![None]);
            list.children = vec![ArrowDevice::values(len as u64, bytes)];
            let mut list = moved(list.export().unwrap()).array;
            // SAFETY: a child, which is marked as moved out; each is released once.
            unsafe {
                let place = *list.children;
                let mut child = place.read();
                (*place).release = None;
                list.release.unwrap()(&mut list);
                return Box::new(move || child.release.unwrap()(&mut child));
            }
        }
    };
    let raw = raw.cast::<DlManagedTensor>();
    // SAFETY: a `DLManagedTensor` that is ours to delete.
    Box::new(move || unsafe { (*raw).deleter.unwrap()(raw) })
}

/// `del x` behind `y = model(x)`: what is queued on `x` must not meet what comes next.
#[test]
fn memory_that_others_let_go_of_is_not_used_before_what_they_queued_is_done() {
    if !is_software(&session("lazy")) {
        return;
    }
    use Way::{Array, Child, Lent, Tensor, TensorFor};
    for way in [Tensor, TensorFor, Lent, Array, Child] {
        for failing in [0, 1, 2, 3, 5, 40] {
            // Whatever owns it is leaked then.
            if way == Lent && failing > 0 {
                continue;
            }
            let mut session = session("lazy");
            {
                let gpu = DeviceOptions::default().chunk(64 << 10).open(0).unwrap();
                // So that the chunk stays, whatever is given back.
                let _kept = gpu.allocate(256).unwrap();
                let (theirs, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
                let bytes = filled(gpu.allocate(4096).unwrap());
                let at = address(&bytes);
                let let_go = hand_out(way, bytes, &theirs);
                // Asking, an event does one of them.
                (0..40).for_each(|_| fill(&gpu, &theirs, at, 4096, 1));
                let mark = theirs.record().unwrap();
                session.fail_calls(0, failing, 1);
                let_go();
                session.fail_nothing();
                if failing == 0 {
                    assert_eq!(mark.is_done().unwrap(), way != TensorFor, "{way:?}");
                }
                let others: Vec<_> = (0..15)
                    .map(|_| filled(gpu.allocate(4096).unwrap()))
                    .collect();
                for bytes in &others {
                    fill(&gpu, &other, address(bytes), 4096, 7);
                }
                other.synchronize().unwrap();
                theirs.synchronize().unwrap();
                for bytes in &others {
                    assert_eq!(gpu.to_host(bytes).unwrap(), [7; 4096], "{way:?} {failing}");
                }
            }
            nothing_left(&session);
        }
    }
}

#[test]
fn what_kernels_made_is_dropped_without_asking_the_device() {
    let session = session("lazy");
    {
        let gpu = Device::open(0).unwrap();
        let bytes = delivered(&gpu, 1000);
        let tensor = Dense::cast(&[1000], ElementType::U8, ElementType::F32);
        let made = gpu.dense(&tensor, &bytes).unwrap();
        let calls = session.counts().calls;
        drop(made);
        assert_eq!(session.counts().calls, calls);
        assert_eq!(gpu.stats().in_use, 1000);
    }
    nothing_left(&session);
}

const NOTHING: &str = ".version 8.0
.target sm_75
.address_size 64
.visible .entry nothing() { ret; }
";

#[test]
fn kernels_are_loaded_once_and_what_is_wrong_with_them_is_said() {
    let session = session("eager");
    {
        let gpu = Device::open(0).unwrap();
        let family = Family::new("nothing", NOTHING);
        let module = gpu.module(family).unwrap();
        assert!(Arc::ptr_eq(&module, &gpu.module(family).unwrap()));
        assert_eq!(module.name(), "nothing");
        assert!(!module.load_time().is_zero());
        assert!(!module.function("nothing").unwrap().is_null());
        for name in ["something", "no\0thing"] {
            let error = module.function(name).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::NotFound { .. }),
                "{error}"
            );
        }
        if session.device() == On::Software {
            assert_eq!(module.log(), "interpreted: no code was made");
            assert_eq!(session.counts().modules, 1);
        }
        let broken = Family::new("broken", ".version 8.0\n.target sm_75\nthis is no PTX\n");
        let error = gpu.module(broken).unwrap_err();
        match error.kind() {
            ErrorKind::Cuda {
                call: "cuModuleLoadDataEx",
                code: 218,
                log: Some(log),
                ..
            } => {
                assert!(
                    !log.is_empty() && error.to_string().contains(&**log),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
        let error = gpu.module(Family::new("zero", "a\0b")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }));
    }
    nothing_left(&session);
}
