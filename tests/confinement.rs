//! What the other tests rest on when they run once more in hostile surroundings: that these are as hostile as they say,
//! that failures there are noticed, and that nothing is left behind.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::panic::catch_unwind;

use common::confined::{
    CACHESTAT, FEW_DESCRIPTORS, FREE, IO_URING, MEMLOCK_0, NO_CACHESTAT, NO_IO_URING,
    NO_IO_URING_CALLS, NOBODY, OLD_KERNEL, UNPRIVILEGED, again,
};
use common::confinement;
use common::file_systems::{FileSystem, again_in, again_on};
use feedwater::{OpenOptions, Reader, Route};

/// Refers to this machine's number of a call with arguments that no implementation accepts.
fn errno_of(call: libc::c_long) -> i32 {
    // SAFETY: a descriptor that does not exist, and null for all memory.
    let result = unsafe { libc::syscall(call, -1, 0, 0, 0, 0, 0) };
    assert_eq!(result, -1);
    io::Error::last_os_error().raw_os_error().unwrap()
}

fn advice_is_refused(advice: libc::c_int) -> bool {
    // SAFETY: sets nothing up but a page of its own, and takes it away again.
    unsafe {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let refused = libc::madvise(page, 4096, advice) == -1;
        assert_eq!(libc::munmap(page, 4096), 0);
        refused
    }
}

fn limit(resource: impl TryInto<i32>) -> (u64, u64) {
    let resource = resource.try_into().ok().unwrap();
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the struct outlives the call.
    let done = unsafe { libc::getrlimit(resource as _, &mut limit) };
    assert_eq!(done, 0);
    (limit.rlim_cur, limit.rlim_max)
}

fn is_nobody() {
    // SAFETY: asks for ids.
    let ids = unsafe {
        (
            libc::getuid(),
            libc::geteuid(),
            libc::getgid(),
            libc::getegid(),
        )
    };
    assert_eq!(ids, (NOBODY, NOBODY, NOBODY, NOBODY));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    assert_eq!(value("Groups:"), "");
    assert_eq!(value("CapEff:").trim_matches('0'), "");
}

/// The kind of file system by statfs(2), for files that are made here.
fn on(magic: i64) {
    let file = tempfile::NamedTempFile::new().unwrap();
    // SAFETY: numbers only, for which zero is a value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the struct outlives the call; the descriptor is open.
    let done = unsafe { libc::fstatfs(file.as_file().as_raw_fd(), &mut found) };
    assert_eq!((done, found.f_type), (0, magic));
}

/// The alignment that direct reads need where temporary files are.
fn direct_alignment() -> usize {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, [7; 10]).unwrap();
    let options = OpenOptions::new().only(Route::PreadDirect);
    options.open(file.path()).unwrap().source().limits().align
}

#[test]
#[ignore = "run by the other tests in processes of its own"]
fn it_is_as_it_says() {
    let name = confinement().unwrap();
    let uring = IO_URING.map(errno_of);
    match name.as_str() {
        "no-io-uring" => assert_eq!(uring, [libc::EPERM; 3]),
        "no-io-uring-calls" => assert_eq!(uring, [libc::ENOSYS; 3]),
        "no-cachestat" => assert_eq!(errno_of(CACHESTAT), libc::ENOSYS),
        "old-kernel" => {
            assert_eq!(uring, [libc::ENOSYS; 3]);
            for call in [
                CACHESTAT,
                libc::SYS_preadv2,
                libc::SYS_pwritev2,
                libc::SYS_statx,
                libc::SYS_copy_file_range,
            ] {
                assert_eq!(errno_of(call), libc::ENOSYS, "{call}");
            }
            assert!(advice_is_refused(libc::MADV_WIPEONFORK));
            assert!(advice_is_refused(libc::MADV_POPULATE_WRITE));
            // Only what is named.
            assert!(!advice_is_refused(libc::MADV_DONTNEED));
            assert_eq!(errno_of(libc::SYS_read), libc::EBADF);
        }
        "memlock-0" => {
            is_nobody();
            assert_eq!(limit(libc::RLIMIT_MEMLOCK), (0, 0));
        }
        "few-descriptors" => assert_eq!(limit(libc::RLIMIT_NOFILE), (64, 64)),
        "unprivileged" => is_nobody(),
        "on-tmpfs" => on(libc::TMPFS_MAGIC),
        "on-overlay" => on(libc::OVERLAYFS_SUPER_MAGIC),
        "on-4k-sectors" => {
            on(libc::EXT4_SUPER_MAGIC);
            assert_eq!(direct_alignment(), 4096);
        }
        "on-xfs" => on(libc::XFS_SUPER_MAGIC),
        "on-btrfs" => on(libc::BTRFS_SUPER_MAGIC),
        "on-fuse" => on(libc::FUSE_SUPER_MAGIC),
        other => panic!("{other} says nothing"),
    }
    // Further ones are not started.
    assert!(!again(&FREE, &[], usize::MAX));
    assert!(!again_on(FileSystem::Tmpfs, &[], usize::MAX));
}

const INSIDE: &[&str] = &["--exact", "--ignored", "it_is_as_it_says"];

#[test]
#[ignore = "run by the other tests in processes of its own"]
fn it_fails() {
    panic!("as the test wants it in {:?}", confinement());
}

#[test]
#[ignore = "run by the other tests in processes of its own"]
fn it_hangs() {
    // As the time limit of confined processes does it.
    // SAFETY: sends a signal to this process.
    unsafe { libc::raise(libc::SIGALRM) };
}

mod again {
    use super::*;

    #[test]
    fn system_calls_are_refused() {
        for how in [NO_IO_URING, NO_IO_URING_CALLS, NO_CACHESTAT, OLD_KERNEL] {
            again(&how, INSIDE, 1);
        }
    }

    #[test]
    fn limits_hold() {
        again(&MEMLOCK_0, INSIDE, 1);
        again(&FEW_DESCRIPTORS, INSIDE, 1);
    }

    #[test]
    fn privileges_are_gone() {
        again(&UNPRIVILEGED, INSIDE, 1);
    }

    #[test]
    fn temporary_files_are_where_they_should_be() {
        for file_system in FileSystem::ALL {
            again_on(file_system, INSIDE, 1);
        }
    }

    /// What [`again`] says of a run that is not as it should be.
    fn complaint(filter: &'static [&'static str], least: usize) -> String {
        let panic = catch_unwind(|| again(&FREE, filter, least)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    }

    #[test]
    fn what_goes_wrong_is_noticed() {
        let failed = complaint(&["--ignored", "it_fails"], 1);
        assert!(failed.starts_with("free: exit status: 101\n"), "{failed}");
        // With what the test said.
        let said = r#"as the test wants it in Some("free")"#;
        assert!(failed.contains(said), "{failed}");
        let hung = complaint(&["--ignored", "it_hangs"], 1);
        assert!(hung.starts_with("free: hangs "), "{hung}");
        // Everything but this module is ignored without `--ignored`.
        let none = complaint(&[], 1);
        assert!(none.starts_with("free: 0 tests ran, not 1\n"), "{none}");
        let few = complaint(&["--exact", "--ignored", "no_test_is_called_so"], 1);
        assert!(few.starts_with("free: 0 tests ran, not 1\n"), "{few}");
    }

    #[test]
    fn nothing_is_left_behind() {
        for file_system in FileSystem::ALL {
            let dir = tempfile::tempdir().unwrap();
            // Also where a test fails.
            let outcome =
                catch_unwind(|| again_in(dir.path(), file_system, &["--ignored", "it_fails"], 1));
            assert!(matches!(outcome, Err(_) | Ok(false)), "{file_system:?}");
            let path = dir.path().to_str().unwrap();
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(path), "{mounts}");
            for device in fs::read_dir("/sys/block").unwrap() {
                let backing = device.unwrap().path().join("loop/backing_file");
                // There is none if nothing is attached.
                let backing = fs::read_to_string(backing).unwrap_or_default();
                assert!(!backing.contains(path), "{backing}");
            }
            // The kernel does not hold anything of it either.
            dir.close().unwrap();
        }
    }
}
