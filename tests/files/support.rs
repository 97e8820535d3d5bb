//! Trees of files, and the ways to read them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use feedwater::{
    Engine, EngineOptions, ErrorKind, FileContent, FileResult, FilesWay, Result, read_files,
};
use futures::StreamExt;

pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096 + seed) as u8).collect()
}

/// So many files in a few directories, of sizes from nothing to some pages.
pub(crate) fn make(dir: &Path, count: usize) -> Vec<(PathBuf, Vec<u8>)> {
    let sizes = [0, 1, 100, 4095, 4096, 4097, 20_000, 70_000];
    (0..count)
        .map(|i| {
            let below = dir.join(format!("dir {}", i % 3));
            fs::create_dir_all(&below).unwrap();
            let path = below.join(format!("file {i}"));
            let content = pattern(i, sizes[i % sizes.len()]);
            fs::write(&path, &content).unwrap();
            (path, content)
        })
        .collect()
}

pub(crate) fn paths(files: &[(PathBuf, Vec<u8>)]) -> Vec<PathBuf> {
    files.iter().map(|(path, _)| path.clone()).collect()
}

/// Ways to be asked for; `None` leaves the choice to the crate.
pub(crate) fn ways() -> Vec<Option<FilesWay>> {
    let mut ways = vec![None, Some(FilesWay::Spot), Some(FilesWay::Threads)];
    // Which is refused on the network and FUSE, and where there is no io_uring.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "x").unwrap();
    let mut one = read_files([path]).only(FilesWay::Rings).into_iter();
    match one.next().unwrap().result {
        Ok(_) => ways.push(Some(FilesWay::Rings)),
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable { .. }),
                "{error}"
            );
            eprintln!("without rings: {error}");
        }
    }
    ways
}

pub(crate) type Outcomes = BTreeMap<u64, (Arc<Path>, Result<FileContent>)>;

pub(crate) fn collect(files: impl IntoIterator<Item = FileResult<FileContent>>) -> Outcomes {
    let mut all = BTreeMap::new();
    for file in files {
        let FileResult {
            index,
            path,
            result,
            ..
        } = file;
        assert!(all.insert(index, (path, result)).is_none(), "told once");
    }
    all
}

/// Reads all in a way, as an iterator and as a stream; both times as they come and in order.
pub(crate) fn read_in_all_shapes(paths: &[PathBuf], way: Option<FilesWay>) -> Vec<Outcomes> {
    let mut all = Vec::new();
    for in_order in [false, true] {
        let files = || {
            let files = read_files(paths);
            let files = if in_order { files.in_order() } else { files };
            match way {
                Some(way) => files.only(way),
                None => files,
            }
        };
        let ordered = |given: &[FileResult<FileContent>]| {
            if in_order {
                assert!(
                    given
                        .iter()
                        .map(|file| file.index)
                        .eq(0..paths.len() as u64)
                );
            }
        };
        let given: Vec<_> = files().into_iter().collect();
        ordered(&given);
        all.push(collect(given));
        let given: Vec<_> = futures::executor::block_on(files().stream().collect::<Vec<_>>());
        ordered(&given);
        all.push(collect(given));
    }
    all
}

pub(crate) fn assert_right(outcomes: &Outcomes, files: &[(PathBuf, Vec<u8>)]) {
    assert_eq!(outcomes.len(), files.len());
    for (i, (path, content)) in files.iter().enumerate() {
        let (told, result) = &outcomes[&(i as u64)];
        assert_eq!(&**told, &**path);
        let read = result.as_ref().unwrap();
        assert_eq!(read.bytes, content, "{}", path.display());
        assert_eq!(read.version.size, content.len() as u64);
    }
}

pub(crate) fn raw(error: &feedwater::Error) -> Option<i32> {
    match error.kind() {
        ErrorKind::Io { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

/// Descriptors of this process that lead below `dir`.
pub(crate) fn open_below(dir: &Path) -> usize {
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| target.starts_with(dir))
        .count()
}

/// An engine of its own, so that what a test does to it stays there.
pub(crate) fn engine() -> Engine {
    Engine::new(EngineOptions::default())
}

/// Drops files from the page cache, as far as the system lets us.
pub(crate) fn evict(files: &[(PathBuf, Vec<u8>)]) {
    for (path, _) in files {
        let file = fs::File::open(path).unwrap();
        file.sync_all().unwrap();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// Keeps a stream pinned in place.
pub(crate) fn pinned<S: futures::Stream + Unpin>(stream: &mut S) -> Pin<&mut S> {
    Pin::new(stream)
}
