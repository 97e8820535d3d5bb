//! Where GPUs and drives are relative to each other, as sysfs tells it.
//!
//! A drive writes into a GPU's memory fastest where both hang below one PCIe switch; through the processor it takes what the root
//! complex gives, and between sockets least. Nothing here asks CUDA.

mod address;
mod sysfs;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

pub use address::PciAddress;
use sysfs::Tree;

/// How far it is from one device to another; nearer ones are less.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Distance {
    /// Below one PCIe switch: transfers need not pass the processor.
    SameSwitch,
    /// Below one root complex of a processor.
    SameRootComplex,
    /// At one NUMA node, below different root complexes.
    SameNode,
    /// At different NUMA nodes.
    AcrossNodes,
    /// sysfs does not tell.
    Unknown,
}

/// Where a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// From the root complex down to the device, as sysfs names them; empty: not known.
    chain: Vec<String>,
    numa_node: Option<u32>,
    cpus: Vec<u32>,
}

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    address: PciAddress,
    location: Location,
}

/// An NVMe drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    name: String,
    location: Location,
}

/// GPUs and drives of this machine; see [`topology`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    root: PathBuf,
    gpus: Vec<Gpu>,
    drives: Vec<Drive>,
}

/// Reads where the GPUs and NVMe drives of this machine are, from `/sys`.
///
/// Costs a few small files for each device. What cannot be read is left out or [`Unknown`](Distance::Unknown): in a container, sysfs may show
/// less than there is.
///
/// ```
/// let topology = feedwater::cuda::topology();
/// for gpu in topology.gpus() {
///     for drive in topology.drives() {
///         println!("{} {} {}", gpu.address(), drive.name(), gpu.distance_to(drive));
///     }
/// }
/// ```
pub fn topology() -> Topology {
    Topology::read("/sys")
}

impl Topology {
    /// The same from another root: a copy of `/sys`, or one that a container has elsewhere.
    pub fn read(root: impl AsRef<Path>) -> Self {
        // Links in it are resolved, so its own name has to be.
        let root = root.as_ref();
        let root = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
        let tree = Tree { root: &root };
        Topology {
            gpus: tree.gpus(),
            drives: tree.drives(),
            root,
        }
    }

    /// The GPUs, by address.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The drives, by name.
    pub fn drives(&self) -> &[Drive] {
        &self.drives
    }

    /// The GPU with this address, if it is there.
    pub fn gpu(&self, address: PciAddress) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.address == address)
    }

    /// The drives that hold the files of a device number (`st_dev`), through partitions, device mapper and RAID. Empty if one of the
    /// devices below is none of the drives that are known.
    pub fn drives_of(&self, device: u64) -> Vec<&Drive> {
        let tree = Tree { root: &self.root };
        let names = tree.disks_of(device).unwrap_or_default();
        let find = |name: &String| self.drives.iter().find(|drive| drive.name == *name);
        names
            .iter()
            .map(find)
            .collect::<Option<_>>()
            .unwrap_or_default()
    }

    /// The distance from a GPU to the farthest of the drives that hold the files of a device number.
    pub fn distance(&self, gpu: PciAddress, device: u64) -> Distance {
        let Some(gpu) = self.gpu(gpu) else {
            return Distance::Unknown;
        };
        let drives = self.drives_of(device);
        let farthest = drives.iter().map(|drive| gpu.distance_to(drive)).max();
        farthest.unwrap_or(Distance::Unknown)
    }
}

impl Gpu {
    /// Its PCI address.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// How far a drive is from it.
    pub fn distance_to(&self, drive: &Drive) -> Distance {
        self.location.distance_to(&drive.location)
    }
}

impl Drive {
    /// As the kernel calls it: `nvme0n1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }
}

impl Location {
    /// The NUMA node, if the system tells.
    pub fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    /// The processors next to it, in order; empty: not known. For the affinity of threads that serve it.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// How far another device is.
    pub fn distance_to(&self, other: &Location) -> Distance {
        let bridges = |location: &Location| location.chain.len().saturating_sub(1);
        let (mine, theirs) = (bridges(self), bridges(other));
        if mine == 0 || theirs == 0 {
            return Distance::Unknown;
        }
        let pairs = self
            .chain
            .iter()
            .take(mine)
            .zip(other.chain.iter().take(theirs));
        match pairs.take_while(|(mine, theirs)| mine == theirs).count() {
            0 => match (self.numa_node, other.numa_node) {
                (Some(mine), Some(theirs)) if mine == theirs => Distance::SameNode,
                (Some(_), Some(_)) => Distance::AcrossNodes,
                _ => Distance::Unknown,
            },
            // The root complex alone.
            1 => Distance::SameRootComplex,
            // One port of it, below which there must be a switch.
            _ => Distance::SameSwitch,
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::SameSwitch => "same PCIe switch",
            Distance::SameRootComplex => "same root complex",
            Distance::SameNode => "same NUMA node",
            Distance::AcrossNodes => "across NUMA nodes",
            Distance::Unknown => "unknown",
        })
    }
}
