//! What sysfs says of GPUs and drives.

use std::collections::HashSet;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use super::address::parse as parse_address;
use super::{Drive, Gpu, Location};

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
pub(super) const MOST_DISKS: usize = 64;

/// A sysfs. Whatever is in it, reading ends, takes little memory, and what makes no sense is not there.
pub(super) struct Tree<'a> {
    pub(super) root: &'a Path,
}

impl Tree<'_> {
    pub(super) fn gpus(&self) -> Vec<Gpu> {
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

    pub(super) fn drives(&self) -> Vec<Drive> {
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
    pub(super) fn disks_of(&self, device: u64) -> Option<Vec<String>> {
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
