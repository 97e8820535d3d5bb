//! What concerns the whole process: signals, descriptors, limits. Each in a process of its own.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use feedwater::{
    CachePolicy, ErrorKind, OpenOptions, Opened, ReadInto, Reader, ReaderExt, Refusal, Route,
};

use crate::common::alone::alone;
use crate::common::hanging::What;
use crate::common::skip::require;
use crate::{
    LEN, PATIENCE, content, engine, file, hanging, open, read_now, right, rings, scattered,
};

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Has `SIGUSR1` interrupt whatever system call it meets.
fn interrupt_by_signals() {
    // SAFETY: a handler that only counts; zeroed, the flags are without `SA_RESTART` and the mask is empty.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        let done = libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        assert_eq!(done, 0);
    }
}

/// Threads of this process with one of these names.
fn threads_named(names: &[&str]) -> Vec<libc::pid_t> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .filter_map(|thread| {
            let path = thread.ok()?.path();
            let name = std::fs::read_to_string(path.join("comm")).ok()?;
            let named = names.contains(&name.trim());
            named.then(|| path.file_name()?.to_str()?.parse().ok())?
        })
        .collect()
}

/// Sends a signal to the thread, if it is still there.
fn signal(thread: libc::pid_t) -> bool {
    // SAFETY: a signal that is handled, to a thread of this process.
    unsafe {
        let process = std::process::id() as libc::pid_t;
        libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) == 0
    }
}

/// Waits until `done`. `false`: patience came to its end.
fn until(mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

const READING: &str = "reads-now";

#[test]
#[ignore = "run by interrupted_by_signals in a process of its own"]
fn interrupted_by_signals_child() {
    const ROUNDS: usize = 100;
    interrupt_by_signals();
    let ranges: Vec<_> = (0..16).map(|i| i * 30_000..i * 30_000 + 5000).collect();
    for route in [
        Route::Uring,
        Route::UringDirect,
        Route::Pread,
        Route::PreadDirect,
    ] {
        let Some(fs) = hanging(LEN) else { return };
        let Some(reader) = open(&fs.path('a'), route, &engine(32)) else {
            continue;
        };
        let by_ring = matches!(route, Route::Uring | Route::UringDirect);
        fs.hold(What::Reads);
        std::thread::scope(|threads| {
            let reading = std::thread::Builder::new().name(READING.into());
            let now = reading
                .spawn_scoped(threads, || read_now(&reader, &ranges).unwrap())
                .unwrap();
            let pending = reader.read_many(&ranges);
            // By position, a thread has one at a time.
            fs.wait_for(ranges.len() + if by_ring { ranges.len() } else { 1 });
            // A thread of the engine before this one may be about to end, and handles nothing any more.
            let alone = until(|| threads_named(&["feedwater-ring"]).len() <= 1);
            let targets = threads_named(&[READING, "feedwater-ring", "feedwater-io"]);
            let handled = (0..ROUNDS).all(|_| {
                let before = HANDLED.load(Ordering::SeqCst);
                let sent = targets.iter().filter(|thread| signal(**thread)).count();
                // Each thread waits in its ring, and comes out of it. (A read by position does not come back from a
                // server before its answer, and the signal is handled then.)
                !by_ring || until(|| HANDLED.load(Ordering::SeqCst) == before + sent)
            });
            fs.release();
            for (buffer, range) in std::iter::zip(now.join().unwrap(), &ranges) {
                assert!(buffer == fs.content('a', range.clone()), "{route}");
            }
            for (block, range) in std::iter::zip(pending.wait().unwrap(), &ranges) {
                assert!(block.as_host().unwrap()[..] == fs.content('a', range.clone()));
            }
            assert!(alone && targets.len() >= 2, "{targets:?}");
            assert!(handled, "signals interrupt a ring");
        });
    }
    storm_over_a_file();
}

/// Signals at any moment, while threads read a file of a device.
fn storm_over_a_file() {
    const SIGNALS: usize = 1000;
    let (_dir, path) = file();
    let ranges = scattered(40, 9000);
    for (route, reader) in rings(&path, 8) {
        let over = AtomicBool::new(false);
        let started = HANDLED.load(Ordering::SeqCst);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                let reading = std::thread::Builder::new().name(READING.into());
                let read = || {
                    // At least once also on a machine where the signals are over first.
                    loop {
                        let last = over.load(Ordering::SeqCst);
                        let pending = reader.read_many(&ranges);
                        let now = read_now(&reader, &ranges).unwrap();
                        for (buffer, range) in std::iter::zip(now, &ranges) {
                            assert!(buffer[..] == *right(range), "{route}");
                        }
                        for (block, range) in std::iter::zip(pending.wait().unwrap(), &ranges) {
                            assert!(block.as_host().unwrap()[..] == *right(range), "{route}");
                        }
                        if last {
                            return;
                        }
                    }
                };
                reading.spawn_scoped(threads, read).unwrap();
            }
            // Those that come while one is waiting to be handled are lost, so what was handled counts.
            let handled = until(|| {
                for thread in threads_named(&[READING, "feedwater-ring"]) {
                    signal(thread);
                }
                HANDLED.load(Ordering::SeqCst) >= started + SIGNALS
            });
            over.store(true, Ordering::SeqCst);
            assert!(handled);
        });
    }
}

#[test]
fn interrupted_by_signals() {
    alone("process::interrupted_by_signals_child");
}

/// Rings that this process has open.
fn rings_open() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy() == "anon_inode:[io_uring]")
        .count()
}

#[test]
#[ignore = "run by rings_go_with_their_threads in a process of its own"]
fn rings_go_with_their_threads_child() {
    let (_dir, path) = file();
    let ranges = scattered(10, 5000);
    let engine = engine(8);
    for route in [Route::Uring, Route::UringDirect] {
        let Some(reader) = open(&path, route, &engine) else {
            continue;
        };
        assert_eq!(rings_open(), 0, "{route}");
        let threads: Vec<_> = (0..100)
            .map(|_| {
                let (reader, ranges) = (reader.clone(), ranges.clone());
                std::thread::spawn(move || {
                    let buffers = read_now(&reader, &ranges).unwrap();
                    (buffers, rings_open())
                })
            })
            .collect();
        for thread in threads {
            let (buffers, open) = thread.join().unwrap();
            assert!(open > 0, "the ring stays with its thread");
            for (buffer, range) in std::iter::zip(buffers, &ranges) {
                assert!(buffer[..] == *right(range));
            }
        }
        assert_eq!(rings_open(), 0, "{route}");
        // That of the engine goes when it is shut down or dropped.
        let own = crate::engine(4);
        let reader = open(&path, route, &own).unwrap();
        assert!(reader.read(5..2_000_000).wait().unwrap() == right(&(5..2_000_000)));
        assert_eq!(rings_open(), 1);
        if route == Route::Uring {
            drop((reader, own));
        } else {
            assert!(own.shut_down(PATIENCE).is_complete());
        }
        assert!(until(|| rings_open() == 0), "the ring of the engine goes");
    }
}

#[test]
fn rings_go_with_their_threads() {
    alone("process::rings_go_with_their_threads_child");
}

/// Takes all descriptors that the process may have.
fn exhaust_descriptors() -> Vec<File> {
    let limit = libc::rlimit {
        rlim_cur: 64,
        rlim_max: 64,
    };
    // SAFETY: a limit of this process, which is for one test.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(done, 0);
    let mut taken = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
    taken
}

fn evict(file: &File) {
    file.sync_all().unwrap();
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn is_short_of_descriptors(error: &feedwater::Error, route: Route) -> bool {
    let ErrorKind::Unavailable { engine, why } = error.kind() else {
        return false;
    };
    let Refusal::Os { source, .. } = why else {
        return false;
    };
    *engine == route.name() && source.raw_os_error() == Some(libc::EMFILE)
}

/// What the caller reads on a thread that has no ring yet.
fn on_a_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| threads.spawn(work).join().unwrap())
}

/// Reads all of the file, `same` as it, after which little of it is in the page cache.
fn check_all(reader: &Arc<Opened>, same: &File) {
    let ranges = scattered(50, 3000);
    evict(same);
    for (block, range) in std::iter::zip(reader.read_many(&ranges).wait().unwrap(), &ranges) {
        assert!(block.as_host().unwrap()[..] == *right(range), "{range:?}");
    }
    evict(same);
    let now = on_a_new_thread(|| read_now(reader, &ranges).unwrap());
    for (buffer, range) in std::iter::zip(now, &ranges) {
        assert!(buffer[..] == *right(range), "{range:?}");
    }
    evict(same);
    assert!(reader.read_all().wait().unwrap() == content());
}

#[test]
#[ignore = "run by without_descriptors in a process of its own"]
fn without_descriptors_child() {
    let (_dir, path) = file();
    let auto = feedwater::open(&path).unwrap();
    let bypass = OpenOptions::new().cache(CachePolicy::Bypass).open(&path);
    let bypass = require("odirect", bypass);
    // Known to work, but not begun.
    let named: Vec<_> = [Route::Uring, Route::UringDirect]
        .into_iter()
        .filter_map(|route| Some((route, open(&path, route, &engine(4))?)))
        .collect();
    let same = File::open(&path).unwrap();
    let mut taken = exhaust_descriptors();
    check_all(&auto, &same);
    if let Some(bypass) = &bypass {
        check_all(bypass, &same);
        let used = bypass.source().counters().snapshot();
        assert_eq!(used.route(Route::UringDirect), 0);
        assert!(used.route(Route::PreadDirect) > 0);
    }
    for (route, reader) in &named {
        let range = 5_000..LEN;
        let mut buffers = [[0; 100]; 2];
        let [one, two] = &mut buffers;
        let reads = &mut [ReadInto::new(5, one), ReadInto::new(70_000, two)];
        let error = on_a_new_thread(|| reader.read_now(reads).unwrap_err());
        assert!(is_short_of_descriptors(&error, *route), "{error}");
        // Of the two that an engine's ring takes, none and one.
        for one in [false, true] {
            if one {
                taken.pop();
            }
            let error = reader.read(range.clone()).wait().unwrap_err();
            assert!(is_short_of_descriptors(&error, *route), "{error}");
            let place = (error.offset(), error.length());
            assert_eq!(place, (Some(5000), Some(LEN - 5000)));
        }
        taken.push(File::open("/dev/null").unwrap());
    }
    // It was not for good.
    drop(taken);
    for (route, reader) in &named {
        check_all(reader, &same);
        let used = reader.source().counters().snapshot();
        assert_eq!(used.main_route(), Some(*route));
    }
    if let (Some(bypass), [_, ..]) = (bypass, &*named) {
        check_all(&bypass, &same);
        let used = bypass.source().counters().snapshot();
        assert!(used.route(Route::UringDirect) > 0, "{}", bypass.report());
    }
}

#[test]
fn without_descriptors() {
    alone("process::without_descriptors_child");
}

#[test]
#[ignore = "run by found_out_without_descriptors in a process of its own"]
fn found_out_without_descriptors_child() {
    // Nobody has asked yet whether there are rings: that they cannot be had now is not to be remembered.
    let (_dir, path) = file();
    let reader = OpenOptions::new()
        .cache(CachePolicy::Keep)
        .open(&path)
        .unwrap();
    let same = File::open(&path).unwrap();
    let taken = exhaust_descriptors();
    check_all(&reader, &same);
    assert_eq!(reader.source().counters().snapshot().route(Route::Uring), 0);
    drop(taken);
    let there = OpenOptions::new().only(Route::Uring).open(&path);
    if require(
        "uring",
        there.map_err(|error| io::Error::other(error.to_string())),
    )
    .is_some()
    {
        check_all(&reader, &same);
        let used = reader.source().counters().snapshot();
        assert!(used.route(Route::Uring) > 0, "{}", reader.report());
    }
}

#[test]
fn found_out_without_descriptors() {
    alone("process::found_out_without_descriptors_child");
}
