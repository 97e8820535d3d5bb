//! Device memory for others, with its owner: DLPack and Arrow's C device interface; and memory of others to read into.
//!
//! Who lets go of what was handed out may have kernels queued that still read it: `del x` behind `y = model(x)`. Neither interface says
//! whose duty it is to wait for them, and neither callback is told a stream (dmlc/dlpack issue 176 has the discussion). Frameworks do not: their
//! allocators know which streams use memory, but this memory is not theirs. Producers that free by `cudaFree` have the driver wait. Here
//! memory is used again without the driver, so the callbacks wait for the device, unless they were told the one stream.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use super::context::Context;
use super::memory::DeviceBuffer;
use super::stream::Stream;
use crate::buffer::{BlockMut, DeviceBytes, Memory, Place};
use crate::error::{Error, ErrorKind, Result};

/// Memory that somebody else owns, as a block to read into: a slice of cudarc's, a tensor of a framework.
///
/// `owner` is dropped with the last part of the block, or of the bytes that it becomes. To get the memory back rather than its bytes,
/// have the owner share it (an `Arc`).
///
/// # Safety
/// While `owner` lives, the `len` bytes from `address` on are valid for reads and writes at `place`, do not move, and nobody uses them
/// except through the block. Work of a device on them is done.
pub unsafe fn lend(
    place: Place,
    address: *mut u8,
    len: usize,
    owner: impl Send + Sync + 'static,
) -> BlockMut {
    BlockMut::new(Lent {
        place,
        address: address.expose_provenance(),
        len,
        _owner: owner,
    })
}

struct Lent<T> {
    place: Place,
    address: usize,
    len: usize,
    _owner: T,
}

// SAFETY: as the caller of `lend` promises.
unsafe impl<T: Send + Sync + 'static> Memory for Lent<T> {
    fn place(&self) -> Place {
        self.place
    }
    fn ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The type of an element, as DLPack writes it (`DLDataType`, with one lane).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DlType {
    /// Signed integers of so many bits.
    Int(u8),
    /// Unsigned integers of so many bits.
    UInt(u8),
    /// IEEE floating-point numbers of so many bits.
    Float(u8),
    /// `bfloat16`.
    BFloat16,
    /// Booleans of a byte.
    Bool,
}

impl DlType {
    /// `DLDataTypeCode`, and bits.
    pub(crate) fn parts(self) -> (u8, u8) {
        match self {
            DlType::Int(bits) => (0, bits),
            DlType::UInt(bits) => (1, bits),
            DlType::Float(bits) => (2, bits),
            DlType::BFloat16 => (4, 16),
            DlType::Bool => (6, 8),
        }
    }
}

/// `kDLCUDA` and `ARROW_DEVICE_CUDA`.
const CUDA: i32 = 2;

#[repr(C)]
struct DlManaged {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    /// Ours: what the tensor holds on to.
    owner: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

/// A dense tensor in device memory, as DLPack's `DLManagedTensor`: what `torch.from_dlpack` and its kin take, without a copy.
///
/// The bytes are finished when it is made, so that no stream has to be waited for. Handed out by [`into_raw`](Self::into_raw) or
/// [`into_raw_for`](Self::into_raw_for), whoever takes it calls its deleter. Dropped without that, it lets go of the bytes without waiting: what
/// you queued with its address has to be done then, or [told of](super::Device::used_in).
pub struct DlTensor(*mut DlManaged);

// SAFETY: it owns all that it points at, and none of that is bound to a thread.
unsafe impl Send for DlTensor {}
// SAFETY: shared, it is only read.
unsafe impl Sync for DlTensor {}

struct DlOwner {
    bytes: DeviceBytes,
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// In which whoever has it uses it; `None`: nobody knows.
    stream: Option<Stream>,
}

impl DlTensor {
    /// All of `bytes` as elements of one type, in the order of C.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if the shape does not have exactly as many bytes, an element is no whole number of bytes, or a dimension
    /// is more than 63 bits have; [`ErrorKind::Unsupported`] for memory that is no device's.
    pub fn new(bytes: DeviceBytes, element: DlType, shape: &[u64]) -> Result<Self> {
        let (code, bits) = element.parts();
        let device = device_of(bytes.place())?;
        let wrong = || {
            let what = format!("{} bytes as a tensor of {element:?} {shape:?}", bytes.len());
            Error::new(ErrorKind::InvalidOption { what: what.into() })
        };
        let wanted = shape
            .iter()
            .try_fold(u64::from(bits) / 8, |n, d| n.checked_mul(*d));
        // A tensor of no elements may have any other dimensions.
        let wanted = wanted.or_else(|| shape.contains(&0).then_some(0));
        if bits == 0 || !bits.is_multiple_of(8) || wanted != Some(bytes.len() as u64) {
            return Err(wrong());
        }
        let dimensions = i32::try_from(shape.len()).map_err(|_| wrong())?;
        let signed = |n: u64| i64::try_from(n).map_err(|_| wrong());
        // Consumers of today want strides, although the version without them is valid as well.
        let mut stride = 1u64;
        let mut strides = Vec::with_capacity(shape.len());
        for dim in shape.iter().rev() {
            strides.push(signed(stride)?);
            // Of those in front of a dimension without elements, none is ever taken.
            stride = stride.saturating_mul((*dim).max(1)).min(i64::MAX as u64);
        }
        strides.reverse();
        let mut owner = Box::new(DlOwner {
            shape: shape.iter().map(|d| signed(*d)).collect::<Result<_>>()?,
            strides,
            bytes: bytes.clone(),
            stream: None,
        });
        let managed = DlManaged {
            // Null for no bytes, as the text has it. Frameworks take and give a byte offset of 0, although it wants multiples of 256 here.
            data: match bytes.is_empty() {
                true => ptr::null_mut(),
                false => bytes.ptr().cast(),
            },
            device_type: CUDA,
            device,
            dimensions,
            code,
            bits,
            lanes: 1,
            shape: owner.shape.as_mut_ptr(),
            strides: owner.strides.as_mut_ptr(),
            byte_offset: 0,
            owner: Box::into_raw(owner).cast(),
            deleter: Some(delete),
        };
        Ok(DlTensor(Box::into_raw(Box::new(managed))))
    }

    /// Its shape.
    pub fn shape(&self) -> &[i64] {
        // SAFETY: made by `new`, which keeps the tensor and its owner until this is dropped or handed out; that is the owner's shape.
        unsafe {
            let managed = &*self.0;
            let dimensions = usize::try_from(managed.dimensions).unwrap_or(0);
            std::slice::from_raw_parts(managed.shape, dimensions)
        }
    }

    /// The `DLManagedTensor`, for calls that only look at it: work that they queue is [yours to tell of](super::Device::used_in).
    pub fn as_ptr(&self) -> *mut c_void {
        self.0.cast()
    }

    /// Hands the `DLManagedTensor` out. Whoever has it calls its `deleter`, once; else the memory is never freed.
    ///
    /// It may be deleted while kernels that read it are still queued, as `del x` does. In which stream, the deleter is not told; so
    /// that nothing is written over what they read, **it waits for all that the device does in the primary context**
    /// (`cuCtxSynchronize`), on the thread that calls it: for the work of this crate as well, and for a training step that was queued. Where that
    /// costs too much, name the stream: [`into_raw_for`](Self::into_raw_for). While a stream is being captured into a graph the driver
    /// refuses to wait (and may end the capture): the memory is not used again then.
    pub fn into_raw(self) -> *mut c_void {
        ManuallyDrop::new(self).0.cast()
    }

    /// The same for somebody who uses it in `stream` alone, or in others that `stream` has waited for when it is deleted: the deleter
    /// marks the end of what is queued in `stream` by then, and returns without waiting. The memory is used again after the mark.
    ///
    /// What uses it in another stream has to be done when it is deleted. A stream of others has to stay until then
    /// ([`Device::borrow_stream`](super::Device::borrow_stream)).
    pub fn into_raw_for(self, stream: &Stream) -> *mut c_void {
        // SAFETY: made by `new`, and not handed out yet: nobody else looks at the owner.
        unsafe { (*(*self.0).owner.cast::<DlOwner>()).stream = Some(stream.clone()) };
        self.into_raw()
    }
}

impl Drop for DlTensor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and not handed out.
        drop(unsafe { take(self.0) });
    }
}

impl fmt::Debug for DlTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlTensor")
            .field("shape", &self.shape())
            .field("managed", &self.0)
            .finish()
    }
}

/// # Safety
/// `managed` was made by `DlTensor::new`, and this is called once.
unsafe extern "C" fn delete(managed: *mut DlManaged) {
    if managed.is_null() {
        return;
    }
    // SAFETY: as the caller promises.
    let owner = unsafe { take(managed) };
    let DlOwner { bytes, stream, .. } = *owner;
    // Of no bytes nobody has an address.
    if bytes.is_empty() {
        return;
    }
    if let Some(event) = stream.and_then(|stream| stream.record().ok()) {
        match buffer_of(&bytes) {
            Some(buffer) => return buffer.used_by(event),
            None if event.is_over() => return,
            None => {}
        }
    }
    let over = is_over(Some(&bytes));
    let_go(bytes, over);
}

/// # Safety
/// As for `delete`.
unsafe fn take(managed: *mut DlManaged) -> Box<DlOwner> {
    // SAFETY: both boxes were leaked in `new`.
    unsafe {
        let managed = Box::from_raw(managed);
        Box::from_raw(managed.owner.cast::<DlOwner>())
    }
}

fn buffer_of(bytes: &DeviceBytes) -> Option<&DeviceBuffer> {
    bytes.memory().as_any().downcast_ref()
}

/// Waits for all that others may have queued with these bytes, which are of one device; whether it is over.
fn is_over<'a>(bytes: impl IntoIterator<Item = &'a DeviceBytes>) -> bool {
    let Some(bytes) = bytes.into_iter().next() else {
        return true;
    };
    let retained;
    let context = match (buffer_of(bytes), bytes.place()) {
        (Some(buffer), _) => buffer.arena.context(),
        // Memory of others: the primary context is the one of all.
        (None, Place::Device(ordinal)) => match Context::retain(ordinal) {
            Ok(context) => {
                retained = context;
                &retained
            }
            // Without a device, or in a child, nothing is under way.
            Err(error) => return !matches!(error.kind(), ErrorKind::Cuda { .. }),
        },
        (None, _) => return true,
    };
    // In a child nothing is given back.
    !context.is_of_this_process() || context.is_over()
}

/// Drops bytes that others had. Where nobody knows whether their uses are over, the memory is not used again.
fn let_go(bytes: DeviceBytes, over: bool) {
    if over {
        return;
    }
    match buffer_of(&bytes) {
        Some(buffer) => buffer.unmarked(),
        None => {
            tracing::warn!(
                ?bytes,
                "memory is not dropped: nobody knows whether its last use is over"
            );
            std::mem::forget(bytes);
        }
    }
}

/// Arrow's `ArrowArray` (C data interface). Its buffers are where the [`ArrowDeviceArray`] around it says.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

/// Arrow's `ArrowDeviceArray` (C device data interface): an array whose buffers are in the memory of a CUDA device, with its owner.
///
/// The buffers are finished when it is made, so `sync_event` is null. What type it has, an `ArrowSchema` says that the caller
/// makes. Dropped without being [moved](Self::move_to), it lets go of the buffers without waiting.
#[repr(C)]
#[derive(Debug)]
pub struct ArrowDeviceArray {
    array: ArrowArray,
    device_id: i64,
    device_type: i32,
    sync_event: *mut c_void,
    reserved: [i64; 3],
}

/// What an [`ArrowDeviceArray`] is made of.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ArrowDevice {
    /// Number of elements.
    pub length: u64,
    /// Elements that are null; `None`: not counted.
    pub null_count: Option<u64>,
    /// The buffers in the order of Arrow's columnar format, the validity bitmap first; `None` for one that is left out.
    pub buffers: Vec<Option<DeviceBytes>>,
    /// Arrays below it: of lists, structs, maps.
    pub children: Vec<ArrowDevice>,
    /// The values that the elements of a dictionary array are indices of.
    pub dictionary: Option<Box<ArrowDevice>>,
}

impl ArrowDevice {
    /// An array without nulls, of one buffer of values.
    pub fn values(length: u64, values: DeviceBytes) -> Self {
        ArrowDevice {
            length,
            null_count: Some(0),
            buffers: vec![None, Some(values)],
            children: Vec::new(),
            dictionary: None,
        }
    }

    /// The array for others. How long a buffer has to be depends on the type, which is not known here: that is the caller's to see to.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] if its buffers are of several devices, or of none, or if there are more nulls than elements, or
    /// more elements than 63 bits have.
    pub fn export(self) -> Result<ArrowDeviceArray> {
        let mut device = None;
        self.check(&mut device)?;
        let Some(device) = device else {
            return Err(Error::new(ErrorKind::InvalidOption {
                what: "an array of a device without a buffer".into(),
            }));
        };
        Ok(ArrowDeviceArray {
            array: self.array(),
            device_id: i64::from(device),
            device_type: CUDA,
            sync_event: ptr::null_mut(),
            reserved: [0; 3],
        })
    }

    fn check(&self, device: &mut Option<i32>) -> Result<()> {
        let nulls = self.null_count.unwrap_or(0);
        if i64::try_from(self.length).is_err() || nulls > self.length {
            let what = format!("an array of {} elements, {nulls} of them null", self.length);
            return Err(Error::new(ErrorKind::InvalidOption { what: what.into() }));
        }
        for bytes in self.buffers.iter().flatten() {
            let this = device_of(bytes.place())?;
            if *device.get_or_insert(this) != this {
                return Err(Error::new(ErrorKind::InvalidOption {
                    what: "an array with buffers of several devices".into(),
                }));
            }
        }
        let dictionary = self.dictionary.as_deref();
        self.children
            .iter()
            .chain(dictionary)
            .try_for_each(|child| child.check(device))
    }

    fn array(self) -> ArrowArray {
        let pointer = |bytes: &Option<DeviceBytes>| match bytes {
            Some(bytes) => bytes.ptr().cast_const().cast(),
            None => ptr::null(),
        };
        let children = self.children.into_iter();
        let dictionary = match self.dictionary {
            Some(values) => Box::into_raw(Box::new(values.array())),
            None => ptr::null_mut(),
        };
        let mut owner = Box::new(ArrowOwner {
            pointers: self.buffers.iter().map(pointer).collect(),
            buffers: self.buffers,
            children: children
                .map(|child| Box::into_raw(Box::new(child.array())))
                .collect(),
            dictionary,
        });
        ArrowArray {
            // Checked before: they fit.
            length: self.length.cast_signed(),
            null_count: self.null_count.map_or(-1, u64::cast_signed),
            offset: 0,
            n_buffers: owner.pointers.len() as i64,
            n_children: owner.children.len() as i64,
            buffers: owner.pointers.as_mut_ptr(),
            children: owner.children.as_mut_ptr(),
            dictionary,
            release: Some(release),
            private_data: Box::into_raw(owner).cast(),
        }
    }
}

struct ArrowOwner {
    pointers: Vec<*const c_void>,
    buffers: Vec<Option<DeviceBytes>>,
    children: Vec<*mut ArrowArray>,
    /// Null, or of a box.
    dictionary: *mut ArrowArray,
}

impl ArrowDeviceArray {
    /// Moves it to where a consumer wants its `ArrowDeviceArray`, which then calls `release`, once.
    ///
    /// The consumer may have kernels queued by then that still read the buffers, and the interface does not say that it waits for them. So
    /// **`release` waits for all that the device does in the primary context** (`cuCtxSynchronize`), once for the array and all below it, on
    /// the thread that calls it; see [`DlTensor::into_raw`].
    ///
    /// # Safety
    /// `target` is valid for a write of an `ArrowDeviceArray`; what was there is not released.
    pub unsafe fn move_to(self, target: *mut c_void) {
        // SAFETY: as the caller promises; the layout is that of the interface.
        unsafe {
            target
                .cast::<ManuallyDrop<Self>>()
                .write(ManuallyDrop::new(self))
        };
    }
}

// SAFETY: it owns all that it points at, and none of that is bound to a thread.
unsafe impl Send for ArrowDeviceArray {}

impl Drop for ArrowDeviceArray {
    fn drop(&mut self) {
        if self.array.release.is_some() {
            // SAFETY: not released yet, as it says so, and nobody else had it.
            unsafe { take_apart(&mut self.array, true) };
        }
    }
}

/// # Safety
/// `array` was made by `ArrowDevice::array`, and was not released.
unsafe extern "C" fn release(array: *mut ArrowArray) {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(array) = array.as_mut() else { return };
        let over = is_over(first_of(array));
        take_apart(array, over);
    }
}

/// The first buffer of an array and those below it. All are of one device.
///
/// # Safety
/// `array` was made by `ArrowDevice::array`, and was not released.
unsafe fn first_of(array: &ArrowArray) -> Option<&DeviceBytes> {
    // SAFETY: as the caller promises; below it are boxes that were leaked in `array`, or moved out: those say that they are released.
    unsafe {
        let owner = &*array.private_data.cast::<ArrowOwner>();
        let below = || {
            let dictionary = Some(&owner.dictionary).filter(|values| !values.is_null());
            let below = owner.children.iter().chain(dictionary);
            let mut below = below.map(|child| &**child);
            below.find_map(|child| child.release.and_then(|_| first_of(child)))
        };
        owner.buffers.iter().flatten().next().or_else(below)
    }
}

/// # Safety
/// As for `first_of`. Uses of its buffers are over, or `over` is false.
unsafe fn take_apart(array: &mut ArrowArray, over: bool) {
    // SAFETY: as the caller promises; boxes were leaked in `array`. A child that the consumer moved out says that it is released.
    unsafe {
        let owner = Box::from_raw(array.private_data.cast::<ArrowOwner>());
        let dictionary = Some(&owner.dictionary).filter(|values| !values.is_null());
        for child in owner.children.iter().chain(dictionary) {
            let mut child = Box::from_raw(*child);
            if child.release.is_some() {
                take_apart(&mut child, over);
            }
        }
        for bytes in owner.buffers.into_iter().flatten() {
            let_go(bytes, over);
        }
        array.release = None;
        array.private_data = ptr::null_mut();
    }
}

/// The ordinal of a CUDA device.
fn device_of(place: Place) -> Result<i32> {
    match place {
        Place::Device(ordinal) if i32::try_from(ordinal).is_ok() => Ok(ordinal.cast_signed()),
        other => Err(Error::new(ErrorKind::InvalidOption {
            what: format!("{other} as memory of a device").into(),
        })),
    }
}
