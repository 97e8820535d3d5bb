//! A made-up device that tests can look into, and an engine that does what a test tells it to.
#![allow(unsafe_code, dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use feedwater::{
    Batch, Block, BlockMut, Dest, DeviceBytes, Error, ErrorKind, Failed, HostMemory, Limits,
    Memory, Pending, Place, Priority, ReadInto, ReadOptions, Reader, Result, Source, Started,
    Transfer, TransferDone, Version,
};

pub const DEVICE: Place = Place::Device(7);

/// Long enough for any machine; reached only when a test fails.
pub const SOON: Duration = Duration::from_secs(20);

/// Bytes that differ at every offset that tests could mix up.
pub fn data(len: usize) -> Bytes {
    (0..len)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect::<Vec<_>>()
        .into()
}

/// Memory of a device: its address means nothing, its bytes are written by copies alone.
pub struct DeviceMemory {
    place: Place,
    bytes: Mutex<Vec<u8>>,
    len: usize,
}

// SAFETY: the address is opaque and never dereferenced; the bytes are behind a lock and do not move.
unsafe impl Memory for DeviceMemory {
    fn place(&self) -> Place {
        self.place
    }
    fn ptr(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(0x7000_0000_0000)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl DeviceMemory {
    pub fn new(place: Place, len: usize) -> Self {
        let bytes = Mutex::new(vec![0xEE; len]);
        DeviceMemory { place, bytes, len }
    }
}

pub fn device_block(place: Place, len: usize) -> BlockMut {
    BlockMut::new(DeviceMemory::new(place, len))
}

/// Writes `bytes` where the block is filled next, as a device's copy engine would.
pub fn device_put(block: &mut BlockMut, bytes: &[u8]) {
    let at = block.offset_in_memory() + block.filled_len();
    let memory = block.memory().as_any().downcast_ref::<DeviceMemory>();
    memory.unwrap().bytes.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    assert!(bytes.len() <= block.remaining());
    // SAFETY: written above, and they fit.
    unsafe { block.advance(bytes.len()) };
}

/// What is in a device's memory.
pub fn device_get(bytes: &DeviceBytes) -> Vec<u8> {
    let at = bytes.offset_in_memory();
    let memory = bytes.memory().as_any().downcast_ref::<DeviceMemory>();
    memory.unwrap().bytes.lock().unwrap()[at..at + bytes.len()].to_vec()
}

/// The same of a delivered block, which must be the device's.
pub fn on_device(block: &Block) -> Vec<u8> {
    match block {
        Block::Device(bytes) => device_get(bytes),
        other => panic!("not on the device: {other:?}"),
    }
}

/// Counts staging blocks that exist.
#[derive(Debug, Default)]
pub struct Gauge {
    live: AtomicUsize,
    peak: AtomicUsize,
    pub largest: AtomicUsize,
}

impl Gauge {
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }
}

struct Counted {
    memory: HostMemory,
    gauge: Arc<Gauge>,
}

// SAFETY: forwards to `HostMemory`.
unsafe impl Memory for Counted {
    fn place(&self) -> Place {
        Place::Pinned
    }
    fn ptr(&self) -> *mut u8 {
        self.memory.ptr()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One copy that the device was asked for.
#[derive(Debug)]
pub struct Copy {
    pub from: Bytes,
    pub to: BlockMut,
    pub done: TransferDone,
}

impl Copy {
    pub fn complete(mut self) {
        device_put(&mut self.to, &self.from);
        // The staging block goes last: when the next piece begins, this one counts as done.
        self.done.finish(Ok(self.to));
    }

    pub fn fail(self, error: Error) {
        drop(self.from);
        self.done.finish(Err(Failed {
            error,
            dest: Some(self.to),
        }));
    }
}

pub fn device_error() -> Error {
    Error::io("copy", std::io::Error::from_raw_os_error(5))
}

type OnCopy = dyn Fn(usize, Copy) + Send + Sync;

/// A device whose copies do what the test says: `on_copy` gets the number of the copy and the copy.
pub struct Device {
    pub gauge: Arc<Gauge>,
    on_copy: Box<OnCopy>,
    copies: AtomicUsize,
    pub allocations: AtomicUsize,
    /// Most bytes of one allocation and of one staging block.
    pub caps: (usize, usize),
    pub panics: Option<&'static str>,
    dropped: Option<Sender<()>>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Device")
    }
}

impl Device {
    pub fn new(on_copy: impl Fn(usize, Copy) + Send + Sync + 'static) -> Self {
        Device {
            gauge: Arc::default(),
            on_copy: Box::new(on_copy),
            copies: AtomicUsize::new(0),
            allocations: AtomicUsize::new(0),
            caps: (usize::MAX, usize::MAX),
            panics: None,
            dropped: None,
        }
    }

    /// Copies at once, inside the call.
    pub fn instant() -> Self {
        Device::new(|_, copy| copy.complete())
    }

    /// Hands copies to the test.
    pub fn by_hand() -> (Self, Receiver<Copy>) {
        let (tx, rx) = channel();
        let tx = Mutex::new(tx);
        let device = Device::new(move |_, copy| {
            // A test that has ended drops the rest.
            let _ = tx.lock().unwrap().send(copy);
        });
        (device, rx)
    }

    /// Hears when the device is dropped, which the staging thread keeps alive.
    pub fn dropped(&mut self) -> Receiver<()> {
        let (tx, rx) = channel();
        self.dropped = Some(tx);
        rx
    }

    pub fn copies(&self) -> usize {
        self.copies.load(Ordering::SeqCst)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Some(tx) = &self.dropped {
            let _ = tx.send(());
        }
    }
}

fn refuse(len: usize, cap: usize) -> Result<()> {
    if len <= cap {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfMemory {
        wanted: len as u64,
        cap: cap as u64,
    }))
}

impl Transfer for Device {
    fn reaches(&self, place: Place) -> bool {
        assert!(self.panics != Some("reaches"), "as the test wants it");
        place == DEVICE
    }

    fn allocate(&self, place: Place, len: usize) -> Result<BlockMut> {
        assert!(self.panics != Some("allocate"), "as the test wants it");
        refuse(len, self.caps.0)?;
        self.allocations.fetch_add(1, Ordering::SeqCst);
        Ok(device_block(place, len))
    }

    fn staging(&self, len: usize) -> Result<BlockMut> {
        assert!(self.panics != Some("staging"), "as the test wants it");
        refuse(len, self.caps.1)?;
        let gauge = self.gauge.clone();
        let memory = HostMemory::new(len)?;
        let live = gauge.live.fetch_add(1, Ordering::SeqCst) + 1;
        gauge.peak.fetch_max(live, Ordering::SeqCst);
        gauge.largest.fetch_max(len, Ordering::SeqCst);
        Ok(BlockMut::new(Counted { memory, gauge }))
    }

    fn copy(&self, from: Bytes, to: BlockMut, done: TransferDone) {
        let number = self.copies.fetch_add(1, Ordering::SeqCst);
        (self.on_copy)(number, Copy { from, to, done });
    }
}

/// A batch that the engine below was given.
#[derive(Debug)]
pub struct Submitted {
    pub reads: Vec<Started>,
    pub options: ReadOptions,
    data: Bytes,
}

impl Submitted {
    /// Where its reads begin.
    pub fn starts(&self) -> Vec<u64> {
        self.reads
            .iter()
            .map(|(read, _)| read.range.start)
            .collect()
    }

    pub fn priority(&self) -> Priority {
        self.options.priority
    }

    /// Finishes all reads, the last first.
    pub fn fulfil(self) {
        for (read, ticket) in self.reads.into_iter().rev() {
            let (start, end) = (read.range.start as usize, read.range.end as usize);
            let bytes = self.data.slice(start..end);
            ticket.finish(match read.dest {
                Dest::Into(mut block) => {
                    block.put(&bytes).unwrap();
                    Ok(block.freeze())
                }
                Dest::Any(_) => Ok(bytes.into()),
                _ => Ok(Bytes::new().into()),
            });
        }
    }

    pub fn fail(self, error: &Error) {
        for (read, ticket) in self.reads {
            ticket.finish(Err(Failed::new(error.clone(), read.dest)));
        }
    }
}

/// A plain engine that hands its batches to the test.
#[derive(Debug)]
pub struct ByHand {
    source: Source,
    data: Bytes,
    to: Mutex<Sender<Submitted>>,
}

impl ByHand {
    pub fn new(data: Bytes, limits: Limits) -> (Self, Receiver<Submitted>) {
        let (tx, rx) = channel();
        let size = data.len() as u64;
        let reader = ByHand {
            source: Source::new("by hand", "by-hand", Version::immutable(size), limits),
            data,
            to: Mutex::new(tx),
        };
        (reader, rx)
    }
}

impl Reader for ByHand {
    fn source(&self) -> &Source {
        &self.source
    }

    fn submit(&self, batch: Batch) -> Pending {
        let (reads, options, pending) = batch.start(&self.source);
        let data = self.data.clone();
        // With nobody listening any more, dropping the tickets is the answer.
        let _ = self.to.lock().unwrap().send(Submitted {
            reads,
            options,
            data,
        });
        pending
    }

    fn read_now(&self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        for read in reads {
            let range = read.range();
            self.source.check(&range)?;
            let bytes = &self.data[range.start as usize..range.end as usize];
            read.buf.copy_from_slice(bytes);
        }
        Ok(())
    }
}
