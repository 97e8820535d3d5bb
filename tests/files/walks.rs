//! Walks: complete, once each, and never in circles.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedwater::{
    EntryKind, Error, ErrorKind, FileAttributes, FileKind, FileResult, FileVersion, WalkEntry,
    read_files, walk,
};
use futures::StreamExt;

use super::common::skip::require;
use super::support::*;

type Found = BTreeMap<PathBuf, Result<WalkEntry, Error>>;

fn collect_walk(entries: impl IntoIterator<Item = FileResult<WalkEntry>>) -> Found {
    let mut all = BTreeMap::new();
    for (at, entry) in entries.into_iter().enumerate() {
        assert_eq!(entry.index, at as u64);
        let path = entry.path.to_path_buf();
        let before = all.insert(path, entry.result);
        assert!(before.is_none(), "found once: {}", entry.path.display());
    }
    all
}

fn both(walk: feedwater::Walk) -> [Found; 2] {
    let stream = futures::executor::block_on(walk.clone().stream().collect::<Vec<_>>());
    [collect_walk(walk), collect_walk(stream)]
}

/// What a plain recursion finds.
fn plainly(dir: &Path, found: &mut BTreeMap<PathBuf, fs::Metadata>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            plainly(&entry.path(), found);
        }
        found.insert(entry.path(), metadata);
    }
}

/// A tree that is deep here and broad there.
fn tree(dir: &Path) {
    let mut deep = dir.to_path_buf();
    for i in 0..40 {
        deep.push(format!("{i}"));
        fs::create_dir(&deep).unwrap();
        fs::write(deep.join("file"), pattern(i, i)).unwrap();
    }
    let broad = dir.join("broad");
    fs::create_dir(&broad).unwrap();
    for i in 0..700 {
        let path = broad.join(format!("{i}"));
        if i % 7 == 0 {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("below"), "x").unwrap();
        } else {
            fs::write(&path, pattern(i, i)).unwrap();
        }
    }
    symlink(&broad, dir.join("link")).unwrap();
}

#[test]
fn everything_is_found_once_with_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let mut expected = BTreeMap::new();
    plainly(dir.path(), &mut expected);
    for stat in [false, true] {
        let mut asked = walk(dir.path());
        if stat {
            asked = asked.stat();
        }
        for found in both(asked) {
            assert!(found.keys().eq(expected.keys()));
            for (path, metadata) in &expected {
                let entry = found[path].as_ref().unwrap();
                let below = path.strip_prefix(dir.path()).unwrap();
                assert_eq!(entry.depth, below.components().count());
                let kind = metadata.file_type();
                assert_eq!(entry.kind == EntryKind::Directory, kind.is_dir());
                assert_eq!(entry.kind == EntryKind::File, kind.is_file());
                assert_eq!(entry.kind == EntryKind::Symlink, kind.is_symlink());
                let version = entry.attributes.map(|told: FileAttributes| told.version);
                assert_eq!(version, stat.then(|| FileVersion::from(metadata)));
            }
        }
    }
    assert_eq!(open_below(dir.path()), 0);
}

#[test]
fn a_walk_feeds_reads() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 400);
    let found = walk(dir.path()).into_iter().filter_map(|entry| {
        let is_file = entry.result.unwrap().kind == EntryKind::File;
        is_file.then_some(entry.path)
    });
    let mut read = 0;
    for file in read_files(found) {
        let (_, content) = files.iter().find(|(path, _)| **path == *file.path).unwrap();
        assert_eq!(file.result.unwrap().bytes, content);
        read += 1;
    }
    assert_eq!(read, 400);
}

#[test]
fn links_are_followed_but_not_in_circles() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("a/b");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("file"), "x").unwrap();
    symlink(dir.path(), inner.join("to-root")).unwrap();
    symlink(dir.path().join("a"), inner.join("to-a")).unwrap();
    symlink(inner.join("file"), dir.path().join("to-file")).unwrap();
    symlink("nothing", dir.path().join("dangling")).unwrap();
    let own = dir.path().join("own");
    symlink(&own, &own).unwrap();
    for found in both(walk(dir.path()).follow_links(true)) {
        let of = |path: &str| &found[&dir.path().join(path)];
        assert_eq!(of("a/b/file").as_ref().unwrap().kind, EntryKind::File);
        assert_eq!(of("to-file").as_ref().unwrap().kind, EntryKind::File);
        assert_eq!(
            raw(of("dangling").as_ref().unwrap_err()),
            Some(libc::ENOENT)
        );
        assert_eq!(raw(of("own").as_ref().unwrap_err()), Some(libc::ELOOP));
        for circle in ["a/b/to-root", "a/b/to-a"] {
            let error = of_circle(&found, &dir.path().join(circle));
            assert_eq!(raw(error), Some(libc::ELOOP), "{circle}");
        }
        assert_eq!(found.len(), 8);
    }
    for found in both(walk(dir.path())) {
        assert_eq!(found.len(), 8);
        let links = found.values().filter(|entry| {
            matches!(
                entry,
                Ok(WalkEntry {
                    kind: EntryKind::Symlink,
                    ..
                })
            )
        });
        assert_eq!(links.count(), 5);
    }
}

fn of_circle<'a>(found: &'a Found, path: &Path) -> &'a Error {
    found[path].as_ref().unwrap_err()
}

#[test]
fn what_cannot_be_listed_is_an_error_beside_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "x").unwrap();
    fs::write(dir.path().join("open"), "x").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let is_root = fs::read_dir(&secret).is_ok();
    let entries: Vec<_> = walk(dir.path()).into_iter().collect();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o755)).unwrap();
    let errors: Vec<_> = entries.iter().filter(|e| e.result.is_err()).collect();
    assert_eq!(entries.len() - errors.len(), if is_root { 3 } else { 2 });
    if !is_root {
        assert_eq!(errors.len(), 1);
        assert_eq!(&*errors[0].path, secret);
        let error = errors[0].result.as_ref().unwrap_err();
        assert_eq!(raw(error), Some(libc::EACCES));
        assert_eq!(error.name(), Some(&*secret.to_string_lossy()));
    }
    for (root, expected) in [("nothing", libc::ENOENT), ("open", libc::ENOTDIR)] {
        let root = dir.path().join(root);
        let entries: Vec<_> = walk(&root).into_iter().collect();
        assert_eq!(entries.len(), 1);
        assert_eq!(&*entries[0].path, root);
        assert_eq!(raw(entries[0].result.as_ref().unwrap_err()), Some(expected));
    }
}

#[test]
fn depth_and_count_are_capped() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    for found in both(walk(dir.path()).max_depth(1)) {
        let names: Vec<_> = found.keys().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["0", "broad", "link"]);
    }
    for found in both(walk(dir.path()).max_depth(3)) {
        let deepest = found.values().map(|entry| entry.as_ref().unwrap().depth);
        assert_eq!(deepest.max(), Some(3));
    }
    for found in both(walk(dir.path()).max_depth(0)) {
        assert!(found.is_empty());
    }
    for asked in [walk(dir.path()), walk(dir.path()).stat()] {
        let all: Vec<_> = asked.max_entries(100).into_iter().collect();
        assert_eq!(all.len(), 101);
        assert!(all[..100].iter().all(|entry| entry.result.is_ok()));
        let error = all[100].result.as_ref().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::TooMany { cap: 100 }),
            "{error}"
        );
    }
    let all = walk(dir.path()).max_entries(10_000).into_iter();
    assert!(all.map(|entry| entry.result).all(|entry| entry.is_ok()));
}

#[test]
fn names_and_kinds_of_all_sorts() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let odd = dir.path().join(OsStr::from_bytes(b"\xff\n \xc3"));
    let odd = require("any-names", fs::write(&odd, "x")).map(|()| odd);
    for stat in [false, true] {
        let asked = walk(dir.path());
        let asked = if stat { asked.stat() } else { asked };
        for found in both(asked) {
            let kind = found[&fifo].as_ref().unwrap().kind;
            assert_eq!(kind, EntryKind::Other(FileKind::Fifo));
            if let Some(odd) = &odd {
                assert_eq!(found[odd].as_ref().unwrap().kind, EntryKind::File);
            }
        }
    }
}

#[test]
fn dropped_midway_or_shut_down_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    for taken in [0, 1, 300] {
        let engine = engine();
        let mut entries = walk(dir.path()).stat().engine(engine.clone()).into_iter();
        assert_eq!(entries.by_ref().take(taken).count(), taken);
        drop(entries);
        assert!(engine.shut_down(Duration::from_secs(60)).is_complete());
        assert_eq!(open_below(dir.path()), 0);
    }
    let engine = engine();
    let entries = walk(dir.path()).engine(engine.clone()).into_iter();
    assert!(engine.shut_down(Duration::from_secs(60)).is_complete());
    let all: Vec<_> = entries.collect();
    assert_eq!(all.len(), 1);
    let error = all[0].result.as_ref().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Abandoned), "{error}");
    assert_eq!(open_below(dir.path()), 0);
}
