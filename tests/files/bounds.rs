//! Windows: files, bytes, descriptors, memory.

use std::cell::Cell;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use feedwater::{Engine, EngineOptions, ErrorKind, PoolOptions, read_files, stat_files};

use super::support::*;

#[test]
fn paths_are_taken_as_they_are_needed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "content").unwrap();
    let taken = Cell::new(0u64);
    let lazily = std::iter::repeat_with(|| {
        taken.set(taken.get() + 1);
        path.clone()
    });
    let mut given = 0;
    let window = NonZeroUsize::new(50).unwrap();
    for file in read_files(lazily)
        .window_files(window)
        .into_iter()
        .take(2000)
    {
        assert_eq!(file.result.unwrap().bytes, "content");
        given += 1;
        assert!(taken.get() <= given + 50, "{} {given}", taken.get());
    }
}

/// Bytes of this process in memory that are its own.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[test]
fn a_million_paths_run_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "content").unwrap();
    let paths = || std::iter::repeat_n(&path, 1_000_000);
    assert_eq!(stat_files(paths()).into_iter().take(5000).count(), 5000);
    let before = resident();
    let mut errors = 0;
    for file in stat_files(paths()) {
        errors += u64::from(file.result.is_err());
    }
    assert_eq!(errors, 0);
    if let (Some(before), Some(after)) = (before, resident()) {
        // Other tests run beside this one: theirs is part of it.
        assert!(after < before + (256 << 20), "{before} {after}");
    }
}

#[test]
fn bytes_that_are_read_and_not_taken_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let len = 100_000;
    let files: Vec<(PathBuf, Vec<u8>)> = (0..200)
        .map(|i| {
            let path = dir.path().join(format!("{i}"));
            let content = pattern(i, len);
            fs::write(&path, &content).unwrap();
            (path, content)
        })
        .collect();
    let window = 5 * len as u64 + 7;
    for way in ways() {
        for in_order in [false, true] {
            evict(&files);
            let many = read_files(paths(&files)).window_bytes(window);
            let many = if in_order { many.in_order() } else { many };
            let many = match way {
                Some(way) => many.only(way),
                None => many,
            };
            let mut all = many.into_iter();
            assert_right(&collect(all.by_ref()), &files);
            let report = all.report();
            // The next one in order is always allowed.
            let most = window + if in_order { len as u64 } else { 0 };
            assert!(report.most_bytes <= most, "{way:?} {report:?}");
        }
    }
    // Less than one file: one at a time.
    let mut all = read_files(paths(&files)).window_bytes(1).into_iter();
    assert_right(&collect(all.by_ref()), &files);
    assert_eq!(all.report().most_bytes, len as u64);
}

#[test]
fn a_file_larger_than_allowed_fails_with_both_numbers_and_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 16);
    let many = |most| read_files(paths(&files)).max_file(most);
    let small = EngineOptions::default().pool(PoolOptions::default().max_block(4096));
    let by_pool = read_files(paths(&files)).engine(Engine::new(small));
    for many in [many(4096), by_pool] {
        for (at, (_, result)) in collect(many) {
            let content = &files[at as usize].1;
            match result {
                Ok(read) => assert_eq!(read.bytes, content),
                Err(error) => {
                    let ErrorKind::OutOfMemory { wanted, cap } = error.kind() else {
                        panic!("{error}");
                    };
                    assert_eq!((*wanted, *cap), (content.len() as u64, 4096));
                    assert!(content.len() > 4096);
                }
            }
        }
    }
}

#[test]
fn small_files_share_memory_unless_they_are_to_be_apart() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<(PathBuf, Vec<u8>)> = (0..100)
        .map(|i| {
            let path = dir.path().join(format!("{i}"));
            let content = pattern(i, 1000);
            fs::write(&path, &content).unwrap();
            (path, content)
        })
        .collect();
    for (apart, blocks) in [(false, 1..=4), (true, 0..=0)] {
        let engine = engine();
        let many = read_files(paths(&files)).engine(engine.clone());
        let many = if apart { many.apart() } else { many };
        let outcomes = collect(many);
        assert_right(&outcomes, &files);
        let allocated = engine.pool().stats().allocated;
        assert!(blocks.contains(&allocated), "{apart} {allocated}");
    }
}

#[test]
fn windows_of_one_file_work() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 50);
    let one = NonZeroUsize::new(1).unwrap();
    for way in ways() {
        for in_order in [false, true] {
            let many = read_files(paths(&files)).window_files(one);
            let many = if in_order { many.in_order() } else { many };
            let many = match way {
                Some(way) => many.only(way),
                None => many,
            };
            assert_right(&collect(many), &files);
        }
    }
}

#[test]
fn no_paths_give_nothing() {
    let none: [PathBuf; 0] = [];
    assert_eq!(read_files(none.clone()).into_iter().count(), 0);
    let stream = stat_files(none).stream();
    assert_eq!(
        futures::executor::block_on(futures::StreamExt::count(stream)),
        0
    );
}

#[test]
fn paths_that_panic_hold_up_none_of_those_that_came() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 40);
    let paths = paths(&files);
    for parts in [1, 2] {
        let mut taken = 0;
        let iter = paths.iter().inspect(|_| {
            taken += 1;
            assert_ne!(taken, 35, "as the test wants it");
        });
        let many = read_files(iter).in_order();
        let mut parts = many.split(NonZeroUsize::new(parts).unwrap());
        let (mut given, mut panics) = (Vec::new(), 0);
        for part in parts.iter_mut().rev() {
            loop {
                match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| part.next())) {
                    Ok(Some(file)) => given.push(file),
                    Ok(None) => break,
                    Err(_) => panics += 1,
                }
            }
        }
        assert_eq!(panics, 1);
        // All but the one that the panic took, each under its number among those that came.
        let right = paths.iter().enumerate().filter(|(at, _)| *at != 34);
        let right: Vec<_> = right.map(|(_, path)| path.as_path()).collect();
        let all = collect(given);
        let told: Vec<_> = all.values().map(|(path, _)| &**path).collect();
        assert_eq!(told, right);
        assert!(all.values().all(|(_, result)| result.is_ok()));
        assert!(all.keys().copied().eq(0..39));
    }
}

#[test]
#[ignore = "takes all descriptors: run by another test in a process of its own"]
fn looking_needs_no_descriptor_alone() {
    let dir = tempfile::tempdir().unwrap();
    let files = make(dir.path(), 200);
    let paths = paths(&files);
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let found = stat_files(&paths).into_iter();
    let failed: Vec<_> = found.filter_map(|file| file.result.err()).collect();
    drop(taken);
    assert!(failed.is_empty(), "{} of 200: {}", failed.len(), failed[0]);
}
