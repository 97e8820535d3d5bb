//! Runs tests of this binary once more, in a process that the system offers less to: system calls that it refuses,
//! limits, no privileges.
//!
//! Tests that do this belong into a module `again` of their test crate. The process that they start has
//! `FEEDWATER_CONFINED` set, leaves that module out, and so does not start further ones.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::skip::require;
use super::{CONFINED, confinement};

/// Seconds after which the kernel ends a confined process. None takes a tenth of that; only a hang reaches it.
const PATIENCE: libc::c_uint = 600;

/// The user and the group `nobody`.
pub(crate) const NOBODY: libc::uid_t = 65534;

/// What a process is denied.
#[derive(Clone, Debug)]
pub(crate) struct Confinement {
    /// What [`confinement`] says in the process.
    pub(crate) name: &'static str,
    /// What [`require`] calls the means to it.
    pub(crate) needs: &'static str,
    /// What tests cannot require under it.
    pub(crate) lifts: &'static [&'static str],
    /// System calls that fail.
    pub(crate) refused: &'static [Refused],
    /// A resource of `setrlimit`, and its soft and hard limit.
    pub(crate) limit: Option<(i32, libc::rlim_t)>,
    /// Whether it runs as [`NOBODY`], without groups and capabilities.
    pub(crate) nobody: bool,
    /// Tests at once. `None`: as the test harness does it.
    pub(crate) threads: Option<usize>,
}

/// A system call that fails, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    call: libc::c_long,
    /// Only where the argument with this index has this value (of which 32 bits are compared).
    only: Option<(u32, u32)>,
    error: i32,
}

const fn refused(call: libc::c_long, error: i32) -> Refused {
    let only = None;
    Refused { call, only, error }
}

const fn advice_refused(advice: libc::c_int) -> Refused {
    Refused {
        call: libc::SYS_madvise,
        only: Some((2, advice as u32)),
        error: libc::EINVAL,
    }
}

// One number on every architecture (include/uapi/asm-generic/unistd.h).
pub(crate) const IO_URING: [libc::c_long; 3] = [425, 426, 427];
pub(crate) const CACHESTAT: libc::c_long = 451;

/// Denies nothing by itself.
pub(crate) const FREE: Confinement = Confinement {
    name: "free",
    needs: "processes",
    lifts: &[],
    refused: &[],
    limit: None,
    nobody: false,
    threads: None,
};

/// As in most containers: the seccomp profiles of Docker and of containerd refuse io_uring so, and
/// `kernel.io_uring_disabled` does for its setup, which here reads 0 all the same.
pub(crate) const NO_IO_URING: Confinement = Confinement {
    name: "no-io-uring",
    needs: "seccomp",
    lifts: &["uring"],
    refused: &[
        refused(IO_URING[0], libc::EPERM),
        refused(IO_URING[1], libc::EPERM),
        refused(IO_URING[2], libc::EPERM),
    ],
    ..FREE
};

/// A kernel that was built without io_uring, or is older than 5.1.
pub(crate) const NO_IO_URING_CALLS: Confinement = Confinement {
    name: "no-io-uring-calls",
    refused: &[
        refused(IO_URING[0], libc::ENOSYS),
        refused(IO_URING[1], libc::ENOSYS),
        refused(IO_URING[2], libc::ENOSYS),
    ],
    ..NO_IO_URING
};

/// Linux before 6.5.
pub(crate) const NO_CACHESTAT: Confinement = Confinement {
    name: "no-cachestat",
    needs: "seccomp",
    lifts: &["residency"],
    refused: &[refused(CACHESTAT, libc::ENOSYS)],
    ..FREE
};

/// What is newer than Linux 4.4 and is looked for at run time, so that everything is done in the oldest way.
pub(crate) const OLD_KERNEL: Confinement = Confinement {
    name: "old-kernel",
    lifts: &["uring", "residency"],
    refused: &[
        refused(IO_URING[0], libc::ENOSYS),
        refused(IO_URING[1], libc::ENOSYS),
        refused(IO_URING[2], libc::ENOSYS),
        refused(CACHESTAT, libc::ENOSYS),
        refused(libc::SYS_preadv2, libc::ENOSYS),
        refused(libc::SYS_pwritev2, libc::ENOSYS),
        refused(libc::SYS_statx, libc::ENOSYS),
        refused(libc::SYS_openat2, libc::ENOSYS),
        refused(libc::SYS_copy_file_range, libc::ENOSYS),
        advice_refused(libc::MADV_WIPEONFORK),
        advice_refused(libc::MADV_POPULATE_READ),
        advice_refused(libc::MADV_POPULATE_WRITE),
    ],
    ..NO_IO_URING
};

/// No memory may be locked. Root may all the same, so it runs as nobody.
pub(crate) const MEMLOCK_0: Confinement = Confinement {
    name: "memlock-0",
    needs: "memlock",
    // Linux before 5.12 and since 6.14 counts the memory of a ring.
    lifts: &["root", "shared-tmp", "fuse", "uring"],
    limit: Some((libc::RLIMIT_MEMLOCK as i32, 0)),
    ..UNPRIVILEGED
};

/// One test at a time: the limit is of the process, and the tests are not about each other.
pub(crate) const FEW_DESCRIPTORS: Confinement = Confinement {
    name: "few-descriptors",
    needs: "rlimits",
    limit: Some((libc::RLIMIT_NOFILE as i32, 64)),
    threads: Some(1),
    ..FREE
};

/// As services run that need no rights.
pub(crate) const UNPRIVILEGED: Confinement = Confinement {
    name: "unprivileged",
    needs: "root",
    lifts: &["root", "shared-tmp", "fuse"],
    nobody: true,
    ..FREE
};

/// Confined runs take turns: each uses all processors, and the time limits in tests are not meant for a machine with
/// several times as much to do.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn of the caller. `None` in a confined process, which starts no further ones.
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    confinement()
        .is_none()
        .then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs the tests that are left by `filter` (arguments of the test harness) under a confinement, and asserts that they
/// pass, and that there are `least` of them. Skips aloud what cannot be had here: `false`.
pub(crate) fn again(how: &Confinement, filter: &[&str], least: usize) -> bool {
    let Some(_turn) = turn() else { return false };
    let dir = tempfile::tempdir().unwrap();
    run(how, dir.path(), filter, least)
}

/// As [`again`], with temporary files in `dir`. For those whose [`turn`] it is.
pub(crate) fn run(how: &Confinement, dir: &Path, filter: &[&str], least: usize) -> bool {
    let Some(output) = output(how, dir, filter) else {
        return false;
    };
    let out = String::from_utf8_lossy(&output.stdout);
    let all = || format!("{out}{}", String::from_utf8_lossy(&output.stderr));
    if output.status.signal() == Some(libc::SIGALRM) {
        panic!("{}: hangs (not done in {PATIENCE} s)\n{}", how.name, all());
    }
    assert!(
        output.status.success(),
        "{}: {}\n{}",
        how.name,
        output.status,
        all()
    );
    let passed = passed(&out).unwrap_or_else(|| panic!("{}: no result\n{}", how.name, all()));
    assert!(
        passed >= least,
        "{}: {passed} tests ran, not {least}\n{}",
        how.name,
        all()
    );
    for skipped in out.lines().filter(|line| line.starts_with("skipped:")) {
        eprintln!("{skipped} ({})", how.name);
    }
    true
}

/// How many tests passed, by the closing line of the test harness.
fn passed(out: &str) -> Option<usize> {
    let line = out
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("test result: ok. "))?;
    line.split_once(" passed;")?.0.parse().ok()
}

fn output(how: &Confinement, dir: &Path, filter: &[&str]) -> Option<Output> {
    let mut command = if how.nobody {
        require(how.needs, is_root())?;
        as_nobody(dir)
    } else {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("TMPDIR", dir);
        command
    };
    command
        .args(["--show-output", "--skip", "again::"])
        .args(filter)
        .env(CONFINED, how.name)
        .env("FEEDWATER_REQUIRE", required_under(how))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(threads) = how.threads {
        command.arg(format!("--test-threads={threads}"));
    }
    let filter = require(how.needs, seccomp_filter(how.refused))?;
    let (limit, nobody) = (how.limit, how.nobody);
    // SAFETY: between fork and exec it makes system calls alone, with what was prepared before.
    unsafe { command.pre_exec(move || confine(limit, nobody, &filter)) };
    let means = if nobody { "shared-tmp" } else { how.needs };
    // What stands in the way of `confine` or of the exec is told by `spawn`.
    let child = require(means, command.spawn())?;
    Some(child.wait_with_output().unwrap())
}

/// The names that tests must not skip, less those that the confinement takes away.
fn required_under(how: &Confinement) -> String {
    let all = std::env::var("FEEDWATER_REQUIRE").unwrap_or_default();
    let kept: Vec<_> = all
        .split(',')
        .filter(|name| !how.lifts.contains(&name.trim()))
        .collect();
    kept.join(",")
}

pub(crate) fn is_root() -> Result<(), &'static str> {
    // SAFETY: asks for an id.
    match unsafe { libc::geteuid() } {
        0 => Ok(()),
        _ => Err("not root"),
    }
}

/// A command for this test binary that nobody can run: the binary and the temporary files are in `dir`, as the folders
/// that they are in otherwise may be closed.
fn as_nobody(dir: &Path) -> Command {
    let (exe, temporary) = (dir.join("tests"), dir.join("tmp"));
    // By another process: a forked child of another test that has the copy open for writing, even for a moment, would
    // keep it from being executed.
    let copied = Command::new("cp")
        .args([&std::env::current_exe().unwrap(), &exe])
        .status();
    assert!(copied.unwrap().success(), "copying the test binary");
    fs::create_dir(&temporary).unwrap();
    chown(&temporary, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(exe);
    command.env("TMPDIR", &temporary).current_dir(temporary);
    command
}

/// Runs in the child, before exec.
fn confine(
    limit: Option<(i32, libc::rlim_t)>,
    nobody: bool,
    filter: &[libc::sock_filter],
) -> io::Result<()> {
    let done = |result: libc::c_long| match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: system calls on this process alone; what they read is alive, and its lengths are right. Those that change
    // ids are not libc's, which would look for other threads.
    unsafe {
        if let Some((resource, most)) = limit {
            let limit = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            done(libc::setrlimit(resource as _, &limit).into())?;
        }
        if nobody {
            done(libc::syscall(libc::SYS_setgroups, 0, 0))?;
            done(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY))?;
            done(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY))?;
        }
        // After the ids, which reset it. If the test that waits is ended, so is this.
        die_with_parent()?;
        libc::alarm(PATIENCE);
        if !filter.is_empty() {
            let program = libc::sock_fprog {
                len: filter.len() as libc::c_ushort,
                filter: filter.as_ptr().cast_mut(),
            };
            done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
            done(
                libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                )
                .into(),
            )?;
        }
    }
    Ok(())
}

/// Ends this process when the thread that made it ends. For use between fork and exec.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: a system call that takes numbers.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What `struct seccomp_data` calls this architecture (linux/audit.h).
const ARCHITECTURE: Option<u32> = match () {
    () if cfg!(target_arch = "x86_64") => Some(0xc000_003e),
    () if cfg!(target_arch = "aarch64") => Some(0xc000_00b7),
    () => None,
};

/// A program for seccomp(2) that refuses `calls`; empty if there are none.
fn seccomp_filter(calls: &[Refused]) -> Result<Vec<libc::sock_filter>, &'static str> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    // Offsets in `struct seccomp_data`; both architectures have the low half of an argument first.
    const NUMBER: u32 = 0;
    const ARCH: u32 = 4;
    const ARGUMENTS: u32 = 16;
    let step = |code: u32, k: u32, jt, jf| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    let architecture = ARCHITECTURE.ok_or("no filter is written for this architecture")?;
    let mut program = vec![
        step(LOAD, ARCH, 0, 0),
        step(IF_EQUAL, architecture, 1, 0),
        // Numbers mean other calls in another architecture's set, so nothing is said about them.
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(LOAD, NUMBER, 0, 0),
    ];
    for refused in calls {
        let refuse = step(RETURN, libc::SECCOMP_RET_ERRNO | refused.error as u32, 0, 0);
        let number = refused.call as u32;
        match refused.only {
            None => program.extend([step(IF_EQUAL, number, 0, 1), refuse]),
            Some((index, value)) => program.extend([
                step(IF_EQUAL, number, 0, 4),
                step(LOAD, ARGUMENTS + 8 * index, 0, 0),
                step(IF_EQUAL, value, 0, 1),
                refuse,
                step(LOAD, NUMBER, 0, 0),
            ]),
        }
    }
    program.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    Ok(program)
}

/// Makes the calling thread, and those that it starts, nobody's in the eyes of file systems.
pub(crate) fn become_nobody() {
    let keep: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: the system call changes the ids of the calling thread and touches no memory.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, keep, NOBODY, keep) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}
