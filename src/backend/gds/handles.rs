//! What is registered with cuFile, and given back on every way out.
#![allow(unsafe_code)]

use std::any::Any;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::driver::{Driver, Why};
use super::ffi::{BatchId, Entry, Event, Failure, Handle, To};
use crate::buffer::{BlockMut, Memory, Place};
use crate::cuda::{Device, DeviceBuffer};
use crate::error::{Error, ErrorKind, Result};
use crate::reader::LocalFile;
use crate::sys::{self, Generation};
use crate::version::{FileVersion, Version};

/// A registered file. Fields drop in order, after the handle was given back: the file is closed last.
pub(super) struct FileHandle {
    driver: &'static Driver,
    handle: Handle,
    version: FileVersion,
    generation: Generation,
    file: File,
}

impl FileHandle {
    /// Opens the file once more, past the page cache, and registers it.
    pub(super) fn register(driver: &'static Driver, local: &LocalFile<'_>) -> Result<Self, Why> {
        let file = sys::reopen(local.fd, true).map_err(|error| {
            Why::from(format!(
                "the file cannot be opened for direct reads: {error}"
            ))
        })?;
        let handle = driver
            .library
            .register(file.as_raw_fd())
            .map_err(|failure| Why::from(failure.to_string()))?;
        // From here on it is given back, whatever happens.
        let this = FileHandle {
            driver,
            handle,
            version: local.version,
            generation: Generation::current(),
            file,
        };
        let found = this.found().map_err(|error| Why::from(error.to_string()))?;
        if (found.dev, found.inode) == (local.version.dev, local.version.inode) {
            Ok(this)
        } else {
            Err("opened again, it is another file".into())
        }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    fn found(&self) -> Result<FileVersion> {
        let stat =
            rustix::fs::fstat(&self.file).map_err(|error| Error::io("fstat", error.into()))?;
        Ok(FileVersion::from_stat(&stat))
    }

    /// Compares the file with what was opened: one `fstat`.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] with both versions.
    pub(super) fn check_version(&self) -> Result<()> {
        let found = self.found()?;
        if found == self.version {
            return Ok(());
        }
        let (opened, found) = (Version::File(self.version), Version::File(found));
        Err(Error::new(ErrorKind::Changed { opened, found }))
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        // What a child inherits is the parent's.
        if self.generation.is_current() {
            // SAFETY: registered in `register`; reads hold on to it until they are done.
            unsafe { self.driver.library.deregister(self.handle) };
        }
    }
}

/// Memory of the device that is registered as long as it lives.
pub(super) struct RegisteredBuffer {
    driver: &'static Driver,
    device: Arc<Device>,
    generation: Generation,
    buffer: DeviceBuffer,
}

impl RegisteredBuffer {
    /// Registers a buffer; if cuFile refuses, the buffer comes back as it was.
    pub(super) fn register(
        driver: &'static Driver,
        device: &Arc<Device>,
        buffer: DeviceBuffer,
    ) -> Result<Self, (DeviceBuffer, Error)> {
        let (address, len) = (buffer.address(), buffer.len());
        // SAFETY: memory of this device, whose context is current meanwhile; it is deregistered before it is freed.
        let call = || unsafe { driver.library.register_buffer(address, len) };
        match device.context().call(|_| Ok(call())) {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Err((buffer, failure.into())),
            Err(error) => return Err((buffer, error)),
        }
        driver.add_buffer(address, len as u64);
        Ok(RegisteredBuffer {
            driver,
            device: device.clone(),
            generation: Generation::current(),
            buffer,
        })
    }
}

impl Drop for RegisteredBuffer {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        let address = self.buffer.address();
        self.driver.remove_buffer(address);
        // SAFETY: registered in `register`; whoever reads into it has a block of it, and so this value is still there.
        let call = || unsafe { self.driver.library.deregister_buffer(address) };
        // On a device that is lost as well.
        let outcome = self
            .device
            .context()
            .call(|_| Ok(call()))
            .unwrap_or_else(|_| call());
        if let Err(failure) = outcome {
            tracing::warn!(%failure, "a buffer stays registered with cuFile");
        }
    }
}

// SAFETY: forwards to memory that keeps the contract, and lives as long as it.
unsafe impl Memory for RegisteredBuffer {
    fn place(&self) -> Place {
        self.buffer.place()
    }
    fn ptr(&self) -> *mut u8 {
        self.buffer.ptr()
    }
    fn len(&self) -> usize {
        Memory::len(&self.buffer)
    }
    /// Everybody else finds the buffer.
    fn as_any(&self) -> &dyn Any {
        self.buffer.as_any()
    }
}

/// A batch that is set up; given back when dropped.
pub(super) struct Batch {
    driver: &'static Driver,
    id: BatchId,
    /// Reads that nothing was heard of yet.
    under_way: usize,
}

impl Batch {
    pub(super) fn set_up(driver: &'static Driver, most: usize) -> Result<Self, Failure> {
        let id = driver.library.batch_set_up(most)?;
        Ok(Batch {
            driver,
            id,
            under_way: 0,
        })
    }

    /// # Safety
    /// As [`Library::batch_submit`](super::ffi::Library::batch_submit), for one time.
    pub(super) unsafe fn submit(&mut self, entries: &mut [Entry]) -> Result<(), Failure> {
        // SAFETY: as the caller promises.
        unsafe { self.driver.library.batch_submit(self.id, entries) }?;
        self.under_way = entries.len();
        Ok(())
    }

    /// Waits up to `patience` for reads to end.
    pub(super) fn events<'a>(
        &mut self,
        room: &'a mut [Event],
        patience: std::time::Duration,
    ) -> Result<&'a [Event], Failure> {
        let count = self.driver.library.batch_events(self.id, room, patience)?;
        self.under_way = self.under_way.saturating_sub(count);
        Ok(room.get(..count).unwrap_or_default())
    }

    pub(super) fn cancel(&self) -> Result<(), Failure> {
        self.driver.library.batch_cancel(self.id)
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.under_way > 0 {
            // Nobody says that a batch may be destroyed with reads under way: it is left, as their memory is.
            tracing::warn!(
                under_way = self.under_way,
                "a batch of cuFile is left to itself"
            );
            return;
        }
        // SAFETY: set up in `set_up`, and nothing of it is under way.
        unsafe { self.driver.library.batch_destroy(self.id) };
    }
}

/// The device memory behind a block, if cuFile can write there: of this crate, on this device, not from a pool of the driver's.
pub(super) fn device_buffer<'a>(block: &'a BlockMut, device: &Device) -> Option<&'a DeviceBuffer> {
    let buffer = block.memory().as_any().downcast_ref::<DeviceBuffer>()?;
    (block.place() == device.place() && !buffer.is_stream_ordered()).then_some(buffer)
}

/// Where the next unfilled byte of a block is.
pub(super) fn unfilled(driver: &Driver, block: &BlockMut) -> To {
    driver.place(block.unfilled_ptr().addr() as u64, block.remaining() as u64)
}
