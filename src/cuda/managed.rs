//! Memory that both sides touch, and whose pages move to whoever does.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use super::context::{Context, Handle};
use super::device::Device;
use super::library::{CUdevice, CUdeviceptr};
use super::stream::Stream;
use crate::buffer::{BlockMut, Memory, Place};
use crate::error::{Error, ErrorKind, Result};

/// A side of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Side {
    /// The host.
    Host,
    /// The device.
    Device,
}

/// What the driver should know of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It is read far more often than written: each side may have a copy.
    ReadMostly,
    /// Its pages should stay on this side, which the other then reads from afar where it can.
    PreferredSide(Side),
    /// This side will touch it: its addresses are to be mapped there, so that no page fault is taken.
    AccessedBy(Side),
}

/// The driver's number for the host.
const HOST: CUdevice = -1;

impl Device {
    /// Managed memory, at [`Place::Managed`]: read into it like into host memory, with any reader, and have kernels read the same
    /// addresses; pages move to whoever touches them. It prefers the device's side.
    ///
    /// For data that both sides touch. What only the device needs is better in its own memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the host must not touch it while the device works (attribute
    /// `CONCURRENT_MANAGED_ACCESS`), [`ErrorKind::OutOfMemory`] if it is more than the device has free now:
    /// the driver would allow it, and move pages back and forth.
    pub fn managed(&self, len: usize) -> Result<BlockMut> {
        const CONCURRENT_MANAGED_ACCESS: u32 = 89;
        const ATTACH_GLOBAL: u32 = 1;
        let context = self.context();
        if context.attribute(CONCURRENT_MANAGED_ACCESS)? == 0 {
            return Err(Error::new(ErrorKind::Unsupported {
                what: "managed memory on a device that does not let the host touch it meanwhile"
                    .into(),
            })
            .by("cuda"));
        }
        let (mut free, _) = self.memory()?;
        if len as u64 > free {
            // What is kept for later is not in use.
            self.trim();
            (free, _) = self.memory()?;
        }
        if len as u64 > free {
            return Err(context.out_of_memory(len, free));
        }
        let mut address = 0;
        // SAFETY: a place for the address. The driver has no allocation of no bytes.
        context.allocate(len, |driver| unsafe {
            driver.cuMemAllocManaged(&mut address, len.max(1), ATTACH_GLOBAL)
        })?;
        let memory = Managed {
            context: context.clone(),
            address: Handle(ptr::with_exposed_provenance_mut(address as usize)),
            len,
        };
        // A hint.
        let _ = self.advise_range(address, len, Advice::PreferredSide(Side::Device));
        Ok(BlockMut::new(memory))
    }

    /// Tells the driver how `bytes`, of [managed](Self::managed) memory, will be used.
    ///
    /// # Errors
    /// [`ErrorKind::Cuda`] if they are not managed memory.
    pub fn advise(&self, bytes: &[u8], advice: Advice) -> Result<()> {
        self.advise_range(bytes.as_ptr().addr() as u64, bytes.len(), advice)
    }

    /// Moves the pages of `bytes`, of [managed](Self::managed) memory, to a side, in the order of `stream`; returns before that is
    /// done.
    ///
    /// # Errors
    /// [`ErrorKind::Cuda`] if they are not managed memory.
    pub fn prefetch(&self, bytes: &[u8], side: Side, stream: &Stream) -> Result<()> {
        let (address, len) = (bytes.as_ptr().addr() as u64, bytes.len());
        if len == 0 {
            return Ok(());
        }
        let to = self.number(side);
        // SAFETY: pages move and no byte changes, so any address is sound; the driver refuses those that it does not know.
        self.context()
            .call(|driver| unsafe { driver.cuMemPrefetchAsync(address, len, to, stream.handle()) })
    }

    fn advise_range(&self, address: CUdeviceptr, len: usize, advice: Advice) -> Result<()> {
        const SET_READ_MOSTLY: u32 = 1;
        const SET_PREFERRED_LOCATION: u32 = 3;
        const SET_ACCESSED_BY: u32 = 5;
        if len == 0 {
            return Ok(());
        }
        let (number, device) = match advice {
            Advice::ReadMostly => (SET_READ_MOSTLY, self.number(Side::Device)),
            Advice::PreferredSide(side) => (SET_PREFERRED_LOCATION, self.number(side)),
            Advice::AccessedBy(side) => (SET_ACCESSED_BY, self.number(side)),
        };
        // SAFETY: advice changes no byte, so any address is sound; the driver refuses those that it does not know.
        self.context()
            .call(|driver| unsafe { driver.cuMemAdvise(address, len, number, device) })
    }

    fn number(&self, side: Side) -> CUdevice {
        match side {
            Side::Host => HOST,
            Side::Device => self.context().device(),
        }
    }
}

/// An allocation of managed memory.
struct Managed {
    context: Arc<Context>,
    address: Handle<*mut u8>,
    len: usize,
}

// SAFETY: given by the driver for as long as this value lives, at an address that holds for the host too, also while the device
// works: that was asked for. It does not move; its pages do, which nobody sees.
unsafe impl Memory for Managed {
    fn place(&self) -> Place {
        Place::Managed(self.context.info().ordinal)
    }
    fn ptr(&self) -> *mut u8 {
        self.address.0
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let address = self.address.0.addr() as CUdeviceptr;
        // SAFETY: given by `cuMemAllocManaged`, given back once. The driver waits for what uses it.
        self.context
            .release(|driver| unsafe { driver.cuMemFree_v2(address) });
    }
}
