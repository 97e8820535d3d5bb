//! Many paths in one call: each as if it had been asked for alone, those that are not known together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feedwater::cache::{
    Attributes, CacheOptions, ManualClock, MetadataCache, PrefetchOptions, PrefetchRun,
};
use feedwater::{ErrorKind, Result};

use crate::support::{Door, Fake, options};

fn cache(paths: &[String], prefetch: PrefetchOptions) -> (Arc<Fake>, MetadataCache) {
    let (fake, clock) = (Arc::new(Fake::with(paths)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).prefetch(prefetch).build().unwrap();
    (fake, cache)
}

fn files(dir: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{dir}/{n:04}")).collect()
}

fn batches(fake: &Fake) -> u64 {
    fake.batches.load(Ordering::SeqCst)
}

fn sizes(found: Vec<Result<Attributes>>) -> Vec<Option<u64>> {
    let size = |found: Result<Attributes>| found.ok().map(|found| found.size());
    found.into_iter().map(size).collect()
}

#[test]
fn answers_come_in_the_order_of_the_paths_and_what_is_known_is_not_asked_for() {
    let paths = files("/a", 5);
    let (fake, cache) = cache(&paths, PrefetchOptions::new());
    (0..)
        .zip(&paths)
        .for_each(|(n, path)| fake.put(path, n + 10));
    cache.stat(&paths[3]).unwrap();
    let asked = ["/a/0004", "/a/no", "/a/0003", "/a//0004/", "/a/0000"];
    let answers = sizes(cache.stat_many(asked));
    assert_eq!(answers, [Some(14), None, Some(13), Some(14), Some(10)]);
    // One that came twice and one that failed are not asked for again.
    assert_eq!((fake.stats(), batches(&fake)), (1, 1));
    let metrics = cache.metrics();
    assert_eq!((metrics.hits, metrics.misses), (1, 5));
    assert_eq!((metrics.backend_calls, metrics.backend_entries), (2, 4));
    assert_eq!(sizes(cache.stat_many(asked)), answers);
    let error = cache.stat_many(["/a/no"]).pop().unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io { op: "stat", .. }));
    assert!(cache.stat_many(Vec::<&str>::new()).is_empty());
}

#[test]
fn a_thousand_paths_are_one_call_and_the_bound_holds() {
    const CAPACITY: u64 = 128 << 10;
    let paths = files("/a", 2500);
    let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
    let cache = options(&fake, &clock).capacity(CAPACITY).build().unwrap();
    let (seen, most) = (cache.clone(), Arc::new(AtomicUsize::new(0)));
    let inside = most.clone();
    fake.on_call(move |_| {
        inside.fetch_max(seen.metrics().bytes as usize, Ordering::SeqCst);
    });
    let answers = cache.stat_many(&paths);
    assert_eq!(answers.iter().flatten().count(), 2500);
    assert_eq!((fake.stats(), batches(&fake)), (0, 3));
    let most = most.load(Ordering::SeqCst) as u64;
    assert!(most > 0 && most <= CAPACITY && cache.metrics().bytes <= CAPACITY);
    assert!(cache.metrics().bypassed > 0, "no room for a thousand loads");
    fake.on_call(|_| {}); // the hook holds the cache
}

#[test]
fn what_another_is_loading_is_waited_for() {
    let paths = files("/a", 3);
    let (fake, cache) = cache(&paths, PrefetchOptions::new());
    let door = Arc::new(Door::default());
    let inside = door.clone();
    fake.on_call(move |path| {
        if path.ends_with("0001") {
            inside.pass();
        }
    });
    std::thread::scope(|scope| {
        let alone = scope.spawn(|| cache.stat(&paths[1]));
        door.came(1);
        let many = scope.spawn(|| cache.stat_many(&paths));
        // It has asked for the other two by the time that it waits.
        while batches(&fake) == 0 {
            std::thread::yield_now();
        }
        door.open();
        assert_eq!(alone.join().unwrap().unwrap().size(), 1);
        assert_eq!(many.join().unwrap().into_iter().flatten().count(), 3);
    });
    assert_eq!((fake.stats(), batches(&fake)), (1, 1));
}

#[test]
fn calls_that_overlap_in_any_order_never_wait_for_each_other_in_a_circle() {
    let paths = files("/a", 64);
    let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
    let none = std::time::Duration::ZERO;
    // Nothing is kept, so that every call loads.
    let cache = options(&fake, &clock).file_ttl(none).build().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4usize {
            let (cache, paths) = (&cache, &paths);
            scope.spawn(move || {
                let mut mine = paths.to_vec();
                for round in 0..200 {
                    mine.rotate_left(round % 7 + worker);
                    if worker % 2 == 0 {
                        mine.reverse();
                    }
                    let found = cache.stat_many(&mine);
                    assert_eq!(found.iter().flatten().count(), 64);
                    assert_eq!(cache.stat(&mine[0]).unwrap().size(), 1);
                }
            });
        }
    });
}

#[test]
fn a_backend_that_panics_or_answers_too_little_harms_nobody_else() {
    let paths = files("/a", 4);
    let (fake, cache) = cache(&paths, PrefetchOptions::new());
    fake.on_call(|path| assert!(!path.ends_with("many"), "as the test wants it"));
    let panics = std::panic::AssertUnwindSafe(|| cache.stat_many(&paths));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(cache.stat(&paths[0]).unwrap().size(), 1);
    fake.on_call(|_| {});
    fake.short.store(true, Ordering::SeqCst);
    assert_eq!(cache.stat_many(&paths).into_iter().flatten().count(), 4);
    assert!(fake.stats() > 1, "what was not answered is asked for alone");
}

#[test]
fn for_the_trigger_a_call_is_one_access_of_each_directory() {
    let paths = files("/r/a/b/c", 100);
    let prefetch = PrefetchOptions::new().root("/r").run(PrefetchRun::Inline);
    let (fake, cache) = cache(&paths, prefetch);
    cache.stat_many(&paths[..20]);
    cache.stat_many(&paths[20..40]);
    assert_eq!(fake.lists(), 0);
    cache.stat_many(&paths[40..60]);
    assert_eq!((fake.lists(), batches(&fake)), (1, 3));
    assert_eq!(sizes(cache.stat_many(&paths)), [Some(1); 100]);
    assert_eq!((fake.stats(), fake.lists(), batches(&fake)), (0, 1, 3));
    assert_eq!(cache.metrics().prefetch_useful, 40);
}

/// A batch remembers the directory of the path before; what happens to it between two paths counts all the same.
#[test]
fn what_is_invalidated_or_grows_old_between_two_paths_of_a_batch_is_asked_for() {
    type Change = fn(&MetadataCache, &ManualClock);
    let changes: [(&str, Change, u64); 5] = [
        ("the path", |cache, _| cache.invalidate("/r/a/b/c/0050"), 1),
        ("its directory", |cache, _| cache.invalidate("/r/a/b/c"), 50),
        ("the tree", |cache, _| cache.invalidate_tree("/r/a"), 50),
        (
            "the content",
            |cache, _| {
                let version = feedwater::Version::Etag {
                    etag: "other".into(),
                    size: 7,
                };
                cache.validate("/r/a/b/c/0050", &version);
            },
            1,
        ),
        (
            "the age",
            |_, clock| clock.advance(std::time::Duration::from_secs(3)),
            50,
        ),
    ];
    for (what, change, asked) in changes {
        let paths = files("/r/a/b/c", 100);
        let (fake, clock) = (Arc::new(Fake::with(&paths)), Arc::new(ManualClock::new()));
        let prefetch = PrefetchOptions::new().root("/r").run(PrefetchRun::Inline);
        let cache = options(&fake, &clock).prefetch(prefetch).build().unwrap();
        for path in &paths[..3] {
            cache.stat(path).unwrap();
        }
        // Brought by a pass, and each asked for once.
        assert_eq!(sizes(cache.stat_many(&paths)), [Some(1); 100], "{what}");
        assert_eq!(fake.lists(), 1, "{what}");
        let before = cache.metrics();
        let lazily = (0..100).map(|n| {
            if n == 50 {
                (50..100).for_each(|n| fake.put(&paths[n], 2));
                change(&cache, &clock);
            }
            &paths[n]
        });
        let answers = sizes(cache.stat_many(lazily));
        let right = |n: u64| Some(if n < 50 || n >= 50 + asked { 1 } else { 2 });
        assert!(answers.into_iter().eq((0..100).map(right)), "{what}");
        let metrics = cache.metrics();
        assert_eq!(metrics.misses - before.misses, asked, "{what}");
        assert_eq!(metrics.hits - before.hits, 100 - asked, "{what}");
    }
}

#[test]
fn a_path_below_or_beside_the_directory_of_the_one_before_is_no_child_of_it() {
    let paths = files("/r/a/b/c", 20);
    let others = ["/r/a/b/c/d/0001", "/r/a/b/cc/0001", "/r/a/b/c"];
    let all = paths.iter().map(String::as_str).chain(others);
    let (fake, cache) = cache(
        &all.clone().take(22).map(String::from).collect::<Vec<_>>(),
        PrefetchOptions::new().root("/r").run(PrefetchRun::Inline),
    );
    fake.put("/r/a/b/c/d/0001", 5);
    fake.put("/r/a/b/cc/0001", 6);
    for _ in 0..3 {
        let answers = sizes(cache.stat_many(all.clone()));
        assert_eq!(answers[..20], [Some(1); 20]);
        assert_eq!(answers[20..], [Some(5), Some(6), Some(0)]);
        for path in &paths[..3] {
            cache.stat(path).unwrap();
        }
    }
}

#[test]
fn of_local_files_the_answers_are_those_of_stat() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "12345").unwrap();
    std::fs::create_dir(dir.path().join("dir")).unwrap();
    std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink("nothing", dir.path().join("dangling")).unwrap();
    let all = ["file", "dir", "link", "dangling", "no"].map(|name| dir.path().join(name));
    let (alone, many) = (MetadataCache::new(), MetadataCache::new());
    for (path, found) in all.iter().zip(many.stat_many(&all)) {
        match (alone.stat(path), found) {
            (Ok(one), Ok(other)) => assert_eq!(one, other, "{path:?}"),
            (Err(one), Err(other)) => {
                assert_eq!(one.io_kind(), other.io_kind());
                assert!(
                    other.to_string().contains(&*path.to_string_lossy()),
                    "{other}"
                );
            }
            (one, other) => panic!("{path:?}: {one:?} {other:?}"),
        }
    }
    assert_eq!(many.metrics().backend_calls, 1);
    let kept = CacheOptions::new().immutable(true).build().unwrap();
    kept.stat_many(&all[..3]);
    assert_eq!(kept.stat(&all[2]).unwrap().size(), 5);
    assert_eq!(kept.metrics().backend_calls, 1);
}
