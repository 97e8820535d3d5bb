//! Every engine and every wrapper through the one suite.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::subjects::{FileSubject, Flaw, MemorySubject, PlainFile, memory};
use feedwater::conformance::{self, Capabilities, Changes};
use feedwater::fault::{Faults, Faulty};
use feedwater::{
    CachePolicy, Engine, EngineOptions, MemoryReader, OpenOptions, Reader, ReaderExt, Result,
    Route, Staged, StagingOptions, Transfer, VersionCheck,
};

use common::confinement;
use common::skip::require;

/// Where bytes in memory are shared, a view of gigabytes costs nothing.
fn views() -> Capabilities {
    Capabilities::default().large_read(true)
}

/// One read of gigabytes takes as long as the other cases together, so it is done once, in the ordinary run.
fn large_reads() -> bool {
    confinement().is_none()
}

#[test]
fn memory_reader() {
    let subject = MemorySubject::new("memory", |content| Ok(memory(content)));
    let report = conformance::run(subject.capabilities(views()));
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    let on_files = ["truncated", "rewritten", "appended", "replaced", "unlinked"];
    assert_eq!(skipped, on_files);
}

#[test]
fn shared_and_dynamic() {
    let subject = MemorySubject::new("arc of arc of dyn", |content| Ok(Arc::new(memory(content))));
    conformance::run(subject.capabilities(views()));
}

#[test]
fn slice_of_memory() {
    let subject = MemorySubject::new("slice", |content| {
        let (front, back) = (4_097, 333);
        let len = content.len() as usize;
        let mut all = vec![0; front + len + back];
        all[..front].fill(0xee);
        all[front + len..].fill(0xee);
        for island in content.islands() {
            let at = front + island.start as usize;
            let bytes = content.range(island);
            all[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let whole = Arc::new(MemoryReader::new(all));
        let within = front as u64..front as u64 + content.len();
        Ok(Arc::new(whole.slice(within)?))
    });
    conformance::run(subject.capabilities(views()));
}

#[test]
fn harmless_faults() {
    let subject = MemorySubject::new("faulty", |content| {
        let micros = Duration::from_micros;
        let faults = Faults::seeded(11)
            .short(0.2)
            .interrupted(0.2)
            .slow(micros(0)..micros(100))
            .shuffle();
        Ok(Arc::new(Faulty::new(memory(content), faults)))
    });
    conformance::run(subject);
}

#[test]
fn no_faults_over_a_file() {
    let open = |path: &std::path::Path| {
        let file = Arc::new(PlainFile::open(path)?);
        Ok(Arc::new(Faulty::new(file, Faults::seeded(0))) as _)
    };
    let report = conformance::run(FileSubject::new("faulty file", open));
    assert!(report.passed().any(|case| case == "rewritten"));
}

#[test]
fn engine_from_outside() {
    let open = |path: &std::path::Path| Ok(Arc::new(PlainFile::open(path)?) as _);
    let report = conformance::run(FileSubject::new("plain file", open));
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    assert_eq!(skipped, ["large_read"]);
}

#[test]
fn a_promise_excuses_from_noticing_changes_but_not_from_keeping_the_file() {
    let open = |path: &std::path::Path| {
        let mut file = PlainFile::open(path)?;
        file.flaw = Some(Flaw::TrustsTheFile);
        Ok(Arc::new(file) as _)
    };
    let promised = Capabilities::default()
        .changes(Changes::Promised)
        .past_4gib(false);
    let report = conformance::run(FileSubject::new("promised", open).capabilities(promised));
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    assert_eq!(
        skipped,
        [
            "truncated",
            "rewritten",
            "appended",
            "past_4gib",
            "large_read"
        ]
    );
}

/// A subject that opens files with `options`.
fn opened(
    name: &'static str,
    options: OpenOptions,
) -> FileSubject<impl Fn(&Path) -> Result<Arc<dyn Reader>> + Send + Sync + 'static> {
    FileSubject::new(name, move |path: &Path| Ok(options.open(path)? as _))
}

fn engine(threads: usize) -> Engine {
    Engine::new(EngineOptions::default().threads(NonZeroUsize::new(threads).unwrap()))
}

/// Nothing skipped but what costs gigabytes.
fn all_but_large(report: &conformance::Report) {
    let skipped: Vec<_> = report.skipped().map(|(case, _)| case).collect();
    assert_eq!(skipped, ["large_read"]);
}

/// Whether direct I/O works where temporary files are.
fn direct() -> Option<OpenOptions> {
    let options = OpenOptions::new().only(Route::PreadDirect);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [1; 10]).unwrap();
    let opened = options.open(file.path());
    require("odirect", opened.map(|_| options))
}

#[test]
fn auto() {
    all_but_large(&conformance::run(opened("auto", OpenOptions::new())));
}

#[test]
fn auto_with_one_thread() {
    let options = OpenOptions::new().engine(engine(1));
    all_but_large(&conformance::run(opened("auto, one thread", options)));
}

#[test]
fn pread() {
    let options = OpenOptions::new().only(Route::Pread);
    let subject = opened("pread", options);
    conformance::run(subject.capabilities(Capabilities::default().large_read(large_reads())));
}

#[test]
fn pread_checking_only_short_reads() {
    let options = OpenOptions::new()
        .only(Route::Pread)
        .version_check(VersionCheck::OnShortRead);
    let seldom = Capabilities::default().changes(Changes::NoticedWhenShort);
    conformance::run(opened("pread, seldom checked", options).capabilities(seldom));
}

#[test]
fn pread_dropping_behind() {
    let options = OpenOptions::new().cache(CachePolicy::DropBehind);
    all_but_large(&conformance::run(opened("drop behind", options)));
}

#[test]
fn pread_direct() {
    if let Some(options) = direct() {
        all_but_large(&conformance::run(opened("pread-direct", options)));
    }
}

#[test]
fn bypass_with_one_thread() {
    if direct().is_some() {
        let options = OpenOptions::new()
            .cache(CachePolicy::Bypass)
            .engine(engine(1));
        all_but_large(&conformance::run(opened("bypass", options)));
    }
}

/// Reads by rings, where the system lets us.
fn uring(route: Route) -> Option<OpenOptions> {
    let options = OpenOptions::new().only(route);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, [1; 10]).unwrap();
    let opened = options.open(file.path());
    require("uring", opened.map(|_| options))
}

#[test]
fn uring_buffered() {
    if let Some(options) = uring(Route::Uring) {
        all_but_large(&conformance::run(opened("uring", options)));
    }
}

#[test]
fn uring_direct() {
    if direct().is_some()
        && let Some(options) = uring(Route::UringDirect)
    {
        all_but_large(&conformance::run(opened("uring-direct", options)));
    }
}

#[test]
fn uring_of_little_depth() {
    if direct().is_some()
        && let Some(options) = uring(Route::UringDirect)
    {
        let one = NonZeroUsize::new(1).unwrap();
        let narrow = EngineOptions::default().depth(one).bytes_in_flight(1);
        let options = options.engine(Engine::new(narrow));
        all_but_large(&conformance::run(opened(
            "uring-direct, one at a time",
            options,
        )));
    }
}

/// What a mapping is good for, and what the promise excuses it from.
fn promised() -> Capabilities {
    Capabilities::default()
        .changes(Changes::Promised)
        .large_read(large_reads())
}

#[test]
fn mmap() {
    // SAFETY: the suite does not change files of subjects that are promised to be left alone.
    let options = unsafe { OpenOptions::new().assume_immutable() }.only(Route::Mmap);
    conformance::run(opened("mmap", options).capabilities(promised()));
}

#[test]
fn auto_under_the_promise() {
    // SAFETY: as above.
    let options = unsafe { OpenOptions::new().assume_immutable() };
    conformance::run(opened("auto, promised", options).capabilities(promised()));
}

#[test]
fn slice_of_a_file() {
    let open = |path: &Path| {
        let len = std::fs::metadata(path).unwrap().len();
        Ok(Arc::new(feedwater::open(path)?.slice(0..len)?) as _)
    };
    all_but_large(&conformance::run(FileSubject::new("slice of a file", open)));
}

/// A way to nowhere, so that every device is refused.
#[derive(Debug)]
struct NoDevice;

impl Transfer for NoDevice {
    fn reaches(&self, _: feedwater::Place) -> bool {
        false
    }
    fn allocate(&self, place: feedwater::Place, _: usize) -> Result<feedwater::BlockMut> {
        panic!("{place} is not reached")
    }
    fn staging(&self, _: usize) -> Result<feedwater::BlockMut> {
        panic!("nothing is staged")
    }
    fn copy(&self, _: bytes::Bytes, _: feedwater::BlockMut, _: feedwater::TransferDone) {
        panic!("nothing is copied")
    }
}

#[test]
fn staged_file() {
    let open = |path: &Path| {
        let file = feedwater::open(path)?;
        Ok(Arc::new(Staged::new(
            file,
            Arc::new(NoDevice),
            StagingOptions::default(),
        )) as _)
    };
    all_but_large(&conformance::run(FileSubject::new("staged file", open)));
}

#[test]
fn faults_over_a_file() {
    let open = |path: &Path| {
        let faults = Faults::seeded(5).short(0.1).interrupted(0.1).shuffle();
        Ok(Arc::new(Faulty::new(feedwater::open(path)?, faults)) as _)
    };
    all_but_large(&conformance::run(FileSubject::new("faulty auto", open)));
}

#[test]
fn on_a_file_system_in_memory() {
    let shm = Path::new("/dev/shm");
    let there = tempfile::tempdir_in(shm).map(drop);
    if require("tmpfs", there).is_some() {
        let subject = opened("auto on tmpfs", OpenOptions::new()).under(shm);
        all_but_large(&conformance::run(subject));
    }
}

/// The system tells less about files of others: residency is unknown, and nothing may depend on it.
#[cfg(target_os = "linux")]
#[test]
fn as_an_unprivileged_user_on_files_of_root() {
    use common::confined::{become_nobody, is_root};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Mutex, mpsc};
    use tempfile::TempDir;

    /// What root does for nobody.
    enum Request {
        Make(conformance::Content, mpsc::Sender<TempDir>),
        Remove(TempDir),
    }
    struct RootsFiles {
        root: Mutex<mpsc::Sender<Request>>,
        options: OpenOptions,
    }
    /// Nobody cannot remove it.
    struct Kept(Option<TempDir>, mpsc::Sender<Request>);
    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = self.1.send(Request::Remove(self.0.take().unwrap()));
        }
    }
    impl conformance::Subject for RootsFiles {
        fn name(&self) -> String {
            "auto, on files of root".into()
        }
        fn open(&self, content: &conformance::Content) -> Result<conformance::Opened> {
            let root = self.root.lock().unwrap().clone();
            let (answer, made) = mpsc::channel();
            root.send(Request::Make(content.clone(), answer)).unwrap();
            let dir = made.recv().unwrap();
            let path = dir.path().join("content");
            let kept = Mutex::new(Kept(Some(dir), root));
            let reader = self.options.open(path)?;
            // Without the path: the suite may not change it.
            Ok(conformance::Opened::shared(reader).keep(kept))
        }
    }

    if require("root", is_root()).is_none() {
        return;
    }
    let probe = tempfile::tempdir().unwrap();
    std::fs::set_permissions(probe.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = probe.path().to_path_buf();
    let reached = std::thread::spawn(move || {
        become_nobody();
        std::fs::read_dir(path).map(drop)
    });
    if require("shared-tmp", reached.join().unwrap()).is_none() {
        return;
    }
    let (root, requests) = mpsc::channel();
    let nobody = std::thread::spawn(move || {
        become_nobody();
        let subject = RootsFiles {
            root: Mutex::new(root),
            // Its threads are started by this one, so they are nobody's too.
            options: OpenOptions::new().engine(engine(4)),
        };
        conformance::run(subject)
    });
    for request in requests {
        match request {
            Request::Make(content, answer) => {
                let dir = tempfile::tempdir().unwrap();
                content.write_to(&dir.path().join("content")).unwrap();
                let all = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(dir.path(), all).unwrap();
                answer.send(dir).unwrap();
            }
            Request::Remove(dir) => dir.close().unwrap(),
        }
    }
    let report = nobody.join().unwrap();
    assert!(report.passed().count() > 30);
}

/// The subjects that read files once more, where the system offers less.
#[cfg(target_os = "linux")]
mod again {
    use super::common::confined::{
        FEW_DESCRIPTORS, MEMLOCK_0, NO_IO_URING, NO_IO_URING_CALLS, OLD_KERNEL, UNPRIVILEGED, again,
    };
    use super::common::file_systems::{FileSystem, again_on};

    /// What reads no files of the engines', or finds files of its own.
    const FILES: &[&str] = &[
        "--skip=memory_reader",
        "--skip=shared_and_dynamic",
        "--skip=slice_of_memory",
        "--skip=harmless_faults",
        "--skip=no_faults_over_a_file",
        "--skip=engine_from_outside",
        "--skip=a_promise_excuses",
        "--skip=on_a_file_system_in_memory",
        "--skip=as_an_unprivileged_user",
    ];

    /// As [`FILES`], without what differs above the file only.
    const ROUTES: &[&str] = &[
        FILES[0],
        FILES[1],
        FILES[2],
        FILES[3],
        FILES[4],
        FILES[5],
        FILES[6],
        FILES[7],
        FILES[8],
        "--skip=with_one_thread",
        "--skip=uring_of_little_depth",
        "--skip=slice_of_a_file",
        "--skip=staged_file",
        "--skip=faults_over_a_file",
    ];

    #[test]
    fn without_io_uring() {
        again(&NO_IO_URING, FILES, 12);
        again(&NO_IO_URING_CALLS, &["--exact", "auto"], 1);
    }

    #[test]
    fn old_kernel() {
        again(&OLD_KERNEL, FILES, 12);
    }

    #[test]
    fn memlock_0() {
        again(&MEMLOCK_0, FILES, 12);
    }

    #[test]
    fn with_64_descriptors() {
        again(&FEW_DESCRIPTORS, FILES, 12);
    }

    #[test]
    fn unprivileged() {
        again(&UNPRIVILEGED, FILES, 12);
    }

    #[test]
    fn on_tmpfs() {
        again_on(FileSystem::Tmpfs, ROUTES, 7);
    }

    #[test]
    fn on_overlay() {
        again_on(FileSystem::Overlay, ROUTES, 7);
    }

    #[test]
    fn on_4k_sectors() {
        again_on(FileSystem::Ext4Of4KiB, ROUTES, 7);
    }

    #[test]
    fn on_xfs() {
        again_on(FileSystem::Xfs, ROUTES, 7);
    }

    #[test]
    fn on_btrfs() {
        again_on(FileSystem::Btrfs, ROUTES, 7);
    }

    #[test]
    fn on_fuse() {
        again_on(FileSystem::Fuse, ROUTES, 7);
    }
}
