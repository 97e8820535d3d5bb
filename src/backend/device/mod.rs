//! A block device as the readers of one engine share it: how much may be in flight there.

mod streams;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use self::streams::{Rates, Trial, Way};
use crate::sys::{self, BlockDevice, Generation};

/// The devices that an engine reads, found out about when they are first met.
#[derive(Debug)]
pub(crate) struct Devices {
    bounds: Bounds,
    /// By the `st_dev` of files on them; partitions share their disk.
    known: Mutex<Vec<(u64, Arc<Device>)>>,
    generation: Generation,
}

impl Devices {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Devices {
            bounds,
            known: Mutex::default(),
            generation: Generation::current(),
        }
    }

    /// Most requests in flight on one of them.
    pub(crate) fn depth(&self) -> usize {
        self.bounds.depth
    }

    /// The device of files with this `st_dev`. Reads sysfs the first time.
    pub(crate) fn of(&self, dev: u64) -> Arc<Device> {
        let find = || {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.iter().find(|(id, _)| *id == dev);
            found.map(|(_, device)| device.clone())
        };
        if !self.generation.is_current() {
            // Of a child; the lock may be held for ever here.
            return Arc::new(Device::new(None, self.bounds));
        }
        if let Some(device) = find() {
            return device;
        }
        let block = sys::block_device(dev);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known.iter().find(|(id, device)| {
            *id == dev || (block.is_some() && device.block.as_ref() == block.as_ref())
        });
        let device = match same {
            Some((_, device)) => device.clone(),
            None => Arc::new(Device::new(block, self.bounds)),
        };
        known.push((dev, device.clone()));
        device
    }

    /// All that have been met.
    pub(crate) fn all(&self) -> Vec<Arc<Device>> {
        if !self.generation.is_current() {
            return Vec::new();
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Arc<Device>> = Vec::new();
        for (_, device) in known.iter() {
            if !all.iter().any(|seen| Arc::ptr_eq(seen, device)) {
                all.push(device.clone());
            }
        }
        all
    }
}

/// Requests and bytes in flight on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Most requests.
    pub(crate) depth: usize,
    /// Most bytes; one request is always allowed.
    pub(crate) bytes: usize,
}

/// A device, or a file system of which no device is known.
#[derive(Debug)]
pub(crate) struct Device {
    block: Option<BlockDevice>,
    bounds: Bounds,
    requests: AtomicUsize,
    bytes: AtomicUsize,
    most_requests: AtomicUsize,
    /// How fast streams are: two floating point numbers by their bits; 0 is not known. Without a lock, as a forked child
    /// may look at it.
    buffered: AtomicU64,
    direct: AtomicU64,
    /// A stream is finding out.
    on_trial: AtomicBool,
}

impl Device {
    pub(crate) fn new(block: Option<BlockDevice>, bounds: Bounds) -> Self {
        Device {
            block,
            bounds,
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            most_requests: AtomicUsize::new(0),
            buffered: AtomicU64::new(0),
            direct: AtomicU64::new(0),
            on_trial: AtomicBool::new(false),
        }
    }

    /// The kernel's name of it, if it is known.
    pub(crate) fn name(&self) -> Option<&str> {
        self.block.as_ref().map(|block| block.name.as_str())
    }

    /// Requests that the kernel's queue holds, if it is known.
    pub(crate) fn queue(&self) -> Option<usize> {
        self.block.as_ref()?.queue
    }

    /// Bytes that the kernel reads ahead of a stream, at most.
    pub(crate) fn read_ahead(&self) -> u64 {
        // The usual setting is 128 KiB, the largest ones are some MiB.
        let told = self.block.as_ref().and_then(|block| block.read_ahead);
        told.unwrap_or(8 << 20)
    }

    /// How fast streams are, if it is known.
    pub(crate) fn rates(&self) -> Option<Rates> {
        let direct = self.direct.load(Ordering::Acquire);
        let buffered = self.buffered.load(Ordering::Relaxed);
        (direct > 0).then(|| Rates {
            buffered: f64::from_bits(buffered),
            direct: f64::from_bits(direct),
        })
    }

    pub(crate) fn set_rates(&self, rates: Rates) {
        let bits = |rate: f64| rate.max(1.0).to_bits();
        self.buffered.store(bits(rates.buffered), Ordering::Relaxed);
        self.direct.store(bits(rates.direct), Ordering::Release);
    }

    /// Lets one stream at a time find out how fast streams are. `true`: the caller's.
    pub(crate) fn begin_trial(&self) -> bool {
        self.rates().is_none() && !self.on_trial.swap(true, Ordering::Relaxed)
    }

    /// The stream that was on trial has ended.
    pub(crate) fn end_trial(&self) {
        self.on_trial.store(false, Ordering::Relaxed);
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Most requests that were in flight at once so far.
    pub(crate) fn most_requests(&self) -> usize {
        self.most_requests.load(Ordering::Relaxed)
    }

    /// Room for one more request of `bytes`, where `share` of the depth is the asker's to use. Who is `alone`, with nothing
    /// in flight, gets it in any case, so that nobody waits for another's completions.
    ///
    /// What it adds is taken back by [`leave`](Self::leave).
    pub(crate) fn enter(&self, bytes: u64, alone: bool, share: Share) -> bool {
        let most = match share {
            Share::Whole => self.bounds.depth,
            Share::Half => (self.bounds.depth / 2).max(1),
        };
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        let flying = self.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
        let fits = requests < most && (flying == 0 || flying + bytes as usize <= self.bounds.bytes);
        if fits || alone {
            self.most_requests
                .fetch_max(requests + 1, Ordering::Relaxed);
            return true;
        }
        self.leave(bytes);
        false
    }

    /// A request of `bytes` is no longer in flight.
    pub(crate) fn leave(&self, bytes: u64) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes as usize, Ordering::Relaxed);
    }
}

/// How much of a device's depth somebody may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    Whole,
    /// Leaves room for those who are waited for.
    Half,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(depth: usize, bytes: usize) -> Device {
        Device::new(None, Bounds { depth, bytes })
    }

    #[test]
    fn requests_and_bytes_are_bounded_but_one_is_always_allowed() {
        let device = device(3, 100);
        assert!(
            device.enter(1000, false, Share::Whole),
            "the first, whatever its size"
        );
        assert!(!device.enter(1, false, Share::Whole), "no bytes left");
        assert!(
            device.enter(1, true, Share::Whole),
            "somebody with nothing in flight"
        );
        device.leave(1000);
        assert!(device.enter(99, false, Share::Whole));
        assert!(!device.enter(1, false, Share::Whole));
        device.leave(99);
        assert!(device.enter(1, false, Share::Whole));
        assert!(device.enter(1, false, Share::Whole));
        assert!(!device.enter(1, false, Share::Whole), "three are in flight");
        assert_eq!(device.most_requests(), 3);
    }

    #[test]
    fn what_nobody_waits_for_gets_half() {
        let device = device(4, 100);
        assert!(device.enter(1, false, Share::Half));
        assert!(device.enter(1, false, Share::Half));
        assert!(!device.enter(1, false, Share::Half));
        assert!(device.enter(1, false, Share::Whole));
    }
}
