//! Made-up trees of sysfs.

use std::fs;
use std::os::unix::fs::symlink;

use super::sysfs::MOST_DISKS;
use super::*;
use crate::error::ErrorKind;

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
