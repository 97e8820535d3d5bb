//! Runs tests of this binary once more, with their temporary files on a file system that is made for them.
//!
//! It is mounted in a mount namespace of one thread, and of the process that this thread starts: nothing else sees it,
//! and the kernel takes it down when both are gone, however they end. Needs root.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use super::LOWER_FILE;
use super::confined::{Confinement, FREE, die_with_parent, is_root, run, turn};
use super::skip::require;

/// Size in bytes of the devices. Sparse files; XFS takes nothing below 300 MiB.
const DEVICE: u64 = 1 << 30;

/// Long enough for a daemon to mount what it serves; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// In memory.
    Tmpfs,
    /// A layer above another one, as in containers.
    Overlay,
    /// ext4 on a device with logical sectors of 4096 bytes, so that direct reads of 512 fail.
    Ext4Of4KiB,
    /// Shares blocks between copies.
    Xfs,
    /// Shares blocks between copies, and has checksums of its own.
    Btrfs,
    /// Served by a process: a directory once more, by bindfs.
    Fuse,
}

impl FileSystem {
    pub(crate) const ALL: [FileSystem; 6] = [
        FileSystem::Tmpfs,
        FileSystem::Overlay,
        FileSystem::Ext4Of4KiB,
        FileSystem::Xfs,
        FileSystem::Btrfs,
        FileSystem::Fuse,
    ];

    pub(crate) fn confinement(self) -> Confinement {
        let (name, needs, lifts): (_, _, &[_]) = match self {
            // Before Linux 6.6 it had no direct I/O; its pages are nowhere else, so they stay.
            FileSystem::Tmpfs => ("on-tmpfs", "tmpfs", &["odirect", "residency"]),
            FileSystem::Overlay => ("on-overlay", "overlay", &[]),
            FileSystem::Ext4Of4KiB => ("on-4k-sectors", "loop", &[]),
            FileSystem::Xfs => ("on-xfs", "xfs", &[]),
            FileSystem::Btrfs => ("on-btrfs", "btrfs", &[]),
            FileSystem::Fuse => ("on-fuse", "fuse", &["odirect", "residency", "uring"]),
        };
        Confinement {
            name,
            needs,
            lifts,
            ..FREE
        }
    }

    /// Makes it, with what it consists of in `dir`. Only for a thread that is alone with its mounts.
    fn mount(self, dir: &Path) -> Result<Mounted, String> {
        let at = dir.join("mounted");
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let below = |name: &str| {
            let path = dir.join(name);
            fs::create_dir(&path).map_err(|error| format!("{name}: {error}"))?;
            Ok::<_, String>(path)
        };
        let mut mounted = Mounted {
            at,
            is_mounted: false,
            server: None,
            device: None,
        };
        match self {
            FileSystem::Tmpfs => mounted.mount("tmpfs", "tmpfs", "")?,
            FileSystem::Overlay => {
                let (lower, upper, work) = (below("lower")?, below("upper")?, below("work")?);
                fs::write(lower.join(LOWER_FILE), [b'x'; 20_000])
                    .map_err(|error| format!("{LOWER_FILE}: {error}"))?;
                let options = format!(
                    "lowerdir={},upperdir={},workdir={}",
                    lower.display(),
                    upper.display(),
                    work.display()
                );
                mounted.mount("overlay", "overlay", &options)?;
            }
            FileSystem::Ext4Of4KiB => {
                let lazy = "lazy_itable_init=1,nodiscard";
                let mkfs = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", lazy];
                mounted.make_and_mount(dir, 4096, &mkfs, "ext4")?;
            }
            FileSystem::Xfs => {
                mounted.make_and_mount(dir, 512, &["mkfs.xfs", "-q", "-f", "-K"], "xfs")?;
            }
            FileSystem::Btrfs => {
                mounted.make_and_mount(dir, 512, &["mkfs.btrfs", "-q", "-f", "-K"], "btrfs")?;
            }
            FileSystem::Fuse => mounted.serve(&below("served")?)?,
        }
        Ok(mounted)
    }
}

/// Runs the tests that are left by `filter` (arguments of the test harness) with their temporary files on a new file
/// system, and asserts that they pass, and that there are `least` of them. Skips aloud what cannot be had here: `false`.
pub(crate) fn again_on(file_system: FileSystem, filter: &[&str], least: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    again_in(dir.path(), file_system, filter, least)
}

/// As [`again_on`]; what the file system consists of is in `dir`, which is empty.
pub(crate) fn again_in(dir: &Path, file_system: FileSystem, filter: &[&str], least: usize) -> bool {
    let Some(_turn) = turn() else { return false };
    let how = file_system.confinement();
    // A thread of its own, as it is left in another namespace.
    let ran = thread::scope(|scope| {
        let alone = scope.spawn(|| {
            let mounted = is_root()
                .map_err(String::from)
                .and_then(|()| alone_with_mounts())
                .and_then(|()| file_system.mount(dir));
            require(how.needs, mounted).is_some_and(|mounted| run(&how, &mounted.at, filter, least))
        });
        alone.join()
    });
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Takes the calling thread into a mount namespace of its own, out of which nothing is propagated.
fn alone_with_mounts() -> Result<(), String> {
    // SAFETY: changes what this thread sees; it takes no memory.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    told("unshare", result)?;
    mount(
        "none",
        Path::new("/"),
        "",
        libc::MS_REC | libc::MS_PRIVATE,
        "",
    )
}

/// A file system, until this is dropped.
struct Mounted {
    at: PathBuf,
    is_mounted: bool,
    server: Option<Child>,
    /// The kernel detaches it when nobody has it open and it is not mounted.
    device: Option<File>,
}

impl Mounted {
    fn mount(&mut self, source: &str, kind: &str, options: &str) -> Result<(), String> {
        mount(source, &self.at, kind, 0, options)?;
        self.is_mounted = true;
        Ok(())
    }

    /// Makes a file system by `mkfs` on a loop device, and mounts it.
    fn make_and_mount(
        &mut self,
        dir: &Path,
        sector: u32,
        mkfs: &[&str],
        kind: &str,
    ) -> Result<(), String> {
        let image = dir.join("image");
        let image = File::create_new(&image)
            .and_then(|image| image.set_len(DEVICE).map(|()| image))
            .map_err(|error| format!("{}: {error}", image.display()))?;
        let (device, path) = loop_device(&image, sector)?;
        self.device = Some(device);
        let output = program(mkfs[0])
            .args(&mkfs[1..])
            .arg(&path)
            .output()
            .map_err(|error| format!("{}: {error}", mkfs[0]))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{}: {}: {why}", mkfs[0], output.status));
        }
        self.mount(&path, kind, "")
    }

    /// Has bindfs serve `dir`.
    fn serve(&mut self, dir: &Path) -> Result<(), String> {
        let mut command = program("bindfs");
        command
            .arg("-f")
            .args([dir, &self.at])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // SAFETY: a system call that takes numbers.
        unsafe { command.pre_exec(die_with_parent) };
        let mut table = mount_table()?;
        let server = command
            .spawn()
            .map_err(|error| format!("bindfs: {error}"))?;
        let server = self.server.insert(server);
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        let below = device(dir).map_err(|error| error.to_string())?;
        let deadline = Instant::now() + PATIENCE;
        while device(&self.at).is_ok_and(|found| found == below) {
            if let Ok(Some(status)) = server.try_wait() {
                let mut why = String::new();
                if let Some(stderr) = &mut server.stderr {
                    let _ = stderr.read_to_string(&mut why);
                }
                return Err(format!("bindfs: {status}: {why}"));
            }
            if Instant::now() > deadline {
                return Err("bindfs does not mount what it serves".into());
            }
            table = wait_for_a_mount(table)?;
        }
        self.is_mounted = true;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            let path = c_string(self.at.as_os_str().as_bytes());
            // SAFETY: the path is a string that outlives the call.
            let result = unsafe { libc::umount2(path.as_ptr(), 0) };
            if let Err(error) = told("umount", result) {
                eprintln!("{}: {error}; left to the kernel", self.at.display());
            }
        }
        if let Some(mut server) = self.server.take() {
            // It ends by itself when it is unmounted, but not if it could not be.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn program(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    // Where programs for administrators are, which not everybody has there.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn told(what: &str, result: libc::c_int) -> Result<libc::c_int, String> {
    match result {
        -1 => Err(format!("{what}: {}", io::Error::last_os_error())),
        done => Ok(done),
    }
}

fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("no NUL in it")
}

fn mount(
    source: &str,
    at: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> Result<(), String> {
    let source = c_string(source.as_bytes());
    let at = c_string(at.as_os_str().as_bytes());
    let (name, options) = (c_string(kind.as_bytes()), c_string(options.as_bytes()));
    // SAFETY: four strings that outlive the call.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            at.as_ptr(),
            name.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    told(&format!("mount {kind}"), result).map(drop)
}

fn mount_table() -> Result<File, String> {
    // That of the process is the one of its first thread.
    File::open("/proc/thread-self/mounts").map_err(|error| format!("the mount table: {error}"))
}

/// Waits until something is mounted or unmounted that `table`, which was opened before, did not have; at most a second,
/// so that other things can be looked after. Gives the table to wait with next.
fn wait_for_a_mount(table: File) -> Result<File, String> {
    let mut one = libc::pollfd {
        fd: table.as_raw_fd(),
        events: libc::POLLPRI,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call.
    let result = unsafe { libc::poll(&mut one, 1, 1000) };
    if result == -1 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
        told("poll", result)?;
    }
    Ok(table)
}

/// `struct loop_info64` (linux/loop.h).
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` (linux/loop.h).
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
/// Linux 5.8.
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
/// Detach it after the last use.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// A device with logical sectors of `sector` bytes whose content is `image`, and its path.
fn loop_device(image: &File, sector: u32) -> Result<(File, String), String> {
    let open = |path: &str| {
        let opened = File::options().read(true).write(true).open(path);
        opened.map_err(|error| format!("{path}: {error}"))
    };
    let control = open("/dev/loop-control")?;
    // Whoever else looks for a free one may find the same, and be faster.
    for _ in 0..64 {
        // SAFETY: takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        let path = format!("/dev/loop{}", told("a free loop device", number)?);
        let device = open(&path)?;
        // SAFETY: numbers and arrays of numbers, for which zero is a value.
        let mut config: LoopConfig = unsafe { mem::zeroed() };
        config.fd = image.as_raw_fd() as u32;
        config.block_size = sector;
        config.info.flags = LO_FLAGS_AUTOCLEAR;
        // SAFETY: the struct has the kernel's layout and outlives the call.
        let result =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, ptr::from_ref(&config)) };
        match told("attaching a loop device", result) {
            Ok(_) => return Ok((device, path)),
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY) => {}
            Err(why) => return Err(why),
        }
    }
    Err("every free loop device was taken by others".into())
}

const _: () = assert!(mem::size_of::<LoopConfig>() == 304);
