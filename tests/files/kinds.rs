//! Files that are none, are not there, or are not what they were.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use feedwater::{EntryKind, ErrorKind, FileKind, FilesWay, read_files, stat_files};

use super::common::skip::require;
use super::support::*;

fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn bad_ones_say_why_and_stop_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let below = |name: &str| dir.path().join(name);
    let circle = below("circle");
    symlink(&circle, &circle).unwrap();
    fifo(&below("fifo"));
    let _socket = UnixListener::bind(below("socket")).unwrap();
    fs::create_dir(below("dir")).unwrap();
    let good = below("good");
    fs::write(&good, "good").unwrap();
    symlink(&good, below("link")).unwrap();
    let secret = below("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let paths = [
        below("nothing"),
        circle,
        below("fifo"),
        below("socket"),
        below("dir"),
        "/dev/zero".into(),
        below("good/below"),
        PathBuf::from("a\0b"),
        secret,
        "".into(),
        below("link"),
        good,
    ];
    let is_root = fs::read(&paths[8]).is_ok();
    for way in ways() {
        for outcomes in read_in_all_shapes(&paths, way) {
            let error = |at: u64| outcomes[&at].1.as_ref().unwrap_err();
            let kind = |at: u64| match error(at).kind() {
                ErrorKind::NotAFile { what } => *what,
                other => panic!("{at}: {other}"),
            };
            if way == Some(FilesWay::Rings) {
                // What is not to be opened is found out before.
                assert_eq!(outcomes[&11].1.as_ref().unwrap().bytes, "good");
                assert_eq!(raw(error(0)), Some(libc::ENOENT));
                assert_eq!(raw(error(1)), Some(libc::ELOOP));
                continue;
            }
            assert_eq!(raw(error(0)), Some(libc::ENOENT));
            assert_eq!(raw(error(1)), Some(libc::ELOOP));
            assert_eq!(kind(2), FileKind::Fifo);
            assert_eq!(kind(3), FileKind::Socket);
            assert_eq!(kind(4), FileKind::Directory);
            assert_eq!(kind(5), FileKind::CharacterDevice);
            assert_eq!(raw(error(6)), Some(libc::ENOTDIR));
            assert!(matches!(error(7).kind(), ErrorKind::Io { .. }));
            assert_eq!(raw(error(9)), Some(libc::ENOENT));
            if !is_root {
                assert_eq!(raw(error(8)), Some(libc::EACCES));
            }
            for at in [10, 11] {
                assert_eq!(outcomes[&at].1.as_ref().unwrap().bytes, "good");
            }
            for at in [0, 1, 2, 3, 4, 5, 6, 9] {
                let name = paths[at as usize].to_string_lossy();
                assert_eq!(error(at).name(), Some(&*name));
            }
        }
    }
    assert_eq!(open_below(dir.path()), 0);
}

#[test]
fn names_need_not_be_utf_8() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(OsStr::from_bytes(b"not \xff\xfe utf-8"));
    if require("any-names", fs::write(&path, "content")).is_none() {
        return;
    }
    for way in ways() {
        for outcomes in read_in_all_shapes(std::slice::from_ref(&path), way) {
            let (told, result) = &outcomes[&0];
            assert_eq!(&**told, &*path);
            assert_eq!(result.as_ref().unwrap().bytes, "content");
        }
    }
}

#[test]
fn files_that_do_not_tell_their_length_are_read_to_the_end() {
    let path = PathBuf::from("/proc/self/status");
    if require("procfs", fs::metadata(&path)).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut files = vec![path];
    files.extend(paths(&make(dir.path(), 20)));
    for outcomes in read_in_all_shapes(&files, None) {
        let content = outcomes[&0].1.as_ref().unwrap();
        assert!(content.bytes.starts_with(b"Name:"), "{content:?}");
        assert!(outcomes.values().all(|(_, result)| result.is_ok()));
    }
    // More than is allowed.
    let one = read_files(&files[..1]).max_file(10).into_iter().next();
    let error = one.unwrap().result.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::TooLarge { cap: 10 }),
        "{error}"
    );
}

#[test]
fn vanished_files_are_not_found_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 400);
    let paths = paths(&files);
    for way in ways() {
        let gone = tempfile::tempdir().unwrap();
        let vanishing = make(gone.path(), 400);
        let mixed: Vec<_> = paths
            .iter()
            .cloned()
            .zip(vanishing.iter().map(|(path, _)| path.clone()))
            .flat_map(|(a, b)| [a, b])
            .collect();
        // They vanish while paths are taken.
        let mut left = vanishing.iter();
        let lazily = mixed.iter().inspect(move |_| {
            if let Some((path, _)) = left.next() {
                fs::remove_file(path).unwrap();
            }
        });
        let many = read_files(lazily);
        let many = match way {
            Some(way) => many.only(way),
            None => many,
        };
        for (at, (path, result)) in collect(many) {
            let file = at as usize / 2;
            match result {
                Ok(content) if at % 2 == 0 => assert_eq!(content.bytes, files[file].1),
                Ok(content) => assert_eq!(content.bytes, vanishing[file].1),
                Err(error) => {
                    assert_eq!(at % 2, 1, "{error}");
                    assert_eq!(raw(&error), Some(libc::ENOENT), "{}", path.display());
                }
            }
        }
    }
}

/// Says stop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn files_that_change_while_they_are_read_are_whole_or_have_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let len = 300_000;
    // Two contents of different lengths, each of one byte alone.
    let write = |file: &File, which: u8| {
        file.set_len(0).unwrap();
        file.write_all_at(&vec![which; len * which as usize], 0)
            .unwrap();
    };
    let file = File::create(&path).unwrap();
    write(&file, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for turn in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                write(&file, 1 + (turn % 2) as u8);
            }
        });
        // Also if an assertion fails: the scope waits for the writer.
        let _stop = Stop(&stop);
        for way in ways() {
            for outcomes in read_in_all_shapes(&vec![path.clone(); 30], way) {
                for (_, result) in outcomes.into_values() {
                    match result {
                        // A writer at work is between two states: as long as its version says, and of one byte; what it
                        // has not written yet is not there.
                        //
                        // No length told, and it is read to its end, as files under /proc are. On FUSE that is also
                        // the moment at which the server has a write and the kernel has not counted it.
                        Ok(content) if content.version.size == 0 => {}
                        Ok(content) => {
                            assert_eq!(content.bytes.len() as u64, content.version.size);
                        }
                        Err(error) => assert!(
                            matches!(
                                error.kind(),
                                ErrorKind::Changed { .. } | ErrorKind::Io { .. }
                            ),
                            "{error}"
                        ),
                    }
                }
            }
        }
    });
    // Undisturbed it is read again.
    write(&file, 2);
    let content = read_files([&path])
        .into_iter()
        .next()
        .unwrap()
        .result
        .unwrap();
    assert_eq!(content.bytes, vec![2; 2 * len]);
}

#[test]
fn attributes_are_those_that_the_system_tells() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 300);
    let mut all = paths(&files);
    let link = dir.path().join("link");
    symlink(&all[7], &link).unwrap();
    let fifo_path = dir.path().join("fifo");
    fifo(&fifo_path);
    all.extend([
        link.clone(),
        dir.path().to_path_buf(),
        fifo_path,
        "/dev/null".into(),
    ]);
    let nothing = dir.path().join("nothing");
    all.push(nothing);
    for follow in [true, false] {
        for way in [None, Some(FilesWay::Spot), Some(FilesWay::Threads)] {
            let many = || {
                let many = stat_files(&all).follow_links(follow).in_order();
                match way {
                    Some(way) => many.only(way),
                    None => many,
                }
            };
            let blocking: Vec<_> = many().into_iter().collect();
            let in_task: Vec<_> =
                futures::executor::block_on(futures::StreamExt::collect(many().stream()));
            for told in [blocking, in_task] {
                assert_eq!(told.len(), all.len());
                for (path, told) in all.iter().zip(told) {
                    let expected = match follow {
                        true => fs::metadata(path),
                        false => fs::symlink_metadata(path),
                    };
                    let (expected, told) = match (expected, told.result) {
                        (Ok(expected), Ok(told)) => (expected, told),
                        (Err(expected), Err(error)) => {
                            assert_eq!(raw(&error), expected.raw_os_error());
                            continue;
                        }
                        other => panic!("{}: {other:?}", path.display()),
                    };
                    assert_eq!(told.version, feedwater::FileVersion::from(&expected));
                    assert_eq!(told.permissions, expected.mode() & 0o7777);
                    assert_eq!((told.user, told.group), (expected.uid(), expected.gid()));
                    assert_eq!(told.links, expected.nlink());
                    let kind = expected.file_type();
                    match told.kind {
                        EntryKind::File => assert!(kind.is_file()),
                        EntryKind::Directory => assert!(kind.is_dir()),
                        EntryKind::Symlink => assert!(kind.is_symlink() && *path == link),
                        EntryKind::Other(FileKind::Fifo) => assert!(path.ends_with("fifo")),
                        EntryKind::Other(FileKind::CharacterDevice) => {
                            assert!(path.ends_with("null"));
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}
