//! Where GPUs and drives are relative to each other, as sysfs tells it.
//!
//! A drive writes into a GPU's memory fastest where both hang below one PCIe switch; through the processor it takes what the root
//! complex gives, and between sockets least. Nothing here asks CUDA.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Address of a PCI function: domain, bus, device, function.
///
/// ```
/// use feedwater::cuda::PciAddress;
///
/// let address: PciAddress = "00000000:3B:00.0".parse()?; // as nvidia-smi writes it
/// assert_eq!(address.to_string(), "0000:3b:00.0"); // as the kernel does
/// # Ok::<(), feedwater::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

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

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// `domain:bus:device.function`, in hexadecimal digits of either case.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`].
    fn from_str(text: &str) -> Result<Self, Error> {
        parse_address(text).ok_or_else(|| {
            let what = format!("{text:?} is no PCI address (domain:bus:device.function)");
            Error::new(ErrorKind::InvalidOption { what: what.into() })
        })
    }
}

fn parse_address(text: &str) -> Option<PciAddress> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |digits: &str, lengths: std::ops::RangeInclusive<usize>, most: u32| {
        let hex = lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten();
        number.filter(|number| *number <= most)
    };
    Some(PciAddress {
        domain: number(domain, 4..=8, u32::MAX)?,
        bus: u8::try_from(number(bus, 2..=2, 0xff)?).ok()?,
        device: u8::try_from(number(device, 2..=2, 31)?).ok()?,
        function: u8::try_from(number(function, 1..=1, 7)?).ok()?,
    })
}

/// Whether sysfs calls a root complex so: `pci0000:3a`.
fn is_root_complex(name: &str) -> bool {
    let number = name
        .strip_prefix("pci")
        .and_then(|name| name.split_once(':'));
    let hex = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    number.is_some_and(|(domain, bus)| hex(domain) && hex(bus))
}

const NVIDIA: u32 = 0x10de;
/// The upper byte of the class of displays and 3D controllers.
const DISPLAY: u32 = 0x03;
/// More than any machine has in a folder of sysfs, and bytes in a file of it.
const MOST_ENTRIES: usize = 4096;
const MOST_BYTES: u64 = 4096;
/// More than processors and nodes have for numbers.
const MOST_CPU: u32 = 1 << 14;
const MOST_NODE: u32 = 1 << 10;
/// More than device mapper stacks anywhere.
const MOST_LAYERS: usize = 8;
const MOST_DISKS: usize = 64;

/// A sysfs. Whatever is in it, reading ends, takes little memory, and what makes no sense is not there.
struct Tree<'a> {
    root: &'a Path,
}

impl Tree<'_> {
    fn gpus(&self) -> Vec<Gpu> {
        let folder = self.root.join("bus/pci/devices");
        let gpu = |name: String| {
            let address = parse_address(&name)?;
            let path = self.resolve(&folder.join(name))?;
            let class = hexadecimal(&path.join("class"))?;
            let vendor = hexadecimal(&path.join("vendor"))?;
            (class >> 16 == DISPLAY && vendor == NVIDIA).then(|| Gpu {
                address,
                location: self.location(&path),
            })
        };
        let mut gpus: Vec<_> = entries(&folder).into_iter().filter_map(gpu).collect();
        gpus.sort_by_key(|gpu| gpu.address);
        gpus
    }

    fn drives(&self) -> Vec<Drive> {
        let folder = self.root.join("block");
        let drive = |name: String| {
            // Of several ways to one drive, each is an entry with a `c` in it as well.
            let rest = name.strip_prefix("nvme")?;
            if rest.contains('c') {
                return None;
            }
            let path = self.resolve(&folder.join(&name));
            let location = path.and_then(|path| self.controller(&path));
            let location = location.map(|path| self.location(&path));
            Some(Drive {
                name,
                location: location.unwrap_or_default(),
            })
        };
        let mut drives: Vec<_> = entries(&folder).into_iter().filter_map(drive).collect();
        drives.sort_by(|one, other| one.name.cmp(&other.name));
        drives
    }

    /// What a drive hangs below: itself, or the one controller of its subsystem.
    fn controller(&self, drive: &Path) -> Option<PathBuf> {
        if !self.chain(drive).is_empty() {
            return Some(drive.to_path_buf());
        }
        let subsystem = drive.parent()?;
        let is_controller = |name: &String| {
            let number = name.strip_prefix("nvme");
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let mut names = entries(subsystem).into_iter().filter(is_controller);
        let only = names.next().filter(|_| names.next().is_none())?;
        self.resolve(&subsystem.join(only))
    }

    fn location(&self, path: &Path) -> Location {
        let chain = self.chain(path);
        // The folder of the PCI function itself.
        let mut function = path;
        while let Some(name) = function.file_name().and_then(|name| name.to_str())
            && Some(name) != chain.last().map(String::as_str)
        {
            let Some(parent) = function.parent() else {
                break;
            };
            function = parent;
        }
        if chain.is_empty() {
            return Location::default();
        }
        let node = text(&function.join("numa_node")).and_then(|text| text.parse().ok());
        let cpus = text(&function.join("local_cpulist"));
        Location {
            chain,
            numa_node: node
                .filter(|node| *node < MOST_NODE)
                .or_else(|| self.only_node()),
            cpus: cpus
                .and_then(|text| list(&text, MOST_CPU))
                .unwrap_or_default(),
        }
    }

    /// The node of a machine that has one: devices often have no number there.
    fn only_node(&self) -> Option<u32> {
        let online = text(&self.root.join("devices/system/node/online"))?;
        match list(&online, MOST_NODE)?.as_slice() {
            [node] => Some(*node),
            _ => None,
        }
    }

    /// The names from the root complex down to the lowest PCI function of a path.
    fn chain(&self, path: &Path) -> Vec<String> {
        let Ok(below) = path.strip_prefix(self.root) else {
            return Vec::new();
        };
        let name = |component| match component {
            Component::Normal(name) => name.to_str(),
            _ => None,
        };
        let is_pci = |name: &&str| is_root_complex(name) || parse_address(name).is_some();
        let names = below.components().filter_map(name);
        let names = names.skip_while(|name| !is_root_complex(name));
        let mut chain: Vec<_> = names.take_while(is_pci).map(String::from).collect();
        while chain.last().is_some_and(|name| is_root_complex(name)) {
            chain.pop();
        }
        chain
    }

    /// The whole disks that a device number lies on. `None`: not known.
    fn disks_of(&self, device: u64) -> Option<Vec<String>> {
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        let path = self.resolve(&self.root.join("dev/block").join(number))?;
        let mut disks = Vec::new();
        let mut seen = HashSet::new();
        let mut layer = vec![path];
        for _ in 0..MOST_LAYERS {
            let mut below = Vec::new();
            for path in layer {
                let disk = match path.join("partition").exists() {
                    true => path.parent()?.to_path_buf(),
                    false => path,
                };
                if !seen.insert(disk.clone()) {
                    continue;
                }
                if seen.len() > MOST_DISKS {
                    return None;
                }
                let slaves = disk.join("slaves");
                let names = entries(&slaves);
                if names.is_empty() {
                    disks.push(disk.file_name()?.to_str()?.to_owned());
                }
                for name in names {
                    below.push(self.resolve(&slaves.join(name))?);
                }
            }
            if below.is_empty() {
                return Some(disks);
            }
            layer = below;
        }
        None
    }

    /// Where a path leads, if that is within this sysfs.
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let path = path.canonicalize().ok()?;
        path.starts_with(self.root).then_some(path)
    }
}

/// Names in a folder; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<String> {
    let Ok(found) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let found = found.take(MOST_ENTRIES);
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    found.filter_map(name).collect()
}

/// What a small file says.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    let open = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = open
        .ok()
        .filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))?;
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn hexadecimal(path: &Path) -> Option<u32> {
    u32::from_str_radix(text(path)?.strip_prefix("0x")?, 16).ok()
}

/// Numbers as the kernel lists them: `0-3,8`.
fn list(text: &str, most: u32) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= most {
            return None;
        }
        numbers.extend(first..=last);
        if numbers.len() > most as usize {
            return None;
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A made-up sysfs.
    struct Made {
        dir: tempfile::TempDir,
    }

    impl Made {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for folder in ["bus/pci/devices", "block", "dev/block", "devices"] {
                fs::create_dir_all(dir.path().join(folder)).unwrap();
            }
            Made { dir }
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        fn link(&self, from: &str, to: &str) {
            let from = self.dir.path().join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            symlink(self.dir.path().join(to), from).unwrap();
        }

        /// A PCI function below `chain`.
        fn function(&self, chain: &str, class: &str, vendor: &str, node: &str) {
            let address = chain.rsplit('/').next().unwrap();
            self.write(&format!("devices/{chain}/class"), class);
            self.write(&format!("devices/{chain}/vendor"), vendor);
            self.write(&format!("devices/{chain}/numa_node"), node);
            self.write(&format!("devices/{chain}/local_cpulist"), "0-2,8");
            self.link(
                &format!("bus/pci/devices/{address}"),
                &format!("devices/{chain}"),
            );
        }

        fn gpu(&self, chain: &str, node: &str) {
            self.function(chain, "0x030200", "0x10de", node);
        }

        fn drive(&self, chain: &str, node: &str, number: u32) {
            self.function(chain, "0x010802", "0x144d", node);
            let name = format!("nvme{number}n1");
            let at = format!("devices/{chain}/nvme/nvme{number}/{name}");
            self.write(&format!("{at}/size"), "1000");
            self.link(&format!("block/{name}"), &at);
            self.link(&format!("dev/block/259:{}", number * 10), &at);
            self.write(&format!("{at}/{name}p1/partition"), "1");
            self.link(
                &format!("dev/block/259:{}", number * 10 + 1),
                &format!("{at}/{name}p1"),
            );
        }

        fn read(&self) -> Topology {
            Topology::read(self.dir.path())
        }
    }

    fn device(major: u32, minor: u32) -> u64 {
        libc::makedev(major, minor)
    }

    const GPU: &str = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3d:00.0";

    fn gpu_of(topology: &Topology) -> &Gpu {
        topology.gpu("0000:3d:00.0".parse().unwrap()).unwrap()
    }

    #[test]
    fn each_distance() {
        let made = Made::new();
        made.gpu(GPU, "0");
        let near = "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:10.0/0000:40:00.0";
        made.drive(near, "0", 0);
        made.drive("pci0000:3a/0000:3a:02.0/0000:50:00.0", "0", 1);
        made.drive("pci0000:5d/0000:5d:02.0/0000:5e:00.0", "0", 2);
        made.drive("pci0000:ae/0000:ae:00.0/0000:af:00.0", "1", 3);
        made.drive("pci0000:d7/0000:d7:00.0/0000:d8:00.0", "-1", 4);
        let topology = made.read();
        let gpu = gpu_of(&topology);
        let distances: Vec<_> = topology
            .drives()
            .iter()
            .map(|drive| gpu.distance_to(drive))
            .collect();
        use Distance::*;
        assert_eq!(
            distances,
            [SameSwitch, SameRootComplex, SameNode, AcrossNodes, Unknown]
        );
        assert!(distances.is_sorted());
        assert_eq!(gpu.location().cpus(), [0, 1, 2, 8]);
        assert_eq!(gpu.location().numa_node(), Some(0));
        // By the file, on a partition of the second drive.
        assert_eq!(
            topology.distance(gpu.address(), device(259, 11)),
            SameRootComplex
        );
        assert_eq!(topology.distance(gpu.address(), device(259, 40)), Unknown);
        assert_eq!(
            topology.distance("0000:00:00.0".parse().unwrap(), device(259, 0)),
            Unknown
        );
    }

    #[test]
    fn only_gpus_of_nvidia_count() {
        let made = Made::new();
        made.gpu(GPU, "0");
        made.function("pci0000:00/0000:00:02.0", "0x030000", "0x8086", "0");
        made.function("pci0000:00/0000:00:03.0", "0x0c0330", "0x10de", "0");
        made.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", "0");
        let topology = made.read();
        let addresses: Vec<_> = topology
            .gpus()
            .iter()
            .map(|gpu| gpu.address().to_string())
            .collect();
        assert_eq!(addresses, ["0000:01:00.0", "0000:3d:00.0"]);
    }

    #[test]
    fn a_machine_with_one_node_need_not_number_it() {
        let made = Made::new();
        made.gpu(GPU, "-1");
        made.drive("pci0000:5d/0000:5d:02.0/0000:5e:00.0", "-1", 0);
        let topology = made.read();
        assert_eq!(
            gpu_of(&topology).distance_to(&topology.drives()[0]),
            Distance::Unknown
        );
        made.write("devices/system/node/online", "0");
        let topology = made.read();
        assert_eq!(
            gpu_of(&topology).distance_to(&topology.drives()[0]),
            Distance::SameNode
        );
        made.write("devices/system/node/online", "0-1");
        assert_eq!(made.read().drives()[0].location().numa_node(), None);
    }

    #[test]
    fn drives_behind_a_volume_manager_and_below_a_bridge_of_their_own() {
        let made = Made::new();
        made.gpu(GPU, "0");
        // VMD has a root complex below a function of the first one.
        made.drive(
            "pci0000:3a/0000:3a:05.5/pci10000:80/10000:80:03.0/10000:81:00.0",
            "0",
            0,
        );
        made.drive("pci0000:ae/0000:ae:00.0/0000:af:00.0", "1", 1);
        made.write("devices/virtual/block/dm-0/size", "1");
        made.link("dev/block/253:0", "devices/virtual/block/dm-0");
        made.link(
            "devices/virtual/block/dm-0/slaves/nvme0n1p1",
            "dev/block/259:1",
        );
        let topology = made.read();
        let gpu = gpu_of(&topology).address();
        assert_eq!(
            topology.distance(gpu, device(253, 0)),
            Distance::SameRootComplex
        );
        // The farthest of two counts.
        made.link(
            "devices/virtual/block/dm-0/slaves/nvme1n1",
            "dev/block/259:10",
        );
        assert_eq!(
            topology.distance(gpu, device(253, 0)),
            Distance::AcrossNodes
        );
        let mut names: Vec<_> = topology
            .drives_of(device(253, 0))
            .iter()
            .map(|drive| drive.name())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["nvme0n1", "nvme1n1"]);
        // Something that is no such drive is below it too.
        made.write("devices/virtual/block/loop0/size", "1");
        made.link(
            "devices/virtual/block/dm-0/slaves/loop0",
            "devices/virtual/block/loop0",
        );
        assert_eq!(topology.distance(gpu, device(253, 0)), Distance::Unknown);
    }

    #[test]
    fn a_drive_with_several_ways_to_it() {
        let made = Made::new();
        made.gpu(GPU, "0");
        let subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0";
        made.write(&format!("{subsystem}/nvme0n1/size"), "1");
        made.link("block/nvme0n1", &format!("{subsystem}/nvme0n1"));
        let controller = "devices/pci0000:3a/0000:3a:02.0/0000:50:00.0/nvme/nvme0";
        made.write(&format!("{controller}/nvme0c0n1/size"), "1");
        made.link("block/nvme0c0n1", &format!("{controller}/nvme0c0n1"));
        made.link(&format!("{subsystem}/nvme0"), controller);
        let topology = made.read();
        assert_eq!(topology.drives().len(), 1);
        assert_eq!(
            gpu_of(&topology).distance_to(&topology.drives()[0]),
            Distance::SameRootComplex
        );
        // With two controllers nobody knows which one will be taken.
        made.write(
            "devices/pci0000:ae/0000:ae:00.0/0000:af:00.0/nvme/nvme1/x",
            "1",
        );
        made.link(
            &format!("{subsystem}/nvme1"),
            "devices/pci0000:ae/0000:ae:00.0/0000:af:00.0/nvme/nvme1",
        );
        let topology = made.read();
        assert_eq!(
            gpu_of(&topology).distance_to(&topology.drives()[0]),
            Distance::Unknown
        );
    }

    #[test]
    fn nothing_there_is_nothing_known() {
        let empty = Topology::read("/nonexistent/sys");
        assert!(empty.gpus().is_empty() && empty.drives().is_empty());
        assert!(empty.drives_of(device(259, 0)).is_empty());
        assert_eq!(
            empty.distance("0000:01:00.0".parse().unwrap(), 7),
            Distance::Unknown
        );
        // Whatever this machine has.
        let here = topology();
        for drive in here.drives() {
            assert_eq!(
                drive.location().distance_to(&Location::default()),
                Distance::Unknown
            );
        }
    }

    #[test]
    fn damaged_and_hostile_trees_end_as_unknown() {
        let made = Made::new();
        made.gpu(GPU, "0");
        let at = |path: &str| made.dir.path().join(path);
        // Numbers that are none, are too large, or make too many.
        for (node, cpus) in [
            ("", ""),
            ("x", "x"),
            ("99999999999", "0-4294967295"),
            ("4000", "5-2"),
            ("-7", "1,,2-"),
            ("0\n0", "0-16384"),
        ] {
            fs::write(at(&format!("devices/{GPU}/numa_node")), node).unwrap();
            fs::write(at(&format!("devices/{GPU}/local_cpulist")), cpus).unwrap();
            let topology = made.read();
            let location = gpu_of(&topology).location();
            assert_eq!(
                (location.numa_node(), location.cpus()),
                (None, &[][..]),
                "{node:?} {cpus:?}"
            );
        }
        // A pipe that nobody writes to, a folder, bytes that are no text, a file without end.
        fs::remove_file(at(&format!("devices/{GPU}/numa_node"))).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            at(&format!("devices/{GPU}/numa_node")),
            rustix::fs::Mode::RWXU,
        )
        .unwrap();
        fs::remove_file(at(&format!("devices/{GPU}/local_cpulist"))).unwrap();
        symlink("/dev/zero", at(&format!("devices/{GPU}/local_cpulist"))).unwrap();
        let topology = made.read();
        assert_eq!(gpu_of(&topology).location().numa_node(), None);
        assert!(gpu_of(&topology).location().cpus().is_empty());
        fs::write(at(&format!("devices/{GPU}/class")), [0xff; 9000]).unwrap();
        assert!(made.read().gpus().is_empty());
        fs::remove_file(at(&format!("devices/{GPU}/class"))).unwrap();
        fs::create_dir(at(&format!("devices/{GPU}/class"))).unwrap();
        assert!(made.read().gpus().is_empty());
        // Links in a circle, to nowhere, and out of the tree; names that are no addresses.
        symlink(at("block/nvme8n1"), at("block/nvme9n1")).unwrap();
        symlink(at("block/nvme9n1"), at("block/nvme8n1")).unwrap();
        symlink("/nonexistent", at("block/nvme7n1")).unwrap();
        symlink("/", at("block/nvme6n1")).unwrap();
        symlink("/", at("bus/pci/devices/0000:ff:00.0")).unwrap();
        for name in [
            "0000:zz:00.0",
            "0000:00:20.0",
            "0000:00:00.8",
            "::.",
            "\u{fffd}",
            "0000:3d:00.0.0",
            "00000:1:00.0",
        ] {
            fs::create_dir(at(&format!("bus/pci/devices/{name}"))).unwrap();
        }
        let topology = made.read();
        assert!(topology.gpus().is_empty());
        assert_eq!(topology.drives().len(), 4);
        assert!(
            topology
                .drives()
                .iter()
                .all(|drive| drive.location() == &Location::default())
        );
        // Devices that lie on each other.
        made.write("devices/virtual/block/dm-0/size", "1");
        made.write("devices/virtual/block/dm-1/size", "1");
        made.link(
            "devices/virtual/block/dm-0/slaves/dm-1",
            "devices/virtual/block/dm-1",
        );
        made.link(
            "devices/virtual/block/dm-1/slaves/dm-0",
            "devices/virtual/block/dm-0",
        );
        made.link("dev/block/253:0", "devices/virtual/block/dm-0");
        let root = made.dir.path().canonicalize().unwrap();
        let tree = Tree { root: &root };
        assert_eq!(tree.disks_of(device(253, 0)), Some(Vec::new()));
        assert!(topology.drives_of(device(253, 0)).is_empty());
        // More of them than anybody has.
        for i in 0..MOST_DISKS + 2 {
            made.write(&format!("devices/virtual/block/x{i}/size"), "1");
            made.link(
                &format!("devices/virtual/block/wide/slaves/x{i}"),
                &format!("devices/virtual/block/x{i}"),
            );
        }
        made.link("dev/block/253:9", "devices/virtual/block/wide");
        assert_eq!(tree.disks_of(device(253, 9)), None);
        assert_eq!(tree.disks_of(device(1, 2)), None);
    }

    #[test]
    fn addresses() {
        for (text, wanted) in [
            ("0000:3d:00.0", Some("0000:3d:00.0")),
            ("00000000:3D:1f.7", Some("0000:3d:1f.7")),
            ("10000:81:00.0", Some("10000:81:00.0")),
            ("3d:00.0", None),
            ("0000:3d:00", None),
            ("0000:3d:20.0", None),
            ("0000:+d:00.0", None),
            ("0000:3d:00.-", None),
            ("000000000:3d:00.0", None),
        ] {
            let parsed = text.parse::<PciAddress>();
            match wanted {
                Some(wanted) => assert_eq!(parsed.unwrap().to_string(), wanted),
                None => assert!(
                    matches!(parsed.unwrap_err().kind(), ErrorKind::InvalidOption { .. }),
                    "{text}"
                ),
            }
        }
    }
}
